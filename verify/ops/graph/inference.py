"""The shape, dtype and layout of what an operator returns, asked of tensors on the meta device, which hold no numbers.

Operators on single elements are most of a program. PyTorch's own answer for them takes a tenth of a millisecond, and
imports sympy; theirs is the shape that all operands are broadcast to, and the dtype that one element has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

from verify.ops.graph.operators import arguments_of

_META = torch.device("meta")


def result_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What an operator returns for tensors of the meta device: such tensors, or what else it says."""
    if _is_pointwise(func):
        return _pointwise(func, args, kwargs)
    if "device" in arguments_of(func):
        kwargs = {**kwargs, "device": _META}
    try:
        return func(*args, **kwargs)
    except NotImplementedError:  # of an operator without an answer there: that for zeros
        kwargs = {key: _changed(value, _zeros) for key, value in kwargs.items() if key != "device"}
        return _changed(func(*_changed(args, _zeros), **kwargs), lambda tensor: tensor.to(_META))


def _changed(value: Any, change: Any) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    return type(value)(_changed(each, change) for each in value) if type(value) in (list, tuple) else value


def _zeros(meta: Tensor) -> Tensor:
    return torch.zeros(meta.shape, dtype=meta.dtype)


# -- single elements --------------------------------------------------------------------------------------


@cache
def _is_pointwise(func: Any) -> bool:
    schema = func._schema
    returned = [str(each.type) for each in schema.returns if each.alias_info is None]
    return torch.Tag.pointwise in func.tags and returned == ["Tensor"] and "memory_format" not in arguments_of(func)


def _pointwise(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)]
    options = tuple((key, _kind(each)) for key, each in kwargs.items())
    dtype = _dtype(func, tuple(map(_kind, args)), options)
    shape = broadcast_shape([each.shape for each in tensors])
    if all(each.is_contiguous() for each in tensors):
        return torch.empty(shape, dtype=dtype, device=_META)
    return torch.empty_permuted(shape, _order(shape, tensors), dtype=dtype, device=_META)


def _kind(value: Any) -> Any:
    """What of an argument decides on the dtype of the result. A bool and an int that are equal are two."""
    if isinstance(value, Tensor):
        return Tensor, value.dtype, value.ndim > 0
    if isinstance(value, float):
        return float, 1.0
    return type(value), tuple(value) if isinstance(value, list) else value


@lru_cache(maxsize=4096)
def _dtype(func: Any, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...]) -> torch.dtype:
    made: Tensor = func(*map(_element, args), **{key: _element(kind) for key, kind in kwargs})
    return made.dtype


def _element(kind: Any) -> Any:
    if kind[0] is Tensor:
        return torch.ones((1,) if kind[2] else (), dtype=kind[1])
    return list(kind[1]) if kind[0] is list else kind[1]


def broadcast_shape(shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The shape that tensors of these shapes are broadcast to. PyTorch's own function imports sympy."""
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
    """The dimensions in the order in which a fresh result lies, as PyTorch has it: the one that its operands lie in."""
    strides = [[0] * (len(shape) - each.ndim) + list(each.stride()) for each in tensors]
    for line, each in zip(strides, tensors, strict=True):
        for dim, size in enumerate(each.shape, start=len(shape) - each.ndim):
            line[dim] = 0 if size == 1 and shape[dim] != 1 else line[dim]

    def outer(a: int, b: int) -> int:
        """1 where dimension a lies further out than b, -1 further in, 0 where nothing says."""
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


# -- memory -----------------------------------------------------------------------------------------------


def overlaps(meta: Tensor) -> bool:
    """Whether two elements of a tensor may lie in one place."""
    reach = 0
    for stride, size in sorted(
        (stride, size) for stride, size in zip(meta.stride(), meta.shape, strict=True) if size > 1
    ):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def in_order(strides: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """The dimensions of a tensor in the order in which they lie, the outermost first."""
    wide = [dim for dim, size in enumerate(sizes) if size > 1]
    ordered = sorted(wide, key=lambda dim: -strides[dim])
    return (
        list(range(len(sizes)))
        if ordered == wide
        else [*ordered, *(dim for dim in range(len(sizes)) if dim not in wide)]
    )
