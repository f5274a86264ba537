"""A sweep against plain mpmath, split every way, and on kernels that break their contract."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Any

import mpmath
import pytest
import torch

from tests.search.sweep import subjects
from verify.backends import Backend, Interpreter
from verify.cases import Case
from verify.declare.declaration import Kernel
from verify.diagnose.replay import replay
from verify.errors import KernelError, UsageError
from verify.records.record import value_of
from verify.search.sweep import checking
from verify.search.sweep.checking import check
from verify.search.sweep.finishing import finish
from verify.search.sweep.serve import shape_of, space_of
from verify.search.sweep.space import CHUNK, Partial, Space, key_of_value

CPU = Interpreter("cpu")
FORMATS = {"bfloat16": (7, -126, 127), "float16": (10, -14, 15), "float32": (23, -126, 127)}


def swept(kernel: Kernel, dtype: str, on: Backend = CPU, **options: Any) -> tuple[Space, Partial]:
    """A sweep; a Triton kernel's is `on` the session's backend, which may have compiled it for a GPU."""
    space = space_of(kernel, f"tests/search/sweep/subjects.py::{kernel.name}", dtype, **options)
    return space, check(kernel, space, (0, space.chunks), on)


def each_key(monkeypatch: pytest.MonkeyPatch, start: int, stop: int) -> None:
    """One bin of the curve for every input: the sweep then says the error of each."""
    monkeypatch.setattr(checking, "curve_keys", lambda op, params, fmt: list(range(start, stop + 1)))


# -- an oracle that shares nothing with verify: struct, mpmath, and the definition of an ulp ------------------


def number_at(dtype: str, bits: int) -> float:
    if dtype == "bfloat16":
        return struct.unpack("<f", struct.pack("<I", bits << 16))[0]
    code, integer = ("<e", "<H") if dtype == "float16" else ("<f", "<I")
    return struct.unpack(code, struct.pack(integer, bits))[0]


def truth(x: float, slope: bool) -> Any:
    cdf = mpmath.erfc(-mpmath.mpf(x) / mpmath.sqrt(2)) / 2
    if not slope:
        return x * cdf
    return cdf + x * mpmath.exp(-(mpmath.mpf(x) ** 2) / 2) / mpmath.sqrt(2 * mpmath.pi)


def plain_error(dtype: str, got: float, exact: Any) -> tuple[float, bool]:
    """(signed error in ulp, misrounded), by definition; infinity stands one ulp above the largest number."""
    mantissa, low, high = FORMATS[dtype]
    exponent = low if exact == 0 else min(max(int(mpmath.frexp(exact)[1]) - 1, low), high)
    unit = mpmath.mpf(2) ** (exponent - mantissa)
    given = math.copysign(1, got) * mpmath.mpf(2) ** (high + 1) if math.isinf(got) else mpmath.mpf(got)
    steps = given / unit
    error = steps - exact / unit
    tie = abs(error) == 0.5
    return float(error), bool(abs(error) > 0.5 or (tie and int(abs(steps)) % 2 == 1))


def keys_of(dtype: str, keys: Iterator[int] | range) -> Iterator[tuple[int, int, float]]:
    half = 1 << (31 if dtype == "float32" else 15)
    for key in keys:
        bits = key - half if key >= half else (2 * half - 1) - key
        x = number_at(dtype, bits)
        if math.isfinite(x):
            yield key, bits, x


def compare(
    kernel: Kernel, dtype: str, start: int, stop: int, monkeypatch: pytest.MonkeyPatch, on: Backend = CPU
) -> int:
    """Every input from start to stop: same error, same misrounded set. How many there were."""
    each_key(monkeypatch, start, stop)
    space, partial = swept(kernel, dtype, on, bounds=(start, stop))
    width = {16: torch.int16, 32: torch.int32}[space.format.bits]
    found = list(keys_of(dtype, range(start, stop)))
    wrapped = [bits - (1 << space.format.bits) if bits >= space.format.sign_bit else bits for _, bits, _ in found]
    x = torch.tensor(wrapped, dtype=width).view(getattr(torch, dtype)).to(on.device).requires_grad_(True)
    y = kernel.function(x)
    (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
    for name, result in (("y", y.detach()), ("dx", dx)):
        got = [float(item) for item in result.to(torch.float64)]
        bins = {item.bin + start: value_of(item.ulp) for item in partial.parts[name].curve}
        misrounded = 0
        with mpmath.workdps(120):
            for (key, _, place), given in zip(found, got, strict=True):
                error, wrong = plain_error(dtype, given, truth(place, name == "dx"))
                misrounded += wrong
                assert abs(bins[key] - abs(error)) <= 1e-6 * max(1.0, abs(error)), (name, place, error)
                # the set, not only its size: away from ties an error of the sweep says the same
                assert wrong == (bins[key] > 0.5) or abs(abs(error) - 0.5) < 1e-6
        regimes = partial.parts[name].regimes
        assert misrounded == sum(item.misrounded for label, item in regimes.items() if "NaN" not in label)
        assert sum(item.undecided for item in regimes.values()) == 0
    return len(found)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_window_equals_plain_mpmath(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    space = space_of(subjects.naive, "k", dtype)
    start = key_of_value(space.format, -1.5)
    assert compare(subjects.naive, dtype, start, start + 400, monkeypatch) == 400


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["naive", "good"])
def test_all_16_bit_inputs_equal_plain_mpmath(
    dtype: str, name: str, monkeypatch: pytest.MonkeyPatch, backend: Backend
) -> None:
    count = compare(getattr(subjects, name), dtype, 0, 1 << 16, monkeypatch, backend if name == "good" else CPU)
    assert count == {"bfloat16": 65_280, "float16": 63_488}[dtype]


@pytest.mark.slow
def test_a_hundred_thousand_float32_inputs_equal_plain_mpmath(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 windows at random places of |x| < 16, where a float32 GELU is neither x nor zero."""
    generator = torch.Generator().manual_seed(5)
    low, high = (key_of_value(space_of(subjects.naive, "k", "float32").format, value) for value in (-16.0, 16.0))
    starts = torch.randint(low, high - 1000, (100,), generator=generator).tolist()
    assert sum(compare(subjects.naive, "float32", start, start + 1000, monkeypatch) for start in starts) == 100_000


# -- splitting ---------------------------------------------------------------------------------------


def test_any_split_gives_the_same_bytes() -> None:
    border = (space_of(subjects.good, "k", "float32").format.sign_bit + 0x3F800000) // CHUNK * CHUNK
    space = space_of(subjects.naive, "k", "float32", bounds=(border - 3000, border + 2000), baseline=True)
    whole = check(subjects.naive, space, (0, 2), CPU)
    first, second = check(subjects.naive, space, 0, CPU), check(subjects.naive, space, 1, CPU)
    assert first.merge(second) == second.merge(first) == whole
    assert finish(subjects.naive, space, whole) == finish(subjects.naive, space, second.merge(first))
    part = finish(subjects.naive, space, first).results[0]
    assert part.basis.kind == "observed" and part.basis.n == 3000
    assert whole.parts["baseline y"].regimes.keys() == whole.parts["y"].regimes.keys()


def test_the_record_of_single_results_is_that_of_all() -> None:
    space = space_of(subjects.naive, "k", "bfloat16", baseline=True)
    partial = check(subjects.naive, space, 0, CPU)
    alone = [finish(subjects.naive, space, partial, only=(name,)).results for name in space.results]
    assert [item for found in alone for item in found] == finish(subjects.naive, space, partial).results


def test_chunks_that_do_not_exist_are_refused() -> None:
    space = space_of(subjects.good, "k", "bfloat16")
    with pytest.raises(UsageError, match="the space has chunks 0 to 0; received 0 to 1"):
        check(subjects.good, space, (0, 2), CPU)


# -- what cannot be swept, and what must not pass --------------------------------------------------------


def test_what_can_be_enumerated() -> None:
    assert shape_of(subjects.good.op) == "unary"
    assert shape_of(subjects.geglu.op) == "packed pairs"
    assert shape_of(subjects.split.op) == "pairs"
    assert shape_of(subjects.softmax.op) is None
    with pytest.raises(UsageError, match="elementwise ops"):
        space_of(subjects.softmax, "k", "float32")
    with pytest.raises(UsageError, match="has results y, dx; received 'dz'"):
        space_of(subjects.good, "k", "float32", results=("dz",))
    with pytest.raises(UsageError, match="bfloat16 has no number in the requested range"):
        space_of(subjects.good, "k", "bfloat16", bounds=(1.001, 1.002))


def test_one_nan_among_all_inputs_is_found() -> None:
    space, partial = swept(subjects.nan_at_one, "bfloat16", results=("y",))
    result = finish(subjects.nan_at_one, space, partial).results[0]
    assert result.status == "wrong" and result.figures.max_ulp == "nan" and result.figures.nonfinite == 1
    assert result.worst[0].inputs["x"] == "1 (0x3f80)" and result.worst[0].got == "nan"
    assert result.basis.kind == "exhaustive" and result.basis.n == 65_536


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("in_place", "its inputs; x differs"),
        ("wide_output", "must return y as torch.bfloat16"),
    ],
)
def test_a_broken_contract_is_an_error(name: str, message: str) -> None:
    with pytest.raises(KernelError, match=message):
        swept(getattr(subjects, name), "bfloat16", results=("y",))


def test_a_missing_gradient_is_said() -> None:
    space, partial = swept(subjects.detached, "bfloat16")
    assert partial.notes == ["no gradient dx: autograd has no path to it"]
    assert [item.output for item in finish(subjects.detached, space, partial).results] == ["y"]


# -- the record --------------------------------------------------------------------------------------


@pytest.mark.parametrize("result", ["y", "dx"])
def test_the_worst_input_replays(result: str) -> None:
    space, partial = swept(subjects.naive, "bfloat16", bounds=(-2.0, -0.5), baseline=True)
    found = next(item for item in finish(subjects.naive, space, partial).results if item.output.startswith(result))
    assert found.output == f"{result} (-2 to -0.5)" and found.source == "sweep" and found.certificate
    worst = found.worst[0]
    text = worst.origin.case
    again = replay(subjects.naive, space.target, CPU, Case.from_json(text), result=result, index=0)
    assert (again.worst.got_hex, again.worst.ulp, again.worst.truth) == (worst.got_hex, worst.ulp, worst.truth)
    assert abs(value_of(worst.ulp)) == value_of(found.figures.max_ulp)
    assert found.baseline is not None and found.baseline_worst


def test_a_packed_gradient_replays_each_half(backend: Backend) -> None:
    space = space_of(subjects.geglu, "k", "bfloat16", results=("dx",), bounds=(2.0, 2.0))
    partial = check(subjects.geglu, space, 0, backend)
    result = finish(subjects.geglu, space, partial).results[0]
    assert result.basis.n == 2 * 65_536 and result.status == "ok"
    for worst in result.worst:
        index = worst.origin.index
        text = worst.origin.case
        again = replay(subjects.geglu, "k", backend, Case.from_json(text), result="dx", index=index)
        assert (again.worst.got_hex, again.worst.ulp) == (worst.got_hex, worst.ulp)
