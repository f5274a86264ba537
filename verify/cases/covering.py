"""Chooses few cases that cover many pairs: the sizes of two dimensions, a size and a recipe of values, a layout.

Most faults need one or two things at once: more than 16 rows and numbers that are all negative, or two dimensions of
several blocks. A case covers all pairs of its choices, so few cases cover most pairs that fit a budget (known in
testing as pairwise testing). The choices are deterministic: the same declaration gives the same cases.

Cohen, Dalal, Fredman and Patton, "The AETG system", IEEE TSE 23 (1997).
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations

import torch
from torch import Tensor

from verify.cases.case import Case, case_of, inputs_of
from verify.cases.classes import class_of_recipe
from verify.cases.sizes import Dims, Work, adds_up, fitted, program_of, sizes_of, work_of
from verify.cases.values import AT_BOUNDS, ENDLESS, LEAST, MASKED, NEAR, NOT_FINITE, ROW_REGIMES, ZERO_ROWS
from verify.declare.declaration import Kernel
from verify.errors import VerifyError
from verify.ops.graph.elementwise import COMPARISONS, Map
from verify.ops.graph.program import undisturbed
from verify.ops.graph.shapes import Related
from verify.ops.graph.steps import Plain, Step, moved_from
from verify.ops.op import Op, Operand, Problem, up_to
from verify.records.record import EXTREME

_TINY, _SMALL = 2.0**-60, 2.0**-7  # a constant in between is small beside ordinary numbers, and not a least number
_BESIDE = ("add", "subtract", "maximum", "minimum", *COMPARISONS)
_MOST = 2  # constants
_OCTAVES = 100  # operands of 2^-100 are the smallest that are no extreme inputs
_WORK = 1 << 20  # elements of all steps; for a larger program, operands are as large as its constants

Places = Mapping[int, tuple[float, int]]  # id(step) -> a constant, and which input of the step is beside it


def near_constants(op: Op) -> tuple[float, ...]:
    """Returns the sizes of operands at which a small constant shows, those of the largest constants first.

    A kernel that lacks a constant, such as 1e-8 added to a root, or adds it elsewhere, differs most where the number
    beside it is about as large. The root of a mean of squares is 1e-8 for other operands than the root of an operand.
    So the program is evaluated for operands of several sizes.
    """
    if op.meaning.shipped:
        return ()
    dims = op.geometry.examples[0] if op.geometry.examples else sizes_of(op, 1 << 12)[0]
    program = program_of(op, dims)
    constants = sorted({each for each, _ in _places(program).values()}, reverse=True)[:_MOST] if program else []
    if op.geometry.examples or not work_of(op, dims) <= _WORK:
        return tuple(constants)
    known: dict[int, dict[float, float]] = {}

    def beside(constant: float, octave: int) -> float:
        if octave not in known:
            known[octave] = _beside(op, dims, 2.0**-octave)
        return known[octave].get(constant, 0.0)

    found = []
    for each in constants:
        octave = bisect_left(range(_OCTAVES), True, key=lambda octave: beside(each, octave) <= each)
        # if it is larger or smaller beside all operands, such as a variance of equal numbers
        found.append(2.0**-octave if 0 < octave < _OCTAVES else each)
    return tuple(dict.fromkeys(float(f"{size:.2g}") for size in found))


def _places(program: object) -> Places:
    found: dict[int, tuple[float, int]] = {}
    for step in getattr(program, "steps", ()):
        for at in range(2 if isinstance(step, Map) and step.function in _BESIDE else 0):
            constant = _constant(step.inputs[1 - at])
            if constant and step.inputs[at].on_operands and step.inputs[at].real:
                found[id(step)] = constant, at
    return found


def _constant(step: Step) -> float:
    """Returns the magnitude of a small constant; 0.0 if the step is none."""
    made = moved_from(step)[-1]
    if not isinstance(made, Plain) or made.of or not made.real:
        return 0.0
    value = max((abs(float(each)) for each in made.compute([]).reshape(-1)[:1]), default=0.0)
    return value if _TINY < value <= _SMALL else 0.0


def _beside(op: Op, dims: tuple[int, ...], size: float) -> dict[float, float]:
    """Maps each small constant to the median of the largest number beside it, for operands of a size."""
    seen: dict[float, float] = {}
    with suppress(VerifyError), torch.no_grad():
        inputs = inputs_of(op, Case("float32", dims, f"{NEAR}{size!r}"), "cpu", shared=True)
        program, run = op.program(Problem(inputs=inputs, params=op.params, results=op.outputs))
        places, plain = _places(program), undisturbed(run)

        def make(step: Step, given: list[Tensor]) -> tuple[Tensor, Tensor]:
            if id(step) in places:
                constant, at = places[id(step)]
                seen[constant] = max(seen.get(constant, 0.0), float(given[at].abs().nanmedian()))
            return plain(step, given)

        program.values(run, list(program.results), make)
    return seen


# Sizes of each class; the first that fits the budget is taken. A kernel handles a dimension in blocks of 16 to 1,024:
# whole ones, one less, one more. 129 is one more than blocks of 16, 32, 64 and 128.
CLASSES: Mapping[str, tuple[int, ...]] = {
    "small": (3, 5, 2, 7),
    "1": (1,),
    "tens": (17, 33, 16, 15),
    "below a block": (127, 63),
    "a block": (128, 64),
    "over a block": (129, 65),
    "long": (257, 513, 300, 1025),
}
# Pairs with the largest sum of ranks are covered first: two long dimensions of one tensor, which then has more than
# 2^16 elements, the range of narrow offsets. They are equal, as where a kernel finds a dimension by its size.
_RANKS = {"long": 5, "over a block": 4, "a block": 2, "below a block": 2, "tens": 2}
# Layouts of one operand, or of the gradient that arrives at one output.
_OPERAND, _ARRIVING = ("transposed", "stepped", "expanded"), ("transposed", "expanded", "one number")

Choice = tuple[int, int]  # the number of a factor, and of one of its levels


@dataclass(frozen=True)
class CaseEffort:
    """Limits a case: the elements of its largest operand, and those of all steps of its program.

    demanding: the limit of the steps for all levels but the first of the first factor. Exact values of badly
        conditioned numbers are expensive.
    """

    elements: int
    work: int
    demanding: int


@dataclass(frozen=True)
class Chosen:
    """Holds the choices of one case. `others` maps each further factor, such as "recipe", to its level."""

    dims: Dims
    others: dict[str, str]


@dataclass(frozen=True)
class Covering:
    """Holds the chosen cases, the number of pairs that they cover, and the number of pairs within the budget."""

    cases: tuple[Chosen, ...]
    covered: int
    pairs: int


def factors_of(kernel: Kernel, recipes: Sequence[str]) -> dict[str, Sequence[str]]:
    """Returns the choices of a case beside its sizes: a recipe, the one operand that it is for, and one layout."""
    names = [each.name for each in kernel.op.operands if each.role == "data" and each.name in kernel.operands]
    factors: dict[str, Sequence[str]] = {"recipe": recipes, "only": ("", *names) if len(names) > 1 else ("",)}
    arriving = kernel.outputs if kernel.differentiable and not kernel.contiguous else ()
    laid = [f"{name} {layout}" for name in names if name not in kernel.contiguous for layout in _OPERAND]
    laid += [f"d{name} {layout}" for name in arriving for layout in _ARRIVING]
    return {**factors, "layout": ("", *laid)}


def run_recipes(kernel: Kernel, dtype: str) -> tuple[str, ...]:
    """Returns the recipes of a run of one PyTorch function.

    NaN and infinities are in no domain, and beyond a magnitude that the kernel promises. A program that adds up may
    hide numbers by multiplying them by 0, which is NaN for an infinity where a right kernel skips it. Of such a program
    -inf is in numbers whose exponentials it adds up. If nothing is promised at extreme inputs, the least numbers are
    left out, and other extreme ones come last: no verdict follows from the pairs that they cover.
    """
    silent = kernel.limit_of(dtype, EXTREME) is None
    rows = [each for each in ROW_REGIMES if not (silent and each == LEAST)]
    recipes = (*rows, *own_recipes(kernel.op), *endless_recipes(kernel, dtype))
    return tuple(sorted(recipes, key=lambda each: silent and each in rows and class_of_recipe(each) == EXTREME))


def endless_recipes(kernel: Kernel, dtype: str) -> tuple[str, ...]:
    """Returns the recipe of infinities of an op, if an operand may have them."""
    largest, op = kernel.largest.get(dtype), kernel.op
    names = {e.name for e in _numbers(op) if e.domain is None and up_to(largest, e.name) == math.inf}
    if names.intersection(op.normalised) and op.gate != "plain":
        return (MASKED,)
    return (NOT_FINITE,) if names and op.geometry.named and not adds_up(op) else ()


def has_numbers(op: Op) -> bool:
    """True if an operand holds real numbers that are drawn."""
    return bool(_numbers(op))


def _numbers(op: Op) -> list[Operand]:
    return [each for each in op.operands if each.role == "data" and each.range is None and each.derive is None]


def chosen_case(kernel: Kernel, dtype: str, chosen: Chosen, seed: int) -> Case:
    """Returns the case of some choices. No kernel promises a gradient of NaN or infinities."""
    recipe, (name, _, layout) = chosen.others["recipe"], chosen.others.get("layout", "").partition(" ")
    return case_of(
        kernel, dtype, dims=fitted(kernel, chosen.dims), fill=recipe, regime=recipe, seed=seed,
        only=chosen.others.get("only", ""), layouts={name: layout} if layout else {},
        upstream="normal" if kernel.differentiable and recipe not in ENDLESS else "", largest=kernel.largest.get(dtype),
    )  # fmt: skip


def covering(
    kernel: Kernel, others: Mapping[str, Sequence[str]], effort: CaseEffort, rounds: int, *, first: int = 0
) -> Covering:
    """Returns cases of a kernel that cover pairs of size classes and of the levels of other factors.

    The first of the other factors is the recipe of values, and the first level of each is the plain one. A round has a
    case for each recipe and some more; in the very first one, recipes of `own_recipes` are for all operands, which are
    contiguous. first: number of rounds before these, whose pairs are covered already.

    A declaration with examples has no sizes to choose.
    """
    sizes = _Sizes(kernel, effort)
    factors = [*(tuple(each) for each in sizes.classes), *(tuple(levels) for levels in others.values())]
    return _Greedy(sizes, factors, list(others)).covering(first, rounds)


def own_recipes(op: Op) -> tuple[str, ...]:
    """Returns recipes for one PyTorch function: rows of zeros, domains and integers at a bound, numbers near its small
    constants.
    """
    if not op.geometry.named:
        return ()
    whole = any(each.range is not None and not each.range.structure for each in op.operands)
    bounded = tuple(
        name for place, name in enumerate(AT_BOUNDS) if whole or any(each.bounds[place] for each in op.domains.values())
    )
    return (ZERO_ROWS, *bounded, *(f"{NEAR}{size:g}" for size in near_constants(op)))


class _Sizes:
    """Maps size classes of the free dimensions to sizes that the declaration and the budget allow."""

    def __init__(self, kernel: Kernel, effort: CaseEffort) -> None:
        geometry = kernel.op.geometry
        self.kernel, self.effort = kernel, effort
        names = geometry.dims if geometry.named else ("m", "k", "n") if geometry.multiplies else ("m", "n")
        self.related = Related.by(names, geometry.where if geometry.named else "")
        # False: a size may shrink another one, as in "s - t"
        self.grows = geometry.named and not self.related.expressions and not any(map(geometry.within_expression, names))  # type: ignore[attr-defined]
        roots = [] if geometry.examples else self.related.roots
        self.classes = [self._of_root(root, place) for place, root in enumerate(roots)]
        self._found: dict[tuple[int, tuple[str, ...]], Dims | None] = {}
        self.plain = sizes_of(kernel.op, 1 << 12)[0] if geometry.named else geometry.dims_of(3, 5, 2)
        self.work = Work.of(kernel.op)
        self._places = [names.index(root) for root in self.related.roots]

    def _of_root(self, root: str, place: int) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        named = sorted(set(self.related.starts()))
        for name, sizes in CLASSES.items():
            fitting = [size for size in sizes if self.related.fits(root, size)]
            if not fitting and name in ("small", "a block", "long"):
                low, high = {"small": (2, 1 << 17), "a block": (16, 256), "long": (257, 4096)}[name]
                fitting = [size for size in named if low <= size <= high and self.related.fits(root, size)][:3]
            if fitting:
                turn = place % len(fitting) if name == "small" else 0  # dimensions differ, so none passes for another
                found[name] = (*fitting[turn:], *fitting[:turn])
        return found or {"small": (self.kernel.op.geometry.sizes_by_name(self.plain)[root],)}

    def join(self, a: int, b: int) -> bool:
        """True if some tensor has the dimensions of both places in `classes`."""
        return self.work.joins(self._places[a], self._places[b])

    def dims(self, chosen: Sequence[str], work: int) -> Dims | None:
        """Returns sizes of these classes, in the order of the free dimensions; None if none are within the budget."""
        key = work, tuple(chosen)
        if key not in self._found:
            menus = [each[name] for each, name in zip(self.classes, chosen, strict=True)]
            deepest = max(map(len, menus), default=0)
            if self.grows and menus and not self._within(self._dims_of([*map(min, menus)]), work):
                deepest = 0  # most combinations are too large, and their least sizes show it
            tried = dict.fromkeys(
                tuple(menu[min(depth + (place == one), len(menu) - 1)] for place, menu in enumerate(menus))
                for depth in range(deepest)
                for one in range(-1, len(menus))
            )
            self._found[key] = next(filter(None, (self._allowed(sizes, work) for sizes in tried)), None)
        return self._found[key]

    def _allowed(self, sizes: Sequence[int], work: int) -> Dims | None:
        dims = self._dims_of(sizes)
        return dims if min(dims, default=0) > 0 and self.kernel.allows(dims) and self._within(dims, work) else None

    def _dims_of(self, sizes: Sequence[int]) -> Dims:
        return self.related.dims(dict(zip(self.related.roots, sizes, strict=True)))

    def _within(self, dims: Dims, work: int) -> bool:
        """True if sizes are within the budget."""
        if self.work.at(dims) > work:
            return False
        shapes = self.kernel.op.shapes(dims, self.kernel.op.params).values()
        return max(map(math.prod, shapes), default=0) <= self.effort.elements


def empty_sizes(kernel: Kernel) -> tuple[Dims, ...]:
    """Returns sizes with one empty dimension that the declaration and PyTorch allow. Its `amax` refuses empty rows.

    A product over an empty dimension is zero. Without rows, a result has no element.
    """
    geometry = kernel.op.geometry
    if geometry.examples or not geometry.named:  # the law of shapes has these of the other ops
        return ()
    related = Related.by(geometry.dims, geometry.where)
    plain = geometry.sizes_by_name(sizes_of(kernel.op, 1 << 12)[0])
    found = []
    for root in related.roots:
        with suppress(ZeroDivisionError):
            dims = related.dims({**{each: plain[each] for each in related.roots}, root: 0})
            found += [dims] if kernel.allows(dims) and min(dims) == 0 and _answers(kernel, dims) else []
    return tuple(dict.fromkeys(found))


def _answers(kernel: Kernel, dims: Dims) -> bool:
    """True if PyTorch and the reference accept a case of these sizes."""
    with suppress(Exception):
        case = case_of(kernel, "float32", dims=dims, upstream="")
        params = kernel.op.resolve(case.params)
        inputs = inputs_of(kernel.op, case, "cpu")
        kernel.op.baseline(*inputs.values(), **params)
        kernel.op.fast(Problem(inputs, params, {}, kernel.op.outputs))
        return True
    return False


@dataclass
class _Greedy:
    """Chooses cases one after the other. Each begins with a pair that is not covered, and covers as many as it can."""

    sizes: _Sizes
    factors: list[tuple[str, ...]]  # the levels of each factor: classes of dimensions, then the others
    names: list[str]
    used: dict[Choice, int] = field(default_factory=dict)
    judged: set[Choice] = field(default_factory=set)

    def covering(self, first: int, rounds: int) -> Covering:
        recipe, open_pairs, cases = len(self.sizes.classes), self._pairs(), list[Chosen]()
        existing = len(open_pairs)
        for number, fixed in self._turns(first + rounds):
            levels = dict([*fixed, *self._seed(fixed, open_pairs)])
            if len(levels) == 1 and number > first:
                continue  # all pairs of this recipe are covered
            for place in [place for place in range(len(self.factors)) if place not in levels]:
                every = range(len(self.factors[place]))
                fitting = [level for level in every if self._dims({**levels, place: level}) is not None]
                gains = {level: self._gain(levels, (place, level), open_pairs) for level in fitting}
                levels[place] = max(fitting, key=gains.__getitem__, default=0)
            for pair in combinations(sorted(levels.items()), 2):
                open_pairs.pop(pair, None)
            for choice in levels.items():
                self.used[choice] = self.used.get(choice, 0) + 1
            if class_of_recipe(self._level((recipe, levels[recipe]))) != EXTREME:
                self.judged |= set(levels.items())
            cases += [self._chosen(levels)] if number >= first else []
        return Covering(tuple(cases), existing - len(open_pairs), existing)

    def _turns(self, rounds: int) -> Iterator[tuple[int, Sequence[Choice]]]:
        """Yields the number of the round and the fixed choices of each case.

        In each round the plain recipe has another turn, as only its cases may have two long dimensions.
        """
        recipe = len(self.sizes.classes)
        plain = [(recipe + at, 0) for at, name in enumerate(self.names) if name in ("only", "layout")]
        for number in range(rounds):
            for level, name in enumerate(self.factors[recipe]):
                own = name not in ROW_REGIMES  # of the definition: its constants, bounds, infinities
                # an expanded operand has one row of it
                yield number, [(recipe, level), *(plain if number == 0 and own else ())]
            yield number, [(recipe, 0)]
            while number == 0 and (size := self._unjudged()):
                yield number, [(recipe, 0), size]

    def _unjudged(self) -> Choice | None:
        """Returns a size class that no case has with a verdict: often nothing is promised at extreme inputs."""
        for place, classes in enumerate(self.sizes.classes):
            for level in range(1, len(classes)):  # the first is that of the plainest sizes
                if (place, level) not in self.judged and self._dims({place: level}) is not None:
                    return place, level
        return None

    def _seed(self, fixed: Sequence[Choice], open_pairs: Mapping[tuple[Choice, Choice], int]) -> Sequence[Choice]:
        """Returns the pair of the highest rank that a case with fixed choices can cover, of little used choices."""
        known = dict(fixed)
        fitting = [pair for pair in open_pairs if all(known.get(place, level) == level for place, level in pair)]
        for pair in sorted(fitting, key=lambda pair: sum(self.used.get(each, 0) for each in pair) - open_pairs[pair]):
            if self._dims({**known, **dict(pair)}) is not None:
                return pair
        return ()

    def _pairs(self) -> dict[tuple[Choice, Choice], int]:
        """Maps each pair that some case within the budget has to its rank. Pairs of two plain choices come last."""
        count = len(self.sizes.classes)
        choices = [[(place, level) for level in range(len(levels))] for place, levels in enumerate(self.factors)]
        pairs = [(a, b) for one, other in combinations(choices, 2) for a in one for b in other]
        found = {(a, b): self._rank(a) + self._rank(b) for a, b in pairs if self._dims(dict([a, b])) is not None}
        for a, b in found:
            if b[0] < count:  # two dimensions: equal ones first, and last those that no tensor has both
                found[a, b] += (self._level(a) == self._level(b)) - 4 * (not self.sizes.join(a[0], b[0]))
        return found

    def _level(self, choice: Choice) -> str:
        return self.factors[choice[0]][choice[1]]

    def _rank(self, choice: Choice) -> int:
        return _RANKS.get(self._level(choice), 0) + bool(choice[1])

    def _gain(
        self, levels: Mapping[int, int], choice: Choice, pairs: Mapping[tuple[Choice, Choice], int]
    ) -> tuple[int, int, int]:
        new = sum((min(each, choice), max(each, choice)) in pairs for each in levels.items())
        return new, -self.used.get(choice, 0), -choice[1]

    def _dims(self, levels: Mapping[int, int]) -> Dims | None:
        """Returns the sizes of some choices; None if none fit. Other dimensions have their plainest class."""
        count, effort = len(self.sizes.classes), self.sizes.effort
        classes = [self.factors[place][levels.get(place, 0)] for place in range(count)]
        return self.sizes.dims(classes, effort.demanding if levels.get(count) else effort.work)

    def _chosen(self, levels: Mapping[int, int]) -> Chosen:
        dims, count = self._dims(levels), len(self.sizes.classes)
        dims = self.sizes.plain if dims is None else dims
        return Chosen(dims, {name: self.factors[at][levels[at]] for at, name in enumerate(self.names, count)})
