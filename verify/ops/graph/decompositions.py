"""Defines PyTorch's larger operators by formulas of smaller ones, over the real numbers. Their speed does not matter.

PyTorch's own decompositions define all other operators for which `verify.ops.graph.rewrite` has no rule.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import enable_reentrant_dispatch

from verify.ops.autograd import gradients
from verify.ops.graph import resampling
from verify.ops.graph.inference import dims_of
from verify.ops.graph.real import cumprod, logcumsumexp

_aten = torch.ops.aten
_Sizes = Sequence[int]


def _full(values: _Sizes, count: int) -> list[int]:
    return list(values) * count if len(values) == 1 else list(values)


def _mean(x: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    dims = dims_of(x.ndim, dim)
    return x.sum(dims, keepdim) / math.prod(x.shape[each] for each in dims)


def _var_mean(x: Tensor, dim: Any = None, correction: Any = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    dims = dims_of(x.ndim, dim)
    count = math.prod(x.shape[each] for each in dims) - (1 if correction is None else correction)
    mean = _mean(x, dims, True)
    around = x - mean
    total = (around * around).sum(dims, keepdim)
    return total / max(count, 0), mean if keepdim else mean.squeeze(dims)


def _var(x: Tensor, dim: Any = None, correction: Any = None, keepdim: bool = False) -> Tensor:
    return _var_mean(x, dim, correction=correction, keepdim=keepdim)[0]


def _normalised(x: Tensor, dims: list[int], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    mean = _mean(x, dims, True)
    around = x - mean
    rstd = (_mean(around * around, dims, True) + eps).rsqrt()
    return around * rstd, mean, rstd


def _layer_norm(
    x: Tensor, shape: _Sizes, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    y, mean, rstd = _normalised(x, list(range(x.ndim - len(shape), x.ndim)), eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias, mean * 1.0, rstd * 1.0  # kept in 16 bits, which y does not depend on


def _layer_norm_backward(
    grad: Tensor, x: Tensor, shape: _Sizes, mean: Tensor, rstd: Tensor, weight: Any, bias: Any, mask: Sequence[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    outer, inner = list(range(x.ndim - len(shape))), list(range(x.ndim - len(shape), x.ndim))
    count = math.prod(shape)
    hat = (x - mean) * rstd
    inward = grad if weight is None else grad * weight
    dx = (rstd / count) * (inward * count - inward.sum(inner, True) - hat * (inward * hat).sum(inner, True))
    return (dx, (grad * hat).sum(outer), grad.sum(outer)) if outer else (dx, grad * hat, grad.clone())


def _by_channel(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    channels = [1, y.shape[1]] + [1] * (y.ndim - 2)
    y = y if weight is None else y * weight.reshape(channels)
    return y if bias is None else y + bias.reshape(channels)


def _group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, c: int, inner: int, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    y, mean, rstd = _normalised(x.reshape(n, groups, c // groups * inner), [2], eps)
    return _by_channel(y.reshape(x.shape), weight, bias), mean.squeeze(2) * 1.0, rstd.squeeze(2) * 1.0


def _group_norm_backward(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Any, n: int, c: int, inner: int, groups: int, mask: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes with x minus its mean. In PyTorch's own formula, terms that grow with the mean cancel."""
    rows, channels = (n, groups, c // groups * inner), [1, c] + [1] * (x.ndim - 2)
    scale = rstd.unsqueeze(2)
    hat = (x.reshape(rows) - mean.unsqueeze(2)) * scale
    inward = (grad if weight is None else grad * weight.reshape(channels)).reshape(rows)
    dx = (inward - _mean(inward, 2, True) - hat * _mean(inward * hat, 2, True)) * scale
    others = [0, *range(2, x.ndim)]
    return dx.reshape(x.shape), (grad * hat.reshape(x.shape)).sum(others), grad.sum(others)


def _batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    channels, dims = [1, x.shape[1]] + [1] * (x.ndim - 2), [0, *range(2, x.ndim)]
    if training or running_mean is None or running_var is None:
        _, mean, rstd = _normalised(x, dims, eps)
        mean, rstd = mean.reshape(-1) * 1.0, rstd.reshape(-1) * 1.0  # kept in 16 bits, which y depends on
        if running_mean is not None and running_var is not None:
            running_mean.copy_(running_mean * (1 - momentum) + mean * momentum)
            running_var.copy_(running_var * (1 - momentum) + _var(x, dims, 1) * momentum)
        kept = mean, rstd
    else:
        mean, rstd = running_mean, (running_var + eps).rsqrt()
        kept = x.new_zeros(0), x.new_zeros(0)
    y = (x - mean.reshape(channels)) * rstd.reshape(channels)
    return _by_channel(y, weight, bias), *kept


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Multiplies matrices, batches of them, or a matrix and a vector. PyTorch's matmul would import sympy."""
    return torch.mv(a, b) if b.ndim == 1 else (torch.mm if a.ndim == 2 else torch.bmm)(a, b)


def _addmm(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    product = _product(a, b)
    product = product if alpha == 1 else product * alpha
    return product if beta == 0 else product + (c if beta == 1 else c * beta)


def _norm(x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    dims = dims_of(x.ndim, dim)
    if ord == 2:
        return (x * x).sum(dims, keepdim).sqrt()
    size = x.abs()
    if ord == 1:
        return size.sum(dims, keepdim)
    if math.isinf(ord):
        return size.amax(dims, keepdim) if ord > 0 else size.amin(dims, keepdim)
    if ord == 0:
        return (x != 0).to(x.dtype).sum(dims, keepdim)
    return size.pow(ord).sum(dims, keepdim).pow(1 / ord)


def _derived(grad: Tensor, function: Callable[..., Tensor], *operands: Tensor) -> tuple[Any, ...]:
    """Returns the gradients of a formula. Autograd differentiates it, so the two cannot disagree."""
    # the recorder calls formulas below autograd, unless this is part of a formula that is differentiated itself
    below = torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.AutogradFunctionality)
    with enable_reentrant_dispatch() if below else nullcontext(), torch.enable_grad():
        leaves = [each.detach().requires_grad_() for each in operands]
        return gradients([function(*leaves)], leaves, [grad], again=not below)


def _gradient(name: str, rank: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the formula of the gradient of an operator of one tensor, which has a formula in `rank` dimensions."""
    own, given = (
        [each.name for each in getattr(_aten, which).default._schema.arguments] for which in (name, f"{name}_backward")
    )

    def backward(grad: Tensor, *args: Any) -> Any:
        held = {"output_size": grad.shape[-rank:], **dict(zip(given[1:], args, strict=False))}
        x = held["self"] if "self" in held else grad.new_empty(held["input_size"])

        def value(leaf: Tensor) -> Tensor:
            made = function(leaf, *(held[each] for each in own[1:] if each in held))
            found: Tensor = made[0] if isinstance(made, tuple) else made  # the indices of an extreme have no gradient
            return found

        return _derived(grad, value, x)[0]

    return backward


# -- windows: convolution and pooling ---------------------------------------------------------------------


def _places(size: _Sizes, kernel: _Sizes, stride: _Sizes, dilation: _Sizes, count: _Sizes, device: Any) -> Tensor:
    """Returns a row for each of `count` windows: the flat places of its elements in a block of `size`."""
    flat = torch.zeros(1, 1, dtype=torch.int64, device=device)
    for whole, k, s, d, n in zip(size, kernel, stride, dilation, count, strict=True):
        at = torch.arange(n, device=device)[:, None] * s + torch.arange(k, device=device)[None, :] * d
        flat = (flat[:, None, :, None] * whole + at[None, :, None, :]).reshape(flat.shape[0] * n, flat.shape[1] * k)
    return flat


def _padded(x: Tensor, before: _Sizes, after: _Sizes, value: float = 0.0) -> Tensor:
    pads = [each for pair in zip(reversed(before), reversed(after), strict=True) for each in pair]
    return functional.pad(x, pads, value=value) if any(pads) else x


def _columns(x: Tensor, kernel: _Sizes, stride: _Sizes, dilation: _Sizes, count: _Sizes) -> Tensor:
    """Returns the windows of a padded x, as (..., windows, elements of a window)."""
    outer, size = x.shape[: x.ndim - len(kernel)], x.shape[x.ndim - len(kernel) :]
    places = _places(size, kernel, stride, dilation, count, x.device)
    flat = x.reshape(*outer, math.prod(size)).index_select(-1, places.reshape(-1))
    return flat.reshape(*outer, *places.shape)


def _counted(size: _Sizes, kernel: _Sizes, stride: _Sizes, padding: _Sizes, dilation: _Sizes) -> list[int]:
    return [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(size, kernel, stride, padding, dilation, strict=True)
    ]


def _convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: _Sizes,
    padding: _Sizes,
    dilation: _Sizes,
    transposed: bool,
    output_padding: _Sizes,
    groups: int,
) -> Tensor:
    rank = weight.ndim - 2
    single = x.ndim == rank + 1
    x = x[None] if single else x
    stride, padding, dilation = (_full(each, rank) for each in (stride, padding, dilation))
    if transposed:  # the gradient of a convolution, as PyTorch defines it
        size = [
            (n - 1) * s - 2 * p + d * (k - 1) + e + 1
            for n, k, s, p, d, e in zip(
                x.shape[2:], weight.shape[2:], stride, padding, dilation, _full(output_padding, rank), strict=True
            )
        ]
        of_y = lambda y: _gathered(y, weight, stride, padding, dilation, groups)  # noqa: E731
        [y] = _derived(x, of_y, x.new_zeros(len(x), weight.shape[1] * groups, *size))
    else:
        y = _gathered(x, weight, stride, padding, dilation, groups)
    if bias is not None:
        y = y + bias.reshape([1, -1] + [1] * rank)
    return y[0] if single else y  # type: ignore[no-any-return]


def _gathered(x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: int) -> Tensor:
    """Computes a convolution: for each group, a product of its windows and its weights."""
    n, out, kernel = len(x), len(weight), weight.shape[2:]
    count = _counted(x.shape[2:], kernel, stride, padding, dilation)
    columns = _columns(_padded(x, padding, padding), kernel, stride, dilation, count)
    windows, inner = columns.shape[2], math.prod(weight.shape[1:])
    columns = columns.reshape(n, groups, weight.shape[1], *columns.shape[2:]).permute(1, 0, 3, 2, 4)
    matrix = weight.reshape(groups, out // groups, inner).transpose(1, 2)
    y = torch.bmm(columns.reshape(groups, n * windows, inner), matrix)
    return y.reshape(groups, n, windows, out // groups).permute(1, 0, 3, 2).reshape(n, out, *count)


def _convolution_backward(grad: Tensor, x: Tensor, weight: Tensor, bias_sizes: Any, *rest: Any) -> list[Tensor | None]:
    *how, mask = rest
    bias = grad.new_zeros(weight.shape[1] * how[-1] if how[3] else weight.shape[0])
    found = _derived(grad, lambda *given: _convolution(*given, *how), x, weight, bias)
    return [each if wanted else None for each, wanted in zip(found, mask, strict=True)]


def _pooled(
    x: Tensor, rank: int, kernel: _Sizes, stride: _Sizes, padding: _Sizes, dilation: _Sizes, ceil: bool, value: float
) -> tuple[Tensor, list[int]]:
    """Returns the windows of x in its last `rank` dimensions, and their number in each."""
    kernel, padding, dilation = (_full(each, rank) for each in (kernel, padding, dilation))
    stride = _full(stride, rank) if stride else kernel
    size = x.shape[x.ndim - rank :]
    count = _counted(size, kernel, stride, padding, dilation)
    if ceil:
        count = [
            n + 1 if (n * s < whole + p) and (whole + 2 * p - d * (k - 1) - 1) % s else n
            for n, whole, k, s, p, d in zip(count, size, kernel, stride, padding, dilation, strict=True)
        ]
    after = [
        max((n - 1) * s + d * (k - 1) + 1 - whole - p, p)
        for n, whole, k, s, p, d in zip(count, size, kernel, stride, padding, dilation, strict=True)
    ]
    return _columns(_padded(x, padding, after, value), kernel, stride, dilation, count), count


def _max_pool(
    rank: int, x: Tensor, kernel: Any, stride: Any = (), padding: Any = (0,), dilation: Any = (1,), ceil: bool = False
) -> tuple[Tensor, Tensor]:
    columns, count = _pooled(x, rank, kernel, stride, padding, dilation, ceil, -math.inf)
    values, indices = columns.max(-1)
    shape = (*x.shape[: x.ndim - rank], *count)
    return values.reshape(shape), indices.reshape(shape)


def _avg_pool(
    rank: int,
    x: Tensor,
    kernel: Any,
    stride: Any = (),
    padding: Any = (0,),
    ceil: bool = False,
    include: bool = True,
    divisor: Any = None,
) -> Tensor:
    columns, count = _pooled(x, rank, kernel, stride, padding, [1], ceil, 0.0)
    if divisor is None:
        divisor = torch.ones((), dtype=torch.int64, device=x.device)
        sizes = (_full(each, rank) for each in (kernel, stride or kernel, padding))
        for whole, n, k, s, p in zip(x.shape[x.ndim - rank :], count, *sizes, strict=True):
            first = torch.arange(n, device=x.device) * s - p
            last = (first + k).clamp(max=whole + p)
            inside = last - first if include else last.clamp(max=whole) - first.clamp(min=0)
            divisor = divisor.unsqueeze(-1) * inside
        divisor = divisor.reshape(-1)
    return (columns.sum(-1) / divisor).reshape(*x.shape[: x.ndim - rank], *count)  # type: ignore[no-any-return]


def _nll_loss(
    x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    dim = min(x.ndim, 2) - 1
    kept = target != ignore_index
    at = torch.where(kept, target, 0).unsqueeze(dim)
    if weight is not None:
        weight = weight.reshape([-1] + [1] * (x.ndim - 2)) if x.ndim > 1 else weight
        x = x * weight
    loss = torch.where(kept, -x.gather(dim, at).squeeze(dim), 0)
    if reduction == 0 and x.ndim > 1:
        return loss, x.new_full((), 0.0)
    if weight is None:
        total = kept.sum().to(x.dtype)
    else:
        total = torch.where(kept, weight.expand(x.shape).gather(dim, at).squeeze(dim), 0).sum()
    return (loss, loss.sum() / total, loss.sum())[reduction], total


def _embedding_backward(grad: Tensor, index: Tensor, count: int, padding: int, by_frequency: bool) -> Tensor:
    flat = index.reshape(-1)
    if by_frequency:
        met = torch.zeros(count, dtype=torch.int64, device=flat.device).index_add(0, flat, torch.ones_like(flat))
        grad = grad / met[index].unsqueeze(-1)
    if padding >= 0:
        grad = torch.where((index == padding).unsqueeze(-1), 0, grad)
    return grad.new_zeros(count, grad.shape[-1]).index_add(0, flat, grad.reshape(-1, grad.shape[-1]))


def _triangle(lower: bool) -> Callable[..., Tensor]:
    def part(x: Tensor, diagonal: int = 0) -> Tensor:
        rows, columns = (torch.arange(size, device=x.device) for size in x.shape[-2:])
        apart = columns - rows.unsqueeze(-1)
        kept = apart <= diagonal if lower else apart >= diagonal
        return kept & x if x.dtype == torch.bool else torch.where(kept, x, 0)

    return part


def _silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    """Computes the gradient by 1 - sigmoid(x) alone, which does not cancel here. PyTorch's versions differ."""
    share = torch.sigmoid(x)
    return grad * (share + x * (share * (1 - share)))


def _fake_quantize(x: Tensor, scale: float, zero: int, least: int, most: int) -> tuple[Tensor, Tensor]:
    whole = torch.round(x / scale) + zero
    return (whole.clamp(least, most) - zero) * scale, (whole >= least) & (whole <= most)


def _cdist(a: Tensor, b: Tensor, p: float, mode: Any) -> Tensor:
    return _norm(a.unsqueeze(-2) - b.unsqueeze(-3), p, [-1])


def _cdist_backward(grad: Tensor, a: Tensor, b: Tensor, p: float, distance: Tensor) -> Tensor:
    apart = a.unsqueeze(-2) - b.unsqueeze(-3)
    far, size = distance.unsqueeze(-1), apart.abs()
    if p in (0, 1):
        slope = torch.sign(apart) * p
    elif math.isinf(p):
        slope = torch.where(size == size.amax(-1, True), torch.sign(apart), 0.0)
    else:
        none = (far == 0) | (size == 0)
        share = torch.where(none, 1.0, size) / torch.where(far == 0, 1.0, far)
        slope = torch.where(none, 0.0, torch.sign(apart) * (share if p == 2 else share.pow(p - 1)))
    return (grad.unsqueeze(-1) * slope).sum(-2)


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    """Scales v to the norm g over all dimensions but `dim`. Each element of a vector has its own norm."""
    others = [each for each in range(v.ndim) if each != dim]
    norm = _norm(v, 2, others, True) if others else v.abs()
    return v * (g / norm), norm


def _resampled() -> Iterator[tuple[Any, Callable[..., Any]]]:
    """Yields the operators of pooling, padding and interpolation, and those of their gradients, with their formulas."""
    for rank, linear in ((1, "linear"), (2, "bilinear"), (3, "trilinear"), (2, "bicubic")):
        formulas: dict[str, Callable[..., Any]] = {
            f"upsample_{linear}{rank}d": partial(resampling.upsample, linear == "bicubic"),
            f"upsample_nearest{rank}d": partial(resampling.nearest, False),
            f"_upsample_nearest_exact{rank}d": partial(resampling.nearest, True),
            f"replication_pad{rank}d": resampling.replication_pad,
            f"avg_pool{rank}d": partial(_avg_pool, rank),
            f"max_pool{rank}d_with_indices": partial(_max_pool, rank),
            f"_adaptive_avg_pool{rank}d": resampling.adaptive_avg_pool,
            f"adaptive_max_pool{rank}d": resampling.adaptive_max_pool,
        }
        for name, formula in formulas.items():
            if hasattr(_aten, f"{name}_backward"):
                yield getattr(_aten, name).default, formula
                yield getattr(_aten, f"{name}_backward").default, _gradient(name, rank, formula)


@lru_cache(maxsize=1)
def table() -> dict[Any, Callable[..., Any]]:
    """Maps operators to their formulas. `decomposition_of` looks up composite ones: a table of them takes 0.1 s."""
    from torch._decomp import _core_aten_decompositions_post_autograd

    made: dict[Any, Callable[..., Any]] = _core_aten_decompositions_post_autograd()
    own: dict[Any, Callable[..., Any]] = {
        _aten.mean.default: lambda x, dtype=None: _mean(x),
        _aten.mean.dim: _mean,
        _aten.var.correction: _var,
        _aten.var_mean.correction: _var_mean,
        _aten.native_layer_norm.default: _layer_norm,
        _aten.native_layer_norm_backward.default: _layer_norm_backward,
        _aten.native_group_norm.default: _group_norm,
        _aten.native_group_norm_backward.default: _group_norm_backward,
        _aten.native_batch_norm.default: _batch_norm,
        _aten.addmm.default: _addmm,
        _aten.baddbmm.default: _addmm,
        _aten.addmv.default: _addmm,
        # one product of the matrices side by side adds up those of a batch
        _aten.addbmm.default: lambda c, a, b, **factors: _addmm(
            c, a.transpose(0, 1).reshape(a.shape[1], -1), b.reshape(-1, b.shape[2]), **factors
        ),
        _aten.linalg_vector_norm.default: _norm,
        _aten.convolution.default: _convolution,
        _aten.convolution_backward.default: _convolution_backward,
        _aten._efficientzerotensor.default: lambda size, **kwargs: torch.zeros(size, dtype=kwargs.get("dtype")),
        _aten.stack.default: lambda tensors, dim=0: torch.cat([each.unsqueeze(dim) for each in tensors], dim),
        _aten.fill.Tensor: lambda x, value: _aten.copy.default(x, value),
        _aten.nll_loss_forward.default: _nll_loss,
        _aten.embedding_dense_backward.default: _embedding_backward,
        _aten.tril.default: _triangle(True),
        _aten.triu.default: _triangle(False),
        _aten.silu.default: lambda x: x * torch.sigmoid(x),
        _aten.silu_backward.default: _silu_backward,
        **dict.fromkeys(
            (_aten.softshrink_backward.default, _aten.hardshrink_backward.default),
            lambda grad, x, lambd: torch.where((x >= -lambd) & (x <= lambd), 0.0, grad),
        ),
        _aten.cumprod.default: cumprod,
        _aten.logcumsumexp.default: logcumsumexp,
        _aten.fake_quantize_per_tensor_affine_cachemask.default: _fake_quantize,
        _aten._cdist_forward.default: _cdist,
        _aten._weight_norm_interface.default: _weight_norm,
        _aten._weight_norm_interface_backward.default: lambda grad, v, g, norm, dim: _derived(
            grad, lambda v, g: _weight_norm(v, g, dim)[0], v, g
        ),
        _aten._cdist_backward.default: _cdist_backward,
        **dict(_resampled()),
    }
    made.update(own)
    for kept in (*KEPT, *WHOLE):
        for overload in getattr(_aten, kept).overloads():
            made.pop(getattr(getattr(_aten, kept), overload), None)
    return made


# For these, `verify.ops.graph.rewrite` has a rule that does not cancel where PyTorch's decomposition does
KEPT = (
    "gelu gelu_backward tanh_backward sigmoid_backward log_sigmoid_forward log_sigmoid_backward special_log_ndtr "
    "special_erfcx special_i0e special_i1 special_i1e special_ndtri "
    "index_add native_dropout sinc"
).split()
# these have a rule as they are, or PyTorch decomposes them itself
WHOLE = ("zeros", "ones", "split", "split_with_sizes", "unbind", "mv", "dot")
