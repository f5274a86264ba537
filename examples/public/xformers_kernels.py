"""Triton kernels of xformers. They ask for a GPU.

pip install xformers
verify run examples/public/xformers_kernels.py
"""

from __future__ import annotations

import functools

import torch

import verify

xformers = functools.partial(verify.kernel, requires="xformers", backends=["cuda"], layouts="contiguous")
EPS = 1e-6


def rms_normalized(x, eps=EPS):
    """x over the root of its mean square."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


@xformers(op="rms_norm", gradients=False)
def rms_norm(x, weight, *, eps):
    """RMS norm, for inference."""
    from xformers.ops.rmsnorm import rms_norm

    return rms_norm(x, weight, eps)


@xformers(
    like=lambda x, y, weight: rms_normalized(x + y) * weight,
    shapes={"x": "n d", "y": "n d", "weight": "d"},
    gradients=False,
    largest={"float32": 1e18, "bfloat16": 1e18, "float16": 3e4},  # the sum has the dtype of the data
)
def rms_norm_add(x, y, weight):
    """RMS norm of a sum, for inference."""
    from xformers.ops.rmsnorm import rms_norm_add

    return rms_norm_add(x.clone(), y, weight, EPS)


@xformers(
    like=lambda x, source, scaling: torch.cat((x[: len(source)] + scaling * source, x[len(source) :])),
    shapes={"x": "b m d", "source": "c m d", "scaling": "d"},
    where="c <= b",
)
def scaled_index_add(x, source, scaling):
    """Rows added, scaled by column, to those of another tensor: here to the first ones."""
    from xformers.ops.indexing import scaled_index_add

    return scaled_index_add(x.clone(), torch.arange(len(source), device=x.device), source, scaling)


@xformers(
    like=lambda x, y: torch.cat((x[::2].flatten(), y[1:].flatten())), shapes={"x": "n d", "y": "m e"}, where="m >= 2"
)
def index_select_cat(x, y):
    """Rows of two tensors, one after the other."""
    from xformers.ops.indexing import index_select_cat

    places = [torch.arange(0, len(x), 2, device=x.device), torch.arange(1, len(y), device=x.device)]
    return index_select_cat([x, y], places)
