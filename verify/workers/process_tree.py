"""Every process that a process started, also those in sessions of their own, which its process group has lost.

`/proc` says who is whose child, and who has inherited a mark in the environment: what was orphaned in between is found
by that. Without `/proc` there is the group alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import Any

MARK = "VERIFY_FAMILY"
END_SECONDS = 5.0  # after which a process that was killed is left behind
LOOK_SECONDS = 0.01
_ADOPT = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)


def new_mark() -> str:
    """What to set as MARK in the environment of a process that is to be ended with its family."""
    return secrets.token_hex(16)


def adopt_orphans() -> None:
    """Descendants whose parent ended become children of this process, so that they are found, mark or no mark."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_ADOPT, 1, 0, 0, 0)


def living(members: Iterable[int], mark: str) -> set[int]:
    """Those of `members` that live, their descendants, and whoever has the mark; not this process."""
    parents: dict[int, int] = {}
    found, wanted = set(members), f"{MARK}={mark}".encode()
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as stat:
                state, parent = stat.read().rpartition(b")")[2].split()[:2]
            if state in b"ZX":  # ended, and not yet collected
                continue
            parents[int(name)] = int(parent)
            with open(f"/proc/{name}/environ", "rb") as environment:
                if mark and wanted in environment.read().split(b"\0"):
                    found.add(int(name))
        except (OSError, ValueError):  # it ended meanwhile, or is another user's
            continue
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return (found & parents.keys()) - {os.getpid()}


def kill(leader: int | None, mark: str) -> set[int]:
    """Kill a process, its group and its family, again and again until none lives; those that live after END_SECONDS.

    This process itself, as the leader, stays; None is a leader who has ended.
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


def end(process: subprocess.Popen[Any], mark: str) -> None:
    """Kill a process and its family and collect it. What cannot be ended is named on stderr, and not waited for."""
    left = kill(process.pid if process.returncode is None else None, mark)
    try:
        process.wait(timeout=END_SECONDS)
    except subprocess.TimeoutExpired:
        left = left | {process.pid}
    if left:
        named = ", ".join(map(str, sorted(left)))
        print(f"verify: processes that do not end {END_SECONDS:g} s after SIGKILL are left: {named}", file=sys.stderr)
