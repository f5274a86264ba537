"""Holds the findings of some chunks of a sweep. Partials of one space merge associatively and commutatively.

A partial depends on single elements only, never on the division of the work: tallies merge exactly, and curves take
maxima, the lowest point first among equals. A leader of a tally is an element. Its place is its index in the result of
the whole space, as if that were one tensor. Its error is an interval's upper end until `finishing` judges it. A partial
lists the chunks that it covers; merging one chunk twice is an error.
"""

from __future__ import annotations

import msgspec

from verify.errors import UsageError
from verify.measure.tally import Peak, Tally, merged_peaks
from verify.search.sweep.space import merged

HARD_KEEP = 64  # candidates for the hardest-to-round inputs; exact judgement sorts them


class Part(msgspec.Struct, frozen=True):
    """Holds the findings about one result of one implementation."""

    regimes: dict[str, Tally] = {}
    curve: list[Peak] = []
    hardest: list[tuple[float, int]] = []  # (distance of the truth from a midpoint in ulp, place), nearest first
    escalated: int = 0
    certificates: list[str] = []

    def merge(self, other: Part) -> Part:
        """Merges two parts."""
        names = sorted({*self.regimes, *other.regimes})
        return Part(
            regimes={name: self.regimes.get(name, Tally()).merge(other.regimes.get(name, Tally())) for name in names},
            curve=merged_peaks(self.curve, other.curve),
            hardest=sorted([*self.hardest, *other.hardest])[:HARD_KEEP],
            escalated=self.escalated + other.escalated,
            certificates=sorted({*self.certificates, *other.certificates}),
        )


class Partial(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Holds the findings of some chunks of a space."""

    space: str  # Space.identity()
    reference: str  # kind of the device that judged, such as sm_90: figures of different devices never merge
    chunks: list[tuple[int, int]]  # covered, half-open, sorted, disjoint
    parts: dict[str, Part]  # by result; results of the baseline under "baseline " + result
    notes: list[str] = []

    @property
    def done(self) -> int:
        """Returns the number of chunks covered."""
        return sum(high - low for low, high in self.chunks)

    def merge(self, other: Partial) -> Partial:
        """Merges two partials. Raises UsageError if they are of different spaces or share a chunk."""
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
