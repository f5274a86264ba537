"""Defines `Op`, the mathematical definition of an operation, and the classes that it consists of.

An `Op` never runs a kernel and never judges one: `verify.truth` evaluates it, and `verify.measure.call` compares. Its
`Meaning` has the exact values, as the program of a PyTorch function. Its baseline is the code that PyTorch users run
today, in the dtype of the operands.

A *result* is an output (`"y"`) or the gradient of an operand (`"d" + operand`, such as `"dx"`). `get("gelu")` returns a
shipped op, `names()` lists all, and `register(op)` adds one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, Self

from verify.errors import UsageError, closest
from verify.ops.domain import Domain
from verify.ops.geometry import Geometry, Params, Shape
from verify.records.record import Gate

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from verify.ops.graph.shapes import Range


_LONG = 1 << 16  # fewest input elements of a long problem


Largest = float | dict[str, float]  # largest magnitude of inputs: of all, or by operand


def up_to(largest: Largest | None, operand: str) -> float:
    """Returns the largest magnitude of one operand; infinity if none is declared."""
    if isinstance(largest, dict):
        return largest.get(operand, math.inf)
    return math.inf if largest is None else largest


def largest_words(size: Largest) -> str:
    """Returns a limit of inputs in words, such as `inputs up to 100` or `x up to 100, weight up to 2`."""
    if not isinstance(size, dict):
        return f"inputs up to {size:g}"
    return ", ".join(f"{name} up to {one:g}" for name, one in size.items())


def as_defined(value: Tensor | None) -> Tensor | None:
    """Returns an operand as definitions take it: whole numbers as int64, for any dtype in the kernel."""
    kept = value is None or value.is_floating_point() or value.is_complex() or str(value.dtype) == "torch.bool"
    return value if kept or value is None else value.long()


class Derived(Protocol):
    """A function that computes an operand from others (`verify.ops.graph.derived`)."""

    depth: int  # greater than the depth of each derived operand that it takes

    @property
    def exact(self) -> str:
        """Says what is computed where it takes NaN and infinities too."""

    def of(self, given: Mapping[str, Tensor | None], dtype: torch.dtype | None, shape: Shape) -> Tensor:
        """Computes the operand; `dtype` is None for integers."""


@dataclass(frozen=True)
class Operand:
    """One tensor argument of an op.

    `role` decides how cases make its values. "data" follows the value recipe of the case. "scale" is a weight around 1,
    "shift" a bias around 0, and "matrix" a weight matrix. "integer" holds integers of a range, or booleans.
    """

    name: str
    role: Literal["data", "scale", "shift", "matrix", "integer"] = "data"
    optional: bool = False
    differentiable: bool = True
    range: Range | None = None  # of an "integer"
    boolean: bool = False  # True: an "integer" of booleans
    domain: Domain | None = None  # the allowed numbers; None: all
    project: Callable[[Tensor, int], Tensor] | None = None  # gives numbers, and the seed of a case, a structure
    derive: Derived | None = None  # computes it from other operands; None: the case draws it
    hidden: bool = False  # True: the kernel does not receive it; other operands are derived from it
    shown: Callable[[Mapping[str, Tensor]], Tensor] | None = None  # what reports show, from all operands of a case


@dataclass(frozen=True)
class ScorePart:
    """The part that one operand plays in the scores of an attention; see `verify.ops.graph.scores`."""

    role: Literal["query", "key", "value"]
    tokens: int  # the axis that selects a query, a key or a value
    features: int = -1  # the axis that the products of queries and keys sum over; -1 for a value


Scores = Mapping[str, ScorePart]  # operand -> part: a query, a key, and a value if there is one


@dataclass(frozen=True)
class Regime:
    """A named half-open region `low <= value < high` of the operand that decides how an element behaves."""

    name: str
    low: float
    high: float


@dataclass(frozen=True)
class Fast:
    """A float64 reference of one result: each real number lies within `bound` of `value`.

    At a tie, the reference belongs to one choice; see `Meaning.chosen`.
    """

    value: Tensor
    scale: Tensor  # magnitude of the terms that are summed to `value`
    bound: Tensor  # largest distance of the exact value; infinity: not known
    # root of the sum of the squares of many terms: the scale of results of 16 bits, whose sums are of float32
    root: Tensor | None = None
    unknown: Tensor | None = None  # mask of the elements that no route can evaluate: undecided
    noise: Tensor | None = None  # rms change of the value by roundings of the definition's steps
    other: Tensor | None = None  # a second right value of an element; NaN: only one
    together: float = 1.0  # how strongly the elements move together; see `Noise`

    @staticmethod
    def within(span: Any) -> Fast:
        """Returns the reference for an interval of a program, or for a tensor of integers, which is exact."""
        from torch import Tensor

        if isinstance(span, Tensor):
            value = span.double()
            return Fast(value, value.abs().clamp(min=1.0), value.new_zeros(value.shape))
        value = span.mid()
        bound = (span.hi - value).maximum(value - span.lo) * (1 + 2.0**-51)
        bound = bound.masked_fill(value.isinf() | value.isnan(), 0.0)
        open_ended = (span.lo.isinf() | span.hi.isinf()) & (span.lo != span.hi)
        return Fast(value, value.abs(), bound.masked_fill(open_ended, math.inf))

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Returns the same with every tensor changed."""
        from torch import Tensor

        held = {each.name: getattr(self, each.name) for each in fields(self)}
        made: dict[str, Any] = {name: change(value) for name, value in held.items() if isinstance(value, Tensor)}
        return replace(self, **made)

    def cpu(self) -> Self:
        """Returns a copy in host memory."""
        return self.mapped(lambda each: each.cpu())


@dataclass(frozen=True)
class Point:
    """The exact value of one element, as functions of the working precision in bits.

    `mp(prec)` returns an `mpmath.mpf` with a relative error of about 2^-(prec - 8). `arb(prec)` returns a `flint.arb`
    ball that encloses the value.
    """

    mp: Callable[[int], Any]
    arb: Callable[[int], Any]


class Slopes(NamedTuple):
    """Holds the elements of a gradient that follow from a kernel's own choice at exact ties, and one such tie."""

    elements: int
    tie: str


@dataclass
class Kept:
    """The common parts of the evaluations of one problem."""

    effort: float = 1.0  # how much exact values may cost, as a multiple of the usual budget of a result
    first: float = 0.0  # the same for the first exact value of a result
    programs: dict[Any, Any] = field(default_factory=dict)  # by the operands whose gradients are results
    decisions: dict[int, Any] = field(default_factory=dict)  # of steps of these programs: id(step) -> what it decided
    choices: list[Any] | None = None  # the choices that a kernel has at ties, none or one; None: not looked for
    totals: dict[Any, Any] = field(default_factory=dict)  # long sums, see `verify.ops.graph.steps.Run`
    exact: dict[Any, Any] = field(default_factory=dict)  # what exact values of elements share
    slopes: dict[str, Slopes] = field(default_factory=dict)  # by gradient: where a kernel's choice is not PyTorch's
    drawn: dict[str, Tensor] = field(default_factory=dict)  # by result: the kernel's draws, see `Meaning.draws`
    owner: Any = None  # the function that is evaluated

    def belong_to(self, owner: Any) -> None:
        """Forgets what belongs to another function: one problem may be given to two ops."""
        if self.owner is not None and self.owner is not owner:
            vars(self).update(vars(Kept(self.effort, self.first)))
        self.owner = owner


@dataclass(frozen=True)
class Problem:
    """The inputs of one evaluation, rounded to their formats. The truth is the exact function of these values."""

    inputs: Mapping[str, Tensor | None]  # by operand, in its own dtype; None: an optional operand is absent
    params: Params = field(default_factory=dict)
    upstream: Mapping[str, Tensor] = field(default_factory=dict)  # by output; empty: forward only
    results: tuple[str, ...] = ("y",)  # the requested results
    kept: Kept = field(default_factory=Kept, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", {name: as_defined(value) for name, value in self.inputs.items()})

    @property
    def is_long(self) -> bool:
        """True if the problem is so large that each result is worth a process of its own."""
        return sum(value.numel() for value in self.inputs.values() if value is not None) >= _LONG


@dataclass(frozen=True)
class Landmarks:
    """The numbers at which an elementwise op changes its behaviour."""

    of: str = "x"  # the operand whose value decides the regime of an element
    # returns the deciding value of each element of a result, if the operand `of` has another shape than the result
    values: Callable[[Problem, str], Tensor] | None = None
    regimes: Callable[[Params], tuple[Regime, ...]] = lambda params: ()
    boundaries: Callable[[Params], tuple[float, ...]] = lambda params: ()  # where the rounding of some format changes


class Meaning:
    """A PyTorch function that defines an op, as programs (`verify.ops.graph`). A shipped op has the defaults.

    `fast` and `points` return the mathematical limit at infinite inputs, and NaN if there is no limit. Call `points`
    with no indices to prepare the part that the points of a problem share.
    """

    ties: str = ""  # "as like": gradients at exact ties are PyTorch's own
    draws: tuple[str, ...] = ()  # results that are drawn from its probabilities
    shipped: ClassVar[bool] = False  # True: landmarks and scales are known, and every case is judged whole

    def program(self, problem: Problem) -> tuple[Any, Any]:
        """Returns the program of a problem, and a run with its tensors."""
        raise NotImplementedError

    def fast(self, problem: Problem) -> dict[str, Fast]:
        """Returns the float64 reference of every requested result, on the problem's device."""
        raise NotImplementedError

    def points(self, problem: Problem, result: str, indices: Sequence[int]) -> list[Point]:
        """Returns the exact values of single elements of a result."""
        raise NotImplementedError

    def outputs_of(self, given: Mapping[str, Tensor]) -> dict[str, tuple[Shape, torch.dtype]]:
        """Returns the shape of each output for some operands, and the dtype that the function returns it in."""
        raise NotImplementedError

    def identity(self, dims: Shape, kinds: Mapping[str, torch.dtype], *, gradients: bool) -> str:
        """Returns a digest of the function for these sizes and dtypes; "" if a name identifies it."""
        return ""

    def named(self, label: str) -> str:
        """Returns the name of the op. It is computed when it is needed: a digest takes traces in several dtypes."""
        return label

    def chosen(self, problem: Problem, got: Mapping[str, Tensor]) -> Problem:
        """Returns the problem with the choices at ties that explain a kernel's results best."""
        return problem

    def looked_up(self, problem: Problem, result: str, fast: Fast) -> Fast:
        """Returns the reference with its unbounded elements evaluated exactly, which is slow."""
        return fast

    def deviation(self, problem: Problem, result: str) -> Tensor:
        """Returns the noise of each element of a result, from more runs than `fast` takes."""
        raise NotImplementedError

    def in_place_of(self, function: Callable[..., Any], problem: Problem) -> dict[str, Tensor]:
        """Returns the float64 results of another function of the same operands; {} if there are none."""
        return {}


@dataclass(frozen=True)
class Op:
    """A mathematical definition; see the module docstring. `verify.ops.get(name)` finds a shipped one."""

    label: str  # the name; of an op by like=, without its digest
    geometry: Geometry
    operands: tuple[Operand, ...]  # in the order in which a kernel receives them
    outputs: tuple[str, ...]
    meaning: Meaning = field(compare=False, repr=False)  # the PyTorch function that defines it
    baseline: Callable[..., Any]
    remembered: Callable[[Problem, str, Sequence[int]], list[Point]] | None = None  # see `remembering`
    params: Params = field(default_factory=dict)  # defaults
    choices: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # allowed values of parameters
    optional_outputs: tuple[str, ...] = ()
    gate: Gate = "plain"
    unsummed: tuple[str, ...] = ()  # with the gate "noise": the results that add no terms up, as an elementwise op
    landmarks: Landmarks = Landmarks()
    summary: str = ""
    integers: tuple[str, ...] = ()  # outputs of integers or booleans, which are compared as float64 numbers
    definition: str = field(default="", compare=False, repr=False)  # the source of that function, for reports
    captured: Any = field(default=None, compare=False, repr=False)  # calls of a file, see `verify.declare.captured`
    regions: Any = field(default=None, compare=False, repr=False)  # what counts, see `verify.ops.graph.regions`
    scores: Scores | None = field(default=None, compare=False, repr=False)  # operands of a softmax over a product
    normalised: tuple[str, ...] = ()  # operands of a softmax or a log-sum-exp, where -inf is what is masked

    @cached_property
    def name(self) -> str:
        """The name; of an op by like=, with a digest of the function for one set of sizes."""
        return self.meaning.named(self.label)

    def program(self, problem: Problem) -> tuple[Any, Any]:
        """Returns the program of a problem, and a run with its tensors."""
        return self.meaning.program(problem)

    def fast(self, problem: Problem) -> dict[str, Fast]:
        """Returns the float64 reference of every requested result, on the problem's device."""
        return self.meaning.fast(problem)

    def points(self, problem: Problem, result: str, indices: Sequence[int]) -> list[Point]:
        """Returns the exact values of single elements of a result."""
        return (self.remembered or self.meaning.points)(problem, result, indices)

    @property
    def is_unary(self) -> bool:
        """True for a function of one number."""
        return self.geometry.by_element and len(self.operands) == 1 and not self.geometry.packed

    def shapes(self, dims: Shape, params: Params) -> dict[str, Shape]:
        """Maps operands to their shapes, for the dims of a case."""
        roles = {operand.name: operand.role for operand in self.operands}
        return self.geometry.shapes(self.label, roles, dims, params)

    def result_shapes(self, dims: Shape, params: Params) -> dict[str, Shape]:
        """Maps outputs to their shapes."""
        return self.geometry.results(self.all_outputs, dims, params)

    def shapes_with_outputs(self, dims: Shape, params: Params, outputs: Iterable[str]) -> dict[str, Shape]:
        """Maps operands to their shapes, and "d" + output to the shape of that output and of its arriving gradient."""
        results = self.result_shapes(dims, params)
        return self.shapes(dims, params) | {"d" + name: results[name] for name in outputs}

    def gate_of(self, result: str) -> Gate:
        """Returns the gate of a result, which chooses the unit of its error. Integers have the plain gate."""
        return "plain" if result in self.integers else self.gate

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
        """The domains as declared, such as `0 <= v, -1 <= cos <= 1`."""
        return ", ".join(domain.text for domain in self.domains.values())

    @property
    def derived(self) -> tuple[Operand, ...]:
        """The operands that are computed from others, each after the operands that it takes."""
        found = [(each.derive.depth, each.name, each) for each in self.operands if each.derive is not None]
        return tuple(each for _, _, each in sorted(found, key=lambda item: item[:2]))

    @property
    def gradients(self) -> tuple[str, ...]:
        """The names of all gradients that this op defines."""
        return tuple("d" + operand.name for operand in self.operands if operand.differentiable)

    def resolve(self, params: Params) -> dict[str, Any]:
        """Returns all parameters: the defaults, replaced by the given ones.

        Raises UsageError if a parameter is unknown or its value is not among the choices.
        """
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
    """Returns the op with a cache of the exact values of one problem.

    The same element is often requested again: a kernel and its baseline have their largest errors at the same elements,
    and mpmath may follow Arb. One element of a row of 2,048 takes milliseconds by each route, so the cache pays.
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
            Point(mp=kept(result, index, "mpmath", point.mp), arb=kept(result, index, "Arb", point.arb))
            for index, point in zip(indices, op.points(problem, result, indices), strict=True)
        ]

    return replace(op, remembered=points)


_OPS: dict[str, Op] = {}


def register(op: Op) -> Op:
    """Adds an op under its name, and returns it. `verify.ops` calls this for each shipped op when it is imported."""
    if op.name in _OPS:
        raise UsageError(f"an op named {op.name!r} exists already", hint="choose another name")
    _OPS[op.name] = op
    return op


def is_shipped(op: Op) -> bool:
    """True if every process can find the op by its name. An op with like= exists only where its file is imported."""
    return _OPS.get(op.name) is op


def names() -> tuple[str, ...]:
    """Returns the names of all ops, sorted."""
    return tuple(sorted(_OPS))


def get(name: str) -> Op:
    """Returns the op called `name`. Raises UsageError with the known names if there is none."""
    if name in _OPS:
        return _OPS[name]
    raise UsageError(
        f"no op is named {name!r}{closest(name, _OPS)}; the known ops are: {', '.join(names())}",
        hint="verify list --ops, or like=FUNCTION: the PyTorch function that says what is right (docs/like.md)",
    )
