"""Limits the memory of processes by a control group, where this machine lets a process make one.

The kernel then ends what exceeds the limit at once, with shared memory and files without a name. Elsewhere, as in most
containers, a supervisor counts five times a second (starter.py). Memory of a GPU is counted by its driver alone.
"""

import ctypes
import functools
import glob
import os
import time
from collections.abc import Collection
from contextlib import suppress
from typing import Any

END_SECONDS = 2.0
# Of version 2 and 1: the folder, the limits of memory alone and with swap, and where the kernel counts what it ended
_VERSIONS = (
    ("/sys/fs/cgroup", "memory.max", "memory.swap.max", "memory.events"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.oom_control"),
)


def make(size: int) -> str:
    """Returns the folder of a new group whose processes have so many bytes; "" where none can be made."""
    for top, limit, swap, _ in _VERSIONS:
        folder = os.path.join(top, f"verify-{os.getpid()}")
        for old in glob.glob(os.path.join(top, "verify-*")):
            if not os.path.exists(f"/proc/{old.rpartition('-')[2]}"):  # its supervisor was killed
                with suppress(OSError):  # it has processes
                    os.rmdir(old)
        try:
            os.mkdir(folder)
            _write(folder, limit, size)
        except OSError:
            remove(folder)
            continue
        with suppress(OSError):  # a kernel may not count swap
            _write(folder, swap, 0 if swap.endswith("max") else size)
        return folder
    return ""


def join(folder: str) -> None:
    """Moves this process into a group."""
    with suppress(OSError):
        _write(folder, "cgroup.procs", 0)


def ended(folder: str) -> bool:
    """True if the kernel ended a process of a group, because the group exceeded its limit."""
    for *_, name in _VERSIONS:
        with suppress(OSError), open(os.path.join(folder, name)) as file:
            return any(line.split()[0] == "oom_kill" and int(line.split()[1]) > 0 for line in file)
    return False


def remove(folder: str) -> None:
    """Removes a group when its last process has ended."""
    until = time.monotonic() + END_SECONDS
    while os.path.isdir(folder) and time.monotonic() < until:
        try:
            os.rmdir(folder)
        except OSError:
            time.sleep(0.01)


def _write(folder: str, name: str, number: int) -> None:
    file = os.open(os.path.join(folder, name), os.O_WRONLY)
    try:
        os.write(file, b"%d" % number)
    finally:
        os.close(file)


# -- of a GPU -----------------------------------------------------------------------------------------------

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


def gpu_share(pids: Collection[int]) -> float:
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
