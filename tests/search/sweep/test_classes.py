"""Every input of a sweep has the class that a run gives it, and what is beyond `largest` is judged by nobody."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.search.sweep import subjects
from tests.search.sweep.test_fused import FUSED, HERE, TORCH
from verify.cases import Case
from verify.cases.classes import class_of, classed
from verify.declare.declaration import Kernel
from verify.ops.op import Problem
from verify.records.readings import BEYOND, NONFINITE
from verify.records.record import value_of
from verify.search.sweep import finishing
from verify.search.sweep.checking import check
from verify.search.sweep.finishing import finish
from verify.search.sweep.layout import Plan
from verify.search.sweep.scope import level_at, levels, part_of, parts_of, space_of
from verify.search.sweep.space import key_of_value
from verify.search.sweep.subject import values_at
from verify.truth.formats import named


def promising(kernel: Kernel, **promise: object) -> Kernel:
    return dataclasses.replace(kernel, **promise)  # type: ignore[arg-type]


@pytest.mark.parametrize("largest", [None, 100.0, 3e38, 2.0**-110])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e5m2", "float8_e4m3fn"])
def test_levels_of_keys_are_the_classes_of_their_numbers(dtype: str, largest: float | None) -> None:
    fmt = named(dtype)
    if largest is not None and not float(fmt.value(1)) <= largest < float(fmt.max_finite):
        return
    keys = torch.arange(1 << fmt.bits)
    op, x = subjects.silu.op, values_at(keys, fmt)
    problem = Problem({"x": x}, {}, {}, ("y",))
    segments, parts = classed(op, Case(dtype=dtype, dims=(1,), fill="ones"), problem, "y", tuple(x.shape), largest)
    assert segments is not None
    names = [regime.name if regime.name in (NONFINITE, BEYOND) else class_of(regime, name) for regime, name in parts]
    starts = levels(fmt, float("inf") if largest is None else largest)
    order = [part_of(part)[1] or BEYOND for part in parts_of([""])]
    order[3] = NONFINITE
    assert [order[level_at(starts, key)] for key in keys.tolist()] == [names[place] for place in segments.tolist()]


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


@pytest.mark.parametrize("route", [FUSED, TORCH])
def test_inputs_beyond_the_declared_magnitude_are_shown_and_not_judged(route: str) -> None:
    bounded = promising(
        subjects.naive, largest={"float32": {"x": 2.0}}, max_ulp={**subjects.naive.max_ulp, "float32": 4.0}
    )
    fmt = named("float32")
    keys = (key_of_value(fmt, -8.0) - 5, key_of_value(fmt, -8.0) + 5)
    space = space_of(bounded, "k", "float32", bounds=keys, results=("y",))
    found = check(bounded, space, 0, HERE, route=route)
    assert set(found.parts["y"].regimes) == {BEYOND} and not found.parts["y"].curve
    assert finish(bounded, space, found).status == "ok"
    free = promising(bounded, largest={})
    assert finish(free, space, check(free, space, 0, HERE, route=route)).status == "wrong"


def test_the_columns_of_a_pair_are_cut_where_the_class_of_the_pair_changes() -> None:
    kernel = promising(subjects.split, largest={"float16": {"x1": 4.0}})
    gate = key_of_value(named("float16"), 2.0)
    plan = Plan(kernel, space_of(kernel, "k", "float16", bounds=(gate, gate + 1)), gate << 16, (gate + 1) << 16)
    for piece in plan.pieces:
        for column in (piece.columns[0], piece.columns[1] - 1):
            assert plan.part_at(gate, column) == piece.part
    assert {part_of(plan.names[piece.part])[1] or BEYOND for piece in plan.pieces} == {"ordinary", "extreme", BEYOND}
