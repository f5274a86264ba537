"""What a part of a sweep found. Partials of one space merge: associative, commutative, bit for bit the same.

Everything in a partial depends on single elements only, never on how the work was split: counts and fixed-point
sums add up, curves take maxima with the lowest point first among equals, and of the worst elements the first
`KEEP` in a total order stay, with the largest upper bound of all that were dropped. A partial knows which chunks
it covers; merging one chunk twice is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from verify.errors import UsageError
from verify.records.record import Number, number, value_of
from verify.sweep.space import merged

if TYPE_CHECKING:
    from verify.measure.tally import Tally

KEEP = 10  # worst elements of a regime, as in verify.measure.tally, which needs torch: merging does not
HARD_KEEP = 64  # candidates for the hardest-to-round inputs: exact judgement puts them in order


class Leader(msgspec.Struct, frozen=True, array_like=True):
    """One of the worst elements: no error of it is beyond `upper`. `bits` is what the kernel gave."""

    upper: Number
    place: int  # point, or 2 * point + half for a gradient of packed halves
    bits: int

    @property
    def order(self) -> tuple[float, int]:
        """Worst first, lowest place first among equals."""
        return (-value_of(self.upper), self.place)


class Bucket(msgspec.Struct, frozen=True):
    """The elements of one regime."""

    n: int
    misrounded: int
    undecided: int
    nonfinite: int
    nan: int
    capped_sum: int
    counts: list[tuple[int, int]]  # (bin, count): bins of verify.measure.tally, BINS positive ones, then BINS negative
    leaders: list[Leader]
    rest: Number  # the largest upper bound of an element that is no leader; -1 without one

    def merge(self, other: Bucket) -> Bucket:
        """Both together."""
        leaders = sorted([*self.leaders, *other.leaders], key=lambda item: item.order)
        dropped = [value_of(item.upper) for item in leaders[KEEP:]]
        rest = max([value_of(self.rest), value_of(other.rest), *dropped])
        return Bucket(
            n=self.n + other.n,
            misrounded=self.misrounded + other.misrounded,
            undecided=self.undecided + other.undecided,
            nonfinite=self.nonfinite + other.nonfinite,
            nan=self.nan + other.nan,
            capped_sum=self.capped_sum + other.capped_sum,
            counts=added(self.counts, other.counts),
            leaders=leaders[:KEEP],
            rest=number(rest),
        )

    def tally(self) -> Tally:
        """As a tally; its maxima are those of the interval bounds until `verify.sweep.finishing` has judged."""
        from verify.measure.tally import Tally

        upper = max([value_of(self.rest), 0.0, *(value_of(item.upper) for item in self.leaders)])
        return Tally(
            n=self.n,
            misrounded=self.misrounded,
            undecided=self.undecided,
            nonfinite=self.nonfinite,
            nan=self.nan,
            capped_sum=self.capped_sum,
            maximum=upper,
            upper=upper,
            counts=dense(self.counts),
        )


EMPTY = Bucket(0, 0, 0, 0, 0, 0, [], [], -1.0)


class Bin(msgspec.Struct, frozen=True, array_like=True):
    """One bin of the error curve: how many elements, the largest error and the first place that has it."""

    bin: int
    count: int
    ulp: Number
    place: int

    def merge(self, other: Bin) -> Bin:
        """Both together."""
        worse = min(self, other, key=lambda item: (-value_of(item.ulp), item.place))
        return Bin(self.bin, self.count + other.count, worse.ulp, worse.place)


class Part(msgspec.Struct, frozen=True):
    """One result of one implementation."""

    regimes: dict[str, Bucket] = {}
    curve: list[Bin] = []
    hardest: list[tuple[float, int]] = []  # (distance of the truth from a midpoint in ulp, place), nearest first
    escalated: int = 0
    certificates: list[str] = []

    def merge(self, other: Part) -> Part:
        """Both together."""
        names = sorted({*self.regimes, *other.regimes})
        bins: dict[int, Bin] = {}
        for item in [*self.curve, *other.curve]:
            bins[item.bin] = bins[item.bin].merge(item) if item.bin in bins else item
        return Part(
            regimes={name: self.regimes.get(name, EMPTY).merge(other.regimes.get(name, EMPTY)) for name in names},
            curve=[bins[place] for place in sorted(bins)],
            hardest=sorted([*self.hardest, *other.hardest])[:HARD_KEEP],
            escalated=self.escalated + other.escalated,
            certificates=sorted({*self.certificates, *other.certificates}),
        )


class Partial(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was found in some chunks of a space. JSON by `encode`, read by `decode`."""

    space: str  # Space.identity()
    reference: str  # the route that judged: figures of different routes never merge
    chunks: list[tuple[int, int]]  # covered, half-open, sorted, disjoint
    parts: dict[str, Part]  # by result; the baseline's under "baseline " + result
    notes: list[str] = []

    @property
    def done(self) -> int:
        """How many chunks are covered."""
        return sum(high - low for low, high in self.chunks)

    def merge(self, other: Partial) -> Partial:
        """Both together. UsageError when they are of different spaces or share a chunk."""
        if (self.space, self.reference) != (other.space, other.reference):
            raise UsageError(
                f"partial results of different sweeps do not merge: {self.space} by {self.reference}, "
                f"{other.space} by {other.reference}"
            )
        names = sorted({*self.parts, *other.parts})
        return Partial(
            space=self.space,
            reference=self.reference,
            chunks=merged([*self.chunks, *other.chunks]),
            parts={name: self.parts.get(name, Part()).merge(other.parts.get(name, Part())) for name in names},
            notes=sorted({*self.notes, *other.notes}),
        )

    def encode(self) -> bytes:
        """Canonical JSON."""
        return msgspec.json.encode(self, order="sorted")

    @staticmethod
    def decode(data: bytes) -> Partial:
        """From JSON."""
        return msgspec.json.decode(data, type=Partial)


class Outline(msgspec.Struct, frozen=True):
    """What of an encoded partial says what it covers: whoever only shares out chunks reads no more of it."""

    space: str
    reference: str
    chunks: list[tuple[int, int]]

    @staticmethod
    def decode(data: bytes) -> Outline:
        """From the JSON of a partial."""
        return msgspec.json.decode(data, type=Outline)


def dense(counts: list[tuple[int, int]]) -> Any:
    """Counts as verify.measure.tally has them: an array with one row of bins per sign."""
    import numpy as np

    from verify.measure.tally import BINS

    result = np.zeros(2 * BINS, dtype=np.int64)
    for place, count in counts:
        result[place] = count
    return result.reshape(2, BINS)


def sparse(counts: Any) -> list[tuple[int, int]]:
    """The bins in use of such an array."""
    flat = counts.reshape(-1)
    return [(int(place), int(flat[place])) for place in flat.nonzero()[0]]


def added(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Two sparse counts together."""
    if not a or not b:
        return a or b
    total = dict(a)
    for place, count in b:
        total[place] = total.get(place, 0) + count
    return sorted(total.items())
