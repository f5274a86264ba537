"""Triton kernels of flashinfer 0.7: merging partial attentions, an RMS norm. They ask for a Hopper GPU.

    pip install --no-deps flashinfer-python
    verify run examples/public/flashinfer_kernels.py

The files of the kernels alone are enough (benchmarks/kernel_files.py). A log-sum-exp has base 2.
"""

from __future__ import annotations

import functools

import torch

import verify

theirs = functools.partial(
    verify.kernel, requires="flashinfer", gradients=False, layouts="contiguous", backends=["cuda"]
)
LN2 = 0.6931471805599453


def merged(v, s):
    """Partial attentions [n k h d], weighted by their log-sum-exps [n k h] in base 2."""
    lse = (s * LN2).logsumexp(1)
    return (v * (s * LN2 - lse[:, None]).exp()[..., None]).sum(1), lse / LN2


STATES = {"outputs": ["y", "s"], "output_dtypes": {"s": "float32"}}


@theirs(
    like=lambda v_a, s_a, v_b, s_b: merged(torch.stack((v_a, v_b), 1), torch.stack((s_a, s_b), 1)),
    shapes={"v_a": "n h d", "s_a": "n h", "v_b": "n h d", "s_b": "n h"},
    where="d in (16, 32, 64, 128)",
    operand_dtypes={"s_a": "float32", "s_b": "float32"},
    **STATES,
)
def merge_state(v_a, s_a, v_b, s_b):
    """Two partial attentions."""
    from flashinfer.triton.cascade import merge_state

    return merge_state(v_a, s_a, v_b, s_b)


@theirs(
    like=merged,
    shapes={"v": "n k h d", "s": "n k h"},
    where="d in (16, 32, 64, 128)",
    operand_dtypes={"s": "float32"},
    **STATES,
)
def merge_states(v, s):
    """Several partial attentions."""
    from flashinfer.triton.cascade import merge_states

    return merge_states(v, s)


def normed(x, residual, weight):
    """RMS norm of a sum, and the sum."""
    total = x + residual
    return total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-6) * weight, total


@theirs(
    like=normed,
    shapes={"x": "n d", "residual": "n d", "weight": "d"},
    writes={"x": "x_", "residual": "residual_"},
    largest={"float32": 1e18, "bfloat16": 1e18, "float16": 3e4},  # the sum has the dtype of the data
)
def rms_norm_add_residual(x, residual, weight):
    """RMS norm of a sum with a residual, both in place."""
    from flashinfer.triton.norm import rms_norm_add_residual

    rms_norm_add_residual(x, residual, weight, 1e-6, x)
