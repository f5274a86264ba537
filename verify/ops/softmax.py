"""Defines softmax over the last dimension: y_i = exp(x_i) / Z with Z = sum_j exp(x_j).

The gradient is y_i (g_i - sum_j g_j y_j). Its terms cancel without limit if one element dominates the row. The form
y_i sum_j y_j (g_i - g_j) has exact differences, but needs a sum for each column. So both exact routes first try the
first form, whose sums serve all columns, and use the second form if too much cancels. mpmath takes exponentials
relative to the maximum of the row. Arb takes the exponentials themselves, since its exponents are unbounded.

An input of -inf among finite ones is a masked element (y = 0). A row has no limit if it holds +inf or NaN, or -inf
alone. The gradient of a row has no limit if an upstream gradient of the row is not finite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import flint
import torch
from mpmath import libmp, mp
from torch import Tensor

from verify.ops.compensated import tree_sum, two_sum
from verify.ops.elements import to_arb, to_mp
from verify.ops.op import Fast, Operand, Point, Problem
from verify.ops.precision import GUARD, arb_bits, magnitude, mp_bits, summed
from verify.ops.rowwise import Rows, rowwise


def _defined(rows: Rows, index: int) -> bool:
    """True if the softmax of a row has a limit."""

    def make() -> bool:
        row = rows.data_row("x", index)
        return not any(map(math.isnan, row)) and -math.inf < max(row) < math.inf

    return bool(rows.cached(("softmax defined", index), make))


def _finite(rows: Rows, index: int) -> bool:
    """True if all upstream gradients of a row are finite."""
    upstream = rows.problem.upstream["y"]
    return bool(rows.cached(("softmax finite", index), lambda: all(map(math.isfinite, rows.row(upstream, index)))))


def _weights(rows: Rows, index: int, bits: int) -> tuple[list[Any], Any]:
    """Returns exp(x_j - max) for one row with a relative error below 2^-bits, and their sum.

    The differences are exact. Cached weights of a higher precision serve too.
    """
    known: dict[int, tuple[list[Any], Any]] = rows.cached(("softmax", index), dict)
    enough = [precision for precision in known if precision >= bits]
    if not enough:
        row = rows.data_row("x", index)
        top = libmp.from_float(max(row))
        precision = bits + 4 * GUARD  # enough for a gradient of the same row
        by_value: dict[float, Any] = {}  # a row of 16-bit numbers repeats values
        for value in row:
            if value not in by_value:  # libmp saves mpmath's contexts, a third of the time of the exponentials
                difference = libmp.mpf_sub(libmp.from_float(value), top)
                by_value[value] = mp.make_mpf(libmp.mpf_exp(difference, precision, libmp.round_nearest))
        with mp_bits(precision):
            weights = [by_value[value] for value in row]
            known[precision] = weights, mp.fsum(weights)
        enough = [precision]
    return known[min(enough)]


def _value_mp(rows: Rows, index: int, column: int, prec: int) -> Any:
    """Returns one element of y in mpmath."""
    if not _defined(rows, index):
        return mp.nan
    bits = prec + GUARD
    weights, total = _weights(rows, index, bits)
    with mp_bits(bits):
        return weights[column] / total


def _slope_mp(rows: Rows, index: int, column: int, prec: int) -> Any:
    """Returns one element of dx in mpmath."""
    if not _defined(rows, index) or not _finite(rows, index):
        return mp.nan
    upstream = rows.row(rows.problem.upstream["y"], index)
    here = to_mp(upstream[column])
    bracket = _bracket_of_sums(rows, index, upstream, here, prec + GUARD)
    if bracket is None:
        differences = [mp.fsub(here, to_mp(value), exact=True) for value in upstream]

        def terms(bits: int) -> list[Any]:
            weights, _ = _weights(rows, index, bits)
            return [weight * each for weight, each in zip(weights, differences, strict=True)]

        bracket = summed(terms, prec + GUARD)
    weights, total = _weights(rows, index, prec + 2 * GUARD)
    with mp_bits(prec + GUARD):
        return bracket * weights[column] / total**2


def _bracket_of_sums(rows: Rows, index: int, upstream: Sequence[float], here: Any, prec: int) -> Any:
    """Returns sum w_j (g - g_j) as g sum w_j - sum w_j g_j, with a relative error below 2^-prec.

    The sums serve all columns of the row. Each has an error below 2^(3 - bits) times the sum of its magnitudes. Returns
    None if too much cancels.
    """
    bits = prec + 4 * GUARD

    def make() -> Any:
        weights, total = _weights(rows, index, bits)
        with mp_bits(bits):
            terms = [weight * to_mp(value) for weight, value in zip(weights, upstream, strict=True)]
            return total, mp.fsum(terms), mp.fsum(terms, absolute=True)

    weight, weighted, sizes = rows.cached(("softmax sums", index, bits), make)
    with mp_bits(bits):
        found = here * weight - weighted
        lost = magnitude(sizes + abs(here) * weight) - magnitude(found)
    return found if found != 0 and lost <= bits - prec - 8 else None


def _balls(rows: Rows, index: int, bits: int) -> tuple[list[Any], Any]:
    """Returns exp(x_j) for one row, with 0 for a masked element, and their sum. Arb's current precision is `bits`."""

    def make() -> tuple[list[Any], Any]:
        row = rows.data_row("x", index)
        by_value = {value: to_arb(value).exp() if value > -math.inf else flint.arb(0) for value in set(row)}
        balls = [by_value[value] for value in row]
        return balls, sum(balls, flint.arb(0))

    found: tuple[list[Any], Any] = rows.cached(("softmax balls", index, bits), make)
    return found


def _value_arb(rows: Rows, index: int, column: int, prec: int) -> Any:
    """Returns one element of y in Arb."""
    if not _defined(rows, index):
        return flint.arb.nan()
    bits, row = prec + 2 * GUARD, rows.data_row("x", index)

    def total() -> Any:
        """Returns the sum of exp(x_j). Terms too small to count become a ball around 0: most terms of huge numbers."""
        top = max(row)
        tiny = flint.arb(0, (to_arb(top).exp() * flint.arb(2) ** -bits).upper())
        known = {value: to_arb(value).exp() for value in set(row) if top - value <= bits}
        return sum((known.get(value, tiny) for value in row), flint.arb(0))

    with arb_bits(bits):
        here = to_arb(row[column]).exp() if row[column] > -math.inf else flint.arb(0)
        return here / rows.cached(("softmax total", index, bits), total)


def _slope_arb(rows: Rows, index: int, column: int, prec: int) -> Any:
    """Returns one element of dx in Arb."""
    if not _defined(rows, index) or not _finite(rows, index):
        return flint.arb.nan()
    row, upstream = rows.data_row("x", index), rows.row(rows.problem.upstream["y"], index)
    if row[column] == -math.inf:
        return flint.arb(0)
    bits = prec + 2 * GUARD

    with arb_bits(bits):
        balls, total = _balls(rows, index, bits)

        def weighted() -> Any:
            return sum((ball * to_arb(g) for ball, g in zip(balls, upstream, strict=True)), flint.arb(0))

        here = to_arb(upstream[column])
        bracket = here * total - rows.cached(("softmax weighted", index, bits), weighted)
        if bracket.rel_accuracy_bits() < prec:
            bracket = sum(((here - to_arb(g)) * ball for ball, g in zip(balls, upstream, strict=True)), flint.arb(0))
        return bracket * balls[column] / total**2


def _element(rows: Rows, result: str, index: int, column: int) -> Point:
    by_mp, by_arb = (_value_mp, _value_arb) if result == "y" else (_slope_mp, _slope_arb)
    return Point(
        mp=lambda prec: by_mp(rows, index, column, prec),
        arb=lambda prec: by_arb(rows, index, column, prec),
    )


def _sum(values: Tensor) -> Tensor:
    """Returns the sum over the last dimension, rounded about once."""
    high, low = tree_sum(values, -1)
    total: Tensor = high + low
    return total


def _fast(problem: Problem) -> dict[str, Fast]:
    x = problem.inputs["x"]
    if x is None:
        raise ValueError("operand x is required")
    if x.numel() == 0:
        zero = x.to(torch.float64)
        return {result: Fast(zero, zero) for result in problem.results}
    wide = x.to(torch.float64)
    largest = wide.amax(-1, keepdim=True)
    difference, rest = two_sum(wide, -largest)
    rest = torch.where(torch.isfinite(difference), rest, 0.0)
    # The last factor corrects the rounding of x - max: up to 100 units of 2^-53 where y is not zero yet.
    weights = torch.exp(difference) * (1.0 + rest)
    y = (weights / _sum(weights)).masked_fill(~torch.isfinite(largest), torch.nan)
    results = {}
    for result in problem.results:
        if result == "y":
            results[result] = Fast(y, y)
            continue
        upstream = problem.upstream["y"].to(torch.float64)
        lost = ~torch.isfinite(upstream.abs().amax(-1, keepdim=True))
        product = upstream * y
        value = (y * (upstream - _sum(product))).masked_fill(lost, torch.nan)
        scale = y * (upstream.abs() + product.abs().sum(-1, keepdim=True))
        results[result] = Fast(value, scale)
    return results


def _baseline(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


SOFTMAX = rowwise(
    "softmax",
    (Operand("x"),),
    ("y",),
    fast=_fast,
    element=_element,
    baseline=_baseline,
    symmetry="shift",
    summary="exp(x) / sum(exp(x)) over the last dimension",
)
