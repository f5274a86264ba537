"""Limits what judging a case may cost, and chooses elements to judge if all of them would cost too much.

The plan is made before any memory is allocated, from the shapes of the program that defines the op. If a result is
beyond the effort, two sets of its elements are judged. The first are elements at which the kernel and PyTorch differ
most. The second are drawn from the seed of the run. They cover every part of every dimension, including its ends and
the edges of blocks.
"""

from __future__ import annotations

import fcntl
import math
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from verify.backends import Backend
from verify.cases import Case, counter
from verify.cases.plan import Group
from verify.cases.sizes import computed_by
from verify.cases.values import ENDLESS
from verify.declare.declaration import Kernel
from verify.errors import BeyondEffort
from verify.measure.tally import KEEP
from verify.ops.graph.boxes import Box, Line, size_of
from verify.ops.graph.program import Program
from verify.ops.graph.sampled import Sample, sample_of
from verify.ops.graph.slices import Cut, cost_of
from verify.ops.graph.steps import Run
from verify.ops.op import Kept, Op, Problem
from verify.truth import formats
from verify.workers.phases import phase

DEFAULT_MEMORY = 2 << 30
# at most this many elements of a result with an open rounding are judged exactly, unless a caller sets fewer
OPEN_LIMIT = 50_000
CONTENDER_ROUNDS = 6  # at most this many rounds of judging the elements that could be the maximum
SAMPLE = 24  # elements per result whose bound is checked
SAMPLE_EACH = 4  # elements of each case whose bound is checked, if the group has several cases
# The float64 truth leaves the rounding of some elements open. At most this many of them are judged exactly, for each
# result of a case: in a group of one case, in a group of several, and for a peer or PyTorch. The others count as
# undecided. Maxima are always settled.
OPEN_ONE_CASE, OPEN_EACH_CASE, OPEN_PEER = 12_000, 2_000, 500
# One exact element of a PyTorch function may depend on all inputs, so fewer elements are judged exactly.
ROUNDS_GRAPH = 1  # rounds of judging the candidates for the maximum
OPEN_GRAPH = 16  # the limit in place of the three above
DIFFERING = 32  # number of elements at which the kernel and PyTorch differ most
_BOXES = 4  # number of drawn boxes
_BLOCKS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)  # sizes of blocks whose edges are among the drawn indices
_EDGES = 4  # one drawn index of this many is at an edge
_WHOLE = 2.0**29  # numbers in all steps of a result of which all elements are judged: exact values are the host's work
_LARGE = 1 / 16  # share of a GPU's memory: cases that need more run one at a time
_HELD = 1 << 28  # bytes that a process may hold on the GPU for later calls
_PLENTY = 0.75  # share of a GPU's memory: if so much is free, processes keep what they hold for later calls
_TENSORS = 4  # memory of a case with gradients, in sizes of its operands and outputs: gradients, copies, PyTorch's
_MARGIN = 1.1  # of this estimate: of 23 problem files on a GPU, one took more
_EVALUATED = 96  # bytes of evaluation for each number that is drawn
_LITTLE = 1 << 21  # a case whose operands and outputs have fewer bytes takes no memory worth a turn
_ON_HOST = 1 << 23  # numbers, 0.6 s of a host: a GPU takes 0.1 s to start such steps, and forks do them beside others
_LEAST = 0.5  # seconds for a result, and for the choice of its elements: with less, few cases would have few elements
LEAST_SHARE = 0.5  # of the cases that a measurement has planned, without which it says too little
_AT_ONCE = {True: 1 << 18, False: 1 << 24}  # elements compared at a time, on a CPU (True) and on a GPU


@dataclass(frozen=True)
class Effort:
    """Limits what judging one result of a case may cost: its float64 references, and its exact values."""

    work: float = 2.0**26  # numbers in all steps of its program
    memory: float = DEFAULT_MEMORY  # bytes, in addition to the kernel and its inputs
    whole: int = 1 << 22  # up to this many elements of a result, all are judged
    elements: int = 1 << 16  # else this many are judged
    drawn: float = 2.0**24  # numbers in all steps, if not all elements are judged
    seconds: float = 40.0  # for all such results of a kernel; then no box but the first, and no case of these sizes
    exact: float = 1.0  # share of the usual work on exact values of a `like=`; intervals of float64 judge the others
    sample: int = SAMPLE  # elements that check the bounds
    keep: int = KEEP  # worst elements of each regime, besides the maximum itself
    open_limit: int = OPEN_LIMIT  # elements with an open rounding; the others count as undecided
    rounds: int = CONTENDER_ROUNDS  # rounds of judging elements that reach the maximum; those that remain widen it
    blurred: float = 0.0  # an open rounding stays undecided if its error is known to this many units

    @classmethod
    def of(cls, backend: Backend, memory: int = 0) -> Effort:
        """Returns the effort of a backend.

        `memory` replaces the default: a quarter of a GPU, which large cases have in turn (`turn`), or 2 GiB of a host.
        """
        quarter = total_memory(backend) // 4
        if backend.scale == "large":
            return cls(2.0**35, memory or quarter, 1 << 22, 1 << 18, 2.0**26, 6.0)
        return cls(memory=memory or min(DEFAULT_MEMORY, quarter))

    def halved(self) -> Effort:
        """Returns half the effort, for another try after memory ran out."""
        whole, elements = self.whole // 2, max(self.elements // 2, 1)
        made = replace(self, whole=whole, elements=elements)
        return replace(made, work=self.work / 2, memory=self.memory / 2, drawn=self.drawn / 2)

    def holds(self, op: Op, problem: Problem) -> bool:
        """True if all elements of the results of a problem may be judged."""
        if op.meaning.shipped or not problem.results:
            return True
        (program, _), wanted = op.program(problem), problem.results
        most = max(math.prod(program.results[name].shape) for name in wanted)
        work, memory = cost_of(program.needed_for(wanted), lambda step: float(math.prod(step.shape)))
        fits = memory <= min(self.memory, DEFAULT_MEMORY) and work <= min(self.work, _WHOLE) * len(wanted)
        return most <= self.whole and fits


def efforts_of(kernel: Kernel, group: Group, fill: str, kept: Kept) -> tuple[Effort, Effort]:
    """Returns the effort for results of a kernel in one case of a group, and the smaller one for PyTorch's."""
    of_graph = kernel.op.geometry.named
    # with several cases the ten worst elements come from different cases; a single case must give all ten
    single = len(group.cases) == 1 and kept.effort >= 1
    keep, sample = (KEEP, SAMPLE) if single else (2, SAMPLE_EACH)
    sample = 1 if kernel.peer else sample
    if fill in ENDLESS:  # no bound says anything about NaN
        sample = 0
    limits = (OPEN_PEER if kernel.peer else OPEN_ONE_CASE if single else OPEN_EACH_CASE), OPEN_PEER
    if group.exhaustive or of_graph:
        limits = (OPEN_LIMIT,) * 2 if group.exhaustive else (OPEN_GRAPH,) * 2
    rounds = ROUNDS_GRAPH if of_graph else CONTENDER_ROUNDS
    # the first source that is judged spends few exact values on the bounds before it spends them all
    at_first = sample if kept.effort < 1 else 0
    own = Effort(sample=sample, keep=keep, open_limit=limits[0], rounds=rounds)
    return own, replace(own, sample=at_first, keep=1, open_limit=limits[1])


def total_memory(backend: Backend) -> int:
    """Returns the bytes of the device that a backend judges on."""
    if backend.gpu and backend.streams:
        return int(torch.cuda.get_device_properties(backend.device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def needed(kernel: Kernel, case: Case, backend: Backend, effort: Effort) -> float:
    """Estimates the bytes of the GPU that a case takes, with what autograd keeps of PyTorch's steps."""
    if not backend.streams:
        return 0.0
    op, params = kernel.op, kernel.op.resolve(case.params)
    operands = op.shapes(case.dims, params)
    outputs = sum(math.prod(op.result_shapes(case.dims, params)[name]) for name in kernel.outputs)
    size = formats.named(case.dtype).bits // 8
    held = size * (sum(map(math.prod, operands.values())) + outputs)
    if held < _LITTLE:  # to follow a program of other sizes takes longer than such a case
        return 0.0
    numbers = 0.0 if op.meaning.shipped else computed_by(op, case.dims)
    if max(held, size * numbers) < 16 * _LITTLE:
        return 0.0
    return _MARGIN * (_TENSORS * held + size * numbers) + min(effort.memory, _EVALUATED * effort.drawn)


def give_back(backend: Backend) -> None:
    """Returns memory that PyTorch holds for later calls to the GPU, if it is much, unless most of the GPU is free.

    Allocating it again takes some hundredths of a second for a case of 2^24 elements.
    """
    device = backend.device
    if backend.streams and torch.cuda.memory_reserved(device) > _HELD + torch.cuda.memory_allocated(device):
        free, total = torch.cuda.mem_get_info(device)
        if free < _PLENTY * total:
            torch.cuda.empty_cache()


@contextmanager
def turn(backend: Backend, need: float) -> Iterator[None]:
    """Waits, if a case needs much of a GPU (`need` bytes), until no other case of this user that needs much runs there.

    Judges hold small cases at the same time. A case that does not fit all the same is tried again, with twice the need.
    """
    large = backend.gpu and backend.streams and need >= _LARGE * total_memory(backend)
    with _alone(backend) if large else nullcontext():
        try:
            yield
        finally:
            give_back(backend)


@contextmanager
def _alone(backend: Backend) -> Iterator[None]:
    """Waits for the lock of a GPU. The operating system drops the lock of a process that ends."""
    of = getattr(torch.cuda.get_device_properties(backend.device), "uuid", backend.device)
    path = Path(tempfile.gettempdir()) / f"verify-{os.getuid()}-{of}.lock"
    with open(os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600), "r+") as file:
        with phase("judge: wait for memory"):
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # forks that judge have inherited the file


@dataclass
class Allowance:
    """Counts the seconds for judging results by some of their elements. The next cases have equal shares."""

    seconds: float
    until: float = math.inf  # a time of time.monotonic()
    needed: bool = True  # False: after that time no case is tried
    cases: int = 1  # number of cases to come
    spent: float = 0.0
    sampled: set[tuple[int, ...]] = field(default_factory=set)  # the sizes of such cases
    _since: float | None = None

    def begin(self, dims: tuple[int, ...]) -> None:
        """Starts the clock for a case of which some elements are judged."""
        self.sampled.add(dims)
        self._since = time.monotonic()

    def end(self) -> None:
        """Stops the clock, if it runs."""
        if self._since is not None:
            self.spent, self._since = self.spent + time.monotonic() - self._since, None

    def share(self, left: int, results: int) -> float:
        """Returns the seconds for the next of `left` results of a case; each case has so many `results`.

        If equal shares would be too short to judge more than a few elements, the last cases get none.
        """
        running = 0.0 if self._since is None else time.monotonic() - self._since
        return max((self.seconds - self.spent - running) / (max(self.cases - 1, 0) * results + left), _LEAST)

    def is_spent(self, dims: tuple[int, ...], share: float) -> bool:
        """True if no time is left for another case of the same sizes, which completes this share of all cases.

        A measurement that ends when it is enough tries LEAST_SHARE of them in any case, if it is needed.
        """
        if self.needed and self.until < math.inf and share <= LEAST_SHARE:
            return False
        spent, late = self.spent >= self.seconds, time.monotonic() >= self.until
        return (dims in self.sampled and (spent or late)) or (late and not self.needed)


def distances(a: Tensor, b: Tensor) -> Tensor:
    """Returns how far numbers are apart: nothing if they are equal or both NaN, very far if one of them is finite."""
    found = (a - b).abs()
    if bool(torch.isfinite(found).all()):
        return found
    return torch.where((a == b) | (torch.isnan(a) & torch.isnan(b)), 0.0, found.nan_to_num(math.inf))


def differing(got: Tensor, beside: Tensor | None) -> list[int]:
    """Returns the flat places where two results differ most: absolutely, relatively, or in one being finite."""
    if beside is None:
        return []
    mine, theirs = got.detach().reshape(-1), beside.detach().reshape(-1).to(got.device)
    wide = torch.float32 if got.dtype.itemsize < 4 or got.dtype == torch.float32 else torch.float64
    least = torch.finfo(wide).tiny
    # scores and their places: by absolute difference, and by relative difference
    found: tuple[list[tuple[Tensor, Tensor]], ...] = ([], [])
    for first in range(0, mine.numel(), step := _AT_ONCE[got.is_cpu]):
        a, b = (each[first : first + step].to(wide) for each in (mine, theirs))
        apart = distances(a, b)
        for kind, score in zip(found, (apart, apart / b.abs().nan_to_num(1.0).clamp_(min=least)), strict=True):
            top = score.topk(min(DIFFERING // 2, score.numel()), sorted=False)
            kind.append((top.values, top.indices + first))
    chosen = set[int]()
    for kind in found:
        values, places = (torch.cat(each) for each in zip(*kind, strict=True))
        top = values.topk(min(DIFFERING // 2, values.numel()))
        chosen.update(places[top.indices[top.values > 0]].tolist())
    return sorted(chosen)


def is_movable(op: Op, problem: Problem) -> bool:
    """True if a host can judge some elements without the others: operands and results are numbers of one shape."""
    program, run = op.program(problem)
    shapes = {tuple(each.shape) for each in (*run.leaves.values(), *program.results.values())}
    numbers = all(each.is_floating_point() for each in run.leaves.values()) and not op.integers
    return numbers and len(shapes) == 1 and not any(each.shown for each in op.operands)


def sampled(
    op: Op, problem: Problem, result: str, first: Sequence[int], effort: Effort, seed: int, *, forks: bool | None = None
) -> Sample | None:
    """Returns the elements of a result to judge; None if even one element is beyond the effort.

    forks: True if forks judge: then all that judging needs is in host memory, if `is_movable`, and they evaluate an
        elementwise program. They also evaluate few numbers of another program. So does this process if False, because
        figures in units of noise depend on the device. None: the device of the result evaluates everything.
    """
    program, run = op.program(problem)
    host = Run(run.leaves, torch.device("cpu"))  # with caches of its own, which hold tensors
    movable = forks is not None and is_movable(op, problem)
    later = bool(forks) and movable and program.elementwise
    run = host if later else run
    begun = time.monotonic()
    cuts = cuts_of(program, run, result, first, effort, seed, begun + max(effort.seconds / 2, _LEAST))
    if not cuts:
        return None
    moved = movable and not any(cut.chunked for cut in cuts)
    if moved and not program.elementwise and sum(cut.work for cut in cuts) <= _ON_HOST:
        later, cuts = True, [Cut(program, host, result, cut.box) for cut in cuts]
    more = None if later else lambda: time.monotonic() < begun + effort.seconds
    sample = sample_of(op.meaning, problem, result, cuts, more)
    if later or not (moved and forks):
        return sample
    return sample.moved([Cut(program, host, result, cut.box) for cut in cuts])


def beyond(result: str, case: Case) -> str:
    """Returns the text about a result that could not be judged."""
    return f"{result} of {list(case.dims)}: one element depends on more numbers than the judge may evaluate"


def cuts_of(
    program: Program, run: Run, result: str, singled: Sequence[int], effort: Effort, seed: int, until: float = math.inf
) -> list[Cut]:
    """Returns the parts of a program to evaluate: one of elements in `singled`, then a drawn one, then the others.

    Returns [] if even one element is beyond the effort.
    """
    shape = program.results[result].shape

    def cut(box: Box, share: int) -> Cut | None:
        try:
            made = Cut(program, run, result, box, most / share)
            if made.bytes > effort.memory:
                made = Cut(program, run, result, box, most / share, effort.memory)
        except BeyondEffort:
            return None
        return made if made.bytes <= effort.memory else None

    def fitting(label: str) -> Cut | None:
        """Returns a box with `counts` indices of each dimension, or with fewer if it needs more than the first box."""
        some = list(counts)
        while (made := cut(_box(shape, some, seed, label), share)) is None and max(some) > 1:
            some = [count // 2 if at == some.index(max(some)) else count for at, count in enumerate(some)]
        return made

    counts, most = [1] * len(shape), effort.work
    one = cut(_box(shape, counts, seed, result), 1)
    if one is None:
        return []
    most = min(effort.work, max(effort.drawn, 2 * one.work))  # what others of its row need, it needs too
    share = 1 if cut(_box(shape, counts, seed, result), _BOXES) is None else _BOXES
    key = result, seed, replace(effort, seconds=0.0)
    alike = all(each.is_floating_point() for each in run.leaves.values())  # else integers may decide what a box needs
    counts = program.chosen.get(key, counts)  # cases of equal sizes share their program
    growing = [] if key in program.chosen else list(reversed(range(len(shape))))
    while growing and time.monotonic() < until:
        for dim in list(growing):
            more = [min(2 * count, shape[at]) if at == dim else count for at, count in enumerate(counts)]
            box = _box(shape, more, seed, result)
            if more == counts or size_of(box) > effort.elements / share or cut(box, share) is None:
                growing.remove(dim)
            else:
                counts = more
    if alike and not growing:
        program.chosen[key] = counts
    labels = [f"{result}/{number}" for number in range(1 if counts == [*shape] else share)]
    drawn = [made for label in labels if (made := fitting(label)) is not None]
    apart = list[Cut]()
    waiting = [list(singled)] if singled and counts != [*shape] else []
    most_apart = max(_BOXES * effort.drawn, one.work)
    while waiting and sum(made.work for made in apart) <= most_apart and (time.monotonic() < until or not apart):
        some = waiting.pop(0)
        # the smallest box that contains them
        together = tuple(np.unique(each) for each in np.unravel_index(np.array(some), shape)) if shape else ()
        if (made := cut(together, share)) is not None and size_of(together) <= effort.elements / share:
            apart.append(made)
        elif len(some) > 1:
            waiting += [some[: len(some) // 2], some[len(some) // 2 :]]
        elif (made := cut(together, 1)) is not None:
            apart.append(made)
    return [*apart[:1], *drawn[:1], *apart[1:], *drawn[1:]] or [one]


def _box(shape: tuple[int, ...], counts: Sequence[int], seed: int, label: str) -> Box:
    pairs = enumerate(zip(shape, counts, strict=True))
    return tuple(_line(size, count, seed, f"elements/{label}/{dim}") for dim, (size, count) in pairs)


def _line(size: int, count: int, seed: int, label: str) -> Line:
    """Returns indices of a dimension: both ends, some edges of blocks, and one index from each of equal parts."""
    if count >= size:
        return np.arange(size)
    drawn = counter.below(seed, label, count, 1 << 30).numpy() / float(1 << 30)
    edges = max(count // _EDGES, 0) if count > 2 else 0
    ends = [0, size - 1][: count - 1]
    parts = count - edges - len(ends)
    found = [*ends, *((np.arange(parts) + drawn[:parts]) * (size / parts)).astype(np.int64).tolist()]
    for number in range(edges):
        block = _BLOCKS[number % len(_BLOCKS)]
        if block < size:
            found.append((1 + int(drawn[parts + number] * ((size - 1) // block))) * block - number // len(_BLOCKS) % 2)
    return np.unique(np.clip(np.array(found, dtype=np.int64), 0, size - 1))
