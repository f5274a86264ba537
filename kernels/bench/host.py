"""The public functions and their peers at one size, and the host's time of a call.

`everything.py` runs it: a row of its group "host" is the wall time of a call in microseconds, the median over rounds of
ten calls without a wait, where contenders take turns. "forward" needs no gradients. "step" is a forward pass that
records, and its backward pass. "backward" is that backward pass alone. `Bare` is the least cost of a function in
Triton: one output, one launch of a compiled kernel each way, one autograd.Function.

Peers: PyTorch eager, and the Triton kernels of Liger if that package is installed.
"""

from __future__ import annotations

import cProfile
import pstats
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
import triton
import triton.language as tl

from kernels.bench import report
from kernels.geglu import _Overwriting, geglu, geglu_split
from kernels.gelu import gelu, gelu_backward
from kernels.layer_norm import layer_norm, layer_norm_residual, layer_norm_residual_bias
from kernels.linear_act import linear_act, linear_data_grad
from kernels.linear_geglu import linear_geglu
from kernels.rms_norm import rms_norm, rms_norm_gated, rms_norm_residual
from kernels.swiglu import swiglu, swiglu_split

try:
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction
    from liger_kernel.ops.geglu import LigerGELUMulFunction
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction
except Exception:  # an import that fails for any reason leaves its peer out
    LigerGELUMulFunction = LigerLayerNormFunction = LigerRMSNormFunction = LigerSiLUMulFunction = None

CALLS = 10  # in a round
PASSES = ("forward", "step", "backward")


@triton.jit
def _copy_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)


def _copied(x):
    y = torch.empty_like(x)
    _copy_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y


class Bare(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return _copied(x)

    @staticmethod
    def backward(ctx, dy):
        ctx.saved_tensors  # noqa: B018 (what every function does)
        return _copied(dy)


def _geglu_eager(x1, x2):
    return x1 * F.gelu(x2)


def _swiglu_eager(x1, x2):
    return x1 * F.silu(x2)


def _rms_eager(x, weight):
    return F.rms_norm(x, weight.shape, weight, 1e-6)


def _norm_eager(x, weight, bias):
    return F.layer_norm(x, weight.shape, weight, bias)


def _residual_eager(x, residual, weight, bias):
    s = x + residual
    return _norm_eager(s, weight, bias), s


def problems(m: int, n: int) -> dict[str, tuple[list[tuple[int, ...]], dict[str, Callable]]]:
    """Returns name -> (shapes of its arguments, contenders), for m rows of n numbers; "eager" is compiled too."""
    row, vector, square = (m, n), (n,), (n, n)
    act = partial(linear_act, activation="gelu")
    table = {
        "gelu": ([row], {"ours": gelu, "eager": F.gelu}),
        "gelu tanh": (
            [row],
            {"ours": partial(gelu, approximate="tanh"), "eager": partial(F.gelu, approximate="tanh")},
        ),
        "gelu_backward": ([row, row], {"ours": gelu_backward, "eager": torch.ops.aten.gelu_backward}),
        "geglu": ([(m, 2 * n)], {"ours": geglu, "eager": lambda x: _geglu_eager(*x.chunk(2, -1))}),
        "geglu_split": ([row, row], {"ours": geglu_split, "eager": _geglu_eager}),
        "geglu_split tanh": (
            [row, row],
            {
                "ours": partial(geglu_split, approximate="tanh"),
                "eager": lambda a, b: a * F.gelu(b, approximate="tanh"),
            },
        ),
        "swiglu": ([(m, 2 * n)], {"ours": swiglu, "eager": lambda x: _swiglu_eager(*x.chunk(2, -1))}),
        "swiglu_split": ([row, row], {"ours": swiglu_split, "eager": _swiglu_eager}),
        "rms_norm": ([row, vector], {"ours": rms_norm, "eager": _rms_eager}),
        "rms_norm_residual": (
            [row, row, vector],
            {"ours": rms_norm_residual, "eager": lambda x, r, w: (_rms_eager(x + r, w), x + r)},
        ),
        "rms_norm_gated": (
            [row, row, vector],
            {"ours": rms_norm_gated, "eager": lambda x, z, w: _rms_eager(x, w) * F.silu(z)},
        ),
        "layer_norm": ([row, vector, vector], {"ours": layer_norm, "eager": _norm_eager}),
        "layer_norm_residual": ([row, row, vector, vector], {"ours": layer_norm_residual, "eager": _residual_eager}),
        "layer_norm_residual_bias": (
            [row, row, vector, vector, vector],
            {"ours": layer_norm_residual_bias, "eager": lambda x, r, i, w, b: _residual_eager(x + i, r, w, b)},
        ),
        "linear_act": ([row, square, vector], {"ours": act, "eager": lambda x, w, b: F.gelu(F.linear(x, w, b))}),
        "linear_act id": ([row, square, vector], {"ours": linear_act, "eager": F.linear}),
        "linear_act recomputed": ([row, square, vector], {"ours": partial(act, recompute=True)}),
        "linear_data_grad": (
            [row, square, row],
            {
                "ours": partial(linear_data_grad, activation="gelu"),
                "eager": lambda dy, w, pre: torch.ops.aten.gelu_backward(dy @ w, pre),
            },
        ),
        "linear_geglu": (
            [row, (2 * n, n), (2 * n,)],
            {"ours": linear_geglu, "eager": lambda x, w, b: _geglu_eager(*F.linear(x, w, b).chunk(2, -1))},
        ),
    }

    def liger_residual(x, residual, weight, bias):
        s = x + residual
        return LigerLayerNormFunction.apply(s, weight, bias, 1e-5), s

    # on leaves, as Liger's, whose numbers change from step to step
    table["geglu_split tanh"][1]["in place"] = lambda *x: _Overwriting.apply("geglu_split", *x, "tanh", True)
    table["swiglu_split"][1]["in place"] = lambda *x: _Overwriting.apply("swiglu_split", *x, "silu", True)
    if LigerLayerNormFunction is not None:
        table["layer_norm"][1]["liger"] = lambda x, w, b: LigerLayerNormFunction.apply(x, w, b, 1e-5)
        table["geglu_split tanh"][1]["liger"] = lambda a, b: LigerGELUMulFunction.apply(b, a)
        table["rms_norm"][1]["liger"] = lambda x, w: LigerRMSNormFunction.apply(x, w, 1e-6)
        table["swiglu_split"][1]["liger"] = lambda a, b: LigerSiLUMulFunction.apply(b, a)
        table["swiglu"][1]["liger"] = lambda x: LigerSiLUMulFunction.apply(*x.chunk(2, -1)[::-1])
        table["layer_norm_residual"][1]["liger"] = liger_residual
        table["layer_norm_residual_bias"][1]["liger"] = lambda x, r, i, w, b: liger_residual(x + i, r, w, b)
        table["rms_norm_residual"][1]["liger"] = lambda x, r, w: LigerFusedAddRMSNormFunction.apply(x, r, w, 1e-6)
    return table


def passes(function: Callable, arguments: list[torch.Tensor], gradients: bool = True) -> dict[str, Callable]:
    """Returns the calls to time, by name: only the forward pass if there are no gradients."""
    if not gradients:
        return {"forward": lambda: function(*arguments)}

    def outputs(leaves):
        y = function(*leaves)
        return [o for o in (y if isinstance(y, tuple) else (y,)) if o.requires_grad]

    # A step has its own leaves: the graph of `kept` ties its leaves to the stream that made it.
    once, leaves = ([t.detach().requires_grad_() for t in arguments] for _ in range(2))
    kept = outputs(once)
    # not ones: a matrix unit that multiplies equal numbers takes less power, so the GPU runs faster
    upstream = [torch.arange(o.numel(), device=o.device).float().sin_().to(o.dtype).view(o.shape) for o in kept]
    return {
        "forward": lambda: function(*arguments),
        "step": lambda: torch.autograd.grad(outputs(leaves), leaves, upstream),
        "backward": lambda: torch.autograd.grad(kept, once, upstream, retain_graph=True),
    }


def host_times(calls: dict[str, Callable], rounds: int) -> dict[str, float]:
    """Returns microseconds of wall time of each call, in turns; the queue is empty at the start and never full."""

    def timed(call: Callable) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        return (time.perf_counter() - start) / CALLS * 1e6

    return report.turns(calls, rounds, timed, skip=3)


def profiled(call: Callable) -> dict[str, float]:
    """Returns microseconds of the host that a call spends in each function itself, under the profiler; the most first.

    "all" is the sum. The engine runs C++ and the backward functions: those in Python have lines of their own.
    """
    profile = cProfile.Profile()
    for _ in range(20):
        call()
    torch.cuda.synchronize()
    profile.enable()
    for _ in range(100):
        call()
    profile.disable()
    torch.cuda.synchronize()
    found = {"all": 0.0}
    for (path, line, name), (_, _, own, _, _) in pstats.Stats(profile).stats.items():
        at = f"{'/'.join(path.split('/')[-2:])}:{line} {name}" if line else name
        found[at] = found.get(at, 0.0) + own / 100 * 1e6
        found["all"] += own / 100 * 1e6
    return dict(sorted(found.items(), key=lambda item: -item[1])[:40])
