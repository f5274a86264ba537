"""One backend for the whole session of tests and properties: the GPU if there is one, else the faithful interpreter.

It has to be chosen before Triton is imported, because Triton decides at import whether it interprets.
"""

from __future__ import annotations

import gc
from functools import partial

from verify import backends
from verify.workers.frames import in_large_frame

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


@pytest.fixture(scope="session")
def backend() -> backends.Backend:
    """The backend that kernels run on in this session."""
    return BACKEND


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.runtest = partial(in_large_frame, item.runtest)  # type: ignore[method-assign]
        if not torch.cuda.is_available() and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
