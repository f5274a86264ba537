"""Limits of a process that runs untrusted code, as far as the kernel of this machine enforces them.

`confine` removes rights permanently, by landlock, seccomp and limits of resources. These alone hold a solution.
`isolate` gives namespaces beforehand, a second wall that many containers deny. Only Linux has all of these.
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
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

FILE_BYTES = 1 << 28  # of one file
PROCESSES, FILES = 512, 1024  # threads count as processes; the limit of a namespace is at least 301
_PID_MAX_IS_LOCAL = (6, 14)  # the kernel version since which each namespace has its own limit
_LIBC = ctypes.CDLL(None, use_errno=True)
_POISON = 0x01  # glibc fills freed memory with this byte, and new memory with its complement
NEVER_WRITTEN = 0xFE  # the byte of memory that a solution never wrote

_USERS, _PROCESS_NUMBERS, _NETWORK, _MESSAGES, _MOUNTS = 0x10000000, 0x20000000, 0x40000000, 0x08000000, 0x20000
_PRIVATE = 0x44000  # MS_PRIVATE and MS_REC
_DEATH, _NO_NEW_PRIVILEGES, _SECCOMP, _DROP, _AMBIENT = 1, 38, 22, 24, 47  # of prctl(2)
_RULESET, _RULE, _RESTRICT = 444, 445, 446  # landlock's system calls, the same on every architecture

# landlock's rights, in the order of their bits
_EXECUTE, _WRITE, _READ, _LIST = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL = 1 << 14, 1 << 15
# A process of root owns the disks too, so it may write only into these devices.
_DEVICES = ("/dev/null", "/dev/zero", "/dev/*random", "/dev/nvidia*", "/dev/kfd", "/dev/dri")
_SYSTEM = (
    *("/usr", "/lib", "/lib64", "/bin", "/sbin", "/opt/rocm*", "/opt/nvidia", "/sys", "/etc/alternatives"),
    *("/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/localtime", "/etc/ld.so.c*", "/etc/ld.so.conf.d"),
)
# Without namespaces /proc shows every process of the machine, with its environment.
_PROC = ("meminfo", "cpuinfo", "stat", "version", "devices", "filesystems", "modules", "driver", "sys/vm", "self")
# CUDA names its threads there when it starts, and fails if it cannot. Other files of /proc would change the machine.
_OWN_THREADS = "/proc/self/task"
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}  # number of rights by version; 16 in later versions
_SCOPES_SIGNALS = 6  # the version since which landlock keeps signals among the processes of a solution

# CUDA binds a socket to a name when it starts, and nothing may connect to that.
# System calls with their numbers on x86_64 and aarch64, - where there is none. They reach other processes, what several
# processes share, or the kernel itself.
_REFUSED = """
ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271, kcmp 312 272, process_madvise 440 440,
process_mrelease 448 448, pidfd_open 434 434, pidfd_getfd 438 438, pidfd_send_signal 424 424, setpriority 141 140,
ioprio_set 251 30, bpf 321 280, perf_event_open 298 241, userfaultfd 323 282, io_uring_setup 425 425, mount 165 40,
umount2 166 39, pivot_root 155 41, unshare 272 97, setns 308 268, chroot 161 51, move_mount 429 429, open_tree 428 428,
fsopen 430 430, fsconfig 431 431, fsmount 432 432, fspick 433 433, mount_setattr 442 442, quotactl 179 60,
quotactl_fd 443 443, add_key 248 217, request_key 249 218, keyctl 250 219, connect 42 203, mq_open 240 180,
mq_unlink 241 181, shmget 29 194, shmat 30 196, shmctl 31 195, semget 64 190, semctl 66 191, semop 65 193,
semtimedop 220 192, msgget 68 186, msgctl 71 187, msgsnd 69 189, msgrcv 70 188, fanotify_init 300 262,
inotify_init 253 -, inotify_init1 294 26, truncate 76 45, setxattr 188 5, lsetxattr 189 6, fsetxattr 190 7,
removexattr 197 14, lremovexattr 198 15, fremovexattr 199 16, name_to_handle_at 303 264, open_by_handle_at 304 265,
syslog 103 116, reboot 169 142, kexec_load 246 104, kexec_file_load 320 294, init_module 175 105, finit_module 313 273,
delete_module 176 106, swapon 167 224, swapoff 168 225, acct 163 89, settimeofday 164 170, clock_settime 227 112,
adjtimex 159 171, clock_adjtime 305 266, sethostname 170 161, setdomainname 171 162, iopl 172 -, ioperm 173 -,
memfd_secret 447 447, vhangup 153 58"""
# Landlock does not govern these. Linkers and Python call them on their own files, so they do nothing and succeed.
_IGNORED = """
chmod 90 -, fchmod 91 52, fchmodat 268 53, chown 92 -, fchown 93 55, lchown 94 -, fchownat 260 54, utime 132 -,
utimes 235 -, futimesat 261 -, utimensat 280 88"""
_ABSENT = "clone3 435 435"  # its flags are in memory; the C library then calls clone
_NEWEST = 450  # later calls do not exist here either: this list does not know them
# Calls with the place of an argument, its bits that count, and the values that are allowed, or not allowed after "!".
# "me" is 0 or the own process.
_ARGUMENTS = """
clone 56 220 0 7e020000 0, socket 41 198 0 ffffffff 1, socket 41 198 1 f 1 5, socketpair 53 199 0 ffffffff 1,
socketpair 53 199 1 f 1 5, sched_setaffinity 203 122 0 ffffffff me, sched_setscheduler 144 119 0 ffffffff me,
sched_setparam 142 118 0 ffffffff me, sched_setattr 314 274 0 ffffffff me, prlimit64 302 261 0 ffffffff me,
migrate_pages 256 238 0 ffffffff me, move_pages 279 239 0 ffffffff me, fcntl 72 25 1 ffffffff ! 8 f,
ioctl 16 29 1 ffffffff ! 5412 8901 8902 40086602 401c5820"""
_SIGNALS = """
kill 62 129 0 ffffffff pid, tkill 200 130 0 ffffffff pid, tgkill 234 131 0 ffffffff pid,
rt_sigqueueinfo 129 138 0 ffffffff pid, rt_tgsigqueueinfo 297 240 0 ffffffff pid"""
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column above, number in seccomp


class Limits(msgspec.Struct, frozen=True):
    """Describes what a solution may use. Its process gets them before anything of the solution."""

    folders: tuple[str, ...] = ()  # in which it may write
    readable: tuple[str, ...] = ()
    memory: int = 4 << 30  # bytes, of all its processes together, beyond those of a new process
    variables: dict[str, str] = {}  # of its environment
    gpu_share: float = 1.0  # of the memory of a GPU, for all its processes together; 1: no limit


class Confined(msgspec.Struct, frozen=True):
    """Reports the limits that the judge applied, those that lack, and among these the ones that hold a solution."""

    holds: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    open: tuple[str, ...] = ()


def isolate() -> bool:
    """Gives this process namespaces, if the machine allows that: its next child is the first process there."""
    uid, gid = os.getuid(), os.getgid()
    if _LIBC.unshare(_USERS | _PROCESS_NUMBERS | _NETWORK | _MESSAGES) != 0:
        return False
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with suppress(OSError), open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    return True


def _enter() -> bool:
    """Shows the first process of its namespaces only its own. Returns whether /proc lists no others."""
    _LIBC.unshare(_MOUNTS)  # its supervisor keeps the other /proc
    _LIBC.mount(b"none", b"/", None, _PRIVATE, None)
    if _LIBC.mount(b"proc", b"/proc", b"proc", 0, None) != 0:
        return False
    if os.getpid() == 1 and (_kernel() >= _PID_MAX_IS_LOCAL or os.getuid()):  # else it is the limit of the machine
        with suppress(OSError), open("/proc/sys/kernel/pid_max", "w") as file:
            file.write(f"{PROCESSES}")
    return True


def _kernel() -> tuple[int, ...]:
    """Returns the first two numbers of the version of the kernel of this machine."""
    return tuple(int(part) for part in platform.release().split(".")[:2])


def die_with_parent() -> None:
    """Makes the kernel kill this process when its parent ends."""
    _LIBC.prctl(_DEATH, signal.SIGKILL, 0, 0, 0)


def confine(limits: Limits, *, namespaces: bool) -> Confined:
    """Removes the rights of this process, the first of its namespaces if it has some. Returns what holds."""
    holds, lacks = list[str](), list[str]()
    alone = namespaces and _enter()
    if namespaces:
        holds += ["no network", "its processes end with it", *(["it sees no other process"] if alone else [])]
    else:
        lacks.append("no namespaces: the other limits are the only wall")
    _limit(limits.memory)
    holds.append(f"{limits.memory >> 20:,} MiB of memory, files of {FILE_BYTES >> 20} MiB, {PROCESSES} processes")
    _LIBC.mallopt(-6, _POISON)  # M_PERTURB
    _LIBC.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    _drop_capabilities()
    version = _LIBC.syscall(_RULESET, None, 0, 1)
    open_ = list[str]()
    for text, done in (
        ("writes into its own folders alone, reads no file of a user", _landlock(version, limits, proc=alone)),
        ("no way to other processes, no sockets", _filter(signals=namespaces or version >= _SCOPES_SIGNALS)),
    ):
        (holds if done else open_).append(text)
    lacks += [f"not enforced here: {text}" for text in open_]
    return Confined(tuple(holds), tuple(lacks), tuple(open_))


def _limit(memory: int) -> None:
    with open("/proc/self/status") as status:
        used = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData"))
    limits = {"CORE": 0, "FSIZE": FILE_BYTES, "NOFILE": FILES, "NPROC": PROCESSES, "DATA": used + memory}
    for name, value in {**limits, "MSGQUEUE": 0, "MEMLOCK": FILE_BYTES}.items():
        number = getattr(resource, f"RLIMIT_{name}", None)
        if number is not None:
            hard = resource.getrlimit(number)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(number, (value, value))


def _drop_capabilities() -> None:
    for number in range(64):
        _LIBC.prctl(_DROP, number, 0, 0, 0)
    _LIBC.prctl(_AMBIENT, 4, 0, 0, 0)
    header, none = struct.pack("IiI", 0x20080522, 0, 0), bytes(24)
    if hasattr(_LIBC, "capset"):
        _LIBC.capset(header, none)


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Below(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("rights", ctypes.c_uint64), ("folder", ctypes.c_int32))


def _landlock(version: int, limits: Limits, *, proc: bool) -> bool:
    """Removes access to files. Returns whether that is done; `proc` leaves all of /proc readable."""
    if version < 1:
        return False
    every = (1 << _RIGHTS.get(version, 16)) - 1
    ruleset = _Ruleset(every, 3 if version >= 4 else 0, 3 if version >= _SCOPES_SIGNALS else 0)
    size = 24 if version >= _SCOPES_SIGNALS else 16 if version >= 4 else 8
    rules = _LIBC.syscall(_RULESET, ctypes.byref(ruleset), size, 0)
    if rules < 0:
        return False
    reading = _EXECUTE | _READ | _LIST
    devices = [path for pattern in _DEVICES for path in glob.glob(pattern)]
    shown = ("/proc",) if proc else tuple(f"/proc/{name}" for name in _PROC)
    allowed = dict.fromkeys((*limits.readable, *shown), reading)
    allowed |= dict.fromkeys(devices, reading | _WRITE | _IOCTL)
    allowed |= dict.fromkeys(limits.folders, every) | {_OWN_THREADS: reading | _WRITE | _TRUNCATE}
    for path, rights in allowed.items():
        with suppress(OSError):
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
            if not os.path.isdir(path):
                rights &= ~_LIST
            below = _Below(rights & every, opened)
            _LIBC.syscall(_RULE, rules, 1, ctypes.byref(below), 0)
            if not path.startswith("/proc/self"):  # an open folder keeps its inode in /proc, to which the rule belongs
                os.close(opened)
    done = _LIBC.syscall(_RESTRICT, rules, 0) == 0
    os.close(rules)
    return bool(done)


_LOAD, _AND, _EQUAL, _AT_LEAST, _DONE = 0x20, 0x54, 0x15, 0x35, 0x06
_ALLOW, _IGNORE, _REFUSE, _MISSING = ((_DONE, 0, 0, code) for code in (0x7FFF0000, 0x50000, 0x50001, 0x50026))
_Step = tuple[int, int, int, int]


def _filter(*, signals: bool) -> bool:
    """Makes system calls fail that reach beyond the process.

    `signals` allows all of kill(2), because something else keeps signals among the processes of a solution.
    """
    if platform.machine() not in _ARCHITECTURES:
        return False
    column, architecture = _ARCHITECTURES[platform.machine()]
    program = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, architecture), _REFUSE, (_LOAD, 0, 0, 0)]
    program += [(_AT_LEAST, 0, 1, _NEWEST), _MISSING]
    for text, answer in ((_REFUSED, _REFUSE), (_IGNORED, _IGNORE), (_ABSENT, _MISSING)):
        for words in _rows(text):
            if words[1 + column] != "-":
                program += [(_EQUAL, 0, 1, int(words[1 + column])), answer]
    checks = dict[int, list[_Step]]()
    for words in _rows(_ARGUMENTS + ("" if signals else f",{_SIGNALS}")):
        checks.setdefault(int(words[1 + column]), []).extend(_checked(words[3:]))
    for number, steps in checks.items():
        program += [(_EQUAL, 0, len(steps) + 1, number), *steps, _ALLOW]
    program.append(_ALLOW)
    code = b"".join(struct.pack("HBBI", *each) for each in program)
    buffer = ctypes.create_string_buffer(code)

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))

    held = Program(len(program), ctypes.cast(buffer, ctypes.c_void_p).value)
    return bool(_LIBC.prctl(_SECCOMP, 2, ctypes.byref(held), 0, 0) == 0)


def _rows(text: str) -> Iterator[list[str]]:
    return (row.split() for row in text.split(","))


def _checked(words: list[str]) -> list[_Step]:
    """Returns the steps that refuse a call unless its argument is allowed: place, mask, values."""
    place, mask, *values = words
    own = {"me": (0, os.getpid()), "pid": (os.getpid(),)}
    numbers = [number for word in values if word != "!" for number in own.get(word) or (int(word, 16),)]
    steps: list[_Step] = [(_LOAD, 0, 0, 16 + 8 * int(place)), (_AND, 0, 0, int(mask, 16))]
    if values[0] == "!":
        return steps + [step for number in numbers for step in ((_EQUAL, 0, 1, number), _REFUSE)]
    steps += [(_EQUAL, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
    return [*steps, _REFUSE]


def folders_to_read() -> tuple[str, ...]:
    """Returns the folders of the system, of Python and of its packages, without those of problems."""
    package = Path(__file__).parents[2]
    own = (sys.prefix, sys.base_prefix, *site.getsitepackages(), site.getusersitepackages(), package / "verify")
    added = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), os.environ.get("CUDA_HOME", "")]
    system = (path for pattern in _SYSTEM for path in glob.glob(pattern))
    found = dict.fromkeys((*system, *map(str, own), *(each for each in added if each and Path(each) != package)))
    return tuple(each for each in found if os.path.exists(each))
