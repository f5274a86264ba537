"""Runs laws over cases and returns a `LawRun` for each.

Three kinds of cases are tried, in this order: cases that a corpus pins, the law's fixed cases (each choice once), and
cases that Hypothesis draws. A law's check may return a score, such as the error in ULP, which Hypothesis tries to make
large. If a law breaks, the result has the shrunk case, the facts about it, and the command that replays it.

Drawn cases depend only on the profile's seed, the law and the dtype. They do not depend on the source text of this
module, as with Hypothesis' own derandomisation, nor on the modules that are loaded.
"""

import math
import os
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import hypothesis
import torch
from hypothesis import HealthCheck, Phase, given, settings, target
from hypothesis.internal.conjecture.providers import HypothesisProvider

from verify.backends import Backend
from verify.cases import Case, corpus
from verify.cases.counter import key_of
from verify.cases.sizes import sizes_of, work_of
from verify.cases.strategies import Sizes
from verify.declare.declaration import Kernel
from verify.errors import IN_ERROR, KernelError, Refused, TruthError, UsageError
from verify.laws.law import Broken, BrokenBeyond, Law, NotApplicable, Subject
from verify.laws.profiles import EXAMPLES, PREFIX, seed_of_today
from verify.laws.shrink import shrink_law
from verify.measure.call import describe, is_fault
from verify.records.record import Cause, LawRun, Origin, replay_command


@dataclass(frozen=True)
class Profile:
    """Holds the effort of a run: how many cases are drawn, their sizes, the seed, and the limit of fixed cases."""

    name: str
    examples: int
    sizes: dict[str, Sizes]
    seed: int = 0
    fixed: int | None = None
    seconds: float = 25.0  # for all laws of a kernel in one dtype, if its cases are large
    shrink: bool = True  # False: a broken case is reported as it was found


_SMALL = Sizes(elements=1 << 8, width=1 << 8, depth=64, rows=200)
_CPU, _CUDA = Sizes(addresses=True), Sizes(rows=1 << 14, addresses=True)
_GPU = replace(_CPU, elements=1 << 20, width=1 << 14, depth=2048, rows=65_534, many_rows=70_000)
_ALL_CPU = replace(_CPU, elements=1 << 16, width=1 << 13, depth=1024, many_rows=70_000, every_pattern=True)
_ALL_GPU = replace(_GPU, elements=1 << 24, width=1 << 16, depth=8192, many_rows=200_000, every_pattern=True)
PROFILES = {
    # only the first fixed cases: while a user edits, an answer must come at once
    "quick": Profile(
        "quick", EXAMPLES["quick"], {"small": _SMALL, "large": replace(_CUDA, addresses=False)}, fixed=12, seconds=10.0
    ),
    "ci": Profile("ci", EXAMPLES["ci"], {"small": _CPU, "large": _CUDA}),
    "nightly": Profile("nightly", EXAMPLES["nightly"], {"small": _CPU, "large": _GPU}, seconds=400.0),
    "exhaustive": Profile("exhaustive", EXAMPLES["exhaustive"], {"small": _ALL_CPU, "large": _ALL_GPU}, seconds=400.0),
}
SEEDED_BY_DATE = ("nightly", "exhaustive")


def profile_named(name: str, seed: int | None = None) -> Profile:
    """Returns a profile by name.

    The seed of nightly and exhaustive is `seed`, else VERIFY_SEED, else the date (UTC). So two branches tried on one
    day get the same cases, and the next day has new ones.
    """
    if name not in PROFILES:
        raise UsageError(f"no profile is named {name!r}; the profiles are: {', '.join(PROFILES)}")
    chosen = PROFILES[name]
    if seed is not None:
        return replace(chosen, seed=seed)
    if name not in SEEDED_BY_DATE:
        return chosen
    text = os.environ.get("VERIFY_SEED") or str(seed_of_today())
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"VERIFY_SEED is a whole number from 0; received {text!r}")
    return replace(chosen, seed=int(text))


_LARGE = 1 << 26  # numbers in a program: a law takes a second or more for a case of more


def has_large_cases(kernel: Kernel) -> bool:
    """True if the declaration of a PyTorch function allows only sizes, or names an example, that take a law long."""
    op = kernel.op
    sizes = op.geometry.examples or (sizes_of(op, 512)[:1] if op.geometry.named else ())
    return any(work_of(op, dims) > _LARGE for dims in sizes)


# Hypothesis draws the largest case again and again with other seeds, because no other has a larger error. A search
# draws at most as many numbers as this many cases of the largest size. Operands of up to _SMALL_CASE do not count.
_LARGE_CASES, _SMALL_CASE, _LEAST = 16, 1 << 12, 1 << 24


def current_profile() -> Profile:
    """Returns the profile that belongs to the Hypothesis profile in use: "nightly" for verify-nightly, else "ci"."""
    loaded = settings.get_current_profile_name().split("-with-")[0]  # --hypothesis-verbosity adds a suffix to the name
    name = loaded.removeprefix(PREFIX) if loaded.startswith(PREFIX) else ""
    return profile_named(name if name in PROFILES else "ci")


def message(kernel: str, found: LawRun) -> str:
    """Returns the text about a broken law: the rule, the smallest case, the facts and the command."""
    where = f"in {found.dtype}: {found.message}"
    lines = {
        "failed": f"{kernel}, called for the law of {found.law}, fails {where}",
        UNREPEATABLE: f"{kernel}, tried for the law of {found.law}, is not deterministic {where}",
    }
    facts = found.fact_lines()
    width = max((len(name) for name, _ in facts), default=0)
    shown = [f"  {name:<{width}}  {value}" for name, value in facts]
    first = lines.get(found.cause, f"{kernel} breaks the law of {found.law} {where}")
    return "\n".join([first, *shown, f"  {replay_command(found.origin)}"])


def run_law(
    law: Law,
    kernel: Kernel,
    dtype: str,
    backend: Backend,
    profile: Profile,
    target_name: str = "",
    until: float = math.inf,
) -> LawRun:
    """Tries one law on one kernel in one dtype.

    After `until`, a time of time.monotonic(), no case is tried but the first, and no broken case is made smaller.
    """
    subject = Subject(kernel, dtype, backend, profile.sizes[backend.scale], target_name, until)
    reason = law.reason(subject)
    if reason is not None:
        return _skipped(law, dtype, reason)
    pinned = [entry.case for entry in corpus.cases_for(kernel.name, dtype) if entry.law == law.name]
    trial = _Trial(law, subject, profile)
    try:
        broken = trial.tried((*pinned, *law.fixed(subject)[: profile.fixed])) or trial.drawn()
    except NotApplicable as reason:
        return _skipped(law, dtype, str(reason))
    undeclared = trial.refused > 0 and kernel.refuses is None and not kernel.peer
    if broken is None and trial.refused and not trial.cases:
        text = f"it refuses every case: {trial.refusal}"
        return _skipped(law, dtype, text, refused=trial.refused, undeclared=undeclared)
    if broken is None:
        text, refused = trial.refusal or law.sees(subject), trial.refused
        return LawRun(law.name, dtype, "ok", trial.cases, text, refused=refused, undeclared=undeclared, late=trial.late)
    cause: Cause = "failed" if broken.failed else UNREPEATABLE if law.name == "determinism" else ""
    # no further call is possible in this process, or no smaller case is searched
    final = isinstance(broken, BrokenBeyond) or (broken.failed and not backend.usable())
    # a large case takes too long for many tries
    if not final and profile.shrink and not subject.late and not has_large_cases(kernel):
        broken = shrink_law(law, subject, broken)
    return _broken(law, dtype, trial.cases, broken, target_name, cause=cause)


def try_law(
    law: Law,
    kernel: Kernel,
    dtype: str,
    backend: Backend,
    profile: Profile,
    target_name: str = "",
    until: float = math.inf,
) -> LawRun:
    """Does the same as `run_law`, but reports errors of verify itself as a skipped law.

    The result is then "skipped" with `in_error`, which makes the run incomplete. Other laws are not affected.
    """
    try:
        return run_law(law, kernel, dtype, backend, profile, target_name, until)
    except (UsageError, MemoryError):
        raise
    except torch.OutOfMemoryError as error:
        text = f"not tried: a case needs more memory than there is ({str(error).partition('.')[0]})"
        return _skipped(law, dtype, text, late=True)
    except Exception as error:
        traceback.print_exc()
        said = str(error) if isinstance(error, TruthError) else f"verify itself failed: {type(error).__name__}: {error}"
        return _skipped(law, dtype, f"{IN_ERROR}: {said}", in_error=True)


def _skipped(law: Law, dtype: str, message: str, **more: Any) -> LawRun:
    return LawRun(law=law.name, dtype=dtype, status="skipped", cases=0, message=message, **more)


@dataclass
class _Trial:
    """Tries one law on one subject, case after case. `cases` counts them up to the first that breaks the law."""

    law: Law
    subject: Subject
    profile: Profile
    cases: int = 0
    refused: int = 0
    refusal: str = ""  # message of the last refusal
    late: bool = False  # True: time ended before the last case

    def tried(self, cases: Sequence[Case]) -> Broken | None:
        """Returns how the first of these cases that breaks the law does so."""
        for case in cases:
            if self._ends():
                return None
            try:
                self._score(case)
            except Broken as broken:
                return broken
        return None

    def drawn(self) -> Broken | None:
        """Tries cases that Hypothesis draws, up to the first that breaks the law."""
        if not self.profile.examples or self._ends():
            return None
        label = f"{self.law.name} {self.subject.dtype}"
        count = max(1, round(self.profile.examples * self.law.share))
        found = list[Broken]()
        op, left = self.subject.kernel.op, float(max(_LEAST, _LARGE_CASES * self.subject.sizes.elements))

        def once(case: Case) -> None:
            nonlocal left
            if found:  # Hypothesis tries a failing case again
                raise found[0]
            size = max(map(math.prod, op.shapes(case.dims, op.resolve(case.params)).values()))
            if self._ends() or left < size > _SMALL_CASE:
                return
            left -= size if size > _SMALL_CASE else 0
            try:
                score = self._score(case)
            except Broken as broken:
                found.append(broken)
                raise
            if score is not None and score == score and score < 1e300:
                target(score, label=label)

        try:
            # the seed differs for every law and dtype, and is the same for every kernel
            self._search(once, count, key_of(self.profile.seed, label))
        except Broken as broken:
            return broken
        return None

    def _ends(self) -> bool:
        """True if the time for another case has run out. The first case is always tried."""
        over = self.cases + self.refused > 0 and self.subject.late
        self.late |= over
        return over

    def _score(self, case: Case) -> float | None:
        try:
            score = attempt(self.law, self.subject, case)
        except Refused as error:
            self.refused, self.refusal = self.refused + 1, str(error)
            return None
        except Broken:
            self.cases += 1
            raise
        self.cases += 1
        return score

    def _search(self, once: Callable[[Case], None], examples: int, seed: int) -> None:
        """Runs Hypothesis on `once` with a fixed seed. Raises what the first failing case raises."""
        configured = settings(
            max_examples=examples,
            deadline=None,  # a deadline would turn a slow machine into a failure
            derandomize=False,  # it would hash the source of `once`, so an edit there would change the drawn cases
            database=None,  # the same call gives the same result; the corpus keeps broken cases
            print_blob=False,
            report_multiple_bugs=False,
            phases=(Phase.generate, Phase.target),  # `shrink` makes a case smaller: it can change elements
            suppress_health_check=list(HealthCheck),
        )
        test: Any = configured(hypothesis.seed(seed)(given(self.law.space(self.subject).cases())(once)))

        # Hypothesis mixes literals of every loaded module of the project into its draws. A case would then depend on
        # the modules that a process has imported, and change with any edit. No setting turns that off.
        def nothing(*_: Any, **__: Any) -> None: ...

        with mock.patch.object(HypothesisProvider, "_maybe_draw_constant", nothing, create=True):
            test()


def replay_law(law: Law, kernel: Kernel, case: Case, backend: Backend, target_name: str) -> LawRun:
    """Tries one law on one given case."""
    subject = Subject(kernel, case.dtype, backend, _CPU, target_name)
    reason = law.reason(subject)
    if reason is not None:
        return _skipped(law, case.dtype, reason)
    try:
        attempt(law, subject, case)
    except Refused as error:
        return _skipped(law, case.dtype, f"the case is refused: {error}")
    except NotApplicable as reason:
        return _skipped(law, case.dtype, str(reason))
    except Broken as broken:
        return _broken(law, case.dtype, 1, broken, target_name, cause="failed" if broken.failed else "")
    return LawRun(law=law.name, dtype=case.dtype, status="ok", cases=1)


def attempt(law: Law, subject: Subject, case: Case) -> float | None:
    """Checks one case. A kernel that raises breaks the law if it promised to accept all cases.

    A GPU reports a fault, such as a misaligned address, at some later call, which may be one of verify's own. It is the
    kernel's: nothing else writes to the GPU.
    """
    try:
        return law.check(subject, case)
    except KernelError as error:
        if isinstance(error, Refused) and subject.kernel.refuses is not False:
            raise
        raise Broken(str(error), case, {}, failed=True) from error
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if not is_fault(error):
            raise
        text = f"the GPU reports a fault after a call of {subject.kernel.name}: {describe(error)}"
        raise Broken(text, case, {}, failed=True) from error


UNREPEATABLE: Cause = "not deterministic"


def _broken(law: Law, dtype: str, tried: int, broken: Broken, target_name: str, *, cause: Cause = "") -> LawRun:
    origin = Origin.here(target_name, broken.case.to_json(), law=law.name)
    return LawRun(law.name, dtype, "broken", tried, broken.rule, facts=broken.facts, origin=origin, cause=cause)
