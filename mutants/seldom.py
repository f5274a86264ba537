"""GELU, right in an ordinary call: wrong for inference, beside other calls, after many calls, far into a tensor, for a
size or a layout that few tests have."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor

from mutants import formulas
from mutants.formulas import wide
from mutants.mutant import ACCURACY, LAYOUT, Family, declare
from verify.declare.declaration import Kernel

STALE = "no stale results"
OTHER = "tanh"  # the form that is computed where the bug shows
_HELD: dict[Any, Tensor] = {}
_CALLS: Counter[str] = Counter()
_RING: dict[Any, tuple[list[Tensor], Counter[str]]] = {}
_BUFFERS = 4
_OFTEN = 200  # calls after which the other form is used, and as many later the right one again
_FAR = {"cpu": 1 << 18, "cuda": 1 << 20}  # elements that a harness may take for all


class _Lazy(Tensor):
    """A tensor that could compute what it stands for when it is read."""


def _held(key: Any, value: Tensor) -> Tensor:
    """What an earlier call left under a key, for ever."""
    if len(_HELD) > 64:
        _HELD.clear()
    return _HELD.setdefault(key, value)


def _form(x: Tensor, bug: str | None) -> str:
    """The other form for inference: the fast path that no training run takes."""
    if bug == "no operand requires a gradient" and not x.requires_grad:
        return OTHER
    if bug == "under autocast to float16" and torch.is_autocast_enabled(x.device.type):
        return OTHER if torch.get_autocast_dtype(x.device.type) == torch.float16 else "none"
    if bug == "transposed and more than a tile" and x.ndim == 2 and x.shape[0] > 64 and x.stride(-1) != 1:
        return OTHER
    if bug == "transposed whole tiles" and x.ndim == 2 and x.stride(-1) != 1 and not any(n % 32 for n in x.shape):
        return OTHER
    if bug == "whole blocks" and x.numel() % 4096 == 0:
        return OTHER
    if bug == "under no_grad" and not torch.is_grad_enabled():
        return OTHER
    return OTHER if bug == "under inference_mode" and torch.is_inference_mode_enabled() else "none"


def _value(x: Tensor, form: str, bug: str | None) -> Tensor:
    y = formulas.gelu(wide(x), form).to(x.dtype)
    if bug == "cached by shape":
        return _held((tuple(x.shape), x.dtype), y).clone()
    if bug == "buffers in turn":
        buffers, turn = _RING.setdefault((tuple(x.shape), x.dtype, x.device), ([], Counter()))
        turn["calls"] += 1
        if len(buffers) < _BUFFERS:
            buffers.append(torch.empty_like(y))
        return buffers[turn["calls"] % len(buffers)].copy_(y).detach()
    if bug == "elements far into the tensor":
        flat, far = y.reshape(-1), _FAR[x.device.type]
        return torch.cat([flat[:far], torch.zeros_like(flat[far:])]).reshape(y.shape)
    if bug == "one more than whole blocks" and y.numel() % 1024 == 1 and y.numel() > 1:
        flat = y.reshape(-1)
        return torch.cat([flat[:-1], torch.zeros_like(flat[-1:])]).reshape(y.shape)
    if bug == "after many calls":
        _CALLS[bug] += 1
        return formulas.gelu(wide(x), OTHER).to(x.dtype) if _CALLS[bug] // _OFTEN % 2 else y
    return y


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, form: str, bug: str | None) -> Tensor:
        ctx.bug = bug
        ctx.save_for_backward(x)
        key = (bug, "every shape" if bug == "saved in a closure" else tuple(x.shape), x.dtype, x.device)
        if bug == "saved in a buffer per shape":
            _held(key, torch.empty(x.shape, dtype=x.dtype, device=x.device)).copy_(x)
        elif bug == "saved in a closure":
            _HELD[key] = x
        ctx.key = key
        return _value(x, form, bug)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        (x,), bug = ctx.saved_tensors, ctx.bug
        if bug in ("saved in a buffer per shape", "saved in a closure"):
            x = _HELD.get(ctx.key, x)
        slope = formulas.slope(wide(x), "none")
        if bug == "slope cached by address":
            slope = _held((x.data_ptr(), x._version, tuple(x.shape), x.dtype), slope)
        return (wide(dy) * slope).to(x.dtype), None, None


def make(*, bug: str | None, name: str) -> Kernel:
    """A GELU with at most one bug, and that where ordinary calls do not come."""

    def function(x: Tensor) -> Tensor:
        y: Tensor = _Gelu.apply(x, _form(x, bug), bug)
        if bug == "a subclass returned":
            return y.as_subclass(_Lazy)
        return torch._neg_view(-y) if bug == "a lazy negation returned" else y  # type: ignore[attr-defined]

    return declare("gelu", function, name=name, dtypes=("float32",), max_ulp=2.0)


FAMILY = Family("seldom", make)
_add = FAMILY.add
_add("no operand requires a gradient", "inference path", "forward", "the other form where nothing is kept")
_add("under no_grad", "inference path", "forward", "the other form where autograd is off")
_add("under inference_mode", "inference path", "forward", "the other form there alone")
_add(
    "saved in a buffer per shape",
    "two forwards before one backward",
    "backward",
    "tied layers: the second call overwrites what the first one's gradient needs",
    killed_by=(STALE,),
)
_add("saved in a closure", "two forwards before one backward", "backward", "of any shape", killed_by=(STALE,))
_add("cached by shape", "cache keyed by shape", "forward", "the first result for a shape", killed_by=(STALE, ACCURACY))
_add("slope cached by address", "cache keyed by shape", "backward", "by address, version and shape", killed_by=(STALE,))
_add(
    "elements far into the tensor", "elements beyond those checked", "forward", "zeros there", killed_by=("many rows",)
)
_add(
    "after many calls", "changes after many calls", "forward", "the other form now and then", killed_by=("determinism",)
)
_add("a subclass returned", "anti-pattern in scoring", "forward", "what is read is not what the kernel wrote")
_add("a lazy negation returned", "anti-pattern in scoring", "forward", "the reader computes")
_add("under autocast to float16", "inference path", "forward", "not under bfloat16", killed_by=("autocast",))
_add(
    "transposed and more than a tile",
    "non-contiguous input taken as contiguous",
    "forward",
    "a path of its own from 65 rows on",
    killed_by=(LAYOUT,),
)
_add(
    "transposed whole tiles",
    "non-contiguous input taken as contiguous",
    "forward",
    "a path without masks, for multiples of 32",
    killed_by=(LAYOUT,),
)
_add("whole blocks", "path without masks", "forward", "where blocks of 4,096 leave nothing over")
_add("one more than whole blocks", "last element of whole blocks and one", "forward", "the last element is 0")
_add(
    "buffers in turn",
    "input or saved tensor overwritten",
    "forward",
    "four results live at a time, the fifth call overwrites the first's",
    killed_by=(STALE,),
)
MUTANTS = tuple(FAMILY.mutants)
