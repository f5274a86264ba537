"""The exact and compensated arithmetic below the ops, against fractions."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from typing import Any

import flint
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp

from tests.ops.exactly import (
    add_rows,
    at_exponent,
    dot,
    dyadic,
    dyadics,
    exact_product,
    magnitude,
    multiply_rows,
    summed,
)
from verify import ops
from verify.cases import Case, inputs_of, problem_of, upstream_of
from verify.ops import compensated
from verify.ops.compensated import add, deviations, divide, is_exact, tree_sum, two_sum
from verify.ops.elements import mpf_to_arb, pick, to_arb
from verify.ops.precision import arb_bits, mp_bits
from verify.truth.ulp import same_bits

finite = st.floats(allow_nan=False, allow_infinity=False)
moderate = st.floats(-1e100, 1e100, allow_nan=False).filter(lambda v: v == 0 or abs(v) > 1e-100)
deterministic = settings(derandomize=True, max_examples=60, deadline=None)


def value(integer: int, exponent: int) -> Fraction:
    return Fraction(integer) * Fraction(2) ** exponent


@deterministic
@given(st.lists(finite, min_size=1, max_size=12), st.data())
def test_dyadics_are_the_floats(values: list[float], data: st.DataObject) -> None:
    row = dyadics(values)
    assert [value(each, row.exponent) for each in row.integers] == [Fraction(v) for v in values]
    assert [at_exponent(v, row.exponent) for v in values] == row.integers
    others = data.draw(st.lists(finite, min_size=len(values), max_size=len(values)))
    other = dyadics(others)
    pairs = list(zip(map(Fraction, values), map(Fraction, others), strict=True))
    total = add_rows([row, other])
    assert [value(v, total.exponent) for v in total.integers] == [a + b for a, b in pairs]
    product = multiply_rows(row, other)
    assert [value(v, product.exponent) for v in product.integers] == [a * b for a, b in pairs]
    exact = sum((a * b for a, b in pairs), Fraction(0))
    assert value(dot(row.integers, other.integers), row.exponent + other.exponent) == exact


@deterministic
@given(finite)
def test_dyadic_is_the_float(number: float) -> None:
    assert value(*dyadic(number)) == Fraction(number)
    with mp.workprec(53):
        assert float(dyadic(number).mpf()) == number
    with mp.workprec(200):
        assert mpf_to_arb(mp.mpf(number)) == to_arb(number)


@deterministic
@given(moderate, moderate)
def test_two_sum_is_exact(a: float, b: float) -> None:
    high, low = two_sum(torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64))
    assert Fraction(high.item()) + Fraction(low.item()) == Fraction(a) + Fraction(b)


@deterministic
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=9))
def test_a_sum_that_is_called_exact_is_the_sum(values: list[float]) -> None:
    terms = torch.tensor(values, dtype=torch.float64)[:, None]
    for given_terms in (terms, terms.numpy()):
        if bool(is_exact(given_terms, 24, 0)[0]):
            assert Fraction(sum(values)) == sum(map(Fraction, values))
            assert Fraction(terms.sum().item()) == sum(map(Fraction, values))


def test_sums_of_ordinary_numbers_are_called_exact_and_those_that_lose_a_bit_are_not() -> None:
    ordinary = torch.randn(257, 64, generator=torch.Generator().manual_seed(1)).double()
    assert is_exact(ordinary, 24, 0).double().mean() > 0.9
    unit = 2.0**-23  # the last place of 1 in float32
    edge = torch.tensor([[1.0, 2.0**29, 2.0**30], [unit, 1 + unit, 1 + unit]], dtype=torch.float64)
    assert is_exact(edge, 24, 0).tolist() == [True, False, False]
    assert Fraction(float(edge[:, 2].sum())) != sum(map(Fraction, edge[:, 2].tolist()))
    assert is_exact(torch.zeros(3, 2, dtype=torch.float64), 24, 0).all()


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64, 1000, 65537])
@pytest.mark.parametrize("dim", [0, -1])
def test_tree_sum_keeps_a_hundred_bits(count: int, dim: int) -> None:
    generator = torch.Generator().manual_seed(count)
    column = torch.randn(count, generator=generator) * 1e-3 + 1e4
    values = column.double().view(-1, 1) if dim == 0 else column.double().view(1, -1)
    high, low = tree_sum(values, dim)
    assert high.shape == low.shape == (1, 1)
    exact = sum(map(Fraction, column.double().tolist()), Fraction(0))
    error = abs(Fraction(high.item()) + Fraction(low.item()) - exact)
    assert error <= exact * Fraction(1, 2**100)
    mean = divide((high, low), count)
    error = abs(Fraction(mean[0].item()) + Fraction(mean[1].item()) - exact / count)
    assert error <= exact / count * Fraction(1, 2**100)


@pytest.mark.parametrize("spread", [20, 140, 300])
@pytest.mark.parametrize("terms", [1, 3])
def test_deviations_are_right_however_much_cancels(terms: int, spread: int) -> None:
    """Pairs that cancel but for a little, on every scale; the mean by double-doubles is noise there."""
    draw = random.Random(spread)

    def number() -> float:
        return draw.choice((-1, 1)) * draw.uniform(1, 2) * 2.0 ** draw.randint(-spread, spread)

    for width in (1, 2, 5, 64, 301):
        half = [number() for _ in range(width // 2)]
        rows = [[*half, *(-each for each in half), *([number()] * (width % 2))], [number()] * width, [0.0] * width]
        for row in rows:
            draw.shuffle(row)
        parts = [torch.tensor(rows, dtype=torch.float64)]
        while len(parts) < terms:  # each takes the others away, and leaves something smaller
            parts.append(-sum(parts) + torch.tensor(number() * 2.0**-spread, dtype=torch.float64))
        found = deviations(parts).tolist()
        for line, got in enumerate(found):
            sums = [
                sum(map(Fraction, column), Fraction(0))
                for column in zip(*(part[line].tolist() for part in parts), strict=True)
            ]
            mean = sum(sums, Fraction(0)) / width
            for one, value in zip(got, sums, strict=True):
                assert abs(Fraction(one) - (value - mean)) <= abs(value - mean) * 4 / 2**53, (width, line)
    smallest = 2.0**-1074
    assert deviations([torch.tensor([2 * smallest, 0.0], dtype=torch.float64)]).tolist() == [smallest, -smallest]


def test_tree_sum_without_a_limit_is_the_plain_sum() -> None:
    inf, nan = torch.inf, torch.nan
    values = torch.tensor(
        [[1.0, inf, 2.0], [inf, 1.0, -inf], [nan, 0.0, 1.0], [1e300, 1e300, 1.0]],
        dtype=torch.float64,
    )
    high, low = tree_sum(values.double(), -1)
    assert high.flatten()[0] == inf and high.flatten()[1:3].isnan().all()
    assert high.flatten()[3] == 2e300 and low.flatten().tolist() == [0.0, 0.0, 0.0, 1.0]
    empty, _ = tree_sum(torch.zeros(2, 0).double(), -1)
    assert empty.tolist() == [[0.0], [0.0]]


def test_double_double_addition_cancels_exactly() -> None:
    def pair(a: float, b: float) -> Any:
        return torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64)

    high, low = add(pair(1e30, 2.0**-40), pair(-1e30, 2.0**-60))
    assert Fraction(high.item()) + Fraction(low.item()) == Fraction(2.0**-40) + Fraction(2.0**-60)


def test_summed_pays_for_cancellation() -> None:
    """pi - (a 300-bit pi) is known to 200 relative bits, though 300 bits cancel."""
    with mp.workprec(300):
        near = +mp.pi
    difference = summed(lambda bits: [+mp.pi, -near], 200)
    with mp.workprec(1000):
        exact = mp.pi - near
        assert abs(difference - exact) <= mp.ldexp(abs(exact), -200)
    # An exact zero of irrational terms ends, as zero.
    assert summed(lambda bits: [mp.sqrt(2), -1 / mp.sqrt(mp.mpf(1) / 2)], 100) == 0
    assert mp.isnan(summed(lambda bits: [mp.inf, mp.ninf], 100))
    assert summed(lambda bits: [mp.inf, mp.one], 100) == mp.inf
    assert summed(lambda bits: [], 100) == 0


def test_precision_is_restored() -> None:
    before = (flint.ctx.prec, mp.prec)

    def fail() -> None:
        with arb_bits(333), mp_bits(444):
            assert (flint.ctx.prec, mp.prec) == (333, 444)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert (flint.ctx.prec, mp.prec) == before


def test_exact_product_does_not_round() -> None:
    a, b = mp.mpf(2**53 - 1), mp.mpf(2**53 - 3)
    assert exact_product(a, b) == (2**53 - 1) * (2**53 - 3)
    assert mp.isnan(exact_product(mp.zero, mp.inf))
    assert [magnitude(mp.mpf(v)) for v in (0, 1, 0.75, -4, mp.inf)] == [0, 1, 0, 3, 0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_pick_reads_logical_positions(dtype: torch.dtype) -> None:
    base = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, -0.5]]).to(dtype)
    assert pick(base, [0, 4, 5]) == [1.0, 5.0, -0.5]
    assert pick(base.t(), [0, 1, 5]) == [1.0, 4.0, -0.5]
    assert pick(base[:, 1:], [2]) == [5.0]
    assert pick(base[0, 1], [0]) == [2.0]
    assert pick(base, []) == []


@pytest.mark.parametrize("shape", [(5, 67), (1, 1), (3, 2), (2, 3, 7), (4, 64), (2, 0)])
@pytest.mark.parametrize("dim", [0, -1])
def test_arrays_and_tensors_are_added_in_the_same_order(
    shape: tuple[int, ...], dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(1)
    high = torch.randn(shape, generator=generator, dtype=torch.float64) * 1e8
    low = torch.randn(shape, generator=generator, dtype=torch.float64) * 1e-9
    for first, second in ((high, low), (high.nan_to_num() * math.inf, low), (torch.full_like(high, 1e308), low)):
        for values in (first, (first, second)):
            near = tree_sum(values, dim)
            with monkeypatch.context() as patch:
                patch.setattr(compensated, "_FEW", -1)
                far = tree_sum(values, dim)
            for one, other in zip(near, far, strict=True):
                assert torch.equal(one.nan_to_num(2.0), other.nan_to_num(2.0)) and one.shape == other.shape


@pytest.mark.parametrize("name", ["layer_norm", "layer_norm_residual_bias", "rms_norm"])
@pytest.mark.parametrize("fill", ["randn", "mean 1e4", "constant", "huge 1e30", "mixed"])
def test_small_rows_have_the_bits_of_large_ones(name: str, fill: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a problem is computed in arrays or in tensors is a matter of its size, and of nothing else."""
    op = ops.get(name)
    case = Case(dtype="float32", dims=(3, 33), fill=fill, upstream="normal")
    inputs = inputs_of(op, case, "cpu")
    results = tuple(op.outputs) + op.gradients
    upstream = upstream_of(op, case, {output: torch.empty(3, 33) for output in op.outputs})
    problem = problem_of(op, case, inputs, upstream, results)
    near = op.fast(problem)
    monkeypatch.setattr(compensated, "_FEW", -1)
    far = op.fast(problem)
    for result in results:
        for one, other in ((near[result].value, far[result].value), (near[result].scale, far[result].scale)):
            assert one.shape == other.shape
            assert same_bits([one.nan_to_num(2.0)], [other.nan_to_num(2.0)]), result
