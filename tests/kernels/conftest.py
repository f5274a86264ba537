from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.kernels.compiled import Compiler


@pytest.fixture(scope="session")
def printed() -> Iterator[Callable[..., str]]:
    """`Compiler.printed` of one process for all the tests that compile."""
    compiler = Compiler()
    yield compiler.printed
    compiler.stop()


@pytest.fixture(autouse=True)
def _plans_of_what_a_test_changed_are_forgotten(request):
    """A launcher whose constants are replaced must not repeat what it did before, nor afterwards what it did then."""
    if "monkeypatch" in request.fixturenames:
        from kernels import plans  # conftest.py of the root chooses the backend after this file is imported

        plans.forget()
        yield
        plans.forget()
    else:
        yield
