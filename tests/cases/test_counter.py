"""The counter generator against Python integers, in chunks and whole."""

from __future__ import annotations

from fractions import Fraction

import pytest

from verify.cases import counter

MASK = (1 << 64) - 1


def word(seed: int, stream: str, index: int) -> int:
    """SplitMix64's finaliser in unbounded integers."""
    state = ((index + 1) * 0x9E3779B97F4A7C15 + counter.key_of(seed, stream)) & MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


def test_words() -> None:
    found = counter.words(5, "x", 20_000).tolist()  # several chunks
    assert [item & MASK for item in found] == [word(5, "x", i) for i in range(20_000)]


def test_uniform_is_the_top_53_bits() -> None:
    found = counter.uniform(5, "u", 200).tolist()
    assert [Fraction(item) for item in found] == [Fraction(word(5, "u", i) >> 11, 1 << 53) for i in range(200)]


@pytest.mark.parametrize("limit", [1, 2, 3, 1000, (1 << 31) - 1, 1 << 31])
def test_below_is_the_upper_half_modulo_the_limit(limit: int) -> None:
    found = counter.below(9, "b", 300, limit).tolist()
    assert found == [(word(9, "b", i) >> 32) % limit for i in range(300)]
    assert all(0 <= item < limit for item in found)


def test_bell_is_the_exact_sum_of_twelve_uniforms() -> None:
    for place, value in enumerate(counter.bell(3, "g", 100).tolist()):
        words = [word(3, f"g/{part}", place) for part in range(6)]
        total = sum((w & 0xFFFFFFFF) + (w >> 32) for w in words)
        assert Fraction(value) == Fraction(total, 1 << 32) - 6


def test_the_key_is_the_start_of_a_sha256() -> None:
    """sha256("0/x"), first eight bytes, little endian: fixed for good, or every case changes."""
    import hashlib

    for seed, stream in ((0, "x"), (12, "upstream/y")):
        text = hashlib.sha256(f"{seed}/{stream}".encode()).hexdigest()[:16]
        assert counter.key_of(seed, stream) == int("".join(reversed([text[i : i + 2] for i in range(0, 16, 2)])), 16)
