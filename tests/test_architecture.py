"""docs/architecture.md leads to the right file: each task has a name that is there, and no file is missing."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "architecture.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line.startswith("| ")]

TASKS = [cells for cells in ROWS if len(cells) == 4 and cells[1].endswith(".py`")]


def bound_in(path: Path) -> set[str]:
    """The names that a module has at its top level."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.ImportFrom():
                found |= {alias.asname or alias.name for alias in node.names}
            case _:
                found |= {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
    return found


@pytest.mark.parametrize(("task", "file", "name", "_"), TASKS, ids=[cells[0] for cells in TASKS])
def test_the_page_leads_from_a_task_to_a_name_that_its_file_has(task: str, file: str, name: str, _: str) -> None:
    assert name.strip("`") in bound_in(ROOT / "verify" / file.strip("`")), task


def test_every_file_and_folder_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`([\w/*]+(?:\.py|/))`", TEXT))
    # a bare name stands beside the folder that it is in
    missing = [
        name
        for name in sorted(named)
        if not any(list(base.glob(name)) for base in (ROOT, ROOT / "verify"))
        and not ("/" not in name.rstrip("/") and list((ROOT / "verify").rglob(name)))
    ]
    assert len(named) > 60 and missing == []
