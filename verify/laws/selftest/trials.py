"""Tests that every law can fail here. Each law must kill a kernel with one seeded bug and pass its correct twin.

    found = run(backend)
    found.record            # verify.records.record.SelfTest: the kill matrix
    found.trials            # one line per law: killed after how many cases, or why it was not tried

A check that cannot fail proves nothing. This test shows on the user's machine and GPU that each law can fail, and that
it accepts a correct kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from verify.backends import Backend
from verify.cases.strategies import Sizes
from verify.declare.declaration import Kernel
from verify.errors import TruthError
from verify.laws import registry
from verify.laws.engine import PROFILES, Profile, run_law
from verify.laws.law import Law
from verify.laws.requests import Fate, Trial
from verify.laws.selftest.seeded import Seeded, seeded, seen_by_assert_close
from verify.records.record import Kill, LawRun, SelfTest

# All backends try more than 65,535 rows here, because the seeded kernel is cheap.
_SIZES = Sizes(elements=1 << 10, width=1 << 10, depth=64, many_rows=70_000)
PROFILE = Profile("selftest", PROFILES["quick"].examples, {"small": _SIZES, "large": _SIZES})
# Tolerances of a surveyed bfloat16 suite of kernels.
LOOSE = {"atol": 4.8e-1, "rtol": 3.2e-2}


@dataclass(frozen=True)
class Found:
    """Holds all trials, and the same as a part of the run record."""

    trials: tuple[Trial, ...]
    record: SelfTest

    @property
    def passed(self) -> bool:
        """True if at least one law was tried, and each tried law killed its bug and accepted the twin."""
        tried = [trial for trial in self.trials if trial.fate != "not tried"]
        return bool(tried) and all(
            trial.fate == "killed" and not trial.alarm for trial in self.trials if trial in tried
        )


def run(backend: Backend, laws: Sequence[str] = (), progress: Callable[[str], None] = lambda text: None) -> Found:
    """Tries laws on the seeded kernels. Empty `laws` means all."""
    wanted = [registry.get(name) for name in laws] or list(registry.ALL)
    bugs = {item.law: item for item in seeded()}
    trials, kills = [], []
    for law in wanted:
        progress(law.name)
        item = bugs[law.name]
        runs = backend.triton or not item.triton
        reason = "its seeded bug is a Triton kernel, which this backend cannot run"
        trial = _try(law, item, backend) if runs else Trial(law.name, item.bug, item.note, "not tried", 0, reason)
        trials.append(trial)
        if not runs:
            continue
        kills.append(
            Kill(
                mutant=item.bug,
                family=law.name,
                killed_by=[law.name] if trial.fate == "killed" else [],
                visible=trial.fate != "not tried",
                assert_close=seen_by_assert_close(item, backend.device),
                loose=seen_by_assert_close(item, backend.device, **LOOSE),
            )
        )
    alarms = [f"{trial.law}: {trial.alarm}" for trial in trials if trial.alarm]
    tried = sum(trial.fate != "not tried" for trial in trials)
    record = SelfTest(profile=PROFILE.name, laws=[law.name for law in wanted], kills=kills, twins=tried, alarms=alarms)
    return Found(tuple(trials), record)


def _try(law: Law, item: Seeded, backend: Backend) -> Trial:
    on_bug = _run(law, item.kernel, backend)
    if on_bug.status == "skipped":
        return Trial(law.name, item.bug, item.note, "not tried", 0, on_bug.message)
    fate: Fate = "killed" if on_bug.status == "broken" else "survived"
    try:
        on_twin = _run(law, item.twin, backend)
        alarm = "" if on_twin.status == "ok" else f"{on_twin.message} {on_twin.case}".strip()
    except TruthError as error:
        alarm = str(error)
    return Trial(law.name, item.bug, item.note, fate, on_bug.cases, on_bug.message, alarm)


def _run(law: Law, kernel: Kernel, backend: Backend) -> LawRun:
    # searching after a broken case only makes it smaller, which is useless here
    found = run_law(law, kernel, kernel.dtypes[0], backend, replace(PROFILE, examples=0))
    if found.status == "ok":
        found = run_law(law, kernel, kernel.dtypes[0], backend, PROFILE)
    return found
