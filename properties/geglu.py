"""Promises of the GEGLU kernels, y = x1 * gelu(x2). Figures are ULP against the exact value of the given inputs."""

from __future__ import annotations

import pytest

import verify
from kernels import geglu as triton_geglu

# float64 works too: at most 2.6 ULP seen, even if gelu(x2) or dy * x1 leaves its range. No limit is promised yet.
FLOATS = ["bfloat16", "float16", "float32"]
LIMITS = {"bfloat16": 0.51, "float16": 0.51, "float32": 1.0}
BITS = ["rows", "position"]  # an element depends on its own operands alone, whatever the launch is


@verify.kernel(op="geglu", dtypes=FLOATS, max_ulp=LIMITS, gradients=True, refuses=False, same_bits=BITS)
def geglu(x):
    """The Triton kernel on packed [..., 2d] input, erf form."""
    return triton_geglu.geglu(x)


@verify.kernel(
    op="geglu",
    params={"approximate": "tanh"},
    dtypes=FLOATS,
    max_ulp=LIMITS,
    gradients=True,
    refuses=False,
    same_bits=BITS,
)
def geglu_tanh(x):
    """The Triton kernel on packed [..., 2d] input, tanh form."""
    return triton_geglu.geglu(x, approximate="tanh")


@verify.kernel(op="geglu_split", dtypes=FLOATS, max_ulp=LIMITS, gradients=True, refuses=False, same_bits=BITS)
def geglu_split(x1, x2):
    """The Triton kernel on two tensors, erf form."""
    return triton_geglu.geglu_split(x1, x2)


@verify.kernel(
    op="geglu_split",
    params={"approximate": "tanh"},
    dtypes=FLOATS,
    max_ulp=LIMITS,
    gradients=True,
    refuses=False,
    same_bits=BITS,
)
def geglu_split_tanh(x1, x2):
    """The Triton kernel on two tensors, tanh form."""
    return triton_geglu.geglu_split(x1, x2, approximate="tanh")


# Packed and split operands share launcher and kernels. Compile-time constants pick the formula, its casts and the size
# of a block (the interpreter has one size). So packed operands get all laws in one dtype. Split operands get the laws
# about their own operators, and the other dtypes those that depend on the constants, so that each form meets narrow and
# wide dtypes. tests/kernels/test_geglu.py and test_gated.py compare operands, forms and dtypes with Arb. Slow runs try
# the rest, with the accuracy of these, and a night tries all laws on every kernel.
FORMULA = ["special values", "gradcheck", "gradgradcheck", "mixed dtypes"]
SLOW = ["accuracy", *FORMULA]
SPLIT = ["special values", "layout independence", "upstream layout independence", "initialised memory"]
SPLIT += ["memory bounds", "compiled"]

# Three hundred calls in a row can differ from one only if programs run at the same time, as on a GPU. The same bits of
# rows take 6 s in the interpreter.
CALLS = ["determinism", "same bits"]
test_geglu = verify.laws_for(geglu, dtypes=["bfloat16"], without=CALLS)
test_geglu_in_a_row = pytest.mark.slow(verify.laws_for(geglu, dtypes=["bfloat16"], laws=CALLS))
test_geglu_others = verify.laws_for(geglu, dtypes=["float32"], laws=FORMULA)
test_geglu_split = verify.laws_for(geglu_split, dtypes=["float16"], laws=SPLIT)
test_geglu_tanh = verify.laws_for(geglu_tanh, dtypes=["float16"], laws=FORMULA)
test_geglu_split_tanh = verify.laws_for(geglu_split_tanh, dtypes=["float32"], laws=FORMULA)
test_geglu_float16 = pytest.mark.slow(verify.laws_for(geglu, dtypes=["float16"], laws=SLOW))
test_geglu_split_others = pytest.mark.slow(verify.laws_for(geglu_split, dtypes=["float16"], without=SPLIT))
test_geglu_split_tanh_bfloat16 = pytest.mark.slow(verify.laws_for(geglu_split_tanh, dtypes=["bfloat16"], laws=SLOW))
test_geglu_accuracy = pytest.mark.slow(verify.laws_for(geglu, dtypes=["float32"], laws=["accuracy"]))
test_geglu_tanh_accuracy = pytest.mark.slow(verify.laws_for(geglu_tanh, dtypes=["float16"], laws=["accuracy"]))
test_geglu_split_tanh_accuracy = pytest.mark.slow(
    verify.laws_for(geglu_split_tanh, dtypes=["float32"], laws=["accuracy"])
)
