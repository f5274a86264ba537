"""Promises of the GELU kernels. Figures are ULP against the exact value of the given inputs."""

from __future__ import annotations

import functools
import math

import pytest
import torch

import verify
from kernels import gelu as triton_gelu

FLOATS = ["bfloat16", "float16", "float32", "float64"]
# float32, over all 2^32 inputs: 0.76 and 0.80 (erf form and its derivative), 0.54 (tanh).
# float64, in pairs of float64: 1.75 and 1.53 seen (erf form and its derivative), 0.69 and 1.51 (tanh)
LIMITS = {"bfloat16": 0.51, "float16": 0.51, "float32": 1, "float64": 2}
BITS = ["rows", "position"]  # an element depends on x there alone, whatever the launch is


@verify.kernel(op="gelu", dtypes=FLOATS, max_ulp=LIMITS, gradients=True, refuses=False, same_bits=BITS)
def gelu(x):
    """The Triton kernel, erf form."""
    return triton_gelu.gelu(x)


@verify.kernel(
    op="gelu",
    params={"approximate": "tanh"},
    dtypes=FLOATS,
    max_ulp=LIMITS,
    gradients=True,
    refuses=False,
    same_bits=BITS,
)
def gelu_tanh(x):
    """The Triton kernel, tanh form."""
    return triton_gelu.gelu(x, approximate="tanh")


def _stable(x, approximate):
    """GELU by erfc or a sigmoid, in at least float32: 1 + erf and 1 + tanh lose the negative tail."""
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    if approximate == "none":  # the clamp prevents -inf * 0
        y = 0.5 * wide.clamp(min=-64.0) * torch.erfc(wide * -math.sqrt(0.5))
    else:
        c = wide.clamp(min=-32.0, max=32.0)
        y = wide.clamp(min=-32.0) * torch.sigmoid(2 * math.sqrt(2 / math.pi) * c * (1 + 0.044715 * c * c))
    return y.to(x.dtype)


@functools.cache
def _compiled():
    """Importing torch.compile's parts takes seconds, so the first call does."""
    return torch.compile(_stable, dynamic=True)


# On a CPU torch.compile writes C++: no peer of a GPU's kernels, and half a minute to compile.
@verify.kernel(op="gelu", dtypes=["bfloat16", "float16", "float32"], peer=True, backends=["cuda"])
def compiled_gelu(x):
    """torch.compile of the stable erf formula."""
    return _compiled()(x, "none")


@verify.kernel(
    op="gelu", params={"approximate": "tanh"}, dtypes=["bfloat16", "float16", "float32"], peer=True, backends=["cuda"]
)
def compiled_gelu_tanh(x):
    """torch.compile of the stable tanh formula."""
    return _compiled()(x, "tanh")


# The forms and dtypes share operators, launcher and kernels. Compile-time constants pick the formula, its casts and the
# size of a block (the interpreter has one size). So one dtype gets all laws; the other dtypes and the tanh form get the
# laws that depend on the constants, so that each form is tried in 16 bits and in wider dtypes. Slow runs try the other
# pairs, and the accuracy of all: tests/kernels/test_gelu.py compares every form and dtype with Arb. A night tries all
# laws on every kernel.
FORMULA = ["special values", "gradcheck", "gradgradcheck", "mixed dtypes"]
SLOW = ["accuracy", *FORMULA]

# Three hundred calls in a row can differ from one only if programs run at the same time, as on a GPU. The same bits of
# rows take 27 s in the interpreter.
CALLS = ["determinism", "same bits"]
test_gelu = verify.laws_for(gelu, dtypes=["bfloat16"], without=CALLS)
test_gelu_in_a_row = pytest.mark.slow(verify.laws_for(gelu, dtypes=["bfloat16"], laws=CALLS))
test_gelu_others = verify.laws_for(gelu, dtypes=["float32", "float64"], laws=FORMULA)
# Second derivatives of both forms are compared with Arb in test_gelu.py; finite differences see what both share.
OF_TANH = [law for law in FORMULA if law not in ("gradcheck", "gradgradcheck")]
test_gelu_tanh = verify.laws_for(gelu_tanh, dtypes=["float16", "float64"], laws=OF_TANH)
test_gelu_float16 = pytest.mark.slow(verify.laws_for(gelu, dtypes=["float16"], laws=SLOW))
test_gelu_tanh_others = pytest.mark.slow(verify.laws_for(gelu_tanh, dtypes=["bfloat16", "float32"], laws=SLOW))
test_gelu_accuracy = pytest.mark.slow(verify.laws_for(gelu, dtypes=["float32", "float64"], laws=["accuracy"]))
test_gelu_tanh_accuracy = pytest.mark.slow(verify.laws_for(gelu_tanh, dtypes=["float16", "float64"], laws=["accuracy"]))
