"""Candidates as ordinals: positions on the number line of a format, consecutive numbers one apart.

A step of one ulp is an addition, a sign is a negation, an exponent is a shifted addition. Every int64 within +-max_bits
is a finite number, so no edit can leave the space. Negative zero is the one finite pattern without an ordinal of its
own; the special values of every run try it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from verify.truth.formats import Format
from verify.truth.ulp import bits_of, from_bits


def to_tensor(ordinals: Tensor, fmt: Format) -> Tensor:
    """Returns the numbers at ordinals, in the format's dtype."""
    sign = -(1 << 63) if fmt.bits == 64 else fmt.sign_bit
    return from_bits(torch.where(ordinals < 0, ordinals.abs() | sign, ordinals), fmt)


def of_tensor(tensor: Tensor, fmt: Format) -> Tensor:
    """Returns the ordinals of numbers; infinities and NaN become the largest finite number of their sign."""
    bits = bits_of(tensor)
    magnitude = bits & ((1 << (fmt.bits - 1)) - 1)
    negative = bits < 0 if fmt.bits == 64 else bits >= fmt.sign_bit
    return torch.where(negative, -magnitude, magnitude).clamp(-fmt.max_bits, fmt.max_bits)
