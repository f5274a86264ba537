"""Two records of the same cases: what is up, what is down, and whether a bit changed."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from tests.records.bounds.gate_records import SEEN, kernel, result, run
from verify.cli import compare as command
from verify.records.compare import Comparison, compare
from verify.records.record import Basis, Result, SpecialValue
from verify.report import compare_words

nan, inf = math.nan, math.inf


def both(base: Result | None, head: Result | None, **more: Any) -> Comparison:
    def record(item: Result | None) -> Any:
        return run(kernel(*([] if item is None else [item])))

    return compare(record(base), msgspec.structs.replace(record(head), **more))


@pytest.mark.parametrize(
    ("base", "head", "change", "code"),
    [
        (0.5, 0.5, "same", 0),
        (0.5, 0.5000001, "worse", 1),
        (0.5000001, 0.5, "better", 0),
        (0.5, nan, "worse", 1),
        (0.5, inf, "worse", 1),
        (inf, nan, "worse", 1),
        (nan, inf, "better", 0),
        (nan, nan, "same", 0),
        (inf, inf, "same", 0),
        (nan, 0.5, "better", 0),
    ],
)
def test_up_and_down(base: float, head: float, change: str, code: int) -> None:
    found = both(result(base), result(head))
    [pair] = found.pairs
    assert (pair.change, found.exit_code) == (change, code)


@pytest.mark.parametrize("status", ["vacuous", "undecided"])
def test_a_figure_without_a_verdict_is_not_the_same(status: str) -> None:
    found = both(result(0.5, status=status), result(0.5, status=status))
    assert (found.pairs[0].change, found.exit_code) == ("incomparable", 3)
    assert found.pairs[0].why == f"head is {status}: zeros would pass"
    assert both(result(0.5), result(0.6, status=status)).exit_code == 1
    assert both(result(0.5, status=status), result(0.5)).exit_code == 0


@pytest.mark.parametrize(
    ("base", "head", "bits"),
    [("aa", "aa", "identical"), ("aa", "bb", "changed"), ("", "bb", "unknown"), ("aa", "", "unknown")],
)
def test_bits(base: str, head: str, bits: str) -> None:
    [pair] = both(result(0.5, bits=base), result(0.5, bits=head)).pairs
    assert pair.bits == bits
    assert pair.silent is (bits != "changed")


@pytest.mark.parametrize(
    ("base", "head", "reason"),
    [
        (result(), result(properties="bb11bb11bb11"), "property aa00aa00aa00, now bb11bb11bb11"),
        (result(), result(properties=""), "no property hash"),
        (result(), result(gate="scaled"), "the plain error was judged, now the scaled one"),
        (result(basis=SEEN), result(basis=Basis("observed", 4_096, 1)), "other cases: seed 0, now seed 1"),
        (result(), result(basis=Basis("exhaustive", 0)), "no element was measured"),
    ],
)
def test_other_cases_cannot_be_compared(base: Result, head: Result, reason: str) -> None:
    found = both(base, head)
    [pair] = found.pairs
    assert (pair.change, found.exit_code) == ("incomparable", 3)
    assert reason in pair.why


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


def with_special(*rows: SpecialValue, **options: Any) -> Result:
    return msgspec.structs.replace(result(**options), special=list(rows))


def test_special_inputs_are_compared_one_by_one_whatever_the_other_cases_are() -> None:
    at_zero = SpecialValue({"x": "0 (0x0000)"}, "0", "0.0")
    at_inf = SpecialValue({"x": "inf (0x7f80)"}, "inf", "inf")
    wrong = msgspec.structs.replace(at_inf, got="nan", status="wrong")
    other = {"properties": "bb11bb11bb11"}
    found = both(with_special(at_zero, at_inf), with_special(wrong, at_zero, **other))
    assert (found.special_tried, [item.head.got for item in found.special]) == (2, ["nan"])
    assert found.special[0].worse
    assert found.exit_code == 1  # right before, wrong now
    assert command.about(found) == [
        "special 1 of 2 special inputs have another answer",
        "        gelu y bfloat16 at x = inf (0x7f80): inf, now nan: wrong now",
        "",
    ]
    assert command.data(found)["special"] == [
        {
            "kernel": "gelu",
            "output": "y",
            "dtype": "bfloat16",
            "inputs": {"x": "inf (0x7f80)"},
            "base": {"got": "inf", "status": "ok"},
            "head": {"got": "nan", "status": "wrong"},
        }
    ]
    back = both(with_special(wrong), with_special(at_inf))
    assert (back.special[0].worse, back.exit_code) == (False, 0)
    # an input that one record lacks is no difference, nor is another result's
    assert both(with_special(at_zero), with_special(at_inf)).special_tried == 0
    assert both(with_special(at_zero), with_special(at_zero, output="dx")).special_tried == 0


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


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (
            both(result(0.5), result(0.75)),
            "worse: 1 of 1 figure grew; the most is gelu y bfloat16 all, 0.5 ULP to 0.75 ULP",
        ),
        (both(result(0.75), result(0.5)), "better: 1 of 1 figure shrank"),
        (both(result(), result()), "same: no maximum changed in 1 figure, whether bits changed is not known"),
        (both(result(), None), "incomplete: 1 only in base"),
        (both(None, None), "incomplete: the records have no figure in common"),
        (both(result(), result(gate="scaled")), "incomplete: 1 cannot be compared"),
    ],
)
def test_the_sentence(found: Comparison, sentence: str) -> None:
    assert compare_words.document(found).sentence == sentence
