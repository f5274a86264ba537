"""Makes the numbers of `counter` in one pass on a GPU. Importing this module imports Triton.

PyTorch's operations read and write each word some thirty times, which takes 0.8 s for 2^30 numbers.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_MIX_1 = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX_2 = tl.constexpr(0x94D049BB133111EB)
_BLOCK = 1024


@triton.jit
def _word(keys, part, index):
    """Mixes the position and the key of a stream, as `counter._finalised` does."""
    state = index * _GOLDEN + tl.load(keys + part).to(tl.uint64)
    state = (state ^ (state >> 30)) * _MIX_1
    state = (state ^ (state >> 27)) * _MIX_2
    return state ^ (state >> 31)


@triton.jit(do_not_specialize=["count"])
def _fill(out, keys, count, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    index = (place + 1).to(tl.uint64)
    if PARTS == 1:
        tl.store(out + place, _word(keys, 0, index).to(tl.int64), mask=place < count)
    else:  # at most 12 * 2^32: exact in an integer of 64 bits and in float64, in any order
        total = tl.zeros([BLOCK], dtype=tl.uint64)
        for part in tl.static_range(PARTS):
            word = _word(keys, part, index)
            total += (word & 0xFFFFFFFF) + (word >> 32)
        number = total.to(tl.int64).to(tl.float64) * 2.3283064365386963e-10 - 6.0  # 2^-32
        tl.store(out + place, number, mask=place < count)


def made(keys: Tensor, count: int) -> Tensor:
    """Returns the words of one stream, or from the keys of six streams the numbers of `counter.bell`."""
    parts = keys.numel()
    out = torch.empty(count, dtype=torch.int64 if parts == 1 else torch.float64, device=keys.device)
    if count:
        _fill[(triton.cdiv(count, _BLOCK),)](out, keys, count, PARTS=parts, BLOCK=_BLOCK)
    return out
