"""`verify serve`: MCP over a pipe; a bad line costs nobody else, and nothing is left behind."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.here import hears_ctrl_c
from tests.golden import asked, golden
from verify.cli.door import LONGEST, VERSIONS, Door
from verify.cli.tools import TOOLS, Answer, schema_of
from verify.measure.session import RunProgress
from verify.records import files
from verify.workers import process_tree
from verify.workers.lanes import Stopped, Task
from verify.workers.requests import Step

pytestmark = pytest.mark.usefixtures("warm")

ROOT = Path(__file__).parents[2]
SOURCE = """
import torch, verify

@verify.kernel(op="silu", dtypes=["float16"], gradients=False)
def mine(x):
    wide = x.double().clamp(min=-1000)
    return (wide / (1 + torch.exp(-wide)) * FACTOR).to(x.dtype)
"""
CASE = {"dtype": "float16", "dims": [65536], "fill": "patterns"}


class Waiting:
    """Lanes that begin nothing: a test says what comes of a task."""

    def __init__(self) -> None:
        self.tasks: dict[Any, Task] = {}
        self.cancelled: list[Any] = []

    def submit(self, task: Task) -> None:
        self.tasks[task.key] = task

    def cancel(self, key: Any) -> bool:
        self.cancelled.append(key)
        return key in self.tasks


class Spoken:
    """A door whose answers are kept."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.lanes = Waiting()
        self.door = Door(lambda line: self.lines.append(json.loads(line)), self.lanes, 5.0, "cpu")  # type: ignore[arg-type]

    def say(self, *messages: Any) -> list[dict[str, Any]]:
        """What is answered at once."""
        before = len(self.lines)
        text = b"".join(each if isinstance(each, bytes) else json.dumps(each).encode() + b"\n" for each in messages)
        self.door.read(io.BytesIO(text))
        return self.lines[before:]


@pytest.fixture
def spoken() -> Spoken:
    return Spoken()


def rpc(method: str, identity: Any = None, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params} | ({} if identity is None else {"id": identity})


def call(identity: Any, tool: str, /, **arguments: Any) -> dict[str, Any]:
    return rpc("tools/call", identity, name=tool, arguments=arguments, _meta={"progressToken": identity})


def test_what_is_wrong_with_a_line_is_answered_with_the_rule(spoken: Spoken) -> None:
    """The lines of snapshots/lines.txt."""
    path, text = Path(__file__).parent / "snapshots" / "lines.txt", ""
    for line in asked(path, "> "):
        answers = spoken.say(line.encode() + b"\n")
        text += "".join(f"{each}\n" for each in (f"> {line}", *map(json.dumps, answers)))
    golden(path, text)
    assert not spoken.lanes.tasks


@pytest.mark.parametrize("line", [b"\xff\xfe{}\n", b"[" * 100_000 + b"\n", b'{"id": "' + b"x" * LONGEST + b'"}\n'])
def test_a_line_that_nothing_can_read_costs_itself(spoken: Spoken, line: bytes) -> None:
    first, second = spoken.say(line, b"\n", rpc("ping", 2))
    rule = f"a request has at most {LONGEST:,} bytes" if len(line) > LONGEST else "a line is one message of JSON-RPC"
    assert (first["id"], first["error"]["code"]) == (None, -32700) and first["error"]["message"].startswith(rule)
    assert second == {"jsonrpc": "2.0", "id": 2, "result": {}}


NASTY: tuple[Any, ...] = (None, True, [], {}, [[]], {"a": [1]}, -1, 1.5, "", "\x00", "\x1b[2J", 10**30, ["a", 1, None])


def test_no_value_of_a_field_ends_the_door(spoken: Spoken) -> None:
    """Each is answered, or taken for a request whose lane answers; and the last line is answered as ever."""
    lines = []
    for value in NASTY:
        lines += [call(1, "replay", **{name: value}) for name in TOOLS["replay"].names]
        lines += [call(1, "run", **{"targets": "a.py", name: value}) for name in TOOLS["run"].names]
        lines += [rpc("ping", value), {"jsonrpc": value, "id": 1, "method": value, "params": value}]
        lines += [rpc("tools/call", 1, name=value, arguments=value, _meta=value)]
        lines += [rpc("tools/call", 1, name="run", arguments={"targets": value}, _meta={"progressToken": value})]
        lines += [rpc("initialize", 1, protocolVersion=value), rpc("notifications/cancelled", requestId=value)]
    answers = spoken.say(*lines)
    assert len(answers) > len(NASTY) * 10
    assert spoken.say(rpc("ping", 2))[-1]["id"] == 2
    [refused] = spoken.say(call(3, "run", targets="a.py", fail_fast="false"))
    assert refused["result"]["structuredContent"]["error"] == {
        "kind": "usage",
        "rule": "fail_fast is true or false",
        "received": '"false"',
        "hint": "",
    }


def test_a_client_of_mcp_begins_lists_tools_and_calls_one(spoken: Spoken) -> None:
    begun, tools, pong = spoken.say(
        rpc("initialize", 0, protocolVersion=VERSIONS[1], capabilities={}, clientInfo={"name": "c", "version": "1"}),
        rpc("notifications/initialized"),
        rpc("tools/list", 1),
        rpc("ping", "p"),
        call(2, "judge", problem="p.py", solution="s.py"),
    )
    assert begun["result"]["protocolVersion"] == VERSIONS[1] and begun["result"]["capabilities"] == {"tools": {}}
    assert begun["result"]["serverInfo"]["name"] == "verify"
    assert all(f"`{name}`" in begun["result"]["instructions"] for name in TOOLS)
    assert [tool["name"] for tool in tools["result"]["tools"]] == list(TOOLS)
    for tool in tools["result"]["tools"]:
        assert tool["description"] and tool["inputSchema"] == schema_of(tool["name"])
        # a client has neither the pages nor a command line
        assert not re.search(r"docs/|repeatable|--[a-z]", json.dumps(tool)), tool["name"]
        answer = tool["outputSchema"]
        assert answer["required"] == ["exit_code"] and set(answer["properties"]) == {"exit_code", "result", "error"}
        assert set(tool["inputSchema"]["properties"]) == set(TOOLS[tool["name"]].names)
    assert pong == {"jsonrpc": "2.0", "id": "p", "result": {}}
    task = spoken.lanes.tasks[2]
    assert task.seconds == 5.0
    task.done(Answer({"verdict": "wrong"}, 1, "✗ wrong"))
    assert spoken.lines[-1] == {
        "jsonrpc": "2.0",
        "id": 2,
        "result": {
            "content": [{"type": "text", "text": "✗ wrong"}],
            "structuredContent": {"exit_code": 1, "result": {"verdict": "wrong"}},
            "isError": False,
        },
    }


def test_progress_of_mcp_grows_towards_its_total(spoken: Spoken, monkeypatch: pytest.MonkeyPatch) -> None:
    progress = RunProgress(2, laws=False)
    progress.begin("a", "gelu float32")
    lines = [progress.at("a", Step("gelu float32, case 3 of 4", "case", 3, 4)), "starting", progress.end("a")]
    tool = dataclasses.replace(TOOLS["run"], work=lambda options, pool, report: [*map(report, lines)])
    monkeypatch.setitem(TOOLS, "run", tool)
    spoken.say(call(2, "run", targets=["a.py"]))
    spoken.lanes.tasks[2].work(None)  # type: ignore[arg-type]
    told = [line["params"] for line in spoken.lines]
    assert [each["message"] for each in told] == lines and {each["total"] for each in told} == {100}
    assert [each["progress"] for each in told] == [30, 30.001, 50]


def test_a_cancelled_call_has_no_answer_and_answers_to_nothing_are_dropped(spoken: Spoken) -> None:
    answer = {"jsonrpc": "2.0", "id": 1, "result": {}}
    assert spoken.say(call(5, "run", targets=["a.py"]), rpc("notifications/cancelled", requestId=5), answer) == []
    assert spoken.lanes.cancelled == [5]
    spoken.lanes.tasks[5].done(Stopped("cancelled"))
    assert spoken.lines == []
    spoken.lanes.tasks[5].done(Stopped("interrupted"))
    stopped = {"kind": "stopped", "rule": "interrupted", "received": "", "hint": ""}
    assert spoken.lines[0]["result"]["structuredContent"] == {"exit_code": 3, "error": stopped}
    assert spoken.lines[0]["result"]["isError"]


# -- the command ----------------------------------------------------------------------------------------------


class Session:
    """`verify serve` in a process of its own."""

    def __init__(self, folder: Path) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "verify", "serve", "--backend", "cpu"],
            cwd=folder,
            env={**environment, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=hears_ctrl_c,
        )

    def send(self, identity: int, tool: str, **arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(call(identity, tool, **arguments)).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return dict(json.loads(self.process.stdout.readline()))

    def ask(self, identity: int, tool: str, **arguments: Any) -> dict[str, Any]:
        """The answer to one request."""
        self.send(identity, tool, **arguments)
        while (line := self.answer()).get("id") != identity:
            assert line["method"] == "notifications/progress"
        return dict(line["result"]["structuredContent"])


def children(session: Session) -> set[int]:
    """Every living descendant of its process."""
    return process_tree.living({session.process.pid}, "") - {session.process.pid}


def gone(members: set[int]) -> bool:
    until = time.monotonic() + 10
    while (there := process_tree.living(members, "")) and time.monotonic() < until:
        time.sleep(0.05)
    return not there


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    (tmp_path / "k.py").write_text(SOURCE.replace("FACTOR", "1.0"))
    made = Session(tmp_path)
    yield made
    made.process.kill()
    made.process.wait()


def test_one_session_answers_edits_of_a_file_and_the_end_of_input(session: Session, tmp_path: Path) -> None:
    first = session.ask(1, "run", targets="k.py")
    assert first["exit_code"] == 0, first.get("error")
    run = files.decode(json.dumps(first["result"]).encode(), source="the answer")
    assert run.verdict == "pass" and run.command == "verify run k.py --backend cpu"
    workers = children(session)

    (tmp_path / "k.py").write_text(SOURCE.replace("FACTOR", "1.01"))
    second = session.ask(2, "run", targets=["k.py"])
    assert second["exit_code"] == 1 and second["result"]["kernels"][0]["status"] == "wrong"
    replayed = session.ask(3, "replay", target="k.py::mine", case=CASE, index=17411)
    assert (replayed["exit_code"], replayed["result"]["worst"]["got_hex"]) == (1, "0x43f6")
    explained = session.ask(4, "explain", target="k.py::mine", case=CASE, index=17411)
    assert explained["exit_code"] == 0 and explained["result"]["cause"]
    missing = session.ask(5, "run", targets="nowhere.py")
    assert missing["error"]["rule"] == "no such file: nowhere.py" and missing["error"]["hint"] == "verify run k.py"
    assert workers & children(session), "the worker is the same process"

    workers = children(session)
    session.send(6, "run", targets="k.py")
    assert session.process.stdin is not None and session.process.stdout is not None
    session.process.stdin.close()
    assert json.loads(session.process.stdout.readlines()[-1])["id"] == 6  # what was asked before the end is answered
    assert session.process.wait(30) == 0 and gone(workers)


def test_ctrl_c_ends_it_with_everything_that_runs(session: Session, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SOURCE.replace("wide =", "import time; time.sleep(600); wide =") + "FACTOR = 1\n")
    session.send(1, "run", targets="slow.py")
    session.send(2, "run", targets="k.py")
    until = time.monotonic() + 60
    while "mine float16" not in session.answer()["params"]["message"]:
        assert time.monotonic() < until
    workers = children(session)
    session.process.send_signal(signal.SIGINT)
    assert session.process.wait(30) == 3 and workers and gone(workers)
    assert session.process.stdout is not None
    rest = [json.loads(line) for line in session.process.stdout.read().splitlines()]
    stopped = {line["id"]: line["result"]["content"][0]["text"] for line in rest if "id" in line}
    assert stopped == {1: "interrupted", 2: "interrupted"}


def test_a_client_that_has_gone_ends_it(session: Session) -> None:
    assert session.process.stdout is not None
    session.process.stdout.close()
    session.send(1, "nothing")  # stdin stays open
    assert session.process.wait(30) == 3
