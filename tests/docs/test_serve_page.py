"""docs/serve.md: its client prints what the page shows, its table has the fields of each request."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from verify.cli.door import VERSIONS, Door
from verify.cli.tools import TOOLS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "serve.md").read_text()
LINES = [line for block in re.findall(r"```json\n(.*?)```", PAGE, flags=re.DOTALL) for line in block.splitlines()]


@pytest.mark.usefixtures("warm")
def test_the_client_prints_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [client] = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    [shown] = re.findall(r"```text\n(.*?)```", PAGE, flags=re.DOTALL)
    started = subprocess.Popen  # of the warm process

    def start(command: list[str], **given: Any) -> subprocess.Popen[Any]:
        assert command[0] == "verify"
        return started([sys.executable, "-m", *command], **given)

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)  # the tests of kernels have it interpret
    monkeypatch.chdir(tmp_path)
    exec(compile(client, "client.py", "exec"), {})
    assert capsys.readouterr().out == shown


def test_the_requests_are_taken_and_the_error_is_as_shown() -> None:
    *requests, error, configuration = LINES
    said: list[bytes] = []
    started: list[str] = []

    class Lanes:
        def submit(self, task: object) -> None:
            started.append("taken")

    door = Door(said.append, Lanes(), 1.0)  # type: ignore[arg-type]
    door.read(io.BytesIO("\n".join(requests).encode()))
    assert started == ["taken"] * 2 and [json.loads(line) for line in said] == [json.loads(error)]
    assert json.loads(configuration)["mcpServers"]["verify"]["args"] == ["serve"]


def test_the_table_has_every_field() -> None:
    [row] = re.findall(r"\| `do` \| (.*) \|", PAGE)
    named = set(re.findall(r"`(\w+)`", row))
    assert named == {*TOOLS, *(name for tool in TOOLS.values() for name in tool.names)}
    assert all(version in PAGE for version in VERSIONS)
