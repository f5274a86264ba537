"""`verify.op`: defines an elementwise op from one mpmath formula and one torch formula.

    from mpmath import mp
    verify.op(
        "silu2", exact=lambda x: x / (1 + mp.exp(-x)), reference=lambda x: x * torch.sigmoid(x)
    )

The exact gradient is a central difference of `exact` at raised precision unless `grad` gives it (at a
kink: every number between the slopes of both sides),
the fast one comes from autograd in float64 through `reference` unless `grad_reference` gives it.
Constants in `exact` mean what Python makes of them: 0.1 is the float64 nearest to a tenth,
mp.mpf(1) / 10 is a tenth."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from mpmath import mp

from verify.errors import TruthError, UsageError
from verify.ops import autograd
from verify.ops.agreement import compare
from verify.ops.define_rows import from_program, row_op
from verify.ops.elements import mpf_to_arb
from verify.ops.elementwise import pointwise
from verify.ops.formula import Formula
from verify.ops.numeric import call, derivative_at, limit_at, pole_at, sides_at, value_at
from verify.ops.op import Fast, Op, Operand, Params, Regime
from verify.ops.precision import GUARD, PROBE_BITS, arb_bits, magnitude
from verify.ops.registry import register

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["op", "row_op"]

_KINK = 2.0**-30  # of the scale: no smooth slope changes by as much between two float64 numbers
_TINY = 2.0**-1000  # what float64 makes of a slope that is zero

Gradients = Callable[..., Any] | Mapping[str, Callable[..., Any]] | None
Regimes = Sequence[Regime | tuple[str, float, float]]


def _operand_names(name: str, exact: Callable[..., Any]) -> tuple[str, ...]:
    """The positional arguments of the exact formula."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = [
        each.name
        for each in inspect.signature(exact).parameters.values()
        if each.kind in kinds and each.default is inspect.Parameter.empty
    ]
    if not found:
        raise UsageError(
            f"op {name!r}: exact has no positional argument; each one names an operand",
            hint="write exact=lambda x: ..., and parameters as keywords: lambda x, *, alpha: ...",
        )
    return tuple(found)


def _by_operand(name: str, given: Gradients, operands: tuple[str, ...]) -> dict[str, Any]:
    """Gradient formulas per operand; one callable means the only operand."""
    if given is None:
        return {}
    if callable(given):
        if len(operands) > 1:
            raise UsageError(
                f"op {name!r} has the operands {', '.join(operands)}; one gradient was given",
                hint=f"give one per operand: grad={{{operands[0]!r}: lambda ...: ..., ...}}",
            )
        return {operands[0]: given}
    unknown = [key for key in given if key not in operands]
    if unknown:
        raise UsageError(
            f"op {name!r}: a gradient names {unknown[0]!r}; operands are: {', '.join(operands)}",
            hint="use the names of exact's positional arguments",
        )
    return dict(given)


def _bind(function: Callable[..., Any], params: Params) -> Callable[..., Any]:
    return lambda *values: function(*values, **params)


class _Elementwise:
    """The formulas of one user-defined op for one setting of its parameters."""

    def __init__(
        self,
        name: str,
        params: Params,
        exact: Callable[..., Any],
        reference: Callable[..., Any],
        arb: Callable[..., Any] | None,
        grads: tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]],
    ) -> None:
        self.name = name
        self.exact = _bind(exact, params)
        self.reference = _bind(reference, params)
        self.arb = None if arb is None else _bind(arb, params)
        self.grad, self.grad_reference, self.grad_arb = (
            {key: _bind(value, params) for key, value in table.items()} for table in grads
        )

    def formula(self, operand: str | None, position: int) -> Formula:
        """y when `operand` is None, else the partial derivative with respect to it."""
        arb = self.arb if operand is None else self.grad_arb.get(operand)

        def finite(values: Sequence[Any], prec: int) -> Any:
            if operand is None:
                return value_at(self.name, self.exact, values, prec)
            between = ends(*values, prec=prec)
            if between is not None:
                return between[0]
            if operand in self.grad:
                return value_at(self.name, self.grad[operand], values, prec)
            return derivative_at(self.name, self.exact, values, position, prec)

        @lru_cache(maxsize=1)
        def anything_at_nan(operands: int) -> bool:
            """Whether the reference has a slope at NaN: where a comparison decides, as in ReLU, autograd gives one."""
            nothing = [torch.full((1,), torch.nan, dtype=torch.float64)] * operands
            return not bool(torch.isnan(self._slope_at(nothing, position, str(operand))))

        @lru_cache(maxsize=256)
        def ends(*values: Any, prec: int) -> tuple[Any, Any] | None:
            if operand is not None and any(map(mp.isnan, values)) and anything_at_nan(len(values)):
                return mp.ninf, mp.inf
            if operand is None or not all(map(mp.isfinite, values)):
                return None
            slope = self.grad.get(operand)
            return sides_at(self.name, self.exact, values, position, prec, slope=slope)

        @lru_cache(maxsize=2)
        def limit(infinity: Any) -> Any:
            def evaluate(x: Any) -> Any:
                if operand is not None and operand not in self.grad and mp.isinf(x):
                    return mp.nan
                return finite([x], 128)

            return limit_at(evaluate, infinity)

        @lru_cache(maxsize=256)
        def pole_of(place: int, sign: int, values: tuple[float, ...]) -> tuple[Any, Any] | None:
            def at(x: Any) -> list[Any]:
                return [*map(mp.mpf, values[:place]), x, *map(mp.mpf, values[place + 1 :])]

            def beside(x: Any) -> Any:
                return finite(at(x), 128)

            try:  # the difference quotient of an even function is 0 across its pole
                if mp.isfinite(call(self.name, self.exact, at(mp.zero))) and mp.isfinite(beside(mp.zero)):
                    return None
            except TruthError:
                pass  # and that of an odd one grows without limit
            own, other = pole_at(beside, sign), pole_at(beside, -sign)
            # where the function is defined on the other side alone, as 1 / sqrt(x): formulas give either infinity
            return (own, own) if own is not None else (mp.ninf, mp.inf) if other is not None else None

        def pole(*values: float) -> tuple[Any, Any] | None:
            zeros = [place for place, value in enumerate(values) if value == 0.0]
            if len(zeros) != 1 or not all(map(math.isfinite, values)):
                return None
            return pole_of(zeros[0], int(math.copysign(1, values[zeros[0]])), values)

        def probe(*values: Any) -> Any:
            if not all(map(mp.isfinite, values)):
                return mp.nan
            function = self.exact if operand is None else self.grad.get(operand)
            if function is not None:
                return call(self.name, function, values)
            exponent = magnitude(values[position]) - PROBE_BITS // 2
            moved = [*values[:position], values[position] + mp.ldexp(1, exponent), *values[position + 1 :]]
            return mp.ldexp(call(self.name, self.exact, moved) - call(self.name, self.exact, values), -exponent)

        def by_mp(*values: Any, prec: int) -> Any:
            if all(map(mp.isfinite, values)):
                return finite(values, prec)
            if any(map(mp.isnan, values)):
                return mp.nan
            if len(values) == 1:
                return limit(values[0])
            # Several operands have no single limit: what the formula itself makes of infinities.
            function = self.exact if operand is None else self.grad.get(operand)
            return mp.nan if function is None else call(self.name, function, values)

        def by_arb(*values: Any, prec: int) -> Any:
            assert arb is not None
            if len(values) == 1 and not values[0].is_finite():
                if values[0].is_nan():
                    return values[0]
                return mpf_to_arb(limit(mp.inf if values[0] > 0 else mp.ninf))
            with arb_bits(prec + 2 * GUARD):
                return arb(*values)

        def by_float(*values: Tensor) -> Fast:
            fast = self._value(values) if operand is None else self._slope(values, position, operand)
            undefined = torch.stack([torch.isnan(value) for value in values]).any(0)
            between = fast.ends
            if operand is not None and bool(undefined.any()) and anything_at_nan(len(values)):
                low, high = between or (fast.value, fast.value)
                between = low.masked_fill(undefined, -torch.inf), high.masked_fill(undefined, torch.inf)
            fast = Fast(fast.value.masked_fill(undefined, torch.nan), fast.scale, between)
            if len(values) > 1:
                return fast
            value, scale, between = fast.value, fast.scale, fast.ends
            for infinity in (mp.inf, mp.ninf):
                there = values[0] == float(infinity)
                value = value.masked_fill(there, float(limit(infinity)))
                scale = scale.masked_fill(there, abs(float(limit(infinity))))
                if between is not None:
                    low, high = (end.masked_fill(there, float(limit(infinity))) for end in between)
                    between = low, high
            zeros = values[0] == 0.0
            for zero in (0.0, -0.0) if bool(zeros.any()) else ():
                if (limits := pole(zero)) is None:
                    continue
                there = zeros & (torch.signbit(values[0]) == (math.copysign(1, zero) < 0))
                least, greatest = map(float, limits)
                ends = between or (value, value)
                low, high = ends[0].masked_fill(there, least), ends[1].masked_fill(there, greatest)
                value = value.masked_fill(there, least if least == greatest else torch.nan)
                between = (low, high) if between is not None or least != greatest else None
            return Fast(value, scale, between)

        return Formula(
            mp=by_mp,
            arb=None if arb is None else by_arb,
            fast=by_float,
            ends=None if operand is None else ends,
            pole=pole,
            probe=probe,
        )

    def _value(self, values: Sequence[Tensor]) -> Fast:
        value = self.reference(*values).detach()
        if value.shape != values[0].shape:
            raise UsageError(
                f"op {self.name!r}: reference returned shape {tuple(value.shape)} "
                f"for inputs of shape {tuple(values[0].shape)}",
                hint="an elementwise reference keeps the shape; verify.row_op works on rows",
            )
        return Fast(value, value.abs())

    def _slope(self, values: Sequence[Tensor], position: int, operand: str) -> Fast:
        """The derivative, and as its scale |f'| + sum |x_j d f' / d x_j|.

        The second part is what relative errors of the arguments would do to the derivative: it
        keeps the scale away from zero where the derivative crosses zero. Where the derivative at the next
        float64 to the left or to the right is another by more than rounding, all between them is right.
        """
        with torch.enable_grad():
            leaves = [value.detach().requires_grad_() for value in values]
            slope = self._slope_at(leaves, position, operand, again=True)
            scale = slope.detach().abs()
            if slope.requires_grad:
                bends = autograd.gradients([slope], leaves, [torch.ones_like(slope)])
                for value, bend in zip(values, bends, strict=True):
                    if bend is not None:
                        scale = scale + (value * bend.detach()).abs().nan_to_num(0.0, 0.0, 0.0)
        slope = slope.detach()
        beside = []
        for side in (-torch.inf, torch.inf):
            there = torch.nextafter(values[position], torch.full_like(values[position], side))
            beside.append(self._slope_at([*values[:position], there, *values[position + 1 :]], position, operand))
        low = torch.minimum(torch.minimum(*beside), slope)
        high = torch.maximum(torch.maximum(*beside), slope)
        kinks = (high - low > _KINK * scale + _TINY) & torch.isfinite(high - low)
        if not bool(kinks.any()):
            return Fast(slope, scale)
        return Fast(slope, scale, (torch.where(kinks, low, slope), torch.where(kinks, high, slope)))

    def _slope_at(self, values: Sequence[Tensor], position: int, operand: str, *, again: bool = False) -> Tensor:
        """The reference's derivative; with `again` as a function of leaves that can be differentiated once more."""
        with torch.enable_grad():
            leaves = values if again else [value.detach().requires_grad_() for value in values]
            if operand in self.grad_reference:
                slope: Tensor = self.grad_reference[operand](*leaves)
            else:
                y = self.reference(*leaves)
                [found] = autograd.gradients([y], [leaves[position]], [torch.ones_like(y)], again=again)
                slope = torch.zeros_like(y) if found is None else found
        return slope if again else slope.detach()


def _regime_table(given: Regimes) -> tuple[Regime, ...]:
    return tuple(each if isinstance(each, Regime) else Regime(*each) for each in given)


def op(
    name: str,
    *,
    exact: Callable[..., Any] | None = None,
    reference: Callable[..., Any],
    grad: Gradients = None,
    grad_reference: Gradients = None,
    arb: Callable[..., Any] | None = None,
    grad_arb: Gradients = None,
    params: Params | None = None,
    regimes: Regimes = (),
    boundaries: Sequence[float] = (),
    baseline: Callable[..., Any] | None = None,
    summary: str = "",
    replace: bool = False,
) -> Op:
    """Define and register an elementwise op.

    `exact` computes in mpmath, `reference` in torch; the positional arguments of `exact` name the
    operands (`lambda x: ...`, `lambda x1, x2: ...`), `params` the keyword parameters and their
    defaults. `arb` and `grad_arb` are optional second opinions in python-flint balls. `baseline`
    is what users run today in the kernel's dtype; without it, `reference` itself. Without `exact`, the program of
    `reference` says what is right, its gradients too.
    """
    if exact is None:
        rest = {"grad": grad, "grad_reference": grad_reference, "arb": arb, "grad_arb": grad_arb, "params": params}
        made = from_program(name, reference, rest, baseline=baseline, summary=summary)
        made = dataclasses.replace(
            made, regimes=lambda chosen: _regime_table(regimes), boundaries=lambda chosen: tuple(boundaries)
        )
        return register(made, replace=replace)
    names = _operand_names(name, exact)
    grads = (
        _by_operand(name, grad, names),
        _by_operand(name, grad_reference, names),
        _by_operand(name, grad_arb, names),
    )

    known: dict[str, dict[str, Formula]] = {}

    def formulas(chosen: Params) -> dict[str, Formula]:
        # Kept, because the limits at infinity cost milliseconds.
        key = repr(sorted(chosen.items()))
        if key not in known:
            known[key] = assembled(chosen)
        return known[key]

    def assembled(chosen: Params) -> dict[str, Formula]:
        made = _Elementwise(name, chosen, exact, reference, arb, grads)
        table = {"y": made.formula(None, 0)}
        for position, operand in enumerate(names):
            table["d" + operand] = made.formula(operand, position)
        return table

    defined = pointwise(
        name,
        tuple(Operand(each) for each in names),
        formulas,
        baseline or reference,
        params=params,
        regime_of=names[-1],
        regimes=lambda chosen: _regime_table(regimes),
        boundaries=lambda chosen: tuple(boundaries),
        summary=summary,
    )
    given = [exact, reference, *(function for table in grads for function in table.values())]
    routes = [exact, *grads[0].values()], [reference, *grads[1].values()]
    edges = [*boundaries, *(edge for regime in _regime_table(regimes) for edge in (regime.low, regime.high))]
    return register(dataclasses.replace(defined, compared=compare(defined, given, edges, routes)), replace=replace)
