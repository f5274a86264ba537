"""Every public function with shapes for it, its results and gradients: what holds for all of them."""

from __future__ import annotations

from functools import partial

import torch

from kernels.geglu import geglu, geglu_split
from kernels.gelu import gelu, gelu_backward
from kernels.layer_norm import layer_norm, layer_norm_residual, layer_norm_residual_bias
from kernels.linear_act import linear_act, linear_data_grad
from kernels.linear_geglu import linear_geglu
from kernels.rms_norm import rms_norm, rms_norm_gated, rms_norm_residual
from kernels.rope import rope
from kernels.swiglu import swiglu, swiglu_split

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"


def drawn(seed: int, *shapes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(DEVICE, dtype).requires_grad_() for shape in shapes]


def results(function, leaves):
    """Outputs and gradients, all of it with other upstream gradients for each element."""
    y = function(*leaves)
    outputs = list(y) if isinstance(y, tuple) else [y]
    upstream = [torch.sin(torch.arange(o.numel(), device=DEVICE) + 1.0).to(o.dtype).view(o.shape) for o in outputs]
    return [*outputs, *torch.autograd.grad(outputs, leaves, upstream)]


def same(a, b):
    return all(torch.equal(s, t) and s.stride() == t.stride() for s, t in zip(a, b, strict=True))


def rotated(q, k, **how):
    """`rope` with angles that follow from the keys, as fake tensors and batches need them."""
    angles = k.detach()[:, 0]
    return rope(q, k, angles.cos(), angles.sin(), **how)


ROW, WIDE, VECTOR = (6, 32), (6, 64), (32,)
FUNCTIONS = {
    "gelu": (gelu, [ROW]),
    "gelu tanh": (partial(gelu, approximate="tanh"), [ROW]),
    "gelu_backward": (gelu_backward, [ROW, ROW]),
    "geglu": (geglu, [WIDE]),
    "geglu of the first half": (partial(geglu, gate_last=False), [WIDE]),
    "geglu_split": (geglu_split, [ROW, ROW]),
    "swiglu": (swiglu, [WIDE]),
    "swiglu of the first half": (partial(swiglu, gate_last=False), [WIDE]),
    "swiglu_split": (swiglu_split, [ROW, ROW]),
    "rms_norm bare": (rms_norm, [ROW]),
    "rms_norm": (rms_norm, [ROW, VECTOR]),
    "rms_norm_residual": (rms_norm_residual, [ROW, ROW, VECTOR]),
    "rms_norm_gated": (rms_norm_gated, [ROW, ROW, VECTOR]),
    "layer_norm bare": (layer_norm, [ROW]),
    "layer_norm": (layer_norm, [ROW, VECTOR, VECTOR]),
    "layer_norm_residual": (layer_norm_residual, [ROW, ROW, VECTOR, VECTOR]),
    "layer_norm_residual_bias": (layer_norm_residual_bias, [ROW, ROW, VECTOR, VECTOR, VECTOR]),
    "linear_act": (partial(linear_act, activation="gelu"), [ROW, (16, 32), (16,)]),
    "linear_act saved": (partial(linear_act, activation="gelu_tanh", return_pre=True), [(2, 3, 32), (16, 32), (16,)]),
    "linear_act id": (linear_act, [ROW, (16, 32), (16,)]),
    "linear_data_grad": (lambda dy, w, pre: linear_data_grad(dy, w, pre, "gelu"), [(6, 16), (16, 32), ROW]),
    "linear_geglu": (linear_geglu, [ROW, (16, 32), (16,)]),
    "rope": (rotated, [(6, 4, 3, 8), (6, 2, 3, 8)]),
}
