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

from tests.golden import answers
from verify.errors import UsageError
from verify.ops.graph.like import Definition
from verify.ops.graph.program import trace


class _Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x


def followed(function: Callable[..., Any]) -> None:
    trace(function, {"x": torch.zeros(2, 2)})


def declared(function: Callable[..., Any], **given: Any) -> None:
    Definition(function, ["x"], **given).op()


def test_what_is_refused_is_named_with_what_to_do() -> None:
    answers(Path(__file__).parent / "snapshots" / "refusals.txt", globals())


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
