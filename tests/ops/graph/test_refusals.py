"""Each refusal of like= names what is supported, what was received and its line; its hint says what to do.

The messages are in snapshots/refusals.txt, as users read them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial  # noqa: F401 (a call below names it)
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional  # noqa: F401 (a call below names it)

from tests.golden import refusals
from verify.errors import UsageError
from verify.ops.graph.like import Definition
from verify.ops.graph.program import trace


class _Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x


CALLS = """
followed(lambda x: functional.dropout(x, 0.5))
followed(lambda x: torch.bernoulli(x.sigmoid()))
followed(lambda x: x + torch.empty(2).normal_())
followed(lambda x: torch.fft.rfft(x).abs())
followed(lambda x: torch.linalg.svd(x)[1])
followed(lambda x: x.cummax(-1)[1] * x)
followed(lambda x: x if bool(x.sum() > 0) else -x)
followed(lambda x: x * x.sum().item())
followed(lambda x: x[torch.nonzero(x[0])[:, 0]])
followed(lambda x: x[x > 0])
followed(lambda x: torch.bincount(x[0].argsort()) * x)
followed(lambda x: x[x[:, 0].argsort(), x[0].argsort()])
followed(lambda x: (x * 0).index_put((x[0].argsort(),), x))
followed(lambda x: x.long() << x.long())
followed(lambda x: x.long() << 64)
followed(lambda x: 3.0)
followed(lambda x: (x, (x, x)))
followed(lambda x: x.reshape(3))
followed(lambda x: torch.linalg.inv(x.sum() + torch.zeros(9, 9)))
followed(lambda x: torch.special.zeta(2.5, x))
followed(lambda x: torch.special.zeta(x, x))
followed(lambda x: _Twice.apply(x))
followed(lambda x: x.scatter_reduce(0, x.long(), x, "prod"))
followed(lambda x: x.scatter(0, x.long(), x, reduce="multiply"))
followed(lambda x: functional.grid_sample(x[None, None], x[None, None], "nearest"))
followed(lambda x: x.quantile(torch.tensor([0.1, 0.2])))
followed(lambda x: x.quantile(0.3, interpolation="lower"))
followed(lambda x: torch.cov(x, fweights=torch.tensor([1, 2])))
followed(lambda x: functional.embedding_bag(torch.tensor([[0, 1]]), x, padding_idx=0))
followed(lambda x: functional.max_pool1d(x[None], 2, return_indices=True)[0])
followed(lambda x: torch._foreach_add_([x.clone()], 1.0))
followed(lambda x: x.view(torch.int64))
declared(torch.tanh, where="n % 4 == 0")
declared(torch.tanh, shapes={"x": "n 0"})
declared(torch.tanh, examples=partial(dict, 1))
declared(lambda x: x.sum(-1))
declared(lambda x: (x, x), shapes={"x": "n d"}, outputs=["a", "b", "c"])
"""


def followed(function: Callable[..., Any]) -> None:
    trace(function, {"x": torch.zeros(2, 2)})


def declared(function: Callable[..., Any], **given: Any) -> None:
    Definition(function, ["x"], **given).op()


def test_what_is_refused_is_named_with_what_to_do() -> None:
    refusals(Path(__file__).parent / "snapshots" / "refusals.txt", CALLS, globals())


def _data(x: Tensor) -> Tensor:
    y = x * 1
    y.data = x.t()
    return y


def _with_gaps(x: Tensor) -> Tensor:
    y = torch.empty_strided((2, 2), (4, 1))
    y[0] = x[0]
    return y


@pytest.mark.parametrize(
    ("function", "rule"),
    [(_data, "it sets tensor.data"), (_with_gaps, "it writes to a part of a tensor with gaps in its memory")],
)
def test_the_line_of_a_refusal_is_that_of_the_call(function: Callable[..., Any], rule: str) -> None:
    with pytest.raises(UsageError) as raised:
        followed(function)
    code = function.__code__
    where = f'("{__file__}", line {code.co_firstlineno + 2}, in {code.co_name})'
    assert raised.value.message == f"like= cannot be traced: {rule} {where}"


class _TwiceWithoutGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 0 * gradient


_taken_before = _TwiceWithoutGradient.apply


@pytest.mark.parametrize(
    "function", [_taken_before, lambda x: _taken_before(x * 3) + x], ids=["itself", "in a function"]
)
def test_a_gradient_written_by_hand_is_no_truth_if_apply_was_taken_from_its_class_before(function: Any) -> None:
    with pytest.raises(UsageError, match="autograd.Function _TwiceWithoutGradient"):
        trace(function, {"x": torch.zeros(3)}, differentiable=("x",))
    trace(function, {"x": torch.zeros(3)})  # without its gradient the function is its forward pass
