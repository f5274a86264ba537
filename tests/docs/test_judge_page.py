"""docs/judge.md: a stranger who copies its blocks sees what it shows, and its table is the zoo's."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mutants import zoo

pytestmark = pytest.mark.usefixtures("warm")

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "judge.md").read_text()
FILES = re.findall(r"```(?:python|text)\n# (\w+\.\w+)\n(.*?)```", PAGE, flags=re.DOTALL)
COMMANDS = re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
SHOWN = re.findall(r"```text\n(?!#)(.*?)```", PAGE, flags=re.DOTALL)


def test_the_page_shows_what_its_commands_print(tmp_path: Path) -> None:
    assert [name for name, _ in FILES] == ["problem.py", "product.py", "cached.py", "list.txt", "show.py"]
    for name, text in FILES:
        (tmp_path / name).write_text(text)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(ROOT)
    (command,) = COMMANDS
    words = [sys.executable, "-m", *shlex.split(command, comments=True)]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr
    assert done.stdout.count('"verdict"') == 2
    shown = subprocess.run([sys.executable, "show.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert shown.stdout == SHOWN[0]


def test_the_table_is_that_of_the_zoo() -> None:
    table = PAGE.partition("<!-- zoo -->\n")[2].partition("<!-- /zoo -->")[0]
    assert table == zoo.table(), "run: python -m mutants.zoo --table"


def test_the_zoo_has_a_line_for_each_of_the_tricks() -> None:
    numbers = [trick.number for trick in zoo.TRICKS]
    assert sorted([*numbers, *zoo.WITHOUT]) == list(range(1, 72))
