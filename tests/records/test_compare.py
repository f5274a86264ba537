"""Two records of the same cases: what is up, what is down, and whether a bit changed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.golden import answers
from tests.records.bounds.gate_records import SEEN, kernel, result, run
from verify.cli import compare as command
from verify.records.compare import Comparison, compare
from verify.records.record import Basis, Result
from verify.report import compare_words

nan, inf = math.nan, math.inf


def both(base: Result | None, head: Result | None, **more: Any) -> Comparison:
    def record(item: Result | None) -> Any:
        return run(kernel(*([] if item is None else [item])))

    return compare(record(base), msgspec.structs.replace(record(head), **more))


def told(base: Result | None, head: Result | None) -> tuple[Any, ...]:
    """What a comparison says: of each pair its change and its bits, whether they are silent, and why; the whole."""
    found = both(base, head)
    pairs = [(pair.change, pair.bits, pair.silent, pair.why) for pair in found.pairs]
    return *pairs, found.exit_code, compare_words.document(found).sentence


def test_what_two_records_of_one_result_say() -> None:
    answers(Path(__file__).parent / "snapshots" / "compared.txt", globals())


@pytest.mark.parametrize("status", ["vacuous", "undecided"])
def test_a_figure_without_a_verdict_is_not_the_same(status: str) -> None:
    found = both(result(0.5, status=status), result(0.5, status=status))
    assert (found.pairs[0].change, found.exit_code) == ("incomparable", 3)
    assert found.pairs[0].why == f"head is {status}: zeros would pass"
    assert both(result(0.5), result(0.6, status=status)).exit_code == 1
    assert both(result(0.5, status=status), result(0.5)).exit_code == 0


def on(backend: str, *results: Result, **environment: Any) -> Any:
    """A record of another device, as its environment says."""
    made = run(kernel(*results))
    about = {"arch": "sm_90", "torch": "2.11", "triton": "3.6.0", **environment}
    return msgspec.structs.replace(made, backend=backend, environment=about)


def test_the_same_cases_on_another_device_are_compared_and_the_devices_are_named() -> None:
    found = compare(
        on("cuda", result(0.5, bits="aa"), gpu="NVIDIA H200"), on("interpreter", result(0.4, bits="bb"), torch="2.13")
    )
    [pair] = found.pairs
    assert (pair.change, pair.bits, pair.key.arch, found.exit_code) == ("better", "changed", "interpreter", 0)
    assert found.beneath == (
        ("arch", "sm_90", "interpreter"),
        ("gpu", "NVIDIA H200", "absent"),
        ("torch", "2.11", "2.13"),
    )
    lines = command.about(found)
    assert lines == ["arch    sm_90, now interpreter", "gpu     NVIDIA H200, now absent", "torch   2.11, now 2.13", ""]
    assert command.about(both(result(), result())) == []  # nothing differs below


def test_another_plan_or_seed_on_another_device_stays_apart_and_says_how_to_ask_the_same() -> None:
    for other in (result(properties="bb11bb11bb11"), result(basis=Basis("observed", 4_096, 1))):
        found = compare(on("cuda", result(basis=SEEN)), on("interpreter", other))
        assert (found.pairs[0].change, found.other_cases, found.exit_code) == ("incomparable", True, 3)
    # every input of a format is the same whatever the seed of the run is
    assert compare(on("cuda", result()), on("interpreter", result())).other_cases is False
    assert both(result(), result(gate="scaled")).other_cases is False


def test_the_same_bits_are_not_told_for_a_mean_that_the_reference_rounds_otherwise() -> None:
    def meant(mean: float, bits: str) -> Result:
        item = result(0.5, bits=bits)
        part = item.regimes[0]
        figures = msgspec.structs.replace(part.figures, mean=mean)
        return msgspec.structs.replace(item, regimes=[msgspec.structs.replace(part, figures=figures)])

    assert both(meant(0.2, "aa"), meant(0.2000001, "aa")).listed == []
    assert len(both(meant(0.2, "aa"), meant(0.2000001, "bb")).listed) == 1


def test_a_kernel_that_fails_now_is_worse_and_one_that_works_again_is_named() -> None:
    broken = run(kernel(status="crashed", message="the process died of SIGSEGV"), kernel(result(), name="silu"))
    works = run(kernel(result()), kernel(result(), name="silu"))
    found = compare(works, broken)
    assert (found.broke, found.exit_code) == ((("gelu", "the process died of SIGSEGV"),), 1)
    back = compare(broken, works)
    assert (back.fixed, back.broke, back.exit_code) == (("gelu",), (), 0)


def test_regimes_and_sources_are_paired_by_name() -> None:
    base = run(kernel(result(low=0.5, high=0.7), result(0.9, source="sweep")))
    head = run(kernel(result(0.9, source="sweep"), result(high=0.7, low=0.6)))
    found = compare(base, head)
    assert {(pair.key.regime, pair.source): pair.change for pair in found.pairs} == {
        ("low", "run"): "worse",
        ("high", "run"): "same",
        ("all", "sweep"): "same",
    }
