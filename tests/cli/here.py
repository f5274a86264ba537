"""Commands in the process of the tests: what they print and return, without the start of a worker for each."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import tempfile
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from verify import worker


def hears_ctrl_c() -> None:
    """In a process before it starts: tests that a shell started in the background ignore Ctrl-C, and it would too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@dataclass
class Said:
    """What a command gave."""

    returncode: int
    stdout: str
    stderr: str


class Here:
    """A worker in this process: the same requests and answers, without the start of a process for each."""

    def __init__(self, backend: str | None = None) -> None:
        pass

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    alive = False

    def stop(self) -> None:
        pass

    def ask(self, request: dict[str, Any], *, timeout: float, progress: Any = None) -> dict[str, Any]:
        with tempfile.TemporaryFile() as answers, pytest.MonkeyPatch.context() as patch:
            line = json.dumps(request).encode() + b"\n"
            patch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(line)))
            worker.main([str(os.dup(answers.fileno()))])
            answers.seek(0)
            *events, answer = map(json.loads, answers.read().splitlines())
        for event in events if progress is not None else ():
            progress(event["progress"])
        return answer
