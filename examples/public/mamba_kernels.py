"""Triton kernels of Mamba (mamba_ssm) and of causal-conv1d. They ask for a GPU.

    verify run examples/public/mamba_kernels.py

The packages must be importable, or the files of their kernels must lie in a folder (benchmarks/kernel_files.py).
"""

from __future__ import annotations

import functools

import torch
from torch.nn import functional

import verify

mamba = functools.partial(verify.kernel, requires=["mamba_ssm", "einops"], backends=["cuda"])


def scan(x, dt, a, b, c, d):
    """A state space of Mamba-2: [batch, time, head, width], one group of b and c."""
    state, steps = torch.zeros_like(x[:, 0, :, :, None] * b[:, 0, :, None]), []
    for step in range(x.shape[1]):
        decay = (dt[:, step] * a).exp()[..., None, None]
        state = decay * state + (dt[:, step, :, None] * x[:, step])[..., None] * b[:, step, :, None]
        steps.append((state * c[:, step, :, None]).sum(-1) + d[:, None] * x[:, step])
    return torch.stack(steps, 1)


@mamba(
    like=scan,
    shapes={"x": "n t h 32", "dt": "n t h", "a": "h", "b": "n t 1 16", "c": "n t 1 16", "d": "h"},
    where="t <= 129 and n <= 4 and h <= 4",
    domain={"dt": "0 <= dt <= 1", "a": "-8 <= a <= 0"},
    dtypes=["bfloat16", "float16"],
    operand_dtypes=dict.fromkeys(("dt", "a", "d"), "float32"),
    gradients=False,
)
def chunk_scan(x, dt, a, b, c, d):
    """The scan of Mamba-2 in chunks of 64."""
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    return mamba_chunk_scan_combined(x, dt, a, b, c, 64, D=d)


@mamba(like=lambda xy: functional.silu(xy.chunk(2, -1)[0]) * xy.chunk(2, -1)[1], shapes={"xy": "n 2*d"})
def swiglu(xy):
    """SwiGLU of the halves of one tensor."""
    from mamba_ssm.ops.triton.k_activations import swiglu

    return swiglu(xy)


@mamba(
    like=lambda x, weight, z: functional.rms_norm(x, x.shape[-1:], weight, 1e-6) * functional.silu(z),
    shapes={"x": "n d", "weight": "d", "z": "n d"},
    where="d <= 4096",
)
def rms_norm_gated(x, weight, z):
    """RMS norm times SiLU of a gate."""
    from mamba_ssm.ops.triton.layernorm_gated import rmsnorm_fn

    return rmsnorm_fn(x, weight, None, z, eps=1e-6)


def last_states(x, lengths):
    """The last four tokens of each sequence, zeros before its first."""
    place = lengths.cumsum(0)[:, None] + torch.arange(-4, 0)
    own = (torch.arange(-4, 0) >= -lengths[:, None])[..., None]
    return torch.where(own, x[place.clamp(min=0)], 0.0).mT


@verify.kernel(
    like=last_states,
    shapes={"x": "t d", "lengths": "b", "starts": "b+1"},
    integers={"lengths": "1 <= lengths <= t, sum t"},
    derive={"starts": lambda lengths: functional.pad(lengths.cumsum(0), (1, 0))},
    operand_dtypes={"starts": "int32"},
    gradients=False,
    requires="causal_conv1d",
    backends=["cuda"],
)
def conv1d_varlen_states(x, starts):
    """The states of a causal convolution after sequences of several lengths."""
    from causal_conv1d.causal_conv1d_varlen import causal_conv1d_varlen_states

    return causal_conv1d_varlen_states(x, starts, 4)
