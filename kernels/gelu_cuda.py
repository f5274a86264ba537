"""GELU in CUDA C++ (gelu.cu beside this file), compiled at the first call; the signature of gelu.py.

    gelu(x)                      x Phi(x)
    gelu(x, approximate="tanh")  x S(2 sqrt(2/pi) (x + 0.044715 x^3)), S the logistic function

The numerics are those of gelu.py, whose docstring explains them, with the same coefficients (derive/gelu.py writes
them into both) and the same operations in the same order: correctly rounded in float16 and bfloat16, at most
0.8 ULP in float32 and 1.8 in float64, function and derivative.

Launches are checked, indices are 64 bits, loads are 16 bytes where the pointers allow it. Needs nvcc and a C++
compiler at the first call; the build is kept by PyTorch's extension cache. Differentiable twice, as gelu.py is.
"""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from types import ModuleType

import torch

_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_DECLARATIONS = """
void gelu_launch(const at::Tensor& dy, const at::Tensor& x, at::Tensor& y, bool tanh, bool backward);
void gelu_second_launch(const at::Tensor& g, const at::Tensor& dy, const at::Tensor& x, at::Tensor& out, bool tanh);
"""


@functools.cache
def _library() -> ModuleType:
    """The compiled extension; built once per process, and once per source by PyTorch's cache."""
    from torch.utils import cpp_extension

    nvcc = Path(cpp_extension.CUDA_HOME or "/nonexistent") / "bin" / "nvcc"
    if not (nvcc.exists() or shutil.which("nvcc")):
        raise RuntimeError(
            "gelu_cuda: nvcc is needed to build gelu.cu, and none was found on PATH or under CUDA_HOME "
            f"({cpp_extension.CUDA_HOME}); install the CUDA toolkit, or use kernels.gelu (Triton)"
        )
    source = Path(__file__).with_name("gelu.cu").read_text()
    return cpp_extension.load_inline(
        name="precise_gelu_cuda",
        cpp_sources=_DECLARATIONS,
        cuda_sources=source,
        functions=["gelu_launch", "gelu_second_launch"],
        # only the fused multiply-adds written in the source: the bits do not depend on the compiler
        extra_cuda_cflags=["-O3", "-fmad=false"],
    )


def _same_layout(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal memory order: strides agree wherever a dimension has more than one element."""
    return all(s == t for n, s, t in zip(a.shape, a.stride(), b.stride(), strict=True) if n > 1)


def _dense_like(t: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return t if _same_layout(t, like) else torch.empty_like(like).copy_(t)


@torch.library.custom_op("precise_gelu_cuda::forward", mutates_args=(), device_types="cuda")
def _forward(x: torch.Tensor, approximate: str) -> torch.Tensor:
    y = torch.empty_like(x)  # the layout that torch's own elementwise operators give
    x = _dense_like(x, y)  # gaps or overlap: made dense, at the price of one copy
    _library().gelu_launch(x, x, y, approximate == "tanh", False)
    return y


@_forward.register_fake
def _(x, approximate):
    return torch.empty_like(x)


@torch.library.custom_op("precise_gelu_cuda::backward", mutates_args=(), device_types="cuda")
def _backward(dy: torch.Tensor, x: torch.Tensor, approximate: str) -> torch.Tensor:
    dx = torch.empty_like(x)
    dy, x = _dense_like(dy, dx), _dense_like(x, dx)
    _library().gelu_launch(dy, x, dx, approximate == "tanh", True)
    return dx


@_backward.register_fake
def _(dy, x, approximate):
    return torch.empty_like(x)


@torch.library.custom_op("precise_gelu_cuda::second", mutates_args=(), device_types="cuda")
def _second(g: torch.Tensor, dy: torch.Tensor, x: torch.Tensor, approximate: str) -> torch.Tensor:
    out = torch.empty_like(x)
    g, dy, x = (_dense_like(t, out) for t in (g, dy, x))
    _library().gelu_second_launch(g, dy, x, out, approximate == "tanh")
    return out


@_second.register_fake
def _(g, dy, x, approximate):
    return torch.empty_like(x)


def _save_x(ctx, inputs, output):
    x, ctx.approximate = inputs
    ctx.save_for_backward(x)


def _forward_grad(ctx, dy):
    (x,) = ctx.saved_tensors
    return _backward(dy, x, ctx.approximate), None


def _save_dy_x(ctx, inputs, output):
    dy, x, ctx.approximate = inputs
    ctx.save_for_backward(dy, x)


def _backward_grad(ctx, g):
    dy, x = ctx.saved_tensors
    d_dy = _backward(g, x, ctx.approximate) if ctx.needs_input_grad[0] else None
    d_x = _second(g, dy, x, ctx.approximate) if ctx.needs_input_grad[1] else None
    return d_dy, d_x, None


_forward.register_autograd(_forward_grad, setup_context=_save_x)
_backward.register_autograd(_backward_grad, setup_context=_save_dy_x)


def gelu(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """GELU of x, elementwise; the signature and the layout rules of torch.nn.functional.gelu."""
    if approximate not in ("none", "tanh"):
        raise ValueError(f'gelu: approximate must be "none" or "tanh", got {approximate!r}')
    if x.dtype not in _DTYPES:
        raise TypeError(
            f"gelu: x must be float64, float32, float16 or bfloat16, got {x.dtype}; "
            "convert it first, for example x.to(torch.float32)"
        )
    if not x.is_cuda and x.device.type != "meta":
        raise ValueError(
            f"gelu_cuda: x must be on a CUDA device, got {x.device}; move it with x.cuda(), or use "
            "kernels.gelu_compiled, which runs anywhere"
        )
    return _forward(x, approximate)
