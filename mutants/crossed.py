"""Kernels of PyTorch functions that are wrong where two things meet, at a bound, at an edge, or for special values.

Each needs a size and a value, two long dimensions, an empty one, a certain integer, a bound of a domain, a gap in
memory, or two special values. Every family is one function (`like=`); twins compute in float64 and round once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

import verify
from mutants.mutant import ACCURACY, LAYOUT, Family
from verify.declare.declaration import Kernel
from verify.ops.graph.like import Definition

SPECIAL = "special values"
_QUIET = 0x7FC00000  # the NaN of float32 without a payload


def maxima(x: Tensor, bug: str | None = None) -> Tensor:
    """The largest number of each row."""
    if bug == "padded with 0 beyond 16 rows" and len(x) > 16:
        return x.amax(-1).clamp(min=0.0)
    if bug == "a NaN with a payload is lost":
        strange = torch.isnan(x) & ((x.float().view(torch.int32) & 0x7FFFFFFF) != _QUIET)
        return x.masked_fill(strange, -math.inf).amax(-1)
    return x.amax(-1)


def largest(x: Tensor, bug: str | None = None) -> Tensor:
    """The position of the largest number of each row."""
    return (x.nan_to_num(-math.inf, math.inf, -math.inf) if bug else x).argmax(-1)


def in_blocks(x: Tensor, w: Tensor, s: Tensor, bug: str | None = None) -> Tensor:
    """A product of matrices with a scale for each block of 64 x 64 weights."""
    rows, columns = (torch.arange(size, device=x.device) // 64 for size in w.shape)
    if bug == "scales transposed" and min(s.shape) > 1:
        return x @ (w * s[columns.clamp(max=len(s) - 1)[None, :], rows.clamp(max=s.shape[1] - 1)[:, None]])
    return x @ (w * s[rows[:, None], columns[None, :]])


def product(x: Tensor, w: Tensor, bug: str | None = None) -> Tensor:
    """A product of matrices."""
    if bug == "never written without terms" and not x.shape[1]:
        return torch.empty(len(x), w.shape[1], device=x.device)
    return x @ w


def corrected(m: Tensor, step: Tensor, bug: str | None = None) -> Tensor:
    """A first moment without its bias."""
    return m / (1 - 0.9 ** (step + 1 if bug else step).double())


def padded(x: Tensor, lengths: Tensor, bug: str | None = None) -> Tensor:
    """The sum of each padded sequence."""
    ends = lengths
    if bug == "the last number of whole blocks":
        ends = torch.where((lengths % 64 == 0) & (lengths > 0), lengths - 1, lengths)
    return (x * (torch.arange(x.shape[1], device=x.device) < ends[:, None])).sum(-1)


def packed(x: Tensor, lengths: Tensor, bug: str | None = None) -> Tensor:
    """The sum of each sequence, which lie one behind the other."""
    stop = lengths.cumsum(0)
    start, place = stop - lengths, torch.arange(len(x), device=x.device)
    if bug == "an empty sequence takes a number":
        stop = torch.where((lengths == 0) & (start > 0), start + 1, stop)
    return ((place >= start[:, None]) & (place < stop[:, None])).to(x.dtype) @ x


def decayed(x: Tensor, gate: Tensor, bug: str | None = None) -> Tensor:
    """A chunk of 16 tokens, each times the exponential of a share of all gates so far."""
    total = gate.cumsum(-1)
    return x * torch.exp((total.clamp(min=-88.0) if bug else total) * 0.0625)


def best(scores: Tensor, bias: Tensor, bug: str | None = None) -> Tensor:
    """The largest biased score of each token."""
    found = (torch.sigmoid(scores) + bias).amax(-1)
    return found.clamp(min=0.0) if bug else found


def shifted(x: Tensor, bug: str | None = None) -> Tensor:
    """Each number times two, and one."""
    if bug == "no gap between matrices" and x.stride()[1:] == (x.shape[2], 1) and x.stride(0) > x[0].numel():
        x = x.as_strided(x.shape, (x[0].numel(), x.shape[2], 1))
    return x * 2 + 1


def merged(a: Tensor, b: Tensor, log_a: Tensor, log_b: Tensor, bug: str | None = None) -> Tensor:
    """Two partial results of an attention, weighted by their sums of exponentials; zeros if both are empty."""
    total = torch.logaddexp(log_a, log_b)
    empty = (total == -math.inf) & (not bug)
    one, other = (torch.where(empty, 0.0, torch.exp(each - total)) for each in (log_a, log_b))
    return a * one[:, None] + b * other[:, None]


def normalised(x: Tensor, bug: str | None = None) -> Tensor:
    """Each row divided by its length and a constant."""
    length = (x * x).sum(-1, keepdim=True).sqrt()
    return x / (length.clamp(min=1e-6) if bug else length + 1e-6)


_FUNCTIONS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "maxima": (maxima, {"shapes": {"x": "n d"}}),
    "largest": (largest, {"shapes": {"x": "n d"}}),
    "in_blocks": (in_blocks, {"shapes": {"x": "m k", "w": "k n", "s": "(k+63)//64 (n+63)//64"}}),
    "product": (product, {"shapes": {"x": "m k", "w": "k n"}}),
    "corrected": (corrected, {"shapes": {"m": "n", "step": ""}, "integers": {"step": "1 <= step <= 100000"}}),
    "padded": (padded, {"shapes": {"x": "b s", "lengths": "b"}, "integers": {"lengths": "0 <= lengths <= s"}}),
    "packed": (
        packed,
        {
            "shapes": {"x": "t", "lengths": "b"},
            "integers": {"lengths": "0 <= lengths <= t, sum t"},
            "where": "b >= 4 and t >= 8",
        },
    ),
    "decayed": (decayed, {"shapes": {"x": "n 16", "gate": "n 16"}, "domain": {"gate": "-8 <= gate <= 0"}}),
    "best": (
        best,
        {"shapes": {"scores": "n e", "bias": "e"}, "domain": {"bias": "-2 <= bias <= 2"}, "where": "e >= 16"},
    ),
    "shifted": (shifted, {"shapes": {"x": "b n d"}}),
    "merged": (merged, {"shapes": {"a": "n d", "b": "n d", "log_a": "n", "log_b": "n"}}),
    "normalised": (normalised, {"shapes": {"x": "n d"}}),
}
_AS_GIVEN = ("maxima", "largest", "shifted")  # these are about the operands as they are


@cache
def _declared(form: str) -> Kernel:
    like, said = _FUNCTIONS[form]
    settings = {"dtypes": ["float32"], "max_ulp": 2.0, "name": "twin", "gradients": False}
    settings |= {"domain": said["domain"]} if "domain" in said else {}
    op = Definition(like, tuple(said["shapes"]), **{key: said[key] for key in said if key != "domain"}).op()
    return verify.kernel(op=op, **settings)(lambda *operands: None)


def make(*, bug: str | None, name: str, form: str) -> Kernel:
    """A kernel for a PyTorch function, with at most one bug. It takes any operands that its definition takes."""
    compute, _ = _FUNCTIONS[form]

    def function(*operands: Tensor) -> Tensor:
        wide = [each.double() if each.is_floating_point() and form not in _AS_GIVEN else each for each in operands]
        made: Tensor = compute(*wide, bug)
        return made.float() if made.is_floating_point() else made

    return replace(_declared(form), name=name, function=function)


FAMILY = Family("crossed", make)
_SIZE = "size and value"
for _form, _bug, _class, _note, _law in (
    ("maxima", "padded with 0 beyond 16 rows", _SIZE, "all numbers of a row are negative", ACCURACY),
    ("in_blocks", "scales transposed", "two long dimensions", "right while one has a single block", ACCURACY),
    ("product", "never written without terms", "empty dimension", "K = 0", "initialised memory"),
    ("corrected", "one step late", "small integer", "right to the last bit from the 160th step on", ACCURACY),
    ("padded", "the last number of whole blocks", "integer at an edge", "a length of 64, 128, ...", ACCURACY),
    ("packed", "an empty sequence takes a number", "0 between integers", "a length of 0", ACCURACY),
    ("decayed", "clamped at -88", "domain at its bound", "gates of -6 and less for 16 tokens", ACCURACY),
    ("best", "masked with 0", "domain at its bound", "all biased scores are negative", ACCURACY),
    ("shifted", "no gap between matrices", "layout", "x[:, :-1]", LAYOUT),
    ("maxima", "a NaN with a payload is lost", "special value in a shaped op", "one NaN is known by its bits", SPECIAL),
    ("largest", "a NaN is no maximum", "special value beside integers", "PyTorch returns its position", SPECIAL),
    ("merged", "two empty states", "two special values", "0 / 0 where the definition has 0", SPECIAL),
    ("normalised", "the larger one of length and constant", "constant of a definition", "near 1e-6", ACCURACY),
):
    FAMILY.add(_bug, _class, "forward", _note, killed_by=(_law,), form=_form)
MUTANTS = tuple(FAMILY.mutants)
