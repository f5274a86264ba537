"""Candidates as ordinals: position on the number line of a format, consecutive numbers one apart.

A step of one ulp is an addition, a sign is a negation, an exponent is a shifted addition, and every int64
within +-max_bits is a finite number: no operator of the search can leave the space. Negative zero is the one
finite pattern that has no ordinal of its own; the special values of every run try it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from verify.truth.formats import Format, torch_dtype
from verify.truth.ulp import bits_of, from_bits, widen


def to_tensor(ordinals: Tensor, fmt: Format) -> Tensor:
    """The numbers at ordinals, in the format's dtype."""
    sign = -(1 << 63) if fmt.bits == 64 else fmt.sign_bit
    return from_bits(torch.where(ordinals < 0, ordinals.abs() | sign, ordinals), fmt)


def of_tensor(tensor: Tensor, fmt: Format) -> Tensor:
    """The ordinals of numbers; infinities and NaN become the largest finite number of their sign."""
    bits = bits_of(tensor)
    magnitude = bits & ((1 << (fmt.bits - 1)) - 1)
    negative = bits < 0 if fmt.bits == 64 else bits >= fmt.sign_bit
    return torch.where(negative, -magnitude, magnitude).clamp(-fmt.max_bits, fmt.max_bits)


def to_float64(ordinals: Tensor, fmt: Format) -> Tensor:
    """The numbers at ordinals, widened."""
    return widen(to_tensor(ordinals, fmt))


def of_float64(values: Tensor, fmt: Format) -> Tensor:
    """The ordinals of float64 values rounded into a format; what is not a number becomes zero."""
    limit = float(fmt.max_finite)
    return of_tensor(values.nan_to_num(0.0, limit, -limit).clamp(-limit, limit).to(torch_dtype(fmt)), fmt)
