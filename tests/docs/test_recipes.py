"""The recipes of CONTRIBUTING.md: the files and names in them are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
RECIPES = dict(re.findall(r"^\*\*To (.*?)\*\*(.*?)(?=^\*\*To |\Z)", TEXT, re.MULTILINE | re.DOTALL))
# by who follows one
WRITTEN = (
    *("verify/ops/NAME.py", "verify/cli/NAME.py", "verify/referee/formats/NAME.py"),
    *("kernels/NAME.py", "properties/NAME.py"),
)


def names_in(path: Path) -> set[str]:
    """Every name that a module defines or imports, members of classes included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.Name(ctx=ast.Store()):
                found.add(node.id)
            case ast.alias():
                found.add(node.asname or node.name)
    return found


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_file_that_a_recipe_names_exists(recipe: str) -> None:
    paths = re.findall(r"`((?:verify|tests|kernels|properties|mutants|benchmarks|docs)/[\w/.*]*)`", RECIPES[recipe])
    assert paths, "a recipe names the files"
    assert [path for path in paths if path not in WRITTEN and not list(ROOT.glob(path))] == []
    for path in WRITTEN:
        if path in paths:
            assert (ROOT / path).parent.is_dir()


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_name_stands_in_the_file_that_a_recipe_says(recipe: str) -> None:
    pairs = re.findall(r"`@?(\w+)`\s+(?:of|in)\s+`([\w/*.]+\.py)`", RECIPES[recipe])
    assert pairs, "a recipe says which name of a file"
    missing = [(name, path) for name, path in pairs if not any(name in names_in(found) for found in ROOT.glob(path))]
    assert missing == []
