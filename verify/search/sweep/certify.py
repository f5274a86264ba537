"""Certifies the fused reference: measures how far the evaluated table of every curve is from the exact value.

It tries every cell of the table at random inputs, and the boundaries between cells on both sides. It tries the cell
around zero at every octave down to the subnormals. The units are those of the reference's own scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from verify import ops
from verify.backends import architecture
from verify.cases import counter
from verify.measure.certify import variants
from verify.search.sweep.reference import KIND, distances, reference_of
from verify.search.sweep.space import key_of_bits
from verify.search.sweep.table import CELL_BITS
from verify.truth.certificate import Entry
from verify.truth.formats import named

PER_CELL = 4
NEAR_POINTS = 2048


def certify_fused(
    names: Sequence[str], *, device: str, seed: int = 0, progress: Callable[[str], None] = lambda text: None
) -> list[Entry]:
    """Returns one entry for each curve, each set of its named parameters, and its value and its slope."""
    entries = []
    curves = {name: ops.get(name).gate_curve for name in ops.names()}
    for curve in dict.fromkeys(filter(None, curves.values())):
        if names and not any(curves.get(name) == curve for name in names):
            continue
        op = ops.get(curve)
        for params in variants(op):
            progress(f"certify {curve} {params} fused")
            for slope in (False, True):
                reference = reference_of(curve, op.resolve(params), slope, "float32", device)
                keys = _keys(reference.table.first, reference.table.last_row, seed)
                found = distances(reference, keys)
                worst = max(range(len(found)), key=found.__getitem__)
                entries.append(
                    Entry(
                        op=curve,
                        params=params,
                        result="dx" if slope else "y",
                        device=f"{KIND} {architecture(device)}",
                        units=round(found[worst], 3),
                        n=len(found),
                        seed=seed,
                        torch=str(torch.__version__),
                        worst=f"float32 key {int(keys[worst])}",
                    )
                )
    return entries


def _keys(first: int, last_row: int, seed: int) -> torch.Tensor:
    """Returns float32 keys of both signs: in every cell, at its ends, and in every octave below the first cell."""
    fmt = named("float32")
    cells = torch.arange(first, first + last_row - 1, dtype=torch.int64)
    starts = cells << CELL_BITS
    inside = [starts + counter.below(seed, f"cell {k}", cells.numel(), 1 << CELL_BITS) for k in range(PER_CELL - 2)]
    near = counter.below(seed, "near", NEAR_POINTS, first << CELL_BITS)
    bits = torch.cat([starts, starts + (1 << CELL_BITS) - 1, *inside, near])
    positive = bits + key_of_bits(fmt, 0)
    negative = key_of_bits(fmt, fmt.sign_bit) - bits
    which = counter.below(seed, "sign", bits.numel(), 2).bool()
    return torch.where(which, positive, negative)
