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


def asked(path: Path, mark: str) -> list[str]:
    """Returns what a golden file asks: its lines behind a mark. A new question is a line of it, then `--renew`."""
    found = [line.removeprefix(mark) for line in path.read_text(encoding="utf-8").splitlines() if line.startswith(mark)]
    assert found, f"{path.name} asks nothing: each of its questions begins with {mark!r}"
    return found


def answers(path: Path, scope: Mapping[str, Any]) -> None:
    """Holds what each call of a golden file returns or raises against it.

    Calls are behind `>>> ` and see the names of the scope. One that returns None "is taken".
    """
    text = ""
    for call in asked(path, ">>> "):
        try:
            answer = eval(call, dict(scope))
            said = "is taken" if answer is None else repr(answer)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        text += f">>> {call}\n    {said}\n"
    golden(path, text.replace("cuda:0", "cpu").replace(f"{ROOT}/", "").replace(f"{Path.cwd()}/", ""))
