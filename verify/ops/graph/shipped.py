"""Makes a shipped op of a PyTorch function. Its traced program gives the exact values and the float64 reference.

A shipped op differs from a function of `like=` in what is known of it: the landmarks, the parameters, the scale of its
sums, and the limits at infinite operands, where a program may have NaN, as in `-inf * 0`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache, partial
from typing import Any, ClassVar

import torch
from mpmath import mp
from torch import Tensor

from verify.ops.elements import GUARD, to_arb
from verify.ops.geometry import Geometry, Shape
from verify.ops.graph.program import Program, run_of, trace, undisturbed
from verify.ops.graph.single import ElementEvaluator, Shared
from verify.ops.graph.steps import Leaf, Run
from verify.ops.op import Fast, Kept, Meaning, Op, Operand, Point, Problem

_MANY_ROWS = 512  # fewest rows among which a search for equal ones pays


def merged(problem: Problem, data: Sequence[str]) -> Problem:
    """Returns an equivalent problem with equal rows merged, for results that sum over rows; else the problem itself.

    Such results are linear in the upstream gradients. So the gradients at equal rows are added up exactly. The sum is a
    few float64 numbers of decreasing size, each with its own copy of the row. Numbers are cut into digits so short that
    float64 adds the digits of a group exactly.
    """
    if "merged" not in problem.kept.exact:
        problem.kept.exact["merged"] = _merged(problem, data)
    found: Problem | None = problem.kept.exact["merged"]
    return found or problem


def _merged(problem: Problem, data: Sequence[str]) -> Problem | None:
    """Returns the merged problem; None if the rows are few, mostly different, or not finite."""
    flat = {
        name: value.detach().to("cpu", torch.float64).reshape(-1, value.shape[-1])
        for name, value in (*problem.inputs.items(), *problem.upstream.items())
        if value is not None and value.ndim > 1 and (name in data or name in problem.upstream) and value.numel()
    }
    kept = {name: flat[name] for name in data if name in flat}
    count = min(map(len, flat.values()), default=0)
    if count < _MANY_ROWS or not all(bool(torch.isfinite(value).all()) for value in flat.values()):
        return None
    distinct, owner = torch.unique(torch.cat(list(kept.values()), -1), dim=0, return_inverse=True)
    if 2 * len(distinct) > count:
        return None
    sums = {name: _summed_by(owner, len(distinct), flat[name]) for name in problem.upstream}
    copies = max(map(len, sums.values()), default=1)
    nothing = {name: torch.zeros_like(parts[0]) for name, parts in sums.items()}
    rows = dict(zip(kept, distinct.split([value.shape[-1] for value in kept.values()], -1), strict=True))
    return replace(
        problem,
        inputs={**problem.inputs, **{name: value.repeat(copies, 1) for name, value in rows.items()}},
        upstream={n: torch.cat(parts + [nothing[n]] * (copies - len(parts))) for n, parts in sums.items()},
        kept=Kept(),
    )


def _summed_by(owner: Tensor, groups: int, values: Tensor) -> list[Tensor]:
    """Returns the exact sum of the rows of each group, as several tensors that add up to it."""
    bits = 52 - len(values).bit_length()
    exponent = int(torch.frexp(values.abs().max()).exponent)
    parts: list[Tensor] = []
    while not parts or bool(values.any()):
        exponent = max(exponent - bits, -1074)
        unit = math.ldexp(1.0, exponent)
        digits = (values / unit).trunc()
        values = values - digits * unit
        parts.append(torch.zeros((groups, values.shape[-1]), dtype=torch.float64).index_add_(0, owner, digits) * unit)
    return parts


_HOLDS = 32  # programs kept: one for each set of shapes

# by result: the scale in float64, and the root of the sum of the squares of the terms if the result is a long sum
Scales = Mapping[str, tuple[Tensor, Tensor | None]]
Limits = Mapping[str, tuple[Tensor, Tensor]]  # by result: a mask of the elements at infinite operands, and their limits


@dataclass
class Shipped(Meaning):
    """A function with what is known of it.

    The function takes an argument for each operand, None if it is absent, and the parameters of the op.
    """

    shipped: ClassVar[bool] = True
    function: Callable[..., Any]
    operands: tuple[Operand, ...]
    outputs: tuple[str, ...] = ("y",)
    scales: Callable[[Problem], Scales] = lambda problem: {}
    limits: Callable[[Problem], Limits] = lambda problem: {}
    summed: Sequence[str] = ()  # results that add up over rows
    traced: Callable[..., Program] = field(init=False)

    def __post_init__(self) -> None:
        self.traced = lru_cache(maxsize=_HOLDS)(self._trace)

    def op(self, name: str, geometry: Geometry, **options: Any) -> Op:
        """Returns the op. `options` are its other fields."""
        made = {"baseline": self.function, "operands": self.operands, "outputs": self.outputs, **options}
        return Op(label=name, geometry=geometry, meaning=self, **made)

    def _trace(
        self, params: tuple[tuple[str, Any], ...], shapes: tuple[tuple[str, Shape], ...], gradients: tuple[str, ...]
    ) -> Program:
        """Traces the function of the operands that are present."""
        names = [name for name, _ in shapes]

        def called(*values: Tensor) -> Any:
            given = dict(zip(names, values, strict=True))
            return self.function(*(given.get(each.name) for each in self.operands), **dict(params))

        examples = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes}
        return trace(called, examples, outputs=self.outputs, differentiable=gradients)

    def program(self, problem: Problem) -> tuple[Program, Run]:
        """Returns the program of a problem, and a run with its tensors."""
        present, gradients = operands_of(problem)
        shapes = tuple((name, tuple(value.shape)) for name, value in present.items())
        program = self.traced(tuple(sorted(problem.params.items())), shapes, gradients)
        return program, run_of(program, problem)

    def fast(self, problem: Problem) -> dict[str, Fast]:
        """Returns the float64 reference of each result, with the scale of its sum if it has one."""
        program, run = self.program(problem)
        with torch.no_grad():
            found = {name: Fast.within(span) for name, span in program.spans(run, problem.results).items()}
            found |= {name: _at_infinity(program, run, name, each) for name, each in found.items()}
            for name, (scale, root) in self.scales(problem).items():
                found[name] = replace(found[name], scale=scale, root=root)
            for name, (infinite, limit) in self.limits(problem).items():
                own = found[name]
                value, bound = torch.where(infinite, limit, own.value), own.bound.masked_fill(infinite, 0.0)
                found[name] = replace(own, value=value, bound=bound)
        return found

    def points(self, problem: Problem, result: str, indices: Sequence[int]) -> list[Point]:
        """Returns the exact values of single elements."""
        if result in self.summed:
            problem = merged(problem, [each.name for each in self.operands if each.role == "data"])
        problem.kept.belong_to(self)
        device = next(value.device for value in problem.inputs.values() if value is not None)
        if device not in problem.kept.exact:
            problem.kept.exact[device] = _Opened(*self.program(problem))
        opened: _Opened = problem.kept.exact[device]
        evaluator = ElementEvaluator(opened.program, opened.run, result, list(indices), opened.shared)
        points = [_sharper(evaluator.point(place)) for place in range(len(indices))]
        if opened.finite:
            return points

        def known(index: int) -> float | None:
            """Returns the value of an element whose reference is exact, such as a limit; None for others."""
            if not opened.fast:
                opened.fast.update(self.fast(problem))
            value, bound = (each.reshape(-1)[index] for each in (opened.fast[result].value, opened.fast[result].bound))
            return float(value) if float(bound) == 0 else None

        return [
            _or_limit(point, evaluator, place, partial(known, index))
            for place, (point, index) in enumerate(zip(points, indices, strict=True))
        ]


@dataclass
class _Opened:
    """The common parts of the exact values of one problem."""

    program: Program
    run: Run
    shared: Shared = field(default_factory=lambda: Shared(float("inf")))  # a shipped op promises rows of any length
    fast: dict[str, Fast] = field(default_factory=dict)  # the reference, if operands are not finite

    @cached_property
    def finite(self) -> bool:
        """True if no operand has an infinity or NaN."""
        return all(bool(torch.isfinite(value.double()).all()) for value in self.run.leaves.values())


def _at_infinity(program: Program, run: Run, result: str, fast: Fast) -> Fast:
    """Returns the reference with the infinities and NaN of float64 where an interval of infinite operands is open."""
    open_ended = torch.isinf(fast.bound)
    if not bool(open_ended.any()) or _Opened(program, run).finite:
        return fast
    plain = program.values(run, [result], undisturbed(run))[result]
    special = open_ended & ~torch.isfinite(plain)
    return replace(fast, value=torch.where(special, plain, fast.value), bound=fast.bound.masked_fill(special, 0.0))


def _sharper(point: Point) -> Point:
    """Returns the point with more bits than requested, so that the first ball settles most questions."""
    return Point(lambda prec: point.mp(prec + 2 * GUARD), lambda prec: point.arb(prec + 2 * GUARD))


def _or_limit(point: Point, evaluator: ElementEvaluator, place: int, limit: Callable[[], float | None]) -> Point:
    """Returns the point with the limit in place of a value that is no number, where an operand is not finite."""

    @cache
    def special() -> float | None:
        known = limit()  # first, since few elements have one and their operands take longer to find
        return known if known is not None and _depends_on_special(evaluator, place) else None

    return Point(
        lambda prec: point.mp(prec) if (known := special()) is None else mp.mpf(known),
        lambda prec: point.arb(prec) if (known := special()) is None else to_arb(known),
    )


def _depends_on_special(evaluator: ElementEvaluator, place: int) -> bool:
    """True if an element depends on an infinity or NaN. Otherwise it only needs more bits."""
    program, run = evaluator.program, evaluator.run
    needed = program.places(run, evaluator.result, [evaluator.indices[place]], {})
    for step in program.steps:
        if isinstance(step, Leaf) and id(step) in needed:
            some = run.leaves[step.name].reshape(-1)[torch.as_tensor(needed[id(step)][0], device=run.device)]
            if not bool(torch.isfinite(some.double()).all()):
                return True
    return False


def operands_of(problem: Problem) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Returns the operands that are present, and those whose gradients the problem asks for."""
    present = {name: value for name, value in problem.inputs.items() if value is not None}
    return present, tuple(name for name in present if "d" + name in problem.results)
