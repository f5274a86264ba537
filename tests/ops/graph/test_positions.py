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


def chosen(op: Op, got: Tensor, **inputs: Tensor) -> Tensor:
    """The results that a kernel's choices at ties ask for."""
    problem = op.meaning.chosen(Problem(inputs=inputs), {"y": got})
    return op.fast(problem)["y"].value


def test_a_stable_order_has_no_ties() -> None:
    op = Definition(lambda x, s: x[s.argsort(stable=True)], ["x", "s"], shapes={"x": "n", "s": "n"}).op()
    x, s = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([5.0, 0.0, 5.0])
    assert asked(op, x=x, s=s)["y"].value.tolist() == [2.0, 1.0, 3.0]
    assert chosen(op, torch.tensor([2.0, 3.0, 1.0]), x=x, s=s).tolist() == [2.0, 1.0, 3.0]


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
        assert torch.equal(found.value, function(x, ids).double())


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
