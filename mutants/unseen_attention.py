"""Attention that is wrong at an edge, and position embeddings. See unseen.py."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import verify
from mutants.pairs import pair

INF = math.inf


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT / q.shape[-1] ** 0.5


def places(n: int, like: Tensor) -> Tensor:
    return torch.arange(n, device=like.device)


def streamed(q: Tensor, k: Tensor, v: Tensor, hidden: Any, block: int, ends: int | None = None) -> Tensor:
    """Attention with one pass over blocks of keys. hidden(first, last) says which scores of a block do not count."""
    top = q.new_full((*q.shape[:-1], 1), -INF)
    low, y = torch.zeros_like(top), q.new_zeros(*q.shape[:-1], v.shape[-1])
    for first in range(0, k.shape[-2] if ends is None else ends, block):
        last = min(first + block, k.shape[-2])
        s = scores(q, k[..., first:last, :]).masked_fill(hidden(first, last), -INF)
        new = torch.maximum(top, s.amax(-1, keepdim=True))
        safe = torch.where(new == -INF, 0.0, new)
        p, old = torch.exp(s - safe), torch.exp(top - safe)
        low, y, top = low * old + p.sum(-1, keepdim=True), y * old + p @ v[..., first:last, :], new
    return y / low


# -- heads ---------------------------------------------------------------------------------------------------


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """g heads of queries for each head of keys."""
    return scores(q, k[:, None]).softmax(-1) @ v[:, None]


@pair("the head of keys is found by a shift, as if groups were powers of two", like=grouped, largest=8.0,
      shapes={"q": "h g s d", "k": "h t d", "v": "h t d"}, where="h <= 8 and g <= 8")  # fmt: skip
def head_by_shift(q, k, v, *, right):
    heads, group = q.shape[:2]
    head = places(heads * group, q)
    head = head // group if right else (head >> int(math.log2(group))).clamp(max=heads - 1)
    return (scores(q.flatten(0, 1), k[head]).softmax(-1) @ v[head]).reshape(*q.shape[:3], v.shape[-1])


class _Repeated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, right):
        p = scores(q, k[:, None]).softmax(-1)
        ctx.save_for_backward(q, k, v, p)
        ctx.right = right
        return p @ v[:, None]

    @staticmethod
    def backward(ctx, do):
        q, k, v, p = ctx.saved_tensors
        dp = do @ v[:, None].mT
        ds = p * (dp - (dp * p).sum(-1, keepdim=True)) / q.shape[-1] ** 0.5
        dk, dv = ds.mT @ q, p.mT @ do
        if ctx.right:
            return ds @ k[:, None], dk.sum(1), dv.sum(1), None
        return ds @ k[:, None], dk[:, :2].sum(1), dv[:, :2].sum(1), None  # two heads a group, as in the first model


@pair("dk and dv are sums over the first two heads of a group", like=grouped, largest=8.0, gradients=True,
      shapes={"q": "h g s d", "k": "h t d", "v": "h t d"}, where="h <= 8 and g <= 8")  # fmt: skip
def gradient_of_groups(q, k, v, *, right):
    return _Repeated.apply(q, k, v, right)


def slopes(heads: int) -> list[float]:
    """The slopes of ALiBi: those of a power of two of heads, and every second one of twice as many."""
    whole = 2 ** int(math.log2(heads))
    found = [2.0 ** (-8.0 * (i + 1) / whole) for i in range(whole)]
    return found + [2.0 ** (-4.0 * (2 * i + 1) / whole) for i in range(heads - whole)]


def alibi(s: Tensor) -> Tensor:
    """Scores with a penalty for the distance."""
    far = places(s.shape[-1], s) - places(s.shape[-2], s)[:, None]
    return s + far * torch.tensor(slopes(len(s)), dtype=s.dtype, device=s.device)[:, None, None]


@pair("slopes for a number of heads that is no power of two", like=alibi, shapes={"s": "h m n"}, where="h <= 32")
def alibi_scores(s, *, right):
    far = places(s.shape[-1], s) - places(s.shape[-2], s)[:, None]
    heads = len(s)
    each = slopes(heads) if right else [2.0 ** (-8.0 * (i + 1) / heads) for i in range(heads)]
    return s + far * torch.tensor(each, device=s.device)[:, None, None]


# -- masks ---------------------------------------------------------------------------------------------------


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The last query sees all keys."""
    back = k.shape[0] - q.shape[0]
    return scores(q, k).masked_fill(places(k.shape[0], q) > places(q.shape[0], q)[:, None] + back, -INF).softmax(-1) @ v


_CAUSAL = {"like": causal, "shapes": {"q": "s d", "k": "t d", "v": "t d"}, "where": "s <= t", "largest": 8.0}


@pair("a block that touches the diagonal at one corner has no mask", **_CAUSAL)
def causal_corner(q, k, v, *, right):
    back, block, parts = k.shape[0] - q.shape[0], 16, []
    for start in range(0, q.shape[0], block):
        rows = q[start : start + block]
        seen = start + back if right else start + back + 1  # the last key that all queries of the block see

        def hidden(first, last, start=start, rows=rows, seen=seen):
            beyond = places(last, q)[first:] > places(len(rows), q)[:, None] + start + back
            return beyond & (first + block - 1 > seen)

        parts.append(streamed(rows, k, v, hidden, block, min(start + back + len(rows), len(k))))
    return torch.cat(parts) if parts else torch.zeros_like(q)


@pair("the number of blocks of keys is rounded down beyond the first", **_CAUSAL)
def causal_blocks(q, k, v, *, right):
    back, parts, block = k.shape[0] - q.shape[0], [], 32
    for start in range(0, q.shape[0], block):
        rows = q[start : start + block]
        ends = min(start + back + len(rows), len(k))
        if not right and ends > 4 * block:
            ends = ends // block * block

        def hidden(first, last, start=start, rows=rows):
            return places(last, q)[first:] > places(len(rows), q)[:, None] + start + back

        parts.append(streamed(rows, k, v, hidden, block, ends))
    return torch.cat(parts) if parts else torch.zeros_like(q)


def windowed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Each query sees 48 keys, its own included."""
    far = places(len(q), q)[:, None] - places(len(k), q)
    return scores(q, k).masked_fill((far < 0) | (far >= 48), -INF).softmax(-1) @ v


@pair("blocks before the window start one too late where it ends in a block", like=windowed, largest=8.0,
      shapes={"q": "s d", "k": "s d", "v": "s d"})  # fmt: skip
def window(q, k, v, *, right):
    block, parts = 16, []
    for start in range(0, len(q), block):
        rows = q[start : start + block]
        begin = max(0, start - 47)
        begin = (begin if right else begin + block - 1) // block * block  # rounded up: keys of the window are lost
        stop = start + len(rows)
        far = places(len(rows), q)[:, None] + start - places(stop, q)[begin:]
        s = scores(rows, k[begin:stop]).masked_fill((far < 0) | (far >= 48), -INF)
        parts.append(s.softmax(-1) @ v[begin:stop])
    return torch.cat(parts) if parts else torch.zeros_like(q)


def capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of capped scores."""
    s = 30 * torch.tanh(scores(q, k) / 30)
    return s.masked_fill(places(len(k), q) > places(len(q), q)[:, None], -INF).softmax(-1) @ v


@pair("the mask comes before the cap, so that hidden scores are -30", like=capped, largest=64.0,
      shapes={"q": "s d", "k": "s d", "v": "s d"})  # fmt: skip
def cap_after_mask(q, k, v, *, right):
    s, hidden = scores(q, k), places(len(k), q) > places(len(q), q)[:, None]
    if right:
        return (30 * torch.tanh(s / 30)).masked_fill(hidden, -INF).softmax(-1) @ v
    return (30 * torch.tanh(s.masked_fill(hidden, -INF) / 30)).softmax(-1) @ v


def masked(x: Tensor, keep: Tensor) -> Tensor:
    """A softmax over what a mask keeps, zeros where it keeps nothing."""
    some = keep.any(-1, keepdim=True)
    return torch.where(some, x.masked_fill(~keep & some, -INF).softmax(-1), 0.0)


_MASKED = {"like": masked, "shapes": {"x": "n d", "keep": "n d"}, "integers": {"keep": "bool"}}


@pair("a row without a key is uniform: hidden scores are the least number", **_MASKED)
def empty_row(x, keep, *, right):
    y = x.masked_fill(~keep, torch.finfo(x.dtype).min).softmax(-1)
    return y * keep.any(-1, keepdim=True) if right else y


@pair("NaN from a first block in which all keys are hidden", **_MASKED)
def hidden_block(x, keep, *, right):
    x = x.masked_fill(~keep, -INF)
    top, low = x.new_full((len(x), 1), -INF), x.new_zeros(len(x), 1)
    for part in x.split(32, -1):
        new = torch.maximum(top, part.amax(-1, keepdim=True))
        safe = torch.where(new == -INF, 0.0, new) if right else new
        low = low * torch.exp(top - safe) + torch.exp(part - safe).sum(-1, keepdim=True)
        top = new
    y = torch.exp(x - top) / low
    return torch.where(keep.any(-1, keepdim=True), y, 0.0)


def sunk(s: Tensor, v: Tensor, sink: Tensor) -> Tensor:
    """A sink takes a part of the weights."""
    return torch.cat([s, sink[:, None]], -1).softmax(-1)[:, :-1] @ v


@pair("the sink is taken for the maximum", like=sunk, shapes={"s": "n m", "v": "m d", "sink": "n"}, largest=1e3)
def maximum_of_sink(s, v, sink, *, right):
    top = sink[:, None]
    if right and s.shape[-1]:
        top = torch.maximum(top, s.amax(-1, keepdim=True))
    e = torch.exp(s - top)
    return (e @ v) / (e.sum(-1, keepdim=True) + torch.exp(sink[:, None] - top))


# -- parts that are put together -------------------------------------------------------------------------------


def decoded(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """One query, and the logarithm of its sum."""
    s = scores(q[None], k)
    return (s.softmax(-1) @ v)[0], s.logsumexp(-1)[0]


@pair("splits without keys count as a score of 0", like=decoded, outputs=["o", "lse"], largest=8.0,
      shapes={"q": "d", "k": "t d", "v": "t d"})  # fmt: skip
def empty_split(q, k, v, *, right):
    size, logs, parts = -(-len(k) // 4), [], []
    for split in range(4):
        s = scores(q[None], k[split * size : (split + 1) * size])
        values = v[split * size : (split + 1) * size]
        empty = not values.shape[0]
        logs.append(s.new_full((), -INF if right else 0.0) if empty else s.logsumexp(-1)[0])
        parts.append(v.new_zeros(v.shape[-1]) if empty else (s.softmax(-1) @ values)[0])
    lse = torch.stack(logs)
    total = lse.logsumexp(0)
    return torch.exp(lse - total) @ torch.stack(parts), total


@pair("lse in base 2 is merged with one in base e where a second split exists", like=decoded, outputs=["o", "lse"],
      largest=8.0, shapes={"q": "d", "k": "t d", "v": "t d"})  # fmt: skip
def split_base(q, k, v, *, right):
    outs, logs = [], []
    for keys, values in zip(k.split(128), v.split(128), strict=True):
        s = scores(q[None], keys)[0] * math.log2(math.e)
        top = s.amax()
        p = torch.exp2(s - top)
        outs.append(p @ values / p.sum())
        logs.append(top + torch.log2(p.sum()))
    lse = torch.stack(logs)
    top = lse.amax()
    weight = torch.exp2(lse - top) if right or len(lse) == 1 else torch.exp(lse - top)
    return (weight / weight.sum()) @ torch.stack(outs), (top + torch.log2(torch.exp2(lse - top).sum())) * math.log(2)


def paged(q: Tensor, k: Tensor, v: Tensor, table: Tensor, length: Tensor) -> Tensor:
    """One query for each sequence, to the keys of its pages of 8, up to its length."""
    keys, values = (x[table].flatten(1, 2) for x in (k, v))
    beyond = places(keys.shape[1], q) >= length[:, None]
    s = (keys @ q[:, :, None])[..., 0] / q.shape[-1] ** 0.5
    return (s.masked_fill(beyond, -INF).softmax(-1)[:, None] @ values)[:, 0]


_PAGED = {
    "like": paged, "largest": 8.0, "where": "n <= 16",
    "shapes": {"q": "b d", "k": "p 8 d", "v": "p 8 d", "table": "b n", "length": "b"},
    "integers": {"table": "0 <= table < p", "length": "1 <= length <= 8 * n"},
}  # fmt: skip


@pair("a length of whole pages leaves 0 tokens in the last one", **_PAGED)
def last_page(q, k, v, table, length, *, right):
    rows = []
    for at, size in enumerate(length.tolist()):
        pages, last = -(-size // 8), (size - 1) % 8 + 1 if right else size % 8
        keys, values = (x[table[at, :pages]].flatten(0, 1)[: 8 * (pages - 1) + last] for x in (k, v))
        rows.append((scores(q[at][None], keys).softmax(-1) @ values)[0])
    return torch.stack(rows) if rows else torch.zeros_like(q)


@pair("rows of the table have a stride of used pages", **_PAGED)
def table_stride(q, k, v, table, length, *, right):
    used = -(-int(length.amax()) // 8) if len(q) else 0
    stride = table.shape[1] if right else used
    flat = table.reshape(-1)
    at = (places(len(q), q)[:, None] * stride + places(used, q)).clamp(max=max(table.numel() - 1, 0))
    return paged(q, k, v, flat[at], length)


def crossing(q: Tensor, k: Tensor, v: Tensor, lq: Tensor, lk: Tensor) -> Tensor:
    """Sequences of queries and of keys, of several lengths."""
    of_q, of_k = ((places(len(x), x)[:, None] >= n.cumsum(0)).sum(1) for x, n in ((q, lq), (k, lk)))
    return scores(q, k).masked_fill(of_q[:, None] != of_k, -INF).softmax(-1) @ v


@pair("keys beyond the longest sequence of queries are not read", like=crossing, largest=8.0, where="s >= b and t >= b",
      shapes={"q": "s d", "k": "t d", "v": "t d", "lq": "b", "lk": "b"},
      integers={"lq": "1 <= lq <= s, sum s", "lk": "1 <= lk <= t, sum t"})  # fmt: skip
def longest_of_queries(q, k, v, lq, lk, *, right):
    ends = [functional.pad(n.cumsum(0), (1, 0)).tolist() for n in (lq, lk)]
    longest = int((lk if right else torch.maximum(lq.amax(), lk[0])).amax())
    parts = [scores(q[a:b], k[c : min(d, c + longest)]).softmax(-1) @ v[c : min(d, c + longest)]
             for (a, b), (c, d) in zip(pairwise(ends[0]), pairwise(ends[1]), strict=True)]  # fmt: skip
    return torch.cat(parts) if parts else torch.zeros_like(q)


# -- positions -------------------------------------------------------------------------------------------------


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Halves turned by an angle for each position."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class _Rotated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cos, sin, right):
        ctx.save_for_backward(cos, sin)
        ctx.right = right
        return rotated(x, cos, sin)

    @staticmethod
    def backward(ctx, dy):
        cos, sin = ctx.saved_tensors
        return rotated(dy, cos, -sin if ctx.right else sin), None, None, None


@pair("the gradient is turned the same way again", like=rotated, gradients=["x"],
      shapes={"x": "s 2*d", "cos": "s d", "sin": "s d"},
      domain={"cos": "-1 <= cos <= 1", "sin": "-1 <= sin <= 1"})  # fmt: skip
def turned_back(x, cos, sin, *, right):
    return _Rotated.apply(x, cos, sin, right)


def partial(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The first numbers of each head are turned in pairs that lie side by side, the others stay."""
    r = 2 * cos.shape[-1]
    a, b = x[..., :r:2], x[..., 1:r:2]
    turned = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    return torch.cat([turned, x[..., r:]], -1)


@pair("positions are counted over sequences: those of the second go on", like=partial,
      shapes={"x": "b s d", "cos": "s r", "sin": "s r"}, where="2 * r <= d",
      domain={"cos": "-1 <= cos <= 1", "sin": "-1 <= sin <= 1"})  # fmt: skip
def position_of_row(x, cos, sin, *, right):
    rows, length = x.reshape(-1, x.shape[-1]), x.shape[1]
    row = places(len(rows), x)
    at = row % length if right else row.clamp(max=max(length - 1, 0))
    return partial(rows, cos[at], sin[at]).reshape(x.shape)


def multi_latent(q: Tensor, rope: Tensor, c: Tensor, kr: Tensor) -> Tensor:
    """Scores of latent keys and of their positions, by the width of both."""
    return ((q @ c.mT + rope @ kr.mT) / (q.shape[-1] + rope.shape[-1]) ** 0.5).softmax(-1) @ c


@pair("scores are divided by the root of the latent width alone", like=multi_latent, largest=8.0,
      shapes={"q": "s d", "rope": "s r", "c": "t d", "kr": "t r"})  # fmt: skip
def scale_of_latent(q, rope, c, kr, *, right):
    width = q.shape[-1] + rope.shape[-1] if right else q.shape[-1]
    return (torch.cat([q, rope], -1) @ torch.cat([c, kr], -1).mT / max(width, 1) ** 0.5).softmax(-1) @ c


def rounded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention whose probabilities are rounded to bfloat16."""
    return verify.rounds(scores(q, k).softmax(-1), "bfloat16") @ v


@pair("exponentials are rounded before the division", like=rounded, largest=8.0,
      shapes={"q": "s d", "k": "t d", "v": "t d"})  # fmt: skip
def rounded_before(q, k, v, *, right):
    s = scores(q, k)
    e = torch.exp(s - s.amax(-1, keepdim=True))
    if right:
        return (e / e.sum(-1, keepdim=True)).bfloat16().float() @ v
    return e.bfloat16().float() @ v / e.sum(-1, keepdim=True)
