"""`verify init`: a workflow, and declarations of somebody else's functions that run once they are filled in."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from tests.cli.here import said
from tests.docs.commands import check_commands
from verify import backends
from verify.cases import Case
from verify.declare.discovery import load
from verify.declare.target import Target
from verify.measure.call import run_kernel

KERNELS = """
import torch
import triton
import triton.language as tl


@triton.jit
def silu_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n).to(tl.float32)
    tl.store(y_ptr + at, x * tl.sigmoid(x), mask=at < n)


def fused_silu(x, scale=1.0):
    y = torch.empty_like(x)
    silu_kernel[(triton.cdiv(max(x.numel(), 1), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y * scale


def blend(a, b, amount: float, *, mode="linear"):
    return fused_silu(a) * amount + b


def _hidden(x):
    return x


def nothing():
    return 1
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    package = tmp_path / "toykernels"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "act.py").write_text(KERNELS)
    (package / "plain.py").write_text("def helper(x):\n    return x\n")
    (package / "template.py").write_text("import triton\n{{ not Python }}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] in ("toykernels", "accuracy")]:
        del sys.modules[name]


def test_every_public_function_beside_triton_has_a_declaration_to_fill_in(project: Path) -> None:
    (project / "pyproject.toml").write_text('[project]\nname = "toykernels"\n')
    done = said("init", cwd=project)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "found toykernels.act.fused_silu\nfound toykernels.act.blend\nwrote accuracy.py\n"
        "wrote .github/workflows/accuracy.yml\nfunctions to declare: 2\n"
        "next: fill in like= in accuracy.py, then verify run accuracy.py\n"
    )
    written = project / "accuracy.py"
    compile(written.read_text(), "accuracy.py", "exec")
    assert "declares no kernel" in said("run", "accuracy.py", cwd=project).stderr
    [gate] = [words for words in check_commands(project / ".github/workflows/accuracy.yml") if words[0] == "gate"]
    assert gate[1] == "run.json" and "-e ." in (project / ".github/workflows/accuracy.yml").read_text()


def test_a_declaration_runs_once_it_is_filled_in(project: Path) -> None:
    said("init", "toykernels/act.py", cwd=project)
    head, _, blend = (project / "accuracy.py").read_text().split("\n\n\n")
    lines = [line.removeprefix("# ") for line in blend.splitlines()]
    filled = "\n".join(lines[lines.index("from toykernels.act import blend as _blend") :])
    filled = filled.replace("like=...", "like=lambda a, b: torch.nn.functional.silu(a) * 0.5 + b")
    filled = filled.replace('shapes={"a": "...", "b": "...", "amount": "..."}, ', "").replace(
        "def blend(a, b, amount)", "def blend(a, b)"
    )
    (project / "accuracy.py").write_text(head + "\n" + filled.replace("_blend(a, b, amount)", "_blend(a, b, 0.5)"))
    [kernel] = load(Target("accuracy.py", "blend"))
    measured = run_kernel(kernel, Case(dtype="float32", dims=(2, 3), fill="randn"), backends.select().device)
    a, b = (value for value in measured.inputs.values() if value is not None)
    torch.testing.assert_close(measured.results["y"], functional.silu(a) * 0.5 + b)


def test_a_file_that_exists_is_never_changed(project: Path) -> None:
    (project / "accuracy.py").write_text("mine = 1\n")
    done = said("init", "--json", "-", cwd=project)
    assert json.loads(done.stdout)["written"] == [".github/workflows/accuracy.yml"]
    assert (project / "accuracy.py").read_text() == "mine = 1\n"
    done = said("init", cwd=project)
    assert done.returncode == 2 and "nothing was written: accuracy.py" in done.stderr


def test_without_functions_nothing_is_written(project: Path) -> None:
    done = said("init", "toykernels/__init__.py", cwd=project)
    assert done.returncode == 2
    assert "no public function that takes an argument in toykernels/__init__.py" in done.stderr
    assert "PATH is a folder or a Python file; there is none at nowhere" in said("init", "nowhere", cwd=project).stderr
    assert not (project / "accuracy.py").exists()
