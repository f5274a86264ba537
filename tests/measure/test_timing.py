"""Timing side by side, with clocks by decree: no test here depends on real time but the one that a GPU runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from verify.cases import case_of
from verify.declare import declaration
from verify.declare.declaration import Kernel
from verify.measure import timing
from verify.measure.requests import Time
from verify.records.record import Speed

F = torch.nn.functional


def kernel(op: str = "gelu", function=F.gelu, **options) -> Kernel:  # type: ignore[no-untyped-def]
    options.setdefault("dtypes", ["float32"])
    return declaration.kernel(op=op, **options)(function)


class FakeClock:
    """Time by decree: milliseconds by name, and by round where a list is given. Every call really runs."""

    def __init__(self, times: Mapping[str, float | list[float]]) -> None:
        self.times = times
        self.orders: list[list[str]] = []

    def __call__(self, calls: Mapping[str, timing.Call]) -> dict[str, float]:
        for call in calls.values():
            call()
        turn = len(self.orders)
        self.orders.append(list(calls))
        return {n: (t[turn] if isinstance(t := self.times[n], list) else t) for n in calls}


def timed(contenders: Mapping[str, Kernel], clock: FakeClock, **options):  # type: ignore[no-untyped-def]
    return timing.time_together(contenders, asked(**options), "cpu", clock)


def asked(**options: Any) -> Time:
    given: dict[str, Any] = {"dtype": "float32", "shape": (4, 8), "directions": ("forward",), "rounds": 4, "seed": 0}
    return Time(targets=[], **given | options)


def test_ratio_spread_and_median_are_those_of_the_rounds() -> None:
    clock = FakeClock({"a": [4.0, 1.0, 3.0, 2.0], timing.COPY: 1.25})
    (found,) = timed({"a": kernel()}, clock)
    assert found.speed == Speed("float32", "forward", (4, 8), 2.5, 0.5, spread=1.5, rounds=4)


def test_backward_is_timed_without_the_forward_pass() -> None:
    calls = []

    def counting(x):  # type: ignore[no-untyped-def]
        calls.append(1)
        return F.gelu(x)

    timed({"a": kernel(function=counting)}, FakeClock({"a": 1.0, timing.COPY: 1.0}), directions=("backward",), rounds=9)
    assert len(calls) == 1


def test_one_that_cannot_be_timed_has_a_reason_and_the_rest_goes_on() -> None:
    def raises(x):  # type: ignore[no-untyped-def]
        raise RuntimeError("no such unit")

    def overwrites(x):  # type: ignore[no-untyped-def]
        return x.mul_(2)

    def detached(x):  # type: ignore[no-untyped-def]
        return F.gelu(x.detach())

    clock = FakeClock(dict.fromkeys(("good", "detached", "promises none", timing.COPY), 1.0))
    contenders = {
        "raises": kernel(function=raises),
        "overwrites": kernel(function=overwrites),
        "detached": kernel(function=detached),
        "promises none": kernel(gradients=False),
        "good": kernel(),
    }
    found = timed(contenders, clock, directions=("forward", "backward"))
    reasons = {(item.contender, item.direction): item.reason for item in found if item.speed is None}
    assert "RuntimeError: no such unit" in reasons[("raises", "forward")]
    assert reasons[("overwrites", "forward")] == "changes its input x: a second call computes something else"
    assert reasons[("detached", "backward")] == "autograd has no path to its inputs"
    assert reasons[("promises none", "backward")] == "declares no gradients"
    assert [item.direction for item in found if item.contender == "good" and item.speed] == ["forward", "backward"]


def test_what_one_contender_changed_is_put_right_for_the_next() -> None:
    seen = []

    def overwrites(x):  # type: ignore[no-untyped-def]
        return x.mul_(2)

    def watches(x):  # type: ignore[no-untyped-def]
        seen.append(x.clone())
        return F.gelu(x)

    clock = FakeClock(dict.fromkeys(("b", timing.COPY), 1.0))
    timed({"a": kernel(function=overwrites), "b": kernel(function=watches)}, clock)
    fresh = timing.TimedProblem(kernel(), case_of(kernel(), "float32", dims=(4, 8)), "cpu").pristine["x"]
    assert all(torch.equal(x, fresh) for x in seen)
