"""Attention as Triton kernels that copy defects of shipped ones: each is right for random numbers at most sizes.

    y = softmax(q k^T / sqrt(d)) v,    lse = log(sum(exp(scores)))

A program has one query and visits its keys in blocks, with a running maximum. Operands are bfloat16, sums float32.
Twins differ in one line. `fp8` has the weights in float8_e4m3fn, as kernels for 8 bits do, scaled by 2^8. A weight is
the sum of two such numbers, without which no twin would keep the limit of bfloat16. `exp2` replaces the exponential
by a polynomial of degree 3.
"""

from __future__ import annotations

import math
from functools import cache, partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

import verify
from mutants.mutant import Family, differentiable
from verify.declare.declaration import Kernel
from verify.ops.graph.like import Definition
from verify.ops.op import Op

BLOCK = 32
BACKWARD_BLOCK = 128
WHOLE = 128  # keys of a block of the 8-bit kernel


@triton.jit
def _e4m3(x):
    """Positive float32 numbers rounded to float8_e4m3fn, half to even; what is larger becomes 448."""
    bits = x.to(tl.int32, bitcast=True)
    bits = (bits + 0x7FFFF + ((bits >> 20) & 1)) & ~0xFFFFF
    normal = bits.to(tl.float32, bitcast=True)
    tiny = (x + 24576.0) - 24576.0  # steps of 2^-9: the subnormal numbers
    return tl.minimum(tl.where(x < 0.015625, tiny, normal), 448.0)


@triton.jit
def _power(x, EMULATED: tl.constexpr):
    """2^x for x <= 0. Emulated: a polynomial on [0, 1), off by up to 1e-4."""
    if EMULATED:
        whole = tl.floor(tl.maximum(x, -126.0))
        part = tl.maximum(x, -126.0) - whole
        made = 0.99992513 + part * (0.69583399 + part * (0.22606707 + part * 0.07802403))
        made = tl.where(x < -126.0, 0.0, made * tl.exp2(whole))
        return tl.where(x != x, x, made)  # the maximum loses NaN
    return tl.exp2(x)


@triton.jit
def _forward_kernel(
    q_ptr,  # (H, T, D), contiguous
    k_ptr,  # (H, S, D), any strides
    v_ptr,  # (H, S, D), any strides
    y_ptr,  # output in float32, like q
    lse_ptr,  # logarithm of the sum of exponentials, float32 (H, T)
    T,
    S,
    D,
    k_head,
    k_token,
    k_feature,
    v_head,
    v_token,
    v_feature,
    scale,
    BLOCK: tl.constexpr,
    FEATURES: tl.constexpr,
    EMULATED: tl.constexpr,
    DOUBLED: tl.constexpr,
    BUG: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64)
    head = at // T
    feature = tl.arange(0, FEATURES)
    fits = feature < D
    q = tl.load(q_ptr + at * D + feature, mask=fits, other=0.0).to(tl.float32)
    top = tl.max(tl.full([BLOCK], -float("inf"), tl.float32), 0)
    total = tl.sum(tl.zeros([BLOCK], tl.float32), 0)
    y = tl.zeros([FEATURES], tl.float32)
    for start in range(0, S, BLOCK):
        key = start + tl.arange(0, BLOCK)
        seen = key < S + DOUBLED
        key = tl.minimum(key, S - 1)[:, None]
        mask = seen[:, None] & fits[None, :]
        k = tl.load(k_ptr + head * k_head + key * k_token + feature * k_feature, mask=mask, other=0.0).to(tl.float32)
        v = tl.load(v_ptr + head * v_head + key * v_token + feature * v_feature, mask=mask, other=0.0).to(tl.float32)
        scores = tl.sum(k * q[None, :], 1) * (scale * 1.4426950408889634)
        if BUG == "an unmasked 0 is the maximum":
            highest = tl.max(tl.where(seen, scores, 0.0), 0)
        else:
            highest = tl.max(tl.where(seen, scores, -float("inf")), 0)
        new = tl.maximum(top, highest)
        weights = tl.where(seen, _power(scores - new, EMULATED), 0.0)
        kept = tl.exp2(top - new)
        total = total * kept + tl.sum(weights, 0)
        y = y * kept + tl.sum(weights[:, None] * v, 0)
        top = new
    tl.store(y_ptr + at * D + feature, y / total, mask=fits)
    tl.store(lse_ptr + at, (top + tl.log2(total)) * 0.6931471805599453)


@triton.jit
def _eight_bit_kernel(
    q_ptr,  # as above, all contiguous
    k_ptr,
    v_ptr,
    y_ptr,
    T,
    S,
    D,
    scale,
    first,  # the block that is visited first; the others follow in descending order
    THRESHOLD: tl.constexpr,  # the maximum is kept where it rises by less, in powers of two
    BLOCK: tl.constexpr,
    FEATURES: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64)
    head = at // T
    feature = tl.arange(0, FEATURES)
    fits = feature < D
    q = tl.load(q_ptr + at * D + feature, mask=fits, other=0.0).to(tl.float32)
    top = tl.max(tl.full([BLOCK], -float("inf"), tl.float32), 0)
    total = tl.sum(tl.zeros([BLOCK], tl.float32), 0)
    y = tl.zeros([FEATURES], tl.float32)
    for back in range(first + 1):
        key = (first - back) * BLOCK + tl.arange(0, BLOCK)
        seen = key < S
        offset = head * S * D + key[:, None] * D + feature[None, :]
        mask = seen[:, None] & fits[None, :]
        k = tl.load(k_ptr + offset, mask=mask, other=0.0).to(tl.float32)
        v = tl.load(v_ptr + offset, mask=mask, other=0.0).to(tl.float32)
        scores = tl.where(seen, tl.sum(k * q[None, :], 1) * (scale * 1.4426950408889634), -float("inf"))
        new = tl.maximum(top, tl.max(scores, 0))
        new = tl.where(new == -float("inf"), 0.0, new)  # a block without keys
        new = tl.where(new - top < THRESHOLD, top, new)
        weights = tl.exp2(scores - new + 8.0)
        kept = tl.exp2(top - new)
        total = total * kept + tl.sum(weights, 0)
        rounded = _e4m3(weights)
        rest = weights - rounded
        rounded += tl.where(rest < 0, -_e4m3(-rest), _e4m3(rest))
        y = y * kept + tl.sum(rounded[:, None] * v, 0)
        top = new
    tl.store(y_ptr + at * D + feature, (y / total).to(y_ptr.dtype.element_ty), mask=fits)


@triton.jit
def _query_gradient_kernel(
    q_ptr,  # all contiguous
    k_ptr,
    v_ptr,
    y_ptr,  # in float32
    dy_ptr,
    lse_ptr,
    dq_ptr,
    T,
    S,
    D,
    scale,
    BLOCK: tl.constexpr,
    FEATURES: tl.constexpr,
    BUG: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64)
    head = at // T
    feature = tl.arange(0, FEATURES)
    fits = feature < D
    q = tl.load(q_ptr + at * D + feature, mask=fits, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + at * D + feature, mask=fits, other=0.0).to(tl.float32)
    mean = tl.sum(dy * tl.load(y_ptr + at * D + feature, mask=fits, other=0.0), 0)
    lse = tl.load(lse_ptr + at)
    dq = tl.zeros([FEATURES], tl.float32)
    for start in range(0, S, BLOCK):
        key = start + tl.arange(0, BLOCK)
        seen = key < S
        mask = seen[:, None] & fits[None, :]
        offset = head * S * D + key[:, None] * D + feature[None, :]
        k = tl.load(k_ptr + offset, mask=mask, other=0.0).to(tl.float32)
        v = tl.load(v_ptr + offset, mask=mask, other=0.0).to(tl.float32)
        weights = tl.exp(tl.sum(k * q[None, :], 1) * scale - lse)
        if BUG == "a half block is not masked":  # whether keys are masked is decided for blocks of 64
            weights = tl.where(seen | (S % 64 == 0), weights, 0.0)
        else:
            weights = tl.where(seen, weights, 0.0)
        dscores = weights * (tl.sum(v * dy[None, :], 1) - mean)
        dq += tl.sum(dscores[:, None] * k, 0)
    tl.store(dq_ptr + at * D + feature, (dq * scale).to(dq_ptr.dtype.element_ty), mask=fits)


@triton.jit
def _key_gradient_kernel(
    q_ptr,  # all contiguous
    k_ptr,
    v_ptr,
    y_ptr,
    dy_ptr,
    lse_ptr,
    dk_ptr,
    dv_ptr,
    T,
    S,
    D,
    scale,
    FEATURES: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64)
    head = at // S
    feature = tl.arange(0, FEATURES)
    fits = feature < D
    k = tl.load(k_ptr + at * D + feature, mask=fits, other=0.0).to(tl.float32)
    v = tl.load(v_ptr + at * D + feature, mask=fits, other=0.0).to(tl.float32)
    dk = tl.zeros([FEATURES], tl.float32)
    dv = tl.zeros([FEATURES], tl.float32)
    for start in range(0, T, 16):
        row = start + tl.arange(0, 16)
        mask = (row < T)[:, None] & fits[None, :]
        offset = (head * T + row)[:, None] * D + feature[None, :]
        q = tl.load(q_ptr + offset, mask=mask, other=0.0).to(tl.float32)
        y = tl.load(y_ptr + offset, mask=mask, other=0.0)
        dy = tl.load(dy_ptr + offset, mask=mask, other=0.0).to(tl.float32)
        lse = tl.load(lse_ptr + head * T + row, mask=row < T, other=float("inf"))
        weights = tl.exp(tl.sum(q * k[None, :], 1) * scale - lse)
        dscores = weights * (tl.sum(dy * v[None, :], 1) - tl.sum(dy * y, 1))
        dk += tl.sum(dscores[:, None] * q, 0)
        dv += tl.sum(weights[:, None] * dy, 0)
    tl.store(dk_ptr + at * D + feature, (dk * scale).to(dk_ptr.dtype.element_ty), mask=fits)
    tl.store(dv_ptr + at * D + feature, dv.to(dv_ptr.dtype.element_ty), mask=fits)


def _forward(q: Tensor, k: Tensor, v: Tensor, *, bug: str | None, form: str) -> Any:
    heads, queries, width = q.shape
    keys = k.shape[1]
    q = q.contiguous()
    y = torch.empty_like(q, dtype=torch.float32)
    lse = torch.empty(heads, queries, dtype=torch.float32, device=q.device)
    emulated = form == "exp2" and (queries > 1 or bug is None)
    shared = k.stride(0) == v.stride(0) == 0
    doubled = bug == "the last key counts twice where heads share memory" and shared and keys % 32 == 1
    with torch.cuda.device_of(q):
        _forward_kernel[(heads * queries,)](
            *(q, k, v, y, lse, queries, keys, width),
            *(*k.stride(), *v.stride(), 1 / math.sqrt(width)),
            BLOCK=BLOCK,
            FEATURES=triton.next_power_of_2(width),
            EMULATED=emulated,
            DOUBLED=int(doubled),
            BUG=bug or "",
        )
    return y.to(q.dtype), (q, k.contiguous(), v.contiguous(), y, lse)


def _backward(saved: tuple[Tensor, ...], dy: Tensor, *, bug: str | None) -> tuple[Tensor, ...]:
    q, k, v, y, lse = saved
    heads, queries, width = q.shape
    dq, dk, dv = map(torch.empty_like, (q, k, v))
    given = (q, k, v, y, dy.contiguous(), lse)
    sizes = (queries, k.shape[1], width, 1 / math.sqrt(width))
    features = triton.next_power_of_2(width)
    with torch.cuda.device_of(q):
        _query_gradient_kernel[(heads * queries,)](
            *given, dq, *sizes, BLOCK=BACKWARD_BLOCK, FEATURES=features, BUG=bug or ""
        )
        _key_gradient_kernel[(heads * k.shape[1],)](*given, dk, dv, *sizes, FEATURES=features)
    return dq, dk, dv


def _eight_bits(q: Tensor, k: Tensor, v: Tensor, *, bug: str | None) -> Tensor:
    heads, queries, width = q.shape
    keys = k.shape[1]
    q, k, v = (each.contiguous() for each in (q, k, v))
    y = torch.empty_like(q)
    empty = bug == "weights beyond 448 at whole blocks"  # the first block has no keys then, and 0 for a maximum
    with torch.cuda.device_of(q):
        _eight_bit_kernel[(heads * queries,)](
            *(q, k, v, y, queries, keys, width, 1 / math.sqrt(width)),
            keys // WHOLE if empty else (keys - 1) // WHOLE,
            THRESHOLD={"weights beyond 448 at whole blocks": 4.0, "the maximum lags by 8": 8.0}.get(bug or "", 0.0),
            BLOCK=WHOLE,
            FEATURES=triton.next_power_of_2(width),
        )
    return y


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention without a mask."""
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1) @ v


@cache
def _op() -> Op:
    shapes = {"q": "h t d", "k": "h s d", "v": "h s d"}
    return Definition(attention, ("q", "k", "v"), shapes=shapes, where="1 <= d <= 128").op()


def make(*, bug: str | None, name: str, form: str) -> Kernel:
    """A kernel with at most one bug. Only the plain form has gradients."""
    if form == "plain":
        made = differentiable(partial(_forward, bug=bug, form=form), partial(_backward, bug=bug))
    elif form == "exp2":
        made = lambda q, k, v: _forward(q, k, v, bug=bug, form=form)[0]  # noqa: E731
    else:
        made = partial(_eight_bits, bug=bug)

    def function(q: Tensor, k: Tensor, v: Tensor) -> Any:
        for each, other in zip((q, k, v), (q, q, k), strict=True):
            if str(each.dtype) != "torch.bfloat16" or each.device != q.device or each.is_meta:
                raise TypeError(f"{name}: operands are bfloat16 on one device; received {each.dtype}, {each.device}")
            if each.shape[0] != q.shape[0] or each.shape[2] != q.shape[2] or (other is k and each.shape != k.shape):
                raise ValueError(f"{name}: shapes do not agree: {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}")
        return made(q, k, v)

    # scores up to 1,500: beyond them exp(score - lse) in float32 is off by more than bfloat16 rounds
    largest = {"q": 256.0, "k": 4.0, "v": 8.0}
    settings: dict[str, Any] = {"gradients": form == "plain", "max_ulp": 2.0, "largest": largest}
    return verify.kernel(op=_op(), dtypes=("bfloat16",), name=name, refuses=False, **settings)(function)


FAMILY = Family("attention", make)
_add = FAMILY.add
_SHIPPED = "shipped attention"
_add(
    "an unmasked 0 is the maximum",
    _SHIPPED,
    "forward",
    "a row of scores below -87 has only 0 in its sum; a shipped decoder lost 37 points of a benchmark",
    form="plain",
)
_add(
    "a half block is not masked",
    _SHIPPED,
    "backward",
    "64 mod 128 keys: exp(0 - lse) is infinite where lse is below -88.7",
    form="plain",
)
_add(
    "the last key counts twice where heads share memory",
    _SHIPPED,
    "forward",
    "k and v expanded with stride 0, and 1 mod 32 keys",
    killed_by=("layout independence",),
    form="plain",
)
_add(
    "weights beyond 448 at whole blocks",
    _SHIPPED,
    "forward",
    "a maximum of 0 is kept from a block without keys: 2^12 does not fit 8 bits",
    form="fp8",
)
_add(
    "the maximum lags by 8",
    _SHIPPED,
    "forward",
    "maxima that rise by less than 2^8 are not followed: weights of 2^16",
    form="fp8",
)
_add(
    "the exponential is emulated for many queries alone",
    _SHIPPED,
    "forward",
    "a query gives other bits alone than among others",
    killed_by=("decode equals prefill",),
    form="exp2",
)
MUTANTS = tuple(FAMILY.mutants)
