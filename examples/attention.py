"""Causal attention by every kernel that PyTorch users meet, and by one that is written as Triton's tutorial teaches.

    verify run examples/attention.py --dtype bfloat16

docs/attention.md has errors on an H200. A kernel that a machine does not have raises an error on every case, which the
run reports. `..._lse` is the logarithm of the sum of exponentials that a kernel keeps for its backward pass.
"""

from __future__ import annotations

import functools
import math

import torch
import triton
import triton.language as tl
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import verify

SHAPES = dict.fromkeys("qkv", "b h s d")
NARROW = ["bfloat16", "float16"]


def causal(q, k, v):
    """Attention to the token itself and to those before it."""
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def causal_lse(q, k):
    """The logarithm of the sum of the exponentials of the scores."""
    hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return scores.masked_fill(hidden, -torch.inf).logsumexp(-1)


attention = functools.partial(verify.kernel, like=causal, shapes=SHAPES, where="d % 16 == 0 and 16 <= d <= 128")
statistic = functools.partial(
    verify.kernel,
    like=causal_lse,
    shapes=dict.fromkeys("qk", "b h s d"),
    where="d % 16 == 0 and 16 <= d <= 128",
    outputs=["lse"],
    output_dtypes={"lse": "float32"},
    gradients=False,
)


# -- PyTorch's own ----------------------------------------------------------------------------------------


@attention()
def sdpa_math(q, k, v):
    """PyTorch's definition, operator by operator."""
    with sdpa_kernel(SDPBackend.MATH):
        return causal(q, k, v)


@attention(dtypes=NARROW)
def sdpa_flash(q, k, v):
    """FlashAttention in PyTorch."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return causal(q, k, v)


@attention()
def sdpa_efficient(q, k, v):
    """The memory-efficient attention in PyTorch."""
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        return causal(q, k, v)


@attention(dtypes=NARROW)
def sdpa_cudnn(q, k, v):
    """cuDNN's attention in PyTorch."""
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return causal(q, k, v)


@statistic(dtypes=NARROW)
def sdpa_flash_lse(q, k):
    """The statistic of FlashAttention in PyTorch."""
    q, k = q.contiguous(), k.contiguous()
    if q.is_cpu:
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, k, 0.0, True)[1].float()
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, k, 0.0, True)[1]


@statistic()
def sdpa_efficient_lse(q, k):
    """The statistic of the memory-efficient attention, which has whole blocks of 32."""
    q, k = q.contiguous(), k.contiguous()
    kept = torch.ops.aten._scaled_dot_product_efficient_attention(q, k, k, None, True, 0.0, True)[1]
    return kept[..., : q.shape[-2]].contiguous()


@statistic(dtypes=NARROW)
def sdpa_cudnn_lse(q, k):
    """The statistic of cuDNN's attention."""
    q, k = q.contiguous(), k.contiguous()
    kept = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, k, None, True, 0.0, True)[1]
    return kept.reshape(q.shape[:-1])


# -- compiled ---------------------------------------------------------------------------------------------


def plain(q, k, v):
    """Attention as a user writes it."""
    hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v


@functools.cache
def _compiled(function):
    return torch.compile(function, dynamic=True)


@attention()
def compiled(q, k, v):
    """The same with torch.compile."""
    return _compiled(plain)(q, k, v)


@statistic()
def compiled_lse(q, k):
    """The definition with torch.compile."""
    return _compiled(causal_lse)(q.float(), k.float())


@functools.cache
def _mask(size, device):
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(lambda b, h, query, key: query >= key, None, None, size, size, device=device)


@functools.cache
def _flex():
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


@attention()
def flex(q, k, v):
    """FlexAttention with a causal mask of blocks."""
    return _flex()(q, k, v, block_mask=_mask(q.shape[-2], str(q.device)))


# -- as Triton's tutorial teaches ---------------------------------------------------------------------------


@triton.jit
def _forward_kernel(q_ptr, k_ptr, v_ptr, y_ptr, lse_ptr, S, D, scale, BLOCK: tl.constexpr, FEATURES: tl.constexpr):
    start, base = tl.program_id(0) * BLOCK, tl.program_id(1).to(tl.int64) * S
    row, feature = start + tl.arange(0, BLOCK), tl.arange(0, FEATURES)[None, :]
    mask = (row < S)[:, None] & (feature < D)
    place = (base + row)[:, None] * D + feature
    q = tl.load(q_ptr + place, mask=mask, other=0.0)
    top = tl.full([BLOCK], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    y = tl.zeros([BLOCK, FEATURES], tl.float32)
    for first in range(0, start + BLOCK, BLOCK):
        key = first + tl.arange(0, BLOCK)
        seen = (key < S)[:, None] & (feature < D)
        k = tl.load(k_ptr + (base + key)[:, None] * D + feature, mask=seen, other=0.0)
        v = tl.load(v_ptr + (base + key)[:, None] * D + feature, mask=seen, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where((key[None, :] <= row[:, None]) & (key < S)[None, :], scores, -float("inf"))
        new = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp(scores - new[:, None])
        kept = tl.exp(top - new)
        total = total * kept + tl.sum(weights, 1)
        y = y * kept[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        top = new
    y = y / total[:, None]
    tl.store(y_ptr + place, y.to(y_ptr.dtype.element_ty), mask=mask)
    tl.store(lse_ptr + base + row, top + tl.log(total), mask=row < S)


@triton.jit
def _weights(q, k, lse, row, key, S, scale):
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    seen = (key[None, :] <= row[:, None]) & (key < S)[None, :] & (row < S)[:, None]
    return tl.where(seen, tl.exp(scores - lse[:, None]), 0.0)


@triton.jit
def _query_gradient_kernel(
    q_ptr, k_ptr, v_ptr, dy_ptr, lse_ptr, delta_ptr, dq_ptr, S, D, scale, BLOCK: tl.constexpr, FEATURES: tl.constexpr
):
    start, base = tl.program_id(0) * BLOCK, tl.program_id(1).to(tl.int64) * S
    row, feature = start + tl.arange(0, BLOCK), tl.arange(0, FEATURES)[None, :]
    mask = (row < S)[:, None] & (feature < D)
    place = (base + row)[:, None] * D + feature
    q, dy = (tl.load(q_ptr + place, mask=mask, other=0.0), tl.load(dy_ptr + place, mask=mask, other=0.0))
    lse = tl.load(lse_ptr + base + row, mask=row < S, other=0.0)
    delta = tl.load(delta_ptr + base + row, mask=row < S, other=0.0)
    dq = tl.zeros([BLOCK, FEATURES], tl.float32)
    for first in range(0, start + BLOCK, BLOCK):
        key = first + tl.arange(0, BLOCK)
        seen = (key < S)[:, None] & (feature < D)
        k = tl.load(k_ptr + (base + key)[:, None] * D + feature, mask=seen, other=0.0)
        v = tl.load(v_ptr + (base + key)[:, None] * D + feature, mask=seen, other=0.0)
        weights = _weights(q, k, lse, row, key, S, scale)
        slope = weights * (tl.dot(dy, tl.trans(v), input_precision="ieee") - delta[:, None])
        dq += tl.dot(slope.to(k.dtype), k, input_precision="ieee")
    tl.store(dq_ptr + place, (dq * scale).to(dq_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _key_gradient_kernel(
    q_ptr, k_ptr, v_ptr, dy_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, S, D, scale,
    BLOCK: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    start, base = tl.program_id(0) * BLOCK, tl.program_id(1).to(tl.int64) * S
    key, feature = start + tl.arange(0, BLOCK), tl.arange(0, FEATURES)[None, :]
    mask = (key < S)[:, None] & (feature < D)
    place = (base + key)[:, None] * D + feature
    k, v = (tl.load(k_ptr + place, mask=mask, other=0.0), tl.load(v_ptr + place, mask=mask, other=0.0))
    dk = tl.zeros([BLOCK, FEATURES], tl.float32)
    dv = tl.zeros([BLOCK, FEATURES], tl.float32)
    for first in range(start, S, BLOCK):
        row = first + tl.arange(0, BLOCK)
        inside = (row < S)[:, None] & (feature < D)
        q = tl.load(q_ptr + (base + row)[:, None] * D + feature, mask=inside, other=0.0)
        dy = tl.load(dy_ptr + (base + row)[:, None] * D + feature, mask=inside, other=0.0)
        lse = tl.load(lse_ptr + base + row, mask=row < S, other=0.0)
        delta = tl.load(delta_ptr + base + row, mask=row < S, other=0.0)
        weights = _weights(q, k, lse, row, key, S, scale)
        dv += tl.dot(tl.trans(weights.to(dy.dtype)), dy, input_precision="ieee")
        slope = weights * (tl.dot(dy, tl.trans(v), input_precision="ieee") - delta[:, None])
        dk += tl.dot(tl.trans(slope.to(q.dtype)), q, input_precision="ieee")
    tl.store(dk_ptr + place, (dk * scale).to(dk_ptr.dtype.element_ty), mask=mask)
    tl.store(dv_ptr + place, dv.to(dv_ptr.dtype.element_ty), mask=mask)


def _launch(q):
    """The grid, and the sizes that every kernel takes."""
    b, h, s, d = q.shape
    block = 32 if q.dtype == torch.float32 else 64
    return (triton.cdiv(s, block), b * h), (s, d, 1 / math.sqrt(d)), {
        "BLOCK": block,
        "FEATURES": triton.next_power_of_2(d),
    }  # fmt: skip


def _forward(q, k, v):
    y = torch.empty_like(q, memory_format=torch.contiguous_format)
    lse = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
    grid, sizes, options = _launch(q)
    _forward_kernel[grid](q, k, v, y, lse, *sizes, **options)
    return y, lse


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        q, k, v = (each.contiguous() for each in (q, k, v))
        y, lse = _forward(q, k, v)
        ctx.save_for_backward(q, k, v, y, lse)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy):
        q, k, v, y, lse = ctx.saved_tensors
        dy = dy.contiguous()
        delta = (dy.float() * y.float()).sum(-1)
        dq, dk, dv = (torch.empty_like(each) for each in (q, k, v))
        grid, sizes, options = _launch(q)
        _query_gradient_kernel[grid](q, k, v, dy, lse, delta, dq, *sizes, **options)
        _key_gradient_kernel[grid](q, k, v, dy, lse, delta, dk, dv, *sizes, **options)
        return dq, dk, dv


@attention()
def triton_tutorial(q, k, v):
    """A running maximum over blocks of keys; the backward pass makes the weights again."""
    return _Attention.apply(q, k, v)


@statistic()
def triton_tutorial_lse(q, k):
    """The statistic of its forward pass."""
    return _forward(q.contiguous(), k.contiguous(), k.contiguous())[1]
