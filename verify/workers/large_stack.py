"""Memory for the frames of Python calls.

CPython keeps frames in chunks of 16 KiB and frees an empty chunk at once. A loop of calls across the border of two
chunks maps and unmaps one with every call: 150,000 times in one test of an interpreted kernel, a third of its time. A
frame that needs half a MiB gets a chunk of one MiB, and all calls inside it use the other half.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def with_large_stack_chunk(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Returns `function(*args, **kwargs)`, called from a frame whose chunk has room for all calls inside."""
    return function(*args, **kwargs)


with_large_stack_chunk.__code__ = with_large_stack_chunk.__code__.replace(co_stacksize=(1 << 16) + 64)
