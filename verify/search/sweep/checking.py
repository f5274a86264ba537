"""Checks some chunks of a space: runs the kernel on every input in them and judges every result.

`verify.truth.fast` gives the truth of whole tensors, `verify.truth.ulp` the errors, `verify.measure.tally` the counts.
An element is judged exactly before it is counted if the reference leaves its rounding open. Other elements are not. So
an element's share of the figures never depends on its neighbours.

A slab of points becomes the operands of one call. Single elements are found by place and need no tensors of the sweep.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from verify.backends import Backend, architecture
from verify.cases import Case, counter
from verify.cases.classes import class_of, classed
from verify.declare.declaration import Kernel
from verify.declare.standin import baseline_of
from verify.errors import UsageError
from verify.measure.call import Unchanged, call_tensors, gradients_of
from verify.measure.counting import tally
from verify.measure.curve import edges_for, peaks
from verify.measure.form import check_output
from verify.measure.judge import JudgedBy, settled
from verify.measure.tally import Peak
from verify.ops.geometry import Params
from verify.ops.op import Op, Problem
from verify.records.readings import APART, BEYOND, NONFINITE
from verify.records.record import CLASSES, EXTREME
from verify.search.sweep.space import CHUNK, PAIR_BITS, Part, Partial, Space, key_of_bits, key_of_value
from verify.truth.exact import Judged, judge
from verify.truth.fast import Truth, check_bound, evaluate
from verify.truth.formats import Format, named, torch_dtype
from verify.truth.ulp import Errors, bits_of, from_bits

_SIDE = 1 << PAIR_BITS


def gate_of(op: Op) -> str:
    """Returns the operand whose keys number the rows of a pair space. A packed op has only one operand."""
    return op.operands[0].name if len(op.operands) == 1 else op.landmarks.of


def format_of(kernel: Kernel, space: Space, result: str) -> Format:
    """Returns the format in which a result is judged: that of the inputs unless the declaration names another one."""
    return named(kernel.result_dtype(space.dtype, result) or space.dtype)


def patterns_at(keys: Tensor, fmt: Format) -> Tensor:
    """Does `space.bits_of_key` for a tensor of keys."""
    return torch.where(keys >= fmt.sign_bit, keys - fmt.sign_bit, (fmt.sign_bit - 1 - keys) | fmt.sign_bit)


def _operands(space: Space, op: Op, deciding: Tensor, other: Tensor | None) -> dict[str, Tensor | None]:
    if other is None:
        return {op.operands[0].name: deciding}
    if space.shape == "packed pairs":
        return {op.operands[0].name: torch.cat([other, deciding], -1)}
    return {operand.name: deciding if operand.name == gate_of(op) else other for operand in op.operands}


def _consecutive(first: int, last: int, fmt: Format, device: torch.device | str) -> Tensor:
    """Returns the numbers at the keys first..last, written in one pass.

    As signed integers, patterns are -1 - key for numbers with a minus sign, and count up from 0 for the others.
    """
    zero, kind = fmt.sign_bit, getattr(torch, f"int{fmt.bits}")
    ends = [(-1 - first, -1 - min(last, zero), -1)] if first < zero else []
    ends += [(max(first, zero) - zero, last - zero, 1)] if last > zero else []
    parts = [torch.arange(*each, dtype=kind, device=device) for each in ends]
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).view(torch_dtype(fmt))


def make(space: Space, op: Op, first: int, last: int, device: torch.device | str) -> dict[str, Tensor | None]:
    """Returns the operands of the points first..last. Of pairs it makes whole rows, one for each key of the gate."""
    fmt = space.format
    if space.shape == "unary":
        return _operands(space, op, _consecutive(first, last, fmt, device), None)
    rows = _consecutive(first // _SIDE, last // _SIDE, fmt, device)
    columns = _consecutive(0, _SIDE, fmt, device)
    shape = (rows.numel(), _SIDE)
    deciding, other = rows[:, None].expand(shape), columns[None, :].expand(shape)
    return _operands(space, op, deciding.contiguous(), other.contiguous())


def ones(
    kernel: Kernel, space: Space, result: str, shape: Sequence[int], device: torch.device | str = "cpu"
) -> dict[str, Tensor]:
    """Returns the arriving gradients of a result: ones, or nothing for an output."""
    smooth = [name for name in kernel.outputs if result.startswith("d") and name not in kernel.op.integers]
    kinds = {name: torch_dtype(format_of(kernel, space, name)) for name in smooth}
    return {name: torch.ones(shape, dtype=kind, device=device) for name, kind in kinds.items()}


def at_points(space: Space, op: Op, points: list[int]) -> dict[str, Tensor | None]:
    """Returns the operands of single points on the CPU, one per row."""
    keys, fmt = torch.tensor(points, dtype=torch.int64), space.format

    def numbers(keys: Tensor) -> Tensor:
        return from_bits(patterns_at(keys, fmt), fmt)

    if space.shape == "unary":
        return _operands(space, op, numbers(keys), None)
    return _operands(space, op, numbers(keys // _SIDE)[:, None], numbers(keys % _SIDE)[:, None])


def run(kernel: Kernel, space: Space, inputs: dict[str, Tensor | None]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Returns the requested results for some inputs, and the names of gradients that the kernel lacks.

    Gradients are computed for dy = 1.
    """
    wanted = [name for name in space.results if name.startswith("d")]
    graph = call_tensors(kernel, inputs, kernel.params, differentiate=bool(wanted))
    deciding = inputs[gate_of(kernel.op)]
    assert deciding is not None
    shape = tuple(deciding.shape)
    if space.shape == "packed pairs":
        shape = (*shape[:-1], shape[-1] // 2)
    for name, tensor in graph.values.items():
        dtype = torch_dtype(format_of(kernel, space, name))
        check_output(kernel.name, name, tensor, (shape, dtype, deciding.device), "here")
    results = {name: tensor for name, tensor in graph.values.items() if name in space.results}
    missing: tuple[str, ...] = ()
    if wanted:
        smooth = {name: tensor for name, tensor in graph.values.items() if name not in kernel.op.integers}
        upstream = {name: torch.ones_like(tensor) for name, tensor in smooth.items()}
        found = gradients_of(kernel, graph, upstream)
        results |= {name: tensor for name, tensor in found.items() if name in wanted}
        missing = tuple(name for name in wanted if name not in found)
    return results, missing


# -- single elements, judged by the exact routes ----------------------------------------------------------


def halves(space: Space, result: str) -> int:
    """Returns the number of elements of a result for each point: two for a packed gradient, else one."""
    return 2 if space.shape == "packed pairs" and result.startswith("d") else 1


def problem_at(kernel: Kernel, space: Space, result: str, places: Sequence[int]) -> tuple[Problem, list[int]]:
    """Returns a problem with the points of some places, one per row, and the places' flat indices in its result."""
    width = halves(space, result)
    # the point of each place, and the half (0 or 1) of a packed gradient where it lies
    found = [(place, 0) for place in places]
    if width == 2:
        found = [(place // (2 * _SIDE) * _SIDE + place % _SIDE, place // _SIDE % 2) for place in places]
    inputs = at_points(space, kernel.op, [point for point, _ in found])
    upstream = ones(kernel, space, result, (len(places),) if space.shape == "unary" else (len(places), 1))
    problem = Problem(inputs=inputs, params=kernel.op.resolve(kernel.params), upstream=upstream, results=(result,))
    return problem, [row * width + half for row, (_, half) in enumerate(found)]


def judge_at(
    kernel: Kernel, space: Space, result: str, places: Sequence[int], bits: Sequence[int], *, both: bool
) -> list[Judged]:
    """Returns the exact verdict on the kernel's bits at some places."""
    if not places:
        return []
    problem, indices = problem_at(kernel, space, result, places)
    points, fmt = kernel.op.points(problem, result, indices), format_of(kernel, space, result)
    return [
        judge(point, fmt, fmt.unsigned(pattern), both=both, policy=kernel.policy)
        for point, pattern in zip(points, bits, strict=True)
    ]


SLAB, SLAB_CPU = 1 << 22, 1 << 18  # points judged at a time: their tensors fit a core's cache
OPEN_LIMIT = 4096  # elements of one result of one chunk that are judged exactly; further ones count as undecided
SAMPLE = 6  # elements per chunk and result at which the bound is checked
BASELINE = "baseline "
Progress = Callable[[int], None]  # receives the number of finished chunks


def check(
    kernel: Kernel,
    space: Space,
    chunks: int | tuple[int, int],
    backend: Backend,
    *,
    progress: Progress = lambda done: None,
) -> Partial:
    """Checks one chunk, or the chunks of a half-open interval."""
    low, high = (chunks, chunks + 1) if isinstance(chunks, int) else chunks
    if not 0 <= low < high <= space.chunks:
        raise UsageError(f"the space has chunks 0 to {space.chunks - 1}; received {low} to {high - 1}")
    parts: dict[str, Part] = {}
    notes: set[str] = set()
    for number_ in range(low, high):
        found, said = _check_chunk(kernel, space, number_, backend)
        parts = {name: parts.get(name, Part()).merge(part) for name, part in found.items()}
        notes |= said
        progress(number_ + 1 - low)
    kind = architecture(backend.device)
    return Partial(space=space.identity(), reference=kind, chunks=[(low, high)], parts=parts, notes=sorted(notes))


def _check_chunk(kernel: Kernel, space: Space, chunk: int, backend: Backend) -> tuple[dict[str, Part], set[str]]:
    """Returns the parts of one chunk by result, and notes."""
    first, last = space.chunk(chunk)
    subjects = {"": kernel} | ({BASELINE: baseline_of(kernel)} if space.baseline else {})
    slab = SLAB_CPU if backend.device == "cpu" else SLAB
    collectors: dict[str, _Collector] = {}
    notes: set[str] = set()
    while first < last:
        end = min((first // slab + 1) * slab, last)
        for prefix, subject in subjects.items():
            inputs = make(space, kernel.op, first, end, backend.device)
            results, missing = run(subject, space, inputs)
            unchanged = Unchanged()
            unchanged.watch_inputs(subject.name, make(space, kernel.op, first, end, backend.device), inputs)
            unchanged.demand()
            if not prefix:
                notes |= {f"no gradient {name}: autograd has no path to it" for name in missing}
            for name, got in results.items():
                label = prefix + name
                if label not in collectors:
                    collectors[label] = _Collector(kernel, space, name)
                collectors[label].add(inputs, got, first)
        first = end
    return {label: item.part for label, item in collectors.items()}, notes


class _Collector:
    """Judges one result of one chunk, slab after slab."""

    def __init__(self, kernel: Kernel, space: Space, result: str) -> None:
        self.kernel, self.space, self.result = kernel, space, result
        self.width = halves(space, result)
        self.fmt, self.of_result = space.format, format_of(kernel, space, result)
        self.edges = curve_keys(kernel.op, kernel.op.resolve(kernel.params), self.fmt)
        self.judgements_left = OPEN_LIMIT
        self.sampled = False
        self.part = Part()
        self.case = Case(dtype=space.dtype, dims=(1,), fill="ones")  # elementwise regimes do not depend on the case

    def add(self, inputs: dict[str, Tensor | None], got: Tensor, first: int) -> None:
        """Counts one slab, whose first point is `first`."""
        kernel, result = self.kernel, self.result
        upstream = ones(kernel, self.space, result, got.chunk(self.width, -1)[0].shape, got.device)
        problem = Problem(inputs, kernel.op.resolve(kernel.params), upstream, (result,))
        problem = kernel.op.meaning.chosen(problem, {result: got})
        truth = evaluate(kernel.op, problem, {result: self.of_result})[result]
        self._sample(problem, truth, first)
        floor = kernel.noise_floor(self.space.dtype, result)
        by = JudgedBy(kernel.op, problem, result, truth, self.of_result, kernel.policy, floor=floor)
        _, found = by.with_noise_beside(got).compared(got)
        # the place of an element is its index in the result of the whole space, seen as one tensor
        places = torch.arange(got.numel(), dtype=torch.int64, device=got.device) + first * self.width
        patterns = bits_of(got.reshape(-1))
        found, escalated = self._settled(found, places, patterns)
        largest = kernel.largest.get(self.space.dtype)
        segments, parts = classed(kernel.op, self.case, problem, result, tuple(got.shape), largest)
        assert segments is not None
        names = [part_named(regime.name, class_of(regime, name)) for regime, name in parts]
        plain = ~torch.tensor([name in APART for name in names], device=segments.device)[segments]
        distinct = list(dict.fromkeys(names))  # each special part has no class and gets one tally
        numbers = torch.tensor([distinct.index(name) for name in names], device=segments.device)[segments]
        tallies = tally(found, segments=numbers, n_segments=len(distinct), places=places, patterns=patterns)
        part = Part(
            regimes=dict(zip(distinct, tallies, strict=True)),
            curve=self._curve(found, plain, places, first),
            escalated=escalated,
            certificates=[truth.certificate],
        )
        self.part = self.part.merge(part)

    def _sample(self, problem: Problem, truth: Truth, first: int) -> None:
        """Checks the bound of a few random elements of the chunk's first slab."""
        if self.sampled or truth.certificate == "exact":
            return
        self.sampled = True
        stream = f"sweep/{self.result}/{first // CHUNK}"
        chosen = sorted(set(counter.below(0, stream, SAMPLE, truth.value.numel()).tolist()))
        check_bound(self.kernel.op.points(problem, self.result, chosen), truth, chosen)

    def _settled(self, found: Errors, places: Tensor, patterns: Tensor) -> tuple[Errors, int]:
        """Judges open elements exactly up to the chunk's limit, the lowest place first. Returns their number too."""
        where = torch.nonzero(found.undecided).reshape(-1)[: self.judgements_left]
        indices = where.tolist()
        self.judgements_left -= len(indices)
        bits = patterns[where].tolist()
        judged = judge_at(self.kernel, self.space, self.result, places[where].tolist(), bits, both=False)
        return settled(found, dict(zip(indices, judged, strict=True))), len(indices)

    def _curve(self, found: Errors, ordinary: Tensor, places: Tensor, first: int) -> list[Peak]:
        """Returns the curve of a slab, whose first point is `first`."""
        keys = places // (self.space.per_key * self.width)
        edges = torch.tensor(self.edges, dtype=torch.int64, device=keys.device)
        bins = torch.where(ordinary, torch.bucketize(keys, edges, right=True) - 1, -1)
        return peaks(
            bins,
            found.ulp,
            size=len(self.edges) - 1,
            base=first * self.width,
            fmt=self.fmt,
            bits=lambda at: patterns_at(keys[at], self.fmt),
        )


# -- parts of a result ---------------------------------------------------------------------------------------


def parts_of(regimes: Sequence[str]) -> list[str]:
    """Returns the separately counted parts of a result: each regime with each class, then the special parts."""
    return [*(part_named(regime, name) for regime in regimes for name in CLASSES), NONFINITE, BEYOND]


def part_named(regime: str, of_class: str) -> str:
    """Returns the name of a part in a partial result."""
    return regime if regime in APART else f"{regime}: {of_class}"


def part_of(name: str) -> tuple[str, str]:
    """Returns the regime and the class of a part."""
    if name in APART:
        return name, EXTREME if name == NONFINITE else ""
    regime, _, of_class = name.rpartition(": ")
    return regime, of_class


def curve_keys(op: Op, params: Params, fmt: Format) -> list[int]:
    """Returns the keys at which the bins of the error curve begin, and the key that ends the last bin."""
    edges = edges_for(op, params, fmt)
    return [key_of_value(fmt, edge) for edge in edges[:-1]] + [key_of_bits(fmt, fmt.max_bits) + 1]
