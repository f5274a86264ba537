"""docs/stability.md: each fault of its table names a test that exists. The forms of the project on GitHub are whole."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "stability.md").read_text()
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", TEXT)
# The clock of the day: how long a stage took over several starts of a night, how old a kept file is, when a file of
# --each ended.
OF_THE_DAY = {"records/part_store.py", "cli/run.py"}


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_the_test_that_holds_a_fault_exists(file: str, name: str) -> None:
    functions = {
        node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(node, ast.FunctionDef)
    }
    assert name in functions


def test_deadlines_use_the_monotonic_clock() -> None:
    found = {
        str(path.relative_to(ROOT / "verify"))
        for path in (ROOT / "verify").rglob("*.py")
        if re.search(r"\btime\.time\(|\butcnow\(|import time\b.*\bfrom time import time\b", path.read_text())
    }
    assert found == OF_THE_DAY
