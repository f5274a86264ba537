"""Times variants of the forward plans of norms, beside the shipped plan, its peers and a copy of the bytes of x.

    python -m benchmarks.plans [plans.json] [--columns 4096]

A variant has other warps, another limit of registers, or another moment at which weight and bias are loaded; for short
rows, another number of rows in a program. Prints the microseconds of a call in a CUDA graph, the smaller of two
medians, and in how many elements of y a variant has other bits than the shipped plan. A plan that changes bits with the
number of rows would break the promise that a row has the same bits in every batch.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import triton

from kernels.bench import everything
from kernels.bench.promises import Row
from kernels.bench.report import device
from kernels.layer_norm import launch
from kernels.layer_norm.plan import forward_plan
from verify.records.files import write_atomically

ROWS = (
    *(Row("norms", name, "bfloat16", shape) for name in ("layer_norm", "rms_norm")
      for shape in ((1024, 4096), (4096, 4096), (16384, 4096), (512, 8192), (2048, 8192), (8192, 8192))),
    *(Row("heads", "rms_norm", "bfloat16", ((1 << log2) // n, n)) for log2 in (20, 22) for n in (64, 128, 256)),
)  # fmt: skip
Variant = dict[str, Any]


def variants(row: Row) -> list[Variant]:
    """Returns the changes of a plan to try."""
    n = row.shape[1]
    if row.group == "heads":
        tiles = [(rows, rows * n // each) for rows in (512 // n, 1024 // n, 2048 // n) for each in (512, 1024)]
        return [
            {"rows": rows, "warps": warps, "maxnreg": registers}
            for (rows, warps), registers in itertools.product(tiles, (None, 64))
            if rows and warps
        ]
    every = itertools.product((n // 1024, n // 512, n // 256), (None, 64, 48), (True, False))
    return [{"warps": min(warps, 16), "maxnreg": registers, "early": early} for warps, registers, early in every]


def called(row: Row, arguments: list[torch.Tensor], change: Variant) -> Callable[[], Any]:
    """Returns a call of the forward pass whose plan has this change."""
    x, weight, *bias = arguments
    centre = row.name == "layer_norm"

    def call() -> Any:
        planned, launch.planned_forward = launch.planned_forward, lambda call: replace(forward_plan(call), **change)
        try:
            return launch.launch_forward(x, None, None, weight, *bias or [None], 1e-5 if centre else 1e-6, centre)
        finally:
            launch.planned_forward = planned

    return call


def unlike(one: torch.Tensor, other: torch.Tensor) -> int:
    """Returns the number of elements with other bits."""
    return int((one.view(torch.int16) != other.view(torch.int16)).sum())


def measured(row: Row) -> dict[str, Any]:
    """Returns microseconds of each contender and variant, and the elements of y that a variant changes."""
    arguments, found, failed = everything.made(row)
    calls = {name: passes["forward"] for name, passes in found.items() if name != "eager"}
    target = torch.empty_like(arguments[0])
    calls["copy"] = lambda: target.copy_(arguments[0])
    calls["plan"] = called(row, arguments, {})
    shipped, changed = calls["plan"]()[0], {}
    for change in variants(row):
        name, call = " ".join(f"{key}={value}" for key, value in change.items()), called(row, arguments, change)
        try:
            changed[name] = unlike(call()[0], shipped)
            calls[name] = call
        except Exception as error:  # too many warps or registers
            failed[name] = everything.block.reason(error)
    count = 10 if arguments[0].numel() < 1 << 24 else 3
    both = [everything.graph_times(calls, count, failed) for _ in range(2)]
    us = {name: min(times[name] for times in both) for name in calls if all(name in times for times in both)}
    return {"us": us, "unlike": changed, "failed": failed}


def main() -> int:
    """The command of the docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", nargs="?", type=Path, default=Path("plans.json"))
    parser.add_argument("--columns", type=int, action="append", help="only rows of so many columns (repeatable)")
    options = parser.parse_args()
    record: dict[str, Any] = {"device": device("benchmarks.plans"), "triton": triton.__version__}
    record |= {"kernels": everything.source(), "commit": os.environ.get("VERIFY_COMMIT", "unknown"), "rows": {}}
    everything.configure()
    everything.freeze()
    for row in ROWS:
        if options.columns and row.shape[1] not in options.columns:
            continue
        record["rows"][row.key] = found = measured(row)
        write_atomically(options.output, json.dumps(record, indent=1).encode() + b"\n")
        print(row.key)
        for name, us in sorted(found["us"].items(), key=lambda item: item[1]):
            bits = found["unlike"].get(name)
            print(f"  {us:9.3f}  {name}" + (f"  ({bits} elements differ)" if bits else ""), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
