"""The kill matrix: each mutant under each law, until it dies, and what assert_close sees of it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from typing import Any, Literal

from mutants.mutant import Mutant
from mutants.tolerance import Seen, seen_by_assert_close
from verify.backends import Backend
from verify.cases import Case
from verify.declare.declaration import Kernel
from verify.errors import KernelError, TruthError
from verify.laws.engine import PROFILES, Profile, run_law
from verify.laws.law import Broken, Law, Subject

# No search: what dies here dies under every profile, whatever Hypothesis draws in whichever version.
FIXED = Profile("fixed", 0, PROFILES["ci"].sizes)

GUARDED = ("memory bounds", "initialised memory")  # every allocation lies between guard bands

Fate = Literal["killed", "survived", "not applicable", "not tried", "crashed", "harness error"]


@dataclass(frozen=True)
class Trial:
    """One kernel under one law: its fate, the number of cases until then, and why."""

    law: str
    fate: Fate
    cases: int
    reason: str = ""
    case: str = ""


@dataclass(frozen=True)
class Fates:
    """One mutant under all laws."""

    mutant: Mutant
    trials: tuple[Trial, ...]
    seen: Seen | None

    @property
    def killers(self) -> tuple[str, ...]:
        return tuple(trial.law for trial in self.trials if trial.fate in ("killed", "crashed"))

    def to_json(self) -> dict[str, Any]:
        mutant = self.mutant
        return {
            "name": mutant.name,
            "class": mutant.bug_class,
            "direction": mutant.direction,
            "backends": mutant.backends,
            "note": mutant.note,
            "killed": bool(self.killers),
            "laws": [asdict(trial) for trial in self.trials],
            "assert_close_default": None if self.seen is None else self.seen.by_default,
            "assert_close_project": None if self.seen is None else self.seen.by_project,
        }


class _Died(BaseException):
    """Ends a search at the first broken case: the matrix wants the case's number, not its smallest form."""

    def __init__(self, tried: int, reason: str, case: str) -> None:
        super().__init__(reason)
        self.tried, self.reason, self.case = tried, reason, case


def try_law(law: Law, kernel: Kernel, backend: Backend, profile: Profile) -> Trial:
    """One kernel under one law, in all its dtypes, until a case breaks the law."""
    tried = 0
    skipped = ""
    applied = False

    def check(subject: Subject, case: Case) -> float | None:
        nonlocal tried
        tried += 1
        try:
            return law.check(subject, case)
        except (Broken, KernelError) as error:
            raise _Died(tried, str(error), case.to_json()) from None

    for dtype in kernel.dtypes:
        try:
            run = run_law(replace(law, check=check), kernel, dtype, backend, profile)
        except _Died as died:
            return Trial(law.name, "killed", died.tried, died.reason, died.case)
        except TruthError as error:  # says nothing about the kernel, and must not end the matrix
            return Trial(law.name, "harness error", tried, str(error))
        if run.status == "broken":  # an example, which the engine tries outside of Hypothesis
            return Trial(law.name, "killed", run.cases + 1, run.message, run.case)
        applied = applied or run.status == "ok"
        skipped = run.message
    return Trial(law.name, "survived", tried) if applied else Trial(law.name, "not applicable", tried, skipped)


def row_of(mutant: Mutant, laws: Sequence[Law], backend: Backend, profile: Profile, *, first: bool = False) -> Fates:
    """One mutant under the given laws; with `first`, until one kills it, those written for it before all others.

    A kernel that damages foreign memory runs in processes of its own, unless guard bands surround it anyway.
    """

    def one(law: Law) -> Trial:
        if mutant.unsafe and law.name not in GUARDED:
            return _apart(mutant, law, backend, profile)
        return try_law(law, mutant.kernel, backend, profile)

    seen = None if mutant.unsafe else seen_by_assert_close(mutant.kernel, mutant.twin, backend)
    if not first:
        return Fates(mutant, tuple(one(law) for law in laws), seen)
    trials: dict[str, Trial] = {}
    visible = list(laws) if backend.name in mutant.backends else []
    for law in sorted(visible, key=lambda law: law.name not in mutant.killed_by):
        trials[law.name] = one(law)
        if trials[law.name].fate in ("killed", "crashed"):
            break
    return Fates(mutant, tuple(trials.get(law.name, Trial(law.name, "not tried", 0)) for law in laws), seen)


def _apart(mutant: Mutant, law: Law, backend: Backend, profile: Profile) -> Trial:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(_in_worker, mutant.name, law.name, backend, profile).result(timeout=300)
        except BrokenProcessPool:
            return Trial(law.name, "crashed", 0, "the process died")


def _in_worker(mutant: str, law: str, backend: Backend, profile: Profile) -> Trial:
    from verify import backends

    backends.activate(backend)
    import torch

    from mutants import mutants
    from verify.laws import registry

    torch.set_num_threads(1)
    found = next(each for each in mutants() if each.name == mutant)
    return try_law(registry.get(law), found.kernel, backend, profile)
