"""docs/architecture.md leads to the right file: fifteen tasks with their answers, and no file that does not exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "architecture.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line.startswith("| ")]

# A task by words of its row: the file below verify/, and the name there. If code moves, change the answer here and the
# row in docs/architecture.md.
ANSWERS = {
    "exit codes": ("errors.py", "OF_VERDICT"),
    "`where=`": ("ops/graph/shapes.py", "check"),
    "hang limit": ("measure/apart.py", "CALLS"),
    "progress": ("measure/progress.py", "Progress"),
    "add a dtype": ("truth/formats.py", "FORMATS"),
    "add a backend": ("backends/__init__.py", "select"),
    "judged exactly": ("measure/judge.py", "OPEN_LIMIT"),
    "`dtypes=`": ("declare/declaration.py", "_dtypes"),
    "add a law": ("laws/registry.py", "ALL"),
    "add an op": ("ops/__init__.py", "register"),
    "add a column": ("report/present.py", "ResultFacts"),
    "add a command": ("cli/__init__.py", "COMMANDS"),
    "schema": ("records/record.py", "SCHEMA"),
    "limit that a format has": ("declare/promises.py", "default_limit"),
    "a case becomes tensors": ("cases/case.py", "inputs_of"),
}


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


@pytest.mark.parametrize("task", ANSWERS)
def test_the_page_leads_from_a_task_to_its_file_and_name(task: str) -> None:
    file, name = ANSWERS[task]
    rows = [cells for cells in ROWS if len(cells) == 4 and task in cells[0]]
    assert len(rows) == 1, f"one row of docs/architecture.md is about {task!r}"
    assert rows[0][1:3] == [f"`{file}`", f"`{name}`"]
    assert name in bound_in(ROOT / "verify" / file)


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
