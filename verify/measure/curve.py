"""Error against input: the largest error in each bin of the operand that decides how an element behaves.

A bin is a fixed share of an octave, so all bins of one octave hold equally many floating-point numbers: fine where
the op's regimes lie, an octave each around them, sixteen octaves each far away. The bins depend on the op and the
format alone, so envelopes of the same op merge and compare bin by bin. For the record neighbours that a plot shows
alike are joined, and maxima are rounded up to three digits: a maximum that is read off is never too small.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from verify.ops.op import Op, Params
from verify.records.record import Curve, number
from verify.truth.figure import rounded_up
from verify.truth.formats import Format
from verify.truth.ulp import bits_of, widen

FINE = 8  # bins per octave where the regimes lie
NEAR = 8  # 2^-8 to 2^8 is drawn octave by octave
FAR = 16  # octaves per bin beyond
_DEFAULT = (0.5, 8.0)  # where functions bend that name no regimes
DIGITS = 3  # of a maximum
ALIKE = 1.05  # errors of neighbours up to this ratio are joined: half a pixel of a plot over five decades
ROUNDED, FAITHFUL = 0.5, 1.0  # ULP; neighbours on two sides of them are not joined


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
            (other_max, other_bits) if not count or worse(other_max, own_max) else (own_max, own_bits)
            for count, own_max, own_bits, other_max, other_bits in zip(
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


def recorded(operand: str, fmt: Format, found: Envelope, baseline: Envelope | None) -> Curve:
    """The envelope as the record keeps it, beside the baseline's maxima in the same bins."""
    lines = [[rounded_up(value, DIGITS) for value in each.maxima] for each in (found, baseline) if each is not None]
    groups: list[list[int]] = []
    for place, count in enumerate(found.counts):
        if groups and bool(found.counts[groups[-1][0]]) == bool(count):
            together = [*groups[-1], place]
            if all(_alike([line[at] for at in together]) for line in lines):
                groups[-1] = together
                continue
        groups.append([place])
    rank = functools.cmp_to_key(_order)
    # of equal errors the first bin's input stays
    worst = [max(group, key=lambda at: rank(found.maxima[at])) for group in groups]
    highest = [[max((line[at] for at in group), key=rank) for group in groups] for line in lines]
    return Curve(
        operand=operand,
        edges=[*(number(found.edges[group[0]]) for group in groups), number(found.edges[-1])],
        counts=[sum(found.counts[at] for at in group) for group in groups],
        max_ulp=[number(value) for value in highest[0]],
        worst=[fmt.hex(found.worst[at]) if found.counts[at] else "" for at in worst],
        baseline=[] if baseline is None else [number(value) for value in highest[1]],
    )


def _order(one: float, two: float) -> int:
    return worse(one, two) - worse(two, one)


def _alike(errors: Sequence[float]) -> bool:
    """Whether a plot shows these errors as one: within 5% of each other, and on one side of what has a meaning."""
    if len({repr(error) for error in errors}) == 1:
        return True
    if not all(map(math.isfinite, errors)):
        return False
    low, high = min(errors), max(errors)
    return high <= ALIKE * low and all((low <= line) == (high <= line) for line in (ROUNDED, FAITHFUL))
