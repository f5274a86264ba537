"""The second formula of every shipped op: mpmath, by hand.

It shares no code with the programs. `test_op_formulas.py` compares both, `solving.py` solves for the landmarks.
Let Phi be the normal distribution function and phi its density:

    gelu(x) = x Phi(x) = x erfc(-x / sqrt 2) / 2,    gelu'(x) = Phi(x) + x phi(x).

For the tanh form, let v = 2u and s = 1 / (1 + exp(-v)):

    gelu(x) = x s = x (1 + tanh u) / 2,    gelu'(x) = s + x v' s (1 - s).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Any

from mpmath import mp

from tests.ops.exactly import dot, dyadic, dyadics, exact_product, magnitude, summed, to_mp, whole
from tests.ops.norm_formulas import norm
from verify.ops import Problem
from verify.ops.elements import GUARD, mp_bits, pick

Function = Callable[..., Any]  # of an exact mpf of any length, with prec=: an mpf with an error below 2^-(prec - 8)


@dataclass(frozen=True)
class Curve:
    """A function of one number and its derivative. Both return the limit at infinite numbers."""

    value: Function
    slope: Function


def mp_limit(x: Any, left: Any, right: Any) -> Any:
    """`left` for -inf, `right` for +inf and NaN for NaN."""
    if mp.isnan(x):
        return x
    return right if x > 0 else left


# -- gelu ------------------------------------------------------------------------------------------------

_CUBIC_NUMERATOR, _CUBIC_DENOMINATOR = 44715, 1000000


def _density(x: Any) -> Any:
    """Returns phi(x). The square is exact, because the exponential would amplify its rounding by x^2 / 2."""
    return mp.exp(exact_product(x, x, mp.mpf(-0.5))) / mp.sqrt(2 * mp.pi)


def _mills(x: Any, bits: int) -> Any:
    """Returns Phi(x) |x| / phi(x) for far negative x, as 1 - 1/x^2 + 3/x^4 - ...

    The terms alternate in sign, so the error is below the first omitted term. They shrink to about exp(-x^2 / 2) before
    they grow again. So call this only if `_far(x, bits)`.
    """
    square = x * x
    term = total = mp.one
    n = 0
    tiny = mp.ldexp(1, -bits - 8)
    while abs(term) > tiny:
        n += 1
        term = -term * (2 * n - 1) / square
        total += term
    return total


def _far(x: Any, bits: int) -> bool:
    """True if exp(-x^2 / 2) < 2^-(bits + 16)."""
    return bool(abs(x) > math.sqrt(2 * math.log(2) * (bits + 16)))


def _cdf(x: Any, bits: int) -> Any:
    """Returns Phi(x) with a relative accuracy of `bits` bits, at this working precision."""
    if _far(x, bits):
        return mp.one if x > 0 else -_density(x) / x * _mills(x, bits)
    with mp_bits(bits + 2 * max(0, magnitude(x)) + 8):
        # Here |x| is below about 30. Rounding the argument of erfc costs 2 log2|x| bits.
        return mp.erfc(-x / mp.sqrt(2)) / 2


def _erf_value_mp(x: Any, *, prec: int) -> Any:
    if not mp.isfinite(x):
        return mp_limit(x, mp.zero, x)
    bits = prec + GUARD
    with mp_bits(bits):
        if x < 0 and _far(x, bits):
            return -_density(x) * _mills(x, bits)
        return x * _cdf(x, bits)


def _erf_slope_mp(x: Any, *, prec: int) -> Any:
    if not mp.isfinite(x):
        return mp_limit(x, mp.zero, mp.one)
    return summed(lambda bits: (_cdf(x, bits), x * _density(x)), prec)


def _exponent_mp(x: Any, bits: int) -> tuple[Any, Any]:
    """Returns -v = -2u and v' = dv/dx, with an absolute error of v below 2^-bits.

    It returns -v, because mpmath would round a later negation of v to the caller's precision, which is lower.
    """
    with mp_bits(bits + max(0, 3 * magnitude(x)) + 8):
        slope = mp.sqrt(8 / mp.pi)
        cubic = mp.mpf(_CUBIC_NUMERATOR) / _CUBIC_DENOMINATOR
        square = x * x
        return -slope * x * (1 + cubic * square), slope * (1 + 3 * cubic * square)


def _tanh_value_mp(x: Any, *, prec: int) -> Any:
    if not mp.isfinite(x):
        return mp_limit(x, mp.zero, x)
    bits = prec + GUARD
    with mp_bits(bits):
        negated, _ = _exponent_mp(x, bits)
        return x / (1 + mp.exp(negated))


def _tanh_slope_mp(x: Any, *, prec: int) -> Any:
    if not mp.isfinite(x):
        return mp_limit(x, mp.zero, mp.one)

    def terms(bits: int) -> tuple[Any, Any]:
        negated, slope = _exponent_mp(x, bits)
        grown = mp.exp(negated)
        logistic = 1 / (1 + grown)
        return logistic, x * slope * logistic * grown / (1 + grown)

    return summed(terms, prec)


# -- silu, and the activations of linear layers -----------------------------------------------------------


def _negated(x: Any) -> Any:
    """Returns -x exactly; mpmath's minus sign rounds to the working precision."""
    return mp.fneg(x, exact=True)


def _silu_value(x: Any, *, prec: int) -> Any:
    if not mp.isfinite(x):
        return mp_limit(x, mp.zero, x)
    with mp_bits(prec + GUARD):
        return x / (1 + mp.exp(_negated(x)))


def _silu_slope(x: Any, *, prec: int) -> Any:
    if not mp.isfinite(x):
        return mp_limit(x, mp.zero, mp.one)

    def terms(bits: int) -> tuple[Any, Any]:
        grown = mp.exp(_negated(x))
        logistic = 1 / (1 + grown)
        return logistic, x * logistic * grown / (1 + grown)

    return summed(terms, prec)


def _squared_relu_mp(x: Any, *, prec: int) -> Any:
    if mp.isnan(x) or x > 0:
        return exact_product(x, x)
    return mp.zero


def _squared_relu_slope_mp(x: Any, *, prec: int) -> Any:
    if mp.isnan(x) or x > 0:
        return exact_product(mp.mpf(2), x)
    return mp.zero


ERF = Curve(_erf_value_mp, _erf_slope_mp)
TANH = Curve(_tanh_value_mp, _tanh_slope_mp)
SILU = Curve(_silu_value, _silu_slope)
ACTIVATIONS = {
    "id": Curve(lambda x, prec: x, lambda x, prec: mp.one),
    "gelu": ERF,
    "gelu_tanh": TANH,
    "squared_relu": Curve(_squared_relu_mp, _squared_relu_slope_mp),
    "geglu": ERF,
    "geglu_tanh": TANH,
}


def elementwise(op: str, problem: Problem, result: str, index: int) -> Function:
    """An element of gelu, silu, or of a gated op, packed or on two tensors."""
    gate = SILU if op.startswith(("silu", "swiglu")) else {"none": ERF, "tanh": TANH}[problem.params["approximate"]]
    given = [value for value in problem.inputs.values() if value is not None]
    x = given[0]
    if len(given) == 1 and op not in ("gelu", "silu"):  # packed
        half, wide = x.shape[-1] // 2, x.shape[-1]
        row, column = divmod(index, half if result == "y" else wide)
        result = result if result == "y" else "dx1" if column < half else "dx2"
        index, column = row * half + column % half, column % half
        values = [to_mp(pick(x, [row * wide + each])[0]) for each in (column, column + half)]
    else:
        values = [to_mp(pick(each, [index])[0]) for each in given]
    factors = [] if result == "y" else [to_mp(pick(problem.upstream["y"], [index])[0])]
    if len(values) == 2 and result != "dx1":
        factors.append(values[0])
    function = gate.slope if result in ("dx", "dx2") else gate.value
    return lambda prec: exact_product(*factors, function(values[-1], prec=prec))


# -- linear layers ---------------------------------------------------------------------------------------


def exact_dot(a: Sequence[float], b: Sequence[float], offset: float) -> Any:
    """The sum of a_i b_i and offset exactly; by IEEE rules if a number is not finite."""
    if not (all(map(isfinite, a)) and all(map(isfinite, b)) and isfinite(offset)):
        terms = [exact_product(to_mp(p), to_mp(q)) for p, q in zip(a, b, strict=True)]
        return mp.fsum([*terms, to_mp(offset)])
    left, right, added = dyadics(a), dyadics(b), dyadic(offset)
    product, place = dot(left.integers, right.integers), left.exponent + right.exponent
    low = min(place, added.exponent)
    total = (product << (place - low)) + (added.integer << (added.exponent - low))
    with mp_bits(max(53, total.bit_length())):
        return mp.mpf((total, low))


@dataclass(frozen=True)
class Layer:
    """A linear layer: pre = x @ weight^T + bias, y = act(pre), with p1, p2 = pre.chunk(2, -1) in gated ones."""

    problem: Problem

    @property
    def gated(self) -> bool:
        return str(self.problem.params["activation"]).startswith("geglu")

    @property
    def curve(self) -> Curve:
        return ACTIVATIONS[self.problem.params["activation"]]

    @cached_property
    def x(self) -> list[list[float]]:
        return self._lines("x")

    @cached_property
    def weight(self) -> list[list[float]]:
        return self._lines("weight")

    def _lines(self, name: str) -> list[list[float]]:
        tensor = self.problem.inputs[name]
        assert tensor is not None
        return [whole(line) for line in tensor]

    def pre(self, row: int, column: int) -> Any:
        bias = self.problem.inputs.get("bias")
        offset = 0.0 if bias is None else pick(bias, [column])[0]
        return exact_dot(self.x[row], self.weight[column], offset)

    def upstream(self, output: str, row: int, column: int) -> Any:
        tensor = self.problem.upstream.get(output)
        return mp.zero if tensor is None else to_mp(float(tensor[row, column].double()))

    def terms(self, row: int, column: int, prec: int) -> list[Any]:
        """The terms of the gradient of pre at one element."""
        half = len(self.weight) // (2 if self.gated else 1)
        dy, direct = self.upstream("y", row, column % half), self.upstream("pre", row, column)
        if not self.gated:
            term = exact_product(dy, self.curve.slope(self.pre(row, column), prec=prec))
        elif column < half:
            term = exact_product(dy, self.curve.value(self.pre(row, column + half), prec=prec))
        else:
            slope = self.curve.slope(self.pre(row, column), prec=prec)
            term = exact_product(dy, self.pre(row, column - half), slope)
        return [term, direct]


def linear(problem: Problem, result: str, index: int) -> Function:
    """An element of a result of a linear layer."""
    layer = Layer(problem)
    x, weight = layer.x, layer.weight
    rows, columns = len(x), len(weight)
    if result == "pre":
        return lambda prec: layer.pre(*divmod(index, columns))
    if result == "y":
        half = columns // (2 if layer.gated else 1)
        row, column = divmod(index, half)
        gate = layer.pre(row, column + half if layer.gated else column)
        factors = [layer.pre(row, column)] if layer.gated else []
        return lambda prec: exact_product(*factors, layer.curve.value(gate, prec=prec))
    row, column = (index, 0) if result == "dbias" else divmod(index, len(x[0]))
    if result == "dx":
        places, factors = [(row, each) for each in range(columns)], [weight[each][column] for each in range(columns)]
    else:
        places = [(each, row) for each in range(rows)]
        factors = [1.0 if result == "dbias" else x[each][column] for each in range(rows)]

    def terms(bits: int) -> list[Any]:
        pairs = zip(places, factors, strict=True)
        return [exact_product(to_mp(f), term) for place, f in pairs for term in layer.terms(*place, bits)]

    return lambda prec: summed(terms, prec)


# -- softmax ---------------------------------------------------------------------------------------------


def softmax(problem: Problem, result: str, index: int) -> Function:
    """An element of y_i = exp(x_i) / Z, or of dx_i = y_i sum_j y_j (g_i - g_j), whose differences are exact."""
    x = problem.inputs["x"]
    assert x is not None
    row, column = divmod(index, x.shape[-1])
    values = whole(x.reshape(-1, x.shape[-1])[row])
    top = to_mp(max(values))
    upstream = whole(problem.upstream["y"].reshape(-1, x.shape[-1])[row]) if result == "dx" else []
    if any(map(math.isnan, values)) or not mp.isfinite(top) or not all(map(isfinite, upstream)):
        return lambda prec: mp.nan
    differences = [mp.fsub(to_mp(each), top, exact=True) for each in values]
    slopes = [mp.fsub(to_mp(upstream[column]), to_mp(each), exact=True) for each in upstream]

    def value(prec: int) -> Any:
        with mp_bits(prec + GUARD):
            return mp.exp(differences[column]) / mp.fsum(map(mp.exp, differences))

    def slope(prec: int) -> Any:
        bracket = summed(lambda bits: [mp.exp(d) * s for d, s in zip(differences, slopes, strict=True)], prec + GUARD)
        with mp_bits(prec + GUARD):
            return bracket * mp.exp(differences[column]) / mp.fsum(map(mp.exp, differences)) ** 2

    return value if result == "y" else slope


def formula(op: str, problem: Problem, result: str, index: int) -> Function:
    """An element of a result of an op, as a function of the precision."""
    if op == "linear":
        return linear(problem, result, index)
    if "norm" in op:
        return norm(op, problem, result, index)
    return softmax(problem, result, index) if op == "softmax" else elementwise(op, problem, result, index)
