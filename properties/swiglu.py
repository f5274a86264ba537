"""What the SwiGLU kernels promise: y = x1 * silu(x2). Figures are ULP against the exact value of the given inputs."""

from __future__ import annotations

import verify
from kernels import swiglu as triton_swiglu

# float64 works, too; next to the zero of the slope it is good to 2^-58 of 1, and no limit is promised
FLOATS = ["bfloat16", "float16", "float32"]
LIMITS = {"bfloat16": 0.51, "float16": 0.51, "float32": 1.0}


@verify.kernel(op="swiglu", dtypes=FLOATS, max_ulp=LIMITS, gradients=True, refuses=False)
def swiglu(x):
    """The Triton kernel on packed [..., 2d] input."""
    return triton_swiglu.swiglu(x)


@verify.kernel(op="swiglu_split", dtypes=FLOATS, max_ulp=LIMITS, gradients=True, refuses=False)
def swiglu_split(x1, x2):
    """The Triton kernel on two tensors."""
    return triton_swiglu.swiglu_split(x1, x2)


# The kernels and what launches them are GEGLU's, which have every law: here it is what has other formulas, or operators
# of its own, whose registration and compiled calls tests/kernels/test_swiglu.py has. `verify run --profile ci` takes
# every law to every dtype.
SHARED = ["determinism", "batch invariance", "many rows", "compiled", "custom operators"]
LAWS = ["accuracy", "special values", "layout independence", "upstream layout independence"]

test_swiglu = verify.laws_for(swiglu, dtypes=["bfloat16"], without=SHARED)
test_swiglu_split = verify.laws_for(swiglu_split, dtypes=["float16", "float32"], laws=LAWS)
