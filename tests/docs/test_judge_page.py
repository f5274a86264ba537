"""docs/judge.md: a stranger who copies its blocks sees what it shows, and its table is the zoo's."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from verify.cli import exits, main
from verify.diagnose.requests import ReplayElement
from verify.referee import judging

pytestmark = pytest.mark.usefixtures("warm")

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "judge.md").read_text()
FILES = re.findall(r"```(?:python|text)\n# (\w+\.\w+)\n(.*?)```", PAGE, flags=re.DOTALL)
COMMANDS = re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
SHOWN = re.findall(r"```text\n(?!#)(.*?)```", PAGE, flags=re.DOTALL)


def test_the_page_shows_what_its_commands_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [name for name, _ in FILES] == ["problem.py", "product.py", "cached.py", "list.txt", "show.py"]
    for name, text in FILES:
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)  # the tests of kernels have it interpret
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})  # more cores are forks for each case
    # the page shows no input, and making one smaller takes up to ten seconds
    monkeypatch.setattr(judging, "ReplayElement", lambda *given, shrink: ReplayElement(*given))
    (command,) = COMMANDS
    name, *words = shlex.split(command, comments=True)
    assert (name, main(words)) == ("verify", exits.WRONG)
    assert capsys.readouterr().out.count('"verdict"') == 2
    shown = subprocess.run([sys.executable, "show.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert shown.stdout == SHOWN[0]
