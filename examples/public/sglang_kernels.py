"""Triton kernels of SGLang 0.5.23: attention, norms, sampling, routing, a quantiser.

    verify run examples/public/sglang_kernels.py

SGLang must be importable, or the files of its kernels must lie in a folder (benchmarks/kernel_files.py).
"""

from __future__ import annotations

import functools

import torch
from torch.nn import functional

import verify

theirs = functools.partial(verify.kernel, requires="sglang", gradients=False)
EPS = 1e-6
INF = torch.inf


def rms(x, weight):
    """x over the root of its mean square, times a weight."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


def owner(tokens, lengths):
    """The sequence of each token."""
    return (torch.arange(len(tokens))[:, None] >= lengths.cumsum(0)).sum(1)


def starts(lengths):
    """The first token of each sequence, and the end."""
    return functional.pad(lengths.cumsum(0), (1, 0))


# -- attention ---------------------------------------------------------------------------------------------


def merged(a, lse_a, b, lse_b):
    """Two partial attentions, weighted by their log-sum-exps. Two empty ones give 0 and -inf."""
    both = torch.stack((lse_a, lse_b))
    share = both.softmax(0).nan_to_num()[..., None]
    return a * share[0] + b * share[1], both.logsumexp(0)


@theirs(
    like=merged,
    shapes={"a": "n h d", "lse_a": "n h", "b": "n h d", "lse_b": "n h"},
    operand_dtypes={"lse_a": "float32", "lse_b": "float32"},
    outputs=["y", "lse"],
    output_dtypes={"lse": "float32"},
)
def merge_state(a, lse_a, b, lse_b):
    """Attention over a prefix and attention over the rest."""
    from sglang.kernels.ops.attention.merge_state import merge_state_triton

    return merge_state_triton(a, lse_a, b, lse_b)


def some_empty(a, lse_a, b, lse_b, none_a, none_b):
    return merged(a, lse_a.masked_fill(none_a, -INF), b, lse_b.masked_fill(none_b, -INF))


@theirs(
    like=some_empty,
    shapes={"a": "n h d", "b": "n h d", **dict.fromkeys(("lse_a", "lse_b", "none_a", "none_b"), "n h")},
    integers={"none_a": "bool", "none_b": "bool"},
    operand_dtypes={"lse_a": "float32", "lse_b": "float32"},
    outputs=["y", "lse"],
    output_dtypes={"lse": "float32"},
    layouts="contiguous",
)
def merge_state_empty(a, lse_a, b, lse_b, none_a, none_b):
    """The same, where some parts saw no key. Two such parts give NaN."""
    from sglang.kernels.ops.attention.merge_state import merge_state_triton

    return merge_state_triton(a, lse_a.masked_fill(none_a, -INF), b, lse_b.masked_fill(none_b, -INF))


def attention(q, k, v, mask):
    """Attention of q [t h d] over keys [n g d], a group of heads for each of g; mask [t n]."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = torch.einsum("thd,nhd->htn", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("htn,nhd->thd", scores.masked_fill(~mask, -INF).softmax(-1), v)


def prefilled(q, k, v, lengths):
    """Causal attention of sequences that lie one behind the other."""
    own, row = owner(q, lengths), torch.arange(len(q))
    return attention(q, k, v, (own[:, None] == own) & (row[:, None] >= row))


SEQUENCES = {"integers": {"lengths": "1 <= lengths <= t, sum t"}, "dtypes": ["bfloat16", "float16"]}


@theirs(
    like=prefilled,
    shapes={"q": "t 2*g 32", "k": "t g 32", "v": "t g 32", "lengths": "b", "starts": "b"},
    derive={"starts": lambda lengths: lengths.cumsum(0) - lengths},
    operand_dtypes={"lengths": "int32", "starts": "int32"},
    into=["y"],
    layouts="contiguous",
    **SEQUENCES,
)
def prefill_attention(q, k, v, starts, lengths, y):
    """Causal attention of sequences of several lengths, with grouped heads."""
    from sglang.kernels.ops.attention.prefill_attention import context_attention_fwd

    context_attention_fwd(q, k, v, y, starts, lengths, int(lengths.max()))


def decoded(q, keys, values, slots, lengths):
    """One query for each sequence, over the slots of its tokens."""
    own = owner(slots, lengths) == torch.arange(len(lengths))[:, None]
    return attention(q, keys[slots], values[slots], own)


@theirs(
    like=decoded,
    shapes={"q": "b 2*g 32", "keys": "s g 32", "values": "s g 32", "slots": "t", "lengths": "b", "starts": "b+1"},
    **{**SEQUENCES, "integers": {**SEQUENCES["integers"], "slots": "distinct s"}},
    where="t <= s",
    derive={"starts": starts},
    operand_dtypes={"starts": "int32"},
    into=["y"],
    layouts="contiguous",
)
def decode_attention(q, keys, values, slots, lengths, starts, y):
    """Decode attention over slots of a cache, in four splits of the keys, with grouped heads."""
    from sglang.kernels.ops.attention.decode_attention import decode_attention_fwd

    parts, lse = q.new_empty(*q.shape[:2], 4, 32).float(), q.new_empty(*q.shape[:2], 4).float()
    splits = torch.full((len(q),), 4, dtype=torch.int32, device=q.device)
    decode_attention_fwd(q, keys, values, y, starts, slots, parts, lse, splits, 4, 32**-0.5, 1.0, 1.0)


# -- norms, gates, reductions ------------------------------------------------------------------------------


def twice_normed(x, residual, first, second):
    """RMS norm, a residual, RMS norm again."""
    middle = residual + rms(x, first)
    return rms(middle, second), middle


@theirs(
    like=twice_normed,
    shapes={"x": "n d", "residual": "n d", "first": "d", "second": "d"},
    outputs=["y", "middle"],
    layouts="contiguous",
)
def dual_residual_rmsnorm(x, residual, first, second):
    """Two RMS norms around a residual sum."""
    from sglang.kernels.ops.layernorm.fused_rmsnorm import fused_dual_residual_rmsnorm

    return fused_dual_residual_rmsnorm(x, residual, first, second, EPS)


@theirs(like=rms, shapes={"x": "n d", "weight": "d"}, where="d <= 128", backends=["cuda"])
def one_pass_rms_norm(x, weight):
    """RMS norm of short rows, several at a time."""
    from sglang.kernels.ops.diffusion.norm.rmsnorm_onepass_triton import triton_one_pass_rms_norm

    return triton_one_pass_rms_norm(x, weight, EPS)


@theirs(
    like=lambda x, weight, bias: functional.silu(functional.group_norm(x, 8, weight, bias, 1e-5)),
    shapes={"x": "n 8*c h w", "weight": "8*c", "bias": "8*c"},
    backends=["cuda"],
)
def group_norm_silu(x, weight, bias):
    """Group norm and SiLU of images. Its variance is E[x^2] - E[x]^2, and may be negative."""
    from sglang.kernels.ops.diffusion.norm.group_norm_silu_triton import triton_group_norm_silu

    with torch.no_grad():  # else it calls PyTorch
        return triton_group_norm_silu(x, weight, bias, 8, 1e-5)


@theirs(
    like=lambda x, gate: x * gate.sigmoid(),
    shapes={"x": "n d", "gate": "n d"},
    dtypes=["bfloat16", "float16"],
    layouts="contiguous",
)
def sigmoid_mul(x, gate):
    """A product with the sigmoid of a gate."""
    from sglang.kernels.ops.elementwise.elementwise import fused_sigmoid_mul

    return fused_sigmoid_mul(x, gate)


@theirs(
    like=lambda log, a, b, bias: ((-log.exp() * functional.softplus(a + bias))[None], b.sigmoid()[None]),
    shapes={"log": "h", "a": "n h", "b": "n h", "bias": "h"},
    outputs=["g", "beta"],
    output_dtypes={"g": "float32", "beta": "float32"},
    layouts="contiguous",
)
def gdn_gating(log, a, b, bias):
    """Gates of the gated delta rule. The float32 beta holds numbers of b's dtype."""
    from sglang.kernels.ops.attention.linear.fused_gdn_gating import fused_gdn_gating

    return fused_gdn_gating(log, a, b, bias)


@theirs(
    like=lambda x: (x.amax(-1), (x - x.amax(-1, keepdim=True)).exp().sum(-1).log()),
    shapes={"x": "n d"},
    outputs=["largest", "rest"],
    output_dtypes={"largest": "float32", "rest": "float32"},
)
def row_logsumexp(x):
    """The maximum of a row, and its log-sum-exp less that."""
    from sglang.srt.layers.logsumexp import row_logsumexp

    return row_logsumexp(x)


@theirs(like=lambda x: x.mean(-1), shapes={"x": "n d"}, backends=["cuda"])
def mean(x):
    """What deterministic inference registers for aten::mean.dim. It adds up in the dtype of the data."""
    from sglang.srt.batch_invariant_ops.batch_invariant_ops import mean_batch_invariant

    return mean_batch_invariant(x, [-1])


# -- sampling and routing ----------------------------------------------------------------------------------

probabilities = functools.partial(theirs, dtypes=["float32"], backends=["cuda"], layouts="contiguous")


def kept(probs, pivot):
    """What is at least a pivot, over its sum."""
    some = torch.where(probs >= pivot, probs, 0.0)
    return some / some.sum(-1, keepdim=True)


def top_p(probs, p):
    """The largest probabilities that add up to p."""
    ordered = probs.sort(-1).values
    enough = ordered.cumsum(-1) >= 1 - p[:, None]
    return kept(probs, torch.where(enough, ordered, ordered[:, -1:]).amin(-1, keepdim=True))


@probabilities(
    like=top_p, shapes={"probs": "n v", "p": "n"}, domain={"probs": "0.000001 <= probs <= 1", "p": "0.01 <= p <= 1"}
)
def top_p_renorm(probs, p):
    """Probabilities beyond p become 0."""
    from sglang.kernels.ops.sampling.renorm_triton import top_p_renorm_probs_triton

    return top_p_renorm_probs_triton(probs, p)


@probabilities(
    like=lambda probs, k: kept(probs, probs.sort(-1, descending=True).values.gather(1, k[:, None] - 1)),
    shapes={"probs": "n v", "k": "n"},
    domain={"probs": "0.000001 <= probs <= 1"},
    integers={"k": "1 <= k <= v"},
    operand_dtypes={"k": "int32"},
)
def top_k_renorm(probs, k):
    """All but the k largest probabilities, and those equal to the last one, become 0."""
    from sglang.kernels.ops.sampling.renorm_triton import top_k_renorm_probs_triton

    return top_k_renorm_probs_triton(probs, k)


@probabilities(
    like=lambda logits, t: (logits / t).softmax(-1),
    shapes={"logits": "n v", "t": "n 1"},
    where="1 <= n <= 32 and v > 2048",
    domain={"t": "0.01 <= t <= 100"},
    backends=["cuda"],
)
def temperature_softmax(logits, t):
    """Softmax at a temperature of each row, where it is no call of PyTorch's: a GPU, few and long rows."""
    from sglang.kernels.ops.sampling.temperature_softmax import temperature_softmax

    return temperature_softmax(logits, t)


def routed(scores, bias):
    """The four experts with the largest sigmoid + bias, and their sigmoids over the sum."""
    weights = scores.sigmoid()
    ids = (weights + bias).topk(4).indices
    chosen = weights.gather(1, ids)
    return chosen / chosen.sum(-1, keepdim=True), ids


@theirs(
    like=routed,
    shapes={"scores": "n e", "bias": "e"},
    where="4 <= e <= 1024",
    domain={"scores": "-60 <= scores <= 60"},
    outputs=["weights", "ids"],
    output_dtypes={"weights": "float32"},
)
def moe_fused_gate(scores, bias):
    """The router of a mixture of experts."""
    from sglang.kernels.ops.moe.moe_fused_gate import moe_fused_gate

    return moe_fused_gate(scores, bias, 4)


@theirs(
    quantise=verify.quantised("int8", block=(1, 128), scale="float32", least=1e-10, nan="any"),
    dtypes=["bfloat16", "float32"],
    layouts="contiguous",
)
def token_group_int8(x):
    """INT8 with a scale for 128 numbers. The cast cuts."""
    from sglang.kernels.ops.quantization.int8_kernel import per_token_group_quant_int8

    return per_token_group_quant_int8(x, 128)
