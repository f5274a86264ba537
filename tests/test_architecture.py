"""docs/architecture.md leads to the right file: each task has a name that is there, and no file is missing.

No room has more lines of code than the page says.
"""

from __future__ import annotations

import ast
import os
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.golden import RENEW

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
TEXT = PAGE.read_text()
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


# -- what the rooms weigh -------------------------------------------------------------------------------

DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
BODIES = ("body", "orelse", "handlers", "finalbody", "cases")
OUTSIDE = ("kernels", "benchmarks", "mutants", "tests")


def weight(path: Path) -> int:
    """Returns the lines of code of a module: without blank lines, comments and docstrings."""
    text = path.read_text()
    code = {n for n, line in enumerate(text.splitlines(), 1) if line.strip() and not line.lstrip().startswith("#")}
    nodes: list[ast.AST] = [ast.parse(text)]
    for node in nodes:  # of statements alone: expressions have no docstrings, and are nine in ten
        nodes += [each for field in BODIES for each in getattr(node, field, ())]
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            code -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(code)


def test_no_room_weighs_more_than_the_page_says() -> None:
    weights = Counter[str]()
    for path in sorted((ROOT / "verify").rglob("*.py")):
        room, *inner = path.relative_to(ROOT / "verify").parts
        weights[f"`{room}/`" if inner else "modules beside the rooms"] += weight(path)
    weights["all of `verify/`"] = sum(weights.values())
    weights |= {f"`{name}/`": sum(map(weight, (ROOT / name).rglob("*.py"))) for name in OUTSIDE}
    heading, table = "| room | lines of code, at most |\n|---|---|\n", r"((?:\| .* \| [\d,]+ \|\n)+)"
    if os.environ.get(RENEW):
        made = "".join(f"| {room} | {lines:,} |\n" for room, lines in weights.items())
        PAGE.write_text(re.sub(re.escape(heading) + table, heading + made, TEXT))
    [rows] = re.findall(re.escape(heading) + table, PAGE.read_text())
    limits = {room: int(lines.replace(",", "")) for room, lines in re.findall(r"\| (.*) \| ([\d,]+) \|", rows)}
    assert limits.keys() == weights.keys()
    heavier = {room: f"{lines:,}, at most {limits[room]:,}" for room, lines in weights.items() if lines > limits[room]}
    assert heavier == {}, "take from the room, or say in the commit why not: pytest --renew tests/test_architecture.py"
