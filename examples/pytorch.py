"""PyTorch's own functions, declared as kernels: what docs/findings.md reports about them can be run from here.

    verify run examples/pytorch.py --profile quick

They are judged by the default limit of 4 ULP like any other kernel, and most of them do not keep it.
"""

from __future__ import annotations

import torch

import verify

F = torch.nn.functional
FLOATS = ["bfloat16", "float16", "float32", "float64"]


@verify.kernel(op="gelu", dtypes=FLOATS)
def gelu(x):
    """torch.nn.functional.gelu, erf form."""
    return F.gelu(x)


@verify.kernel(op="gelu", params={"approximate": "tanh"}, dtypes=FLOATS)
def gelu_tanh(x):
    """torch.nn.functional.gelu, tanh form."""
    return F.gelu(x, approximate="tanh")


@verify.kernel(op="silu", dtypes=FLOATS)
def silu(x):
    """torch.nn.functional.silu."""
    return F.silu(x)


@verify.kernel(op="layer_norm", dtypes=FLOATS)
def layer_norm(x, weight, bias, *, eps):
    """torch.nn.functional.layer_norm."""
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


@verify.kernel(op="rms_norm", dtypes=FLOATS)
def rms_norm(x, weight, *, eps):
    """torch.nn.functional.rms_norm."""
    return F.rms_norm(x, x.shape[-1:], weight, eps)


@verify.kernel(op="softmax", dtypes=FLOATS)
def softmax(x):
    """torch.nn.functional.softmax over the last dimension."""
    return F.softmax(x, -1)
