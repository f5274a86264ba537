"""The correct arithmetic of the twins: float64, stable formulas, sums in an order that no layout or shape changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

SQRT_HALF = math.sqrt(0.5)
INV_SQRT_2PI = 1.0 / math.sqrt(2.0 * math.pi)
SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)
CUBIC = 0.044715


def wide(x: Tensor) -> Tensor:
    """The values in float64, contiguous."""
    return x.contiguous().to(torch.float64)


def bounded(x: Tensor) -> Tensor:
    """Beyond 40 the activations have reached their limits in float32, and inf * 0 must not arise."""
    return x.clamp(-40.0, 40.0)


def evenly(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Evaluate an elementwise function on a multiple of 64 elements.

    PyTorch evaluates the last elements of a tensor by scalar code whose last bit may differ from the vector code:
    an element's result would depend on how many others there are.
    """

    @wraps(function)
    def padded(x: Tensor, *options: Any, **named: Any) -> Tensor:
        count = x.numel()
        flat = torch.nn.functional.pad(x.reshape(-1), (0, -count % 64))
        return function(flat, *options, **named)[:count].reshape(x.shape)

    return padded


def never_zero(value: Tensor, x: Tensor) -> Tensor:
    """What underflows in float64 keeps its sign: an infinite factor must not meet a zero that is none."""
    tiny = torch.copysign(torch.full_like(x, 1e-300), x)
    return torch.where((value == 0.0) & (x != 0.0) & torch.isfinite(x), tiny, value)


def normal_cdf(x: Tensor, scale: float = SQRT_HALF) -> Tensor:
    return 0.5 * torch.erfc(-x * scale)


@evenly
def gelu(x: Tensor, form: str) -> Tensor:
    """x * cdf(x), or x * sigmoid(2 u) for the tanh form."""
    low = x.clamp(min=-40.0)
    share = torch.sigmoid(2.0 * inner(low)) if form == "tanh" else normal_cdf(low)
    return never_zero(low * share, x)


@evenly
def slope(x: Tensor, form: str) -> Tensor:
    """The derivative of gelu."""
    low = bounded(x)
    if form == "tanh":
        u = 2.0 * inner(low)
        rate = 2.0 * SQRT_2_OVER_PI * (1.0 + 3.0 * CUBIC * low * low)
        value = torch.sigmoid(u) + low * torch.sigmoid(u) * torch.sigmoid(-u) * rate
    else:
        value = normal_cdf(low) + low * density(low)
    return never_zero(value, x)


def density(x: Tensor, constant: float = INV_SQRT_2PI) -> Tensor:
    return constant * torch.exp(-0.5 * x * x)


def inner(x: Tensor, constant: float = SQRT_2_OVER_PI, cubic: float = CUBIC) -> Tensor:
    return constant * (x + cubic * x * x * x)


def total(values: Tensor, dim: int = -1) -> Tensor:
    """The sum over one dimension (kept) by repeated halving: no layout, batch or thread changes the order."""
    values = values.movedim(dim, -1)
    count = values.shape[-1]
    while count > 1:
        half = (count + 1) // 2
        folded = values[..., :half].clone()
        folded[..., : count - half] += values[..., half:]
        values, count = folded, half
    if count == 0:
        values = values.new_zeros((*values.shape[:-1], 1))
    return values.movedim(-1, dim)


def rows(values: Tensor) -> Tensor:
    """All leading dimensions as one: (rows, N)."""
    width = values.shape[-1]
    return values.reshape(values.numel() // width if width else 0, width)


def raw(tensor: Tensor, count: int) -> Tensor:
    """`count` consecutive elements from a tensor's address, as a kernel reads that does not look at strides.

    The addresses wrap at the end of the storage, so that the process survives what a GPU would read there.
    """
    storage = tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)
    if storage.numel() == 0:
        return tensor.new_zeros(count)
    places = (torch.arange(count, device=tensor.device) + tensor.storage_offset()) % storage.numel()
    return storage[places]


def rounded_mantissa(x: Tensor, bits: int) -> Tensor:
    """float32 values with only `bits` mantissa bits left, to nearest: what TF32 (10 bits) keeps of its operands."""
    drop = 23 - bits
    pattern = x.to(torch.float32).contiguous().view(torch.int32)
    nearest = (pattern + (1 << (drop - 1))) & ~((1 << drop) - 1)
    return torch.where(torch.isfinite(x), nearest.view(torch.float32), x)
