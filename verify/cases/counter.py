"""Random bits from a counter: element i of a stream depends on the seed, the stream's name and i alone.

Only 64-bit integer multiplication, addition and shifts are used, which wrap the same way on every device,
so a case gives the same bits on a CPU and on a GPU, whole or in chunks. The mixing function is the finaliser
of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
"""

from __future__ import annotations

import hashlib
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_Words = TypeVar("_Words", Tensor, NDArray[np.int64])
_FEW = 1 << 12  # words up to which calling torch takes a CPU longer than mixing them


def key_of(seed: int, stream: str) -> int:
    """The 64-bit key of a named stream."""
    digest = hashlib.sha256(f"{seed}/{stream}".encode()).digest()
    return int.from_bytes(digest[:8], "little")


def words(seed: int, stream: str, count: int, *, start: int = 0, device: torch.device | str = "cpu") -> Tensor:
    """`count` uniform 64-bit words as int64, for positions start, start + 1, ..."""
    return _mixed(torch.tensor(_signed(key_of(seed, stream)), device=device), count, start)


def _mixed(keys: Tensor, count: int, start: int) -> Tensor:
    """The words of several streams at once: one row for each key."""
    if keys.device.type == "cpu" and count <= _FEW:
        return torch.from_numpy(_finalised(np.arange(start + 1, start + count + 1, dtype=np.int64), keys.numpy()))
    return _finalised(torch.arange(start + 1, start + count + 1, dtype=torch.int64, device=keys.device), keys)


def _finalised(counter: _Words, keys: _Words) -> _Words:
    """The mixing function, on tensors or on arrays: integers of 64 bits wrap the same way in both."""
    state = counter * _signed(_GOLDEN) + keys
    state = (state ^ _shift(state, 30)) * _signed(_MIX_1)
    state = (state ^ _shift(state, 27)) * _signed(_MIX_2)
    return state ^ _shift(state, 31)


def uniform(seed: int, stream: str, count: int, *, start: int = 0, device: torch.device | str = "cpu") -> Tensor:
    """float64 in [0, 1), multiples of 2^-53."""
    return _shift(words(seed, stream, count, start=start, device=device), 11).double() * 2.0**-53


def below(
    seed: int,
    stream: str,
    count: int,
    limit: int,
    *,
    start: int = 0,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Integers in [0, limit), limit <= 2^31: bias below 2^-31."""
    return _shift(words(seed, stream, count, start=start, device=device), 32) % limit


def bell(seed: int, stream: str, count: int, *, start: int = 0, device: torch.device | str = "cpu") -> Tensor:
    """Nearly normal float64, mean 0, variance 1, within +-6: the sum of twelve uniforms, exactly.

    No logarithm or cosine, whose last bits differ between devices.
    """
    keys = [_signed(key_of(seed, f"{stream}/{part}")) for part in range(6)]
    word = _mixed(torch.tensor(keys, device=device)[:, None], count, start)
    # at most 12 * 2^32: exact in int64 and in float64, in whatever order
    total = ((word & 0xFFFFFFFF) + _shift(word, 32)).sum(0)
    return total.double() * 2.0**-32 - 6.0


def _shift(value: _Words, places: int) -> _Words:
    """Logical shift right."""
    return (value >> places) & ((1 << (64 - places)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
