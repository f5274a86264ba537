"""docs/foreign-kernels.md: a stranger who copies its blocks sees what it shows."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

from tests.cli.here import Said, said
from tests.docs.printed import rows

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "foreign-kernels.md").read_text()
PYTHON = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, flags=re.DOTALL)
SHOWN = re.findall(r"```text\n(.*?)```", PAGE, flags=re.DOTALL)


def test_every_block_has_a_file_name() -> None:
    assert [name for name, _ in PYTHON] == ["mylib.py", "accuracy.py", "mylib.py", "theirs.py"]
    assert len(PYTHON) == PAGE.count("```python")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the page shows the CPU's figures")
def test_the_page_shows_what_the_commands_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    declaration = dict(PYTHON)["accuracy.py"]
    naive, stable = (text for name, text in PYTHON if name == "mylib.py")

    def ran(library: str, folder: str) -> Said:
        for name, text in (("mylib.py", library), ("accuracy.py", declaration)):
            (tmp_path / folder).mkdir(exist_ok=True)
            (tmp_path / folder / name).write_text(text)
        sys.modules.pop("mylib", None)
        return said("run", "accuracy.py", "--jobs", "1", cwd=tmp_path / folder)

    first = ran(naive, "before")
    assert first.returncode == 1
    assert set(rows(SHOWN[0] + SHOWN[1])) <= set(rows(first.stdout))
    second = ran(stable, "after")
    assert second.returncode == 0, second.stdout
    assert set(rows(SHOWN[2])) <= set(rows(second.stdout))


def test_what_to_look_for_shows_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    (tmp_path / "other.py").write_text(
        """
import verify
from torch.nn.functional import gelu, silu


@verify.kernel(op="geglu_split", dtypes=["bfloat16"], gradients=False)
def swapped(x1, x2):
    return gelu(x1) * x2


@verify.kernel(op="silu", dtypes=["bfloat16"])
def detached(x):
    return silu(x.detach())


@verify.kernel(op="silu", dtypes=["bfloat16"], gradients=True)
def promising(x):
    return silu(x.detach())
"""
    )
    done = said("run", "other.py", "--backend", "interpreter", cwd=tmp_path)
    assert done.returncode == 1
    [swapped] = re.findall(r"^swapped .* (\d+\.\d)% ", done.stdout, flags=re.MULTILINE)
    assert float(swapped) > 50
    rows = re.findall(r"^(detached|promising) +(\w*)", done.stdout, flags=re.MULTILINE)
    assert rows == [("detached", "y"), ("promising", "")]
    assert "promising promises gradients for x, but its output is not attached to autograd" in done.stdout


def test_a_package_that_is_not_installed_is_a_skipped_kernel(tmp_path: Path) -> None:
    text = dict(PYTHON)["theirs.py"].replace("liger_kernel", "nobody_installs_this")
    (tmp_path / "theirs.py").write_text(text)
    done = said("run", "theirs.py", "--backend", "interpreter", cwd=tmp_path)
    assert done.returncode == 3
    shown = " ".join(done.stdout.split())  # the screen may be narrow
    assert "liger_rms_norm was skipped: needs nobody_installs_this, which is not installed" in shown
