"""Defines the inputs of a sweep: every input of a kernel in one dtype, or a range of them, cut into numbered chunks.

Inputs are numbered by *key*: the position of a pattern in the total order of its format, from the negative NaN over -0
and +0 to the positive NaN. Consecutive keys are consecutive numbers, so a range of values, a regime and a bin of the
error curve are each a range of keys. A *point* is one input: the key itself for a unary kernel, `gate key * 2^16 +
other key` for the pairs of a gated one.

The chunks depend on the space alone (2^22 points each, aligned), never on the machine or the number of workers.

A `Partial` has the findings of some chunks, which it lists. Partials of one space merge associatively and
commutatively; merging one chunk twice is an error. A partial depends on single elements only, never on the division of
the work: tallies merge exactly, and curves take maxima, the lowest point first among equals. A leader of a tally is an
element. Its place is its index in the result of the whole space, as if that were one tensor. Its error is an interval's
upper end until `finishing` judges it.
"""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Literal

import msgspec

from verify.errors import UsageError
from verify.measure.tally import Peak, Tally, merged_peaks
from verify.truth.formats import Format, named

CHUNK = 1 << 22
PAIR_BITS = 16  # bits of each operand; pairs of wider ones cannot be enumerated


class Space(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Holds the inputs of one sweep of one kernel, as JSON: everything that determines the figures but the kernel's
    code.

    `start` and `stop` bound the keys of the operand that decides the regime (`x`, or the gate of a pair). A pair's
    other operand takes every pattern.
    """

    target: str  # FILE::KERNEL or MODULE::KERNEL
    dtype: str
    results: tuple[str, ...]
    shape: Literal["unary", "pairs", "packed pairs"]
    start: int
    stop: int
    baseline: bool = False

    @property
    def format(self) -> Format:
        """Returns the format of the operands."""
        return named(self.dtype)

    @property
    def per_key(self) -> int:
        """Returns the number of points for each key of the deciding operand."""
        return 1 if self.shape == "unary" else 1 << PAIR_BITS

    @property
    def first(self) -> int:
        """Returns the first point."""
        return self.start * self.per_key

    @property
    def last(self) -> int:
        """Returns one past the last point."""
        return self.stop * self.per_key

    @property
    def points(self) -> int:
        """Returns the number of inputs."""
        return self.last - self.first

    @property
    def complete(self) -> bool:
        """True if the space has every input of the dtype."""
        return self.start == 0 and self.stop == 1 << self.format.bits

    @property
    def chunks(self) -> int:
        """Returns the number of chunks, which are numbered from 0."""
        return -(-self.last // CHUNK) - self.first // CHUNK

    def chunk(self, number: int) -> tuple[int, int]:
        """Returns the points of a chunk, half-open."""
        if not 0 <= number < self.chunks:
            raise UsageError(f"the space has chunks 0 to {self.chunks - 1}; received {number}")
        low = (self.first // CHUNK + number) * CHUNK
        return max(low, self.first), min(low + CHUNK, self.last)

    def question(self) -> str:
        """Returns a text for the property hash. Equal inputs have the same text."""
        return f"{self.shape} {self.dtype} keys {self.start}..{self.stop}"

    def identity(self) -> str:
        """Returns 12 hex digits that identify the whole space. Partial results of different spaces never merge."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()[:12]

    def describe(self) -> str:
        """Returns `all 2^32 inputs` or `6 inputs of [0.5, 0.75]`."""
        if self.complete:
            exponent = self.points.bit_length() - 1
            return f"all 2^{exponent} " + ("inputs" if self.shape == "unary" else "pairs")
        noun = "inputs" if self.shape == "unary" else "pairs"
        fmt = self.format
        low, high = (fmt.to_float(bits_of_key(fmt, key)) for key in (self.start, self.stop - 1))
        return f"{self.points:,} {noun} of [{low:g}, {high:g}]"


def key_of_bits(fmt: Format, bits: int) -> int:
    """Returns the position of a pattern in the total order of a format."""
    return (fmt.sign_bit - 1) - (bits ^ fmt.sign_bit) if bits & fmt.sign_bit else bits + fmt.sign_bit


def bits_of_key(fmt: Format, key: int) -> int:
    """Returns the pattern at a position."""
    return key - fmt.sign_bit if key >= fmt.sign_bit else (fmt.sign_bit - 1 - key) | fmt.sign_bit


@lru_cache(maxsize=4096)
def key_of_value(fmt: Format, value: float, *, above: bool = False) -> int:
    """Returns the key of the smallest number of a format that is >= value (> value if `above`). -0 counts as 0."""
    magnitude = fmt.inf_bits if math.isinf(value) else fmt.up_to(abs(value))
    exact = math.isinf(value) or fmt.value(magnitude) == Fraction(abs(value))
    if value > 0:
        return fmt.sign_bit + magnitude + (above or not exact)
    if value == 0:
        return fmt.sign_bit + 1 if above else fmt.sign_bit - 1
    return fmt.sign_bit - 1 - magnitude + (above and exact)


def merged(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns sorted intervals with neighbours joined. Raises UsageError if two overlap."""
    result: list[tuple[int, int]] = []
    for low, high in sorted(intervals):
        if result and low < result[-1][1]:
            raise UsageError(f"chunk {low} is counted twice: partial results overlap")
        if result and low == result[-1][1]:
            result[-1] = (result[-1][0], high)
        else:
            result.append((low, high))
    return result


def left_over(chunks: int, done: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns the chunks that no interval covers."""
    bounds = [(0, 0), *merged(done), (chunks, chunks)]
    return [(low, high) for (_, low), (high, _) in pairwise(bounds) if low < high]


class Part(msgspec.Struct, frozen=True):
    """Holds the findings about one result of one implementation."""

    regimes: dict[str, Tally] = {}
    curve: list[Peak] = []
    escalated: int = 0
    certificates: list[str] = []

    def merge(self, other: Part) -> Part:
        """Merges two parts."""
        names = sorted({*self.regimes, *other.regimes})
        return Part(
            regimes={name: self.regimes.get(name, Tally()).merge(other.regimes.get(name, Tally())) for name in names},
            curve=merged_peaks(self.curve, other.curve),
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
