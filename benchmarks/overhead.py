"""What the harness itself costs per case of each law: `python -m benchmarks.overhead --json PATH --seconds 60`.

The time of one check minus what the kernel itself takes, and without Hypothesis: cases are the law's fixed ones that
are small (at most 512 elements in any operand or result). Each is checked `--repeats` times after a warm-up, with every
tensor made anew; its figure is the fastest, a law's are the median and the maximum over its cases. With `--seconds`
each law gets its part of that time: where it is short, cases are left out and the figure says how many were measured.
The file is written anew after each law, so that a run that is cut off leaves those that were finished.

What the kernel takes is the time of its public function and of autograd's backward pass, which anybody pays who calls
it; what guard bands do inside of them counts as the harness's. The kernels are torch code that stands for a compiled
one: their allocations are seen by the harness, what is launched on them is not. On a GPU the device is synchronised
around every timed piece, so that waiting for a kernel counts as the kernel's time, and time is the wall clock's; what
synchronising an idle device takes is measured and taken off, for the clock asks for it and the harness does not. On a
CPU time is that of this process, which other processes change little. Beside the time stands what it is made of: the
harness's torch operations on the device (launches, on a GPU), and those that wait for the device's answer; and for the
whole, how long a plain loop takes in Python here, because hosts of GPUs differ by a factor of three.

Targets per case: 2 ms on a CPU core, 1 ms on a GPU. Three laws are left out, because their time is what they are about:
`compiled` compiles, `side stream` waits for a busy stream, and a clock that synchronises cannot be captured in a graph.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from verify import backends

SMALL = 512
LEFT_OUT = ("compiled", "side stream", "CUDA graph")
TARGET_MS = {"interpreter": 2.0, "cuda": 1.0}


@dataclass
class Clock:
    """Adds up the time spent inside a kernel, without that of the harness inside of it."""

    synchronise: Callable[[], None]
    now: Callable[[], float]
    idle: float = 0.0  # what it takes to synchronise when there is nothing to wait for
    inside: float = 0.0
    in_kernel: bool = False

    def calibrate(self) -> None:
        """Measure `idle`."""
        taken = []
        for _ in range(200):
            started = self.now()
            self.synchronise()
            taken.append(self.now() - started)
        self.idle = statistics.median(taken)

    def kernel(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, timed as a part of the kernel."""
        return self._timed(function, in_kernel=True)

    def harness(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, not a part of the kernel that it is called from."""
        return self._timed(function, in_kernel=False)

    def _timed(self, function: Callable[..., Any], *, in_kernel: bool) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if self.in_kernel is in_kernel:
                return function(*args, **kwargs)
            self.synchronise()
            started, self.in_kernel = self.now(), in_kernel
            try:
                return function(*args, **kwargs)
            finally:
                self.synchronise()
                self.in_kernel = not in_kernel
                # either way one of the two synchronisations lies on the harness's side
                self.inside += (self.now() - started) * (1 if in_kernel else -1) + self.idle

        return run


@dataclass(frozen=True)
class Figure:
    """Milliseconds of overhead per case of one law on one subject, and the most operations and waits of a case."""

    law: str
    kernel: str
    dtype: str
    cases: int
    median: float
    largest: float
    largest_case: str
    operations: int
    waits: int


def subjects(clock: Clock) -> list[Any]:
    """One kernel of each kind: torch code behind allocations, as a compiled kernel is."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    import verify

    def launched(target: Any, value: Any) -> Any:
        target.copy_(value)
        return target

    class Silu(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            y = torch.empty_like(x, memory_format=torch.contiguous_format)
            with _disable_current_modes():
                wide = x.double()
                return launched(y, torch.where(wide == -torch.inf, -0.0, wide * torch.sigmoid(wide)))

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, dy):
            (x,) = ctx.saved_tensors
            dx = torch.empty_like(x, memory_format=torch.contiguous_format)
            with _disable_current_modes():
                wide = x.double().clamp(-800.0, 800.0)
                s = torch.sigmoid(wide)
                return launched(dx, dy.double() * s * (1.0 + wide * torch.sigmoid(-wide)))

    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, bias, eps):
            y = torch.empty_like(x, memory_format=torch.contiguous_format)
            mean, rstd = (x.new_empty(x.shape[:-1], dtype=torch.float64) for _ in range(2))
            ctx.save_for_backward(x, mean, rstd, weight)
            with _disable_current_modes():
                wide = x.double()
                launched(mean, wide.mean(-1))
                centred = wide - mean[..., None]
                launched(rstd, torch.rsqrt((centred * centred).mean(-1) + eps))
                return launched(y, centred * rstd[..., None] * weight + bias)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, dy):
            x, mean, rstd, weight = ctx.saved_tensors
            dx = torch.empty_like(x, memory_format=torch.contiguous_format)
            dweight, dbias = torch.empty_like(weight), torch.empty_like(weight)
            with _disable_current_modes():
                xhat = (x.double() - mean[..., None]) * rstd[..., None]
                upstream = dy.double()
                grown = upstream * weight
                slope = grown - grown.mean(-1, keepdim=True) - xhat * (grown * xhat).mean(-1, keepdim=True)
                launched(dx, rstd[..., None] * slope)
                lead = tuple(range(dy.ndim - 1))
                launched(dweight, (upstream * xhat).sum(lead) if lead else upstream * xhat)
                launched(dbias, upstream.sum(lead) if lead else upstream)
            return dx, dweight, dbias, None

    def refuse(*operands):
        if any(not operand.is_floating_point() or operand.device != operands[0].device for operand in operands):
            raise TypeError("operands are floating point, on one device")
        if any(operand.shape != operands[0].shape[-1:] for operand in operands[1:]):
            raise ValueError("weight and bias are as long as the last dimension of x")

    @clock.kernel
    def silu(x):
        refuse(x)
        return Silu.apply(x)

    @clock.kernel
    def layer_norm(x, weight, bias, *, eps):
        refuse(x, weight, bias)
        return Norm.apply(x, weight, bias, eps)

    shared = {"dtypes": ["bfloat16", "float32"], "gradients": True}
    return [
        verify.kernel(op="silu", operands=["x"], name="silu", **shared)(silu),
        verify.kernel(op="layer_norm", operands=["x", "weight", "bias"], name="layer_norm", **shared)(layer_norm),
    ]


@contextmanager
def watched(clock: Clock) -> Iterator[None]:
    """Autograd's backward pass counts as the kernel's, what guard bands do inside of a kernel as the harness's."""
    import torch

    from verify.laws.guard import Guard
    from verify.ops import autograd

    with (
        mock.patch.object(torch.autograd, "grad", clock.kernel(torch.autograd.grad)),
        mock.patch.object(autograd, "gradients", clock.kernel(autograd.gradients)),
        mock.patch.object(Guard, "__torch_dispatch__", clock.harness(Guard.__torch_dispatch__)),
    ):
        yield


def counted(check: Callable[[], Any], clock: Clock, device: str) -> tuple[int, int]:
    """How many torch operations of the harness a check takes on the device, and how many of them wait for an answer."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    found = [0, 0]
    kind = torch.device(device).type

    class Counter(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if not clock.in_kernel and not func.is_view:
                name = func._schema.name.partition("::")[2]
                here = any(value.device.type == kind for value in tree_leaves(args) if isinstance(value, torch.Tensor))
                made = any(
                    value.device.type == kind for value in tree_leaves(result) if isinstance(value, torch.Tensor)
                )
                leaves = name == "_to_copy" and result.device.type != kind
                found[0] += here or made
                found[1] += here and (leaves or name in ("equal", "nonzero", "_local_scalar_dense", "is_nonzero"))
            return result

    with Counter():
        check()
    return found[0], found[1]


def python_loop() -> float:
    """Milliseconds of 100,000 turns of a loop: what most of the overhead is made of, to compare machines by."""

    def turn() -> float:
        started = time.perf_counter()
        total = 0
        for number in range(100_000):
            total += number & 7
        return time.perf_counter() - started

    return round(min(turn() for _ in range(20)) * 1e3, 3)


def small(case: Any) -> bool:
    return math.prod(case.dims) <= SMALL and all(size <= SMALL for size in case.dims)


def spread(cases: list[Any]) -> list[Any]:
    """The same cases in an order of which every beginning has some from everywhere: first and last are of a kind."""
    step = max(1, len(cases) * 5 // 8)
    while math.gcd(step, len(cases)) > 1:
        step += 1
    return [cases[at * step % len(cases)] for at in range(len(cases))]


def measure(
    law: Any, kernel: Any, dtype: str, backend: Any, clock: Clock, repeats: int, until: float = math.inf
) -> Figure | None:
    """The overhead of one law on one kernel; None where the law does not apply or is broken (then it is no cost).

    No case is begun after `until` but the first.
    """
    from verify.cases import values
    from verify.laws.engine import PROFILES, attempt
    from verify.laws.law import Broken, Subject

    subject = Subject(kernel, dtype, backend, PROFILES["ci"].sizes[backend.scale])
    if law.applies(subject) is not None:
        return None
    figures = []
    operations, waits = 0, 0
    chosen = [case for case in law.fixed(subject) if small(case)][:40]
    for case in spread(chosen):
        if figures and time.monotonic() > until:
            break
        taken = []
        try:
            for _ in range(repeats + 1):
                values.forget()
                clock.inside = 0.0
                clock.synchronise()
                started = clock.now()
                attempt(law, subject, case)
                clock.synchronise()
                taken.append(clock.now() - started - clock.inside)
        except Broken as broken:
            print(f"  {law.name} {kernel.name} {dtype}: {broken}", file=sys.stderr)
            continue
        figures.append((min(taken[1:]) * 1e3, case.to_json()))
        values.forget()
        found = counted(partial(attempt, law, subject, case), clock, backend.device)
        operations, waits = max(operations, found[0]), max(waits, found[1])
    if not figures:
        return None
    largest, case = max(figures)
    median = statistics.median(cost for cost, _ in figures)
    return Figure(
        law.name, kernel.name, dtype, len(figures), round(median, 3), round(largest, 3), case, operations, waits
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__)
    parser.add_argument("--backend", choices=["cuda", "interpreter"])
    parser.add_argument("--law", action="append", help="only this law (repeatable)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=math.inf, help="for all laws together")
    parser.add_argument("--json", type=Path, metavar="PATH")
    options = parser.parse_args()
    backend = backends.select(options.backend)
    backends.activate(backend)

    import torch

    from verify.laws import registry
    from verify.records.files import write_atomically

    torch.set_num_threads(1)
    if backend.name == "cuda":
        clock = Clock(torch.cuda.synchronize, time.perf_counter)
        clock.calibrate()
    else:
        clock = Clock(lambda: None, time.process_time)
    document = {
        "backend": backend.name,
        "device": backend.label,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "python_loop_ms": python_loop(),
        "target_ms": TARGET_MS[backend.name],
    }
    laws = [
        registry.get(name) for name in options.law or (law.name for law in registry.ALL if law.name not in LEFT_OUT)
    ]
    kernels = subjects(clock)
    pieces = [(law, kernel, dtype) for law in laws for kernel in kernels for dtype in kernel.dtypes]
    figures: list[Figure] = []
    deadline = time.monotonic() + options.seconds
    with watched(clock):
        for done, (law, kernel, dtype) in enumerate(pieces):
            now = time.monotonic()
            share = (deadline - now) / (len(pieces) - done)
            figure = measure(law, kernel, dtype, backend, clock, options.repeats, now + share)
            if figure is not None:
                figures.append(figure)
                print(
                    f"{figure.law:<28} {figure.kernel:<10} {figure.dtype:<8} {figure.cases:>3} cases  "
                    f"median {figure.median:8.3f} ms  largest {figure.largest:8.3f} ms  "
                    f"{figure.operations:>5} operations {figure.waits:>3} waits",
                    flush=True,
                )
            last_of_law = done + 1 == len(pieces) or pieces[done + 1][0] is not law
            if options.json and last_of_law:
                told = document | {"laws": f"{laws.index(law) + 1} of {len(laws)}"}
                whole = told | {"figures": [asdict(each) for each in figures]}
                write_atomically(options.json, json.dumps(whole, indent=1).encode() + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
