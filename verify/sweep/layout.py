"""How the points of a fused sweep are laid out: slabs for the subject, pieces of one regime and one curve bin."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from verify.declare.declaration import Kernel
from verify.records.readings import NONFINITE
from verify.sweep.scope import curve_keys
from verify.sweep.space import PAIR_BITS, Space, finite_keys, key_of_bits

UNIT = 4096  # neighbouring inputs whose maxima are kept together
SIDE = 1 << PAIR_BITS
SLAB = 1 << 26  # points that the subject gets at a time


@dataclass
class Piece:
    """Points in one regime and one bin of the curve: keys start..stop, of `columns` of the other operand."""

    start: int
    stop: int
    columns: tuple[int, int]
    regime: int
    bin: int
    slab: int  # first point of the slab
    slot: int = 0
    units: int = 0


class Plan:
    """Slabs and pieces of a range of points."""

    def __init__(self, kernel: Kernel, space: Space, first: int, last: int) -> None:
        fmt = space.format
        params = kernel.op.resolve(kernel.params)
        self.space = space
        regimes = kernel.op.regimes(params)
        self.names = [item.name for item in regimes] + [NONFINITE]
        spans = [finite_keys(fmt, item.low, item.high) for item in regimes]
        self.edges = curve_keys(kernel.op, params, fmt)
        smallest, largest = key_of_bits(fmt, fmt.max_bits | fmt.sign_bit), key_of_bits(fmt, fmt.max_bits)
        self.finite = (smallest, largest + 1)
        cuts = sorted({*self.finite, *self.edges, *(key for span in spans for key in span)})
        self.cuts = cuts
        self.labels = []
        for key in [0, *cuts]:
            regime = next((place for place, (a, b) in enumerate(spans) if a <= key < b), len(regimes))
            self.labels.append((regime, bisect_right(self.edges, key) - 1))
        self.slabs = []
        while first < last:
            end = min((first // SLAB + 1) * SLAB, last)
            self.slabs.append((first, end, list(self._pieces(first, end))))
            first = end
        self.pieces = [piece for _, _, pieces in self.slabs for piece in pieces]
        self.count = 0
        for piece in self.pieces:
            piece.slot = self.count
            self.count += piece.units

    def label(self, key: int) -> tuple[int, int]:
        """Regime and bin of a key of the deciding operand."""
        return self.labels[bisect_right(self.cuts, key)]

    def regime_at(self, gate: int, other: int | None) -> int:
        """Regime of an element."""
        inside = other is None or self.finite[0] <= other < self.finite[1]
        return self.label(gate)[0] if inside else len(self.names) - 1

    def _pieces(self, first: int, last: int) -> Iterator[Piece]:
        per = self.space.per_key
        start, stop = first // per, last // per
        ends = [start, *(key for key in self.cuts if start < key < stop), stop]
        nonfinite = len(self.names) - 1
        for low, high in itertools.pairwise(ends):
            regime, bin_ = self.label(low)
            if per == 1:
                units = (high - 1) // UNIT - low // UNIT + 1
                yield Piece(low, high, (0, 0), regime, -1 if regime == nonfinite else bin_, first, units=units)
                continue
            whole = (0, SIDE)
            parts = [whole] if regime == nonfinite else [(0, self.finite[0]), self.finite, (self.finite[1], SIDE)]
            for columns in parts:
                here = regime if columns == self.finite else nonfinite
                units = (high - low) * -(-(columns[1] - columns[0]) // UNIT)
                yield Piece(low, high, columns, here, -1 if here == nonfinite else bin_, first, units=units)

    def rows(self) -> list[list[int]]:
        """The pieces as the kernels read them."""
        per = self.space.per_key
        found = []
        for piece in self.pieces:
            if per == 1:
                found.append([piece.start, piece.stop, piece.start // UNIT, piece.slot, piece.regime, piece.slab, 0, 0])
                continue
            per_row = -(-(piece.columns[1] - piece.columns[0]) // UNIT)
            found.append(
                [piece.start, piece.stop, *piece.columns, per_row, piece.slot, piece.regime, piece.slab // per]
            )
        return found
