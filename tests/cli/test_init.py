"""`verify init`: a workflow, and declarations of a package's functions, filled in where the signature is certain."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from torch.nn import functional

from tests.cli.here import said
from tests.docs.commands import check_commands
from verify import backends
from verify.cases import Case
from verify.cli import init
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


def fused_silu(x):
    y = torch.empty_like(x)
    silu_kernel[(triton.cdiv(max(x.numel(), 1), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y


def silu(x, scale=1.0):
    return fused_silu(x) * scale


def blend(a, b, size: float, *, mode="linear", at):
    return fused_silu(a) * size + b


def rms_norm(x, weight=None, eps: float = 1e-6):
    fused_silu(x)
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)


def relu_(A: torch.Tensor):
    silu_kernel[(0,)](A, A, 0, BLOCK=16)
    return A.clamp_(min=0)


def atan2(input, other):
    fused_silu(input)
    return torch.atan2(input, other)


def elu(x, alpha=0.5):
    return fused_silu(x) * alpha


class Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return tanh_forward(x)

    @staticmethod
    def backward(ctx, dy):
        return dy / 2


def tanh_forward(x):
    fused_silu(x)
    return torch.tanh(x)


def _hidden(x):
    return fused_silu(x)


def plain(x):
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


def test_every_public_function_that_launches_a_kernel_has_a_declaration(project: Path) -> None:
    (project / "pyproject.toml").write_text('[project]\nname = "toykernels"\n')
    done = said("init", cwd=project)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "filled toykernels.act.fused_silu\nfound  toykernels.act.silu\nfound  toykernels.act.blend\n"
        "filled toykernels.act.rms_norm\nfilled toykernels.act.relu_\nfilled toykernels.act.atan2\n"
        "found  toykernels.act.elu\nfilled toykernels.act.Tanh.apply\n"
        "wrote  accuracy.py\nwrote  test_accuracy.py\nwrote  .github/workflows/accuracy.yml\n"
        "to do  set VERIFY in .github/workflows/accuracy.yml: pip does not know where this verify came from\n"
        "functions to declare: 8, of these filled in: 5\nnext: verify run accuracy.py\n"
    )
    [gate] = [words for words in check_commands(project / ".github/workflows/accuracy.yml") if words[0] == "gate"]
    assert gate[1] == "run.json" and "-e ." in (project / ".github/workflows/accuracy.yml").read_text()


def test_the_workflow_installs_the_verify_that_wrote_it(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the repository at its commit, or from a wheel of the project; findings reach the pull request."""
    where = {"url": "https://host/o/r", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}}
    known = SimpleNamespace(read_text=lambda name: json.dumps(where))
    monkeypatch.setattr(init, "distribution", lambda name: known)

    def written() -> dict[str, Any]:
        (project / init.WORKFLOW).unlink(missing_ok=True)
        assert "to do" not in said("init", cwd=project).stdout
        return dict(yaml.safe_load((project / init.WORKFLOW).read_text())["jobs"]["gate"])

    job = written()
    assert job["env"] == {"VERIFY": "git+https://host/o/r@c0ffee"}
    used = [step["uses"].partition("@")[0] for step in job["steps"] if "uses" in step]
    assert used[2:] == ["github/codeql-action/upload-sarif", "actions/upload-artifact"]
    [gate] = [words for words in check_commands(project / init.WORKFLOW) if words[0] == "gate"]
    assert {"--github", "--sarif", "--junit"} <= set(gate)
    (project / "vendor").mkdir()
    (project / "vendor" / "verify_kernels-0.1.0-py3-none-any.whl").touch()
    assert written()["env"] == {"VERIFY": "vendor/verify_kernels-0.1.0-py3-none-any.whl"}


def test_the_workflow_finds_a_package_in_src_that_is_not_installed(project: Path) -> None:
    """Every kernel would be skipped there, and the gate incomplete."""
    (project / "src").mkdir()
    (project / "toykernels").rename(project / "src" / "toykernels")
    path = project / init.WORKFLOW
    for folder in ("src", "src/toykernels/act.py"):
        assert "to do  export PYTHONPATH=src: accuracy.py imports" in said("init", folder, cwd=project).stdout
        assert yaml.safe_load(path.read_text())["jobs"]["gate"]["env"]["PYTHONPATH"] == "src"
        path.unlink()
    (project / "pyproject.toml").touch()
    assert "PYTHONPATH" not in said("init", "src", cwd=project).stdout
    assert "PYTHONPATH" not in path.read_text()


@pytest.fixture(autouse=True)
def unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides where this verify was installed from."""
    monkeypatch.setattr(init, "distribution", lambda name: SimpleNamespace(read_text=lambda name: None))


def test_what_is_filled_in_runs_without_an_edit(project: Path) -> None:
    said("init", "toykernels/act.py", cwd=project)
    kernels = {kernel.name: kernel for kernel in load(Target("accuracy.py"))}
    assert all(each.requires == ("toykernels",) for each in kernels.values())
    wanted = {
        "fused_silu": functional.silu,
        "rms_norm": lambda x, weight: functional.rms_norm(x, x.shape[-1:], weight, 1e-6),
        "relu_": torch.relu,  # it writes into its operand, so the declaration gives it a copy
        "atan2": torch.atan2,
        "Tanh": torch.tanh,
    }
    assert list(kernels) == list(wanted)
    for name, define in wanted.items():
        measured = run_kernel(kernels[name], Case(dtype="float32", dims=(2, 3), fill="randn"), backends.select().device)
        torch.testing.assert_close(measured.results["y"], define(*measured.inputs.values()))


def test_a_skeleton_is_a_declaration_once_its_comment_signs_and_its_gaps_are_gone(project: Path) -> None:
    said("init", "toykernels/act.py", cwd=project)
    [block] = [each for each in (project / "accuracy.py").read_text().split("\n\n\n") if "blend" in each]
    place, title, *lines = block.splitlines()
    assert place == "# toykernels/act.py:24"
    assert title == "# TODO fill in like= and shapes=, then remove the # of the lines below"
    assert [line.removeprefix("#").removeprefix(" ") for line in lines] == [
        '@verify.kernel(like=..., shapes={"a": "...", "b": "...", "size": "...", "at": "..."}, requires="toykernels")',
        "def blend(a, b, size, at):",
        "    from toykernels.act import blend as kernel",
        "",
        "    return kernel(a, b, size, at=at)",
    ]


@pytest.mark.usefixtures("warm")
def test_the_test_file_has_the_laws_of_each_declaration(project: Path) -> None:
    """Also of those that are filled in later."""
    said("init", "toykernels/act.py", cwd=project)
    more = "\n\n@verify.kernel(op='silu', dtypes=['float32'], requires='toykernels')\ndef later(x):\n    return x\n"
    (project / "accuracy.py").write_text((project / "accuracy.py").read_text() + more)
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "--verify-profile=quick", "test_accuracy.py"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_accuracy.py::test_later[accuracy-float32]" in done.stdout
    assert "test_accuracy.py::test_fused_silu[special-values-bfloat16]" in done.stdout


def test_what_importing_a_module_needs_and_lacks_is_on_the_screen(project: Path) -> None:
    """Also what its package and its neighbours import; not what `try` or a function imports."""
    package = project / "toykernels"
    (package / "plain.py").write_text("import no_such_package.part\n")
    (package / "act.py").write_text(f"try:\n    import nor_this\nexcept ImportError:\n    pass\n{KERNELS}")
    assert "to do  install" not in said("init", cwd=project).stdout
    (project / "accuracy.py").unlink()
    (package / "__init__.py").write_text("from . import plain\n")
    done = said("init", cwd=project)
    assert "to do  install no_such_package: importing 8 of these needs it\n" in done.stdout
    (project / "accuracy.py").unlink()
    (package / "__init__.py").write_text("")
    (package / "act.py").write_text(f"from .plain import helper\nimport nor_this\n{KERNELS}")
    found = json.loads(said("init", "--json", "-", cwd=project).stdout)
    assert found["missing"] == {"no_such_package": 8, "nor_this": 8}


def test_files_of_other_devices_and_tests_are_left_out(project: Path) -> None:
    for place in ("backends/_ascend/act.py", "tests/act.py", "act_npu.py", "backends/nvidia/act.py"):
        path = project / "toykernels" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(KERNELS.replace("blend", "blended"))
    found = json.loads(said("init", "--json", "-", cwd=project).stdout)["functions"]
    assert {name.rpartition(".")[0].removesuffix(".Tanh") for name in found} == {
        "toykernels.act",
        "toykernels.backends.nvidia.act",
    }


def test_a_file_that_exists_is_never_changed(project: Path) -> None:
    (project / "accuracy.py").write_text("mine = 1\n")
    done = said("init", "--json", "-", cwd=project)
    assert json.loads(done.stdout)["written"] == ["test_accuracy.py", ".github/workflows/accuracy.yml"]
    assert (project / "accuracy.py").read_text() == "mine = 1\n"
    done = said("init", cwd=project)
    assert done.returncode == 2 and "nothing was written: accuracy.py" in done.stderr


def test_without_functions_nothing_is_written(project: Path) -> None:
    done = said("init", "toykernels/__init__.py", cwd=project)
    assert done.returncode == 2
    assert "no public function in toykernels/__init__.py launches a Triton kernel" in done.stderr
    assert "PATH is a folder or a Python file; there is none at nowhere" in said("init", "nowhere", cwd=project).stderr
    assert not (project / "accuracy.py").exists()
