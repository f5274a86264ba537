"""Error statistics that merge: the tally of two halves, merged, equals the tally of the whole, bit for bit.

Counts are integers, the mean is a fixed-point integer sum, maxima and worst lists have a total order, so
merging is associative and commutative and the result does not depend on how the work was split.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from verify.records.record import FIRST_OCTAVE, Figures, Histogram, number, octave_edges
from verify.truth.ulp import Errors

SUB_BITS = 5  # 32 bins per octave: a quantile is read off to within 3%
LOWEST, HIGHEST = -24, 64  # errors below 2^-24 ULP share the first bin, above 2^64 the last
BINS = (HIGHEST - LOWEST) * (1 << SUB_BITS) + 2
CAP = 65_536.0  # the mean is of errors capped here: one infinity must not erase it
_UNIT = 65_536.0  # fixed point of the mean: 2^-16 ULP
KEEP = 10


@dataclass
class Tally:
    """Statistics of one set of elements. `plain` and `scaled` errors are counted apart."""

    n: int = 0
    misrounded: int = 0
    undecided: int = 0
    nonfinite: int = 0
    nan: int = 0
    zero_sign: int = 0
    capped_sum: int = 0
    maximum: float = 0.0
    upper: float = 0.0
    counts: np.ndarray = field(default_factory=lambda: np.zeros((2, BINS), dtype=np.int64))
    scaled: bool = False
    scaled_maximum: float = 0.0
    scaled_upper: float = 0.0
    scaled_counts: np.ndarray = field(default_factory=lambda: np.zeros(BINS, dtype=np.int64))
    worst: list[tuple[float, int]] = field(default_factory=list)  # (|error|, flat index), worst first

    def merge(self, other: Tally) -> Tally:
        """The tally of both sets together. Indices of `worst` must come from one numbering."""
        return Tally(
            n=self.n + other.n,
            misrounded=self.misrounded + other.misrounded,
            undecided=self.undecided + other.undecided,
            nonfinite=self.nonfinite + other.nonfinite,
            nan=self.nan + other.nan,
            zero_sign=self.zero_sign + other.zero_sign,
            capped_sum=self.capped_sum + other.capped_sum,
            maximum=max(self.maximum, other.maximum),
            upper=max(self.upper, other.upper),
            counts=self.counts + other.counts,
            scaled=self.scaled or other.scaled,
            scaled_maximum=max(self.scaled_maximum, other.scaled_maximum),
            scaled_upper=max(self.scaled_upper, other.scaled_upper),
            scaled_counts=self.scaled_counts + other.scaled_counts,
            worst=worst_of([*self.worst, *other.worst]),
        )

    def figures(self) -> Figures:
        """The figures that the record keeps. NaN against a number makes the maximum NaN."""
        return Figures(
            n=self.n,
            max_ulp="nan" if self.nan else number(self.maximum),
            max_upper="nan" if self.nan else number(self.upper),
            p999=number(min(quantile(self.counts.sum(axis=0), 0.999), self.upper)),
            mean=float(f"{self.capped_sum / (_UNIT * self.n):.7g}") if self.n else 0.0,
            misrounded=self.misrounded,
            undecided=self.undecided,
            nonfinite=self.nonfinite,
            scaled_max=("nan" if self.nan else number(self.scaled_maximum)) if self.scaled else None,
            scaled_upper=("nan" if self.nan else number(self.scaled_upper)) if self.scaled else None,
            scaled_p999=number(min(quantile(self.scaled_counts, 0.999), self.scaled_upper)) if self.scaled else None,
        )

    def histogram(self) -> Histogram:
        """Signed counts between powers of two: ..., (-2, -1], (-1, -0.5], ..., [0.5, 1), [1, 2), ...

        Errors of magnitude below 2^-4 share the two bins around zero; empty outer bins are left out.
        """
        octaves = np.zeros((2, HIGHEST - FIRST_OCTAVE + 2), dtype=np.int64)
        for sign in (0, 1):
            per = self.counts[sign]
            inner = 1 + (FIRST_OCTAVE - LOWEST) * (1 << SUB_BITS)
            octaves[sign, 0] = per[:inner].sum()
            body = per[inner:-1].reshape(-1, 1 << SUB_BITS).sum(axis=1)
            octaves[sign, 1:-1] = body
            octaves[sign, -1] = per[-1]
        used = np.flatnonzero(octaves.sum(axis=0))
        last = int(used[-1]) if used.size else 0
        negative_counts = [int(count) for count in reversed(octaves[1, : last + 1])]
        positive_counts = [int(count) for count in octaves[0, : last + 1]]
        counts = negative_counts + positive_counts
        return Histogram(edges=octave_edges(len(counts)), counts=counts)


def worst_of(candidates: Sequence[tuple[float, int]], keep: int = KEEP) -> list[tuple[float, int]]:
    """The worst few, largest error first, ties by index: a total order, so that merging is exact."""
    return sorted(set(candidates), key=lambda item: (-item[0], item[1]))[:keep]


def quantile(counts: np.ndarray, share: float) -> float:
    """Upper edge of the bin that holds the quantile: never smaller than the quantile itself."""
    total = int(counts.sum())
    if total == 0:
        return 0.0
    position = int(np.searchsorted(np.cumsum(counts), math.ceil(share * total)))
    return bin_edge(position + 1)


def bin_edge(index: int) -> float:
    """Lower edge of a bin; the edge above the last is infinity."""
    if index <= 0:
        return 0.0
    if index >= BINS:
        return math.inf
    octave, step = divmod(index - 1, 1 << SUB_BITS)
    return math.ldexp(1.0 + step / (1 << SUB_BITS), LOWEST + octave)


def bin_of(magnitude: Tensor) -> Tensor:
    """Bin of each non-negative float64 error, from its bits: no logarithm, the same on every device."""
    raw = magnitude.view(torch.int64) >> (52 - SUB_BITS)
    shifted = raw - ((1023 + LOWEST) << SUB_BITS) + 1
    return shifted.clamp(0, BINS - 1)


def tally(errors: Errors, *, segments: Tensor | None = None, n_segments: int = 1, base: int = 0) -> list[Tally]:
    """One tally per segment. `segments` (int64, flat) assigns each element; -1 leaves an element out.

    `base` is added to the element's position to give the index in `worst`.
    """
    device = errors.ulp.device
    size = errors.ulp.numel()
    if segments is None:
        segments = torch.zeros(size, dtype=torch.int64, device=device)
    member = segments.reshape(-1)
    spare = torch.where(member < 0, n_segments, member)  # an extra segment collects what is left out
    magnitude = errors.ulp.abs()

    def count(mask: Tensor) -> list[int]:
        found: list[int] = torch.bincount(spare[mask], minlength=n_segments + 1).tolist()
        return found

    sizes = torch.bincount(spare, minlength=n_segments + 1).tolist()
    fixed = (magnitude.clamp(max=CAP) * _UNIT).round().to(torch.int64)
    sums = torch.zeros(n_segments + 1, dtype=torch.int64, device=device).index_add_(0, spare, fixed).tolist()
    key = (spare * 2 + (errors.ulp < 0).to(torch.int64)) * BINS + bin_of(magnitude)
    counts = torch.bincount(key, minlength=(n_segments + 1) * 2 * BINS).cpu().numpy()
    counts = counts.reshape(n_segments + 1, 2, BINS)
    scaled_counts = None
    if errors.scaled is not None:
        key = spare * BINS + bin_of(errors.scaled.abs())
        scaled_counts = torch.bincount(key, minlength=(n_segments + 1) * BINS).cpu().numpy()
        scaled_counts = scaled_counts.reshape(n_segments + 1, BINS)
    misrounded, undecided, nonfinite = map(count, (errors.misrounded, errors.undecided, errors.nonfinite))
    nan, zero_sign = map(count, (errors.nan, errors.zero_sign))

    result = []
    for segment in range(n_segments):
        chosen = spare == segment
        item = Tally(
            n=sizes[segment],
            misrounded=misrounded[segment],
            undecided=undecided[segment],
            nonfinite=nonfinite[segment],
            nan=nan[segment],
            zero_sign=zero_sign[segment],
            capped_sum=sums[segment],
            counts=counts[segment],
        )
        if sizes[segment]:
            _maxima(item, errors, magnitude, chosen, base)
        if scaled_counts is not None:
            item.scaled_counts = scaled_counts[segment]
        result.append(item)
    return result


def _maxima(item: Tally, errors: Errors, magnitude: Tensor, chosen: Tensor, base: int) -> None:
    masked = torch.where(chosen, magnitude, -torch.ones_like(magnitude))
    item.maximum = float(masked.max())
    item.upper = float(torch.where(chosen, magnitude + errors.width, masked).max())
    ranked = masked
    if errors.scaled is not None and errors.scaled_width is not None:
        scaled = errors.scaled.abs()
        item.scaled = True
        ranked = torch.where(chosen, scaled, masked.clamp(max=-1))
        item.scaled_maximum = float(ranked.max())
        item.scaled_upper = float(torch.where(chosen, scaled + errors.scaled_width, ranked).max())
    item.worst = worst_of(top(ranked, KEEP, base))


def top(ranked: Tensor, keep: int, base: int = 0) -> list[tuple[float, int]]:
    """The `keep` largest non-negative entries with their positions; equal entries by lowest position."""
    keep = min(keep, ranked.numel())
    values = torch.topk(ranked, keep).values
    if keep == 0 or not float(values[0]) >= 0:
        return []
    floor = values[-1].clamp_min(0)
    # topk breaks ties as it likes; of those equal to the last, take the first positions
    above = torch.nonzero(ranked > floor).reshape(-1)
    equal = torch.nonzero(ranked == floor).reshape(-1)[: keep - above.numel()]
    picked = torch.cat([above, equal])
    return [(float(v), int(i) + base) for v, i in zip(ranked[picked].tolist(), picked.tolist(), strict=True)]
