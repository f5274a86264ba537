"""Finds shipped ops by name: `get("gelu")` returns an op, `names()` lists all, `register(op)` adds one."""

from __future__ import annotations

from verify.errors import UsageError, closest
from verify.ops.op import Op

_OPS: dict[str, Op] = {}


def register(op: Op) -> Op:
    """Adds an op under its name, and returns it. `verify.ops` calls this for each shipped op when it is imported."""
    if op.name in _OPS:
        raise UsageError(f"an op named {op.name!r} exists already", hint="choose another name")
    _OPS[op.name] = op
    return op


def is_shipped(op: Op) -> bool:
    """True if every process can find the op by its name. An op with like= exists only where its file is imported."""
    return _OPS.get(op.name) is op


def names() -> tuple[str, ...]:
    """Returns the names of all ops, sorted."""
    return tuple(sorted(_OPS))


def get(name: str) -> Op:
    """Returns the op called `name`. Raises UsageError with the known names if there is none."""
    if name in _OPS:
        return _OPS[name]
    raise UsageError(
        f"no op is named {name!r}{closest(name, _OPS)}; the known ops are: {', '.join(names())}",
        hint="verify list --ops, or like=FUNCTION: the PyTorch function that says what is right (docs/like.md)",
    )
