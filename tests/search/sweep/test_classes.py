"""Every input of a sweep has the class that a run gives it, and what is beyond `largest` is judged by nobody."""

from __future__ import annotations

import dataclasses

import pytest

from tests.search.sweep import subjects
from verify.backends import Interpreter
from verify.declare.declaration import Kernel
from verify.records.readings import BEYOND
from verify.records.record import value_of
from verify.search.sweep import finishing
from verify.search.sweep.checking import check
from verify.search.sweep.finishing import finish
from verify.search.sweep.serve import space_of
from verify.search.sweep.space import key_of_value
from verify.truth.formats import named

HERE = Interpreter("cpu")


def promising(kernel: Kernel, **promise: object) -> Kernel:
    return dataclasses.replace(kernel, **promise)  # type: ignore[arg-type]


@pytest.mark.parametrize("status", ["vacuous", "undecided"])
def test_a_sweep_whose_result_has_no_verdict_is_not_ok(status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = finishing.check_limit
    monkeypatch.setattr(
        finishing, "check_limit", lambda *given: dataclasses.replace(judge(*given), status=status, reason="open")
    )
    space = space_of(subjects.silu, "k", "bfloat16", results=("y",), bounds=(1.0, 1.5))
    run = finish(subjects.silu, space, check(subjects.silu, space, 0, HERE))
    assert (run.status, run.results[0].status) == (status, status)


def test_a_sweep_has_the_maximum_of_each_class_and_judges_each_by_its_own_limit() -> None:
    limits = {"bfloat16": {"ordinary": 0.51, "demanding": None, "extreme": None}}
    kernel = promising(subjects.naive, max_ulp={**subjects.naive.max_ulp, "bfloat16": 0.51}, class_limits=limits)
    space = space_of(kernel, "k", "bfloat16", results=("y",), bounds=(-120.0, 8.0))
    (result,) = finish(kernel, space, check(kernel, space, 0, HERE)).results
    ordinary, demanding = (value_of(each.figures.max_ulp) for each in result.classes[:2])
    assert [each.name for each in result.classes] == ["ordinary", "demanding", "extreme"]
    assert demanding > 100 and ordinary > 1 and result.status == "wrong" and "ordinary" in result.reason
    assert (
        result.classes[0].figures.n == 2 * (27 * 128 + 1) + 2
        and sum(each.figures.n for each in result.classes) == result.basis.n
    )
    kind = promising(
        kernel,
        max_ulp={**kernel.max_ulp, "bfloat16": ordinary},
        class_limits={"bfloat16": {"ordinary": ordinary, "demanding": None, "extreme": None}},
    )
    assert finish(kind, space, check(kind, space, 0, HERE)).status == "ok"


def test_inputs_beyond_the_declared_magnitude_are_shown_and_not_judged() -> None:
    bounded = promising(
        subjects.naive, largest={"float32": {"x": 2.0}}, max_ulp={**subjects.naive.max_ulp, "float32": 4.0}
    )
    fmt = named("float32")
    keys = (key_of_value(fmt, -8.0) - 5, key_of_value(fmt, -8.0) + 5)
    space = space_of(bounded, "k", "float32", bounds=keys, results=("y",))
    found = check(bounded, space, 0, HERE)
    assert set(found.parts["y"].regimes) == {BEYOND} and not found.parts["y"].curve
    assert finish(bounded, space, found).status == "ok"
    free = promising(bounded, largest={})
    assert finish(free, space, check(free, space, 0, HERE)).status == "wrong"
