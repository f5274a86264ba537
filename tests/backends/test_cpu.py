"""The backend cpu: PyTorch code is judged where neither a GPU nor Triton is."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import torch

from mutants import family
from mutants.matrix import try_law
from verify import backends
from verify.laws import registry
from verify.laws.engine import PROFILES
from verify.records import files
from verify.records.readings import arch_of

ROOT = Path(__file__).resolve().parents[2]
GPU = torch.cuda.is_available()

# what Python finds where Triton is not installed
HIDDEN = """
import importlib.machinery as machinery
own = machinery.PathFinder.find_spec.__func__
def find_spec(cls, name, path=None, target=None):
    return None if name.partition(".")[0] == "triton" else own(cls, name, path, target)
machinery.PathFinder.find_spec = classmethod(find_spec)
"""

KERNEL = """
import sys, torch, verify

@verify.kernel(op="silu", dtypes=["float16"], max_ulp=2, gradients=False)
def mine(x):
    assert "triton" not in sys.modules
    return torch.nn.functional.silu(x.double()).to(x.dtype)
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cpu")
    venv.create(folder / "hidden", symlinks=True)
    [site] = (folder / "hidden" / "lib").glob("python*/site-packages")
    (site / "hides_triton.py").write_text(HIDDEN)
    folders = [path for path in sys.path if Path(path).is_dir()]
    (site / "here.pth").write_text("\n".join(["import hides_triton", *folders]))
    (folder / "accuracy.py").write_text(KERNEL)
    (folder / "pyproject.toml").touch()
    return folder


def verify(project: Path, *arguments: str, triton: bool = False) -> subprocess.CompletedProcess[str]:
    outside = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    python = sys.executable if triton else str(project / "hidden" / "bin" / "python")
    command = [python, "-m", "verify", *arguments]
    environment = {**outside, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.skipif(GPU, reason="needs a machine without a GPU")
def test_it_is_chosen_without_a_gpu_and_without_triton(project: Path) -> None:
    done = verify(project, "run", "accuracy.py", "--profile", "quick", "--json", "chosen.json")
    run = files.load(project / "chosen.json")
    [kernel] = run.kernels
    assert run.backend == "cpu" and arch_of(run) == backends.Cpu("cpu").environment()["arch"] and not run.incomplete, (
        done.stderr
    )
    assert not [law for law in kernel.laws if law.cause == "failed"]
    skipped = {law.law: law.message for law in kernel.laws if law.status == "skipped"}
    assert skipped["side stream"] == "needs a CUDA device"
    assert skipped["configuration independence"] == "the kernel launches no Triton autotuner"
    y = next(result for result in kernel.results if result.output == "y")
    assert y.basis.kind == "exhaustive" and y.status == "wrong", "-inf gives NaN in PyTorch"
    asked = verify(project, "doctor")
    assert "backend   cpu on cpu" in asked.stdout and "optional  triton: runs Triton kernels" in asked.stdout
    assert asked.returncode == 0


def test_a_law_finds_its_mutant_there() -> None:
    [mutant] = [each for each in family("laws") if each.killed_by == ("causality",)]
    law = registry.get("causality")
    fates = [
        try_law(law, kernel, backends.Cpu("cpu"), PROFILES["quick"]).fate for kernel in (mutant.kernel, mutant.twin)
    ]
    assert fates == ["killed", "survived"]
