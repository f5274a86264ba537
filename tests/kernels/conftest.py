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


@pytest.fixture
def norms_are_planned_at_each_call(monkeypatch):
    """Tests change the constants of plan.py between two calls of one size."""
    from kernels.layer_norm import launch, plan

    monkeypatch.setattr(launch, "planned_forward", plan.forward_plan)
    monkeypatch.setattr(launch, "planned_backward", plan.backward_plan)


@pytest.fixture
def saved(monkeypatch):
    """Whether each call of a linear step from now on saves the sums for its backward pass."""
    from kernels import operators

    found, checked = [], operators.Operator.checked
    watched = lambda self, check, *a: found.append(a[4]) or checked(self, check, *a)  # noqa: E731
    monkeypatch.setattr(operators.Operator, "checked", watched)
    return found
