"""`[tool.verify]` is read strictly: a misspelt key must not silently measure nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

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


def test_no_section_is_an_empty_configuration(tmp_path: Path) -> None:
    assert config.find(write(tmp_path, "[project]\nname = 'x'\n")).kernels == ()


def test_folders_are_below_the_project(tmp_path: Path) -> None:
    found = config.find(write(tmp_path, '[tool.verify]\nbounds = "limits"\npeers = ["others.py"]\n'))
    assert found.bounds == tmp_path / "limits"
    assert (found.corpus, found.runs) == (tmp_path / "reports/corpus", tmp_path / "reports/runs")
    assert found.peers == ("others.py",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[tool.verify]\nkernel = ['a.py']\n",
            "[tool.verify] knows bounds, corpus, kernels, peers, runs; received kernel",
        ),
        ("[tool.verify]\nkernels = 'a.py'\n", "kernels is a list of files or modules; received 'a.py'"),
        ("[tool.verify]\nkernels = ['']\n", "kernels is a list of files or modules; received ['']"),
        ("[tool.verify]\npeers = 3\n", "peers is a list of files or modules; received 3"),
        ("[tool.verify]\nbounds = ''\n", "bounds is a folder; received ''"),
        ("[tool]\nverify = 3\n", "[tool.verify] is a table; received 3"),
        ("[tool.verify\n", "cannot read"),
    ],
)
def test_mistakes_are_errors(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        config.find(write(tmp_path, text))
    assert message in str(caught.value)
