"""Kernels of flash-linear-attention 0.6 over sequences: gates, convolution, stick-breaking, delta rules.

pip install --no-deps fla-core einops
verify run examples/public/fla_sequences.py
"""

from __future__ import annotations

import functools

import torch
from torch.nn import functional

import verify

fla = functools.partial(verify.kernel, requires=["fla", "einops"])
halves = functools.partial(fla, dtypes=["bfloat16", "float16"])


@fla(like=lambda k, a, ka: k + k * (a - 1) * ka, shapes={"k": "b t d", "a": "b t d", "ka": "d"}, where="t > 1")
def rwkv7_k_update(k, a, ka):
    """The keys of RWKV-7."""
    from fla.ops.rwkv7.fused_k_update import fused_k_rwkv7

    return fused_k_rwkv7(k, a, ka)


@fla(
    like=lambda o, r, k, r_k, v, g: (o + ((r * k * r_k).sum(-1, keepdim=True) * v).flatten(2)) * g,
    shapes={**dict.fromkeys("og", "b t 32*h"), **dict.fromkeys("rkv", "b t h 32"), "r_k": "h 32"},
)
def rwkv7_gate_correction(o, r, k, r_k, v, g):
    """The output of RWKV-7, corrected and gated."""
    from fla.ops.rwkv7.gate_output_correction import gate_output_correction

    return gate_output_correction(o, r, k, r_k, v, g)


def convolved(x, weight, bias):
    """A causal convolution over time and SiLU."""
    window = functional.pad(x, (0, 0, weight.shape[1] - 1, 0)).unfold(1, weight.shape[1], 1)
    return functional.silu((window * weight).sum(-1) + bias)


@fla(like=convolved, shapes={"x": "b t d", "weight": "d 4", "bias": "d"})
def causal_conv1d(x, weight, bias):
    """A causal convolution over four steps."""
    from fla.modules.causal_conv1d import causal_conv1d

    return causal_conv1d(x, weight, bias, activation="silu")[0]


def stick_breaking(q, k, v):
    """Attention whose keys take shares of a stick, the nearest first."""
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    visible = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool, device=q.device).tril(-1)
    left = functional.logsigmoid(-scores).masked_fill(~visible, 0.0)
    share = functional.logsigmoid(scores) + left.flip(-1).cumsum(-1).flip(-1) - left
    weights = share.masked_fill(~visible, -torch.inf).exp()
    return torch.einsum("bhqk,bkhd->bqhd", weights, v), left.sum(-1).exp().mT


@halves(like=stick_breaking, shapes=dict.fromkeys("qkv", "b t h 32"), where="t <= 257", outputs=["y", "rest"])
def stick_breaking_attention(q, k, v):
    """Stick-breaking attention."""
    from fla.ops.stickbreaking_attn import parallel_stickbreaking_attn

    return parallel_stickbreaking_attn(q, k, v)


def gla(q, k, v, g):
    """Gated linear attention: a key decays by the gates between it and the query."""
    total = g.cumsum(1)
    decay = (total[:, :, None] - total[:, None]).movedim(3, 1)
    past = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool, device=q.device).tril()[..., None]
    scores = torch.einsum("bthk,bshk,bhtsk->bhts", q, k, decay.masked_fill(~past, -torch.inf).exp())
    return torch.einsum("bhts,bshv->bthv", scores, v) * q.shape[-1] ** -0.5


@halves(like=gla, shapes=dict.fromkeys("qkvg", "b t h 32"), where="t <= 129", domain={"g": "-4 <= g <= 0"})
def gla_chunked(q, k, v, g):
    """Gated linear attention in chunks."""
    from fla.ops.gla import chunk_gla

    return chunk_gla(q, k, v, g)[0]


def delta_rule(q, k, v, g, beta):
    """A state that forgets by exp(g) and learns by beta what it does not know of v."""
    g = g[..., None] if g.ndim == 3 else g
    state, steps = torch.zeros_like(k[:, 0, :, :, None] * v[:, 0, :, None]), []
    for q_t, k_t, v_t, g_t, beta_t in zip(*(each.unbind(1) for each in (q, k, v, g, beta)), strict=True):
        state = state * g_t.exp()[..., None]
        missing = beta_t[..., None] * (v_t - (k_t[..., None] * state).sum(-2))
        state = state + k_t[..., None] * missing[..., None, :]
        steps.append((q_t[..., None] * state).sum(-2) * q.shape[-1] ** -0.5)
    return torch.stack(steps, 1)


RULE = {
    "like": delta_rule,
    "shapes": {**dict.fromkeys("qkv", "b t h 16"), "g": "b t h", "beta": "b t h"},
    "where": "t <= 70 and b <= 2 and h <= 2",
    "domain": {"g": "-4 <= g <= 0", "beta": "0 <= beta <= 1", "k": "-0.3 <= k <= 0.3"},
    "dtypes": ["bfloat16"],
}


@fla(**RULE, gradients=False)
def gated_delta_recurrent(q, k, v, g, beta):
    """The gated delta rule, step by step."""
    from fla.ops.gated_delta_rule import fused_recurrent_gated_delta_rule

    return fused_recurrent_gated_delta_rule(q, k, v, g=g, beta=beta)[0]


@fla(**RULE)
def gated_delta_chunked(q, k, v, g, beta):
    """The gated delta rule in chunks."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    return chunk_gated_delta_rule(q, k, v, g, beta)[0]


@fla(**{**RULE, "shapes": {**dict.fromkeys("qkvg", "b t h 16"), "beta": "b t h"}})
def kda_chunked(q, k, v, g, beta):
    """Kimi's delta attention in chunks: a gate for each feature. Gradients of gates are differences of large sums."""
    from fla.ops.kda import chunk_kda

    return chunk_kda(q, k, v, g, beta)[0]
