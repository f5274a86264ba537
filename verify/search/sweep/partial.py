"""What a part of a sweep found. Partials of one space merge: associative, commutative, bit for bit the same.

Everything in a partial depends on single elements only, never on how the work was split: tallies merge exactly, curves
take maxima with the lowest point first among equals. A leader of a tally is an element by its place in the result of
the whole space, were that one tensor; its error is an interval's upper end until `finishing` judges it. A
partial knows which chunks it covers; merging one chunk twice is an error.
"""

from __future__ import annotations

import msgspec

from verify.errors import UsageError
from verify.measure.tally import Peak, Tally, merged_peaks
from verify.search.sweep.space import merged

HARD_KEEP = 64  # candidates for the hardest-to-round inputs: exact judgement puts them in order


class Part(msgspec.Struct, frozen=True):
    """One result of one implementation."""

    regimes: dict[str, Tally] = {}
    curve: list[Peak] = []
    hardest: list[tuple[float, int]] = []  # (distance of the truth from a midpoint in ulp, place), nearest first
    escalated: int = 0
    certificates: list[str] = []

    def merge(self, other: Part) -> Part:
        """Both together."""
        names = sorted({*self.regimes, *other.regimes})
        return Part(
            regimes={name: self.regimes.get(name, Tally()).merge(other.regimes.get(name, Tally())) for name in names},
            curve=merged_peaks(self.curve, other.curve),
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
    """What of an encoded partial says what it covers: the process that shares chunks out reads no more of it."""

    space: str
    reference: str
    chunks: list[tuple[int, int]]

    @staticmethod
    def decode(data: bytes) -> Outline:
        """From the JSON of a partial."""
        return msgspec.json.decode(data, type=Outline)
