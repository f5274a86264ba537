"""One backend for the whole session of tests and properties: the GPU if there is one, else the faithful interpreter.

It has to be chosen before Triton is imported, because Triton decides at import whether it interprets.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

from verify import backends

BACKEND = backends.select()
backends.activate(BACKEND)

import pytest  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(1)

# Triton's interpreter makes short-lived objects by the million. At Python's threshold of 700 the collector walks them,
# and every imported module, again and again: a tenth of the session.
gc.set_threshold(50_000, 20, 20)


def pytest_collection_finish() -> None:
    """What collecting imported stays until the end: the collector need not look at it."""
    gc.collect()
    gc.freeze()


def _roomy(function: Callable[[], Any]) -> Any:
    return function()


# Python keeps its frames in chunks of 16 KiB, and gives a chunk back to the system as soon as it is empty: where a loop
# calls across the border of two chunks, every call is an mmap, a page fault and a munmap (150,000 of each in one test
# of an interpreted kernel, a third of its time). A frame that asks for half a MiB gets a chunk of one, and all that is
# called from it has the other half.
_roomy.__code__ = _roomy.__code__.replace(co_stacksize=(1 << 16) + 64)


@pytest.fixture(scope="session")
def backend() -> backends.Backend:
    """The backend that kernels run on in this session."""
    return BACKEND


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.runtest = partial(_roomy, item.runtest)  # type: ignore[method-assign]
        if not torch.cuda.is_available() and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
