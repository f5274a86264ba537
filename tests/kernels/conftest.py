from __future__ import annotations

import pytest

from kernels import plans


@pytest.fixture(autouse=True)
def _plans_of_what_a_test_changed_are_forgotten(request):
    """A launcher whose constants are replaced must not repeat what it did before, nor afterwards what it did then."""
    if "monkeypatch" in request.fixturenames:
        plans.forget()
        yield
        plans.forget()
    else:
        yield
