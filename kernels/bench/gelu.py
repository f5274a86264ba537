"""Measures the speed of the GELU family and SwiGLU on one GPU, as a fraction of a copy of the same bytes.

    python -m kernels.bench.gelu                     2^27 elements, all dtypes, forms and distributions
    python -m kernels.bench.gelu --log2 28 --json out.json

1.00 means as fast as a `copy_` of the same number of bytes in the same run; each input is read once and each output
written once. A kernel can exceed 1.00 if it reads more than it writes, which memory does faster than a copy. All
contenders of a row take turns, and the figure is the ratio of medians over the rounds. Before every call 1 GiB is
written, which hides the launch and clears the cache. "liger" is liger_kernel's Triton kernel if that package is
installed (GEGLU of the tanh form, SwiGLU). There are three distributions, because arithmetic draws power and branches
depend on data: normal of standard deviation 1 and 3, and finite values of uniformly random bits.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable

import torch
import torch._dynamo
import torch._functorch.config
import torch.nn.functional as F  # noqa: N812

from kernels import geglu, gelu, gelu_compiled, gelu_cuda, swiglu
from kernels.bench import report

try:
    from liger_kernel.ops import geglu as liger
    from liger_kernel.ops import swiglu as liger_swiglu
except ImportError:
    liger = liger_swiglu = None

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DISTRIBUTIONS = ("normal 1", "normal 3", "bits")
WIDE = 1 << 13  # columns of one half of a packed GEGLU input
Runs = dict[str, Callable[[], object]]


def draw(n: int, dtype: torch.dtype, distribution: str) -> torch.Tensor:
    """Returns n numbers of a distribution."""
    if distribution != "bits":
        return (torch.randn(n, device="cuda") * float(distribution.split()[1])).to(dtype)
    integer = torch.int16 if dtype.itemsize == 2 else torch.int32
    x = torch.empty(n, dtype=integer, device="cuda").random_(-(2 ** (8 * dtype.itemsize - 1)), None).view(dtype)
    return x.masked_fill_(~x.isfinite(), 1.0)


def medians(calls: Runs, rounds: int) -> dict[str, float]:
    """Returns milliseconds of each call; all take turns."""
    spacer = torch.empty(1 << 30, dtype=torch.int8, device="cuda")
    for call in calls.values():
        call()
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        events = {}
        for name, call in calls.items():
            events[name] = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            spacer.zero_()
            events[name][0].record()
            call()
            events[name][1].record()
        torch.cuda.synchronize()
        for name, (start, end) in events.items():
            times[name].append(start.elapsed_time(end))
    return {name: statistics.median(t) for name, t in times.items()}


def eager_geglu(x: torch.Tensor, form: str) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return first * F.gelu(second, approximate=form)


def gradient(f: Callable, x: torch.Tensor, dy: torch.Tensor) -> Callable[[], object]:
    """Returns the backward pass of f alone, on a graph made once."""
    leaf = x.detach().requires_grad_()
    y = f(leaf)
    return lambda: torch.autograd.grad(y, leaf, dy, retain_graph=True)


def gelu_runs(form: str) -> Callable[[torch.Tensor, torch.Tensor], dict[str, Runs]]:
    compiled = torch.compile(lambda x: F.gelu(x, approximate=form), dynamic=False)

    def runs(x, dy):
        return {
            "forward": {
                "gelu": lambda: gelu.gelu(x, form),
                "gelu_cuda": lambda: gelu_cuda.gelu(x, form),
                "gelu_compiled": lambda: gelu_compiled.gelu(x, form),
                "eager": lambda: F.gelu(x, approximate=form),
                "torch.compile": lambda: compiled(x),
            },
            "backward": {
                "gelu": lambda: gelu.gelu_backward(dy, x, form),
                "gelu_cuda": lambda: torch.ops.precise_gelu_cuda.backward(dy, x, form),
                "gelu_compiled": gradient(lambda t: gelu_compiled.gelu(t, form), x, dy),
                "eager": lambda: torch.ops.aten.gelu_backward(dy, x, approximate=form),
                "torch.compile": gradient(compiled, x, dy),
            },
        }

    return runs


def geglu_runs(form: str) -> Callable[[torch.Tensor, torch.Tensor], dict[str, Runs]]:
    compiled = torch.compile(lambda x: eager_geglu(x, form), dynamic=False)

    def runs(x, dy):
        table: dict[str, Runs] = {
            "forward": {
                "geglu": lambda: geglu.geglu(x, form),
                "eager": lambda: eager_geglu(x, form),
                "torch.compile": lambda: compiled(x),
            },
            "backward": {
                "geglu": lambda: torch.ops.precise_geglu.packed_backward(dy, x, form, True),
                "eager": gradient(lambda t: eager_geglu(t, form), x, dy),
                "torch.compile": gradient(compiled, x, dy),
            },
        }
        if liger is not None and form == "tanh":
            # liger takes gelu of the first of two tensors, and overwrites them with their gradients
            b, a = (t.contiguous() for t in x.chunk(2, -1))
            table["forward"]["liger"] = lambda: liger.geglu_forward(a, b)
            table["backward"]["liger"] = lambda: liger.geglu_backward(a, b, dy)
        return table

    return runs


def swiglu_runs(_: str) -> Callable[[torch.Tensor, torch.Tensor], dict[str, Runs]]:
    """Returns the contenders on two tensors, as models call it."""

    def eager(first, second):
        return first * F.silu(second)

    compiled = torch.compile(eager, dynamic=False)

    def backward(f, operands, dy):
        leaves = [t.detach().requires_grad_() for t in operands]
        y = f(*leaves)
        return lambda: torch.autograd.grad(y, leaves, dy, retain_graph=True)

    def runs(x, dy):
        pair = [t.contiguous() for t in x.chunk(2, -1)]
        functions = {"swiglu": swiglu.swiglu_split, "eager": eager, "torch.compile": compiled}
        table: dict[str, Runs] = {
            "forward": {name: lambda f=f: f(*pair) for name, f in functions.items()},
            "backward": {name: backward(f, pair, dy) for name, f in functions.items()},
        }
        if liger_swiglu is not None:
            # liger takes silu of the first of two tensors, and overwrites them with their gradients
            b, a = (t.clone() for t in pair)
            table["forward"]["liger"] = lambda: liger_swiglu.swiglu_forward(a, b)
            table["backward"]["liger"] = lambda: liger_swiglu.swiglu_backward(a, b, dy)
        return table

    return runs


RUNS = {"gelu": gelu_runs, "geglu": geglu_runs, "swiglu": swiglu_runs}


def measure(
    log2: int, rounds: int, dtypes: list[str], functions: list[str], distributions: list[str]
) -> list[dict[str, object]]:
    """Returns a row per function, direction, dtype, form and distribution: the fraction of copy of each contender."""
    rows: list[dict[str, object]] = []
    n = 1 << log2
    gated = {"forward": 1.5, "backward": 2.5}
    tensors = {"gelu": {"forward": 2, "backward": 3}, "geglu": gated, "swiglu": gated}
    for name in dtypes:
        dtype = DTYPES[name]
        for form in ("none", "tanh"):
            for function in functions:
                if function == "swiglu" and form == "tanh":
                    continue  # swiglu has one form
                runs = RUNS[function](form)
                for distribution in distributions:
                    x, dy = draw(n, dtype, distribution), draw(n, dtype, "normal 1")
                    if function != "gelu":
                        x, dy = x.view(-1, 2 * WIDE), dy[: n // 2].view(-1, WIDE)
                    for direction, calls in runs(x, dy).items():
                        moved = int(tensors[function][direction] * n * dtype.itemsize)
                        source = torch.randn(moved // 8, device="cuda")
                        target = torch.empty_like(source)
                        times = medians({"copy": lambda s=source, t=target: t.copy_(s)} | calls, rounds)
                        row: dict[str, object] = {"function": function, "direction": direction, "dtype": name}
                        row |= {"form": form, "data": distribution, "elements": n}
                        row["copy_TBps"] = moved / times["copy"] / 1e9
                        row["of_copy"] = {k: times["copy"] / t for k, t in times.items() if k != "copy"}
                        rows.append(row)
                        print(text(row), flush=True)
                        del source, target
                    del x, dy, calls
    return rows


def text(row: dict) -> str:
    what = f"{row['function']:6}{row['direction']:9}{row['dtype']:9}{row['form']:5}{row['data']:9}"
    return what + "  ".join(f"{k} {v:.3f}" for k, v in row["of_copy"].items())


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Speed of the GELU family, as a fraction of copy.")
    parser.add_argument("--log2", type=int, default=27, help="elements, as a power of two")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--function", nargs="+", choices=RUNS, default=["gelu", "geglu"])
    parser.add_argument("--data", nargs="+", choices=DISTRIBUTIONS, default=list(DISTRIBUTIONS))
    parser.add_argument("--json", help="default: $OUT/gelu.json if OUT is set")
    options = parser.parse_args(arguments)
    device = report.device("kernels.bench.gelu")
    torch._functorch.config.donated_buffer = False  # a compiled backward is run several times on one graph
    torch._dynamo.config.recompile_limit = 64  # one compiled function sees three dtypes
    print(f"{device}: fractions of copy")
    rows = measure(options.log2, options.rounds, options.dtype, options.function, options.data)
    report.save(options.json, "gelu", device=device, rows=rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
