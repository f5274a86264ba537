"""One backend for the whole session of tests and properties: the GPU if there is one, else the faithful interpreter.

It has to be chosen before Triton is imported, because Triton decides at import whether it interprets.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache, partial
from typing import TYPE_CHECKING

# Triton's interpreter makes short-lived objects by the million. At Python's threshold of 700 the collector walks them,
# and every imported module, again and again: a tenth of the session, and a quarter of importing torch.
gc.set_threshold(50_000, 20, 20)

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402
from hypothesis.internal.conjecture import providers  # noqa: E402

from tests import warm as warm_processes  # noqa: E402
from tests.golden import RENEW  # noqa: E402
from verify.plugin import register_profiles  # noqa: E402
from verify.workers.calls import with_large_stack_chunk  # noqa: E402

register_profiles()
settings.register_profile("ci", settings.get_profile("verify-ci"))  # what `make unit` loads, for all tests
# Literals of all modules loaded so far are no inputs: they would change with the order of the tests and with any edit,
# and each worker would parse 480 files for them.
providers._get_local_constants = lambda: providers._local_constants

if TYPE_CHECKING:
    from verify.backends import Backend

_PATH: list[str] = []  # sys.path once all tests are collected


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--renew", action="store_true", help="write the golden files anew (tests/golden.py)")


def pytest_configure(config: pytest.Config) -> None:
    """Activates the backend. With `-n`, workers run the tests, and the process that starts them needs no torch."""
    if config.getoption("renew"):
        os.environ[RENEW] = "1"
    if getattr(config.option, "numprocesses", None):
        return
    import torch

    _backend().activate()
    torch.set_num_threads(1)


@cache
def _backend() -> Backend:
    from verify import backends

    return backends.select()


def pytest_collection_finish() -> None:
    """Keeps what the collection of tests imported out of the garbage collector's passes."""
    _PATH[:] = sys.path
    gc.freeze()


@pytest.fixture(scope="session")
def backend() -> Backend:
    """Returns the backend that kernels run on in this session."""
    return _backend()


@pytest.fixture(scope="module")
def warm() -> Iterator[None]:
    """Lets a module's commands and workers begin as forks of a process that has imported torch."""
    warm_processes.begin()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", warm_processes.Popen)
        yield


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """No test leaves an op, a named backend, nor a module of a temporary project, which would hide one of ours.

    Nor a precision of mpmath, in which the oracle would compute the next test's truths.
    """
    from mpmath import mp

    from verify import backends
    from verify.ops import op

    ops, ours, active, precision = dict(op._OPS), set(_PATH), list(backends._ACTIVE), mp.prec
    yield
    mp.prec = precision
    backends._ACTIVE[:] = active
    op._OPS.clear()
    op._OPS.update(ops)
    if folders := tuple(f"{folder}/" for folder in sys.path if folder and folder not in ours):
        sys.path[:] = [folder for folder in sys.path if folder in ours]
        for name, module in list(sys.modules.items()):
            # targets have names of their own, and what they define is defined once
            if (getattr(module, "__file__", None) or "").startswith(folders) and not name.startswith("verify_target_"):
                del sys.modules[name]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch

    gpu = torch.cuda.is_available()
    for item in items:
        item.runtest = partial(with_large_stack_chunk, item.runtest)  # type: ignore[method-assign]
        if not gpu and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
