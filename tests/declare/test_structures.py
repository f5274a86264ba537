"""Kernels whose operands have structure: what they are called with, and what the harness keeps of it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

import verify
from tests.laws import trial
from tests.measure.test_kernel import few_cases
from verify.backends import Backend
from verify.cases import Case, case_of, inputs_of
from verify.errors import UsageError
from verify.laws.law import Subject
from verify.laws.shrink import shrink_element
from verify.measure.call import run_kernel
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure
from verify.records.record import KernelRun
from verify.search.hunt.draws import Draws
from verify.search.hunt.edits import fresh, fresh_shared
from verify.search.hunt.space import space_of


def structured(name: str) -> Any:
    """A kernel of the examples. Declaring them imports Dynamo, a second that collecting tests need not take."""
    return getattr(import_module("examples.structured"), name)


def twin(name: str) -> Any:
    return getattr(import_module("tests.declare.structured_kernels"), name)


def measured(kernel: verify.Kernel, backend: Backend) -> KernelRun:
    return measure_kernel(kernel, Measure(f"tests/declare/structured_kernels.py::{kernel.name}"), backend)


def operands(kernel: verify.Kernel, **fields: Any) -> dict[str, Tensor]:
    found = inputs_of(kernel.op, case_of(kernel, kernel.dtypes[0], **fields), "cpu")
    return {name: value for name, value in found.items() if value is not None}


# -- right and broken twins --------------------------------------------------------------------------------


SLOW = ("varlen_attention", "attention_backward", "without_delta")


def names(*all_: str) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in all_]


@pytest.mark.parametrize(
    "name", names("varlen_attention", "attention_backward", "gating", "permute_tokens", "there_and_back")
)
def test_a_right_kernel_passes(name: str, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    few_cases(monkeypatch)
    run = measured(structured(name), backend)
    assert run.status == "ok", [(each.output, each.status, each.reason) for each in run.results]


def test_a_right_backward_kernel_passes(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    few_cases(monkeypatch)
    assert measured(twin("norm_backward"), backend).status == "ok"


WRONG = {
    "leaks_into_the_next": {"y"},
    "without_delta": {"dq", "dk"},
    "keeps_the_first_row": {"y"},
    "biased_weights": {"y"},
    "backwards_within_experts": {"y"},
    "there_and_there": {"y"},
}


@pytest.mark.parametrize("name", names(*WRONG))
def test_its_broken_twin_is_caught(name: str, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    few_cases(monkeypatch, "randn", "mean 1e3")
    found = {result.output: result.status for result in measured(twin(name), backend).results}
    assert {result for result, status in found.items() if status == "wrong"} == WRONG[name], found


@pytest.mark.slow
def test_a_format_inside_is_neither_excused_everywhere_nor_wrong(backend: Backend) -> None:
    run = measured(structured("attention_in_two_formats"), backend)
    assert run.status == "ok", run
    for kernel in (twin("truncates"), twin("rounds_nothing"), twin("rounds_undeclared")):
        assert measured(kernel, backend).status == "wrong", kernel.name


# -- what operands hold ------------------------------------------------------------------------------------


def test_lengths_add_up_and_offsets_follow() -> None:
    for seed, dims in enumerate([(3, 5, 2), (128, 4, 2), (5, 2, 4), (64, 2, 16)]):
        given = operands(structured("varlen_attention"), dims=dims, seed=seed)
        lengths, offsets = given["lengths"], given["offsets"]
        assert int(lengths.sum()) == dims[0] and int(lengths.min()) >= 1
        assert offsets.tolist() == [0, *lengths.cumsum(0).tolist()]


def test_a_permutation_is_one_and_differs_by_seed() -> None:
    seen = [operands(twin("permuted"), dims=(9, 2), seed=seed)["p"] for seed in range(4)]
    assert all(p.sort().values.tolist() == list(range(9)) for p in seen)
    assert len({tuple(p.tolist()) for p in seen}) == 4


def test_what_a_forward_pass_saves_is_rounded_once_to_its_format() -> None:
    given = operands(structured("attention_backward"), dims=(5, 8, 9))
    s = given["q"].double() @ given["k"].double().mT / 8**0.5
    assert given["lse"].dtype == torch.float32 and torch.equal(given["lse"], s.logsumexp(-1).float())
    assert given["o"].dtype == torch.bfloat16
    assert torch.equal(given["o"].double(), (s.softmax(-1) @ given["v"].double()).float().bfloat16().double())


def test_a_case_names_no_derived_operand_and_says_the_same_bits() -> None:
    kernel = structured("varlen_attention")
    case = Case.from_json(case_of(kernel, "float32", dims=(7, 2, 3), seed=5).to_json())
    first, second = (inputs_of(kernel.op, case, "cpu")["offsets"] for _ in range(2))
    assert first is not None and second is not None and torch.equal(first, second)
    spelled = msgspec.structs.replace(case, values={"offsets": "00" * 32})
    with pytest.raises(UsageError, match="does not spell out 'offsets', which is derived"):
        inputs_of(kernel.op, spelled, "cpu")
    with pytest.raises(UsageError, match="declared as a sum"):
        inputs_of(kernel.op, msgspec.structs.replace(case, edits={"lengths": {"0": f"{6:016x}"}}), "cpu")


def test_lists_and_operands_by_keyword_reach_the_kernel() -> None:
    kernel = twin("listed")
    assert kernel.operands == ("x", "weights_0", "weights_1", "table")
    assert kernel.op.gradients == ("dx", "dweights_0", "dweights_1")
    found = run_kernel(kernel, case_of(kernel, "float32", dims=(6, 3, 4, 5)), "cpu")
    x, first, second, table = (found.inputs[name] for name in kernel.operands)
    assert x is not None and first is not None and second is not None and table is not None
    assert len(set(table.tolist())) == 5
    torch.testing.assert_close(found.results["y"], (x @ first + x @ second)[table])
    direct = kernel(x, [first, second], table=table)
    assert torch.equal(direct.detach(), found.results["y"])


# -- the rest of the harness keeps the structure ------------------------------------------------------------


@pytest.mark.slow
def test_laws_hold_of_right_kernels_or_say_why_not() -> None:
    trial.holds("batch invariance", twin("norm_backward"))
    trial.skips("special values", twin("norm_backward"), "mean, rstd would have to be derived from NaN")
    trial.skips("batch invariance", structured("varlen_attention"), "no dimension")
    for law in ("determinism", "error contract", "memory bounds"):
        trial.holds(law, structured("varlen_attention"))


def test_a_smaller_case_keeps_the_structure(backend: Backend) -> None:
    kernel = twin("keeps_the_first_row")
    case = case_of(kernel, "float32", dims=(16, 3))
    found = shrink_element(Subject(kernel, "float32", backend, None), case, "y", 12, 1e9)
    given = inputs_of(kernel.op, found.case, "cpu")["p"]
    assert given is not None and found.case.dims[0] == 5, found.case
    assert given.sort().values.tolist() == list(range(5))


def test_hunts_draw_the_structure_and_derive_again() -> None:
    for kernel, result in ((structured("varlen_attention"), "y"), (twin("norm_backward"), "dx")):
        space = space_of(kernel, "float32", result, "cpu")
        draws = Draws(0, "here", "cpu")
        population, shared = fresh(space, 3, draws), fresh_shared(space, 0, draws)
        inputs, upstream = space.tensors(population, shared)
        assert not upstream
        if result == "dx":
            assert space.layout.axis == 0
            x, mean = inputs["x"], inputs["mean"]
            assert x is not None and mean is not None and torch.equal(mean, x.double().mean(-1).float())
        else:
            lengths, offsets = inputs["lengths"], inputs["offsets"]
            assert lengths is not None and offsets is not None
            assert int(lengths.sum()) == space.layout.dims[0] == int(offsets[-1])
        case = space.case({name: value[:1] for name, value in population.items()}, shared, 1)
        assert not case.values.keys() & {"mean", "rstd", "offsets"}
        inputs_of(kernel.op, case, "cpu")
