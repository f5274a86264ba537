"""The kill matrix as aligned text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mutants.matrix import Fates, Trial

ROOT = Path(__file__).parents[1]
_SIGNS = {"survived": ".", "not applicable": "-", "not tried": " ", "crashed": "!", "harness error": "E"}


def render(rows: Sequence[Fates], backend: str) -> str:
    """One line per mutant, one column per law: the number of cases until it died, "." survived, "-" does not apply."""
    if not rows:
        return "no mutant was chosen"
    laws = [trial.law for trial in rows[0].trials]
    width = max(len(row.mutant.name) for row in rows)
    lines = [f"{place + 1:>3}  {law}" for place, law in enumerate(laws)]
    lines += [
        "  A  assert_close, default tolerances, contiguous randn",
        "  B  assert_close, tolerances of kernel projects, contiguous randn (twin: it rejects the correct twin too)",
        "",
        "number = cases until killed   . = survived   - = does not apply   ! = process died   E = harness failed",
        "",
        f"{'':{width}}  " + " ".join(f"{place + 1:>3}" for place in range(len(laws))) + "   A    B",
    ]
    for row in rows:
        cells = " ".join(f"{_cell(trial):>3}" for trial in row.trials)
        seen = "?    ?" if row.seen is None else f"{_seen(row.seen.by_default):<4} {_seen(row.seen.by_project):<4}"
        mark = "" if backend in row.mutant.backends else "  not visible on this backend"
        if not row.killers and not mark:
            mark = "  SURVIVED"
        lines.append(f"{row.mutant.name:{width}}  {cells}  {seen}{mark}")
    return "\n".join([*lines, "", *_summary(rows, backend)])


def brief(rows: Sequence[Fates], backend: str, device: str, profile: str) -> dict[str, Any]:
    """What killed each mutant first, for docs/laws.md."""
    found = []
    for row in rows:
        if backend in row.mutant.backends:
            killer = next((trial for trial in row.trials if trial.law in row.killers), None)
            about = {"mutant": row.mutant.name, "class": row.mutant.bug_class}
            if killer is not None:
                reason = killer.reason.replace(f"{ROOT}/", "")
                about |= {"killed_by": killer.law, "cases": killer.cases, "reason": reason}
            if row.seen is not None:
                about |= {"assert_close_default": row.seen.by_default, "assert_close_project": row.seen.by_project}
            found.append(about)
    counts = {"visible": len(found), "killed": sum("killed_by" in about for about in found)}
    return {"device": device, "profile": profile, **counts, "mutants": found}


def _cell(trial: Trial) -> str:
    return str(trial.cases) if trial.fate == "killed" else _SIGNS[trial.fate]


def _seen(verdict: str) -> str:
    return {"caught": "yes", "missed": "no"}.get(verdict, "twin")


def _summary(rows: Sequence[Fates], backend: str) -> list[str]:
    visible = [row for row in rows if backend in row.mutant.backends]
    killed = [row for row in visible if row.killers]
    judged = [row for row in visible if row.seen is not None]
    lines = [
        f"{len(killed)} of {len(visible)} mutants that the {backend} backend can show are killed by at least one law"
    ]
    for label, key in (("default tolerances", "by_default"), ("the tolerances of kernel projects", "by_project")):
        verdicts = [getattr(row.seen, key) for row in judged]
        lines.append(
            f"assert_close on contiguous randn, {label}: {verdicts.count('caught')} of {len(judged)} caught, "
            f"{verdicts.count('missed')} missed, {verdicts.count('rejects the twin too')} where it rejects the twin too"
        )
    lines += [f"survived: {row.mutant.name} ({row.mutant.note})" for row in visible if not row.killers]
    for row in visible:
        silent = [law for law in row.mutant.killed_by if law not in row.killers]
        if silent and row.killers:
            lines.append(f"{row.mutant.name}: expected of {', '.join(silent)}, killed by {', '.join(row.killers)}")
    return lines


def render_twins(trials: Mapping[str, Sequence[Trial]]) -> str:
    """One line per twin: how many laws applied, how many cases, and every alarm."""
    width = max(map(len, trials), default=0)
    lines = []
    for name, tried in trials.items():
        applied = [trial for trial in tried if trial.fate != "not applicable"]
        alarms = [trial for trial in tried if trial.fate in ("killed", "harness error")]
        cases = sum(trial.cases for trial in applied)
        lines.append(f"{name:{width}}  {len(applied):2} laws  {cases:6} cases  {len(alarms)} alarms")
        lines += [f"    {trial.law}: {trial.reason}\n      {trial.case}" for trial in alarms]
    return "\n".join(lines)
