"""Losses and norms of PyTorch, as it is and compiled, for the second table of docs/attention.md.

    verify run examples/losses_and_norms.py --dtype bfloat16
    python -m benchmarks.attention_table --table losses

Liger's own are in examples/liger.py and examples/public/liger_kernels.py.
"""

from __future__ import annotations

import functools

import torch
from torch.nn import functional

import verify

LOGITS = {"shapes": {"logits": "n v", "label": "n"}, "integers": {"label": "0 <= label < v"}, "outputs": ["loss"]}
NORMED = {"x": "n d", "weight": "d", "bias": "d"}


@functools.cache
def _compiled(function):
    return torch.compile(function, dynamic=True)


def layer_norm(x, weight, bias):
    """Layer norm over the last dimension."""
    return functional.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)


def rms_norm(x, weight):
    """RMS norm over the last dimension."""
    return functional.rms_norm(x, x.shape[-1:], weight, 1e-6)


@verify.kernel(like=functional.cross_entropy, **LOGITS)
def eager_cross_entropy(logits, label):
    """The mean over rows."""
    return functional.cross_entropy(logits, label)


@verify.kernel(like=functional.cross_entropy, **LOGITS)
def compiled_cross_entropy(logits, label):
    """The mean over rows, with torch.compile."""
    return _compiled(functional.cross_entropy)(logits, label)


@verify.kernel(like=layer_norm, shapes=NORMED)
def eager_layer_norm(x, weight, bias):
    """Layer norm in one kernel."""
    return layer_norm(x, weight, bias)


@verify.kernel(like=layer_norm, shapes=NORMED)
def compiled_layer_norm(x, weight, bias):
    """Layer norm with torch.compile."""
    return _compiled(layer_norm)(x, weight, bias)


@verify.kernel(like=rms_norm, shapes={"x": "n d", "weight": "d"})
def eager_rms_norm(x, weight):
    """RMS norm as PyTorch has it."""
    return rms_norm(x, weight)


@verify.kernel(like=rms_norm, shapes={"x": "n d", "weight": "d"})
def compiled_rms_norm(x, weight):
    """RMS norm with torch.compile."""
    return _compiled(rms_norm)(x, weight)


def log_softmax(x):
    """The logarithm of a softmax of each row."""
    return functional.log_softmax(x, -1)


@verify.kernel(like=log_softmax, shapes={"x": "n v"})
def eager_log_softmax(x):
    """In one kernel."""
    return log_softmax(x)


@verify.kernel(like=log_softmax, shapes={"x": "n v"})
def compiled_log_softmax(x):
    """With torch.compile."""
    return _compiled(log_softmax)(x)
