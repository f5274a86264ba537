"""Guards memory: each allocation of a kernel lies between bands of a known byte, and starts filled with it.

    guard = Guard(fill=0xFF)
    x = guard.embed(x)          # an input, in the same layout, between bands
    with guard:
        y = kernel(x)
    guard.damage()              # [] unless the kernel wrote outside of a tensor

A dispatch mode moves every fresh tensor of the kernel's own code into a larger storage of one fill byte. Fresh tensors
come from `empty`, but also from the copy behind `contiguous()`. Memory that the kernel never writes keeps the fill, so
two runs with different fills show whether a result depends on it. 0xFF is a NaN in every floating-point format, and
0x3C an ordinary number in every one.

Dispatch modes are off while a custom operator runs. So the Python function behind a `torch.library.custom_op` is called
with the mode on. An operator registered in another way runs unguarded inside, and only its results are moved.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from verify.ops.autograd import DispatchMode
from verify.truth.ulp import same_bits

NAN_FILL, NUMBER_FILL = 0xFF, 0x3C
# As wide as the writes of one program without a mask past the end: 16,384 float32, or the whole tensor again.
_BAND, _WIDEST = 1 << 16, 1 << 24
# Bytes of one allocation, filled by one launch and shared by many tensors. A CPU allocates for each tensor.
_SLAB = {"cuda": 1 << 21}
_ALIGNED = 512  # the CUDA allocator promises this alignment, and kernels rely on it for aligned vector loads
_UNINITIALISED = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted")


@dataclass
class Block:
    """Holds one guarded tensor. Its bytes are [start, stop) of `raw`.

    `before` has these bytes if they may not change. The bytes from `first` to `start` and from `stop` to `last` are its
    bands and hold the fill.
    """

    name: str
    dtype: torch.dtype
    shape: torch.Size
    raw: Tensor
    first: int
    start: int
    stop: int
    last: int
    before: Tensor | None = None


class Guard(DispatchMode):
    """Moves fresh tensors into guarded memory while it is active, see the module's docstring.

    A guard without `watched` cannot report damage, and keeps no copies of embedded tensors.
    """

    def __init__(self, fill: int, *, watched: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fill = fill
        self.watched = watched
        self.blocks: list[Block] = []
        self._slab: Tensor | None = None
        self._used = 0

    def embed(self, tensor: Tensor, label: str, device: torch.device | str | None = None) -> Tensor:
        """Returns the tensor in guarded memory, in its layout.

        Later, no byte around or inside it may have changed.

        device: moves a tensor in CPU memory to a device. That tensor must not be written to while the guard is in use.
        """
        device = tensor.device if device is None else torch.device(device)
        if tensor.device == device and device.type != "cpu":
            moved, block = self._move(tensor, label, contents=True)
            image = None
        else:
            image = _image(tensor, self.fill)
            moved, block = self._move(tensor, label, contents=False, device=device, image=image)
        if block is not None and self.watched:
            block.before = block.raw[block.start : block.stop].clone() if image is None else image
            self.blocks.append(block)
        # `data`: autograd must not see a write to one tensor of a slab as a change of the others
        return moved.data if block is not None else moved.to(device)

    def damage(self) -> list[str]:
        """Returns one line for each block with a forbidden write, after waiting for the device."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        if self._is_intact():
            return []
        return [_describe(block, wrong) for block in self.blocks if bool((wrong := self._wrong(block)).any())]

    def _is_intact(self) -> bool:
        """True if no protected byte changed. Makes two comparisons for all blocks of a device: each waits for a GPU."""
        bands: dict[torch.device, list[Tensor]] = {}
        kept: dict[torch.device, list[tuple[Tensor, Tensor]]] = {}
        raw, stop, last = torch.empty(0, dtype=torch.uint8), 0, 0
        for block in self.blocks:
            if block.raw is not raw:
                bands.setdefault(raw.device, []).append(raw[stop:last])
                raw, stop = block.raw, block.first
            # neighbours share the band between them
            bands.setdefault(raw.device, []).append(raw[stop : block.start])
            stop, last = block.stop, block.last
            if block.before is not None:
                kept.setdefault(raw.device, []).append((raw[block.start : block.stop], block.before))
        bands.setdefault(raw.device, []).append(raw[stop:last])
        return all(_full_of(self.fill, each) for each in bands.values()) and all(
            same_bits([now for now, _ in pairs], [before for _, before in pairs]) for pairs in kept.values()
        )

    def _wrong(self, block: Block) -> Tensor:
        """Returns a mask of the bytes that changed and must not."""
        wrong = block.raw[block.first : block.last] != self.fill
        own = slice(block.start - block.first, block.stop - block.first)
        held = block.raw[block.start : block.stop]
        wrong[own] = False if block.before is None else held != block.before.to(held.device)
        return wrong

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        body = _python_body(func, args, kwargs)
        if body is not None:
            with self:
                return body(*args, **kwargs)
        result = func(*args, **kwargs)
        name = _maker(func)
        if not name:
            return result
        known = {_address(value) for value in _tensors((args, kwargs))}

        def guarded(value: Any) -> Any:
            if not isinstance(value, Tensor) or _address(value) in known:
                return value
            moved, block = self._move(value, f"memory from torch.{name}", contents=name not in _UNINITIALISED)
            if block is not None and self.watched:
                self.blocks.append(block)
            return moved

        return guarded(result) if isinstance(result, Tensor) else tree_map(guarded, result)

    def _move(
        self,
        tensor: Tensor,
        label: str,
        *,
        contents: bool,
        device: torch.device | None = None,
        image: Tensor | None = None,
    ) -> tuple[Tensor, Block | None]:
        """Copies a tensor into guarded memory.

        Returns it and its block; the tensor itself and no block if it cannot be moved.
        """
        if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
            return tensor, None
        device = device or tensor.device
        if tensor.numel() == 0 or device.type == "meta":
            return tensor, None
        width = tensor.element_size()
        extent = _extent(tensor) * width
        band = min(max(_BAND, extent), _WIDEST)
        # the layout includes an offset that is not a multiple of the alignment
        before = -(-band // _ALIGNED) * _ALIGNED + int(tensor.storage_offset()) * width % _ALIGNED
        size = -(-(before + extent + band) // _ALIGNED) * _ALIGNED
        raw, first = self._room(size, device)
        start, stop = first + before, first + before + extent
        flat = raw.view(tensor.dtype)
        moved = flat.as_strided(tensor.shape, tensor.stride(), start // width)
        block = Block(label, tensor.dtype, tensor.shape, raw, first, start, stop, first + size)
        if image is not None:
            raw[start:stop].copy_(image, non_blocking=True)
        elif contents and tensor.is_contiguous():
            moved.copy_(tensor)
        elif contents:
            own = _places(tensor)
            flat[start // width : stop // width][own] = _span(tensor)[own]
        elif tensor.dtype is torch.bool:
            moved.fill_(self.fill == NAN_FILL)  # other bytes are no valid booleans
        return moved, block

    def _room(self, size: int, device: torch.device) -> tuple[Tensor, int]:
        """Returns a storage of fresh memory full of the fill, and the offset where this many bytes begin."""
        slab, first = self._slab, self._used
        if slab is None or slab.device != device or first + size > slab.numel():
            room = max(size, _SLAB.get(device.type, 0))
            slab = self._slab = torch.full((room,), self.fill, dtype=torch.uint8, device=device)
            first = 0
        self._used = first + size
        return slab, first


def _extent(tensor: Tensor) -> int:
    """Returns the number of elements from the first to the last one of a tensor in memory."""
    if tensor.is_contiguous():
        return tensor.numel()
    return int(sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1)


def _span(tensor: Tensor) -> Tensor:
    """Returns all memory from the first to the last element."""
    return tensor.as_strided((_extent(tensor),), (1,), tensor.storage_offset())


def _places(tensor: Tensor) -> Tensor:
    """Returns the positions of the elements in their span.

    Memory between them is not the tensor's, and holds the fill.
    """
    return torch.arange(_extent(tensor), device=tensor.device).as_strided(tensor.shape, tensor.stride())


def _image(tensor: Tensor, fill: int) -> Tensor:
    """Returns the bytes of a tensor's span, with the fill between its elements."""
    if tensor.numel() == 0:
        return tensor
    span = _span(tensor.detach())
    if not tensor.is_contiguous():
        held = torch.full((span.numel() * tensor.element_size(),), fill, dtype=torch.uint8, device=tensor.device)
        own = _places(tensor)
        held.view(tensor.dtype)[own] = span[own]
        return held
    return span.view(torch.uint8)


def _full_of(fill: int, bands: list[Tensor]) -> bool:
    """True if every byte is the fill."""
    if bands[0].is_cuda:
        return not bool((torch.cat(bands) != fill).any())
    # numpy compares eight bytes at a time at any alignment, which takes a tenth of the time
    word = np.frombuffer(bytes([fill] * 8), dtype=np.uint64)
    for band in bands:
        whole = band.numel() // 8 * 8
        held = band.numpy()
        if not (held[:whole].view(np.uint64) == word).all() or not (held[whole:] == fill).all():
            return False
    return True


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yields the tensors among an operator's arguments, in lists too. pytree takes ten times as long."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _describe(block: Block, wrong: Tensor) -> str:
    places = torch.nonzero(wrong).reshape(-1) + block.first
    first, last = int(places[0]), int(places[-1])
    if first >= block.stop:
        where = f"{first - block.stop} bytes past its end"
    elif last < block.start:
        where = f"{block.start - first} bytes before its beginning"
    else:
        where = f"at byte {first - block.start} of {block.stop - block.start}"
    label = f"{block.name} {block.dtype} {list(block.shape)}"
    return f"{label}: {places.numel()} bytes written, the first {where}"


def _address(tensor: Tensor) -> int:
    if tensor.layout is not torch.strided or tensor.is_meta:
        return id(tensor)
    return tensor.untyped_storage().data_ptr()


@lru_cache
def _maker(func: Any) -> str:
    """Returns the name of an operator whose results may be fresh; "" if it returns views or changes its arguments."""
    return "" if func.is_view or func._schema.is_mutable else str(func._schema.name.partition("::")[2])


def _python_body(func: Any, args: Any, kwargs: Any) -> Callable[..., Any] | None:
    """Returns the Python function behind a custom operator, for the device of its arguments; None if there is none."""
    if func.namespace in ("aten", "prim", "prims"):
        return None
    from torch._library.custom_ops import OPDEFS

    definition = OPDEFS.get(func._schema.name)
    if definition is None:
        return None
    kinds = [tensor.device.type for tensor in _tensors((args, kwargs))] + [None]
    bodies = definition._backend_fns
    return next((bodies[kind] for kind in kinds if kind in bodies), None)
