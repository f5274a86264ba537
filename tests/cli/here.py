"""Commands in the process of the tests: what they print and return, without the start of a worker for each."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from verify import backends, worker
from verify.cli import main
from verify.measure import session  # noqa: F401  (before another class is in the place of Worker)
from verify.workers import calls, process
from verify.workers.requests import Event, Failed, Progressed, R, Replied, Request


def hears_ctrl_c() -> None:
    """In a process before it starts: tests that a shell started in the background ignore Ctrl-C, and it would too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def started(command: list[str], folder: Path, **more: Any) -> subprocess.Popen[str]:
    """Starts a command in a process that hears Ctrl-C, as a session of its own."""
    return subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=hears_ctrl_c,
        **more,
    )


@dataclass
class Said:
    """What a command gave."""

    returncode: int
    stdout: str
    stderr: str


_WORKER = process.Worker
_COMPILES = backends.select().name != "interpreter"
#: Commands ask from several threads.
_ONE_AT_A_TIME = threading.Lock()


class Here:
    """A worker in this process: the same requests and answers, without the start of a process for each."""

    def __new__(cls, backend: str | None = None, *given: Any, **named: Any) -> Any:
        """Returns a worker's process for the interpreter if Triton compiles in this one."""
        if backend == "interpreter" and _COMPILES:
            return _WORKER(backend, *given, **named)
        return super().__new__(cls)

    def __init__(self, backend: str | None = None, environment: Any = None, template: Any = None) -> None:
        self.backend = backend

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    alive = False

    def begin(self, ahead: Any = None) -> None:
        """Nothing has to start."""

    def stop(self) -> None:
        pass

    def ask(self, request: Request[R], *, timeout: float, progress: Any = lambda text: None) -> R:
        events: list[Event] = []
        with _ONE_AT_A_TIME, pytest.MonkeyPatch.context() as patch:
            patch.setattr(backends, "_ACTIVE", [])  # later tests of this process named no backend
            if self.backend == "cpu":  # Triton of this process interprets; the backend needs none
                patch.delenv("TRITON_INTERPRET", raising=False)
            here, asked = worker.Answerer(self.backend), msgspec.json.encode(request)
            calls.answer(asked, lambda event, parts=(): events.append(event), here.respond, here.usable)
        *told, answer = events
        for event in told if progress is not None else ():
            assert isinstance(event, Progressed)
            progress(event.step)
        if isinstance(answer, Failed):
            raise answer.failure.error()
        assert isinstance(answer, Replied)
        return request.read(answer.reply)


def said(*arguments: str, cwd: Path) -> Said:
    """What a command says that is run in this process, in a folder; module fixtures can call it too."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.chdir(cwd)
        patch.setattr(process, "Worker", Here)
        worker._environment_of.cache_clear()  # it names the commit of the folder
        try:
            code = main(list(arguments))
        except SystemExit as stopped:  # of the parser of options
            code = int(str(stopped.code))
    return Said(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))  # type: ignore[attr-defined]


def as_process(*arguments: str, cwd: Path, without: Sequence[str] = (), **variables: str) -> Said:
    """What a command says as a process of its own, with other variables, and `without` some of this process."""
    command = [sys.executable, "-m", "verify", *arguments]
    env = {name: value for name, value in os.environ.items() if name not in without} | variables
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300)
    return Said(done.returncode, done.stdout, done.stderr)
