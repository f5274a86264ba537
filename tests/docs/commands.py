"""The commands of workflows, actions and hooks, each held against the parser that takes it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from verify.cli import parser

GIVEN = {"BACKEND": "interpreter", "BUDGET": "60m"}  # what stands for a variable where not any word will do


def scripts(node: Any) -> Iterator[str]:
    """Every `run` of a YAML document."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "run" and isinstance(value, str):
                yield value
            else:
                yield from scripts(value)
    elif isinstance(node, list):
        for item in node:
            yield from scripts(item)


def commands_of(document: Any) -> list[list[str]]:
    """The arguments of each `verify` that a document runs; what the shell fills in is one word for each variable."""
    found = []
    for script in scripts(document):
        for line in script.replace("\\\n", " ").splitlines():
            if not re.search(r"\bverify\b", line) or "mark=" in line:
                continue
            text = re.sub(r"\$\{?(\w+)\}?", lambda name: GIVEN.get(name[1], "GIVEN"), line)
            for part in re.split(r"\|\||&&|;|\||>+", text):
                words = shlex.split(part, comments=True)
                if words and words[0].rsplit("/", 1)[-1] == "verify":
                    found.append(words[1:])
    return found


def check_commands(path: Path) -> list[list[str]]:
    """Each of them is one that exists, with its options."""
    found = commands_of(yaml.safe_load(path.read_text()))
    assert found, path
    for words in found:
        assert hasattr(parser().parse_args(words), "handler"), words  # usage ends the test where it does not exist
    return found
