"""`[tool.verify]` is read strictly: a misspelt key must not silently measure nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden import answers
from verify.declare import config
from verify.errors import UsageError


def write(folder: Path, text: str) -> Path:
    (folder / "pyproject.toml").write_text(text)
    return folder


def test_the_nearest_pyproject_counts(tmp_path: Path) -> None:
    write(tmp_path, '[tool.verify]\nkernels = ["a.py", "pkg.b"]\n')
    inner = tmp_path / "deep" / "inside"
    inner.mkdir(parents=True)
    found = config.find(inner)
    assert found.kernels == ("a.py", "pkg.b")
    assert found.root == tmp_path


def test_folders_are_below_the_project(tmp_path: Path) -> None:
    found = config.find(write(tmp_path, '[tool.verify]\nbounds = "limits"\npeers = ["others.py"]\n'))
    assert found.bounds == tmp_path / "limits"
    assert found.corpus == tmp_path / "reports/corpus"
    assert found.peers == ("others.py",)


def test_mistakes_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    answers(Path(__file__).parent / "snapshots" / "config.txt", globals())
    with pytest.raises(UsageError, match="cannot read"):
        config.find(write(tmp_path, "[tool.verify\n"))
