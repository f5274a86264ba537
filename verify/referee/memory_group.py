"""Limits the memory of a solution by a control group, where this machine lets the judge make one.

The kernel then ends what exceeds the limit at once, with shared memory and files without a name. Elsewhere, as in most
containers, the supervisor counts five times a second (starter.py).
"""

from __future__ import annotations

import glob
import os
import time
from contextlib import suppress

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
