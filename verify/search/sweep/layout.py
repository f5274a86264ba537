"""Lays out the points of a fused sweep: slabs for the kernel under test, pieces of one regime and one curve bin."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from verify.declare.declaration import Kernel
from verify.records.record import CLASSES
from verify.search.sweep.scope import SPECIAL, curve_keys, level_at, levels, parts_of
from verify.search.sweep.space import PAIR_BITS, Space, finite_keys, key_of_bits
from verify.search.sweep.subject import gate_of

UNIT = 4096  # neighbouring inputs whose maxima are kept together
SIDE = 1 << PAIR_BITS
SLAB = 1 << 26  # points of one call of the kernel under test


@dataclass
class Piece:
    """Holds points in one part and one bin of the curve: keys start..stop, with `columns` of the other operand."""

    start: int
    stop: int
    columns: tuple[int, int]
    part: int
    bin: int
    slab: int  # first point of the slab
    slot: int = 0
    units: int = 0


class Plan:
    """Divides a range of points into slabs and pieces."""

    def __init__(self, kernel: Kernel, space: Space, first: int, last: int) -> None:
        fmt = space.format
        params = kernel.op.resolve(kernel.params)
        self.space = space
        regimes = kernel.op.landmarks.regimes(params)
        self.names = parts_of([item.name for item in regimes])
        self.special = len(self.names) - 2  # the first of the parts without classes
        spans = [finite_keys(fmt, item.low, item.high) for item in regimes]
        self.edges = curve_keys(kernel.op, params, fmt)
        smallest, largest = key_of_bits(fmt, fmt.max_bits | fmt.sign_bit), key_of_bits(fmt, fmt.max_bits)
        self.finite = (smallest, largest + 1)
        gate = gate_of(kernel.op)
        others = [item.name for item in kernel.op.operands if item.name != gate] or [gate]
        levels_of = {name: levels(fmt, kernel.promised_to(space.dtype, name)) for name in (gate, *others)}
        self.bands = levels_of[others[0]]  # levels of the other operand of a pair
        mine = levels_of[gate]
        cuts = sorted({*self.edges, *(key for span in spans for key in span), *(key for key, _ in mine if key)})
        self.cuts = cuts
        self.labels = []
        for key in [0, *cuts]:
            regime = next((place for place, (a, b) in enumerate(spans) if a <= key < b), len(regimes))
            self.labels.append((regime, bisect_right(self.edges, key) - 1, level_at(mine, key)))
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

    def label(self, key: int) -> tuple[int, int, int]:
        """Returns regime, bin and level of a key of the deciding operand."""
        return self.labels[bisect_right(self.cuts, key)]

    def part(self, regime: int, level: int) -> int:
        """Returns the index in `names` of the part that holds elements of a regime and a level."""
        return regime * len(CLASSES) + level if level < SPECIAL else self.special + level - SPECIAL

    def part_at(self, gate: int, other: int | None) -> int:
        """Returns the index of the part of an element."""
        regime, _, level = self.label(gate)
        return self.part(regime, level if other is None else max(level, level_at(self.bands, other)))

    def _pieces(self, first: int, last: int) -> Iterator[Piece]:
        """Yields the pieces of a range of points, cut at regimes, bins and levels."""
        per = self.space.per_key
        start, stop = first // per, last // per
        ends = [start, *(key for key in self.cuts if start < key < stop), stop]
        for low, high in itertools.pairwise(ends):
            regime, bin_, level = self.label(low)
            bands = [(0, level)] if per == 1 else [(key, max(level, other)) for key, other in self.bands]
            # Join neighbouring bands that end up in the same level.
            kept = [band for place, band in enumerate(bands) if not place or bands[place - 1][1] != band[1]]
            for (left, here), right in zip(kept, [*(key for key, _ in kept[1:]), SIDE], strict=True):
                part = self.part(regime, here)
                columns = (0, 0) if per == 1 else (left, right)
                units = (high - 1) // UNIT - low // UNIT + 1 if per == 1 else (high - low) * -(-(right - left) // UNIT)
                yield Piece(low, high, columns, part, -1 if part >= self.special else bin_, first, units=units)

    def rows(self) -> list[list[int]]:
        """Returns the pieces in the form that the kernels read."""
        per = self.space.per_key
        found = []
        for piece in self.pieces:
            if per == 1:
                found.append([piece.start, piece.stop, piece.start // UNIT, piece.slot, piece.part, piece.slab, 0, 0])
                continue
            per_row = -(-(piece.columns[1] - piece.columns[0]) // UNIT)
            found.append([piece.start, piece.stop, *piece.columns, per_row, piece.slot, piece.part, piece.slab // per])
        return found
