"""The oracle shares no code with what it judges."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

MODULES = [path for path in Path(__file__).parent.glob("*.py") if not path.name.startswith("test_")]


@pytest.mark.parametrize("path", MODULES, ids=[path.name for path in MODULES])
def test_the_oracle_imports_nothing_of_verify(path: Path) -> None:
    tree = ast.parse(path.read_text())
    modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    modules += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert not [name for name in modules if name.split(".")[0] in ("verify", "flint", "benchmarks")]
