"""Error statistics as a value that merges: the tally of two halves, merged, equals the tally of the whole, bit for bit.

Counts are integers, the mean is a fixed-point integer sum, maxima and leaders have a total order, so merging is
associative and commutative and the result does not depend on how the work was split. A tally is JSON and needs no
torch; `verify.measure.counting` makes one from tensors of errors. Runs, sweeps and hunts all count with it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import msgspec

from verify.records.record import Figures, Histogram, Number, number, value_of

SUB_BITS = 5  # 32 bins per octave: a quantile is read off to within 3%
LOWEST, HIGHEST = -24, 64  # errors below 2^-24 ULP share the first bin, above 2^64 the last
FIRST_OCTAVE, LAST_OCTAVE = -4, 64  # of a histogram: 2^-4 is its smallest edge but 0, infinity follows 2^64
BINS = (HIGHEST - LOWEST) * (1 << SUB_BITS) + 2
CAP = 65_536.0  # the mean is of errors capped here: one infinity must not erase it
UNIT = 65_536.0  # fixed point of the mean: 2^-16 ULP
KEEP = 10  # leaders of a tally

BinCounts = list[tuple[int, int]]  # (bin, count) of the bins in use, ascending


class Leader(msgspec.Struct, frozen=True, array_like=True):
    """One of the worst elements: its error is not beyond `upper`."""

    upper: Number
    place: int  # its number among the elements that are counted; merged tallies share one numbering
    bits: int  # what the kernel gave

    @property
    def order(self) -> tuple[float, int]:
        """Worst first, lowest place first among equals."""
        return (-value_of(self.upper), self.place)


class Maximum(msgspec.Struct, frozen=True, array_like=True):
    """The largest error that was seen, and what the error of no element exceeds."""

    seen: Number = 0.0
    upper: Number = 0.0

    def merge(self, other: Maximum) -> Maximum:
        """Of both sets together."""
        return Maximum(_larger(self.seen, other.seen), _larger(self.upper, other.upper))


class Tally(msgspec.Struct, frozen=True):
    """Statistics of one set of elements. Plain errors and errors relative to the scale are counted apart.

    `worse` counts the elements beyond the limit at which PyTorch's result is within it.
    `outward` adds up the errors away from zero of the `weighed` elements in units of `UNIT`, `squares` their squares.

    `leaders` are the worst elements by the error that the op is judged by, `rest` is what the error of no other
    element exceeds; -1 where there is no other, or none with an error.
    """

    n: int = 0
    misrounded: int = 0
    undecided: int = 0
    open: int = 0  # of the undecided those of which nothing is known: no figure counts them
    nonfinite: int = 0
    nan: int = 0
    capped_sum: int = 0
    counts: BinCounts = []  # of plain errors: BINS bins of the positive ones, then BINS of the negative ones
    plain: Maximum = Maximum()
    scaled_counts: BinCounts = []  # of magnitudes
    scaled: Maximum | None = None
    leaders: list[Leader] = []
    rest: Number = -1.0
    outward: int = 0
    squares: int = 0
    weighed: int = 0
    worse: int = 0

    def merge(self, other: Tally) -> Tally:
        """The tally of both sets together. Places of leaders must come from one numbering."""
        leaders = sorted([*self.leaders, *other.leaders], key=lambda item: item.order)
        rest = _larger(self.rest, other.rest)
        if len(leaders) > KEEP:
            rest = _larger(rest, leaders[KEEP].upper)
        scaled = self.scaled or other.scaled
        if self.scaled is not None and other.scaled is not None:
            scaled = self.scaled.merge(other.scaled)
        return Tally(
            n=self.n + other.n,
            misrounded=self.misrounded + other.misrounded,
            undecided=self.undecided + other.undecided,
            open=self.open + other.open,
            nonfinite=self.nonfinite + other.nonfinite,
            nan=self.nan + other.nan,
            capped_sum=self.capped_sum + other.capped_sum,
            counts=added(self.counts, other.counts),
            plain=self.plain.merge(other.plain),
            scaled_counts=added(self.scaled_counts, other.scaled_counts),
            scaled=scaled,
            leaders=leaders[:KEEP],
            rest=rest,
            outward=self.outward + other.outward,
            squares=self.squares + other.squares,
            weighed=self.weighed + other.weighed,
            worse=self.worse + other.worse,
        )

    def without_places(self) -> Tally:
        """The same statistics without leaders, to be merged with elements of another numbering."""
        return msgspec.structs.replace(self, leaders=[], rest=-1.0)

    def maximum(self, gate: str) -> Maximum:
        """The maximum of the figure that an op is judged by."""
        return self.plain if gate == "plain" else self.scaled or Maximum()

    def figures(self) -> Figures:
        """The figures that the record keeps. NaN against a number makes the maximum NaN, and in number the quantile."""
        scaled = self.scaled

        weighed = UNIT * self.weighed
        mean, square = (each / weighed if weighed else 0.0 for each in (self.outward, self.squares))
        error = math.sqrt(max(square - mean * mean, 0.0) / self.weighed) if weighed else 0.0

        def p999(counts: BinCounts, upper: Number) -> Number:
            among = self.nan > self.n - math.ceil(0.999 * self.n)
            return "nan" if among else _smaller(quantile(counts, 0.999), upper)

        return Figures(
            n=self.n,
            max_ulp="nan" if self.nan else self.plain.seen,
            max_upper="nan" if self.nan else self.plain.upper,
            p999=p999(self.counts, self.plain.upper),
            mean=float(f"{self.capped_sum / (UNIT * self.n):.7g}") if self.n else 0.0,
            misrounded=self.misrounded,
            undecided=self.undecided,
            open=self.open,
            nonfinite=self.nonfinite,
            scaled_max=None if scaled is None else "nan" if self.nan else scaled.seen,
            scaled_upper=None if scaled is None else "nan" if self.nan else scaled.upper,
            scaled_p999=None if scaled is None else p999(self.scaled_counts, scaled.upper),
            bias=float(f"{mean:.4g}"),
            bias_error=float(f"{error:.4g}"),
            rms=float(f"{math.sqrt(square):.4g}"),
            weighed=self.weighed,
        )

    def histogram(self) -> Histogram:
        """Signed counts between powers of two: ..., (-2, -1], (-1, -0.5], ..., [0.5, 1), [1, 2), ...

        Errors of magnitude below 2^-4 share the two bins around zero; empty outer bins are left out.
        """
        octaves: Counter[tuple[bool, int]] = Counter()
        for index, count in self.counts:
            octaves[index >= BINS, _octave(index % BINS)] += count
        last = max((octave for _, octave in octaves), default=0)
        negative = [octaves[True, octave] for octave in range(last, -1, -1)]
        counts = negative + [octaves[False, octave] for octave in range(last + 1)]
        return Histogram(edges=octave_edges(len(counts)), counts=counts)


class Peak(msgspec.Struct, frozen=True, array_like=True):
    """One bin of the error curve: how many elements, and of those with the largest error the first and its input."""

    bin: int
    count: int
    ulp: Number  # magnitude; NaN is worse than any number
    place: int
    bits: int  # of the operand that the curve is about

    def merge(self, other: Peak) -> Peak:
        """Both together."""
        mine, its = value_of(self.ulp), value_of(other.ulp)
        first = self.place <= other.place
        taken = self if worse(mine, its) or (first and not worse(its, mine)) else other
        return Peak(self.bin, self.count + other.count, taken.ulp, taken.place, taken.bits)


def merged_peaks(a: Iterable[Peak], b: Iterable[Peak]) -> list[Peak]:
    """Two curves over the same bins together, sorted by bin."""
    found: dict[int, Peak] = {}
    for peak in (*a, *b):
        found[peak.bin] = found[peak.bin].merge(peak) if peak.bin in found else peak
    return [found[place] for place in sorted(found)]


def worse(first: float, second: float) -> bool:
    """Whether one error is worse than another: NaN above infinity above every number."""
    return not math.isnan(second) and (math.isnan(first) or first > second)


def worst(leaders: Iterable[Leader], keep: int = KEEP) -> list[Leader]:
    """The first few in the order of leaders: largest error first, ties by place."""
    return sorted(leaders, key=lambda item: item.order)[:keep]


def added(a: BinCounts, b: BinCounts) -> BinCounts:
    """Two counts together."""
    if not a or not b:
        return a or b
    summed = dict(a)
    for index, count in b:
        summed[index] = summed.get(index, 0) + count
    return sorted(summed.items())


def quantile(counts: BinCounts, share: float) -> float:
    """Upper edge of the bin that holds the quantile of the magnitudes: never smaller than the quantile itself."""
    sizes: Counter[int] = Counter()
    for index, count in counts:
        sizes[index % BINS] += count
    left = math.ceil(share * sizes.total())
    for index in sorted(sizes):
        left -= sizes[index]
        if left <= 0:
            return bin_edge(index + 1)
    return 0.0


def bin_edge(index: int) -> float:
    """Lower edge of a bin; the edge above the last is infinity."""
    if index <= 0:
        return 0.0
    if index >= BINS:
        return math.inf
    octave, step = divmod(index - 1, 1 << SUB_BITS)
    return math.ldexp(1.0 + step / (1 << SUB_BITS), LOWEST + octave)


def octave_edges(bins: int) -> list[Number]:
    """The edges of a histogram of so many bins, half of them on each side of 0: 0, 2^-4, 2^-3, ..., at most inf.

    >>> octave_edges(4)
    [-0.125, -0.0625, 0.0, 0.0625, 0.125]
    """
    outer = [FIRST_OCTAVE + place for place in range(bins // 2)]
    positive = [math.ldexp(1.0, octave) if octave <= LAST_OCTAVE else math.inf for octave in outer]
    return [number(edge) for edge in (*(-edge for edge in reversed(positive)), 0.0, *positive)]


def _octave(index: int) -> int:
    """The bin of the record's histogram that holds a bin: 0 below 2^FIRST_OCTAVE, then one for each power of two."""
    if index == BINS - 1:
        return HIGHEST - FIRST_OCTAVE + 1
    return max(0, 1 + ((index - 1) >> SUB_BITS) + LOWEST - FIRST_OCTAVE)


def _larger(a: Number, b: Number) -> Number:
    return a if value_of(a) >= value_of(b) else b


def _smaller(a: float, b: Number) -> Number:
    return number(min(a, value_of(b)))
