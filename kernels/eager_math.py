"""The arithmetic of contract="model" in 16 bits: activations and gates as PyTorch's eager operators compute them.

An eager operator computes in float32 and rounds its result to 16 bits. So a gate of two operators rounds twice:

    y   = R(x1 R(act(x2)))
    dx1 = R(dy R(act(x2)))         dx2 = R(R(dy x1) act'(x2))         R: to the dtype of x2

The formulas are those of ATen's CPU and CUDA kernels, operation by operation, with their losses. 1 + erf(x / sqrt(2))
has no digits of the tail, and an infinite x gives NaN where theirs does. exp, erf and tanh are libdevice's, which
ATen's CUDA kernels call too; other libraries may differ by a float32 ULP or two. Divisions are rounded to nearest. nvcc
fuses x + c x^3 and similar sums, so they are fused here. Bare constants are float32, which Gluon kernels take too.

`FORM` is "id", "gelu" (erf), "gelu_tanh", "squared_relu" or "silu" by its number in FORMS.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

from .arithmetic import narrowed, neg
from .gelu_of_sums import RSQRT2, RSQRT_2PI

FORMS = {"id": 0, "gelu": 1, "gelu_tanh": 2, "squared_relu": 3, "silu": 4}
OF_GATE = {"none": 1, "tanh": 2, "silu": 4}  # FORM of a gate's name
BETA: tl.constexpr = tl.constexpr(0.7978845608028654)  # sqrt(2 / pi)
KAPPA: tl.constexpr = tl.constexpr(0.044715)
KAPPA3: tl.constexpr = tl.constexpr(0.134145)


@triton.jit
def _tanh_of(x):
    """Returns tanh(sqrt(2 / pi) (x + 0.044715 x^3))."""
    return libdevice.tanh(tl.fma(x * x * x, KAPPA, x) * BETA)


@triton.jit
def _logistic(x):
    return tl.div_rn(tl.full(x.shape, 1.0, tl.float32), 1.0 + libdevice.exp(neg(x)))


@triton.jit
def eager_value(x, FORM: tl.constexpr):
    """Returns the activation of a float32 x, not yet rounded to 16 bits."""
    if FORM == 1:
        y = (x * 0.5) * (1.0 + libdevice.erf(x * RSQRT2))
    elif FORM == 2:
        y = (x * 0.5) * (1.0 + _tanh_of(x))
    elif FORM == 3:
        r = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
        y = r * r
    elif FORM == 4:
        y = tl.div_rn(x, 1.0 + libdevice.exp(neg(x)))
    else:
        y = x
    return y


@triton.jit
def eager_times_slope(m, x, FORM: tl.constexpr):
    """Returns m act'(x) of float32 numbers, not yet rounded to 16 bits."""
    if FORM == 1:
        mass = 0.5 * (1.0 + libdevice.erf(x * RSQRT2))
        y = m * tl.fma(x, libdevice.exp(x * x * -0.5) * RSQRT_2PI, mass)
    elif FORM == 2:
        t = _tanh_of(x)
        right = ((x * 0.5) * tl.fma(neg(t), t, 1.0)) * (tl.fma(x * x, KAPPA3, 1.0) * BETA)
        y = m * tl.fma(1.0 + t, 0.5, right)
    elif FORM == 3:
        y = tl.where(x <= 0, 0.0, m * (2.0 * x))  # relu's gradient is +0 there, also for m = -1
    elif FORM == 4:
        s = _logistic(x)
        y = (m * s) * tl.fma(x, 1.0 - s, 1.0)
    else:
        y = m
    return y


@triton.jit
def eager_gated(x1, x2, FORM: tl.constexpr, TYPE: tl.constexpr):
    """Returns x1 R(act(x2)) in float32, R to TYPE. x1 and x2 are numbers of TYPE, in any format."""
    return x1.to(tl.float32) * narrowed(eager_value(x2.to(tl.float32), FORM), TYPE)


@triton.jit
def eager_gated_gradients(dy, x1, x2, FORM: tl.constexpr, TYPE: tl.constexpr):
    """Returns dy R(act(x2)) and R(dy x1) act'(x2) in float32."""
    m = narrowed(dy.to(tl.float32) * x1.to(tl.float32), TYPE)
    return eager_gated(dy, x2, FORM, TYPE), eager_times_slope(m, x2.to(tl.float32), FORM)
