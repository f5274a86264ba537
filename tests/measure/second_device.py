"""A second device for machines without a GPU: its tensors are computed here, and refuse to meet those of the host.

    with SecondDevice():
        x = on_device(torch.randn(3))
        x.device          # cuda:0
        x + torch.ones(3) # RuntimeError, as on a GPU

Code that mixes operands of the host with large results on a GPU fails nowhere else but there. Gradients are not
followed: autograd knows no such tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

DEVICE = torch.device("cuda:0")
_READS = {
    "__len__",
    "dim",
    "size",
    "numel",
    "item",
    "tolist",
    "stride",
    "__bool__",
    "__int__",
    "__float__",
    "__index__",
}
# these take numbers of the host as scalars, but no tensor without dimensions
_STRICT = {"addcmul", "addcdiv", "lerp", "clamp", "stack", "cat", "matmul", "__matmul__", "gather", "searchsorted"}


class OnDevice(Tensor):
    """A tensor that claims to be on the second device. `held` has its numbers."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> OnDevice:
        made = Tensor._make_subclass(cls, held.detach())
        made.held = held.detach()
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _called(func, args, kwargs or {})


class SecondDevice(TorchFunctionMode):
    """Makes `device="cuda:0"` mean the second device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.device:
            return func(*args, **(kwargs or {}))
        there = any(isinstance(each, OnDevice) or each == DEVICE for each in _leaves((args, kwargs)) if _is_place(each))
        return _called(func, args, kwargs or {}) if there else func(*args, **(kwargs or {}))


def on_device(tensors: dict[str, Any]) -> dict[str, Any]:
    """Returns the tensors of a dict on the second device."""
    return {name: OnDevice(each) if isinstance(each, Tensor) else each for name, each in tensors.items()}


def _is_place(each: Any) -> bool:
    return isinstance(each, Tensor | torch.device)


def _leaves(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return _leaves(list(tree.values()))
    return [leaf for each in tree for leaf in _leaves(each)] if isinstance(tree, list | tuple) else [tree]


def _mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _mapped(change, each) for name, each in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*[_mapped(change, each) for each in tree])
    if isinstance(tree, list | tuple) and not isinstance(tree, torch.Size):
        return type(tree)([_mapped(change, each) for each in tree])
    return change(tree)


def _here(each: Any) -> Any:
    return (
        each.held if isinstance(each, OnDevice) else torch.device("cpu") if each == DEVICE and _is_place(each) else each
    )


def _called(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Calls a function of PyTorch on the numbers, after a check that all tensors are on one device."""
    with torch._C.DisableTorchFunction():
        name = getattr(func, "__name__", "")
        if name == "__get__":
            asked = func.__self__.__name__
            answer = func(_here(args[0]))
            special = {"device": DEVICE, "is_cuda": True, "is_cpu": False}
            return special.get(asked, OnDevice(answer) if isinstance(answer, Tensor) else answer)
        leaves = _leaves((args, kwargs))
        tensors = [each for each in leaves if isinstance(each, Tensor)]
        there = [each for each in tensors if isinstance(each, OnDevice)]
        named = [each for each in leaves if isinstance(each, torch.device)]
        moves = name in ("to", "cpu", "as_tensor", "tensor", "copy_")
        target = named[0] if named else args[1].device if name == "to" and isinstance(args[1], Tensor) else None
        away = bool(there) if name != "cpu" else False
        if target is not None or (name == "to" and len(tensors) > 1):
            away = target == DEVICE or isinstance(tensors[-1], OnDevice)
        strangers = [each for each in tensors if not isinstance(each, OnDevice) and (each.dim() or name in _STRICT)]
        indexed = name in ("__getitem__", "__setitem__") and isinstance(args[0], OnDevice)
        if indexed:  # a GPU takes indices of the host, but no numbers
            strangers = [
                each for each in args[2:] if isinstance(each, Tensor) and not isinstance(each, OnDevice) and each.dim()
            ]
        if there and strangers and not moves:
            raise RuntimeError(f"Expected all tensors to be on the same device, cuda:0 and cpu: {name}")
        found = func(*_mapped(_here, args), **_mapped(_here, kwargs))
        if name in _READS:
            return found
        if name == "__setitem__" or (name.endswith("_") and not name.endswith("__")) or name.startswith("__i"):
            return args[0] if isinstance(args[0], OnDevice) else found
        return _mapped(lambda each: OnDevice(each) if away and isinstance(each, Tensor) else each, found)
