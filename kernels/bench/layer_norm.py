"""Speed of kernels/layer_norm beside a copy, PyTorch eager and torch.compile, in one run.

    python -m kernels.bench.layer_norm [--elements 268435456 ...] [--json PATH]

Each figure is the time of a device-to-device copy that moves the same bytes, divided by the time of
the contender (higher is better, 1.00 is memory speed). Bytes counted: forward reads x and writes y,
backward reads x and dy and writes dx. All contenders are captured as CUDA graphs and run in turns
with the copy, so that neither launch overhead nor a drifting clock favours one; the figure is the
median over the rounds. "liger" is liger_kernel's Triton kernel, where that package is installed."""

import argparse
import itertools
import statistics
from functools import partial

import torch

from kernels.bench import report
from kernels.layer_norm import layer_norm

try:
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction
except ImportError:
    LigerLayerNormFunction = None

COLUMNS = (1024, 4096, 8192)
DTYPES = (torch.float32, torch.bfloat16)


def captured(function, stream):
    """A graph that calls `function` once; warmed up on the same stream."""
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        # what the graph reads and writes has to live as long as the graph
        graph.kept = function, function()
    return graph


def medians(calls, rounds):
    """Milliseconds of each call, made in turns."""
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


def rows_of(columns, dtype, elements, rounds):
    """The two table rows, forward and backward, of one shape and dtype."""
    torch.compiler.reset()  # each shape gets its own code, not one of many guarded variants
    stream = torch.cuda.Stream()
    shape = (elements // columns, columns)
    x, dy = (torch.randn(shape, device="cuda", dtype=dtype) for _ in range(2))
    weight, bias = (torch.randn(columns, device="cuda", dtype=dtype) for _ in range(2))
    eager = torch.nn.functional.layer_norm

    def reference(x, weight, bias):
        return eager(x, (columns,), weight, bias, 1e-5)

    contenders = {
        "ours": layer_norm,
        "eager": reference,
        "compile": torch.compile(reference, dynamic=False),
    }
    if LigerLayerNormFunction is not None:
        contenders["liger"] = lambda x, weight, bias: LigerLayerNormFunction.apply(x, weight, bias, 1e-5)
    out = torch.empty_like(x)
    one_and_half = torch.empty(elements * 3 // 2, device="cuda", dtype=dtype).normal_()
    other = torch.empty_like(one_and_half)
    result = []
    for direction in ("forward", "backward"):
        graphs = {}
        for name, function in contenders.items():
            if direction == "forward":
                with torch.no_grad():
                    graphs[name] = captured(lambda f=function: f(x, weight, bias), stream)
            else:
                leaves = [t.detach().requires_grad_() for t in (x, weight, bias)]
                with torch.cuda.stream(stream):
                    y = function(*leaves)
                grad = partial(torch.autograd.grad, y, leaves, dy, retain_graph=True)
                graphs[name] = captured(grad, stream)
        source, target = (x, out) if direction == "forward" else (one_and_half, other)
        calls = {name: graph.replay for name, graph in graphs.items()}
        # not captured: as a graph node this copy runs at two thirds of its speed
        calls["copy"] = partial(target.copy_, source)
        times = medians(calls, rounds)
        bytes_moved = (2 if direction == "forward" else 3) * elements * x.element_size()
        result.append(
            {
                "direction": direction,
                "dtype": str(dtype).removeprefix("torch."),
                "columns": columns,
                "elements": elements,
                "copy_TBps": bytes_moved / times["copy"] / 1e9,
                "ms": times,
                "ratio": {n: times["copy"] / t for n, t in times.items() if n != "copy"},
            }
        )
        del graphs, calls
        torch.cuda.empty_cache()
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, nargs="+", default=[1 << 26, 1 << 28])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", default=None, help="default: $OUT/layer_norm.json if OUT is set")
    arguments = parser.parse_args()
    table = []
    device = report.device("kernels.bench.layer_norm")
    print(f"{device}; time of copy / time of ...")
    for elements, dtype, columns in itertools.product(arguments.elements, DTYPES, COLUMNS):
        for row in rows_of(columns, dtype, elements, arguments.rounds):
            figures = "  ".join(f"{name} {ratio:.3f}" for name, ratio in row["ratio"].items())
            kind = f"{row['direction']:9}{row['dtype']:9}{elements:10} / {columns:<5}"
            print(f"{kind}  {figures}  copy {row['copy_TBps']:.2f} TB/s", flush=True)
            table.append(row)
    report.save(arguments.json, "layer_norm", device=device, rows=table)


if __name__ == "__main__":
    main()
