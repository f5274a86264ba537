"""Findings as annotations of GitHub Actions: workflow commands that the runner finds in the output of a step."""

from __future__ import annotations

from collections.abc import Sequence

from verify.report.checks import Check, findings, in_checkout
from verify.report.markdown.comment import Budget, inert

MOST = 10  # annotations of one kind that GitHub shows of a step
LONGEST = 60_000  # bytes of a summary
KINDS = {"error": "error", "warning": "warning", "note": "notice"}


def render(checks: Sequence[Check]) -> str:
    """Returns a line for each finding. Where GitHub would drop some of a kind, the last line counts them."""
    lines = []
    for level, kind in KINDS.items():
        found = [check for check in findings(checks) if check.level == level]
        shown = found if len(found) <= MOST else found[: MOST - 1]
        lines += [_line(kind, check) for check in shown]
        if more := len(found) - len(shown):
            lines.append(f"::{kind} title=verify::{more:,} more findings; the summary of this job has them")
    return "".join(f"{line}\n" for line in lines)


def summary(checks: Sequence[Check]) -> str:
    """Returns the checks as a list in Markdown, for commands that have no page of their own."""
    signs = {"none": "✓", "note": "○", "warning": "○", "error": "✗"}
    lines = [f"- {signs[check.level]} {inert(check.message.partition(chr(10))[0])}" for check in checks]
    budget = Budget(LONGEST)
    budget.fill(lines, "checks")
    return budget.text()


def _line(kind: str, check: Check) -> str:
    _, file = in_checkout(check.place[0])
    title = _property(f"{check.rule}: {check.suite} {check.name}")
    return f"::{kind} file={_property(file)},line={check.place[1]},title={title}::{_data(check.text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
