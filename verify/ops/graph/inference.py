"""Knows PyTorch's operators: what they write to and consist of, and the shape, dtype and layout of their results.

Results are inferred for tensors on the meta device, which hold no numbers. PyTorch can do this for all operators, but a
call takes 0.1 ms, and the first one imports sympy, which takes 0.5 s. So the operators that are common in programs are
handled here:

- an operator on single elements returns the broadcast shape of its operands, in the dtype that a call on one element
  each shows;
- others have an entry in `_KNOWN`, which most use only if all operands are contiguous.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache, reduce
from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo

_aten = torch.ops.aten
_COMPILER_OFF = _disable_dynamo(lambda: None).__code__  # the code of every function that this decorator wraps
RANDOM = frozenset(
    "bernoulli rand randn rand_like randn_like randint randint_like randperm uniform normal normal_functional "
    "multinomial native_dropout exponential geometric log_normal cauchy random poisson _fused_dropout "
    "rrelu_with_noise".split()
)
# operators inside of which PyTorch keeps numbers in the 16 bits of the operands, as measured on CPUs: functions of the
# steps that it keeps; (): all, with the constants. Of products, scattered sums and rsqrt it keeps each partial result.
_NARROW: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("mse_loss", "mse_loss_backward", "logsumexp", "binary_cross_entropy_with_logits"), ()),
    **dict.fromkeys(("huber_loss_backward", "binary_cross_entropy_backward", "logit", "glu_backward"), ()),
    **dict.fromkeys(("avg_pool2d_backward", "avg_pool3d_backward", "prod", "rsqrt", "pow"), ()),
    "_log_softmax": ("sum", "log"),
    "_softmax": ("exp",),
}


@cache
def arguments_of(func: Any) -> frozenset[str]:
    """Returns the names of an operator's arguments."""
    return frozenset(each.name for each in func._schema.arguments)


@cache
def base_name(func: Any) -> str:
    """Returns an operator's name without namespace and overload, such as "add" of aten::add.Tensor."""
    return str(func._schema.name.split("::")[1])


@cache
def has_no_tensors(func: Any) -> bool:
    """True if an operator neither takes nor returns tensors, such as promote_types."""
    return all("Tensor" not in str(each.type) for each in (*func._schema.arguments, *func._schema.returns))


@cache
def is_composite(func: Any) -> bool:
    """True if PyTorch implements an operator by other operators, and differentiates it through them."""
    return bool(func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd))


@cache
def decomposition_of(func: Any) -> Callable[..., Any] | None:
    """Returns PyTorch's formula of a composite operator that returns new tensors; None for any other operator."""
    from torch._export.utils import _is_preservable_cia_op
    from torch.export.decomp_utils import PRESERVED_ATEN_CIA_OPS

    return func.decompose if _is_preservable_cia_op(func) and func not in PRESERVED_ATEN_CIA_OPS else None


@cache
def is_data_dependent(func: Any) -> bool:
    """True if an operator's non-tensor results or its output shapes depend on the values of tensors."""
    tags = func.tags
    known = (_aten.index.Tensor, _aten.repeat_interleave.Tensor)
    return func not in known and (torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags)


@dataclass(frozen=True)
class Writing:
    """The arguments that an operator writes to, and the operator that computes the same without writing."""

    to: tuple[tuple[int, str], ...]  # position and name of each argument that it writes to
    into: frozenset[str]  # names of the out= arguments
    without: Any  # None: PyTorch has no such operator


@cache
def writing_of(func: Any) -> Writing:
    """Returns the writes of an operator, from its schema."""
    arguments = func._schema.arguments
    to = [(place, each.name) for place, each in enumerate(arguments) if each.alias_info and each.alias_info.is_write]
    into = frozenset(each.name for each in arguments if each.is_out)
    taken = [(each.name, str(each.type)) for each in arguments if not each.is_out]
    packet = getattr(getattr(torch.ops, func.namespace), base_name(func).removesuffix("_"), None)
    for other in [getattr(packet, overload) for overload in packet.overloads()] if packet is not None else []:
        schema = other._schema
        same = [(each.name, str(each.type)) for each in schema.arguments] == taken
        if same and not schema.is_mutable and [str(each.type) for each in schema.returns] == ["Tensor"] * len(to):
            return Writing(tuple(to), into, other)
    return Writing(tuple(to), into, None)


@cache
def _unwrapped(formula: Callable[..., Any]) -> tuple[Callable[..., Any], bool]:
    """Removes the wrappers of a formula; also returns True if one of them converts integers to a common dtype too."""
    whole, made = False, formula
    while hasattr(made, "__wrapped__"):
        whole = whole or getattr(made, "__code__", None) is _COMPILER_OFF
        made = made.__wrapped__
    return made, whole


def formula_of(formula: Callable[..., Any], args: Any) -> Callable[..., Any]:
    """Returns PyTorch's decomposition without its wrappers if all operands are float64, else with them.

    The wrappers convert operands to one dtype. They import PyTorch's compiler and sympy, which takes long.
    """
    bare, whole = _unwrapped(formula)
    kinds = {each.dtype for each in args if isinstance(each, Tensor) and (whole or each.is_floating_point())}
    return bare if kinds <= {torch.float64} else formula


def kept_narrow(func: Any, given: Any) -> tuple[str, ...] | None:
    """Returns the steps that PyTorch keeps in 16 bits inside an operator: () for all of them, None for none."""
    if base_name(func) == "_softmax" and given[1] % max(given[0].ndim, 1) == given[0].ndim - 1:
        return None  # over the last dimension it keeps them in float32
    return _NARROW.get(base_name(func))


_META = torch.device("meta")


def result_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Returns the result of an operator for meta tensors: meta tensors, or its other results as they are."""
    if _is_pointwise(func):
        tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)]
        return new_tensor(broadcast_shape([each.shape for each in tensors]), _dtype_of(func, args, kwargs), tensors)
    name = base_name(func)
    known = _KNOWN.get(name) if func.namespace == "aten" else None
    if known is not None and (name in _ANYWHERE or _in_order([*args, *kwargs.values()])):
        made = known(func, *args, **kwargs)
        if made is not None:
            return made
    if "device" in arguments_of(func):
        kwargs = {**kwargs, "device": _META}
    try:
        return func(*args, **kwargs)
    except NotImplementedError:  # the operator does not support the meta device, so it is called on zeros
        kwargs = {key: _map_tensors(value, _zeros) for key, value in kwargs.items() if key != "device"}
        return _map_tensors(func(*_map_tensors(args, _zeros), **kwargs), lambda tensor: tensor.to(_META))


def _map_tensors(value: Any, change: Any) -> Any:
    """Applies `change` to each tensor in nested lists and tuples."""
    if isinstance(value, Tensor):
        return change(value)
    return type(value)(_map_tensors(each, change) for each in value) if type(value) in (list, tuple) else value


def _zeros(meta: Tensor) -> Tensor:
    return torch.zeros(meta.shape, dtype=meta.dtype)


# -- single elements --------------------------------------------------------------------------------------


@cache
def _is_pointwise(func: Any) -> bool:
    """True if an operator works on single elements and returns one new tensor."""
    schema = func._schema
    returned = [str(each.type) for each in schema.returns if each.alias_info is None]
    return torch.Tag.pointwise in func.tags and returned == ["Tensor"] and "memory_format" not in arguments_of(func)


def _dtype_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.dtype:
    options = tuple((key, _argument_key(each)) for key, each in kwargs.items())
    return _dtype(func, tuple(map(_argument_key, args)), options, torch.get_default_dtype())


def float_dtype_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.dtype:
    """Returns the dtype of an operator's floating-point results, for tensors of the dtypes of the case.

    PyTorch does not promote formats of 8 bits, and some operators demand equal dtypes. The result then has the widest.
    """
    given = [value for each in (*args, *kwargs.values()) for value in (each if isinstance(each, list) else [each])]
    named = [value for value in given if isinstance(value, torch.dtype)]
    kinds = {value.dtype for value in given if isinstance(value, Tensor) and value.is_floating_point()}
    if named or len(kinds) < 2:
        return next(iter([*named, *kinds]), torch.get_default_dtype())
    with suppress(RuntimeError):
        if _is_pointwise(func):
            return _dtype_of(func, args, kwargs)
        return reduce(torch.promote_types, kinds)
    return max(kinds, key=lambda each: each.itemsize)


def new_tensor(shape: tuple[int, ...], dtype: torch.dtype, tensors: Sequence[Tensor]) -> Tensor:
    """Returns a new tensor in the layout that PyTorch would choose for these operands."""
    if all(each.is_contiguous() for each in tensors):
        return _empty(shape, dtype)
    return torch.empty_permuted(shape, _order(shape, tensors), dtype=dtype, device=_META)


def _argument_key(value: Any) -> Any:
    """Returns a hashable key with the properties of an argument that decide the dtype of the result.

    The key of a bool differs from that of an equal int.
    """
    if isinstance(value, Tensor):
        return Tensor, value.dtype, value.ndim > 0
    if isinstance(value, float):
        return float, 1.0
    return type(value), tuple(value) if isinstance(value, list) else value


@lru_cache(maxsize=4096)
def _dtype(func: Any, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...], default: torch.dtype) -> torch.dtype:
    """Calls an operator on one element for each argument key, and returns the dtype of the result."""
    made: Tensor = func(*map(_argument_for_key, args), **{key: _argument_for_key(kind) for key, kind in kwargs})
    return made.dtype


def _argument_for_key(kind: Any) -> Any:
    """Returns an argument for a key of `_argument_key`."""
    if kind[0] is Tensor:
        return torch.ones((1,) if kind[2] else (), dtype=kind[1])
    return list(kind[1]) if kind[0] is list else kind[1]


def broadcast_shape(shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Returns the shape that tensors of these shapes are broadcast to. PyTorch's own function would import sympy."""
    if all(each == shapes[0] for each in shapes[1:]):
        return tuple(shapes[0])
    count = max(map(len, shapes))
    made = [1] * count
    for shape in shapes:
        for dim, size in enumerate(shape, start=count - len(shape)):
            if size != 1:
                if made[dim] not in (1, size):
                    raise RuntimeError(f"shapes {', '.join(map(str, map(tuple, shapes)))} cannot be broadcast to one")
                made[dim] = size
    return tuple(made)


def _order(shape: Sequence[int], tensors: Sequence[Tensor]) -> list[int]:
    """Returns the dimensions of a new result in memory order, outermost first.

    As in PyTorch, the order follows the strides of the operands.
    """
    strides = [[0] * (len(shape) - each.ndim) + list(each.stride()) for each in tensors]
    for line, each in zip(strides, tensors, strict=True):
        for dim, size in enumerate(each.shape, start=len(shape) - each.ndim):
            line[dim] = 0 if size == 1 and shape[dim] != 1 else line[dim]

    def outer(a: int, b: int) -> int:
        """Returns 1 if dimension a is further out than b, -1 if it is further in, 0 if no operand decides."""
        for line in strides:
            if line[a] and line[b]:
                if line[a] != line[b]:
                    return 1 if line[a] > line[b] else -1
                if shape[a] > shape[b]:
                    return 1
        return 0

    order = list(reversed(range(len(shape))))  # the innermost first
    for last in range(1, len(order)):
        at = last
        for place in reversed(range(last)):
            found = outer(order[place], order[at])
            if found > 0:
                order[place], order[at] = order[at], order[place]
                at = place
            elif found < 0:
                break
    return order[::-1]


# -- other operators, for contiguous operands -------------------------------------------------------------


def _in_order(values: Sequence[Any]) -> bool:
    """True if all tensors in nested lists and tuples are contiguous."""
    return all(
        each.is_contiguous() if isinstance(each, Tensor) else not isinstance(each, list | tuple) or _in_order(each)
        for each in values
    )


def _empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.empty(tuple(shape), dtype=dtype, device=_META)


# Each of these takes the operator and its arguments. It returns the result, or None to leave the call to PyTorch.


def _like(func: Any, a: Tensor, *args: Any, dtype: Any = None, memory_format: Any = None, **kwargs: Any) -> Any:
    if memory_format not in (None, torch.preserve_format, torch.contiguous_format):
        return None
    wider = base_name(func) == "cumsum" and not (a.is_floating_point() or a.is_complex())
    operands = [] if memory_format is torch.contiguous_format else [a]
    return new_tensor(tuple(a.shape), dtype or (torch.int64 if wider else a.dtype), operands)


def _arange(func: Any, *args: Any, **kwargs: Any) -> Any:
    kwargs.pop("device", None)
    made: Tensor = func(*args, **kwargs)
    return _empty(made.shape, made.dtype)


def _reduced(func: Any, a: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    if not a.ndim:
        return None
    dims = dims_of(a.ndim, dim)
    shape = [1 if at in dims else size for at, size in enumerate(a.shape) if keepdim or at not in dims]
    name = base_name(func)
    kind = torch.bool if name in ("any", "all") else torch.int64 if name.startswith("arg") else a.dtype
    if name in ("sum", "prod") and not a.is_floating_point():
        kind = torch.int64
    return _empty(shape, dtype or kind)


def dims_of(count: int, dim: Any) -> list[int]:
    """Returns non-negative ones of `count` dimensions from PyTorch's dim=: None, an integer or a sequence.

    None and [] mean all.
    """
    if dim is None or (isinstance(dim, Sequence) and not dim):
        return list(range(count))
    return [each % count for each in ([dim] if isinstance(dim, int) else dim)] if count else []


def _product(func: Any, a: Tensor, b: Tensor, out_dtype: Any = None) -> Any:
    return _empty((*a.shape[:-1], b.shape[-1]), out_dtype or a.dtype)


def _joined(func: Any, tensors: Sequence[Tensor], dim: int = 0) -> Any:
    first = tensors[0]
    if first.ndim in (4, 5) and not (_in_order(tensors) or all(each.stride(1) > each.stride(-1) for each in tensors)):
        return None  # the operands may be in channels-last format, and then the result is too
    if any(each.ndim != first.ndim or each.dtype != first.dtype for each in tensors):
        return None
    shape = list(first.shape)
    shape[dim] = sum(each.shape[dim] for each in tensors)
    return _empty(shape, first.dtype)


def _padded(func: Any, a: Tensor, pad: Sequence[int], value: Any = 0) -> Any:
    shape = list(a.shape)
    for at in range(len(pad) // 2):  # the last dimension first
        shape[-1 - at] += pad[2 * at] + pad[2 * at + 1]
    return _empty(shape, a.dtype)


def picked_shape(shape: Sequence[int], indices: Sequence[Any]) -> tuple[int, ...]:
    """Returns the shape of a tensor of this shape after indexing by integer tensors; None: the whole dimension."""
    dims = [dim for dim, index in enumerate(indices) if index is not None]
    picked = broadcast_shape([indices[dim].shape for dim in dims])
    first = dims[0] if dims[-1] - dims[0] == len(dims) - 1 else 0
    rest = [size for dim, size in enumerate(shape) if dim not in dims]
    return *rest[:first], *picked, *rest[first:]


def _best(func: Any, a: Tensor, k: int, dim: int = -1, *args: Any) -> Any:
    shape = [k if at == dim % a.ndim else size for at, size in enumerate(a.shape)] if a.ndim else []
    return _empty(shape, a.dtype), _empty(shape, torch.int64)


_KNOWN: dict[str, Callable[..., Any]] = {
    **dict.fromkeys("full_like empty_like flip scatter scatter_add index_add index_put cumsum".split(), _like),
    **dict.fromkeys("slice_scatter diagonal_scatter _softmax _log_softmax log_sigmoid_backward".split(), _like),
    **dict.fromkeys("sum amax amin any all prod argmax argmin".split(), _reduced),
    "log_sigmoid_forward": lambda func, a: (_empty(a.shape, a.dtype), _empty(a.shape, a.dtype)),
    "arange": _arange,
    "mm": _product,
    "bmm": _product,
    "mv": lambda func, a, b: _empty(a.shape[:1], a.dtype),
    "dot": lambda func, a, b: _empty((), a.dtype),
    "cat": _joined,
    "constant_pad_nd": _padded,
    "index": lambda func, a, indices: _empty(picked_shape(a.shape, indices), a.dtype),
    "gather": lambda func, a, dim, index, **kwargs: _empty(index.shape, a.dtype),
    "embedding": lambda func, a, index, *args, **kwargs: _empty((*index.shape, *a.shape[1:]), a.dtype),
    "sort": lambda func, a, *args, **kwargs: (_empty(a.shape, a.dtype), _empty(a.shape, torch.int64)),
    "topk": _best,
}
# Results of these are contiguous in every layout of the operands. The last two follow the layout of the operand.
_ANYWHERE = frozenset(
    "mm bmm mv dot arange cat sum amax amin any all prod argmax argmin topk full_like empty_like".split()
)


# -- memory -----------------------------------------------------------------------------------------------


def overlaps(meta: Tensor) -> bool:
    """True if two elements of a tensor may share a place in memory."""
    reach = 0
    for stride, size in sorted(
        (stride, size) for stride, size in zip(meta.stride(), meta.shape, strict=True) if size > 1
    ):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def in_order(strides: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Returns the dimensions of a tensor in memory order, outermost first."""
    wide = [dim for dim, size in enumerate(sizes) if size > 1]
    ordered = sorted(wide, key=lambda dim: -strides[dim])
    return (
        [*ordered, *(dim for dim in range(len(sizes)) if dim not in wide)] if ordered != wide else [*range(len(sizes))]
    )
