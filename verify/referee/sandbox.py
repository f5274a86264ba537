"""Limits of a process that runs untrusted code, as far as the kernel of this machine enforces them.

`isolate` gives the calling process its own namespaces, and `confine` removes rights permanently. Both return the limits
that are enforced and those that this machine lacks. Only Linux has them; elsewhere all are lacking.
"""

from __future__ import annotations

import ctypes
import glob
import os
import platform
import resource
import signal
import site
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

FILE_BYTES = 1 << 28  # of one file
PROCESSES, FILES = 512, 1024  # threads count as processes; the limit of a namespace is at least 301
_PID_MAX_IS_LOCAL = (6, 14)  # the kernel version since which each namespace has its own limit
_LIBC = ctypes.CDLL(None, use_errno=True)
_POISON = 0x01  # glibc fills freed memory with this byte, and new memory with its complement
NEVER_WRITTEN = 0xFE  # the byte of memory that a solution never wrote

_NEW = {"users": 0x10000000, "processes": 0x20000000, "network": 0x40000000, "messages": 0x08000000, "mounts": 0x20000}
_PRIVATE = 0x44000  # MS_PRIVATE and MS_REC
_DEATH, _NO_NEW_PRIVILEGES, _SECCOMP = 1, 38, 22  # of prctl(2)
_RULESET, _RULE, _RESTRICT = 444, 445, 446  # landlock's system calls, the same on every architecture

# landlock's rights, in the order of their bits
_EXECUTE, _WRITE, _READ, _LIST = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL = 1 << 14, 1 << 15
# A process of root owns the disks too, so it may write only into these devices.
_DEVICES = ("/dev/null", "/dev/zero", "/dev/*random", "/dev/nvidia*", "/dev/kfd", "/dev/dri")
_SYSTEM = (
    *("/usr", "/lib", "/lib64", "/bin", "/sbin", "/opt", "/proc", "/sys", "/etc/alternatives", "/etc/ld.so.cache"),
    *("/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/localtime", "/etc/ld.so.conf", "/etc/ld.so.conf.d"),
)
# CUDA names its threads there when it starts, and fails if it cannot. Other files of /proc would change the machine.
_OWN_THREADS = "/proc/self/task"
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}  # number of rights by version; 16 in later versions

# system calls that reach other processes or the kernel itself, by architecture
_FORBIDDEN = {
    "x86_64": (0xC000003E, (101, 310, 311, 321, 298, 165, 166, 272, 308, 250, 323, 425, 434, 424, 438), 41, 62),
    "aarch64": (0xC00000B7, (117, 270, 271, 280, 241, 40, 39, 97, 268, 219, 282, 425, 434, 424, 438), 198, 129),
}


def isolate() -> tuple[list[str], list[str]]:
    """Gives this process namespaces and goes on in a child, the first process there.

    The parent waits for the child and ends with its exit code or signal. If either is killed, every process of the
    namespace ends.
    """
    os.setsid()
    die_with_parent()
    uid, gid = os.getuid(), os.getgid()
    every = _NEW["users"] | _NEW["processes"] | _NEW["network"] | _NEW["messages"] | _NEW["mounts"]
    if _LIBC.unshare(every) != 0:
        return [], ["no namespaces: the network, other processes and what survives depend on the other limits"]
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with suppress(OSError), open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    child = os.fork()
    if child:
        _end_as(child)
    die_with_parent()
    holds = ["no network", "its processes end with it", "it sees no other process"]
    _LIBC.mount(b"none", b"/", None, _PRIVATE, None)
    if _LIBC.mount(b"proc", b"/proc", b"proc", 0, None) != 0:
        holds.pop()
        return holds, ["/proc lists other processes"]
    if os.getpid() == 1 and (_kernel() >= _PID_MAX_IS_LOCAL or os.getuid()):  # else it is the limit of the machine
        with suppress(OSError), open("/proc/sys/kernel/pid_max", "w") as file:
            file.write(f"{PROCESSES}")
    return holds, []


def _kernel() -> tuple[int, ...]:
    """Returns the first two numbers of the version of the kernel of this machine."""
    return tuple(int(part) for part in platform.release().split(".")[:2])


def die_with_parent() -> None:
    """Makes the kernel kill this process when its parent ends."""
    _LIBC.prctl(_DEATH, signal.SIGKILL, 0, 0, 0)


def _end_as(child: int) -> None:
    """Waits for the child and ends as it did."""
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    os._exit(max(code, 0))


def confine(
    folders: Iterable[str], readable: Iterable[str], memory: int, *, namespaces: bool
) -> tuple[list[str], list[str]]:
    """Lets this process write only below `folders`, read `readable` folders, and use `memory` more bytes."""
    holds, lacks = _limits(memory), list[str]()
    _LIBC.mallopt(-6, _POISON)  # M_PERTURB
    _LIBC.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    for text, done in (
        ("writes into its scratch folder alone", _landlock(folders, readable)),
        ("no sockets but local ones, no tracing of processes", _filter(kills=namespaces)),
    ):
        (holds if done else lacks).append(text if done else f"not enforced here: {text}")
    return holds, lacks


def _limits(memory: int) -> list[str]:
    with open("/proc/self/status") as status:
        used = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData"))
    most = used + memory
    limits = {"CORE": 0, "FSIZE": FILE_BYTES, "NOFILE": FILES, "NPROC": PROCESSES, "DATA": most}
    for name, value in limits.items():
        number = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(number)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (value, value))
    return [f"{memory >> 20:,} MiB of memory, files of {FILE_BYTES >> 20} MiB, {PROCESSES} processes"]


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Below(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("rights", ctypes.c_uint64), ("folder", ctypes.c_int32))


def _landlock(folders: Iterable[str], readable: Iterable[str]) -> bool:
    version = _LIBC.syscall(_RULESET, None, 0, 1)
    if version < 1:
        return False
    every = (1 << _RIGHTS.get(version, 16)) - 1
    ruleset = _Ruleset(every, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = _LIBC.syscall(_RULESET, ctypes.byref(ruleset), size, 0)
    if rules < 0:
        return False
    reading = _EXECUTE | _READ | _LIST
    devices = [path for pattern in _DEVICES for path in glob.glob(pattern)]
    allowed = dict.fromkeys(readable, reading) | dict.fromkeys(devices, reading | _WRITE | _IOCTL)
    allowed |= dict.fromkeys(folders, every) | {_OWN_THREADS: reading | _WRITE | _TRUNCATE}
    for path, rights in allowed.items():
        with suppress(OSError):
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
            if not os.path.isdir(path):
                rights &= ~_LIST
            below = _Below(rights & every, opened)
            _LIBC.syscall(_RULE, rules, 1, ctypes.byref(below), 0)
            if path != _OWN_THREADS:  # an open folder keeps its inode in /proc, to which the rule belongs
                os.close(opened)
    done = _LIBC.syscall(_RESTRICT, rules, 0) == 0
    os.close(rules)
    return bool(done)


def _filter(*, kills: bool) -> bool:
    """Makes forbidden system calls fail with EPERM. `kills` allows kill(2), if the process sees no other process."""
    known = _FORBIDDEN.get(platform.machine())
    if known is None:
        return False
    architecture, forbidden, socket_call, kill_call = known
    load, equal, at_least, done = 0x20, 0x15, 0x35, 0x06
    allow, refuse = (done, 0, 0, 0x7FFF0000), (done, 0, 0, 0x00050001)
    program = [
        (load, 0, 0, 4),
        (equal, 1, 0, architecture),
        refuse,
        (load, 0, 0, 0),
        (at_least, 0, 1, 0x40000000),
        refuse,
    ]
    for number in (*forbidden, *(() if kills else (kill_call,))):
        program += [(equal, 0, 1, number), refuse]
    local = 1  # AF_UNIX
    program += [(equal, 0, 3, socket_call), (load, 0, 0, 16), (equal, 1, 0, local), refuse, allow]
    code = b"".join(struct.pack("HBBI", *each) for each in program)
    buffer = ctypes.create_string_buffer(code)

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))

    held = Program(len(program), ctypes.cast(buffer, ctypes.c_void_p).value)
    return bool(_LIBC.prctl(_SECCOMP, 2, ctypes.byref(held), 0, 0) == 0)


def folders_to_read() -> tuple[str, ...]:
    """Returns the folders of the system, of Python and of its packages, without those of problems."""
    package = Path(__file__).parents[2]
    own = (sys.prefix, sys.base_prefix, *site.getsitepackages(), site.getusersitepackages(), package / "verify")
    added = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    found = dict.fromkeys((*_SYSTEM, *map(str, own), *(each for each in added if Path(each) != package)))
    return tuple(each for each in found if os.path.exists(each))
