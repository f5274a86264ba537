"""Measures every kernel beside all peers that install, writes one record, and compares it with the promised figures.

    python -m kernels.bench.everything --check                               all rows; exit code 1 below a figure
    python -m kernels.bench.everything --only linear --seconds 120           one group, nothing begun after 120 s
    python -m kernels.bench.everything --json record.json                    default: $OUT/everything.json
    python -m kernels.bench.everything --profile gelu rms_norm               where the host's time of a call goes

A second run with the same record goes on where the first ended, if the GPU, the versions and the kernels are the same.
Rows with promised figures at the most important sizes come first.

    linear   60 layers of cells.txt, and the sizes of FIRST; a step is one forward and one backward pass
    norms    RMS norm and layer norm of 2^18 to 2^26 elements
    gates    GELU, GEGLU and SwiGLU of the same sizes
    host     wall time of a call of every function at 512 x 1,024, without a wait for the GPU
    block    wall time of a step of a decoder block, batch 1, 512 tokens

GPU times are medians of CUDA graphs that take turns, in microseconds of a call. The figure of a row is the time of its
fastest peer over ours: above 1 ours is faster. Peers are PyTorch eager, torch.compile, Liger, flash-attention (or the
copy of its norms in flash-linear-attention), quack, and for linear layers "cublas": the bare products, one forward and
two backward, without bias and activation. "copy" is a copy of the bytes of x, which is no peer.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import hashlib
import importlib.util
import itertools
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch._dynamo.config
import torch._functorch.config
import torch.nn.functional as F  # noqa: N812
import triton

from kernels.bench import block, host, report
from kernels.linear_act import linear_act
from kernels.linear_geglu import linear_geglu

HERE = pathlib.Path(__file__).parent
GROUPS = ("linear", "norms", "gates", "host", "block")
ENOUGH = 0.97  # of the fastest peer, for norms and gates
CELL, CELLS = 0.95, 0.8  # of the fastest peer, in this part of the layers of cells.txt
HOST, BLOCK = 20.0, 1.05  # microseconds beyond eager; times eager's wall time
# M, K, N of layers with GELU that must be ahead of eager and of torch.compile
FIRST = ((8192, 4096, 16384), (4096, 4096, 16384), (512, 1024, 4096))
NORMS, GATES = ("rms_norm", "layer_norm"), ("swiglu_split", "geglu_split tanh", "gelu", "gelu tanh")


@dataclass(frozen=True)
class Row:
    """What one row measures. The shape of a layer is M, K, N, of the others rows and columns."""

    group: str
    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def key(self) -> str:
        return " ".join((self.group, self.name, self.dtype, "x".join(map(str, self.shape))))


def cells() -> list[Row]:
    """Returns the layers of cells.txt."""
    lines = (line.split() for line in (HERE / "cells.txt").read_text().splitlines() if not line.startswith("#"))
    return [Row("linear", name, dtype, tuple(map(int, sizes))) for name, dtype, *sizes in lines]


def rows() -> list[Row]:
    """Returns all rows, the most important ones first."""
    functions = [name for name, (_, contenders) in host.problems(512, 1024).items() if "eager" in contenders]
    calls = [Row("host", name, "bfloat16", (512, 1024)) for name in functions]
    made = [Row("linear", "gelu_tanh", "bfloat16", sizes) for sizes in FIRST]
    for log2 in (22, 24, 20, 18, 26):
        for dtype, name, columns in itertools.product(("float32", "bfloat16"), NORMS, (4096, 8192, 1024)):
            made.append(Row("norms", name, dtype, ((1 << log2) // columns, columns)))
        for dtype, name in itertools.product(("bfloat16", "float32"), GATES):
            made.append(Row("gates", name, dtype, ((1 << log2) // 4096, 4096)))
        if log2 == 22:
            made += [*calls, Row("block", "rms+swiglu", "bfloat16", (1, 512)), *cells()]
    return made


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
    compiled = torch.compile(eager, dynamic=True)  # once for any size: the product is cuBLAS's anyway
    return [(m, k), (n, k), (n,)], {"ours": ours, "eager": eager, "compile": compiled}


def products(row: Row, arguments: list[torch.Tensor]) -> dict[str, Callable[[], Any]]:
    """Returns cuBLAS's bare products of a layer, as passes."""
    (x, weight, _), (m, k, n) = arguments, row.shape
    upstream = torch.randn(m, n, device=x.device).to(x.dtype)
    y, dx, dw = (torch.empty(shape, device=x.device, dtype=x.dtype) for shape in ((m, n), (m, k), (n, k)))

    def step() -> None:
        torch.mm(x, weight.t(), out=y)
        torch.mm(upstream, weight, out=dx)
        torch.mm(upstream.t(), x, out=dw)

    return {"forward": lambda: torch.mm(x, weight.t(), out=y), "step": step}


def norm_peers(name: str) -> dict[str, Callable[..., Any]]:
    """Returns the norms of flash-attention and quack that can be imported."""
    rms, found = name == "rms_norm", {}
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


# ---------------------------------------------------------------------------------------------- measuring


def graph_times(calls: dict[str, Callable[[], Any]], failed: dict[str, str]) -> dict[str, float]:
    """Returns microseconds of each call in CUDA graphs that take turns. A call that fails is named in `failed`."""
    graphs: dict[str, Any] = {}
    one: dict[str, float] = {}
    stream = torch.cuda.Stream()
    for name, call in calls.items():
        try:
            one[name] = report.medians({name: report.captured(call, stream).replay}, 3)[name]
            count = max(1, min(20, int(0.5 / max(one[name], 1e-3))))
            graph = report.captured(lambda call=call, count=count: [call() for _ in range(count)], stream)
            graphs[name] = (graph, count)
        except Exception as error:  # the other contenders still have their turn
            failed[name] = block.reason(error)
            with contextlib.suppress(Exception):
                torch.cuda.synchronize()
    times = report.medians({name: graph.replay for name, (graph, _) in graphs.items()}, 15)
    return {name: t * 1e3 / graphs[name][1] for name, t in times.items()}


def measured(row: Row) -> dict[str, Any]:
    """Returns the times of a row: pass -> contender -> microseconds, and the contenders that failed."""
    failed: dict[str, str] = {}
    if row.group == "block":
        found = block.times(
            row.name, "x".join(map(str, row.shape)), 2048, 5632, ["ours", "eager", "compile"], time.monotonic() + 60
        )
        failed = {each["contender"]: each["failed"] for each in found if "failed" in each}
        return {"us": {"step": {r["contender"]: r["wall_ms"] * 1e3 for r in found if "wall_ms" in r}}, "failed": failed}
    if row.group == "linear":
        sizes, contenders = layer(row)
    else:
        sizes, contenders = host.problems(*row.shape)[row.name]
    if row.group == "norms":
        contenders = contenders | norm_peers(row.name)
    torch.manual_seed(0)  # on the host: a failed capture may leave the device's generator unusable
    dtype = getattr(torch, row.dtype)
    arguments = [
        torch.randn(size).mul_(size[-1] ** -0.5 if row.group == "linear" else 1).to(dtype).cuda() for size in sizes
    ]
    made: dict[str, dict[str, Callable[[], Any]]] = {}
    for name, function in contenders.items():
        try:
            made[name] = host.passes(function, arguments)
            for _ in range(3):  # the third call repeats a plan
                for call in made[name].values():
                    call()
        except Exception as error:
            failed[name] = block.reason(error)
    if row.group == "linear":
        made["cublas"] = products(row, arguments)
    if row.group == "host":
        turns = {which: {n: calls[which] for n, calls in made.items() if which in calls} for which in host.PASSES}
        return {"us": {which: host.host_times(calls, 30) for which, calls in turns.items()}, "failed": failed}
    times = {
        which: graph_times({n: c[which] for n, c in made.items() if which in c}, failed)
        for which in ("forward", "step")
    }
    if row.group != "linear":
        target = torch.empty_like(arguments[0])
        times["forward"]["copy"] = report.medians({"copy": lambda: target.copy_(arguments[0])}, 15)["copy"] * 1e3
    return {"us": times, "failed": failed}


# ---------------------------------------------------------------------------------------------- verdict


def figure(us: dict[str, float]) -> tuple[float, str]:
    """Returns the time of the fastest peer over ours, and its name; NaN without ours or without a peer."""
    peers = {name: t for name, t in us.items() if name not in ("ours", "copy")}
    if not peers or "ours" not in us:
        return float("nan"), "-"
    best = min(peers, key=lambda name: peers[name])
    return peers[best] / us["ours"], best


def verdict(found: dict[str, Any], wanted: list[Row]) -> list[tuple[bool, str]]:
    """Returns for each promise whether it holds, and a line. A row that was not measured breaks its promise.

    Args:
        found: key of a row -> its times
    """
    lines = []

    def times(row: Row, which: str) -> dict[str, float]:
        return dict(found.get(row.key, {"us": {}})["us"].get(which, {}))

    listed = {row.key for row in cells()}
    of_cells = [figure(times(row, "step"))[0] for row in wanted if row.key in listed]
    if of_cells:
        good = sum(f >= CELL for f in of_cells)
        text = (
            f"linear: {good} of {len(of_cells)} layers of cells.txt at {CELL} of the fastest peer; {CELLS:.0%} promised"
        )
        lines.append((good >= CELLS * len(of_cells), text))
    for row in wanted:
        if row.key in listed:
            continue
        for which in ("step",) if row.group in ("host", "block") else ("forward", "step"):
            us = times(row, which)
            value, best = figure(us)
            if row.group == "host":
                more = us.get("ours", float("nan")) - us.get("eager", float("nan"))
                held, text = more <= HOST, f"{more:+.0f} us beyond eager; {HOST:.0f} promised"
            elif row.group == "block":
                value = us.get("ours", float("nan")) / us.get("eager", float("nan"))
                held, text = value <= BLOCK, f"{value:.2f} of eager's time; {BLOCK} promised"
            else:
                least = ENOUGH
                if row.group == "linear":  # the bare products have neither bias nor activation
                    least, (value, best) = 1.0, figure({name: t for name, t in us.items() if name != "cublas"})
                held, text = value >= least, f"{value:.3f} of {best}; {least} promised"
            lines.append((held, f"{row.key} {which}: {text}"))
    return lines


def source() -> str:
    """Returns a digest of the kernels, so that a record is not continued by others."""
    digest = hashlib.sha256()
    for path in sorted(HERE.parent.rglob("*.py")):
        if HERE not in path.parents:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


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
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no row after this time")
    parser.add_argument("--check", action="store_true", help="exit code 1 if a promised figure is not reached")
    parser.add_argument("--json", help="the record; default: $OUT/everything.json, or everything.json here")
    parser.add_argument("--profile", metavar="FUNCTION", nargs="+", default=[], help="profile these; measure nothing")
    options = parser.parse_args(arguments)
    torch._functorch.config.donated_buffer = False  # backward passes are repeated on one graph
    torch._dynamo.config.recompile_limit = 64  # one function has all activations and dtypes
    gc.collect()
    gc.freeze()  # each capture collects garbage, a third of a second with all that is imported
    for name in options.profile:
        sizes, contenders = host.problems(512, 1024)[name]
        calls = host.passes(contenders["ours"], [torch.randn(size).bfloat16().cuda() for size in sizes])
        for which, call in calls.items():
            print(f"{name} {which}\n{host.profiled(call)}")
    if options.profile:
        return 0
    path = pathlib.Path(options.json or os.path.join(os.environ.get("OUT", "."), "everything.json"))
    about = {"device": report.device("kernels.bench.everything"), "triton": triton.__version__, "kernels": source()}
    record: dict[str, Any] = {**about, "rows": {}}
    if path.exists():
        record = json.loads(path.read_text())
        other = [name for name, value in about.items() if record.get(name) != value]
        if other:
            sys.exit(f"kernels.bench.everything: {path} has another {' and '.join(other)}; give another --json")
    wanted, start = [row for row in rows() if row.group in options.only], time.monotonic()
    print(f"{about['device']}; microseconds, and the fastest peer's time over ours")
    for row in wanted:
        if row.key not in record["rows"] and time.monotonic() - start < options.seconds:
            record["rows"][row.key] = measured(row)
            torch.cuda.empty_cache()
            report.save(str(path), "everything", **record)
            print(line(row, record["rows"][row.key]), flush=True)
    missing = sum(row.key not in record["rows"] for row in wanted)
    lines = verdict(record["rows"], wanted)
    below = [text for held, text in lines if not held]
    print("\n".join(f"below: {text}" for text in below))
    print(f"{len(lines) - len(below)} of {len(lines)} promises hold; {missing} rows were not measured")
    return int(options.check and bool(below or missing or not lines))


if __name__ == "__main__":
    sys.exit(main())
