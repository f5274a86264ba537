"""Finds a shipped op by name: `get("gelu")`; `names()` lists them, `register(op)` adds one when verify is imported."""

from __future__ import annotations

import difflib

from verify.errors import UsageError
from verify.ops.op import Op

_OPS: dict[str, Op] = {}


def register(op: Op) -> Op:
    """Makes `op` known under its name."""
    if op.name in _OPS:
        raise UsageError(f"an op named {op.name!r} exists already", hint="an op has a name of its own")
    _OPS[op.name] = op
    return op


def is_shipped(op: Op) -> bool:
    """True for an op that every process knows by its name; a definition by like= is known to its file alone."""
    return _OPS.get(op.name) is op


def names() -> tuple[str, ...]:
    """Returns the names of all ops, sorted."""
    return tuple(sorted(_OPS))


def get(name: str) -> Op:
    """Returns the op called `name`. Raises UsageError with the known names if there is none."""
    if name in _OPS:
        return _OPS[name]
    near = difflib.get_close_matches(name, _OPS, n=1)
    suggestion = f" (closest: {near[0]!r})" if near else ""
    raise UsageError(
        f"no op is named {name!r}{suggestion}; the known ops are: {', '.join(names())}",
        hint="verify list --ops, or like=FUNCTION: the PyTorch function that says what is right (docs/like.md)",
    )
