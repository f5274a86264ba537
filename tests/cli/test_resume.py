"""What a run has measured is shown and kept, whatever ends it, and the next start goes on from there."""

from __future__ import annotations

import errno
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_unwritten import full
from tests.records.bounds.gate_records import result
from tests.workers.fake import FakeWorker
from verify.cli import exits, main
from verify.declare.requests import Listed, ListKernels
from verify.declare.target import Declared
from verify.errors import KernelError, VerifyError
from verify.measure import session  # noqa: F401  (before the fixture puts another class in the place of Worker)
from verify.measure.requests import Measure
from verify.records.files import load
from verify.records.part_store import PartStore
from verify.records.record import Basis, KernelRun
from verify.workers import process
from verify.workers.requests import About, Died, Environment, Late, Step


class Fake(FakeWorker):
    """A worker that measures nothing: two kernels of two dtypes, and what becomes of some of them."""

    sources = "0"
    gpu = "none"

    def __init__(self) -> None:
        super().__init__()
        self.raises: dict[tuple[str, str], BaseException] = {}
        self.measured: list[tuple[str, str]] = []

    def __call__(self, *_: Any) -> Fake:
        return self

    def answer(self, request: Any) -> Any:
        match request:
            case Environment():
                return About("interpreter", "cpu", {"gpu": self.gpu, "commit": str(len(self.measured))})
            case ListKernels():
                fields = ("silu", "elementwise", {}, "", ("interpreter",), ("bfloat16", "float16"))
                return Listed(self.sources, [Declared(f"k.py::{name}", name, *fields) for name in ("one", "two")])
        assert isinstance(request, Measure)
        (dtype,) = request.dtypes
        part = (request.target.rpartition("::")[2], dtype)
        if error := self.raises.pop(part, None):
            raise error
        self.measured.append(part)
        return KernelRun(part[0], request.target, "silu", {}, "", "ok", [result(0.5, dtype=dtype)])


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "k.py").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = Fake()
    monkeypatch.setattr(process, "Worker", type("Worker", (), {"__new__": lambda cls, *given, **named: made}))
    return made


ALL = [("one", "bfloat16"), ("one", "float16"), ("two", "bfloat16"), ("two", "float16")]
RUN = ["run", "k.py", "--jobs", "1", "--json", "run.json"]


def parts(folder: Path) -> int:
    """How many finished ones the runs in the cache keep."""
    stores = [PartStore(path).parts for path in folder.glob("cache/verify/runs/*")]
    return sum(1 for parts in stores for name in parts if name and not name.startswith("earlier "))


def going_on(said: str) -> list[str]:
    """The arguments of the command that goes on."""
    (line,) = [line for line in said.splitlines() if line.startswith("  next: verify run")]
    return shlex.split(line)[2:]


def test_a_run_that_is_whole_leaves_nothing_behind(fake: Fake, tmp_path: Path) -> None:
    assert main(RUN) == exits.PASS and fake.measured == ALL
    assert list((tmp_path / "cache" / "verify" / "runs").iterdir()) == []


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [(KeyboardInterrupt(), "interrupted", exits.INCOMPLETE), (Late("late"), "timeout", exits.WRONG)],
)
def test_what_ends_in_the_middle_keeps_what_is_finished(
    fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str], error: BaseException, kind: str, code: int
) -> None:
    """Finished dtypes are on the screen and in the record; the rest are gaps of their kind until a start goes on."""
    fake.raises["two", "bfloat16"] = error
    assert main(RUN) == code
    said = capsys.readouterr()
    seen = {(kernel.name, item.dtype) for kernel in load("run.json").kernels for item in kernel.results}
    assert seen == set(fake.measured) and ("one", "float16") in seen and ("two", "bfloat16") not in seen
    gap = load("run.json").incomplete[0]
    assert (gap.kind, gap.target) == (kind, "k.py::two") and gap.text.startswith("two: bfloat16: ")
    assert "✓ faithful" in said.out and parts(tmp_path) == len(seen)
    again = going_on(said.err)
    assert main(again) == exits.PASS
    assert sorted(fake.measured) == sorted(ALL), "each part once"
    assert len([item for kernel in load("run.json").kernels for item in kernel.results]) == 4
    assert parts(tmp_path) == 0


def test_a_record_that_cannot_be_written_costs_no_measurement(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        full(patch, "run.json")
        assert main(RUN) == exits.UNWRITTEN
    said = capsys.readouterr()
    assert "✓ pass: all 2 kernels" in said.out
    assert said.err.startswith("verify: cannot write run.json: ") and "\n  next: verify run k.py" in said.err
    assert main(going_on(said.err)) == exits.PASS
    assert fake.measured == ALL and load("run.json").verdict == "pass" and parts(tmp_path) == 0


def test_a_disk_without_any_room_is_said_and_the_run_goes_on(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", refuse)
    fake.raises["two", "float16"] = Late("late")
    assert main(["run", "k.py", "--jobs", "1"]) == exits.WRONG
    said = capsys.readouterr()
    assert "timed out" in said.out and len(fake.measured) == 3
    assert "finished parts are not saved" in said.err and "--resume" not in said.err


def test_what_was_measured_otherwise_is_refused_with_what_differs(
    fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.raises["two", "float16"] = Late("late")
    assert main([*RUN, "--resume", "kept"]) == exits.WRONG
    for change, text in (
        (lambda: None, "other options (seed: 0, now 3)"),
        (lambda: setattr(fake, "gpu", "H200"), "other device or versions (gpu: 'none', now 'H200')"),
        (lambda: setattr(fake, "sources", "1"), "other sources (k.py: '0', now '1')"),
    ):
        change()
        seed = ["--seed", "3"] if "seed" in text else []
        capsys.readouterr()
        assert main([*RUN, "--resume", "kept", *seed]) == exits.USAGE
        said = capsys.readouterr().err
        assert f"verify: kept holds a run with {text}" in said and "next: verify run without --resume kept" in said
        fake.gpu = "none"
    assert len(fake.measured) == 3
    Path("notes.txt").write_text("mine\n")
    assert main([*RUN, "--resume", "notes.txt"]) == exits.USAGE
    assert "notes.txt holds no finished parts" in capsys.readouterr().err and Path("notes.txt").read_text() == "mine\n"


def test_a_part_that_is_damaged_is_measured_again(fake: Fake) -> None:
    fake.raises["two", "float16"] = Late("late")
    main([*RUN, "--resume", "kept"])
    lines = Path("kept").read_bytes().splitlines(keepends=True)
    assert len(lines) == 5 and b"one float16" in lines[2]
    Path("kept").write_bytes(lines[0] + lines[1] + lines[2].replace(b"silu", b"gelu") + lines[3])
    assert main([*RUN, "--resume", "kept"]) == exits.PASS
    assert fake.measured == [*ALL[:3], ALL[1], ALL[3]]


def test_a_start_that_is_interrupted_keeps_what_earlier_starts_found(
    fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    """Finished parts are read first; a finding whose part is measured again stays until that is done."""
    again = [*RUN, "--resume", "kept"]
    fake.raises["one", "float16"], fake.raises["two", "float16"] = Late("late"), KeyboardInterrupt()
    assert main(again) == exits.WRONG
    first = {(kernel.name, each.dtype) for kernel in load("run.json").kernels for each in kernel.results}
    assert first == {("one", "bfloat16"), ("two", "bfloat16")}

    fake.raises["one", "float16"] = KeyboardInterrupt()
    assert main(again) == exits.WRONG
    record = load("run.json")
    assert {(kernel.name, each.dtype) for kernel in record.kernels for each in kernel.results} == first
    one = next(kernel for kernel in record.kernels if kernel.name == "one")
    assert one.status == "timeout" and {gap.kind for gap in record.incomplete} == {"timeout", "interrupted"}

    assert main(again) == exits.PASS
    assert sorted(fake.measured) == sorted(ALL), "each part once"


def ending(fake: Fake, error: VerifyError, status: str) -> None:
    """Lets the bfloat16 part of kernel `two` report one judged case and then end with an error."""
    judged = result(0.5 if status == "ok" else 9.0, dtype="bfloat16", status=status)
    basis = Basis("observed", 1 << 16, 0, cases=1, planned=9)

    def ask(request: Any, *, timeout: float, progress: Any = lambda text: None) -> Any:
        if not isinstance(request, Measure) or request.target != "k.py::two" or request.dtypes != ("bfloat16",):
            return fake.answer(request)
        if not request.judged:
            progress(Step("two bfloat16, case 2 of 9", "case", 2, 9).having(judged=b"first"))
            raise error
        assert request.judged == (b"first",)
        entry = type(judged)(**{**{f: getattr(judged, f) for f in judged.__struct_fields__}, "basis": basis})
        return KernelRun("two", "k.py::two", "silu", {}, "", status, [entry])  # type: ignore[arg-type]

    fake.ask = ask  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (Late("late"), "ok", "timeout", exits.INCOMPLETE),
        (Late("late"), "wrong", "timeout", exits.WRONG),
        (Late("late", who="judge"), "ok", "judge failed", exits.INCOMPLETE),
        (Died.of(-9, who="judge"), "ok", "judge failed", exits.INCOMPLETE),
        (Died.of(-9), "ok", "crashed", exits.WRONG),
    ],
)
def test_a_part_without_a_reply_has_the_results_of_its_judged_cases(
    fake: Fake,
    capsys: pytest.CaptureFixture[str],
    error: VerifyError,
    status: str,
    kind: str,
    code: int,
) -> None:
    ending(fake, error, status)
    assert main(RUN) == code
    record = load("run.json")
    two = next(kernel for kernel in record.kernels if kernel.name == "two")
    [found] = [each for each in two.results if each.dtype == "bfloat16"]
    assert (found.status, str(found.basis)) == (status, "observed over 65,536 cases, seed 0, 1 of 9 planned cases")
    assert [gap.kind for gap in record.incomplete] == [kind]
    assert two.status == ("crashed" if kind == "crashed" else status)
    assert "1 of 9 planned cases" in capsys.readouterr().out


def test_a_kernel_that_failed_stays_so_whatever_its_cases_show(fake: Fake) -> None:
    ending(fake, KernelError("it replaced torch.exp"), "ok")
    assert main(RUN) == exits.WRONG
    two = next(kernel for kernel in load("run.json").kernels if kernel.name == "two")
    assert two.status == "error" and [each.dtype for each in two.results] == ["bfloat16", "float16"]
