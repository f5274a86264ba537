"""Faults planted in large results, and which of them are found: python -m benchmarks.planted --elements 26

Five functions, six places, two sizes: one element, one tile of 128 x 128, the last row, every 1,000th block of 1,024,
the last element and the first one of a block, each 1% and 8 spacings of float32 off. The kernel is PyTorch's result in
float64, rounded, with the fault. Each is judged as `verify run` judges a case beyond its budget.

Every element is compared with PyTorch's result, and the 32 that differ most are judged. This covers each fault of 1%,
which is larger than PyTorch's own errors. A fault of 8 spacings may be smaller than these, or within the limit. Exits
1 if a covered fault is not found, or if the kernel without a fault is wrong. Of the others it prints the share that was
found, and the share whose worst judged element has the fault: there the fault was seen, and is within the limit.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import verify
from verify import backends
from verify.measure import kernel as measuring
from verify.measure.budget import Budget
from verify.measure.requests import Measure

OFF = {"1%": None, "8 spacings": 8}
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "softmax": lambda x: functional.softmax(x, -1),
    "layer norm": lambda x: functional.layer_norm(x, x.shape[-1:]),
    "RMS norm": lambda x: x * torch.rsqrt(x.square().mean(-1, True) + 1e-6),
    "running sum": lambda x: x.cumsum(-1),
}


def places(shape: tuple[int, int]) -> Iterator[tuple[str, Tensor]]:
    """Masks of the elements that are off, by what they are called."""
    rows, columns = shape
    row, column = rows // 3 + 5, columns // 3 + 7
    none = torch.zeros(shape, dtype=torch.bool)

    def at(*where: Any) -> Tensor:
        mask = none.clone()
        mask[where] = True
        return mask

    yield "one element", at(row, column)
    yield "one tile", at(slice(row, row + 128), slice(column, column + 128))
    yield "last row", at(rows - 1)
    blocks = torch.arange(rows * columns).reshape(shape) // 1024
    yield "every 1,000th block", blocks % 1000 == 999
    yield "last element", at(rows - 1, columns - 1)
    yield "first of a block", at(row, columns // 2)


def off(y: Tensor, mask: Tensor, spacings: int | None) -> Tensor:
    """A result with a fault."""
    if spacings is None:
        return torch.where(mask, y * 1.01, y)
    return torch.where(mask, (y.view(torch.int32) + spacings).view(torch.float32), y)


def judged(name: str, shape: tuple[int, int], backend: Any, budget: Budget) -> Iterator[dict[str, Any]]:
    """What came of each fault of one function."""
    function, right = FUNCTIONS[name], list[Tensor]()
    fault: list[Callable[[Tensor], Tensor]] = [lambda y: y]

    def called(x: Tensor) -> Tensor:
        if not right:
            right.append(function(x.double()).float())
        return fault[0](right[0])

    declared = verify.kernel(
        like=function,
        examples=[(torch.empty(shape, device="meta"),)],
        dtypes=["float32"],
        gradients=False,
        name="called",
    )(called)

    def result() -> Any:
        return measuring.measure_kernel(declared, Measure("planted.py::called"), backend, budget=budget).results[0]

    clean = result()
    yield {"function": name, "place": "none", "off": "", "status": clean.status, "basis": str(clean.basis)}
    for place, mask in places(shape):
        for size, spacings in OFF.items():
            wrong = off(right[0], mask.to(right[0].device), spacings)
            fault[0] = lambda y, wrong=wrong: wrong  # type: ignore[misc]
            started = time.monotonic()
            found = result()
            planted = mask.reshape(-1)
            yield {
                "function": name,
                "place": place,
                "off": size,
                "elements": int(mask.sum()),
                "found": found.status == "wrong",
                "at a fault": any(bool(planted[each.origin.index]) for each in found.worst),
                "reason": found.reason,
                "basis": str(found.basis),
                "seconds": round(time.monotonic() - started, 1),
            }


def main() -> int:
    """The command of the docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=24, help="2 to this power (default: 24)")
    parser.add_argument("--function", action="append", choices=list(FUNCTIONS), help="only this (repeatable)")
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    columns = 1 << (options.elements // 2)
    shape = ((1 << options.elements) // columns, columns)
    backend = backends.select()
    budget = replace(Budget.of(backend), whole=1 << (options.elements - 1))
    plan = measuring.plan
    measuring.plan = lambda *args, **rest: [replace(each, cases=each.cases[:1]) for each in plan(*args, **rest)[:1]]
    rows = []
    for name in options.function or FUNCTIONS:
        for row in judged(name, shape, backend, budget):
            rows.append(row)
            print(json.dumps(row), flush=True)
    if options.record:
        options.record.write_text(json.dumps({"elements": options.elements, "rows": rows}, indent=1))
    return summary(rows)


def summary(rows: list[dict[str, Any]]) -> int:
    """Prints how many faults were found, and returns the exit code."""
    faults = [row for row in rows if row["off"]]
    covered = [row for row in faults if row["off"] == "1%"]
    others = [row for row in faults if row["off"] != "1%"]
    lost = [row for row in covered if not (row["found"] and row["at a fault"])]
    false = [row for row in rows if not row["off"] and row["status"] == "wrong"]
    found = sum(row["found"] for row in others)
    print(f"covered, 1% off: {len(covered) - len(lost)} of {len(covered)} found")
    seen = sum(row["at a fault"] for row in others)
    print(f"others, 8 spacings off: {found} of {len(others)} found, {seen} judged at a fault")
    for row in (*lost, *false):
        print(f"not as it should be: {json.dumps(row)}")
    return 1 if lost or false else 0


if __name__ == "__main__":
    sys.exit(main())
