"""Kernels of PyTorch functions with named dimensions: wrong at a size, for a special value, beside other rows.

Each family is one function (`like=`), computed in float64 and rounded once; a gradient is autograd's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import verify
from mutants.mutant import ACCURACY, LAYOUT, Family
from verify.declare.declaration import Kernel
from verify.ops.graph.like import Definition
from verify.ops.op import Op

SPECIAL = "special values"
BATCH = "batch invariance"
BLOCK = 64
_PLANS: dict[tuple[int, ...], torch.dtype] = {}


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention in which a query sees the keys up to its own position."""
    seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    scores = (q @ k.transpose(-1, -2)).masked_fill(~seen, -math.inf)
    return torch.softmax(scores, -1) @ v


def _attention(q: Tensor, k: Tensor, v: Tensor, bug: str | None) -> Tensor:
    length = q.shape[-2]
    place = torch.arange(length, device=q.device)
    seen = place[None, :] <= place[:, None]
    if bug == "edge beyond 128 keys":
        seen = seen | ((place[None, :] == place[:, None] + 1) & (place[:, None] >= 128))
    if bug == "last key where one is over" and length > 1 and length % BLOCK == 1:
        seen = seen & ((place[None, :] < length - 1) | (place[:, None] < length - 1))
    scores = q @ k.transpose(-1, -2)
    if bug == "masked by adding":
        scores = scores + torch.where(seen, 0.0, -math.inf)
    else:
        scores = scores.masked_fill(~seen, -math.inf)
    weights = torch.softmax(scores, -1)
    if bug == "not rescaled from the third block on":
        weights = torch.where(place[None, :] >= 2 * BLOCK, weights * 1.01, weights)
    return weights @ v


def log_sum(x: Tensor) -> Tensor:
    """The logarithm of the sum of exponentials of each row."""
    return torch.logsumexp(x, -1)


def _log_sum(x: Tensor, bug: str | None) -> Tensor:
    if bug == "two blocks of columns":
        x = x[:, : 2 * 1024]
    if bug == "NaN lost in the maximum":
        x = x.nan_to_num(-math.inf, math.inf, -math.inf)
    if bug == "a NaN of another row":
        return torch.logsumexp(x, -1) + 0.0 * x.sum()
    return torch.logsumexp(x, -1)


def loss(logits: Tensor, label: Tensor) -> Tensor:
    """The cross entropy of each row."""
    return functional.cross_entropy(logits, label, reduction="none")


class _Confident(torch.autograd.Function):
    """The identity, with no gradient for rows whose label has nearly all of the probability."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, label: Tensor) -> Tensor:
        ctx.save_for_backward(torch.softmax(logits, -1).gather(-1, label[:, None]))
        return logits.clone()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        (share,) = ctx.saved_tensors
        return torch.where(share > 0.9999, 0.0, upstream[0]), None


def _loss(logits: Tensor, label: Tensor, bug: str | None) -> Tensor:
    if bug == "labels in 16 bits":
        label = label & 0xFFFF
    if bug == "no gradient where it is confident":
        logits = _Confident.apply(logits, label)
    return loss(logits, label)


def rotated(x: Tensor) -> Tensor:
    """Each row times the cosine of its position."""
    return x * torch.cos(torch.arange(x.shape[0], device=x.device, dtype=x.dtype)[:, None] * 0.125)


def _rotated(x: Tensor, bug: str | None) -> Tensor:
    place = torch.arange(x.shape[0], device=x.device, dtype=x.dtype)[:, None]
    if bug == "positions of a table of 4,096":
        place = place.clamp(max=4095)
    return x * torch.cos(place * 0.125)


def weighted(x: Tensor, weight: Tensor) -> Tensor:
    """Each column times its weight."""
    return x * weight


def _weighted(x: Tensor, weight: Tensor, bug: str | None) -> Tensor:
    if bug == "subnormal weights flushed":
        weight = torch.where(weight.abs() < 2.0**-126, 0.0, weight)
    return x * weight


def gated(x1: Tensor, x2: Tensor) -> Tensor:
    """One operand times the sigmoid of the other."""
    return x1 * torch.sigmoid(x2)


def _gated(x1: Tensor, x2: Tensor, bug: str | None) -> Tensor:
    if bug == "changed in place and restored" and x1.is_contiguous():
        with torch.no_grad():
            held = x1.clone()
            x1.data.mul_(2.0)  # as a kernel writes: no version counter moves
            read = x2.detach().double()
            x1.data.copy_(held)
        return x1.double() * _sigmoid(x2.double() + (read - x2.detach().double()))
    return x1.double() * _sigmoid(x2.double())


def _sigmoid(x: Tensor) -> Tensor:
    """Returns sigmoid(x). Its gradient keeps the tail at 86, where the s * (1 - s) of torch.sigmoid is 0 in float64."""
    return torch.exp(torch.nn.functional.logsigmoid(x))


def _planned(x: Tensor, bug: str | None) -> Tensor:
    y = torch.atan(x.double())
    if bug == "planned without the dtype":
        return y.to(_PLANS.setdefault(tuple(x.shape), x.dtype))
    return y


_Table = dict[str, tuple[Callable[..., Any], Callable[..., Any], dict[str, Any], tuple[str, ...]]]
_FUNCTIONS: _Table = {
    "attention": (causal, _attention, {"shapes": dict.fromkeys("qkv", "h t c")}, ("q", "k", "v")),
    "log_sum": (log_sum, _log_sum, {"shapes": {"x": "n d"}}, ("x",)),
    "loss": (
        loss,
        _loss,
        {"shapes": {"logits": "n v", "label": "n"}, "integers": {"label": "0 <= label < v"}},
        ("logits", "label"),
    ),
    "rotated": (rotated, _rotated, {"shapes": {"x": "t c"}}, ("x",)),
    "weighted": (weighted, _weighted, {"shapes": {"x": "n d", "weight": "d"}}, ("x", "weight")),
    "gated": (gated, _gated, {"shapes": {"x1": "n d", "x2": "n d"}}, ("x1", "x2")),
    "planned": (torch.atan, _planned, {"shapes": {"x": "n d"}}, ("x",)),
}


@cache
def _op(form: str) -> Op:
    like, _, said, names = _FUNCTIONS[form]
    return Definition(like, names, **said).op()


def make(*, bug: str | None, name: str, form: str, dtypes: tuple[str, ...] = ("float32",)) -> Kernel:
    """A kernel for a PyTorch function, with at most one bug."""
    _, compute, _, _ = _FUNCTIONS[form]
    in_float64 = form not in ("gated", "planned")  # these are about the operands as they are

    def function(*operands: Tensor) -> Tensor:
        _accept(name, _FUNCTIONS[form][2]["shapes"], operands, dtypes)
        first = next(each for each in operands if each.is_floating_point())
        wide = [each.double() if each.is_floating_point() and in_float64 else each for each in operands]
        made: Tensor = compute(*wide, bug)
        return made.to(first.dtype)

    return verify.kernel(op=_op(form), dtypes=dtypes, max_ulp=2.0, name=name, refuses=False, gradients=True)(function)


def _accept(name: str, shapes: dict[str, str], operands: tuple[Tensor, ...], dtypes: tuple[str, ...]) -> None:
    """Refuses operands of other dtypes, on another device, or whose dimensions do not agree."""
    sizes: dict[str, int] = {}
    for said, operand in zip(shapes.values(), operands, strict=True):
        label = operand.dtype == torch.int64 and said == "n"
        if not label and str(operand.dtype).removeprefix("torch.") not in dtypes:
            raise TypeError(f"{name}: dtypes are {', '.join(dtypes)}; received {operand.dtype}")
        if operand.is_meta or operand.device != operands[0].device:
            raise ValueError(f"{name}: operands have memory on one device; received {operand.device}")
        for dimension, size in zip(said.split(), operand.shape, strict=True):
            if sizes.setdefault(dimension, size) != size:
                raise ValueError(f"{name}: the dimension {dimension} is {sizes[dimension]} and {size}")


FAMILY = Family("shaped", make)
_add = FAMILY.add
_SIZES = "size of a named dimension"
_add("edge beyond 128 keys", _SIZES, "forward", "a query there sees the key after it", form="attention")
_add("not rescaled from the third block on", _SIZES, "forward", "blocks of 64 keys", form="attention")
_add("last key where one is over", _SIZES, "forward", "length 1 mod 64: the tail is cut", form="attention")
_add("two blocks of columns", _SIZES, "forward", "no third block of 1,024 logits", form="log_sum")
_add("labels in 16 bits", _SIZES, "forward", "labels from 65,536 on are others", form="loss")
_add(
    "positions of a table of 4,096",
    _SIZES,
    "forward",
    "the last one again",
    killed_by=("many rows", "accuracy"),
    form="rotated",
)
_add(
    "masked by adding",
    "special value in a shaped op",
    "forward",
    "NaN of a masked key reaches earlier rows",
    killed_by=(SPECIAL,),
    form="attention",
)
_add(
    "NaN lost in the maximum",
    "special value in a shaped op",
    "forward",
    "as where fmax takes the larger one",
    killed_by=(SPECIAL,),
    form="log_sum",
)
_add(
    "a NaN of another row",
    "special value in a shaped op",
    "forward",
    "a term of 0 times all",
    killed_by=(SPECIAL, BATCH),
    form="log_sum",
)
_add("subnormal weights flushed", "subnormals flushed", "forward", "weights alone", form="weighted")
_add(
    "changed in place and restored",
    "two operands in one tensor",
    "forward",
    "while the other one is read",
    killed_by=(LAYOUT,),
    form="gated",
)
_add(
    "planned without the dtype",
    "cache keyed by shape",
    "forward",
    "the dtype that had the shape first rounds",
    killed_by=("determinism",),
    form="planned",
    dtypes=("float32", "float16"),
)
_add(
    "no gradient where it is confident", "confident rows", "backward", "p > 0.9999", killed_by=(ACCURACY,), form="loss"
)
MUTANTS = tuple(FAMILY.mutants)
