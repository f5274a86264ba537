"""A file of the user that is named like a module of Python is never executed by the processes of verify."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from verify import start

TRAP = "open(__file__ + '.executed', 'w').close()\nraise ImportError('a file of the user')\n"
NAMES = ("copy", "dataclasses", "random", "numpy", "selectors", "msgspec")
KERNEL = """
import torch, verify
from mine import same

@verify.kernel(op="gelu", dtypes=["float32"])
def gelu(x):
    return same(x)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(TRAP)
    (tmp_path / "mine.py").write_text("from torch.nn.functional import gelu as same\n")
    (tmp_path / "k.py").write_text(KERNEL)
    return tmp_path


def test_a_command_works_beside_files_with_names_of_modules(folder: Path) -> None:
    """The target's own neighbours are still found."""
    command = [sys.executable, "-m", "verify", "list", "k.py"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "gelu" in done.stdout, done.stderr
    assert not [*folder.glob("*.executed")]


def test_a_process_gets_pythonpath_after_its_own_start(folder: Path) -> None:
    given = start.environment({"PYTHONPATH": "/x", "HOME": "/h"})
    assert given == {start.PATH: "/x", "HOME": "/h"}
    done = subprocess.run(
        start.command("verify.declare.sources", "", "k.py"),
        cwd=folder,
        env=start.environment(os.environ | {"PYTHONPATH": f"{folder}/src"}),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert '"mine"' in done.stdout, done.stderr
    assert not [*folder.glob("*.executed")]
