"""Casts, against PyTorch's casts, against exact rational rounding, and against PTX's stated rules."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from verify.backends.interpreter import casts
from verify.truth.formats import named

SIXTEEN = {"bf16": torch.bfloat16, "fp16": torch.float16}
EIGHT = {"fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2}
FORMATS = {"bf16": "bfloat16", "fp16": "float16", "fp8e4nv": "float8_e4m3fn", "fp8e5": "float8_e5m2"}


def bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def torch_cast(values: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    out = torch.from_numpy(values.copy()).to(dtype)
    size = out.element_size()
    return out.view(torch.int16 if size == 2 else torch.uint8).numpy().view(f"u{size}")


def all_values(name: str) -> np.ndarray:
    """Every finite value of a narrow type as float32, in order."""
    codes = np.arange(2**16 if name in SIXTEEN else 2**8)
    storage = codes.astype(f"u{casts.STORAGE[name].itemsize}").view(casts.STORAGE[name])
    values = casts.widen(storage, name)
    return np.unique(values[np.isfinite(values)])


def midpoints(name: str) -> np.ndarray:
    """Every tie between two neighbours as float32 (exact), with the float32 just below and above it."""
    v = all_values(name).astype(np.float64)
    middle = ((v[:-1] + v[1:]) / 2).astype(np.float32)
    assert np.array_equal(middle.astype(np.float64), (v[:-1] + v[1:]) / 2)
    return np.concatenate([middle, np.nextafter(middle, np.float32(-np.inf)), np.nextafter(middle, np.float32(np.inf))])


def same(got: np.ndarray, want: np.ndarray, nan: np.ndarray | None = None) -> None:
    """Equal patterns, where `nan` does not excuse the payload."""
    wrong = bits(got) != bits(want)
    if nan is not None:
        wrong &= ~nan
    assert not wrong.any(), f"{wrong.sum()} differ, first at {np.argmax(wrong)}"


@pytest.mark.parametrize("name", [*SIXTEEN, *EIGHT])
@np.errstate(invalid="ignore")
def test_widening_every_pattern_gives_torchs_value(name: str) -> None:
    size = casts.STORAGE[name].itemsize
    codes = np.arange(2 ** (8 * size)).astype(f"u{size}")
    signed = torch.from_numpy(codes.view(f"i{size}").copy())
    want = signed.view({**SIXTEEN, **EIGHT}[name]).to(torch.float32).numpy()
    got = casts.widen(codes.view(casts.STORAGE[name]), name)
    same(got, want, np.isnan(want) & np.isnan(got))
    same(casts.convert(codes.view(casts.STORAGE[name]), name, "fp64"), want.astype(np.float64), np.isnan(want))


@pytest.mark.parametrize("name", SIXTEEN)
def test_narrowing_to_16_bits_agrees_with_torch_on_values_ties_and_their_neighbours(name: str) -> None:
    big = np.array([np.inf, -np.inf, 3.4e38, -3.4e38, 65519.996, 65520.0, 65536.0, -1e30, 0.0, -0.0], np.float32)
    x = np.concatenate([all_values(name), midpoints(name), big])
    same(casts.narrow(x, name), torch_cast(x, SIXTEEN[name]))


@pytest.mark.parametrize("name", EIGHT)
def test_narrowing_to_8_bits_agrees_with_torch_where_nothing_overflows(name: str) -> None:
    largest = all_values(name).max()
    x = np.concatenate([all_values(name), midpoints(name), np.float32([0.0, -0.0, 1e-30, -1e-30])])
    x = x[np.abs(x) <= largest]
    assert x.size > 400
    same(casts.narrow(x, name), torch_cast(x, EIGHT[name]))


@pytest.mark.parametrize("name", ["bf16", "fp16", "fp8e4nv", "fp8e5"])
def test_float64_is_rounded_once(name: str) -> None:
    """float64 a hair off a tie: through float32 it would become the tie and go to even."""
    fmt = named(FORMATS[name])
    rng = np.random.default_rng(0)
    ties = midpoints(name).astype(np.float64)
    ties = rng.choice(ties, 400)
    x = np.concatenate([ties, ties * (1 + 2.0**-52), ties * (1 - 2.0**-52), ties + np.copysign(5e-324, ties)])
    largest = float(fmt.max_finite)
    x = x[np.abs(x) < largest]
    want = [fmt.round(Fraction(v)) for v in x.tolist()]
    got = bits(casts.narrow(x, name)).astype(int)
    positive_zero = (got & (fmt.sign_bit - 1)) == 0
    assert [g for g, z in zip(got.tolist(), positive_zero, strict=True) if not z] == [
        w for w, z in zip(want, positive_zero, strict=True) if not z
    ]
    assert all(w % fmt.sign_bit == 0 for w, z in zip(want, positive_zero, strict=True) if z)


@pytest.mark.parametrize("source", ["fp32", "fp64"])
@pytest.mark.parametrize("name", ["bf16", "fp16", "fp8e5"])
def test_rtz_never_exceeds_and_is_the_nearest_below(source: str, name: str) -> None:
    x = midpoints(name)
    x = np.concatenate([x, all_values(name)])
    x = x[np.abs(x) <= all_values(name).max()].astype(casts.STORAGE[source])
    if source == "fp64":
        x = np.concatenate([x, np.nextafter(x, 0.0)])
    code = bits(casts.narrow(x, name, "rtz"))
    value = np.abs(casts.widen(code.view(casts.STORAGE[name]), name).astype(np.float64))
    after = np.abs(casts.widen((code + code.dtype.type(1)).view(casts.STORAGE[name]), name).astype(np.float64))
    assert (value <= np.abs(x)).all()
    assert ((after > np.abs(x)) | np.isnan(after)).all()
    assert np.array_equal(code >> (code.dtype.itemsize * 8 - 1), np.signbit(x).astype(code.dtype))


@pytest.mark.parametrize("target", ["bf16", "fp16", "fp32", "fp64"])
@pytest.mark.parametrize("source", ["int64", "uint64", "int32", "int8"])
def test_int_to_float_rounds_once(source: str, target: str) -> None:
    fmt = named({"fp32": "float32", "fp64": "float64", **FORMATS}[target])
    rng = np.random.default_rng(2)
    info = np.iinfo(source)
    tie = [s * ((1 << n) + (1 << (n - p)) + d) for n in range(12, 63) for p in (8, 11, 24, 53) if n > p
           for d in (-1, 0, 1) for s in (1, -1)]  # fmt: skip
    values = [v for v in tie if info.min <= v <= info.max]
    values += rng.integers(info.min, info.max, 300, dtype=source).tolist() + [0, 1, int(info.max), int(info.min)]
    got = bits(casts.int_to_float(np.array(values, dtype=source), target)).tolist()
    overflow = 65520 if target == "fp16" else 2**70
    for v, g in zip(values, got, strict=True):
        want = fmt.round(Fraction(v)) if abs(v) < overflow else (0x7C00 if v > 0 else 0xFC00)
        assert g == want, (v, hex(g), hex(want))


def test_unknown_types_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match="knows the float types fp64, fp32.*got fp8e4b15.*Next:"):
        casts.convert(np.zeros(1, np.uint8), "fp8e4b15", "fp32")
    with pytest.raises(ValueError, match="fp_downcast_rounding is 'rtne' or 'rtz'; got 'up'"):
        casts.narrow(np.zeros(1, np.float32), "bf16", "up")
