"""Makes the error curve: the largest error in each bin of the operand that decides how an element behaves.

A bin is a fixed share of an octave, so all bins of one octave have equally many floating-point numbers. Bins are fine
near the op's regimes, one octave wide further out, and sixteen octaves wide far away. They depend on the op and the
format alone, so curves of one op merge and compare bin by bin. The record joins neighbouring bins that look alike in a
plot, and rounds maxima up to three digits, so no maximum is too small.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from verify.measure.counting import counted, reduced
from verify.measure.tally import Peak
from verify.ops.geometry import Params
from verify.ops.op import Op, Problem
from verify.records.figure import ordered, rounded_up
from verify.records.record import Curve, number, value_of
from verify.truth.formats import Format
from verify.truth.ulp import Errors, widen

FINE = 8  # bins per octave near the regimes
NEAR = 8  # from 2^-8 to 2^8 there is at least one bin per octave
FAR = 16  # octaves per bin beyond that range
_DEFAULT = (0.5, 8.0)  # where functions without named regimes bend
DIGITS = 3  # digits of a maximum
# neighbours are joined if their errors differ by up to this ratio: half a pixel of a plot over five decades
ALIKE = 1.05
ROUNDED, FAITHFUL = 0.5, 1.0  # ULP; neighbours on two sides of one of these are not joined


def edges_for(op: Op, params: Params, fmt: Format) -> tuple[float, ...]:
    """Returns the bin edges from -max to max of a format, ascending. The last bin includes its upper end."""
    named = [edge for regime in op.landmarks.regimes(params) for edge in (regime.low, regime.high)]
    sizes = [abs(edge) for edge in named if math.isfinite(edge) and 2.0**-NEAR <= abs(edge) < 2.0**NEAR] or _DEFAULT
    first, last = math.frexp(min(sizes))[1] - 1, math.frexp(max(sizes))[1] - 1
    largest = float(fmt.max_finite)
    lowest = fmt.min_ulp_exponent  # exponent of the smallest subnormal number
    found = {2.0**k for k in range(max(-NEAR, lowest), NEAR + 1)}
    found |= {math.ldexp(1.0 + step / FINE, k) for k in range(first, last + 1) for step in range(FINE)}
    found |= {2.0**k for k in range(-NEAR, lowest, -FAR)} | {2.0**k for k in range(NEAR, fmt.emax + 1, FAR)}
    positive = sorted(edge for edge in found if edge < largest) + [largest]
    return (*(-edge for edge in reversed(positive)), 0.0, *positive)


def bins_of(values: Tensor, edges: Sequence[float]) -> Tensor:
    """Returns the bin of every value, flat. The bins of infinite and NaN values have no meaning."""
    numbers = widen(values.detach()).reshape(-1)
    inner = torch.tensor(edges[1:-1], dtype=torch.float64, device=numbers.device)
    return torch.bucketize(numbers, inner, right=True)  # an edge belongs to the bin above it


def peaks(
    bins: Tensor, error: Tensor, *, size: int, base: int, fmt: Format, bits: Callable[[Tensor], Tensor]
) -> list[Peak]:
    """Returns the peak of every bin that has an element. A bin outside 0 .. size - 1 excludes an element.

    error: float64, flat; may be NaN.
    base: the place of the first element.
    fmt, bits: `bits` returns the patterns, in this format, of the inputs at some positions.
    """
    owner = torch.where((bins < 0) | (bins >= size), size, bins)  # one more bin collects the excluded elements
    counts = counted(owner, size + 1)[:size]
    # the bits of non-negative numbers have the order of the numbers, with NaN above infinity
    rank = error.abs().view(torch.int64)
    best = reduced(rank, owner, size + 1, "amax", -1)
    position = torch.arange(rank.numel(), device=rank.device)
    at_peak = torch.where(rank == best[owner], position, rank.numel())
    used = torch.nonzero(counts).reshape(-1)
    first = reduced(at_peak, owner, size + 1, "amin", rank.numel())[used]
    columns = (used, counts[used], best[used].view(torch.float64), first, bits(first))
    mask = (1 << fmt.bits) - 1
    return [
        Peak(bin_, count, number(highest), base + place, pattern & mask)
        for bin_, count, highest, place, pattern in zip(*(column.tolist() for column in columns), strict=True)
    ]


def recorded(
    operand: str, fmt: Format, edges: Sequence[float], peaks_: Sequence[Peak], baseline: Sequence[Peak] | None
) -> Curve:
    """Returns the curve for the record, beside the baseline's maxima in the same bins."""
    size = len(edges) - 1
    counts, inputs, maxima = [0] * size, [0] * size, [0.0] * size
    for peak in peaks_:
        counts[peak.bin], inputs[peak.bin], maxima[peak.bin] = peak.count, peak.bits, value_of(peak.ulp)
    lines = [[rounded_up(value, DIGITS) for value in maxima]]
    if baseline is not None:
        beside = {peak.bin: value_of(peak.ulp) for peak in baseline}
        lines.append([rounded_up(beside.get(place, 0.0), DIGITS) for place in range(size)])
    groups: list[list[int]] = []
    for place, count in enumerate(counts):
        if groups and bool(counts[groups[-1][0]]) == bool(count):
            together = [*groups[-1], place]
            if all(_alike([line[at] for at in together]) for line in lines):
                groups[-1] = together
                continue
        groups.append([place])
    # of equal errors the first bin's input remains
    worst = [max(group, key=lambda at: ordered(maxima[at])) for group in groups]
    highest = [[max((line[at] for at in group), key=ordered) for group in groups] for line in lines]
    return Curve(
        operand=operand,
        edges=[*(number(edges[group[0]]) for group in groups), number(edges[-1])],
        counts=[sum(counts[at] for at in group) for group in groups],
        max_ulp=[number(value) for value in highest[0]],
        worst=[fmt.hex(inputs[at]) if counts[at] else "" for at in worst],
        baseline=[] if baseline is None else [number(value) for value in highest[1]],
    )


def _alike(errors: Sequence[float]) -> bool:
    """True if a plot shows these errors as one.

    They differ by at most 5% and are on one side of `ROUNDED` and of `FAITHFUL`.
    """
    if len({repr(error) for error in errors}) == 1:
        return True
    if not all(map(math.isfinite, errors)):
        return False
    low, high = min(errors), max(errors)
    return high <= ALIKE * low and all((low <= line) == (high <= line) for line in (ROUNDED, FAITHFUL))


LEVELS = (32, 8, 2)  # parts of an octave, the finest first
ENOUGH = 6  # elements of PyTorch's in a part
_BEYOND = 2.0**1023  # infinities and NaN are in its part
_MIDDLE = 1100  # exponents of float64 are above its negative

Peaks = dict[int, tuple[int, float]]  # by part: the number of elements, and the largest error


def coordinate(op: Op, problem: Problem, truth: Tensor) -> Tensor:
    """Returns the number by which each element of a result has its neighbours."""
    given = [each for each in problem.inputs.values() if each is not None and each.is_floating_point()]
    beside = [each for each in given if each.shape == truth.shape]
    if beside and not op.meaning.shipped and op.program(problem)[0].elementwise:
        return widen(beside[0])
    return truth


def peaks_of(errors: Errors, coordinates: Tensor, apart: Tensor) -> Peaks:
    """Returns the largest error in each neighbourhood, for kernels that are compared with PyTorch.

    PyTorch may be beyond the limit too: its gelu loses its tail. That excuses a kernel there and nowhere else. A
    neighbourhood is 1/32 of an octave, or as much more as gives PyTorch some elements, of the operand of an elementwise
    function, else of the exact result. The elements in the mask `apart` are excluded.
    """
    size = errors.least[-1].double()
    size = torch.where(errors.nonfinite | errors.nan | torch.isnan(size), math.inf, size).reshape(-1)
    numbers = coordinates.reshape(-1).to(size.device).double()
    keep = ~apart.to(size.device)
    numbers, size = numbers[keep], size[keep]
    mantissa, exponent = torch.frexp(numbers.abs().clamp(max=_BEYOND).nan_to_num(_BEYOND))
    size_part = (exponent + _MIDDLE) * LEVELS[0] + ((2 * mantissa - 1) * LEVELS[0]).long() + 1
    part = size_part * torch.sign(numbers).nan_to_num(1.0).long()
    names, places, counts = torch.unique(part, return_inverse=True, return_counts=True)
    most = torch.zeros(len(names), dtype=torch.float64, device=size.device).scatter_reduce_(0, places, size, "amax")
    return dict(zip(names.tolist(), zip(counts.tolist(), most.tolist(), strict=True), strict=True))


def join(into: Peaks, more: Mapping[int, tuple[int, float]], level: int = LEVELS[0]) -> Peaks:
    """Adds peaks to others, in parts of a level."""
    for name, (count, largest) in more.items():
        part = _coarse(name, level)
        before = into.get(part, (0, 0.0))
        into[part] = before[0] + count, max(before[1], largest)
    return into


def excess(mine: Peaks, theirs: Peaks, limit: float) -> float:
    """Returns the largest ratio of an error beyond the limit to PyTorch's largest near it; 0 if none is beyond."""
    coarse = [join({}, theirs, level) for level in LEVELS]
    largest = 0.0
    for name, (_, error) in mine.items():
        if error <= limit:
            continue
        levels = [each.get(_coarse(name, level), (0, 0.0)) for level, each in zip(LEVELS, coarse, strict=True)]
        beside = next((most for count, most in levels if count >= ENOUGH), levels[-1][1])
        largest = max(largest, 1.0 if math.isinf(beside) else error / beside if beside else math.inf)
    return largest


def _coarse(name: int, level: int) -> int:
    size = (abs(name) - 1) // (LEVELS[0] // level) + 1 if name else 0
    return size if name >= 0 else -size
