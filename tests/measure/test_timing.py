"""Timing side by side, with clocks by decree: no test here depends on real time but the one that a GPU runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

import verify
from verify.cases import case_of
from verify.declare import declaration
from verify.declare.declaration import Kernel
from verify.errors import UsageError
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


@pytest.mark.parametrize(
    ("op", "shape", "operands", "forward", "backward"),
    [
        ("gelu", (4, 8), ["x"], 2 * 32, 3 * 32),
        ("geglu", (4, 8), ["x"], 3 * 32, 5 * 32),  # x and dx are twice as wide
        ("geglu_split", (4, 8), ["x1", "x2"], 3 * 32, 5 * 32),
        ("layer_norm", (4, 8), ["x", "weight", "bias"], 2 * 32 + 16, 3 * 32 + 32),
        ("layer_norm", (4, 8), ["x"], 2 * 32, 3 * 32),
    ],
)
def test_bytes_are_those_of_one_read_and_one_write(
    op: str, shape: tuple[int, ...], operands: list[str], forward: int, backward: int
) -> None:
    subject = kernel(op, operands=operands, dtypes=["bfloat16"])
    for direction, elements in (("forward", forward), ("backward", backward)):
        case = case_of(subject, "bfloat16", dims=shape, upstream="normal" if direction == "backward" else "")
        problem = timing.TimedProblem(subject, case, "cpu")
        assert timing.bytes_moved(problem, direction) == 2 * elements  # type: ignore[arg-type]


def test_a_matrix_product_is_measured_against_the_bare_product() -> None:
    def layer(x, weight, bias, *, activation):  # type: ignore[no-untyped-def]
        return F.linear(x, weight, bias)

    clock = FakeClock({"a": 4.0, timing.PRODUCT: 3.0})
    found = timed({"a": kernel("linear", layer)}, clock, shape=(4, 8, 6), directions=("forward", "backward"))
    assert [item.speed.of_product for item in found if item.speed] == [0.75, 0.75]
    assert all(item.speed and item.speed.of_copy is None for item in found)


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


def test_shapes_are_checked_before_anything_runs() -> None:
    clock = FakeClock({})
    with pytest.raises(UsageError, match="'linear' is timed at M,K,N; received \\(4, 8\\)"):
        timed({"a": kernel("linear", F.linear)}, clock)
    with pytest.raises(UsageError, match="positive sizes"):
        timed({"a": kernel()}, clock, shape=(4, 0))


def test_functions_are_timed_at_the_largest_even_sizes_that_they_allow() -> None:
    def sums(x):  # type: ignore[no-untyped-def]
        return x.sum(-1)

    batched = verify.kernel(like=sums, shapes={"x": "b h t"}, where="h <= 8 and t % 3 == 0")(sums)
    assert timing.default_shape(batched) == (1024, 8, 1536)

    def relu(x):  # type: ignore[no-untyped-def]
        return F.relu(x)

    rows = verify.kernel(like=F.relu, shapes={"x": "n d"}, where="n * d <= 100")(relu)
    assert timing.default_shape(rows) == (8, 8)
    given = [(torch.ones(2, 3),), (torch.ones(5, 7),)]
    assert timing.default_shape(verify.kernel(like=F.relu, examples=given)(relu)) == (1,)  # the second
