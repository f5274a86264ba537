"""The worst elements of a tensor of errors, in a total order: largest first, lowest place first among equals."""

from __future__ import annotations

import torch
from torch import Tensor

from verify.measure.tally import KEEP, top
from verify.records.record import Number, number
from verify.sweep.partial import Leader


def leaders_of(upper: Tensor, places: Tensor, patterns: Tensor) -> tuple[list[Leader], Number]:
    """The worst elements by their upper bounds, and the bound of the next one. Entries of -1 are left out."""
    found = top(upper, KEEP + 1)
    index = torch.tensor([place for _, place in found], dtype=torch.int64, device=upper.device)
    rows = zip([bound for bound, _ in found], places[index].tolist(), patterns[index].tolist(), strict=True)
    leaders = sorted((Leader(number(bound), place, bits) for bound, place, bits in rows), key=lambda item: item.order)
    rest: Number = leaders[KEEP].upper if len(leaders) > KEEP else -1.0
    return leaders[:KEEP], rest


def top_units(ranked: Tensor, base: Tensor, keep: int) -> Tensor:
    """The units with the largest non-negative figures, in the order of their places; equals by lowest place."""
    keep = min(keep, ranked.numel())
    values = torch.topk(ranked, keep).values
    if not float(values[0]) >= 0:
        return torch.empty(0, dtype=torch.int64, device=ranked.device)
    floor = values[-1].clamp_min(0)
    above = torch.nonzero(ranked > floor).reshape(-1)
    equal = torch.nonzero(ranked == floor).reshape(-1)
    equal = equal[torch.argsort(base[equal])][: keep - above.numel()]
    picked = torch.cat([above, equal])
    return picked[torch.argsort(base[picked])]
