"""`verify init` in a project of somebody else: what it writes runs, and nothing that exists is touched."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from tests.cli.here import said
from tests.docs.commands import check_commands
from tests.laws.trial import attempt
from verify import backends
from verify.cases import Case
from verify.declare.declaration import Kernel
from verify.declare.discovery import load
from verify.declare.target import Target
from verify.measure.call import run_kernel

KERNELS = """
import triton
import triton.language as tl


@triton.jit
def _silu(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n).to(tl.float32)
    tl.store(y_ptr + at, x * tl.sigmoid(x), mask=at < n)


@triton.jit
def _rms(x_ptr, w_ptr, y_ptr, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + at, mask=at < n, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * n + at, x * tl.rsqrt(tl.sum(x * x) / n + eps) * w, mask=at < n)
"""
ACT = """
import torch
import triton

from ._kernels import _silu


def _launch(x):
    y = torch.empty_like(x)
    _silu[(triton.cdiv(max(x.numel(), 1), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y


def fused_silu(x):
    return _launch(x.contiguous())


def blend(a, b, amount: float, mode="linear"):
    return _launch(a) * amount + b


def unrelated(x):
    return x
"""
NORM = """
import torch
import triton

from . import _kernels


class RMSNormFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        flat = x.contiguous().view(-1, x.shape[-1])
        y = torch.empty_like(flat)
        kernel = _kernels._rms[(flat.shape[0],)]
        kernel(flat, weight, y, flat.shape[1], eps, BLOCK=triton.next_power_of_2(flat.shape[1]))
        return y.view_as(x)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = tmp_path / "toykernels"
    package.mkdir()
    hidden = "from .norm import RMSNormFunction as norm"  # as packages hide a module behind its function
    for name, text in {"__init__": hidden, "_kernels": KERNELS, "act": ACT, "norm": NORM}.items():
        (package / f"{name}.py").write_text(text)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "toykernels"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] in ("toykernels", "accuracy", "test_accuracy")]:
        del sys.modules[name]


def results(kernel: Kernel) -> dict[str, torch.Tensor]:
    """Operands and results of one call."""
    measured = run_kernel(kernel, Case(dtype="float32", dims=(2, 3), fill="randn"), backends.select().device)
    return {name: value for name, value in measured.inputs.items() if value is not None} | measured.results


def test_what_is_written_runs(project: Path) -> None:
    done = said("init", cwd=project)
    assert done.returncode == 0, done.stderr
    assert "fused_silu       toykernels/act.py:14  like=functional.silu" in done.stdout
    assert "blend            toykernels/act.py:18  TODO: say what it computes" in done.stdout
    assert done.stdout.endswith("3 functions launch Triton kernels; 1 to be filled in\nnext: verify run accuracy.py\n")
    kernels = {kernel.name: kernel for kernel in load(Target("accuracy.py"))}
    assert set(kernels) == {"fused_silu", "RMSNormFunction"}
    silu, norm = (results(kernels[name]) for name in ("fused_silu", "RMSNormFunction"))
    torch.testing.assert_close(silu["y"], functional.silu(silu["x"]))
    torch.testing.assert_close(norm["y"], functional.rms_norm(norm["x"], (3,), norm["weight"], 1e-6))
    for kernel in kernels.values():  # the laws of the test can be tried
        assert attempt("custom operators", kernel).status == "skipped"
    tests = importlib.import_module("test_accuracy")
    assert sorted(name for name in vars(tests) if name.startswith("test_")) == [
        "test_RMSNormFunction",
        "test_fused_silu",
    ]
    check_commands(project / ".github" / "workflows" / "accuracy.yml")


def test_the_test_runs_in_a_process_of_its_own(project: Path) -> None:
    """Without a GPU the kernels have to be imported to be interpreted, which this process did long ago."""
    said("init", cwd=project)
    chosen = "fused_silu and custom-operators and float32"
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "test_accuracy.py", "-k", chosen]
    done = subprocess.run(command, capture_output=True, text=True, cwd=project, timeout=120)
    assert "1 skipped, " in done.stdout and "the kernel calls no custom operator" in done.stdout + done.stderr, (
        done.stdout
    )


def test_a_todo_runs_once_it_is_filled_in(project: Path) -> None:
    said("init", cwd=project)
    lines = (project / "accuracy.py").read_text().splitlines()
    start = lines.index("# TODO blend: fill in like= and shapes=, then take away the # in front of these lines.")
    body = [line.removeprefix("# ") for line in lines[start + 1 :] if line.startswith("#")]
    body = body[: body.index("    return _blend(a, b, amount=...)") + 1]
    filled = "\n".join(body).replace("lambda a, b: ...", "lambda a, b: functional.silu(a) * 0.5 + b")
    filled = filled.replace("amount=...", "amount=0.5")
    (project / "accuracy.py").write_text("\n".join(lines[:start]) + "\n" + filled + "\n")
    [blend] = load(Target("accuracy.py", "blend"))
    found = results(blend)
    torch.testing.assert_close(found["y"], functional.silu(found["a"]) * 0.5 + found["b"])


def test_a_todo_has_the_shapes_that_names_suggest(tmp_path: Path) -> None:
    jit = "import triton\n@triton.jit\ndef _kernel(x): ...\n"
    (tmp_path / "losses.py").write_text(jit + "def loss(logits, class_weight, labels):\n    _kernel[(1,)](logits)\n")
    assert said("init", cwd=tmp_path).returncode == 0
    written = (tmp_path / "accuracy.py").read_text()
    assert '#     shapes={"logits": "m n", "class_weight": "n", "labels": "m"},' in written
    assert '#     integers={"labels": "0 <= labels < n"},' in written


def test_a_file_that_exists_is_never_changed(project: Path) -> None:
    (project / "accuracy.py").write_text("mine = 1\n")
    done = said("init", "--json", "-", cwd=project)
    assert json.loads(done.stdout)["written"] == [".github/workflows/accuracy.yml"]
    assert (project / "accuracy.py").read_text() == "mine = 1\n"
    assert not (project / "test_accuracy.py").exists()  # it would name what the other file does not have
    before = {path: path.read_bytes() for path in project.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    done = said("init", cwd=project)
    assert done.returncode == 2 and "nothing was written: accuracy.py" in done.stderr
    assert all(path.read_bytes() == text for path, text in before.items())


def test_without_kernels_nothing_is_written(project: Path) -> None:
    done = said("init", "toykernels/__init__.py", cwd=project)
    assert done.returncode == 2
    assert "no function in toykernels/__init__.py launches a @triton.jit kernel as kernel[grid](...)" in done.stderr
    assert "PATH is a folder or a Python file; there is none at nowhere" in said("init", "nowhere", cwd=project).stderr
    assert sorted(os.listdir(project)) == ["pyproject.toml", "toykernels"]


def test_a_package_that_is_not_importable_from_here_is_said(project: Path) -> None:
    (project / "src").mkdir()
    (project / "toykernels").rename(project / "src" / "toykernels")
    assert "importable: pip install -e .\n" in said("init", cwd=project).stdout
    (project / "accuracy.py").unlink()
    (project / "pyproject.toml").unlink()
    assert "importable: export PYTHONPATH=src\n" in said("init", cwd=project).stdout
