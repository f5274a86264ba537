"""Nothing of a table of ways out of a solution's process works, and what honest solutions do works.

Each row of PROBES is a line of Python in the process of a solution. It must raise OSError, or return what beside it is.
The walls: with namespaces and in a container like Docker's, as root and as a user, as far as this machine allows each.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.referee import denied
from tests.referee.samples import solution, written
from tests.referee.test_hostile import RIGHT, SMALL
from verify import start
from verify.errors import KernelError
from verify.measure.tensors import form_of, view_of
from verify.referee.host import SolutionProcess
from verify.referee.messages import Build, Call, Entry
from verify.referee.plan import RUNNER
from verify.workers import process_tree
from verify.workers.sandbox import confine, starter

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="the numbers of system calls below are of x86_64"
)
WALLS = {"namespaces": "", "container": "docker", "user": "user", "user in a container": "user docker"}
MIB = 1 << 20
SECRET = "hunter2-a-secret-of-the-host"
HEAD = """
import ctypes, fcntl, mmap, os, resource, signal, socket, struct, subprocess, sys, tempfile, threading, time
import torch
libc = ctypes.CDLL(None, use_errno=True)
def call(*given):
    '''Calls the kernel. Raises OSError as Python's own functions do.'''
    found = libc.syscall(*given)
    if found < 0:
        raise OSError(ctypes.get_errno(), 'refused')
    return found
def sent(kind, address, family=socket.AF_UNIX):
    end = socket.socket(family, kind)
    end.connect(address)
    end.sendall(b'do this for me')
    return end.recv(99)
def datagram(address):
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    return a.sendto(b'do this for me', address)
def read(path):
    return open(path, 'rb').read(99)
def in_memory(first, second):
    own = open('/proc/self/mem', 'rb', 0)
    for line in open('/proc/self/maps'):
        where, rights = line.split()[:2]
        low, high = (int(each, 16) for each in where.split('-'))
        if rights[0] == 'r' and not ('.so' in line or '[v' in line) and high - low < 1 << 28:
            try:
                own.seek(low)
                data = own.read(high - low)
                place = data.find(first)
                while place >= 0:
                    if data[place + len(first) :].startswith(second):
                        return True
                    place = data.find(first, place + 1)
            except OSError:
                pass
    return False
def through_link(path):
    os.symlink(path, 'link')
    return read('link')
def own(target):
    end = socket.socketpair()[0]
    fcntl.fcntl(end, fcntl.F_SETOWN, target)
def peek(pid):
    piece = ctypes.create_string_buffer(8)
    class Vector(ctypes.Structure):
        _fields_ = (('base', ctypes.c_void_p), ('size', ctypes.c_size_t))
    one = Vector(ctypes.addressof(piece), 8)
    return call(310, pid, ctypes.byref(one), 1, ctypes.byref(one), 1, 0)
def open_files():
    paths = [f'/proc/self/fd/{each}' for each in os.listdir('/proc/self/fd')]
    return sorted({os.readlink(each).split(':')[0].split('/proc')[0] for each in paths if os.path.exists(each)})
def opened(*paths):
    found = []
    for path in paths:
        for mode in ('rb', 'ab'):
            try:
                open(path, mode).close()
                found.append(path + ' ' + mode)
            except OSError:
                pass
    return found
def of_a_child():
    child = subprocess.Popen(['sleep', '60'])
    child.kill()
    return child.wait()
"""
REFUSED = "OSError"
# ways out: outside.txt, home/secret, home/socket and a victim are of the host
PROBES: dict[str, tuple[str, Any]] = {
    # files
    "reads a secret": ("read(HOME + '/secret')", REFUSED),
    "lists a folder of the user": ("os.listdir(HOME)", REFUSED),
    "lists the folder above": ("os.listdir('..')", REFUSED),
    "reads through a link": ("through_link(HOME + '/secret')", REFUSED),
    "reads the hashes of passwords": ("read('/etc/shadow')", REFUSED),
    "writes a file": ("open(HOME + '/new', 'w')", REFUSED),
    "appends to a file": ("open(HOME + '/secret', 'a')", REFUSED),
    "writes into a package": ("open(os.path.dirname(torch.__file__) + '/new.py', 'w')", REFUSED),
    "cuts a file off": ("os.truncate(HOME + '/secret', 0)", REFUSED),
    "deletes a file": ("os.unlink(HOME + '/secret')", REFUSED),
    "moves a file here": ("os.rename(HOME + '/secret', 'mine')", REFUSED),
    "links a file here": ("os.link(HOME + '/secret', 'mine')", REFUSED),
    "makes a folder": ("os.mkdir(HOME + '/new')", REFUSED),
    "marks a file": ("os.setxattr(HOME + '/secret', 'user.mine', b'1')", REFUSED),
    "opens the folder's rights": ("os.chmod(HOME, 0o777)", None),
    "takes a file's rights": ("os.chmod(HOME + '/secret', 0)", None),
    "gives a file away": ("os.chown(HOME + '/secret', 1, 1)", None),
    "changes a file's time": ("os.utime(HOME + '/secret', (1, 1))", None),
    "lists temporary files": ("os.listdir('/tmp')", REFUSED),
    "writes to shared memory": ("open('/dev/shm/mine', 'w')", REFUSED),
    "makes a device": ("os.mknod('disk', 0o60600, os.makedev(254, 0))", REFUSED),
    "opens a disk": (
        "opened('/dev/vda', '/dev/sda', '/dev/nvme0n1', '/dev/dm-0', '/dev/loop0', '/dev/loop-control')",
        [],
    ),
    "opens the memory of the machine": (
        "opened('/dev/mem', '/dev/kmsg', '/dev/port', '/proc/kcore', '/proc/kmsg')",
        [],
    ),
    "makes a virtual machine or a network": ("opened('/dev/kvm', '/dev/net/tun', '/dev/fuse', '/dev/vhost-net')", []),
    "types and clicks": (
        "opened('/dev/uinput', '/dev/tty', '/dev/console', '/dev/input/event0', '/dev/snd/timer')",
        [],
    ),
    "wakes the machine": ("opened('/dev/rtc0', '/dev/watchdog', '/dev/hpet', '/dev/cpu/0/msr')", []),
    "opens a terminal": ("open('/dev/ptmx')", REFUSED),
    "watches files": ("call(294, 0)", REFUSED),
    "opens by a handle": ("call(304, -100, None, 0)", REFUSED),
    "changes the root": ("os.chroot('.')", REFUSED),
    "has files of its parent": ("open_files()", ["", "/dev/null", "socket"]),
    # memory
    "raises its limit of memory": ("call(160, 2, struct.pack('QQ', 1 << 50, 1 << 50))", REFUSED),
    "leaves its group": ("opened('/sys/fs/cgroup/cgroup.procs', '/sys/fs/cgroup/memory/cgroup.procs')[1::2]", []),
    "is never ended": ("open('/proc/self/oom_score_adj', 'w')", REFUSED),
    "hides memory": ("call(447, 0)", REFUSED),
    "moves memory of the machine to a disk": ("call(168, b'/dev/vda')", REFUSED),
    "drops the caches of the machine": ("open('/proc/sys/vm/drop_caches', 'w')", REFUSED),
    # the environment
    "reads variables of its start": (f"{SECRET.encode()!r} in read('/proc/self/environ')", False),
    "reads variables of Python": (f"{SECRET!r} in str(dict(os.environ))", False),
    "reads variables of its parent": ("read(f'/proc/{os.getppid()}/environ')", REFUSED),
    "finds a secret in its memory": ("in_memory(b'A_SECRET', b'_TOKEN')", False),
    # sockets
    "connects to a path": ("sent(socket.SOCK_STREAM, HOME + '/socket')", REFUSED),
    "sends to a path": ("datagram(HOME + '/datagrams')", REFUSED),
    "connects to a name": ("sent(socket.SOCK_STREAM, '\\0' + NAME)", REFUSED),
    "connects by TCP": ("sent(socket.SOCK_STREAM, ('127.0.0.1', PORT), socket.AF_INET)", REFUSED),
    "sends by UDP": ("socket.socket(socket.AF_INET, socket.SOCK_DGRAM)", REFUSED),
    "listens by TCP": ("socket.socket(socket.AF_INET).bind(('127.0.0.1', 0))", REFUSED),
    "sends packets": ("socket.socket(socket.AF_PACKET, socket.SOCK_RAW)", REFUSED),
    "uses a radio": ("socket.socket(31, socket.SOCK_RAW, 1)", REFUSED),
    "sends by IPv6": ("socket.socket(socket.AF_INET6)", REFUSED),
    "asks the kernel": ("socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)", REFUSED),
    "uses the kernel's ciphers": ("socket.socket(38, socket.SOCK_SEQPACKET)", REFUSED),
    "calls the host of the machine": ("socket.socket(40, socket.SOCK_STREAM)", REFUSED),
    "listens at a path": ("socket.socket(socket.AF_UNIX).bind(HOME + '/mine')", REFUSED),
    # processes
    "kills": ("os.kill(VICTIM, 9)", REFUSED),
    "kills a thread": ("call(200, VICTIM, 9)", REFUSED),
    "kills a thread of a group": ("call(234, VICTIM, VICTIM, 9)", REFUSED),
    "queues a signal": ("call(129, VICTIM, 9, struct.pack('iiiiq', 9, 0, -1, 0, 0) + bytes(104))", REFUSED),
    "has the kernel send signals": ("own(VICTIM)", REFUSED),
    "traces": ("call(101, 16, VICTIM, 0, 0)", REFUSED),
    "reads memory": ("peek(VICTIM)", REFUSED),
    "reads memory as a file": ("open(f'/proc/{VICTIM}/mem', 'rb')", REFUSED),
    "reads variables": ("read(f'/proc/{VICTIM}/environ')", REFUSED),
    "reads the command": ("read(f'/proc/{VICTIM}/cmdline')", REFUSED),
    "uses the files of another": ("os.listdir(f'/proc/{VICTIM}/fd')", REFUSED),
    "uses the root of another": ("os.listdir(f'/proc/{VICTIM}/root/')", REFUSED),
    "takes a handle": ("os.pidfd_open(VICTIM)", REFUSED),
    "slows": ("os.setpriority(os.PRIO_PROCESS, VICTIM, 19)", REFUSED),
    "slows its user": ("os.setpriority(os.PRIO_USER, 0, 19)", REFUSED),
    "moves to another core": ("os.sched_setaffinity(VICTIM, {0})", REFUSED),
    "schedules": ("os.sched_setscheduler(VICTIM, os.SCHED_IDLE, os.sched_param(0))", REFUSED),
    "limits": ("resource.prlimit(VICTIM, resource.RLIMIT_NOFILE, (9, 9))", REFUSED),
    "slows the disk of another": ("call(251, 1, VICTIM, 3 << 13)", REFUSED),
    "moves its pages": ("call(256, VICTIM, 0, None, None)", REFUSED),
    # what processes share
    "makes shared memory": ("call(29, 4711, 4096, 0o1666)", REFUSED),
    "attaches shared memory": ("call(30, 0, None, 0)", REFUSED),
    "makes a semaphore": ("call(64, 4711, 1, 0o1666)", REFUSED),
    "makes a queue": ("call(68, 4711, 0o1666)", REFUSED),
    "opens a queue": ("call(240, b'mine', 0o102, 0o600, None)", REFUSED),
    "adds a key": ("call(248, b'user', b'mine', b'1', 1, -3)", REFUSED),
    "asks for a key": ("call(249, b'user', b'mine', None, -3)", REFUSED),
    "lists keys": ("call(250, 0, -3, 0)", REFUSED),
    # the kernel
    "makes namespaces": ("call(272, 0x10000000)", REFUSED),
    "makes a child with namespaces": ("call(56, 0x10000011, None, None, None, None)", REFUSED),
    "makes a child by the newer call": ("call(435, bytes(64), 64)", REFUSED),
    "enters namespaces": ("call(308, 0, 0)", REFUSED),
    "mounts": ("call(165, b'none', b'.', b'tmpfs', 0, None)", REFUSED),
    "mounts by newer calls": ("call(430, b'tmpfs', 0)", REFUSED),
    "clones a tree": ("call(428, -100, b'/', 1)", REFUSED),
    "loads a program into the kernel": ("call(321, 0, None, 0)", REFUSED),
    "counts events": ("call(298, None, 0, -1, -1, 0)", REFUSED),
    "handles faults": ("call(323, 0)", REFUSED),
    "queues calls": ("call(425, 1, bytes(120))", REFUSED),
    # time
    "sets the time": ("time.clock_settime(time.CLOCK_REALTIME, 1)", REFUSED),
    "sets the time by the older call": ("call(164, bytes(16), None)", REFUSED),
    "makes the time run slower": ("call(159, bytes(208))", REFUSED),
    "runs before all others": ("os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))", REFUSED),
    "raises its priority": ("os.nice(-5)", REFUSED),
    "names the machine": ("socket.sethostname('mine')", REFUSED),
    "reads the log": ("call(103, 3, None, 0)", REFUSED),
    "writes to /proc": ("open('/proc/sys/kernel/core_pattern', 'w')", REFUSED),
    "becomes another user": ("os.setuid(12345)", REFUSED),
    "calls what does not exist yet": ("call(469, 0)", REFUSED),
}
# what honest solutions do
HONEST: dict[str, tuple[str, Any]] = {
    "writes here": ("open('a.txt', 'w').write('ab')", 2),
    "makes temporary files": ("tempfile.NamedTemporaryFile().write(b'ab')", 2),
    "makes a file executable": ("open('b', 'w').close() or os.chmod('b', 0o755)", None),
    "moves a file": ("os.rename('a.txt', 'c.txt')", None),
    "has a pair of sockets": ("len(socket.socketpair())", 2),
    "sends through a pair": ("(lambda pair: pair[0].send(b'ab'))(socket.socketpair())", 2),
    "binds a name, as CUDA does": ("socket.socket(socket.AF_UNIX).bind('\\0mine')", None),
    "has a pipe": ("len(os.pipe())", 2),
    "starts a program": ("subprocess.run(['true']).returncode", 0),
    "starts a compiler's steps": ("subprocess.run('echo 1 | cat > d', shell=True).returncode", 0),
    "forks": ("os.waitpid(os.fork() or os._exit(7), 0)[1] >> 8", 7),
    "has threads": ("threading.Thread(target=print).start()", None),
    "reads its limits": ("resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 0", True),
    "lowers its limits": ("resource.setrlimit(resource.RLIMIT_CORE, (0, 0))", None),
    "chooses its cores": ("os.sched_setaffinity(0, os.sched_getaffinity(0))", None),
    "reads about the machine": ("'MemTotal' in open('/proc/meminfo').read()", True),
    "reads about itself": ("'Name' in open('/proc/self/status').read()", True),
    "names its thread": ("open(f'/proc/self/task/{threading.get_native_id()}/comm', 'w').write('mine')", 4),
    "imports": ("__import__('xml.dom').__name__", "xml"),
    "shares memory with its children": ("mmap.mmap(-1, 4096).write(b'ab')", 2),
    "signals itself": ("os.kill(os.getpid(), signal.SIGCHLD)", None),
    "has a compiler's folder": ("os.path.isdir(os.environ['TORCH_EXTENSIONS_DIR'])", True),
    "knows a user": ("os.environ['USER']", "user"),
    "writes to nothing": ("open('/dev/null', 'w').write('a')", 1),
    "reads random bytes": ("len(open('/dev/urandom', 'rb').read(4))", 4),
    "fills new memory": ("set(torch.empty(1000, dtype=torch.uint8).tolist())", {confine.NEVER_WRITTEN}),
    "has memory": ("len(bytearray(64 << 20))", 64 << 20),
}
RUNS = """
found = {}
for name, text in PROBES.items():
    try:
        found[name] = eval(text)
    except OSError:
        found[name] = 'OSError'
    except BaseException as error:
        found[name] = repr(error)
import json
plain = lambda each: sorted(each) if isinstance(each, set) else repr(each)
open('found.json', 'w').write(json.dumps(found, default=plain))
def solve(x):
    return x
"""


@dataclass
class Wall:
    """A starter behind a wall."""

    address: str
    user: bool
    folder: Path

    def process(self, name: str, text: str, memory: int = 256 * MIB) -> SolutionProcess:
        """Starts a solution in a folder of its own."""
        place = self.folder / name
        place.mkdir()
        (place / "solution.py").write_text(text)
        if self.user:
            os.chown(place, denied.NOBODY, denied.NOBODY)
        limits = confine.Limits((str(place),), confine.folders_to_read(), memory, starter.variables())
        return SolutionProcess(self.address, limits)


@pytest.fixture(scope="module", params=WALLS)
def wall(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wall]:
    words = WALLS[request.param].split()
    if "user" in words and (os.getuid() or not _readable_by_all(Path(sys.executable))):
        pytest.skip("only root can give up root, and a user must be able to read Python")
    folder = Path(tempfile.mkdtemp())  # the folders of pytest are closed to other users
    folder.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("A_SECRET_TOKEN", SECRET)
        plain = start.command
        prefix = [sys.executable, denied.__file__, *words, "--"]
        patch.setattr(start, "command", lambda *given: [*(prefix if words else []), *plain(*given)])
        running = starter.begin(RUNNER, "cpu")
    made = Wall(running[1], "user" in words, folder)
    try:
        process = made.process("first", "")
        confined = process.confined()
        process.stop()
        if confined.open:
            pytest.skip(f"this kernel has no {', '.join(confined.open)}")
        if "docker" in words:
            assert confined.lacks == ("no namespaces: the other limits are the only wall",)
        yield made
    finally:
        starter.end(*running)
        shutil.rmtree(folder, ignore_errors=True)


def _readable_by_all(path: Path) -> bool:
    given, real = path.absolute(), path.resolve()
    return all(each.stat().st_mode & 0o005 == 0o005 for each in (given, *given.parents, real, *real.parents))


def asked(process: SolutionProcess, seconds: float = 60.0) -> Any:
    """Builds a solution and calls it once."""
    x = torch.arange(3.0)
    entry = Entry(("solve",), {"tuple": [{"tensor": "x"}]})
    process.ask(Build("solution.py", entry, "cpu"), (), seconds)
    return process.ask(Call(7, (form_of("x", x),)), [view_of(x)], seconds, lambda size: 24)


@pytest.fixture(scope="module")
def found(wall: Wall) -> dict[str, Any]:
    """Returns what each probe gave. Sockets, files and a process of the host are within reach of a user."""
    home = wall.folder / "home"
    home.mkdir(mode=0o777)
    (home / "secret").write_text("a key")
    ends = {each: socket.socket(*kind) for each, kind in _SERVERS.items()}
    ends["path"].bind(str(home / "socket"))
    ends["datagrams"].bind(str(home / "datagrams"))
    name = f"verify-test-{os.getpid()}-{wall.folder.name}"
    ends["name"].bind(f"\0{name}")
    ends["tcp"].bind(("127.0.0.1", 0))
    for each in ("path", "name", "tcp"):
        ends[each].listen(4)
    for each in home.iterdir():
        each.chmod(0o666)
    home.chmod(0o755)
    same = {"user": denied.NOBODY, "group": denied.NOBODY} if wall.user else {}
    victim = subprocess.Popen(["sleep", "600"], env=os.environ | {"A_SECRET_TOKEN": SECRET}, **same)  # type: ignore[call-overload]
    before = _of(victim.pid), os.stat(home / "secret"), os.stat(home)
    names = {"HOME": str(home), "VICTIM": victim.pid, "NAME": name, "PORT": ends["tcp"].getsockname()[1]}
    rows = {name: text for name, (text, _) in (PROBES | HONEST).items()}
    text = HEAD + "".join(f"{key} = {value!r}\n" for key, value in {**names, "PROBES": rows}.items()) + RUNS
    process = wall.process("probes", text)
    try:
        asked(process)
        assert victim.poll() is None and _of(victim.pid) == before[0], "the victim is as it was"
        for path, was in ((home / "secret", before[1]), (home, before[2])):
            now = os.stat(path)
            assert (now.st_mode, now.st_uid, now.st_size, now.st_mtime) == (
                was.st_mode,
                was.st_uid,
                was.st_size,
                was.st_mtime,
            ), path
        assert {each.name for each in home.iterdir()} == {"secret", "socket", "datagrams"}
        ends["datagrams"].setblocking(False)
        with pytest.raises(BlockingIOError):
            ends["datagrams"].recv(9)
        return dict(json.loads((wall.folder / "probes" / "found.json").read_text()))
    finally:
        process.stop()
        victim.kill()
        victim.wait()
        for end in ends.values():
            end.close()


_SERVERS: dict[str, tuple[int, ...]] = {
    "path": (socket.AF_UNIX, socket.SOCK_STREAM),
    "datagrams": (socket.AF_UNIX, socket.SOCK_DGRAM),
    "name": (socket.AF_UNIX, socket.SOCK_STREAM),
    "tcp": (socket.AF_INET, socket.SOCK_STREAM),
}


def _of(pid: int) -> tuple[Any, ...]:
    limits = Path(f"/proc/{pid}/limits").read_text()
    return os.getpriority(os.PRIO_PROCESS, pid), os.sched_getaffinity(pid), os.sched_getscheduler(pid), limits


def test_every_way_out_is_closed_and_an_honest_solution_works(found: dict[str, Any]) -> None:
    rows = {name: sorted(each) if isinstance(each, set) else each for name, (_, each) in (PROBES | HONEST).items()}
    assert found.keys() == rows.keys()
    assert {name: each for name, each in found.items() if each != rows[name]} == {}


FORGED = """import verify.referee.runner as r
from verify.measure.requests import Lent
r.announced = lambda *a: ((r.Form('0', 'torch.float32', {}),), [])
return x"""
GREEDY = {
    "private memory": ("kept = bytearray(1 << 30)", "MemoryError"),
    "shared memory": (
        "m = mmap.mmap(-1, 2 << 30)\nfor i in range(2048): m[i << 20:i + 1 << 20] = bytes(1 << 20)",
        "memory",
    ),
    "memory of children": (
        "for _ in range(8):\n    if not os.fork(): kept = b'1' * (200 << 20); time.sleep(60)\ntime.sleep(60)",
        "memory",
    ),
    "files without a name": (
        "k = []\nwhile 1:\n    k.append(os.memfd_create('x'))\n    for _ in range(60): os.write(k[-1], bytes(4 << 20))",
        "MiB of files|MiB of memory",
    ),
    "large files": ("for i in range(9): open(f'{i}', 'wb').write(bytes(250 << 20))", "MiB of files|no answer within"),
    "a larger file": ("open('a', 'wb').truncate(1 << 30)", "OSError"),
    "many files": ("for i in range(10**6): os.mkdir(f'{i}')", "files"),
    "deep folders": ("for _ in range(3000): os.mkdir('a'); os.chdir('a')\ntime.sleep(60)", "deeper"),
    "processes": ("while True:\n    if not os.fork(): time.sleep(60)", "processes|BlockingIOError|no answer within"),
    "time": ("while True: pass", "gave no answer within"),
    "sleep": ("time.sleep(600)", "gave no answer within"),
    "exit": ("os._exit(3)", "ended with exit code 3"),
    "a crash": ("ctypes.string_at(0)", "died of SIGSEGV"),
    "half a message": (
        "for fd in range(3, 64):\n    try: os.write(fd, b'\\0\\0\\3\\xe8{')\n    except OSError: pass\ntime.sleep(600)",
        "gave no answer within",
    ),
    "another message": (
        "for fd in range(3, 64):\n    try: os.write(fd, b'\\x7f\\0\\0\\0{')\n    except OSError: pass\ntime.sleep(600)",
        "wrote into the connection",
    ),
    "a large answer": ("return torch.zeros(25_000_000)", "answered with 100,000,000 bytes; an answer has 24"),
    "no shape": (FORGED.format("(-1,)"), "wrote into the connection"),
    "memory that is not lent": (FORGED.format("(6,), Lent(b'0' * 64, 0)"), "wrote into the connection"),
}
SECONDS = 8.0


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in GREEDY])
def test_what_a_solution_takes_is_limited(wall: Wall, name: str) -> None:
    """Its own process ends, within the limit of a call and a little, with the reason; nothing of it is left."""
    body, reason = GREEDY[name]
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    process = wall.process(name.replace(" ", "_"), f"{HEAD}\ndef solve(x):\n{lines}    return x\n", memory=512 * MIB)
    process.confined()
    supervisor, began = process.pid, time.monotonic()
    try:
        asked(process, SECONDS)
        said = ""
    except KernelError as error:
        said = str(error)
    taken = time.monotonic() - began
    process.stop()
    assert any(each in said for each in reason.split("|")), said
    assert taken < 2 * SECONDS + 5
    assert not process_tree.living({supervisor}, "")
    starter.folders.remove(str(wall.folder / name.replace(" ", "_")))
    assert not (wall.folder / name.replace(" ", "_")).exists()


def test_when_the_judge_is_gone_the_solution_ends(wall: Wall) -> None:
    """Also what it started in a session of its own."""
    daemon = "import os, time\nif not os.fork():\n    os.setsid()\n    os.fork() or time.sleep(600)\n    os._exit(0)\n"
    process = wall.process("daemon", daemon + "def solve(x):\n    return x\n")
    asked(process)
    pids = process_tree.living({process.pid}, "")
    assert len(pids) >= 3
    process._control.close()  # what the end of the judge's process does
    until = time.monotonic() + process_tree.END_SECONDS
    while left := {each for each in pids if process_tree.living({each}, "")}:
        assert time.monotonic() < until, left
        time.sleep(0.05)


@pytest.mark.skipif(not Path("/proc/self/ns").exists(), reason="needs Linux")
def test_without_landlock_the_process_says_so_before_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = start.command
    prefix = [sys.executable, denied.__file__, "docker", "landlock", "--"]
    monkeypatch.setattr(start, "command", lambda *given: [*prefix, *plain(*given)])
    running = starter.begin(RUNNER, "cpu")
    try:
        process = SolutionProcess(running[1], confine.Limits((str(tmp_path),), confine.folders_to_read()))
        assert process.confined().open == ("writes into its own folders alone, reads no file of a user",)
        process.stop()
    finally:
        starter.end(*running)


@pytest.mark.parametrize("option", ["", "--allow-weaker"])
def test_without_landlock_nothing_is_imported_unless_that_is_typed(option: str, tmp_path: Path) -> None:
    """The exit code says so in both cases, and the answer says what did not hold."""
    (marks := tmp_path / "marks").mkdir()
    mark = f"import os, tempfile\ntempfile.mkstemp(dir={str(marks)!r})\n"
    paths = written(tmp_path, problem=SMALL, right=solution(RIGHT, before=mark))
    answer = tmp_path / "found.json"
    judge = ["-P", "-m", "verify", "judge", str(paths["problem"]), str(paths["right"]), "--json", str(answer)]
    command = [sys.executable, denied.__file__, "docker", "landlock", "--", sys.executable, *judge, "--backend", "cpu"]
    plain = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([*command, *filter(None, [option])], capture_output=True, text=True, cwd="/", env=plain)
    assert done.returncode == 3, done.stdout + done.stderr
    found = json.loads(answer.read_text())
    assert bool(list(marks.iterdir())) == bool(option)
    lacking = "writes into its own folders alone, reads no file of a user"
    if option:
        assert (found["verdict"], found["given_up"]) == ("accepted", [lacking])
    else:
        assert found["verdict"] == "undecided" and lacking in found["message"]


def test_a_starter_ends_with_its_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (long := tmp_path / ("a" * 99)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))  # no socket has so long a path
    running = starter.begin(RUNNER, "cpu")
    process, place = running
    assert process.stdin is not None
    process.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(60)
    assert process.returncode == 0 and not Path(place).exists() and not Path(place).parent.exists()
    starter.end(*running)
