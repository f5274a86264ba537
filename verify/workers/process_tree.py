"""Finds and kills every process that a process started, also in sessions outside its process group.

`/proc` shows parents and the environment. Each started process inherits a mark in its environment, which identifies
processes whose parent has ended. Without `/proc` only the process group is known.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import Any

MARK = "VERIFY_FAMILY"
END_SECONDS = 5.0  # wait for a killed process to end
LOOK_SECONDS = 0.01
_ADOPT = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)


def take_mark(mark: str) -> None:
    """Gives this process, a fork, a mark of its own, also in the memory that /proc shows as its environment."""
    find = ctypes.CDLL(None).getenv
    find.restype = ctypes.c_void_p
    if place := find(MARK.encode()):
        ctypes.memmove(place, mark.encode(), len(mark))
    os.environ[MARK] = mark


def adopt_orphans() -> None:
    """Makes descendants whose parent ended children of this process, so that they are found even without the mark."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_ADOPT, 1, 0, 0, 0)


def living(members: Iterable[int], mark: str) -> set[int]:
    """Returns the living ones of `members`, their descendants, and processes with the mark; not this process."""
    parents: dict[int, int] = {}
    found, wanted = set(members), f"{MARK}={mark}".encode()
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as stat:
                state, parent = stat.read().rpartition(b")")[2].split()[:2]
            if state in b"ZX":  # ended, not yet collected
                continue
            parents[int(name)] = int(parent)
            if not mark:
                continue
            with open(f"/proc/{name}/environ", "rb") as environment:
                if wanted in environment.read().split(b"\0"):
                    found.add(int(name))
        except (OSError, ValueError):  # the process ended meanwhile, or belongs to another user
            continue
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return (found & parents.keys()) - {os.getpid()}


def kill(leader: int | None, mark: str) -> set[int]:
    """Kills a process, its group and its descendants until none lives. Returns those that live after END_SECONDS.

    Args:
        leader: the process; None if it has ended. This process itself is not killed.
    """
    deadline = time.monotonic() + END_SECONDS
    found = living(() if leader is None else {leader}, mark)
    if leader is not None and leader != os.getpid():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)
    while found:
        for member in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(member, signal.SIGKILL)
        time.sleep(LOOK_SECONDS)
        found = living(found, mark)
        if time.monotonic() >= deadline:
            break
    return found


def end(process: Any, mark: str) -> None:
    """Kills a process of `subprocess`, or one like it, with its descendants, and collects it.

    Names on stderr the processes that do not end.
    """
    left = kill(process.pid if process.returncode is None else None, mark)
    try:
        process.wait(timeout=END_SECONDS)
    except subprocess.TimeoutExpired:
        left = left | {process.pid}
    if left:
        named = ", ".join(map(str, sorted(left)))
        print(f"verify: these processes still run {END_SECONDS:g} s after SIGKILL: {named}", file=sys.stderr)
