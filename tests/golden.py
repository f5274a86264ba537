"""Texts as users meet them, in files: `pytest --renew` writes them anew, and a reviewer reads the difference."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
#: Set by `pytest --renew` (conftest.py), also for the workers of pytest-xdist.
RENEW = "VERIFY_RENEW_GOLDEN"


def golden(path: Path, text: str) -> None:
    """Holds a text against its file. With `--renew` the file becomes the text."""
    if os.environ.get(RENEW):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"{path.name} is not there: pytest --renew writes it"
    assert text == path.read_text(encoding="utf-8"), "if the change is meant: pytest --renew, then read the difference"


def refusals(path: Path, calls: str, scope: Mapping[str, Any]) -> None:
    """Holds what each call raises against a file: calls are the lines of a text, and see the names of the scope."""
    text = ""
    for call in filter(None, calls.splitlines()):
        try:
            eval(call, dict(scope))
        except Exception as error:
            text += f"{call}\n    {type(error).__name__}: {error}\n"
        else:
            text += f"{call}\n    is taken\n"
    golden(path, text.replace("cuda:0", "cpu").replace(f"{ROOT}/", ""))
