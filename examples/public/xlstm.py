"""Triton kernels of mlstm_kernels, the matrix memory of xLSTM.

pip install mlstm_kernels
verify run examples/public/xlstm.py
"""

from __future__ import annotations

import torch
from torch.nn import functional

import verify


def mlstm(q, k, v, i, f):
    """The stabilised parallel form: attention with decaying weights, normalised by their sum or by one."""
    length = q.shape[2]
    steps = functional.logsigmoid(f).cumsum(-1)
    past = torch.ones(length, length, dtype=torch.bool, device=q.device).tril()
    decay = (steps[..., :, None] - steps[..., None, :] + i[..., None, :]).masked_fill(~past, -torch.inf)
    largest = decay.amax(-1, keepdim=True)
    weights = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5 * torch.exp(decay - largest)
    norm = torch.maximum(weights.sum(-1, keepdim=True).abs(), torch.exp(-largest))
    return weights / (norm + 1e-6) @ v


@verify.kernel(
    like=mlstm,
    shapes={"q": "b h s d", "k": "b h s d", "v": "b h s d", "i": "b h s", "f": "b h s"},
    # the kernel takes longer sequences too; the exact values of one of 512 take a minute of a core
    where="d in (32, 64) and s % 64 == 0 and s <= 256",
    requires="mlstm_kernels",
    backends=["cuda"],
)
def mlstm_parallel(q, k, v, i, f):
    """The parallel form of the mLSTM."""
    from mlstm_kernels.torch.parallel.triton_limit_headdim import mlstm_parallel__limit_headdim

    return mlstm_parallel__limit_headdim(q, k, v, i, f, autocast_kernel_dtype=q.dtype)
