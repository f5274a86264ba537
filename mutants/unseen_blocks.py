"""Kernels that are wrong at the ends of axes, where blocks meet, and in what they count. See unseen.py."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from mutants.pairs import pair

INF = math.inf


# -- ends of an axis -------------------------------------------------------------------------------------------


@pair("a reflection repeats the last number", like=lambda x: functional.pad(x, (2, 2), mode="reflect"),
      shapes={"x": "b n"}, where="n >= 3")  # fmt: skip
def reflected(x, *, right):
    n = x.shape[-1]
    at = torch.arange(-2, n + 2, device=x.device).abs()
    return x[:, torch.where(at >= n, 2 * n - (2 if right else 1) - at, at)]


@pair("a window that ends beyond the row is divided by its whole size",
      like=lambda x: functional.avg_pool1d(x[None], 3, 2, 1, count_include_pad=False)[0],
      shapes={"x": "c n"}, where="n >= 2")  # fmt: skip
def pooled_ends(x, *, right):
    n = x.shape[-1]
    sums = functional.pad(x, (1, 2)).unfold(-1, 3, 2).sum(-1)[:, : (n - 1) // 2 + 1]
    first = 2 * torch.arange(sums.shape[-1], device=x.device) - 1
    last = (first + 3).clamp(max=n) if right else first + 3
    return sums / (last - first.clamp(min=0))


@pair("a row shorter than the shift is turned by the shift less its length alone",
      like=lambda x: x.roll(5, -1), shapes={"x": "b n"})  # fmt: skip
def turned(x, *, right):
    n = x.shape[-1]
    if not x.numel():
        return x.clone()
    by = 5 % n if right else 5 if n >= 5 else min(5 - n, n)
    return torch.cat([x[:, n - by :], x[:, : n - by]], -1)


@pair("of an even number of elements the larger one in the middle", like=lambda x: x.median(-1).values,
      shapes={"x": "b n"}, where="n >= 1")  # fmt: skip
def middle(x, *, right):
    n = x.shape[-1]
    found = x.sort(-1).values[:, (n - 1) // 2 if right else n // 2]
    return torch.where(x.isnan().any(-1), math.nan, found)


# -- where blocks meet -----------------------------------------------------------------------------------------


@pair("the interval between two blocks of 128 is left out",
      like=lambda x: (x[:, 1:] + x[:, :-1]).sum(-1) / 2, shapes={"x": "b n"}, where="n >= 2")  # fmt: skip
def trapezoids(x, *, right):
    total = torch.zeros_like(x[:, 0])
    for first in range(0, x.shape[-1] - 1, 128):
        part = x[:, first : first + (129 if right else 128)]
        total = total + (part[:, 1:] + part[:, :-1]).sum(-1) / 2
    return total


@pair("the last block has the weight of a whole one", like=lambda x: x.var(-1), shapes={"x": "b n"}, where="n >= 2")
def merged_variance(x, *, right):
    """Chan's formula for the blocks of a row."""
    count, mean, squares = 0, torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0])
    for part in x.split(64, -1):
        own, center = part.shape[-1], part.mean(-1)
        weight = own if right else 64
        apart = center - mean
        squares = squares + (part - center[:, None]).square().sum(-1) + apart.square() * (count * own / (count + own))
        mean = mean + apart * (weight / (count + weight))
        count += own
    return squares / (count - 1)


@pair("a block whose numbers are all below the sum so far adds nothing", like=lambda x: x.logcumsumexp(-1),
      shapes={"x": "b n"})  # fmt: skip
def running_log_sum(x, *, right):
    carry, found = x.new_full((len(x), 1), -INF), []
    for part in x.split(32, -1):
        found.append(torch.logaddexp(carry, part.logcumsumexp(-1)))
        last = found[-1][:, -1:]
        carry = last if right else torch.where(part.amax(-1, True) < carry, carry, last)
    return torch.cat(found, -1) if found else x.clone()


@pair("the blocks above the diagonal are those below it, not turned", like=lambda x: x @ x.mT, shapes={"x": "n d"})
def mirrored(x, *, right):
    n = len(x)
    y = x.new_zeros(n, n)
    for i in range(0, n, 16):
        for j in range(0, i + 16, 16):
            block = x[i : i + 16] @ x[j : j + 16].mT
            y[i : i + 16, j : j + 16] = block
            whole = block.shape == (16, 16)
            y[j : j + 16, i : i + 16] = block if whole and i != j and not right else block.mT
    return y


# -- counts ----------------------------------------------------------------------------------------------------


def of_rows(x: Tensor, lengths: Tensor) -> Tensor:
    """The sums of segments that lie one behind the other, as rows of a sparse matrix do."""
    row = (torch.arange(len(x), device=x.device)[:, None] >= lengths.cumsum(0)).sum(1)
    return functional.one_hot(row, len(lengths)).to(x.dtype).mT @ x


@pair("a row has at most 32 entries", like=of_rows, shapes={"x": "t d", "lengths": "b"},
      integers={"lengths": "0 <= lengths <= t, sum t"})  # fmt: skip
def sparse_rows(x, lengths, *, right):
    parts = x.split(lengths.tolist())
    return torch.stack([part.sum(0) if right else part[:32].sum(0) for part in parts])


class Scaled(torch.autograd.Function):
    """x * w, whose dw adds up blocks of 64 rows."""

    @staticmethod
    def forward(ctx, x, w, right):
        ctx.save_for_backward(x, w)
        ctx.right = right
        return x * w

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        n = len(x)
        kept = n if ctx.right or n < 64 else n // 64 * 64
        return dy * w, (dy * x)[:kept].sum(0), None


@pair("the gradient of a weight lacks the last incomplete block of 64 rows", like=lambda x, w: x * w,
      shapes={"x": "n d", "w": "d"}, gradients=True)  # fmt: skip
def broadcast_weight(x, w, *, right):
    return Scaled.apply(x, w, right)
