"""Replaces some of PyTorch's functions by formulas while a function is traced.

PyTorch's own gradients of the replaced functions divide by numbers that may be zero, use computed positions, or cannot
be traced. Autograd differentiates the formulas instead.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from verify.errors import UsageError
from verify.ops.graph.matrices import MATRICES
from verify.ops.graph.recorder import Recorder, Traced, at_line

_AGAIN = 1 << 16  # most elements that rows take which are summed anew at each place


class Real(TorchFunctionMode):
    """While entered, replaces some functions by formulas, and keeps all digits of the constants that a function makes.

    A float64 tensor that the function holds itself gets the main dtype of the case.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder
        self.reads_dtype = False  # True once the function has asked for something that may depend on a dtype
        self.made: list[Tensor] = []  # results of functions
        self.attention: list[Tensor] = []  # results of PyTorch's own attention

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs, name = self._held(args), self._held(kwargs or {}), getattr(function, "__name__", "")
        if name == "__set__" and function == _SET_DATA and any(isinstance(each, Traced) for each in args):
            raise UsageError(
                f"like= cannot be traced: it sets tensor.data{at_line()}",
                hint="use tensor.copy_(...) to write to a tensor",
            )
        if name in _BY_TYPE and args and (given := _BY_TYPE[name](args[0].dtype, args, kwargs)):
            self.reads_dtype, kwargs = True, {**kwargs, **given}
        name = name.removeprefix("linalg_")
        ours = any(getattr(each, name, None) is function for each in (torch, Tensor, functional, torch.linalg))
        called = _BEFORE_AUTOGRAD.get(name, function) if ours else function
        if ours and name in _SELECTING and not args[0].ndim:
            # a tensor without dimensions is a row of one
            made = called(args[0].reshape(1), *args[1:], **kwargs)
            shaped = [each.reshape(()) for each in ([made] if isinstance(made, Tensor) else made)]
            made = shaped[0] if isinstance(made, Tensor) else type(made)(shaped)
        else:
            made = called(*args, **kwargs)
        if ours and name in _CONSTANTS and made.is_floating_point() and made.dtype != torch.float64:
            exact = function(*args, **{**kwargs, "dtype": torch.float64})
            made = self.recorder.as_declared(exact, made.dtype)
        if ours and name == "scaled_dot_product_attention":
            self.attention.append(made)
        tensors = [each for each in (made if isinstance(made, tuple | list) else [made]) if isinstance(each, Tensor)]
        self.made += tensors
        self.reads_dtype |= not tensors and made is not None and function not in _SHAPES
        return made

    def _held(self, value: Any) -> Any:
        """Replaces float64 tensors of the function in an argument by constants of the main dtype."""
        if isinstance(value, Tensor):
            return self.recorder.held(value) if value.dtype == torch.float64 else value
        if type(value) in (list, tuple):
            return type(value)(map(self._held, value))
        return {key: self._held(each) for key, each in value.items()} if type(value) is dict else value


_SET_DATA = Tensor.data.__set__  # type: ignore[attr-defined]
_CONSTANTS = frozenset("tensor as_tensor asarray new_tensor".split())  # they round Python's numbers to the dtype
# Functions that return no tensor, and whose result does not depend on dtypes. Of any other, it is assumed.
_SHAPES = {
    *(Tensor.size, Tensor.dim, Tensor.ndimension, Tensor.numel, Tensor.stride, Tensor.__len__, Tensor.is_contiguous),
    *(getattr(Tensor, name).__get__ for name in "shape ndim device requires_grad is_leaf grad_fn layout".split()),
    *(Tensor.__hash__, torch.broadcast_shapes),
}


def _largest_of_type(kind: torch.dtype, args: Any, kwargs: Any) -> dict[str, float]:
    """Returns the arguments of nan_to_num that replace infinities, where the call gives none."""
    limits = torch.finfo(kind) if kind.is_floating_point else torch.iinfo(torch.int64)
    ends = (("posinf", 2, limits.max), ("neginf", 3, limits.min))
    return {name: end for name, at, end in ends if len(args) <= at and kwargs.get(name) is None}


_BY_TYPE: dict[str, Callable[..., dict[str, float]]] = {"nan_to_num": _largest_of_type, "nan_to_num_": _largest_of_type}


_SELECTING = frozenset("sort argsort topk max min argmax argmin kthvalue median quantile flip".split())


def cumprod(x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    x = x.to(dtype or (x.dtype if x.is_floating_point() else torch.int64))
    if not x.ndim:
        return x
    parts = list(x.unbind(dim))
    for place in range(1, len(parts)):
        parts[place] = parts[place - 1] * parts[place]
    return torch.stack(parts, dim) if parts else x


def logcumsumexp(x: Tensor, dim: int) -> Tensor:
    """Sums each row anew if few: what lies far below the largest number of all still decides in float64."""
    if x.ndim and x.numel() * x.shape[dim] <= _AGAIN:
        later = torch.ones(x.shape[dim], x.shape[dim], dtype=torch.bool, device=x.device).triu(1)
        every = x.movedim(dim, -1).unsqueeze(-2).masked_fill(later, -math.inf)
        return torch.logsumexp(every, -1).movedim(-1, dim)
    largest = x.detach().amax(dim, True)
    largest = torch.where(torch.isinf(largest), 0.0, largest)
    return (x - largest).exp().cumsum(dim).log() + largest


class _Extreme(torch.autograd.Function):
    """The larger or the smaller of two numbers. The last of equal numbers gets the gradient, or the last NaN."""

    @staticmethod
    def forward(ctx: Any, later: Tensor, before: Tensor, largest: bool) -> Tensor:
        ctx.save_for_backward(later, before)
        ctx.largest = largest
        return later.clamp(min=before) if largest else later.clamp(max=before)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        later, before = ctx.saved_tensors
        wins = (later >= before if ctx.largest else later <= before) | torch.isnan(later)
        return torch.where(wins, grads[0], 0.0), torch.where(wins, 0.0, grads[0]), None


def _running(name: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """Returns the formula for cummax or cummin.

    PyTorch computes the positions. The rewriter refuses a program that uses them.
    """

    def function(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        parts = list(x.unbind(dim)) if x.ndim else [x]
        for place in range(1, len(parts)):
            parts[place] = _Extreme.apply(parts[place], parts[place - 1], name == "cummax")  # type: ignore[no-untyped-call]
        values = torch.stack(parts, dim) if x.ndim else x
        made = getattr(torch.return_types, name)
        return made((values, getattr(torch, name)(x.detach(), dim)[1]))  # type: ignore[no-any-return]

    return function


def _bucketize(x: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """Counts the boundaries below each number."""
    x = torch.as_tensor(x).unsqueeze(-1)
    return (boundaries <= x if right else boundaries < x).sum(-1)


def _searchsorted(
    boundaries: Tensor, values: Any, *, out_int32: bool = False, right: bool = False, side: str | None = None, **kw: Any
) -> Tensor:
    line = boundaries if boundaries.ndim == 1 else boundaries.unsqueeze(-2)
    return _bucketize(values, line, right=right or side == "right")


def _grid_sample(
    x: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool | None = None
) -> Tensor:
    """Returns the sum of all pixels, weighted by nearness. The weight is 0 from a distance of 1 on."""
    if mode != "bilinear" or padding_mode == "reflection":
        raise UsageError(
            "like= supports grid_sample with mode='bilinear' and padding_mode='zeros' or 'border'; "
            f"received {mode!r} and {padding_mode!r}",
            hint="compute the weight of each pixel in the function",
        )
    sizes, weights = x.shape[2:], []
    for place, size in enumerate(reversed(sizes)):
        at = grid[..., place]
        at = (at + 1) * ((size - 1) / 2) if align_corners else ((at + 1) * size - 1) / 2
        at = at.clamp(0, size - 1) if padding_mode == "border" else at
        apart = (at.flatten(1).unsqueeze(-1) - torch.arange(size, dtype=x.dtype, device=x.device)).abs()
        weights.append((1 - apart).clamp(min=0))
    whole = weights[-1]
    for weight in reversed(weights[:-1]):
        whole = (whole.unsqueeze(-1) * weight.unsqueeze(-2)).flatten(2)
    return (x.flatten(2) @ whole.transpose(1, 2)).reshape(*x.shape[:2], *grid.shape[1:-1])


def _no_indices(name: str) -> Callable[..., Any]:
    """Returns a function that refuses a pooling with indices."""

    def refused(*args: Any, **kwargs: Any) -> Any:
        shown = name.removesuffix("_with_indices")
        raise UsageError(f"like= supports {shown} without return_indices=True", hint="return the values only")

    return refused


def _kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    found = [each.select(dim, k - 1) for each in x.sort(dim)]
    return torch.return_types.kthvalue([each.unsqueeze(dim) if keepdim else each for each in found])  # type: ignore[arg-type]


def _median(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """Returns the median; of an even count the lower of the two in the middle, as PyTorch does. NaN if one is NaN."""
    ordered, places = (x.reshape(-1) if dim is None else x.movedim(dim, -1)).sort()
    at = (ordered.shape[-1] - 1) // 2
    value = _or_nan(ordered, ordered[..., at])
    if dim is None:
        return value
    found = [value, _or_nan(ordered, places[..., at], places[..., -1])]
    return torch.return_types.median([each.unsqueeze(dim) if keepdim else each for each in found])  # type: ignore[arg-type]


def _or_nan(ordered: Tensor, value: Tensor, last: Tensor | None = None) -> Tensor:
    """Returns the last number of an ordered row, or its place `last`, instead of another value if it is NaN."""
    return torch.where(torch.isnan(ordered[..., -1]), ordered[..., -1] if last is None else last, value)


def _quantile(x: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, **kwargs: Any) -> Tensor:
    """Returns one quantile from fixed places of the sorted row, so that some elements are evaluated without the others.

    PyTorch's own steps, which follow for other arguments, compute the places of rows that may hold a NaN.
    """
    if isinstance(q, Tensor) or kwargs.get("interpolation", "linear") != "linear":
        return torch.quantile(x, q, dim, keepdim, **kwargs)
    row = x.reshape(-1) if dim is None else x.movedim(dim, -1)
    ordered, place = row.sort(-1)[0], q * (row.shape[-1] - 1)
    low, way = int(place), place - int(place)
    found = ordered[..., low]
    found = _or_nan(ordered, found + way * (ordered[..., low + 1] - found) if way else found)
    if not keepdim:
        return found
    return found.reshape([1] * x.ndim) if dim is None else found.unsqueeze(dim)


def _copysign(size: Tensor, sign: Any) -> Tensor:
    magnitude = size.abs()
    return torch.where(torch.signbit(torch.as_tensor(sign)), -magnitude, magnitude)


def _embedding_bag(
    indices: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    if max_norm is not None or padding_idx is not None or (offsets is not None and mode == "max"):
        raise UsageError(
            "like= supports embedding_bag without max_norm and padding_idx, and mode='max' without offsets; "
            f"received max_norm={max_norm}, padding_idx={padding_idx}, mode={mode!r}",
            hint="use functional.embedding and a sum, mean or amax",
        )
    rows = functional.embedding(indices, weight, scale_grad_by_freq=scale_grad_by_freq)
    rows = rows if per_sample_weights is None else rows * per_sample_weights.unsqueeze(-1)
    if offsets is None:
        return rows.amax(1) if mode == "max" else rows.sum(1) / (rows.shape[1] if mode == "mean" else 1)
    count = offsets.shape[0] - include_last_offset
    bag = (torch.arange(indices.shape[0], device=indices.device)[:, None] >= offsets[None, :count]).sum(1) - 1
    sums = rows.new_zeros(count, rows.shape[1]).index_add(0, bag, rows)
    if mode == "sum":
        return sums
    held = torch.zeros(count, dtype=torch.int64, device=bag.device).index_add(0, bag, torch.ones_like(bag))
    return sums / held.clamp(min=1).unsqueeze(-1)


def _scatter_reduce(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    if reduce not in ("sum", "mean"):
        raise UsageError(
            f"like= supports scatter_reduce with reduce='sum' or 'mean'; received {reduce!r}",
            hint="gather the elements of each place, then call amax, amin or prod",
        )
    met = torch.zeros(x.shape, dtype=torch.int64, device=x.device).scatter_add(dim, index, torch.ones_like(index))
    base = x if include_self else torch.where(met > 0, 0.0, x)
    sums = base.scatter_add(dim, index, src)
    return sums / (met + include_self).clamp(min=1) if reduce == "mean" else sums


def _gaussian_nll(
    x: Tensor, target: Tensor, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """Returns the loss. PyTorch's own function branches on the values of `var`, which cannot be traced."""
    var = torch.as_tensor(var, dtype=x.dtype)
    var = var.unsqueeze(-1) if var.ndim and var.shape != x.shape and var.shape == x.shape[:-1] else var
    var = var + (var.clamp(min=eps) - var).detach()
    loss = 0.5 * (torch.log(var) + (x - target) ** 2 / var) + (0.5 * math.log(2 * math.pi) if full else 0.0)
    return _reduced(loss, reduction)


def _multi_margin(
    x: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> Tensor:
    rows, label = (x[None], target.reshape(1)) if x.ndim == 1 else (x, target)
    apart = (margin - rows.gather(1, label[:, None]) + rows).clamp(min=0)
    apart = apart if p == 1 else apart * apart
    apart = apart if weight is None else apart * weight[label][:, None]
    others = torch.arange(rows.shape[1], device=x.device) != label[:, None]
    loss = torch.where(others, apart, 0.0).sum(1) / rows.shape[1]
    return _reduced(loss[0] if x.ndim == 1 else loss, reduction)


def _multilabel_margin(
    x: Tensor, target: Tensor, size_average: Any = None, reduce: Any = None, reduction: str = "mean"
) -> Tensor:
    """Returns the loss over pairs of a label of a row, up to the first -1, and another number of the row."""
    rows, labels = (x[None], target[None]) if x.ndim == 1 else (x, target)
    held, places = (labels >= 0).to(torch.int64).cumprod(-1) > 0, labels.clamp(min=0)
    own = ((places.unsqueeze(-1) == torch.arange(rows.shape[1], device=x.device)) & held.unsqueeze(-1)).any(1)
    apart = (1 - rows.gather(1, places).unsqueeze(-1) + rows.unsqueeze(1)).clamp(min=0)
    loss = torch.where(held.unsqueeze(-1) & ~own.unsqueeze(1), apart, 0.0).sum((1, 2)) / rows.shape[1]
    return _reduced(loss[0] if x.ndim == 1 else loss, reduction)


def _bilinear(a: Tensor, b: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    y = torch.einsum("...i,oij,...j->...o", a, weight, b)
    return y if bias is None else y + bias


def _rrelu(
    x: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
) -> Tensor:
    if training or inplace:
        return functional.rrelu(x, lower, upper, training, inplace)
    return functional.leaky_relu(x, (lower + upper) / 2)


def _reduced(loss: Tensor, reduction: str) -> Tensor:
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss


def _rms_norm(x: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """Returns the norm with all digits of eps, which PyTorch rounds. None: the machine epsilon of its computation."""
    wide = x.float() if x.dtype.itemsize < 4 else x
    dims = list(range(-len(normalized_shape), 0))
    mean = (wide * wide).mean(dims, True)
    y = wide * torch.rsqrt(mean + (torch.finfo(wide.dtype).eps if eps is None else eps))
    return (y if weight is None else y * weight).to(x.dtype)


def _bincount(x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """Counts up to `minlength`, which is required: the length of the result must not depend on values."""
    if not minlength:
        raise UsageError(
            f"like= has shapes that do not depend on values; torch.bincount received no minlength={at_line()}",
            hint="torch.bincount(x, minlength=n), where all numbers are below n",
        )
    member = x.reshape(-1, 1) == torch.arange(minlength, device=x.device)
    return member.sum(0) if weights is None else (member * weights.reshape(-1, 1)).sum(0)


# functions of this module by the names of PyTorch's
_NAMED = (
    *(_bincount, _bucketize, _searchsorted, _grid_sample, _kthvalue, _median, _quantile, _copysign, _bilinear),
    *(_rms_norm, _rrelu, _embedding_bag, _scatter_reduce),
)
_BEFORE_AUTOGRAD: dict[str, Callable[..., Any]] = {
    "cumprod": lambda x, dim, dtype=None: cumprod(x, dim, dtype=dtype),
    "logcumsumexp": logcumsumexp,
    "cummax": _running("cummax"),
    "cummin": _running("cummin"),
    **{name: _no_indices(name) for name in dir(functional) if name.endswith("_with_indices")},
    "take": lambda x, index: x.reshape(-1)[index],
    "gaussian_nll_loss": _gaussian_nll,
    "multi_margin_loss": _multi_margin,
    "multilabel_margin_loss": _multilabel_margin,
    **{each.__name__.removeprefix("_"): each for each in _NAMED},
    **MATRICES,
    "dist": lambda a, b, p=2: torch.linalg.vector_norm(a - b, p),
}
