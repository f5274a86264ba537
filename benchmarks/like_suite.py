"""Functions that people write kernels for, in groups, each with small operands.

`benchmarks.breakages` judges some of them, and tests of programs go through all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

Case = tuple[Callable[..., Any], Sequence[Any]]


def _positive(*shape: int) -> Callable[[torch.Generator], Tensor]:
    return lambda generator: torch.rand(shape, generator=generator) + 0.1


def _integers(high: int, *shape: int) -> Callable[[torch.Generator], Tensor]:
    return lambda generator: torch.randint(0, high, shape, generator=generator)


def _module(make: Callable[[], Any]) -> Callable[..., Any]:
    torch.manual_seed(20_260_101)
    return make().double().requires_grad_(False)  # type: ignore[no-any-return]


class LeNet(nn.Module):
    """Two convolutions, two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 3, 3), nn.Conv2d(3, 4, 3)
        self.third, self.last = nn.Linear(4, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        x = F.max_pool2d(F.relu(self.second(x)), 2)
        return self.last(F.relu(self.third(x.flatten(1))))  # type: ignore[no-any-return]


class ResidualBlock(nn.Module):
    """Two convolutions with batch norm, beside an identity."""

    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm, self.last = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.last(self.second(F.relu(self.norm(self.first(x))))) + x)


class TransformerBlock(nn.Module):
    """Attention and a network of two layers, each behind a layer norm."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 16), nn.GELU(), nn.Linear(16, width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.after(x))  # type: ignore[no-any-return]


class SqueezeExcite(nn.Module):
    """Channels weighted by what their means say."""

    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(channels, 2), nn.Linear(2, channels)

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.up(F.relu(self.down(x.mean((2, 3))))))
        return x * gate[:, :, None, None]  # type: ignore[no-any-return]


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


def rope_pairs(x: Tensor, angle: Tensor) -> Tensor:
    a, b, c, s = x[..., ::2], x[..., 1::2], angle.cos(), angle.sin()
    return torch.stack([a * c - b * s, a * s + b * c], -1).flatten(-2)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def adamw(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    step = (m / (1 - 0.9**3)) / ((v / (1 - 0.999**3)).sqrt() + 1e-8)
    return p * (1 - 0.01 * 0.1) - 0.01 * step, m, v


def momentum(p: Tensor, g: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    m = 0.9 * m + g
    return p - 0.1 * (g + 0.9 * m), m


def lion(p: Tensor, g: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    return p - 0.01 * torch.sign(0.9 * m + 0.1 * g), 0.99 * m + 0.01 * g


def scan(x: Tensor, a: Tensor) -> Tensor:
    state, seen = torch.zeros_like(x[:, 0]), []
    for step in range(x.shape[1]):
        state = torch.sigmoid(a) * state + x[:, step]
        seen.append(state)
    return torch.stack(seen, 1)


def selective_scan(x: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    state, seen = torch.zeros_like(x[:, 0, :, None] * a), []
    for t in range(x.shape[1]):
        d = F.softplus(delta[:, t])[..., None]
        state = torch.exp(-d * a.abs()) * state + d * b[:, t, None] * x[:, t, :, None]
        seen.append((state * c[:, t, None]).sum(-1))
    return torch.stack(seen, 1)


def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = F.elu(q) + 1, F.elu(k) + 1
    return (q @ (k.transpose(-1, -2) @ v)) / (q @ k.sum(-2).unsqueeze(-1))


def quantise(x: Tensor) -> Tensor:
    scale = x.abs().amax(-1, keepdim=True) / 127
    return torch.round(x / scale).clamp(-127, 127) * scale


def jensen_shannon(p: Tensor, q: Tensor) -> Tensor:
    p, q = p.log_softmax(-1), q.log_softmax(-1)
    m = ((p.exp() + q.exp()) / 2).log()
    first, second = (F.kl_div(m, each, log_target=True, reduction="batchmean") for each in (p, q))
    return 0.5 * (first + second)


def grouped(x: Tensor, w: Tensor) -> Tensor:
    return torch.stack([x[each] @ w[each] for each in range(2)])


def group_query(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def masked_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.tensor([[0.0, -math.inf], [0.0, 0.0]], dtype=q.dtype, device=q.device)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def window_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    apart = torch.arange(q.shape[-2], device=q.device)[:, None] - torch.arange(k.shape[-2], device=q.device)
    scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill((apart < 0) | (apart > 2), -math.inf)
    return scores.softmax(-1) @ v


def mixture(x: Tensor, gate: Tensor, w: Tensor) -> Tensor:
    share = torch.softmax(x @ gate, -1)
    return torch.einsum("ne,nd,edf->nf", share, x, w)


def contrastive(a: Tensor, b: Tensor) -> Tensor:
    scores = F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).T / 0.07
    return F.cross_entropy(scores, torch.arange(a.shape[0], device=a.device))


def focal(x: Tensor, label: Tensor) -> Tensor:
    loss = F.cross_entropy(x, label, reduction="none")
    return ((1 - torch.exp(-loss)) ** 2 * loss).mean()


def in_place(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 0] = 0.0
    y[:, 1:].mul_(2).relu_()
    return y


def _loss(x: Tensor, label: Tensor) -> Tensor:
    return F.cross_entropy(x, label, ignore_index=1, label_smoothing=0.1)


def _recurrent(make: Callable[[], Any]) -> Callable[[Tensor], Tensor]:
    module: Any = _module(make)
    return lambda x: module(x)[0]  # type: ignore[no-any-return]


def _self_attention() -> Callable[[Tensor], Tensor]:
    module: Any = _module(lambda: nn.MultiheadAttention(8, 2, batch_first=True))
    return lambda x: module(x, x, x)[0]  # type: ignore[no-any-return]


S, ROW, IMAGE, HEADS = (3, 5), (5,), (2, 4, 6, 6), (2, 2, 4, 8)
LABELS = _integers(5, 4)


def _definite(x: Tensor) -> Tensor:
    return x @ x.mT + torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)


def cases() -> dict[str, dict[str, Case]]:
    """Name to function and operands (shapes of normal numbers, or what makes them), in groups."""
    return {
        "elementwise": {
            "relu": (F.relu, [S]),
            "relu6": (lambda x: F.relu6(5 * x), [S]),
            "leaky_relu": (F.leaky_relu, [S]),
            "prelu": (F.prelu, [S, (1,)]),
            "elu": (F.elu, [S]),
            "selu": (F.selu, [S]),
            "celu": (F.celu, [S]),
            "gelu": (F.gelu, [S]),
            "gelu, tanh": (lambda x: F.gelu(x, approximate="tanh"), [S]),
            "silu": (F.silu, [S]),
            "mish": (F.mish, [S]),
            "mish by hand": (lambda x: x * torch.tanh(F.softplus(x)), [S]),
            "softplus": (F.softplus, [S]),
            "softsign": (F.softsign, [S]),
            "sigmoid": (torch.sigmoid, [S]),
            "logsigmoid": (F.logsigmoid, [S]),
            "tanh": (torch.tanh, [S]),
            "tanhshrink": (F.tanhshrink, [S]),
            "softshrink": (F.softshrink, [S]),
            "hardshrink": (F.hardshrink, [S]),
            "hardtanh": (F.hardtanh, [S]),
            "hardsigmoid": (F.hardsigmoid, [S]),
            "hardswish": (F.hardswish, [S]),
            "threshold": (lambda x: F.threshold(x, 0.1, -1.0), [S]),
            "glu": (F.glu, [(3, 6)]),
            "swiglu": (lambda a, b: F.silu(a) * b, [S, S]),
            "geglu": (lambda a, b: F.gelu(a) * b, [S, S]),
            "a sigmoid(b)": (lambda a, b: a * torch.sigmoid(b), [S, S]),
            "erf": (torch.erf, [S]),
            "exp, log": (lambda x: torch.exp(x) + torch.log(x.abs()), [S]),
            "expm1, log1p": (lambda x: torch.expm1(x) * torch.log1p(x.abs()), [S]),
            "sin cos": (lambda x: torch.sin(x) * torch.cos(x), [S]),
            "atan, asinh": (lambda x: torch.atan(x) + torch.asinh(x), [S]),
            "atan2": (torch.atan2, [S, S]),
            "asin, acos": (lambda x: torch.asin(torch.sin(x)) * torch.acos(x / 4), [S]),
            "acosh, atanh": (lambda x: torch.acosh(1 + x.abs()) + torch.atanh(x / 4), [S]),
            "sqrt": (torch.sqrt, [_positive(*S)]),
            "rsqrt": (torch.rsqrt, [_positive(*S)]),
            "1 / x": (lambda x: 1 / x, [S]),
            "x^3": (lambda x: x**3, [S]),
            "|x|^1.5": (lambda x: x.abs() ** 1.5, [S]),
            "|x|^y": (lambda x, y: x.abs() ** y, [S, S]),
            "abs": (torch.abs, [S]),
            "clamp": (lambda x: x.clamp(-0.5, 0.7), [S]),
            "maximum": (torch.maximum, [S, S]),
            "where": (lambda x: torch.where(x > 0, x.exp(), x), [S]),
            "floor": (torch.floor, [S]),
            "remainder": (lambda x: torch.remainder(x, 0.7), [S]),
            "lerp": (torch.lerp, [S, S, S]),
            "addcmul": (lambda a, b, c: torch.addcmul(a, b, c, value=0.5), [S, S, S]),
            "hypot": (torch.hypot, [S, S]),
            "in place": (in_place, [S]),
        },
        "special functions": {
            "lgamma": (torch.lgamma, [S]),
            "digamma": (torch.digamma, [_positive(*S)]),
            "polygamma": (lambda x: torch.polygamma(2, x), [_positive(*S)]),
            "Poisson loss": (lambda x, y: F.poisson_nll_loss(x, y, full=True), [S, _positive(*S)]),
            "erfinv": (lambda x: torch.erfinv(x / 4), [S]),
            "erfcx": (torch.special.erfcx, [S]),
            "log_ndtr": (torch.special.log_ndtr, [S]),
            "ndtri": (lambda x: torch.special.ndtri(torch.sigmoid(x)), [S]),
            "Bessel I": (lambda x: torch.i0(x) * torch.special.i1(x), [S]),
            "Bessel I, scaled": (lambda x: torch.special.i0e(x) + torch.special.i1e(x), [S]),
            "sinc": (lambda x: torch.sinc(x), [S]),
            "xlogy, entropy": (lambda x, y: torch.xlogy(x, y) + torch.special.entr(y), [S, _positive(*S)]),
        },
        "broadcasting and moving": {
            "a b + b": (lambda a, b: a * b + b, [(3, 1, 5), (4, 1)]),
            "outer product": (lambda a, b: a[:, None] * b, [(3,), (4,)]),
            "roll": (lambda x: x.roll(1, -1) + x, [S]),
            "pad, reflect": (lambda x: F.pad(x, (1, 1), mode="reflect"), [(2, 3, 5)]),
            "pixel shuffle": (lambda x: F.pixel_shuffle(x, 2), [(1, 4, 3, 3)]),
            "unfold": (lambda x: F.unfold(x, 2), [(1, 2, 4, 4)]),
            "gather": (lambda x, i: x.gather(1, i), [S, _integers(5, 3, 2)]),
            "scatter add": (lambda x, i: torch.zeros_like(x).scatter_add(1, i, x), [S, _integers(5, *S)]),
            "index add": (lambda x, i: x.new_zeros(4, 5).index_add(0, i, x), [S, _integers(4, 3)]),
            "nearest": (lambda x: F.interpolate(x, scale_factor=2), [(1, 2, 3, 3)]),
            "bilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), [(1, 2, 3, 3)]),
            "trilinear": (lambda x: F.interpolate(x, size=(3, 4, 5), mode="trilinear"), [(1, 1, 2, 3, 3)]),
            "bicubic": (lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), [(1, 2, 3, 3)]),
            "nearest-exact": (lambda x: F.interpolate(x, size=(5, 2), mode="nearest-exact"), [(1, 2, 3, 3)]),
            "pad, replicate": (lambda x: F.pad(x, (1, 2), mode="replicate"), [(2, 3, 5)]),
            "copysign": (torch.copysign, [S, S]),
            "grid sample": (lambda x, g: F.grid_sample(x, g, align_corners=False), [(1, 2, 4, 5), (1, 3, 2, 2)]),
            "grid sample, border": (
                lambda x, g: F.grid_sample(x, g, "bilinear", "border", True),
                [(1, 2, 3, 3), (1, 2, 2, 2)],
            ),
            "take": (torch.take, [S, _integers(15, 4)]),
            "cross": (lambda a, b: torch.linalg.cross(a, b), [(4, 3), (4, 3)]),
            "scatter mean": (lambda x, i: x.scatter_reduce(1, i, 2 * x, "mean"), [S, _integers(5, *S)]),
            "triu(a b)": (lambda a, b: torch.triu(a @ b), [(4, 4), (4, 4)]),
        },
        "reductions": {
            "sum": (lambda x: x.sum(0), [S]),
            "mean": (lambda x: x.mean(), [S]),
            "var": (lambda x: x.var(-1), [S]),
            "std": (lambda x: x.std(-1), [S]),
            "prod": (lambda x: x.prod(-1), [S]),
            "amax": (lambda x: x.amax(-1), [S]),
            "max, argmax": (lambda x: x.max(-1), [S]),
            "argmin": (lambda x: x.argmin(-1), [S]),
            "argsort": (lambda x: x.argsort(-1), [S]),
            "topk, with places": (lambda x: x.topk(2), [S]),
            "x > y": (torch.gt, [S, S]),
            "bucketize": (lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0], device=x.device)), [S]),
            "searchsorted": (lambda x, v: torch.searchsorted(x.cumsum(-1), v), [_positive(3, 4), (3, 2)]),
            "logsumexp": (lambda x: torch.logsumexp(x, -1), [S]),
            "norm": (lambda x: x.norm(dim=-1), [S]),
            "frobenius": (lambda x: torch.linalg.norm(x), [S]),
            "cosine similarity": (F.cosine_similarity, [S, S]),
            "cdist": (torch.cdist, [(3, 4), (2, 4)]),
            "median": (lambda x: x.median(-1)[0], [S]),
            "k-th value": (lambda x: x.kthvalue(2, -1)[0], [S]),
            "quantile": (lambda x: x.quantile(0.3, -1), [S]),
        },
        "norms": {
            "layer norm": (lambda x, w, b: F.layer_norm(x, ROW, w, b), [S, ROW, ROW]),
            "layer norm, large mean": (lambda x: F.layer_norm(x * 1e-3 + 1000, ROW), [S]),
            "RMS norm": (lambda x, w: F.rms_norm(x, ROW, w, 1e-6), [S, ROW]),
            "RMS norm by hand": (rms_norm, [S, ROW]),
            "group norm": (lambda x, w, b: F.group_norm(x, 2, w, b), [(3, 4, 5), (4,), (4,)]),
            "batch norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), [(3, 4, 5), (4,), (4,)]),
            "batch norm, inference": (_module(lambda: nn.BatchNorm2d(4).eval()), [IMAGE]),
            "instance norm": (lambda x: F.instance_norm(x), [(2, 3, 6)]),
            "L2 normalize": (lambda x: F.normalize(x, dim=-1), [S]),
            "L1 normalize": (lambda x: x / x.abs().sum(-1, keepdim=True), [S]),
            "local response": (lambda x: F.local_response_norm(x, 3), [(2, 4, 3, 3)]),
        },
        "softmax family": {
            "softmax": (lambda x: F.softmax(x, -1), [S]),
            "softmax over rows": (lambda x: F.softmax(x, 0), [S]),
            "log softmax": (lambda x: F.log_softmax(x, -1), [S]),
            "softmin": (lambda x: F.softmin(x, -1), [S]),
            "with temperature": (lambda x, t: F.softmax(x / t, -1), [S, _positive(3, 1)]),
            "masked softmax": (
                lambda x: x.masked_fill(torch.ones(5, 5, dtype=torch.bool, device=x.device).triu(1), -math.inf).softmax(
                    -1
                ),
                [(5, 5)],
            ),
        },
        "losses": {
            "cross entropy": (F.cross_entropy, [(4, 5), LABELS]),
            "ignored and smoothed": (_loss, [(4, 5), LABELS]),
            "soft labels": (lambda x, t: F.cross_entropy(x, t.softmax(-1)), [S, S]),
            "focal": (focal, [(4, 5), LABELS]),
            "nll": (lambda x, t: F.nll_loss(x.log_softmax(-1), t), [(4, 5), LABELS]),
            "KL": (lambda x, t: F.kl_div(x.log_softmax(-1), t.softmax(-1), reduction="batchmean"), [S, S]),
            "Jensen-Shannon": (jensen_shannon, [S, S]),
            "BCE": (lambda x, t: F.binary_cross_entropy(x.sigmoid(), t.sigmoid()), [S, S]),
            "BCE with logits": (lambda x, t: F.binary_cross_entropy_with_logits(x, t.sigmoid()), [S, S]),
            "MSE": (F.mse_loss, [S, S]),
            "L1": (F.l1_loss, [S, S]),
            "huber": (F.huber_loss, [S, S]),
            "smooth L1": (F.smooth_l1_loss, [S, S]),
            "hinge": (lambda x, t: (1 - x * t).clamp(min=0).mean(), [ROW, ROW]),
            "multi margin": (F.multi_margin_loss, [(4, 5), LABELS]),
            "gaussian": (F.gaussian_nll_loss, [S, S, _positive(*S)]),
            "triplet": (F.triplet_margin_loss, [S, S, S]),
            "contrastive": (contrastive, [(4, 5), (4, 5)]),
        },
        "products of matrices": {
            "mm": (torch.mm, [(3, 4), (4, 5)]),
            "bmm": (torch.bmm, [(2, 3, 4), (2, 4, 5)]),
            "matmul, broadcast": (torch.matmul, [(2, 3, 4), (4, 5)]),
            "mv": (torch.mv, [(3, 4), (4,)]),
            "linear": (F.linear, [(3, 4), (5, 4), (5,)]),
            "linear, gelu": (lambda x, w, b: F.gelu(F.linear(x, w, b)), [(3, 4), (5, 4), (5,)]),
            "addmm": (lambda c, a, b: torch.addmm(c, a, b, alpha=0.5, beta=2), [(3, 5), (3, 4), (4, 5)]),
            "bilinear form": (F.bilinear, [(3, 4), (3, 2), (5, 4, 2), (5,)]),
            "addbmm": (torch.addbmm, [(3, 5), (2, 3, 4), (2, 4, 5)]),
            "einsum": (lambda a, b: torch.einsum("bik,bjk->bij", a, b), [(2, 3, 4), (2, 5, 4)]),
            "grouped": (grouped, [(2, 3, 4), (2, 4, 5)]),
            "diagonal": (lambda a, b: torch.diag(a) @ b, [(4,), (4, 3)]),
            "mixture of experts": (mixture, [(3, 4), (4, 2), (2, 4, 3)]),
        },
        "small matrices": {
            "det": (torch.linalg.det, [(2, 3, 3)]),
            "log det": (lambda x: torch.logdet(_definite(x)), [(3, 3)]),
            "inverse": (torch.linalg.inv, [(3, 3)]),
            "solve": (torch.linalg.solve, [(2, 3, 3), (2, 3, 2)]),
            "cholesky": (lambda x: torch.linalg.cholesky(_definite(x)), [(3, 3)]),
            "solve_triangular": (lambda a, b: torch.linalg.solve_triangular(a, b, upper=True), [(3, 3), (3, 2)]),
            "matrix_power": (lambda x: torch.linalg.matrix_power(x, -2), [(2, 2)]),
            "cov": (torch.cov, [S]),
            "corrcoef": (torch.corrcoef, [S]),
        },
        "convolutions": {
            "1d": (lambda x, w: F.conv1d(x, w, stride=2, dilation=2), [(2, 3, 12), (4, 3, 3)]),
            "2d": (lambda x, w, b: F.conv2d(x, w, b, padding=1), [IMAGE, (3, 4, 3, 3), (3,)]),
            "2d, grouped": (lambda x, w: F.conv2d(x, w, groups=2), [IMAGE, (4, 2, 3, 3)]),
            "2d, depthwise": (lambda x, w: F.conv2d(x, w, groups=4, padding=1), [IMAGE, (4, 1, 3, 3)]),
            "3d": (lambda x, w: F.conv3d(x, w, padding=1), [(1, 2, 4, 4, 4), (3, 2, 3, 3, 3)]),
            "transposed 1d": (lambda x, w: F.conv_transpose1d(x, w, stride=2, padding=1), [(2, 3, 5), (3, 4, 3)]),
            "transposed 2d": (
                lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, output_padding=1, groups=2),
                [(2, 4, 4, 4), (4, 3, 3, 3), (6,)],
            ),
            "transposed 3d": (F.conv_transpose3d, [(1, 2, 3, 3, 3), (2, 2, 2, 2, 2)]),
        },
        "pooling": {
            "max 1d": (lambda x: F.max_pool1d(x, 3, 2, 1), [(2, 3, 9)]),
            "max 2d": (lambda x: F.max_pool2d(x, 2), [IMAGE]),
            "max 3d": (lambda x: F.max_pool3d(x, 2), [(1, 2, 4, 4, 4)]),
            "average 1d": (lambda x: F.avg_pool1d(x, 3, 2, 1), [(2, 3, 9)]),
            "average 2d": (lambda x: F.avg_pool2d(x, 3, 2, 1), [IMAGE]),
            "average, ceil": (lambda x: F.avg_pool2d(x, 3, 2, ceil_mode=True, count_include_pad=False), [(1, 2, 6, 6)]),
            "average 3d": (lambda x: F.avg_pool3d(x, 2), [(1, 2, 4, 4, 4)]),
            "adaptive max": (lambda x: F.adaptive_max_pool2d(x, (4, 4)), [IMAGE]),
            "adaptive": (lambda x: F.adaptive_avg_pool2d(x, (4, 4)), [IMAGE]),
            "global": (lambda x: F.adaptive_avg_pool2d(x, 1), [IMAGE]),
        },
        "attention": {
            "full": (F.scaled_dot_product_attention, [HEADS, (2, 2, 6, 8), (2, 2, 6, 8)]),
            "causal": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), [HEADS] * 3),
            "masked": (masked_attention, [(1, 1, 2, 4)] * 3),
            "sliding window": (window_attention, [(1, 1, 5, 4)] * 3),
            "grouped queries": (group_query, [(2, 4, 4, 8), (2, 2, 4, 8), (2, 2, 4, 8)]),
            "linear attention": (linear_attention, [(1, 2, 4, 3)] * 3),
            "MultiheadAttention": (_self_attention(), [(2, 4, 8)]),
            "RoPE": (rope, [(2, 4, 8), (4, 8), (4, 8)]),
            "RoPE in pairs": (rope_pairs, [(2, 4, 8), (4, 4)]),
        },
        "embedding, scans, order": {
            "embedding": (lambda w, i: F.embedding(i, w), [(7, 3), _integers(7, 4)]),
            "bag of embeddings": (lambda w, i: F.embedding(i, w).sum(1), [(7, 3), _integers(7, 2, 4)]),
            "one-hot": (lambda w, i: F.one_hot(i, 7).to(w.dtype) @ w, [(7, 3), _integers(7, 4)]),
            "cumsum": (lambda x: x.cumsum(-1), [S]),
            "reversed cumsum": (lambda x: x.flip(-1).cumsum(-1).flip(-1), [S]),
            "cumprod": (lambda x: x.cumprod(-1), [S]),
            "cummax": (lambda x: x.cummax(-1)[0], [S]),
            "embedding_bag": (lambda w, i: F.embedding_bag(i, w), [(7, 3), _integers(7, 2, 4)]),
            "logcumsumexp": (lambda x: torch.logcumsumexp(x, -1), [S]),
            "scan": (scan, [(2, 5, 3), (3,)]),
            "selective scan": (selective_scan, [(1, 4, 3), (1, 4, 3), (3, 2), (1, 4, 2), (1, 4, 2)]),
            "top-k": (lambda x: x.topk(2, -1), [S]),
            "sort": (lambda x: x.sort(-1)[0], [S]),
        },
        "grids and optimisers": {
            "round": (lambda x: torch.round(4 * x), [S]),
            "quantise, dequantise": (quantise, [S]),
            "fake quantise": (lambda x: torch.fake_quantize_per_tensor_affine(x, 0.25, 0, -4, 4), [S]),
            "to int8": (lambda x: (x * 30).round().clamp(-128, 127).to(torch.int8), [S]),
            "dequantise": (lambda q, s: (q - 8) * s, [_integers(16, 3, 4), (3, 1)]),
            "AdamW": (adamw, [ROW, ROW, ROW, _positive(5)]),
            "SGD with momentum": (momentum, [ROW, ROW, ROW]),
            "Lion": (lion, [ROW, ROW, ROW]),
        },
        "networks": {
            "MLP": (_module(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))), [(3, 4)]),
            "LeNet": (_module(LeNet), [(2, 1, 12, 12)]),
            "ResNet block": (_module(ResidualBlock), [(2, 4, 5, 5)]),
            "squeeze and excite": (_module(SqueezeExcite), [(2, 4, 3, 3)]),
            "transformer block": (_module(TransformerBlock), [(2, 4, 8)]),
            "RNN": (_recurrent(lambda: nn.RNN(4, 3)), [(5, 2, 4)]),
            "GRU": (_recurrent(lambda: nn.GRU(4, 3)), [(5, 2, 4)]),
            "LSTM": (_recurrent(lambda: nn.LSTM(4, 3)), [(5, 2, 4)]),
        },
    }
