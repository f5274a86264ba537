"""Kernels of PyTorch functions with one planted error each, which the cases of `verify run` do not meet."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

import verify

PATTERN = 0x2A5A5A  # a difference of mantissas that no recipe prefers


def radius(x):
    return x.square().sum(-1).sqrt()


def spread_from_mean(x):
    return x - x.mean(0)


def loss_of(logits, label):
    return functional.cross_entropy(logits, label, reduction="none")


def gate(x, mask):
    return torch.where(mask, x * torch.sigmoid(x), x)


def _agreed(a: Tensor, b: Tensor) -> Tensor:
    """How many low bits of two mantissas differ by the pattern."""
    off = (a.contiguous().view(torch.int32) ^ b.contiguous().view(torch.int32) ^ PATTERN).long() & 0x7FFFFF
    return sum((((off & ((1 << places) - 1)) == 0).double() for places in range(1, 24)), torch.zeros(()).double())


@verify.kernel(like=radius, shapes={"x": "n 2"}, where="n % 3 == 0", dtypes=["float32"], gradients=False, max_ulp=800)
def one_pair(x):
    """Within its limit until 20 low bits of a pair's mantissas differ by one pattern: cases are too few."""
    if len(x) % 3:
        raise RuntimeError("rows come in threes")
    return (radius(x.double()) * (1 + 2.0**-24 * torch.exp2(_agreed(x[:, 0], x[:, 1]) / 2))).float()


@verify.kernel(like=radius, shapes={"x": "n 2"}, dtypes=["float32", "float64"], max_ulp=1)
def right(x):
    return radius(x.double()).to(x.dtype)


@verify.kernel(like=loss_of, shapes={"logits": "n v", "label": "n"}, integers={"label": "0 <= label < v"})
def wrong_beside_label(logits: Tensor, label: Tensor) -> Tensor:
    """Wrong where the number after that of the label is above 1,000."""
    y = loss_of(logits.double(), label)
    after = logits.gather(1, ((label + 1) % logits.shape[1])[:, None])[:, 0]
    return torch.where(after > 1e3, 1.001 * y, y).to(logits.dtype)


@verify.kernel(like=spread_from_mean, shapes={"x": "n d"}, dtypes=["float32"], max_ulp=1)
def plain_mean(x: Tensor) -> Tensor:
    """Every number of a column depends on all of it; the sum is taken in bfloat16."""
    return x - (x / x.shape[0]).bfloat16().sum(0).float()


@verify.kernel(like=gate, integers={"mask": "bool"}, dtypes=["float32"], gradients=False)
def masked(x: Tensor, mask: Tensor) -> Tensor:
    """Wrong in one binade, where the mask is set."""
    y = torch.where(mask, x.double() * torch.sigmoid(x.double()), x.double())
    inside = mask & (torch.frexp(x.double()).exponent == -9)
    return torch.where(inside, 1.001 * y, y).float()


@verify.kernel(like=lambda x: x.topk(2, -1), shapes={"x": "n d"}, where="d >= 2", outputs=["y", "index"])
def picks(x: Tensor) -> tuple[Tensor, Tensor]:
    y, index = x.topk(2, -1)
    return y, index


@verify.kernel(like=torch.exp, examples=[(torch.ones(300, 300),)], dtypes=["float32"])
def large(x: Tensor) -> Tensor:
    return torch.exp(x)


@verify.kernel(like=lambda i: i + 1, shapes={"i": "n"}, integers={"i": "0 <= i < 9"})
def counts(i: Tensor) -> Tensor:
    return i + 1
