"""Finds an op by name: `get("gelu")`; `register(op)` adds one, `names()` lists them."""

from __future__ import annotations

import difflib

from verify.errors import UsageError
from verify.ops.op import Op

_OPS: dict[str, Op] = {}
_OWN: dict[str, Op] = {}


def register(op: Op, *, replace: bool = False) -> Op:
    """Make `op` known under its name. A name is taken once, unless `replace` says otherwise."""
    if op.name in _OPS and not replace:
        raise UsageError(
            f"an op named {op.name!r} exists already; an op name is defined once",
            hint=f"choose another name, or verify list --op {op.name}",
        )
    _OPS[op.name] = op
    return op


def seal() -> None:
    """Take the ops that are known so far for verify's own."""
    _OWN.update(_OPS)


def is_own(op: Op) -> bool:
    """Whether an op is verify's own, which every process knows by its name."""
    return _OWN.get(op.name) is op


def names() -> tuple[str, ...]:
    """Names of all known ops, sorted."""
    return tuple(sorted(_OPS))


def get(name: str) -> Op:
    """The op called `name`; a UsageError that lists the known names if there is none."""
    if name in _OPS:
        return _OPS[name]
    near = difflib.get_close_matches(name, _OPS, n=1)
    suggestion = f" (closest: {near[0]!r})" if near else ""
    raise UsageError(
        f"no op is named {name!r}{suggestion}; the known ops are: {', '.join(names())}",
        hint="verify list --ops, or define it with verify.op(name, exact=..., reference=...)",
    )
