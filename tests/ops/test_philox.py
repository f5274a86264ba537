"""Philox by operators on integers: against known answers, Python's integers, and Triton's own generator."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest
import torch

from verify.ops.philox import _to_24_bits, philox, philox_uniform

# Known answers of Random123 1.14 (tests/kat_vectors, philox4x32 10): counter, key, words.
KNOWN = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


def by_integers(counter: list[int], key: list[int]) -> list[int]:
    """The published algorithm in Python's integers."""
    (a, b, c, d), (k, m) = counter, key
    for _ in range(10):
        p, q = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (q >> 32) ^ b ^ k, q & 0xFFFFFFFF, (p >> 32) ^ d ^ m, p & 0xFFFFFFFF
        k, m = (k + 0x9E3779B9) % 2**32, (m + 0xBB67AE85) % 2**32
    return [a, b, c, d]


def signed(low: int, high: int) -> int:
    number = low | high << 32
    return number - (1 << 64) if number >> 63 else number


def words(counter: list[int], key: list[int]) -> list[int]:
    offset = torch.tensor([signed(*counter[:2])])
    return [int(each) for each in philox(signed(*key), offset, signed(*counter[2:]))]


@pytest.mark.parametrize(("counter", "key", "known"), KNOWN)
def test_known_answers(counter: list[int], key: list[int], known: list[int]) -> None:
    assert words(counter, key) == known == by_integers(counter, key)


def test_numbers_are_rounded_as_float32_rounds_them() -> None:
    generator = random.Random(1)
    numbers = [generator.getrandbits(bits) for bits in range(57) for _ in range(40)]
    numbers += [(1 << bits) + step for bits in range(24, 55) for step in (-1, 0, 1, 1 << (bits - 24), 3 << (bits - 24))]
    found = _to_24_bits(torch.tensor(numbers)).tolist()
    assert found == [int(np.float32(Fraction(number))) if number < 2**53 else rounded(number) for number in numbers]


def rounded(number: int) -> int:
    unit = 1 << max(number.bit_length() - 24, 0)
    return round(Fraction(number, unit)) * unit


def test_words_and_numbers_are_those_of_triton() -> None:
    triton = pytest.importorskip("triton")
    tl = triton.language

    @triton.jit
    def drawn(word_ptr, number_ptr, seed, BLOCK: tl.constexpr):
        place = tl.arange(0, BLOCK)
        a, b, c, d = tl.randint4x(seed, place * 77 + 5)
        tl.store(word_ptr + place, a)
        tl.store(word_ptr + BLOCK + place, b)
        tl.store(word_ptr + 2 * BLOCK + place, c)
        tl.store(word_ptr + 3 * BLOCK + place, d)
        tl.store(number_ptr + place, tl.rand(seed, place * 77 + 5))

    count, seed = 2048, 0x1234_5678_9ABC
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = torch.empty(4, count, dtype=torch.int32, device=device)
    numbers = torch.empty(count, dtype=torch.float32, device=device)
    drawn[(1,)](found, numbers, seed, BLOCK=count)
    expected = philox(seed, torch.arange(count) * 77 + 5)
    assert torch.equal(found.cpu().long() & 0xFFFFFFFF, torch.stack(expected))
    assert torch.equal(numbers.cpu().double(), philox_uniform(expected[0]))


def test_the_largest_number_is_below_1() -> None:
    ends = philox_uniform(torch.tensor([0, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]))
    assert ends[0] == ends[3] == 0.0 and ends[1] == ends[2] < 1.0
