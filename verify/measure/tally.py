"""Defines error statistics that merge: the merged tallies of two halves equal the tally of the whole, bit for bit.

Counts are integers, the mean is a fixed-point integer sum, and maxima and leaders have a total order. So merging is
associative and commutative, and the result does not depend on how the work was split. A tally is JSON and needs no
torch. `verify.measure.counting` makes one from tensors of errors. Runs, sweeps and hunts all use it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from verify.records.figure import ordered
from verify.records.readings import RMS_LIMIT
from verify.records.record import Figures, Histogram, Number, number, value_of
from verify.truth.formats import named

SUB_BITS = 5  # 32 bins per octave: a quantile is exact to within 3%
LOWEST, HIGHEST = -24, 64  # errors below 2^-24 ULP share the first bin, above 2^64 the last
FIRST_OCTAVE, LAST_OCTAVE = -4, 64  # octaves of a histogram: its smallest edge but 0 is 2^-4, and infinity follows 2^64
BINS = (HIGHEST - LOWEST) * (1 << SUB_BITS) + 2
CAP = 65_536.0  # errors are capped here for the mean, so that one infinity does not dominate it
UNIT = 65_536.0  # fixed-point scale of the sums: 2^-16 ULP
KEEP = 10  # leaders of a tally
# A bias is sure beyond this many standard errors, of at least so many elements with distinct truths in so many blocks.
SURE, FEWEST_TRUTHS, FEWEST_BLOCKS = 3.0, 64, 8
# The bias, in ULP, that a result of up to 16 bits may surely have. Rounding to nearest has 0, cutting off digits -0.5.
BIAS_LIMIT = 0.25
RMS_LIMIT_NARROW = 1.4  # limit of the root mean square for 16 bits, where correct kernels reach 1.2

BinCounts = list[tuple[int, int]]  # (bin, count) of the bins in use, ascending


class Leader(msgspec.Struct, frozen=True, array_like=True):
    """Holds one of the worst elements. Its error does not exceed `upper`."""

    upper: Number
    place: int  # its number among the counted elements; merged tallies share one numbering
    bits: int  # the kernel's result

    @property
    def order(self) -> tuple[float, int]:
        """Returns a sort key: largest error first, lowest place first among equals."""
        return (-value_of(self.upper), self.place)


def _largest(*errors: Number) -> Number:
    """Returns the largest of errors of a record, which may be the words "inf" and "nan"."""
    return max(errors, key=lambda error: ordered(value_of(error)))


class Maximum(msgspec.Struct, frozen=True, array_like=True):
    """Holds the largest error seen, and an upper bound on every error."""

    seen: Number = 0.0
    upper: Number = 0.0

    def merge(self, other: Maximum) -> Maximum:
        """Returns the maximum of both sets together."""
        return Maximum(_largest(self.seen, other.seen), _largest(self.upper, other.upper))


class Bias(msgspec.Struct, frozen=True, array_like=True):
    """Counts elements with distinct truths between two numbers of the format, and which way they are rounded wrongly.

    outward: number of elements that are rounded wrongly away from zero, less those toward zero.
    blocks: number of groups of elements that may share roundings, such as rows.
    squares, cross, sizes: sums over the blocks, of outward^2, of outward times count, and of count^2.
    """

    count: int = 0
    outward: int = 0
    blocks: int = 0
    squares: int = 0
    cross: int = 0
    sizes: int = 0

    def merge(self, other: Bias) -> Bias:
        """Returns the bias of both sets together. Blocks of different cases share nothing."""
        return Bias(*(getattr(self, name) + getattr(other, name) for name in Bias.__struct_fields__))

    @property
    def mean(self) -> float:
        """The mean error away from zero, where an element that is rounded wrongly counts one ULP."""
        return self.outward / self.count if self.count else 0.0

    @property
    def error(self) -> float:
        """The standard error of the mean, by the scatter of the blocks; infinite for a single block."""
        if self.blocks < 2:
            return math.inf
        spread = self.squares - 2 * self.mean * self.cross + self.mean**2 * self.sizes
        return math.sqrt(max(spread, 0.0) * self.blocks / (self.blocks - 1)) / self.count

    @property
    def sure(self) -> float:
        """The magnitude that the mean surely has; 0 for few elements or blocks."""
        if self.count < FEWEST_TRUTHS or self.blocks < FEWEST_BLOCKS:
            return 0.0
        return max(0.0, abs(self.mean) - SURE * self.error)

    @property
    def at_most(self) -> float:
        """The magnitude that the mean surely does not exceed."""
        return abs(self.mean) + SURE * self.error if self.blocks > 1 else 0.0


class Tally(msgspec.Struct, frozen=True):
    """Holds the statistics of one set of elements.

    Plain errors and errors relative to the scale are counted separately.

    worse: number of elements beyond the limit where PyTorch's result is within it.
    squares: sum of the squares of the errors of the `weighed` elements, in units of 1 / `UNIT`.
    leaders: the worst elements by the error that decides the verdict.
    rest: an upper bound on that error of every other element; -1 if there is no other, or none with an error.
    """

    n: int = 0
    misrounded: int = 0
    undecided: int = 0
    open: int = 0  # number of undecided elements without any figure; they are not in the maxima
    nonfinite: int = 0
    nan: int = 0
    capped_sum: int = 0
    counts: BinCounts = []  # of plain errors: BINS bins of the positive ones, then BINS of the negative ones
    plain: Maximum = Maximum()
    scaled_counts: BinCounts = []  # of magnitudes
    scaled: Maximum | None = None
    leaders: list[Leader] = []
    rest: Number = -1.0
    squares: int = 0
    weighed: int = 0
    worse: int = 0
    rows: int = 0  # elements in rows that break a promise of whole rows
    bias: Bias = Bias()

    def merge(self, other: Tally) -> Tally:
        """Returns the tally of both sets together. Places of leaders must come from one numbering."""
        leaders = worst([*self.leaders, *other.leaders], 2 * KEEP)
        rest = _largest(self.rest, other.rest)
        if len(leaders) > KEEP:
            rest = _largest(rest, leaders[KEEP].upper)
        scaled = None
        if self.scaled is not None or other.scaled is not None:  # one alone: elements in ULP beside some less noise
            scaled = self.deciding.merge(other.deciding)
        return Tally(
            counts=added(self.counts, other.counts),
            plain=self.plain.merge(other.plain),
            scaled_counts=added(self.scaled_counts, other.scaled_counts),
            scaled=scaled,
            leaders=leaders[:KEEP],
            rest=rest,
            bias=self.bias.merge(other.bias),
            **{name: getattr(self, name) + getattr(other, name) for name in _SUMS},
        )

    def without_places(self) -> Tally:
        """Returns the same statistics without leaders, to merge with elements of another numbering."""
        return msgspec.structs.replace(self, leaders=[], rest=-1.0)

    @property
    def deciding(self) -> Maximum:
        """The maximum that the verdict is about: of the scaled errors, if there are any."""
        return self.plain if self.scaled is None else self.scaled

    def figures(self) -> Figures:
        """Returns the figures of the record.

        A NaN where the truth is a number makes the maximum NaN. Enough of them make the quantile NaN.
        """

        def of(maximum: Maximum, counts: BinCounts, *names: str) -> dict[str, Any]:
            """Maps names to both ends of a maximum, and to the error that 99.9% of the elements do not exceed."""
            among = self.nan > self.n - math.ceil(0.999 * self.n)
            p999: Number = "nan" if among else number(min(quantile(counts, 0.999), value_of(maximum.upper)))
            ends = ("nan", "nan") if self.nan else (maximum.seen, maximum.upper)
            return dict(zip(names, (*ends, p999), strict=True))

        square = self.squares / (UNIT * self.weighed) if self.weighed else 0.0
        bias, has_bias = self.bias, self.bias.blocks > 1
        figures = of(self.plain, self.counts, "max_ulp", "max_upper", "p999")
        if self.scaled is not None:
            figures |= of(self.scaled, self.scaled_counts, "scaled_max", "scaled_upper", "scaled_p999")
        return Figures(
            mean=float(f"{self.capped_sum / (UNIT * self.n):.7g}") if self.n else 0.0,
            bias=float(f"{bias.mean:.4g}") if has_bias else None,
            bias_error=float(f"{bias.error:.4g}") if has_bias else None,
            rms=float(f"{math.sqrt(square):.4g}"),
            **figures,
            **{name: getattr(self, name) for name in ("n", "misrounded", "undecided", "open", "nonfinite", "weighed")},
        )

    def histogram(self) -> Histogram:
        """Returns signed counts between powers of two: ..., (-2, -1], (-1, -0.5], ..., [0.5, 1), [1, 2), ...

        Errors of magnitude below 2^-4 share the two bins around zero. Empty outer bins are omitted.
        """
        octaves: Counter[tuple[bool, int]] = Counter()
        for index, count in self.counts:
            octaves[index >= BINS, _octave(index % BINS)] += count
        last = max((octave for _, octave in octaves), default=0)
        negative = [octaves[True, octave] for octave in range(last, -1, -1)]
        counts = negative + [octaves[False, octave] for octave in range(last + 1)]
        return Histogram(edges=octave_edges(len(counts)), counts=counts)


# the fields of a tally that add up
_SUMS = [name for name, kind in Tally.__annotations__.items() if kind == "int"]


class Peak(msgspec.Struct, frozen=True, array_like=True):
    """Holds one bin of the error curve: its number of elements, and the first element with the largest error."""

    bin: int
    count: int
    ulp: Number  # a magnitude; NaN is worse than any number
    place: int
    bits: int  # bits of the operand of the curve

    def merge(self, other: Peak) -> Peak:
        """Returns the bin of both sets together."""
        taken = max(self, other, key=lambda peak: (ordered(value_of(peak.ulp)), -peak.place))
        return Peak(self.bin, self.count + other.count, taken.ulp, taken.place, taken.bits)


def rms_limit(dtype: str) -> float:
    """Returns the limit of the root mean square of errors, in units of noise and rounding."""
    return RMS_LIMIT if named(dtype).bits > 16 else RMS_LIMIT_NARROW


def merged_peaks(a: Iterable[Peak], b: Iterable[Peak]) -> list[Peak]:
    """Merges two curves over the same bins, sorted by bin."""
    found: dict[int, Peak] = {}
    for peak in (*a, *b):
        found[peak.bin] = found[peak.bin].merge(peak) if peak.bin in found else peak
    return [found[place] for place in sorted(found)]


def worst(leaders: Iterable[Leader], keep: int = KEEP) -> list[Leader]:
    """Returns the first leaders in their order: largest error first, ties by place."""
    return sorted(leaders, key=lambda item: item.order)[:keep]


def added(a: BinCounts, b: BinCounts) -> BinCounts:
    """Adds two sets of counts."""
    if not a or not b:
        return a or b
    summed = dict(a)
    for index, count in b:
        summed[index] = summed.get(index, 0) + count
    return sorted(summed.items())


def quantile(counts: BinCounts, share: float) -> float:
    """Returns the upper edge of the bin with the quantile of the magnitudes. It is never smaller than the quantile."""
    total = sum([count for _, count in counts])
    above = total - math.ceil(share * total)  # most elements that may be larger
    for index, count in sorted([(index % BINS, count) for index, count in counts], reverse=True):
        above -= count
        if above < 0:
            return bin_edge(index + 1)
    return 0.0


def beyond(counts: BinCounts, limit: float) -> int:
    """Returns at most how many elements have a larger magnitude: those of all bins that reach beyond it."""
    return sum(count for index, count in counts if bin_edge(index % BINS + 1) > limit)


def bin_edge(index: int) -> float:
    """Returns the lower edge of a bin. The edge above the last bin is infinity."""
    if index <= 0:
        return 0.0
    if index >= BINS:
        return math.inf
    octave, step = divmod(index - 1, 1 << SUB_BITS)
    return math.ldexp(1.0 + step / (1 << SUB_BITS), LOWEST + octave)


def octave_edges(bins: int) -> list[Number]:
    """Returns the edges of a histogram with this many bins, half on each side of 0: 0, 2^-4, 2^-3, ..., at most inf.

    >>> octave_edges(4)
    [-0.125, -0.0625, 0.0, 0.0625, 0.125]
    """
    outer = [FIRST_OCTAVE + place for place in range(bins // 2)]
    positive = [math.ldexp(1.0, octave) if octave <= LAST_OCTAVE else math.inf for octave in outer]
    return [number(edge) for edge in (*(-edge for edge in reversed(positive)), 0.0, *positive)]


def _octave(index: int) -> int:
    """Returns the histogram bin of a counting bin: 0 below 2^FIRST_OCTAVE, then one bin for each power of two."""
    if index == BINS - 1:
        return HIGHEST - FIRST_OCTAVE + 1
    return max(0, 1 + ((index - 1) >> SUB_BITS) + LOWEST - FIRST_OCTAVE)
