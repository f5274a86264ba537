"""Times implementations of one op side by side on a GPU, beside a copy that moves the same number of bytes.

In each round every contender has one turn, in an order that rotates, so that a drifting clock or temperature favours
none. A contender's time is the median over the rounds. The distance between the quartiles shows its uncertainty. A
large buffer is overwritten before each turn. That empties the L2 cache and keeps the GPU busy while the CPU prepares
the launch, so the time excludes launch overhead.

Backward passes are timed alone, on the graph of one forward pass. The copy moves as many bytes as the pass must move:
every input read once, every output written once. An op of matrix products is compared with the bare products of
torch.mm instead.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Literal

import torch

from verify.cases import Case, case_of, inputs_of, upstream_of
from verify.cases.sizes import largest_of
from verify.declare.declaration import Kernel
from verify.errors import KernelError, UsageError
from verify.measure.call import Graph, call_tensors, describe
from verify.measure.requests import Time, Timed
from verify.ops.geometry import ByGeometry, Shape
from verify.records.record import Speed
from verify.truth.ulp import bits_of
from verify.workers.requests import OnProgress

Direction = Literal["forward", "backward"]
Call = Callable[[], object]

WARM_UP = 3  # calls before the first timed one, for compilation, autotuning and the allocator
FLUSH_BYTES = 1 << 30  # many times any L2 cache; writing it takes 0.3 ms on the fastest memory of today
COPY, PRODUCT = "a copy", "the products"  # no kernel has such a name: it would not be a Python identifier

# Large enough that bandwidth decides and not the launch; (M, K, N) for matrix products.
SHAPES: ByGeometry[Shape] = ByGeometry(elementwise=(8192, 8192), rowwise=(16384, 4096), contraction=(8192, 4096, 8192))
LARGE = 1 << 24  # numbers of the largest operand of a PyTorch function


# times one round: calls everything once, in order, and returns milliseconds
Clock = Callable[[Mapping[str, Call]], dict[str, float]]


class CudaClock:
    """Times calls with CUDA events. Empties the L2 cache before each call and synchronises once per round."""

    def __init__(self, device: str) -> None:
        free, _ = torch.cuda.mem_get_info(device)
        self._flushed = torch.empty(min(FLUSH_BYTES, free // 8), dtype=torch.int8, device=device)

    def __call__(self, calls: Mapping[str, Call]) -> dict[str, float]:
        pairs = {}
        for name, call in calls.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            self._flushed.zero_()
            start.record()
            call()
            end.record()
            pairs[name] = (start, end)
        torch.cuda.synchronize()
        return {name: start.elapsed_time(end) for name, (start, end) in pairs.items()}


class TimedProblem:
    """Holds the tensors that all contenders share. `pristine` has copies of the inputs, to find changes."""

    def __init__(self, kernel: Kernel, case: Case, device: str) -> None:
        self.kernel, self.case, self.device = kernel, case, device
        self.inputs = inputs_of(kernel.op, case, device)
        self.pristine = {name: value.clone() for name, value in self.inputs.items() if value is not None}

    def disturbed(self) -> list[str]:
        """Waits for a contender's calls, returns the inputs that they changed, and restores these for the next one."""
        if torch.device(self.device).type == "cuda":
            torch.cuda.synchronize()
        changed = []
        for name, kept in self.pristine.items():
            value = self.inputs[name]
            if value is not None and not torch.equal(bits_of(kept), bits_of(value)):
                value.copy_(kept)
                changed.append(name)
        return changed


def default_shape(kernel: Kernel) -> tuple[int, ...]:
    """Returns the shape at which a kernel is timed by default."""
    return largest_of(kernel.op, LARGE) if kernel.op.geometry.named else kernel.op.geometry.of(SHAPES)


def time_together(
    contenders: Mapping[str, Kernel], asked: Time, device: str, clock: Clock, progress: OnProgress = lambda text: None
) -> list[Timed]:
    """Times every contender in every direction, with `asked.rounds`.

    All have the same op, parameters and operands.

    A contender that raises or has no gradient gets a reason instead of a time, and the others continue. Raises
    KernelError, with the contender's name, if one leaves the GPU unusable.
    """
    first = next(iter(contenders.values()))
    shape = tuple(asked.shape) or default_shape(first)
    example = ",".join(map(str, default_shape(first)))
    if any(size < 1 for size in shape):
        raise UsageError(f"--shape takes positive sizes; received {shape}", hint=f"--shape {example}")
    if first.op.geometry.multiplies and len(shape) != 3:
        raise UsageError(f"op {first.op.name!r} is timed at M,K,N; received {shape}", hint=f"--shape {example}")
    first.op.shapes(shape, first.op.resolve(first.params))
    torch.compiler.reset()  # forget earlier programs, so that this shape gets code of its own
    found: list[Timed] = []
    for direction in asked.directions:
        upstream = "normal" if direction == "backward" else ""
        case = case_of(first, asked.dtype, dims=shape, seed=asked.seed, upstream=upstream)
        try:
            problem = TimedProblem(first, case, device)
        except torch.OutOfMemoryError as error:
            raise KernelError(f"the inputs of shape {shape} do not fit in the GPU's memory") from error
        calls: dict[str, Call] = {}
        for name, kernel in contenders.items():
            progress(name)
            prepared = _prepared(kernel, problem, direction)
            if isinstance(prepared, str):
                found.append(Timed(name, direction, None, prepared))
            else:
                calls[name] = prepared
        progress("")  # a failure from here on cannot be attributed to a contender
        if calls:
            reference, call = _reference(problem, direction)
            calls[reference] = call
            times: dict[str, list[float]] = {name: [] for name in calls}
            for turn in range(asked.rounds):  # each round starts with another call
                names = list(calls)[turn % len(calls) :] + list(calls)[: turn % len(calls)]
                for name, milliseconds in clock({name: calls[name] for name in names}).items():
                    times[name].append(milliseconds)
            del calls[reference]
            found += [Timed(name, direction, _speed(times, name, reference, problem, direction)) for name in calls]
    return found


def _prepared(kernel: Kernel, problem: TimedProblem, direction: Direction) -> Call | str:
    """Returns a warm call, or the reason why there is none."""
    try:
        call = _forward(kernel, problem) if direction == "forward" else _backward(kernel, problem)
        if isinstance(call, str):
            return call
        for _ in range(WARM_UP):
            call()
        if changed := problem.disturbed():
            return f"changes its input {', '.join(changed)}: a second call computes something else"
    except Exception as error:
        reason = str(error) if isinstance(error, KernelError) else f"{kernel.name} raised {describe(error)}"
        try:
            problem.disturbed()
        except Exception:
            raise KernelError(f"{reason}; the GPU is unusable after it") from error
        return reason
    return call


def _forward(kernel: Kernel, problem: TimedProblem) -> Call:
    resolved = kernel.op.resolve(problem.case.params)
    keywords = {name: value for name, value in resolved.items() if name in kernel.accepted}
    arguments = [problem.inputs[name] for name in kernel.operands]

    def call() -> object:
        with torch.no_grad():
            return kernel.function(*arguments, **keywords)

    return call


def _backward(kernel: Kernel, problem: TimedProblem) -> Call | str:
    if not kernel.differentiable:
        return "declares no gradients"
    with torch.enable_grad():
        graph = call_tensors(kernel, problem.inputs, problem.case.params)
    attached = {name: tensor for name, tensor in graph.outputs.items() if tensor.requires_grad}
    if not attached:
        return "autograd has no path to its inputs"
    upstream = upstream_of(kernel.op, problem.case, Graph(attached, {}).values)
    outputs, arriving = list(attached.values()), [upstream[name] for name in attached]
    leaves = list(graph.leaves.values())
    return lambda: torch.autograd.grad(outputs, leaves, arriving, retain_graph=True, allow_unused=True)


def _reference(problem: TimedProblem, direction: Direction) -> tuple[str, Call]:
    """Returns the name and the call that contenders are compared with: a copy, or bare products for a contraction."""
    if problem.kernel.op.geometry.multiplies:
        x, weight = problem.pristine["x"], problem.pristine["weight"]
        before = torch.ones(x.shape[0], weight.shape[0], dtype=x.dtype, device=x.device)
        forward: Call = lambda: torch.mm(x, weight.t())  # noqa: E731
        backward: Call = lambda: (torch.mm(before, weight), torch.mm(before.t(), x))  # noqa: E731
        name, call = PRODUCT, forward if direction == "forward" else backward
    else:
        source = torch.ones(bytes_moved(problem, direction) // 2, dtype=torch.int8, device=problem.device)
        target = torch.empty_like(source)
        name, call = COPY, lambda: target.copy_(source)
    for _ in range(WARM_UP):
        call()
    return name, call


def bytes_moved(problem: TimedProblem, direction: Direction) -> int:
    """Returns the bytes that a pass must move.

    It reads inputs and arriving gradients once, and writes outputs or gradients once.
    """
    inputs, op, dims = problem.pristine, problem.kernel.op, problem.case.dims
    shapes = op.result_shapes(dims, op.resolve(problem.case.params))
    size = next(iter(inputs.values())).element_size()
    outputs = size * sum(prod(shapes[name]) for name in problem.kernel.outputs)
    gradients = [each.name for each in op.operands if each.differentiable and each.name in inputs]
    written = sum(inputs[name].nbytes for name in gradients) if direction == "backward" else 0
    return sum(value.nbytes for value in inputs.values()) + outputs + written


def _speed(
    times: Mapping[str, Sequence[float]], name: str, reference: str, problem: TimedProblem, direction: Direction
) -> Speed:
    median = statistics.median(times[name])
    ratio = statistics.median(times[reference]) / median
    several = len(times[name]) > 1
    low, _, high = statistics.quantiles(times[name], n=4, method="inclusive") if several else (0.0, 0.0, 0.0)
    return Speed(
        dtype=problem.case.dtype,
        direction=direction,
        shape=problem.case.dims,
        milliseconds=median,
        of_copy=ratio if reference == COPY else None,
        spread=high - low,
        of_product=ratio if reference == PRODUCT else None,
        rounds=len(times[name]),
    )


def comparable(kernel: Kernel) -> tuple[Any, ...]:
    """Returns a key that two kernels must share to be timed side by side."""
    params = tuple(sorted((name, repr(value)) for name, value in kernel.op.resolve(kernel.params).items()))
    return (kernel.op.name, params, kernel.operands, kernel.outputs)
