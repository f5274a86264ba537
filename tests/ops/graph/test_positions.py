"""Positions that a program computes from its values: which elements they pick, and which others are right at ties."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from verify.cases import Case
from verify.laws.locality import independent_rows
from verify.ops.graph.like import Definition
from verify.ops.graph.selecting import rivals
from verify.ops.graph.spans import Span
from verify.ops.op import Fast, Op, Problem


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def asked(op: Op, upstream: Tensor | None = None, **inputs: Tensor) -> dict[str, Fast]:
    results = tuple(op.outputs) + (op.gradients if upstream is not None else ())
    arriving = {} if upstream is None else {op.outputs[0]: upstream}
    problem = Problem(inputs=inputs, upstream=arriving, results=results)
    found = op.fast(problem)
    for name in results:  # the second route says the same
        places = list(range(0, found[name].value.numel(), 3))
        for place, point in zip(places, op.points(problem, name, places), strict=True):
            if point.ends is None or point.ends() is None:
                value = float(found[name].value.reshape(-1)[place])
                assert math.isclose(float(point.mp(160)), value, rel_tol=1e-9, abs_tol=1e-12), (name, place)
    return found


PICKS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "gather": lambda x, s: x.gather(-1, s.topk(2, -1).indices),
    "take_along_dim": lambda x, s: torch.take_along_dim(x, s.argsort(0), 0),
    "x[order]": lambda x, s: x[s[:, 0].argsort()],
    "x[:, order]": lambda x, s: x[:, s[0].argsort(descending=True)],
    "x[rows, best]": lambda x, s: x[torch.arange(x.shape[0])[:, None], s.topk(2, -1).indices],
    "x[argmax]": lambda x, s: x[s.argmax(0)],
    "index_select": lambda x, s: x.index_select(1, s[1].argsort()),
    "embedding": lambda x, s: functional.embedding(s.topk(2, 0).indices, x),
    "experts in turn": lambda x, s: x[s.topk(2, -1).indices.flatten().argsort(stable=True) // 2],
}


@pytest.mark.parametrize("name", PICKS)
def test_what_is_picked_and_its_gradient_are_those_of_pytorch(name: str) -> None:
    function = PICKS[name]
    op = Definition(function, ["x", "s"], shapes={"x": "n e", "s": "n e"}, where="e >= 5 and n >= 5").op()
    x, s = drawn(5, 6), drawn(5, 6, seed=1)
    wide = x.double().requires_grad_(True)
    y = function(wide, s.double())
    upstream = drawn(*y.shape, seed=2)
    [dx] = torch.autograd.grad(y, wide, upstream.double())
    found = asked(op, upstream, x=x, s=s)
    assert torch.equal(found["y"].value, y.detach())
    torch.testing.assert_close(found["dx"].value, dx, rtol=1e-14, atol=0)
    assert float(found["y"].scale.min()) >= 0 and not found["ds"].value.any() if "ds" in found else True


def test_at_a_tie_each_of_the_equal_ones_may_be_picked() -> None:
    op = Definition(lambda x, s: x[s.argsort()], ["x", "s"], shapes={"x": "n", "s": "n"}).op()
    found = asked(op, x=torch.tensor([1.0, 2.0, 3.0, 4.0]), s=torch.tensor([5.0, 0.0, 5.0, 9.0]))["y"]
    assert found.ends is not None
    least, most = (end.tolist() for end in found.ends)
    assert least[0] == most[0] == 2.0 and least[3] == most[3] == 4.0
    assert least[1] <= 1.0 and most[1] >= 3.0 and least[2] <= 1.0 and most[2] >= 3.0


def test_at_a_tie_of_many_the_one_that_stands_out_may_be_picked_too() -> None:
    """A few runs that decide otherwise do not meet it."""
    op = Definition(lambda x, s: x[s.argsort()], ["x", "s"], shapes={"x": "n d", "s": "n"}).op()
    x = drawn(200, 1)
    x[77] = 1e6
    upstream = drawn(200, 1, seed=1)
    upstream[3] = 1e6
    found = asked(op, upstream, x=x, s=torch.ones(200))
    assert found["y"].ends is not None and bool((found["y"].ends[1] >= 1e6).all())
    assert found["dx"].ends is not None and bool((found["dx"].ends[1] >= 1e6).all())


def test_a_stable_order_has_no_ties() -> None:
    op = Definition(lambda x, s: x[s.argsort(stable=True)], ["x", "s"], shapes={"x": "n", "s": "n"}).op()
    found = asked(op, x=torch.tensor([1.0, 2.0, 3.0]), s=torch.tensor([5.0, 0.0, 5.0]))["y"]
    assert found.value.tolist() == [2.0, 1.0, 3.0] and (found.ends is None or torch.equal(*found.ends))


@pytest.mark.parametrize("exact", [True, False])
def test_rivals_are_those_whose_intervals_overlap(exact: bool) -> None:
    last = torch.tensor([[0.0, -0.0, math.nan, math.inf, math.inf, 1, 1, 1, 2]])
    lo = torch.cat([drawn(6, 9).round(decimals=1), last]).double()
    wide = (drawn(7, 9, seed=3) > 0.5).double() * 0.3
    a = Span(lo, (lo + wide).masked_fill(torch.isnan(lo), math.nan))
    overlap = (a.lo.unsqueeze(-1) <= a.hi.unsqueeze(-2)) & (a.lo.unsqueeze(-2) <= a.hi.unsqueeze(-1))
    if not exact:
        points = a.lo == a.hi
        apart = points.unsqueeze(-1) & points.unsqueeze(-2)
        overlap = (overlap & ~apart) | torch.eye(9, dtype=torch.bool)
    assert torch.equal(rivals(a, exact=exact), overlap.sum(-1))


def test_integers_are_sorted_as_they_are() -> None:
    ids = torch.tensor([3, 1, 3, 0, 1])
    said: dict[str, Any] = {"shapes": {"x": "n d", "ids": "n"}, "integers": {"ids": "0 <= ids < 4"}}
    x = drawn(5, 2)
    for function in (
        lambda x, ids: x[ids.argsort(stable=True)],
        lambda x, ids: x[ids.sort().indices] * (1 + 0 * ids.sort().values[:, None]),
        lambda x, ids: x[torch.bincount(ids, minlength=4)[ids] % 2],
    ):
        found = asked(Definition(function, ["x", "ids"], **said).op(), x=x, ids=ids)["y"]
        assert torch.equal(found.value, function(x, ids).double()) and found.ends is None


def test_a_dimension_by_whose_order_rows_move_is_not_independent() -> None:
    import verify

    declared = verify.kernel(
        like=lambda x, s: x.gather(-1, s.argsort(-1)), shapes={"x": "n d", "s": "n d"}, dtypes=["float32"], name="g"
    )(lambda x, s: x.gather(-1, s.argsort(-1)))
    assert [rows.dimension for rows in independent_rows(declared, Case("float32", (4, 6), "randn"))] == ["n"]
    moved = verify.kernel(
        like=lambda x, s: x[s.argsort()], shapes={"x": "n d", "s": "n"}, dtypes=["float32"], name="m"
    )(lambda x, s: x[s.argsort()])
    assert [rows.dimension for rows in independent_rows(moved, Case("float32", (4, 6), "randn"))] == ["d"]
