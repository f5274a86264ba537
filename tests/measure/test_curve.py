"""Error against input: every element counted once, the true maximum of every bin, merging, joining, rounding up."""

from __future__ import annotations

import bisect
import math

import pytest
import torch

from tests.truth.every_value import all_values
from verify import ops
from verify.backends import Interpreter
from verify.measure.curve import DIGITS, bins_of, edges_for, peaks
from verify.measure.tally import Peak, merged_peaks
from verify.records.figure import rounded_up
from verify.records.record import number, value_of
from verify.truth import formats
from verify.truth.formats import Format
from verify.truth.ulp import bits_of, from_bits

NAMES = ("bfloat16", "float16", "float32", "float64")
OPS = ("gelu", "silu", "geglu")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("op", OPS)
def test_edges_cover_the_format_symmetrically_in_a_few_hundred_bins(op: str, name: str) -> None:
    found, fmt = ops.get(op), formats.named(name)
    edges = edges_for(found, found.resolve({}), fmt)
    assert list(edges) == sorted(set(edges))
    assert edges[-1] == -edges[0] == float(fmt.max_finite)
    assert [-edge for edge in reversed(edges)] == list(edges)
    assert 0.0 in edges
    assert 60 < len(edges) < 400
    # fine where gelu bends: eight bins between 1 and 2
    assert [edge for edge in edges if 1 <= edge < 2] == [1 + k / 8 for k in range(8)]


def peaks_of(
    values: torch.Tensor, error: torch.Tensor, nan: torch.Tensor, edges: tuple[float, ...], base: int = 0
) -> list[Peak]:
    """The peaks over all finite values."""
    bins = torch.where(torch.isfinite(values), bins_of(values, edges), -1)
    wrong = torch.where(nan, math.nan, error)
    fmt = formats.of(values.dtype)
    return peaks(bins, wrong, size=len(edges) - 1, base=base, fmt=fmt, bits=lambda at: bits_of(values[at]))


def curve(sizes: tuple[float, ...], counts: tuple[int, ...], bits: tuple[int, ...]) -> list[Peak]:
    rows = enumerate(zip(sizes, counts, bits, strict=True))
    return [Peak(place, count, number(size), place, pattern) for place, (size, count, pattern) in rows if count]


def by_hand(fmt: Format, patterns: list[int], errors: list[float], edges: tuple[float, ...]) -> list[tuple]:
    """Count, maximum and input of each bin, element by element."""
    rows: list[tuple[int, float, int | None]] = [(0, 0.0, None)] * (len(edges) - 1)
    for error, bits in zip(errors, patterns, strict=True):
        if not fmt.is_finite(bits):
            continue
        place = min(bisect.bisect_right(edges, fmt.to_float(bits)) - 1, len(rows) - 1)
        count, best, where = rows[place]
        if where is None or (not math.isnan(best) and (math.isnan(error) or error > best)):
            best, where = error, bits
        rows[place] = (count + 1, best, where)
    return [(count, repr(best), where) for count, best, where in rows]


def test_every_bin_of_every_float16_against_plain_python() -> None:
    fmt = formats.named("float16")
    op = ops.get("gelu")
    edges = edges_for(op, op.resolve({}), fmt)
    values = all_values(fmt)
    generator = torch.Generator().manual_seed(5)
    error = torch.randint(0, 50, (values.numel(),), generator=generator).double()  # many ties: the first must win
    error[torch.randint(0, values.numel(), (40,), generator=generator)] = math.inf
    nan = torch.zeros(values.numel(), dtype=torch.bool)
    nan[torch.randint(0, values.numel(), (30,), generator=generator)] = True
    sign = torch.where(torch.rand(values.numel(), generator=generator) < 0.5, -1.0, 1.0)
    found = {peak.bin: peak for peak in peaks_of(values, error * sign, nan, edges)}
    plain = [math.nan if bad else size for size, bad in zip(error.tolist(), nan.tolist(), strict=True)]
    wanted = by_hand(fmt, list(range(1 << 16)), plain, edges)
    got = [
        (found[place].count, repr(value_of(found[place].ulp)), found[place].bits)
        if place in found
        else (0, "0.0", None)
        for place in range(len(edges) - 1)
    ]
    assert got == wanted
    assert sum(peak.count for peak in found.values()) == (1 << 16) - 2 * 1024  # infinities and NaN are left out


def test_merging_halves_gives_the_whole() -> None:
    fmt = formats.named("bfloat16")
    op = ops.get("silu")
    edges = edges_for(op, op.resolve({}), fmt)
    values = all_values(fmt)
    error = (torch.arange(values.numel()) % 97).double()
    nan = torch.arange(values.numel()) % 4001 == 7

    def part(start: int, stop: int) -> list[Peak]:
        where = slice(start, stop)
        return peaks_of(values[where], error[where], nan[where], edges, start)

    whole, first, second = part(0, 1 << 16), part(0, 30_001), part(30_001, 1 << 16)
    assert merged_peaks(first, second) == merged_peaks(second, first) == whole


def test_the_curve_of_a_run_has_the_maximum_of_the_run() -> None:
    import verify
    from verify.measure.kernel import measure_kernel
    from verify.measure.requests import Measure

    @verify.kernel(op="gelu", dtypes=["bfloat16"], gradients=False)
    def textbook(x):
        return x * 0.5 * (1.0 + torch.erf(x / 2**0.5))

    run = measure_kernel(textbook, Measure("a.py::textbook"), Interpreter("cpu"))
    [result] = run.results
    assert result.curve is not None
    assert result.curve.operand == "x"
    assert sum(result.curve.counts) == result.figures.n
    tops = [value_of(value) for value in result.curve.max_ulp]
    assert max(tops) == rounded_up(value_of(result.figures.max_ulp), DIGITS)
    assert result.baseline is not None
    assert max(value_of(value) for value in result.curve.baseline) == rounded_up(
        value_of(result.baseline.max_ulp), DIGITS
    )
    # the worst input of the highest bin is the worst input of the result
    place = tops.index(max(tops))
    assert result.curve.worst[place] in result.worst[0].inputs["x"]
    fmt = formats.named("bfloat16")
    for at, text in enumerate(result.curve.worst):
        x = float(from_bits(torch.tensor([int(text, 16)]), fmt)[0])
        assert value_of(result.curve.edges[at]) <= x <= value_of(result.curve.edges[at + 1])
