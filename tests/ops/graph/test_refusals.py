"""Each refusal of like= names what is supported, what was received and its line; its hint says what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from verify.errors import UsageError
from verify.ops.graph.like import Definition
from verify.ops.graph.program import trace


class _Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x


def _data(x: Tensor) -> Tensor:
    y = x * 1
    y.data = x.t()
    return y


def _with_gaps(x: Tensor) -> Tensor:
    y = torch.empty_strided((2, 2), (4, 1))
    y[0] = x[0]
    return y


_RANDOM = (
    "like= gives the same result in each call; {} draws random numbers@",
    "pass the random numbers as an operand; module.eval() switches dropout off",
)
_COMPLEX = "keep the real and the imaginary part in two tensors"
_OPERATOR = (
    "like= does not support the operator {}@",
    "write it with other operators, such as a sum of its series (docs/like.md)",
)
_VALUES = (
    "like= cannot be traced: {} reads the values of a tensor@",
    "replace branches on values by torch.where; docs/like.md lists what is refused",
)
_TENSORS = (
    "like= is a function of tensors that returns tensors; it returned {}",
    "return a scalar as a tensor (x.sum(), not float(x.sum())), and tensors of a nested tuple one by one",
)
_MASK = (
    "like= has shapes that do not depend on values; {} received a mask@",
    "torch.where(mask, x, 0) keeps the shape; or pass the indices as an operand: integers={{...}}",
)
_ONE_INDEX = (
    "like= supports one index computed from values, to read or add elements; received {}@",
    "pass the indices as an operand: integers={{'index': '0 <= index < n'}}",
)
_SHIFT = (
    "like= supports shifts by a constant from 0 to 63; aten.__lshift__.{}@",
    "multiply or divide by a power of two: x * 2**shift",
)
_GRID = (
    "like= supports grid_sample with mode='bilinear' and padding_mode='zeros' or 'border'; received {}",
    "compute the weight of each pixel in the function",
)
_ZETA = (
    "like= supports special.zeta(s, x) of a tensor x if s is a whole number from 2 to 64; received {}",
    "pass s as a number: torch.special.zeta(2, x)",
)
_QUANTILE = (
    "like= supports quantile for a number q with interpolation='linear'; received {}",
    "call torch.quantile(x, 0.5, dim) once for each q",
)
_AT = "@"  # in a message: the file, the line and the function of the call


@pytest.mark.parametrize(
    ("function", "rule", "received"),
    [
        (lambda x: functional.dropout(x, 0.5), _RANDOM, "aten.bernoulli_.float"),
        (lambda x: torch.bernoulli(x.sigmoid()), _RANDOM, "aten.bernoulli.default"),
        (lambda x: x + torch.empty(2).normal_(), _RANDOM, "aten.normal_.default"),
        (
            lambda x: torch.fft.rfft(x).abs(),
            ("like= supports real numbers only; {} returns complex numbers@", _COMPLEX),
            "aten._fft_r2c.default",
        ),
        (lambda x: torch.linalg.svd(x)[1], _OPERATOR, "aten._linalg_svd.default"),
        (lambda x: x.cummax(-1)[1] * x, _OPERATOR, "aten.cummax.default"),
        (lambda x: x if bool(x.sum() > 0) else -x, _VALUES, "aten._local_scalar_dense.default"),
        (lambda x: x * x.sum().item(), _VALUES, "aten._local_scalar_dense.default"),
        (lambda x: x[torch.nonzero(x[0])[:, 0]], _VALUES, "aten.nonzero.default"),
        (lambda x: x[x > 0], _MASK, "aten.index.Tensor"),
        (
            lambda x: torch.bincount(x[0].argsort()) * x,
            (
                "like= has shapes that do not depend on values; torch.bincount received no minlength=@",
                "torch.bincount(x, minlength=n), where all numbers are below n",
            ),
            "",
        ),
        (lambda x: x[x[:, 0].argsort(), x[0].argsort()], _ONE_INDEX, "aten.index.Tensor"),
        (lambda x: (x * 0).index_put((x[0].argsort(),), x), _ONE_INDEX, "aten.index_put.default"),
        (lambda x: x.long() << x.long(), _SHIFT, "Tensor received a tensor"),
        (lambda x: x.long() << 64, _SHIFT, "Scalar received 64"),
        (lambda x: 3.0, _TENSORS, "float"),
        (lambda x: (x, (x, x)), _TENSORS, "tuple"),
        (
            lambda x: x.reshape(3),
            (
                "like= fails for zeros of the shapes x (2, 2): RuntimeError: {}",
                "it has to run on zeros; shapes= and integers= declare which ones (docs/like.md)",
            ),
            "shape '[3]' is invalid for input of size 4",
        ),
        (
            lambda x: torch.linalg.inv(x.sum() + torch.zeros(9, 9)),
            (
                "like= supports inv of square matrices with up to 8 rows; received the shape {}",
                "declare smaller sizes by shapes= or where=",
            ),
            "(9, 9)",
        ),
        (lambda x: torch.special.zeta(2.5, x), _ZETA, "2.5"),
        (lambda x: torch.special.zeta(x, x), _ZETA, "a tensor s"),
        (
            lambda x: _Twice.apply(x),
            (
                "like= calls the torch.autograd.Function {}, whose gradient is written by hand",
                "write the computation with PyTorch's own operators",
            ),
            "_Twice",
        ),
        (
            lambda x: x.scatter_reduce(0, x.long(), x, "prod"),
            (
                "like= supports scatter_reduce with reduce='sum' or 'mean'; received {}",
                "gather the elements of each place, then call amax, amin or prod",
            ),
            "'prod'",
        ),
        (lambda x: functional.grid_sample(x[None, None], x[None, None], "nearest"), _GRID, "'nearest' and 'zeros'"),
        (lambda x: x.quantile(torch.tensor([0.1, 0.2])), _QUANTILE, "a tensor q"),
        (lambda x: x.quantile(0.3, interpolation="lower"), _QUANTILE, "lower"),
        (
            lambda x: torch.cov(x, fweights=torch.tensor([1, 2])),
            ("like= supports cov without weights; received {}", "write it as a product of matrices"),
            "fweights",
        ),
        (
            lambda x: functional.embedding_bag(torch.tensor([[0, 1]]), x, padding_idx=0),
            (
                (
                    "like= supports embedding_bag without max_norm and padding_idx, and mode='max' without offsets; "
                    "received {}"
                ),
                "use functional.embedding and a sum, mean or amax",
            ),
            "max_norm=None, padding_idx=0, mode='mean'",
        ),
        (
            lambda x: functional.max_pool1d(x[None], 2, return_indices=True)[0],
            ("like= supports {} without return_indices=True", "return the values only"),
            "max_pool1d",
        ),
        (_data, ("like= cannot be traced: it sets tensor.data@", "use tensor.copy_(...) to write to a tensor"), ""),
        (
            lambda x: torch._foreach_add_([x.clone()], 1.0),
            ("like= cannot be traced: {} writes to its arguments@", "use an operator that returns its result"),
            "aten._foreach_add_.Scalar",
        ),
        (
            lambda x: x.view(torch.int64),
            (
                "like= computes with real numbers, which have no bits; {} reads bits@",
                "x.to(dtype) converts the numbers",
            ),
            "aten.view.dtype",
        ),
        (
            _with_gaps,
            (
                "like= cannot be traced: it writes to a part of a tensor with gaps in its memory@",
                "call clone() on the tensor first",
            ),
            "",
        ),
    ],
)
def test_what_is_refused_is_named_with_its_line(
    function: Callable[..., Any], rule: tuple[str, str], received: str
) -> None:
    with pytest.raises(UsageError) as raised:
        trace(function, {"x": torch.zeros(2, 2)})
    message, hint = (text.format(received) for text in rule)
    if message.endswith(_AT):
        message, code = message.removesuffix(_AT), function.__code__
        lines = range(code.co_firstlineno, code.co_firstlineno + 3)
        where = [f' ("{__file__}", line {line}, in {code.co_name})' for line in lines]
        assert raised.value.message.removeprefix(message) in where
    else:
        assert raised.value.message == message
    assert raised.value.hint == hint


def _failing_examples() -> Any:
    return 1 / 0


@pytest.mark.parametrize(
    ("function", "given", "message", "hint"),
    [
        (
            torch.tanh,
            {"where": "n % 4 == 0"},
            "where= is about the dimensions of shapes=; received 'n % 4 == 0' alone",
            "shapes={'x': 'n d'} names the dimensions",
        ),
        (
            torch.tanh,
            {"shapes": {"x": "n 0"}},
            (
                "shapes={'x': ...} is made of names of dimensions, of numbers, and of expressions of both without "
                "spaces; received '0'"
            ),
            "shapes={'query': 'b h s d', 'weight': '3 d', 'offsets': 'b+1'}",
        ),
        (
            torch.tanh,
            {"examples": _failing_examples},
            (
                "examples= is a list of the kernel's tensors, or a function that returns it; received "
                f"{_failing_examples!r}: ZeroDivisionError: division by zero"
            ),
            "examples=[(x, weight), ...] in the order of the kernel's arguments",
        ),
        (
            lambda x: x.sum(-1),
            {},
            "like=like is not elementwise, so verify needs the shapes of its operands",
            "shapes={'x': 'n d'}, or examples=[(tensor, ...)]",
        ),
        (
            lambda x: (x, x),
            {"shapes": {"x": "n d"}, "outputs": ["a", "b", "c"]},
            "like= returns 2 tensors; outputs= names 3: a, b, c",
            "name each tensor that the function returns, in its order",
        ),
    ],
)
def test_what_cannot_be_declared_is_refused(
    function: Callable[..., Any], given: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as raised:
        Definition(function, ["x"], **given).op()
    assert (raised.value.message, raised.value.hint) == (message, hint)


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
