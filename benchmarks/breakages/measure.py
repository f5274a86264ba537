"""Measures one program: computes it in every honest and every broken way, and has all results judged by one truth."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import torch
from torch import Tensor, fx

import verify
from benchmarks.breakages import kernels
from benchmarks.breakages.judging import Judgement, Results, blind_spots, judge
from benchmarks.breakages.kernels import Sums
from benchmarks.breakages.programs import Program, programs
from benchmarks.breakages.steps import outputs_of, traced, with_gradients
from verify.errors import UsageError
from verify.records.record import Number, number
from verify.truth.formats import named, torch_dtype

Inputs = Literal["ordinary", "mean 1000", "outlier", "alternating"]
INPUTS: tuple[Inputs, ...] = ("ordinary", "mean 1000", "outlier", "alternating")
EACH_RESULT = ("zeros", "half", "1% off", "cached")  # these break every result alone: each has to be found
BREAKAGES = (*EACH_RESULT, "bf16 accumulator", "fp16 accumulator", "TF32 operands", "last term dropped")
BREAKAGES += ("constant 1% off", "own fault")
BELOW = 1.2  # of what noise and rounding explain: what honest kernels reach
HONEST_SUMS = {order: Sums(order) for order in ("sequential", "reversed", "blocks of 32", "blocks of 128", "tree")}


class Outcome(msgspec.Struct, frozen=True):
    """The judgement on one kernel: what it does, on which inputs, and for each result whether it passes and the figure.

    Results that the breakage leaves as they are, bit for bit, are left out. Without any result it is not applicable.
    """

    name: str
    inputs: str
    breakage: str = ""  # a column of the table; empty for an honest kernel
    results: dict[str, tuple[bool, Number]] = {}
    open: float = 0.0  # the largest share of elements of a result that the truth leaves open
    rms: float = 0.0  # the largest of results that pass, in what noise and rounding explain

    @property
    def below_noise(self) -> bool:
        """True if a broken kernel moves the results that pass by no more than an honest one: no accuracy sees it."""
        return self.rms <= BELOW

    @property
    def passes(self) -> bool:
        """True if the verdict lets the kernel through. Zeros and their like are a kernel for each result."""
        some = any if self.breakage in EACH_RESULT else all
        return bool(self.results) and some(right for right, _ in self.results.values())

    @property
    def figure(self) -> float:
        """The figure that the verdict rests on; of zeros and their like that of the result that hides them best."""
        figures = [float(value) for _, value in self.results.values()]
        if any(value != value for value in figures):
            figures = [float("inf") if value != value else value for value in figures]
        return min(figures) if self.breakage in EACH_RESULT else max(figures)


class Measured(msgspec.Struct, frozen=True):
    """All outcomes of one program. `error` says why there are none."""

    program: str
    group: str
    dtype: str
    seconds: float
    outcomes: list[Outcome] = []
    blind: list[str] = []
    error: str = ""

    @property
    def honest(self) -> list[Outcome]:
        return [each for each in self.outcomes if not each.breakage]

    @property
    def broken(self) -> list[Outcome]:
        return [each for each in self.outcomes if each.breakage and each.results]


@dataclass(frozen=True)
class Case:
    """One program with operands and upstream gradients, both numbers of its format kept in float32."""

    program: Program
    operands: list[Tensor]
    upstream: list[Tensor]

    @property
    def smooth(self) -> list[int]:
        """The places of the operands that have a gradient."""
        return [place for place, x in enumerate(self.operands) if x.is_floating_point()]

    @property
    def dtype(self) -> torch.dtype:
        return torch_dtype(named(self.program.dtype))

    def converted(self, dtype: torch.dtype, device: str = "cpu") -> list[Tensor]:
        """Operands and upstream gradients in another format or place."""
        given = (*self.operands, *self.upstream)
        return [x.to(device, dtype if x.is_floating_point() else x.dtype) for x in given]

    def named(self, results: Sequence[Tensor]) -> dict[str, Tensor]:
        """Results by name, rounded to the format."""
        labels = [*self.outputs, *(f"dx{place}" for place in self.smooth)]
        rounded = [x.detach().to("cpu", self.dtype).contiguous() for x in results]
        return dict(zip(labels, rounded, strict=True))

    @property
    def outputs(self) -> list[str]:
        count = len(self.upstream)
        return ["y"] if count == 1 else [f"y{place}" for place in range(count)]

    def computed(
        self, function: Callable[..., Any] | None = None, dtype: torch.dtype = torch.float32, device: str = "cpu"
    ) -> dict[str, Tensor]:
        """Results of PyTorch in a format, rounded at the end to that of the program."""
        program = with_gradients(function or self.program.function, len(self.operands), self.smooth)
        with torch.device(device):  # a mask that the program makes lies there too
            return self.named(program(*self.converted(dtype, device)))


def case(program: Program, inputs: Inputs, seed: int) -> Case:
    """Draws operands and upstream gradients; the first floating-point operand follows `inputs`."""
    operands = program.drawn(seed)
    first = next(place for place, x in enumerate(operands) if x.is_floating_point())
    operands[first] = altered(operands[first], inputs)
    dtype = torch_dtype(named(program.dtype))
    operands = [x.to(dtype).float() if x.is_floating_point() else x for x in operands]
    generator = torch.Generator().manual_seed(seed + 1)
    made = outputs_of(program.function(*operands))
    upstream = [torch.randn(y.shape, generator=generator).to(dtype).float() for y in made]
    return Case(program, operands, upstream)


def altered(x: Tensor, inputs: Inputs) -> Tensor:
    """Returns normal numbers as they are, at a mean of 1000, with one large element, or as +-1 with a noise of 1e-3."""
    x = x.clone()
    if inputs == "mean 1000":
        x += 1000
    elif inputs == "outlier":
        x.view(-1)[(x.numel() // 3 + 5) % x.numel()] *= 1e4
    elif inputs == "alternating":
        signs = torch.ones(x.shape[-1])
        signs[1::2] = -1
        x = signs * (1 + 1e-3 * x)
    return x


@dataclass(frozen=True)
class Graphs:
    """The steps of a program, traced in two formats: a graph keeps the format of constants that it makes."""

    float32: fx.GraphModule
    float64: fx.GraphModule

    @staticmethod
    def of(case: Case) -> Graphs:
        whole = with_gradients(case.program.function, len(case.operands), case.smooth)
        return Graphs(*(traced(whole, case.converted(dtype)) for dtype in (torch.float32, torch.float64)))

    def results(self, case: Case, sums: Sums) -> dict[str, Tensor]:
        """Results in float32, all sums taken as `sums` says."""
        return case.named(kernels.run(self.float32, case.converted(torch.float32), sums))

    def rounded(self, case: Case) -> dict[str, Tensor]:
        """Results in float64, rounded. PyTorch's own float64 loses the tail of a GELU, these steps do not."""
        return case.named(kernels.run(self.float64, case.converted(torch.float64), Sums()))


def honest(case: Case, graphs: Graphs, *, compile: bool = False, device: str = "cpu") -> Iterator[tuple[str, Results]]:
    """Every way to compute a program that is right."""
    yield "eager", case.computed(dtype=case.dtype)
    if case.dtype is not torch.float32:
        yield "eager, float32 inside", case.computed()
    if compile:
        yield "compiled", case.computed(torch.compile(case.program.function), case.dtype)
    if device != "cpu":
        yield f"eager on {device}", case.computed(dtype=case.dtype, device=device)
        if compile:
            yield f"compiled on {device}", case.computed(torch.compile(case.program.function), case.dtype, device)
    for name, sums in HONEST_SUMS.items():
        yield name, graphs.results(case, sums)
    yield "float64, rounded", graphs.rounded(case)


@dataclass(frozen=True)
class Broken:
    """Results of a broken kernel, and those of its honest twin."""

    breakage: str
    name: str
    results: Results
    twin: Results

    @property
    def changed(self) -> dict[str, Tensor]:
        """The results that differ from the twin's."""
        return {name: x for name, x in self.results.items() if not same(x, self.twin[name])}


def same(a: Tensor, b: Tensor) -> bool:
    """True if two tensors hold equal numbers, NaN in the same places."""
    return bool(((a == b) | (torch.isnan(a) & torch.isnan(b))).all())


def broken(case: Case, graphs: Graphs, other: Case) -> Iterator[Broken]:
    """Every way to compute a program that is wrong. `other` has other operands."""
    right, stale = graphs.rounded(case), graphs.rounded(other)
    for name, factor in (("zeros", 0.0), ("half", 0.5), ("1% off", 1.01)):
        wrong = {key: (x.double() * factor).to(x.dtype) for key, x in right.items()}
        if not factor:
            wrong = {key: torch.zeros_like(x) for key, x in right.items()}
        yield Broken(name, name, wrong, right)
    yield Broken("cached", "cached", stale, right)
    yield from _broken_sums(case, graphs)
    yield from _broken_definitions(case)


def _broken_sums(case: Case, graphs: Graphs) -> Iterator[Broken]:
    def made(sums: Sums) -> dict[str, Tensor]:
        return graphs.results(case, sums)

    native, one_by_one = made(Sums()), made(Sums("sequential"))
    for name, dtype in (("bf16 accumulator", torch.bfloat16), ("fp16 accumulator", torch.float16)):
        yield Broken(name, name, made(Sums("sequential", dtype)), one_by_one)
    yield Broken("TF32 operands", "TF32 operands", made(Sums(tf32=True)), native)
    count = kernels.sums_of(graphs.float32, case.converted(torch.float32))
    for place in sorted({0, count // 2, count - 1}) if count else ():
        name = f"last term of sum {place + 1} of {count}"
        yield Broken("last term dropped", name, made(Sums(without_last=place)), native)


def _broken_definitions(case: Case) -> Iterator[Broken]:
    function, operands, twin = case.program.function, case.operands, case.computed()
    for constant in kernels.constants(function, operands):
        name = f"{constant[1]:.6g} in {constant[0]} 1% off"
        yield Broken("constant 1% off", name, case.computed(kernels.constant_off(function, constant)), twin)
    if case.program.fault:
        name, fault = case.program.fault
        yield Broken("own fault", name, case.computed(fault), twin)
    elif without := kernels.without_bias(function, operands):
        yield Broken("own fault", "a bias is missing", case.computed(without), twin)
    elif left := kernels.without_step(function, operands):
        yield Broken("own fault", f"{left[0]} left out", case.computed(left[1]), twin)


def measure(
    program: Program,
    *,
    inputs: Sequence[Inputs] = INPUTS,
    compile: bool = False,
    device: str = "cpu",
    seed: int = 1,
) -> Measured:
    """Measures one program on some kinds of inputs."""
    started = time.monotonic()
    outcomes: list[Outcome] = []
    blind: set[str] = set()
    kernel, graphs = None, None
    for kind in inputs:
        given = case(program, kind, seed)
        if not all(bool(torch.isfinite(x).all()) for x in given.computed(dtype=torch.float64).values()):
            continue  # the function has no value there
        operands = {f"x{place}": x for place, x in enumerate(given.operands)}
        if kernel is None or graphs is None:
            declared = verify.kernel(
                like=program.function,
                operands=tuple(operands),
                outputs=given.outputs,
                examples=[tuple(given.operands)],
                dtypes=[program.dtype],
                name="kernel",
            )
            kernel = declared(_taking(list(operands)))
            graphs = Graphs.of(given)
        stored = {
            name: x.to(given.dtype) if x.is_floating_point() else x for name, x in operands.items()
        }  # as a kernel receives them
        upstream = {name: x.to(given.dtype) for name, x in zip(given.outputs, given.upstream, strict=True)}
        kinds: dict[str, tuple[str, str]] = {}
        candidates: dict[str, Results] = {}
        for name, results in honest(given, graphs, compile=compile, device=device):
            kinds[name], candidates[name] = ("", name), results
        for each in broken(given, graphs, case(program, kind, seed + 1000)):
            label = f"{each.breakage}: {each.name}"
            kinds[label], candidates[label] = (each.breakage, each.name), each.changed
        twins = _twins(candidates)
        distinct = {label: candidates[label] for label in dict.fromkeys(twins.values())}
        found = judge(kernel, stored, upstream, distinct, program.dtype)
        if kind == INPUTS[0]:
            constants = blind_spots(kernel, stored, upstream, program.dtype)
            blind |= {name for breakage, name in kinds.values() if breakage and name.partition(" in ")[0] in constants}
        # honest kernels that return the same bits are one: a program without sums has no orders of them
        counted = (label for label, twin in twins.items() if label == twin or kinds[label][0])
        outcomes += [_outcome(*kinds[label], kind, found[twins[label]]) for label in counted]
    spent = time.monotonic() - started
    seen = any(one.inputs == INPUTS[0] for one in outcomes)
    error = "" if seen else f"no finite results on {INPUTS[0]} inputs"
    return Measured(program.name, program.group, program.dtype, spent, outcomes, sorted(blind), error)


def attempt(name: str, *, compile: bool = False, device: str = "cpu") -> Measured:
    """Measures the program of a name, in one thread. What verify or PyTorch refuse is recorded as its error."""
    torch.set_num_threads(1)
    program = programs()[name]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return measure(program, compile=compile, device=device)
    except (UsageError, RuntimeError, NotImplementedError) as error:
        text = f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
        return Measured(program.name, program.group, program.dtype, 0.0, error=text)


def _twins(candidates: Mapping[str, Results]) -> dict[str, str]:
    """Maps each candidate to the first one with the same bits. A block that holds all terms is a sequential sum."""
    first: dict[tuple[tuple[str, bytes], ...], str] = {}
    return {
        label: first.setdefault(
            tuple((name, x.reshape(-1).view(torch.uint8).numpy().tobytes()) for name, x in results.items()), label
        )
        for label, results in candidates.items()
    }


def _outcome(breakage: str, name: str, inputs: str, found: Mapping[str, Judgement]) -> Outcome:
    # a verdict on demanding inputs alone need not tell an honest kernel from zeros; one on ordinary inputs has to
    excused = not breakage and inputs != INPUTS[0]
    results = {
        result: (each.passes or (excused and each.vacuous), number(each.figure))
        for result, each in found.items()
        if not (breakage in EACH_RESULT and each.right)
    }
    rms = max((each.rms for result, each in found.items() if results.get(result, (False,))[0]), default=0.0)
    return Outcome(name, inputs, breakage, results, max((each.open for each in found.values()), default=0.0), rms)


def _taking(names: Sequence[str]) -> Callable[..., Any]:
    """A function with these arguments, which stands in the place of a kernel and is never called."""
    scope: dict[str, Any] = {}
    exec(f"def kernel({', '.join(names)}): raise NotImplementedError", scope)
    function: Callable[..., Any] = scope["kernel"]
    return function
