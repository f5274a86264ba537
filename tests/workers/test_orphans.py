"""A worker whose parent is killed ends too, whatever its kernel is doing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests import warm
from verify import worker
from verify.workers import phases, process, process_tree
from verify.workers.requests import Died, Environment, Late

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
import subprocess
from tests import warm
from verify.measure.requests import Measure
from verify.workers.process import Worker
subprocess.Popen = warm.Popen
with Worker("interpreter") as worker:
    worker.ask(Measure(TARGET), timeout=600)
"""


def test_a_worker_does_not_outlive_its_parent(tmp_path: Path) -> None:
    target = tmp_path / "sleeps.py"
    target.write_text(SLEEPS)
    parent = warm.program(PARENT, TARGET=str(target))
    place = tmp_path / "pid"
    _until(lambda: place.exists() and place.read_text() != "", 120)
    worker = int(place.read_text())
    assert worker != parent.pid and alive(worker)
    parent.kill()
    parent.join()
    _until(lambda: not alive(worker), 60)


def test_workers_of_a_template_import_nothing_again_and_end_as_others_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a fork with a mark of its own, is started again after a stop, and does not outlive the template."""
    times = tmp_path / "times.txt"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(phases.VARIABLE, str(times))
        template = process.Template("interpreter")
        template.begin()
    workers = [process.Worker("interpreter", {"PLACE": str(place)}, template) for place in range(2)]
    try:
        for each in workers:
            assert each.ask(Environment(probed=None), timeout=60).backend == "interpreter"
        started = [_process_of(each) for each in workers]
        parents = {Path(f"/proc/{each.pid}/stat").read_text().rpartition(")")[2].split()[1] for each in started}
        assert parents == {str(template._process.pid)}  # type: ignore[union-attr]
        imports = [line for line in times.read_text().splitlines() if line.endswith("worker: import torch")]
        assert len(imports) == 3
        assert sum(float(line.split()[3]) > 0.2 for line in imports) == 1, "the template alone imports"
        for each, running in zip(workers, started, strict=True):
            assert running.pid in process_tree.living((), each._mark), "the mark finds it without its parent"
        workers[0].stop()
        assert not alive(started[0].pid) and started[0].returncode == -signal.SIGKILL and workers[1].alive
        assert workers[0].ask(Environment(probed=None), timeout=60).backend == "interpreter"
        os.kill(started[1].pid, signal.SIGKILL)
        _until(lambda: not workers[1].alive, 60)  # a request that meets a dead worker starts another one
        assert str(workers[1].died()) == str(Died.of(-signal.SIGKILL, who="judge"))
        again = _process_of(workers[0])
        template.stop()
        monkeypatch.setattr(subprocess, "Popen", warm.Popen)  # the next template imports nothing
        _until(lambda: not alive(again.pid), 60)
        assert workers[1].ask(Environment(probed=None), timeout=60).backend == "interpreter", "another template begins"
        assert not workers[0].alive and workers[1].alive
        monkeypatch.setattr(process, "START_SECONDS", 0.1)
        os.kill(template._process.pid, signal.SIGSTOP)  # type: ignore[union-attr]
        with pytest.raises(Late, match="no worker was started within 0.1 s; stopped"):
            workers[0].begin()
    finally:
        template.stop()


def _process_of(worker: process.Worker) -> process.ForkedProcess:
    assert isinstance(worker._process, process.ForkedProcess)
    return worker._process


def alive(pid: int) -> bool:
    """Whether a process is there and not merely waiting to be collected."""
    return bool(process_tree.living({pid}, ""))


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
    ours, theirs = socket.socketpair()
    with theirs, pytest.raises(RuntimeError, match="can't start new thread"):
        worker.main([str(ours.detach())])
    assert ended == ["end"]
