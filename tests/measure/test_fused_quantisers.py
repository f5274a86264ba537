"""Kernels that compute and quantise in one pass: right ones pass, and what threads called failures are ties."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import verify
from examples import fused_quantisers as examples
from examples import quantisers
from verify.backends import Backend
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure
from verify.records.record import KernelRun
from verify.truth.quantised import Parts, Value, judge

KERNELS = {each.name: each for each in vars(examples).values() if isinstance(each, verify.Kernel)}


def measured(kernel: verify.Kernel, backend: Backend) -> KernelRun:
    return measure_kernel(kernel, Measure("examples/fused_quantisers.py::it", dtypes=("bfloat16",)), backend)


LINEAR = {"like": examples.of_linear, "shapes": examples.SHAPES, "where": "n % 32 == 0", "largest": 8.0}
SWIGLU = {"like": examples.of_swiglu, "shapes": examples.SAME, "where": "k % 32 == 0", "largest": 32.0}
NORM = {"like": examples.of_norm, "shapes": {"x": "m k", "weight": "k"}, "where": "k % 32 == 0"}


@pytest.mark.parametrize("name", KERNELS)
def test_a_right_fused_kernel_passes(name: str, backend: Backend) -> None:
    run = measured(KERNELS[name], backend)
    assert (run.status, run.message) == ("ok", ""), run
    assert [result.limit for result in run.results] == [0.0]
    assert run.notes[0].endswith(" 0 wrong"), run.notes
    if name == "swiglu_int8":
        assert "right under another scale" in run.notes[0]


def test_a_row_without_columns_has_no_scale(backend: Backend) -> None:
    def norm(x, weight):
        empty = x.to(quantisers.E4M3), torch.ones(len(x), min(x.shape[1], 1))
        return examples.norm_fp8_rows(x, weight) if x.numel() else empty

    shapes = {"x": "m k", "weight": "k"}
    run = measured(verify.kernel(quantise=examples.FP8_ROWS, like=examples.of_norm, shapes=shapes)(norm), backend)
    assert (run.status, run.message) == ("ok", ""), run


def no_bias(x, w, bias):
    return examples.linear_mxfp8(x, w, torch.zeros_like(bias))


def scale_one_off(x, w, bias):
    codes, scales = examples.linear_mxfp8(x, w, bias)
    return codes, (scales.view(torch.uint8).int() + 1).clamp(max=254).byte()


def scale_of_the_gate(gate, up):
    """The scale is that of the gate alone, before it is multiplied."""
    _, scales = quantisers.mx(torch.nn.functional.silu(gate.float()), "e4m3", "floor")
    codes, _ = examples.swiglu_mxfp8(gate, up)
    return codes, scales


def weight_after_the_scale(x, weight):
    """The norm is quantised before the weight multiplies it."""
    return examples.norm_mxfp8(x, torch.ones_like(weight))


@pytest.mark.parametrize(
    ("declared", "function"),
    [(LINEAR, scale_one_off), (LINEAR, no_bias), (SWIGLU, scale_of_the_gate), (NORM, weight_after_the_scale)],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_wrong_fused_kernel_is_wrong(
    declared: dict[str, Any], function: Callable[..., Any], backend: Backend
) -> None:
    run = measured(verify.kernel(**declared, quantise=examples.MXFP8, dtypes=["bfloat16"])(function), backend)
    assert run.status == "wrong", run
    if function is scale_one_off:
        assert "the scale is off by one code (+1)" in run.results[0].reason


def by_reciprocal(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """FP8 by the reciprocal of the scale: vLLM 46944 and 56117 count such elements at ties as failures of a test."""
    b = quantisers.blocks(x, 1, 128)
    scales = quantisers.divided(quantisers.amax_of(b).clamp(min=1e-4), 448.0)
    scaled = b * (1 / scales)[..., None, None]
    return quantisers.unblocked(quantisers.cast8(scaled, quantisers.E4M3, 448.0)), scales


def test_a_division_and_a_product_by_the_reciprocal_differ_at_ties_alone() -> None:
    x = torch.randn(4096, 128, generator=torch.Generator().manual_seed(0)).bfloat16()
    theirs, ours = by_reciprocal(x), quantisers.scaled8(x, 1, 128, 1e-4)
    differ = int((theirs[0].view(torch.uint8) != ours[0].view(torch.uint8)).sum())
    assert quantisers.fp8_blocks.encoding is not None
    found = judge(quantisers.fp8_blocks.encoding, Value.of(x), Parts(*theirs))
    assert differ > 20 and found.wrong == 0, found.words
    assert found.counts["right at a tie"] > 20, found.words
