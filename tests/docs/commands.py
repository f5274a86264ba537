"""The commands of workflows, actions and hooks, each held against the parser that takes it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from verify.cli import parser


def scripts(node: Any) -> Iterator[str]:
    """Every `run` and `entry` of a YAML document."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("run", "entry") and isinstance(value, str):
                yield value
            else:
                yield from scripts(value)
    elif isinstance(node, list):
        for item in node:
            yield from scripts(item)


def commands(path: Path) -> list[list[str]]:
    """The arguments of each `verify` that a file runs; what the shell or GitHub fills in is the word `GIVEN`."""
    found = []
    for script in scripts(yaml.safe_load(path.read_text())):
        text = re.sub(r"\$\{\{.*?\}\}", "GIVEN", script).replace("\\\n", " ")
        for line in text.splitlines():
            for part in re.split(r"\|\||&&|;|\||(?<!\d)>+", line):
                words = [re.sub(r"\$\{?\w+\}?", "GIVEN", word) for word in shlex.split(part, comments=True)]
                if words and words[0].rsplit("/", 1)[-1] == "verify":
                    found.append([word for word in words[1:] if word != "GIVEN" or part.count("$")])
    return found


def check_commands(path: Path) -> list[list[str]]:
    """Each of them is one that exists, with its options."""
    found = commands(path)
    assert found, path
    for words in found:
        chosen = parser().parse_args(words)  # ends the test with usage where it does not
        assert hasattr(chosen, "handler"), words
    return found
