"""Two records of the same cases: what is up, what is down, and whether a bit changed."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from tests.gate_records import SEEN, kernel, result, run
from verify.compare import Comparison, compare
from verify.record import Basis, Result
from verify.report import compare_text

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


@pytest.mark.parametrize(
    ("base", "head", "bits"),
    [("aa", "aa", "identical"), ("aa", "bb", "changed"), ("", "bb", "unknown"), ("aa", "", "unknown")],
)
def test_bits(base: str, head: str, bits: str) -> None:
    if "bits" not in Result.__struct_fields__:
        pytest.skip("records keep no digest of bits")
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
    assert reason in pair.reason


def test_machines_do_not_mix() -> None:
    found = compare(run(kernel(result())), run(kernel(result(0.1)), arch="sm_80"))
    [pair] = found.pairs
    assert (pair.change, pair.reason, found.exit_code) == ("incomparable", "measured on sm_90 and on sm_80", 3)


def test_what_stands_on_one_side_only() -> None:
    removed = compare(run(kernel(result(), result(output="dx"))), run(kernel(result())))
    assert [(pair.change, pair.key.output) for pair in removed.pairs] == [("removed", "dx"), ("same", "y")]
    assert removed.exit_code == 3
    added = compare(run(kernel(result())), run(kernel(result(), result(output="dx"))))
    assert [(pair.change, pair.key.output) for pair in added.pairs] == [("added", "dx"), ("same", "y")]
    assert added.exit_code == 0
    assert compare(run(), run()).exit_code == 3


def test_a_kernel_that_fails_now_is_worse_and_one_that_works_again_is_named() -> None:
    broken = run(kernel(status="crashed", message="the process died of SIGSEGV"), kernel(result(), name="silu"))
    works = run(kernel(result()), kernel(result(), name="silu"))
    found = compare(works, broken)
    assert (found.broke, found.exit_code) == ((("gelu", "the process died of SIGSEGV"),), 1)
    back = compare(broken, works)
    assert (back.mended, back.broke, back.exit_code) == (("gelu",), (), 0)


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
            "worse: 1 of 1 figure grew; the most is gelu y bfloat16 all, 0.5 to 0.75 ULP",
        ),
        (both(result(0.75), result(0.5)), "better: 1 of 1 figure shrank"),
        (both(result(), result()), "same: no maximum changed in 1 figure, whether bits changed is not known"),
        (both(result(), None), "incomplete: 1 only in base"),
        (both(None, None), "incomplete: the records have no figure in common"),
        (both(result(), result(gate="scaled")), "incomplete: 1 cannot be compared"),
    ],
)
def test_the_sentence(found: Comparison, sentence: str) -> None:
    assert compare_text.sentence(found) == sentence


def test_the_sentence_about_bits() -> None:
    if "bits" not in Result.__struct_fields__:
        pytest.skip("records keep no digest of bits")
    same = both(result(bits="aa", low=0.5, high=0.7), result(bits="aa", low=0.5, high=0.7))
    assert compare_text.sentence(same) == "same: no maximum changed in 2 figures, and not a bit"
    other = both(result(bits="aa", low=0.5, high=0.7), result(bits="bb", low=0.5, high=0.7))
    assert compare_text.sentence(other) == "same: no maximum changed in 2 figures, bits changed in 1 of 1 result"


def test_changed_bits_are_told_by_the_figures_that_changed_if_there_are_any() -> None:
    if "bits" not in Result.__struct_fields__:
        pytest.skip("records keep no digest of bits")
    moved = both(result(bits="aa", low=0.5, high=0.7), result(bits="bb", low=0.6, high=0.7))
    assert [pair.key.regime for pair in moved.told] == ["low"]
    only_bits = both(result(bits="aa", low=0.5, high=0.7), result(bits="bb", low=0.5, high=0.7))
    assert [pair.key.regime for pair in only_bits.told] == ["high", "low"]
    assert both(result(bits="aa"), result(bits="aa")).told == []


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_text_fits_and_shows_what_changed(width: int) -> None:
    base = run(kernel(result(low=0.5, high=0.7, rest=0.6), result(0.5, output="dx (random dy)")))
    head = run(kernel(result(low=0.9, high=0.6, rest=0.6), result(0.5, output="dx (random dy)")))
    text = compare_text.render(compare(base, head), width=width, color=False)
    assert all(len(line) <= width or "verify replay" in line for line in text.splitlines())
    assert "random dy" not in text  # nothing changed there
    assert "✗ worse" in text
    assert "✓ better" in text
    last = " ".join(text[text.rindex("✗ worse:") :].split())
    assert (
        last == "✗ worse: 1 of 4 figures grew; the most is gelu y bfloat16 low, 0.5 to 0.9 ULP; 1 of 4 figures shrank"
    )
    assert "dx (random dy)" in compare_text.render(compare(base, head), width=width, color=False, everything=True)
