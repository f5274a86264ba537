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
from verify.measure.call import run_kernel
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure
from verify.records.contradictions import contradictions
from verify.records.record import KernelRun, LawRun
from verify.search.hunt.space import space_of
from verify.truth.quantised import Encoding

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
    assert run.laws and all(law.status == "ok" for law in run.laws), run.laws


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


# -- laws -------------------------------------------------------------------------------------

LAWS = {"requantising", "power of two", "permuted blocks", "zero block", "neighbours", "NaN in its block"}
DECLARED = [each for each in vars(quantisers).values() if isinstance(each, verify.Kernel)]
LACKING = {
    "fp8_tensor": {"permuted blocks", "neighbours", "NaN in its block"},  # one block
    "mxfp4_random": {"permuted blocks"},  # the bits of a block stay where they are
    **{name: {"NaN in its block"} for name in ("nvfp4", "nvfp4_4over6")},  # NaN reaches the scale of the tensor
}


def laws_of(kernel: verify.Kernel, backend: Backend) -> dict[str, LawRun]:
    assert kernel.encoding is not None
    judging = quantiser.QuantiserJudging(
        kernel,
        kernel.encoding,
        "bfloat16",
        "here.py::it",
        0,
        backend.name,
        lambda c: run_kernel(kernel, c, backend.device),
    )
    return {law.law.removeprefix("quantiser: "): law for law in judging.laws()}


def broken(function: Any, encoding: Encoding, backend: Backend) -> dict[str, LawRun]:
    kernel = verify.kernel(quantise=encoding, dtypes=["bfloat16"], name="broken")(function)
    return {name: law for name, law in laws_of(kernel, backend).items() if law.status == "broken"}


@pytest.mark.parametrize("kernel", DECLARED, ids=lambda each: each.name)
def test_published_quantisers_keep_every_law_that_applies(kernel: verify.Kernel, backend: Backend) -> None:
    found = laws_of(kernel, backend)
    assert {law.status for law in found.values()} == {"ok"}, found
    assert found.keys() == LAWS - LACKING.get(kernel.name, set())


def test_a_block_that_looks_at_its_neighbour_breaks_laws(backend: Backend) -> None:
    def leaking(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        codes, scales = quantisers.mx(x, "e4m3", "floor")
        own = scales.view(torch.uint8)
        return codes, own + (own.roll(1, 1) > own)

    assert broken(leaking, quantisers.mxfp8.encoding, backend).keys() >= {"permuted blocks", "NaN in its block"}


def test_the_same_numbers_by_other_codes_break_a_law(backend: Backend) -> None:
    """Beyond 64, codes are half as large and scales twice: the numbers stay, all but subnormal ones."""

    def turned(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        codes, scales = quantisers.mx(x, "e4m3", "floor")
        large = float(x.abs().max()) > 64
        return (codes.float() / 2).to(quantisers.E4M3) if large else codes, scales.view(torch.uint8) + large

    assert "power of two" in broken(turned, quantisers.mxfp8.encoding, backend)


def test_integers_that_shrink_each_time_break_a_law(backend: Backend) -> None:
    def shrinking(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scales = x.float().abs().amax(1, keepdim=True) / 127
        return (x.float() / scales * 0.999).trunc().nan_to_num(nan=0).to(torch.int8), scales

    found = broken(shrinking, quantisers.INT8, backend)
    assert set(found) == {"requantising"} and "code" in found["requantising"].facts["got"]


def test_a_zero_block_that_is_none_breaks_a_law(backend: Backend) -> None:
    def ones(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        codes, scales = quantisers.mx(x, "e4m3", "floor")
        return torch.where(x == 0, 1.0, codes.float()).to(quantisers.E4M3), scales

    assert "zero block" in broken(ones, quantisers.mxfp8.encoding, backend)


def test_nan_of_the_whole_row_breaks_a_law(backend: Backend) -> None:
    def spreading(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return quantisers.mx(torch.where(x.isnan().any(1, keepdim=True), torch.nan, x), "e4m3", "floor")

    assert set(broken(spreading, quantisers.mxfp8.encoding, backend)) == {"NaN in its block"}


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
