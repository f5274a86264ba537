"""Runs calls in a chain: the answer of each decides the inputs of the next. The clock of `verify judge` times chains.

    answers, last = run(call, chain_inputs(stored, varied), key=secrets.randbits(63), count=16, watch=Watch("cpu"))

Every element of an input is drawn from the problem's own numbers by a hash of the key and of its place. A hash of all
words of an answer and of their places makes the next key. So a solution cannot prepare answers before it has the first
key, nor compute two calls at once, and no sum replaces an answer. The last key proves that all answers existed.

Arguments travel sealed: their bits are replaced until a second secret comes, together with the first key.

The judge and the process of a solution both run this. Keys are whole numbers, equal on every device. A judged call is
a chain of one call, so that its stack has the same functions.

Beside a GPU some words of the inputs are wrong until the L2 cache is empty and the call begins: what reads them before,
on another stream, computes with these. Answers are copied on the call's stream right behind it, and these copies are
judged: what writes into them later is too late.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from verify.cases.structure import EXACT, kept, without_zeros

Inputs = dict[str, Tensor]
Call = Callable[[Inputs], Sequence[Tensor]]
# the structures (verify.cases.structure) of each argument that differs in each call
Varied = Mapping[str, Sequence[str]]

CANARY = 128  # one of so many numbers of an input is wrong until the call begins
FLUSHED = 4  # times the L2 cache are written before a call: the GPU is busy while the call is prepared
DRAWN_BITS = 12  # of each element's hash choose one of the argument's own numbers
KEPT_BITS = 12  # of its mantissa, so that the numbers stay where they lie; other bits of the hash replace the last ones
# the constants of splitmix64, as signed numbers of 64 bits
_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15 - (1 << 64), 0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64)
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def run(
    call: Call, inputs: Callable[[Tensor], Inputs], key: int, count: int, watch: Watch
) -> tuple[list[list[Tensor]], int]:
    """Returns the answers of `count` calls and the key after the last one. Raises Broken if a call raises an error.

    `inputs` makes the arguments of a call from a key. `watch` is started before each call and stopped after it.
    """
    known = torch.tensor(key, device=watch.device)
    found: list[list[Tensor]] = []
    for _ in range(count):
        given = inputs(known)
        watch.start(given)
        try:
            results = call(given)
        except Exception as error:
            raise Broken(error, found) from error
        watch.mark()
        found.append([each.detach().clone(memory_format=torch.contiguous_format) for each in results])
        known = _absorbed(known, found[-1])
    watch.wait()
    return found, int(known)


def varied(tensors: Inputs, structures: Varied) -> dict[str, Sequence[str]]:
    """Returns the structures of tensors that may differ in each call.

    Infinite numbers stay as they are, and so do integers that are sorted or that are all different: they may be
    offsets or an order.
    """

    def free(name: str, value: Tensor) -> bool:
        if not value.numel() or structures.get(name) == ("constant",):
            return False
        flat = value.reshape(-1)
        if value.is_floating_point():
            return bool(torch.isfinite(value.float()).all() and (flat != 0).any())
        if value.is_complex() or bool((flat.to(torch.int64).diff() >= 0).all()):
            return False
        return bool(torch.unique(flat).numel() < flat.numel())

    return {name: tuple(structures.get(name, ())) for name, value in tensors.items() if free(name, value)}


def chain_inputs(stored: Inputs, structures: Varied) -> Callable[[Tensor], Inputs]:
    """Returns a function that makes the arguments of a call from its key."""
    makers = {name: _maker(stored[name], structures[name], place) for place, name in enumerate(structures)}

    def inputs(key: Tensor) -> Inputs:
        return {name: makers[name](key) if name in makers else value.clone() for name, value in stored.items()}

    return inputs


def _maker(value: Tensor, structure: Sequence[str], place: int) -> Callable[[Tensor], Tensor]:
    """Returns a function that draws a tensor like `value` by a key: signs, exponents, zeros and mantissas vary."""
    kind, width = _INTEGERS[value.element_size()], 8 * value.element_size()
    flat = value.contiguous().reshape(-1)
    own = flat[flat != 0] if without_zeros(structure) and bool((flat != 0).any()) else flat
    index_bits = min(DRAWN_BITS, width)
    table = own[torch.arange(1 << index_bits, device=value.device) * own.numel() >> index_bits]
    exact = not value.is_floating_point() or bool(EXACT & set(structure))
    mantissa = 0 if exact else max(round(-math.log2(torch.finfo(value.dtype).eps)) - KEPT_BITS, 1)
    zeros = bool((table == 0).any())
    table = table.view(kind)
    steps = _steps(-(-value.nbytes // 8), value.device) + (place << 48)

    def made(key: Tensor) -> Tensor:
        words = _mixed(steps + key).view(kind)[: value.numel()]
        found = table.index_select(0, ((words >> (width - index_bits)) & ((1 << index_bits) - 1)).int())
        if mantissa:
            moved = found ^ (words & ((1 << mantissa) - 1))
            found = torch.where(found.view(value.dtype) == 0, found, moved) if zeros else moved
        drawn = found.view(value.dtype).reshape(value.shape)
        return kept(drawn, [each for each in structure if each not in EXACT], value)

    return made


def sealed(value: Tensor, secret: int) -> Tensor:
    """Returns the bytes of a tensor, replaced by a secret. The same function restores them."""
    raw = value.detach().contiguous().reshape(-1).view(torch.uint8)
    words = _mixed(_steps(-(-raw.numel() // 8), raw.device) + secret)
    return raw ^ words.view(torch.uint8)[: raw.numel()]


def opened(raw: Tensor, dtype: torch.dtype, shape: Sequence[int], secret: int) -> Tensor:
    """Returns the tensor whose sealed bytes these are."""
    return sealed(raw, secret).view(dtype).reshape(tuple(shape))


def _steps(count: int, device: torch.device | str) -> Tensor:
    return torch.arange(1, count + 1, device=device) * _STEP


def _mixed(words: Tensor) -> Tensor:
    """Returns words that depend on every bit of the given ones. It writes over these: new memory would take longer."""
    part = words >> 30
    words.bitwise_xor_(part).mul_(_FIRST)
    words.bitwise_xor_(torch.bitwise_right_shift(words, 27, out=part)).mul_(_SECOND)
    return words.bitwise_xor_(torch.bitwise_right_shift(words, 31, out=part))


def _absorbed(key: Tensor, results: Sequence[Tensor]) -> Tensor:
    """Returns the next key, which changes with every bit of the results and with its place."""
    for each in results:
        raw = each.reshape(-1).view(torch.uint8)
        raw = torch.cat([raw, raw.new_zeros(-raw.numel() % 8)]) if raw.numel() % 8 else raw
        words = raw.view(torch.int64)
        key = _mixed(_mixed(words ^ (_steps(words.numel(), words.device) + key)).sum() + key)
    return key


def fingerprint(value: Tensor, secret: int = 0) -> int:
    """Returns a number that changes with every bit of a tensor and with its place, and with the secret."""
    return int(_absorbed(torch.tensor(secret, device=value.device), [value.detach().contiguous()]))


def _spoilt(value: Tensor) -> Callable[[], Any]:
    """Inverts one of `CANARY` numbers of a tensor. Returns the function that restores them.

    Neither changes PyTorch's count of writes.
    """
    kind = torch.bool if value.dtype is torch.bool else _INTEGERS.get(value.element_size())
    if kind is None or not value.is_contiguous():
        return lambda: None
    words = value.data.view(-1).view(kind)[secrets.randbelow(CANARY) % max(value.numel(), 1) :: CANARY]
    right = words.clone()
    words.bitwise_not_()
    return lambda: words.copy_(right)


class Broken(RuntimeError):
    """A call of a chain raised an error, the cause of this one. Holds the answers of the calls before it."""

    def __init__(self, error: Exception, answers: list[list[Tensor]]) -> None:
        super().__init__(*error.args)
        self.answers = answers


class Watch:
    """Measures the calls of a chain in its own process: by events beside a GPU, else by wall time.

    A solution can change its process, and with it this. The judge compares these times with its own clock.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.marks: list[Any] = []
        self._flushed: Tensor | None = None
        if device != "cpu":
            cache = torch.cuda.get_device_properties(device).L2_cache_size
            self._flushed = torch.empty(FLUSHED * cache, dtype=torch.uint8, device=device)

    def start(self, given: Inputs) -> None:
        """Begins a call, with an empty L2 cache. Before that some words of its inputs are wrong."""
        if self._flushed is not None:
            restore = [_spoilt(each) for each in given.values()]
            self._flushed.zero_()
            for each in restore:
                each()
        self.mark()

    def mark(self) -> None:
        """Keeps the present time: the beginning or the end of a call."""
        if self._flushed is None:
            self.marks.append(perf_counter())
        else:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self.marks.append(event)

    def wait(self) -> None:
        """Waits for all streams of the device."""
        if self._flushed is not None:
            torch.cuda.synchronize()

    def seconds(self) -> float:
        """Returns the time of one call: the mean of all."""
        pairs = list(zip(self.marks[::2], self.marks[1::2], strict=True))
        if self._flushed is None:
            each = [end - begin for begin, end in pairs]
        else:
            each = [begin.elapsed_time(end) / 1e3 for begin, end in pairs]
        return math.fsum(each) / max(len(each), 1)
