"""Kernels in Triton that are wrong at an edge, for a value, or in memory. See unseen.py."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from mutants.pairs import pair

INF = math.inf


def blocks(n: int, size: int) -> int:
    return max(triton.cdiv(n, size), 1)


# -- rows ----------------------------------------------------------------------------------------------------


@triton.jit
def _magnitude(x, y, n, stride, BLOCK: tl.constexpr, RIGHT: tl.constexpr):
    row = tl.program_id(0)
    best = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, n, BLOCK):
        at = first + tl.arange(0, BLOCK)
        v = tl.abs(tl.load(x + row * stride + at, at < n, 0.0))
        if RIGHT:
            best = tl.where((v > best) | (v != v), v, best)
        else:
            best = tl.where(v > best, v, best)
    if RIGHT:
        strange = tl.sum((best != best).to(tl.int32), 0) > 0
        top = tl.max(tl.where(best != best, 0.0, best), 0)
        tl.store(y + row, tl.where(strange, float("nan"), top))
    else:
        tl.store(y + row, tl.max(best, 0))


@pair("a NaN is no maximum", like=lambda x: x.abs().amax(-1), shapes={"x": "n d"}, where="d >= 1")
def magnitude(x, *, right):
    x, y = x.contiguous(), x.new_empty(len(x))
    if len(x):
        _magnitude[(len(x),)](x, y, x.shape[1], x.stride(0), BLOCK=128, RIGHT=right)
    return y


@triton.jit
def _lazy(x, y, n, BLOCK: tl.constexpr, RIGHT: tl.constexpr):
    row = tl.program_id(0)
    top = -float("inf")
    total = 0.0
    for first in range(0, n, BLOCK):
        at = first + tl.arange(0, BLOCK)
        v = tl.load(x + row * n + at, at < n, -float("inf"))
        new = tl.maximum(top, tl.max(v, 0))
        # small rises of the maximum do not rescale the sum
        rises = new - top > 4.0
        if RIGHT:
            kept = tl.where(rises, new, top)
        else:
            kept = new
        # a block that is masked as a whole adds exp(-inf), not exp(-inf - -inf)
        lowered = v - tl.where(kept == -float("inf"), 0.0, kept)
        total = tl.where(rises, total * tl.exp(top - new), total) + tl.sum(tl.exp(lowered), 0)
        top = kept
    for first in range(0, n, BLOCK):
        at = first + tl.arange(0, BLOCK)
        v = tl.load(x + row * n + at, at < n, -float("inf"))
        tl.store(y + row * n + at, tl.exp(v - top) / total, at < n)


@pair("a small rise of the maximum does not rescale the sum so far", op="softmax")
def lazy_softmax(x, *, right):
    rows = x.contiguous().reshape(-1, x.shape[-1]) if x.numel() else x
    y = torch.empty_like(rows, memory_format=torch.contiguous_format)
    if x.numel():
        _lazy[(len(rows),)](rows, y, rows.shape[1], BLOCK=128, RIGHT=right)
    return y.reshape(x.shape)


@triton.jit
def _running(x, y, n, BLOCK: tl.constexpr, RIGHT: tl.constexpr):
    row = tl.program_id(0)
    carry = 0.0
    for first in range(0, n, BLOCK):
        at = first + tl.arange(0, BLOCK)
        v = tl.load(x + row * n + at, at < n, 0.0)
        tl.store(y + row * n + at, tl.cumsum(v, 0) + carry, at < n)
        if RIGHT:
            carry += tl.sum(v, 0)
        else:
            carry = tl.sum(v, 0)


@pair("the carry is the sum of the last block alone", like=lambda x: x.cumsum(-1), shapes={"x": "n d"})
def running_sum(x, *, right):
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        _running[(len(x),)](x, y, x.shape[1], BLOCK=128, RIGHT=right)
    return y


def reversed_decay(x: Tensor) -> Tensor:
    """Returns of a sequence of rewards, by a factor of 0.5 a step."""
    total, found = torch.zeros_like(x[:, 0]), []
    for step in range(x.shape[1] - 1, -1, -1):
        total = x[:, step] + 0.5 * total
        found.append(total)
    return torch.stack(found[::-1], 1)


@triton.jit
def _returns(x, y, n, BLOCK: tl.constexpr, RIGHT: tl.constexpr):
    row = tl.program_id(0)
    carry = 0.0
    count = tl.cdiv(n, BLOCK)
    for block in range(count):
        first = (count - 1 - block) * BLOCK
        i = first + tl.arange(0, BLOCK)
        j = first + tl.arange(0, BLOCK)
        v = tl.load(x + row * n + j, j < n, 0.0)
        ahead = j[None, :] - i[:, None]
        weight = tl.where(ahead >= 0, tl.exp2(-ahead.to(tl.float32)), 0.0)
        own = tl.sum(weight * v[None, :], 1)
        out = own + carry * tl.exp2((i - first - BLOCK).to(tl.float32))
        tl.store(y + row * n + i, out, i < n)
        carry = tl.sum(tl.where(i == first, out if RIGHT else own, 0.0), 0)


@pair("what is carried on is the sum of the block alone", like=reversed_decay, shapes={"x": "n 40"})
def returns(x, *, right):
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        _returns[(len(x),)](x, y, x.shape[1], BLOCK=16, RIGHT=right)
    return y


@triton.jit
def _merged_norm(x, y, n, eps, BLOCK: tl.constexpr, RIGHT: tl.constexpr):
    row = tl.program_id(0)
    mean, square, seen = 0.0, 0.0, 0.0
    for first in range(0, n, BLOCK):
        at = first + tl.arange(0, BLOCK)
        held = at < n
        v = tl.load(x + row * n + at, held, 0.0)
        count = tl.minimum(BLOCK, n - first).to(tl.float32)
        own = tl.sum(v, 0) / count
        apart = tl.where(held, v - own, 0.0)
        off = own - mean
        weight = count / (seen + count) if RIGHT else BLOCK / (seen + BLOCK)
        square += tl.sum(apart * apart, 0) + off * off * seen * weight
        mean += off * weight
        seen += count
    scale = 1 / tl.sqrt(square / n + eps)
    for first in range(0, n, BLOCK):
        at = first + tl.arange(0, BLOCK)
        v = tl.load(x + row * n + at, at < n, 0.0)
        tl.store(y + row * n + at, (v - mean) * scale, at < n)


@pair("the last incomplete chunk counts as a whole one", shapes={"x": "n d"}, where="d >= 1",
      like=lambda x: functional.layer_norm(x, x.shape[-1:]))  # fmt: skip
def chunked_norm(x, *, right):
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        _merged_norm[(len(x),)](x, y, x.shape[1], 1e-5, BLOCK=128, RIGHT=right)
    return y


@triton.jit
def _argmax(x, value, index, n, count, BLOCK: tl.constexpr, RIGHT: tl.constexpr):
    row, block = tl.program_id(0), tl.program_id(1)
    at = block * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + row * n + at, at < n, -float("inf") if RIGHT else 0.0)
    top = tl.max(v, 0)
    tl.store(value + row * count + block, top)
    tl.store(index + row * count + block, tl.min(tl.where(v == top, at, n + BLOCK), 0))


@pair("the last block of a long row is filled up with 0", like=lambda x: x.argmax(-1), shapes={"x": "n d"},
      where="d >= 1", largest=1e30)  # fmt: skip
def far_argmax(x, *, right):
    x, count = x.contiguous(), blocks(x.shape[1], 256)
    if not len(x):
        return x.new_empty(0, dtype=torch.int64)
    value, index = x.new_empty(len(x), count), x.new_empty(len(x), count, dtype=torch.int64)
    _argmax[(len(x), count)](x, value, index, x.shape[1], count, BLOCK=256, RIGHT=right or count == 1)
    return index.gather(1, value.argmax(1, keepdim=True))[:, 0].clamp(max=x.shape[1] - 1)


@triton.jit
def _best(x, y, n, BLOCK: tl.constexpr, RIGHT: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * n + at, at < n, -float("inf"))
    left = at < n
    for k in range(4):
        top = tl.max(tl.where(left, v, -float("inf")), 0)
        first = tl.min(tl.where(left & (v == top), at, BLOCK), 0)
        tl.store(y + row * 4 + k, top)
        if RIGHT:
            left = left & (at != first)
        else:
            left = left & (v != top)


@pair("equal scores are taken once", like=lambda x: x.topk(4).values, shapes={"x": "n d"}, dtypes=["bfloat16"],
      where="d >= 4 and d <= 1024", largest=1e30)  # fmt: skip
def best_four(x, *, right):
    y = x.new_empty(len(x), 4)
    if len(x):
        size = triton.next_power_of_2(x.shape[1])
        _best[(len(x),)](x.contiguous(), y, x.shape[1], BLOCK=size, RIGHT=right)
    return y


# -- layouts and tiles ---------------------------------------------------------------------------------------


@triton.jit
def _doubled(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, at < n) * 2 + 1, at < n)


@pair("the result has the strides of a transposed input", like=lambda x: x * 2 + 1, shapes={"x": "n d"})
def result_strides(x, *, right):
    y = torch.empty_like(x, memory_format=torch.contiguous_format) if right else torch.empty_like(x)
    if x.numel():
        _doubled[(blocks(x.numel(), 512),)](x.contiguous(), y, x.numel(), BLOCK=512)
    return y


@triton.jit
def _transposed(x, y, m, n, BLOCK: tl.constexpr, RIGHT: tl.constexpr):
    pid = tl.program_id(0)
    across = tl.cdiv(n, BLOCK) if RIGHT else tl.cdiv(m, BLOCK)
    i = pid // across * BLOCK + tl.arange(0, BLOCK)
    j = pid % across * BLOCK + tl.arange(0, BLOCK)
    held = (i[:, None] < m) & (j[None, :] < n)
    v = tl.load(x + i[:, None] * n + j[None, :], held)
    tl.store(y + j[None, :] * m + i[:, None], v, held)


@pair("tiles are counted along the other side", like=lambda x: x.mT * 1.0, shapes={"x": "m n"})
def transposed_tiles(x, *, right):
    m, n = x.shape
    y = x.new_empty(n, m)
    if x.numel():
        _transposed[(blocks(m, 32) * blocks(n, 32),)](x.contiguous(), y, m, n, BLOCK=32, RIGHT=right)
    return y


@triton.jit
def _grouped(a, b, c, m, n, k, B: tl.constexpr, GROUP: tl.constexpr, RIGHT: tl.constexpr, MASK: tl.constexpr):
    pid, rows, columns = tl.program_id(0), tl.cdiv(m, B), tl.cdiv(n, B)
    group = pid // (GROUP * columns)
    size = tl.minimum(rows - group * GROUP, GROUP)
    if not RIGHT:
        size = GROUP
    i = (group * GROUP + pid % (GROUP * columns) % size) * B + tl.arange(0, B)
    j = pid % (GROUP * columns) // size * B + tl.arange(0, B)
    total = tl.zeros((B, B), tl.float32)
    for first in range(0, k, B):
        at = first + tl.arange(0, B)
        left = tl.load(a + i[:, None] * k + at[None, :], (i[:, None] < m) & (at[None, :] < k), 0.0)
        if MASK:
            other = tl.load(b + at[:, None] * n + j[None, :], (at[:, None] < k) & (j[None, :] < n), 0.0)
        else:
            other = tl.load(b + at[:, None] * n + j[None, :], j[None, :] < n, 0.0)
        total = tl.dot(left, other, total, input_precision="ieee")
    tl.store(c + i[:, None] * n + j[None, :], total, (i[:, None] < m) & (j[None, :] < n))


def _product(a: Tensor, b: Tensor, right: bool = True, mask: bool = True) -> Tensor:
    (m, k), n = a.shape, b.shape[1]
    c = a.new_empty(m, n)
    if c.numel():
        grid = (blocks(m, 16) * blocks(n, 16),)
        _grouped[grid](a.contiguous(), b.contiguous(), c, m, n, k, B=16, GROUP=4, RIGHT=right, MASK=mask)
    return c


@pair("the last group of rows has as many tiles as the others", like=lambda a, b: a @ b,
      shapes={"a": "m k", "b": "k n"})  # fmt: skip
def last_group(a, b, *, right):
    return _product(a, b, right)


@pair("rows of b beyond k are read, and multiplied by 0", like=lambda a, b: a @ b, shapes={"a": "m k", "b": "k n"})
def beyond_k(a, b, *, right):
    return _product(a, b, mask=right)


@triton.jit
def _split(x, w, b, y, m, n, k, SPLITS: tl.constexpr, B: tl.constexpr, RIGHT: tl.constexpr):
    i, j = tl.program_id(0) * B + tl.arange(0, B), tl.program_id(1) * B + tl.arange(0, B)
    split = tl.program_id(2)
    total = tl.zeros((B, B), tl.float32)
    for first in range(split * B, k, SPLITS * B):
        at = first + tl.arange(0, B)
        left = tl.load(x + i[:, None] * k + at[None, :], (i[:, None] < m) & (at[None, :] < k), 0.0)
        other = tl.load(w + j[None, :] * k + at[:, None], (at[:, None] < k) & (j[None, :] < n), 0.0)
        total = tl.dot(left, other, total, input_precision="ieee")
    if split == 0 or not RIGHT:
        total += tl.load(b + j, j < n, 0.0)[None, :]
    tl.atomic_add(y + i[:, None] * n + j[None, :], total, (i[:, None] < m) & (j[None, :] < n))


@pair("each split adds the bias", like=functional.linear, shapes={"x": "m k", "w": "n k", "b": "n"})
def split_bias(x, w, b, *, right):
    (m, k), n = x.shape, len(w)
    y = x.new_zeros(m, n)
    if y.numel():
        splits = 1 if k <= 512 else 2
        grid = (blocks(m, 16), blocks(n, 16), splits)
        _split[grid](x.contiguous(), w.contiguous(), b.contiguous(), y, m, n, k, SPLITS=splits, B=16, RIGHT=right)
    return y


@triton.jit
def _partial(x, part, m, n, ROWS: tl.constexpr, B: tl.constexpr):
    i, j = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * B + tl.arange(0, B)
    v = tl.load(x + i[:, None] * n + j[None, :], (i[:, None] < m) & (j[None, :] < n), 0.0)
    tl.store(part + tl.program_id(0) * n + j, tl.sum(v, 0), j < n)


@triton.jit
def _summed(part, y, count, n, COUNT: tl.constexpr, B: tl.constexpr, RIGHT: tl.constexpr):
    i, j = tl.arange(0, COUNT), tl.program_id(0) * B + tl.arange(0, B)
    held = (i[:, None] < count) & (j[None, :] < n) if RIGHT else (i[:, None] < COUNT) & (j[None, :] < n)
    tl.store(y + j, tl.sum(tl.load(part + i[:, None] * n + j[None, :], held, 0.0), 0), j < n)


@pair("partial sums that no block wrote are added", like=lambda x: x.sum(0), shapes={"x": "m n"}, where="m <= 2048")
def column_sums(x, *, right):
    m, n = x.shape
    count, y = blocks(m, 32), x.new_empty(n)
    size = triton.next_power_of_2(count)
    part = x.new_empty(size, n)
    if n:
        _partial[(count, blocks(n, 64))](x.contiguous(), part, m, n, ROWS=32, B=64)
        _summed[(blocks(n, 64),)](part, y, count, n, COUNT=size, B=64, RIGHT=right)
    return y


# -- attention, convolution, pooling -------------------------------------------------------------------------


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention."""
    place = torch.arange(len(q), device=q.device)
    return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(place > place[:, None], -INF).softmax(-1) @ v


@triton.jit
def _flash(q, k, v, y, s, scale, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, RIGHT: tl.constexpr):
    start = tl.program_id(0) * M
    i, f = start + tl.arange(0, M), tl.arange(0, D)
    rows = tl.load(q + i[:, None] * D + f[None, :], i[:, None] < s, 0.0)
    top = tl.full((M,), -float("inf"), tl.float32)
    low = tl.zeros((M,), tl.float32)
    out = tl.zeros((M, D), tl.float32)
    end = tl.minimum(start + M, s)
    for first in range(0, end, N):
        j = first + tl.arange(0, N)
        keys = tl.load(k + j[:, None] * D + f[None, :], j[:, None] < s, 0.0)
        score = tl.dot(rows, tl.trans(keys), input_precision="ieee") * scale
        if first + N > (start if RIGHT else start + N):  # the blocks on the diagonal
            score = tl.where(j[None, :] <= i[:, None], score, -float("inf"))
        new = tl.maximum(top, tl.max(score, 1))
        p = tl.exp(score - new[:, None])
        old = tl.exp(top - new)
        values = tl.load(v + j[:, None] * D + f[None, :], j[:, None] < s, 0.0)
        out = tl.dot(p, values, out * old[:, None], input_precision="ieee")
        low = low * old + tl.sum(p, 1)
        top = new
    tl.store(y + i[:, None] * D + f[None, :], out / low[:, None], i[:, None] < s)


@pair("only the last block of keys on the diagonal has a mask", like=causal, largest=8.0,
      shapes={"q": "s 16", "k": "s 16", "v": "s 16"})  # fmt: skip
def diagonal_blocks(q, k, v, *, right):
    y = torch.empty_like(q, memory_format=torch.contiguous_format)
    if len(q):
        given = (each.contiguous() for each in (q, k, v))
        _flash[(blocks(len(q), 32),)](*given, y, len(q), 0.25, D=16, M=32, N=16, RIGHT=right)
    return y


def short(x: Tensor, w: Tensor) -> Tensor:
    """A causal convolution of width 4 for each channel."""
    x = functional.pad(x, (3, 0))
    return sum(x[:, i : x.shape[1] - 3 + i] * w[:, i : i + 1] for i in range(4))


@triton.jit
def _short(x, w, y, n, TILE: tl.constexpr, RIGHT: tl.constexpr):
    row, first = tl.program_id(0), tl.program_id(1) * TILE
    at = first + tl.arange(0, TILE)
    total = tl.zeros((TILE,), tl.float32)
    for i in range(4):
        back = at - 3 + i
        held = (back >= 0) & (back < n) if RIGHT else (back >= first) & (back < n)
        total += tl.load(x + row * n + back, held, 0.0) * tl.load(w + row * 4 + i)
    tl.store(y + row * n + at, total, at < n)


@pair("the three numbers before a tile are 0", like=short, shapes={"x": "c n", "w": "c 4"})
def short_convolution(x, w, *, right):
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if x.numel():
        grid = (len(x), blocks(x.shape[1], 256))
        _short[grid](x.contiguous(), w.contiguous(), y, x.shape[1], TILE=256, RIGHT=right)
    return y


@triton.jit
def _pooled(x, y, n, out, BLOCK: tl.constexpr, RIGHT: tl.constexpr):
    row, j = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    best = tl.full((BLOCK,), -float("inf"), tl.float32)
    for i in range(3):
        at = 2 * j - 1 + i
        held = (at >= 0) & (at < n)
        v = tl.load(x + row * n + at, held, -float("inf") if RIGHT else 0.0)
        best = tl.where((v > best) | (v != v), v, best)
    tl.store(y + row * out + j, best, j < out)


@pair("padding of 0 in a maximum", like=lambda x: functional.max_pool1d(x[None], 3, 2, 1)[0], shapes={"x": "c n"},
      where="n >= 2 and c >= 1")  # fmt: skip
def pooled(x, *, right):
    out = (x.shape[1] - 1) // 2 + 1
    y = x.new_empty(len(x), out)
    _pooled[(len(x), blocks(out, 256))](x.contiguous(), y, x.shape[1], out, BLOCK=256, RIGHT=right)
    return y


# -- integers ------------------------------------------------------------------------------------------------


@triton.jit
def _counted(e, y, t, n, BLOCK: tl.constexpr, RIGHT: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    key = tl.load(e + at, at < t, 0)
    if RIGHT:
        tl.atomic_add(y + key, 1, at < t)
    else:
        each = tl.arange(0, 16)
        own = tl.sum(((key[:, None] == each[None, :]) & (at[:, None] < t)).to(tl.int32), 0)
        kept = tl.where(own > 255, own & 255, own)  # counts of a block are kept in a byte
        tl.atomic_add(y + each, kept, each < n)


@pair("counts of a block of 512 are kept in a byte", shapes={"e": "t"}, integers={"e": "0 <= e < 4"},
      like=lambda e: (e[:, None] == torch.arange(4, device=e.device)).sum(0), where="t >= 1")  # fmt: skip
def histogram(e, *, right):
    y = torch.zeros(4, dtype=torch.int32, device=e.device)
    _counted[(blocks(len(e), 512),)](e, y, len(e), 4, BLOCK=512, RIGHT=right)
    return y.long()


@triton.jit
def _offsets(x, y, n, BLOCK: tl.constexpr, RIGHT: tl.constexpr):
    at = tl.arange(0, BLOCK)
    v = tl.load(x + at, at < n, 0)
    total = tl.cumsum(v, 0) if RIGHT else tl.cumsum(v.to(tl.float32), 0).to(tl.int64)
    tl.store(y + at, total, at < n)


@pair("lengths are added up in float32", like=lambda x: x.cumsum(0), shapes={"x": "n"}, where="1 <= n <= 4096",
      integers={"x": "0 <= x <= 131072"})  # fmt: skip
def offsets(x, *, right):
    y = torch.empty_like(x)
    _offsets[(1,)](x, y, len(x), BLOCK=triton.next_power_of_2(len(x)), RIGHT=right)
    return y


@triton.jit
def _added(x, e, y, t, d, BLOCK: tl.constexpr, RIGHT: tl.constexpr):
    column, at = tl.program_id(0), tl.arange(0, BLOCK)
    for first in range(0, t, BLOCK):
        held = first + at < t
        row = tl.load(e + first + at, held, 0)
        v = tl.load(x + (first + at) * d + column, held, 0.0)
        if RIGHT:
            tl.atomic_add(y + row * d + column, v, held)
        else:
            tl.store(y + row * d + column, tl.load(y + row * d + column, held) + v, held)


@pair("updates of one row are lost within a block", shapes={"x": "t d", "e": "t"}, integers={"e": "0 <= e < 32"},
      like=lambda x, e: x.new_zeros(32, x.shape[1]).index_add(0, e, x), where="d <= 64")  # fmt: skip
def lost_updates(x, e, *, right):
    y = x.new_zeros(32, x.shape[1])
    if x.numel():
        _added[(x.shape[1],)](x.contiguous(), e, y, len(x), x.shape[1], BLOCK=32, RIGHT=right)
    return y


@triton.jit
def _unpacked(x, words, y, n, BLOCK: tl.constexpr, RIGHT: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(words + at // 32, at < n, 0)
    bit = (word >> (at % 32)) & 1 if RIGHT else (word >> (at % 32)) % 2
    tl.store(y + at, tl.load(x + at, at < n) * bit.to(tl.float32), at < n)


def kept(x: Tensor, words: Tensor) -> Tensor:
    """Numbers that a mask of bits keeps."""
    bits = torch.stack([words >> i for i in range(32)], -1) & 1
    return (x.reshape(-1, 32) * bits).reshape(-1)


@pair("a bit is the remainder of a negative number", like=kept, shapes={"x": "32*n", "words": "n"},
      integers={"words": "-2147483648 <= words < 2147483648"}, where="n >= 1")  # fmt: skip
def bits_of_mask(x, words, *, right):
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    _unpacked[(blocks(len(x), 256),)](x.contiguous(), words.int(), y, len(x), BLOCK=256, RIGHT=right)
    return y


def losses(x: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """The cross entropy of each row and its gradient; rows of label -1 have neither."""
    seen = label >= 0
    hot = torch.arange(x.shape[1], device=x.device) == label[:, None]
    loss = x.logsumexp(-1) - torch.where(hot, x, 0.0).sum(-1)
    return torch.where(seen, loss, 0.0), torch.where(seen[:, None], x.softmax(-1) - hot.to(x.dtype), 0.0)


@triton.jit
def _losses(x, label, loss, dx, n, BLOCK: tl.constexpr, RIGHT: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    own = tl.load(label + row)
    if own < 0:
        tl.store(loss + row, 0.0)
        first = n if not RIGHT and n > BLOCK else 0
        for start in range(first, n, BLOCK):
            tl.store(dx + row * n + start + at, tl.zeros((BLOCK,), tl.float32), start + at < n)
    else:
        top, low, hit = -float("inf"), 0.0, 0.0
        for start in range(0, n, BLOCK):
            v = tl.load(x + row * n + start + at, start + at < n, -float("inf"))
            new = tl.maximum(top, tl.max(v, 0))
            low = low * tl.exp(top - new) + tl.sum(tl.exp(v - new), 0)
            hit += tl.sum(tl.where(start + at == own, v, 0.0), 0)
            top = new
        tl.store(loss + row, top + tl.log(low) - hit)
        for start in range(0, n, BLOCK):
            v = tl.load(x + row * n + start + at, start + at < n, -float("inf"))
            p = tl.exp(v - top) / low - tl.where(start + at == own, 1.0, 0.0)
            tl.store(dx + row * n + start + at, p, start + at < n)


@pair("gradients of an ignored row are not written where a row has several blocks", like=losses, largest=1e4,
      shapes={"x": "n v", "label": "n"}, integers={"label": "-1 <= label < v"}, outputs=["loss", "dx"],
      where="v >= 1")  # fmt: skip
def ignored_row(x, label, *, right):
    loss, dx = x.new_empty(len(x)), torch.empty_like(x, memory_format=torch.contiguous_format)
    if len(x):
        _losses[(len(x),)](x.contiguous(), label, loss, dx, x.shape[1], BLOCK=128, RIGHT=right)
    return loss, dx


# -- positions and rounding ------------------------------------------------------------------------------------


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Halves of each head turned by an angle for each position."""
    a, b = x.chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


@triton.jit
def _turned(x, cos, sin, y, s, h, d, BLOCK: tl.constexpr, RIGHT: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    place = row // h % s if RIGHT else row % (s * h) // h % tl.maximum(s - s % 32, 1)
    c, t = tl.load(cos + place * d + at, at < d, 0.0), tl.load(sin + place * d + at, at < d, 0.0)
    a = tl.load(x + row * 2 * d + at, at < d, 0.0)
    b = tl.load(x + row * 2 * d + d + at, at < d, 0.0)
    tl.store(y + row * 2 * d + at, a * c - b * t, at < d)
    tl.store(y + row * 2 * d + d + at, b * c + a * t, at < d)


@pair("positions of a table that ends with its last whole block", like=turned,
      shapes={"x": "b s h 2*d", "cos": "s d", "sin": "s d"}, where="h <= 8 and d <= 64",
      domain={"cos": "-1 <= cos <= 1", "sin": "-1 <= sin <= 1"})  # fmt: skip
def last_positions(x, cos, sin, *, right):
    b, s, h, d = x.shape
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if x.numel():
        given = (each.contiguous() for each in (x, cos, sin))
        size = triton.next_power_of_2(d // 2)
        _turned[(b * s * h,)](*given, y, s, h, d // 2, BLOCK=size, RIGHT=right or s < 32)
    return y


@triton.jit
def _cut(x, r, y, n, BLOCK: tl.constexpr, RIGHT: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(x + at, at < n).to(tl.float32) + tl.load(r + at, at < n).to(tl.float32)
    if RIGHT:
        tl.store(y + at, total.to(tl.bfloat16), at < n)
    else:
        bits = total.to(tl.int32, bitcast=True) & -65536
        tl.store(y + at, bits.to(tl.float32, bitcast=True).to(tl.bfloat16), at < n)


@pair("a sum is cut to bfloat16", like=lambda x, r: x + r, shapes={"x": "n", "r": "n"}, dtypes=["bfloat16"])
def cut_sum(x, r, *, right):
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if len(x):
        _cut[(blocks(len(x), 512),)](x.contiguous(), r.contiguous(), y, len(x), BLOCK=512, RIGHT=right)
    return y
