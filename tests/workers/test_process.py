"""Calls of a worker's process: replies, deadlines, failures as exceptions of their kind, and what is no answer."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from verify import worker as worker_side
from verify.backends import Backend, Cuda, Interpreter
from verify.errors import InternalError, JudgeFailed, KernelError, TruthError, UsageError
from verify.measure import session
from verify.measure.requests import Measure
from verify.workers import calls, process, process_tree
from verify.workers.calls import receive
from verify.workers.channel import Channel
from verify.workers.fork_map import ran_out
from verify.workers.process import Worker, ask_about
from verify.workers.requests import CountGpus, Died, Event, Failed, Failure, Late, Progressed, Replied

pytestmark = pytest.mark.usefixtures("warm")

TALKS = """
import os, sys, time
from verify.workers.channel import Channel
channel = Channel(int(sys.argv[1]))
def say(text):
    channel.send(text.encode())
while True:
    line = channel.receive()
    {body}
"""


@pytest.fixture
def talking(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    """A worker whose process answers a request with what the body of a loop says."""
    popen = process.subprocess.Popen

    def start(body: str) -> Worker:
        path = tmp_path / "talks.py"
        path.write_text(TALKS.replace("{body}", body))

        def talks(command: list[str], **options: Any) -> Any:
            return popen([command[0], str(path), *command[command.index("verify.worker") + 1 :]], **options)

        monkeypatch.setattr(process.subprocess, "Popen", talks)
        return Worker()

    return start


@pytest.mark.parametrize(
    "message",
    [
        """say('{"event":"x"}')""",
        """say("what a kernel printed")""",
        """say('{"event":"reply","reply":1,"parts":1000000}')""",
        """say('{"event":"reply","reply":1,"parts":[5]}'); os.write(channel.fileno(), b"bytes")""",  # not asked for
        """say('{"event":"reply","reply":1,"parts":[-5]}')""",
        """os.write(channel.fileno(), b"\x7f noise")""",  # the length of two GB
    ],
)
def test_what_is_no_event_ends_the_process(talking: Any, message: str) -> None:
    with talking(message) as worker:
        with pytest.raises(Died, match="sent no message of verify; stopped") as raised:
            worker.ask(CountGpus(), timeout=20)
        assert raised.value.who == "judge" and not worker.alive


@pytest.mark.parametrize("half", ["", """os.write(channel.fileno(), b"\\0\\0\\1\\0 half a message"); """])
def test_a_process_that_does_not_answer_in_time_is_killed(talking: Any, half: str) -> None:
    with talking(half + "time.sleep(1000)") as worker:
        began = time.monotonic()
        with pytest.raises(Late, match=r"no answer within 0\.[45]\d* s; stopped") as raised:
            worker.ask(CountGpus(), timeout=0.5)
        assert raised.value.who == "judge" and not worker.alive and time.monotonic() - began < 10


def test_the_time_of_a_request_is_longer_by_the_time_that_a_judge_waits(talking: Any) -> None:
    body = """say('{"event":"progress","text":"case 1","waited":30}'); time.sleep(1.5)
    say('{"event":"reply","reply":1}')"""
    heard: list[str] = []
    with talking(body) as worker:
        assert worker.ask(CountGpus(), timeout=1, progress=heard.append) == 1
    assert [(step, step.waited) for step in heard] == [("case 1", 30.0)]  # type: ignore[attr-defined]
    with talking(body.replace("30", "-30")) as worker, pytest.raises(Died, match="sent no message of verify"):
        worker.ask(CountGpus(), timeout=20)
    with talking(body) as worker:  # as the process of a kernel, which cannot prolong its own time
        worker.who = "kernel"
        with pytest.raises(Late):
            worker.ask(CountGpus(), timeout=1, progress=heard.append)
    assert heard[1].waited == 0.0  # type: ignore[attr-defined]


def test_a_reply_of_another_type_is_an_error_of_the_harness(talking: Any) -> None:
    text = "the reply to the request 'gpus' is no reply to it: Expected `int`"
    with talking("""say('{"event":"reply","reply":"many"}')""") as worker, pytest.raises(InternalError, match=text):
        worker.ask(CountGpus(), timeout=20)


def test_a_process_that_is_not_usable_is_replaced(talking: Any) -> None:
    """Such as one whose CUDA context an illegal access has poisoned."""
    body = """failure = '{"kind":"kernel","text":"illegal access"}'
    say('{"event":"failed","failure":%s,"usable":false}' % failure)"""
    with talking(body) as worker:
        for _ in range(2):
            with pytest.raises(KernelError, match="illegal access"):
                worker.ask(CountGpus(), timeout=20)
            assert not worker.alive
    with talking("""say('{"event":"reply","reply":1}')""") as worker:
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
        Died("SIGSEGV"),
        Died("SIGSEGV", who="judge"),
        Late("late"),
        Late("late", who="judge"),
    ],
)
def test_a_failure_is_the_same_exception_on_the_side_that_asks(error: Exception) -> None:
    sent = msgspec.json.decode(msgspec.json.encode(Failure.of(error)), type=Failure).error()
    assert type(sent) is type(error) and str(sent) == str(error)
    assert getattr(sent, "hint", None) == getattr(error, "hint", None)
    assert getattr(sent, "who", None) == getattr(error, "who", None)


def test_other_exceptions_are_errors_of_the_harness_and_no_memory_is_the_judges() -> None:
    assert Failure.of(ValueError("x")) == Failure("internal", "ValueError: x")
    for error in (MemoryError(), RuntimeError("CUDA out of memory. Tried to allocate 12.00 GiB")):
        found = Failure.of(error).error()
        assert isinstance(found, JudgeFailed) and ran_out(found)
    assert not ran_out(JudgeFailed("died")) and not ran_out(KernelError("it raised: out of memory"))


def test_a_question_about_a_kernel_that_dies_names_it() -> None:
    class Dies:
        def ask(self, request: Any, **_: Any) -> Any:
            raise Died("SIGSEGV")

    with pytest.raises(UsageError, match="k.py::k: SIGSEGV"):
        ask_about(Dies(), CountGpus(), "k.py::k", timeout=1)


# -- the worker's side ----------------------------------------------------------------------------------


def answered(monkeypatch: pytest.MonkeyPatch, handler: Any, backend: Backend | None = None) -> list[Event]:
    """The events of a worker process that is asked once."""
    monkeypatch.setattr(worker_side, "_ready", lambda name: backend or Interpreter("cpu"))
    monkeypatch.setitem(worker_side.HANDLERS, CountGpus, handler)
    events: list[Event] = []
    answerer, asked = worker_side.Answerer(None), msgspec.json.encode(CountGpus())
    calls.answer(asked, lambda event, parts=(): events.append(event), answerer.respond, answerer.usable)
    return events


def test_how_far_a_request_is_comes_before_its_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    def handler(request: Any, backend: Any, say: Any) -> int:
        say("half")
        return 4

    progress, reply = answered(monkeypatch, handler)
    assert progress == Progressed("half")
    assert isinstance(reply, Replied) and (bytes(reply.reply), reply.usable) == (b"4", True)


def test_requests_are_answered_until_the_other_side_closes() -> None:
    ours, theirs = Channel.pair()
    replies = iter([calls.WithBytes(1, [memoryview(b"bits"), memoryview(b"")]), 2])
    serves = threading.Thread(target=calls.serve, args=(theirs, lambda *_: next(replies), lambda: True))
    serves.start()
    for wanted, parts in ((b"1", [b"bits", b""]), (b"2", [])):
        ours.send(b"{}")
        event, beside = receive(ours, most=4)
        assert isinstance(event, Replied) and bytes(event.reply) == wanted and beside == parts
    ours.close()
    serves.join(10)
    assert not serves.is_alive()


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

    gpu = Cuda("cpu")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device=None: 512)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    (reply,) = answered(monkeypatch, lambda request, backend, say: 1, gpu)
    assert isinstance(reply, Replied) and reply.usable
    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device=None: 0)
    (reply,) = answered(monkeypatch, lambda request, backend, say: 1, gpu)
    assert isinstance(reply, Replied) and reply.usable  # it has no tensor there: asking would make a context
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device=None: 512)
    (reply,) = answered(monkeypatch, lambda request, backend, say: 1, gpu)
    assert isinstance(reply, Replied) and not reply.usable


def test_a_request_that_no_worker_knows_is_an_error_of_the_harness() -> None:
    with pytest.raises(InternalError, match="no worker knows this request"):
        worker_side.answer(b'{"do": "dance"}', Interpreter("cpu"), print)


# -- what cannot be ended, and what answers for others --------------------------------------------------


def test_a_process_that_closes_its_connection_and_lives_on_is_not_waited_for(
    talking: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_tree, "END_SECONDS", 0.2)
    body = """os.closerange(3, 64); time.sleep(1000)"""
    with talking(body) as worker, pytest.raises(Died, match=r"closed its connection and did not end within 0.2 s"):
        worker.ask(CountGpus(), timeout=20)


def test_children_in_sessions_of_their_own_end_with_the_worker(talking: Any, tmp_path: Path) -> None:
    """One that has the mark of the family and lost its parents; one that has lost the mark and has its parent."""
    pids = tmp_path / "pids"
    body = f"""import subprocess, time
    first = subprocess.Popen(["sh", "-c", "setsid sleep 1000 & echo $!"], stdout=subprocess.PIPE, text=True)
    second = subprocess.Popen(["env", "-i", "setsid", "sleep", "1000"])
    open({str(pids)!r}, "w").write(f"{{first.stdout.readline().strip()}} {{second.pid}}")
    time.sleep(1000)"""
    with talking(body) as worker, pytest.raises(Late):
        worker.ask(CountGpus(), timeout=1.0)
    left = {int(pid) for pid in pids.read_text().split()}
    assert len(left) == 2 and not left & process_tree.living(left, "no mark")


def test_a_process_that_does_not_read_has_its_time_and_no_more(talking: Any) -> None:
    long = Measure("k.py" * (1 << 19))  # more than a pipe holds
    with talking("import time; time.sleep(1000)") as worker, pytest.raises(Late):
        worker.ask(long, timeout=0.5)


FORGES = """
import os, socket, struct, threading, time, torch, verify
RUN = ('{"name":"NAME","target":"T","op":"silu","params":{},"promise":"","status":"ok","results":[]}')
def forge():
    frames = b""
    for name in ("a_forges", "b_wrong"):
        text = ('{"event":"reply","reply":%s}' % RUN.replace("NAME", name)).encode()
        frames += struct.pack("!i", len(text)) + text
    leader = os.getsid(0)  # the worker, who leads the session
    for name in os.listdir(f"/proc/{leader}/fd"):
        if int(name) > 2:
            try: os.write(os.open(f"/proc/{leader}/fd/{name}", os.O_WRONLY | os.O_NONBLOCK), frames)
            except OSError: pass  # a socket cannot be opened so

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

@verify.kernel(op="silu", dtypes=["float16"], gradients=False)
def d_in_its_own_connection(x):
    for descriptor in range(3, 64):
        try:
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
                text = ('{"event":"reply","reply":%s}' % RUN.replace("NAME", "d")).encode()
                os.write(descriptor, struct.pack("!i", len(text)) + text)
        except OSError: pass
    return x * 3
"""


def test_forged_answers_change_no_verdict(tmp_path: Path) -> None:
    """A kernel reaches no connection but its own, in which only calls are answered: no verdict comes from there."""
    file = tmp_path / "forges.py"
    file.write_text(FORGES)
    found = session.run([str(file)], session.Session(backend="interpreter", jobs=1), "verify run")
    statuses = {kernel.name: kernel.status for kernel in found.kernels}
    assert statuses == {"a_forges": "wrong", "b_wrong": "wrong", "c_good": "ok", "d_in_its_own_connection": "error"}
