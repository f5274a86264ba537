"""Makes an `Op` from a PyTorch function, for `@verify.kernel(like=...)`.

The function's program (`verify.ops.graph.program`) gives the exact values and the fast reference. Autograd gives the
gradients. If the program adds terms up, errors are measured in units of its noise (`verify.ops.graph.noise`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from verify.errors import UsageError, said_by
from verify.ops.geometry import Elementwise, Shape
from verify.ops.graph.called import Callee, moved_module, name_of
from verify.ops.graph.choices import Choices
from verify.ops.graph.derived import Derivation, derivations
from verify.ops.graph.explaining import explaining, slopes_of
from verify.ops.graph.noise import Noise, noise_of, sampled_again, underflowing
from verify.ops.graph.program import Program, names_of, run_of, tensors_of_call, trace, undisturbed
from verify.ops.graph.reducing import Contract
from verify.ops.graph.regions import Regions, regions_of
from verify.ops.graph.relative import RelativeRms
from verify.ops.graph.rounding import Accumulate, Rounding
from verify.ops.graph.scores import normalised, scores_of
from verify.ops.graph.shapes import NamedDims, Range, ranges_of, sizes_within
from verify.ops.graph.single import ElementEvaluator, Shared, limits_of
from verify.ops.graph.slices import Cut
from verify.ops.graph.steps import Leaf, Run, Step
from verify.ops.op import Fast, Kept, Landmarks, Meaning, Op, Operand, Point, Problem

_OPEN = (256, 32)  # most unbounded elements of a result that Arb evaluates: elementwise programs, others
_WHOLE = 3 << 20  # most step elements of a program of which Arb evaluates every element that float64 does not know
_TERMS = 32  # terms of an inner product that cost as much as a step element
_SMALL = 2.0**-30  # a bound up to this part of the largest value means float64's own roundings
_KINDS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)  # tried in this order
Kinds = Mapping[str, torch.dtype]  # operand -> its dtype
_HOLDS = 128  # most programs kept, one for each set of shapes: they have no numbers, and 30 steps take 0.1 MB


@dataclass(frozen=True)
class Definition:
    """A declaration with like=: the PyTorch function or module, and the options of `verify.kernel` by their names."""

    function: Callable[..., Any]
    names: Sequence[str]  # the operands in the order of the kernel's arguments
    _: KW_ONLY
    shapes: Mapping[str, str] | None = None
    where: str = ""
    integers: Mapping[str, str] | None = None
    valid: Mapping[str, str] | None = None
    examples: Any = None
    outputs: Sequence[str] | None = None
    name: str = ""
    accumulate: Accumulate = "float32"
    intermediate: str = ""
    ties: str = ""
    derive: Mapping[str, Any] | None = None
    hidden: Sequence[str] = ()  # operands that the kernel does not receive; others are derived from them
    seeds: Sequence[str] = ()  # operands that the function need not take
    optional: Sequence[str] = ()  # operands that may be None
    shown: Mapping[str, Callable[..., Tensor]] = field(default_factory=dict)  # what reports show of operands

    def op(self) -> Op:
        """Traces the function once and returns its op."""
        derived = derivations(self.derive, self.names)
        loose = {*self.hidden, *self.seeds, *derived, *(each for one in derived.values() for each in one.takes)}
        callee = Callee(self.function, tuple(self.names), self.name or name_of(self.function), frozenset(loose))
        given, callee.fixed = _examples(callee, self.examples)
        parameters = {name: tuple(callee.held(name).shape) for name in callee.parameters}
        table = NamedDims.made(callee.names, parameters, self.shapes, given, self.where)
        ranges = ranges_of([each for each in callee.names if each not in derived], self.integers or {}, table, given)
        table = table and table.with_ranges(ranges)
        sources = {*derived, *(each for one in derived.values() for each in one.takes)}
        regions = regions_of(self.valid, table, ranges, sources)
        return Like(self, callee, table, ranges, derived, ties=self.ties, regions=regions).op()


def _examples(callee: Callee, examples: Any) -> tuple[list[dict[str, Any]], dict[int, Any]]:
    """Reads examples=.

    Returns, for each example, a tensor for each operand that is no parameter of the module. Also returns the arguments
    that are no tensors, by position. Raises UsageError if these differ between examples, or if a tensor is missing.
    """
    if examples is None:
        return [], {}
    try:
        found = examples() if callable(examples) else examples
        found = [found] if isinstance(found, Tensor | Mapping) else list(found)
    except Exception as error:
        raise UsageError(
            f"examples= is a list of the kernel's tensors, or a function that returns it; received {examples!r}: "
            f"{type(error).__name__}: {said_by(error)}",
            hint="examples=[(x, weight), ...] in the order of the kernel's arguments",
        ) from error
    if found and not isinstance(found[0], tuple | list | Mapping):
        found = [found]
    own = [name for name in callee.names if name not in callee.parameters]
    listed, fixed = [], []
    for each in found:
        if isinstance(each, Mapping):
            each = [each[name] for name in own] if set(own) == set(each) else each.values()
        values = list(each) if isinstance(each, Iterable) and not isinstance(each, Tensor) else [each]
        tensors = [value for value in values if isinstance(value, Tensor)]
        fixed.append({place: value for place, value in enumerate(values) if not isinstance(value, Tensor)})
        named = [name for place, name in enumerate(own) if place in fixed[-1]]
        if named and len(values) == len(own):
            arguments = ", ".join(f"{name}={fixed[-1][own.index(name)]!r}" for name in named)
            raise UsageError(
                f"the kernel's operands are tensors; an example has {arguments}",
                hint=f"a default of the kernel's argument fixes it: def kernel(..., {arguments})",
            )
        if len(tensors) != len(own):
            raise UsageError(
                f"an example has a tensor for each operand, {', '.join(own)}; received {len(tensors)} of them",
                hint="examples=[(x, weight), ...] in the order of the kernel's arguments",
            )
        listed.append(dict(zip(own, tensors, strict=True)))
    if any(each != fixed[0] for each in fixed):
        raise UsageError(
            "arguments that are no tensors have the same values in all examples; the examples differ",
            hint="declare the kernel once for each value, as examples=[(x, 3.0)]",
        )
    return listed, fixed[0] if fixed else {}


# -- the op -----------------------------------------------------------------------------------------------


@dataclass
class Like(Meaning):
    """The meaning of an op with like=: traces its function for given shapes and evaluates the programs."""

    definition: Definition
    callee: Callee
    shapes: NamedDims | None  # None: elementwise
    ranges: dict[str, Range]
    derived: Mapping[str, Derivation]
    programs: dict[Any, Program] = field(default_factory=dict, repr=False)
    identities: dict[Any, str] = field(default_factory=dict, repr=False)  # each result of a run asks for all again
    by_noise: bool = False  # True: errors are measured in units of the program's noise
    ties: str = ""  # see `Meaning`
    fused: bool = False  # True: no result between operators is rounded to 16 bits
    codes: bool = False  # True: none that decides which integer an output is
    kind: torch.dtype = torch.float32  # dtype of operands while there is no case
    smooth: tuple[str, ...] = ()  # the operands that the function has a gradient for
    regions: Regions | None = None  # the parts of results and operands that count
    part: tuple[Program, Run] | None = None  # replaces the program; see `of_part`
    promised: Mapping[str, RelativeRms] = field(default_factory=dict)  # results whose unit is a share of their row

    def op(self) -> Op:
        """Traces the function once and returns the op.

        Unless intermediate= says where, a program that calls `verify.rounds` or whose results are rounded to integers
        rounds to 16 bits nowhere else.
        """
        names = self.callee.names
        dims = self._small_dims()
        shapes = self._shapes(dims)
        integers = self._possible_integers(shapes)
        program = self._first_program(shapes)
        outputs = tuple(self.definition.outputs or program.results)
        if self.regions is not None and self.shapes is not None:
            self.regions.demand_shapes(self.shapes, dims, {name: program.results[name].shape for name in outputs})
        elementwise = self.shapes is None
        if elementwise and not program.elementwise:
            raise UsageError(
                f"like={self.callee.name} is not elementwise, so verify needs the shapes of its operands",
                hint="shapes={" + ", ".join(f"{name!r}: 'n d'" for name in names) + "}, or examples=[(tensor, ...)]",
            )
        smooth = [name for name in program.results if name not in program.integers]
        known = self.smooth = self._differentiable(shapes) if smooth else ()
        whole = self._program(shapes, known) if known else program
        unsummed = tuple(name for name, step in whole.results.items() if step.real and not whole.sums([name]))
        sums = whole.sums(list(whole.results))
        if not sums:
            with suppress(UsageError):  # in 16 bits, a program may have a result in a wider dtype
                narrow = self._program(shapes, (), torch.bfloat16)
                sums = narrow.sums(list(narrow.results))
        self.by_noise = sums
        told = self.definition.intermediate
        self.fused = told == "float32" or (not told and program.rounds)
        self.codes = not told and program.quantises
        return Op(
            label=f"like {self.callee.name}",
            geometry=Elementwise() if self.shapes is None else replace(self.shapes, of_results=self._result_shapes),
            operands=tuple(self._operand(name, shapes[name], name in known) for name in names),
            outputs=outputs,
            meaning=self,
            baseline=self._baseline,
            gate="noise" if sums else "plain",
            unsummed=unsummed if sums else (),
            landmarks=Landmarks(of=names[-1]),
            summary=f"what PyTorch's {self.callee.name} denotes",
            integers=program.integers,
            definition=self.callee.source,
            regions=self.regions,
            scores=scores_of(program, integers),
            normalised=normalised(program),
        )

    def _first_program(self, shapes: Mapping[str, Shape]) -> Program:
        """Returns the program in the first dtype of `_KINDS` that the function accepts, and sets `kind` to it."""
        refusals = []
        for self.kind in _KINDS:
            try:
                return self._program(shapes, ())
            except UsageError as error:
                refusals.append(error)
        raise refusals[0]

    def _differentiable(self, shapes: Mapping[str, Shape]) -> tuple[str, ...]:
        """Returns the operands that the function has a gradient for, which PyTorch may lack for some.

        For instance, its cross entropy has no gradient for the weights of the classes.
        """

        def followed(wanted: tuple[str, ...]) -> bool:
            with suppress(UsageError):
                return bool(self._program(shapes, wanted))
            return False

        left_out = {*self.ranges, *self.derived, *self.definition.hidden}
        wanted = tuple(name for name in self.callee.names if name not in left_out)
        return wanted if followed(wanted) else tuple(name for name in wanted if followed((name,)))

    def named(self, label: str) -> str:
        """Returns the label with a digest of the declaration, and of the function for small sizes.

        If the function reads the dtypes of its operands, it has a digest for each dtype, and they are joined.
        """
        dims = self._small_dims()
        shapes, found = self._shapes(dims), []
        derived = [*self._derived(shapes, {name: self._dtype(name) for name in shapes})]
        outputs = tuple(self.definition.outputs or self._program(shapes, ()).results)
        for wanted in dict.fromkeys(((), self.smooth)):
            first = self._program(shapes, wanted)
            found.append(first.digest)
            for kind in _KINDS if first.typed else ():
                with suppress(UsageError):  # the function takes no operands of this type
                    found.append(self._program(shapes, wanted, kind).digest)
        declared = f"{self.shapes!r} {sorted(self.ranges.items())} {outputs} {''.join(found + derived)}{self.ties}"
        return f"{label} {hashlib.sha256(declared.encode()).hexdigest()[:8]}"

    def identity(self, dims: Shape, kinds: Kinds, *, gradients: bool) -> str:
        """Returns a digest of the function as traced for these sizes and dtypes: all steps and constants."""
        key = (dims, tuple(kinds.items()), gradients)
        if key not in self.identities:
            shapes = self._shapes(dims)
            traced = self._program(shapes, self.smooth if gradients else (), kinds).digest
            self.identities[key] = "".join([traced, *self._derived(shapes, kinds)])
        return self.identities[key]

    def _derived(self, shapes: Mapping[str, Shape], kinds: Kinds) -> Iterator[str]:
        """Yields a digest of each function of derive=."""
        sources = {name: (shape, kinds[name]) for name, shape in shapes.items()}
        return (each.identity(sources) for each in self.derived.values())

    def _possible_integers(self, shapes: Mapping[str, Shape]) -> dict[str, Tensor]:
        """Returns integers that the structures of operands allow, and adds the range of each derived integer operand.

        Calls each function of derive= once.
        """
        # without derive= only these: zeros of the shape of an example may be gigabytes
        kept = [name for name in shapes if self.derived or getattr(self.ranges.get(name), "structure", None)]
        given = {name: self._sample(name, shapes, self._dtype(name, torch.float64)) for name in kept}
        for name, each in self.derived.items():
            made = each.kind(given)
            given[name] = made
            if not made.is_floating_point():
                self.ranges[name] = Range.of(made.dtype)
        return {name: value for name, value in given.items() if not value.is_floating_point()}

    def _operand(self, name: str, shape: Shape, smooth: bool) -> Operand:
        """Returns an operand with its role, which depends on its name and on the module's parameters."""
        own = self.definition
        kept: Any = {"derive": self.derived.get(name), "hidden": name in own.hidden, "shown": own.shown.get(name)}
        kept["optional"] = name in own.optional
        if name in self.ranges:
            given = self.ranges[name]
            return Operand(name, "integer", differentiable=False, range=given, boolean=given.boolean, **kept)
        role = "data"
        if name in self.callee.parameters or any(word in name for word in ("weight", "bias", "gamma", "beta")):
            role = "matrix" if len(shape) > 1 else "shift" if "bias" in name or "beta" in name else "scale"
        return Operand(name, role, differentiable=smooth, **kept)  # type: ignore[arg-type]

    def _small_dims(self) -> Shape:
        """Returns small sizes that the declaration allows. Raises UsageError if it finds none."""
        if self.shapes is None:
            return (2, 3)
        if self.shapes.numbered:
            return (0,)
        count = len(self.shapes.dims)
        for dims in sizes_within(self.shapes, 256):
            return dims
        raise UsageError(
            f"where={self.shapes.where!r} allows none of the sizes up to 65,536 that verify tries",
            hint=f"test the expression with your own {count} sizes",
        )

    def _shapes(self, dims: Shape) -> dict[str, Shape]:
        """Maps the operands to their shapes, in the order in which the function takes them."""
        known = {} if self.shapes is None else self.shapes(dims)
        return {name: known.get(name, tuple(dims)) for name in self.callee.names}

    def outputs_of(self, given: Mapping[str, Tensor]) -> dict[str, tuple[Shape, torch.dtype]]:
        """Returns the shape of each output for some operands, and the dtype that the function returns it in."""
        shapes = {name: tuple(value.shape) for name, value in given.items()}
        program = self._program(shapes, (), {name: self._dtype(name, value.dtype) for name, value in given.items()})
        return {name: (program.results[name].shape, kind) for name, kind in program.kinds.items()}

    def _result_shapes(self, dims: Shape) -> dict[str, Shape]:
        return {name: step.shape for name, step in self._program(self._shapes(dims), ()).results.items()}

    def _baseline(self, *operands: Tensor | None, **params: Any) -> Any:
        present = {n: value for n, value in zip(self.callee.names, operands, strict=True) if value is not None}
        made = self._called(self._function_on(list(present.values())), tuple(present), list(present.values()))
        return tuple(made.values()) if isinstance(made, Mapping) else made

    def _called(self, callee: Callee, present: Sequence[str], values: Sequence[Tensor]) -> Any:
        """Calls the function for the parts of operands that count, and returns these parts of its results."""
        if self.regions is None:
            return callee(present, values)
        given = dict(zip(present, values, strict=True))
        inner = list(self.regions.zeroed(given).values())
        made = tensors_of_call(lambda *values: callee(present, values), inner)
        labels = list(self.definition.outputs or names_of(len(made)))
        return list(self.regions.cut(dict(zip(labels, made, strict=True)), given).values())

    def _function_on(self, values: Sequence[Tensor]) -> Callee:
        """Returns the function for operands of these dtypes on this device. A module is copied to them."""
        callee = self.callee
        if callee.module is None:
            return callee
        kind = next((value.dtype for value in values if value.is_floating_point()), torch.float32)
        module = moved_module(callee.module, kind, values[0].device)
        moved = Callee(module, callee.names, callee.name, callee.loose, callee.fixed)
        moved.__dict__["module"] = module
        return moved

    def _program(
        self, shapes: Mapping[str, Shape], gradients: Sequence[str], kinds: Kinds | torch.dtype | None = None
    ) -> Program:
        """Traces the function for these shapes, or returns the program that it traced before.

        `kinds` are the dtypes of the operands, or one for all floating-point operands.
        """
        kinds = kinds if isinstance(kinds, Mapping) else {name: self._dtype(name, kinds) for name in shapes}
        key = (tuple(shapes.items()), tuple(gradients))
        plain = all(kind == torch.float32 or not kind.is_floating_point for kind in kinds.values())
        for known in ((*key, tuple(kinds.items())), *([key] if plain else [])):
            if known in self.programs:
                return self.programs[known]
        if len(self.programs) >= _HOLDS:
            self.programs.pop(next(iter(self.programs)))
        program = trace(
            lambda *values: self._called(self.callee, tuple(shapes), values),
            {name: self._traceable(name, shapes, kinds[name]) for name in shapes},
            outputs=self.definition.outputs,
            differentiable=gradients,
        )
        self.programs[key if plain and not program.typed else (*key, tuple(kinds.items()))] = program
        return program

    def _traceable(self, operand: str, shapes: Mapping[str, Shape], dtype: torch.dtype) -> Tensor:
        """Returns an operand to trace the function with: without numbers, unless the operand has a structure."""
        known = self.ranges.get(operand)
        if known is None or not known.structure:
            return torch.empty(shapes[operand], dtype=dtype, device="meta")
        return self._sample(operand, shapes, dtype)

    def _sample(self, operand: str, shapes: Mapping[str, Shape], dtype: torch.dtype) -> Tensor:
        """Returns zeros, changed as little as the range and the structure of the operand demand."""
        zeros, known = torch.zeros(shapes[operand], dtype=dtype), self.ranges.get(operand)
        if known is None or known.boolean or self.shapes is None:
            return zeros
        low, high = known(dims := self.shapes.dims_of_shapes(shapes))
        return known.arranged(zeros.clamp(low, high - 1), dims)

    def _dtype(self, operand: str, kind: torch.dtype | None = None) -> torch.dtype:
        if operand not in self.ranges:
            return self.kind if kind is None else kind
        return torch.bool if self.ranges[operand].boolean else torch.int64

    def program(self, problem: Problem) -> tuple[Program, Run]:
        """Returns the program of a problem, and a run with its tensors and with the decisions taken so far."""
        if self.part is not None:
            return self.part[0], replace(self.part[1], decisions=problem.kept.decisions, maps={})
        problem.kept.belong_to(self.callee)
        present = {name: value for name, value in problem.inputs.items() if value is not None}
        wanted = self._gradients(problem) if problem.upstream else []
        gradients = tuple(name for name in present if "d" + name in wanted)
        # kept with the decisions, which belong to its steps
        programs = problem.kept.programs
        if gradients not in programs:
            kinds = {name: value.dtype for name, value in present.items()}
            shapes = {name: tuple(value.shape) for name, value in present.items()}
            programs[gradients] = self._program(shapes, gradients, kinds)
        program: Program = programs[gradients]
        return program, replace(run_of(program, problem), decisions=problem.kept.decisions, totals=problem.kept.totals)

    def fast(self, problem: Problem) -> dict[str, Fast]:
        """Returns the float64 reference of each result, with the noise if errors are measured by it.

        Keeps with the problem the choices that a kernel has.
        """
        program, run = self.program(problem)
        with torch.no_grad(), program.refusing():
            noise: dict[str, Noise] = {}
            if self.by_noise or program.decides:
                rounding = self._rounding(program, run)
                noise, reach = noise_of(program, run, problem.results, rounding)
                if self.codes and rounding.stored:
                    rounding = replace(rounding, stored={})
                    _, reach = noise_of(program, run, problem.results, rounding)
            if program.decides and problem.kept.choices is None:
                deviations = {name: each.deviation for name, each in noise.items()}
                choices = Choices.of(program, run, problem.results, reach, deviations, pinned=bool(self.ties))
                turned = [] if choices is None else choices.turned()
                others = [noise_of(program, each, problem.results, rounding)[1] for each in turned]
                problem.kept.choices = [] if choices is None else [choices.reaching(others)]
            spans = program.spans(run, problem.results)
        found = {name: Fast.within(span) for name, span in spans.items()}
        if self.by_noise:
            for name, each in noise.items():
                found[name] = replace(found[name], noise=each.deviation, together=each.together)
        else:  # `deviation` samples it where an element is beyond its limit in ULP
            real = [name for name in found if program.results[name].real]
            found |= {name: replace(found[name], noise=torch.zeros_like(found[name].value)) for name in real}
        for name in self.promised.keys() & found.keys():
            found[name] = replace(found[name], noise=self._unit(name, found[name]))
        if program.elementwise:
            gradients = self._gradients(problem)
            for name, fast in found.items():
                fast = self._looked_up(program, run, problem, name, fast)
                fast = _at_special_operands(program, run, name, fast, gradient=name in gradients)
                found[name] = self._with_underflow(program, run, name, fast)
        return found

    def chosen(self, problem: Problem, got: Mapping[str, Tensor], calls: int | None = None) -> Problem:
        """Returns the problem with the choices at ties that explain a kernel's results best.

        They may be frequencies of draws in several `calls`.
        """
        if self.program(problem)[0].decides and problem.kept.choices is None:
            self.fast(problem)
        if not problem.kept.choices:
            return problem
        choices: Choices = problem.kept.choices[0]
        with torch.no_grad():
            decisions = explaining(choices, got, calls)
            if decisions is choices.run.decisions:
                return problem
            slopes = slopes_of(choices, decisions)
        return replace(problem, kept=replace(problem.kept, decisions=decisions, totals={}, exact={}, slopes=slopes))

    def _rounding(self, program: Program, run: Run) -> Rounding:
        stored = {} if self.fused else program.stored
        return Rounding.of(run, products=self.definition.accumulate, stored=stored)

    def deviation(self, problem: Problem, result: str) -> Tensor:
        """Returns the noise of each element of a result, from more runs than `fast` takes."""
        if result in self.promised:
            return self._unit(result, self.fast(problem)[result])
        program, run = self.program(problem)
        with torch.no_grad(), program.refusing():
            return sampled_again(program, run, result, self._rounding(program, run))

    def _unit(self, result: str, fast: Fast) -> Tensor:
        """Returns the promised error around each element. Parts of a program have no whole rows, and none is judged."""
        return torch.full_like(fast.value, math.inf) if self.part else self.promised[result].unit(fast.value)

    def of_part(self, cut: Cut) -> Like:
        """Returns the meaning of a part of a program."""
        return replace(self, part=cut.made())

    def in_place_of(self, function: Callable[..., Any], problem: Problem) -> dict[str, Tensor]:
        """Returns the float64 results of another function of the same operands, without bounds."""
        other = replace(self, callee=replace(self.callee, function=function), programs={})
        program, run = other.program(replace(problem, kept=Kept()))
        with torch.no_grad(), program.refusing():
            return program.values(run, problem.results, undisturbed(run))

    def looked_up(self, problem: Problem, result: str, fast: Fast) -> Fast:
        """Returns the reference with unbounded elements evaluated by Arb. Of an elementwise program, `fast` did it."""
        program, run = self.program(problem)
        if program.elementwise:
            return fast
        return self._with_underflow(program, run, result, self._looked_up(program, run, problem, result, fast))

    def _with_underflow(self, program: Program, run: Run, result: str, fast: Fast) -> Fast:
        """Adds NaN as a second right value where a number that underflows in its format meets an infinity."""
        given = [leaf for leaf in run.leaves.values() if leaf.is_floating_point()]
        if not program.results[result].real or not any(bool(torch.isinf(leaf.double()).any()) for leaf in given):
            return fast
        found = underflowing(program, run, result, self._rounding(program, run)).to(fast.value.device)
        nan = found & ~torch.isnan(fast.value)
        other = torch.full_like(fast.value, math.nan) if fast.other is None else fast.other
        return replace(fast, value=fast.value.masked_fill(nan, math.nan), other=torch.where(nan, fast.value, other))

    def _looked_up(self, program: Program, run: Run, problem: Problem, result: str, fast: Fast) -> Fast:
        """Replaces elements of the reference that float64 does not know by Arb's values.

        Of a program that Arb may evaluate as a whole, these are all elements with a wide bound: layer on layer,
        intervals grow until no digit is sure. Of another one, they are some unbounded elements. If Arb finds no value
        of an unbounded element either, that is marked unknown: it counts as undecided.
        """
        if not program.results[result].real:
            return fast
        wide = unbounded = torch.isinf(fast.bound)
        most, share = _OPEN[not program.elementwise], 1.0
        if wide.numel() and sum(map(_effort_of, program.needed_for([result]))) <= _WHOLE:
            known = (fast.value.abs() - fast.bound).nan_to_num(0.0, 0.0, 0.0).clamp(min=0.0)
            wide, most, share = fast.bound > known.max() * _SMALL, wide.numel(), math.inf
        places = torch.nonzero(wide.reshape(-1)).reshape(-1)[:most].tolist()
        if not places:
            return fast
        program, run, shared = self._evaluation(problem, "" if share > 1 else result)
        own = Shared(share, slices=shared.slices)
        evaluator = ElementEvaluator(program, run, result, places, own, batch=most)
        value, bound = (each.clone(memory_format=torch.contiguous_format) for each in (fast.value, fast.bound))
        free = torch.zeros(value.shape, dtype=torch.bool, device=value.device)  # a gradient may lie transposed
        found = [evaluator.enclosed(n) for n in range(len(places))]
        free.view(-1)[[place for place, known in zip(places, found, strict=True) if known is None]] = True
        free &= unbounded  # another element keeps its interval
        value, bound = value.masked_fill(free, math.nan), bound.masked_fill(free, 0.0)
        at = [place for place, known in zip(places, found, strict=True) if known is not None]
        for each, numbers in zip((value, bound), zip(*filter(None, found), strict=True), strict=False):
            each.view(-1)[at] = torch.tensor(numbers, dtype=each.dtype, device=each.device)
        return replace(fast, value=value, bound=bound, unknown=free if bool(free.any()) else None)

    def _gradients(self, problem: Problem) -> list[str]:
        """Returns the results that are gradients of operands."""
        return [name for name in problem.results if name.startswith("d") and name[1:] in problem.inputs]

    def points(self, problem: Problem, result: str, indices: Sequence[int]) -> list[Point]:
        """Returns the exact values of single elements; see `verify.ops.graph.single`."""
        program, run, shared = self._evaluation(problem, result if problem.is_long else "")
        evaluator = ElementEvaluator(program, run, result, list(indices), shared)
        return [evaluator.point(place) for place in range(len(evaluator.indices))]

    def _evaluation(self, problem: Problem, alone: str) -> tuple[Program, Run, Shared]:
        """Returns the program of a problem, a run, and the cache and budget of its exact values.

        A result that is evaluated `alone` shares neither. So whether an element of a long problem is refused does not
        depend on the other results that were requested.
        """
        key = (problem.results, alone)
        problem.kept.belong_to(self.callee)
        held = problem.kept.exact.get(key)
        if held is None or held[0] is not problem.inputs or held[1] is not problem.upstream:
            shared = Shared(problem.kept.effort, problem.kept.first)
            held = problem.kept.exact[key] = (problem.inputs, problem.upstream, *self.program(problem), shared)
        program, run, shared = held[2:]
        return program, run, shared


def _effort_of(step: Step) -> float:
    """Returns what all exact elements of a step cost, in step elements: a term of an inner product costs a part."""
    terms = step.inputs[0].shape[-1] if isinstance(step, Contract) else 0
    return math.prod(step.shape) * (1 + terms / _TERMS)


def _at_special_operands(program: Program, run: Run, result: str, fast: Fast, *, gradient: bool) -> Fast:
    """Adds a second right value where IEEE arithmetic has NaN, as Python's `-inf * 0` has.

    Where one operand is infinite, that is the limit there. A gradient at NaN may be NaN or the program's value.
    """
    used = [run.leaves[step.name] for step in program.steps if isinstance(step, Leaf)]
    # PyTorch asks nothing of 8-bit numbers
    given = [value.double().expand(fast.value.shape) for value in used if value.is_floating_point()]
    if not given or not program.results[result].real:
        return fast
    nan = torch.stack([torch.isnan(value) for value in given]).any(0)
    infinite = torch.stack([torch.isinf(value) for value in given]).sum(0)
    number = nan & ~torch.isnan(fast.value) if gradient else torch.zeros_like(nan)
    open_ = (infinite == 1) & ~nan & torch.isnan(fast.value)
    places = torch.nonzero(open_.reshape(-1)).reshape(-1)[: _OPEN[0]].tolist()
    if not places and not bool(number.any()):
        return fast
    other = torch.full_like(fast.value, math.nan) if fast.other is None else fast.other
    other = torch.where(number, fast.value, other).contiguous()
    limits = limits_of(program, run, result, places) if places else []
    other.view(-1)[places] = torch.tensor(limits, dtype=other.dtype, device=other.device)
    return replace(fast, value=fast.value.masked_fill(number, math.nan), other=other)
