"""SwiGLU, x1 silu(x2), with one rounding per result and one kernel each way (Triton).

    swiglu(x)             x = [.., 2 d] holds (x1, x2) side by side in its last dimension
    swiglu_split(x1, x2)  the same on two tensors

    y    = x1 silu(x2)          silu(x) = x / (1 + exp(-x))
    dx1  = dy silu(x2)
    dx2  = dy x1 silu'(x2)

The kernels are geglu.py's with the gate of silu_math.py, which has the arithmetic and rounding points of each
dtype. silu(x2) is never rounded to 16 bits; only the product is. dy x1 is exact, or its power of two is separate.
Errors against the real-valued function: float16 and bfloat16 at most 0.51 ULP, float32 at most 1, forward and both
gradients.

Two contiguous tensors are processed as one long row. Otherwise rows may be any distance apart, and a last dimension
that is not consecutive is copied first. Gradients of gradients are torch operations in float64.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels.checks import check_dtype, check_like
from kernels.geglu import _as_rows, _backward_kernel, _forward_kernel, _halves, launch
from kernels.launch import check_device, check_strided
from kernels.operators import operator

__all__ = ["swiglu", "swiglu_split"]

# (elements, warps) of a program, forward and backward; the fastest of eleven on an H100.
_CONFIG = {
    torch.float64: ((512, 4), (512, 4)),
    torch.float32: ((512, 2), (256, 2)),
    torch.float16: ((512, 1), (1024, 4)),
    torch.bfloat16: ((1024, 4), (512, 2)),
}


def _launch(
    kernel: Any, tensors: tuple[Tensor, ...], strides: tuple[int, ...], rows: int, columns: int, **meta: Any
) -> None:
    """Launches a kernel of geglu.py with silu as its gate."""
    block, warps = _CONFIG[tensors[-1].dtype][kernel is _backward_kernel]
    launch(kernel, block, warps, tensors, strides, rows, columns, TANH=False, SILU=True, **meta)


def _run_forward(x1: Tensor, x2: Tensor) -> Tensor:
    """Returns x1 silu(x2)."""
    y = torch.empty_like(x1)  # the layout that torch's elementwise operators give
    if not y.numel():
        return y
    if x1.is_contiguous() and x2.is_contiguous():
        n = y.numel()
        _launch(_forward_kernel, (x1, x2, y), (n, n, n), 1, n)
        return y
    columns = y.shape[-1]
    out = y if y.is_contiguous() else torch.empty(y.shape, dtype=y.dtype, device=y.device)
    x1, x2 = _as_rows(x1, columns), _as_rows(x2, columns)
    _launch(_forward_kernel, (x1, x2, out), (x1.stride(0), x2.stride(0), columns), x1.shape[0], columns)
    return y if out is y else y.copy_(out)


def _run_backward(dy: Tensor, x1: Tensor, x2: Tensor, dx1: Tensor, dx2: Tensor) -> None:
    """Fills dx1 and dx2, two contiguous tensors or the halves of one."""
    if not dx1.numel():
        return
    scalar = not any(dy.stride())  # y.sum().backward(): one element, read once
    tensors: tuple[Tensor, ...]
    strides: tuple[int, ...]
    if dx1.is_contiguous() and all(t.is_contiguous() for t in (x1, x2)) and (scalar or dy.is_contiguous()):
        n = dx1.numel()
        tensors, strides, rows, columns = (dy, x1, x2, dx1, dx2), (n,) * 5, 1, n
    else:
        columns = dx1.shape[-1]
        read = [_as_rows(t, columns) for t in (x1, x2)]
        tensors = (dy if scalar else _as_rows(dy, columns), *read, dx1, dx2)
        far = dx1.stride(-2) if dx1.dim() > 1 else columns
        strides = (columns if scalar else tensors[0].stride(0), *(t.stride(0) for t in read), far, far)
        rows = dx1.numel() // columns
    _launch(_backward_kernel, tensors, strides, rows, columns, DY_SCALAR=scalar)


def _second(g1: Tensor | None, g2: Tensor | None, dy: Tensor, x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients of dy, x1 and x2 for upstream gradients g1 of dx1 and g2 of dx2.

    They are differentiable torch operations in float64.
    """
    zero = torch.zeros((), dtype=torch.float64, device=x1.device)
    g1, g2 = (zero if g is None else g.double() for g in (g1, g2))
    v, m, x = dy.double(), x1.double(), x2.double()
    s = torch.sigmoid(x)
    slope = s * (1 + x * (1 - s))
    bend = s * (1 - s) * (2 + x * (1 - 2 * s))
    of_dy = g1 * (x * s) + g2 * m * slope
    return of_dy.to(dy.dtype), (g2 * v * slope).to(x1.dtype), (g1 * v * slope + g2 * v * m * bend).to(x1.dtype)


def _dense(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


# --- packed: one tensor in, one gradient tensor out ---


@operator("verify_kernels::swiglu")
def _packed(x: Tensor, gate_last: bool) -> Tensor:
    return _run_forward(*_halves(x, gate_last))


@operator("verify_kernels::swiglu_backward")
def _packed_backward(dy: Tensor, x: Tensor, gate_last: bool) -> Tensor:
    dx = _dense(x)
    _run_backward(dy, *_halves(x, gate_last), *_halves(dx, gate_last))
    return dx


_packed.register_fake(lambda x, gate_last: torch.empty_like(_halves(x, gate_last)[0]))
_packed_backward.register_fake(lambda dy, x, gate_last: _dense(x))


def _save_packed(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, ctx.gate_last = inputs
    ctx.save_for_backward(x)


def _differentiate_packed(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    return _packed_backward(dy, *ctx.saved_tensors, ctx.gate_last), None


def _save_packed_backward(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    dy, x, ctx.gate_last = inputs
    ctx.save_for_backward(dy, x)


def _differentiate_packed_backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    dy, x = ctx.saved_tensors
    of_dy, of_x1, of_x2 = _second(*_halves(g, ctx.gate_last), dy, *_halves(x, ctx.gate_last))
    return of_dy, torch.cat((of_x1, of_x2) if ctx.gate_last else (of_x2, of_x1), -1), None


_packed.register_autograd(_differentiate_packed, setup_context=_save_packed)
_packed_backward.register_autograd(_differentiate_packed_backward, setup_context=_save_packed_backward)


# --- split: two tensors in, two gradients out ---


@operator("verify_kernels::swiglu_split")
def _split(x1: Tensor, x2: Tensor) -> Tensor:
    return _run_forward(x1, x2)


@operator("verify_kernels::swiglu_split_backward")
def _split_backward(dy: Tensor, x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor]:
    dx1, dx2 = _dense(x1), _dense(x1)
    _run_backward(dy, x1, x2, dx1, dx2)
    return dx1, dx2


_split.register_fake(lambda x1, x2: torch.empty_like(x1))
_split_backward.register_fake(lambda dy, x1, x2: (_dense(x1), _dense(x1)))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


_split.register_autograd(lambda ctx, dy: _split_backward(dy, *ctx.saved_tensors), setup_context=_save)
_split_backward.register_autograd(lambda ctx, g1, g2: _second(g1, g2, *ctx.saved_tensors), setup_context=_save)


def _check(op: str, name: str, x: Tensor) -> None:
    check_dtype(op, name, x)
    check_strided(op, name, x)
    check_device(op, name, x)


def _check_packed(x: Tensor, gate_last: bool) -> None:
    _check("swiglu", "x", x)
    if x.dim() == 0 or x.shape[-1] % 2:
        raise ValueError(f"swiglu: x's last dimension must be even, it holds both halves; got shape {tuple(x.shape)}")


def _check_split(x1: Tensor, x2: Tensor) -> None:
    _check("swiglu_split", "x1", x1)
    check_like("swiglu_split", "x2", x2, "x1", x1)


def swiglu(x: Tensor, *, gate_last: bool = True) -> Tensor:
    """Returns x1 silu(x2) for x1, x2 = x.chunk(2, -1).

    gate_last=False returns silu(x1) x2, for models that store the gate first, such as Llama. x may have any strides
    between rows; a last dimension that is not consecutive is copied first.
    """
    return _packed.checked(_check_packed, x, gate_last)


def swiglu_split(x1: Tensor, x2: Tensor) -> Tensor:
    """Returns x1 silu(x2) for two tensors of one shape, dtype and device."""
    return _split.checked(_check_split, x1, x2)
