"""Operands and outputs of several dtypes in one kernel: each in its own format, in all that takes a case."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import verify
from tests.measure import mixed_rms
from tests.measure.test_kernel import few_cases
from verify.backends import Backend
from verify.cases import Case, case_of, inputs_of
from verify.diagnose.replay import replay
from verify.errors import UsageError
from verify.laws import engine, registry
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure
from verify.records.record import KernelRun, Result, replay_command
from verify.report import words
from verify.search.hunt.space import space_of
from verify.search.sweep import serve
from verify.search.sweep.requests import ListSpaces

TARGET = "tests/measure/mixed_rms.py::norm"
PICKED = "tests/measure/mixed_rms.py::picked"


def measured(kernel: verify.Kernel, backend: Backend) -> tuple[KernelRun, dict[str, Result]]:
    run = measure_kernel(kernel, Measure(TARGET), backend)
    return run, {result.output: result for result in run.results}


@pytest.fixture(scope="module")
def mixed(backend: Backend) -> tuple[KernelRun, dict[str, Result]]:
    return measured(mixed_rms.norm, backend)


def test_each_result_is_judged_in_its_own_format_and_by_its_limit(mixed: tuple[KernelRun, dict[str, Result]]) -> None:
    run, found = mixed
    assert run.status == "ok", run
    assert "weight as float32 beside bfloat16; returns rstd as float32 beside bfloat16" in run.promise
    assert {result.gate for result in found.values()} == {"noise"}
    assert {each.limit for each in found.values()} == {5.0, 8.0}
    told = {name: (words.dtype_of(result), result.ulp_limit) for name, result in found.items()}
    assert told == {
        "y": ("bfloat16", 0.51),
        "rstd": ("bfloat16 to float32", 4.0),
        "dx": ("bfloat16", 0.51),
        "dweight": ("bfloat16 to float32", 4.0),
    }
    case = Case.from_json(found["dweight"].worst[0].origin.case)
    assert case.dtypes == {"weight": "float32"}, "a replay has the weight as it was"
    shown = found["rstd"].worst[0].inputs["x"]
    assert shown.count("(0x") == 3 and len(shown.split(", ")) in (3, 4), "the first few of the row that it is made of"
    # PyTorch computes in the wider dtype and rounds once; a sum over rows may cancel
    assert all(result.baseline is not None and float(result.baseline.max_ulp) < 8 for result in found.values())


def test_a_weight_that_is_narrowed_is_wrong_in_the_mixed_case_alone(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_cases(monkeypatch, "randn", "mean 1e3")
    forward = mixed_rms.MIXED | {"gradients": False}
    _, found = measured(mixed_rms.declared("narrow", **forward), backend)
    assert {name for name, result in found.items() if result.status == "wrong"} == {"y"}
    plain, of_plain = measured(mixed_rms.declared("narrow", **forward | {"operand_dtypes": None}), backend)
    assert plain.status == "ok" and of_plain["y"].properties != found["y"].properties


def test_another_dtype_than_declared_is_an_error_that_says_both_and_the_next_step(backend: Backend) -> None:
    run, _ = measured(mixed_rms.declared("statistics", **mixed_rms.MIXED), backend)
    assert run.status == "error"
    assert run.message == (
        "bfloat16: norm must return rstd as torch.float32; it returned torch.bfloat16 (if that is meant: "
        "output_dtypes={'rstd': 'bfloat16'})"
    )


@pytest.mark.parametrize("law", ["accuracy", "layout independence", "nothing overwritten", "autocast"])
def test_laws_keep_the_dtypes(law: str, backend: Backend) -> None:
    profile = replace(engine.profile_named("quick", None), examples=0)
    found = engine.run_law(registry.get(law), mixed_rms.norm, "bfloat16", backend, profile, TARGET)
    assert found.status == "ok" and found.cases, found


def test_the_law_of_mixed_dtypes_leaves_alone_what_is_declared(backend: Backend) -> None:
    profile = engine.profile_named("quick", None)
    found = engine.run_law(registry.get("mixed dtypes"), mixed_rms.norm, "bfloat16", backend, profile, TARGET)
    assert (found.status, found.message) == ("skipped", "the declaration says which operands have another dtype")


def test_a_replay_has_the_dtypes(mixed: tuple[KernelRun, dict[str, Result]], backend: Backend) -> None:
    origin = mixed[1]["dweight"].worst[0].origin
    assert '"dtypes":{"weight":"float32"}' in replay_command(origin)
    case = Case.from_json(origin.case)
    found = replay(mixed_rms.norm, TARGET, backend, case, result="dweight", index=origin.index)
    assert (found.dtype, found.gate, found.limit) == ("float32", "noise", 8.0)
    assert found.worst.ulp == mixed[1]["dweight"].worst[0].ulp


def test_a_hunt_searches_each_operand_in_its_own_dtype_and_a_sweep_refuses(backend: Backend) -> None:
    options: dict[str, Any] = {"op": "rms_norm", "dtypes": ["bfloat16"], "operand_dtypes": {"weight": "float32"}}
    kernel = verify.kernel(**options, max_ulp=4)(lambda x, weight: mixed_rms.Norm.apply(x, weight, "")[0])
    space = space_of(kernel, "bfloat16", "dweight", backend.device, width=4)
    assert {variable.name: variable.fmt.name for variable in space.variables} == {
        "x": "bfloat16",
        "weight": "float32",
        "dy": "bfloat16",
    }
    assert space.fmt.name == "float32"
    given = inputs_of(kernel.op, case_of(kernel, "bfloat16", dims=(2, 3)), "cpu")
    assert [str(value.dtype) for value in given.values() if value is not None] == ["torch.bfloat16", "torch.float32"]
    mixed = {"bfloat16": {"y": "float32"}}
    wide = verify.kernel(op="silu", dtypes=["bfloat16", "float16"], output_dtypes=mixed)(lambda x: torch.sigmoid(x) * x)
    spaces = serve._spaces_of(wide, TARGET, ListSpaces([TARGET]), backend)
    assert [space.dtype for space in spaces] == ["bfloat16", "float16"], "a result may have another dtype"
    apart = {"bfloat16": {"x2": "float32"}}
    gated = verify.kernel(op="swiglu_split", dtypes=["bfloat16", "float16"], operand_dtypes=apart)(lambda x1, x2: x1)
    spaces = serve._spaces_of(gated, TARGET, ListSpaces([TARGET], pairs=True), backend)
    assert [space.dtype for space in spaces] == ["float16"], "the dtype of which no operand has another"
    with pytest.raises(
        UsageError, match="a sweep enumerates kernels of one dtype; .* has x2 as float32 beside bfloat16"
    ):
        serve.space_of(gated, TARGET, "bfloat16")


# -- integers ------------------------------------------------------------------------------------------


def gathering(kind: str, where: str = "") -> verify.Kernel:
    """A kernel that takes its places in a dtype that PyTorch's gather refuses."""
    return verify.kernel(
        like=lambda x, at: x.gather(-1, at),
        shapes={"x": "n d", "at": "n k"},
        integers={"at": "0 <= at < d"},
        operand_dtypes={"at": kind},
        dtypes=["float32"],
        where=where,
    )(mixed_rms.picked)


@pytest.mark.parametrize(("kind", "where"), [("int32", ""), ("uint8", "d <= 256")])
def test_integers_have_the_declared_dtype_and_the_definition_takes_int64(
    kind: str, where: str, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_cases(monkeypatch, "randn", "mean 1e3", "outlier", most=9)
    kernel = gathering(kind, where)
    run, found = measured(kernel, backend)
    assert run.status == "ok" and f"at as {kind}" in run.promise, run
    assert float(found["y"].figures.max_ulp) == 0 and found["dx"].baseline is not None
    assert Case.from_json(found["dx"].worst[0].origin.case).dtypes == {"at": kind}
    small = case_of(kernel, "float32", dims=(2, 5, 3))
    again = inputs_of(kernel.op, Case.from_json(small.to_json()), backend.device)["at"]
    assert again is not None and str(again.dtype) == f"torch.{kind}"
    profile = replace(engine.profile_named("quick", None), examples=0)
    for law in ("accuracy", "layout independence", "memory bounds", "error contract", "nothing overwritten"):
        outcome = engine.run_law(registry.get(law), kernel, "float32", backend, profile, PICKED)
        assert outcome.status == "ok", outcome


def test_sizes_whose_integers_the_dtype_does_not_hold_say_what_to_declare(backend: Backend) -> None:
    with pytest.raises(UsageError, match="'at' holds uint8, from 0 to 255; received 0 to") as caught:
        inputs_of(gathering("uint8").op, case_of(gathering("uint8"), "float32", dims=(300, 4097, 300)), backend.device)
    assert "where=" in caught.value.hint


def test_a_dtype_that_integers_do_not_have(backend: Backend) -> None:
    with pytest.raises(UsageError, match="gives integers a dtype of int64, int32.*received 'float16' for at"):
        gathering("float16")
