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

from typing import Any

import torch
import triton
import triton.language as tl

from .checks import Contract, check_approximate, check_dtype, check_like, rounds_as_model, under
from .eager_math import eager_times_slope, eager_value
from .gelu_autograd import make_differentiable_twice
from .gelu_math import curvature, slope_times, value
from .launch import INTERPRETED, INTERPRETER_BLOCK, check_device, check_strided, few_float64
from .layouts import dense_like
from .operators import operator
from .plans import run


@triton.jit
def _forward_kernel(
    x_ptr,  # input, dense, read in memory order
    y_ptr,  # output, same dtype and layout
    n,  # number of elements
    TANH: tl.constexpr,
    BLOCK: tl.constexpr,
    PAIRS: tl.constexpr = False,  # float32, erf form: in float32 pairs, for GPUs with few float64 units
    MODEL: tl.constexpr = False,  # 16 bits: eager PyTorch's formula
):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offset = tl.arange(0, BLOCK)
    mask = offset < tl.minimum(n - start, BLOCK).to(tl.int32)
    x = tl.load(x_ptr + start + offset, mask=mask, other=0.0)
    if MODEL:
        y = eager_value(x.to(tl.float32), 1 + TANH)
    else:
        y = value(x, TANH, PAIRS)
    tl.store(y_ptr + start + offset, y.to(x.dtype), mask=mask)  # the one rounding


@triton.jit
def _backward_kernel(
    dy_ptr,  # upstream gradient: x's dtype and layout, or one element when DY_SCALAR
    x_ptr,  # input of the forward, dense
    dx_ptr,  # output, same dtype and layout
    n,
    TANH: tl.constexpr,
    DY_SCALAR: tl.constexpr,
    BLOCK: tl.constexpr,
    MODEL: tl.constexpr = False,
):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offset = tl.arange(0, BLOCK)
    mask = offset < tl.minimum(n - start, BLOCK).to(tl.int32)
    x = tl.load(x_ptr + start + offset, mask=mask, other=0.0)
    if DY_SCALAR:
        dy = tl.load(dy_ptr)
    else:
        dy = tl.load(dy_ptr + start + offset, mask=mask, other=0.0)
    if MODEL:
        dx = eager_times_slope(dy.to(tl.float32), x.to(tl.float32), 1 + TANH)
    else:
        dx = slope_times(dy, x, TANH)
    tl.store(dx_ptr + start + offset, dx.to(x.dtype), mask=mask)


@triton.jit
def _second_kernel(
    g_ptr,  # gradient of dx
    dy_ptr,  # upstream gradient of the backward
    x_ptr,  # input of the forward
    out_ptr,  # g dy gelu''(x); all four of one dtype and layout
    n,
    TANH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offset = tl.arange(0, BLOCK)
    mask = offset < tl.minimum(n - start, BLOCK).to(tl.int32)
    x = tl.load(x_ptr + start + offset, mask=mask, other=0.0)
    g = tl.load(g_ptr + start + offset, mask=mask, other=0.0).to(tl.float64)
    dy = tl.load(dy_ptr + start + offset, mask=mask, other=0.0).to(tl.float64)
    tl.store(out_ptr + start + offset, ((g * dy) * curvature(x, TANH)).to(x.dtype), mask=mask)


# (elements, warps) of a program, the fastest of eleven or more, from 2^18 to 2^26 elements on an H100:
# ((erf forward, erf backward), (tanh forward, tanh backward))
_CONFIG = {
    torch.float64: (((512, 4), (512, 4)), ((512, 4), (512, 4))),
    torch.float32: (((512, 1), (256, 1)), ((512, 2), (256, 1))),
    torch.float16: (((1024, 2), (1024, 1)), ((4096, 4), (1024, 1))),
    torch.bfloat16: (((1024, 2), (1024, 2)), ((1024, 4), (512, 1))),
}


def _check(x: torch.Tensor, approximate: str, op: str = "gelu") -> None:
    """Raises if x or `approximate` breaks a rule."""
    check_approximate(op, approximate)
    check_dtype(op, "x", x)
    check_strided(op, "x", x)
    check_device(op, "x", x)


def _check_backward(dy: torch.Tensor, x: torch.Tensor, approximate: str) -> None:
    _check(x, approximate, "gelu_backward")
    check_like("gelu_backward", "dy", dy, "x", x)


def _launch(kernel: Any, tensors: tuple[torch.Tensor, ...], n: int, backward: bool, **meta: Any) -> None:
    """Launches a kernel over n elements; `backward` picks the column of _CONFIG."""
    if n == 0:
        return
    block, warps = _CONFIG[tensors[-1].dtype][meta["TANH"]][backward]
    if INTERPRETED:
        block = min(INTERPRETER_BLOCK, triton.next_power_of_2(n))
    # The tensor's device may differ from the current one. enable_fp_fusion=False: only fused multiply-adds written in
    # the source are fused, so the interpreter gives the same bits.
    with torch.cuda.device_of(tensors[-1]):
        grid = (triton.cdiv(n, block),)
        run(kernel, grid, *tensors, n, BLOCK=block, num_warps=warps, enable_fp_fusion=False, **meta)


@operator("precise_gelu::forward")
def _forward(x: torch.Tensor, approximate: str) -> torch.Tensor:
    y = torch.empty_like(x)  # the layout that torch's elementwise operators give
    x = dense_like(x, y)  # copies an x with gaps or overlap
    tanh = approximate.endswith("tanh")
    pairs = x.dtype == torch.float32 and not tanh and few_float64(x.device)
    model = rounds_as_model(approximate, x.dtype)
    _launch(_forward_kernel, (x, y), x.numel(), False, TANH=tanh, PAIRS=pairs, MODEL=model)
    return y


@operator("precise_gelu::backward")
def _backward(dy: torch.Tensor, x: torch.Tensor, approximate: str) -> torch.Tensor:
    dx = torch.empty_like(x)
    x = dense_like(x, dx)
    scalar = not any(dy.stride()) and dy.numel() > 0  # y.sum().backward(): one element, read once
    dy = dy if scalar else dense_like(dy, dx)
    tanh, model = approximate.endswith("tanh"), rounds_as_model(approximate, x.dtype)
    _launch(_backward_kernel, (dy, x, dx), x.numel(), True, TANH=tanh, DY_SCALAR=scalar, MODEL=model)
    return dx


@operator("precise_gelu::second")
def second(g: torch.Tensor, dy: torch.Tensor, x: torch.Tensor, approximate: str) -> torch.Tensor:
    """Returns g dy gelu''(x), the product rounded once."""
    out = torch.empty_like(x)
    g, dy, x = (dense_like(t, out) for t in (g, dy, x))
    _launch(_second_kernel, (g, dy, x, out), x.numel(), True, TANH=approximate.endswith("tanh"))
    return out


make_differentiable_twice(_forward, _backward, second)


def gelu(x: torch.Tensor, approximate: str = "none", *, contract: Contract = "once") -> torch.Tensor:
    """Returns GELU of x, elementwise, with the signature and layout rules of torch.nn.functional.gelu.

    contract="model" gives the bits of torch.nn.functional.gelu in 16 bits: the digits that its formula loses too.
    """
    return _forward.checked(_check, x, under(contract, "gelu", approximate))


def gelu_backward(
    dy: torch.Tensor, x: torch.Tensor, approximate: str = "none", *, contract: Contract = "once"
) -> torch.Tensor:
    """Returns dy * gelu'(x), the product rounded once."""
    return _backward.checked(_check_backward, dy, x, under(contract, "gelu_backward", approximate))
