"""Compares kernels/layer_norm or kernels/rms_norm.py with a copy, PyTorch eager and torch.compile, in one run.

    python -m kernels.bench.layer_norm [--norm rms] [--elements 268435456 ...] [--columns 4096 ...] [--json PATH]

Each figure is the time of a device-to-device copy of the same bytes over the time of the contender: higher is better,
1.00 is memory speed. The forward pass reads x and writes y; the backward pass reads x and dy and writes dx. All
contenders are CUDA graphs and run in turns with the copy, so neither launch overhead nor a drifting clock favours one.
The figure is the median over the rounds. "liger" is liger_kernel's Triton kernel if that package is installed. "host"
is the wall time of a call, forward or backward, without a wait in between: the cost of small tensors.
"""

import argparse
import itertools
import statistics
import time
from functools import partial

import torch

from kernels.bench import report
from kernels.layer_norm import layer_norm
from kernels.rms_norm import rms_norm

try:
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction
except ImportError:
    LigerLayerNormFunction = LigerRMSNormFunction = None

COLUMNS = (1024, 4096, 8192)
DTYPES = (torch.float32, torch.bfloat16)


def captured(function, stream):
    """Returns a graph that calls `function` once, warmed up on the same stream."""
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        # the graph keeps the memory that it reads and writes
        graph.kept = function, function()
    return graph


def medians(calls, rounds):
    """Returns milliseconds of each call; the calls take turns."""
    times = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            times[name].append((start, end))
    torch.cuda.synchronize()
    return {n: statistics.median(a.elapsed_time(b) for a, b in t) for n, t in times.items()}


def host_us(call, calls=200):
    """Returns microseconds of the host for one call."""
    for _ in range(10):
        call()
    torch.cuda.synchronize()
    found = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(calls // 5):
            call()
        found.append((time.perf_counter() - start) / (calls // 5) * 1e6)
        torch.cuda.synchronize()
    return statistics.median(found)


def rows_of(norm, columns, dtype, elements, rounds):
    """Returns the two rows, forward and backward, of one shape and dtype."""
    torch.compiler.reset()  # each shape gets its own code, not one of many guarded variants
    stream = torch.cuda.Stream()
    shape = (elements // columns, columns)
    x, dy = (torch.randn(shape, device="cuda", dtype=dtype) for _ in range(2))
    vectors = [torch.randn(columns, device="cuda", dtype=dtype) for _ in range(2 if norm == "layer" else 1)]
    eager, ours, liger = {
        "layer": (torch.nn.functional.layer_norm, layer_norm, LigerLayerNormFunction),
        "rms": (torch.nn.functional.rms_norm, rms_norm, LigerRMSNormFunction),
    }[norm]

    def reference(x, *vectors):
        return eager(x, (columns,), *vectors, 1e-5)

    contenders = {
        "ours": partial(ours, eps=1e-5),
        "eager": reference,
        "compile": torch.compile(reference, dynamic=False),
    }
    if liger is not None:
        # False: else liger's RMS norm writes dx over dy, which all contenders share
        last = (1e-5,) if norm == "layer" else (1e-5, 0.0, "llama", False)
        contenders["liger"] = lambda *operands: liger.apply(*operands, *last)
    out = torch.empty_like(x)
    one_and_half = torch.empty(elements * 3 // 2, device="cuda", dtype=dtype).normal_()
    other = torch.empty_like(one_and_half)
    result = []
    for direction in ("forward", "backward"):
        graphs, host = {}, {}
        for name, function in contenders.items():
            if direction == "forward":
                with torch.no_grad():
                    graphs[name] = captured(lambda f=function: f(x, *vectors), stream)
                    host[name] = host_us(lambda f=function: f(x, *vectors))
            else:
                leaves = [t.detach().requires_grad_() for t in (x, *vectors)]
                with torch.cuda.stream(stream):
                    y = function(*leaves)
                grad = partial(torch.autograd.grad, y, leaves, dy, retain_graph=True)
                graphs[name] = captured(grad, stream)
                with torch.cuda.stream(stream):
                    host[name] = host_us(grad)
        source, target = (x, out) if direction == "forward" else (one_and_half, other)
        calls = {name: graph.replay for name, graph in graphs.items()}
        # not captured, because a copy in a graph runs at two thirds of its speed
        calls["copy"] = partial(target.copy_, source)
        times = medians(calls, rounds)
        bytes_moved = (2 if direction == "forward" else 3) * elements * x.element_size()
        result.append(
            {
                "norm": norm,
                "direction": direction,
                "dtype": str(dtype).removeprefix("torch."),
                "columns": columns,
                "elements": elements,
                "copy_TBps": bytes_moved / times["copy"] / 1e9,
                "ms": times,
                "host_us": host,
                "ratio": {n: times["copy"] / t for n, t in times.items() if n != "copy"},
            }
        )
        del graphs, calls
        torch.cuda.empty_cache()
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--norm", choices=("layer", "rms"), default="layer")
    parser.add_argument("--columns", type=int, nargs="+", default=list(COLUMNS))
    parser.add_argument("--elements", type=int, nargs="+", default=[1 << 26, 1 << 28])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", default=None, help="default: $OUT/layer_norm.json or rms_norm.json if OUT is set")
    arguments = parser.parse_args()
    table = []
    device = report.device("kernels.bench.layer_norm")
    print(f"{device}; time of copy / time of ...")
    for elements, dtype, columns in itertools.product(arguments.elements, DTYPES, arguments.columns):
        for row in rows_of(arguments.norm, columns, dtype, elements, arguments.rounds):
            figures = "  ".join(f"{name} {ratio:.3f}" for name, ratio in row["ratio"].items())
            kind = f"{row['direction']:9}{row['dtype']:9}{elements:10} / {columns:<5}"
            host = "  ".join(f"{name} {us:.0f}" for name, us in row["host_us"].items())
            print(f"{kind}  {figures}  copy {row['copy_TBps']:.2f} TB/s  host us {host}", flush=True)
            table.append(row)
    report.save(arguments.json, f"{arguments.norm}_norm", device=device, rows=table)


if __name__ == "__main__":
    main()
