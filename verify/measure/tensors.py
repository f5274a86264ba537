"""Tensors that one process sends to another: a form in JSON, and the elements in order as plain bytes of the host."""

from __future__ import annotations

import ctypes
import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from verify.errors import KernelError
from verify.measure.requests import Form, Lent

KINDS = {str(kind): kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}


def form_of(name: str, tensor: Tensor) -> Form:
    """Returns the announcement of a tensor."""
    return Form(name, str(tensor.dtype), tuple(tensor.shape))


def view_of(tensor: Tensor) -> memoryview:
    """Returns the bytes of a tensor, without a copy if they lie so."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
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


_HANDLE = 64  # bytes
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

    Gigabytes then never cross the host. The kernel's process keeps the tensor until the judge has copied it. The judge
    opens the memory, copies it and closes it, so the kernel cannot change what is judged. This calls CUDA's driver:
    with PyTorch's own functions the judge would open files that the kernel's process names.
    """
    driver = _driver() if _is_away(tensor) and tensor.numel() else None
    if driver is None:
        return None
    torch.cuda.synchronize(tensor.device)  # the result is complete, and this thread has a context
    place, base, size = (ctypes.c_uint64(at) for at in (tensor.data_ptr(), 0, 0))
    handle = _Handle()
    if driver.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), place):
        return None
    if driver.cuIpcGetMemHandle(ctypes.byref(handle), base):
        return None
    return Lent(bytes(handle), place.value - base.value)


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
