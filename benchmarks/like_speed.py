"""What the truth of a large PyTorch program costs on a GPU: python -m benchmarks.like_speed [--json PATH]

Causal attention, forward and backward, bfloat16: `truth` are intervals of every element of the output and of three
gradients, `judged` the largest error that each of PyTorch's own results can have by them. One element of a gradient at
this size depends on four million scores. docs/like-tables.md measures what Arb computes of single elements, at smaller
sizes.
`first` includes what is done once for a shape: the program is followed, and kernels are loaded.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812

from verify import backends
from verify.ops.graph.like import Definition
from verify.ops.op import Problem
from verify.records.files import write_atomically
from verify.truth.fast import evaluate
from verify.truth.formats import named
from verify.truth.ulp import Policy, errors

SHAPE = (4, 16, 2048, 128)  # batch, heads, positions of queries and of keys, channels
RESULTS = ("y", "dq", "dk", "dv")


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def measured(shape: tuple[int, ...], device: str) -> dict[str, Any]:
    made = torch.Generator(device).manual_seed(0)
    q, k, v, dy = (torch.randn(shape, generator=made, device=device).bfloat16() for _ in range(4))
    leaves = [each.clone().requires_grad_() for each in (q, k, v)]
    y = causal(*leaves)
    got = dict(zip(RESULTS, (y.detach(), *torch.autograd.grad(y, leaves, dy)), strict=True))
    op = Definition(causal, ("q", "k", "v"), shapes=dict.fromkeys("qkv", "b h t c")).op()
    problem = Problem({"q": q, "k": k, "v": v}, {}, {"y": dy}, RESULTS)
    bfloat16 = named("bfloat16")

    def timed(call: Callable[[], Any]) -> tuple[float, Any]:
        begun = time.perf_counter()
        found = call()
        if device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter() - begun, found

    def judge(truths: Any) -> dict[str, float]:
        found = {}
        for name in RESULTS:
            near = truths[name].for_result(got[name])
            how = {"low": near.low, "bound": near.bound, "scale": near.unit(op.gate, 1 / 16), "policy": Policy()}
            each = errors(got[name], near.value, bfloat16, **how)
            assert each.scaled is not None and each.scaled_width is not None
            found[name] = float((each.scaled.abs() + each.scaled_width).max())
        return found

    seconds: dict[str, Any] = {}
    for turn in ("first", "again"):
        truth_s, truths = timed(lambda: evaluate(op, problem, dict.fromkeys(RESULTS, bfloat16)))
        judged_s, largest = timed(functools.partial(judge, truths))
        seconds[turn] = {"truth": truth_s, "judged": judged_s}
    memory = 0 if device == "cpu" else torch.cuda.max_memory_allocated() / 2**30
    return {"shape": shape, "seconds": seconds, "times_noise": largest, "GiB": memory}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--shape", type=int, nargs=4, default=SHAPE)
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    backend = backends.select()
    backends.activate(backend)
    where = torch.cuda.get_device_name() if backend.name == "cuda" else "CPU"
    found = {"device": f"{where}, torch {torch.__version__}", "attention": measured(tuple(given.shape), backend.device)}
    print(json.dumps(found, indent=1))
    if given.json:
        write_atomically(given.json, (json.dumps(found, indent=1) + "\n").encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
