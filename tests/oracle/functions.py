"""The meaning of PyTorch's functions for the oracle, written from their documentation as loops over single numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np
import torch
from mpmath import mp, mpf

from tests.oracle.numbers import (
    NAN,
    NEVER,
    Number,
    Oracled,
    Run,
    chosen,
    constant,
    held,
    kept,
    kinked,
    largest,
    made,
    pushed,
    ranked,
    recalled,
    side_of,
    sign_between,
    steep,
)
from tests.oracle.tensors import (
    CASTS,
    DIGITS,
    HANDLERS,
    SMALL,
    Tensors,
    along,
    array,
    boxed,
    each,
    filled,
    handles,
    narrower,
    one_by_one,
    over,
    whole,
)

# Functions of one number: their value and their slope, which gets the value too.


def smooth(
    value: Callable[[Any], Any],
    slope: Callable[[Any, Any], Any],
    ends: bool = False,
    saved: Callable[[Any], Any] | None = None,
) -> Callable[[Number], Number]:
    """Returns a function of numbers. ends: it comes closer to a limit than 500 bits tell, and reaches it nowhere.

    saved: the slope as PyTorch's backward takes it, from the result that the forward stored.
    """

    def of(x: Number) -> Number:
        if mp.isfinite(x.value) and abs(x.value) > 1e5:
            raise Oracled("a number beyond 1e5 in a function")
        try:
            found = value(x.value)
            found = found if isinstance(found, mpf) else NAN
        except (ValueError, ZeroDivisionError):
            return made(NAN, ((x, NAN),), open=True)
        try:
            by = slope(x.value, found)
            by = by if isinstance(by, (mpf, int)) else NAN
        except (ValueError, ZeroDivisionError):
            return made(found, ((x, mpf(0)),), kink=True)
        at_end = ends and x.value and mp.isfinite(x.value) and held(found)
        result = made(found, ((x, by),), terms=NEVER if at_end else None)
        if saved and mp.isfinite(found):
            result.saved = lambda: [saved(result.value)]
        return result

    return of


def _phi(x: Any) -> Any:
    return mp.erfc(-x / mp.sqrt(2)) / 2


def _density(x: Any) -> Any:
    return mp.exp(-x * x / 2) / mp.sqrt(2 * mp.pi)


def _logistic(x: Any) -> Any:
    return 1 / (1 + mp.exp(-x))


SMOOTH = {
    "exp": smooth(mp.exp, lambda x, y: y, saved=lambda y: y),
    "exp2": smooth(lambda x: mpf(2) ** x, lambda x, y: y * mp.log(2)),
    "expm1": smooth(mp.expm1, lambda x, y: y + 1, saved=lambda y: y + 1),
    "log": smooth(mp.log, lambda x, y: 1 / x),
    "log2": smooth(lambda x: mp.log(x) / mp.log(2), lambda x, y: 1 / x / mp.log(2)),
    "log10": smooth(lambda x: mp.log(x) / mp.log(10), lambda x, y: 1 / x / mp.log(10)),
    "log1p": smooth(mp.log1p, lambda x, y: 1 / (1 + x)),
    "sin": smooth(mp.sin, lambda x, y: mp.cos(x)),
    "cos": smooth(mp.cos, lambda x, y: -mp.sin(x)),
    "tanh": smooth(mp.tanh, lambda x, y: mp.sech(x) ** 2 if mp.isfinite(x) else mpf(0), True, lambda y: 1 - y * y),
    "sinh": smooth(mp.sinh, lambda x, y: mp.cosh(x)),
    "cosh": smooth(mp.cosh, lambda x, y: mp.sinh(x)),
    "atan": smooth(mp.atan, lambda x, y: 1 / (1 + x * x)),
    "asinh": smooth(mp.asinh, lambda x, y: 1 / mp.sqrt(1 + x * x)),
    "sigmoid": smooth(_logistic, lambda x, y: y * _logistic(-x), True, lambda y: y * (1 - y)),
    "logsigmoid": smooth(lambda x: -mp.log1p(mp.exp(-x)), lambda x, y: _logistic(-x)),
    "erf": smooth(mp.erf, lambda x, y: 2 * mp.exp(-x * x) / mp.sqrt(mp.pi), ends=True),
    "erfc": smooth(mp.erfc, lambda x, y: -2 * mp.exp(-x * x) / mp.sqrt(mp.pi), ends=True),
    "sqrt": smooth(mp.sqrt, lambda x, y: 1 / (2 * y)),
    "rsqrt": smooth(lambda x: 1 / mp.sqrt(x), lambda x, y: -y / (2 * x)),
    "reciprocal": smooth(lambda x: 1 / x, lambda x, y: -y * y),
    "square": smooth(lambda x: x * x, lambda x, y: 2 * x),
}
E1 = SMOOTH["exp"]


def verdict(true: Any, open: bool) -> Number:
    return Number(mpf(int(bool(true))), open=open)


def magnitude(x: Number) -> Number:
    return kinked(x, 0, -1, 0, 1, abs)


def limited(x: Number, low: Any, high: Any, edge: int) -> Number:
    """Returns x between two bounds; edge: PyTorch's slope at a bound."""
    if low is not None:
        bound = constant(low)
        x = kinked(x, bound, 0, edge, 1, lambda v: max(v, bound.value))
    if high is not None:
        top = constant(high)
        x = kinked(x, top, 1, edge, 0, lambda v: min(v, top.value))
    return x


def curved(x: Number, alpha: Any, scale: Any) -> Number:
    """Returns scale x, below 0 scale alpha (exp(x) - 1)."""
    low = SMOOTH["expm1"](limited(x, None, 0, 1)) * alpha * scale
    return low + kinked(x, 0, 0, 0, 1, lambda v: max(v, mpf(0))) * scale


def stepped(x: Number, step: Callable[[Any], Any], half: bool = False) -> Number:
    """Returns a step function of x: floor, or with half rounding to even. Its numbers have a direction of their own."""
    found = unmoved(x, step, half)
    if Run.now.choice is not None and mp.isfinite(found.value):
        found.drift = Run.now.choice.drift(found.place)
    return found


def unmoved(x: Number, step: Callable[[Any], Any], half: bool) -> Number:
    if not mp.isfinite(x.value):
        return made(x.value, ((x, 0),), rounds=False)
    if x.push:  # a choice; roundings may lead to any integer near it
        Run.now.decisive.add(x.place)
        return made(step(x.value + mpf(x.push)), ((x, 0),), rounds=False)
    edge = mp.floor(x.value) + mpf(1) / 2 if half else mp.nint(x.value)
    way, near = sign_between(x, constant(edge), exact=True)
    found = step(x.value) if way == 0 else step(edge + mpf(way) / 4 if abs(x.value - edge) < mpf(1) / 4 else x.value)
    return made(found, ((x, 0),), rounds=False, open=near)


def truncated(x: Number) -> Number:
    if not mp.isfinite(x.value) or abs(x.value) < mpf(1) / 2:
        return made(x.value * 0, ((x, 0),), rounds=False)
    return stepped(x, mp.floor) if x.value > 0 else -stepped(-x, mp.floor)


def signed(x: Number) -> Number:
    way, near = side_of(x, constant(0))
    return made(mpf(way), ((x, 0),), rounds=False, open=near)


def power(x: Number, by: Any) -> Number:
    if isinstance(by, Number):
        by = float(by.value)
    if by == 2:
        return x * x
    if by == 0.5:
        return steep(SMOOTH["sqrt"](x), 2)
    exponent = int(by) if by == int(by) else mpf(by)
    return steep(smooth(lambda v: v**exponent, lambda v, y: exponent * v ** (exponent - 1))(x), 2)


def softplus(x: Number, beta: float = 1, threshold: float = 20) -> Number:
    return x if x.value > 20 else SMOOTH["log1p"](E1(x))


def gelu(x: Number, approximate: str = "none") -> Number:
    if approximate == "none":
        return x * smooth(_phi, lambda v, y: _density(v))(x)
    inner = (x + x * x * x * 0.044715) * mp.sqrt(2 / mp.pi)
    share = (SMOOTH["tanh"](inner) + 1) * 0.5
    if Run.now.source and share.value**2 < Run.now.unit:  # the form has lost half of its digits
        far = abs(inner.value) > 4e4  # and the other is 0 in each format
        share = share * 0 if far else SMOOTH["sigmoid"](inner * 2)
    return x * share


def hardshrink(x: Number, lambd: float = 0.5) -> Number:
    if mp.isnan(x.value):
        return x
    above, below = compared("gt", x, lambd), compared("lt", x, -lambd)
    return where(verdict(above.value or below.value, above.open or below.open), x, constant(0))


def inverse(x: Number) -> Number:
    return verdict(not x.value, x.open)


COMPOSED: dict[str, Callable[..., Number]] = {
    "silu": lambda x: x * SMOOTH["sigmoid"](x),
    "gelu": gelu,
    "softplus": softplus,
    "tanhshrink": lambda x: x - kept(SMOOTH["tanh"](x)),
    "softsign": lambda x: steep(x / kept(kept(magnitude(x)) + 1), 2),
    "mish": lambda x: x * SMOOTH["tanh"](softplus(x)),
    "neg": lambda x: -x,
    "relu": lambda x: limited(x, 0, None, 0),
    "leaky_relu": lambda x, negative_slope=0.01: limited(x, 0, None, 0) + limited(x, None, 0, 1) * negative_slope,
    "relu6": lambda x: limited(x, 0, 6, 0),
    "hardtanh": lambda x, min_val=-1.0, max_val=1.0: limited(x, min_val, max_val, 0),
    "hardsigmoid": lambda x: limited(x + 3, 0, 6, 0) / 6,
    "hardswish": lambda x: x * limited(x + 3, 0, 6, 1) / 6,
    "clamp": lambda x, min=None, max=None: limited(x, min, max, 1),
    "selu": lambda x: curved(x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946),
    "elu": lambda x, alpha=1.0: curved(x, alpha, 1),
    "celu": lambda x, alpha=1.0: curved(x, 1, 1),
    "abs": magnitude,
    "softshrink": lambda x, lambd=0.5: x - limited(x, -lambd, lambd, 1),
    "hardshrink": hardshrink,
    "threshold": lambda x, threshold, value: where(compared("le", x, threshold), constant(value), x),
    "floor": lambda x: stepped(x, mp.floor),
    "ceil": lambda x: -stepped(-x, mp.floor),
    "trunc": truncated,
    "frac": lambda x: x - truncated(x),
    "round": lambda x: stepped(x, mp.nint, half=True),
    "sign": signed,
    "invert": inverse,
}
for _each in SMOOTH:
    HANDLERS[_each] = lambda out, x, f=SMOOTH[_each], **_: each(lambda v: steep(f(v)), x)
for _each in COMPOSED:
    HANDLERS[_each] = lambda out, x, *given, f=COMPOSED[_each], inplace=False, **named: each(
        lambda v: f(v, *given, **named), x
    )
HANDLERS["log_sigmoid"] = HANDLERS["logsigmoid"]


# Functions of two numbers.


def compared(name: str, a: Number, b: Any) -> Number:
    b = constant(b)
    if mp.isnan(a.value) or mp.isnan(b.value):
        return verdict(name == "ne", a.open or b.open)
    way, near = side_of(a, b)
    true = {"gt": way > 0, "ge": way >= 0, "lt": way < 0, "le": way <= 0, "eq": way == 0, "ne": way != 0}[name]
    return verdict(true, a.open or b.open or near)


def where(condition: Number, a: Number, b: Number) -> Number:
    kept, lost = (a, b) if condition.value else (b, a)
    if condition.open:
        return made(kept.value, ((kept, 1), (lost, 0), (condition, 0)), rounds=False, open=True)
    # the gradient of 0 is NaN before an infinity; what takes the place of a sum counts as computed
    if not mp.isfinite(lost.value) or lost.adds > kept.adds:
        return made(kept.value, ((kept, 1), (lost, 0)), rounds=False)
    return kept


def either(a: Number, b: Number) -> Number:
    """Returns what PyTorch takes for the sum of booleans, too."""
    return verdict(a.value or b.value, a.open or b.open)


def hypotenuse(a: Number, b: Number) -> Number:
    """Returns the root of the sum of two squares: infinity if one is infinite, also beside NaN."""
    beyond = mp.isinf(a.value) or mp.isinf(b.value)
    return made(mp.inf, ((a, NAN), (b, NAN))) if beyond else length([a, b])


for _each, _pair in {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "rsub": lambda a, b: b - a}.items():
    HANDLERS[_each] = lambda out, a, b, alpha=1, f=_pair: one_by_one(
        either if out.dtype == torch.bool else f, a, b if alpha == 1 else each(lambda v: v * alpha, b)
    )
for _each, _function in {
    "mul": lambda a, b: a * b,
    "truediv": lambda a, b: steep(a / b, 2),
    "rtruediv": lambda a, b: steep(b / a, 2),
    "pow": power,
    "maximum": lambda a, b: largest([a, b], 1, shared=True)[0],
    "minimum": lambda a, b: largest([a, b], -1, shared=True)[0],
    "hypot": hypotenuse,
    "and": lambda a, b: verdict(a.value and b.value, a.open or b.open),
    "or": either,
    "where": where,
    "lerp": lambda a, b, w: a + (b - a) * w,
    **{name: partial(compared, name) for name in ("gt", "ge", "lt", "le", "eq", "ne")},
}.items():
    HANDLERS[_each] = lambda out, *given, f=_function: one_by_one(f, *given)


def filled_in(out: torch.Tensor, x: Any, mask: Any, value: Any) -> Any:
    """Returns x with a value in some places; integers and conditions take what it is in their dtype."""
    if isinstance(value, (int, float)) and not out.dtype.is_floating_point:
        value = int(torch.tensor(value).to(out.dtype))
    return one_by_one(lambda x, mask, value: where(mask, value, x), x, mask, value)


HANDLERS["masked_fill"] = filled_in
HANDLERS |= {"radd": HANDLERS["add"], "rmul": HANDLERS["mul"], "div": HANDLERS["truediv"]}


def divided(step: Callable[[Number], Number]) -> Callable[..., Any]:
    """Returns what is left of a division. PyTorch rounds a divisor that is a constant to the format."""

    def of(out: Any, a: Any, b: Any) -> Any:
        if isinstance(b, (int, float)) and mpf(b)._mpf_[3] > (digits := DIGITS.get(out.dtype, 64)):
            b = Number(Run.now.shaken(mpf(b), 2.0**-digits))
            pushed(b, abs(float(b.value)) * 2.0**-digits, hash(b.value))
        return one_by_one(lambda x, y: x - y * step(x / y), a, b)

    return of


HANDLERS["remainder"], HANDLERS["fmod"] = divided(lambda q: stepped(q, mp.floor)), divided(truncated)
HANDLERS["addcmul"] = lambda out, a, b, c, value=1: one_by_one(lambda x, y, z: x + y * z * value, a, b, c)


# Reductions and rows.


def total(row: Sequence[Number]) -> Number:
    if not len(row):
        return constant(0)
    found = reduce(lambda a, b: a + b, row[1:], made(row[0].value, ((row[0], 1),), rounds=False))
    found.adds = True
    return found


def dot(a: Sequence[Number], b: Sequence[Number]) -> Number:
    return total([x * y for x, y in zip(a, b, strict=True)])


def mean(row: Sequence[Number]) -> Number:
    return total(row) / len(row)


def spread(row: Sequence[Number], unbiased: bool = True) -> Number:
    if len(row) <= unbiased:
        return made(NAN, [(x, NAN) for x in row], open=True)
    middle, run = mean(row), Run.now
    found = dot(off := [x - middle for x in row], off) / (len(row) - unbiased)
    if run.source and mp.isfinite(found.value):  # a kernel's gradient may be x s - mean s, with a stored mean
        share = mpf(2) / (len(row) - unbiased)
        shift = run.shaken(share * middle.value, 2.0**-run.digits if run.digits else run.inner)
        found = made(found.value, [(x, run.shaken(share * x.value, run.inner) - shift) for x in row], rounds=False)
        found.adds = True
    return found


def length(row: Sequence[Number]) -> Number:
    return SMOOTH["sqrt"](dot(row, row))


WIDEST = 2.0**-9  # of a log-sum-exp: beyond a rounding of bfloat16 no kernel is excused


def weights(row: Sequence[Number]) -> tuple[list[Number], Number, Number]:
    top = max((x.value for x in row if not mp.isnan(x.value)), default=NAN)
    shift = constant(top)
    parts = [E1(x - shift) for x in row]
    return parts, total(parts), shift


def softmax(row: Sequence[Number]) -> list[Number]:
    parts, all_of, shift = weights(row)
    found = [part / all_of for part in parts]
    stored: list[Number] = []
    for y, x in zip(found, row, strict=True):

        def own(at: int = len(stored)) -> Any:
            return stored[at].value

        def others(i: int, at: int = len(stored)) -> Any:
            return -stored[at].value * stored[i].value

        stored.append(recalled(y, [(x, own), *((each, partial(others, i)) for i, each in enumerate(row))]))
    run, log_sum = Run.now, shift.value + mp.log(all_of.value) if all_of.value > 0 else mpf(0)
    if run.source and mp.isfinite(log_sum) and any(x.adds for x in row):
        # attention over parts of the keys weighs them by exp(x - log_sum), where log_sum is rounded
        off = mp.exp(run.shaken(log_sum, min(run.inner, WIDEST / max(abs(log_sum), 1))) - log_sum)
        return [made(y.value * off, ((y, 1),), rounds=False) for y in stored]
    return stored


def logsumexp(row: Sequence[Number]) -> Number:
    _, all_of, shift = weights(row)
    if mp.isinf(shift.value):
        return made(shift.value, [(x, NAN) for x in row], rounds=False)
    found = recalled(SMOOTH["log"](all_of) + shift, [(x, lambda x=x: mp.exp(x.value - found.value)) for x in row])
    return found


def log_softmax(row: Sequence[Number]) -> list[Number]:
    _, all_of, shift = weights(row)
    log = SMOOTH["log"](all_of)
    if Run.now.source and mp.isfinite(shift.value):  # a cross entropy keeps the log-sum-exp, which is the noisier form
        log, shift = log + shift, constant(0)
    stored: list[Number] = []
    for x in row:

        def others(of: int) -> Any:
            return -mp.exp(stored[of].value)

        slopes = [(each, partial(others, of)) for of, each in enumerate(row)]
        stored.append(recalled(x - shift - log, [(x, lambda: 1), *slopes]))
    return stored


def normed(row: Sequence[Number], eps: float, centre: bool, keep: Callable[[Number], Number]) -> list[Number]:
    off = [x - m for m in [mean(row)] for x in row] if centre else list(row)
    by = keep(SMOOTH["rsqrt"](dot(off, off) / len(off) + eps))
    if centre and Run.now.source:  # the form of PyTorch's kernels is the noisier one
        shift = keep(mean(row)) * by
        return with_stored_moments([x * by - shift for x in row], row, by.value)
    return [x * by for m in [keep(mean(row))] for x in [x - m for x in row]] if centre else [x * by for x in off]


def with_stored_moments(found: list[Number], row: Sequence[Number], by: Any) -> list[Number]:
    """Returns normalised numbers whose backward is PyTorch's: dy by + b x - b mean - sum(dy) by / n.

    b comes from mean sum(dy) - sum(dy x), whose two terms cancel. In 16 bits the mean and 1 / deviation are stored.
    """
    run, n = Run.now, len(row)
    if not mp.isfinite(by):
        return found
    center = mpf(sum(x.value for x in row)) / n
    if run.digits:
        center, by = run.shaken(center, 2.0**-run.digits), run.shaken(by, 2.0**-run.digits)

    def rounded(value: Any) -> Any:
        return run.shaken(value, run.inner)

    def slope(i: int, j: int) -> Any:
        b = (rounded(center) - rounded(row[i].value)) * by**3 / n
        return rounded(by * (i == j)) + rounded(b * row[j].value) - rounded(b * center) - rounded(by / n)

    stored = [recalled(y, [(x, partial(slope, i, j)) for j, x in enumerate(row)]) for i, y in enumerate(found)]
    for y, x in zip(stored, row, strict=True):
        y.again = (x.value - center) * by
    return stored


def weighted(y: Number, weight: Number) -> Number:
    """Returns a product. The gradient of a weight takes a normalised number from the moments that a kernel keeps."""
    found = y * weight
    return found if y.again is None else recalled(found, [(y, lambda: weight.value), (weight, lambda: y.again)])


def deviation(row: Sequence[Number], unbiased: bool = True) -> Number:
    return SMOOTH["sqrt"](spread(row, unbiased))


def norm(row: Sequence[Number], p: float = 2) -> Number:
    if p not in (1, 2):
        raise Oracled(f"the norm of {p}")
    return length(row) if p == 2 else total([magnitude(x) for x in row])


for _each, _row in {
    "sum": total,
    "mean": mean,
    "prod": lambda row: reduce(lambda a, b: a * b, row),
    "amax": lambda row: largest(row, 1, shared=True)[0],
    "amin": lambda row: largest(row, -1, shared=True)[0],
    "logsumexp": logsumexp,
    "var": spread,
    "std": deviation,
}.items():
    HANDLERS[_each] = lambda out, x, dim=None, keepdim=False, f=_row, **named: over(
        x, dim, lambda row: f(row, **named), out.shape
    )
HANDLERS["norm"] = HANDLERS["linalg_vector_norm"] = lambda out, x, p=2, dim=None, **_: over(
    x, dim, lambda row: norm(row, 2 if p == "fro" else p), out.shape
)


def extreme(sign: int) -> Callable[..., Any]:
    def of(out: Any, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        if isinstance(dim, (Tensors, torch.Tensor)):
            return each(lambda a, b: largest([a, b], sign, shared=True)[0], x, dim)
        if dim is None:
            return over(x, None, lambda row: largest(row, sign, shared=True)[0], out.shape)
        found = over(x, dim, lambda row: largest(row, sign), out[0].shape)
        return each(lambda f: f[0], found), each(lambda f: Number(mpf(f[1]), open=f[2] or f[0].open), found)

    return of


def place_of(sign: int) -> Callable[..., Any]:
    def at(row: Sequence[Number]) -> Number:
        _, place, near = largest(row, sign)
        return Number(mpf(place), open=near or any(x.open for x in row))

    return lambda out, x, dim=None, keepdim=False: over(x, dim, at, out.shape)


HANDLERS["max"], HANDLERS["min"] = extreme(1), extreme(-1)
HANDLERS["argmax"], HANDLERS["argmin"] = place_of(1), place_of(-1)


def sorting(x: Any, dim: int, descending: bool, cut: slice) -> tuple[np.ndarray, np.ndarray]:
    """Returns the numbers in order and their places."""

    def row_of(row: Sequence[Number]) -> list[Any]:
        order, near = ranked(row, descending)
        unclear = any(x.open for x in row)
        return [
            (chosen(row, row[place], rank in near), Number(mpf(place), open=unclear or rank in near))
            for rank, place in enumerate(order)
        ][cut]

    return apart(along(x, dim, row_of))


def apart(pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return each(lambda pair: pair[0], pairs), each(lambda pair: pair[1], pairs)


HANDLERS["sort"] = lambda out, x, dim=-1, descending=False: sorting(x, dim, descending, slice(None))
HANDLERS["argsort"] = lambda out, x, dim=-1, descending=False: sorting(x, dim, descending, slice(None))[1]
HANDLERS["topk"] = lambda out, x, k, dim=-1: sorting(x, dim, True, slice(k))


def at_rank(x: Any, rank: int, dim: int, shape: Sequence[int]) -> Any:
    return tuple(a.reshape(tuple(shape)) for a in sorting(x, dim, False, slice(rank, rank + 1)))


@handles("median")
def _(out: Any, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    if dim is None:
        return at_rank(array(x).reshape(-1), (array(x).size - 1) // 2, 0, out.shape)[0]
    return at_rank(x, (x.shape[dim] - 1) // 2, dim, out[0].shape)


HANDLERS["kthvalue"] = lambda out, x, k, dim=-1, keepdim=False: at_rank(x, k - 1, dim, out[0].shape)


def running_extreme(sign: int) -> Callable[[list[Number]], list[Any]]:
    def of(row: list[Number]) -> list[Any]:
        found = []
        for end in range(1, len(row) + 1):  # the last of equal numbers wins
            number, place, near = largest(row[:end][::-1], sign)
            found.append((number, Number(mpf(end - 1 - place), open=near or any(x.open for x in row[:end]))))
        return found

    return of


for _each, _line in {
    "cumsum": lambda row: list(itertools.accumulate(row, lambda a, b: a + b)),
    "cumprod": lambda row: list(itertools.accumulate(row, lambda a, b: a * b)),
    "logcumsumexp": lambda row: [logsumexp(row[: n + 1]) for n in range(len(row))],
    "softmax": softmax,
    "softmin": lambda row: softmax([-v for v in row]),
    "log_softmax": log_softmax,
}.items():
    HANDLERS[_each] = lambda out, x, dim=-1, f=_line, **_: along(x, dim, f)


@handles("diff")
def _(out: Any, x: Any, n: int = 1, dim: int = -1) -> Any:
    def of(row: list[Number]) -> list[Number]:
        pairs = list(itertools.pairwise(row))
        if out.dtype == torch.bool:
            return [verdict(a.value != b.value, a.open or b.open) for a, b in pairs]
        return [b - a for a, b in pairs]

    return along(x, dim, of)


HANDLERS["cummax"] = lambda out, x, dim: apart(along(x, dim, running_extreme(1)))
HANDLERS["cummin"] = lambda out, x, dim: apart(along(x, dim, running_extreme(-1)))


@handles("normalize")
def _(out: Any, x: Any, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Any:
    def of(row: list[Number]) -> list[Number]:
        by = kept(limited(kept(norm(row, p)), eps, None, 1))
        return [kept(steep(v / by, 2)) for v in row]

    return along(x, dim, of)


def affine(y: np.ndarray, weight: Any, bias: Any) -> np.ndarray:
    y = y if weight is None else each(weighted, y, weight)
    return y if bias is None else each(lambda a, b: a + b, y, bias)


def normed_over(
    x: np.ndarray, groups: int, eps: float, centre: bool = True, keep: Callable[[Number], Number] = lambda x: x
) -> np.ndarray:
    """Normalises groups. keep: what PyTorch does with the mean and the deviation before it uses them."""
    rows = x.reshape(groups, -1)
    return filled([v for row in rows for v in normed(list(row), eps, centre, keep)], x.shape)


@handles("layer_norm")
def _(out: Any, x: Any, shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    return affine(normed_over(array(x), array(x).size // math.prod(shape), eps), weight, bias)


@handles("rms_norm")
def _(out: Any, x: Any, shape: Sequence[int], weight: Any = None, eps: Any = None) -> Any:
    eps = torch.finfo(torch.float32 if out.dtype in SMALL else out.dtype).eps if eps is None else eps
    return affine(normed_over(array(x), array(x).size // math.prod(shape), eps, centre=False), weight, None)


HANDLERS["group_norm"] = lambda out, x, groups, *_, **__: normed_over(array(x), len(array(x)) * groups, 1e-5)
HANDLERS["instance_norm"] = lambda out, x, **_: normed_over(array(x), math.prod(out.shape[:2]), 1e-5, keep=kept)


@handles("batch_norm")
def _(out: Any, x: Any, *_: Any, **__: Any) -> Any:
    wide = np.moveaxis(array(x), 1, 0)
    return np.moveaxis(normed_over(wide, len(wide), 1e-5, keep=kept), 0, 1)


# Products and windows.


def product(a: Any, b: Any) -> np.ndarray:
    a, b = array(a), array(b)
    left, right = a if a.ndim > 1 else a[None], b if b.ndim > 1 else b[:, None]
    lead = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    left = np.broadcast_to(left, (*lead, *left.shape[-2:]))
    right = np.broadcast_to(right, (*lead, *right.shape[-2:]))
    found = np.empty((*lead, left.shape[-2], right.shape[-1]), object)
    for place in np.ndindex(*found.shape):
        found[place] = dot(left[place[:-1]], right[(*place[:-2], slice(None), place[-1])])
    if a.ndim == 1:
        found = found[..., 0, :]
    return boxed(found[..., 0] if b.ndim == 1 else found)


HANDLERS["matmul"] = lambda out, a, b: product(a, b)
HANDLERS["outer"] = lambda out, a, b: each(lambda x, y: x * y, array(a)[:, None], array(b)[None])
HANDLERS["linear"] = lambda out, x, w, b=None: affine(product(x, array(w).T), None, b)


@handles("scaled_dot_product_attention")
def _(out: Any, q: Any, k: Any, v: Any, is_causal: bool = False, **_: Any) -> Any:
    scores = each(lambda s: s * (1 / math.sqrt(q.shape[-1])), product(q, np.swapaxes(array(k), -1, -2)))
    if is_causal:
        scores[..., ~np.tril(np.ones(scores.shape[-2:], bool))] = constant(-math.inf)
    shares = along(scores, -1, softmax)
    found = product(shares, v)
    if not Run.now.source or not Run.now.digits:
        return found
    for place in np.ndindex(*found.shape):  # a kernel's backward sums dy y, with the y that its forward stored
        y, row = found[place], list(zip(scores[place[:-1]], shares[place[:-1]], strict=True))
        lost = Run.now.shaken(y.value, 2.0**-Run.now.digits) - y.value
        found[place] = made(y.value, [(y, 1), *((x, -share.value * lost) for x, share in row)], rounds=False)
    return found


def windows(x: np.ndarray, n: int, size: Any, stride: Any, pad: Any = 0) -> list[list[tuple[Any, Any]]]:
    """Returns for each window over the last n dimensions the places inside of x, with their taps."""
    size, stride, pad = [(each,) * n if isinstance(each, int) else tuple(each) for each in (size, stride, pad)]
    ends = x.shape[-n:]
    found = []
    for window in np.ndindex(*((ends[d] + 2 * pad[d] - size[d]) // stride[d] + 1 for d in range(n))):
        taps = [(tuple(window[d] * stride[d] - pad[d] + tap[d] for d in range(n)), tap) for tap in np.ndindex(*size)]
        found.append([(at, tap) for at, tap in taps if all(0 <= at[d] < ends[d] for d in range(n))])
    return found


def convolution(out: Any, x: Any, w: Any, stride: Any = 1, padding: Any = 0) -> Any:
    x, w = array(x), array(w)
    taps = windows(x, x.ndim - 2, w.shape[2:], stride, padding)
    found = []
    for sample, filters in itertools.product(x, w):
        for inside in taps:
            channels = range(w.shape[1])
            found.append(total([sample[(c, *at)] * filters[(c, *tap)] for c in channels for at, tap in inside]))
    return filled(found, out.shape)


HANDLERS["conv1d"] = HANDLERS["conv2d"] = convolution


def pooling(n: int, function: Callable[[list[Number], int], Number]) -> Callable[..., Any]:
    def of(out: Any, x: Any, size: int, stride: Any = None, padding: int = 0, dilation: int = 1, **other: Any) -> Any:
        if dilation != 1 or any(other.get(key) for key in ("ceil_mode", "return_indices")):
            raise Oracled("forms of pooling")
        taps = windows(array(x), n, size, stride or size, padding)
        planes = array(x).reshape(-1, *x.shape[-n:])
        return filled([function([p[at] for at, _ in each], size**n) for p in planes for each in taps], out.shape)

    return of


for _n in (1, 2):
    HANDLERS[f"max_pool{_n}d"] = pooling(_n, lambda row, size: largest(row)[0])
    HANDLERS[f"avg_pool{_n}d"] = pooling(_n, lambda row, size: total(row) / size)


# Places, casts and losses.


@handles("pad")
def _(out: Any, x: Any, pad: Sequence[int], mode: str = "constant", value: Any = None) -> Any:
    ids = torch.arange(1.0, array(x).size + 1, dtype=torch.float64).reshape(array(x).shape)
    places = torch.nn.functional.pad(ids, pad, mode, 0.0 if mode == "constant" else None)
    pool = [constant(value or 0), *array(x).flat]
    return filled([pool[int(place)] for place in places.flatten().tolist()], out.shape)


@handles("one_hot")
def _(out: Any, x: Any, num_classes: int = -1) -> Any:
    return each(lambda v, c: verdict(v.value == c.value, v.open), array(x)[..., None], torch.arange(num_classes))


def added(targets: torch.Tensor, x: Any, source: Any, opened: bool) -> np.ndarray:
    found = list(array(x).flat)
    for target, number in zip(targets.flatten().tolist(), array(source).flat, strict=True):
        found[target] = found[target] + number
    if opened:
        found = [made(v.value, ((v, 1),), rounds=False, open=True) for v in found]
    return filled(found, array(x).shape)


@handles("scatter_add")
def _(out: Any, x: Any, dim: int, index: Any, source: Any) -> Any:
    where_to, opened = whole(index)
    lines = torch.arange(out.numel()).reshape(out.shape)
    return added(lines.gather(dim, where_to), x, source, opened)


@handles("index_add")
def _(out: Any, x: Any, dim: int, index: Any, source: Any, alpha: float = 1) -> Any:
    where_to, opened = whole(index)
    found = added(torch.arange(out.numel()).reshape(out.shape).index_select(dim, where_to), x, source, opened)
    return each(lambda n: verdict(n.value, n.open), found) if out.dtype == torch.bool else found


@handles(*CASTS)
def _(out: Any, x: Any, *_: Any, **__: Any) -> Any:
    if out.dtype.is_floating_point:
        bits = DIGITS[out.dtype]

        def cast(v: Number) -> Number:
            if narrower(out.dtype):  # rounded after this, as every result in such a format
                return made(v.value, ((v, 1),), rounds=False)
            if bits >= DIGITS.get(x.dtype, 0):
                return v
            found = made(v.value, ((v, 1),), rounds=False)  # the identity; a kernel may round here
            found.outer = 2.0**-bits  # the gradient is rounded too
            if mp.isfinite(v.value) and v.value._mpf_[3] > bits:
                found.error += abs(float(v.value)) * 2.0**-bits
                pushed(found, abs(float(v.value)) * 2.0**-bits, found.place)
                found.value = Run.now.shaken(v.value, 2.0**-bits)
            return found

        return each(cast, x)
    if out.dtype == torch.bool:
        return each(lambda v: compared("ne", v, 0), x)
    limit = torch.iinfo(out.dtype).max

    def cut(v: Number) -> Number:
        if not mp.isfinite(v.value) or abs(v.value) > limit:
            return Number(mpf(0), open=True)
        found = truncated(v)
        return Number(found.value, open=found.open)

    return each(cut, x)


@handles("detach")
def _(out: Any, x: Any) -> Any:
    return each(Number.detached, x)


def reduced(values: np.ndarray, how: str) -> np.ndarray:
    by = {"sum": 1, "none": 1, "mean": values.size, "batchmean": len(values) if values.ndim else 1}[how]
    return values if how == "none" else boxed(total([kept(v) for v in values.flat]) / by)


def huber(d: Number, beta: float, divided: bool) -> Number:
    size = magnitude(d)
    if sign_between(size, constant(beta))[0] < 0:
        return d * d * 0.5 / beta if divided else d * d * 0.5
    return size - 0.5 * beta if divided else (size - 0.5 * beta) * beta


LOSSES: dict[str, Callable[..., Number]] = {
    "mse_loss": lambda a, b: (a - b) * (a - b),
    "l1_loss": lambda a, b: magnitude(kept(a - b)),
    "smooth_l1_loss": lambda a, b, beta=1.0: huber(a - b, beta, True),
    "huber_loss": lambda a, b, delta=1.0: huber(a - b, delta, False),
    "binary_cross_entropy_with_logits": lambda a, b: kept(kept(1 - b) * a) - kept(SMOOTH["logsigmoid"](a)),
    "kl_div": lambda a, b, log_target=False: (
        kept(E1(b)) * kept(b - a) if log_target else b * kept(kept(SMOOTH["log"](b)) - a)
    ),
}


def loss(out: Any, x: Any, y: Any, *, f: Any, reduction: str = "mean", **named: Any) -> Any:
    named = {key: value for key, value in named.items() if key in f.__code__.co_varnames}
    return reduced(each(lambda a, b: f(a, b, **named), x, y), reduction)


for _each, _function in LOSSES.items():
    HANDLERS[_each] = partial(loss, f=_function)


@handles("nll_loss")
def _(out: Any, x: Any, y: Any, smooth: float = 0.0, **_: Any) -> Any:
    label, opened = whole(y)
    if opened or array(x).ndim != 2:
        raise Oracled("forms of cross entropy")
    rows = zip(array(x), label.tolist(), strict=True)
    found = [-row[at] if not smooth else -row[at] * (1 - smooth) - mean(row) * smooth for row, at in rows]
    return reduced(filled(found, (len(found),)), "mean")


@handles("cross_entropy")
def _(out: Any, x: Any, y: Any, label_smoothing: float = 0.0, **_: Any) -> Any:
    return HANDLERS["nll_loss"](out, along(x, -1, log_softmax), y, label_smoothing)


@handles("cosine_similarity")
def _(out: Any, a: Any, b: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    n = array(a).shape[dim]

    def of(row: list[Number]) -> Number:
        x, y = row[:n], row[n:]
        return dot(x, y) / (limited(length(x), eps, None, 1) * limited(length(y), eps, None, 1))

    return over(np.concatenate([array(a), array(b)], dim), dim, of, out.shape)


@handles("bucketize")
def _(out: Any, x: Any, edges: Any) -> Any:
    return each(lambda v: total([constant(0), *[inverse(compared("le", v, e)) for e in array(edges)]]), x)
