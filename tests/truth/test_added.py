"""A dtype that is added: ENTRY, one line of the table of formats, is all that it takes.

verify knows every dtype of PyTorch that one of its formats describes. The test takes one out of a copy of the package,
where it is refused then like any unknown name, and adds it again.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.here import Said, as_process
from verify.records import files

ROOT = Path(__file__).resolve().parents[2]
NAME = "float8_e5m2"
ENTRY = f'        Format("{NAME}", bits=8, precision=3, emin=-14, emax=15),\n'

KERNELS = f"""
import torch, verify

declared = dict(dtypes=["{NAME}"], backends=["cpu"])

def silu(x):
    wide = x.double()
    y = torch.where(wide.isneginf(), -0.0, wide * torch.sigmoid(wide))
    return torch.where((y == 0) & (wide < 0), -0.0, y)

@verify.kernel(op="silu", gradients=False, **declared)
def right(x):
    return silu(x).to(x.dtype)

@verify.kernel(like=torch.nn.functional.silu, gradients=False, **declared)
def right_by_like(x):
    return silu(x).to(x.dtype)

@verify.kernel(op="silu", gradients=False, **declared)
def wrong(x):
    return (silu(x) - 0.5 * (x.double() == 4)).to(x.dtype)

@verify.kernel(op="silu", gradients=False, **declared)
def zeros(x):
    return torch.zeros_like(x)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the package that does not know the dtype, and kernels in it."""
    shutil.copytree(ROOT / "verify", tmp_path / "verify")
    table = tmp_path / "verify/truth/formats.py"
    assert table.read_text().count(ENTRY) == 1
    table.write_text(table.read_text().replace(ENTRY, ""))
    (tmp_path / "accuracy.py").write_text(KERNELS)
    (tmp_path / "pyproject.toml").touch()
    return tmp_path


def verify(project: Path, *arguments: str) -> Said:
    return as_process(*arguments, cwd=project, without=("CI", "TRITON_INTERPRET"), PYTHONPATH=str(project))


def test_one_line_adds_a_dtype(project: Path) -> None:
    table = project / "verify/truth/formats.py"
    refused = verify(project, "run", "accuracy.py", "--backend", "cpu", "--jobs", "1")
    assert refused.returncode == 2 and "dtypes are floating-point formats" in refused.stderr, refused.stderr

    lines = table.read_text().splitlines(keepends=True)
    lines.insert(next(at for at, line in enumerate(lines) if line.startswith("        Format(")), ENTRY)
    table.write_text("".join(lines))
    done = verify(project, "run", "accuracy.py", "--backend", "cpu", "--jobs", "1", "--json", "run.json")
    kernels = {kernel.name: kernel for kernel in files.load(project / "run.json").kernels}
    assert {name: kernel.status for name, kernel in kernels.items()} == {
        "right": "ok", "right_by_like": "ok", "wrong": "wrong", "zeros": "wrong",
    }, done.stdout  # fmt: skip
    for kernel in kernels.values():
        (result,) = kernel.results
        assert (result.dtype, result.limit, result.basis.n) == (NAME, 0.51, 256) and result.basis.kind == "exhaustive"
    assert 0.49 < kernels["right"].results[0].figures.max_ulp <= 0.5
    assert 0.85 < kernels["wrong"].results[0].figures.max_ulp < 0.86

    page = verify(project, "report", "run.json", "--html", "page.html")
    assert page.returncode == 0 and "0.857 ULP at x = 4 (0x44)" in (project / "page.html").read_text()
