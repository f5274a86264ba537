"""Writes the tables of docs/laws.md from the registry of laws. A test compares the page with the registry.

The page shows the title of each module of laws, and its text up to the line `Details:`.

    python docs/generate_laws.py     rewrite the text between the markers
"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

from verify.laws import registry
from verify.laws.law import Law

PAGE = Path(__file__).with_name("laws.md")
DETAILS = "\nDetails:\n"
BEGIN, END = "<!-- laws: begin -->", "<!-- laws: end -->"


def sections() -> str:
    """Returns one section per module, in the order of the registry: its laws, then its text."""
    modules: dict[str, list[Law]] = {}
    for law in registry.ALL:
        modules.setdefault(getattr(law.check, "func", law.check).__module__, []).append(law)
    return "\n".join(_section(name, laws) for name, laws in modules.items())


def _section(name: str, laws: list[Law]) -> str:
    module = importlib.import_module(name)
    first, _, text = (inspect.getdoc(module) or "").partition("\n")
    text = text.partition(DETAILS)[0]
    lines = [
        f"### {first.partition(': ')[0].rstrip('.')}",
        "",
        "| law | what holds |",
        "|---|---|",
        *(f"| `{law.name}` | {law.summary[0].upper()}{law.summary[1:]} |" for law in laws),
    ]
    return "\n".join([*lines, "", text.strip(), ""]) if text.strip() else "\n".join([*lines, ""])


def updated(document: str) -> str:
    """Returns a document with the text between its markers replaced."""
    before, found, rest = document.partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not found or not closed:
        raise ValueError(f"the document holds no {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n\n{sections()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
