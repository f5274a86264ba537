"""A record of `verify bench`: one implementation that is timed beside three others."""

from __future__ import annotations

import math
from typing import Any

from tests.records.bounds.gate_records import SEEN, kernel, run
from tests.records.bounds.gate_records import result as result_of
from verify.records.record import KernelRun, Result, Run, Speed


def result(output: str, error: float, **more: Any) -> Result:
    return result_of(error, output=output, **more)


def implementation(name: str, results: list[Result], speed: list[Speed] | None = None, **more: Any) -> KernelRun:
    return kernel(*results, name=name, speed=speed or [], **more)


def timed() -> Run:
    """Two implementations, one of them timed, and two that were skipped for one reason."""
    speed = [
        Speed("bfloat16", "forward", (64, 64), 0.1, 0.987, spread=0.004, rounds=15),
        Speed("bfloat16", "backward", (64, 64), 0.2, 0.75, spread=0.0, rounds=15),
    ]
    return run(
        implementation("mine", [result("y", 0.5), result("dx", 0.7), result("dx (random dy)", 0.9)], speed),
        implementation("mine@eager", [result("y", 255.0), result("dx", math.nan, basis=SEEN)], peer=True),
        implementation("theirs", [], status="skipped", message="needs x, which is not installed"),
        implementation("theirs too", [], status="skipped", message="needs x, which is not installed"),
    )
