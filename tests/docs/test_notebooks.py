"""The notebooks of examples/ print what they show. `pytest --renew` writes what they print into them."""

from __future__ import annotations

import json
import linecache
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.golden import golden
from verify.diagnose.requests import ReplayElement
from verify.referee import judging

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))

pytestmark = pytest.mark.usefixtures("warm")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_shows(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    main = ModuleType("__main__")  # a notebook's has no file; linecache knows its cells
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)  # the tests of kernels have it interpret
    monkeypatch.chdir(tmp_path)
    # no notebook shows an input, and making one smaller takes up to ten seconds
    monkeypatch.setattr(judging, "ReplayElement", lambda *given, shrink: ReplayElement(*given))
    for place, cell in enumerate(cell for cell in notebook["cells"] if cell["cell_type"] == "code"):
        name, text = f"<ipython-input-{path.stem}-{place}>", "".join(cell["source"])
        monkeypatch.setitem(linecache.cache, name, (len(text), None, text.splitlines(True), name))
        exec(compile(text, name, "exec"), main.__dict__)
        printed = capsys.readouterr().out
        stream = {"name": "stdout", "output_type": "stream", "text": printed.splitlines(True)}
        cell["outputs"] = [stream] if printed else []
    golden(path, json.dumps(notebook, indent=1) + "\n")
