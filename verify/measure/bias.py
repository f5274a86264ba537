"""Counts which way a result is rounded wrongly: away from zero, or toward it.

A correctly rounded result has no bias, whatever the inputs: the count is of elements that are rounded wrongly, away
from zero minus toward it. A kernel that rounds to nearest after accurate steps is wrong on both sides equally often.
A kernel that cuts off digits is wrong at half of the elements, all of them toward zero.

Two kinds of repetition would make a chance look like a rule. Many elements may have one truth, such as log 2 at all
tiny inputs. So of elements with the same rounded truth one counts. And the elements of a row, or of a column, may share
a rounding, such as that of the row's mean. So the standard error comes from sums of rows or columns.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from verify.measure.tally import Bias
from verify.truth.formats import Format, torch_dtype
from verify.truth.ulp import Errors, bits_of, ulp_exponent

_MOST = 1 << 18  # elements of one result that are looked at, chosen by their places
_FEW_BLOCKS = 4  # fewer blocks do not show by their scatter whether their elements share roundings
_PRIME = 2_654_435_761  # its multiples, modulo the number of elements, visit all places in a scattered order


def bias_of(
    found: Errors,
    value: Tensor,
    fmt: Format,
    shape: tuple[int, ...],
    *,
    apart: bool,
    segments: Tensor | None,
    n_segments: int,
) -> list[Bias]:
    """Returns the bias of each segment.

    value: the truth of each element, of which one per rounded number counts.
    apart: True if no two elements share a step, so that each is an observation of its own.
    """
    size = value.numel()
    places = torch.arange(min(size, _MOST), device=value.device) * _PRIME % max(size, 1)
    truth, error = value.reshape(-1)[places], found.ulp[places]
    # a truth that is itself a number of the format is right under every rounding
    kept = torch.isfinite(truth) & ~found.undecided[places] & (error != error.round())
    if found.yardstick is not None:  # beyond an ULP of noise the last digit is not the kernel's to choose
        noise = found.yardstick.noise[places] * torch.exp2(-ulp_exponent(truth, fmt).double())
        kept &= noise <= 1
    member = torch.zeros_like(places) if segments is None else segments.reshape(-1)[places]
    kept = torch.nonzero(kept & (member >= 0)).reshape(-1)
    places, truth, member = places[kept], truth[kept], member[kept]
    number = bits_of(truth.to(torch_dtype(fmt))) * _PRIME + member  # odd factors keep the numbers of 64 bits apart
    groups, group = torch.unique(number, return_inverse=True)
    order = torch.arange(len(group), device=group.device)
    first = torch.full((len(groups),), len(group), device=group.device).scatter_reduce_(0, group, order, "amin")
    places, truth, member = places[first], truth[first], member[first]
    side = (found.misrounded[places] * torch.sign(found.ulp[places]) * torch.sign(truth)).long()
    side, member, places = side.cpu(), member.cpu(), places.cpu()  # few: each count on a GPU would wait for it
    columns = max(shape[-1] if shape else 1, 1)
    ways = [torch.arange(len(side))] if apart else [places // columns, places % columns]
    return [_worst(side[member == each], [way[member == each] for way in ways]) for each in range(n_segments)]


def _worst(side: Tensor, ways: list[Tensor]) -> Bias:
    """Returns the bias by the grouping of elements into blocks that leaves it most uncertain."""
    found = []
    for way in ways:
        _, block = torch.unique(way, return_inverse=True)
        count = int(block.max()) + 1 if len(block) else 0
        sizes = torch.bincount(block, minlength=count)
        sums = torch.zeros(count, dtype=torch.int64).scatter_add_(0, block, side)
        squares, cross, weights = (int((a * b).sum()) for a, b in ((sums, sums), (sums, sizes), (sizes, sizes)))
        found.append(Bias(len(side), int(side.sum()), count, squares, cross, weights))
    return max(found, key=lambda each: each.error if each.blocks >= _FEW_BLOCKS else math.inf)
