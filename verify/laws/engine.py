"""Runs laws over drawn cases: Hypothesis draws, shrinks and remembers; what comes out is a `LawRun`.

A law's check may return a score (the error in ULP, say), which Hypothesis then tries to make large. A broken law
comes back with the shrunk case, the facts that the law stated about it, and the command that replays it.
"""

from __future__ import annotations

import datetime
import os
import shlex
from dataclasses import dataclass, replace
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings, target
from hypothesis.errors import FlakyFailure, Unsatisfiable

from verify.backends import Backend
from verify.cases.strategies import Sizes
from verify.declaration import Kernel
from verify.errors import KernelError
from verify.laws.law import Broken, Law, Subject
from verify.plugin import EXAMPLES
from verify.record import LawRun


@dataclass(frozen=True)
class Profile:
    """How hard to try. A seed of None lets Hypothesis derandomise: the same cases every time."""

    name: str
    examples: int
    sizes: dict[str, Sizes]
    seed: int | None = None


_SMALL = Sizes(elements=1 << 8, width=1 << 8, depth=64)
_CPU, _GPU = Sizes(), Sizes(elements=1 << 20, width=1 << 14, depth=2048, many_rows=70_000)
PROFILES = {
    "quick": Profile("quick", EXAMPLES["quick"], {"interpreter": _SMALL, "cuda": _CPU}),
    "ci": Profile("ci", EXAMPLES["ci"], {"interpreter": _CPU, "cuda": _CPU}),
    "nightly": Profile("nightly", EXAMPLES["nightly"], {"interpreter": _CPU, "cuda": _GPU}),
}


def current_profile() -> Profile:
    """The profile that Hypothesis has loaded (`--hypothesis-profile`), "ci" when it is none of ours.

    nightly is seeded by the day (UTC), or by VERIFY_SEED, so that two branches see the same cases.
    """
    chosen = PROFILES.get(settings.get_current_profile_name(), PROFILES["ci"])
    if chosen.name != "nightly":
        return chosen
    today = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d")
    return replace(chosen, seed=int(os.environ.get("VERIFY_SEED", today)))


def message(kernel: str, found: LawRun) -> str:
    """A broken law as a person reads it: the rule, the smallest case, the facts, the command."""
    lines = [f"{kernel} breaks the law of {found.law} in {found.dtype}: {found.message}"]
    width = max((len(name) for name in found.facts), default=0)
    lines += [f"  {name:<{width}}  {value}" for name, value in found.facts.items()]
    lines += [f"  case: {found.case}", f"  replay: {found.replay}"]
    return "\n".join(lines)


def run_law(law: Law, kernel: Kernel, dtype: str, backend: Backend, profile: Profile, target_name: str = "") -> LawRun:
    """Try one law on one kernel in one dtype."""
    subject = Subject(kernel, dtype, backend, profile.sizes[backend.name], target_name)
    reason = law.applies(subject)
    if reason is not None:
        return LawRun(law=law.name, dtype=dtype, status="skipped", cases=0, message=reason)
    tried = 0

    def attempt(case: Any) -> None:
        nonlocal tried
        tried += 1
        try:
            score = law.check(subject, case)
        except KernelError as error:
            raise Broken(str(error), case, {}) from error
        if score is not None and score == score and score < 1e300:
            target(score, label=f"{law.name} {dtype}")

    try:
        for case in law.examples(subject):
            attempt_plain(law, subject, case)
            tried += 1
        _search(attempt, law.cases(subject), max(1, round(profile.examples * law.share)), profile.seed)
    except Broken as broken:
        return _broken(law, dtype, tried, broken, target_name)
    except FlakyFailure as flaky:  # a kernel that is not deterministic: one failure is enough
        seen = [error for error in flaky.exceptions if isinstance(error, Broken)]
        if not seen:
            raise
        seen[0].facts["repeats"] = "not every time"
        return _broken(law, dtype, tried, seen[0], target_name)
    except Unsatisfiable:
        return LawRun(law=law.name, dtype=dtype, status="skipped", cases=tried, message="no case can be drawn")
    return LawRun(law=law.name, dtype=dtype, status="ok", cases=tried)


def replay_law(law: Law, kernel: Kernel, case: Any, backend: Backend, target_name: str) -> LawRun:
    """Try one law on one given case."""
    subject = Subject(kernel, case.dtype, backend, _CPU, target_name)
    reason = law.applies(subject)
    if reason is not None:
        return LawRun(law=law.name, dtype=case.dtype, status="skipped", cases=0, message=reason)
    try:
        attempt_plain(law, subject, case)
    except Broken as broken:
        return _broken(law, case.dtype, 1, broken, target_name)
    return LawRun(law=law.name, dtype=case.dtype, status="ok", cases=1)


def attempt_plain(law: Law, subject: Subject, case: Any) -> None:
    """One check outside of Hypothesis: examples and replays."""
    try:
        law.check(subject, case)
    except KernelError as error:
        raise Broken(str(error), case, {}) from error


def _search(attempt: Any, strategy: Any, examples: int, seed: int | None) -> None:
    configured = settings(
        max_examples=examples,
        deadline=None,  # a deadline turns a slow machine into a failure
        derandomize=seed is None,
        database=None,
        print_blob=False,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.target, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    test: Any = configured(given(strategy)(attempt))  # type: ignore[no-untyped-call]
    if seed is not None:
        seeded: Any = hypothesis.seed(seed)
        test = seeded(test)
    test()


def _broken(law: Law, dtype: str, tried: int, broken: Broken, target_name: str) -> LawRun:
    case = broken.case.to_json()
    command = f"verify replay {shlex.quote(target_name)} {shlex.quote(case)} --law {shlex.quote(law.name)}"
    return LawRun(
        law=law.name,
        dtype=dtype,
        status="broken",
        cases=tried,
        message=broken.rule,
        facts=broken.facts,
        case=case,
        replay=command,
    )
