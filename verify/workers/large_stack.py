"""Memory for the frames of Python calls.

CPython keeps frames in chunks of 16 KiB and gives an empty one back at once: a loop that calls across the border of two
maps and unmaps one with every call (150,000 of each in one test of an interpreted kernel, a third of its time). A frame
that asks for half a MiB gets a chunk of one, and all that is called from it has the other half.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def with_large_stack_chunk(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """`function(*args, **kwargs)`, called from a frame that has memory for all that it calls."""
    return function(*args, **kwargs)


with_large_stack_chunk.__code__ = with_large_stack_chunk.__code__.replace(co_stacksize=(1 << 16) + 64)
