"""Kernels with quantised operands, measured as `verify run` does: right ones pass, a wrong reading is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import verify
from examples import quantised_operands as examples
from tests.measure.operand_mutants import CAUSES, swapped
from tests.measure.test_kernel import few_cases
from verify.backends import Backend
from verify.cases import Case, case_of, inputs_of
from verify.declare.discovery import load
from verify.declare.target import Target
from verify.diagnose.replay import replay
from verify.errors import KernelError, UsageError
from verify.measure.call import run_kernel
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure
from verify.ops.op import Problem
from verify.records.contradictions import contradictions
from verify.records.record import KernelRun

pytestmark = pytest.mark.usefixtures("warm")

PRODUCTS = Target(str(Path(examples.__file__)))
TWINS = {twin.name: twin for _, _, twin in CAUSES}


def measured(kernel: verify.Kernel, backend: Backend) -> KernelRun:
    run = measure_kernel(kernel, Measure("examples/quantised_operands.py::it"), backend)
    assert list(contradictions(run)) == []
    return run


@pytest.mark.parametrize(
    ("kernel", "cause"),
    [
        pytest.param(*row[:2], id=row[0].name, marks=() if place % 3 == 0 else pytest.mark.slow)
        for place, row in enumerate(CAUSES)
    ],
)
def test_a_wrong_reading_is_found_and_named(
    kernel: verify.Kernel, cause: str, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_cases(monkeypatch, "randn")
    run = measured(kernel, backend)
    assert run.status == "wrong", run
    told = [result.reason for result in run.results if result.status == "wrong"]
    assert told and all(reason.startswith(cause) for reason in told), told


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in ("w4a16", "w4a16_awq") else pytest.mark.slow) for n in TWINS]
)
def test_its_twin_passes(name: str, backend: Backend) -> None:
    run = measured(TWINS[name], backend)
    assert (run.status, run.message) == ("ok", ""), run


@pytest.mark.slow
def test_grouped_and_integer_products_pass(backend: Backend) -> None:
    for kernel in (examples.grouped_fp8, examples.fp8_blocks, examples.w8a8):
        run = measured(kernel, backend)
        assert run.status == "ok", run


def test_a_kernel_receives_bytes_and_like_the_numbers() -> None:
    case = case_of(examples.w4a16, "bfloat16", dims=(2, 64, 3))
    inputs = inputs_of(examples.w4a16.op, case, "cpu")
    given = dict(zip(examples.w4a16.operands, (inputs[name] for name in examples.w4a16.operands), strict=True))
    received = examples.w4a16.function.calling.received(given)
    assert received["w_codes"].dtype == torch.uint8 and received["w_codes"].shape == (3, 32)
    assert received["w_scales"].dtype == torch.bfloat16 and received["w_scales"].shape == (3, 2)
    codes = examples.signed(examples.halves(received["w_codes"])).double()
    (shown,) = (each.shown for each in examples.w4a16.op.operands if each.shown is not None)
    assert torch.equal(shown(inputs), codes * received["w_scales"].double().repeat_interleave(32, 1))


def test_a_result_is_that_of_the_exact_numbers(backend: Backend) -> None:
    case = case_of(examples.w4a16, "bfloat16", dims=(2, 64, 3), upstream="")
    measured_ = run_kernel(examples.w4a16, case, backend.device)
    (shown,) = (each.shown for each in examples.w4a16.op.operands if each.shown is not None)
    wanted = measured_.inputs["x"].double() @ shown(measured_.inputs).mT
    fast = examples.w4a16.op.fast(Problem(measured_.inputs))["y"]
    assert torch.allclose(fast.value, wanted, rtol=1e-12), "like= has no rounding of its own"


@pytest.mark.parametrize("kernel", [each for each in load(PRODUCTS) if len(each.operands) > 3 or "x" in each.operands],
                         ids=lambda kernel: kernel.name)  # fmt: skip
def test_a_template_gives_the_product_of_the_exact_numbers(kernel: verify.Kernel) -> None:
    dtype = kernel.dtypes[0]
    dims = tuple({"k": 128, "t": 7}.get(name, 8) for name in kernel.op.geometry.dims)
    measured_ = run_kernel(kernel, case_of(kernel, dtype, dims=dims, upstream=""), "cpu")
    wanted, got = kernel.op.fast(Problem(measured_.inputs))["y"].value, measured_.results["y"].double()
    assert wanted.abs().max() > 0.1
    assert (got - wanted).square().mean() <= 1e-4 * wanted.square().mean(), "within one per cent"


def test_a_kernel_that_writes_into_codes_is_in_error() -> None:
    @verify.kernel(**examples.ALONE, operands={"w": examples.MXFP8}, dtypes=["float32"])
    def writes(w_codes, w_scales):
        made = examples.of_mxfp8(w_codes, w_scales)
        w_scales.zero_()
        return made

    with pytest.raises(KernelError, match="writes must not change its inputs; w_scales differs"):
        run_kernel(writes, case_of(writes, "float32", dims=(1, 32)), "cpu")


def test_a_replay_shows_the_numbers_of_a_quantised_operand(backend: Backend, tmp_path: Path) -> None:
    source = tmp_path / "swapping.py"
    source.write_text(
        "import torch\nimport verify\n\n"
        'W = verify.quantised("e2m1", block=(1, 32), scale="e8m0", packed="low first")\n'
        "NUMBERS = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6])\n\n"
        '@verify.kernel(like=lambda w: w, shapes={"w": "n k"}, operands={"w": W}, dtypes=["float32"])\n'
        "def swapping(w_codes, w_scales):\n"
        "    codes = torch.stack([w_codes >> 4, w_codes & 15], -1).flatten(-2)\n"
        "    numbers = NUMBERS.to(codes.device)[codes.long()]\n"
        "    return numbers * torch.exp2(w_scales.float() - 127).repeat_interleave(32, 1)\n"
    )
    (kernel,) = load(Target(str(source)))
    case = case_of(kernel, "float32", dims=(2, 32), upstream="")
    found = replay(kernel, f"{source}::swapping", backend, case, result="y", index=3)
    meant = inputs_of(kernel.op, case, "cpu")
    (shown,) = (each.shown for each in kernel.op.operands if each.shown is not None)
    assert found.worst.inputs["w"] == repr(float(shown(meant)[0, 3]))


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"operands": {"w": "int4"}, "like": lambda w: w, "shapes": {"w": "n k"}}, "maps operands of like= to"),
        ({"operands": {"w": examples.MXFP8}, "op": "gelu"}, "maps operands of like= to"),
        ({"operands": {"w": examples.MXFP8}, "like": lambda w: w}, "has no dimensions of the quantised w"),
        (
            {"operands": {"w": examples.NVFP4}, "like": lambda w: w, "shapes": {"w": "n k"}},
            "takes the parts of its quantised operands, w_codes, w_scales, w_second",
        ),
    ],
)
def test_a_wrong_declaration_says_what_is_missing(said: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):

        @verify.kernel(**said)
        def wrong(w_codes, w_scales): ...


def test_sizes_are_whole_blocks_and_whole_bytes(backend: Backend) -> None:
    assert examples.w4a16.allows((3, 64, 5)) and not examples.w4a16.allows((3, 48, 5))
    assert examples.fp8_blocks.allows((3, 128, 5)), "the rows of a large block need not be whole"
    packed = verify.quantised("int4", block=(1, 0), scale="float32", packed="high first")

    @verify.kernel(**examples.ALONE, operands={"w": packed}, dtypes=["float32"])
    def by_row(w_codes, w_scales):
        return examples.signed(swapped(w_codes)).float() * w_scales

    assert by_row.allows((1, 2)) and not by_row.allows((1, 3))
    assert measured(by_row, backend).status == "ok"


def test_a_case_of_a_quantised_operand_reads_back() -> None:
    case = case_of(examples.fp8_blocks, "bfloat16", dims=(2, 128, 3))
    assert Case.from_json(case.to_json()) == case
    assert case.dtypes == {"a_scales": "float32", "b_scales": "float32"}
