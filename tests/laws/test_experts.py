"""Experts in another order: what the law finds, what it leaves alone, where it does not apply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import verify
from tests.laws.trial import breaks, holds, skips
from verify.declare.declaration import Kernel

LAW = "permutation of experts"
RULE = "beyond the limit with experts in another order"
GATED = {"x": "t d", "gate": "d e", "w": "e d f"}


def gated(x: Tensor, gate: Tensor, w: Tensor) -> Tensor:
    """The two best experts of each token, weighted by their scores."""
    p, best = torch.softmax(x @ gate, -1).topk(2, -1)
    every = torch.einsum("td,edf->tef", x, w)
    chosen = every.gather(1, best[..., None].expand(-1, -1, w.shape[-1]))
    return (p[..., None] * chosen).sum(1)


def each_expert(x: Tensor, gate: Tensor, w: Tensor, last: torch.dtype = torch.float32) -> Tensor:
    """One product for each expert, added in its order; the weights of the last one in another dtype."""
    p, best = torch.softmax(x @ gate, -1).topk(2, -1)
    y = x.new_zeros(len(x), w.shape[-1])
    for expert in range(len(w)):
        weight = torch.where(best == expert, p, 0.0).sum(-1)
        weight = weight.to(last).float() if expert == len(w) - 1 else weight
        y = y + weight[:, None] * (x @ w[expert])
    return y


def declared(kernel: Callable[..., Any], like: Callable[..., Any] = gated, **options: Any) -> Kernel:
    settings = {"shapes": GATED, "where": "e >= 2", "dtypes": ["float32"], "largest": 8.0, "gradients": False}
    return verify.kernel(like=like, **(settings | options), name="k")(kernel)


def test_another_order_of_sums_is_within_the_limit() -> None:
    holds(LAW, declared(each_expert))
    holds(LAW, declared(each_expert, gradients=True))


def test_an_expert_that_depends_on_its_number_is_found() -> None:
    found = breaks(LAW, declared(lambda x, gate, w: each_expert(x, gate, w, torch.bfloat16)), RULE)
    assert found.facts["dimension"] == "e"


def numbered(x: Tensor, w: Tensor, expert: Tensor) -> Tensor:
    """Tokens that have the number of their expert."""
    return torch.einsum("td,tdf->tf", x, w[expert])


NUMBERED = {"shapes": {"x": "t d", "w": "e d f", "expert": "t"}, "integers": {"expert": "0 <= expert < e"}}


def test_numbers_of_experts_follow_the_order() -> None:
    holds(LAW, declared(numbered, numbered, where="", **NUMBERED))
    wrong = declared(lambda x, w, expert: numbered(x, w, expert.clamp(max=len(w) - 2)), numbered, **NUMBERED)
    breaks(LAW, wrong, RULE)


def test_other_dimensions_are_left_alone() -> None:
    skips(
        LAW,
        declared(torch.mm, torch.mm, shapes={"input": "n k", "mat2": "k m"}, where="", operands=["input", "mat2"]),
        "has no dimension that counts matrices",
    )
    skips(
        LAW,
        declared(
            torch.bmm, torch.bmm, shapes={"input": "b n k", "mat2": "b k m"}, where="", operands=["input", "mat2"]
        ),
        "depends on the order of every dimension",
    )

    def by_place(x: Tensor, gate: Tensor, w: Tensor) -> Tensor:
        return gated(x, gate + torch.arange(gate.shape[1]), w)

    skips(LAW, declared(by_place, by_place), "depends on the order of every dimension")
