"""Triton kernels of flash-linear-attention (the package fla-core).

    pip install fla-core
    verify run examples/public/fla_kernels.py

Statistics, losses and scans come in float32 whatever the dtype of their inputs: outputs with names of their own.
"""

from __future__ import annotations

import functools

import torch
from torch.nn import functional

import verify

fla = functools.partial(verify.kernel, requires=["fla", "einops"])
EPS = 1e-5
NORMED = {"x": "n d", "weight": "d", "bias": "d"}


def rms_normalized(x, eps=EPS):
    """x over the root of its mean square."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def grouped(x, weight, bias):
    """Group norm of rows: four groups of columns."""
    return functional.group_norm(x, 4, weight, bias, EPS)


def rotated(x, cos, sin):
    """RoPE on halves."""
    first, second = x.chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((first * cos - second * sin, first * sin + second * cos), -1)


def shifted(x):
    """The difference from each token to the one before it."""
    return functional.pad(x, (0, 0, 1, 0))[:, :-1] - x


def causal(q, k, v):
    """Causal attention of [batch, time, head, width]."""
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def gated_recurrence(x, g):
    """h = exp(g) h + x over time."""
    held, states = torch.zeros_like(x[:, 0]), []
    for step in range(x.shape[1]):
        held = g[:, step].exp() * held + x[:, step]
        states.append(held)
    return torch.stack(states, 1)


@fla(op="layer_norm", refuses=True)  # rows of 64 KB
def layer_norm(x, weight, bias, *, eps):
    """Layer norm."""
    from fla.modules.layernorm import layer_norm

    return layer_norm(x, weight, bias, eps=eps)


@fla(op="rms_norm", refuses=True)  # rows of 64 KB
def rms_norm(x, weight, *, eps):
    """RMS norm."""
    from fla.modules.layernorm import rms_norm

    return rms_norm(x, weight, None, eps=eps)


@fla(like=grouped, shapes=NORMED, where="d % 4 == 0 and d >= 8")
def group_norm(x, weight, bias):
    """Group norm of rows."""
    from fla.modules.layernorm import group_norm

    return group_norm(x, weight, bias, eps=EPS, num_groups=4)


@fla(
    like=lambda x, residual, weight, bias: (
        functional.layer_norm(x + residual, x.shape[-1:], weight, bias, EPS),
        x + residual,
    ),
    shapes={**NORMED, "residual": "n d"},
    outputs=["y", "sum"],
)
def add_layer_norm(x, residual, weight, bias):
    """Layer norm of a sum, which is returned too (prenorm)."""
    from fla.modules.layernorm import layer_norm

    return layer_norm(x, weight, bias, residual, EPS, prenorm=True)


@fla(
    like=lambda x, g, weight: rms_normalized(x) * weight * functional.silu(g),
    shapes={"x": "n d", "g": "n d", "weight": "d"},
)
def rms_norm_gated(x, g, weight):
    """RMS norm times SiLU of a gate."""
    from fla.modules.fused_norm_gate import rms_norm_gated

    return rms_norm_gated(x, g, weight, None, "swish", eps=EPS)


@fla(
    like=lambda x, g, weight, bias: functional.layer_norm(x, x.shape[-1:], weight, bias, EPS) * torch.sigmoid(g),
    shapes={**NORMED, "g": "n d"},
)
def layer_norm_gated(x, g, weight, bias):
    """Layer norm times the sigmoid of a gate."""
    from fla.modules.fused_norm_gate import layer_norm_gated

    return layer_norm_gated(x, g, weight, bias, "sigmoid", eps=EPS)


@fla(like=lambda x: x * torch.rsqrt(x.square().sum(-1, keepdim=True) + EPS), shapes={"x": "n d"})
def l2_norm(x):
    """Rows of length one."""
    from fla.modules.l2norm import l2norm

    return l2norm(x, EPS)


@fla(op="silu")
def swish(x):
    """SiLU."""
    from fla.modules.activations import swish

    return swish(x)


@fla(like=functional.logsigmoid)
def log_sigmoid(x):
    """The logarithm of the sigmoid."""
    from fla.modules.activations import logsigmoid

    return logsigmoid(x)


@fla(op="swiglu_split")
def swiglu(x1, x2):
    """SwiGLU."""
    from fla.modules.activations import swiglu

    return swiglu(x2, x1)


@fla(
    like=functools.partial(functional.cross_entropy, reduction="none"),
    shapes={"logits": "n v", "label": "n"},
    integers={"label": "0 <= label < v"},
    outputs=["loss"],
)
def cross_entropy(logits, label):
    """Cross-entropy of each row."""
    from fla.modules.fused_cross_entropy import cross_entropy_loss

    return cross_entropy_loss(logits, label)[0]


@fla(like=functools.partial(torch.logsumexp, dim=-1), shapes={"input": "n d"}, gradients=False, outputs=["lse"])
def logsumexp(input):
    """The logarithm of the sum of exponentials."""
    from fla.ops.utils import logsumexp_fwd

    return logsumexp_fwd(input)


@fla(like=functools.partial(torch.softmax, dim=-1), shapes={"input": "n d"}, gradients=False)
def softmax(input):
    """Softmax over the last dimension."""
    from fla.ops.utils import softmax_fwd

    return softmax_fwd(input, input.dtype)


@fla(like=functools.partial(torch.cumsum, dim=1), shapes={"input": "b t h d"}, gradients=False, outputs=["sums"])
def global_cumsum(input):
    """Sums over time."""
    from fla.ops.utils import chunk_global_cumsum

    return chunk_global_cumsum(input)


@fla(
    like=lambda x: x.unflatten(1, (-1, 16)).cumsum(2).flatten(1, 2),
    shapes={"x": "b t h"},
    where="t % 16 == 0",
    gradients=False,
    outputs=["sums"],
)
def local_cumsum(x):
    """Sums over time within chunks of 16."""
    from fla.ops.utils import chunk_local_cumsum

    return chunk_local_cumsum(x, 16)


@fla(
    like=rotated,
    shapes={"x": "b t h d", "cos": "t e", "sin": "t e"},
    where="d == 2 * e and d <= 256",
    domain={"cos": "-1 <= cos <= 1", "sin": "-1 <= sin <= 1"},
    gradients=["x"],
)
def rotary(x, cos, sin):
    """Rotary embedding, on halves."""
    from fla.modules.rotary import rotary_embedding

    return rotary_embedding(x, cos, sin)


@fla(like=shifted, shapes={"x": "b t d"})
def token_shift(x):
    """The difference from each token to the one before it."""
    from fla.modules.token_shift import token_shift

    return token_shift(x)


@fla(like=lambda x: x.unflatten(1, (-1, 16)).mean(2), shapes={"x": "b t h d"}, where="t % 16 == 0")
def mean_pooling(x):
    """The mean of chunks of 16 tokens."""
    from fla.ops.utils import mean_pooling

    return mean_pooling(x, 16)


@fla(like=gated_recurrence, shapes={"x": "b t d", "g": "b t d"}, where="t <= 16", domain={"g": "g <= 0"})
def recurrence(x, g):
    """A gated recurrence over time (HGRN)."""
    from fla.ops.hgrn import fused_recurrent_hgrn

    return fused_recurrent_hgrn(x, g)[0]


@fla(
    like=causal,
    shapes={"q": "b t h d", "k": "b t h d", "v": "b t h d"},
    where="d in (16, 32, 64)",
    dtypes=["bfloat16", "float16"],
    backends=["cuda"],
)
def causal_attention(q, k, v):
    """Causal attention."""
    from fla.ops.attn import parallel_attn

    return parallel_attn(q, k, v)
