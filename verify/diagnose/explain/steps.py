"""How a kernel may compute: a chain of steps, each of which can be done in floating point or exactly.

One lambda says what a step computes. On tensors it rounds, as PyTorch's operation of that dtype does; on mpmath
numbers it does not. That makes the error of a result divisible without remainder: let the first k steps round and
the others be exact, for every k; what the result moves by from one k to the next is the share of that step. The
shares add up to the whole error, because the first chain is the exact function and the last one the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np
import torch
from mpmath import mp
from torch import Tensor

BITS = 600  # of exact steps: 1 + erf(x) cancels x^2 / (2 ln 2) bits, 150 where float32 ends
Values = Mapping[str, Any]


class Rounded:
    """Functions on tensors: every result is rounded to the dtype of the operands."""

    erf = staticmethod(torch.erf)
    erfc = staticmethod(torch.erfc)
    exp = staticmethod(torch.exp)
    tanh = staticmethod(torch.tanh)
    sigmoid = staticmethod(torch.sigmoid)
    sqrt = staticmethod(torch.sqrt)
    rsqrt = staticmethod(torch.rsqrt)

    def __init__(self, mean: Callable[[Tensor], Tensor] | None = None) -> None:
        self._mean = mean or (lambda values: values.mean(-1, keepdim=True))

    def mean(self, values: Tensor) -> Tensor:
        """Over the row, in the order of accumulation that this model has."""
        return self._mean(values)

    def constant(self, name: str) -> float:
        """A constant as source code writes it: the nearest float64, rounded further by the operation."""
        return _FLOATS[name]

    def cast(self, values: Tensor, dtype: torch.dtype) -> Tensor:
        """Rounded to another dtype."""
        return values.to(dtype)

    def cube(self, values: Tensor) -> Tensor:
        """values ** 3, which is a function of its own."""
        return values**3


class Exact:
    """The same functions on mpmath numbers, alone or in arrays of a row."""

    @staticmethod
    def _each(function: Callable[[Any], Any], value: Any) -> Any:
        return np.frompyfunc(function, 1, 1)(value) if isinstance(value, np.ndarray) else function(value)

    def erf(self, value: Any) -> Any:
        return self._each(mp.erf, value)

    def erfc(self, value: Any) -> Any:
        return self._each(mp.erfc, value)

    def exp(self, value: Any) -> Any:
        return self._each(mp.exp, value)

    def tanh(self, value: Any) -> Any:
        return self._each(mp.tanh, value)

    def sigmoid(self, value: Any) -> Any:
        return self._each(lambda each: 1 / (1 + mp.exp(-each)), value)

    def sqrt(self, value: Any) -> Any:
        return self._each(mp.sqrt, value)

    def rsqrt(self, value: Any) -> Any:
        return self._each(lambda each: 1 / mp.sqrt(each) if each else mp.inf, value)

    def mean(self, values: Any) -> Any:
        return mp.fsum(values) / len(values)

    def constant(self, name: str) -> Any:
        return _exact_constants()[name]

    def cast(self, values: Any, dtype: torch.dtype) -> Any:
        return values

    def cube(self, values: Any) -> Any:
        return values * values * values


def _exact_constants() -> dict[str, Any]:
    """At the precision of the moment."""
    return {
        "1/√2": 1 / mp.sqrt(2),
        "√2": mp.sqrt(2),
        "√(2/π)": mp.sqrt(2 / mp.pi),
        "1/√(2π)": 1 / mp.sqrt(2 * mp.pi),
        "2/√π": 2 / mp.sqrt(mp.pi),
        "0.044715": mp.mpf(44715) / 1000000,
        "0.134145": mp.mpf(134145) / 1000000,
        "1.702": mp.mpf(1702) / 1000,
    }


with mpmath.workprec(200):
    _FLOATS = {name: float(value) for name, value in _exact_constants().items()}


@dataclass(frozen=True)
class Step:
    """One operation: its name among the values, how it is written, what may go wrong in it, what it computes.

    `kind` is "cast", "arithmetic", "intrinsic", "accumulation" or "output". `terms` are the summands of a sum, for
    the bits that they cancel. A `narrow` step and all after it look at one column only.
    """

    name: str
    text: str
    kind: str
    compute: Callable[[Values, Any], Any]
    terms: Callable[[Values, Any], tuple[Any, Any]] | None = None
    narrow: bool = False


@dataclass(frozen=True)
class Model:
    """A way to compute one result: a formula, the dtype of its steps, and the order of its sums."""

    formula: str
    arithmetic: str
    steps: tuple[Step, ...]
    mean: Callable[[Tensor], Tensor] | None = None

    @property
    def name(self) -> str:
        return f"{self.formula}, {self.arithmetic}"


def trace(model: Model, given: Mapping[str, Tensor | float]) -> dict[str, Tensor]:
    """Every value of a model in floating point; the last step is its result."""
    algebra = Rounded(model.mean)
    values: dict[str, Any] = dict(given)
    for step in model.steps:
        values[step.name] = step.compute(values, algebra)
    return values


@dataclass(frozen=True)
class Share:
    """What one step adds to the error of the result, and how it comes about."""

    step: Step
    value: Any  # what the step gave, in floating point
    exact: Any  # what it would have given, from the same values before it
    effect: Any  # on the result, as a real number
    lost: float | None  # bits that a sum cancelled; infinite when nothing was left


@dataclass(frozen=True)
class Budget:
    """The error of a result, divided among the steps. `formula` is the result of the chain with no step rounded."""

    formula: Any
    shares: tuple[Share, ...]


def budget(model: Model, traced: Mapping[str, Any], given: Mapping[str, Any], column: int) -> Budget:
    """Divide the error. `traced` and `given` hold mpmath numbers: scalars, or arrays over the row."""
    with mpmath.workprec(BITS):
        results = [_mixed(model, traced, given, column, rounded) for rounded in range(len(model.steps) + 1)]
        shares = []
        for place, step in enumerate(model.steps):
            before = {**given, **{item.name: traced[item.name] for item in model.steps[:place]}}
            if step.narrow:
                before = {name: _at(value, column) for name, value in before.items()}
            exact = _at(step.compute(before, Exact()), column)
            value = _at(traced[step.name], column)
            shares.append(Share(step, value, exact, results[place + 1] - results[place], _lost(step, before, column)))
        return Budget(results[0], tuple(shares))


def _mixed(model: Model, traced: Mapping[str, Any], given: Mapping[str, Any], column: int, rounded: int) -> Any:
    """The result when the first `rounded` steps round and the others are exact."""
    values = dict(given)
    narrowed = False
    for place, step in enumerate(model.steps):
        if step.narrow and not narrowed:
            values = {name: _at(value, column) for name, value in values.items()}
            narrowed = True
        if place < rounded:
            values[step.name] = _at(traced[step.name], column) if narrowed else traced[step.name]
        else:
            values[step.name] = step.compute(values, Exact())
    return _at(values[model.steps[-1].name], column)


def _at(value: Any, column: int) -> Any:
    return value[column] if isinstance(value, np.ndarray) else value


def _lost(step: Step, values: Mapping[str, Any], column: int) -> float | None:
    if step.terms is None:
        return None
    first, second = (_at(term, column) for term in step.terms(values, Exact()))
    total = _at(step.compute(values, Exact()), column)
    if not (mp.isfinite(first) and mp.isfinite(second)) or not (first or second):
        return None
    largest = max(abs(first), abs(second))
    if not total:
        return float("inf")
    return max(0.0, float(mp.log(largest / abs(total), 2)))
