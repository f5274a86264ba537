"""Every input of a sweep has the class that a run gives it, and what is beyond `largest` is judged by nobody."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import verify
from tests.search.sweep import subjects
from verify.backends import Backend, Interpreter
from verify.declare.declaration import Kernel
from verify.records.readings import BEYOND
from verify.records.record import Result, value_of
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


def swept(kernel: verify.Kernel, backend: Backend, dtype: str, low: float, high: float) -> dict[str, Result]:
    space = space_of(kernel, "here.py::it", dtype, bounds=(low, high), baseline=True)
    run = finish(kernel, space, check(kernel, space, (0, space.chunks), backend))
    return {result.output.partition(" ")[0]: result for result in run.results}


@pytest.mark.parametrize("sign", [1, -1])
def test_the_one_wrong_integer_of_a_range_is_found(sign: int, backend: Backend) -> None:
    kernel = verify.kernel(like=lambda x: x.round().to(torch.int8), dtypes=["float32"], name="rounds_up")(
        lambda x: x.add(0.5 * sign).floor().to(torch.int8) if sign > 0 else x.sub(0.5).ceil().to(torch.int8)
    )
    found = swept(kernel, backend, "float32", *sorted((sign * 2.4999, sign * 2.5001)))["y"]
    assert (found.status, found.format, found.figures.misrounded) == ("wrong", "integers", 1)
    assert found.reason == f"1 of {found.figures.n} integers are wrong on ordinary inputs"
    assert (found.worst[0].got, found.worst[0].truth) == (str(3 * sign), str(2 * sign))
    assert found.baseline is not None and found.baseline.misrounded == 0


def test_a_condition_is_right_everywhere(backend: Backend) -> None:
    kernel = verify.kernel(like=lambda x: x > 0.1, dtypes=["float32"], name="above")(lambda x: x >= 0.1)
    assert swept(kernel, backend, "float32", 0.0999, 0.1001)["y"].status == "ok"


def test_a_result_is_judged_in_its_own_format(backend: Backend) -> None:
    wide = {"like": torch.tanh, "dtypes": ["bfloat16"], "output_dtypes": {"y": "float32"}, "gradients": False}
    right = verify.kernel(**wide, name="right")(lambda x: torch.tanh(x.float()))
    narrow = verify.kernel(**wide, name="narrow")(lambda x: torch.tanh(x).float())
    found = swept(right, backend, "bfloat16", 0.5, 1.0)["y"]
    assert (found.status, found.format) == ("ok", "float32")
    assert swept(narrow, backend, "bfloat16", 0.5, 1.0)["y"].status == "wrong"
