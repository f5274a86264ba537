"""Measures a decoder block, forward and backward, with these kernels and with PyTorch's and Liger's, in one run.

    python -m kernels.bench.block [--size 4x2048 ...] [--block rms+swiglu ...] [--seconds 100] [--json PATH]

The block is a decoder block with a linear layer in the place of attention. From the output x of the previous block and
the residual stream r it computes s = r + x, t = s + linear(norm(s)) and out = MLP(norm(t)), and returns (out, t). It is
bfloat16, 2,048 features wide and 5,632 inside (--width, --inner). "rms+swiglu" has RMS norm and SwiGLU, "layer+geglu"
layer norm and GEGLU of the tanh form.

Each contender has the weight layout that suits it: ours one packed projection to both halves, the others two. All are
functions without modules. "ours" has this package's, "eager" PyTorch's, "compile" is torch.compile of the latter,
"liger" has liger_kernel's if that package is installed, and "ours compiled" is torch.compile of ours. "ours fused" uses
linear_geglu; SwiGLU has no such kernel.

Wall: time per step, from several steps with one wait at the end; the median over rounds in which contenders take turns.
GPU: the same of a CUDA graph of one step. Error: the norm of the difference to the same block in float64, relative to
the norm of the latter, at a small size. It is printed for out + t, for x's gradient (equal to r's), and for the worst
gradient of a parameter. A contender that fails has one line with the reason. After --seconds nothing new is begun.
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import time

import torch
from torch import Tensor
from torch.nn import functional

from kernels.bench import report
from kernels.geglu import geglu
from kernels.launch import INTERPRETED
from kernels.layer_norm import layer_norm_residual
from kernels.linear_geglu import linear_geglu
from kernels.rms_norm import rms_norm_residual
from kernels.swiglu import swiglu

BLOCKS = ("rms+swiglu", "layer+geglu")
CONTENDERS = ("ours", "eager", "compile", "liger", "ours compiled", "ours fused")
SIZES = ("1x512", "4x2048", "8x8192")
EPS = 1e-5


def parameters(block: str, width: int, inner: int, dtype: torch.dtype, device: str) -> dict[str, Tensor]:
    """Returns weights of ordinary sizes, the same for all contenders."""
    torch.manual_seed(0)
    shapes = {"mix": (width, width), "gate": (inner, width), "up": (inner, width), "down": (width, inner)}
    made = {name: torch.randn(shape) * shape[1] ** -0.5 for name, shape in shapes.items()}
    for name in ("first", "second"):
        made[name] = 1 + 0.1 * torch.randn(width)
        if block == "layer+geglu":
            made[f"{name} bias"] = 0.1 * torch.randn(width)
    return {name: t.to(device, dtype) for name, t in made.items()}


def plain(block: str):
    """Returns the block in PyTorch's functions, for any dtype."""

    def norm(x, p, name):
        if block == "rms+swiglu":
            return functional.rms_norm(x, x.shape[-1:], p[name], EPS)
        return functional.layer_norm(x, x.shape[-1:], p[name], p[f"{name} bias"], EPS)

    def act(gate):
        return functional.silu(gate) if block == "rms+swiglu" else functional.gelu(gate, approximate="tanh")

    def step(x, r, p):
        s = r + x
        t = s + functional.linear(norm(s, p, "first"), p["mix"])
        y = norm(t, p, "second")
        return functional.linear(act(functional.linear(y, p["gate"])) * functional.linear(y, p["up"]), p["down"]), t

    return step


def liger(block: str):
    """Returns the block in the functions of liger_kernel."""
    from liger_kernel.ops.geglu import LigerGELUMulFunction
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    try:
        from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction as Fused
    except ImportError:
        Fused = None
    rms = block == "rms+swiglu"

    def norm(x, r, p, name):
        if rms and Fused is not None:
            return Fused.apply(x, r, p[name], EPS)
        s = r + x
        if rms:
            return LigerRMSNormFunction.apply(s, p[name], EPS), s
        return LigerLayerNormFunction.apply(s, p[name], p[f"{name} bias"], EPS), s

    def step(x, r, p):
        y, s = norm(x, r, p, "first")
        y, t = norm(functional.linear(y, p["mix"]), s, p, "second")
        gate, up = functional.linear(y, p["gate"]), functional.linear(y, p["up"])
        act = LigerSiLUMulFunction if rms else LigerGELUMulFunction
        return functional.linear(act.apply(gate, up), p["down"]), t

    return step


def ours(block: str, fused: bool):
    """Returns the block in this package's functions; `up` and `gate` are one weight, "both"."""
    rms = block == "rms+swiglu"

    def norm(x, r, p, name):
        if rms:
            return rms_norm_residual(x, r, p[name], eps=EPS)
        return layer_norm_residual(x, r, p[name], p[f"{name} bias"], eps=EPS)

    def step(x, r, p):
        y, s = norm(x, r, p, "first")
        y, t = norm(functional.linear(y, p["mix"]), s, p, "second")
        if fused:
            return functional.linear(linear_geglu(y, p["both"], approximate="tanh"), p["down"]), t
        both = functional.linear(y, p["both"])
        return functional.linear(swiglu(both) if rms else geglu(both, "tanh"), p["down"]), t

    return step


def made(contender: str, block: str, p: dict[str, Tensor]):
    """Returns a function of x and r, its leaves by name, and a function that names their gradients as `parameters`
    does.
    """
    leaves, named = {name: t.clone() for name, t in p.items()}, dict
    if contender.startswith("ours"):
        leaves["both"] = torch.cat((leaves.pop("up"), leaves.pop("gate")))
        step = ours(block, contender == "ours fused")

        def named(found):
            up, gate = found["both"].chunk(2)
            return found | {"up": up, "gate": gate}
    else:
        step = liger(block) if contender == "liger" else plain(block)
    if contender in ("compile", "ours compiled"):
        step = torch.compile(step, dynamic=False)
    for leaf in leaves.values():
        leaf.requires_grad_()
    return lambda x, r: step(x, r, leaves), leaves, named


def error(got: Tensor, want: Tensor) -> float:
    """Returns the norm of the difference relative to the norm of `want`."""
    return ((got.double() - want).norm() / want.norm()).item()


def errors(contender: str, block: str, rows: int, width: int, inner: int, dtype, device: str) -> dict[str, float]:
    """Returns relative errors of out + t, of dx, and of the worst of the parameters' gradients."""
    torch.compiler.reset()
    p = parameters(block, width, inner, dtype, device)
    x, r, *upstream = (torch.randn(rows, width).to(device, dtype) for _ in range(4))
    exact = {name: t.double().requires_grad_() for name, t in p.items()}
    x64 = x.double().requires_grad_()
    want = plain(block)(x64, r.double(), exact)
    wanted = torch.autograd.grad(want, [x64, *exact.values()], [t.double() for t in upstream])
    function, leaves, name_of = made(contender, block, p)
    x, r = x.requires_grad_(), r.requires_grad_()
    got = function(x, r)
    found = torch.autograd.grad(got, [x, *leaves.values()], [t.clone() for t in upstream])
    named = name_of(dict(zip(leaves, found[1:], strict=True)))
    of_parameters = [error(named[name], t) for name, t in zip(exact, wanted[1:], strict=True)]
    sums = [sum(t.detach().double() for t in outputs) for outputs in (got, want)]
    return {"y": error(*sums), "dx": error(found[0], wanted[0]), "parameters": max(of_parameters)}


def waves(*shape: int) -> Tensor:
    """Returns numbers between -1.5 and 1.5 without a generator: a failed capture leaves the device's generator
    unusable.
    """
    places = torch.arange(math.prod(shape), device="cuda", dtype=torch.float32)
    return (places * 0.7548776662).sin_().add_((places * 0.5698402910).cos_(), alpha=0.5).to(torch.bfloat16).view(shape)


def timed(call, steps: int) -> float:
    """Returns milliseconds per call, with one wait at the end."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps * 1e3


def times(block: str, size: str, width: int, inner: int, names: list[str], until: float) -> list[dict]:
    """Returns a row per contender: milliseconds of a step, wall and GPU, or the reason why it failed."""
    torch.compiler.reset()  # each shape gets its own code, not one of many guarded variants
    batch, length = map(int, size.split("x"))
    p = parameters(block, width, inner, torch.bfloat16, "cuda")
    shape = (batch, length, width)
    x, r, *upstream = (waves(*shape).roll(k, -1) for k in range(4))
    x, r = x.requires_grad_(), r.requires_grad_()
    rows, steps, graphs = {name: {"block": block, "size": size, "contender": name} for name in names}, {}, {}
    for name in names:
        if time.monotonic() > until:
            rows[name]["failed"] = "no time was left"
            continue
        try:
            function, leaves, _ = made(name, block, p)
            wanted = [x, r, *leaves.values()]
            steps[name] = lambda f=function, w=wanted: torch.autograd.grad(f(x, r), w, upstream)
            for _ in range(3):
                steps[name]()
            torch.cuda.synchronize()
        except Exception as problem:
            rows[name]["failed"] = reason(problem)
            steps.pop(name, None)
    one = min((timed(step, 3) for step in steps.values()), default=1.0)
    count = max(3, min(50, int(60 / one)))
    for name, step in steps.items():
        try:
            graphs[name] = report.captured(step, torch.cuda.Stream())
        except Exception as problem:
            rows[name]["gpu failed"] = reason(problem)
    found = {name: ([], []) for name in steps}
    for turn in range(7):
        for name in list(steps)[:: 1 if turn % 2 else -1]:
            found[name][0].append(timed(steps[name], count))
            if name in graphs:
                found[name][1].append(timed(graphs[name].replay, count))
    for name, (wall, gpu) in found.items():
        rows[name] |= {"wall_ms": statistics.median(wall), "gpu_ms": statistics.median(gpu) if gpu else None}
    steps.clear()
    graphs.clear()
    gc.collect()
    torch.cuda.empty_cache()
    return list(rows.values())


def reason(problem: Exception) -> str:
    """Returns the first line of an error."""
    return f"{type(problem).__name__}: {str(problem).strip().splitlines()[0] if str(problem).strip() else ''}"[:160]


def contenders(block: str, names: list[str]) -> list[str]:
    """Returns the names that the block has: only "layer+geglu" has "ours fused"."""
    return [name for name in names if name != "ours fused" or block == "layer+geglu"]


def accuracy(block: str, names: list[str], small: dict) -> list[dict]:
    """Returns a row of errors per contender."""
    found = []
    for name in names:
        row = {"block": block, "contender": name}
        try:
            row |= {"errors": errors(name, block, **small)}
        except Exception as problem:
            row["failed"] = reason(problem)
        found.append(row)
    return found


def line(row: dict) -> str:
    """Returns a row as text."""
    head = f"{row['block']:12} {row.get('size', ''):7} {row['contender']:14}"
    if "failed" in row:
        return f"{head} failed: {row['failed']}"
    if "errors" in row:
        return head + "".join(f"  {name} {value:.2e}" for name, value in row["errors"].items())
    gpu = f"{row['gpu_ms']:9.3f} ms" if row["gpu_ms"] else f"not captured: {row['gpu failed']}"
    return f"{head} wall {row['wall_ms']:9.3f} ms  GPU {gpu}"


def main(arguments: list[str] | None = None) -> list[dict]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", nargs="*", default=list(SIZES), help="batch x sequence")
    parser.add_argument("--block", nargs="+", default=list(BLOCKS), choices=BLOCKS)
    parser.add_argument("--contender", nargs="+", default=list(CONTENDERS), choices=CONTENDERS)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--inner", type=int, default=5632)
    parser.add_argument("--rows", type=int, default=256, help="of the small size that errors are measured on")
    parser.add_argument("--seconds", type=float, default=100, help="begin nothing new after this time")
    parser.add_argument("--json", default=None, help="default: $OUT/block.json if OUT is set")
    options = parser.parse_args(arguments)
    until = time.monotonic() + options.seconds
    cpu = INTERPRETED and not torch.cuda.is_available()  # errors only: times of an interpreter mean nothing
    device = "cpu, interpreted" if cpu else report.device("kernels.bench.block")
    print(f"{device}; width {options.width}, inner {options.inner}, bfloat16")
    small = {"rows": options.rows, "width": options.width, "inner": options.inner}
    small |= {"dtype": torch.bfloat16, "device": "cpu" if cpu else "cuda"}
    table = []
    for block in options.block:
        rows = accuracy(block, contenders(block, options.contender), small)
        print("\n".join(map(line, rows)), flush=True)
        table += rows
    for size in [] if cpu else options.size:
        for block in options.block:
            rows = times(block, size, options.width, options.inner, contenders(block, options.contender), until)
            print("\n".join(map(line, rows)), flush=True)
            table += rows
    report.save(options.json, "block", device=device, width=options.width, inner=options.inner, rows=table)
    return table


if __name__ == "__main__":
    main()
