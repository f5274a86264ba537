"""What a program means is what PyTorch means: right answers are found right, wrong ones wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from verify.errors import UsageError
from verify.measure.judge import JudgedBy, judge_by
from verify.ops.graph.like import Definition
from verify.ops.graph.program import trace
from verify.ops.op import Op, Problem
from verify.truth.exact import judge
from verify.truth.fast import evaluate
from verify.truth.formats import named

Given = Mapping[str, Tensor]
T = torch.tensor


def _errors(
    function: Callable[..., Any] | Op,
    given: Given,
    got: Tensor,
    result: str = "y",
    up: Tensor | None = None,
    **shape: Any,
) -> list[float]:
    """The errors in float32 ULP that verify measures for an answer."""
    inputs = dict(given)
    op = function if isinstance(function, Op) else Definition(function, list(inputs), **shape).op()
    fmt = named("float64" if result in op.integers else "float32")
    problem = op.meaning.chosen(Problem(inputs, {}, {} if up is None else {"y": up}, (result,)), {result: got})
    got = got.double() if result in op.integers else got
    truth = evaluate(op, problem, {result: fmt})[result]
    found = judge_by(JudgedBy(op, problem, result, truth, fmt, seed=1), got).errors
    errors: list[float] = (found.ulp if found.scaled is None else found.scaled).reshape(-1).tolist()
    return [abs(error) for error in errors]


def _as_pytorch(function: Callable[..., Any], given: Given, most: float = 0.0) -> None:
    """PyTorch's float32 result is at most so many ULP off."""
    shape = {"examples": [tuple(given.values())]}
    got = function(*given.values())
    assert max(_errors(function, given, got, **shape)) <= most


# -- a number and itself ------------------------------------------------------------------------------------

ONE = torch.ones(4)
ITSELF: list[tuple[Callable[[Tensor], Tensor], float, Tensor | None]] = [
    (torch.nan_to_num, 0.3, ONE),
    (lambda x: torch.where(x == x, x * x, 0.0), 0.125, ONE),
    (lambda x: torch.where(x != x, 0.0, x * x), -7.0, ONE),
    (lambda x: (lambda z: torch.where(z == z, z, 0.0))(x.exp()), 0.03125, None),
    (lambda x: (lambda z: z.masked_fill(~torch.isfinite(z), 0.0))(x.exp()), 0.03125, None),
    (lambda x: torch.where(x.exp() < x.exp(), 5.0, x.exp()), 5.5, None),
]


@pytest.mark.parametrize(("function", "wrong", "up"), ITSELF)
def test_a_number_is_equal_to_itself(function: Callable[[Tensor], Tensor], wrong: float, up: Tensor | None) -> None:
    """`x == x` was read as a tie of two numbers, so that every gradient of nan_to_num was right."""
    x = T([1.5, -2.5, 0.75, 3.0])
    errors = _errors(function, {"x": x}, torch.full((4,), wrong), "y" if up is None else "dx", up)
    assert min(errors) > 1e5


@pytest.mark.parametrize("got", [0.0, -0.5])
def test_the_largest_magnitude_is_an_input_that_nothing_rounded(got: float) -> None:
    norm = lambda x: torch.linalg.vector_norm(x, math.inf, -1)  # noqa: E731
    given = {"x": T([[1.0, -5.0, 2.0]])}
    errors = _errors(norm, given, T([[0.0, got, 0.0]]), "dx", T([1.0]), examples=[tuple(given.values())])
    assert errors[0] == errors[2] == 0.0 and errors[1] > 4e6


def strided(x: Tensor) -> Tensor:
    """Lays numbers out anew, as PyTorch 2.11 does in some programs with logcumsumexp."""
    return torch.ops.prims.copy_strided(x, (1, 2))  # type: ignore[no-any-return]


@pytest.mark.parametrize("function", [lambda x: x.flip(-1), lambda x: x.roll(1, -1), lambda x: x.view(2, 3), strided])
def test_what_moves_elements_is_not_elementwise(function: Callable[[Tensor], Tensor]) -> None:
    moves = not torch.equal(function(torch.arange(6.0).view(2, 3)), torch.arange(6.0).view(2, 3))
    assert trace(function, {"x": torch.zeros(2, 3)}).elementwise != moves
    if moves:
        with pytest.raises(UsageError, match="is not elementwise"):
            Definition(function, ["x"]).op()


# -- divisions to whole quotients ---------------------------------------------------------------------------


def test_what_remains_of_a_division_is_one_number() -> None:
    x = T([3.0, 6.0, 1e7, 5e6, 1e8, 7.5, -6.0, 1e12])
    for function in (
        torch.fmod,
        torch.remainder,
        lambda x, y: x // y,
        lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    ):
        _as_pytorch(function, {"x": x, "y": torch.full_like(x, 3.0)}, 0.5)
    assert min(_errors(lambda x: torch.fmod(x, 3.0), {"x": x}, torch.full((8,), 1.2345))) > 1e6
    assert min(_errors(lambda x: torch.remainder(x, 3.0), {"x": x}, torch.full((8,), -0.5))) > 1e6
    assert _errors(lambda x: (x * 0.1) // 0.1, {"x": T([3.0])}, T([3.0])) == [0.0]  # its own rounding decides
    assert _errors(lambda x: (x * 0.1) // 0.1, {"x": T([3.0])}, T([1.5]))[0] > 1e5
    assert trace(lambda x: (x * 0.1) % 0.1, {"x": x}).decides and trace(torch.signbit, {"x": x}).decides


# -- zeros with a sign, and poles ---------------------------------------------------------------------------

POLES: list[tuple[Callable[..., Tensor], list[Tensor], str]] = [
    (lambda x: 1 / x, [T([0.0, -0.0, 2.0])], "dx"),
    (lambda x: 3 - 2 / x, [T([0.0, -0.0, 2.0])], "y"),
    (lambda x, y: x / y, [T([1.0, -1.0, 3.0, -1.0]), T([0.0, 0.0, 2.0, -0.0])], "dy"),
    (lambda x: x**-2, [T([-0.0, 0.0])], "dx"),
    (lambda x: x**-3.0 * 5, [T([-0.0, 0.0])], "y"),
    (lambda x, y: x**y, [T([-0.0, 0.0, -2.0, -0.5, -2.0]), T([-3.0, -3.0, 16777215.0, 2.0**60, 101.0])], "y"),
    (torch.rsqrt, [T([-0.0, 0.0])], "y"),
    (lambda x: 2 * torch.digamma(x), [T([-0.0, 0.0])], "y"),
    (torch.atan2, [T([0.0, -0.0, 0.0, -0.0, -0.0, 3.0]), T([-2.0, -2.0, -0.0, -0.0, 0.0, math.inf])], "y"),
    (torch.atan2, [T([math.inf, -math.inf, math.inf]), T([math.inf, -math.inf, -2.0])], "y"),
    (torch.copysign, [T([2.0, -2.0, 2.0]), T([-0.0, 0.0, -math.inf])], "y"),
    (lambda x: torch.signbit(x) * 3.0, [T([-0.0, 0.0, -math.inf])], "y"),
]


@pytest.mark.parametrize(("function", "given", "result"), POLES)
def test_a_zero_has_the_sign_that_it_has_in_pytorch(
    function: Callable[..., Tensor], given: list[Tensor], result: str
) -> None:
    """1 / x had no verdict: the product of a pole and a number was NaN by Arb."""
    names = ("x", "y")[: len(given)]
    values = [value.clone().requires_grad_() for value in given]
    y = function(*values)
    up = torch.ones_like(y)
    got = y.detach()
    if result != "y":
        [got] = torch.autograd.grad(y, [values[names.index(result[1:])]], up)
    inputs = dict(zip(names, given, strict=True))
    assert max(_errors(function, inputs, got, result, None if result == "y" else up)) < 2
    if bool(torch.isinf(got).any()):
        assert max(_errors(function, inputs, -got, result, None if result == "y" else up)) == math.inf


# -- integers and conditions --------------------------------------------------------------------------------

_int, _byte = torch.int32, torch.int8
INTEGERS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.to(_int).to(torch.bool),
    lambda x: (x > 0) + (x > 1),
    lambda x: (x > 0) * (x > 3) | (x < -5) ^ (x > 2),
    lambda x: ~x.to(_int),
    lambda x: (x.to(_int) & 1) + (x.to(_int) | 6) - (x.to(_int) ^ 5),
    lambda x: (x.to(_int) << 2) + (x.to(_int) >> 1),
    lambda x: x.to(_int).to(_byte),
    lambda x: x.to(_int).to(torch.uint8),
    lambda x: x.to(_int).to(_byte) * 2 - 1,
    lambda x: -(x.to(_int).to(_byte) ** 2),
    lambda x: x.to(_int) * 2**30,
    lambda x: (x > 0).sum() * (x.to(_int) % 4),
    lambda x: x.to(_int) // 4 + torch.div(x.to(_int), 4, rounding_mode="trunc"),
    lambda x: torch.where(x > 0, x.to(_int), 7) + torch.where(x > 5, True, False),
    lambda x: x.to(_int).masked_fill(x < 0, 9).clamp(0, 7),
    lambda x: torch.cat([(x > 0).sum(0, True), x.to(torch.int64)]),
    lambda x: torch.stack([x.to(_int) + 1, x.to(_int)]).amax(0) == x.to(_int).cumsum(0),
    lambda x: torch.stack([x.to(_int).any(), x.to(_int).all(), (x.to(_int) - 5).all()]),
    lambda x: torch.logical_and(x.to(_int), x > 0) & (x.to(_int) != 2),
    lambda x: torch.where(torch.isfinite(x), x.to(_int), 0),
]


@pytest.mark.parametrize("function", INTEGERS)
def test_integers_that_follow_from_numbers_are_pytorchs(function: Callable[[Tensor], Tensor]) -> None:
    _as_pytorch(lambda x: function(x).to(x.dtype), {"x": T([5.0, 2.0, -6.0, 300.0])})


def test_integers_that_float64_does_not_hold_are_refused() -> None:
    def mixed(x: Tensor) -> Tensor:
        return ((x.to(torch.int64) * 6364136223846793005 + 1442695040888963407) & 255).to(x.dtype)

    with pytest.raises(UsageError, match="integers up to 2\\^53 if they are computed from real numbers"):
        _as_pytorch(mixed, {"x": T([1.5, -2.5, 0.0, 300.0])})


def test_an_integer_beyond_its_type_is_any() -> None:
    """PyTorch defines no integer for it; the run stopped as the float64 one was compared with the exact one."""
    x = T([1e28, 1.0, math.nan])
    assert _errors(lambda x: x.to(_int).to(torch.bool).to(x.dtype), {"x": x}, T([1.0, 1.0, 0.0])) == [0.0] * 3
    assert _errors(lambda x: x.to(_int), {"x": x}, T([-(2**31), 1, 5]), examples=[(x,)])[:2] == [0.0, 0.0]
    assert _errors(lambda x: x.to(_int), {"x": x}, T([0, 2, 0]))[1] > 0.0


# -- selections ---------------------------------------------------------------------------------------------


def _zeros(x: Tensor) -> Tensor:
    return torch.zeros(x.shape, dtype=x.dtype)


SELECTIONS: list[Callable[[Tensor], Tensor]] = [
    lambda x: (x == x.amax(-1)).to(x.dtype),
    lambda x: (x == x.amax(-1, True).mT).to(x.dtype),
    lambda x: (x == x.amax(1, True)).to(x.dtype),
    lambda x: (x == x.amax(1).unsqueeze(1).flip(0)).to(x.dtype),
    lambda x: _zeros(x).scatter(-1, x.topk(2, -1).indices[..., :1], 1.0),
    lambda x: _zeros(x).scatter(-1, x.topk(3, -1).indices[..., 1:], x[..., 1:3]),
    lambda x: _zeros(x).scatter(1, x.topk(2, 1).indices, x),
    lambda x: _zeros(x).scatter(1, x.sort(1, descending=True).indices[:, ::2], x),
    lambda x: _zeros(x).scatter(0, x.argmax(-1, keepdim=True), 1.0),
    lambda x: x.scatter(1, x.argmin(-1)[:, :, None], 5.0),
    lambda x: x.scatter(-1, x.argmax(-1)[:2, :2, None], x[:, 2:]),
    lambda x: torch.zeros(4, 5, 7, dtype=x.dtype).scatter(-1, x.argmax(-1, keepdim=True), 1.0),
    lambda x: torch.zeros(4, 4, 4, dtype=torch.bool).scatter(-1, x.topk(2, -1).indices, True).to(x.dtype) * x,
]


@pytest.mark.parametrize("function", SELECTIONS)
def test_a_selection_is_seen_only_where_rows_keep_their_place(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(4, 4, 4, generator=torch.Generator().manual_seed(3))
    _as_pytorch(function, {"x": x})


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.max(1)[0],
        lambda x: x.min(0, keepdim=True)[0],
        lambda x: x.amax((0, 2)),
        lambda x: x.topk(3, 1)[0],
        lambda x: x.sort(0)[0],
        lambda x: functional.max_pool1d(x, 2),
    ],
)
def test_gradients_of_selections_go_where_the_elements_are(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(4, 4, 4, generator=torch.Generator().manual_seed(3))
    up = torch.randn(function(x).shape, generator=torch.Generator().manual_seed(4))
    leaf = x.clone().requires_grad_()
    [got] = torch.autograd.grad(function(leaf), [leaf], up)
    assert max(_errors(function, {"x": x}, got, "dx", up, examples=[(x,)])) == 0.0


def _kept(
    comparison: str, rank: int, *, largest: bool, turned: bool, inner: Callable[[Tensor], Tensor]
) -> Callable[[Tensor], Tensor]:
    """Numbers of a row that compare so with the one of a rank in it, the others 0."""

    def kept(x: Tensor) -> Tensor:
        shares = inner(x)
        limit = shares.topk(3, -1, largest)[0][:, rank : rank + 1]
        operands = (limit, shares) if turned else (shares, limit)
        return torch.where(getattr(torch, comparison)(*operands), shares, 0.0)

    return kept


ROWS = T([[1.0, -2.0, 0.5, 3.0, -0.25], [2.0, 2.0, 1.0, 2.0, 4.0], [0.0, -0.0, 5.0, -1.0, 7.0]])
STRANGE = T(
    [[1.0, math.nan, 0.5, 3.0, -0.25], [math.nan, math.nan, math.nan, 2.0, 4.0], [math.inf, 1.0, 2.0, 3.0, 0.0]]
)


@pytest.mark.parametrize(  # every pair of two of the three
    ("comparison", "largest", "turned"),
    [
        (name, largest, largest == (name in ("lt", "ge")))
        for name in ("lt", "le", "gt", "ge")
        for largest in (True, False)
    ],
)
def test_an_element_is_compared_with_a_rank_of_its_own_row(comparison: str, largest: bool, turned: bool) -> None:
    """The element of that rank is equal to itself, which no interval shows: softmax then topk had the truth 0."""
    for rank in (0 if largest else 2,):
        exact = _kept(comparison, rank, largest=largest, turned=turned, inner=lambda x: x)
        _as_pytorch(exact, {"x": ROWS})
        _as_pytorch(exact, {"x": STRANGE})
        function = _kept(comparison, rank, largest=largest, turned=turned, inner=lambda x: torch.softmax(x, -1))
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(rank))
        inputs = {"x": x}
        op = Definition(function, ["x"], examples=[(x,)]).op()
        right = function(x)
        assert max(_errors(op, inputs, right)) <= 4.0
        other = torch.where(right == 0, torch.softmax(x, -1), 0.0)  # whatever should be kept is not, and the reverse
        assert min(_errors(op, inputs, other)) > 1e5
        for place, point in enumerate(op.points(Problem(inputs, {}, {}, ("y",)), "y", range(6))):
            bits = int(right.reshape(-1)[place].view(torch.int32))
            assert abs(judge(point, named("float32"), bits & 0xFFFFFFFF, both=True).ulp) < 4


# -- legal programs have a verdict -------------------------------------------------------------------------


def _e4m3(x: Tensor) -> Tensor:
    unit = torch.exp2(torch.floor(torch.log2(x.abs().clamp(min=2.0**-6))) - 3)
    return (torch.round(x / unit) * unit).clamp(-448, 448)


GRIDS: list[tuple[Callable[..., Tensor], list[Tensor]]] = [
    (lambda x: torch.round(x / 0.1) * 0.1, [T([0.05, 0.25, -0.35, 7.0])]),
    (lambda x, s: torch.round(x / s).clamp(-128, 127) * s, [T([0.5, 2.5, -1e9, 7.0]), T([1.0, 1.0, 1e-3, 3.0])]),
    (lambda x, s: torch.round(x / (s / 127)).clamp(-128, 127), [T([0.5, 2.5, -1e9, 7.0]), T([127.0, 127.0, 1.0, 3.0])]),
    (lambda x, s: torch.round(x / s).clamp(-128, 127), [T([1.0, 1.0, 0.0, -3.0]), T([0.0, -0.0, 0.0, 0.0])]),
    (_e4m3, [T([0.015625, 1.0, -4.0, 0.3, 2.0**-126, 500.0, 0.0, 17.5])]),
    (lambda x: torch.floor(torch.log10(x)), [T([1e-3, 1.0, 1000.0, 1e10, 999.0])]),
]


@pytest.mark.parametrize(("function", "given"), GRIDS)
def test_both_routes_agree_where_a_tie_decides(function: Callable[..., Tensor], given: list[Tensor]) -> None:
    """At a tie that Arb cannot decide, mpmath's number was taken for 0."""
    inputs = dict(zip(("x", "s"), given, strict=False))
    op = Definition(function, list(inputs)).op()
    problem = Problem(inputs, {}, {}, ("y",))
    for point in op.points(problem, "y", range(given[0].numel())):
        judge(point, named("float32"), 0, both=True)  # raises where they do not
    _as_pytorch(function, inputs, 0.6)


def test_ties_on_a_grid_of_powers_of_two_are_known() -> None:
    """exp2 of a whole number rounds nothing, and neither does a quotient by what came of it."""
    x = torch.arange(-512, 512, dtype=torch.float32) / 16
    problem = Problem({"x": x}, {}, {}, ("y",))
    truth = evaluate(Definition(_e4m3, ["x"], shapes={"x": "n"}).op(), problem, {"y": named("float32")})[
        "y"
    ].for_result(_e4m3(x))
    assert (truth.value == _e4m3(x.double())).all() and float(truth.bound.max()) < 1e-9


def test_a_ball_of_two_numbers_that_is_not_zero_has_no_zero_by_mpmath() -> None:
    op = Definition(lambda x: torch.floor(torch.exp(torch.log(x)) * 3), ["x"]).op()
    [point] = op.points(Problem({"x": T([3.0])}, {}, {}, ("y",)), "y", [0])
    assert float(point.mp(160)) in (8.0, 9.0)


def test_a_constant_and_operands_that_are_conditions_have_a_verdict() -> None:
    x = torch.ones(3, 5)
    assert _errors(lambda x: torch.full((3,), 2.5), {"x": x}, T([2.5, 2.5, 2.0]), examples=[(x,)])[2] > 1e5
    assert max(_errors(lambda x: (x * 2, torch.arange(4.0)), {"x": x}, x * 2, "y1", examples=[(x,)])) == 0.0
    a, b = T([True, False, True]), T([False, False, True])
    kinds = {"shapes": {"a": "n", "b": "n"}, "integers": {"a": "bool", "b": "bool"}}
    got = T([True, True, False])
    errors = _errors(lambda a, b: a & ~b, {"a": a, "b": b}, got, **kinds)
    assert errors[0] == errors[2] == 0.0 < errors[1]
    assert max(_errors(lambda a, b: torch.where(a, 1.5, 2.5) * b, {"a": a, "b": b}, T([0.0, 0.0, 1.5]), **kinds)) == 0.0


# -- the types of a case ------------------------------------------------------------------------------------


def _half(x: Tensor) -> Tensor:
    assert x.dtype in (torch.bfloat16, torch.float16), "for half precision"
    return x * (2.0 if x.dtype == torch.float16 else 3.0)


TYPED: list[tuple[Callable[..., Tensor], float]] = [
    (lambda x: functional.rms_norm(x, (4,)), 2.0),
    (lambda x: torch.nn.RMSNorm(4)(x), 2.0),
    (lambda x: x / (x.abs() + torch.finfo(x.dtype).eps), 2.0),
    (lambda x: x * torch.finfo(x.float().dtype).eps + torch.finfo(x.double().dtype).eps, 2.0),
    (lambda x: x + torch.finfo(x.dtype).tiny * torch.finfo((x[0] * x.half()).T.dtype).max, 2.0),
    (lambda x: x * (x.to(torch.float16).exp().sum().dtype == torch.float16) * torch.zeros(3).dtype.itemsize, 0.0),
    (lambda x: x * (x.half() + x.bfloat16()).dtype.itemsize + x.half().to(x).dtype.itemsize, 1.0),
    (lambda x: torch.nan_to_num(x / 0), 0.0),
    (lambda x: x.double().mul_(2.0).to(x.dtype) + x, 0.5),
    (lambda x: torch.nan_to_num(x / 0, posinf=1.0), 0.0),
    (lambda x: x.masked_fill(x > 0, torch.finfo(x.dtype).min), 0.0),
    (lambda x: x * x.element_size() * x.itemsize * x.nbytes, 0.0),
    (lambda x: x * torch.promote_types(x.dtype, torch.float16).itemsize * torch.get_default_dtype().itemsize, 0.0),
    (lambda x: x * torch.result_type(x, 1).itemsize * (x.type() == "torch.FloatTensor"), 0.0),
    (lambda x: x * (x.int() + 0.5).dtype.itemsize * torch.zeros(3).dtype.itemsize * (x.int() / 2).element_size(), 0.0),
    (lambda x: x * (2.0 if torch.is_floating_point(x) and x.float() is x else 3.0), 0.0),
    (lambda x: x * torch.tensor(0.5).dtype.itemsize * torch.tensor([0.5], dtype=torch.float64).itemsize, 0.0),
]


@pytest.mark.parametrize(("function", "most"), TYPED)
def test_a_function_sees_the_types_of_the_case(function: Callable[..., Tensor], most: float) -> None:
    """All was traced in float64, whose eps is not that of float32."""
    _as_pytorch(function, {"x": torch.tensor([[1e-7, -3e-7, 2e-7, 5e-8]])}, most)


def test_each_type_of_a_case_has_its_own_program_where_the_function_asks() -> None:
    op = Definition(_half, ["x"], examples=[(torch.ones(2),)]).op()
    for kind, want in ((torch.float16, 2.0), (torch.bfloat16, 3.0), (torch.float16, 2.0)):
        x = torch.ones(2, dtype=kind)
        assert op.fast(Problem({"x": x}, {}, {}, ("y",)))["y"].value.tolist() == [want] * 2
    assert trace(_half, {"x": torch.ones(2, dtype=torch.float16)}).typed
    assert not trace(lambda x: x.float() * 2, {"x": torch.ones(2)}).typed
    with pytest.raises(UsageError, match="AssertionError: for half precision"):
        op.fast(Problem({"x": torch.ones(2)}, {}, {}, ("y",)))


# -- operators ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.0, 0.5, 1.5, 2.0, 3.0, math.inf])
def test_the_gradient_of_a_distance_is_pytorchs_at_zeros(p: float) -> None:
    """It was 0 / 0 where two numbers are equal."""
    a, b = T([[1.0, 2.0, 3.0], [1.5, 2.0, 1.0]]), T([[1.5, 2.0, 1.0]])
    leaf = a.clone().requires_grad_()
    torch.cdist(leaf, b, p=p).sum().backward()
    assert leaf.grad is not None
    shape = {"examples": [(a, b)]}
    assert (
        max(_errors(lambda a, b: torch.cdist(a, b, p=p), {"a": a, "b": b}, leaf.grad, "da", T([[1.0], [1.0]]), **shape))
        < 4
    )


def test_a_gradient_by_frequency_is_divided_by_it() -> None:
    """As functional.embedding has it: PyTorch's embedding_bag divides row 5, which is met once, by 3."""
    places, w = T([[0, 2, 2], [5, 1, 2]]), torch.ones(6, 2)
    leaf = w.clone().requires_grad_()
    functional.embedding(places, leaf, scale_grad_by_freq=True).sum().backward()
    assert leaf.grad is not None and leaf.grad[5].tolist() == [1.0, 1.0]

    def bag(i: Tensor, w: Tensor) -> Tensor:
        return functional.embedding_bag(i, w, mode="sum", scale_grad_by_freq=True)

    errors = _errors(bag, {"i": places, "w": w}, leaf.grad, "dw", torch.ones(2, 2), examples=[(places, w)])
    assert max(errors) < 1e-6


def test_operators_that_had_another_meaning() -> None:
    x, labels = T([[0.1, 0.2, 0.4, 0.8]]), T([[3, 0, -1, 1]])
    loss = functional.multilabel_margin_loss
    assert _errors(loss, {"x": x, "t": labels}, T(0.85), examples=[(x, labels)])[0] < 0.5
    assert max(_errors(torch.sinc, {"x": T([1.0, 2.0, 5.0, 0.0])}, T([0.0, 0.0, 0.0, 1.0]))) == 0.0
    nan = torch.full((2,), math.nan)
    for function in (torch.fmax, torch.fmin):
        assert max(_errors(function, {"x": T([1.0, 2.0]), "y": nan}, T([1.0, 2.0]))) == 0.0
        assert max(_errors(function, {"y": nan, "x": T([1.0, 2.0])}, T([1.0, 2.0]))) == 0.0
    assert max(_errors(torch.hypot, {"x": T([math.inf]), "y": T([math.nan])}, T([math.inf]))) == 0.0


def _halved(x: Tensor) -> Tensor:
    return x / 2


@pytest.mark.parametrize(
    ("function", "shown"),
    [
        (_halved, "def _halved(x: Tensor) -> Tensor:\n    return x / 2\n"),
        (functional.mish, "torch.nn.functional.mish"),
        (torch.erf, "torch.erf"),
        (partial(functional.softmax, dim=-1), "# with dim=-1\ntorch.nn.functional.softmax"),
        (torch.nn.ReLU(), "torch.nn.modules.activation.ReLU"),
    ],
)
def test_a_definition_can_be_shown(function: Callable[..., Any], shown: str) -> None:
    shapes = {"x": "n d"} if isinstance(function, partial) else None
    assert Definition(function, ["x"], shapes=shapes).op().definition == shown
