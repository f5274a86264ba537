"""Starts `python -m verify` and its workers as forks of a process that has imported torch.

An import of torch and Triton takes 1.5 s of CPU. The fixture `warm` of conftest.py puts `Popen` in the place of
`subprocess.Popen` for the tests of a module. Tests of how a process starts do not use it.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import inspect
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import thread
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from verify import start
from verify.backends.backend import told_to_interpret, triton_interprets

_FORKS = multiprocessing.get_context("forkserver")
_MODULES = ("verify", "verify.worker", "verify.declare.sources", "pytest")
_ROOT = str(Path(__file__).parents[1])
_ABOVE = 512  # descriptors are moved above this number while those below it are closed
_KEPT: list[object] = []  # streams of the process that forked: another thread of it may have held their locks
_GIVEN = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]


class Popen(subprocess.Popen[Any]):
    """Runs `python -m verify` and `python -m pytest` in a fork, and every other command as `subprocess` does."""

    _fork: BaseProcess | None = None

    def _execute_child(self, *given: Any) -> None:
        asked = _GIVEN.bind(self, *given).arguments
        command = asked["args"]
        starts = ([sys.executable, "-m"], start.command("")[:-1])
        command = next((command[len(each) :] for each in starts if [*command[: len(each)]] == each), [""])
        ours = command[0] in _MODULES
        if not ours or ("interpreter" in command and not (told_to_interpret() or triton_interprets())):
            super()._execute_child(*given)  # type: ignore[misc]
            return
        ends = (asked["p2cread"], asked["c2pwrite"], asked["errwrite"])
        streams = {number: number if end == -1 else end for number, end in enumerate(ends)}
        with contextlib.ExitStack() as copies:
            descriptors = {
                number: copies.enter_context(Connection(os.dup(end)))  # multiprocessing sends it to the fork
                for number, end in (streams | {number: number for number in asked["pass_fds"]}).items()
            }
            folder, environment = os.fspath(asked["cwd"] or os.getcwd()), dict(asked["env"] or os.environ)
            first = [asked["preexec_fn"]] * callable(asked["preexec_fn"]) + [os.setsid] * asked["start_new_session"]
            started = (list(command), folder, environment, descriptors, first)
            if multiprocessing.parent_process() is None:
                self._fork = _begun(_become, *started)
                self.pid: int = self._fork.pid or 0
            elif not (pid := os.fork()):  # a command starts a worker
                _become(*started)
            else:
                self.pid = pid
        self._child_created = True
        self._close_pipe_fds(*(asked[end] for end in "p2cread p2cwrite c2pread c2pwrite errread errwrite".split()))  # type: ignore[attr-defined]

    def _internal_poll(self, **given: Any) -> int | None:
        if self._fork is None:
            return super()._internal_poll(**given)  # type: ignore[misc, no-any-return]
        if self.returncode is None:
            self.returncode = self._fork.exitcode
        return self.returncode

    def _try_wait(self, flags: int) -> tuple[int, int]:
        if self._fork is None:
            return super()._try_wait(flags)  # type: ignore[misc, no-any-return]
        self._fork.join(0 if flags & os.WNOHANG else None)
        code = self._fork.exitcode
        return (0, 0) if code is None else (self.pid, code << 8 if code >= 0 else -code)


def begin() -> None:
    """Starts the server, unless it runs."""
    forkserver.set_forkserver_preload(["tests.warm_imports"])
    with contextlib.chdir(_ROOT):  # from where the server imports it
        forkserver.ensure_running()


def program(text: str, **names: object) -> BaseProcess:
    """Starts a program in a fork. `names` are its first global variables."""
    return _begun(exec, text, names)


def printed(text: str, seconds: float = 60.0, **names: object) -> str:
    """Runs a program in a fork, in the root of the repository, and returns what it prints.

    It must end with exit code 0 in time, else it is killed.
    """
    with tempfile.TemporaryDirectory() as folder:
        streams = [f"sys.{name} = open({f'{folder}/{name}'!r}, 'w', buffering=1)\n" for name in ("stdout", "stderr")]
        process = program(f"import os, sys\nos.chdir({_ROOT!r})\n{''.join(streams)}{text}", **names)
        process.join(seconds)
        code = process.exitcode
        if code is None:
            process.kill()
        assert code == 0, f"exit code {code}: {Path(folder, 'stderr').read_text()}"
        return Path(folder, "stdout").read_text()


def _begun(target: Callable[..., object], *args: Any) -> BaseProcess:
    """Starts a fork. The end of a solution's process in a test kills the server, so another one may have to start."""
    process = _FORKS.Process(target=target, args=args)
    begin()
    try:
        process.start()
    except (EOFError, ConnectionError):  # it was being killed
        time.sleep(0.2)
        begin()
        process.start()
    return process


def _become(
    command: Sequence[str],
    folder: str,
    environment: Mapping[str, str],
    descriptors: Mapping[int, Connection],
    first: Sequence[Callable[[], object]],
) -> None:
    """Runs a module as `python -m` does, and ends the process."""
    code: Any = 1
    thread._threads_queues.clear()  # type: ignore[attr-defined]  # the fork has none of these threads, and may be of one
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]  # temporary folders of the process that forked stay
    try:
        moved = {number: fcntl.fcntl(end.fileno(), fcntl.F_DUPFD, _ABOVE) for number, end in descriptors.items()}
        os.closerange(0, _ABOVE)
        for number, end in moved.items():
            os.dup2(end, number)
            os.close(end)
        _KEPT.extend((sys.stdin, sys.stdout, sys.stderr))
        sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, errors="backslashreplace")  # noqa: SIM115
        for call in first:
            call()
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # as Python does when it starts
            signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = [command[0], *command[1:]]
        if moved := os.environ.pop(start.PATH, ""):
            os.environ["PYTHONPATH"] = moved
        sys.path[:0] = [folder, *filter(None, environment.get("PYTHONPATH", moved).split(os.pathsep))]
        for name in [each for each in sys.modules if each.split(".")[0] == "tests"]:
            del sys.modules[name]  # a project may have a package of this name
        subprocess.Popen = Popen  # type: ignore[misc]
        try:
            runpy.run_module(command[0], run_name="__main__", alter_sys=True)
            code = 0
        except SystemExit as ended:
            code = ended.code if ended.code is None or isinstance(ended.code, int) else _printed(ended.code)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(code or 0)


def _printed(message: object) -> int:
    print(message, file=sys.stderr)
    return 1
