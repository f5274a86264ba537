"""From tensors of errors to tallies: what adds up is counted on the device, in integers, segment by segment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec
import torch
from torch import Tensor

from verify.measure.tally import BINS, CAP, KEEP, LOWEST, SUB_BITS, UNIT, BinCounts, Leader, Maximum, Tally, worst
from verify.records.record import Number, number
from verify.truth.ulp import Errors

_FAR = math.sqrt(CAP)  # of an error whose square is added up
_FLAGS = ("misrounded", "undecided", "nonfinite", "nan")
_COMBINATIONS = 1 << len(_FLAGS)

ROW = 1024  # neighbours that are reduced together where they have one owner
COPIES = 1024  # of every count on a GPU, at most
_NUMBERS = 1 << 21  # in all copies together: 16 MiB
_MANY = 1 << 16  # elements; fewer are counted without copies


@dataclass(frozen=True)
class Counts:
    """What adds up over elements, on their device: one row for each segment."""

    flags: Tensor  # how many elements have each combination of `_FLAGS`
    capped: Tensor  # the fixed-point sum of the mean
    bins: Tensor  # of plain errors, as in `Tally.counts`
    scaled_bins: Tensor | None
    sums: Tensor  # of the errors away from zero, of their squares, and how many they are: fixed-point, three in a row

    def plus(self, other: Counts) -> Counts:
        """Of both sets of elements."""
        scaled = self.scaled_bins
        if scaled is not None and other.scaled_bins is not None:
            scaled = scaled + other.scaled_bins
        flags, capped, bins = self.flags + other.flags, self.capped + other.capped, self.bins + other.bins
        return Counts(flags, capped, bins, scaled, self.sums + other.sums)

    def tallies(self) -> list[Tally]:
        """One tally per segment, its maxima and leaders still unknown."""
        flags, capped, bins = self.flags.tolist(), self.capped.tolist(), self.bins.cpu()
        sums = self.sums.tolist()
        scaled = None if self.scaled_bins is None else self.scaled_bins.cpu()
        return [
            Tally(
                n=sum(row),
                capped_sum=capped[segment],
                counts=in_use(bins[segment]),
                scaled_counts=[] if scaled is None else in_use(scaled[segment]),
                outward=sums[segment][0],
                squares=sums[segment][1],
                weighed=sums[segment][2],
                **{
                    name: sum(row[at] for at in range(_COMBINATIONS) if at >> bit & 1)
                    for bit, name in enumerate(_FLAGS)
                },
            )
            for segment, row in enumerate(flags)
        ]


def in_use(counts: Tensor) -> BinCounts:
    """The bins of one row of counts that hold something."""
    used = torch.nonzero(counts).reshape(-1)
    return list(zip(used.tolist(), counts[used].tolist(), strict=True))


def bin_of(magnitude: Tensor) -> Tensor:
    """Bin of each non-negative float64 error, from its bits: no logarithm, the same on every device."""
    raw = magnitude.view(torch.int64) >> (52 - SUB_BITS)
    shifted = raw - ((1023 + LOWEST) << SUB_BITS) + 1
    return shifted.clamp(0, BINS - 1)


def counted(key: Tensor, size: int, copies: int | None = None) -> Tensor:
    """How many elements have each key in 0 .. size - 1.

    Atomics on one number wait for each other, and most elements may have the same key. So on a GPU neighbours count in
    different copies of the counts, which are added in the end.
    """
    if copies is None:
        copies = min(COPIES, _NUMBERS // size) if key.is_cuda and key.numel() >= _MANY else 1
    if copies < 2:
        return torch.bincount(key, minlength=size)
    copy = torch.arange(key.numel(), device=key.device) % copies
    return torch.bincount(key * copies + copy, minlength=size * copies).reshape(size, copies).sum(1)


def reduced(values: Tensor, owner: Tensor, size: int, how: Literal["amax", "amin", "sum"], start: int) -> Tensor:
    """The largest, the least or the sum of `start` and the values (int64, flat) of each owner in 0 .. size - 1.

    On a GPU atomics on one number wait for each other, and an owner may have millions of elements in a row. So rows
    that have one owner are reduced first, and only their results scattered; integers make the order irrelevant.
    """
    found = torch.full((size,), start, dtype=torch.int64, device=values.device)
    whole = values.numel() // ROW * ROW
    if whole < 2 * ROW:
        return found.scatter_reduce_(0, owner, values, how)
    rows, owners = values[:whole].reshape(-1, ROW), owner[:whole].reshape(-1, ROW)
    first = owners[:, 0]
    same = (owners == owners[:, :1]).all(1)
    one, mixed = torch.nonzero(same).reshape(-1), torch.nonzero(~same).reshape(-1)
    dense: Tensor = getattr(rows, how)(1)
    found.scatter_reduce_(0, first[one], dense[one], how)
    found.scatter_reduce_(0, owners[mixed].reshape(-1), rows[mixed].reshape(-1), how)
    return found.scatter_reduce_(0, owner[whole:], values[whole:], how)


def counts_of(found: Errors, *, segments: Tensor | None = None, n_segments: int = 1) -> Counts:
    """The counts of each segment. `segments` (int64, flat) assigns each element; -1 leaves an element out."""
    magnitude = found.ulp.abs()
    owner = None if segments is None else _owners(segments, n_segments)

    def per_segment(key: Tensor, size: int) -> Tensor:
        if owner is None:
            return counted(key, size).reshape(1, size)
        rows = counted(owner * size + key, (n_segments + 1) * size)
        return rows.reshape(n_segments + 1, size)[:n_segments]

    flags = torch.zeros_like(found.ulp, dtype=torch.int64)
    for bit, name in enumerate(_FLAGS):
        flags += getattr(found, name).to(torch.int64) << bit

    def added(values: Tensor) -> Tensor:
        fixed = (values.clamp(-CAP, CAP) * UNIT).round().to(torch.int64)
        if owner is None:
            return fixed.sum().reshape(1)
        return reduced(fixed, owner, n_segments + 1, "sum", 0)[:n_segments]

    # an infinite error is the largest; an element of which nothing is known, or whose value nothing rounds, has none
    outward = found.ulp if found.outward is None else found.outward
    weighed = ~torch.isnan(outward) & ~(found.undecided & (found.ulp == 0))
    outward = torch.where(weighed, outward.clamp(-_FAR, _FAR), 0.0)
    return Counts(
        flags=per_segment(flags, _COMBINATIONS),
        capped=added(magnitude),
        sums=torch.stack([added(outward), added(outward * outward), added(weighed.double()) // int(UNIT)], 1),
        bins=per_segment((found.ulp < 0).to(torch.int64) * BINS + bin_of(magnitude), 2 * BINS),
        scaled_bins=None if found.scaled is None else per_segment(bin_of(found.scaled.abs()), BINS),
    )


def _owners(segments: Tensor, n_segments: int) -> Tensor:
    """The segment of every element; one more segment collects what is left out."""
    member = segments.reshape(-1)
    return torch.where(member < 0, n_segments, member)


def tally(
    found: Errors,
    *,
    segments: Tensor | None = None,
    n_segments: int = 1,
    places: Tensor | None = None,
    patterns: Tensor | None = None,
) -> list[Tally]:
    """One tally per segment. `segments` (int64, flat) assigns each element; -1 leaves an element out.

    It has leaders where `places` and `patterns` (int64, flat) say which element is which and what its bits are.
    """
    parts = counts_of(found, segments=segments, n_segments=n_segments).tallies()
    if not found.ulp.numel():
        return parts
    figures = [(found.ulp.abs(), found.width)]
    if found.scaled is not None and found.scaled_width is not None:
        figures.append((found.scaled.abs(), found.scaled_width))
    bounds = [error + width for error, width in figures]
    asked = [values for (error, _), bound in zip(figures, bounds, strict=True) for values in (error, bound)]
    owner = None if segments is None else _owners(segments, n_segments)
    maxima = torch.stack([_among(values, owner, at).max() for at in range(n_segments) for values in asked])
    rows = [[number(value) for value in row] for row in maxima.reshape(n_segments, -1).tolist()]
    for segment, (part, row) in enumerate(zip(parts, rows, strict=True)):
        if not part.n:
            continue
        scaled = Maximum(*row[2:]) if row[2:] else None
        part = msgspec.structs.replace(part, plain=Maximum(*row[:2]), scaled=scaled)
        if places is not None and patterns is not None:
            mine = _among(bounds[-1], owner, segment)
            leaders, rest = leaders_of(torch.where(mine > 0, mine, -1.0), places, patterns)
            part = msgspec.structs.replace(part, leaders=leaders, rest=rest)
        parts[segment] = part
    return parts


def _among(values: Tensor, owner: Tensor | None, segment: int) -> Tensor:
    """Non-negative figures of the elements of one segment; -1 for all others."""
    return values if owner is None else torch.where(owner == segment, values, -1.0)


def leaders_of(upper: Tensor, places: Tensor, patterns: Tensor) -> tuple[list[Leader], Number]:
    """The worst elements by their upper bounds, and the bound of the next one. Entries of -1 are left out."""
    index = top(upper, KEEP + 1)
    rows = zip(upper[index].tolist(), places[index].tolist(), patterns[index].tolist(), strict=True)
    leaders = worst((Leader(number(bound), place, bits) for bound, place, bits in rows), KEEP + 1)
    return leaders[:KEEP], leaders[KEEP].upper if len(leaders) > KEEP else -1.0


def top(ranked: Tensor, keep: int, order: Tensor | None = None) -> Tensor:
    """Where the `keep` largest non-negative entries are, sorted by `order`, which also decides among equal entries.

    `order` are distinct numbers; without it the order is that of the entries themselves.
    """
    keep = min(keep, ranked.numel())
    none = torch.empty(0, dtype=torch.int64, device=ranked.device)
    if keep == 0:
        return none
    values = torch.topk(ranked, keep).values
    if not float(values[0]) >= 0:
        return none
    floor = values[-1].clamp_min(0)
    # topk breaks ties as it likes; of those equal to the last, take the first
    above = torch.nonzero(ranked > floor).reshape(-1)
    equal = torch.nonzero(ranked == floor).reshape(-1)
    if order is not None:
        equal = equal[torch.argsort(order[equal])]
    picked = torch.cat([above, equal[: keep - above.numel()]])
    return picked[torch.argsort(picked if order is None else order[picked])]


def of_judged(tallies: list[Tally], found: Errors, segments: Tensor, judged: Mapping[int, int]) -> list[Tally]:
    """The tallies with the maxima and the leaders of those elements that were judged exactly (flat index -> bits).

    Thousands of elements may share one error to within the certificate (a tail that is 100% wrong): which
    of them is largest is known only among those judged; `upper` covers the rest.
    """
    where = torch.tensor(list(judged), dtype=torch.int64, device=found.ulp.device)
    figures = [error[where].tolist() for error, _ in metrics(found)]
    rows = list(zip(segments[where].tolist(), judged.items(), *figures, strict=True))
    parts = []
    for segment, part in enumerate(tallies):
        mine = [row for row in rows if row[0] == segment]
        if mine:
            scaled = part.scaled
            part = msgspec.structs.replace(
                part,
                plain=Maximum(number(max(row[2] for row in mine)), part.plain.upper),
                scaled=None if scaled is None else Maximum(number(max(row[3] for row in mine)), scaled.upper),
                leaders=worst(Leader(number(row[-1]), *row[1]) for row in mine),
                rest=(scaled or part.plain).upper,
            )
        parts.append(part)
    return parts


def metrics(found: Errors) -> list[tuple[Tensor, Tensor]]:
    """(error, half width) of every figure that has a maximum; the judged one last."""
    metrics = [(found.ulp.abs(), found.width)]
    if found.scaled is not None and found.scaled_width is not None:
        metrics.append((found.scaled.abs(), found.scaled_width))
    return metrics
