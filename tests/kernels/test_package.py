"""kernels/package: the wheel's name, version and README, and the kernels under another name. `make dist` builds it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import verify

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "kernels" / "package"
SETTINGS = tomllib.loads((PACKAGE / "pyproject.toml").read_text())


def test_the_wheel_has_every_kernel_and_verifys_version():
    folders = {(PACKAGE / folder).resolve() for folder in SETTINGS["tool"]["setuptools"]["package-dir"].values()}
    modules = [path for path in (ROOT / "kernels").rglob("*.py") if path.parent.name not in ("bench", "derive")]
    assert {path.parent for path in modules} == folders
    assert SETTINGS["project"]["version"] == verify.__version__
    assert {re.split("[>=]", each)[0] for each in SETTINGS["project"]["dependencies"]} == {"torch", "triton"}
    assert (PACKAGE / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_five_lines_of_the_readme_give_a_result(tmp_path):
    top = tmp_path / "verify_kernels_triton"
    top.mkdir()
    (top / "__init__.py").symlink_to(PACKAGE / "__init__.py")
    (top / "kernels").symlink_to(ROOT / "kernels")
    code = re.search(r"```python\n(.*?)```", (PACKAGE / "README.md").read_text(), re.DOTALL)[1]
    assert len(code.split("\n\n")) == 2 and len(code.splitlines()) == 6
    code += "import sys, verify_kernels_triton as v; assert all(getattr(v, n) is not None for n in v.__all__)\n"
    code += "assert v.gelu.__module__.endswith('.kernels.gelu') and 'kernels' not in sys.modules\n"
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ran.stdout.startswith("tensor([[-1.") and "dtype=torch.bfloat16" in ran.stdout, ran.stderr
