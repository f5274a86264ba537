"""How fast a sweep is, on one GPU: python benchmarks/sweep.py [OUTPUT.json]

Every time is the median of REPEATS after one call that compiles and makes the tables. `floor` is the same sweep
without judging: inputs made and subject run. `judge` is what judging adds to it, `gather` the worst elements and the
curve from what was judged, `check` the whole sweep with its partial result on the host, and
`record` the exact judgement of the worst elements. `torch` is the same sweep by the torch route, once: it takes the
place of `check` where the fused route does not serve. After TORCH_SECONDS it ends with the chunks that it has done,
and `seconds_of_all` is what all of them would take at that rate. `command` is wall time of `verify sweep` in a fresh
process with an empty compilation cache.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from verify import backends
from verify.backends import probes
from verify.declare.declaration import Kernel
from verify.declare.discovery import load
from verify.declare.target import Target
from verify.records.files import write_atomically
from verify.records.record import KernelRun
from verify.search.sweep.checking import check, route_of
from verify.search.sweep.finishing import finish
from verify.search.sweep.fused import Sweep
from verify.search.sweep.scope import space_of
from verify.search.sweep.space import Space

ROOT = Path(__file__).resolve().parents[1]
REPEATS = 7
TORCH_SECONDS = 30.0  # of one case by the torch route
CASES = [
    ("properties/gelu.py::gelu", "float32", ("y",)),
    ("properties/gelu.py::gelu", "float32", ("dx",)),
    ("properties/gelu.py::gelu_tanh", "float32", ("y",)),
    ("properties/gelu.py::gelu_tanh", "float32", ("dx",)),
    ("properties/geglu.py::geglu", "bfloat16", ("y",)),
    ("properties/geglu.py::geglu", "bfloat16", ("dx",)),
    ("properties/geglu.py::geglu", "float16", ("y",)),
    ("properties/geglu.py::geglu", "float16", ("dx",)),
]
COMMAND = ["sweep", "properties/gelu.py::gelu", "properties/gelu.py::gelu_tanh", "--dtype", "float32"]


def median(action: Callable[[], Any]) -> tuple[float, list[float], Any]:
    """Seconds of an action that leaves the GPU idle: the median, all of them, and the last result."""
    times, result = [], None
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        result = action()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    return statistics.median(times), times, result


def by_torch(kernel: Kernel, space: Space, backend: backends.Backend) -> dict[str, Any]:
    """The sweep by the torch route, after one chunk of ordinary inputs that warms up."""
    route = route_of(kernel, space, backend).replace("fused", "torch")
    check(kernel, space, space.chunks // 4, backend, route=route)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    partial = check(kernel, space, (0, space.chunks), backend, route=route, seconds=TORCH_SECONDS)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begun
    return {
        "reference": partial.reference,
        "seconds": round(seconds, 3),
        "chunks": partial.done,
        "of": space.chunks,
        "seconds_of_all": round(seconds * space.chunks / partial.done, 2),
        "figures": figures_of(finish(kernel, space, partial)),
    }


def figures_of(run: KernelRun) -> list[dict[str, Any]]:
    """What a sweep says of each result: of both routes the same where all chunks are done."""
    return [
        {
            "output": item.output,
            "n": item.figures.n,
            "max_ulp": item.figures.max_ulp,
            "max_upper": item.figures.max_upper,
            "misrounded": item.figures.misrounded,
            "undecided": item.figures.undecided,
            "escalated": item.escalated,
            "status": item.status,
            "reason": item.reason,
        }
        for item in run.results
    ]


def measure(target: str, dtype: str, results: tuple[str, ...], backend: backends.Backend) -> dict[str, Any]:
    """One case."""
    kernel = load(Target.parse(target))[0]
    space = space_of(kernel, target, dtype, results=results)
    everything = (0, space.chunks)
    begun = time.perf_counter()
    check(kernel, space, everything, backend)
    torch.cuda.synchronize()
    first = time.perf_counter() - begun

    def swept(*, judge: bool) -> Sweep:
        sweep = Sweep(kernel, space, *everything, backend, [""])
        sweep.run(lambda done: None, judge=judge)
        return sweep

    floor_time, _, _ = median(lambda: swept(judge=False))
    judged_time, _, judged = median(lambda: swept(judge=True))
    gather_time, _, _ = median(judged.parts)
    check_time, times, partial = median(lambda: check(kernel, space, everything, backend))
    record_time, _, run = median(lambda: finish(kernel, space, partial))
    return {
        "target": target,
        "dtype": dtype,
        "results": list(results),
        "inputs": space.points,
        "reference": partial.reference,
        "first_s": round(first, 3),
        "floor_s": round(floor_time, 4),
        "judge_s": round(judged_time - floor_time, 4),
        "gather_s": round(gather_time, 4),
        "check_s": round(check_time, 4),
        "check_all_s": [round(item, 4) for item in times],
        "record_s": round(record_time, 4),
        "total_s": round(check_time + record_time, 4),
        "of_floor": round((check_time + record_time) / floor_time, 2),
        "figures": figures_of(run),
        "torch": by_torch(kernel, space, backend),
    }


def command() -> dict[str, Any]:
    """All four float32 sweeps by one command, from nothing."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "TRITON_CACHE_DIR": cache}
        begun = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "verify", *COMMAND], cwd=ROOT, env=environment, capture_output=True, text=True
        )
        spent = time.perf_counter() - begun
    return {"command": "verify " + " ".join(COMMAND), "seconds": round(spent, 2), "exit": done.returncode}


def main(arguments: list[str]) -> int:
    """Measure, print, write."""
    os.chdir(ROOT)
    backend = backends.select("cuda")
    backends.activate(backend)
    report: dict[str, Any] = {"environment": probes.fingerprint(backend.device), "repeats": REPEATS, "cases": []}
    for target, dtype, results in CASES:
        found = measure(target, dtype, results, backend)
        report["cases"].append(found)
        print(
            f"{target} {dtype} {' '.join(results)}: {found['total_s']:.3f} s (check {found['check_s']:.3f}, record "
            f"{found['record_s']:.3f}), floor {found['floor_s']:.3f}, x{found['of_floor']}, first {found['first_s']}; "
            f"torch route {found['torch']['seconds_of_all']:.1f} s",
            flush=True,
        )
    report["command"] = command()
    print(report["command"], flush=True)
    if arguments:
        write_atomically(arguments[0], (json.dumps(report, indent=1) + "\n").encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
