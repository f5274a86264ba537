"""Makes random bits from a counter: element i of a stream depends only on the seed, the stream's name and i.

Only 64-bit integer multiplication, addition and shifts are used. These wrap the same way on every device, so a case
gives the same bits on a CPU and on a GPU, whole or in chunks. The mixing function is the finaliser of SplitMix64
(Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
"""

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_ROUNDS = (np.uint64(30), np.uint64(_MIX_1)), (np.uint64(27), np.uint64(_MIX_2))
_LAST, _HALF, _WORD, _TAIL = np.uint64(31), np.uint64(32), np.uint64(0xFFFFFFFF), np.uint64(11)
# A CPU mixes this many words of a stream at a time, in its cache. numpy's unsigned integers take a fifteenth of the
# time of torch's signed ones.
_CHUNK = 1 << 13
# Another device makes this many numbers at a time: six words each take 48 bytes. A GPU makes as many in one pass.
_AT_ONCE = 1 << 24


def key_of(seed: int, stream: str) -> int:
    """Returns the 64-bit key of a named stream."""
    digest = hashlib.sha256(f"{seed}/{stream}".encode()).digest()
    return int.from_bytes(digest[:8], "little")


def words(seed: int, stream: str, count: int, *, device: torch.device | str = "cpu") -> Tensor:
    """Returns `count` uniform 64-bit words as int64."""
    if _on_cpu(device):
        return _chunked([key_of(seed, stream)], count, lambda mixed: mixed[0].view(np.int64))
    key = torch.tensor([_signed(key_of(seed, stream))], device=device)
    fused = _fused(key.device) if count >= _AT_ONCE else None
    return _finalised(key, count) if fused is None else fused(key, count)


@lru_cache
def _fused(device: torch.device) -> Callable[[Tensor, int], Tensor] | None:
    """Returns a function that makes many numbers in one pass on a GPU.

    Returns None if Triton does not compile it, or if it gives other numbers than a CPU.
    """
    if device.type != "cuda":
        return None
    try:
        from verify.cases.counter_kernel import made

        found = made(torch.tensor([_signed(key_of(0, "trial"))], device=device), 64)
    except Exception:
        return None
    return made if torch.equal(found.cpu(), words(0, "trial", 64)) else None


def _on_cpu(device: torch.device | str) -> bool:
    return torch.device(device).type == "cpu"


def _chunked(keys: Sequence[int], count: int, made: Callable[[NDArray[np.uint64]], NDArray[Any]]) -> Tensor:
    """Applies `made` to the words of several streams, one row for each key, in numpy's unsigned integers."""
    parts = [made(_mixed(keys, min(_CHUNK, count - done), done)) for done in range(0, max(count, 1), _CHUNK)]
    return torch.from_numpy(parts[0] if len(parts) == 1 else np.concatenate(parts))


def _mixed(keys: Sequence[int], count: int, start: int) -> NDArray[np.uint64]:
    state = _counted(count) + (np.array(keys, dtype=np.uint64) + np.uint64(start * _GOLDEN % (1 << 64)))[:, None]
    shifted = np.empty_like(state)
    for places, factor in _ROUNDS:
        np.right_shift(state, places, out=shifted)
        state ^= shifted
        state *= factor
    np.right_shift(state, _LAST, out=shifted)
    state ^= shifted
    return state


@lru_cache(maxsize=8)
def _counted(count: int) -> NDArray[np.uint64]:
    return np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN)


def _finalised(keys: Tensor, count: int, start: int = 0) -> Tensor:
    """Returns the words of several streams in signed integers, because torch has no others."""
    counter = torch.arange(start + 1, start + count + 1, dtype=torch.int64, device=keys.device)
    state = counter * _signed(_GOLDEN) + keys
    state = (state ^ _shift(state, 30)) * _signed(_MIX_1)
    state = (state ^ _shift(state, 27)) * _signed(_MIX_2)
    return state ^ _shift(state, 31)


def uniform(seed: int, stream: str, count: int, *, device: torch.device | str = "cpu") -> Tensor:
    """Returns float64 numbers in [0, 1), multiples of 2^-53."""
    if _on_cpu(device):
        return _chunked([key_of(seed, stream)], count, lambda mixed: (mixed[0] >> _TAIL) * 2.0**-53)
    return _shift(words(seed, stream, count, device=device), 11).double() * 2.0**-53


def below(seed: int, stream: str, count: int, limit: int, *, device: torch.device | str = "cpu") -> Tensor:
    """Returns integers in [0, limit), limit <= 2^31. The bias is below 2^-31."""
    if _on_cpu(device):
        most = np.uint64(limit)
        return _chunked([key_of(seed, stream)], count, lambda mixed: ((mixed[0] >> _HALF) % most).view(np.int64))
    return _shift(words(seed, stream, count, device=device), 32) % limit


def bell(seed: int, stream: str, count: int, *, device: torch.device | str = "cpu") -> Tensor:
    """Returns nearly normal float64 numbers with mean 0 and variance 1, within +-6.

    Each is an exact sum of twelve uniforms.

    It uses no logarithm or cosine, whose last bits differ between devices.
    """
    keys = [key_of(seed, f"{stream}/{part}") for part in range(6)]
    # at most 12 * 2^32: exact in an integer of 64 bits and in float64, in any order
    if _on_cpu(device):
        return _chunked(keys, count, lambda mixed: ((mixed & _WORD) + (mixed >> _HALF)).sum(0) * 2.0**-32 - 6.0)
    numbers = torch.tensor([_signed(key) for key in keys], device=device)
    fused = _fused(numbers.device) if count >= _AT_ONCE else None
    if fused is not None:
        return fused(numbers, count)
    found, numbers = torch.empty(count, dtype=torch.float64, device=device), numbers[:, None]
    for done in range(0, count, _AT_ONCE):
        part = found[done : done + _AT_ONCE]
        word = _finalised(numbers, part.numel(), done)
        part.copy_(((word & 0xFFFFFFFF) + _shift(word, 32)).sum(0).double() * 2.0**-32 - 6.0)
    return found


def _shift(value: Tensor, places: int) -> Tensor:
    """Shifts right and fills with zeros."""
    return (value >> places) & ((1 << (64 - places)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
