"""Dropout with a seed: every element has one right answer.

    verify run examples/random_numbers.py

Triton's generator is Philox4x32-10 with the offset as its counter. `verify.philox` gives a definition the same numbers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

import verify

BLOCK = 256
DROPPED = 0.125


@triton.jit
def _dropout_kernel(x_ptr, seed_ptr, y_ptr, n, DROPPED: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + place, mask=place < n, other=0.0)
    kept = tl.rand(tl.load(seed_ptr), place) > DROPPED
    y = tl.where(kept, x.to(tl.float32) / (1.0 - DROPPED), 0.0)
    tl.store(y_ptr + place, y.to(y_ptr.dtype.element_ty), mask=place < n)


def dropped(x, seed):
    """Dropout with the numbers that `tl.rand(seed, place)` gives."""
    u = verify.philox_uniform(verify.philox(seed, torch.arange(len(x), device=x.device))[0])
    return torch.where(u > DROPPED, x / (1 - DROPPED), 0.0)


@verify.kernel(
    like=dropped,
    shapes={"x": "n", "seed": ""},
    integers={"seed": "0 <= seed < 2**62"},
    dtypes=["float32", "bfloat16"],
    gradients=False,
)
def dropout(x, seed):
    """Dropout, the same for the same seed."""
    x, y = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
    _dropout_kernel[(triton.cdiv(len(x), BLOCK),)](x, seed, y, len(x), DROPPED=DROPPED, BLOCK=BLOCK)
    return y
