"""The worst input of each regime: kept by a run where a bound could be breached, and found by a replay."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch

import verify
from tests.measure.test_kernel import CPU, only, silu
from verify.cases.classes import NONFINITE
from verify.errors import UsageError
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure
from verify.records.files import decode, encode
from verify.records.readings import readings
from verify.records.record import Figures, Result, Run, value_of


@verify.kernel(op="silu", dtypes=["float16"], gradients=False)
def sloppy(x):
    """Far off for x > 1, in more than ten elements; a little off at one negative input; NaN at one infinity."""
    right = silu(x)
    up = torch.nextafter(right, torch.full_like(right, torch.inf))
    wrong = torch.where(x > 1, right * 1.25, torch.where(x == -2.25, up, right))
    return torch.where(x == -torch.inf, torch.nan, wrong)


@pytest.fixture(scope="module")
def run() -> Run:
    from tests.records.bounds.gate_records import run as of

    return of(measure_kernel(sloppy, Measure("accuracy.py::sloppy"), CPU), arch="interpreter")


def beyond(result: Result) -> dict[str, Any]:
    return {part.name: part for part in result.regimes if part.worst is not None}


def test_every_regime_that_a_bound_could_be_about_names_its_own_worst(run: Run) -> None:
    result = only(run.kernels[0])
    assert all(float(item.inputs["x"].split()[0]) > 1 for item in result.worst[:10]), "the ten worst are of one side"
    for part in result.regimes:
        value = value_of(part.figures.max_ulp)
        bad = not value <= 0.5 or (part.name == NONFINITE and part.figures.nonfinite)
        assert (part.worst is not None) == bool(bad), part.name
        if part.worst is None or part.name == NONFINITE:
            continue
        x = float(part.worst.inputs["x"].split()[0])
        assert (part.low is None or value_of(part.low) <= x) and (part.high is None or x < value_of(part.high))
        assert abs(value_of(part.worst.ulp)) == value, "of each regime the largest error, not one of the largest"
    assert any(part.worst.inputs["x"].startswith("-2.25 ") for part in beyond(result).values())
    assert beyond(result)[NONFINITE].worst.inputs["x"] == "-inf (0xfc00)"


def test_a_record_keeps_them_and_every_reading_has_its_own(run: Run) -> None:
    again = decode(encode(run))
    assert again == run
    assert encode(measured_again(run)) == encode(run), "the same bytes each time"
    told = {reading.key.regime: reading.worst for reading in readings(again)}
    for name, part in beyond(only(run.kernels[0])).items():
        assert told[name] == part.worst


def measured_again(run: Run) -> Run:
    kernel = measure_kernel(sloppy, Measure("accuracy.py::sloppy"), CPU)
    first = run.kernels[0]
    kernel = msgspec.structs.replace(kernel, seconds=first.seconds, peak=first.peak)  # what this process takes
    return msgspec.structs.replace(run, kernels=[kernel])


def test_a_replay_finds_the_worst_of_a_regime(run: Run) -> None:
    from verify.records.recorded import worst_of_run

    result = only(run.kernels[0])
    for name, part in beyond(result).items():
        assert worst_of_run(run, "sloppy", dtype="float16", result="y", regime=name) == part.worst
    with pytest.raises(UsageError, match=r"has no element of sloppy float16 y 'nowhere' with an error"):
        worst_of_run(run, "sloppy", dtype="float16", result="y", regime="nowhere")
    with pytest.raises(UsageError, match="bfloat16"):
        worst_of_run(run, "sloppy", dtype="bfloat16")


def test_a_replay_takes_an_element_of_a_wrong_result_first(run: Run) -> None:
    """A passing kernel may be far off where it promises nothing."""
    from verify.records.recorded import worst_of_run

    kernel = run.kernels[0]
    wrong = msgspec.structs.replace(only(kernel), status="wrong")
    far = msgspec.structs.replace(wrong.worst[0], ulp=1e9, scaled_ulp=None)
    fine = msgspec.structs.replace(wrong, output="dx", status="ok", worst=[far], classes=[])
    both = msgspec.structs.replace(run, kernels=[msgspec.structs.replace(kernel, results=[fine, wrong])])
    assert wrong.classes[0].reason and wrong.classes[0].worst != wrong.worst[0]
    assert worst_of_run(both) == wrong.classes[0].worst, "ordinary inputs first, as in reports"
    alone = msgspec.structs.replace(run, kernels=[msgspec.structs.replace(kernel, results=[fine])])
    assert worst_of_run(alone) == far


def test_a_replay_of_a_regime_takes_the_result_that_is_worst_there(run: Run) -> None:
    """A hunt may find more there than the run, whose result is worse elsewhere."""
    from verify.records.recorded import is_found, worst_of_run

    kernel = run.kernels[0]
    here = only(kernel)
    part = next(each for each in here.regimes if each.worst)

    def with_error(error: float, index: int) -> Result:
        figures = msgspec.structs.replace(part.figures, max_ulp=error, max_upper=error)
        origin = msgspec.structs.replace(part.worst.origin, index=index)
        worst = msgspec.structs.replace(part.worst, ulp=error, origin=origin)
        return msgspec.structs.replace(
            here, classes=[], regimes=[msgspec.structs.replace(part, figures=figures, worst=worst)], worst=[worst]
        )

    def most(error: float) -> Figures:
        return msgspec.structs.replace(here.figures, max_ulp=error, max_upper=error)

    measured = msgspec.structs.replace(with_error(5.0, 1), figures=most(1e9))
    hunted = msgspec.structs.replace(with_error(40.0, 2), source="hunt", figures=most(1e3))
    both = msgspec.structs.replace(run, kernels=[msgspec.structs.replace(kernel, results=[measured, hunted])])
    assert worst_of_run(both, regime=part.name).origin.index == 2
    assert worst_of_run(both).origin.index == 1
    place = {"dtype": here.dtype, "result": here.output}
    assert is_found(both, measured.worst[0], kernel.name, **place)
    assert not is_found(both, hunted.worst[0], kernel.name, **place), "its command needs the whole case"
