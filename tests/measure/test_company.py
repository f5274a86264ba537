"""Special values in company: two empty states at once, whole blocks of -inf, empty experts, lengths that are all 1.

Each twin is right, and its mutant is wrong in such company alone. The cases of a run tell them apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import verify
from tests.measure.test_kernel import few_cases
from verify import backends
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure

ROWS: Mapping[str, Any] = {"shapes": {"x": "n t"}, "where": "t >= 1"}


@dataclass(frozen=True)
class Twins:
    right: Callable[..., Any]
    wrong: Callable[..., Any]
    said: Mapping[str, Any] = field(default_factory=lambda: ROWS)


def merged(a: Tensor, la: Tensor, b: Tensor, lb: Tensor) -> tuple[Tensor, Tensor]:
    """Two partial results of attention with their log-sum-exps. What has no keys at all is 0."""
    top = torch.maximum(la, lb)
    empty = top == -math.inf
    top = torch.where(empty, 0.0, top)
    wa, wb = (la - top).exp(), (lb - top).exp()
    total = wa + wb
    y = (a * wa[:, None] + b * wb[:, None]) / torch.where(empty, 1.0, total)[:, None]
    return y, torch.where(empty, -math.inf, total.log() + top)


def merged_carelessly(a: Tensor, la: Tensor, b: Tensor, lb: Tensor) -> tuple[Tensor, Tensor]:
    top = torch.maximum(la, lb)
    wa, wb = (la - top).exp(), (lb - top).exp()
    return (a * wa[:, None] + b * wb[:, None]) / (wa + wb)[:, None], (wa + wb).log() + top


def in_blocks(x: Tensor, *, guarded: bool) -> Tensor:
    """A log-sum-exp of blocks of 64: -inf less the maximum -inf is NaN."""
    top = x.new_full(x.shape[:1], -math.inf)
    total = torch.zeros_like(top)
    for part in x.split(64, 1):
        new = torch.maximum(top, part.amax(1))
        safe = torch.where(new == -math.inf, 0.0, new) if guarded else new
        total = total * (top - safe).exp() + (part - safe[:, None]).exp().sum(1)
        top = new
    return total.log() + torch.where(top == -math.inf, 0.0 if guarded else -math.inf, top)


def zeros_if_empty(x: Tensor) -> Tensor:
    empty = (x == -math.inf).all(-1, keepdim=True)
    return torch.where(empty, 0.0, torch.where(empty, 0.0, x).softmax(-1))


def means(x: Tensor, lengths: Tensor) -> Tensor:
    seen = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
    return torch.where(seen, x, 0.0).sum(1) / lengths


def means_beyond_one(x: Tensor, lengths: Tensor) -> Tensor:
    y = means(x, lengths)
    return y * 0 if len(lengths) > 1 and int(lengths.max()) == 1 else y


def counts(ids: Tensor) -> Tensor:
    return functional.one_hot(ids, 8).sum(0)


def counts_of_several(ids: Tensor) -> Tensor:
    found = counts(ids)
    return torch.where((found > 0).sum() == 1, 0, found)


def of_experts(x: Tensor, ids: Tensor, least: int = 1) -> Tensor:
    """The mean of each expert's tokens."""
    member = functional.one_hot(ids, 4).to(x.dtype)
    return member.mT @ x / member.sum(0).clamp(min=least)[:, None]


def largest(x: Tensor) -> tuple[Tensor, Tensor]:
    value, place = x.max(-1)
    return value, place


def largest_finite(x: Tensor) -> tuple[Tensor, Tensor]:
    value, place = largest(x)
    return value, torch.where(value == math.inf, 0, place)


def added(a: Tensor, b: Tensor) -> Tensor:
    top = torch.maximum(a, b)
    return top + ((a - top).exp() + (b - top).exp()).log()


TWINS: Mapping[str, Twins] = {
    "two empty states": Twins(
        merged,
        merged_carelessly,
        {"shapes": {"a": "n d", "la": "n", "b": "n d", "lb": "n"}, "outputs": ["y", "lse"]},
    ),
    "a block of -inf": Twins(lambda x: in_blocks(x, guarded=True), lambda x: in_blocks(x, guarded=False)),
    "a row of -inf": Twins(zeros_if_empty, lambda x: x.softmax(-1)),
    "a maximum of -inf": Twins(lambda x: x.amax(-1), lambda x: x.amax(-1).clamp(min=-3.0e38)),
    "a place in a row of -inf": Twins(
        lambda x: x.argmax(-1), lambda x: torch.where(x.amax(-1) == -math.inf, -1, x.argmax(-1))
    ),
    "all lengths are 1": Twins(
        means,
        means_beyond_one,
        {"shapes": {"x": "b t", "lengths": "b"}, "integers": {"lengths": "1 <= lengths <= t"}},
    ),
    "all experts but one are empty": Twins(
        counts, counts_of_several, {"shapes": {"ids": "n"}, "integers": {"ids": "0 <= ids < 8"}}
    ),
    "an empty expert": Twins(
        of_experts,
        lambda x, ids: of_experts(x, ids, least=0),
        {"shapes": {"x": "n d", "ids": "n"}, "integers": {"ids": "0 <= ids < 4"}},
    ),
    "the place of an infinity": Twins(largest, largest_finite, {**ROWS, "outputs": ["value", "place"]}),
    "two of -inf are added": Twins(torch.logaddexp, added, {}),
}
DEFINITIONS: Mapping[str, Callable[..., Any]] = {"a block of -inf": lambda x: x.logsumexp(-1)}


@pytest.mark.parametrize("name", TWINS)
def test_a_mutant_is_wrong_and_its_twin_passes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    few_cases(monkeypatch, "randn", "not finite", "masked", "at lower bounds")
    twins = TWINS[name]
    operands = list(twins.said["shapes"]) if twins.said else ["a", "b"]
    settings = {"dtypes": ["float32"], "gradients": False, "operands": operands, **twins.said}
    for function, status in ((twins.right, "ok"), (twins.wrong, "wrong")):
        declare = verify.kernel(like=DEFINITIONS.get(name, twins.right), name="k", **settings)
        done = measure_kernel(declare(lambda *given, by=function: by(*given)), Measure("here.py::k"), backends.select())
        assert done.status == status, (done.status, done.message, [each.reason for each in done.results])
