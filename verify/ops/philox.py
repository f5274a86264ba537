"""Computes Philox4x32-10 with integer operators. It is the generator of `tl.rand` and of PyTorch on a GPU.

A counter of 128 bits and a key of 64 bits give four words of 32 bits (Salmon et al., Parallel random numbers: as easy
as 1, 2, 3, SC 2011). If a kernel documents its counter, its random numbers depend on its seed alone. So a definition
can use the same numbers:

    def dropout(x, seed):
        u = verify.philox_uniform(verify.philox(seed, torch.arange(len(x)))[0])
        return torch.where(u > 0.1, x / 0.9, 0.0)
"""

from typing import Any

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF
_ROUND = (0xD2511F53, 0xCD9E8D57)
_KEY = (0x9E3779B9, 0xBB67AE85)
_SCALE = (1 << 24) - 1  # Triton's factor, in units of 2^-55: the largest float32 with which no number becomes 1


def philox(seed: Tensor | int, offset: Tensor, subsequence: Tensor | int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns four words for each offset, as int64 in [0, 2^32). They equal `tl.randint4x(seed, offset)`.

    The counter is (offset, subsequence), 64 bits each, and the key is the seed, as in PyTorch on a GPU.
    """
    # A number stays one: a tensor made of it would be copied from the host, which no CUDA graph can hold.
    seed, subsequence = (x.to(offset.device, torch.int64) if isinstance(x, Tensor) else x for x in (seed, subsequence))
    offset = offset.to(torch.int64)
    c0, c1, c2, c3 = (each + torch.zeros_like(offset) for each in (*_words(offset), *_words(subsequence)))
    k0, k1 = _words(seed)
    for _ in range(10):
        (high0, low0), (high2, low2) = _product(c0, _ROUND[0]), _product(c2, _ROUND[1])
        c0, c1, c2, c3 = high2 ^ c1 ^ k0, low2, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _KEY[0]) & _WORD, (k1 + _KEY[1]) & _WORD
    return c0, c1, c2, c3


def philox_uniform(word: Tensor) -> Tensor:
    """Returns the number in [0, 1) that `tl.rand` makes from a word: a float32 number in float64."""
    magnitude = torch.where(word > 0x7FFFFFFF, _WORD - word, word)
    return _to_24_bits(_to_24_bits(magnitude) * _SCALE).double() * 2.0**-55


def _words(number: Any) -> tuple[Any, Any]:
    """Returns the low and the high 32 bits of a number, or of each of an int64 tensor."""
    return number & _WORD, (number >> 32) & _WORD


def _product(word: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """Returns the high and the low 32 bits of a product of 64 bits, which would overflow int64."""
    low, high = (word & 0xFFFF) * factor, (word >> 16) * factor
    return (high + (low >> 16)) >> 16, (low + ((high & 0xFFFF) << 16)) & _WORD


def _to_24_bits(number: Tensor) -> Tensor:
    """Rounds integers from 0 to 2^56 as float32 does, half to even. A cast would not: `like=` treats it as exact."""
    ends = 2 ** torch.arange(24, 57, device=number.device)
    unit = 2 ** (number.unsqueeze(-1) >= ends).sum(-1)
    kept, rest = number // unit, 2 * (number % unit)
    return (kept + ((rest > unit) | ((rest == unit) & (kept % 2 == 1)))) * unit
