"""Tensors that one process sends to another: a form in JSON, and the elements in order as plain bytes of the host.

Large tensors on a GPU stay there (`Lent`), so gigabytes never cross the host. A process that reads lent memory copies
it first. A process that is not trusted gets a copy in an allocation of its own (`Loans`).
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from verify.errors import KernelError
from verify.measure.requests import Form, Lent

LARGE = 1 << 24  # tensors of at least this many bytes stay on the GPU
KINDS = {str(kind): kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}


def form_of(name: str, tensor: Tensor, place: Lent | None = None) -> Form:
    """Returns the announcement of a tensor, with its place if it is lent."""
    return Form(name, str(tensor.dtype), tuple(tensor.shape), place)


def view_of(tensor: Tensor) -> memoryview:
    """Returns the bytes of a tensor, without a copy if they lie so."""
    # a single number may have any stride, and yet be contiguous
    flat = tensor.detach().cpu().contiguous().as_strided((tensor.numel(),), (1,))
    return memoryview(flat.view(torch.uint8).numpy() if flat.numel() else b"")  # type: ignore[arg-type]


def bytes_of(tensor: Tensor) -> bytes:
    """Returns a copy of the bytes of a tensor."""
    return view_of(tensor).tobytes()


def bytes_in(form: Form) -> int:
    """Returns the size of the tensor of a form. Raises ValueError if there is no such tensor."""
    if min(form.shape, default=0) < 0 or form.dtype not in KINDS:
        raise ValueError(f"no tensor is {form.dtype} of shape {form.shape}")
    return math.prod(form.shape) * KINDS[form.dtype].itemsize


def tensor_of(form: Form, data: bytes | bytearray) -> Tensor:
    """Returns the tensor of a form, which shares a bytearray. Raises ValueError unless the bytes have its size."""
    if bytes_in(form) != len(data):
        raise ValueError(f"{form.name} has {len(data)} bytes")
    own = data if isinstance(data, bytearray) else bytearray(data)
    flat = torch.frombuffer(own, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    return flat.view(KINDS[form.dtype]).reshape(form.shape)


def announced(
    tensors: Iterable[tuple[str, Tensor]], lend: Callable[[Tensor], Lent | None] | None
) -> tuple[tuple[Form, ...], list[memoryview]]:
    """Returns the forms of tensors, and the bytes of the other ones. `lend` gets large contiguous ones."""
    whole = [(name, each.detach().contiguous()) for name, each in tensors]
    places = [lend(each) if lend and each.nbytes >= LARGE else None for _, each in whole]
    forms = tuple(form_of(*pair, place) for pair, place in zip(whole, places, strict=True))
    return forms, [view_of(each) for form, (_, each) in zip(forms, whole, strict=True) if form.lent is None]


def tensors_in(
    forms: Sequence[Form], parts: Sequence[bytearray], device: str, most: Callable[[int], float]
) -> list[Tensor]:
    """Returns the tensors of forms, whose bytes are `parts`, or copied from where they are lent.

    `most` returns the limit of the lent bytes, for the size that is announced. Raises ValueError or KernelError if
    there are no such tensors.
    """
    size, held = sum(bytes_in(form) for form in forms if form.lent), [form for form in forms if form.lent is None]
    if size and (torch.device(device).type != "cuda" or size > most(size)):
        raise ValueError(f"{size:,} bytes are lent")
    own = iter([tensor_of(form, part) for form, part in zip(held, parts, strict=True)])
    return [
        borrowed(form.lent, torch.empty(form.shape, dtype=KINDS[form.dtype], device=device)) if form.lent else next(own)
        for form in forms
    ]


_HANDLE = 64  # bytes
_PAGE = 1 << 21  # bytes: smaller allocations may share one with another
_LAZY = 1  # peer access is enabled if it is needed


class _Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * _HANDLE)]


@lru_cache
def _driver() -> Any:
    """Returns CUDA's driver; None if there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def _is_away(tensor: Tensor) -> bool:
    return tensor.is_cuda


def lent(tensor: Tensor) -> Lent | None:
    """Returns the handle and the place of a contiguous tensor; None if no other process can reach it.

    The process keeps the tensor until the other one has copied it. That one opens the memory, copies it and closes it,
    so that no other process changes its copy. This calls CUDA's driver: with PyTorch's own functions the reader would
    open files that the other process names.
    """
    driver = _driver() if _is_away(tensor) and tensor.numel() else None
    if driver is None:
        return None
    torch.cuda.synchronize(tensor.device)  # the tensor is complete, and this thread has a context
    place, base, size = (ctypes.c_uint64(at) for at in (tensor.data_ptr(), 0, 0))
    if driver.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), place):
        return None
    return _lent_at(driver, base, place.value - base.value)


def _lent_at(driver: Any, base: ctypes.c_uint64, offset: int = 0) -> Lent | None:
    handle = _Handle()
    return None if driver.cuIpcGetMemHandle(ctypes.byref(handle), base) else Lent(bytes(handle), offset)


class Loans:
    """Copies of tensors on a GPU that another process may read and change inside a `with` block; none if not `on`.

    Each has an allocation of its own, which PyTorch does not know: a handle opens all of an allocation.
    """

    def __init__(self, *, on: bool = True) -> None:
        self._on, self._bases = on, list[ctypes.c_uint64]()

    def __enter__(self) -> Loans:
        return self

    def __exit__(self, *_: object) -> None:
        while self._bases:
            with suppress(Exception):
                _driver().cuMemFree_v2(self._bases.pop())

    def add(self, tensor: Tensor) -> Lent | None:
        """Lends a copy of a contiguous tensor; None if it is on no GPU, or if there is no memory for the copy."""
        driver = _driver() if self._on and _is_away(tensor) and tensor.numel() else None
        if driver is None:
            return None
        torch.cuda.synchronize(tensor.device)
        base, size = ctypes.c_uint64(), -(-tensor.nbytes // _PAGE) * _PAGE
        if driver.cuMemAlloc_v2(ctypes.byref(base), ctypes.c_size_t(size)):
            return None
        self._bases.append(base)
        place = ctypes.c_uint64(tensor.data_ptr())
        if driver.cuMemcpyDtoD_v2(base, place, ctypes.c_size_t(tensor.nbytes)):
            return None
        torch.cuda.synchronize(tensor.device)
        return _lent_at(driver, base)


def borrowed(held: Lent, like: Tensor) -> Tensor:
    """Copies lent memory into a contiguous tensor. Raises KernelError if there is no such memory."""
    driver, count = _driver(), like.numel() * like.element_size()
    torch.cuda.synchronize(like.device)
    base, size, start = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64()
    if len(held.handle) != _HANDLE or driver.cuIpcOpenMemHandle_v2(
        ctypes.byref(base), _Handle.from_buffer_copy(held.handle), ctypes.c_uint(_LAZY)
    ):
        raise KernelError("its process lent memory that cannot be opened")
    try:
        place = ctypes.c_uint64(base.value + held.offset)
        known = not driver.cuMemGetAddressRange_v2(ctypes.byref(start), ctypes.byref(size), base)
        left = start.value + size.value - place.value if known and held.offset >= 0 else 0
        if left < count:
            raise KernelError(f"its process lent less memory than the {count:,} bytes of a result")
        if driver.cuMemcpyDtoD_v2(ctypes.c_uint64(like.data_ptr()), place, ctypes.c_size_t(count)):
            raise KernelError("the memory that its process lent cannot be read")
        torch.cuda.synchronize(like.device)
    finally:
        driver.cuIpcCloseMemHandle(base)
    return like
