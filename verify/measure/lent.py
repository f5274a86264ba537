"""Lends tensors on a GPU to another process, which copies them there. Gigabytes then never cross the host.

The kernel's process sends a CUDA handle of the memory, and keeps the tensor until the judge has copied it. The judge
opens the memory, copies it and closes it, so the kernel cannot change what is judged. This module calls CUDA's driver:
with PyTorch's own functions the judge would open files that the kernel's process names.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from verify.errors import KernelError
from verify.measure.requests import Lent

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
    """Returns the handle and the place of a contiguous tensor; None if no other process can reach it."""
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
