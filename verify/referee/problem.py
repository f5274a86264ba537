"""Problems: a reference, the arguments of its calls, and the way to call a solution. Formats make these.

    problems_of(reference, calls, Entry(names=("solve",), arguments={}))

`declared` makes the kernels that verify judges: `like=` is the reference, and the function calls a solution in another
process. This module runs in the process that imports the reference. It never imports a solution.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.func import functional_call

from verify.cases import structure
from verify.cases.values import RECIPES_OF_PROFILES, SMALL
from verify.declare.declaration import Kernel, kernel
from verify.errors import KernelError, Refused, UsageError
from verify.measure.tensors import form_of
from verify.referee.host import Host, SolutionProcess
from verify.referee.messages import Build, Entry, Template, Tensors, results_in, template_of, value_of
from verify.referee.plan import AS_THE_MODEL, OTHER, OWN, SAYS_NOTHING, Plan
from verify.truth import formats
from verify.truth.ulp import same_bits
from verify.workers.phases import phase
from verify.workers.sandbox import starter
from verify.workers.sandbox.confine import Limits, folders_to_read

OWN_TIMES = 4.0  # an own model fails a tolerance if so many times its rounding does: a right solution may have as much
OTHER_SIZES = (1, 7)  # more rows than an example has
OTHER_SEED = 3_951_708_426_131  # which no problem has: with a usual one its own inputs would be drawn again
SAMPLED = 1 << 22  # elements of arguments; with more of them one sample shows their structure
OTHER_WEIGHTS = 977  # added to the seed of weights for calls that are not judged
SEEDS = 3  # cases of each recipe if the arguments are small, so that rare mistakes show


@dataclass(frozen=True)
class Problem:
    """Holds a reference and calls of it.

    like: the reference, a function or module; the kernel if the problem is a declaration.
    operands: the names of its tensors.
    entry: how to call a solution.
    examples: the arguments of each call, as `verify.kernel` takes them.
    tensors: the tensors of the first example, by operand.
    state: maps operands that belong to a module's state to their names there.
    made: tensors among the arguments with which a solution's module is made (`entry.init`).
    check: the problem's own check of the results for `tensors`; `rule` is its name.
    of_seed: True if a module has its weights by a seed, because it has other names than the reference.
    samples: more tensors of such calls, by operand. A structure that all of them have is the problem's.
    device: where the tensors are and the reference is called; see `placed`.
    """

    name: str
    like: Any
    operands: tuple[str, ...]
    entry: Entry
    examples: tuple[Any, ...] = ()
    tensors: Tensors = field(default_factory=dict)
    state: Mapping[str, str] = field(default_factory=dict)
    made: Tensors = field(default_factory=dict)
    check: Callable[[Problem, list[Tensor]], bool] | None = None
    rule: str = ""
    of_seed: bool = False
    samples: Sequence[Tensors] = ()
    device: str = "cpu"

    def placed(self, device: str) -> Problem:
        """Returns the problem on a device, if its tensors are large and no code of its own reads them."""
        small = sum(each.numel() for each in self.tensors.values()) <= SAMPLED
        if small or isinstance(self.like, Kernel) or self.check not in (None, is_close):
            return self
        try:
            tensors = {name: each.to(device) for name, each in self.tensors.items()}
            own = iter([tensors[name] for name in self.arguments])
            first = tuple(next(own) if isinstance(each, Tensor) else each for each in self.examples[0])
            samples = [{name: each.to(device) for name, each in of.items()} for of in self.samples]
            examples = (first, *self.examples[1:])  # of the others only the sizes count
            found = dataclasses.replace(self, examples=examples, tensors=tensors, samples=samples, device=device)
            return found if found.answers else self
        except Exception:  # the reference holds tensors that stay on the host, or there is too little memory
            return self

    def results(self, values: Sequence[Any]) -> list[Any]:
        """Returns the results of the reference for the arguments of one example."""
        if self.device == "cpu":
            return results_in(self.like(*values))
        tensors = (each for each in values if isinstance(each, Tensor))
        return self.reference(self.device)(dict(zip(self.arguments, tensors, strict=True)))

    @functools.cached_property
    def structures(self) -> dict[str, tuple[str, ...]]:
        """Maps each argument with a structure to the names of its structures."""
        own = {name: each for name, each in self.tensors.items() if name not in self.state}
        found = {
            name: structure.found_in([each, *(more[name] for more in self.samples if name in more)])
            for name, each in own.items()
        }
        return {name: names for name, names in found.items() if names}

    @functools.cached_property
    def answers(self) -> list[Any]:
        """Returns the results of the reference for the first example."""
        given = [each.clone() if isinstance(each, Tensor) else each for each in self.examples[0]]
        with torch.no_grad():
            found = self.results(given)
        pairs = zip(given, self.examples[0], strict=True)
        if any(isinstance(mine, Tensor) and not same_bits([mine], [own]) for mine, own in pairs):
            raise UsageError("the reference writes into its arguments: their new numbers are not judged")
        return found

    @functools.cached_property
    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Maps the names of a module's parameters to their shapes."""
        named = self.like.named_parameters() if isinstance(self.like, torch.nn.Module) else ()
        return {name: tuple(each.shape) for name, each in named}

    @property
    def layout(self) -> torch.memory_format:
        """Returns the layout in which PyTorch rounds most with its default flags: of a convolution, channels last."""
        convolves = any(self.tensors[name].ndim == 4 for name in self.state)
        return torch.channels_last if convolves else torch.contiguous_format

    @property
    def buffers(self) -> set[str]:
        """Returns the names of a module's buffers."""
        return {name for name, _ in self.like.named_buffers()} if isinstance(self.like, torch.nn.Module) else set()

    def own_verdict(self, found: list[Tensor], device: str) -> str:
        """Returns what the problem's own check says about a solution's results, and about the reference's."""
        assert self.check is not None
        try:
            passes = "passes" if self.check(self, found) else "fails"
        except Exception as error:  # the problem's own code failed, not the solution
            passes = f"raises {type(error).__name__} in"
        text = f"{passes} {self.rule} on the problem's own inputs"
        with suppress(Exception):
            if self.check(self, [torch.zeros_like(each) for each in found]):
                return text + SAYS_NOTHING
        with suppress(Exception), torch.no_grad():
            if passes == "fails" and self._fails_itself(device):
                return text + AS_THE_MODEL
        return text

    def _fails_itself(self, device: str) -> bool:
        """True if the problem's check rejects its own model with more of its rounding: by float64, or on a device."""
        assert self.check is not None
        others = self.reference("cpu", dtype=torch.float64), self.reference(device, self.layout)
        for call, place, kind in zip(others, ("cpu", device), (torch.float64, None), strict=True):
            given = {name: self.tensors[name].to(place) for name in self.arguments}
            found = call({name: each.to(kind) if each.is_floating_point() else each for name, each in given.items()})
            pairs = [
                (mine.double().cpu(), other.double().cpu()) for mine, other in zip(self.answers, found, strict=True)
            ]
            apart = [mine + OWN_TIMES * (other - mine) for mine, other in pairs]
            if not self.check(self, [each.to(mine) for each, mine in zip(apart, self.answers, strict=True)]):
                return True
        return False

    @property
    def arguments(self) -> list[str]:
        """Returns the operands that are no parameters."""
        return [name for name in self.operands if name not in self.state]

    def reference(
        self, device: str, layout: torch.memory_format = torch.contiguous_format, dtype: torch.dtype | None = None
    ) -> Callable[..., list[Tensor]]:
        """Returns the reference on a device, as a function of the tensors of one call and of a module's state."""
        function = self.like.function if isinstance(self.like, Reference) else self.like
        if isinstance(function, torch.nn.Module):
            function = copy.deepcopy(function).to(device, dtype)

        def call(given: Tensors, state: Tensors | None = None) -> list[Tensor]:
            placed = {name: _laid_out(each, layout) for name, each in given.items()}
            arguments = value_of(self.entry.arguments, placed)
            if not state or "" in state:
                return results_in(function(*arguments))
            return results_in(functional_call(function, dict(state), arguments))

        return call


@dataclass(frozen=True)
class Reference:
    """Makes a reference a function of tensors alone. It returns one result alone, several as a tuple."""

    function: Callable[..., Any]
    template: Template
    names: tuple[str, ...]

    def __call__(self, *tensors: Tensor) -> Any:
        # clones, because a reference may write into its arguments
        given = dict(zip(self.names, (tensor.clone() for tensor in tensors), strict=True))
        found = tuple(results_in(self.function(*value_of(self.template, given))))
        return found[0] if len(found) == 1 else found


def problems_of(
    reference: Callable[..., Any],
    calls: Sequence[Sequence[Any]],
    entry: Entry,
    check: Callable[[Problem, list[Tensor]], bool] | None = None,
) -> list[Problem]:
    """Returns the problems of a function: calls that differ only in the sizes of tensors make one problem.

    Args:
        calls: the arguments of each call
        entry: how to call a solution, and the reference if it is `named`; its arguments are filled in here
        check: the problem's own check; None: `is_close`
    """
    by_name: Callable[..., Any] = lambda *given: reference(*given[:-1], **given[-1])  # noqa: E731
    grouped: dict[bytes, tuple[Template, list[dict[str, Tensor]]]] = {}
    for call in calls:
        template, tensors = template_of(tuple(call), (f"x{number}" for number in itertools.count(1)))
        forms = [(name, str(each.dtype), each.ndim) for name, each in tensors.items()]
        grouped.setdefault(msgspec.json.encode([template, forms]), (template, []))[1].append(tensors)
    found = []
    for number, (template, examples) in enumerate(grouped.values(), 1):
        names = tuple(examples[0])
        like = Reference(by_name if entry.named else reference, template, names)
        own = msgspec.structs.replace(entry, arguments=template)
        values = tuple(tuple(each.values()) for each in examples)
        rule = "its own check" if check else CLOSE
        name = f"{OWN}_{number}"
        found.append(
            Problem(name, like, names, own, values, examples[0], {}, {}, check or is_close, rule, samples=examples[1:])
        )
    return found


def resized(problem: Problem) -> list[Problem]:
    """Returns the problem again with 1 and 7 more rows, or [].

    All arguments must have the same number of rows, and the reference must accept more.
    """
    own = {name: tensor for name, tensor in problem.tensors.items() if name not in problem.state}
    sizes = {tensor.shape[0] if tensor.ndim else 0 for tensor in own.values()}
    if problem.entry.into or sizes in (set(), {0}) or len(sizes) > 1 or len(own) < len(problem.examples[0]):
        return []
    if any(each in structure.OF_ALL for names in problem.structures.values() for each in names):
        return []
    size = sizes.pop()
    examples = [tuple(each[torch.arange(size + more) % size] for each in own.values()) for more in OTHER_SIZES]
    try:
        with torch.no_grad():
            for values in examples:
                problem.results(values)
    except Exception:  # the reference accepts no other sizes
        return []
    first = dict(zip(own, examples[0], strict=True))
    name = problem.name.replace(OWN, OTHER)
    return [dataclasses.replace(problem, name=name, examples=tuple(examples), tensors={**problem.tensors, **first})]


def is_close(problem: Problem, results: list[Tensor]) -> bool:
    """True if results are close to PyTorch's by the usual tolerance of harnesses: 1e-4, in 16 bits 1e-2."""
    if len(problem.answers) != len(results):
        return False
    for mine, theirs in zip(results, problem.answers, strict=True):
        most = 1e-4 if theirs.element_size() > 2 else 1e-2
        if mine.shape != theirs.shape or not torch.allclose(mine.to(theirs.device), theirs, rtol=most, atol=most):
            return False
    return True


CLOSE = "allclose(1e-4), in 16 bits 1e-2,"


# -- kernels -------------------------------------------------------------------------------------------------


def declared(plan: Plan, problems: Callable[[], list[Problem]], module: str, file: str) -> list[Kernel]:
    """Returns the kernels of a plan, for the module that declares them."""
    limits = Limits((plan.scratch,), folders_to_read(), plan.memory, starter.variables(), plan.gpu_share)
    process = SolutionProcess(plan.starter, limits)
    found, first = list[Kernel](), not any(Path(plan.notes).iterdir())
    own = problems() if plan.device == "cpu" else [each.placed(plan.device) for each in problems()]
    if (lacking := process.confined().open) and not plan.weaker:
        process.stop()
        raise UsageError(
            f"this machine cannot hold a solution; not enforced here: {'; '.join(lacking)}",
            hint="verify judge --allow-weaker, for a solution that you trust",
        )
    varied = [each for each in own if each.name.startswith(OWN) and plan.profile != "quick"]
    for problem in itertools.chain(own, (other for each in varied for other in resized(each))):
        solution = Solution(plan, problem, process)
        if first and not found:
            solution.begin()
        if isinstance(problem.like, Kernel):
            made = dataclasses.replace(problem.like, name=problem.name, function=solution, refuses=False)
            made = dataclasses.replace(made, gradients=(), accepted=frozenset(), requires=())
        else:
            made = _kernel(problem, solution)
        geometry = made.op.geometry
        if geometry.named:
            seeds = SEEDS if 0 < sum(each.numel() for each in problem.tensors.values()) <= SMALL else 1
            recipes = RECIPES_OF_PROFILES["quick" if problem.name.startswith(OTHER) else plan.profile]
            geometry = dataclasses.replace(geometry, recipes=recipes, seeds=seeds)
        operands = tuple(dataclasses.replace(each, project=_project(problem, each.name)) for each in made.op.operands)
        op = dataclasses.replace(made.op, geometry=geometry, operands=operands)
        if plan.device != "cpu" and problem.layout is torch.channels_last:
            op = dataclasses.replace(op, baseline=_on_laid_out(op.baseline, problem.layout))
        found.append(dataclasses.replace(made, op=op, module=module, file=file))
    return found


def _laid_out(value: Any, layout: torch.memory_format) -> Any:
    """Returns an operand in a layout, which only images have."""
    return value.to(memory_format=layout) if isinstance(value, Tensor) and value.ndim == 4 else value


def _on_laid_out(function: Callable[..., Any], layout: torch.memory_format) -> Callable[..., Any]:
    """Returns a function of the same operands, laid out so."""
    return lambda *operands, **more: function(*(_laid_out(each, layout) for each in operands), **more)


def _project(problem: Problem, name: str) -> Callable[[Tensor, int], Tensor] | None:
    """Returns a function that gives an operand the structure of the problem's; None if it has none."""
    names = problem.structures.get(name)
    return (lambda value, seed: structure.kept(value, names, problem.tensors[name])) if names else None


class Solution:
    """The function of a kernel: it calls the solution in another process."""

    contained = True  # see Description: its own process may judge

    def __init__(self, plan: Plan, problem: Problem, process: SolutionProcess) -> None:
        forms = tuple(form_of(name, tensor) for name, tensor in problem.made.items())
        build = Build(file=plan.file, entry=problem.entry, device=plan.device, tensors=forms)
        notes = Path(plan.notes) / f"{problem.name}.json"
        self._device = plan.device
        self.problem, self.host = problem, Host(process, build, notes, plan.seconds, plan.build_seconds)
        self.host.reference = functools.cache(problem.reference)
        self.host.lends = problem.device != "cpu"
        self._own: list[Tensor] = []  # its results for the problem's own inputs

    def begin(self) -> None:
        """Lets the solution be built, and called with the problem's own inputs, while this process does other work."""

        process = self.host.process

        def first_call() -> None:
            with suppress(Exception), phase("judge: the solution's first call"):  # the next call raises it again
                self.host.build(list(self.problem.made.values()))
                self._own = self._on_own_inputs() if self.problem.check else []

        # the thread's requests come before all others
        process.first = threading.Thread(target=first_call, daemon=True)
        process.first.start()

    def _on_own_inputs(self) -> list[Tensor]:
        return self._results([self.problem.tensors[name] for name in self.problem.operands], alone=True)

    def __call__(self, *operands: Tensor) -> Any:
        problem, host = self.problem, self.host
        host.build(list(problem.made.values()))
        if problem.check is not None and not host.observed.own_check:
            found, self._own = self._own or self._on_own_inputs(), []
            host.observed.own_check = problem.own_verdict(found, self._device)
        results = [each.to(operands[0].device) for each in self._results(operands)]
        return results[0] if len(results) == 1 else tuple(results)

    def _results(self, operands: Sequence[Tensor], *, alone: bool = False) -> list[Tensor]:
        """Calls the solution. Unless `alone`, calls that are not judged may come before."""
        problem = self.problem
        given = dict(zip(problem.operands, operands, strict=True))
        for name, value in given.items():  # verify draws whole numbers as int64
            kind = problem.tensors[name].dtype if name in problem.tensors else value.dtype
            given[name] = value.detach() if kind.is_floating_point else value.detach().to(kind)
        state = {problem.state[name]: value for name, value in given.items() if name in problem.state}
        self._demand_parameters_for(state)
        arguments = {name: value for name, value in given.items() if name not in problem.state}
        if problem.of_seed and self.host.observed.calls == 0:  # what it keeps of these weights is wrong for the others
            with suppress(Refused):
                self.host.call(self.weights(OTHER_WEIGHTS), arguments, alone=True)
        return self.host.call(state or self.weights(), arguments, alone=alone)

    def weights(self, more: int = 0) -> dict[str, Tensor]:
        """Returns the state of a call whose weights come by seed: the seed; {} for another problem."""
        return {"": torch.tensor(self.problem.entry.seed + more)} if self.problem.of_seed else {}

    def _demand_parameters_for(self, state: Tensors) -> None:
        """Raises KernelError unless the module can get these weights: it has a place for each, and no other tensors.

        Other tensors may be weights that its constructor prepared.
        """
        host, known = self.host, self.problem.parameters
        forms = {form.name: form.shape for form in host.state}
        lacking = [name for name, shape in known.items() if forms.get(name) != shape]
        more = [*host.prepared, *(forms.keys() - known.keys() - self.problem.buffers)]
        if lacking or (state and more):
            host.lack(lacking, sum(map(math.prod, known.values())), by_seed=bool(state))
        if state and (lacking or more):
            raise KernelError(f"no call can write its weights: its module lacks {lacking}, and has {more} beside them")


def _kernel(problem: Problem, solution: Solution) -> Kernel:
    """Declares a solution: it accepts every input of these shapes and returns what the reference returns."""
    floats = {name: each for name, each in problem.tensors.items() if each.is_floating_point()}
    if not floats:
        raise UsageError("the arguments of the reference hold no floating-point tensor: verify draws no inputs for it")
    kinds = {name: formats.of(each.dtype).name for name, each in floats.items()}
    dtype = next(iter(kinds.values()))
    own = {name: each for name, each in floats.items() if name not in problem.state}
    with torch.no_grad():
        results = problem.answers
        drawn = _drawn(problem, own)
        others = problem.results(drawn) if drawn else []
    if others and all(_alike(*pair) for pair in zip(results, others, strict=True)):
        raise UsageError("the problem is vacuous: the reference returns the same for other inputs")
    labels = ["y"] if len(results) == 1 else [f"y{place}" for place in range(1, len(results) + 1)]
    numbers = {name: each for name, each in zip(labels, results, strict=True) if each.is_floating_point()}
    of_outputs = {name: formats.of(each.dtype).name for name, each in numbers.items()}
    return kernel(
        like=problem.like,
        operands=problem.operands,
        examples=list(problem.examples),
        outputs=labels,
        dtypes=[dtype],
        gradients=False,
        layouts="contiguous",
        operand_dtypes={name: kind for name, kind in kinds.items() if kind != dtype} or None,
        output_dtypes=of_outputs or None,
        domain=_domain(own, results, others) or None,
        refuses=False,
        name=problem.name,
    )(solution)


def _drawn(problem: Problem, floats: Tensors) -> list[Any]:
    """Returns the first example's arguments with normal numbers in place of `floats`; [] if not all are tensors."""
    generator = torch.Generator(problem.device).manual_seed(OTHER_SEED)
    names = [name for name in problem.operands if name not in problem.state]
    first = problem.examples[0]
    if len(names) != len(first):
        return []

    def drawn(name: str, each: Any) -> Any:
        if name not in floats:
            return each
        made = torch.randn(each.shape, generator=generator, device=problem.device).to(each.dtype)
        return structure.kept(made, problem.structures.get(name, ()), each)

    return [drawn(name, each) for name, each in zip(names, first, strict=True)]


def _domain(floats: Tensors, own: Sequence[Any], others: Sequence[Any]) -> dict[str, str]:
    """Returns bounds for operands that are not negative in the first example: `0 <= x`, or `0 <= x <= 1`.

    Returns {} unless the reference needs them: its results `own` for the example are finite, and its results `others`
    for normal numbers are not.
    """
    if all(map(is_finite, others)) or not all(map(is_finite, own)):
        return {}
    bounds = {name: float(each.max()) for name, each in floats.items() if float(each.min()) >= 0}
    return {name: f"0 <= {name} <= 1" if most <= 1 else f"0 <= {name}" for name, most in bounds.items()}


def is_finite(value: Any) -> bool:
    """True if a result has no infinity and no NaN."""
    return not isinstance(value, Tensor) or bool(torch.isfinite(value).all())


def _alike(first: Any, second: Any) -> bool:
    """True if two results have the same numbers, up to rounding."""
    return isinstance(first, Tensor) and torch.allclose(first.double(), second.double(), rtol=1e-5, atol=1e-30)
