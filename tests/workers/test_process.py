"""Requests and events on a pipe: what is no event of the request is ignored, failures are exceptions of their kind."""

from __future__ import annotations

import io
import itertools
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from verify import worker as worker_side
from verify.backends import Backend
from verify.errors import InternalError, JudgeFailed, KernelError, TruthError, UsageError
from verify.measure import session
from verify.measure.requests import Measure
from verify.workers import family, process
from verify.workers.process import Worker, ask_about
from verify.workers.requests import (
    CountGpus,
    Event,
    Failed,
    Failure,
    Numbered,
    Progress,
    Reply,
    Request,
    WorkerDied,
    WorkerTimeout,
    kind_of,
)

TALKS = """
import os, sys
def say(text):
    os.write(int(sys.argv[1]), text.encode() + b"\\n")
for line in sys.stdin:
    {body}
"""


@pytest.fixture
def talking(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    """A worker whose process answers a line with what the body of a loop says."""
    popen = process.subprocess.Popen

    def start(body: str) -> Worker:
        path = tmp_path / "talks.py"
        path.write_text(TALKS.replace("{body}", body))

        def talks(command: list[str], **options: Any) -> Any:
            return popen([command[0], str(path), *command[3:]], **options)

        monkeypatch.setattr(process.subprocess, "Popen", talks)
        monkeypatch.setattr(process, "new_number", itertools.count(1).__next__)
        return Worker()

    return start


def test_what_is_no_event_of_the_request_is_no_answer(talking: Any, capsys: pytest.CaptureFixture[str]) -> None:
    body = """say("what a kernel printed"); say("")
    say('{"event":"reply","id":99,"reply":5}'); say('{"event":"x","id":1}')
    say('{"event":"progress","id":1,"text":"half"}'); say('{"event":"progress","id":99,"text":"no"}')
    say('{"event":"reply","id":1,"reply":7}')"""
    heard: list[str] = []
    with talking(body) as worker:
        assert worker.ask(CountGpus(), timeout=20, progress=heard.append) == 7
        assert worker.ignored == 4 and heard == ["half"]
    said = capsys.readouterr().err
    assert "verify: ignored a line on a worker's pipe (1 so far): it is no event" in said
    assert "(2 so far): it is of another request" in said


def test_what_comes_of_a_request_that_was_sent_ahead_is_dropped(
    talking: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    body = """number = line.split(",")[0].split(":")[1]
    say('{"event":"progress","id":%s,"text":"on it"}' % number)
    say('{"event":"reply","id":%s,"reply":%s}' % (number, number))"""
    heard: list[str] = []
    with talking(body) as worker:
        worker.begin(CountGpus())
        assert worker.ask(CountGpus(), timeout=20, progress=heard.append) == 2
        worker.begin(CountGpus())  # nothing new where there is a process
        assert worker.ask(CountGpus(), timeout=20) == 3
    assert heard == ["on it"] and worker.ignored == 0 and not capsys.readouterr().err


def test_a_reply_of_another_type_is_an_error_of_the_harness(talking: Any) -> None:
    text = "the reply to the request 'gpus' is no reply to it: Expected `int`"
    with (
        talking("""say('{"event":"reply","id":1,"reply":"many"}')""") as worker,
        pytest.raises(InternalError, match=text),
    ):
        worker.ask(CountGpus(), timeout=20)


def test_a_process_that_is_not_usable_is_replaced(talking: Any) -> None:
    """Such as one whose CUDA context an illegal access has poisoned."""
    body = """failure = '{"kind":"kernel","text":"illegal access"}'
    say('{"event":"failed","id":%s,"failure":%s,"usable":false}' % (line[6], failure))"""
    with talking(body) as worker:
        for _ in range(2):
            with pytest.raises(KernelError, match="illegal access"):
                worker.ask(CountGpus(), timeout=20)
            assert not worker.alive
    with talking("""say('{"event":"reply","id":%s,"reply":1}' % line[6])""") as worker:
        assert [worker.ask(CountGpus(), timeout=20) for _ in range(2)] == [1, 1]
        assert worker.alive


@pytest.mark.parametrize(
    "error",
    [
        UsageError("rule", hint="next"),
        UsageError("rule"),
        TruthError("routes"),
        KernelError("raised"),
        InternalError("ValueError: x"),
        JudgeFailed("died"),
        WorkerDied("SIGSEGV"),
        WorkerDied("SIGSEGV", judges=True),
        WorkerTimeout("late"),
        WorkerTimeout("late", judges=True),
    ],
)
def test_a_failure_is_the_same_exception_on_the_side_that_asks(error: Exception) -> None:
    sent = msgspec.json.decode(msgspec.json.encode(Failure.of(error)), type=Failure).error()
    assert type(sent) is type(error) and str(sent) == str(error)
    assert getattr(sent, "hint", None) == getattr(error, "hint", None)
    assert getattr(sent, "judges", None) == getattr(error, "judges", None)


def test_other_exceptions_are_errors_of_the_harness_and_no_memory_is_the_judges() -> None:
    assert Failure.of(ValueError("x")) == Failure("internal", "ValueError: x")
    assert isinstance(Failure.of(MemoryError()).error(), JudgeFailed)


def test_a_question_about_a_kernel_that_dies_names_it() -> None:
    class Dies:
        def ask(self, request: Any, **_: Any) -> Any:
            raise WorkerDied("SIGSEGV")

    with pytest.raises(UsageError, match="k.py::k: SIGSEGV"):
        ask_about(Dies(), CountGpus(), "k.py::k", timeout=1)


# -- the worker's side ----------------------------------------------------------------------------------


def answered(monkeypatch: pytest.MonkeyPatch, handler: Any, backend: Backend | None = None) -> list[Event]:
    """The events of a worker process that is asked once."""
    monkeypatch.setattr(worker_side, "_ready", lambda name: backend or Backend("interpreter", "cpu", "", ""))
    monkeypatch.setitem(worker_side.HANDLERS, CountGpus, handler)
    line = msgspec.json.encode(Numbered(3, msgspec.Raw(msgspec.json.encode(CountGpus())))) + b"\n"
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(line)))
    with tempfile.TemporaryFile() as events:
        worker_side.main([str(os.dup(events.fileno()))])
        events.seek(0)
        return [msgspec.json.decode(each, type=Event) for each in events.read().split(b"\n") if each]


def test_every_event_carries_the_number_of_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def handler(request: Any, backend: Any, say: Any) -> int:
        say("half")
        return 4

    progress, reply = answered(monkeypatch, handler)
    assert progress == Progress(3, "half")
    assert isinstance(reply, Reply) and (reply.id, bytes(reply.reply), reply.usable) == (3, b"4", True)


@pytest.mark.parametrize(
    ("error", "kind", "usable"),
    [
        (UsageError("x"), "usage", True),
        (TruthError("x"), "truth", True),
        (KernelError("x"), "kernel", True),
        (MemoryError(), "judge", False),
        (ZeroDivisionError("x"), "internal", False),
    ],
)
def test_a_process_that_failed_where_no_code_expects_it_is_not_used_again(
    monkeypatch: pytest.MonkeyPatch, error: Exception, kind: str, usable: bool
) -> None:
    def handler(request: Any, backend: Any, say: Any) -> int:
        raise error

    (failed,) = answered(monkeypatch, handler)
    assert isinstance(failed, Failed) and (failed.failure.kind, failed.usable) == (kind, usable)


def test_a_process_whose_gpu_is_lost_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the request came to: the fault may show only later."""
    import torch

    def lost(device: Any = None) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    gpu = Backend("cuda", "cpu", "", "")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    (reply,) = answered(monkeypatch, lambda request, backend, say: 1, gpu)
    assert isinstance(reply, Reply) and reply.usable
    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    (reply,) = answered(monkeypatch, lambda request, backend, say: 1, gpu)
    assert isinstance(reply, Reply) and not reply.usable


def test_every_request_has_a_name_of_its_own_and_says_what_its_reply_is() -> None:
    from verify.workers.requests import _reply_type

    tags = [request.__struct_config__.tag for request in worker_side.HANDLERS]
    assert len(set(tags)) == len(tags) and kind_of(Measure("k.py")) == "measure"
    replies = [_reply_type(request) for request in worker_side.HANDLERS]
    assert not [reply for reply in replies if reply in (Any, None) or repr(reply).startswith(("dict", "list[dict"))]
    with pytest.raises(TypeError, match="does not say what its reply is"):
        _reply_type(Request)


def test_a_request_that_no_worker_knows_is_an_error_of_the_harness() -> None:
    with pytest.raises(InternalError, match="no worker knows this request"):
        worker_side.answer(b'{"do": "dance"}', Backend("interpreter", "cpu", "", ""), print)


# -- what cannot be ended, and what answers for others --------------------------------------------------


def test_a_process_that_closes_its_pipe_and_lives_on_is_not_waited_for(
    talking: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(family, "END_SECONDS", 0.2)
    body = """import time; os.closerange(3, 64); time.sleep(1000)"""
    with talking(body) as worker, pytest.raises(WorkerDied, match=r"closed its pipe and did not end within 0.2 s"):
        worker.ask(CountGpus(), timeout=20)


def test_children_in_sessions_of_their_own_end_with_the_worker(talking: Any, tmp_path: Path) -> None:
    """One that has the mark of the family and lost its parents; one that has lost the mark and has its parent."""
    pids = tmp_path / "pids"
    body = f"""import subprocess, time
    first = subprocess.Popen(["sh", "-c", "setsid sleep 1000 & echo $!"], stdout=subprocess.PIPE, text=True)
    second = subprocess.Popen(["env", "-i", "setsid", "sleep", "1000"])
    open({str(pids)!r}, "w").write(f"{{first.stdout.readline().strip()}} {{second.pid}}")
    say("x"); time.sleep(1000)"""
    with talking(body) as worker, pytest.raises(WorkerTimeout):
        worker.ask(CountGpus(), timeout=1.0)
    left = {int(pid) for pid in pids.read_text().split()}
    assert len(left) == 2 and not left & family.living(left, "no mark")


def test_a_process_that_does_not_read_has_its_time_and_no_more(talking: Any) -> None:
    long = Measure("k.py" * (1 << 19))  # more than a pipe holds
    with talking("import time; time.sleep(1000)") as worker, pytest.raises(WorkerTimeout):
        worker.ask(long, timeout=0.5)


def test_noise_without_an_end_costs_the_kernel_that_makes_it(talking: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "the process wrote 1,000 lines where only events belong; stopped"
    with (
        talking("while True: say('noise')") as worker,
        pytest.raises(WorkerDied, match=said),
    ):
        worker.ask(CountGpus(), timeout=20)
    monkeypatch.setattr(process, "LONGEST_LINE", 1 << 16)
    with (
        talking("while True: os.write(int(sys.argv[1]), b'x' * 4096)") as worker,
        pytest.raises(WorkerDied, match="the process wrote 1 lines"),
    ):
        worker.ask(CountGpus(), timeout=20)


FORGES = """
import os, sys, threading, time, torch, verify
RUN = ('{"name":"NAME","target":"T","op":"silu","params":{},"promise":"","status":"ok","results":[]}')
def forge():
    pipe = os.open(f"/proc/{os.getsid(0)}/fd/{sys.argv[1]}", os.O_WRONLY)  # the worker's, who leads the session
    for number in [*range(1, 20), 2**53]:
        for name in ("a_forges", "b_wrong"):
            line = '{"event":"reply","id":%d,"reply":%s}' % (number, RUN.replace("NAME", name))
            os.write(pipe, line.encode() + b"\\n")
    os.write(pipe, b'{"event":"reply","id":1,"rep')  # and half a line
    os.close(pipe)
forge()

@verify.kernel(op="silu", dtypes=["float16"], gradients=False)
def a_forges(x):
    forge()
    return x * 3

@verify.kernel(op="silu", dtypes=["float16"], gradients=False)
def b_wrong(x):
    return x * 3

@verify.kernel(op="silu", dtypes=["float16"], gradients=False)
def c_good(x):
    wide = x.double()
    return torch.where(wide == -torch.inf, 0, wide * torch.sigmoid(wide)).to(x.dtype)
"""


def test_forged_answers_are_nobodys_answers(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Numbers of requests are drawn: a line with one that looks right changes no verdict, this one or the next."""
    file = tmp_path / "forges.py"
    file.write_text(FORGES)
    found = session.run([str(file)], session.Session(backend="interpreter", jobs=1), "verify run")
    statuses = {kernel.name: kernel.status for kernel in found.kernels}
    assert statuses == {"a_forges": "wrong", "b_wrong": "wrong", "c_good": "ok"}
    assert 5 <= capfd.readouterr().err.count("verify: ignored a line") <= 5 * 4  # the first of each request
