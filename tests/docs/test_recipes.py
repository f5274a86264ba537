"""The recipes of CONTRIBUTING.md: what they name exists, and two of them are carried out in a copy of the package."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
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


# -- two recipes, step by step -----------------------------------------------------------------------

OP = """
import torch

from verify.ops.geometry import Elementwise
from verify.ops.graph.shipped import Shipped
from verify.ops.op import Operand

SQUARE = Shipped(torch.square, (Operand("x"),)).op("square", Elementwise(), summary="x * x")
"""
COMMAND = '''"""Greet the reader.

Greet a reader who follows the recipe.

    verify hello
"""

from verify.cli import exits


def main(options):
    print("hello from a recipe")
    return exits.PASS
'''
KERNEL = """
import torch
import verify


@verify.kernel(op="square", dtypes=["bfloat16"], max_ulp=0.51, gradients=False)
def squared(x):
    return x * x
"""


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package in which the recipes for an op and a command were followed."""
    copy = tmp_path_factory.mktemp("recipes")
    shutil.copytree(ROOT / "verify", copy / "verify")
    (copy / "pyproject.toml").write_text("[tool.verify]\n")

    def edit(name: str, before: str, after: str) -> None:
        path = copy / "verify" / name
        text = path.read_text()
        assert text.count(before) == 1, f"{name} no longer has one {before!r}"
        path.write_text(text.replace(before, after))

    (copy / "verify/ops/square.py").write_text(OP)
    edit(
        "ops/__init__.py",
        "\nfor _op in (",
        "\nfrom verify.ops.square import SQUARE\nfor _op in (SQUARE, ",
    )

    (copy / "verify/cli/hello.py").write_text(COMMAND)
    edit("cli/__init__.py", "COMMANDS = (\n", 'COMMANDS = (\n    "hello",\n')
    (copy / "accuracy.py").write_text(KERNEL)
    return copy


def said(followed: Path, *words: str) -> str:
    """What a command of the copy prints; it must pass."""
    return printed(followed, "-m", "verify", *words)


def printed(followed: Path, *words: str) -> str:
    """What Python prints with these arguments, which imports the copy; it must end with exit code 0."""
    environment = os.environ | {"PYTHONPATH": f"{followed}:{ROOT}", "COLUMNS": "120"}
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=followed, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


IN_ONE_PROCESS = """
from pathlib import Path

from tests.cli.here import said
from verify.ops import square

for words in ("list --op square", "run accuracy.py --backend interpreter"):
    done = said(*words.split(), cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    print(done.stdout)
"""


def test_an_op_that_was_added_by_the_recipe_judges_a_kernel(followed: Path) -> None:
    """Both commands in one process, which imports torch once."""
    page = printed(followed, "-c", IN_ONE_PROCESS)
    assert "x * x" in page and "squared" in page and "pass" in page.lower()


def test_a_command_that_was_added_by_the_recipe_runs(followed: Path) -> None:
    assert said(followed, "hello") == "hello from a recipe\n"
    assert "greet" in said(followed, "--help")
