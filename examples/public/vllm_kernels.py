"""Triton kernels of vLLM 0.33: attention over pages, sampling, state spaces, quantised products, quantisers.

    verify run examples/public/vllm_kernels.py

vLLM must be importable, or the files of its kernels must lie in a folder (benchmarks/kernel_files.py).
"""

from __future__ import annotations

import functools

import torch
from torch.nn import functional

import verify

theirs = functools.partial(verify.kernel, requires="vllm", gradients=False)
EPS = 1e-6
INF = torch.inf

# -- attention ---------------------------------------------------------------------------------------------


def merged(a, lse_a, b, lse_b):
    """Two partial attentions, weighted by their log-sum-exps. Two empty ones give 0 and -inf."""
    share = torch.stack((lse_a, lse_b)).softmax(0).nan_to_num()
    return a * share[0].T[..., None] + b * share[1].T[..., None], torch.logaddexp(lse_a, lse_b)


@theirs(
    like=merged,
    shapes={"a": "n h d", "lse_a": "h n", "b": "n h d", "lse_b": "h n"},
    operand_dtypes={"lse_a": "float32", "lse_b": "float32"},
    output_dtypes={"lse": "float32"},
    into=["y", "lse"],
    layouts={"a": "contiguous", "b": "contiguous"},
)
def merge_attn_states(a, lse_a, b, lse_b, y, lse):
    """Attention over a prefix and attention over the rest."""
    from vllm.v1.attention.ops.triton_merge_attn_states import merge_attn_states

    merge_attn_states(y, a, lse_a, b, lse_b, lse)


def some_empty(a, lse_a, b, lse_b, none_a, none_b):
    return merged(a, lse_a.masked_fill(none_a, -INF), b, lse_b.masked_fill(none_b, -INF))


@theirs(
    like=some_empty,
    shapes={"a": "n h d", "b": "n h d", **dict.fromkeys(("lse_a", "lse_b", "none_a", "none_b"), "h n")},
    integers={"none_a": "bool", "none_b": "bool"},
    operand_dtypes={"lse_a": "float32", "lse_b": "float32"},
    output_dtypes={"lse": "float32"},
    into=["y", "lse"],
    layouts="contiguous",
)
def merge_attn_states_empty(a, lse_a, b, lse_b, none_a, none_b, y, lse):
    """The same, where some parts saw no key."""
    from vllm.v1.attention.ops.triton_merge_attn_states import merge_attn_states

    merge_attn_states(y, a, lse_a.masked_fill(none_a, -INF), b, lse_b.masked_fill(none_b, -INF), lse)


def attention(q, k, v, mask):
    """Attention of q [t h d] over keys [t n g d], a group of heads for each of g."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[2], 2) for x in (k, v))
    scores = (torch.einsum("thd,tnhd->thn", q, k) * q.shape[-1] ** -0.5).masked_fill(~mask[:, None], -INF)
    return torch.einsum("thn,tnhd->thd", scores.softmax(-1), v), scores.logsumexp(-1)


def of_pages(q, keys, values, table, lengths, before):
    """Queries of several sequences, each over the pages of its own sequence and causal."""
    row, end = torch.arange(len(q)), lengths.cumsum(0)
    own = (row[:, None] >= end).sum(1)
    k, v = (cache[table[own]].flatten(1, 2) for cache in (keys, values))
    last = before[own] + lengths[own] - end[own] + row
    return attention(q, k, v, torch.arange(k.shape[1]) <= last[:, None])[0]


PAGES = {"keys": "m 16 g 32", "values": "m 16 g 32", "table": "b p"}
INTEGERS = {"table": "int32", "used": "int32"}


@theirs(
    like=of_pages,
    shapes={"q": "t 2*g 32", **PAGES, "lengths": "b", "before": "b", "used": "b", "offsets": "b+1"},
    integers={"table": "0 <= table < m", "lengths": "1 <= lengths <= t, sum t", "before": "0 <= before <= 16"},
    derive={
        "used": lambda lengths, before: lengths + before,
        "offsets": lambda lengths: functional.pad(lengths.cumsum(0), (1, 0)),
    },
    where="t + 16 <= 16 * p and p <= 4 and b <= 4 and g <= 4",
    dtypes=["bfloat16", "float16"],
    operand_dtypes={**INTEGERS, "offsets": "int32"},
    into=["y"],
    layouts="contiguous",
)
def unified_attention(q, keys, values, table, used, offsets, y):
    """Attention of sequences of several lengths over a paged cache, with grouped heads."""
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention

    longest = len(q), 16 * table.shape[1]
    window = (-1, -1)
    unified_attention(
        q, keys, values, y, offsets, longest[0], used, longest[1], 32**-0.5, True, window, table, 0.0, *[None] * 3
    )


def decoded(q, keys, values, table, used):
    """One query for each sequence, over its pages."""
    k, v = (cache[table].flatten(1, 2) for cache in (keys, values))
    return attention(q, k, v, torch.arange(k.shape[1]) < used[:, None])


def decode(name, heads):
    @theirs(
        like=decoded,
        shapes={"q": f"b {heads} 32", **PAGES, "used": "b"},
        integers={"table": "0 <= table < m", "used": "1 <= used <= 16*p"},
        where="p <= 16 and b <= 4 and g <= 4",
        dtypes=["bfloat16", "float16"],
        operand_dtypes=INTEGERS,
        output_dtypes={"lse": "float32"},
        into=["y", "lse"],
        layouts="contiguous",
        name=name,
    )
    def decode_attention(q, keys, values, table, used, y, lse):
        """Decode attention over a paged cache, in four splits of the keys."""
        from vllm.v1.attention.ops.triton_decode_attention import decode_attention_fwd

        parts = torch.empty(*q.shape[:2], 4, 33, device=q.device)
        decode_attention_fwd(q, keys, values, y, lse, table, used, parts, 4, 32**-0.5, 16)

    return decode_attention


decode_attention = decode("decode_attention", "g")
decode_attention_grouped = decode("decode_attention_grouped", "2*g")


@theirs(
    like=lambda key, value, keys, values, slots: tuple(
        cache.flatten(0, 1).index_copy(0, slots, each).reshape(cache.shape)
        for cache, each in ((keys, key), (values, value))
    ),
    shapes={"key": "t h d", "value": "t h d", "keys": "p 16 h d", "values": "p 16 h d", "slots": "t"},
    integers={"slots": "distinct 16*p"},
    where="t <= 16 * p and p <= 16",
    writes={"keys": "keys_", "values": "values_"},
    layouts="contiguous",
    backends=["cuda"],
)
def reshape_and_cache(key, value, keys, values, slots):
    """Keys and values into the slots of a paged cache."""
    from vllm.v1.attention.ops.triton_reshape_and_cache_flash import triton_reshape_and_cache_flash

    triton_reshape_and_cache_flash(key, value, keys, values, slots, "auto", *torch.ones(2, device=key.device))


def linear_step(q, k, v, cache, slope, slots):
    """One step of linear attention with decay: the states of the slots, and what the queries read."""
    state = (-slope).exp()[:, None, None] * cache[slots] + k.mT @ v
    return cache.index_copy(0, slots, state), (q @ state)[:, :, 0].flatten(1)


@theirs(
    like=linear_step,
    shapes={**dict.fromkeys("qkv", "b h 1 d"), "cache": "s h d d", "slope": "h", "slots": "b"},
    integers={"slots": "distinct s"},
    where="d in (32, 64) and b <= s",
    domain={"slope": "0 <= slope <= 8"},
    dtypes=["float32", "bfloat16"],
    operand_dtypes={"cache": "float32", "slope": "float32"},
    writes={"cache": "cache_"},
    outputs=["cache_", "y"],
    layouts="contiguous",
)
def lightning_decode(q, k, v, cache, slope, slots):
    """Lightning attention, one token."""
    from vllm.model_executor.layers.lightning_attn import linear_decode_forward_triton

    return linear_decode_forward_triton(q, k, v, cache, slope, slots)


def owner(tokens, lengths):
    return (torch.arange(len(tokens))[:, None] >= lengths.cumsum(0)).sum(1)


@theirs(
    like=lambda q, docs, lengths: (
        (q @ docs.mT)
        .masked_fill((owner(docs, lengths) != torch.arange(len(lengths))[:, None])[:, None], -INF)
        .amax(-1)
        .sum(-1)
    ),
    shapes={"q": "l d", "docs": "t d", "lengths": "b", "offsets": "b"},
    integers={"lengths": "1 <= lengths <= t, sum t"},
    derive={"offsets": lambda lengths: lengths.cumsum(0) - lengths},
    dtypes=["bfloat16", "float16"],
    output_dtypes={"y": "float32"},
    backends=["cuda"],
)
def flash_maxsim(q, docs, offsets, lengths):
    """Late interaction: for each query token the best token of a document, added up."""
    from vllm.v1.pool.flash_maxsim import flash_maxsim_rerank_direct

    return flash_maxsim_rerank_direct(q, docs, offsets, lengths, int(lengths.max()))


# -- kernels that do not depend on the batch ---------------------------------------------------------------


def normed(x):
    """x over the root of its mean square."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)


@theirs(like=lambda x, weight: normed(x) * weight, shapes={"x": "n d", "weight": "d"})
def rms_norm(x, weight):
    """RMS norm, batch invariant."""
    from vllm.model_executor.determinism.batch_invariant import rms_norm_batch_invariant

    return rms_norm_batch_invariant(x, weight, EPS)


@theirs(like=lambda x: x.log_softmax(-1), shapes={"x": "n d"})
def log_softmax(x):
    """Log softmax, batch invariant."""
    from vllm.model_executor.determinism.batch_invariant import log_softmax

    return log_softmax(x, -1)


@theirs(like=lambda x: x.mean(-1), shapes={"x": "n d"})
def mean_dim(x):
    """Mean, batch invariant. It adds up in the dtype of the data."""
    from vllm.model_executor.determinism.batch_invariant import mean_dim

    return mean_dim(x, -1)


@theirs(like=torch.matmul, shapes={"a": "m k", "b": "k n"}, accumulate="tf32", backends=["cuda"])
def matmul_persistent(a, b):
    """A product, batch invariant."""
    from vllm.model_executor.determinism.batch_invariant import matmul_persistent

    return matmul_persistent(a, b)


# -- sampling ----------------------------------------------------------------------------------------------

ROWS = {"logits": "n v", "which": "n"}
OF_ROWS = {"which": "0 <= which < r"}


@theirs(
    like=lambda logits, ids: logits.log_softmax(-1).gather(1, ids),
    shapes={"logits": "n v", "ids": "n k"},
    integers={"ids": "0 <= ids < v"},
    output_dtypes={"y": "float32"},
    layouts="contiguous",
)
def token_logprobs(logits, ids):
    """Log probabilities of some tokens."""
    from vllm.v1.worker.gpu.sample.logprob import compute_token_logprobs

    return compute_token_logprobs(logits, ids)


@theirs(
    like=lambda logits, which, p: torch.where(
        logits < logits.amax(-1, keepdim=True) + p[which].log()[:, None], -INF, logits
    ),
    shapes={**ROWS, "p": "r"},
    integers=OF_ROWS,
    domain={"p": "0 <= p <= 1"},
    dtypes=["float32"],
    operand_dtypes={"which": "int32"},
    writes={"logits": "logits_"},
    layouts="contiguous",
)
def min_p(logits, which, p):
    """Logits too far below the largest one become -inf, in place."""
    from vllm.v1.worker.gpu.sample.min_p import apply_min_p

    apply_min_p(logits, which, p)


def penalised(logits, which, seen, counts, repetition, frequency, presence):
    """Logits of tokens that were seen, divided and lowered."""
    seen, counts, repetition, frequency, presence = (
        each[which] for each in (seen, counts, repetition[:, None], frequency[:, None], presence[:, None])
    )
    logits = logits * torch.where((seen + counts) > 0, torch.where(logits > 0, 1 / repetition, repetition), 1.0)
    return logits - frequency * counts - presence * (counts > 0)


def packed(seen):
    """32 flags in an integer, the first one in its lowest bit."""
    bits = (seen.unflatten(-1, (-1, 32)) * 2 ** torch.arange(32, device=seen.device)).sum(-1)
    return bits - (bits >= 2**31) * 2**32


@theirs(
    like=penalised,
    shapes={
        "logits": "n 32*w",
        "which": "n",
        "seen": "r 32*w",
        "counts": "r 32*w",
        "bits": "r w",
        **dict.fromkeys(("repetition", "frequency", "presence"), "r"),
    },
    integers={**OF_ROWS, "seen": "0 <= seen <= 1", "counts": "0 <= counts <= 3"},
    derive={"bits": packed},
    domain={
        "repetition": "0.5 <= repetition <= 2",
        "frequency": "-2 <= frequency <= 2",
        "presence": "-2 <= presence <= 2",
    },
    dtypes=["float32"],
    operand_dtypes=dict.fromkeys(("which", "counts", "bits"), "int32"),
    writes={"logits": "logits_"},
    layouts="contiguous",
)
def penalties(logits, which, counts, bits, repetition, frequency, presence):
    """Penalties of tokens in the prompt (packed bits) and in the output (counts), in place."""
    from vllm.v1.worker.gpu.sample.penalties import apply_penalties

    zeros = torch.zeros_like(which)
    apply_penalties(logits, which, zeros, zeros, repetition, frequency, presence, bits, counts)


@theirs(
    like=lambda logits, k: torch.where(logits.argsort(-1, descending=True).argsort(-1) < k[:, None], logits, -INF),
    shapes={"logits": "n v", "k": "n"},
    integers={"k": "1 <= k <= v"},
    operand_dtypes={"k": "int32"},
    dtypes=["float32"],
    layouts="contiguous",
)
def top_k_mask(logits, k):
    """All but the k largest logits become -inf; among equal ones any may stay. Not so at the least one."""
    from vllm.v1.sample.ops.topk_topp_triton import apply_top_k_top_p_triton

    return apply_top_k_top_p_triton(logits.clone(), k, None)


# -- state spaces, mixtures --------------------------------------------------------------------------------


def state_step(state, x, dt, a, b, c, d, bias):
    """One step of a selective state space: the new state, and what is read from it."""
    dt = functional.softplus(dt + bias)
    state = state * (dt[..., None] * a).exp() + (dt * x)[..., None] * b[:, :, None]
    return state, (state * c[:, :, None]).sum(-1) + d * x


STATE = {"state": "n h d s", "x": "n h d", "dt": "n h d", "a": "h d s", "b": "n 1 s", "c": "n 1 s", "d": "h d"}


@theirs(
    like=state_step,
    shapes={**STATE, "bias": "h d"},
    domain={"a": "-16 <= a <= 0"},
    operand_dtypes=dict.fromkeys(("a", "d", "bias"), "float32"),
    writes={"state": "state_"},
    into=["y"],
    layouts="contiguous",
)
def selective_state_update(state, x, dt, a, b, c, d, bias, y):
    """One step of Mamba, in place. Softplus is log(1 + exp)."""
    from vllm.model_executor.layers.mamba.ops.mamba_ssm import selective_state_update

    selective_state_update(state, x, dt, a, b, c, d, bias, dt_softplus=True, out=y)


def conv_step(state, x, weight, bias, slots):
    """The next element of a causal convolution over four, and the states that keep the last three."""
    window = torch.cat((state[slots], x[..., None]), -1)
    return state.index_copy(0, slots, window[..., 1:]), functional.silu((window * weight).sum(-1) + bias)


@theirs(
    like=conv_step,
    shapes={"state": "s d 3", "x": "n d", "weight": "d 4", "bias": "d", "slots": "n"},
    integers={"slots": "distinct s"},
    where="n <= s",
    dtypes=["float32", "bfloat16"],
    operand_dtypes={"slots": "int32"},
    writes={"state": "state_"},
    into=["y"],
    layouts="contiguous",
)
def causal_conv1d_update(state, x, weight, bias, slots, y):
    """One step of a causal convolution with rolling states."""
    from vllm.model_executor.layers.mamba.ops.causal_conv1d import causal_conv1d_update

    causal_conv1d_update(x, state, weight, bias, "silu", slots, null_block_id=-1, out=y)


@theirs(
    like=lambda x, pre: (x * pre[..., None]).sum(1),
    shapes={"x": "n 4 d", "pre": "n 4"},
    dtypes=["bfloat16"],
    operand_dtypes={"pre": "float32"},
)
def hc_collapse(x, pre):
    """Residual streams of a hyper-connection, added up."""
    from vllm.model_executor.kernels.mhc.triton import hc_collapse_triton

    return hc_collapse_triton(x, pre)


@theirs(like=normed, shapes={"x": "n d"}, layouts="contiguous")
def rmsnorm_nw(x):
    """RMS norm without a weight."""
    from vllm.model_executor.kernels.mhc.triton import rmsnorm_nw

    return rmsnorm_nw(x, EPS)


@theirs(
    like=lambda x, weights: (x * weights[..., None]).sum(1),
    shapes={"x": "n k d", "weights": "n k"},
    layouts="contiguous",
    backends=["cuda"],
)
def moe_fused_mul_sum(x, weights):
    """The weighted sum of what k experts return."""
    from vllm.model_executor.layers.fused_moe.moe_fused_mul_sum import moe_fused_mul_sum

    return moe_fused_mul_sum(x, weights)


def sparse_gelu(x, std):
    """GELU of what exceeds the mean by some standard deviations, times the other half."""
    gate, up = x.chunk(2, -1)
    cutoff = gate.mean(-1, keepdim=True) + gate.std(-1, keepdim=True, unbiased=False) * std
    return functional.gelu(functional.relu(gate - cutoff), approximate="tanh") * up


@theirs(
    like=functools.partial(sparse_gelu, std=1.6448536269514722),
    shapes={"x": "n 2*d"},
    layouts="contiguous",
    backends=["cuda"],
)
def gelu_and_mul_sparse(x):
    """Sparse GELU and a product."""
    from vllm.kernels.triton.activation import _gelu_and_mul_sparse_triton_op

    return _gelu_and_mul_sparse_triton_op(x, 1.6448536269514722)


@theirs(
    like=lambda x, a, which: torch.where(which[:, None] < 0, 0.0, (a[which.clamp(min=0)] @ x[..., None])[..., 0] / 2)[
        None
    ],
    shapes={"x": "t k", "a": "l r k", "which": "t"},
    integers={"which": "-1 <= which < l"},
    where="t <= 256 and l <= 8 and r <= 64",
    dtypes=["bfloat16", "float16"],
    output_dtypes={"y": "float32"},
    into=["y"],
    layouts="contiguous",
)
def lora_shrink(x, a, which, y):
    """The first half of a low-rank adapter, each token with its own one or (-1) none."""
    from vllm.lora.ops.triton_ops.lora_kernel_metadata import LoRAKernelMeta
    from vllm.lora.ops.triton_ops.lora_shrink_op import _lora_shrink

    meta = LoRAKernelMeta.make(len(a), len(x), x.device)
    meta.prepare_tensors(which.int())
    _lora_shrink(x, [a], y.zero_(), *meta.meta_args(len(x), False), 0.5)


# -- quantised products and quantisers ---------------------------------------------------------------------


AWQ = {
    "operands": {"w": verify.quantised("uint4", block=(32, 1), scale="float16", zero_point="uint4", packed="awq")},
    "layouts": "contiguous",
    "dtypes": ["float16"],
}


@theirs(like=lambda w: w, shapes={"w": "k n"}, **AWQ)
def awq_dequantize(w_codes, w_scales, w_zeros):
    """Weights of AWQ: eight 4-bit numbers in an int32."""
    from vllm.model_executor.layers.quantization.awq_triton import awq_dequantize_triton

    return awq_dequantize_triton(w_codes, w_scales, w_zeros)


@theirs(like=torch.matmul, shapes={"x": "m k", "w": "k n"}, largest=8.0, **AWQ)
def awq_gemm(x, w_codes, w_scales, w_zeros):
    """A product with weights of AWQ. It adds up in float16."""
    from vllm.model_executor.layers.quantization.awq_triton import awq_gemm_triton

    return awq_gemm_triton(x, w_codes, w_scales, w_zeros, 1)


FP8_GROUPS = verify.quantised("e4m3", block=(1, 128), scale="float32", least=1e-10, nan="any")
FP8_SQUARES = verify.quantised("e4m3", block=(128, 128), scale="float32")
INT8_ROWS = verify.quantised("int8", block=(1, 0), scale="float32", least=1e-10, ties="away", nan="any")


@theirs(
    like=lambda a, b: a @ b.mT,
    shapes={"a": "m k", "b": "n k"},
    operands={"a": FP8_GROUPS, "b": FP8_SQUARES},
    dtypes=["bfloat16"],
    accumulate="14 bits, promoted every 128",
)
def block_scaled_mm(a_codes, a_scales, b_codes, b_scales):
    """A product of FP8 with scales of blocks."""
    from vllm.model_executor.layers.quantization.utils.fp8_utils import w8a8_triton_block_scaled_mm

    return w8a8_triton_block_scaled_mm(a_codes, b_codes, a_scales, b_scales, [128, 128], torch.bfloat16)


@theirs(
    like=torch.matmul,
    shapes={"a": "m k", "b": "k n"},
    operands={"a": INT8_ROWS, "b": verify.quantised("int8", block=(0, 1), scale="float32")},
    dtypes=["bfloat16"],
    layouts="contiguous",
)
def int8_scaled_mm(a_codes, a_scales, b_codes, b_scales):
    """A product of INT8 with scales of rows and columns."""
    from vllm.model_executor.layers.quantization.compressed_tensors.triton_scaled_mm import triton_scaled_mm

    return triton_scaled_mm(a_codes, b_codes, a_scales, b_scales.reshape(-1, 1), torch.bfloat16)


@theirs(quantise=FP8_GROUPS, dtypes=["bfloat16", "float32"], layouts="contiguous")
def token_group_fp8(x):
    """FP8 with a scale for 128 numbers."""
    from vllm.model_executor.layers.quantization.utils.fp8_utils import per_token_group_quant_fp8

    return per_token_group_quant_fp8(x, 128)


@theirs(quantise=INT8_ROWS, dtypes=["bfloat16", "float32"], layouts="contiguous")
def token_int8(x):
    """INT8 with a scale for each row."""
    from vllm.model_executor.layers.quantization.utils.int8_utils import per_token_quant_int8

    return per_token_quant_int8(x)


@theirs(
    quantise=verify.quantised("e4m3", block=(1, 32), scale="e8m0", rule="rceil", nan="any"),
    dtypes=["bfloat16", "float32"],
    layouts="contiguous",
)
def mxfp8(x):
    """MXFP8, the scale by ceil(log2(amax / 448))."""
    from vllm.model_executor.layers.quantization.utils.mxfp8_utils import _mxfp8_e4m3_quantize_triton

    return _mxfp8_e4m3_quantize_triton(x)
