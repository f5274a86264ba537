"""Compiled programs with these kernels, opaque and visible to Inductor, beside Inductor's own fusions.

    python -m kernels.bench.compiled --json compiled.json

"block" is a step of the decoder block of block.py, rms+swiglu, compiled whole, in three sizes. "norm" is RMS norm alone
between two elementwise operations, f(x, r, w) = silu(norm(x + r, w)) * r: its forward pass and its step.

    inductor    torch.compile of PyTorch's functions
    opaque      torch.compile of ours: an operator is one node (operators.show_launches(False))
    visible     the same, but Inductor sees the launches of the norms and plans their memory (show_launches(True))
    launches    ours without torch.compile

wall: microseconds of a call with one wait after several. gpu: the same of a CUDA graph of it; the graphs take turns.
"""

from __future__ import annotations

import argparse
import json
import pathlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch._functorch.config
from torch.nn import functional

from kernels import operators
from kernels.bench import block, report
from kernels.rms_norm import rms_norm

CONTENDERS = ("inductor", "opaque", "visible", "launches")
BLOCKS = ((1, 512), (2, 2048), (8, 2048))  # sequences and their tokens
NORMS = ((2048, 2048), (16_384, 2048), (4096, 8192))
TURNS = 9


def of_block(shape: tuple[int, ...], ours: bool, compiled: Callable[..., Any]) -> dict[str, Callable[[], Any]]:
    """Returns a call of the decoder block's step."""
    p = block.parameters("rms+swiglu", block.WIDTH, block.INNER, torch.bfloat16, "cuda")
    function, leaves, _ = block.made("ours" if ours else "eager", "rms+swiglu", p)
    x, r, *upstream = (block.waves(*shape, block.WIDTH).bfloat16().roll(k, -1) for k in range(4))
    wanted = [x.requires_grad_(), r.requires_grad_(), *leaves.values()]
    step = compiled(function)
    return {"step": lambda: torch.autograd.grad(step(x, r), wanted, upstream)}


def of_norm(shape: tuple[int, ...], ours: bool, compiled: Callable[..., Any]) -> dict[str, Callable[[], Any]]:
    """Returns calls of the norm between two elementwise operations."""

    def between(x, r, w):
        s = x + r
        y = rms_norm(s, w, eps=block.EPS) if ours else functional.rms_norm(s, s.shape[-1:], w, block.EPS)
        return functional.silu(y) * r

    x, r, dy = (block.waves(*shape).bfloat16().roll(k, -1) for k in range(3))
    leaves = [t.requires_grad_() for t in (x, r, 1 + 0.1 * block.waves(shape[-1]).bfloat16())]
    f = compiled(between)

    def forward():
        with torch.no_grad():
            return f(*leaves)

    return {"forward": forward, "step": lambda: torch.autograd.grad(f(*leaves), leaves, dy)}


def measured(make: Callable[..., dict[str, Callable[[], Any]]], shape: tuple[int, ...]) -> dict[str, Any]:
    """Returns microseconds on the wall and on the GPU of each pass and contender, and the failures.

    A contender is timed on the wall before the next is compiled: Dynamo keeps the program of a function, not its mode.
    """
    us: dict[str, dict[str, dict[str, float]]] = {"wall": {}, "gpu": {}}
    failed, graphs = {}, {}
    for name in CONTENDERS:
        torch._dynamo.reset()
        operators.show_launches(name == "visible")
        whole = partial(torch.compile, fullgraph=True, dynamic=False)
        try:
            for which, call in make(shape, name != "inductor", whole if name != "launches" else lambda f: f).items():
                for _ in range(3):
                    call()
                timed = partial(block.timed, steps=block.repeats({name: call}))
                us["wall"].setdefault(which, {}).update(report.turns({name: call}, TURNS, timed))
                graphs.setdefault(which, {})[name] = report.captured(call, torch.cuda.Stream())
        except Exception as problem:
            failed[name] = block.reason(problem)
    operators.show_launches(False)
    for which, each in graphs.items():
        calls = {name: graph.replay for name, graph in each.items()}
        us["gpu"][which] = report.turns(calls, TURNS, partial(block.timed, steps=block.repeats(calls)))
    return {"us": us, "failed": failed}


def main() -> None:
    """Measures all sizes and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path, required=True, help="file for the record")
    path = parser.parse_args().json
    record: dict[str, Any] = {"device": report.device("kernels.bench.compiled")}
    torch._functorch.config.enable_autograd_cache = False  # it knows the operators and not their launches
    for kind, make, shapes in (("block", of_block, BLOCKS), ("norm", of_norm, NORMS)):
        for shape in shapes:
            found = record[f"{kind} {'x'.join(map(str, shape))}"] = measured(make, shape)
            path.write_text(json.dumps(record, indent=1) + "\n")
            for clock, passes in found["us"].items():
                for which, times in passes.items():
                    figures = "  ".join(f"{name} {t:8.1f}" for name, t in times.items())
                    print(f"{kind:6}{'x'.join(map(str, shape)):12}{which:8} {clock:5} {figures}")
            for name, why in found["failed"].items():
                print(f"{kind:6}{'x'.join(map(str, shape)):12}{name} failed: {why}")


if __name__ == "__main__":
    main()
