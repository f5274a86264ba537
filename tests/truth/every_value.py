"""All numbers of a small format, and the neighbours of a number."""

from __future__ import annotations

import torch
from torch import Tensor

from verify.ops.op import Point
from verify.truth.exact import judge
from verify.truth.formats import Format
from verify.truth.ulp import from_bits


def all_values(fmt: Format) -> Tensor:
    """Every value of an 8- or 16-bit format, in the order of the patterns."""
    return from_bits(torch.arange(1 << fmt.bits, dtype=torch.int64), fmt)


def neighbour(fmt: Format, bits: int, step: int) -> int:
    """The number so many places above; infinity, or the largest number of a format without one, is the last."""
    top = fmt.inf_bits if fmt.has_inf else fmt.max_bits
    return fmt.from_ordinal(min(max(fmt.ordinal(bits) + step, -top), top))


def nearest(point: Point, fmt: Format, *, both: bool = True) -> int:
    """The correctly rounded pattern of an exact value; NaN if there is no value."""
    ball = point.arb(160)
    near = fmt.from_float(float(ball.mid()) if ball.is_finite() else 0.0)  # a large error takes thousands of bits
    right = judge(point, fmt, near, both=both).right_bits
    return fmt.nan_bits if right is None else right
