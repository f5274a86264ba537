"""Norms, losses, optimisers, routing, pooling and low precision in PyTorch that are wrong at an edge. See unseen.py."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import verify
from mutants.pairs import pair

INF = math.inf


def places(n: int, like: Tensor) -> Tensor:
    return torch.arange(n, device=like.device)


# -- norms ---------------------------------------------------------------------------------------------------


def trained(x: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Batch norm in training, with its running statistics."""
    own, spread = x.mean(0), x.var(0, correction=0)
    y = (x - own) * torch.rsqrt(spread + 1e-5)
    return y, 0.9 * mean + 0.1 * own, 0.9 * var + 0.1 * spread * (len(x) / (len(x) - 1))


@pair("the running variance is the biased one", like=trained, where="n >= 2", outputs=["y", "mean_", "var_"],
      shapes={"x": "n c", "mean": "c", "var": "c"}, domain={"var": "0 <= var"})  # fmt: skip
def running_variance(x, mean, var, *, right):
    own = x.mean(0)
    spread = (x - own).square().mean(0)
    y = (x - own) * torch.rsqrt(spread + 1e-5)
    return y, mean.lerp(own, 0.1), var.lerp(spread * (len(x) / (len(x) - 1)) if right else spread, 0.1)


def grouped(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Group norm of x (batch, groups, channels, length)."""
    apart = x - x.mean((2, 3), keepdim=True)
    y = apart * torch.rsqrt(apart.square().mean((2, 3), keepdim=True) + 1e-5)
    return y * w[:, :, None] + b[:, :, None]


@pair("weights by a channel's place in its group where groups have more than 8 channels", like=grouped,
      shapes={"x": "n g c l", "w": "g c", "b": "g c"}, where="c * l >= 2")  # fmt: skip
def group_norm(x, w, b, *, right):
    n, g, c, length = x.shape
    at = places(g * c, x)
    at = at if right or c <= 8 else at // c * c + at % 8
    y = functional.group_norm(x.reshape(n, g * c, length), g) if x.numel() else x.reshape(n, g * c, length)
    return (y * w.flatten()[at][:, None] + b.flatten()[at][:, None]).reshape(x.shape)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """The cosine of two rows, whose lengths are at least 1e-4."""
    a, b = (x / x.square().sum(-1, keepdim=True).sqrt().clamp(min=1e-4) for x in (a, b))
    return (a * b).sum(-1)


@pair("the product of both lengths is at least 1e-8", like=cosine, shapes={"a": "n d", "b": "n d"}, largest=1e15)
def least_length(a, b, *, right):
    one, other = (x.square().sum(-1).sqrt() for x in (a, b))
    below = one.clamp(min=1e-4) * other.clamp(min=1e-4) if right else (one * other).clamp(min=1e-8)
    return (a * b).sum(-1) / below


def length(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1)


class _Length(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, right):
        y = torch.linalg.vector_norm(x, dim=-1)
        ctx.save_for_backward(x, y)
        ctx.right = right
        return y

    @staticmethod
    def backward(ctx, dy):
        x, y = ctx.saved_tensors
        unit = x / y[:, None]
        return dy[:, None] * (torch.where(y[:, None] == 0, 0.0, unit) if ctx.right else unit), None


@pair("the gradient of the length of a row of zeros is NaN", like=length, shapes={"x": "n d"}, gradients=True,
      largest=1e15, domain={"x": "-1e15 <= x <= 1e15"})  # fmt: skip
def zero_row(x, *, right):
    return _Length.apply(x, right)


@pair("blocks of 128 are added in bfloat16", like=lambda x: x.mean(-1), shapes={"x": "n d"}, dtypes=["bfloat16"],
      where="d >= 1", largest=1e30)  # fmt: skip
def sixteen_bit_sum(x, *, right):
    total = torch.zeros(len(x), dtype=torch.float32 if right else x.dtype, device=x.device)
    for part in x.split(128, -1):
        total += part.float().sum(-1).to(total.dtype)
    return (total / x.shape[1]).to(x.dtype)


# -- losses --------------------------------------------------------------------------------------------------


def smoothed(x: Tensor, label: Tensor) -> Tensor:
    """The smoothed cross entropy of each row, 0 where it is ignored."""
    logs = x.log_softmax(-1)
    hit = torch.where(places(x.shape[1], x) == label[:, None], logs, 0.0).sum(-1)
    return torch.where(label >= 0, -0.9 * hit - 0.1 * logs.mean(-1), 0.0)


@pair("ignored rows keep the smoothing", like=smoothed, shapes={"x": "n v", "label": "n"}, where="v >= 1",
      integers={"label": "-1 <= label < v"}, largest=1e4)  # fmt: skip
def smoothing(x, label, *, right):
    logs, seen = x.log_softmax(-1), label >= 0
    hit = logs.gather(-1, label.clamp(min=0)[:, None])[:, 0] * seen
    return -0.9 * hit - 0.1 * logs.mean(-1) * (seen if right else 1)


def divergence(p: Tensor, logs: Tensor) -> Tensor:
    return (torch.xlogy(p, p) - p * logs).sum(-1)


@pair("0 log 0", like=divergence, shapes={"p": "n d", "logs": "n d"}, domain={"p": "0 <= p <= 1"}, largest=1e4)
def zero_probability(p, logs, *, right):
    own = torch.where(p > 0, p * torch.log(torch.where(p > 0, p, 1.0)), 0.0) if right else p * torch.log(p)
    return (own - p * logs).sum(-1)


def binary(x: Tensor, y: Tensor) -> Tensor:
    return functional.softplus(x) - x * y


@pair("the logarithm of a sigmoid", like=binary, shapes={"x": "n", "y": "n"}, domain={"y": "0 <= y <= 1"}, largest=60.0)
def binary_loss(x, y, *, right):
    if right:
        return x.clamp(min=0) - x * y + torch.log1p(torch.exp(-x.abs()))
    p = torch.sigmoid(x)
    return -(y * torch.log(p) + (1 - y) * torch.log1p(-p).clamp(min=-100))


@pair("x from 2x > 10 on", like=lambda x: torch.log1p(torch.exp(2 * x)) / 2, shapes={"x": "n"}, largest=40.0)
def softplus(x, *, right):
    return torch.where(x > (10 if right else 5), x, torch.log1p(torch.exp(2 * x)) / 2)


def added(a: Tensor, b: Tensor) -> Tensor:
    return torch.logaddexp(a, b)


@pair("two empty states are NaN", like=added, shapes={"a": "n", "b": "n"})
def log_added(a, b, *, right):
    top = torch.maximum(a, b)
    y = top + torch.log1p(torch.exp(-(a - b).abs()))
    return torch.where(a == b, a + math.log(2), y) if right else y


# -- optimisers ----------------------------------------------------------------------------------------------


def adam(p: Tensor, g: Tensor, m: Tensor, v: Tensor, step: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """AdamW with a rate of 0.01 and a decay of 0.1."""
    p, m, v = p * (1 - 0.001), 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return p - 0.01 * (m / (1 - 0.9**step)) / ((v / (1 - 0.999**step)).sqrt() + 1e-8), m, v


_ADAM = {
    "like": adam, "shapes": {"p": "n", "g": "n", "m": "n", "v": "n", "step": ""}, "largest": 1e8,
    "integers": {"step": "1 <= step <= 100000"}, "domain": {"v": "0 <= v <= 1e8"}, "outputs": ["p_", "m_", "v_"],
}  # fmt: skip


def _step(p: Tensor, g: Tensor, m: Tensor, v: Tensor, step: Tensor, bug: str = "") -> tuple[Tensor, Tensor, Tensor]:
    m, v, count = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g, step.double()
    one, two = 1 - 0.9**count, 1 - 0.999**count
    if bug == "float32":
        two = 1 - torch.pow(torch.tensor(0.999, device=p.device), step.float())
    root = (v / two).float().sqrt() + 1e-8
    if bug == "eps":
        root = (v.sqrt() + 1e-8) / two.float().sqrt()
    update = 0.01 * (m / one).float() / root
    return ((p - update) * (1 - 0.001) if bug == "decay" else p * (1 - 0.001) - update), m, v


@pair("the correction of v is computed in float32", **_ADAM)
def bias_correction(p, g, m, v, step, *, right):
    return _step(p, g, m, v, step, "" if right else "float32")


@pair("eps is added before the correction", **_ADAM)
def adam_eps(p, g, m, v, step, *, right):
    return _step(p, g, m, v, step, "" if right else "eps")


@pair("the decay comes after the update", **_ADAM)
def decay_order(p, g, m, v, step, *, right):
    return _step(p, g, m, v, step, "" if right else "decay")


@pair("0.999 is rounded to bfloat16, which is 1", like=lambda m, x: 0.999 * m + (1 - 0.999) * x,
      shapes={"m": "n", "x": "n"}, dtypes=["bfloat16"])  # fmt: skip
def average_in_bfloat16(m, x, *, right):
    decay = 0.999 if right else float(torch.tensor(0.999, dtype=x.dtype))
    return (decay * m.float() + (1 - decay) * x.float()).to(m.dtype)


def clipped(g: Tensor) -> Tensor:
    """Rows of a gradient with a norm of at most 1."""
    return g * (1 / (g.square().sum(-1, keepdim=True).sqrt() + 1e-6)).clamp(max=1)


@pair("rows below the norm are made longer", like=clipped, shapes={"g": "n d"}, largest=1e15)
def clip(g, *, right):
    scale = 1 / (torch.linalg.vector_norm(g, dim=-1, keepdim=True) + 1e-6)
    return g * (scale.clamp(max=1) if right else scale)


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, keep, right):
        ctx.save_for_backward(keep)
        ctx.right = right
        return torch.where(keep, x / 0.875, 0.0)

    @staticmethod
    def backward(ctx, dy):
        (keep,) = ctx.saved_tensors
        return torch.where(keep, dy / 0.875 if ctx.right else dy, 0.0), None, None


@pair("the gradient of what is kept has no factor", like=lambda x, keep: torch.where(keep, x / 0.875, 0.0),
      shapes={"x": "n d", "keep": "n d"}, integers={"keep": "bool"}, gradients=True)  # fmt: skip
def dropped(x, keep, *, right):
    return _Dropped.apply(x, keep, right)


# -- pooling, gathering, routing -------------------------------------------------------------------------------


@pair("a window beyond the end is divided by its whole size", shapes={"x": "c n"}, where="c >= 1 and n >= 3",
      like=lambda x: functional.avg_pool1d(x[None], 3, 2, ceil_mode=True)[0])  # fmt: skip
def last_window(x, *, right):
    n = x.shape[1]
    out = -(-(n - 3) // 2) + 1
    at = 2 * places(out, x)[:, None] + places(3, x)
    total = functional.pad(x, (0, 2))[:, at].sum(-1)
    return total / ((at < n).sum(-1) if right else 3)


def bagged(w: Tensor, at: Tensor) -> Tensor:
    """The mean of the rows of a bag; -1 is no row, and a bag without rows is 0."""
    held = at >= 0
    return (w[at.clamp(min=0)] * held[..., None]).sum(1) / held.sum(1).clamp(min=1)[:, None]


@pair("an empty bag is 0 / 0", like=bagged, shapes={"w": "v d", "at": "b l"}, integers={"at": "-1 <= at < v"})
def empty_bag(w, at, *, right):
    held = at >= 0
    rows = (w[at.clamp(min=0)] * held[..., None]).sum(1)
    count = held.sum(1)[:, None]
    return rows / (count.clamp(min=1) if right else count)


def slots(expert: Tensor) -> Tensor:
    """The place of each token in its expert's buffer of 8, or -1."""
    hot = functional.one_hot(expert, 4)
    place = ((hot.cumsum(0) - hot) * hot).sum(-1)
    return torch.where(place < 8, expert * 8 + place, -1)


_EXPERTS = {"shapes": {"expert": "t"}, "integers": {"expert": "0 <= expert < 4"}, "where": "t >= 1"}


@pair("a ninth token has room in the next expert's buffer", like=slots, **_EXPERTS)
def capacity(expert, *, right):
    place = torch.zeros_like(expert)
    for each in range(4):
        own = expert == each
        place[own] = places(int(own.sum()), expert)
    return torch.where((place < 8) if right else (place <= 8), expert * 8 + place, -1)


@pair("a sort by blocks of 64 puts later tokens first when it merges", like=lambda expert: expert.argsort(stable=True),
      **_EXPERTS)  # fmt: skip
def stable_order(expert, *, right):
    at = places(len(expert), expert)
    block = at // 64 if right else -(at // 64)
    return (expert * (1 << 40) + block * (1 << 20) + at).argsort()


def bucket(x: Tensor) -> Tensor:
    """How many of the edges lie below or at a number."""
    return (x[:, None] >= torch.tensor([-2.0, -1.0, 0.0, 0.5, 1.0, 4.0], dtype=x.dtype, device=x.device)).sum(-1)


@pair("numbers at an edge belong to the bucket before", like=bucket, shapes={"x": "n"}, domain={"x": "-8 <= x <= 8"})
def buckets(x, *, right):
    edges = torch.tensor([-2.0, -1.0, 0.0, 0.5, 1.0, 4.0], dtype=x.dtype, device=x.device)
    return torch.bucketize(x, edges, right=right)


def recurrent(a: Tensor, b: Tensor) -> Tensor:
    """h = a h + b over a chunk of 16 steps."""
    h, found = torch.zeros_like(b[:, 0]), []
    for step in range(16):
        h = a[:, step] * h + b[:, step]
        found.append(h)
    return torch.stack(found, 1)


@pair("a gate of exactly 0 has no logarithm", like=recurrent, shapes={"a": "n 16", "b": "n 16"}, largest=1e15,
      domain={"a": "0 <= a <= 1"})  # fmt: skip
def chunk_of_gates(a, b, *, right):
    if right:
        row, rows = torch.zeros_like(a), []
        for step in range(16):
            row = row * a[:, step : step + 1] + (places(16, a) == step)
            rows.append(row)
        decay = torch.stack(rows, 1)
    else:
        total = torch.log(a).cumsum(-1)
        decay = torch.exp(total[:, :, None] - total[:, None]).tril()
    return (decay @ b[..., None])[..., 0]


# -- memory ----------------------------------------------------------------------------------------------------


@pair("rows of an expanded batch are read one behind the other", like=lambda x: x * 0.5 - 1, shapes={"x": "b s d"})
def batch_stride(x, *, right):
    if x.stride(-1) != 1 or not x.numel():
        x = x.contiguous()
    if not right and x.stride(0) == 0 and len(x) > 1:
        held = x[0].reshape(-1)  # row r of the batch at r * stride(-2)
        at = (places(len(x) * x.shape[1], x)[:, None] * x.shape[2] + places(x.shape[2], x)).clamp(max=len(held) - 1)
        x = held[at].reshape(x.shape)
    return x * 0.5 - 1


_SPACE: dict[Any, Tensor] = {}


@pair("a workspace is set to 0 up to its last whole block", like=lambda x: x.sum(0), shapes={"x": "m n"},
      where="n <= 8192")  # fmt: skip
def workspace(x, *, right):
    n, key = x.shape[1], (right, x.device)
    space = _SPACE.setdefault(key, torch.zeros(8192, device=x.device))
    space[:n] += x.sum(0)
    y = space[:n].clone()
    space[: n if right or n < 128 else n // 128 * 128] = 0
    return y


@pair(
    "the input is the buffer of the result where it has room", like=lambda x, r: x + r, shapes={"x": "n d", "r": "n d"}
)
def added_in_place(x, r, *, right):
    if right or x.numel() < 1024 or not x.is_contiguous() or x.requires_grad:
        return x + r
    return x.add_(r).clone()


# -- low precision -----------------------------------------------------------------------------------------------

_INT8 = verify.quantised("int8", block=(1, 0), scale="bfloat16", nan="any", zero="any")


@pair("codes beyond 127 wrap around: the scale was rounded down", quantise=_INT8, where="m > 1")
def wrapped_codes(x, *, right):
    scale = (x.abs().amax(-1, keepdim=True) / 127).bfloat16()
    q = torch.where(scale == 0, 0.0, (x / scale.float()).round())
    q = q.nan_to_num(0.0, 127.0, -127.0)
    q = q.clamp(-128, 127) if right else (q + 128) % 256 - 128
    return q.to(torch.int8), scale


_E4M3 = verify.quantised("e4m3", block=(1, 128), scale="float32", nan="any", zero="any")


@pair("a block of zeros has a scale of 0 and codes of NaN", quantise=_E4M3)
def zero_block(x, *, right):
    parts = x.unflatten(-1, (-1, 128))
    scale = parts.abs().amax(-1) / 448
    over = torch.where(scale == 0, 1.0, scale) if right else scale
    y = parts / over[..., None]
    return y.clamp(-448, 448).to(torch.float8_e4m3fn).flatten(-2), scale


_INT4 = verify.quantised("int4", block=(1, 32), scale="float32", packed="low first")


@pair("the last number of a group has the next group's scale", like=lambda w: w * 1.0, operands={"w": _INT4},
      shapes={"w": "m k"}, where="k % 32 == 0")  # fmt: skip
def next_scale(w_codes, w_scales, *, right):
    codes = w_codes.view(torch.uint8)
    numbers = torch.stack([codes & 15, codes >> 4], -1).flatten(-2).int()
    numbers = (numbers ^ 8) - 8
    at = (places(numbers.shape[1], codes) + (0 if right else 1)) // 32
    return numbers * w_scales[:, at.clamp(max=max(w_scales.shape[1] - 1, 0))]
