"""The table of `verify bench`."""

from __future__ import annotations

import math
from typing import Any

from tests.records.bounds.gate_records import SEEN, kernel, run
from tests.records.bounds.gate_records import result as result_of
from verify.records.files import decode, encode
from verify.records.record import KernelRun, Result, Run, Speed
from verify.report.terminal import bench_table


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


def test_a_verdict_is_that_of_the_worst_result() -> None:
    for status, shown in (("vacuous", "○ vacuous"), ("undecided", "? undecided"), ("wrong", "✗ wrong")):
        mine = implementation("mine", [result("y", 0.5), result("dx", 0.7, status=status)])
        assert shown in bench_table.render(run(mine)).splitlines()[2]


def test_names_cannot_steer_the_terminal() -> None:
    text = bench_table.render(run(implementation("a\x1b[2Jb", [result("y", 1.0)], notes=["\x1b[1m"])))
    assert "\x1b" not in text


def test_without_times_there_is_no_column_for_them() -> None:
    text = bench_table.render(run(implementation("mine", [result("y", 1.0)])))
    assert "forward" not in text and " ms" not in text


def test_speed_survives_the_file() -> None:
    speed = [
        Speed("bfloat16", "forward", (64, 64), 0.1, 0.987, spread=0.004, rounds=15),
        Speed("bfloat16", "backward", (8, 4, 8), 0.2, None, spread=0.0, of_product=0.75, rounds=15),
    ]
    record = run(implementation("mine", [result("y", 0.5)], speed))
    assert decode(encode(record)).kernels[0].speed == speed


def test_shapes_get_a_column_when_there_are_several() -> None:
    speed = [Speed("bfloat16", "forward", shape, 0.1, 0.5, rounds=3) for shape in ((8, 4), (16, 4))]
    lines = bench_table.render(run(implementation("mine", [result("y", 0.5)], speed))).splitlines()
    assert [line.split()[2] for line in lines[1:4]] == ["shape", "8x4", "16x4"]
