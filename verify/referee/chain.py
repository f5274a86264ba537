"""Runs calls in a chain: the answer of each decides the inputs of the next. The clock of `verify judge` times chains.

    answers, last = run(call, stored, varied(stored), key=secrets.randbits(63), count=16, watch=Watch("cpu"))

A key replaces some bits of stored tensors: these are the inputs of a call. All bits of its answer make the next key. So
a solution cannot prepare answers before it has the first key, nor compute two calls at once. The last key proves that
all answers existed.

The judge and the process of a solution both run this. Keys are whole numbers, equal on every device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

Call = Callable[[dict[str, Tensor]], Sequence[Tensor]]

FLUSHED = 4  # times the L2 cache are written before a call: the GPU is busy while the call is prepared
WORDS = 128  # of 64 bits, which the bits of an input repeat
FEW = 1 / 64  # of an input's elements may be zero where its bits are replaced: they become subnormal
# the constants of splitmix64, as signed numbers of 64 bits
_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15 - (1 << 64), 0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64)
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def run(
    call: Call, stored: Mapping[str, Tensor], varied: Sequence[str], key: int, count: int, watch: Watch
) -> tuple[list[list[Tensor]], int]:
    """Returns the answers of `count` calls and the key after the last one.

    The bits of the tensors in `varied` differ in each call. `watch` is started before each call and stopped after it.
    """
    device = watch.device
    steps = torch.arange(1, WORDS + 1, device=device) * _STEP
    known = torch.tensor(key, device=device)
    found = []
    for _ in range(count):
        words = _mixed(steps + known)
        inputs = {name: replaced(value, words) if name in varied else value.clone() for name, value in stored.items()}
        watch.start()
        results = call(inputs)
        watch.stop()
        found.append([each.detach().clone(memory_format=torch.contiguous_format) for each in results])
        known = _absorbed(known, found[-1])
    watch.wait()
    return found, int(known)


def varied(tensors: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Returns the names of tensors whose bits may be replaced: all numbers are finite, and few are zero."""

    def free(value: Tensor) -> bool:
        if not value.is_floating_point() or not value.numel() or not bool(torch.isfinite(value.float()).all()):
            return False
        return int((value == 0).sum()) <= FEW * value.numel()

    return tuple(name for name, value in tensors.items() if free(value))


def replaced(value: Tensor, words: Tensor) -> Tensor:
    """Returns a tensor with other mantissas: signs and exponents stay, so it is finite and of the same size."""
    kind = _INTEGERS[value.element_size()]
    mantissa = round(-math.log2(torch.finfo(value.dtype).eps))
    bits, mask = value.contiguous().reshape(-1).view(kind), words.view(kind) & ((1 << mantissa) - 1)
    whole = bits.numel() // mask.numel() * mask.numel()
    made = torch.empty_like(bits)
    torch.bitwise_xor(bits[:whole].view(-1, mask.numel()), mask, out=made[:whole].view(-1, mask.numel()))
    torch.bitwise_xor(bits[whole:], mask[: bits.numel() - whole], out=made[whole:])
    return made.view(value.dtype).reshape(value.shape)


def _mixed(words: Tensor) -> Tensor:
    words = (words ^ (words >> 30)) * _FIRST
    words = (words ^ (words >> 27)) * _SECOND
    return words ^ (words >> 31)


def _absorbed(key: Tensor, results: Sequence[Tensor]) -> Tensor:
    """Returns the next key, which changes with every bit of the results."""
    for each in results:
        raw = each.reshape(-1).view(torch.uint8)
        whole = raw.numel() // 8 * 8
        key = _mixed(key * _STEP + raw[:whole].view(torch.int64).sum() + raw[whole:].sum(dtype=torch.int64))
    return key


class Watch:
    """Measures the calls of a chain in its own process: by events beside a GPU, else by wall time.

    A solution can change its process, and with it this. The judge compares these times with its own clock.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self._marks: list[Any] = []
        self._flushed: Tensor | None = None
        if device != "cpu":
            cache = torch.cuda.get_device_properties(device).L2_cache_size
            self._flushed = torch.empty(FLUSHED * cache, dtype=torch.uint8, device=device)

    def start(self) -> None:
        """Begins a call, with an empty L2 cache."""
        if self._flushed is not None:
            self._flushed.zero_()
        self._mark()

    def stop(self) -> None:
        """Ends a call."""
        self._mark()

    def _mark(self) -> None:
        if self._flushed is None:
            self._marks.append(perf_counter())
        else:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._marks.append(event)

    def wait(self) -> None:
        """Waits for all streams of the device."""
        if self._flushed is not None:
            torch.cuda.synchronize()

    def seconds(self) -> float:
        """Returns the time of one call: the mean of all."""
        pairs = list(zip(self._marks[::2], self._marks[1::2], strict=True))
        if self._flushed is None:
            each = [end - begin for begin, end in pairs]
        else:
            each = [begin.elapsed_time(end) / 1e3 for begin, end in pairs]
        return math.fsum(each) / max(len(each), 1)
