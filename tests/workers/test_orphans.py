"""A worker whose parent is killed ends too, whatever its kernel is doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from verify import worker

SLEEPS = """
import os, time
from pathlib import Path
import verify

@verify.kernel(op="silu", dtypes=["bfloat16"], gradients=False)
def sleeps(x):
    (Path(__file__).parent / "pid").write_text(str(os.getpid()))
    time.sleep(600)
"""

PARENT = """
import sys
from verify.measure.requests import Measure
from verify.workers.process import Worker
with Worker("interpreter") as worker:
    worker.ask(Measure(sys.argv[1]), timeout=600)
"""


def test_a_worker_does_not_outlive_its_parent(tmp_path: Path) -> None:
    target = tmp_path / "sleeps.py"
    target.write_text(SLEEPS)
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(target)])
    place = tmp_path / "pid"
    _until(lambda: place.exists() and place.read_text() != "", 120)
    worker = int(place.read_text())
    assert worker != parent.pid and alive(worker)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    _until(lambda: not alive(worker), 60)


def alive(pid: int) -> bool:
    """Whether a process is there and not merely waiting to be collected."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    os.kill(pid, 0)
    return state != "Z"


def _until(condition, seconds: float) -> None:  # type: ignore[no-untyped-def]
    for _ in range(int(seconds / 0.05)):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s")


def test_a_worker_that_fails_ends_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold its connection: the other side waited its whole deadline for a reply."""
    ended: list[str] = []

    class Answers:
        def __init__(self, *_: object) -> None: ...

        def begin(self) -> None: ...

        def end(self) -> None:
            ended.append("end")

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(worker, "Answerer", Answers)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    ours, theirs = os.pipe()
    with pytest.raises(RuntimeError, match="can't start new thread"):
        worker.main([str(ours)])
    assert ended == ["end"]
    os.close(theirs)
