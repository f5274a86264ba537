"""What an operation means: operands, exact value by two routes, a fast float64 reference, regimes.

An `Op` is mathematics only. It never runs a kernel and never judges one: `verify.truth` evaluates it,
`verify.measure.call` compares. Three callables carry the meaning:

* `points(problem, result, indices)` gives, for single elements of one result, closures that evaluate the
  real number at any precision, once in mpmath (a stable formula) and once in Arb (another formula where
  one exists: ball arithmetic may cancel, it only needs more bits).
* `fast(problem)` evaluates every requested result in float64 on the problem's device, with the scale of
  its terms. `verify.measure.certify` measures how far it is from `points`.
* `baseline(...)` is what PyTorch users run today, in the same dtype.

A *result* is an output (`"y"`) or the gradient of an operand (`"d" + operand`, such as `"dx"`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from verify.ops.domain import Domain
from verify.ops.geometry import Geometry, Params, Shape
from verify.records.record import Gate

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Symmetry = Literal["odd part", "gate", "norm", "shift", "linear"]

_LONG = 1 << 16  # numbers that a problem has from which it is long


Largest = float | dict[str, float]  # the magnitude that inputs stay within: of all, or by operand


def up_to(largest: Largest | None, operand: str) -> float:
    """The magnitude that one operand stays within; infinite where nothing says so."""
    if isinstance(largest, dict):
        return largest.get(operand, math.inf)
    return math.inf if largest is None else largest


def largest_words(size: Largest) -> str:
    """`inputs up to 100`, `x up to 100, weight up to 2`."""
    if not isinstance(size, dict):
        return f"inputs up to {size:g}"
    return ", ".join(f"{name} up to {one:g}" for name, one in size.items())


class WholeNumbers(Protocol):
    """The whole numbers that an integer operand holds, for the dims of a case."""

    @property
    def structure(self) -> str:
        """Returns what its elements fulfil together; empty if nothing."""

    def __call__(self, dims: Shape) -> tuple[int, int]:
        """Returns the least number, and one above the largest."""

    def arranged(self, values: Tensor, dims: Shape) -> Tensor:
        """Gives numbers the structure that the operand has, as a permutation has one."""

    @property
    def fixed_by(self) -> set[str]:
        """Returns the dimensions whose indices the structure needs together."""


class Derived(Protocol):
    """The function that computes an operand from others (`verify.ops.graph.derived`)."""

    depth: int

    def of(self, given: Mapping[str, Tensor | None], dtype: torch.dtype | None, shape: Shape) -> Tensor:
        """Computes the operand; `dtype` is None for integers."""


@dataclass(frozen=True)
class Operand:
    """One tensor argument, in the order in which a kernel receives it.

    `role` says how cases make its values: "data" follows the value recipe of the case, "scale" is a weight
    around 1, "shift" a bias around 0, "matrix" a weight matrix, "integer" whole numbers of a
    range, or truth values where `boolean`. A case computes an operand with `derive` from the others. Kernels do not
    receive a `hidden` one, from which others are derived.
    """

    name: str
    role: Literal["data", "scale", "shift", "matrix", "integer"] = "data"
    optional: bool = False
    differentiable: bool = True
    range: WholeNumbers | None = None  # of an "integer"
    boolean: bool = False
    domain: Domain | None = None  # the numbers that it holds; None: all
    derive: Derived | None = None
    hidden: bool = False


@dataclass(frozen=True)
class ScorePart:
    """What one operand is to the scores of an attention: see `verify.ops.graph.scores`.

    `tokens` is the axis whose index selects a query, a key or a value. `features` is the axis that the products of
    queries and keys sum over; -1 for a value, which has none.
    """

    role: Literal["query", "key", "value"]
    tokens: int
    features: int = -1


Scores = Mapping[str, ScorePart]  # by operand: one query, one key, and the value if there is one


@dataclass(frozen=True)
class Regime:
    """A named half-open region `low <= value < high` of the operand that decides how an element behaves."""

    name: str
    low: float
    high: float


@dataclass(frozen=True)
class Fast:
    """A float64 reference: `value`, and `scale` = the magnitude of the terms that were summed into it.

    The certificate bounds |value - exact| by a multiple of 2^-53 * scale, so `scale` must not be smaller
    than the terms whose rounding errors enter `value`; for an elementwise function that does not cancel it
    is |value|.

    `ends` are the least and the greatest right answer of every element, equal where there is only one (see `Point`);
    None where there is nowhere more than one. `bound` is how far the exact value may be, where the reference knows it
    itself; else the certificate does, but for `exact` elements, which are the exact value to its last bit. `unknown`
    marks elements whose value no route finds: nothing is said against any answer there, and they count as undecided.
    `noise` is how far roundings of the definition's own steps move the value (rms). Decisions that these roundings may
    turn over give an element an `other` right value, or move it within a `spread`: see `verify.ops.graph.noise`.
    """

    value: Tensor
    scale: Tensor
    ends: tuple[Tensor, Tensor] | None = None
    bound: Tensor | None = None
    exact: Tensor | None = None
    unknown: Tensor | None = None
    noise: Tensor | None = None
    spread: Tensor | None = None
    other: Tensor | None = None
    together: float = 1.0  # how far the elements of a result move together
    remark: str = ""  # beside how elements are known

    def cpu(self) -> Fast:
        """The same in the memory of the host."""
        ends = None if self.ends is None else (self.ends[0].cpu(), self.ends[1].cpu())
        names = ("bound", "exact", "unknown", "noise", "spread", "other")
        held = {name: getattr(self, name) for name in names}
        rest: dict[str, Any] = {name: None if each is None else each.cpu() for name, each in held.items()}
        return replace(self, value=self.value.cpu(), scale=self.scale.cpu(), ends=ends, **rest)


@dataclass(frozen=True)
class Point:
    """The exact value of one element, as functions of the working precision in bits.

    `mp(prec)` returns an `mpmath.mpf` within about 2^-(prec - 8) relative of the truth; `arb(prec)` returns
    a `flint.arb` ball that encloses it. `arb` is None where a shipped op's program adds it (`verify.ops.graph.second`).

    `ends()` is given where more than one answer may be right: at a kink every number between the derivatives from
    both sides is. It returns the points of the least and the greatest right answer, or None where there is only one.
    """

    mp: Callable[[int], Any]
    arb: Callable[[int], Any] | None = None
    ends: Callable[[], tuple[Point, Point] | None] | None = None


@dataclass(frozen=True)
class Problem:
    """Quantised inputs of one evaluation: the truth is the exact function of exactly these values.

    `inputs` maps operand names to tensors in their own dtype (None where an optional operand is absent),
    `upstream` maps output names to the gradient that arrives there (empty when only the forward is asked
    for), `results` names what is wanted. `cache` belongs to `points` (row moments and the like).
    """

    inputs: Mapping[str, Tensor | None]
    params: Params = field(default_factory=dict)
    upstream: Mapping[str, Tensor] = field(default_factory=dict)
    results: tuple[str, ...] = ("y",)
    cache: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def is_long(self) -> bool:
        """Whether each result is worth a process of its own."""
        return sum(value.numel() for value in self.inputs.values() if value is not None) >= _LONG


@dataclass(frozen=True)
class Landmarks:
    """Where an elementwise op changes its behaviour: its regimes, and the numbers at which a format's rounding does.

    `of` names the operand whose value decides the regime of an element. `values(problem, result)` replaces it where
    that operand has another shape than the result: it returns the deciding value for each element.
    """

    of: str = "x"
    values: Callable[[Problem, str], Tensor] | None = None
    regimes: Callable[[Params], tuple[Regime, ...]] = lambda params: ()
    boundaries: Callable[[Params], tuple[float, ...]] = lambda params: ()


class Meaning(Protocol):
    """A PyTorch function that defines an op, as a program (`verify.ops.graph`)."""

    def program(self, problem: Problem) -> tuple[Any, Any]:
        """Returns the steps that the function takes, and the tensors to run them on."""

    def identity(self, dims: Shape) -> str:
        """Digests what the function means for these sizes."""

    def settled(self, problem: Problem, result: str, got: Tensor) -> Tensor:
        """Puts the answer of the reference in the place of others that are right too, in a result of integers."""

    def looked_up(self, problem: Problem, result: str, fast: Fast) -> Fast:
        """Evaluates single elements where `fast` has no bound, which takes its time."""

    def deviation(self, problem: Problem, result: str) -> Tensor:
        """Samples the noise of a result with more runs than the fast reference does."""

    def in_float64(self, problem: Problem) -> dict[str, Tensor]:
        """Returns PyTorch's own float64 results."""


@dataclass(frozen=True)
class Op:
    """A mathematical definition. See the module docstring; `verify.ops.get(name)` finds one.

    `geometry` says what shapes the tensors have and what an output element depends on (`verify.ops.geometry`).
    `integers` names outputs that are whole numbers or conditions, which are compared as float64 ones. `points` without
    an index makes what the points of a problem share. `meaning` is the PyTorch function that defines the op, if one
    does; `name` then has a digest of it for one set of sizes.
    `symmetry` names the exact identity of a shipped op (`verify.laws.identities`), `gate_curve` the op of one number
    whose curve it is made of (`table`). `scores` says which operands a softmax over products is made of.
    `special(x...)`-like limits are part of `fast` and `points`: both must give the mathematical limit at
    infinite inputs and NaN where there is none.
    """

    name: str
    geometry: Geometry
    operands: tuple[Operand, ...]
    outputs: tuple[str, ...]
    fast: Callable[[Problem], dict[str, Fast]]
    points: Callable[[Problem, str, Sequence[int]], list[Point]]
    baseline: Callable[..., Any]
    params: Params = field(default_factory=dict)
    choices: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    optional_outputs: tuple[str, ...] = ()
    gate: Gate = "plain"
    landmarks: Landmarks = Landmarks()
    summary: str = ""
    integers: tuple[str, ...] = ()
    meaning: Meaning | None = field(default=None, compare=False, repr=False)
    symmetry: Symmetry | None = None
    gate_curve: str = ""
    scores: Scores | None = field(default=None, compare=False, repr=False)

    @property
    def is_unary(self) -> bool:
        """True for a function of one number."""
        return self.geometry.by_element and len(self.operands) == 1 and not self.geometry.packed

    def shapes(self, dims: Shape, params: Params) -> dict[str, Shape]:
        """Maps operands to their shapes, for the dims of a case."""
        roles = {operand.name: operand.role for operand in self.operands}
        return self.geometry.shapes(self.name, roles, dims, params)

    def result_shapes(self, dims: Shape, params: Params) -> dict[str, Shape]:
        """Maps outputs to their shapes."""
        return self.geometry.results(self.all_outputs, dims, params)

    def gate_of(self, result: str) -> Gate:
        """What the error of a result is told in: integers and conditions are compared in ULP of float64."""
        return "plain" if result in self.integers else self.gate

    @property
    def required_outputs(self) -> tuple[str, ...]:
        """What a kernel returns unless its declaration says more."""
        return tuple(name for name in self.outputs if name not in self.optional_outputs)

    @property
    def all_outputs(self) -> tuple[str, ...]:
        """Required and optional outputs, in the order in which the baseline returns them."""
        return tuple(dict.fromkeys((*self.outputs, *self.optional_outputs)))

    @property
    def domains(self) -> dict[str, Domain]:
        """Maps each operand with a domain to it."""
        return {each.name: each.domain for each in self.operands if each.domain is not None}

    @property
    def domain_words(self) -> str:
        """Returns the domains as they are declared, such as `0 <= v, -1 <= cos <= 1`."""
        return ", ".join(domain.text for domain in self.domains.values())

    @property
    def derived(self) -> tuple[Operand, ...]:
        """Returns the operands that are computed from others, each after the operands that it takes."""
        found = [(each.derive.depth, each.name, each) for each in self.operands if each.derive is not None]
        return tuple(each for _, _, each in sorted(found, key=lambda item: item[:2]))

    @property
    def gradients(self) -> tuple[str, ...]:
        """Names of all gradients that this op defines."""
        return tuple("d" + operand.name for operand in self.operands if operand.differentiable)

    def resolve(self, params: Params) -> dict[str, Any]:
        """All parameters: the given ones over the defaults, each checked against its choices."""
        from verify.errors import UsageError

        for name in params:
            if name not in self.params:
                known = ", ".join(sorted(self.params)) or "none"
                raise UsageError(
                    f"op {self.name!r} has no parameter {name!r}; its parameters are: {known}",
                    hint=f"verify list --op {self.name}",
                )
        merged = {**self.params, **params}
        for name, allowed in self.choices.items():
            if merged[name] not in allowed:
                options = ", ".join(repr(value) for value in allowed)
                raise UsageError(
                    f"op {self.name!r}: {name} is one of {options}; received {merged[name]!r}",
                    hint=f"verify list --op {self.name}",
                )
        return merged


def remembering(op: Op, problem: Problem) -> Op:
    """Returns the op with the exact values of one problem kept.

    A kernel and its baseline are often off by the most at the same elements, and an element that Arb has judged may be
    asked for again with mpmath beside it. One element of a row of 2,048 takes milliseconds by each route.
    """
    known: dict[tuple[str, int, str, int], Any] = {}

    def kept(result: str, index: int, route: str, make: Callable[[int], Any]) -> Callable[[int], Any]:
        def value(precision: int) -> Any:
            key = (result, index, route, precision)
            if key not in known:
                known[key] = make(precision)
            return known[key]

        return value

    def points(asked: Problem, result: str, indices: Sequence[int]) -> list[Point]:
        assert asked is problem, "the values of one problem are no other's"
        return [
            Point(
                mp=kept(result, index, "mpmath", point.mp),
                arb=None if point.arb is None else kept(result, index, "Arb", point.arb),
                ends=point.ends,
            )
            for index, point in zip(indices, op.points(problem, result, indices), strict=True)
        ]

    return replace(op, points=points)
