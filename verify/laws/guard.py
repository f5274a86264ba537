"""Guarded memory: every allocation of a kernel lies between bands of a known byte, and starts out filled with it.

    guard = Guard(fill=0xFF)
    x = guard.embed(x)          # an input, in the same layout, between bands
    with guard:
        y = kernel(x)
    guard.damage()              # [] unless something was written outside of a tensor

A dispatch mode moves every fresh tensor that the kernel's own code makes (`empty`, but also the copy behind
`contiguous()`) into a larger storage of one fill byte. Memory that the kernel never writes keeps the fill, so two
runs with different fills tell whether anything depends on it. 0xFF is a NaN in every floating-point format, 0x3C
an ordinary number in every one.

Dispatch modes do not see inside a custom operator, because they step aside while one runs; the Python function
behind a `torch.library.custom_op` is therefore called with the mode on. An operator registered in another way
runs unguarded inside, and only its results are moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from verify.ulp import same_bits

NAN_FILL, NUMBER_FILL = 0xFF, 0x3C
# As wide as what one program without a mask writes past the end: 16,384 float32, or the whole tensor once more.
_BAND, _WIDEST = 1 << 16, 1 << 24
_ALIGNED = 512  # what the CUDA allocator promises: kernels may ask for aligned vector loads
_UNINITIALISED = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted")


@dataclass
class Block:
    """One guarded storage: the bytes of the tensor are [start, stop), and `before` if they may not change."""

    label: str
    raw: Tensor
    start: int
    stop: int
    before: Tensor | None = None


class Guard(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that moves fresh tensors into guarded memory. See the module's docstring.

    Nobody asks for the damage of a guard that is not `watched`: it keeps no copies of what is embedded.
    """

    def __init__(self, fill: int, *, watched: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fill = fill
        self.watched = watched
        self.blocks: list[Block] = []

    def embed(self, tensor: Tensor, label: str) -> Tensor:
        """The tensor in guarded memory with its layout; later, no byte around or inside it may have changed."""
        moved, block = self._move(tensor, label, contents=True)
        if block is not None and self.watched:
            block.before = block.raw[block.start : block.stop].clone()
            self.blocks.append(block)
        return moved

    def damage(self) -> list[str]:
        """What was written that must not be: one line per damaged block."""
        if _intact([self]):
            return []
        return [_describe(block, wrong) for block in self.blocks if bool((wrong := self._wrong(block)).any())]

    def _wrong(self, block: Block) -> Tensor:
        """The bytes that changed and must not."""
        wrong = block.raw != self.fill
        own = slice(block.start, block.stop)
        wrong[own] = False if block.before is None else block.raw[own] != block.before
        return wrong

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        body = _python_body(func, args, kwargs)
        if body is not None:
            with self:
                return body(*args, **kwargs)
        result = func(*args, **kwargs)
        if func.is_view or func._schema.is_mutable:
            return result
        known = {_address(value) for value in _tensors((args, kwargs))}
        name = func._schema.name.partition("::")[2]

        def guarded(value: Any) -> Any:
            if not isinstance(value, Tensor) or _address(value) in known:
                return value
            moved, block = self._move(value, f"memory from torch.{name}", contents=name not in _UNINITIALISED)
            if block is not None and self.watched:
                self.blocks.append(block)
            return moved

        return guarded(result) if isinstance(result, Tensor) else tree_map(guarded, result)

    def _move(self, tensor: Tensor, label: str, *, contents: bool) -> tuple[Tensor, Block | None]:
        if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
            return tensor, None
        if tensor.numel() == 0 or tensor.device.type not in ("cpu", "cuda"):
            return tensor, None
        width = tensor.element_size()
        extent = int(sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1) * width
        band = min(max(_BAND, extent), _WIDEST)
        # an offset that is not a multiple of the alignment is part of the layout: keep it
        start = -(-band // _ALIGNED) * _ALIGNED + int(tensor.storage_offset()) * width % _ALIGNED
        raw = torch.full((start + extent + band,), self.fill, dtype=torch.uint8, device=tensor.device)
        raw = raw[: raw.numel() // width * width]
        flat = raw.view(tensor.dtype)
        moved = flat.as_strided(tensor.shape, tensor.stride(), start // width)
        if contents and tensor.is_contiguous():
            moved.copy_(tensor)
        elif contents:
            whole = tensor.as_strided((extent // width,), (1,), tensor.storage_offset())
            # its elements alone: what lies between them is not the tensor's, and holds the fill like the bands
            own = torch.arange(whole.numel(), device=whole.device).as_strided(tensor.shape, tensor.stride())
            flat[start // width : (start + extent) // width][own] = whole[own]
        elif tensor.dtype is torch.bool:
            moved.fill_(self.fill == NAN_FILL)  # other bytes are no truth values
        return moved, Block(f"{label} {tensor.dtype} {list(tensor.shape)}", raw, start, start + extent)


def damage_of(guards: Iterable[Guard]) -> list[str]:
    """The damage of several guards; waits for the device first. Where there is none, that is asked but once."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    guards = list(guards)
    if _intact(guards):
        return []
    return [line for guard in guards for line in guard.damage()]


def _intact(guards: Sequence[Guard]) -> bool:
    """Whether no byte changed that must not. Two answers for all blocks of a device: on a GPU each is a wait."""
    bands: dict[tuple[torch.device, int], list[Tensor]] = {}
    kept: dict[torch.device, list[tuple[Tensor, Tensor]]] = {}
    for guard in guards:
        for block in guard.blocks:
            device = block.raw.device
            bands.setdefault((device, guard.fill), []).extend((block.raw[: block.start], block.raw[block.stop :]))
            if block.before is not None:
                kept.setdefault(device, []).append((block.raw[block.start : block.stop], block.before))
    return all(_full_of(fill, each) for (_, fill), each in bands.items()) and all(
        same_bits([now for now, _ in pairs], [before for _, before in pairs]) for pairs in kept.values()
    )


def _full_of(fill: int, bands: list[Tensor]) -> bool:
    """Whether every byte is the fill."""
    if bands[0].is_cuda:
        return not bool((torch.cat(bands) != fill).any())
    # numpy compares eight bytes at a time wherever they begin, which takes a tenth of the time
    word = np.frombuffer(bytes([fill] * 8), dtype=np.uint64)
    for band in bands:
        whole = band.numel() // 8 * 8
        held = band.numpy()
        if not (held[:whole].view(np.uint64) == word).all() or not (held[whole:] == fill).all():
            return False
    return True


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors among an operator's arguments, in lists too. pytree finds them as well, ten times slower."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _describe(block: Block, wrong: Tensor) -> str:
    places = torch.nonzero(wrong).reshape(-1)
    first, last = int(places[0]), int(places[-1])
    if first >= block.stop:
        where = f"{first - block.stop} bytes past its end"
    elif last < block.start:
        where = f"{block.start - first} bytes before its beginning"
    else:
        where = f"at byte {first - block.start} of {block.stop - block.start}"
    return f"{block.label}: {places.numel()} bytes written, the first {where}"


def _address(tensor: Tensor) -> int:
    if tensor.layout is not torch.strided or tensor.device.type not in ("cpu", "cuda"):
        return id(tensor)
    return tensor.untyped_storage().data_ptr()


def _python_body(func: Any, args: Any, kwargs: Any) -> Callable[..., Any] | None:
    """The Python function behind a custom operator, for the device of its arguments."""
    if func.namespace in ("aten", "prim", "prims"):
        return None
    from torch._library.custom_ops import OPDEFS

    definition = OPDEFS.get(func._schema.name)
    if definition is None:
        return None
    kinds = [tensor.device.type for tensor in _tensors((args, kwargs))] + [None]
    bodies = definition._backend_fns
    return next((bodies[kind] for kind in kinds if kind in bodies), None)
