"""Limits of a process that runs untrusted code, as far as the kernel of this machine enforces them.

`confine` removes rights permanently, by landlock, seccomp and limits of resources. These alone hold a solution.
`isolate` gives namespaces beforehand, a second wall that many containers deny. Only Linux has all of these.
"""

import ctypes
import glob
import os
import platform
import resource
import signal
import site
import struct
import sys
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

FILE_BYTES = 1 << 28  # of one file
PROCESSES, FILES = 512, 1024  # threads count as processes; the limit of a namespace is at least 301
_PID_MAX_IS_LOCAL = (6, 14)  # the kernel version since which each namespace has its own limit
RULES = tomllib.loads((Path(__file__).parent / "rules.toml").read_text())
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
# CUDA names its threads there when it starts, and fails if it cannot. Other files of /proc would change the machine.
_OWN_THREADS = "/proc/self/task"
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}  # number of rights by version; 16 in later versions
_SCOPES_SIGNALS = 6  # the version since which landlock keeps signals among the processes of a solution

_NEWEST = 450  # later system calls do not exist here either: the rules do not know them
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column above, number in seccomp


class Limits(msgspec.Struct, frozen=True):
    """Describes what a solution may use. Its process gets them before anything of the solution."""

    folders: tuple[str, ...] = ()  # where it may write
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


def _landlock(version: int, limits: Limits, *, proc: bool) -> bool:
    """Removes access to files. Returns whether that is done; `proc` leaves all of /proc readable."""
    if version < 1:
        return False
    every = (1 << _RIGHTS.get(version, 16)) - 1
    # files, and since later versions TCP and signals
    parts = (every, *[3] * (version >= 4), *[3] * (version >= _SCOPES_SIGNALS))
    ruleset = struct.pack(f"{len(parts)}Q", *parts)
    rules = _LIBC.syscall(_RULESET, ruleset, len(ruleset), 0)
    if rules < 0:
        return False
    reading = _EXECUTE | _READ | _LIST
    devices = [path for pattern in RULES["devices"] for path in glob.glob(pattern)]
    shown = ("/proc",) if proc else tuple(f"/proc/{name}" for name in RULES["proc"])
    allowed = dict.fromkeys((*limits.readable, *shown), reading)
    allowed |= dict.fromkeys(devices, reading | _WRITE | _IOCTL)
    allowed |= dict.fromkeys(limits.folders, every) | {_OWN_THREADS: reading | _WRITE | _TRUNCATE}
    for path, rights in allowed.items():
        with suppress(OSError):
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
            if not os.path.isdir(path):
                rights &= ~_LIST
            _LIBC.syscall(_RULE, rules, 1, struct.pack("=Qi", rights & every, opened), 0)
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
    for text, answer in (("refused", _REFUSE), ("ignored", _IGNORE), ("absent", _MISSING)):
        for words in _rows(text):
            if words[1 + column] != "-":
                program += [(_EQUAL, 0, 1, int(words[1 + column])), answer]
    checks = dict[int, list[_Step]]()
    for words in (*_rows("arguments"), *(() if signals else _rows("signals"))):
        checks.setdefault(int(words[1 + column]), []).extend(_checked(words[3:]))
    for number, steps in checks.items():
        program += [(_EQUAL, 0, len(steps) + 1, number), *steps, _ALLOW]
    program.append(_ALLOW)
    code = b"".join(struct.pack("HBBI", *each) for each in program)
    buffer = ctypes.create_string_buffer(code)
    held = struct.pack("HP", len(program), ctypes.addressof(buffer))
    return bool(_LIBC.prctl(_SECCOMP, 2, held, 0, 0) == 0)


def _rows(name: str) -> Iterator[list[str]]:
    return (row.split() for row in RULES[name].split(","))


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
    package = Path(__file__).parents[3]
    own = (sys.prefix, sys.base_prefix, *site.getsitepackages(), site.getusersitepackages(), package / "verify")
    added = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), os.environ.get("CUDA_HOME", "")]
    system = (path for pattern in RULES["system"] for path in glob.glob(pattern))
    found = dict.fromkeys((*system, *map(str, own), *(each for each in added if each and Path(each) != package)))
    return tuple(each for each in found if os.path.exists(each))
