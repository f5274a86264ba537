"""Kernels that write: what they write is judged, everything else must stay as it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import verify
from tests.declare import writing_kernels
from tests.laws import trial
from tests.measure.test_kernel import few_cases
from verify.backends import Backend
from verify.cases import case_of
from verify.errors import KernelError
from verify.measure.call import run_kernel
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure
from verify.records.record import KernelRun


@pytest.fixture(autouse=True)
def _two_regimes(monkeypatch: pytest.MonkeyPatch) -> None:
    few_cases(monkeypatch, "randn", "signs", "mean 1e3")


def measured(kernel: verify.Kernel, backend: Backend) -> KernelRun:
    return measure_kernel(kernel, Measure(f"tests/declare/writing_kernels.py::{kernel.name}"), backend)


def test_what_is_written_is_judged(backend: Backend) -> None:
    run = measured(writing_kernels.step, backend)
    assert (run.status, [result.output for result in run.results]) == ("ok", ["p_", "m_", "v_"]), run
    assert all(result.basis.n > 1000 for result in run.results)


def test_an_operand_that_is_not_updated_is_caught(backend: Backend) -> None:
    run = measured(writing_kernels.forgets_v, backend)
    assert {result.output: result.status for result in run.results} == {"p_": "ok", "m_": "ok", "v_": "wrong"}


def test_an_operand_that_is_not_declared_as_written_must_stay(backend: Backend) -> None:
    run = measured(writing_kernels.squares_g_in_place, backend)
    assert run.status == "error" and "g differs" in run.message, run


def test_a_buffer_is_full_of_nan_before_the_call(backend: Backend) -> None:
    assert measured(writing_kernels.exp_into, backend).status == "ok"
    run = measured(writing_kernels.exp_added, backend)
    assert run.status == "wrong" and "NaN" in run.results[0].reason, run.results


def test_written_buffers_and_returned_results_go_together(backend: Backend) -> None:
    kernel = writing_kernels.all_three
    assert (kernel.operands, kernel.outputs) == (("x", "state"), ("y", "state_", "mean"))
    run = measured(kernel, backend)
    assert run.status == "ok" and [result.output for result in run.results] == ["y", "state_", "mean"], run


def test_a_buffer_may_depend_on_operands_that_the_kernel_does_not_take(backend: Backend) -> None:
    assert writing_kernels.sums_into.operands == ("x", "offsets", "lengths")
    assert measured(writing_kernels.sums_into, backend).status == "ok"
    assert measured(writing_kernels.sums_without_the_last, backend).status == "wrong"
    trial.holds("determinism", writing_kernels.sums_into)


def test_integers_in_32_bits_with_a_structure_and_a_buffer_go_together(backend: Backend) -> None:
    run = measured(writing_kernels.put_into, backend)
    assert run.status == "ok" and not run.gaps, run


@pytest.mark.parametrize("law", ["determinism", "layout independence", "memory bounds", "batch invariance"])
def test_laws_hold_of_a_right_kernel(law: str) -> None:
    trial.holds(law, writing_kernels.step)


def test_what_lies_behind_a_written_operand_or_a_buffer_is_guarded() -> None:
    trial.holds("memory bounds", writing_kernels.doubled_in_place)
    for kernel in (writing_kernels.doubled_too_far, writing_kernels.doubled_too_far_into):
        trial.breaks("memory bounds", kernel, "something is written outside of the results")


def test_a_second_call_on_the_same_buffers_is_made() -> None:
    trial.breaks("determinism", writing_kernels.first_call_alone, "a second call on the same buffers gives other bits")


def test_the_kernel_gets_copies_with_the_strides_of_the_operand() -> None:
    seen: list[tuple[int, ...]] = []

    def scale(x: Tensor) -> None:
        seen.append(x.stride())
        x.mul_(2)

    kernel = verify.kernel(like=lambda x: 2 * x, dtypes=["float32"], writes={"x": "x_"})(scale)
    case = case_of(kernel, "float32", dims=(4, 5), layouts={"x": "transposed"})
    found = run_kernel(kernel, case, "cpu")
    x = found.inputs["x"]
    assert x is not None and seen[-1] == x.stride() == (1, 4)
    assert torch.equal(found.results["x_"], 2 * x), "the operand itself is as it was"


def test_a_kernel_that_returns_too_much_or_too_little_is_an_error() -> None:
    kernel = verify.kernel(
        like=lambda x: (2 * x, x + 1), dtypes=["float32"], writes={"x": "x_"}, outputs=["x_", "y"], name="lacks"
    )(lambda x: x.mul_(2) and None)
    with pytest.raises(KernelError, match="returns y beside what it writes|must return"):
        run_kernel(kernel, case_of(kernel, "float32", dims=(1,)), "cpu")


def _scaled(x: Tensor, s: Tensor) -> Tensor:
    return x * s[:, None]


def _by_length(x: Tensor, lens: Tensor) -> Tensor:
    return x * (torch.arange(x.shape[0])[:, None] >= lens.cumsum(0)).sum(1)


def test_a_buffer_has_the_declared_dtype(backend: Backend) -> None:
    """It had the dtype that the definition's arithmetic promotes to, so that a kernel of serving could not be said."""

    def kernel(x: Tensor, s: Tensor, y: Tensor) -> None:
        assert y.dtype == torch.bfloat16
        y.copy_(x.float() * s[:, None])

    said: dict[str, Any] = {"shapes": {"x": "n d", "s": "n"}, "operand_dtypes": {"s": "float32"}}
    declared = verify.kernel(like=_scaled, into=["y"], dtypes=["bfloat16"], name="serves", **said)(kernel)
    run = run_kernel(declared, case_of(declared, "bfloat16", dims=(4, 5)), "cpu")
    assert run.results["y"].dtype == torch.bfloat16


def test_a_buffer_beside_derived_operands_and_constants(backend: Backend) -> None:
    """The definition was called with the derived operands too, and on a device that holds no numbers."""

    def kernel(x: Tensor, lens: Tensor, start: Tensor, y: Tensor) -> None:
        y.copy_(x * ((torch.arange(len(x))[:, None] >= start).sum(1) - 1))

    declared = verify.kernel(
        like=_by_length,
        shapes={"x": "t", "lens": "b", "start": "b"},
        integers={"lens": "1 <= lens <= t, sum t"},
        derive={"start": lambda lens: lens.cumsum(0) - lens},
        into=["y"],
        dtypes=["float32"],
        where="t >= b",
        name="by_length",
    )(kernel)
    found = run_kernel(declared, case_of(declared, "float32", dims=(7, 3)), "cpu")
    x, lens = found.inputs["x"], found.inputs["lens"]
    assert x is not None and lens is not None and torch.equal(found.results["y"], _by_length(x, lens))
