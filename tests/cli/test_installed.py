"""verify as somebody installs it: the wheel, an environment without Triton, and what an import costs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.report.sample import passing
from verify.backends import gpu_expected
from verify.records.files import save

ROOT = Path(__file__).parents[2]
OLD = int(version("setuptools").split(".")[0]) < 77


def python(code: str, *, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, env=os.environ | environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built without a network by the backend that pyproject.toml names."""
    if OLD:
        pytest.skip("pyproject.toml needs setuptools 77: make .venv/.installed")
    source = tmp_path_factory.mktemp("source")
    shutil.copytree(ROOT / "verify", source / "verify", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    code = "from setuptools import build_meta; build_meta.build_wheel('dist')"
    python(code, cwd=source)
    [found] = (source / "dist").glob("*.whl")
    return found


def test_the_wheel_has_every_file_of_the_package_and_no_other(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        [points] = [archive.read(name).decode() for name in archive.namelist() if name.endswith("entry_points.txt")]
        [about] = [archive.read(name).decode() for name in archive.namelist() if name.endswith("METADATA")]
    kept = [path for path in (ROOT / "verify").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert held == {str(path.relative_to(ROOT)) for path in kept}
    assert "verify = verify.cli:main" in points and "verify = verify.plugin" in points
    assert "Requires-Dist: torch>=2.10" in about
    assert "Requires-Python: >=3.11" in about and 'Requires-Dist: triton>=3.6; platform_system == "Linux"' in about


INSTALLED = """
import json, sys
sys.modules["triton"] = None  # what an import of something that is not there meets
import torch, verify
from verify import backends
from verify.cli import main
assert all(getattr(verify, name) is not None for name in verify.__all__)
x = torch.ones(3)
verify.assert_close(torch.nn.functional.silu(x), like=torch.nn.functional.silu, inputs=(x,))
verify.kernel(op="silu", dtypes=["float32"])(torch.nn.functional.silu)
try:
    backends.activate(backends.select("interpreter"))
except verify.UsageError as error:
    print(error)
main(["report", "run.json", "--html", "page.html"])  # which needs the assets
print(main(["doctor"]))
print(verify.__file__)
"""


@pytest.mark.slow  # five seconds of processor time; the workflow `release` tries the wheel
def test_the_wheel_works_without_the_repository_and_without_triton_up_to_a_kernel(wheel: Path, tmp_path: Path) -> None:
    """Unpacked, which is what installing it does."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    save(passing(), tmp_path / "run.json")
    said = python(INSTALLED, cwd=tmp_path, PYTHONPATH=str(tmp_path / "site"))
    assert "kernels run on Triton, compiled for a GPU or interpreted on a CPU, and triton is not installed here" in said
    assert "next: pip install triton  (verify doctor" in said
    # PyTorch code can be judged without it, but where there is a GPU it is needed
    mark, ending = ("MISSING ", "incomplete: something needed is missing\nnext: pip install triton\n3")
    if not gpu_expected():
        mark, ending = "optional", "ready\nnext: verify run\n0"
    assert f"{mark}  triton: runs Triton kernels. Get it: pip install triton\n" in said
    ending += f"\n{tmp_path}/site/verify/__init__.py\n"
    assert said.endswith(ending)
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_another_distribution_of_the_import_name_is_named(wheel: Path, tmp_path: Path) -> None:
    """The assertion library `verify` has an `__init__.py` and a `base.py`, and whichever is installed last stays."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    (tmp_path / "verify" / "base.py").write_text("")
    command = [sys.executable, "-c", "import sys; from verify.cli import main; sys.exit(main(sys.argv[1:]))"]
    ours = subprocess.run([*command, "doctor"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "another distribution, verify, is installed in the same folder" in ours.stdout
    (tmp_path / "verify" / "__init__.py").write_text("from .base import *\n__version__ = '1.1.1'\n")
    theirs = subprocess.run([*command, "list"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert theirs.returncode == 2
    assert "the distribution 'verify' replaced files of 'verify-kernels'" in theirs.stderr
    assert "pip install --force-reinstall verify-kernels" in theirs.stderr
