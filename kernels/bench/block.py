"""A decoder block, forward and backward, in these kernels and in PyTorch's and Liger's; everything.py measures it.

The block is a decoder block with a linear layer in the place of attention. From the output x of the previous block and
the residual stream r it computes s = r + x, t = s + linear(norm(s)) and out = MLP(norm(t)), and returns (out, t). It is
bfloat16, 2,048 features wide and 5,632 inside. "rms+swiglu" has RMS norm and SwiGLU, "layer+geglu" layer norm and GEGLU
of the tanh form.

Each contender has the weight layout that suits it: ours one packed projection to both halves, the others two. All are
functions without modules. "ours" has this package's, "eager" PyTorch's, "liger" has liger_kernel's if that package is
installed. "ours fused" uses linear_geglu; SwiGLU has no such kernel.

step: wall time, from several steps with one wait at the end; the median over rounds where contenders take turns.
gpu: the same of a CUDA graph of one step. Errors: the norm of the difference to the same block in float64, relative to
the norm of the latter, of 256 rows. They are of out + t, of x's gradient (equal to r's), and of the worst gradient of a
parameter.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from kernels.bench import host, report
from kernels.geglu import geglu
from kernels.layer_norm import layer_norm_residual
from kernels.linear_geglu import linear_geglu
from kernels.rms_norm import rms_norm_residual
from kernels.swiglu import swiglu

CONTENDERS = ("ours", "eager", "liger", "ours fused")
WIDTH, INNER = 2048, 5632
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
    for leaf in leaves.values():
        leaf.requires_grad_()
    return lambda x, r: step(x, r, leaves), leaves, named


def error(got: Tensor, want: Tensor) -> float:
    """Returns the norm of the difference relative to the norm of `want`."""
    return ((got.double() - want).norm() / want.norm()).item()


def errors(contender: str, block: str, rows: int, width: int, inner: int, dtype, device: str) -> dict[str, float]:
    """Returns relative errors of out + t, of dx, and of the worst of the parameters' gradients."""
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
    return (places * 0.7548776662).sin_().add_((places * 0.5698402910).cos_(), alpha=0.5).view(shape)


def timed(call: Callable[[], Any], steps: int) -> float:
    """Returns microseconds per call, with one wait at the end."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps * 1e6


def repeats(calls: dict[str, Callable[[], Any]]) -> int:
    """Returns the number of calls of the fastest that take 60 ms, from 3 to 50."""
    return max(3, min(50, int(6e4 / min((timed(call, 3) for call in calls.values()), default=1e4))))


def reason(problem: Exception) -> str:
    """Returns the first line of an error."""
    return f"{type(problem).__name__}: {str(problem).strip().splitlines()[0] if str(problem).strip() else ''}"[:160]


def steps(block: str, shape: tuple[int, ...], failed: dict[str, str]) -> dict[str, Callable[[], Any]]:
    """Returns a step of each contender; each ran three times. Names failures in `failed`."""
    p = parameters(block, WIDTH, INNER, torch.bfloat16, "cuda")
    x, r, *upstream = (waves(*shape, WIDTH).bfloat16().roll(k, -1) for k in range(4))
    x, r = x.requires_grad_(), r.requires_grad_()
    found = {}
    for name in CONTENDERS[: 4 if block == "layer+geglu" else 3]:
        try:
            function, leaves, _ = made(name, block, p)
            wanted = [x, r, *leaves.values()]
            call = lambda f=function, w=wanted: torch.autograd.grad(f(x, r), w, upstream)  # noqa: E731
            for _ in range(3):
                call()
            found[name] = call
        except Exception as problem:
            failed[name] = reason(problem)
    torch.cuda.synchronize()
    return found


def measured(block: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """Returns microseconds of a step, on the wall and on the GPU, errors, and where the host's time goes."""
    failed: dict[str, str] = {}
    calls, graphs = steps(block, shape, failed), {}
    count = repeats(calls)
    profile = {name: host.profiled(calls[name]) for name in ("ours", "eager") if name in calls and shape == (1, 512)}
    for name, call in calls.items():
        try:
            graphs[name] = report.captured(call, torch.cuda.Stream()).replay
        except Exception as problem:
            failed[f"{name} in a graph"] = reason(problem)
    both = {"step": calls, "gpu": graphs}
    found = {which: report.turns(each, 9, partial(timed, steps=count)) for which, each in both.items()}
    small = {n: errors(n, block, 256, WIDTH, INNER, torch.bfloat16, "cuda") for n in calls} if profile else {}
    calls.clear()
    graphs.clear()
    gc.collect()
    return {"us": found, "failed": failed, "errors": small, "profile": profile}
