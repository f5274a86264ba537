"""Sweeps exhaustively: judges every input of a kernel, so that its maximum error is proven.

    space = space_of(kernel, "accuracy.py::my_gelu", "bfloat16")
    partial = check(kernel, space, (0, space.chunks), backend)      # or chunk by chunk, anywhere, in any order
    done = finish(kernel, space, partial)                           # a verify.records.record.KernelRun

A `Space` is JSON and lists the inputs to enumerate. Its chunks are numbered and do not depend on the machine or on the
number of workers. A `Partial` is JSON and merges with others of the same space. Merging is associative and commutative:
the result has the same bits for every division of the chunks. Covering a chunk twice is an error.

Importing the package imports no torch: a process that divides chunks and merges partials needs none.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "Partial": "partial",
    "Space": "space",
    "check": "checking",
    "finish": "finishing",
    "left_over": "space",
    "route_of": "checking",
    "shape_of": "scope",
    "space_of": "scope",
}

__all__ = ["Partial", "Space", "check", "finish", "left_over", "route_of", "shape_of", "space_of"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
