"""Compares the records of nights on one GPU and on several."""

from __future__ import annotations

import msgspec

from benchmarks import nights
from benchmarks.nights import ended_by_the_clock, without
from benchmarks.same_records import differences
from tests.records.bounds.gate_records import kernel, result, run
from verify.records.record import LawRun, Run, Stage


def night(evaluations: int, *, measured: float = 0.5, clocked: float = 0.5, hunted: float = 0.5) -> Run:
    """Returns the record of a night with a hunt of y that the clock ended, and one of dx that ran to its end."""
    found = kernel(
        result(measured, dtype="float32"),
        result(clocked, dtype="float32", source="hunt"),
        result(hunted, dtype="float32", source="hunt", output="dx"),
        notes=[
            "y float32: the shares and quantiles of a hunt describe what it tried",
            f"y float32: stopped after {evaluations:,} evaluations: the time budget was spent",
            "dx float32: the shares and quantiles of a hunt describe what it tried",
        ],
    )
    return run(found, stages=[Stage("hunt", "ok", f"{evaluations} evaluations", 20.0)])


def compared(one: Run, other: Run) -> list[str]:
    clocked = ended_by_the_clock([one, other])
    return list(differences(without(clocked, one), without(clocked, other)))


def test_a_hunt_that_the_clock_ended_is_not_compared() -> None:
    one, two = night(1_000), night(2_000, clocked=3.0)
    assert ended_by_the_clock([one]) == {("gelu", "y float32")}
    assert list(differences(without(set(), one), without(set(), two)))
    assert not compared(one, two)


def test_everything_else_is_compared() -> None:
    one = night(1_000)
    assert compared(one, night(2_000, measured=0.6))
    assert compared(one, night(2_000, hunted=0.6))


def test_differences_are_counted_by_kernel_and_free_memory_is_none() -> None:
    def with_law(found: Run, free: int) -> Run:
        text = f"more than 2^31 elements need 129 GiB of free GPU memory; {free} are"
        law = LawRun("large tensors", "float64", "skipped", 0, text)
        return run(*(msgspec.structs.replace(each, laws=[law]) for each in found.kernels), stages=found.stages)

    one, two = with_law(night(1_000), 107), with_law(night(2_000), 93)
    assert not compared(one, two)
    three = with_law(night(2_000, measured=0.6), 93)
    first, other = nights.compared([1, 2], [100.0, 60.0], [one, three])
    assert first["differences"] == {} and first["speedup"] == 1.0
    assert other["speedup"] == 1.67 and list(other["differences"]) == ["gelu"] and other["differences"]["gelu"] > 0
