"""GELU, each result within one unit of its last bit, at the speed of a copy (Triton).

    gelu(x)                       x Phi(x)                                  "none", the erf form
    gelu(x, approximate="tanh")   x S(2 z), z = sqrt(2/pi) (x + 0.044715 x^3), S the logistic function
    gelu_backward(dy, x)          dy gelu'(x)

Errors against the real-valued function, specials and subnormals included:

    float16, bfloat16   correctly rounded for all 65,536 inputs, function and derivative
    float32             at most 0.76 ULP (erf) and 0.54 (tanh) over all 2^32 inputs, derivatives 0.80 and 0.51
    float64             at most 1.8 ULP seen

NaN comes only from NaN. gelu(-inf) = -0, the limit; gelu(-0) = -0; gelu' is 1 at +inf and -0 at -inf. dy gelu' is
rounded once.

gelu_math.py has the formulas of each dtype and their reasons. A launch reads x, applies one of them and rounds its
result once. No formula branches on the data. On a GPU with few float64 units, float32 in the erf form is computed in
float32 pairs: 0.76 ULP seen as well, 0.8 for subnormal results.

Triton's interpreter gives the same bits if its fused multiply-adds and casts round once, as in verify's backend. One
exception: in bfloat16 the hardware's exp2 and reciprocal may differ in their last bits before the rounding.

Layouts: any dense order of dimensions is read in place; an input with gaps or overlap is copied once. The result has
the layout that PyTorch's elementwise operators give.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .checks import Contract, check_approximate, check_dtype, check_like, rounds_as_model, under
from .eager_math import eager_times_slope, eager_value
from .gelu_autograd import operators_of
from .gelu_math import curvature, slope_times, value
from .launch import INTERPRETED, INTERPRETER_BLOCK, check_device, check_strided, few_float64
from .layouts import dense_like
from .plans import run


@triton.jit
def _gelu_kernel(
    x_ptr,  # input of GELU; this and all pointers here: of one dtype and layout, dense, read in memory order
    dy_ptr,  # upstream gradient, one element when DY_SCALAR; not read in the forward pass
    g_ptr,  # gradient of dy gelu'(x); only for ORDER 2
    out_ptr,  # gelu(x), dy gelu'(x) or g dy gelu''(x)
    n,  # number of elements
    ORDER: tl.constexpr,  # of the derivative: 0, 1 or 2
    TANH: tl.constexpr,
    BLOCK: tl.constexpr,
    DY_SCALAR: tl.constexpr = False,
    PAIRS: tl.constexpr = False,  # forward, float32, erf form: in float32 pairs, for GPUs with few float64 units
    MODEL: tl.constexpr = False,  # 16 bits: eager PyTorch's formula
):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offset = tl.arange(0, BLOCK)
    mask = offset < tl.minimum(n - start, BLOCK).to(tl.int32)
    x = tl.load(x_ptr + start + offset, mask=mask, other=0.0)
    if DY_SCALAR:
        dy = tl.load(dy_ptr)
    elif ORDER > 0:
        dy = tl.load(dy_ptr + start + offset, mask=mask, other=0.0)
    if ORDER == 2:
        g = tl.load(g_ptr + start + offset, mask=mask, other=0.0).to(tl.float64)
        y = (g * dy.to(tl.float64)) * curvature(x, TANH)
    elif ORDER == 1:
        if MODEL:
            y = eager_times_slope(dy.to(tl.float32), x.to(tl.float32), 1 + TANH)
        else:
            y = slope_times(dy, x, TANH)
    elif MODEL:
        y = eager_value(x.to(tl.float32), 1 + TANH)
    else:
        y = value(x, TANH, PAIRS)
    tl.store(out_ptr + start + offset, y.to(x.dtype), mask=mask)  # the one rounding


# (elements, warps) of a program, the fastest of eleven or more, from 2^18 to 2^26 elements on an H100:
# ((erf forward, erf backward), (tanh forward, tanh backward))
_CONFIG = {
    torch.float64: (((512, 4), (512, 4)), ((512, 4), (512, 4))),
    torch.float32: (((512, 1), (256, 1)), ((512, 2), (256, 1))),
    torch.float16: (((1024, 2), (1024, 1)), ((4096, 4), (1024, 1))),
    torch.bfloat16: (((1024, 2), (1024, 2)), ((1024, 4), (512, 1))),
}


def _check(x: Tensor, approximate: str, op: str = "gelu") -> None:
    """Raises if x or `approximate` breaks a rule."""
    check_approximate(op, approximate)
    check_dtype(op, "x", x)
    check_strided(op, "x", x)
    check_device(op, "x", x)


def _check_backward(dy: Tensor, x: Tensor, approximate: str) -> None:
    _check(x, approximate, "gelu_backward")
    check_like("gelu_backward", "dy", dy, "x", x)


def _launch(x: Tensor, approximate: str, *gradients: Tensor) -> Tensor:
    """Returns the derivative of GELU of the order len(gradients), times these gradients: dy, g."""
    out = torch.empty_like(x)  # the layout that torch's elementwise operators give
    n, order, tanh = x.numel(), len(gradients), approximate.endswith("tanh")
    if n == 0:
        return out
    scalar = order == 1 and not any(gradients[0].stride())  # y.sum().backward(): one element, read once
    x, read = dense_like(x, out), gradients if scalar else [dense_like(t, out) for t in gradients]
    block, warps = _CONFIG[x.dtype][tanh][order > 0]
    if INTERPRETED:
        block = min(INTERPRETER_BLOCK, triton.next_power_of_2(n))
    # The tensor's device may differ from the current one. enable_fp_fusion=False: only fused multiply-adds written in
    # the source are fused, so the interpreter gives the same bits.
    with torch.cuda.device_of(out):
        run(
            _gelu_kernel, (triton.cdiv(n, block),), x, *read, *[x] * (2 - order), out, n, ORDER=order, TANH=tanh,
            BLOCK=block, DY_SCALAR=scalar, PAIRS=x.dtype == torch.float32 and not tanh and few_float64(x.device),
            MODEL=order < 2 and rounds_as_model(approximate, x.dtype), num_warps=warps, enable_fp_fusion=False,
        )  # fmt: skip
    return out


_forward, _backward, second = operators_of("precise_gelu", _launch)


def gelu(x: Tensor, approximate: str = "none", *, contract: Contract = "once") -> Tensor:
    """Returns GELU of x, elementwise, with the signature and layout rules of torch.nn.functional.gelu.

    contract="model" gives the bits of torch.nn.functional.gelu in 16 bits: the digits that its formula loses too.
    """
    return _forward.checked(_check, x, under(contract, "gelu", approximate))


def gelu_backward(dy: Tensor, x: Tensor, approximate: str = "none", *, contract: Contract = "once") -> Tensor:
    """Returns dy * gelu'(x), the product rounded once."""
    return _backward.checked(_check_backward, dy, x, under(contract, "gelu_backward", approximate))
