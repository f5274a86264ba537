"""Turns tensors of errors into tallies. Sums and counts are made on the device, in integers, by segment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec
import torch
from torch import Tensor

from verify.measure.tally import BINS, CAP, KEEP, LOWEST, SUB_BITS, UNIT, Bias, BinCounts, Leader, Maximum, Tally, worst
from verify.ops.geometry import Shape
from verify.records.record import Number, number
from verify.truth.formats import Format, torch_dtype
from verify.truth.ulp import Errors, bits_of, ulp_exponent

_FAR = math.sqrt(CAP)  # errors are cut to this before they are squared and added up
_FLAGS = ("misrounded", "undecided", "nonfinite", "nan")
_COMBINATIONS = 1 << len(_FLAGS)

ROW = 1024  # this many neighbours are reduced together if they have one owner
COPIES = 1024  # the most copies of the counts on a GPU
_NUMBERS = 1 << 21  # counts in all copies together: 16 MiB
_MANY = 1 << 16  # fewer elements than this are counted without copies


@dataclass(frozen=True)
class Counts:
    """Holds sums and counts over elements, on their device. Each tensor has one row for each segment."""

    flags: Tensor  # number of elements with each combination of `_FLAGS`
    capped: Tensor  # the fixed-point sum of the mean
    bins: Tensor  # counts of plain errors, as in `Tally.counts`
    scaled_bins: Tensor | None
    sums: Tensor  # two sums a row: the squares of errors, fixed-point, and the number of elements

    def plus(self, other: Counts) -> Counts:
        """Returns the counts of both sets of elements together."""
        scaled, more = self.scaled_bins, other.scaled_bins
        scaled = more if scaled is None else scaled if more is None else scaled + more
        flags, capped, bins = self.flags + other.flags, self.capped + other.capped, self.bins + other.bins
        return Counts(flags, capped, bins, scaled, self.sums + other.sums)

    def tallies(self) -> list[Tally]:
        """Returns one tally per segment, without maxima and leaders."""
        flags, capped, bins = self.flags.tolist(), self.capped.tolist(), self.bins.cpu()
        sums = self.sums.tolist()
        scaled = None if self.scaled_bins is None else self.scaled_bins.cpu()
        return [
            Tally(
                n=sum(row),
                capped_sum=capped[segment],
                counts=in_use(bins[segment]),
                scaled_counts=[] if scaled is None else in_use(scaled[segment]),
                squares=sums[segment][0],
                weighed=sums[segment][1],
                **{name: sum(n for at, n in enumerate(row) if at >> bit & 1) for bit, name in enumerate(_FLAGS)},
            )
            for segment, row in enumerate(flags)
        ]


def in_use(counts: Tensor) -> BinCounts:
    """Returns (bin, count) of the bins of one row that are not empty."""
    used = torch.nonzero(counts).reshape(-1)
    return list(zip(used.tolist(), counts[used].tolist(), strict=True))


def bin_of(magnitude: Tensor) -> Tensor:
    """Returns the bin of each non-negative float64 error, from its bits. Without a logarithm, every device agrees."""
    raw = magnitude.view(torch.int64) >> (52 - SUB_BITS)
    shifted = raw - ((1023 + LOWEST) << SUB_BITS) + 1
    return shifted.clamp(0, BINS - 1)


def counted(key: Tensor, size: int, copies: int | None = None) -> Tensor:
    """Returns the number of elements with each key in 0 .. size - 1.

    Atomic additions to one number wait for each other, and most elements may have the same key. So on a GPU neighbours
    count in different copies of the counts. The copies are added at the end.
    """
    if copies is None:
        copies = min(COPIES, _NUMBERS // size) if key.is_cuda and key.numel() >= _MANY else 1
    if copies < 2:
        return torch.bincount(key, minlength=size)
    copy = torch.arange(key.numel(), device=key.device) % copies
    return torch.bincount(key * copies + copy, minlength=size * copies).reshape(size, copies).sum(1)


def reduced(values: Tensor, owner: Tensor, size: int, how: Literal["amax", "amin", "sum"], start: int) -> Tensor:
    """Returns the largest, the least or the sum of `start` and the values (int64, flat) of each owner in 0 .. size - 1.

    On a GPU atomic operations on one number wait for each other, and an owner may have millions of elements in a row.
    So rows with one owner are reduced first, and only their results are scattered. With integers, the order does not
    matter.
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


def counts_of(errors: Errors, *, segments: Tensor | None = None, n_segments: int = 1) -> Counts:
    """Returns the counts of each segment. `segments` (int64, flat) assigns each element; -1 excludes it."""
    magnitude = errors.least[0]
    owner = None if segments is None else _owners(segments, n_segments)

    def per_segment(key: Tensor, size: int) -> Tensor:
        if owner is None:
            return counted(key, size).reshape(1, size)
        rows = counted(owner * size + key, (n_segments + 1) * size)
        return rows.reshape(n_segments + 1, size)[:n_segments]

    flags = torch.zeros_like(errors.ulp, dtype=torch.int64)
    for bit, name in enumerate(_FLAGS):
        flags += getattr(errors, name).to(torch.int64) << bit

    def added(values: Tensor) -> Tensor:
        fixed = (values.clamp(-CAP, CAP) * UNIT).round().to(torch.int64)
        if owner is None:
            return fixed.sum().reshape(1)
        return reduced(fixed, owner, n_segments + 1, "sum", 0)[:n_segments]

    # An infinite error counts as the largest. An element has no error here if it is undecided or if its value is not
    # rounded.
    size = magnitude if errors.in_rms is None else errors.in_rms
    weighed = ~torch.isnan(size) & ~(errors.undecided & (magnitude == 0))
    size = torch.where(weighed, size.clamp(max=_FAR), 0.0)
    return Counts(
        flags=per_segment(flags, _COMBINATIONS),
        capped=added(magnitude),
        sums=torch.stack([added(size * size), added(weighed.double()) // int(UNIT)], 1),
        bins=per_segment((errors.ulp < 0).to(torch.int64) * BINS + bin_of(magnitude), 2 * BINS),
        scaled_bins=None if errors.scaled is None else per_segment(bin_of(errors.least[-1]), BINS),
    )


def _owners(segments: Tensor, n_segments: int) -> Tensor:
    """Returns the segment of every element. One more segment collects the excluded elements."""
    member = segments.reshape(-1)
    return torch.where(member < 0, n_segments, member)


def tally(
    errors: Errors,
    *,
    segments: Tensor | None = None,
    n_segments: int = 1,
    places: Tensor | None = None,
    patterns: Tensor | None = None,
) -> list[Tally]:
    """Returns one tally per segment.

    `segments` (int64, flat) assigns each element; -1 excludes it. `places` and `patterns` (int64, flat) have the
    number and the bits of every element. With them, the tallies have leaders.
    """
    parts = counts_of(errors, segments=segments, n_segments=n_segments).tallies()
    if not errors.ulp.numel():
        return parts
    bounds = [error + width for error, width in errors.figures]
    asked = [values for pair in zip(errors.least, bounds, strict=True) for values in pair]
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
    """Returns the non-negative values of the elements of one segment, and -1 for all others."""
    return values if owner is None else torch.where(owner == segment, values, -1.0)


def leaders_of(upper: Tensor, places: Tensor, patterns: Tensor) -> tuple[list[Leader], Number]:
    """Returns the worst elements by their upper bounds, and the bound of the next one. Entries of -1 are excluded."""
    index = top(upper, KEEP + 1)
    rows = zip(upper[index].tolist(), places[index].tolist(), patterns[index].tolist(), strict=True)
    leaders = worst((Leader(number(bound), place, bits) for bound, place, bits in rows), KEEP + 1)
    return leaders[:KEEP], leaders[KEEP].upper if len(leaders) > KEEP else -1.0


def top(ranked: Tensor, keep: int) -> Tensor:
    """Returns the positions of the `keep` largest non-negative entries, in order. Of equal entries, the first count."""
    keep = min(keep, ranked.numel())
    none = torch.empty(0, dtype=torch.int64, device=ranked.device)
    if keep == 0:
        return none
    values = torch.topk(ranked, keep).values
    if not float(values[0]) >= 0:
        return none
    floor = values[-1].clamp_min(0)
    # topk returns any of the entries equal to the last; take the first of them
    above = torch.nonzero(ranked > floor).reshape(-1)
    equal = torch.nonzero(ranked == floor).reshape(-1)
    return torch.cat([above, equal[: keep - above.numel()]]).sort().values


def of_judged(tallies: list[Tally], errors: Errors, segments: Tensor, judged: Mapping[int, int]) -> list[Tally]:
    """Returns the tallies with the maxima and leaders of the elements that were judged exactly (flat index -> bits).

    Thousands of elements may share one error to within the certificate, as in a tail that is 100% wrong. The largest is
    known only among the judged ones; `upper` covers the others.
    """
    where = torch.tensor(list(judged), dtype=torch.int64, device=errors.ulp.device)
    least = [each[where].tolist() for each in errors.least]
    rows = list(zip(segments[where].tolist(), judged.items(), errors.upper[where].tolist(), *least, strict=True))
    parts = []
    for segment, part in enumerate(tallies):
        mine = [row for row in rows if row[0] == segment]
        if mine:
            scaled = part.scaled
            part = msgspec.structs.replace(
                part,
                plain=Maximum(number(max(row[3] for row in mine)), part.plain.upper),
                scaled=None if scaled is None else Maximum(number(max(row[4] for row in mine)), scaled.upper),
                leaders=worst(Leader(number(row[2]), *row[1]) for row in mine),
                rest=(scaled or part.plain).upper,
            )
        parts.append(part)
    return parts


_MOST = 1 << 18  # elements of one result that are looked at, chosen by their places
_FEW_BLOCKS = 4  # fewer blocks do not show by their scatter whether their elements share roundings
_PRIME = 2_654_435_761  # its multiples, modulo the number of elements, visit all places in a scattered order


def bias_of(
    errors: Errors, value: Tensor, fmt: Format, shape: Shape, *, apart: bool, segments: Tensor | None, n_segments: int
) -> list[Bias]:
    """Returns the bias of each segment: which way a result is rounded wrongly, away from zero or toward it.

    A correctly rounded result has no bias for any inputs: the count is of elements that are rounded wrongly, away
    from zero minus toward it. A kernel that rounds to nearest after accurate steps is wrong on both sides equally
    often. A kernel that cuts off digits is wrong at half of the elements, all of them toward zero.

    Two kinds of repetition would make a chance look like a rule. Many elements may have one truth, such as log 2 at all
    tiny inputs. So of elements with the same rounded truth one counts. And the elements of a row, or of a column, may
    share a rounding, such as that of the row's mean. So the standard error comes from sums of rows or columns.

    value: the truth of each element, of which one per rounded number counts.
    apart: True if no two elements share a step, so that each is an observation of its own.
    """
    size = value.numel()
    places = torch.arange(min(size, _MOST), device=value.device) * _PRIME % max(size, 1)
    truth, error = value.reshape(-1)[places], errors.ulp[places]
    # a truth that is itself a number of the format is right under every rounding
    kept = torch.isfinite(truth) & ~errors.undecided[places] & (error != error.round())
    if errors.yardstick is not None:  # beyond an ULP of noise the last digit is not the kernel's to choose
        noise = errors.yardstick.noise[places] * torch.exp2(-ulp_exponent(truth, fmt).double())
        kept &= noise <= 1
    member = torch.zeros_like(places) if segments is None else segments.reshape(-1)[places]
    kept = torch.nonzero(kept & (member >= 0)).reshape(-1)
    places, truth, member = places[kept], truth[kept], member[kept]
    number = bits_of(truth.to(torch_dtype(fmt))) * _PRIME + member  # odd factors keep the numbers of 64 bits apart
    groups, group = torch.unique(number, return_inverse=True)
    order = torch.arange(len(group), device=group.device)
    first = torch.full((len(groups),), len(group), device=group.device).scatter_reduce_(0, group, order, "amin")
    places, truth, member = places[first], truth[first], member[first]
    side = (errors.misrounded[places] * torch.sign(errors.ulp[places]) * torch.sign(truth)).long()
    side, member, places = side.cpu(), member.cpu(), places.cpu()  # few: each count on a GPU would wait for it
    columns = max(shape[-1] if shape else 1, 1)
    ways = [torch.arange(len(side))] if apart else [places // columns, places % columns]
    return [_worst(side[member == each], [way[member == each] for way in ways]) for each in range(n_segments)]


def _worst(side: Tensor, ways: list[Tensor]) -> Bias:
    """Returns the bias by the grouping of elements into blocks that leaves it most uncertain."""
    found = []
    for way in ways:
        _, block = torch.unique(way, return_inverse=True)
        count = int(block.max()) + 1 if len(block) else 0
        sizes = torch.bincount(block, minlength=count)
        sums = torch.zeros(count, dtype=torch.int64).scatter_add_(0, block, side)
        squares, cross, weights = (int((a * b).sum()) for a, b in ((sums, sums), (sums, sizes), (sizes, sizes)))
        found.append(Bias(len(side), int(side.sum()), count, squares, cross, weights))
    return max(found, key=lambda each: each.error if each.blocks >= _FEW_BLOCKS else math.inf)
