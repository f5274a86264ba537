"""What cannot be in a record has a name and a place, and nothing that was measured has one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tests.golden import answers
from tests.records.bounds.gate_records import figures, kernel, result, run, worst
from verify.records.contradictions import contradictions, contradictions_of
from verify.records.readings import NONFINITE
from verify.records.record import Basis, ClassFigures, Curve, Gap, Histogram, KernelRun, LawRun, RegimeFigures, Result


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


def of(broken: KernelRun) -> list[str]:
    return [f"{place}: {text}" for place, text in contradictions(broken)]


LAW = LawRun("batch invariance", "bfloat16", "broken", 3)


def test_what_cannot_be_is_named_with_its_place() -> None:
    answers(Path(__file__).parent / "snapshots" / "contradictions.txt", globals())


def test_a_root_mean_square_that_nothing_judges_may_be_large() -> None:
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
