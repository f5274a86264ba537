"""docs/failures.md, docs/explain.md and docs/contracts.md show what their commands print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch

from tests.cli.here import said
from tests.docs.printed import COMPARABLE

DOCS = Path(__file__).parent.parent.parent / "docs"
BLOCKS = [
    (name, block)
    for name in ("failures.md", "explain.md", "contracts.md")
    for block in re.findall(r"```console\n\$ (.*?)```", (DOCS / name).read_text(), flags=re.DOTALL)
]


@pytest.mark.skipif(torch.cuda.is_available(), reason="the pages show the CPU's figures")
@pytest.mark.parametrize(("name", "block"), BLOCKS, ids=[f"{name}-{i}" for i, (name, _) in enumerate(BLOCKS)])
def test_a_command_prints_what_the_page_shows(name: str, block: str, tmp_path: Path) -> None:
    [code] = re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(), flags=re.DOTALL)
    (tmp_path / "accuracy.py").write_text(code)
    command, _, shown = block.partition("\n")
    printed = said(*shlex.split(command)[1:], cwd=tmp_path).stdout
    if not COMPARABLE:
        printed, shown = (re.sub(r"(same bits in )[\d,]+", r"\1#", text) for text in (printed, shown))
    if (
        "one_pass" in command or "other_form" in command or "verify contract" in command
    ):  # sums of many elements depend on the CPU's vectors
        printed, shown = words(printed), words(shown)
    assert printed == shown


def words(text: str) -> list[list[str]]:
    """A text without its numbers, and without its cause, which depends on them."""
    shown = text.partition("cause: ")[0]
    return [re.sub(r"0x[0-9a-f]+|[+-]?\d[\d.,]*(e[+-]?\d+)?", "#", line).split() for line in shown.splitlines()]
