"""Measures PyTorch's own results in several forms of its CPU code, in units of the noise, for docs/limits.md.

The same PyTorch adds up in other orders on other processors. Environment variables make several of these forms run on
one processor. Each form runs in a process of its own.

    python -m benchmarks.forms docs/limits.md      one to five minutes; writes the table there
    python -m benchmarks.forms                     prints it
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.like_rules import write
from verify.measure.budget import Effort
from verify.measure.judge import JudgedBy, judge_by
from verify.ops.graph.like import Definition
from verify.ops.op import Problem
from verify.records.record import value_of
from verify.truth.fast import evaluate
from verify.truth.formats import named

FORMS: dict[str, dict[str, str]] = {
    "as it is": {},
    "ATEN_CPU_CAPABILITY=default": {"ATEN_CPU_CAPABILITY": "default"},
    "ATEN_CPU_CAPABILITY=avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "DNNL_MAX_CPU_ISA=SSE41": {"DNNL_MAX_CPU_ISA": "SSE41"},
    "DNNL_MAX_CPU_ISA=AVX2": {"DNNL_MAX_CPU_ISA": "AVX2"},
    "MKL_CBWR=COMPATIBLE": {"MKL_CBWR": "COMPATIBLE"},
}
ULP, NOISE = 4.0, 8.0  # the limits of float32
Programs = dict[str, tuple[Callable[..., Tensor], list[tuple[int, ...]]]]


def _by_hand(x: Tensor) -> Tensor:
    grown = torch.exp(x - x.amax(-1, keepdim=True))
    return grown / grown.sum(-1, keepdim=True)


PROGRAMS: Programs = {
    "convolution 3 x 3, 16 channels": (
        lambda x, w: functional.conv2d(x, w, padding=1),
        [(2, 16, 20, 20), (16, 16, 3, 3)],
    ),
    "convolution 3 x 3, 128 channels": (
        lambda x, w: functional.conv2d(x, w, padding=1),
        [(1, 128, 28, 28), (128, 128, 3, 3)],
    ),
    "convolution 5 x 5": (lambda x, w: functional.conv2d(x, w, padding=2), [(1, 32, 24, 24), (32, 32, 5, 5)]),
    "convolution 7 x 7": (lambda x, w: functional.conv2d(x, w, padding=3), [(1, 8, 32, 32), (8, 8, 7, 7)]),
    "convolution of lines, 31": (lambda x, w: functional.conv1d(x, w, padding=15), [(2, 16, 256), (16, 16, 31)]),
    "product, K = 131,072": (lambda x, w: x @ w, [(2, 131072), (131072, 2)]),
    "sum of 131,072": (lambda x: x.sum(-1), [(4, 131072)]),
    "cross entropy, 50,257": (lambda x: functional.cross_entropy(x, torch.arange(4)), [(4, 50257)]),
    "softmax, 8,192": (lambda x: functional.softmax(x, -1), [(8, 8192)]),
    "softmax by hand, 8,192": (_by_hand, [(8, 8192)]),
    "layer norm, 257 x 1,024": (lambda x: functional.layer_norm(x, x.shape[-1:]), [(257, 1024)]),
    "attention": (functional.scaled_dot_product_attention, [(1, 2, 128, 64)] * 3),
    "interpolation x 3": (lambda x: functional.interpolate(x, scale_factor=3.0, mode="bilinear"), [(1, 2, 32, 32)]),
}
_DEFINITIONS = {"softmax by hand, 8,192": lambda x: functional.softmax(x, -1)}


def figures(name: str) -> dict[str, float]:
    """Returns the largest error of each float32 result of PyTorch, in units of noise beyond half a ULP."""
    function, shapes = PROGRAMS[name]
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    y = function(*values)
    upstream = torch.randn(y.shape, generator=generator)
    names = [f"x{place}" for place in range(len(values))]
    gradients = torch.autograd.grad(y, values, upstream)
    results = {"y": y.detach()} | {f"d{each}": found for each, found in zip(names, gradients, strict=True)}
    inputs = {each: value.detach() for each, value in zip(names, values, strict=True)}

    def definition(*given: Tensor) -> Any:
        return _DEFINITIONS.get(name, function)(*given)

    op = Definition(definition, names, examples=[tuple(inputs.values())]).op()
    problem = Problem(inputs=inputs, upstream={"y": upstream}, results=tuple(results))
    fmt, floor, found = named("float32"), (ULP - 0.5) / NOISE, {}
    truths = evaluate(op, problem, dict.fromkeys(results, fmt))
    for result, got in results.items():
        by = JudgedBy(op, problem, result, truths[result], fmt, floor=floor).with_noise_again(got)
        judged = judge_by(by, got, effort=Effort(sample=0, keep=0, open_limit=0, rounds=0))
        upper = judged.tallies[0].figures().scaled_upper
        found[result] = math.nan if upper is None else value_of(upper)
    return found


def _in_this_form() -> None:
    """Prints the largest figure of each program as JSON."""
    torch.set_num_threads(1)
    print(json.dumps({name: max(figures(name).values()) for name in PROGRAMS}))


def table() -> str:
    """Returns the table: programs, and the largest figure of each form."""
    found = {}
    for form, variables in FORMS.items():
        command = [sys.executable, "-c", "from benchmarks import forms; forms._in_this_form()"]
        done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=True)
        found[form] = json.loads(done.stdout.splitlines()[-1])
    lines = ["| PyTorch's own results in float32 | least | largest of the forms, limit 8 |", "|---|---|---|"]
    for name in PROGRAMS:
        each = [figures[name] for figures in found.values()]
        lines.append(f"| {name} | {min(each):.2g} | {max(each):.2g} |")
    return "\n".join(lines)


def main() -> None:
    """Writes the table into the page that the command names, or prints it."""
    made = table()
    if len(sys.argv) > 1:
        write(Path(sys.argv[1]), "forms", made + "\n")
    else:
        print(made)


if __name__ == "__main__":
    main()
