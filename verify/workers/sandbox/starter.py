"""Starts processes for code that is not trusted: forks of a process that holds nothing of its parent and of the user.

    place = starter.address("verify.referee.runner", "cpu")  # a connection to this socket starts one process

The starter is a new interpreter with variables from a list, so no fork of it has memory where a secret of the user
or a number of its parent ever was. It imports PyTorch and the module once. Each process runs `run(channel)` of the
module. It has a supervisor, which the starter forks: it applies the limits, watches what the kernel of the machine does
not count, and ends everything if the other end is gone.
"""

import atexit
import gc
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from verify import backends, start
from verify.workers import process_tree
from verify.workers.channel import Channel
from verify.workers.process import import_torch
from verify.workers.sandbox import confine, folders, memory

SCRATCH_BYTES, SCRATCH_FILES = 1 << 30, 5_000
DEPTH = 64  # of folders
LOOK_SECONDS = 0.2
WAITING = 128  # connections while PyTorch is being imported
MESSAGE = 1 << 17  # bytes
LONGEST = 80  # bytes of the path of the temporary folder


_LOCK = threading.Lock()
# by this process, the module and its backend
_RUNNING: dict[tuple[int, str, str], tuple[subprocess.Popen[bytes], str]] = {}


def address(module: str, backend: str | None) -> str:
    """Returns the socket of the starter of this process. Starts it if there is none."""
    with _LOCK:
        process, place = _RUNNING.get(key := (os.getpid(), module, backend or ""), (None, ""))
        if process is None or process.poll() is not None:
            process, place = _RUNNING[key] = begin(*key[1:])
        return place


def begin(module: str, backend: str) -> tuple[subprocess.Popen[bytes], str]:
    """Starts a starter. Returns its process and its socket."""
    # the path of a socket has at most 107 bytes
    folder = tempfile.mkdtemp(prefix="tmp", dir="/tmp" if len(os.fsencode(tempfile.gettempdir())) > LONGEST else None)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(place := os.path.join(folder, "s"))
        listener.listen(WAITING)
        process = subprocess.Popen(
            start.command("verify.workers.sandbox.starter", str(listener.fileno()), module, backend),
            stdin=subprocess.PIPE,  # ends with this process
            stdout=subprocess.DEVNULL,
            pass_fds=(listener.fileno(),),
            start_new_session=True,
            cwd="/",
            env=start.environment(variables() | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}),
        )
    return process, place


def end(process: subprocess.Popen[bytes], place: str) -> None:
    """Ends a starter with all its processes."""
    process_tree.end(process, "")
    folders.remove(os.path.dirname(place))


def variables() -> dict[str, str]:
    """Returns the variables of this process that code which is not trusted may know."""
    return {name: os.environ[name] for name in confine.RULES["variables"] if name in os.environ}


@atexit.register
def stop() -> None:
    """Ends the starters of this process with all of theirs."""
    for key in [each for each in _RUNNING if each[0] == os.getpid()]:
        end(*_RUNNING.pop(key))


# -- in the starter ------------------------------------------------------------------------------------------


def main(arguments: list[str]) -> None:
    """Forks a supervisor for each connection until the process that started this one ends."""
    listener, requested = socket.socket(fileno=int(arguments[0])), arguments[2] or None
    import_torch(identifies_triton=backends.may_compile(requested) and backends.gpu_expected())
    import torch

    run = importlib.import_module(arguments[1]).run
    torch.set_num_threads(1)
    with suppress(Exception):  # this asks the driver's library and not the driver: no fork could use CUDA then
        if backends.may_compile(requested) and torch.cuda._device_count_nvml() > 0:
            import triton  # noqa: F401
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while 0 not in select.select([listener.fileno(), 0], [], [])[0]:
        control, _ = listener.accept()
        if not os.fork():
            listener.close()
            _supervise(control, run)
        control.close()
    folders.remove(os.path.dirname(listener.getsockname()))


class Ended(msgspec.Struct):
    """Reports the end of a process: its exit code, or why the supervisor ended it."""

    code: int = 0
    reason: str = ""


def _supervise(control: socket.socket, run: Callable[[Channel], object]) -> None:
    """Runs code that is not trusted in a child. Does not return."""
    group = ""
    try:
        confine.die_with_parent()
        os.setsid()
        signal.signal(signal.SIGCHLD, lambda *_: None)
        process_tree.adopt_orphans()
        text, descriptors, _, _ = socket.recv_fds(control, MESSAGE, 1)
        limits = msgspec.json.decode(text, type=confine.Limits)
        group = memory.make(limits.memory + OWN_BYTES)
        namespaces = confine.isolate()
        if not (child := os.fork()):
            memory.join(group)
            confine.die_with_parent()
            os.setsid()
            _run(run, Channel(descriptors[0]), limits, namespaces=namespaces)
        os.close(descriptors[0])
        control.send(b"%d" % os.getpid())
        control.send(msgspec.json.encode(_watched(control, child, limits, group)))
    except (OSError, ValueError, IndexError, msgspec.DecodeError):  # the judge is gone
        pass
    finally:
        process_tree.kill(os.getpid(), "")
        memory.remove(group)
        os._exit(0)


def _run(run: Callable[[Channel], object], channel: Channel, limits: confine.Limits, *, namespaces: bool) -> None:
    """Removes the rights of this process, reports them, and runs the module's function. Does not return."""
    try:
        _close_all_but(channel.fileno())
        folder = limits.folders[0]
        os.environ.clear()
        os.environ |= limits.variables | {"HOME": folder, "TMPDIR": folder, "TRITON_HOME": folder, "USER": "user"}
        os.environ["TORCH_EXTENSIONS_DIR"] = extensions = str(Path(folder, "extensions"))
        os.makedirs(extensions, exist_ok=True)
        tempfile.tempdir = None  # it may be known from before
        os.chdir(folder)
        sys.path.insert(0, folder)
        # what the other end reads first is from before the import of anything that is not trusted
        channel.send(msgspec.json.encode(confine.confine(limits, namespaces=namespaces)))
        run(channel)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _close_all_but(kept: int) -> None:
    """Closes every file of this process except its connection. Its output goes nowhere: a log may obey such text.

    The numbers stay taken. Objects of the parent, which a fork has too, close them later: they may not be CUDA's then.
    """
    empty = os.open(os.devnull, os.O_RDWR)
    opened = os.listdir("/proc/self/fd" if os.path.exists("/proc/self/fd") else "/dev/fd")
    for number in {0, 1, 2, *map(int, opened)} - {kept, empty}:
        os.dup2(empty, number, inheritable=number < 3)


def _watched(control: socket.socket, child: int, limits: confine.Limits, group: str) -> Ended:
    """Waits for the end of a child. Ends it when the parent hangs up, or beyond a limit that nothing else enforces."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)  # no thread can wait: after `isolate` this process can start none
    ended = Ended()
    while not (found := os.waitpid(child, os.WNOHANG))[0]:
        ready = select.select([control.fileno(), read], [], [], LOOK_SECONDS)[0]
        gone = control.fileno() in ready
        if read in ready:  # else the signal of one child that ended would wake this loop for ever
            os.read(read, 512)
        if reason := "" if gone else exceeded(process_tree.living({child}, ""), limits, group):
            ended.reason = f"{reason}; stopped"
        if gone or reason:
            process_tree.kill(os.getpid(), "")
    ended.code = os.waitstatus_to_exitcode(found[1])
    ended.reason = ended.reason or exceeded((), limits, group)
    process_tree.kill(os.getpid(), "")  # without namespaces its children live on
    return ended


def exceeded(pids: Iterable[int], limits: confine.Limits, group: str) -> str:
    """Returns the limit that these processes exceed together, a group; "" if none."""
    pids = list(pids)
    if len(pids) > confine.PROCESSES:
        return f"started more than {confine.PROCESSES} processes"
    items = [item for top in limits.folders for item in folders.walk(top, SCRATCH_FILES + 1)]
    if len(items) > SCRATCH_FILES or any(item.depth > DEPTH for item in items):
        return f"made more than {SCRATCH_FILES:,} files, or folders deeper than {DEPTH}"
    if sum(item.about.st_blocks * 512 for item in items) + _unlinked(pids) > SCRATCH_BYTES:
        return f"wrote more than {SCRATCH_BYTES >> 20} MiB of files"
    resident = _resident(pids, "Rss") > limits.memory and _resident(pids, "Pss") > limits.memory + OWN_BYTES
    if resident or memory.ended(group):
        return f"used more than {limits.memory >> 20:,} MiB of memory"
    if limits.gpu_share < 1 and memory.gpu_share(pids) > limits.gpu_share:
        return f"used more than {limits.gpu_share:.0%} of the memory of a GPU, its share beside others"
    return ""


OWN_BYTES = 1 << 29  # of memory that a process has before it imports a solution


def _unlinked(pids: Iterable[int]) -> int:
    """Returns the bytes of open files without a name: no folder lists them, and they may lie in memory."""
    found = {}
    for pid in pids:
        with suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    about = os.stat(f"/proc/{pid}/fd/{name}")
                    if not about.st_nlink:
                        found[about.st_dev, about.st_ino] = about.st_blocks * 512
    return sum(found.values())


def _resident(pids: Iterable[int], kind: str) -> int:
    """Returns the bytes in memory. `Pss` divides what several processes share; it takes longer to count."""
    total = 0
    for pid in pids:
        with suppress(OSError, ValueError):
            if kind == "Rss":
                with open(f"/proc/{pid}/statm") as file:
                    total += int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            else:
                with open(f"/proc/{pid}/smaps_rollup") as file:
                    total += next(int(line.split()[1]) << 10 for line in file if line.startswith("Pss:"))
    return total


if __name__ == "__main__":
    main(sys.argv[1:])
