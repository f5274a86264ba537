"""Error against input: the largest error in each bin of the operand that decides how an element behaves.

A bin is a fixed share of an octave, so all bins of one octave hold equally many floating-point numbers: fine where
the op's regimes lie, an octave each around them, sixteen octaves each far away. The bins depend on the op and the
format alone, so envelopes of the same op merge and compare bin by bin. For the record neighbours that say the same
are joined, and maxima are rounded up to three digits: a maximum that is read off is never too small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal

import torch
from torch import Tensor

from verify.formats import Format
from verify.ops.op import Op, Params
from verify.record import Curve, number
from verify.ulp import bits_of, widen

FINE = 8  # bins per octave where the regimes lie
NEAR = 8  # 2^-8 to 2^8 is drawn octave by octave
FAR = 16  # octaves per bin beyond
_DEFAULT = (0.5, 8.0)  # where functions bend that name no regimes


def edges_for(op: Op, params: Params, fmt: Format) -> tuple[float, ...]:
    """Bin edges from -max to max of a format, ascending; the last bin holds its upper end too."""
    named = [edge for regime in op.regimes(params) for edge in (regime.low, regime.high)]
    sizes = [abs(edge) for edge in named if math.isfinite(edge) and 2.0**-NEAR <= abs(edge) < 2.0**NEAR] or _DEFAULT
    first, last = math.frexp(min(sizes))[1] - 1, math.frexp(max(sizes))[1] - 1
    largest = float(fmt.max_finite)
    lowest = fmt.min_ulp_exponent  # of the smallest subnormal number
    found = {2.0**k for k in range(max(-NEAR, lowest), NEAR + 1)}
    found |= {math.ldexp(1.0 + step / FINE, k) for k in range(first, last + 1) for step in range(FINE)}
    found |= {2.0**k for k in range(-NEAR, lowest, -FAR)} | {2.0**k for k in range(NEAR, fmt.emax + 1, FAR)}
    positive = sorted(edge for edge in found if edge < largest) + [largest]
    return (*(-edge for edge in reversed(positive)), 0.0, *positive)


@dataclass(frozen=True)
class Envelope:
    """Per bin: how many elements, their largest error (NaN where one is NaN), the bits of its input."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    maxima: tuple[float, ...]
    worst: tuple[int, ...]

    def merge(self, other: Envelope) -> Envelope:
        """The envelope of both sets of elements; of equal errors the first set's input stays."""
        picked = [
            (theirs, there) if not count or worse(theirs, ours) else (ours, here)
            for count, ours, here, theirs, there in zip(
                self.counts, self.maxima, self.worst, other.maxima, other.worst, strict=True
            )
        ]
        return Envelope(
            self.edges,
            tuple(a + b for a, b in zip(self.counts, other.counts, strict=True)),
            tuple(maximum for maximum, _ in picked),
            tuple(bits for _, bits in picked),
        )


def worse(first: float, second: float) -> bool:
    """Whether one error is worse than another: NaN above infinity above every number."""
    if math.isnan(first) or math.isnan(second):
        return math.isnan(first) and not math.isnan(second)
    return first > second


def envelope(values: Tensor, error: Tensor, nan: Tensor, left_out: Tensor, edges: Sequence[float]) -> Envelope:
    """The envelope of one tensor of signed errors (flat) over the values that decide them, on their device."""
    numbers = widen(values.detach()).reshape(-1)
    bins, size = len(edges) - 1, numbers.numel()
    inner = torch.tensor(edges[1:-1], dtype=torch.float64, device=numbers.device)
    place = torch.bucketize(numbers, inner, right=True)  # an edge belongs to the bin above it
    place = torch.where(left_out, bins, place)  # one bin more, for what is left out
    counts = torch.bincount(place, minlength=bins + 1)
    rank = torch.where(nan, math.inf, error.abs())
    best = torch.zeros(bins + 1, dtype=torch.float64, device=rank.device).scatter_reduce_(0, place, rank, "amax")
    has_nan = torch.bincount(place[nan], minlength=bins + 1) > 0
    top = (rank == best[place]) & (nan | ~has_nan[place])
    position = torch.arange(size, device=rank.device)
    first = torch.full((bins + 1,), size, device=rank.device).scatter_reduce_(0, place[top], position[top], "amin")
    patterns = bits_of(values.detach().reshape(-1))[first.clamp(max=max(size - 1, 0))] if size else first
    mask = (1 << 8 * values.element_size()) - 1
    maxima = torch.where(has_nan, math.nan, best)[:bins].tolist()
    worst = [bits & mask for bits in patterns[:bins].tolist()]
    return Envelope(tuple(edges), tuple(counts[:bins].tolist()), tuple(maxima), tuple(worst))


def recorded(operand: str, fmt: Format, ours: Envelope, theirs: Envelope | None) -> Curve:
    """The envelope as the record keeps it, beside the baseline's maxima in the same bins."""
    joined: list[tuple[float, int, float, int, float | None]] = []  # low edge, count, maximum, input, baseline
    for place, low in enumerate(ours.edges[:-1]):
        count, maximum = ours.counts[place], ours.maxima[place]
        baseline = None if theirs is None else rounded_up(theirs.maxima[place])
        if joined:
            start, before, highest, where, beside = joined[-1]
            alike = number(rounded_up(highest)) == number(rounded_up(maximum)) and (
                beside is None or baseline is None or number(beside) == number(baseline)
            )
            if bool(before) == bool(count) and alike:
                if worse(maximum, highest):
                    highest, where = maximum, ours.worst[place]
                joined[-1] = (start, before + count, highest, where, beside)
                continue
        joined.append((low, count, maximum, ours.worst[place], baseline))
    return Curve(
        operand=operand,
        edges=[*(number(item[0]) for item in joined), number(ours.edges[-1])],
        counts=[item[1] for item in joined],
        max_ulp=[number(rounded_up(item[2])) for item in joined],
        worst=[fmt.hex(item[3]) if item[1] else "" for item in joined],
        baseline=[number(item[4]) for item in joined if item[4] is not None],
    )


def rounded_up(value: float, digits: int = 3) -> float:
    """The smallest number of so many significant digits that is not below a non-negative one."""
    if value == 0 or not math.isfinite(value):
        return value
    exact = Decimal(value)
    return float(exact.quantize(Decimal(1).scaleb(exact.adjusted() - digits + 1), rounding=ROUND_CEILING))
