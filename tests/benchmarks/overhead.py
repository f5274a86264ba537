"""What the harness itself costs per case of each law: `python -m tests.benchmarks.overhead [--json PATH]`.

The time of one check minus the time inside the kernel's own forward and backward, and without Hypothesis: cases are
the law's fixed ones that are small (at most 512 elements in any operand or result). Each is checked `--repeats` times
after a warm-up; its figure is the fastest, a law's are the median and the maximum over its cases. On a GPU the device
is synchronised around every timed piece, so that waiting for a kernel counts as the kernel's time, and time is the
wall clock's; on a CPU it is that of this process, which other processes do not change.

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
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from verify import backends

SMALL = 512
LEFT_OUT = ("compiled", "side stream", "CUDA graph")
TARGET_MS = {"interpreter": 2.0, "cuda": 1.0}


@dataclass
class Clock:
    """Adds up the time spent inside a kernel."""

    synchronise: Callable[[], None]
    now: Callable[[], float]
    inside: float = 0.0

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            self.synchronise()
            started = self.now()
            try:
                return function(*args, **kwargs)
            finally:
                self.synchronise()
                self.inside += self.now() - started

        return run


@dataclass(frozen=True)
class Figure:
    """Milliseconds of overhead per case of one law on one subject."""

    law: str
    kernel: str
    dtype: str
    cases: int
    median: float
    largest: float
    largest_case: str


def subjects(clock: Clock) -> list[Any]:
    """One kernel of each kind, plain torch, whose forward and backward passes are timed."""
    import torch

    import verify

    class Silu(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return clock.timed(Silu.compute)(ctx, x)

        @staticmethod
        def compute(ctx, x):
            ctx.save_for_backward(x)
            wide = x.double()
            return torch.where(wide == -torch.inf, -0.0, wide * torch.sigmoid(wide)).to(x.dtype)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, dy):
            return clock.timed(Silu.gradient)(ctx, dy)

        @staticmethod
        def gradient(ctx, dy):
            (x,) = ctx.saved_tensors
            wide = x.double().clamp(-800.0, 800.0)
            s = torch.sigmoid(wide)
            return (dy.double() * s * (1.0 + wide * torch.sigmoid(-wide))).to(x.dtype)

    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, bias, eps):
            return clock.timed(Norm.compute)(ctx, x, weight, bias, eps)

        @staticmethod
        def compute(ctx, x, weight, bias, eps):
            wide = x.double()
            centred = wide - wide.mean(-1, keepdim=True)
            rstd = torch.rsqrt((centred * centred).mean(-1, keepdim=True) + eps)
            xhat = centred * rstd
            ctx.save_for_backward(xhat, rstd, weight)
            return (xhat * weight + bias).to(x.dtype)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, dy):
            return clock.timed(Norm.gradient)(ctx, dy)

        @staticmethod
        def gradient(ctx, dy):
            xhat, rstd, weight = ctx.saved_tensors
            upstream = dy.double()
            grown = upstream * weight
            dx = rstd * (grown - grown.mean(-1, keepdim=True) - xhat * (grown * xhat).mean(-1, keepdim=True))
            lead = tuple(range(dy.ndim - 1))
            dweight = (upstream * xhat).sum(lead) if lead else upstream * xhat
            dbias = upstream.sum(lead) if lead else upstream
            return dx.to(dy.dtype), dweight.to(weight.dtype), dbias.to(weight.dtype), None

    def refuse(*operands):
        if any(not operand.is_floating_point() or operand.device != operands[0].device for operand in operands):
            raise TypeError("operands are floating point, on one device")
        if any(operand.shape != operands[0].shape[-1:] for operand in operands[1:]):
            raise ValueError("weight and bias are as long as the last dimension of x")

    @verify.kernel(op="silu", dtypes=["bfloat16", "float32"], gradients=True, name="silu")
    def silu(x):
        refuse(x)
        return Silu.apply(x)

    @verify.kernel(op="layer_norm", dtypes=["bfloat16", "float32"], gradients=True, name="layer_norm")
    def layer_norm(x, weight, bias, *, eps):
        refuse(x, weight, bias)
        return Norm.apply(x, weight, bias, eps)

    return [silu, layer_norm]


def small(case: Any) -> bool:
    return math.prod(case.dims) <= SMALL and all(size <= SMALL for size in case.dims)


def measure(law: Any, kernel: Any, dtype: str, backend: Any, clock: Clock, repeats: int) -> Figure | None:
    """The overhead of one law on one kernel; None where the law does not apply or is broken (then it is no cost)."""
    from verify.laws.engine import PROFILES, attempt
    from verify.laws.law import Broken, Subject

    subject = Subject(kernel, dtype, backend, PROFILES["ci"].sizes[backend.name])
    if law.applies(subject) is not None:
        return None
    figures = []
    for case in [case for case in law.fixed(subject) if small(case)][:40]:
        taken = []
        for _ in range(repeats + 1):
            clock.inside = 0.0
            clock.synchronise()
            started = clock.now()
            try:
                attempt(law, subject, case)
            except Broken as broken:
                print(f"  {law.name} {kernel.name} {dtype}: {broken}", file=sys.stderr)
                break
            clock.synchronise()
            taken.append(clock.now() - started - clock.inside)
        if len(taken) > 1:
            figures.append((min(taken[1:]) * 1e3, case.to_json()))
    if not figures:
        return None
    largest, case = max(figures)
    median = statistics.median(cost for cost, _ in figures)
    return Figure(law.name, kernel.name, dtype, len(figures), round(median, 3), round(largest, 3), case)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.overhead", description=__doc__)
    parser.add_argument("--backend", choices=["cuda", "interpreter"])
    parser.add_argument("--law", action="append", help="only this law (repeatable)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="PATH")
    options = parser.parse_args()
    backend = backends.select(options.backend)
    backends.activate(backend)

    import torch

    from verify.laws import registry

    torch.set_num_threads(1)
    if backend.name == "cuda":
        clock = Clock(torch.cuda.synchronize, time.perf_counter)
    else:
        clock = Clock(lambda: None, time.process_time)
    laws = [
        registry.get(name) for name in options.law or (law.name for law in registry.ALL if law.name not in LEFT_OUT)
    ]
    figures = []
    for kernel in subjects(clock):
        for law in laws:
            for dtype in kernel.dtypes:
                figure = measure(law, kernel, dtype, backend, clock, options.repeats)
                if figure is not None:
                    figures.append(figure)
                    print(
                        f"{figure.law:<28} {figure.kernel:<10} {figure.dtype:<8} {figure.cases:>3} cases  "
                        f"median {figure.median:8.3f} ms  largest {figure.largest:8.3f} ms",
                        flush=True,
                    )
    if options.json:
        document = {
            "backend": backend.name,
            "device": backend.label,
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "target_ms": TARGET_MS[backend.name],
            "figures": [asdict(figure) for figure in figures],
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
