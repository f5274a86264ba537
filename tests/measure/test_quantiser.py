"""Quantisers measured as `verify run` does: bugs that were found late, the cause that names them, right twins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import verify
from examples import quantisers
from tests.measure.quantiser_mutants import CAUSES
from verify.backends import Backend
from verify.cases import Case
from verify.cases.blocks import BlockCase
from verify.diagnose.replay import replay
from verify.errors import UsageError
from verify.measure import quantiser
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure
from verify.records.contradictions import contradictions
from verify.records.record import KernelRun
from verify.search.hunt.space import space_of

pytestmark = pytest.mark.usefixtures("warm")

TWINS = {twin.name: twin for _, _, twin in CAUSES}


def measured(kernel: verify.Kernel, backend: Backend, dtypes: tuple[str, ...] = ("bfloat16",)) -> KernelRun:
    run = measure_kernel(kernel, Measure("examples/quantisers.py::it", dtypes=dtypes), backend)
    assert list(contradictions(run)) == []
    return run


@pytest.mark.parametrize(
    ("kernel", "cause"),
    [
        pytest.param(*row[:2], id=row[0].name, marks=() if place % 8 == 0 else pytest.mark.slow)  # seconds each
        for place, row in enumerate(CAUSES)
    ],
)
def test_a_bug_that_was_found_late_is_found_and_named(kernel: verify.Kernel, cause: str, backend: Backend) -> None:
    run = measured(kernel, backend)
    assert run.status == "wrong", run
    told = [result.reason for result in run.results if result.status == "wrong"]
    assert any(cause in reason for reason in told), told


@pytest.mark.parametrize(
    "twin",
    [
        pytest.param(twin, id=name, marks=() if place % 6 == 0 else pytest.mark.slow)
        for place, (name, twin) in enumerate(TWINS.items())
    ],
)
def test_its_twin_passes(twin: verify.Kernel, backend: Backend) -> None:
    run = measured(twin, backend)
    assert (run.status, run.message) == ("ok", ""), run
    assert {result.limit for result in run.results} == {0.0}


def test_scales_and_codes_of_16_bits_are_tried_for_all_inputs(backend: Backend) -> None:
    found = {result.output: result.basis for result in measured(quantisers.mxfp8, backend).results}
    assert (found["scales"].kind, found["scales"].n) == ("exhaustive", 0x7F7F), "every finite magnitude"
    assert (found["codes"].kind, found["codes"].n) == ("exhaustive", 2 * (0x43FF + 1)), "every number up to amax"
    assert found["blocks"].kind == "observed"


def test_a_run_asks_the_kernel_s_own_process() -> None:
    run = verify.run("examples/quantisers.py::mxfp4", dtypes=["bfloat16"])
    assert run.verdict == "pass", run.record
    assert {result.output for result in run.record.kernels[0].results} == {
        "scales",
        "codes",
        "special blocks",
        "blocks",
    }


def test_cases_that_promise_nothing_are_no_pass(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    infinite = BlockCase("special", (8, 64), "block special 1x16 of infinities", 8, False)
    monkeypatch.setattr(quantiser, "block_cases", lambda *given: [infinite])
    run = measured(quantisers.nvfp4, backend)
    assert [(result.output, result.status) for result in run.results] == [("special blocks", "vacuous")]
    assert run.status == "vacuous" and "zeros in place of all codes would be right too" in run.results[0].reason


def test_a_part_of_another_shape_is_an_error_that_says_which(backend: Backend) -> None:
    encoding = verify.quantised("e4m3", block=(1, 32), scale="e8m0")
    declared = verify.kernel(quantise=encoding, dtypes=["bfloat16"], name="turned")
    run = measured(declared(lambda x: tuple(each.T for each in quantisers.mx(x, "e4m3", "floor"))), backend)
    assert run.status == "error" and "codes has the shape (" in run.message


def test_a_fused_kernel_is_judged_by_what_its_function_may_give(backend: Backend) -> None:
    """bfloat16 results of a norm differ in the last bit: blocks are right at a tie, and a factor of 1.01 is wrong."""
    encoding = verify.quantised("e4m3", block=(1, 32), scale="e8m0")

    def norm(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(x, x.shape[-1:], eps=1e-6)

    def declared(factor: float) -> verify.Kernel:
        made = verify.kernel(
            quantise=encoding, like=norm, shapes={"x": "m k"}, where="k % 32 == 0", dtypes=["bfloat16"], name="fused"
        )
        return made(lambda x: quantisers.mx((norm(x.float()) * factor).bfloat16(), "e4m3", "floor"))

    right = measured(declared(1.0), backend)
    assert right.status == "ok" and "right at a tie" in right.notes[0], right
    assert measured(declared(1.01), backend).status == "wrong"


# -- what quantisers keep ------------------------------------------------------------------------


def mxfp8_with(change: Any) -> verify.Kernel:
    """Returns an MXFP8 quantiser whose codes and scales are changed by the tensor that it received."""
    return verify.kernel(quantise=quantisers.mxfp8.encoding, dtypes=["bfloat16"], name="changed")(
        lambda x: change(x, *quantisers.mx(x, "e4m3", "floor"))
    )


def looks_at_its_neighbour(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> tuple[torch.Tensor, ...]:
    own = scales.view(torch.uint8)
    return codes, own + (own.roll(1, 1) > own)


def makes_ones_of_zeros(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.where(x == 0, 1.0, codes.float()).to(quantisers.E4M3), scales


def spreads_nan_in_its_row(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return quantisers.mx(torch.where(x.isnan().any(1, keepdim=True), torch.nan, x), "e4m3", "floor")


@pytest.mark.parametrize(
    ("change", "outputs"),
    [
        (looks_at_its_neighbour, {"scales", "special blocks", "blocks"}),
        (makes_ones_of_zeros, {"scales", "codes", "special blocks", "blocks"}),
        (spreads_nan_in_its_row, {"special blocks"}),
    ],
)
def test_a_block_keeps_its_codes_whatever_is_beside_it(change: Any, outputs: set[str], backend: Backend) -> None:
    run = measured(mxfp8_with(change), backend)
    assert run.status == "wrong" and {each.output for each in run.results if each.status == "wrong"} == outputs


# -- probes -----------------------------------------------------------------------------------


def test_what_commands_about_single_numbers_say_of_a_quantiser(backend: Backend) -> None:
    case = Case.from_json('{"dtype":"bfloat16","dims":[6,128],"fill":"randn"}')
    (kernel,) = (row[0] for row in CAUSES if row[0].name == "one_off")
    with pytest.raises(UsageError, match=r"on this case 24 blocks: 0 right, 24 wrong; the scale is off by one code"):
        replay(kernel, "here.py::it", backend, case, result="codes", index=0)
    with pytest.raises(UsageError, match="'one_off' is a quantiser: `verify run` tries every scale"):
        space_of(kernel, "bfloat16", "y", "cpu")


def test_what_a_declaration_says_is_checked() -> None:
    with pytest.raises(UsageError, match="rule is one of"):
        verify.quantised("e4m3", block=(1, 32), scale="e8m0", rule="down")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="e8m0 holds powers of two"):
        verify.quantised("e4m3", block=(1, 32), scale="e8m0", rule="nearest")
    with pytest.raises(UsageError, match="packed is about codes of 4 bits"):
        verify.quantised("e4m3", block=(1, 32), scale="e8m0", packed="low first")
    with pytest.raises(UsageError, match="quantise= is what verify.quantised"):
        verify.kernel(quantise="e4m3")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="received op='gelu' beside it"):
        verify.kernel(op="gelu", quantise=quantisers.mxfp8.encoding)
    assert replace(quantisers.mxfp8.encoding, fused=True) != quantisers.mxfp8.encoding
