"""GELU again, correct everywhere: what goes wrong is whose memory is written, kept or returned. And the cheats."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mutants import formulas
from mutants.formulas import wide
from mutants.mutant import Family, declare
from verify.declare.declaration import Kernel

OVERWRITTEN = "nothing overwritten"
INITIALISED = "initialised memory"
STALE = "no stale results"
BOUNDS = "memory bounds"

_REUSED: dict[Any, Tensor] = {}
_REMEMBERED: dict[Any, Tensor] = {}


def _buffer(kind: str, like: Tensor) -> Tensor:
    """One buffer for each shape, for ever: what one call returned, the next one overwrites."""
    key = (kind, tuple(like.shape), like.dtype, like.device)
    if key not in _REUSED:
        if len(_REUSED) > 64:
            _REUSED.clear()
        _REUSED[key] = torch.empty(like.shape, dtype=like.dtype, device=like.device)
    return _REUSED[key]


def _remembered(x: Tensor, y: Tensor) -> Tensor:
    """The result of an earlier call for the same address and shape."""
    key = (x.data_ptr(), tuple(x.shape), x.dtype)
    if len(_REMEMBERED) > 64:
        _REMEMBERED.clear()
    return _REMEMBERED.setdefault(key, y.clone()).clone()


def _value(x: Tensor, bug: str | None) -> Tensor:
    y = formulas.gelu(wide(x), "none").to(x.dtype)
    if bug == "zeros":
        return torch.zeros_like(y)
    if bug == "NaN":
        return torch.full_like(y, torch.nan)
    if bug == "input returned":
        return x.contiguous().clone()
    if bug == "reference inside":
        return torch.nn.functional.gelu(x)
    if bug == "nothing written":
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if bug == "tail not written":
        stale = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        whole = y.numel() - y.numel() % 16 if y.numel() > 16 else y.numel()
        stale.view(-1)[:whole] = y.reshape(-1)[:whole]
        return stale
    if bug == "output buffer reused":
        return _buffer("y", y).copy_(y)
    if bug == "cached by address":
        return _remembered(x, y)
    if bug == "input overwritten":
        x.detach().copy_(y)
    return y


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bug: str | None) -> Tensor:
        ctx.bug = bug
        y = _value(x, bug)
        kept = x.clone() if bug == "saved tensor overwritten" else x
        if bug == "saved outside of autograd":
            ctx.kept = [kept]
        ctx.save_for_backward(kept, y)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        bug = ctx.bug
        x, y = ctx.saved_tensors if bug != "saved outside of autograd" else (ctx.kept.pop(), None)
        dx = (wide(dy) * formulas.slope(wide(x), "none")).to(x.dtype)
        if bug == "dY overwritten":
            # no version counter moves: a Triton store does not move one either
            dy.detach().data.copy_(dx)
        elif bug == "saved tensor overwritten" or bug == "input overwritten backward":
            x.detach().data.copy_(dx)
        elif bug == "output overwritten backward":
            y.detach().data.copy_(dx)
        elif bug == "gradient buffer reused":
            dx = _buffer("dx", dx).copy_(dx)
        elif bug == "gradient accumulated into fresh memory":
            dx = torch.empty(dx.shape, dtype=dx.dtype, device=dx.device).add_(dx)
        elif bug == "gradient zeros":
            dx = torch.zeros_like(dx)
        elif bug == "gradient tail not written":
            stale = torch.empty(dx.shape, dtype=dx.dtype, device=dx.device)
            whole = dx.numel() - dx.numel() % 16 if dx.numel() > 16 else dx.numel()
            stale.view(-1)[:whole] = dx.reshape(-1)[:whole]
            dx = stale
        return dx, None


def make(*, bug: str | None, name: str) -> Kernel:
    """A GELU with at most one bug of ownership."""
    return declare("gelu", lambda x: _Gelu.apply(x, bug), name=name, dtypes=("float32",), max_ulp=2.0)


FAMILY = Family("memory", make)
_add = FAMILY.add
CHEAT = "anti-pattern in scoring"
_add("zeros", CHEAT, "forward", "all-zero output")
_add("NaN", CHEAT, "forward", "NaN as a wildcard")
_add("input returned", CHEAT, "forward", "the input, right for large x")
_add("reference inside", CHEAT, "forward", "PyTorch's own GELU under another name")
_add("nothing written", CHEAT, "forward", "an earlier result in recycled memory", killed_by=(INITIALISED,))
_add("cached by address", CHEAT, "forward", "an earlier result for the same address", killed_by=(STALE,))
_add("gradient zeros", CHEAT, "backward", "no gradient at all")
_add(
    "tail not written",
    "out of bounds",
    "forward",
    "the last incomplete block stays as it was",
    killed_by=(INITIALISED,),
)
_add("gradient tail not written", "out of bounds", "backward", "likewise", killed_by=(INITIALISED,))
_add("output buffer reused", "input or saved tensor overwritten", "forward", "one buffer per shape", killed_by=(STALE,))
_add("input overwritten", "input or saved tensor overwritten", "forward", "x holds y after the call")
_add("dY overwritten", "input or saved tensor overwritten", "backward", "the gradient goes into dY's memory")
_add(
    "saved tensor overwritten",
    "input or saved tensor overwritten",
    "backward",
    "a second backward is wrong",
    killed_by=(OVERWRITTEN,),
)
_add("input overwritten backward", "input or saved tensor overwritten", "backward", "x holds dx")
_add(
    "output overwritten backward",
    "input or saved tensor overwritten",
    "backward",
    "y holds dx",
    killed_by=(OVERWRITTEN,),
)
_add(
    "gradient buffer reused",
    "input or saved tensor overwritten",
    "backward",
    "one buffer per shape",
    killed_by=(STALE,),
)
_add(
    "saved outside of autograd",
    "backward always raises",
    "backward",
    "a second backward finds nothing left",
    killed_by=(OVERWRITTEN,),
)
_add(
    "gradient accumulated into fresh memory",
    "race on partial sums",
    "backward",
    "the accumulator is never zeroed",
    killed_by=(INITIALISED,),
)
MUTANTS = tuple(FAMILY.mutants)
