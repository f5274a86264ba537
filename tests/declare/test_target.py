"""What a user names, and what a worker tells of it: one reading of FILE::KERNEL, one way to a KernelRun."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.golden import answers
from verify.declare.lines import declared_at, implemented_at
from verify.declare.target import Declared, Target
from verify.records.record import KernelRun


def read(text: str) -> tuple[object, ...]:
    """What it names, whether that is a file and stands in for the kernel, and the command that imports it."""
    target = Target.parse(text)
    assert str(target) == text and Target.parse(str(target.of("g"))) == Target(target.source, "g")
    return target.source, target.kernel, target.file, target.is_file, target.stands_in, target.import_command()


def test_a_target_is_read_and_said_alike_or_refused_with_the_rule() -> None:
    answers(Path(__file__).parent / "snapshots" / "targets.txt", globals())


TARGET = Target.parse("a.py::k")
DECLARED = Declared("k.py::f", "f", "gelu", "elementwise", {"a": 1}, "float32", ("cuda",), ("float32",), peer=True)


def test_what_the_record_says_of_a_kernel_comes_from_its_declaration() -> None:
    found = DECLARED.run("crashed", "SIGSEGV", hint="verify run k.py::f", seconds=1.5)
    assert found == KernelRun(
        "f", "k.py::f", "gelu", {"a": 1}, "float32", "crashed", [], "SIGSEGV", "verify run k.py::f", [], True, [], 1.5
    )
    assert DECLARED.run("ok").results == []


def test_why_a_kernel_cannot_run_here() -> None:
    assert DECLARED.unfit("cuda", "run") == ""
    assert DECLARED.unfit("interpreter", "hunt") == "declared for cuda; this hunt is on interpreter"
    lacking = msgspec.structs.replace(DECLARED, lacking=("quack", "liger"))
    assert lacking.unfit("cuda", "run") == lacking.missing() == "needs quack, liger, which is not installed"


def test_a_package_of_the_project_is_one_step_from_being_importable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lacking = msgspec.structs.replace(DECLARED, lacking=("mine",))
    assert lacking.install == ""
    Path("src/mine").mkdir(parents=True)
    assert lacking.install == "export PYTHONPATH=src"
    Path("pyproject.toml").touch()
    assert lacking.install == "pip install -e ."


def line(source: str) -> int:
    """Where a file or module with this text declares the kernel k."""
    Path("a.py").write_text(source)
    Path("src/package").mkdir(parents=True, exist_ok=True)
    Path("src/package/__init__.py").write_text(source)
    assert declared_at(Target.parse("package::k@eager")) == ("src/package/__init__.py", declared_at(TARGET)[1])
    return declared_at(TARGET)[1]


def test_a_declaration_is_found_by_reading_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert declared_at(TARGET) == ("a.py", 1)
    answers(Path(__file__).parent / "snapshots" / "lines.txt", globals())


USES = """
import own, own.act as n
import verify, torch
from own import act
from elsewhere import lost
a = verify.kernel(op="silu", name="b")(own.act.silu)
c = verify.kernel(op="silu")(n.silu)
d = verify.kernel(op="silu")(act.silu)
@verify.kernel(op="silu")
def e(x):
    from own.act import silu as kernel
    return torch.clone(kernel(x.contiguous()))
@verify.kernel(op="silu")
def f(x):
    from own.act import Other as kernel
    return kernel.apply(x)
g = verify.kernel(op="silu")(torch.nn.functional.silu)
h = verify.kernel(op="silu")(lost)
@verify.kernel(op="silu")
def i(x): return x * torch.sigmoid(x)
"""


def test_the_source_of_a_kernel_is_found_through_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own").mkdir()
    Path("own/__init__.py").write_text("from . import act\nfrom own import circle\n")
    Path("own/act.py").write_text("def silu(x): ...\n\nclass Other: ...\n")
    Path("a.py").write_text(USES)
    found = {name: implemented_at(Target.parse(f"a.py::{name}")) for name in "bcdefghi"}
    silu = ("own/act.py", 1)
    assert found == {**dict.fromkeys("bcde", silu), "f": ("own/act.py", 3), **dict.fromkeys("ghi")}
    assert implemented_at(Target.parse("a.py::none")) is None
    Path("a.py").write_text("from own import circle\nk = verify.kernel(op='silu')(circle)\n")
    assert implemented_at(Target.parse("a.py::k")) is None  # a name that its module imports from itself
