"""Products of matrices as Hopper's tensor cores add them up in FP8, emulated."""

from __future__ import annotations

import torch
from torch import Tensor


def cut(x: Tensor, exponent: Tensor, bits: int) -> Tensor:
    """Numbers without what lies below so many bits of the largest number, whose exponent is given."""
    unit = torch.exp2((exponent - bits).double())
    return (x / unit).trunc() * unit


def added(a: Tensor, b: Tensor, *, bits: int = 14, promoted: int = 0, step: int = 32) -> Tensor:
    """a @ b.mT: in each step 32 products and the sum are aligned to the largest, cut off after `bits`, and added."""
    a, b = a.double(), b.double()
    whole = torch.zeros(a.shape[0], b.shape[0], dtype=torch.float64)
    total = whole.clone()
    for start in range(0, a.shape[1], step):
        products = a[:, None, start : start + step] * b[None, :, start : start + step]
        terms = torch.cat([products, total[..., None]], -1)
        exponent = torch.frexp(terms.abs().amax(-1, keepdim=True))[1]
        total = cut(terms, exponent, bits).sum(-1)
        if promoted and (start + step) % promoted == 0:
            whole, total = (whole + total).float().double(), torch.zeros_like(total)
    return (whole + total).float()
