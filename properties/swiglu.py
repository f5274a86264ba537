"""Promises of the SwiGLU kernels, y = x1 * silu(x2). Figures are ULP against the exact value of the given inputs."""

from __future__ import annotations

import pytest

import verify
from kernels import swiglu as triton_swiglu

# float64 works too; near the zero of the slope it is good to 2^-58 of 1. No limit is promised.
FLOATS = ["bfloat16", "float16", "float32"]
LIMITS = {"bfloat16": 0.51, "float16": 0.51, "float32": 1.0}
BITS = ["rows", "position"]  # an element depends on its own operands alone, whatever the launch is


@verify.kernel(op="swiglu", dtypes=FLOATS, max_ulp=LIMITS, gradients=True, refuses=False, same_bits=BITS)
def swiglu(x):
    """The Triton kernel on packed [..., 2d] input."""
    return triton_swiglu.swiglu(x)


@verify.kernel(op="swiglu_split", dtypes=FLOATS, max_ulp=LIMITS, gradients=True, refuses=False, same_bits=BITS)
def swiglu_split(x1, x2):
    """The Triton kernel on two tensors."""
    return triton_swiglu.swiglu_split(x1, x2)


# Kernels and launchers are GEGLU's, which get every law. Here are the laws about the formulas and SwiGLU's own
# operators. tests/kernels/test_swiglu.py compares split operands with Arb in every dtype, test_composition.py
# compiles calls. `verify run --profile ci` tries every law in every dtype.
SHARED = ["determinism", "same bits", "batch invariance", "many rows", "compiled"]
LAWS = ["special values", "layout independence", "upstream layout independence"]

test_swiglu = verify.laws_for(swiglu, dtypes=["bfloat16"], without=SHARED)
test_swiglu_split = verify.laws_for(swiglu_split, dtypes=["float32"], laws=LAWS)
test_swiglu_split_float16 = pytest.mark.slow(verify.laws_for(swiglu_split, dtypes=["float16"], laws=LAWS))
test_swiglu_split_accuracy = pytest.mark.slow(
    verify.laws_for(swiglu_split, dtypes=["float16", "float32"], laws=["accuracy"])
)
