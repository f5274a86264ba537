"""Writes a judgement as text: the answer, the errors, then the results that were checked and those that were not."""

import shlex
from collections.abc import Iterable
from typing import Any

from verify.records.record import CLASSES
from verify.referee.plan import CallTime, Judgement
from verify.report.checks import Check, verdict_check
from verify.report.words import clean

SIGNS = {"accepted": "✓", "wrong": "✗", "cheats": "✗", "fails": "✗", "undecided": "?"}
MOST = 160  # characters of a long text


def lines_of(judgement: Judgement) -> list[str]:
    """Returns the lines of a judgement."""
    head = f"{SIGNS[judgement.verdict]} {judgement.verdict}  {judgement.solution}"
    found = [f"{head}: {judgement.message}" if judgement.message else head]
    found += [f"    {label:<8} {_short(text)}" for label, text in _against(judgement)]
    if judgement.errors:
        found.append("    errors   problem  result  dtype     unit    ordinary  demanding  extreme   limit  PyTorch")
        found += [f"             {_row(each)}" for each in judgement.errors]
    listed = {
        "own": [judgement.own_check],
        "speed": [_speed(each) for each in judgement.speed] or ["not timed"],
        "fact": judgement.facts,
        "checked": judgement.checked,
        "not": judgement.unchecked,
        "holds": judgement.isolation,
        "lacks": judgement.not_isolated,
        "given up": judgement.given_up,
        "plan": [f"{judgement.fixed.get('plan', '')[:12]}, fixed before the solution started"],
    }
    found += [f"    {label:<8} {_short(text)}" for label, texts in listed.items() for text in texts if text]
    return [*found, f"next: {command(judgement)}  # the same inputs"]


def _against(judgement: Judgement) -> list[tuple[str, str]]:
    """Returns what speaks against a solution, with labels: tricks, and the wrong answer."""
    found = [("trick", f"{trick.name}: {trick.evidence}") for trick in judgement.tricks]
    if wrong := judgement.wrong:
        found += [("why", wrong.reason), ("input", f"{_short(wrong.input)} at {wrong.result} [{wrong.index}]")]
        found += [("got", wrong.got), ("truth", wrong.truth)]
    return found


def command(judgement: Judgement) -> str:
    """Returns the command that judges with the same inputs."""
    again = ["verify", "judge", judgement.problem, judgement.solution, "--profile", judgement.profile]
    return shlex.join([*again, "--seed", str(judgement.seed)])


def checks_of(judgements: Iterable[Judgement]) -> list[Check]:
    """Returns the checks of judgements for CI: a solution each."""
    checks = []
    for each in judgements:
        lines = [f"{each.solution}: {each.verdict}" + (f": {each.message}" if each.message else "")]
        lines += [f"{label}: {text}" for label, text in _against(each)]
        message, rule = "\n".join(map(clean, lines)), f"solution-{each.verdict}"
        suite, name, replay = clean(each.solution), clean(each.problem), clean(command(each))
        checks.append(Check(rule, suite, name, (each.solution, 1), message, replay, each.seconds))
    return checks or [verdict_check("incomplete", "no solution was judged", checks)]


def _speed(time: CallTime) -> str:
    if time.milliseconds is None:
        return f"{time.problem} not timed: {time.reason}"
    proven = f"at most {time.at_most:.3g} ms a call, at least {time.at_least:.2f} times as fast as the reference"
    own = f"by its own clock {time.own_clock:.3g} ms" if time.own_clock is not None else "no clock of its own"
    return f"{time.problem} {proven} ({time.reference:.3g} ms); it claims {own}; {time.calls:,} calls"


def _row(row: dict[str, Any]) -> str:
    figures = "  ".join(f"{_figure(row[name]):>9}" for name in CLASSES)
    head = f"{row['kernel']:<7}  {row['result']:<6}  {row['dtype']:<8}  {row['unit']:<5}"
    return f"{head}  {figures}  {row['limit']:>6g}  {_figure(row['pytorch']):>7}"


def _figure(value: float | str | None) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:.3g}"


def _short(text: str) -> str:
    return text if len(text) <= MOST else f"{text[:MOST]}..."
