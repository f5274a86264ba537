"""Measures every kernel beside all peers that install, writes one record, and compares it with the promised figures.

    python -m kernels.bench.everything --check                       all rows; exit code 1 below a figure
    python -m kernels.bench.everything --check --ahead 14 --seconds 225    compiles in 14 processes first
    python -m kernels.bench.everything --only linear "host gelu"     rows by the beginnings of their names
    python -m kernels.bench.everything --json record.json            default: $OUT/everything.json

A second run with the same record goes on where the first ended, if the GPU, the versions and the kernels are the same.
Rows with promised figures at the most important sizes come first. promises.py has the rows and the figures.

    linear   60 layers of cells.txt, and the sizes of FIRST; a step is one forward and one backward pass
    norms    RMS norm and layer norm of 2^18 to 2^26 elements
    heads, gated, fp8    RMS norm of rows of 64 to 256 columns, times silu(gate), and to codes of e4m3 after an addition
    gates, gelu    GEGLU and SwiGLU, and GELU, of the same sizes as norms
    host     wall time of a call of every function at 512 x 1,024, without a wait for the GPU
    block    wall time of a step of a decoder block
    wall     wall time of a step of six functions beside eager PyTorch's, in three sizes
    compile  torch.compile's step of the layers of the group linear, beside ours

GPU times are medians of CUDA graphs that take turns, in microseconds of a call. The figure of a row is the time of its
fastest peer over ours: above 1 ours is faster. Peers are PyTorch eager, torch.compile, Liger, flash-attention (or the
copy of its norms in flash-linear-attention), quack, and for linear layers "cublas": the bare products, one forward and
two backward, without bias and activation. "copy" is a copy of the bytes of x, "floor" is in promises.py: neither is a
peer. Rows of the groups host and block hold a profile of a step: microseconds of the
host in each function. A whole run takes about five minutes on an H100 with 16 cores.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import hashlib
import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import pathlib
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch._functorch.config
import torch.nn.functional as F  # noqa: N812
import triton
import triton.testing

from kernels.bench import block, host, report
from kernels.bench.promises import FIRST, FP8, GROUPS, HERE, NOT_MEASURED, Row, figure, rows, verdict, walls
from kernels.linear_act import linear_act
from kernels.linear_geglu import linear_geglu
from kernels.rms_norm import rms_norm_fp8

PACKAGES = ("liger-kernel", "flash-attn", "flash-linear-attention", "quack-kernels")

# ---------------------------------------------------------------------------------------------- contenders


def _activated(name: str, a: torch.Tensor) -> torch.Tensor:
    """Returns PyTorch's activation of a pre-activation."""
    if name.startswith("geglu"):
        first, second = a.chunk(2, -1)
        return first * F.gelu(second, approximate="tanh" if name.endswith("tanh") else "none")
    if name == "squared_relu":
        return F.relu(a).square()
    return a if name == "id" else F.gelu(a, approximate="tanh" if name == "gelu_tanh" else "none")


def layer(row: Row) -> tuple[list[tuple[int, ...]], dict[str, Callable[..., Any]]]:
    """Returns the shapes of x, weight and bias, and the contenders of a linear layer."""
    name, (m, k, n) = row.name, row.shape

    def eager(x, weight, bias):
        return _activated(name, F.linear(x, weight, bias))

    if name.startswith("geglu"):
        ours: Any = partial(linear_geglu, approximate="tanh" if name.endswith("tanh") else "none")
    else:
        ours = partial(linear_act, activation=name)
    if row.group == "compile":  # once for any size: the product is cuBLAS's anyway
        return [(m, k), (n, k), (n,)], {"ours": ours, "compile": torch.compile(eager, dynamic=True)}
    return [(m, k), (n, k), (n,)], {"ours": ours, "eager": eager}


def products(row: Row, arguments: list[torch.Tensor]) -> dict[str, dict[str, Callable[[], Any]]]:
    """Returns the passes of "cublas", the bare products of a layer, and of "floor", which promises.py describes."""
    (x, weight, _), (m, k, n) = arguments, row.shape
    upstream = block.waves(m, n).to(x.dtype)
    y, dx, dw = (torch.empty(shape, device=x.device, dtype=x.dtype) for shape in ((m, n), (m, k), (n, k)))
    before, gradient = upstream.clone(), torch.empty_like(upstream)

    def step() -> None:
        torch.mm(x, weight.t(), out=y)
        torch.mm(upstream, weight, out=dx)
        torch.mm(upstream.t(), x, out=dw)

    def floor() -> None:
        step()
        if row.name.startswith("geglu"):
            gradient.copy_(before)
        elif row.name != "id":
            torch.add(upstream, before, out=gradient)

    return {"cublas": {"forward": lambda: torch.mm(x, weight.t(), out=y), "step": step}, "floor": {"step": floor}}


def norm_peers(name: str) -> dict[str, Callable[..., Any]]:
    """Returns the norms of flash-attention and quack that can be imported."""
    rms, found = name == "rms_norm", {}
    if name == "rms_norm_gated":
        with contextlib.suppress(Exception):
            from fla.modules.fused_norm_gate import rms_norm_gated

            found["fla"] = lambda x, z, w: rms_norm_gated(x, z, w, None, eps=1e-6)
        return found
    with contextlib.suppress(Exception):
        from flash_attn.ops.triton import layer_norm as flash

        found["flash"] = (
            partial(flash.rms_norm_fn, bias=None, eps=1e-6) if rms else partial(flash.layer_norm_fn, eps=1e-5)
        )
    if not found:
        with contextlib.suppress(Exception):
            from fla.modules import layernorm as fla

            found["fla"] = partial(fla.rms_norm, bias=None, eps=1e-6) if rms else partial(fla.layer_norm, eps=1e-5)
    if rms:
        with contextlib.suppress(Exception):
            spec = importlib.util.find_spec("nvidia_cutlass_dsl")
            for folder in spec.submodule_search_locations or () if spec else ():
                sys.path += [f"{folder}/{name}" for name in ("dsl_packages", "python_packages")]
            import quack

            found["quack"] = lambda x, w: quack.rmsnorm(x, w, eps=1e-6)
    return found


def quantised(x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor, group: int | None) -> tuple[Any, ...]:
    """Returns PyTorch's codes, scales and sum in the place of `rms_norm_fp8`."""
    s = x + residual
    y = F.rms_norm(s.float(), weight.shape, weight.float(), 1e-6).view(len(s), -1, group or s.shape[-1])
    scale = y.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 448.0
    return (y / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale, s


def contenders(row: Row) -> tuple[list[tuple[int, ...]], dict[str, Callable[..., Any]]]:
    """Returns the shapes of the arguments of a row, and its contenders."""
    if row.group in ("linear", "compile"):
        return layer(row)
    if row.name in FP8:
        ours, group = partial(rms_norm_fp8, group=FP8[row.name]), FP8[row.name]
        return [row.shape, row.shape[1:], row.shape], {"ours": ours, "eager": partial(quantised, group=group)}
    sizes, found = host.problems(*row.shape)[row.name]
    if row.group == "wall":
        return sizes, {name: found[name] for name in ("ours", "eager")}
    return sizes, found | (norm_peers(row.name) if row.group in ("norms", "heads", "gated") else {})


Made = dict[str, dict[str, Callable[[], Any]]]


def made(row: Row) -> tuple[list[torch.Tensor], Made, dict[str, str]]:
    """Returns the arguments of a row, contender -> pass -> call, and the contenders that failed. Each call ran.

    Only the group host has backward passes alone, and torch.compile's layers are timed forward at the sizes of FIRST.
    """
    sizes, functions = contenders(row)
    drawn = [block.waves(*size).roll(i) for i, size in enumerate(sizes)]
    if row.group in ("linear", "compile"):
        drawn[1] *= row.shape[1] ** -0.5
    arguments = [t.to(getattr(torch, row.dtype)) for t in drawn]
    found: Made = {}
    failed: dict[str, str] = {}
    wanted = host.PASSES if row.group == "host" else ("forward", "step")
    if row.group == "wall" or (row.group == "compile" and row.shape not in FIRST):
        wanted = wanted[1:]
    for name, function in functions.items():
        try:
            calls = host.passes(function, arguments, row.name not in FP8)
            found[name] = {which: call for which, call in calls.items() if which in wanted}
            for _ in range(3):  # the third call repeats a plan
                for call in found[name].values():
                    call()
        except Exception as error:
            found.pop(name, None)
            failed[name] = block.reason(error)
    if row.group == "linear":
        found |= products(row, arguments)
    return arguments, found, failed


# ---------------------------------------------------------------------------------------------- measuring


def compiled_ahead(unit: list[Row]) -> None:
    """Calls everything of these rows once, in a process of its own, so that compiled code is in the caches."""
    for row in unit:
        with contextlib.suppress(Exception):
            if row.group == "block":
                block.steps(row.name, row.shape, {})
            else:
                made(row)
        torch.cuda.empty_cache()


def compile_ahead(wanted: list[Row], processes: int, seconds: float) -> None:
    """Compiles what the rows need in several processes, for so many seconds at most.

    Rows of one function, dtype and width need the same code and form one unit. Layers have shapes of tiles of their
    own; torch.compile makes one program of an activation.
    """
    units: dict[Any, list[Row]] = {}
    for row in wanted:
        unit = row.shape if row.group == "linear" else row.shape[-1] if row.group != "compile" else 0
        units.setdefault((row.group, row.name, row.dtype, unit), []).append(row)
    with multiprocessing.get_context("spawn").Pool(processes, configure) as pool:  # its end terminates what still runs
        pool.map_async(compiled_ahead, list(units.values()), chunksize=1).wait(seconds)


def configure() -> None:
    """Sets what passes in turns need, in each process."""
    import torch._dynamo.config  # takes seconds, in each process that imports this module

    torch._functorch.config.donated_buffer = False  # backward passes are repeated on one graph
    torch._dynamo.config.recompile_limit = 64  # one function has all activations and dtypes
    torch._dynamo.config.fail_on_recompile_limit_hit = True  # beyond it torch.compile would be eager, unnoticed
    # peers that choose between configurations of theirs do so in 10 ms for each instead of 125
    triton.testing.do_bench = partial(triton.testing.do_bench, warmup=2, rep=8)


def freeze() -> None:
    """Imports the peers and exempts all objects from garbage collection: each capture collects, in a third of a second
    with all that is imported.
    """
    for name in ("rms_norm", "layer_norm", "rms_norm_gated"):
        norm_peers(name)
    gc.collect()
    gc.freeze()


def graph_times(calls: dict[str, Callable[[], Any]], count: int, failed: dict[str, str]) -> dict[str, float]:
    """Returns microseconds of each call in CUDA graphs of `count` calls that take turns. Names failures in `failed`."""
    graphs: dict[str, Any] = {}
    stream = torch.cuda.Stream()

    def repeated(call: Callable[[], Any]) -> Any:
        for _ in range(count):
            kept = call()
        return kept

    for name, call in calls.items():
        try:
            graphs[name] = report.captured(partial(repeated, call), stream)
        except Exception as error:  # the other contenders still have their turn
            failed[name] = block.reason(error)
            with contextlib.suppress(Exception):
                torch.cuda.synchronize()
    times = report.medians({name: graph.replay for name, graph in graphs.items()}, 9)
    return {name: t * 1e3 / count for name, t in times.items()}


def measured(row: Row) -> dict[str, Any]:
    """Returns the times of a row: pass -> contender -> microseconds, and the contenders that failed."""
    if row.group == "block":
        return block.measured(row.name, row.shape)
    arguments, found, failed = made(row)
    if row.group == "host":
        found["bare"] = host.passes(host.Bare.apply, arguments[:1])
        turns = {which: {n: calls[which] for n, calls in found.items() if which in calls} for which in host.PASSES}
        us = {which: host.host_times(calls, 25) for which, calls in turns.items()}
        profile = {"ours": host.profiled(turns["step"]["ours"])} if "ours" in turns["step"] else {}
        return {"us": us, "failed": failed, "profile": profile}
    if row.group == "wall":
        calls = {name: passes["step"] for name, passes in found.items()}
        us = report.turns(calls, 9, partial(block.timed, steps=block.repeats(calls)))
        return {"us": {"step": us}, "failed": failed}
    if row.group not in ("linear", "compile"):
        target = torch.empty_like(arguments[0])
        found["copy"] = {"forward": lambda: target.copy_(arguments[0])}
        count = 10 if arguments[0].numel() < 1 << 24 else 3
    else:
        m, k, n = row.shape
        count = 10 if m * k * n < 1 << 34 else 3 if m * k * n < 1 << 38 else 1
    times = {}
    for which in ("forward", "step"):
        calls = {name: passes[which] for name, passes in found.items() if which in passes}
        if calls:
            times[which] = graph_times(calls, count, failed)
    return {"us": times, "failed": failed}


def source() -> str:
    """Returns a digest of the kernels, so that a record is not continued by others."""
    digest = hashlib.sha256()
    for path in sorted(HERE.parent.rglob("*.py")):
        if HERE not in path.parents:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def versions() -> dict[str, str]:
    """Returns the versions of the packages that have peers; "absent" if one is not installed."""
    found = dict.fromkeys(PACKAGES, "absent")
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def line(row: Row, result: dict[str, Any]) -> str:
    """Returns a row as text, a line for each pass."""
    parts = []
    for which, us in result["us"].items():
        value, best = figure(us)
        text = "  ".join(f"{name} {t:.1f}" for name, t in us.items())
        parts.append(f"{row.key:48} {which:8}{value:7.3f} of {best:8} {text}")
    parts += [f"{row.key:48} failed   {name}: {why}" for name, why in result["failed"].items()]
    return "\n".join(parts)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=GROUPS, help="beginnings of rows' names")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no row after this time")
    parser.add_argument("--ahead", type=int, default=0, metavar="PROCESSES", help="compile in so many processes first")
    parser.add_argument("--check", action="store_true", help="exit code 1 if a promised figure is not reached")
    parser.add_argument("--json", help="the record; default: $OUT/everything.json, or everything.json here")
    options = parser.parse_args(arguments)
    start = time.monotonic()
    path = pathlib.Path(options.json or os.path.join(os.environ.get("OUT", "."), "everything.json"))
    about = {"device": report.device("kernels.bench.everything"), "triton": triton.__version__, "kernels": source()}
    about |= {"peers": versions(), "commit": os.environ.get("VERIFY_COMMIT", "unknown")}
    record: dict[str, Any] = {**about, "rows": {}}
    if path.exists():
        record = json.loads(path.read_text())
        other = [name for name, value in about.items() if name != "commit" and record.get(name) != value]
        if other:
            sys.exit(f"kernels.bench.everything: {path} has another {' and '.join(other)}; give another --json")
    wanted = [row for row in (*rows(), *walls()) if row.key.startswith(tuple(options.only))]
    print(f"{about['device']}; {about['peers']}; microseconds, and the fastest peer's time over ours")
    if options.ahead:
        left = [row for row in wanted if row.key not in record["rows"]]
        compile_ahead(left, options.ahead, min(0.42 * options.seconds, 600))
        print(f"compiled ahead in {time.monotonic() - start:.0f} s", flush=True)
    configure()
    freeze()
    for row in wanted:
        if row.key not in record["rows"] and time.monotonic() - start < options.seconds:
            begun = time.monotonic()
            try:
                record["rows"][row.key] = measured(row) | {"seconds": round(time.monotonic() - begun, 2)}
            except Exception as error:  # a later run tries it again
                print(f"{row.key:48} not measured: {block.reason(error)}", flush=True)
                continue
            torch.cuda.empty_cache()
            report.save(str(path), "everything", **record)
            print(line(row, record["rows"][row.key]), flush=True)
    missing = sum(row.key not in record["rows"] for row in wanted)
    lines = verdict(record["rows"], wanted)
    below = [each for each in lines if not each.held]
    print("\n".join(f"below: {each}" for each in below if each.reached != NOT_MEASURED))
    print(f"{len(lines) - len(below)} of {len(lines)} promises hold; {missing} rows were not measured")
    print(f"{time.monotonic() - start:.0f} s")
    return int(options.check and bool(below or missing or not lines))


if __name__ == "__main__":
    sys.exit(main())
