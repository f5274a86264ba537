"""kernels/layer_norm/plan.py: which path a call takes, and how; no GPU and no tensor is needed."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest
import torch

from kernels.layer_norm import plan
from kernels.layer_norm.plan import Call, backward_plan, forward_plan

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
H200 = 232448  # bytes of shared memory that a program can have


def call(x, rows, columns, residual=None, input_bias=None, weight="x", need=(True, True, False), **more):
    weight = x if weight == "x" else weight
    names = dict(zip(("need_weight", "need_bias", "need_input_bias"), need, strict=True))
    return Call(rows, columns, x, residual, input_bias, weight, weight, dy=x, **names, **more)


# call; path forward; path backward, hard rows are redone, by so many programs for a row
PATHS = {
    "bfloat16": (call(BF16, 4096, 4096), "fast", "fast", "inside", 1),
    "float16, one column": (call(F16, 3, 1), "fast", "fast", "inside", 1),
    "bfloat16, longest in registers": (call(BF16, 64, 8192), "fast", "fast", "inside", 1),
    "bfloat16, longer backward": (call(BF16, 64, 8193), "fast", "long", "never", 9),
    "bfloat16, longest forward": (call(BF16, 64, 16384), "fast", "long", "never", 16),
    "bfloat16, longer forward": (call(BF16, 64, 16385), "wide", "wide", "never", 17),
    "float32 weights": (call(BF16, 64, 1024, weight=F32), "fast", "exact", "never", 1),
    "float64 weights": (call(BF16, 64, 1024, weight=F64), "exact", "exact", "never", 1),
    "16-bit sum": (call(BF16, 64, 1024, residual=F16), "fast", "fast", "inside", 1),
    "16-bit sum, float32 weights": (
        call(BF16, 64, 1024, residual=F16, weight=F32),
        "fast",
        "exact",
        "inside",
        1,
    ),
    "float32": (call(F32, 4096, 4096), "exact", "exact", "never", 1),
    "float32 residual": (call(BF16, 64, 1024, residual=F32), "exact", "exact", "inside", 1),
    "float32 sum, long": (call(F32, 64, 4097, residual=F32), "exact", "long", "after", 5),
    "float32 sum, longer": (call(F32, 64, 20000, residual=F32), "wide", "wide", "never", 20),
    "float32, few long rows": (call(F32, 511, 8192), "exact", "long", "never", 8),
    "float32, many long rows": (call(F32, 512, 8192), "exact", "paired", "inside", 1),
    "float32, many longer rows": (call(F32, 1024, 8193), "exact", "long", "never", 9),
    "float32, 16-bit weights": (call(F32, 1024, 8192, weight=BF16), "exact", "long", "never", 8),
    "bfloat16, a head": (call(BF16, 64, 128, centre=False), "rows", "rows", "inside", 1),
    "bfloat16, a short head": (call(BF16, 64, 64, centre=False), "rows", "rows", "inside", 1),
    "float32, a head": (call(F32, 64, 128), "exact", "rows", "never", 1),
    "float32, a head without a mean": (call(F32, 64, 96, centre=False), "rows", "rows", "never", 1),
    "gated": (call(BF16, 64, 5000, centre=False, gated=True), "rows", "rows", "never", 1),
    "quantised": (call(BF16, 64, 5000, residual=F32, centre=False, quantised=True), "rows", "long", "never", 5),
    "float64": (call(F64, 64, 1024), "wide", "wide", "never", 1),
    "float64 residual": (call(BF16, 64, 1024, residual=F64), "wide", "wide", "never", 1),
    "float64 input bias": (call(F32, 64, 5000, residual=F32, input_bias=F64), "wide", "wide", "never", 5),
}


@pytest.mark.parametrize("name", PATHS)
def test_the_path_that_a_call_takes(name):
    made, forward, backward, redo, blocks = PATHS[name]
    first, second = forward_plan(made), backward_plan(made, H200)
    assert first.path == forward
    assert (second.path, second.redo, second.blocks) == (backward, redo, blocks)


def test_little_shared_memory_keeps_the_next_row_in_registers_and_changes_no_sum():
    for made, *_ in PATHS.values():
        large, small = backward_plan(made, H200), backward_plan(made, 1024)
        assert small.ahead <= 1
        assert replace(small, ahead=large.ahead) == large
    assert backward_plan(call(F32, 32768, 8192), 163 << 10).ahead == 3  # of an A100: a row less


def test_short_rows_share_a_program():
    """Float32 layer norm does not in the forward pass: a row whose first element is an outlier needs a second sum."""
    for columns, rows in ((64, 16), (96, 8), (128, 8), (256, 4), (255, 1), (512, 2), (1024, 1)):
        assert forward_plan(call(BF16, 64, columns)).rows == rows
        assert forward_plan(call(F32, 64, columns)).rows == 1
        without_mean = forward_plan(call(F32, 64, columns, centre=False))
        assert without_mean.rows == rows
        assert forward_plan(call(BF16, 64, columns, residual=BF16)).rows == 1
        of_heads = rows if columns <= 256 and columns != 255 else 1
        assert backward_plan(call(F32, 64, columns), H200).rows == of_heads


def test_the_order_of_a_row_does_not_depend_on_other_rows():
    """Tiles, warps and kernels are those of one row. The number of rows decides how often a row is converted, when the
    weight is loaded, and how many registers a thread may have.
    """
    for made, *_ in PATHS.values():
        few, many = (forward_plan(replace(made, rows=rows)) for rows in (1, 1 << 20))
        same = {"again": 0, "early": False, "maxnreg": None}
        assert replace(few, **same) == replace(many, **same)


def test_few_rows_or_tiles_get_a_program_each():
    for rows in (1, 7):
        for made, *_ in PATHS.values():
            found = backward_plan(replace(made, rows=rows), H200)
            assert found.programs == -(-rows // found.rows)


def test_a_float32_column_sum_has_few_terms(monkeypatch):
    """fast: at most 1,024 rows of a program; paired: 64."""
    for rows in (1 << 10, 100_003, 1 << 22):
        assert rows <= 1024 * backward_plan(call(BF16, rows, 8192), H200).programs
        of_heads = backward_plan(call(BF16, 16 * rows, 64, centre=False), H200)
        assert 16 * rows <= 1024 * of_heads.rows * of_heads.programs
        assert rows <= 1024 * backward_plan(call(BF16, rows, 8192, residual=BF16), H200).programs
        assert rows <= 64 * backward_plan(call(F32, rows, 8192), H200).programs
    monkeypatch.setattr(plan, "PAIRED_SUM", 128)  # the check can fail
    assert 64 * backward_plan(call(F32, 1 << 22, 8192), H200).programs < 1 << 22


def test_a_plan_prints_its_choices_and_cannot_be_changed():
    found = backward_plan(call(BF16, 4096, 4096), H200)
    assert repr(found).startswith("BackwardPlan(path='fast', block=4096, blocks=1, programs=264, warps=8,")
    with pytest.raises(FrozenInstanceError):
        found.warps = 4  # type: ignore[misc]
