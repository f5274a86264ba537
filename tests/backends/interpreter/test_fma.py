"""fma against exact rational numbers and their rounding by `verify.truth.formats`."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from verify.backends.interpreter import fma as module
from verify.backends.interpreter.fma import fma
from verify.truth.formats import named

#: Triton type -> (numpy type, bits of the significand, exponent of the smallest subnormal, pattern type)
FORMATS = {
    "fp64": (np.float64, 53, -1074, np.uint64),
    "fp32": (np.float32, 24, -149, np.uint32),
    "fp16": (np.float16, 11, -24, np.uint16),
}


def wrong(x: np.ndarray, y: np.ndarray, z: np.ndarray, got: np.ndarray, name: str, direction: str = "rn") -> list[int]:
    """Indices whose result is not the rounding of x y + z, decided by exact rational numbers."""
    form, bad = named(f"float{got.dtype.itemsize * 8}"), []
    patterns = got.view(FORMATS[name][3]).tolist()
    for i, (*given, bits) in enumerate(zip(x.tolist(), y.tolist(), z.tolist(), patterns, strict=True)):
        a, b, c = map(Fraction, given)
        exact = a * b + c
        if direction != "rn":
            error = form.error(bits, exact)
            right = -1 < error <= 0 if exact > 0 else 0 <= error < 1
        else:  # the sign of a sum that is zero is another test's
            right = bits == form.round(exact) if exact else bits in (0, form.sign_bit)
        if not right:
            bad.append(i)
    return bad


def random_bits(rng: np.random.Generator, name: str, n: int) -> np.ndarray:
    kind, _, _, pattern = FORMATS[name]
    values = rng.integers(0, np.iinfo(pattern).max, n, dtype=pattern, endpoint=True).view(kind)
    return np.where(np.isfinite(values), values, kind(1.5)).astype(kind)


def adversaries(name: str, n: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Random patterns, cancellation, ties, subnormal results, sticky bits far away."""
    kind, precision, least, _ = FORMATS[name]
    rng = np.random.default_rng([n, precision])

    def small(bits: int, low: int, high: int) -> np.ndarray:
        return np.ldexp(rng.integers(-(2**bits), 2**bits, n).astype(np.float64), rng.integers(low, high, n))

    emin, emax = least + precision - 1, {53: 1023, 24: 127, 11: 15}[precision]
    sets = [tuple(random_bits(rng, name, n) for _ in range(3))]
    x, y = rng.normal(size=(2, n)).astype(kind)
    sets.append((x, y, -(x * y)))
    sets.append((x, y, (-(x * y) * kind(1 + 2.0 ** (1 - precision))).astype(kind)))
    few = max(precision // 2 - 1, 3)
    sets.append((small(few, -few, 0), small(few, -few, 0), small(3, -few - precision, 2)))
    half = emin // 2
    sets.append(
        (small(few, half - 6, half), small(few, emin - half - few - 6, emin - half), small(4, least, least + 6))
    )
    sets.append((1 + small(4, 1 - precision, 2 - precision), 1 + small(4, 1 - precision, 2 - precision),
                 small(2, -2 * precision - 4, -precision)))  # fmt: skip
    up = emax // 2
    sets.append(
        (small(few, up - few, up - few + 2), small(few, up - few, up - few + 2), small(few, emax - few - 4, emax - few))
    )
    # x y is a power of two less a hair that only the full product shows; with z it makes a false tie, once
    # among normal results and once among subnormal ones.
    hair = 2.0 ** (1 - precision)
    sets.append((np.full(n, 1 + hair), np.full(n, 1 - hair), 2.0**precision + 2.0 * rng.integers(-200, 200, n)))
    odd = np.ldexp(2.0 * rng.integers(-200, 200, n) + 1, least)
    low = np.ldexp(1 - hair, least - 1 - half)
    if low * 2.0**-half != 0 and low == np.float64(low).astype(kind):
        sets.append((np.full(n, np.ldexp(1 + hair, half)), np.full(n, low), odd))
    with np.errstate(over="ignore", under="ignore"):
        cast = [tuple(np.asarray(a).astype(kind) for a in s) for s in sets]
    return [tuple(np.where(np.isfinite(a), a, kind(2)) for a in s) for s in cast]


@pytest.mark.parametrize(("name", "n"), [("fp64", 6000), ("fp32", 6000), ("fp16", 4000)])
def test_fma_is_the_rounding_of_the_exact_sum(name: str, n: int) -> None:
    checked = 0
    for x, y, z in adversaries(name, n):
        bad = wrong(x, y, z, fma(x, y, z, name), name)
        assert not bad, (len(bad), [float(a[bad[0]]).hex() for a in (x, y, z)])
        checked += len(x)
    assert checked == (9 if name != "fp16" else 8) * n


def test_fma_toward_zero() -> None:
    name, direction = "fp32", "rz"
    for x, y, z in adversaries(name, 1000)[:-1]:
        got = fma(x, y, z, name, direction)
        keep = np.isfinite(got) & (np.abs(got) < np.finfo(got.dtype).max)
        x, y, z, got = x[keep], y[keep], z[keep], got[keep]
        bad = wrong(x, y, z, got, name, direction)
        assert not bad, (len(bad), [float(a[bad[0]]).hex() for a in (x, y, z, got)])


def test_few_extreme_elements_leave_the_others_to_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """One infinity in a block took 2.4 times the seconds of a block without one."""
    rng, count = np.random.default_rng(7), 600
    x, y, z = (rng.standard_normal(count) * np.exp2(rng.integers(-90, 90, count)) for _ in "xyz")
    extreme = np.array([np.inf, -np.inf, np.nan, 1e308, 5e-324, 2.0**-1000, 0.0])
    for each in (x, y, z):
        each[rng.integers(0, count, 60)] = rng.choice(extreme, 60)
    alone = np.concatenate([fma(x[i : i + 1], y[i : i + 1], z[i : i + 1], "fp64") for i in range(count)])
    careful, sizes = module._scaled, list[int]()
    monkeypatch.setattr(module, "_scaled", lambda x, *rest: sizes.append(x.size) or careful(x, *rest))
    found = fma(x, y, z, "fp64")
    assert len(sizes) == 1 and sizes[0] < count / 3
    assert np.array_equal(found.view(np.int64)[~np.isnan(alone)], alone.view(np.int64)[~np.isnan(alone)])
    assert np.array_equal(np.isnan(found), np.isnan(alone))
