"""What cannot be in a record has a name and a place, and nothing that was measured has one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.records.bounds.gate_records import figures, kernel, result, run, worst
from verify.measure import result as judging
from verify.records.contradictions import FEWEST, RMS_LIMIT, contradictions, contradictions_of
from verify.records.readings import NONFINITE
from verify.records.record import Basis, ClassFigures, Curve, Gap, Histogram, LawRun, RegimeFigures, Result


def changed(item: Any, **changes: Any) -> Any:
    return msgspec.structs.replace(item, **changes)


GOOD = result(low=0.5, high=3.0)  # two regimes of 32,768 elements
LOW, HIGH = GOOD.regimes
SPECIAL = RegimeFigures(NONFINITE, None, None, figures(0.0, n=256))


def with_regimes(*parts: RegimeFigures, **changes: Any) -> Result:
    return changed(GOOD, regimes=list(parts), **changes)


def small(**changes: Any) -> Any:
    """The figures of one regime."""
    return changed(LOW.figures, **changes)


def curve(error: Any) -> Curve:
    return Curve("x", [0.0, 1.0], [65_536], [error], ["0x3f80"])


def in_noise(rms: float, weighed: int = 65_536, limit: float | None = 4.0) -> Result:
    """A result of the gate "noise" that is ok."""
    inside = figures(3.0, n=65_536, scaled=3.0, rms=rms, weighed=weighed)
    return changed(GOOD, gate="noise", classes=[ClassFigures("ordinary", inside, limit)])


@pytest.mark.parametrize(
    ("broken", "place", "text"),
    [
        (changed(GOOD, basis=Basis("exhaustive", 1)), ".basis.n", "over 1 inputs, and bfloat16 has 65,536 numbers"),
        (changed(GOOD, source="sweep", basis=Basis("exhaustive", 8)), ".basis.n", "over 8 inputs"),
        (changed(GOOD, basis=Basis("exhaustive", 65_280)), ".basis.n", "over 65,280 inputs"),
        (with_regimes(LOW), ".regimes", "the regimes add up to 32,768 elements, n of the basis is 65,536"),
        (with_regimes(LOW, HIGH, SPECIAL), ".regimes", "add up to 65,792 elements, n of the basis is 65,536"),
        (changed(GOOD, histogram=Histogram([-1.0, 1.0], [1])), ".histogram.counts", "add up to 1, the figures are of"),
        (changed(GOOD, histogram=Histogram([0.0], [65_536])), ".histogram.edges", "1 edges of 1 bins"),
        (changed(GOOD, histogram=Histogram([0, 1, 2], [-1, 65_537])), ".histogram.counts", "add up to 65,536"),
        (with_regimes(changed(LOW, figures=small(max_ulp=-1.0)), HIGH), ".regimes[0].figures.max_ulp", "this is -1.0"),
        (changed(GOOD, baseline=figures(1.0, mean=-0.5)), ".baseline.mean", "an error is at least 0, and this is -0.5"),
        (changed(GOOD, limit=-1.0, status="wrong"), ".limit", "a limit is at least 0, and this is -1"),
        (with_regimes(changed(LOW, figures=small(nonfinite=1)), HIGH), ".regimes[0].figures", "1 elements are not"),
        (with_regimes(changed(LOW, figures=small(open=3)), HIGH), ".regimes[0].figures", "3 elements are open beside"),
        (
            with_regimes(changed(LOW, figures=small(misrounded=32_769)), HIGH),
            ".regimes[0].figures.misrounded",
            "32,769 of",
        ),
        (
            with_regimes(changed(LOW, figures=small(max_ulp=0.6)), HIGH),
            ".regimes[0].figures.max_ulp",
            "a maximum of 0.6",
        ),
        (changed(GOOD, figures=figures(float("nan"), n=65_536)), ".figures", 'nan ULP beside the status "ok"'),
        (changed(GOOD, limit=2.0), ".figures", 'a maximum of 3 ULP beside the status "ok" with the limit 2'),
        (changed(GOOD, worst=[worst(3.5)]), ".worst[0].ulp", "an error of 3.5 ULP, and no element exceeds 3"),
        (changed(GOOD, worst=[worst(-3.5)]), ".worst[0].ulp", "an error of -3.5 ULP"),
        (with_regimes(changed(LOW, worst=worst(0.7)), HIGH), ".regimes[0].worst.ulp", "no element exceeds 0.5"),
        (changed(GOOD, baseline=figures(1.0), baseline_worst=[worst(2.0)]), ".baseline_worst[0].ulp", "exceeds 1"),
        (changed(GOOD, histogram=Histogram([-8, -4, 0], [1, 65_535])), ".histogram.counts", "at least 4 ULP, and no"),
        (changed(GOOD, histogram=Histogram([0, 4, "inf"], [65_535, 1])), ".histogram.counts", "at least 4 ULP, and no"),
        (changed(GOOD, curve=curve(3.04)), ".curve.max_ulp", "at least 3.0099 ULP, and no element exceeds 3"),
        (changed(GOOD, curve=curve("inf")), ".curve.max_ulp", "at least inf ULP, and no element exceeds 3"),
        (changed(GOOD, status="vacuous"), ".reason", 'empty beside the status "vacuous"'),
        (changed(GOOD, status="undecided"), ".reason", 'empty beside the status "undecided"'),
        (in_noise(3.5), ".classes[0].figures.rms", '3.5 beside the status "ok" with the limit 3'),
        (in_noise(float("nan")), ".classes[0].figures.rms", 'nan beside the status "ok"'),
    ],
)
def test_a_result_that_cannot_be(broken: Result, place: str, text: str) -> None:
    assert any(where == ".results[0]" + place and text in said for where, said in contradictions(kernel(broken)))


def test_a_root_mean_square_that_nothing_judges_may_be_large() -> None:
    assert (FEWEST, RMS_LIMIT) == (judging.FEWEST, judging.RMS_LIMIT)
    for item in (in_noise(2.0), in_noise(9.0, weighed=15), in_noise(9.0, limit=None)):
        assert not any("rms" in place for place, _ in contradictions(kernel(item)))


def test_wrong_at_infinities_is_not_ok() -> None:
    parts = (changed(LOW, figures=small(n=32_512)), HIGH, changed(SPECIAL, figures=figures(0.0, n=256, nonfinite=1)))
    broken = with_regimes(*parts, figures=figures(3.0, n=65_280), histogram=Histogram([0.0, 1.0], [65_280]))
    assert [place for place, _ in contradictions(kernel(broken))] == [".results[0].regimes[2].figures"]
    assert list(contradictions(kernel(changed(broken, status="wrong")))) == []
    # formats of 8 bits have no extreme numbers: whether infinity is promised is not in the record
    unknown = changed(broken, classes=[ClassFigures("ordinary", broken.figures, 4.0)])
    assert list(contradictions(kernel(unknown))) == []
    known = changed(broken, classes=[*unknown.classes, ClassFigures("extreme", figures(0.0, n=0, misrounded=0), 4.0)])
    assert [place for place, _ in contradictions(kernel(known))] == [".results[0].regimes[2].figures"]


def test_a_kernel_that_cannot_be() -> None:
    law = LawRun("batch invariance", "bfloat16", "broken", 3)
    for broken, place, text in (
        (
            kernel(GOOD, changed(GOOD, source="sweep")),
            ".results[1].source",
            "a sweep has the property hash aa00aa00aa00 of a run",
        ),
        (
            kernel(changed(GOOD, status="wrong"), status="ok"),
            ".results[0].status",
            '"wrong", and the kernel gelu is "ok"',
        ),
        (kernel(GOOD, laws=[law]), ".laws[0].status", '"broken", and the kernel gelu is "ok"'),
        (
            kernel(changed(GOOD, status="vacuous", reason="zeros"), laws=[law], status="vacuous"),
            ".laws[0].status",
            'and the kernel gelu is "vacuous"',
        ),
        (
            kernel(changed(GOOD, status="undecided", reason="open"), status="vacuous"),
            ".results[0].status",
            '"undecided", and the kernel gelu is "vacuous"',
        ),
        (kernel(GOOD, status="interrupted"), ".status", '"interrupted", and the kernel gelu has results'),
        (kernel(GOOD, status="skipped"), ".status", '"skipped", and the kernel gelu has results'),
        (kernel(GOOD, status="vacuous"), ".status", '"vacuous", and no result of the kernel gelu is'),
        (kernel(GOOD, status="undecided"), ".status", '"undecided", and no result of the kernel gelu is'),
    ):
        [(where, said)] = contradictions(broken)
        assert where == place and text in said


def test_what_can_be() -> None:
    """Pairs, packed results, a NaN and its element, a hunt that counts cases, a peer without its regimes."""
    pairs = changed(GOOD, basis=Basis("exhaustive", 2 << 32), regimes=[], worst=[])
    lost = result(float("nan"), limit_keeps=float("nan"))
    hunted = changed(GOOD, source="hunt", basis=Basis("observed", 8, 0), properties="")
    brief = changed(GOOD, regimes=[], figures=figures(3.0, n=65_280), worst=[worst(float("inf"))])
    brief = changed(brief, histogram=Histogram([0.0, 1.0], [65_280]))
    part = changed(GOOD, output="y (0:1)", source="sweep", basis=Basis("exhaustive", 8), regimes=[], properties="")
    part = changed(part, figures=figures(3.0, n=8), histogram=Histogram([0.0, 1.0], [8]))
    rounded = changed(GOOD, curve=curve(3.01), histogram=Histogram([-2, 0, 2, 4], [65_534, 1, 1]))
    estimated = changed(hunted, histogram=Histogram([-8, -4, 0], [1, 65_535]))
    for item in (GOOD, pairs, lost, hunted, brief, part, rounded, estimated):
        assert list(contradictions(kernel(item))) == []


def test_an_interrupted_kernel_is_a_gap_of_its_run() -> None:
    stopped = kernel(status="interrupted")
    gap = Gap("interrupted", "gelu: not finished: interrupted", stopped.target)
    assert list(contradictions_of(run(stopped, incomplete=[gap]))) == []
    for gaps in ([], [changed(gap, target="accuracy.py::silu")]):
        [(place, text)] = contradictions_of(run(stopped, incomplete=gaps))
        assert (place, text) == (".kernels[0].status", '"interrupted", and nothing in the run is missing of gelu')
