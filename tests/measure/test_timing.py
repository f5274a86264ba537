"""Timing side by side, with clocks by decree: no test here depends on real time but the one that a GPU runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


def test_every_round_lets_another_one_begin() -> None:
    clock = FakeClock({"a": 1.0, "b": 1.0, timing.COPY: 1.0})
    timed({"a": kernel(), "b": kernel()}, clock, rounds=3)
    assert [order[0] for order in clock.orders] == ["a", "b", timing.COPY]
    assert all(sorted(order) == sorted(["a", "b", timing.COPY]) for order in clock.orders)


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
        problem = timing._problem(subject, case, "cpu")
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
    fresh = timing._problem(kernel(), case_of(kernel(), "float32", dims=(4, 8)), "cpu")["x"]
    assert all(torch.equal(x, fresh) for x in seen)


def test_what_is_compiled_ahead_is_called_as_it_will_be_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[tuple[int, ...], bool]] = []
    resets: list[int] = []
    monkeypatch.setattr(timing, "_keeping", False)
    monkeypatch.setattr(torch.compiler, "reset", lambda: resets.append(len(seen)))

    def watching(x):  # type: ignore[no-untyped-def]
        seen.append((tuple(x.shape), torch.is_grad_enabled()))
        return F.gelu(x)

    def raises(x):  # type: ignore[no-untyped-def]
        raise RuntimeError("no such unit")

    contenders = {"raises": kernel(function=raises), "a": kernel(function=watching)}
    clock = FakeClock({"a": 1.0, timing.COPY: 1.0})
    timed(contenders, clock, directions=("forward", "backward"), rounds=1)
    calls = seen[: timing.WARM_UP] + seen[-1:]
    assert calls == [((4, 8), False)] * timing.WARM_UP + [((4, 8), True)] and resets == [0]
    seen.clear()
    import torch._dynamo.config as dynamo

    with dynamo.patch(recompile_limit=8, accumulated_recompile_limit=256, automatic_dynamic_shapes=True):
        timing.compile_together(contenders, asked(directions=("forward", "backward")), "cpu")
        assert seen == calls
        given = (contenders, asked(directions=("backward",)), "cpu", lambda text: None)
        assert [list(ready.calls) for _, ready in timing._directions(*given, held=False)] == [[]]
        assert [list(ready.calls) for _, ready in timing._directions(*given)] == [["a"]]
        timed(contenders, clock, directions=("forward",), rounds=1)
        assert resets == [0], "what is timed in this process is what it has compiled"


@pytest.mark.parametrize("variants", [1, 3])
def test_torch_compile_chooses_among_its_variants_when_it_is_timed(
    monkeypatch: pytest.MonkeyPatch, variants: int
) -> None:
    """What is fastest beside other processes on the GPU must not be what is timed."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    launches: list[str] = []

    class Tuner:
        def __init__(self) -> None:
            self.launchers: list[Callable[..., str]] = []

        def precompile(self) -> None:
            def launcher(place: int) -> Callable[..., str]:
                def launch(*arguments: int, stream: int) -> str:
                    launches.append(f"{place} {arguments} {stream}")
                    return "launched"

                return launch

            self.launchers = [launcher(place) for place in range(variants)]

    def choosing(self: Tuner, *arguments: int, stream: int) -> str:
        self.launchers = self.launchers[-1:]  # the fastest
        return self.launchers[0](*arguments, stream=stream)

    monkeypatch.setattr(CachingAutotuner, "run", choosing)
    tuner = Tuner()
    with timing._undecided():
        for _ in range(2):
            assert CachingAutotuner.run(tuner, 7, stream=5) == "launched"
    assert launches == ["0 (7,) 5"] * 2 and len(tuner.launchers) == variants
    CachingAutotuner.run(tuner, 7, stream=5)
    assert launches[2:] == [f"{variants - 1} (7,) 5"]


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


@pytest.mark.gpu
def test_a_copy_takes_about_as_long_as_a_copy() -> None:
    device = f"cuda:{torch.cuda.current_device()}"
    subject = kernel(function=lambda x: x.clone())
    large = asked(shape=(4096, 8192), rounds=9)
    found = timing.time_together({"a": subject}, large, device, timing.CudaClock(device))
    assert found[0].speed is not None and found[0].speed.of_copy is not None
    assert 0.7 < found[0].speed.of_copy < 1.4
