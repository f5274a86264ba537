"""Rewrites operators on single elements to steps."""

import math
from typing import Any

import torch

from verify.errors import UsageError
from verify.ops.graph.elementwise import Map
from verify.ops.graph.functions import FUNCTIONS, STEPPED, polygamma
from verify.ops.graph.reducing import Reduce
from verify.ops.graph.rewrite import RULES, Rewriter, condition_of, constant, name_of, rule, through_moves
from verify.ops.graph.rounded import rounded
from verify.ops.graph.selecting import AtOrder, ToOrder
from verify.ops.graph.steps import Move, Plain, Step, reached

_FUNCTIONS_OF = {  # operators that are one step, and its function
    **{special + name: name for name in (*FUNCTIONS, *STEPPED) if " " not in name for special in ("special_", "")},
    **{name: name for name in ("remainder", "fmod", "maximum", "minimum")},
    "special_modified_bessel_i0": "i0",
    "special_modified_bessel_i1": "i1",
    "neg": "negative",
    "abs": "magnitude",
    "mul": "multiply",
}


_QUOTIENTS = {None: "divide", "floor": "floor quotient", "trunc": "trunc quotient"}  # by rounding_mode
_SELECTS = ("negative", "magnitude", "maximum", "minimum", "where", "amax", "amin")


for _name, _function in _FUNCTIONS_OF.items():
    RULES[_name] = lambda r, *given, function=_function: r.map(function, *given)
RULES["polygamma"] = lambda r, order, a: r.map(polygamma(order), a)
RULES["ldexp"] = lambda r, a, b: r.map("multiply", a, r.map("exp2", r.real(b)))
RULES["reciprocal"] = lambda r, a: r.map("divide", 1.0, a)
RULES["cosh"] = lambda r, a: r.map("multiply", r.map("add", r.map("exp", a), r.map("exp", r.map("negative", a))), 0.5)
RULES["tan"] = lambda r, a: r.map("divide", r.map("sin", a), r.map("cos", a))
RULES["asin"] = lambda r, a: r.map("atan", r.map("divide", a, r.map("sqrt", _product_around(r, a, 1.0))))
RULES["log_sigmoid_forward"] = lambda r, a: [r.map("log_sigmoid", a), r.real(0.0)]
RULES["log_sigmoid_backward"] = lambda r, grad, a, _: r.map("multiply", grad, r.map("sigmoid", r.map("negative", a)))
RULES["relu"] = lambda r, a: r.map("maximum", a, 0.0)
RULES["hardtanh"] = lambda r, a, low=-1.0, high=1.0: _clamp(r, a, low, high)
RULES["clamp"] = lambda r, a, min=None, max=None: _clamp(r, a, min, max)
RULES["leaky_relu"] = lambda r, a, slope=0.01: r.map("where", _is_positive(r, a), a, r.map("multiply", a, slope))
RULES["div"] = lambda r, a, b, rounding_mode=None: r.map(_QUOTIENTS[rounding_mode], a, b)
RULES |= dict.fromkeys(("isnan", "isinf", "signbit"), lambda r, a: r.map(name_of(r), a, real=False))
RULES["rounds"] = lambda r, a, format: a if _is_of(a, format) else r.map(f"to {format}", a)
RULES["tanh_backward"] = lambda r, grad, y: r.map("multiply", grad, _difference(r, 1.0, r.map("multiply", y, y)))
RULES["sigmoid_backward"] = lambda r, grad, y: r.map("multiply", grad, r.map("multiply", y, _difference(r, 1.0, y)))


@rule("log1p")
def _log1p(r: Rewriter, a: Step) -> Step:
    """Returns log(1 + a), whose number does not saturate in log(1 - sigmoid(u))."""
    found = r.map("log1p", a)
    less = a.inputs[0] if isinstance(a, Map) and a.function == "negative" else None
    if not isinstance(less, Map) or less.function != "sigmoid":
        return found
    return r.map("exact", r.map("log_sigmoid", r.map("negative", less.inputs[0])), found)


def _product_around(r: Rewriter, a: Step, sign: float) -> Step:
    """Returns (1 - x)(1 + x) for a positive sign, else (x - 1)(x + 1)."""
    less = r.map("subtract", 1.0, a) if sign > 0 else r.map("subtract", a, 1.0)
    return r.map("multiply", less, r.map("add", a, 1.0))


@rule("hypot")
def _hypot(r: Rewriter, a: Step, b: Step) -> Step:
    """Returns the root of a sum of squares; infinity if one operand is infinite, even if the other is NaN."""
    root = r.map("sqrt", r.map("add", r.map("multiply", a, a), r.map("multiply", b, b)))
    beyond = r.map("or", *(r.map("isinf", each, real=False) for each in (a, b)), real=False)
    return r.map("where", beyond, math.inf, root)


def _is_of(step: Step, format: str) -> bool:
    """True if numbers are of a format: numbers that a step rounded to it, moved, compared or with another sign.

    To round these again decides nothing, and numbers that are equal stay equal.
    """

    def before(each: Step) -> list[Step]:
        return [] if getattr(each, "function", "") == f"to {format}" else [one for one in each.inputs if one.real]

    for each in reached([step], before):
        function = getattr(each, "function", "")
        selects = function in (*_SELECTS, f"to {format}") or isinstance(each, AtOrder | ToOrder)
        if isinstance(each, Plain) and each.shape == () and not each.of:
            held = each.compute([]).double()
        elif isinstance(each, Move):
            held = torch.tensor(each.fill, dtype=torch.float64)
        elif selects:
            held = torch.zeros((), dtype=torch.float64)
        else:
            return False
        if not torch.equal(rounded(held, format), held):
            return False
    return True


@rule("acos")
def _acos(r: Rewriter, a: Step) -> Step:
    squared = r.map("divide", r.map("subtract", 1.0, a), r.map("add", a, 1.0))
    return r.map("multiply", r.map("atan", r.map("sqrt", squared)), 2.0)


@rule("acosh")
def _acosh(r: Rewriter, a: Step) -> Step:
    root = r.map("sqrt", _product_around(r, a, -1.0))
    return r.map("log1p", r.map("add", r.map("subtract", a, 1.0), root))


@rule("atanh")
def _atanh(r: Rewriter, a: Step) -> Step:
    inner = r.map("divide", r.map("multiply", a, 2.0), r.map("subtract", 1.0, a))
    return r.map("multiply", r.map("log1p", inner), 0.5)


@rule("atan2")
def _atan2(r: Rewriter, a: Step, b: Step) -> Step:
    """Uses the quotient that is at most 1 in magnitude. It is 1 for two infinities and 0 for two zeros."""
    below, behind = (r.map("signbit", each, real=False) for each in (a, b))
    tall, wide = r.map("magnitude", a), r.map("magnitude", b)
    quarter = r.map("multiply", r.map("atan", 1.0), r.map("where", below, -2.0, 2.0))
    turn = r.map("where", behind, r.map("multiply", quarter, 2.0), 0.0)
    far = r.map("and", *(r.map("isinf", each, real=False) for each in (a, b)), real=False)
    a, b = (r.map("where", far, r.map("where", minus, -1.0, 1.0), each) for each, minus in ((a, below), (b, behind)))
    none = r.map("eq", r.map("maximum", tall, wide), 0.0, real=False)
    flat = r.map("add", r.map("atan", r.map("divide", a, r.map("where", none, 1.0, b))), turn)
    steep = r.map("subtract", quarter, r.map("atan", r.map("divide", b, a)))
    return r.map("where", r.map("gt", tall, wide, real=False), steep, flat)


@rule("round")
def _round(r: Rewriter, a: Step, *, decimals: int = 0) -> Step:
    if not decimals:
        return r.map("round", a)
    ten = 10.0 ** abs(decimals)
    there, back = ("multiply", "divide") if decimals > 0 else ("divide", "multiply")
    return r.map(back, r.map("round", r.map(there, a, ten)), ten)


@rule("special_zeta")
def _zeta(r: Rewriter, order: Any, a: Any) -> Step:
    """Rewrites Hurwitz's zeta function of an integer order to a derivative of digamma over a factorial."""
    if not isinstance(a, Step) or isinstance(order, Step) or not float(order).is_integer() or not 2 <= order <= 64:
        received = "a number x" if not isinstance(a, Step) else "a tensor s" if isinstance(order, Step) else order
        raise UsageError(
            f"like= supports special.zeta(s, x) of a tensor x if s is a whole number from 2 to 64; received {received}",
            hint="pass s as a number: torch.special.zeta(2, x)",
        )
    whole = int(order)
    return r.map("divide", r.map(polygamma(whole - 1), a), float((-1) ** whole * math.factorial(whole - 1)))


def _tanh_argument(r: Rewriter, a: Step) -> tuple[Step, Step]:
    """Returns 2 u and its derivative for the tanh form of GELU, where gelu(x) = x sigmoid(2 u).

    Here 0.044715 is the decimal number, and sqrt(2 / pi) the real number.
    """
    cubic, slope = (r.map("divide", each, 1e6) for each in (44715.0, 134145.0))
    factor = r.map("sqrt", r.map("divide", 2.0, r.map("atan", 1.0)))
    square = r.map("multiply", a, a)
    u = r.map("multiply", r.map("multiply", a, factor), r.map("add", 1.0, r.map("multiply", square, cubic)))
    return u, r.map("multiply", factor, r.map("add", 1.0, r.map("multiply", square, slope)))


@rule("gelu")
def _gelu(r: Rewriter, a: Step, approximate: str = "none") -> Step:
    x, name = (a, "ndtr") if approximate == "none" else (_tanh_argument(r, a)[0], "sigmoid")
    return r.map("multiply", a, r.map(name, x, halved=True))


@rule("gelu_backward")
def _gelu_backward(r: Rewriter, grad: Step, a: Step, approximate: str = "none") -> Step:
    if approximate == "none":
        slope = r.map("add", r.map("ndtr", a, halved=True), r.map("multiply", a, r.map("normal", a)))
    else:
        u, du = _tanh_argument(r, a)
        bell = r.map("multiply", r.map("multiply", a, du), _sigmoid_slope(r, u))
        slope = r.map("add", r.map("sigmoid", u, halved=True), bell)
    return r.map("multiply", grad, slope)


@rule("add", "sub")
def _sum_of_two(r: Rewriter, a: Any, b: Any, alpha: float = 1) -> Step:
    b = b if alpha == 1 else r.map("multiply", b, alpha)
    if name_of(r) == "sub":
        return _difference(r, a, b)
    return r.map("add", a, b, cancels=_sign_as(b, a) == -1)


def _sign_as(step: Any, other: Any) -> int:
    """Returns 1 if a step has the numbers of another one, -1 if it has their negatives, and 0 if it may have others.

    The mean over a dimension of size 1 has its numbers.
    """
    sign = 1
    while step is not other:
        if isinstance(step, Map) and step.function == "negative":
            sign = -sign
        elif not (
            (isinstance(step, Reduce) and step.function == "sum" and step.shape == step.inputs[0].shape)
            or (isinstance(step, Map) and step.function == "divide" and _number(step.inputs[1]) == 1)
        ):
            return 0
        step = step.inputs[0]
    return sign if isinstance(step, Step) else 0


def _difference(r: Rewriter, a: Any, b: Any) -> Step:
    """Returns a - b, whose number does not cancel in 1 - tanh(u)^2 and 1 - sigmoid(u)."""
    found = r.map("subtract", a, b, centred=_is_mean_of(b, a), cancels=_sign_as(b, a) == 1)
    if _number(a) != 1 or not isinstance(b, Map):
        return found
    inner = b.inputs[0]
    if b.function == "sigmoid":
        return r.map("exact", r.map("sigmoid", r.map("negative", inner)), found)
    if b.function == "multiply" and b.inputs[1] is inner and isinstance(inner, Map) and inner.function == "tanh":
        slope = _sigmoid_slope(r, r.map("multiply", inner.inputs[0], 2.0))
        return r.map("exact", r.map("multiply", slope, 4.0), found)
    return found


def _sigmoid_slope(r: Rewriter, u: Step) -> Step:
    return r.map("multiply", r.map("sigmoid", u), r.map("sigmoid", r.map("negative", u)))


def _is_mean_of(mean: Any, values: Any) -> bool:
    """True if `mean` is a mean of `values`: their difference centres a row."""
    if not isinstance(values, Step) or not isinstance(mean, Step):
        return False
    source, step, summed = through_moves(values), mean, False
    while True:
        step = through_moves(step)
        if isinstance(step, Reduce) and step.function == "sum":
            step, summed = step.inputs[0], True
        elif isinstance(step, Map) and step.function in ("divide", "multiply"):
            rest = [each for each in step.inputs if not isinstance(each, Plain)]
            if len(rest) != 1:
                return False
            step = rest[0]
        else:
            return summed and step is source


@rule("pow")
def _pow(r: Rewriter, a: Any, b: Any) -> Step:
    if isinstance(b, Step):
        return r.map("exp2", b) if a == 2 and not isinstance(a, Step) else r.map("power", a, b)
    exponent = float(b)
    if exponent in (0.5, -0.5):
        return r.map("sqrt" if exponent > 0 else "rsqrt", a)
    if exponent.is_integer() and abs(exponent) <= 64:
        return _whole_power(r, r.real(a), int(exponent))
    return r.map("power", a, exponent)


def _whole_power(r: Rewriter, a: Step, exponent: int) -> Step:
    """Returns a power by squaring."""
    if exponent < 0:
        return r.map("divide", 1.0, _whole_power(r, a, -exponent))
    if exponent == 0:
        return constant(torch.ones(a.shape, dtype=torch.float64))
    if exponent == 1:
        return a
    half = _whole_power(r, a, exponent // 2)
    square = r.map("multiply", half, half)
    return r.map("multiply", square, a) if exponent % 2 else square


@rule("fmax", "fmin")
def _extreme_of_numbers(r: Rewriter, a: Any, b: Any) -> Step:
    """Returns the larger or smaller operand; the other one where one is NaN."""
    best = r.map("maximum" if name_of(r) == "fmax" else "minimum", a, b)
    of_a, of_b = (r.map("isnan", each, real=False) for each in (a, b))
    return r.map("where", of_a, b, r.map("where", of_b, a, best))


def _clamp(r: Rewriter, a: Any, min: Any = None, max: Any = None) -> Step:
    a = a if min is None else r.map("maximum", a, min)
    return a if max is None else r.map("minimum", a, max)


@rule("elu")
def _elu(r: Rewriter, a: Step, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Step:
    negative = r.map("multiply", r.map("expm1", r.map("multiply", a, input_scale)), alpha * scale)
    return r.map("where", _is_positive(r, a), r.map("multiply", a, scale), negative)


def _is_positive(r: Rewriter, a: Step) -> Step:
    return r.map("gt", a, 0.0, real=False)


@rule("where")
def _where(r: Rewriter, condition: Step, a: Any, b: Any) -> Step:
    if any(not isinstance(each, Step) or each.real for each in (a, b)) or r.node.value.is_floating_point():
        return r.map("where", condition, a, b)
    return Map(r.shape, (condition, a, b), False, function="where")


@rule("lt", "le", "gt", "ge", "eq", "ne")
def _compare(r: Rewriter, a: Any, b: Any) -> Step:
    name = name_of(r)
    if a is not b:
        return r.map(name, a, b, real=False)
    if name in ("lt", "gt"):
        return constant(torch.zeros(r.shape, dtype=torch.bool))
    nan = r.map("isnan", a, real=False)  # every number but NaN is equal to itself
    return nan if name == "ne" else r.map("not", nan, real=False)


def _number(value: Any) -> float | None:
    """Returns the value of a scalar constant; None for any other step."""
    if isinstance(value, Plain):
        return float(value.compute([])) if not value.shape and not value.of else None
    return None if isinstance(value, Step) else float(value)


@rule(*(f"{kind}_{name}" for kind in ("logical", "bitwise") for name in ("and", "or", "xor")))
def _logic(r: Rewriter, a: Any, b: Any) -> Step:
    """Returns and, or, xor of booleans, or of the bits of integers."""
    name = name_of(r).partition("_")[2]
    if r.node.value.dtype == torch.bool:
        return r.map(name, *(condition_of(r, each) for each in (a, b)), real=False)
    return r.map(f"bits {name}", *(_bits_of(r, each) for each in (a, b)), real=False)


def _bits_of(r: Rewriter, a: Any) -> Step:
    """Returns an integer step for a number, a boolean or an integer."""
    a = a if isinstance(a, Step) else constant(torch.tensor(a))
    return r.map("integer", a, real=False, within=(-(2**64), 2**64)) if a.real else a  # `wrap` came before


@rule("logical_not", "bitwise_not")
def _logical_not(r: Rewriter, a: Step) -> Step:
    if r.node.value.dtype == torch.bool:
        return r.map("not", condition_of(r, a), real=False)
    return r.map("subtract", -1.0, a)


@rule("__lshift__", "__rshift__", "bitwise_left_shift", "bitwise_right_shift")
def _shift(r: Rewriter, a: Any, b: Any) -> Step:
    if isinstance(b, Step) or not 0 <= b < 64:
        raise UsageError(
            f"like= supports shifts by a constant from 0 to 63; {r.node.target} received "
            f"{'a tensor' if isinstance(b, Step) else b}{r.node.place}",
            hint="multiply or divide by a power of two: x * 2**shift",
        )
    left = name_of(r) in ("__lshift__", "bitwise_left_shift")
    return r.map("multiply" if left else "floor quotient", a, 2.0**b)
