"""Regions that count (valid=): what lies outside has no verdict, and must not reach what lies inside."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

import verify
from tests.declare import region_kernels
from tests.declare.region_kernels import PADDED
from tests.measure.test_kernel import few_cases
from verify.backends import Backend
from verify.cases import case_of, inputs_of
from verify.errors import KernelError, UsageError
from verify.measure.call import run_judged, run_kernel
from verify.measure.effort import Effort
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure
from verify.records.record import KernelRun


@pytest.fixture(autouse=True)
def _two_regimes(monkeypatch: pytest.MonkeyPatch) -> None:
    few_cases(monkeypatch, "randn", "signs")


def measured(kernel: verify.Kernel, backend: Backend) -> KernelRun:
    return measure_kernel(kernel, Measure(f"tests/declare/region_kernels.py::{kernel.name}"), backend)


def test_rows_outside_of_a_region_may_be_anything_and_no_other_rows(backend: Backend) -> None:
    run, plain = (measured(getattr(region_kernels, name), backend) for name in ("nan_behind", "nan_behind_undeclared"))
    assert run.status == "ok" and plain.status == "wrong", (run, plain)
    assert 0 < run.results[0].basis.n < plain.results[0].basis.n, "elements outside of the region count in no figure"
    assert measured(region_kernels.last_row_is_zero, backend).status == "wrong"


def test_a_result_that_is_judged_in_part_has_the_same_region(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = measured(region_kernels.nan_behind, backend).results[0].basis
    empty = lambda effort, op, problem: not all(value.numel() for value in problem.inputs.values())  # noqa: E731
    monkeypatch.setattr(Effort, "holds", empty)
    part = measured(region_kernels.nan_behind, backend)
    assert part.status == "ok" and 0 < part.results[0].basis.n <= whole.n < part.results[0].basis.of, part
    assert measured(region_kernels.last_row_is_zero, backend).status == "wrong"


def test_a_region_without_elements_is_no_pass(backend: Backend) -> None:
    run = measured(region_kernels.nothing_counts, backend)
    assert run.results[0].status == "undecided" and run.results[0].basis.n == 0, run


def test_padding_does_not_reach_what_counts(backend: Backend) -> None:
    assert measured(region_kernels.mean_of_rows, backend).status == "ok"
    run = measured(region_kernels.times_zero, backend)
    assert run.status == "wrong" and "NaN" in run.results[0].reason, run
    assert measured(region_kernels.times_zero_undeclared, backend).status == "ok", "without valid= padding is numbers"


def test_a_kernel_does_not_write_into_its_padding(backend: Backend) -> None:
    run = measured(region_kernels.writes_its_padding, backend)
    assert run.status == "error" and "x differs" in run.message, run


def test_a_later_call_must_not_change_a_result_that_has_a_region(backend: Backend) -> None:
    case = case_of(region_kernels.keeps_its_buffer, "float32", dims=(3, 5, 4))
    with pytest.raises(KernelError, match="must not change what it has returned"):
        run_judged(region_kernels.keeps_its_buffer, case, backend.device, again=True)


@pytest.mark.parametrize(
    ("name", "status"),
    [("skips_padded_keys", "ok"), ("attends_to_padded_keys", "wrong"), ("weighs_padded_values_by_zero", "wrong")],
)
def test_attention_does_not_see_padded_keys(name: str, status: str, backend: Backend) -> None:
    kernel = getattr(region_kernels, name)
    assert measured(kernel, backend).status == status


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "stepped", "expanded last"])
def test_a_kernel_receives_nan_outside_of_an_operands_region(layout: str) -> None:
    kernel = region_kernels.mean_of_rows
    case = case_of(kernel, "float32", dims=(3, 5, 4), layouts={"x": layout})
    x, lengths = inputs_of(kernel.op, case, "cpu").values()
    assert x is not None and lengths is not None and int(lengths.min()) < 5
    assert torch.equal(x.isnan(), ~region_kernels.counts(x, lengths).expand(x.shape))
    plain = inputs_of(region_kernels.times_zero_undeclared.op, case, "cpu")["x"]
    assert plain is not None and plain.stride() == x.stride() and not plain.isnan().any()
    assert torch.equal(torch.where(x.isnan(), 0.0, x), torch.where(x.isnan(), 0.0, plain))


def test_a_gradient_outside_of_its_operands_region_is_not_judged() -> None:
    def backward_with_nan(x: Tensor, lengths: Tensor) -> Tensor:
        behind = ~region_kernels.counts(x, lengths)
        inner = x.view_as(x)
        inner.register_hook(lambda gradient: gradient.masked_fill(behind, torch.nan))
        return inner.masked_fill(behind, 0.0).sum(1) / lengths[:, None]

    kernel = verify.kernel(**region_kernels.MEANS)(backward_with_nan)
    found = run_kernel(kernel, case_of(kernel, "float32", dims=(3, 5, 4)), "cpu").results["dx"]
    assert found.isfinite().all() and (found == 0).any() and (found != 0).any()


def test_a_result_may_have_dimensions_of_its_own(backend: Backend) -> None:
    declared = {
        **PADDED,
        "like": lambda x, lengths: x.mT.softmax(-2),
        "valid": {"y": "b d s: s < lengths"},
        "gradients": False,
        "name": "nan_behind",
    }

    def transposed(x: Tensor, lengths: Tensor) -> Tensor:
        return x.softmax(-1).masked_fill(~region_kernels.counts(x, lengths), torch.nan).mT

    kernel = verify.kernel(**declared)(transposed)
    assert kernel.promise.split("; ")[-1] == "valid: y where b d s: s < lengths"
    assert measured(kernel, backend).status == "ok"


@pytest.mark.parametrize(
    ("valid", "said"),
    [
        ({"y": "s <"}, "condition on indices of y .* received 's <'"),
        ({"y": "s"}, "condition on indices of y .* received 's'"),
        ({"y": "1 < 2"}, "condition on indices of y .* received '1 < 2'"),
        ({"y": "n < lengths"}, r"no operand has these dimensions.* received 'n < lengths'"),
        ({"y": "s < x"}, r"integer operands along these dimensions \(lengths\); received 's < x'"),
        ({"y": "d: d < lengths"}, r"condition on indices of y \(d\)"),
        ({"y": "s < len(lengths)"}, r"received 's < len\(lengths\)'"),
        ({"y": 3}, "received 3"),
        ({"lengths": "b < 2"}, "valid= is about results, and about floating-point operands .* received 'lengths'"),
        ({"z": "s < lengths"}, "valid= names operands and results, x, lengths, y; received 'z'"),
        ({"y": "b d s: s < lengths"}, r"which for the sizes .* is the shape .* like= returns"),
    ],
)
def test_a_wrong_region_is_refused_with_an_example(valid: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        verify.kernel(**{**region_kernels.ROWS, "valid": valid})(lambda x, lengths: x)
    assert "s < lengths" in str(raised.value.hint) or "outputs=" in str(raised.value.hint)


def test_a_region_needs_the_names_of_dimensions() -> None:
    with pytest.raises(UsageError, match=re.escape("valid= is about the dimensions of shapes=; received")):
        verify.kernel(like=torch.exp, valid={"y": "n < 3"})(lambda x: x)


def test_without_a_region_nothing_changes() -> None:
    ops = [verify.kernel(**{**region_kernels.ROWS, "valid": each})(lambda x, lengths: x).op for each in (None, {})]
    assert ops[0].name == ops[1].name and ops[0].regions is None and ops[1].regions is None
