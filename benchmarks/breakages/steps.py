"""Traces a program with its gradients into the steps of a kernel: elementwise steps, sums, products of matrices.

Norms, softmax and their gradients become two-pass formulas, convolutions become products of matrices. An interpreter of
the graph can then replace every sum by one of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel

aten = torch.ops.aten
Program = Callable[..., list[Tensor]]

# Operators that PyTorch's own decompositions take apart well enough.
_THEIRS = """addmm baddbmm addmv addbmm mv dot addcmul addcdiv rsub silu silu_backward mish mish_backward softplus
softplus_backward tanh_backward sigmoid_backward threshold_backward _softmax_backward_data _log_softmax_backward_data
nll_loss_forward nll_loss_backward mse_loss mse_loss_backward huber_loss huber_loss_backward smooth_l1_loss
smooth_l1_loss_backward linalg_vector_norm slice_backward select_backward unfold_backward native_batch_norm
_native_batch_norm_legit native_batch_norm_backward _fused_rms_norm _fused_rms_norm_backward elu elu_backward
leaky_relu_backward glu glu_backward log_sigmoid_forward log_sigmoid_backward lerp std hardswish hardswish_backward
hardsigmoid hardsigmoid_backward hardtanh hardtanh_backward binary_cross_entropy
binary_cross_entropy_backward""".split()


def traced(program: Program, inputs: Sequence[Tensor]) -> fx.GraphModule:
    """Returns the graph of a program that computes its gradients itself, without writes in place."""
    table = _table()
    with sdpa_kernel(SDPBackend.MATH):
        graph = make_fx(program, decomposition_table=table)(*inputs)
        graph = make_fx(torch.func.functionalize(graph, remove="mutations"), decomposition_table=table)(*inputs)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def with_gradients(function: Callable[..., Any], count: int, smooth: Sequence[int]) -> Program:
    """Returns program(*operands, *upstream) -> [outputs, then the gradients of the operands at the places `smooth`].

    `count` is the number of operands.
    """

    def program(*given: Tensor) -> list[Tensor]:
        operands = [x.detach().requires_grad_(place in smooth) for place, x in enumerate(given[:count])]
        made = outputs_of(function(*operands))
        wanted = [operands[place] for place in smooth]
        pairs = [(y, dy) for y, dy in zip(made, given[count:], strict=True) if y.requires_grad]
        if not pairs:
            return [*made, *map(torch.zeros_like, wanted)]
        found = torch.autograd.grad([y for y, _ in pairs], wanted, [dy for _, dy in pairs], allow_unused=True)
        return [*made, *(torch.zeros_like(x) if g is None else g for x, g in zip(wanted, found, strict=True))]

    return program


def outputs_of(made: Any) -> list[Tensor]:
    """The outputs of a function as a list."""
    return list(made) if isinstance(made, tuple | list) else [made]


# -- formulas of a kernel that takes two passes ---------------------------------------------------------


def _dims(x: Tensor, dim: Any) -> list[int]:
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        return list(range(x.ndim))
    return [each % x.ndim for each in (dim if isinstance(dim, list | tuple) else [dim])]


def _count(x: Tensor, dims: Sequence[int]) -> int:
    return math.prod(x.shape[d] for d in dims)


def _mean(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    dims = _dims(x, dim)
    return torch.sum(x, dims, keepdim) / _count(x, dims)


def _var_mean(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    dims, less = _dims(x, dim), 1 if correction is None else correction
    mean = torch.sum(x, dims, True) / _count(x, dims)
    apart = x - mean
    var = torch.sum(apart * apart, dims, keepdim) / (_count(x, dims) - less)
    return var, mean if keepdim else mean.reshape(var.shape)


def _var(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Tensor:
    return _var_mean(x, dim, correction=correction, keepdim=keepdim)[0]


def _softmax(x: Tensor, dim: int, half: bool = False) -> Tensor:
    e = torch.exp(x - torch.amax(x, dim, True))
    return e / torch.sum(e, dim, True)


def _log_softmax(x: Tensor, dim: int, half: bool = False) -> Tensor:
    below = x - torch.amax(x, dim, True)
    return below - torch.log(torch.sum(torch.exp(below), dim, True))


def _logsumexp(x: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    top = torch.amax(x, dim, True)
    top = torch.where(torch.isinf(top), torch.zeros_like(top), top)
    found = torch.log(torch.sum(torch.exp(x - top), dim, True)) + top
    return found if keepdim else found.reshape(torch.amax(x, dim).shape)


def _layer_norm(x: Tensor, shape: Any, w: Any, b: Any, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    dims = list(range(x.ndim - len(shape), x.ndim))
    var, mean = _var_mean(x, dims, correction=0, keepdim=True)
    r = torch.rsqrt(var + eps)
    y = (x - mean) * r
    y = y if w is None else y * w
    return (y if b is None else y + b), mean, r


def _layer_norm_backward(g: Tensor, x: Tensor, shape: Any, mean: Tensor, r: Tensor, w: Any, b: Any, mask: Any) -> Any:
    dims, outer = list(range(x.ndim - len(shape), x.ndim)), list(range(x.ndim - len(shape)))
    h = (x - mean) * r
    gw = g if w is None else g * w
    n = _count(x, dims)
    dx = r * ((gw - torch.sum(gw, dims, True) / n) - h * (torch.sum(gw * h, dims, True) / n))
    dw = None if w is None else torch.sum(g * h, outer)
    return dx, dw, None if b is None else torch.sum(g, outer)


def _group_norm(x: Tensor, w: Any, b: Any, N: int, C: int, HW: int, G: int, eps: float) -> Any:
    grouped = x.reshape(N, G, -1)
    var, mean = _var_mean(grouped, [2], correction=0, keepdim=True)
    r = torch.rsqrt(var + eps)
    y = ((grouped - mean) * r).reshape(x.shape)
    channels = [1, C] + [1] * (x.ndim - 2)
    y = y if w is None else y * w.reshape(channels)
    y = y if b is None else y + b.reshape(channels)
    return y, mean.reshape(N, G), r.reshape(N, G)


def _group_norm_backward(
    g: Tensor, x: Tensor, mean: Tensor, r: Tensor, w: Any, N: int, C: int, HW: int, G: int, mask: Any
) -> Any:
    h = (x.reshape(N, G, -1) - mean.reshape(N, G, 1)) * r.reshape(N, G, 1)
    gw = (g if w is None else g * w.reshape([1, C] + [1] * (x.ndim - 2))).reshape(N, G, -1)
    n = gw.shape[2]
    dx = r.reshape(N, G, 1) * ((gw - torch.sum(gw, [2], True) / n) - h * (torch.sum(gw * h, [2], True) / n))
    outer = [d for d in range(x.ndim) if d != 1]
    return dx.reshape(x.shape), torch.sum(g * h.reshape(x.shape), outer), torch.sum(g, outer)


def _gelu(x: Tensor, approximate: str = "none") -> Tensor:
    if approximate == "tanh":
        return x * torch.sigmoid(2 * (math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))))
    return 0.5 * x * torch.special.erfc(-x * math.sqrt(0.5))


def _gelu_backward(g: Tensor, x: Tensor, approximate: str = "none") -> Tensor:
    if approximate == "tanh":
        c = 2 * math.sqrt(2 / math.pi)
        s = torch.sigmoid(c * (x + 0.044715 * (x * x * x)))
        below = torch.sigmoid(-(c * (x + 0.044715 * (x * x * x))))
        return g * (s + x * (s * below) * (c * (1 + 3 * 0.044715 * (x * x))))
    cdf = 0.5 * torch.special.erfc(-x * math.sqrt(0.5))
    return g * (cdf + x * (torch.exp(-0.5 * (x * x)) * (1 / math.sqrt(2 * math.pi))))


def _cdist(a: Tensor, b: Tensor, p: float, mode: Any) -> Tensor:
    apart = a.unsqueeze(-2) - b.unsqueeze(-3)
    return torch.sqrt(torch.sum(apart * apart, [-1]))


def _cdist_backward(g: Tensor, a: Tensor, b: Tensor, p: float, distance: Tensor) -> Tensor:
    share = torch.where(distance == 0, torch.zeros_like(g), g / distance)
    return torch.sum((a.unsqueeze(-2) - b.unsqueeze(-3)) * share.unsqueeze(-1), [-2])


def _embedding_backward(g: Tensor, places: Tensor, rows: int, padding: int, scaled: bool) -> Tensor:
    chosen = (places.reshape(1, -1) == torch.arange(rows, device=g.device).reshape(-1, 1)).to(g.dtype)
    return chosen @ g.reshape(-1, g.shape[-1])


# -- convolutions as products of matrices ---------------------------------------------------------------


def _plain(transposed: bool, x: Tensor) -> bool:
    return not transposed and x.ndim in (3, 4)


def _lines(x: Tensor, kernel: Sequence[int], stride: Any, padding: Any, dilation: Any) -> Tensor:
    return F.unfold(x, list(kernel), list(dilation), list(padding), list(stride))


def _flat(ndim: int, *settings: Any) -> list[list[int]]:
    """The settings of a convolution in two dimensions, which one in one dimension becomes."""
    neutral = (1, 0, 1)
    return [[one, *each] if ndim == 3 else list(each) for one, each in zip(neutral, settings, strict=True)]


def _convolution(
    x: Tensor, w: Tensor, b: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, output: Any, groups: int
) -> Any:
    if not _plain(transposed, x):
        return NotImplemented
    ndim = x.ndim
    stride, padding, dilation = _flat(ndim, stride, padding, dilation)
    x, w = (x.unsqueeze(2), w.unsqueeze(2)) if ndim == 3 else (x, w)
    high, wide = (
        (x.shape[2 + d] + 2 * padding[d] - dilation[d] * (w.shape[2 + d] - 1) - 1) // stride[d] + 1 for d in (0, 1)
    )
    parts = []
    for part, own in zip(x.chunk(groups, 1), w.chunk(groups, 0), strict=True):
        lines = _lines(part, w.shape[2:], stride, padding, dilation)
        parts.append(torch.matmul(own.reshape(own.shape[0], -1).expand(x.shape[0], -1, -1), lines))
    y = torch.cat(parts, 1).reshape(x.shape[0], w.shape[0], high, wide)
    y = y if b is None else y + b.reshape(1, -1, 1, 1)
    return y.squeeze(2) if ndim == 3 else y


def _convolution_backward(
    g: Tensor,
    x: Tensor,
    w: Tensor,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output: Any,
    groups: int,
    mask: Any,
) -> Any:
    if not _plain(transposed, x):
        return NotImplemented
    shapes, ndim = (x.shape, w.shape), x.ndim
    stride, padding, dilation = _flat(ndim, stride, padding, dilation)
    g, x, w = (each.unsqueeze(2) for each in (g, x, w)) if ndim == 3 else (g, x, w)
    count, kernel = x.shape[0], w.shape[2:]
    dx, dw = [], []
    for dy, part, own in zip(g.chunk(groups, 1), x.chunk(groups, 1), w.chunk(groups, 0), strict=True):
        dy = dy.reshape(count, dy.shape[1], -1)
        lines = _lines(part, kernel, stride, padding, dilation)
        flat = own.reshape(own.shape[0], -1)
        dw.append(dy.transpose(0, 1).reshape(dy.shape[1], -1) @ lines.transpose(0, 1).reshape(lines.shape[1], -1).T)
        spread = torch.matmul(flat.T.expand(count, -1, -1), dy)
        dx.append(F.fold(spread, list(x.shape[2:]), list(kernel), dilation, padding, stride))
    db = torch.sum(g, [0, 2, 3]) if mask[2] else None
    return torch.cat(dx, 1).reshape(shapes[0]), torch.cat(dw, 0).reshape(shapes[1]), db


def _table() -> dict[Any, Any]:
    theirs = torch._decomp.get_decompositions([getattr(aten, name) for name in _THEIRS if hasattr(aten, name)])
    return {
        **theirs,
        aten.mean.dim: _mean,
        aten.mean.default: _mean,
        aten.var.correction: _var,
        aten.var_mean.correction: _var_mean,
        aten._softmax.default: _softmax,
        aten._log_softmax.default: _log_softmax,
        aten.logsumexp.default: _logsumexp,
        aten.native_layer_norm.default: _layer_norm,
        aten.native_layer_norm_backward.default: _layer_norm_backward,
        aten.native_group_norm.default: _group_norm,
        aten.native_group_norm_backward.default: _group_norm_backward,
        aten.gelu.default: _gelu,
        aten.gelu_backward.default: _gelu_backward,
        aten._cdist_forward.default: _cdist,
        aten._cdist_backward.default: _cdist_backward,
        aten.embedding_dense_backward.default: _embedding_backward,
        aten.convolution.default: _convolution,
        aten.convolution_backward.default: _convolution_backward,
    }
