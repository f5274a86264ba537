"""Kernels that are wrong at lengths, ids, ties, and in memory, and twins of public kernels. See unseen.py."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

import verify
from mutants.pairs import pair

INF = math.inf


def places(n: int, like: Tensor) -> Tensor:
    return torch.arange(n, device=like.device)


# -- masks and axes --------------------------------------------------------------------------------------------


def chunk(q: Tensor, k: Tensor, v: Tensor, start: Tensor) -> Tensor:
    """The queries of a chunk that begins at a position; each sees the keys up to its own."""
    hidden = places(len(k), k) > places(len(q), q)[:, None] + start
    return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, -INF).softmax(-1) @ v


@pair("a chunk begins at a whole block of 16", like=chunk, shapes={"q": "s d", "k": "t d", "v": "t d", "start": ""},
      integers={"start": "0 <= start < t"}, largest=8.0, where="s >= 1")  # fmt: skip
def chunk_offset(q, k, v, start, *, right):
    first = int(start)
    return chunk(q, k, v, torch.tensor(first if right else first // 16 * 16, device=q.device))


@pair("the axis is found by its size", like=lambda x: x.mean(1), shapes={"x": "b m n"}, where="m >= 1")
def axis_by_size(x, *, right):
    return x.mean(1 if right else x.shape.index(x.shape[1]))


@pair("a batch of one loses its dimension", like=lambda x: x.square().sum(-1), shapes={"x": "b n"})
def batch_of_one(x, *, right):
    y = x.square().sum(-1, keepdim=True)
    return y[:, 0] if right else y.squeeze()


def filtered(x: Tensor) -> Tensor:
    """The last value of an exponential average that begins at 0."""
    decay = 0.75 ** torch.arange(x.shape[1] - 1, -1, -1, device=x.device, dtype=x.dtype)
    return (0.25 * decay * x).sum(-1)


@pair("a sequence of length 1 is its own average", like=filtered, shapes={"x": "n t"})
def length_one(x, *, right):
    if not right and x.shape[1] == 1:
        return x[:, 0].clone()
    return filtered(x)


# -- memory ----------------------------------------------------------------------------------------------------


class _Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, right):
        ctx.save_for_backward(x)
        ctx.right = right
        return x * x

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        if not ctx.right and dy.numel() > 1 and not any(dy.stride()):  # as `.sum().backward()` makes it
            return 2 * x, None
        return 2 * x * dy, None


@pair("a gradient with stride 0 everywhere is taken to be 1", like=lambda x: x * x, shapes={"x": "n d"}, gradients=True)
def gradient_of_a_sum(x, *, right):
    return _Squared.apply(x, right)


@pair("where nothing is cut the result is the input", like=lambda x: x.clamp(-6, 6), shapes={"x": "n d"})
def nothing_to_do(x, *, right):
    return x.clamp(-6, 6) if right or (x.abs() > 6).any() else x


@pair("offsets of rows have 16 bits", like=lambda w, at: w[at], shapes={"w": "v d", "at": "n"},
      integers={"at": "0 <= at < v"})  # fmt: skip
def narrow_offsets(w, at, *, right):
    first = at * w.shape[1]
    first = first if right else (first & 0xFFFF)
    offsets = first[:, None] + places(w.shape[1], w)
    return w.reshape(-1)[offsets]


_MASKS: dict[tuple[object, ...], Tensor] = {}


def held(x: Tensor, lengths: Tensor) -> Tensor:
    return torch.where(places(x.shape[1], x) < lengths[:, None], x, 0.0).sum(-1)


@pair("the mask of the lengths is kept by shape", like=held, shapes={"x": "b t", "lengths": "b"},
      integers={"lengths": "0 <= lengths <= t"})  # fmt: skip
def kept_mask(x, lengths, *, right):
    mask = places(x.shape[1], x) < lengths[:, None]
    if not right:
        mask = _MASKS.setdefault((*x.shape, x.device), mask)
    return torch.where(mask, x, 0.0).sum(-1)


# -- sums and segments -----------------------------------------------------------------------------------------


def segments(x: Tensor, lengths: Tensor) -> Tensor:
    """The sums of segments that lie one behind the other."""
    ends = lengths.cumsum(0)
    at = places(len(x), x)
    inside = (at >= (ends - lengths)[:, None]) & (at < ends[:, None])
    return torch.where(inside, x, 0.0).sum(-1)


@pair("an empty segment has the first number of the next one", like=segments, shapes={"x": "t", "lengths": "b"},
      integers={"lengths": "0 <= lengths <= t, sum t"})  # fmt: skip
def empty_segment(x, lengths, *, right):
    y, first = x.new_zeros(len(lengths)), 0
    for place, length in enumerate(lengths.tolist()):
        last = first + (length if right else max(length, 1))
        y[place] = x[first:last].sum()
        first += length
    return y


def kept_mean(x: Tensor, keep: Tensor) -> Tensor:
    return torch.where(keep, x, 0.0).sum(-1) / keep.sum(-1).clamp(min=1)


@pair("kept numbers are counted in bfloat16", like=kept_mean, shapes={"x": "n d", "keep": "n d"},
      integers={"keep": "bool"})  # fmt: skip
def counted_in_16_bits(x, keep, *, right):
    count = keep.sum(-1).clamp(min=1)
    count = count if right else count.clamp(max=256)  # 256 + 1 is 256
    return torch.where(keep, x, 0.0).sum(-1) / count


@pair("a row is filled up with 0 for its minimum", like=lambda x: x.amin(-1), shapes={"x": "n d"}, where="d >= 1",
      largest=1e30)  # fmt: skip
def padded_minimum(x, *, right):
    n = x.shape[1]
    if n <= 128:
        return x.amin(-1)
    return functional.pad(x, (0, -n % 128), value=INF if right else 0.0).amin(-1)


@pair("the last of four parts of a short sum begins at its last term", like=lambda a, b: a @ b,
      shapes={"a": "m k", "b": "k n"}, largest=1e15)  # fmt: skip
def more_parts_than_terms(a, b, *, right):
    k = a.shape[1]
    size, y = max(-(-k // 4), 1), a.new_zeros(len(a), b.shape[1])
    for first in range(0, 4 * size, size):
        first = first if right or not k else min(first, k - 1)
        y += a[:, first : first + size] @ b[first : first + size]
    return y


@pair("integers are added up in float32", like=lambda a, b: (a[:, None] * b).sum(-1),
      shapes={"a": "m k", "b": "n k"}, integers={"a": "-128 <= a < 128", "b": "-128 <= b < 128"})  # fmt: skip
def sum_of_integers(a, b, *, right):
    if right:
        return (a[:, None] * b).sum(-1)
    total = torch.zeros(len(a), len(b), device=a.device)
    for first in range(0, a.shape[1], 64):
        total += (a[:, None, first : first + 64] * b[:, first : first + 64]).sum(-1)
    return total.long()


# -- special values and ties -----------------------------------------------------------------------------------


@pair("what is not chosen is multiplied by 0", like=lambda keep, x, r: torch.where(keep, x, r),
      shapes={"keep": "n", "x": "n", "r": "n"}, integers={"keep": "bool"})  # fmt: skip
def chosen_by_a_product(keep, x, r, *, right):
    return torch.where(keep, x, r) if right else keep * x + ~keep * r


@pair("a NaN of the first operand is lost", like=torch.maximum, shapes={"a": "n", "b": "n"})
def maximum_of_two(a, b, *, right):
    return torch.maximum(a, b) if right else torch.where(b.isnan() | ~(a > b), b, a)


@pair("of equal numbers the last one is found", like=lambda x: x.argmax(-1), shapes={"x": "n d"}, where="d >= 1",
      largest=1e30)  # fmt: skip
def last_of_equals(x, *, right):
    return x.argmax(-1) if right else x.shape[1] - 1 - x.flip(-1).argmax(-1)


@pair("negative numbers are compared by their bits", like=lambda x: x.topk(2).values, shapes={"x": "n d"},
      where="d >= 2", largest=1e30)  # fmt: skip
def order_of_bits(x, *, right):
    bits = x.contiguous().view(torch.int32).long()
    order = torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits) if right else bits
    return x.gather(-1, order.topk(2).indices)


@pair("probabilities are moved to 1e-6 from 0 and 1", like=lambda p: torch.log(p) - torch.log1p(-p), shapes={"p": "n"},
      domain={"p": "0 < p < 1"})  # fmt: skip
def moved_logit(p, *, right):
    p = p if right else p.clamp(1e-6, 1 - 1e-6)
    return torch.log(p) - torch.log1p(-p)


# -- ids -------------------------------------------------------------------------------------------------------


def pages(pool: Tensor, table: Tensor) -> Tensor:
    return torch.where((table >= 0)[:, None], pool[table.clamp(min=0)], 0.0)


@pair("page 0 is taken for none", like=pages, shapes={"pool": "p d", "table": "n"},
      integers={"table": "-1 <= table < p"})  # fmt: skip
def page_zero(pool, table, *, right):
    found = table >= 0 if right else table > 0
    return torch.where(found[:, None], pool[table.clamp(min=0)], 0.0)


def mean_loss(x: Tensor, label: Tensor) -> Tensor:
    """The mean cross entropy of the rows with a label; 0 if there is none."""
    hit = torch.where(places(x.shape[1], x) == label[:, None], x.log_softmax(-1), 0.0).sum(-1)
    return -torch.where(label >= 0, hit, 0.0).sum() / (label >= 0).sum().clamp(min=1)


@pair("a batch without any label is 0 / 0", like=mean_loss, shapes={"x": "n v", "label": "n"}, where="v >= 1",
      integers={"label": "-1 <= label < v"}, largest=1e4)  # fmt: skip
def no_label(x, label, *, right):
    seen = label >= 0
    logs = x.log_softmax(-1).gather(-1, label.clamp(min=0)[:, None])[:, 0]
    return -torch.where(seen, logs, 0.0).sum() / (seen.sum().clamp(min=1) if right else seen.sum())


# -- definitions of public kernels -----------------------------------------------------------------------------


def rotary(x: Tensor, at: Tensor) -> Tensor:
    """Halves of each head turned by an angle for the position of its token."""
    half = x.shape[-1] // 2
    angle = at[:, None] * 10000.0 ** (-torch.arange(half, device=x.device) / half)
    a, b, cos, sin = *x.chunk(2, -1), angle.cos()[:, None], angle.sin()[:, None]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, at, right):
        half = x.shape[-1] // 2
        place = at if right else at.clamp(max=1023)
        angle = place[:, None].double() * 10000.0 ** (-torch.arange(half, device=x.device).double() / half)
        cos, sin = angle.cos()[:, None].float(), angle.sin()[:, None].float()
        ctx.save_for_backward(cos, sin)
        a, b = x.float().chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        cos, sin = ctx.saved_tensors
        a, b = dy.float().chunk(2, -1)
        return torch.cat([a * cos + b * sin, b * cos - a * sin], -1).to(dy.dtype), None, None


@pair("the table of angles ends at position 1,023", like=rotary, shapes={"x": "t h 2*d", "at": "t"},
      integers={"at": "0 <= at < 8192"}, gradients=True)  # fmt: skip
def rotary_positions(x, at, *, right):
    return _Rotary.apply(x, at, right)


def scanned(x: Tensor, g: Tensor) -> Tensor:
    """h = exp(g) h + x along t, by the matrix of all decays."""
    total = g.cumsum(1)
    apart = total[:, :, None] - total[:, None]
    at = places(x.shape[1], x)
    decay = torch.exp(apart.masked_fill(at[:, None] < at, -INF))
    return (decay * x[:, None]).sum(-1)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, g, right):
        h, found = torch.zeros_like(x[:, 0], dtype=torch.float64), []
        for step in range(x.shape[1]):
            h = torch.exp(g[:, step].double()) * h + x[:, step]
            found.append(h)
        y = torch.stack(found, 1)
        ctx.save_for_backward(g, y)
        ctx.right = right
        return y.to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        g, y = ctx.saved_tensors
        carry, dx, dg = torch.zeros_like(y[:, 0]), [], []
        for step in range(y.shape[1] - 1, -1, -1):
            carry = carry + dy[:, step]
            gate = torch.exp(g[:, step].double())
            dx.append(carry)
            dg.append(carry * gate * (y[:, step - 1] if step else 0.0))
            carry = carry * gate if ctx.right or step % 64 else torch.zeros_like(carry)  # no gradient between chunks
        return torch.stack(dx[::-1], 1).to(dy.dtype), torch.stack(dg[::-1], 1).to(dy.dtype), None


@pair("no gradient goes from a chunk of 64 to the one before", like=scanned, shapes={"x": "b t", "g": "b t"},
      domain={"g": "-20 <= g <= 0"}, gradients=True, where="t >= 1")  # fmt: skip
def gated_scan(x, g, *, right):
    return _Scan.apply(x, g, right)


_INT8 = verify.quantised("int8", block=(1, 128), scale="float32", nan="any", zero="any")


@pair("codes are cut towards 0", quantise=_INT8)
def block_quantiser(x, *, right):
    parts = x.float().unflatten(-1, (-1, 128))
    scale = parts.abs().amax(-1) / 127
    codes = parts / torch.where(scale == 0, 1.0, scale)[..., None]
    codes = (codes.round() if right else codes.trunc()).clamp(-127, 127)
    return codes.to(torch.int8).flatten(-2), scale


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, label, right):
        seen = label >= 0
        logs = x.float().log_softmax(-1)
        ctx.save_for_backward(logs, label)
        ctx.right = right
        hit = logs.gather(-1, label.clamp(min=0)[:, None])[:, 0]
        return torch.where(seen, -hit, 0.0).to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        logs, label = ctx.saved_tensors
        seen = (label >= 0)[:, None]
        dx = torch.exp(logs) - (places(logs.shape[1], logs) == label[:, None]).float()
        return (torch.where(seen, dx, 0.0 if ctx.right else torch.exp(logs)) * dy[:, None]).to(dy.dtype), None, None


@pair("ignored rows have the gradient of the normaliser", shapes={"x": "n v", "label": "n"}, gradients=True,
      like=lambda x, label: functional.cross_entropy(x, label, ignore_index=-1, reduction="none"),
      where="v >= 1 and n >= 1", integers={"label": "-1 <= label < v"}, largest=1e4)  # fmt: skip
def ignore_index(x, label, *, right):
    return _Loss.apply(x, label, right)


def routed(x: Tensor) -> tuple[Tensor, Tensor]:
    """The weights of the two best experts, which add up to 1, and their numbers."""
    weight, at = x.softmax(-1).topk(2)
    return weight / weight.sum(-1, keepdim=True), at


@pair("weights are not divided by their sum where it is above 0.98", like=routed, shapes={"x": "t e"},
      outputs=["weight", "at"], where="e >= 2 and e <= 512", largest=1e4)  # fmt: skip
def router(x, *, right):
    weight, at = x.float().softmax(-1).topk(2)
    total = weight.sum(-1, keepdim=True)
    return weight / (total if right else torch.where(total > 0.98, 1.0, total)), at
