"""Keeps what Triton's frontend computes again for each tensor, though it follows from its type alone.

A launch makes thousands of tensors of a dozen types, which nothing changes afterwards. To make these types again, with
their shapes in numbers of Triton's own, took a third of the time of an interpreted kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from triton.language import core
from triton.runtime.interpreter import _get_np_dtype


def of_block_type(original: Callable[..., None]) -> Callable[..., None]:
    """Returns block_type.__init__ that makes the attributes of a type once."""
    known: dict[tuple[Any, ...], dict[str, Any]] = {}

    def init(self: Any, element_ty: Any, shape: Any) -> None:
        form = (element_ty.name, *shape)
        if form not in known:
            original(self, element_ty, shape)
            known[form] = {name: value for name, value in vars(self).items() if name != "element_ty"}
        vars(self).update(known[form], element_ty=element_ty)

    return init


def of_broadcast(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns broadcast_impl_value that leaves blocks of one shape as they are."""

    def broadcast(lhs: Any, rhs: Any) -> Any:
        same = lhs.shape is rhs.shape  # `programs.checking` gives one to all tensors of a shape
        return (lhs, rhs) if same else original(lhs, rhs)

    return broadcast


_DTYPES: dict[str, Any] = {}


def np_dtype(type: Any) -> Any:
    """Returns the NumPy dtype that stores a type of Triton's."""
    name = (type.element_ty if isinstance(type, core.block_type) else type).name
    if name not in _DTYPES:
        _DTYPES[name] = _get_np_dtype(type)
    return _DTYPES[name]
