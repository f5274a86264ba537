"""Reverse differentiation against central differences, and what it refuses to follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
from mpmath import mp

from verify.errors import TruthError
from verify.ops import Problem, define_rows, registry
from verify.ops.define import row_op
from verify.ops.numeric import derivative_at
from verify.ops.reverse import _DERIVATIVES, Untraceable, gradient

ROW, UPSTREAM = [0.375, -1.25, 2.0], [1.5, -0.5, 0.75]


def softmax(row: list[Any]) -> list[Any]:
    top = max(row)
    weights = [mp.exp(v - top) for v in row]
    return [weight / mp.fsum(weights) for weight in weights]


def arithmetic(row: list[Any]) -> list[Any]:
    a, b, c = row
    return [
        2 - a + b * 3 - (-c) + +a,
        a / b + 1 / c + abs(b) ** 3 + 2**a + c**a + mp.fabs(b),
        mp.fdot([(a, b), (b, c)]) + mp.fdot(row, [1, 2, a]) + sum(row) * mp.pi + 0.1 * (a if b < c else b),
    ]


def outer(row: list[Any]) -> list[Any]:
    """The functions by their other name."""
    return [mpmath.exp(row[0]) * mpmath.sqrt(row[2]), mp.one, row[1] ** 0 + row[1]]


def elementary(name: str) -> Callable[[list[Any]], list[Any]]:
    return lambda row: [getattr(mp, name)(v * v / 5 + mp.mpf(1) / 8) for v in row]


FORMULAS = [softmax, arithmetic, outer, *map(elementary, _DERIVATIVES)]


@pytest.mark.parametrize("formula", FORMULAS, ids=["softmax", "arithmetic", "outer", *_DERIVATIVES])
def test_every_derivative_is_the_one_of_a_central_difference(formula: Callable[[list[Any]], list[Any]]) -> None:
    values, upstream = [mp.mpf(v) for v in ROW], [mp.mpf(g) for g in UPSTREAM]

    def product(*moved: Any) -> Any:
        return mp.fdot(upstream, formula(list(moved)))

    with mp.workprec(200):
        slopes = gradient(formula, values, upstream)
        for column, slope in enumerate(slopes):
            expected = derivative_at("here", product, values, column, 150)
            assert abs(slope - expected) <= mp.ldexp(abs(expected), -140), column


def test_mpmath_is_as_before_afterwards() -> None:
    before = (mp.exp, mpmath.exp, mp.fsum)
    with pytest.raises(Untraceable):
        gradient(lambda row: [mp.gamma(v) for v in row], [mp.one], [mp.one])
    assert (mp.exp, mpmath.exp, mp.fsum) == before


@pytest.mark.parametrize(
    "formula",
    [
        lambda row: [mp.gamma(v) for v in row],
        lambda row: [mp.log(v, 2) for v in row],
        lambda row: [mp.fsum(row, squared=True) for _ in row],
        lambda row: [mp.mpf(v) for v in row],
        lambda row: [abs(v - v) for v in row],
        lambda row: [mp.sqrt(v - v) for v in row],
        lambda row: [v * mp.j for v in row],
        lambda row: row[:1],
    ],
    ids=["unlisted", "base", "option", "converted", "corner", "infinite", "complex", "short"],
)
def test_what_cannot_be_followed_is_refused(formula: Callable[[list[Any]], list[Any]]) -> None:
    with pytest.raises(Untraceable):
        gradient(formula, [mp.one, mp.mpf(2)], [mp.one, mp.one])


def test_a_gradient_that_cancels_is_zero_and_not_noise() -> None:
    """v / |v| for one element has the slope zero; the two terms of it are a third."""
    values = [mp.mpf(3.1)]
    with mp.workprec(200):
        norm: Callable[[list[Any]], list[Any]] = lambda row: [row[0] / mp.sqrt(row[0] * row[0])]  # noqa: E731
        assert gradient(norm, values, [mp.one]) == [0]
        small = gradient(lambda row: [row[0] / mp.sqrt(row[0] * row[0] + mp.ldexp(1, -100))], values, [mp.one])
        assert 0 < small[0] < mp.ldexp(1, -100)


@pytest.fixture
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_OPS", dict(registry._OPS))


@pytest.mark.usefixtures("_own_registry")
def test_a_row_op_takes_its_gradient_from_here_and_compares_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong derivative stops the run."""
    defined = row_op("own_softmax", exact=softmax, reference=lambda x: torch.softmax(x, -1))
    assert defined.whole_rows == ("y", "dx")
    x, dy = torch.tensor([ROW]), torch.tensor([UPSTREAM])
    builtin = registry.get("softmax")
    for result in ("y", "dx"):
        points = [op.points(Problem({"x": x}, {}, {"y": dy}), result, range(3)) for op in (defined, builtin)]
        for ours, theirs in zip(*points, strict=True):
            assert abs(ours.mp(150) - theirs.mp(150)) <= mp.ldexp(1, -148)
    monkeypatch.setattr(
        define_rows, "gradient", lambda *given: [slope * (1 + mp.ldexp(1, -30)) for slope in gradient(*given)]
    )
    point = defined.points(Problem({"x": x}, {}, {"y": dy}), "dx", [0])[0]
    with pytest.raises(TruthError, match="two routes to the gradient disagree at element . of a row of 3"):
        point.mp(100)


@pytest.mark.usefixtures("_own_registry")
def test_a_row_without_a_value_has_no_slope_either() -> None:
    """A difference across a row of zeros, which its norm divides, grows as its step shrinks: it settled nowhere,
    and a dtype with such a row was not judged at all."""
    defined = row_op(
        "unit",
        exact=lambda row: [v / mp.sqrt(mp.fsum(w * w for w in row)) for v in row],
        reference=lambda x: x / x.square().sum(-1, keepdim=True).sqrt(),
    )
    problem = Problem({"x": torch.tensor([[0.0, -0.0], [3.0, 4.0]])}, {}, {"y": torch.ones(2, 2)}, ("y", "dx"))
    for result, of_row in (("y", 0.8), ("dx", -3 / 125)):
        nothing, _, _, found = (point.mp(100) for point in defined.points(problem, result, range(4)))
        assert mp.isnan(nothing) and abs(found - mp.mpf(of_row)) < 1e-15


@pytest.mark.usefixtures("_own_registry")
def test_a_formula_that_cannot_be_followed_keeps_its_central_difference() -> None:
    defined = row_op(
        "gammas", exact=lambda row: [mp.gamma(2 + v) for v in row], reference=lambda x: torch.lgamma(2 + x).exp()
    )
    assert defined.whole_rows == ("y",)
    point = defined.points(Problem({"x": torch.tensor([[1.0]])}, {}, {"y": torch.ones(1, 1)}), "dx", [0])[0]
    with mp.workprec(120):
        assert abs(point.mp(100) - mp.diff(mp.gamma, 3)) < mp.ldexp(1, -90)
