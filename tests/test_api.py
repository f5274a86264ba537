"""The public functions: the record of the command, rows, files, functions as targets, a notebook, Ctrl-C, the gate."""

from __future__ import annotations

import asyncio
import inspect
import io
import json
import linecache
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

import verify
from tests.cli.here import Here, said
from tests.golden import answers
from tests.records.bounds.gate_records import book, bound, kernel, result, run
from verify.cli import exits, parser, sinks
from verify.declare.arguments import Declaration
from verify.errors import UsageError
from verify.records import files
from verify.records.bounds import committed
from verify.records.record import Gap, Run
from verify.report import run_table
from verify.report.present import present
from verify.workers import process, process_tree

ROOT = Path(__file__).parents[1]
SOURCE = """
import os, torch, verify

@verify.kernel(op="silu", dtypes=["float16", "bfloat16"], gradients=False)
def right(x):
    wide = x.double().clamp(min=-1000)
    return (wide / (1 + torch.exp(-wide))).to(x.dtype)

@verify.kernel(op="gelu", dtypes=["bfloat16"], gradients=False)
def textbook(x):
    return x * 0.5 * (1.0 + torch.erf(x / 2**0.5))

@verify.kernel(op="gelu", dtypes=["bfloat16"], gradients=False)
def raises(x):
    raise RuntimeError("no such unit")
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with three kernels; workers are this process."""
    (tmp_path / "accuracy.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr(process, "Worker", Here)
    return tmp_path


def identity(x):
    return x


def timeless(run: Run) -> Run:
    kernels = [msgspec.structs.replace(each, seconds=0.0, peak={}) for each in run.kernels]
    return msgspec.structs.replace(run, seconds=0.0, created="", kernels=kernels)


def test_the_function_and_the_command_give_the_same_record(project: Path) -> None:
    done = said(
        "run", "accuracy.py", "--dtype", "bfloat16", "--backend", "interpreter", "--json", "a.json", cwd=project
    )
    found = verify.run("accuracy.py", dtypes=["bfloat16"], backend="interpreter")
    assert timeless(found.record) == timeless(files.load("a.json"))
    assert (found.verdict, found.exit_code) == ("fail", done.returncode) == ("fail", 1)
    assert found.problems == ()
    assert [(row["kernel"], row["kernel_status"]) for row in found.rows()] == [
        ("right", "ok"),
        ("textbook", "wrong"),
        ("raises", "error"),
    ]
    assert found.worst is not None and found.worst["kernel"] == "textbook"
    assert f"fail: {done.stdout.rpartition('fail: ')[2].splitlines()[0]}" in str(found)
    assert repr(found) == f"<CompletedRun fail: {done.stdout.rpartition('fail: ')[2].splitlines()[0]}>"


def test_what_is_saved_is_read_again(project: Path) -> None:
    found = verify.run("accuracy.py", kernels=["right"], dtypes=["float16"], backend="interpreter")
    assert (found.verdict, found.exit_code) == ("pass", 0)
    assert found.save("run.json") == Path("run.json")
    again = verify.load("run.json")
    assert again.record == found.record and again.rows() == found.rows() and str(again) == str(found)
    assert found.html("report.html").read_text().startswith("<!doctype html>")
    assert found.markdown().startswith("### ✓ verify: ")
    assert "faithful" in found._repr_html_()
    assert [row["verdict"] for row in found.rows()] == [line.word for line in run_table.rows_of(present(found.record))]


def test_nothing_is_printed_and_progress_goes_where_it_is_wanted(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines: list[str] = []
    verify.run("accuracy.py::right", dtypes=["float16"], backend="interpreter", progress=lines.append)
    assert any("right" in line for line in lines)
    verify.run("accuracy.py::right", dtypes=["float16"], backend="interpreter")
    assert capsys.readouterr() == ("", "")


def test_what_cannot_be_imported_is_a_problem_of_the_run(project: Path) -> None:
    found = verify.run(["nowhere.py", Path("accuracy.py")], dtypes=["float16"], backend="interpreter")
    assert (found.verdict, found.exit_code) == ("incomplete", exits.USAGE)
    assert len(found.problems) == 1 and found.problems[0].startswith("no such file: nowhere.py")
    found.save("run.json")
    assert verify.load("run.json").exit_code == exits.USAGE


def test_what_cannot_be_is_said_before_anything_runs(project: Path) -> None:
    answers(Path(__file__).parent / "snapshots" / "api.txt", globals())


def test_the_arguments_of_a_declaration_are_those_of_verify_kernel() -> None:
    """A type checker sees them at `verify.run`; mypy compares their types where `kernel` is called."""
    named = {*Declaration.__annotations__, "dtypes", "received"}
    assert named == set(inspect.signature(verify.kernel).parameters)
    given = {name: hint for name, hint in verify.kernel.__annotations__.items() if name in Declaration.__annotations__}
    assert given == {name: hint.__forward_arg__ for name, hint in Declaration.__annotations__.items()}


TYPED = """
import verify
from torch.nn.functional import silu
verify.run("a.py", dtypes=["float16"])
verify.run(silu, like=silu, gradients=False, largest=3.0)
verify.run("a.py", dtype=["float16"])
verify.hunt(silu, like=silu, max_ulps=3)
verify.run("a.py", profile="fast")
verify.run(silu, like=3)
with verify.Session() as session:
    session.run("a.py", dtype=["float16"])
    session.run("a.py").verdict + 1
"""


@pytest.mark.slow
def test_mypy_sees_a_misspelt_argument_and_a_wrong_type(tmp_path: Path) -> None:
    (tmp_path / "typed.py").write_text(TYPED)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--no-incremental", "typed.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"MYPYPATH": str(ROOT)}, capture_output=True, text=True
    )
    lines = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error: " in line}
    assert lines == {6, 7, 8, 9, 11, 12}, done.stdout


KERNEL = """import torch, verify
@verify.kernel(op="silu", dtypes=["float16"], gradients=False)
def mine(x):
    return {}
"""


@pytest.mark.usefixtures("warm")
def test_a_session_keeps_its_workers_and_imports_files_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    right = "torch.nn.functional.silu(x.double().clamp(min=-1000)).half()"
    with verify.Session(backend="interpreter") as session:
        seen = set()
        for text, verdict in ((right, "pass"), ("x * 2", "fail"), (right, "pass")):
            Path("edited.py").write_text(KERNEL.format(text))
            assert session.run("edited.py", jobs=1).verdict == verdict
            assert session._pool is not None
            seen |= {worker._process.pid for worker in session._pool.workers}  # type: ignore[union-attr]
        assert len(seen) == 1
        assert session.sweep("edited.py", jobs=1).rows()[0]["basis"] == "exhaustive"
        with pytest.raises(UsageError, match="a session has the workers of its calls; received backend="):
            session.run("edited.py", backend="interpreter")
    with pytest.raises(UsageError, match="a session has workers inside its with block"):
        session.run("edited.py")


def test_a_file_of_parts_is_for_files(project: Path) -> None:
    first = verify.run("accuracy.py::right", dtypes=["float16"], backend="interpreter", resume="parts")
    begun = Path("parts").read_bytes()
    again = verify.run("accuracy.py::right", dtypes=["float16"], backend="interpreter", resume="parts")
    assert begun.count(b"\n") == 2 and Path("parts").read_bytes() == begun
    assert again.record.kernels == first.record.kernels
    with pytest.raises(UsageError, match="needs kernels in files, to find changes; received a function"):
        verify.run(identity, op="silu", resume="parts")


def test_in_a_worker_nothing_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(process_tree.MARK, "1")
    with pytest.raises(UsageError, match="importing it measured kernels again") as caught:
        verify.run("accuracy.py")
    assert caught.value.hint == 'if __name__ == "__main__": above the call'


def test_ctrl_c_is_raised_unless_the_rest_is_wanted(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = run(kernel(result()))
    record = msgspec.structs.replace(record, incomplete=[Gap("interrupted", "gelu: not finished: interrupted")])
    monkeypatch.setattr("verify.measure.session.run", lambda *_: record)
    with pytest.raises(KeyboardInterrupt):
        verify.run("accuracy.py")
    assert verify.run("accuracy.py", partial=True).exit_code == exits.INCOMPLETE


def test_a_sweep_and_a_hunt_are_those_of_the_commands(project: Path) -> None:
    options = ("--backend", "interpreter", "--json")
    done = said("sweep", "accuracy.py::textbook", "--range=-6:-5", *options, "s.json", cwd=project)
    lines: list[str] = []
    swept = verify.sweep("accuracy.py::textbook", range=(-6.0, -5.0), backend="interpreter", progress=lines.append)
    known = files.load("s.json")
    assert timeless(swept.record).kernels == timeless(known).kernels
    assert (swept.verdict, swept.exit_code) == ("fail", done.returncode) == ("fail", 1)
    assert swept.rows()[0]["basis"] == "exhaustive"
    assert lines and lines[-1].startswith("textbook bfloat16: 100.0% of ")
    rows = SOURCE.partition("@verify")[0] + '@verify.kernel(op="softmax", dtypes=["float32"], gradients=False)\n'
    Path("rows.py").write_text(rows + "def mine(x): return torch.softmax(x.exp().log(), -1)\n")
    done = said("hunt", "rows.py", "--evaluations", "64", *options, "h.json", cwd=project)
    hunted = verify.hunt("rows.py", evaluations=64, backend="interpreter")
    known = files.load("h.json")
    assert hunted.record.command == known.command == "verify hunt rows.py --evaluations 64 --backend interpreter"
    assert timeless(hunted.record).kernels == timeless(known).kernels
    assert hunted.exit_code == done.returncode == 1


@pytest.mark.parametrize("name", ["run", "sweep", "hunt"])
def test_every_option_of_a_command_is_an_argument_of_its_function(name: str) -> None:
    """`--like RUN.json` of a run is its seed and `cases_of`. Files and the terminal are the command's own."""
    [commands] = parser()._subparsers._group_actions  # type: ignore[union-attr]
    options = {action.dest for action in commands.choices[name]._actions} - {
        *sinks.SINKS,
        "help",
        "github",
        "like",
        "each",
    }  # type: ignore[index]
    spelled = {"dtype": "dtypes", "model": "models", "result": "results", "no_curve": "curve"}
    arguments = set(inspect.signature(getattr(verify, name)).parameters)
    assert {spelled.get(option, option) for option in options} <= arguments


def test_the_gate_judges_runs_records_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "bounds"
    committed.save(book(folder=folder), [bound(0.5)])
    good, bad = run(kernel(result(0.5))), run(kernel(result(float("nan"))), id="bbbbbbbbbbbb")
    files.save(bad, "bad.json")
    assert (verify.gate(verify.CompletedRun(good), folder).verdict, verify.gate(good, folder).exit_code) == ("pass", 0)
    failed = verify.gate(["bad.json"], folder)
    done = said("gate", "bad.json", "--bounds", "bounds", "--json", "gate.json", cwd=tmp_path)
    assert (failed.verdict, failed.exit_code) == ("fail", done.returncode) == ("fail", 1)
    assert failed.data() == json.loads(Path("gate.json").read_text())
    [row] = failed.rows()
    assert (row["key"], row["status"], row["bound"], row["max"]) == (
        "gelu/y/bfloat16/all",
        "nonfinite",
        0.5,
        float("inf"),
    )
    assert str(failed) in done.stdout and failed.markdown().startswith("### ")
    assert repr(failed) == "<CompletedGate fail: 1 rows>"


def script(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """What Python says of a script."""
    (folder / "script.py").write_text(text)
    return subprocess.run(
        [sys.executable, "script.py"],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1"},
    )


SCRIPT = """
import torch, verify

@verify.kernel(op="silu", dtypes=["float16"], gradients=False)
def mine(x):
    return torch.nn.functional.silu(x.double().clamp(min=-1000)).half()

GUARD
run = verify.run(mine, backend="interpreter")
print(run.record.command, run.verdict, *run.problems)
"""


@pytest.mark.slow
def test_a_script_measures_its_own_kernels(tmp_path: Path) -> None:
    done = script(SCRIPT.replace("GUARD\n", 'if __name__ == "__main__":\n  ').replace("\nprint", "\n  print"), tmp_path)
    assert done.stdout == "verify run script.py::mine --backend interpreter pass\n", done.stderr
    assert done.stderr == ""


@pytest.mark.slow
def test_a_script_that_workers_would_run_again_says_so(tmp_path: Path) -> None:
    done = script(SCRIPT.replace("GUARD", ""), tmp_path)
    assert "verify run script.py::mine --backend interpreter incomplete script.py" in done.stdout
    assert "importing it measured kernels again\n  next: if __name__" in done.stdout


class Stderr(io.StringIO):
    """The stderr of a notebook, which has no descriptor."""

    def fileno(self) -> int:
        raise io.UnsupportedOperation("fileno")


CELLS = [
    """
import torch, verify
import torch.nn.functional as F
x = torch.ones(3)  # what the kernel's argument is called, too
SCALE = 1.0
""",
    """
def helper(x):
    return x * SCALE

class Wide(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return F.silu(helper(x.double().clamp(min=-1000))).half()

@verify.kernel(op="silu", dtypes=["float16"], gradients=False)
def mine(x):
    return Wide.apply(x)

def plain(x):
    return x.clamp(min=0)
""",
    """
SCALE = 0.5  # after the kernel was made: what it computes with now
async def cell():
    run = verify.run(mine, backend="interpreter")
    print(run.verdict, run.worst["kernel"], run.worst["target"].endswith(".py::mine"))
    run = verify.run(plain, like=F.relu, dtypes=["float16"], gradients=False, backend="interpreter")
    print(run.verdict, run.rows()[0]["kernel"], run._repr_html_().count("<tr>"))
""",
]


@pytest.mark.usefixtures("warm")
def test_a_notebook_measures_kernels_of_cells_and_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A notebook's `__main__` has no file. Its cells are known to linecache, and a loop runs."""
    notebook, stderr = ModuleType("__main__"), Stderr()
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for place, text in enumerate(CELLS):
        name = f"<ipython-input-{place}-0>"
        monkeypatch.setitem(linecache.cache, name, (len(text), None, text.splitlines(True), name))
        exec(compile(text, name, "exec"), notebook.__dict__)
    asyncio.run(notebook.cell())
    assert capsys.readouterr().out.splitlines() == ["fail mine True", "pass plain 2"], stderr.getvalue()
    assert stderr.getvalue() == ""
