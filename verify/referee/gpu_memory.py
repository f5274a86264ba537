"""Reads from the driver of NVIDIA's GPUs how much of their memory some processes use."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Collection
from typing import Any

_MOST, _UNKNOWN = 1024, (1 << 64) - 1  # processes on one GPU; in the place of a size that the driver does not report


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


@functools.cache
def _driver() -> Any:
    """Returns the driver's library; None without one."""
    try:
        found = ctypes.CDLL("libnvidia-ml.so.1")
        return found if found.nvmlInit_v2() == 0 else None
    except (OSError, AttributeError):
        return None


def share(pids: Collection[int]) -> float:
    """Returns the largest part of the memory of a GPU that these processes use together.

    It is 0 where the driver names no processes, as in a container with process numbers of its own.
    """
    driver, largest = _driver(), 0.0
    count = ctypes.c_uint(0)
    if driver is None or driver.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return 0.0
    for place in range(count.value):
        device, memory, running = ctypes.c_void_p(), _Memory(), ctypes.c_uint(_MOST)
        processes = (_Process * _MOST)()
        calls = (
            driver.nvmlDeviceGetHandleByIndex_v2(place, ctypes.byref(device)),
            driver.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)),
            driver.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(running), processes),
        )
        if not any(calls) and memory.total:
            theirs = (each.used for each in processes[: running.value] if each.pid in pids and each.used != _UNKNOWN)
            largest = max(largest, sum(theirs) / memory.total)
    return largest
