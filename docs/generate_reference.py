"""Writes docs/python-reference.md: the signature and the docstring of every public name.

python docs/generate_reference.py     rewrite the page; a test compares it with the code
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import verify

PAGE = Path(__file__).with_name("python-reference.md")
HEAD = """# Python reference

Every public name of `import verify`, from its docstring. [From Python](api.md) has examples.
"""


def page() -> str:
    """Returns the whole page."""
    names = sorted(set(verify.__all__) - {"__version__"}, key=lambda name: (name.lower(), name))
    return "\n".join([HEAD, *(_section(name, getattr(verify, name)) for name in names)])


def _section(name: str, value: Any) -> str:
    text = inspect.getdoc(value) or ""
    parts = [f"{name}{_signature(value)}", text]
    if inspect.isclass(value) and not issubclass(value, BaseException):
        for inner, method in inspect.getmembers(value):
            if not inner.startswith("_") and inner in value.__dict__ and (about := inspect.getdoc(method)):
                signature = _signature(method) if callable(method) else ""
                shown = inner + ("(...)" if "\n" in signature else signature)
                parts.append(f"{shown}\n    {about.partition(chr(10))[0]}")
    body = "\n\n".join(filter(None, parts))
    return f"## verify.{name}\n\n```text\n{body}\n```\n"


def _signature(value: Any) -> str:
    """Returns the parameters with their defaults, one a line if they are many; "" for a value without any."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    shown: list[str] = []
    for each in found.parameters.values():
        if each.kind is each.KEYWORD_ONLY and not any(text.startswith("*") for text in shown):
            shown.append("*")
        shown += [_parameter(each)] if each.name != "self" else []
    line = f"({', '.join(shown)})"
    return line if len(line) < 100 else "(\n" + "".join(f"    {each},\n" for each in shown) + ")"


def _parameter(each: inspect.Parameter) -> str:
    star = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
    default = each.default
    if default is each.empty:
        return star + each.name
    return f"{each.name}={'...' if callable(default) else repr(default)}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
