"""Says what the measured programs come to: the verdict on the limits, and the tables of docs/limits.md."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.breakages.findings import finding_of, shown_nowhere
from benchmarks.breakages.measure import BREAKAGES, INPUTS, Measured, Outcome

ENOUGH = 0.98  # of the honest kernels have to pass


@dataclass(frozen=True)
class Summary:
    """What decides whether the limits separate honest kernels from broken ones.

    passed: broken kernels that pass on ordinary inputs. blind: those of them that are named as blind spots.
    zeros: programs and inputs on which zeros pass.
    failed: honest kernels that fail. errors: programs that could not be measured.
    findings: results of PyTorch's kernels that fail by a fault which findings.py names, by their cause; they are not
    among the honest ones. stale: causes that nothing measured shows.
    """

    programs: int
    honest: int
    broken: int
    passed: Sequence[str]
    blind: Sequence[str]
    zeros: Sequence[str]
    failed: Sequence[str]
    errors: Sequence[str]
    findings: Mapping[str, Sequence[str]]
    stale: Sequence[str]

    @property
    def share(self) -> float:
        """The share of honest kernels that pass."""
        return 1 - len(self.failed) / self.honest if self.honest else 0.0

    @property
    def separates(self) -> bool:
        """True if no broken kernel passes, no zeros do, and nearly all honest ones do."""
        found_none = not (self.passed or self.zeros or self.errors or self.stale)
        return found_none and self.broken > 0 and self.share >= ENOUGH

    def lines(self) -> Iterator[str]:
        yield f"{self.programs} programs, {self.honest:,} honest kernels, {self.broken:,} broken ones"
        yield f"{self.share:.1%} of the honest kernels pass; at least {ENOUGH:.0%} have to"
        yield f"{len(self.passed)} broken kernels pass on ordinary inputs; none may"
        yield f"{len(self.blind)} more pass that are named as blind spots"
        yield f"zeros pass for {len(self.zeros)} programs and kinds of inputs; they may pass nowhere"
        known = sum(map(len, self.findings.values()))
        if known:
            share = 1 - (len(self.failed) + known) / (self.honest + known)
            yield f"{known} more of PyTorch's kernels fail by a fault that is known; with them {share:.1%} pass"
        yield from (f"a finding that nothing shows: {text}" for text in self.stale)
        yield from (f"not measured: {text}" for text in self.errors)
        yield "The limits separate them." if self.separates else "The limits do not separate them."


def summary(measured: Sequence[Measured], blind: Collection[str] = ()) -> Summary:
    """Judges the limits. `blind` holds blind spots, as `program: breakage`, besides those that the yardstick names."""
    slipped = [
        (f"{each.program}: {one.name}", one.below_noise or one.name in each.blind) for each, one in _slipped(measured)
    ]
    named = [text for text, known in slipped if known or text in blind]
    failed: list[str] = []
    findings: dict[str, list[str]] = {}
    for each in measured:
        for one in each.honest:
            if not one.passes:
                finding = finding_of(each, one)
                some = findings.setdefault(finding.cause, []) if finding else failed
                some.append(f"{each.program}, {one.inputs}: {one.name}, {shown(one.figure)}")
    return Summary(
        programs=len(measured),
        honest=sum(len(each.honest) for each in measured) - sum(map(len, findings.values())),
        broken=sum(len(each.broken) for each in measured),
        passed=[text for text, _ in slipped if text not in named],
        blind=named,
        zeros=[
            f"{each.program}, {one.inputs}"
            for each in measured
            for one in each.broken
            if one.breakage == "zeros" and one.passes
        ],
        failed=failed,
        errors=[f"{each.program}: {each.error}" for each in measured if each.error],
        findings=findings,
        stale=list(dict.fromkeys(each.cause for each in shown_nowhere(measured))),
    )


def _slipped(measured: Sequence[Measured]) -> Iterator[tuple[Measured, Outcome]]:
    """The broken kernels that pass on ordinary inputs."""
    for each in measured:
        yield from ((each, one) for one in each.broken if one.inputs == INPUTS[0] and one.passes)


def shown(figure: float) -> str:
    """A figure in a few characters."""
    if math.isinf(figure):
        return "∞"
    if figure != figure:
        return "NaN"
    return f"{figure:.2g}" if figure < 100 else f"{figure:.0e}".replace("e+0", "e").replace("e+", "e")


def tables(measured: Sequence[Measured], blind: Collection[str] = ()) -> str:
    """The tables of the page, in Markdown."""
    return "\n".join(
        [
            *_of_inputs(measured),
            "",
            *_of_programs(measured),
            "",
            *_slips(measured, summary(measured, blind).blind),
            "",
            *_findings(summary(measured, blind).findings),
            "",
            _verdict(measured, blind),
        ]
    )


def _verdict(measured: Sequence[Measured], blind: Collection[str]) -> str:
    return "  \n".join(summary(measured, blind).lines()) + "\n"


def _of_inputs(measured: Sequence[Measured]) -> Iterator[str]:
    yield "Kernels that pass, by their inputs:"
    yield ""
    yield "| inputs | honest | " + " | ".join(BREAKAGES) + " |"
    yield "|---" * (len(BREAKAGES) + 2) + "|"
    for kind in INPUTS:
        cells = [_passing(one for each in measured for one in each.honest if one.inputs == kind)]
        for breakage in BREAKAGES:
            some = (one for each in measured for one in each.broken if (one.inputs, one.breakage) == (kind, breakage))
            cells.append(_passing(some))
        yield f"| {kind} | " + " | ".join(cells) + " |"


def _passing(some: Iterable[Outcome]) -> str:
    found = [each.passes for each in some]
    return f"{sum(found):,} of {len(found):,}" if found else "n/a"


def _of_programs(measured: Sequence[Measured]) -> Iterator[str]:
    yield "Figures of each program on ordinary inputs: the largest of its honest kernels, in italics where one fails;"
    yield "the smallest of each kind of broken kernel, in bold where one passes."
    yield ""
    yield "| program | honest | " + " | ".join(BREAKAGES) + " |"
    yield "|---" * (len(BREAKAGES) + 2) + "|"
    for each in measured:
        label = each.program.replace("|", "\\|")
        if each.error:
            yield f"| {label} | {each.error} |" + " |" * len(BREAKAGES)
            continue
        right = [one for one in each.honest if one.inputs == INPUTS[0]]
        worst = max((one.figure for one in right), default=math.nan)
        cells = [shown(worst) if all(one.passes for one in right) else f"*{shown(worst)}*"]
        for breakage in BREAKAGES:
            wrong = [one for one in each.broken if (one.inputs, one.breakage) == (INPUTS[0], breakage)]
            least = min(wrong, key=lambda one: (not one.passes, one.figure), default=None)
            text = "n/a" if least is None else shown(least.figure)
            cells.append(f"**{text}**" if least is not None and least.passes else text)
        yield f"| {label} | " + " | ".join(cells) + " |"


def _slips(measured: Sequence[Measured], blind: Collection[str]) -> Iterator[str]:
    yield "| constants and faults that pass on ordinary inputs | figure | |"
    yield "| --- | --- | --- |"
    found = [(each, one) for each, one in _slipped(measured) if one.breakage in ("constant 1% off", "own fault")]
    for each, one in found:
        text = f"{each.program}: {one.name}"
        yield f"| {text} | {shown(one.figure)} | {'a named blind spot' if text in blind else ''} |"
    if not found:
        yield "| none | | |"


def _findings(findings: Mapping[str, Sequence[str]]) -> Iterator[str]:
    yield "| faults of PyTorch's own kernels | results that it explains |"
    yield "| --- | --- |"
    yield from (f"| {cause} | {len(some)} |" for cause, some in findings.items())
    if not findings:
        yield "| none | 0 |"
