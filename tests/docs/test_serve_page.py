"""docs/serve.md: its client prints what the page shows, its table has the arguments of each tool."""

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


def test_the_error_is_as_shown() -> None:
    configuration, error = map(json.loads, LINES)
    said: list[bytes] = []
    call = {"name": "run", "arguments": {"targets": ["layers.py"], "seed": "one"}}
    message = {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": call}
    Door(said.append, None, 1.0).read(io.BytesIO(json.dumps(message).encode()))  # type: ignore[arg-type]
    assert [json.loads(line)["result"]["structuredContent"] for line in said] == [error]
    assert configuration["mcpServers"]["verify"]["args"] == ["serve"]


def test_the_table_has_every_argument() -> None:
    rows = dict(re.findall(r"\| `(\w+)` \| (.*) \|", PAGE))
    named = {tool: set(re.findall(r"`(\w+)`", row)) for tool, row in rows.items()}
    named["explain"] = named["replay"] - {"shrink"}
    assert named == {name: set(tool.names) for name, tool in TOOLS.items()}
    assert all(version in PAGE for version in VERSIONS)
