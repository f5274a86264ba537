"""Compares the speed of the fused linear kernels with cuBLAS, eager PyTorch and torch.compile, in one run.

    python -m kernels.bench.linear                              the table, on the current GPU
    python -m kernels.bench.linear --kind gelu --json out.json  one layer's half of it, and all times in a file
    python -m kernels.bench.linear --max-autotune               also torch.compile(mode="max-autotune")

Each line is one problem. It shows the median time over rounds in which all candidates take turns, and in parentheses
our time as a fraction of the candidate's, the median of the rounds' fractions: below 1 ours is faster. "cublas" is the
matrix product alone, without bias and activation; "product" is our product alone. The file is written again after every
line, so an interrupted run keeps the lines that it printed.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch
import torch._functorch.config
import torch.nn.functional as F  # noqa: N812

from kernels.bench import report
from kernels.linear_act import linear_act
from kernels.linear_geglu import linear_geglu

Candidates = dict[str, Callable[[], object]]
# rows of the weight: 4 x 4,096, and both halves of 11,008
COLUMNS = {"gelu": 16384, "geglu": 22016}
DTYPES = ("bfloat16", "float16")


def times_of(candidates: Candidates, rounds: int, calls: int) -> dict[str, list[float]]:
    """Returns milliseconds per call in each of `rounds`; all candidates take turns in a round."""
    for run in candidates.values():
        run()
        run()
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, run in candidates.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            run()  # not timed: the previous candidate left its data in L2
            start.record()
            for _ in range(calls):
                run()
            end.record()
            end.synchronize()
            times[name].append(start.elapsed_time(end) / calls)
    return times


def eager_gelu(x, weight, bias):
    return F.gelu(F.linear(x, weight, bias))


def eager_geglu(x, weight, bias):
    first, second = F.linear(x, weight, bias).chunk(2, -1)
    return first * F.gelu(second)


def problem(kind: str, dtype: torch.dtype, sizes: tuple[int, int, int], modes: dict) -> tuple[Candidates, ...]:
    """Returns candidates for the forward pass (no gradients) and for the backward pass of one layer."""
    m, k, n = sizes
    torch.manual_seed(0)
    x = torch.randn(m, k, device="cuda", dtype=dtype)
    weight = (torch.randn(n, k, device="cuda") / k**0.5).to(dtype)
    bias = torch.randn(n, device="cuda", dtype=dtype)
    product = torch.empty(m, n, device="cuda", dtype=dtype)
    dy = torch.randn(m, n // 2 if kind == "geglu" else n, device="cuda", dtype=dtype)
    if kind == "geglu":
        eager, ours = eager_geglu, linear_geglu
    else:
        eager = eager_gelu

        def ours(x, weight, bias):
            return linear_act(x, weight, bias, activation="gelu")

    functions = {"ours": ours, "eager": eager}
    functions |= {name: torch.compile(eager, dynamic=False, **how) for name, how in modes.items()}

    def without_gradients(f):
        def run():
            with torch.no_grad():
                return f(x, weight, bias)

        return run

    forward = {name: without_gradients(f) for name, f in functions.items()}
    forward["cublas"] = lambda: torch.mm(x, weight.t(), out=product)
    forward["product"] = without_gradients(lambda x, weight, _: linear_act(x, weight, None, activation="id"))
    leaves = [t.detach().clone().requires_grad_() for t in (x, weight, bias)]

    def backward_of(f):
        y = f(*leaves)
        return lambda: torch.autograd.grad(y, leaves, dy, retain_graph=True)

    backward = {name: backward_of(f) for name, f in functions.items() if "autotune" not in name}
    return forward, backward


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=sorted(COLUMNS), action="append", help="default: both")
    parser.add_argument("--dtype", choices=DTYPES, action="append", help="default: both")
    parser.add_argument("--max-autotune", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=8)
    parser.add_argument("--json", help="default: $OUT/linear.json if OUT is set")
    options = parser.parse_args()
    torch._functorch.config.donated_buffer = False  # backward passes are repeated on one graph
    modes = {"compile": {}}
    if options.max_autotune:
        modes["max-autotune"] = {"mode": "max-autotune-no-cudagraphs"}
    results = []
    device = report.device("kernels.bench.linear")
    print(f"{device}; ms, and ours as a fraction of it")
    for kind in options.kind or COLUMNS:
        for dtype in options.dtype or DTYPES:
            sizes = (8192, 4096, COLUMNS[kind])
            passes = problem(kind, getattr(torch, dtype), sizes, modes)
            for direction, candidates in zip(("forward", "backward"), passes, strict=True):
                times = times_of(candidates, options.rounds, options.calls)
                row = {
                    "name": f"linear+{kind} {direction} {dtype}",
                    "m_k_n": sizes,
                    "ms": {name: statistics.median(each) for name, each in times.items()},
                    "ours_over": {
                        name: statistics.median(a / b for a, b in zip(times["ours"], each, strict=True))
                        for name, each in times.items()
                        if name != "ours"
                    },
                }
                results.append(row)
                line = "  ".join(f"{c} {row['ms'][c]:.3f} ({share:.3f})" for c, share in row["ours_over"].items())
                print(f"{row['name']:34s} ours {row['ms']['ours']:.3f}  {line}", flush=True)
                report.save(options.json, "linear", device=device, rows=results)
            del passes, candidates
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
