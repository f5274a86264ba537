"""One backend for the whole session of tests and properties: the GPU if there is one, else the faithful interpreter.

It has to be chosen before Triton is imported, because Triton decides at import whether it interprets.
"""

from __future__ import annotations

from verify import backends

BACKEND = backends.select()
backends.activate(BACKEND)

import pytest  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def backend() -> backends.Backend:
    """The backend that kernels run on in this session."""
    return BACKEND


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
