"""The programs: what people write kernels for, as functions of tensors, each with the fault that such kernels have.

Every function takes tensors of any device and format. A fault is the same function, wrong in one place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from benchmarks import like_suite

Draw = Callable[[torch.Generator], Tensor]
Fault = tuple[str, Callable[..., Any]]  # its name, and the program that has it


@dataclass(frozen=True)
class Program:
    """A definition with its operands: shapes of normal numbers, or what draws them.

    fault: a fault of this program's own.
    quick: whether it belongs to the subset of --quick.
    """

    name: str
    group: str
    function: Callable[..., Any]
    operands: Sequence[tuple[int, ...] | Draw]
    fault: Fault | None = None
    dtype: str = "float32"
    quick: bool = False

    def drawn(self, seed: int) -> list[Tensor]:
        """Returns operands in float32 (or int64), the same for the same seed."""
        generator = torch.Generator().manual_seed(seed)
        return [d(generator) if callable(d) else torch.randn(d, generator=generator) for d in self.operands]


def normal(*shape: int, scale: float = 1.0, mean: float = 0.0) -> Draw:
    """Normal numbers of a deviation and a mean."""
    return lambda generator: mean + scale * torch.randn(shape, generator=generator)


def integers(high: int, *shape: int) -> Draw:
    """Integers from 0 to below `high`."""
    return lambda generator: torch.randint(0, high, shape, generator=generator)


def weight(out: int, into: int, gain: float = 1.0) -> Draw:
    """A weight matrix that keeps the size of what it multiplies."""
    return normal(out, into, scale=gain / math.sqrt(into))


# -- attention and transformers -------------------------------------------------------------------------


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, ahead: int = 0, window: int = 0, cap: float = 0.0
) -> Tensor:
    """Attention. A query sees keys up to `ahead` positions after its own, and no more than `window` before it."""
    scores = (q @ k.transpose(-1, -2)) * (1 / math.sqrt(q.shape[-1]))
    if cap:
        scores = cap * torch.tanh(scores / cap)
    if causal or window:
        apart = torch.arange(q.shape[-2], device=q.device)[:, None] - torch.arange(k.shape[-2], device=q.device)
        hidden = apart < -ahead
        scores = scores.masked_fill(hidden | (apart > window) if window else hidden, -math.inf)
    return torch.softmax(scores, -1) @ v


def grouped_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    each = q.shape[1] // k.shape[1]
    return attention(q, k.repeat_interleave(each, 1), v.repeat_interleave(each, 1), causal=True)


def wrong_groups(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    each = q.shape[1] // k.shape[1]
    return attention(q, torch.cat([k] * each, 1), torch.cat([v] * each, 1), causal=True)


def block(x: Tensor, p: Sequence[Tensor], heads: int = 2) -> Tensor:
    batch, length, width = x.shape
    g1, b1, wqkv, wo, g2, b2, w1, c1, w2, c2 = p
    y = F.layer_norm(x, (width,), g1, b1)
    q, k, v = F.linear(y, wqkv).reshape(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4).unbind(0)
    a = attention(q, k, v, causal=True).transpose(1, 2).reshape(batch, length, width)
    x = x + F.linear(a, wo)
    y = F.layer_norm(x, (width,), g2, b2)
    return x + F.linear(F.gelu(F.linear(y, w1, c1)), w2, c2)


def transformer(x: Tensor, *p: Tensor) -> Tensor:
    for place in range(0, len(p), 10):
        x = block(x, p[place : place + 10])
    return x


def _block_operands(count: int, width: int = 64) -> list[Any]:
    one: list[Any] = [normal(width, scale=0.1, mean=1.0), normal(width, scale=0.1), weight(3 * width, width)]
    one += [weight(width, width), *one[:2], weight(2 * width, width), normal(2 * width, scale=0.1)]
    one += [weight(width, 2 * width), normal(width, scale=0.1)]
    return [(2, 16, width), *one * count]


def modern_block(
    x: Tensor, g: Tensor, wqkv: Tensor, wo: Tensor, h: Tensor, wg: Tensor, wu: Tensor, wd: Tensor
) -> Tensor:
    """RMS norm, rotary positions, grouped queries, SwiGLU."""
    length, width = x.shape
    q, k, v = F.linear(F.rms_norm(x, (width,), g, 1e-6), wqkv).split([width, width // 2, width // 2], -1)
    q, k, v = (each.reshape(length, -1, 16).transpose(0, 1) for each in (q, k, v))
    angle = torch.arange(length, device=x.device)[:, None] * 100.0 ** (-torch.arange(8, device=x.device) / 8)
    turn = torch.cat([angle, angle], -1).to(x.dtype)
    q, k = (like_suite.rope(each, turn.cos(), turn.sin()) for each in (q, k))
    k, v = k.repeat_interleave(2, 0), v.repeat_interleave(2, 0)
    x = x + F.linear(attention(q, k, v, causal=True).transpose(0, 1).reshape(length, width), wo)
    y = F.rms_norm(x, (width,), h, 1e-6)
    return x + F.linear(F.silu(F.linear(y, wg)) * F.linear(y, wu), wd)


def experts(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, *, chosen: int = 2) -> Tensor:
    """A mixture of experts: each row goes to the best two."""
    share = torch.softmax(x @ gate, -1)
    least = share.topk(chosen, -1)[0][:, -1:]
    share = torch.where(share >= least, share, torch.zeros_like(share))
    share = share / share.sum(-1, keepdim=True)
    y = torch.bmm(F.silu(torch.bmm(x.expand(up.shape[0], -1, -1), up)), down)
    return (share.T.unsqueeze(-1) * y).sum(0)


# -- recurrent networks and scans -----------------------------------------------------------------------


def rnn(x: Tensor, wi: Tensor, wh: Tensor, b: Tensor, h: Tensor) -> Tensor:
    for t in range(x.shape[0]):
        h = torch.tanh(F.linear(x[t], wi) + F.linear(h, wh) + b)
    return h


def gru(x: Tensor, wi: Tensor, wh: Tensor, bi: Tensor, bh: Tensor, h: Tensor) -> Tensor:
    for t in range(x.shape[0]):
        (r, z, n), (hr, hz, hn) = (each.chunk(3, -1) for each in (F.linear(x[t], wi, bi), F.linear(h, wh, bh)))
        z = torch.sigmoid(z + hz)
        h = (1 - z) * torch.tanh(n + torch.sigmoid(r + hr) * hn) + z * h
    return h


def lstm(x: Tensor, wi: Tensor, wh: Tensor, b: Tensor, h: Tensor, c: Tensor, *, forget: bool = True) -> Tensor:
    for t in range(x.shape[0]):
        i, f, g, o = (F.linear(x[t], wi, b) + F.linear(h, wh)).chunk(4, -1)
        c = (torch.sigmoid(f) * c if forget else c) + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
    return h


# -- networks -------------------------------------------------------------------------------------------


def mlp(x: Tensor, *p: Tensor) -> Tensor:
    for w, b in zip(p[::2], p[1::2], strict=True):
        x = F.relu(F.linear(x, w, b))
    return x


def lenet(x: Tensor, *p: Tensor) -> Tensor:
    x = F.max_pool2d(F.relu(F.conv2d(x, p[0], p[1])), 2)
    x = F.max_pool2d(F.relu(F.conv2d(x, p[2], p[3])), 2).flatten(1)
    x = F.relu(F.linear(x, p[4], p[5]))
    return F.linear(F.relu(F.linear(x, p[6], p[7])), p[8], p[9])


def unet(x: Tensor, first: Tensor, second: Tensor, low: Tensor, join: Tensor, last: Tensor, b: Tensor) -> Tensor:
    top = F.relu(F.conv2d(F.relu(F.conv2d(x, first, padding=1)), second, padding=1))
    deep = F.relu(F.conv2d(F.max_pool2d(top, 2), low, padding=1))
    both = torch.cat([top, F.interpolate(deep, scale_factor=2)], 1)
    return F.conv2d(F.relu(F.conv2d(both, join, padding=1)), last, b)


def regnet(x: Tensor, stem: Tensor, g: Tensor, b: Tensor, *p: Tensor) -> Tensor:
    """A stem, two residual blocks of 1x1, grouped 3x3 and 1x1 convolutions with batch norm, a mean, a linear layer."""

    def norm(x: Tensor, g: Tensor, b: Tensor) -> Tensor:
        return F.batch_norm(x, None, None, g, b, True)

    x = F.relu(norm(F.conv2d(x, stem, stride=2, padding=1), g, b))
    for w1, w2, w3, g1, b1 in (p[:5], p[5:10]):
        y = F.relu(norm(F.conv2d(x, w1), g1, b1))
        y = F.relu(norm(F.conv2d(y, w2, padding=1, groups=2), g1, b1))
        x = F.relu(x + norm(F.conv2d(y, w3), g1, b1))
    return F.linear(x.mean((2, 3)), p[10], p[11])


def _regnet_operands(width: int = 8) -> list[Any]:
    affine = [normal(width, scale=0.1, mean=1.0), normal(width, scale=0.1)]
    one, grouped = normal(width, width, 1, 1, scale=0.35), normal(width, width // 2, 3, 3, scale=0.2)
    stage = [one, grouped, one, *affine]
    return [(2, 3, 12, 12), normal(width, 3, 3, 3, scale=0.2), *affine, *stage * 2, weight(5, width), (5,)]


def residual(x: Tensor, w1: Tensor, g1: Tensor, b1: Tensor, w2: Tensor, g2: Tensor, b2: Tensor) -> Tensor:
    y = F.relu(F.batch_norm(F.conv2d(x, w1, padding=1), None, None, g1, b1, True))
    return F.relu(F.batch_norm(F.conv2d(y, w2, padding=1), None, None, g2, b2, True) + x)


def newton_schulz(x: Tensor) -> Tensor:
    """Five steps towards the orthogonal matrix that is next to x."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        s = x @ x.T
        x = a * x + (b * s + c * s @ s) @ x
    return x


def swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def geglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return F.linear(F.gelu(F.linear(x, gate), approximate="tanh") * F.linear(x, up), down)


def one_pass_variance(x: Tensor) -> Tensor:
    return (x * x).mean(-1) - x.mean(-1) ** 2


def group_norm(x: Tensor, w: Tensor, b: Tensor, *, groups: int = 4) -> Tensor:
    return F.group_norm(x, groups, w, b, 1e-5)


# -- the list -------------------------------------------------------------------------------------------

_ROWS, _QKV = (16, 256), [(2, 64, 32)] * 3
_LENET: list[Any] = [(2, 1, 28, 28), normal(6, 1, 5, 5, scale=0.2), normal(6, scale=0.1)]
_LENET += [normal(16, 6, 5, 5, scale=0.08), normal(16, scale=0.1), weight(120, 256), normal(120, scale=0.1)]
_LENET += [weight(84, 120), normal(84, scale=0.1), weight(10, 84), normal(10, scale=0.1)]
_GATED = [(16, 64), weight(128, 64), weight(128, 64), weight(64, 128)]
_UNET = [(2, 3, 8, 8), *(normal(*s, scale=0.2) for s in ((4, 3, 3, 3), (4, 4, 3, 3), (8, 4, 3, 3), (4, 12, 3, 3)))]
_UNET += [normal(2, 4, 1, 1, scale=0.5), (2,)]


def _mlp_operands(depth: int) -> list[Any]:
    width = 64
    return [(16, width), *[weight(width, width, math.sqrt(2)), normal(width, scale=0.1)] * depth]


def _layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b, 1e-5)


def _rms_norm(x: Tensor, w: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), w, 1e-6)


def _wrong_labels(loss: Callable[..., Any]) -> Fault:
    return "labels one place off", lambda x, label: loss(x, (label + 1) % x.shape[-1])


def _columns_off(function: Callable[..., Any]) -> Fault:
    return "columns one place off", lambda x, *others: function(x.roll(1, -1), *others)


def _exclusive(x: Tensor) -> Tensor:
    return x.cumsum(-1) - x


def _scale_shift(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """What a diffusion transformer does between a norm and its next layer."""
    return F.layer_norm(x, (x.shape[-1],), None, None, 1e-6) * (1 + scale) + shift


def _own() -> list[Program]:
    causal, windowed = partial(attention, causal=True), partial(attention, window=8)
    wide = [(2, 4, 32, 16), (2, 2, 32, 16), (2, 2, 32, 16)]
    labels = integers(100, 16)
    linear = [(16, 256), (32, 256), (32,)]
    recurrent = [(16, 4, 32), weight(32, 32), weight(32, 32), normal(32, scale=0.1), (4, 32)]
    gated = [weight(96, 32), weight(96, 32), normal(96, scale=0.1), normal(96, scale=0.1), (4, 32)]
    smoothed = partial(F.cross_entropy, label_smoothing=0.1)
    pooled, averaged = partial(F.max_pool2d, kernel_size=2), partial(F.avg_pool2d, kernel_size=2)
    longer = [weight(128, 32), weight(128, 32), normal(128, scale=0.1), (4, 32), (4, 32)]
    ahead, narrow = partial(attention, causal=True, ahead=1), partial(attention, window=7)
    return [
        Program("gelu", "elementwise", lambda x: F.gelu(x), [(4096,)], quick=True),
        Program("softmax", "softmax", lambda x: torch.softmax(x, -1), [_ROWS], quick=True),
        Program("log softmax", "softmax", lambda x: torch.log_softmax(x, -1), [_ROWS]),
        Program("softmax, temperature", "softmax", lambda x: torch.softmax(x / 0.7, -1), [_ROWS]),
        Program(
            "logsumexp",
            "softmax",
            lambda x: torch.logsumexp(x, -1),
            [_ROWS],
            ("ignores the first column", lambda x: torch.logsumexp(x[:, 1:], -1)),
            quick=True,
        ),
        Program("layer norm", "norms", _layer_norm, [_ROWS, (256,), (256,)], quick=True),
        Program("layer norm, modulated", "norms", _scale_shift, [(16, 128), (128,), (128,)]),
        Program("RMS norm", "norms", _rms_norm, [_ROWS, (256,)]),
        Program(
            "group norm",
            "norms",
            group_norm,
            [(2, 16, 8, 8), (16,), (16,)],
            ("half as many groups", partial(group_norm, groups=2)),
        ),
        Program(
            "batch norm",
            "norms",
            lambda x, w, b: F.batch_norm(x, None, None, w, b, True, eps=1e-5),
            [(8, 6, 5, 5), (6,), (6,)],
        ),
        Program("instance norm", "norms", lambda x: F.instance_norm(x, eps=1e-5), [(2, 4, 8, 8)]),
        Program("L2 normalize", "norms", lambda x: F.normalize(x, dim=-1), [(16, 128)]),
        Program(
            "variance",
            "reductions",
            lambda x: x.var(-1),
            [_ROWS],
            ("divides by n instead of n - 1", lambda x: x.var(-1, correction=0)),
        ),
        Program("variance, one pass", "reductions", one_pass_variance, [_ROWS]),
        Program(
            "cosine similarity",
            "reductions",
            lambda x, y: F.cosine_similarity(x, y),
            [_ROWS, _ROWS],
            ("divides by one norm", lambda x, y: (F.normalize(x, dim=-1) * y).sum(-1)),
        ),
        Program(
            "distances",
            "reductions",
            lambda a, b: torch.cdist(a, b),
            [(12, 32), (10, 32)],
            ("no square root", lambda a, b: torch.cdist(a, b) ** 2),
        ),
        Program(
            "cross entropy", "losses", F.cross_entropy, [(16, 100), labels], _wrong_labels(F.cross_entropy), quick=True
        ),
        Program("cross entropy, smoothed", "losses", smoothed, [(16, 100), labels], _wrong_labels(smoothed)),
        Program("focal", "losses", like_suite.focal, [(16, 100), labels], _wrong_labels(like_suite.focal)),
        Program("contrastive", "losses", like_suite.contrastive, [(16, 64), (16, 64)]),
        Program("mean squares", "losses", F.mse_loss, [_ROWS, _ROWS], _columns_off(F.mse_loss)),
        Program("matmul, 64", "products", torch.matmul, [(16, 64), (64, 16)], _columns_off(torch.matmul), quick=True),
        Program("matmul, 512", "products", torch.matmul, [(16, 512), (512, 16)], _columns_off(torch.matmul)),
        Program("matmul, 4096", "products", torch.matmul, [(16, 4096), (4096, 16)], _columns_off(torch.matmul)),
        Program("linear", "products", F.linear, linear, quick=True),
        Program("linear, gelu", "products", lambda x, w, b: F.gelu(F.linear(x, w, b)), linear),
        Program("Newton-Schulz", "products", newton_schulz, [(16, 32)]),
        Program(
            "conv2d", "convolutions", partial(F.conv2d, padding=1), [(2, 8, 12, 12), (8, 8, 3, 3), (8,)], quick=True
        ),
        Program("conv1d, dilated", "convolutions", partial(F.conv1d, dilation=2), [(2, 8, 32), (6, 8, 3), (6,)]),
        Program(
            "attention",
            "attention",
            attention,
            _QKV,
            ("keys one place off", lambda q, k, v: attention(q, k, v.roll(1, -2))),
        ),
        Program(
            "attention, causal", "attention", causal, [(1, 128, 32)] * 3, ("sees one key too many", ahead), quick=True
        ),
        Program("attention, windowed", "attention", windowed, _QKV, ("window one key short", narrow)),
        Program("attention, softcap", "attention", partial(attention, causal=True, cap=20.0), _QKV),
        Program("attention, grouped", "attention", grouped_queries, wide, ("heads of the wrong group", wrong_groups)),
        Program("rotary positions", "attention", like_suite.rope_pairs, [(4, 16, 32), (16, 16)]),
        Program("transformer block", "networks", transformer, _block_operands(1), quick=True),
        Program("transformer block x 4", "networks", transformer, _block_operands(4)),
        Program(
            "block with RMS norm, rotary positions, SwiGLU",
            "networks",
            modern_block,
            [(16, 64), normal(64, scale=0.1, mean=1.0), weight(128, 64), weight(64, 64), *_norm_and_gates()],
        ),
        Program(
            "experts, best two",
            "networks",
            experts,
            [(16, 32), weight(32, 4), normal(4, 32, 48, scale=0.17), normal(4, 48, 32, scale=0.14)],
            ("one expert instead of two", partial(experts, chosen=1)),
        ),
        *(
            Program(f"MLP, {depth} deep", "networks", mlp, _mlp_operands(depth), quick=depth == 8)
            for depth in (1, 3, 5, 8, 16, 50)
        ),
        Program("LeNet", "networks", lenet, _LENET),
        Program("UNet", "networks", unet, _UNET),
        Program("RegNet", "networks", regnet, _regnet_operands()),
        Program(
            "residual block",
            "networks",
            residual,
            [(2, 6, 6, 6), normal(6, 6, 3, 3, scale=0.15), (6,), (6,), normal(6, 6, 3, 3, scale=0.15), (6,), (6,)],
        ),
        Program("SwiGLU", "networks", swiglu, _GATED, quick=True),
        Program("GEGLU", "networks", geglu, _GATED),
        Program("RNN, 32 steps", "recurrent", rnn, [(32, 4, 32), *recurrent[1:]]),
        Program("GRU, 16 steps", "recurrent", gru, [recurrent[0], *gated]),
        Program(
            "LSTM, 16 steps",
            "recurrent",
            lstm,
            [recurrent[0], *longer],
            ("forgets nothing", partial(lstm, forget=False)),
        ),
        Program(
            "cumsum",
            "scans",
            lambda x: x.cumsum(-1),
            [(8, 1024)],
            ("sums exclude their own term", _exclusive),
            quick=True,
        ),
        Program("linear recurrence", "scans", like_suite.scan, [(2, 32, 8), (8,)]),
        Program(
            "selective scan",
            "scans",
            like_suite.selective_scan,
            [(1, 16, 6), (1, 16, 6), (6, 4), (1, 16, 4), (1, 16, 4)],
        ),
        Program("linear attention", "scans", like_suite.linear_attention, [(2, 2, 32, 8)] * 3),
        Program("largest two", "reductions", lambda x: x.topk(2, -1)[0], [(16, 32)]),
        Program("embedding", "embeddings", lambda w, i: F.embedding(i, w), [(32, 24), integers(32, 16)]),
        Program(
            "sum of embeddings", "embeddings", lambda w, i: F.embedding(i, w).sum(1), [(32, 24), integers(32, 6, 8)]
        ),
        Program(
            "AdamW", "optimisers", like_suite.adamw, [(64,), (64,), (64,), lambda g: torch.rand(64, generator=g) + 0.1]
        ),
        Program("max pool", "pooling", pooled, [(2, 4, 12, 12)], _columns_off(pooled)),
        Program("average pool", "pooling", averaged, [(2, 4, 12, 12)], _columns_off(averaged)),
        Program(
            "global average pool",
            "pooling",
            lambda x: F.adaptive_avg_pool2d(x, 1),
            [(2, 8, 9, 9)],
            ("ignores the first row", lambda x: F.adaptive_avg_pool2d(x[:, :, 1:], 1)),
        ),
    ]


def _norm_and_gates() -> list[Any]:
    return [normal(64, scale=0.1, mean=1.0), weight(128, 64), weight(128, 64), weight(64, 128)]


# Functions of benchmarks/like_suite.py by its groups. It makes the networks of other groups in float64.
_THEIRS = {
    "elementwise": "relu|leaky_relu|elu|gelu, tanh|silu|mish|softplus|sigmoid|tanh|swiglu|geglu|erf|exp, log|sin cos|"
    "atan2|sqrt|rsqrt|x^3|abs|clamp|maximum|where|addcmul|hypot",
    "broadcasting and moving": "a b + b|gather|scatter add|index add|bilinear|triu(a b)",
    "reductions": "sum|mean|std|prod|amax|norm|frobenius|median",
    "norms": "layer norm, large mean|RMS norm by hand|L1 normalize|local response",
    "softmax family": "softmax over rows|softmin|with temperature|masked softmax",
    "losses": "ignored and smoothed|soft labels|nll|KL|Jensen-Shannon|BCE|BCE with logits|L1|huber|smooth L1|hinge|"
    "triplet",
    "products of matrices": "bmm|mv|addmm|bilinear form|einsum|grouped|mixture of experts",
    "small matrices": "det|inverse|solve",
    "convolutions": "1d|2d, grouped|2d, depthwise|transposed 1d",
    "pooling": "max 1d|average 2d|adaptive max",
    "attention": "full|masked|sliding window|RoPE",
    "embedding, scans, order": "bag of embeddings|reversed cumsum|cumprod|cummax|logcumsumexp|sort",
    "grids and optimisers": "SGD with momentum|Lion",
}


def _like_suite() -> list[Program]:
    known = like_suite.cases()
    return [
        Program(f"{name} (small)", group, *known[group][name])
        for group, names in _THEIRS.items()
        for name in names.split("|")
    ]


# Which programs are judged with results in a narrower format too.
_NARROW = {
    "bfloat16": "gelu|softmax|log softmax|cross entropy|layer norm|RMS norm|matmul, 512|linear|conv2d|attention|SwiGLU|"
    "MLP, 3 deep|cumsum",
    "float16": "softmax|layer norm|matmul, 512|attention, causal",
}


def _narrow(programs: dict[str, Program]) -> list[Program]:
    return [
        Program(f"{name}, {dtype}", each.group, each.function, each.operands, each.fault, dtype, name == "softmax")
        for dtype, names in _NARROW.items()
        for name in names.split("|")
        for each in [programs[name]]
    ]


@cache
def programs() -> dict[str, Program]:
    """Returns every program by its name."""
    found = {each.name: each for each in (*_own(), *_like_suite())}
    return found | {each.name: each for each in _narrow(found)}
