"""Judges one solution: writes the plan, measures with the engine of `verify run`, and makes the judgement."""

import hashlib
import math
import os
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from verify.declare.requests import declared_by
from verify.diagnose.requests import ReplayElement
from verify.errors import UsageError, VerifyError
from verify.measure import session
from verify.measure.requests import Measure
from verify.measure.tally import BIAS_LIMIT, SURE
from verify.records import record
from verify.records.record import Run
from verify.records.recorded import largest as largest
from verify.referee import formats
from verify.referee import plan as plans
from verify.report.rows import rows_of
from verify.report.words import clean
from verify.search.hunt import requests as hunt
from verify.search.hunt import schedule
from verify.workers.machine import usable_cores
from verify.workers.pool import Pool, spread, using
from verify.workers.process import START_SECONDS
from verify.workers.requests import Environment
from verify.workers.sandbox import folders, starter

# Seconds of a judgement alone on a GPU, for an ordinary problem. Small cases are tried in any case.
WANTED = {"quick": 10.0, "ci": 30.0}
AT_ONCE = 4  # with more judgements at a time, each has this multiple of its seconds
SECONDS = {"quick": 240.0, "ci": 600.0, "nightly": 3600.0, "exhaustive": 14400.0}  # of one problem of a file
# by profile: how long to search for the worst input of each result
HUNTS = {name: hunt.Settings(seconds=each) for name, each in (("ci", 5.0), ("nightly", 60.0), ("exhaustive", 300.0))}
CLOCK_SECONDS = {"quick": 0.5, "ci": 5.0, "nightly": 20.0, "exhaustive": 20.0}  # after which no further round begins
SHARE = 0.7  # of the remaining seconds: for the cases of the problem
LEAST_SECONDS = 1.0
MOST_OPEN = 0.25  # of the elements of demanding inputs; with more of unknown truth nothing is accepted
NOT_TRIED = "not tried"  # in each note about cases that were omitted
MOST_JUDGES = 16  # cases that are judged at a time: each takes memory
SMALLER_SECONDS = 10.0  # of the search for the smallest input
MEMORY, MEMORY_BESIDE_GPU = 4 << 30, 32 << 30
FILE = "judged.py"
GPU_SHARE = 0.9  # of a GPU's memory for all solutions on it
NAME = re.compile(r"[\w.]{1,99}").fullmatch  # of a function: a solution may send any text
OUT_OF_MEMORY = "memory"  # in the message of an error, or of a limit
DECIDED = ("ok", "wrong")
BROKEN = ("error", "crashed", "timeout")
NEEDS_GPU = ". Triton runs on a GPU or, with --backend interpreter, without one"
BUSY = 1.5  # processes for each core, beyond which a solution that is late may have waited for others
COLUMNS = ("kernel", "result", "dtype", "unit", "limit", "status", *record.CLASSES, "pytorch", "elements")
DECLARATION = """\
from verify.referee.formats import kernels_of

globals().update({{each.name: each for each in kernels_of({plan!r}, __name__, __file__)}})
"""


@dataclass(frozen=True)
class Settings:
    """Holds the options of judgements."""

    profile: str = "quick"
    backend: str | None = None
    seed: int | None = None  # None: random
    timeout: float | None = None  # seconds of one problem of a file; None: the profile's
    jobs: int = 1  # judgements at a time, which share the cores
    memory: int | None = None  # bytes of a solution; None: MEMORY, or more with a GPU
    allow_weaker: bool = False  # judge also where this machine does not hold a solution
    progress: Callable[[str], None] = lambda text: None

    def __post_init__(self) -> None:
        if self.profile not in SECONDS:
            raise UsageError(f"a profile is {', '.join(SECONDS)}; received {self.profile!r}")

    @property
    def seconds(self) -> float:
        """Returns the seconds that one problem may take."""
        return self.timeout or SECONDS[self.profile]


def judge(problem: str, solution: str, settings: Settings, pool: Pool | None = None) -> plans.Judgement:
    """Returns the judgement of one solution. Raises UsageError if there is no such problem or solution."""
    began = time.monotonic()
    source = Path(os.path.abspath(solution))
    path, separator, kernel = problem.partition("::")
    for what, given, place in (("problem", problem, Path(path)), ("solution", solution, source)):
        if not os.path.lexists(place):
            raise UsageError(f"no such {what}: {given}", hint="verify judge PROBLEM SOLUTION")
    problem = f"{Path(path).resolve()}{separator}{kernel}"
    folder = Path(tempfile.mkdtemp(prefix="tmp")).resolve()
    with ExitStack() as after:
        after.callback(folders.remove, str(folder))
        workers = after.enter_context(using(pool, settings.backend))
        starts = starter.address(plans.RUNNER, settings.backend)  # it imports PyTorch beside the worker, not after it
        about = workers.known or workers.ask(Environment(probed=None), timeout=START_SECONDS)
        name = formats.format_of(problem)
        (folder / "notes").mkdir()
        scratch = folder / secrets.token_hex(4)
        scratch.mkdir()
        copy = folders.copy(source, folder / "solution")
        plan = plans.Plan(
            format=name,
            problem=problem,
            scratch=str(scratch),
            file=formats.place(name, problem, copy, scratch),
            notes=str(folder / "notes"),
            seed=secrets.randbits(31) if settings.seed is None else settings.seed,
            profile=settings.profile,
            seconds=settings.seconds / 12,
            build_seconds=settings.seconds / 2,
            memory=settings.memory or (MEMORY if about.device == "cpu" else MEMORY_BESIDE_GPU),
            device=about.device,
            starter=starts,
            gpu_share=min(1.0, GPU_SHARE * about.devices / settings.jobs) if settings.jobs > 1 else 1.0,
            weaker=settings.allow_weaker,
        )
        until = began + WANTED.get(settings.profile, math.inf) * min(settings.jobs, AT_ONCE)
        made = _Judging(plan, folder, settings, replace(workers, known=about), about.backend, until)
        found = made.judgement(solution, {"problem": folders.digest(Path(path)), "solution": folders.digest(copy)})
    return _clean(msgspec.structs.replace(found, seconds=round(time.monotonic() - began, 2)))


def _clean(judgement: plans.Judgement) -> plans.Judgement:
    """Returns a judgement whose texts have no control characters: a solution writes some of them."""

    def cleaned(value: Any) -> Any:
        if isinstance(value, str):
            return clean(value)
        if isinstance(value, dict):
            return {name: cleaned(each) for name, each in value.items()}
        return [cleaned(each) for each in value] if isinstance(value, list) else value

    return msgspec.convert(cleaned(msgspec.to_builtins(judgement)), plans.Judgement)


def judge_many(pairs: Sequence[tuple[str, str]], settings: Settings, jobs: int) -> Iterator[plans.Judgement]:
    """Yields judgements as they are made. Each of `jobs` threads has a worker that stays warm."""

    def one(pair: tuple[str, str], pool: Pool) -> plans.Judgement:
        try:
            return judge(*pair, replace(settings, jobs=jobs), pool)
        except VerifyError as error:
            return _unjudged(*pair, getattr(error, "message", str(error)))
        except Exception as error:  # no solution may end the judgements of others
            return _unjudged(*pair, f"the harness is in error: {type(error).__name__}: {error}")

    again = list[tuple[str, str]]()
    for found in spread(pairs, jobs, settings.backend, one):
        if jobs != 1 and OUT_OF_MEMORY in found.message:  # perhaps of a GPU that others had filled
            again.append((found.problem, found.solution))
        else:
            yield found
    for pair in again:
        yield from spread([pair], 1, settings.backend, one)


def _unjudged(problem: str, solution: str, message: str) -> plans.Judgement:
    """Returns the judgement of a solution that could not be measured: undecided, with the reason."""
    return _clean(plans.Judgement(plans.SCHEMA, "undecided", problem, solution, "", message, unchecked=["everything"]))


@dataclass(frozen=True)
class _Judging:
    """One judgement in progress."""

    plan: plans.Plan
    folder: Path
    settings: Settings
    workers: Pool
    backend: str
    until: float  # a time of time.monotonic() by which the judgement should end

    @property
    def left(self) -> float:
        """Returns the seconds that remain."""
        return max(self.until - time.monotonic(), 0.0)

    @property
    def _judges(self) -> int:
        """Returns the number of cases to judge at a time."""
        return max(1, min(usable_cores() // self.settings.jobs, MOST_JUDGES))

    def judgement(self, solution: str, fixed: dict[str, str]) -> plans.Judgement:
        """Measures the solution and returns the judgement.

        Args:
            solution: as the user named it
            fixed: digests of problem and solution before the solution runs
        """
        plan, file = self.plan, self.folder / FILE
        encoded = msgspec.json.encode(plan)
        (self.folder / "plan.json").write_bytes(encoded)
        file.write_text(DECLARATION.format(plan=str(self.folder / "plan.json")))
        fixed = {**fixed, "plan": hashlib.sha256(encoded).hexdigest()}
        problem = Path(plan.problem.partition("::")[0])
        base = plans.Judgement(plans.SCHEMA, "undecided", plan.problem, solution, plan.format, fixed=fixed)
        base = msgspec.structs.replace(base, profile=plan.profile, backend=self.backend, seed=plan.seed)
        try:
            names = [each.name for each in declared_by(self.workers, str(file))]
        except (UsageError, VerifyError) as error:
            message = getattr(error, "message", str(error)).replace(f"{file}: ", "").replace(str(file), plan.problem)
            return msgspec.structs.replace(base, message=message, unchecked=["everything"])
        own = [name for name in names if name.startswith(plans.OWN)]
        run, seen = self._measured(own), self._observed(own)
        seeded = [name for name in names if name.startswith(plans.SEEDED)]
        if seeded and any(each.by_seed for each in seen):
            own = seeded
            run, seen = self._measured(own), self._observed(own)
        strict = plan.format == "declaration"
        found = _Found(run, seen, None, strict=strict)
        if found.verdict[0] == "accepted" and (hunted := self._hunted(own)):
            found = _Found(run, seen, hunted, strict=strict)
        verdict, message = found.verdict
        if verdict != "cheats" and folders.digest(problem) != fixed["problem"]:
            # a solution that is held cannot write there, so this shows nothing about it
            verdict, message = "undecided", f"{problem} has other bytes than before the solution started"
        last = seen[-1] if seen else plans.Observed()
        times = self._timed(own, verdict)
        if on_clock := {name: plans.Trick(name, text) for each in times for name, text in each.tricks.items()}:
            found.tricks.extend(on_clock.values())
            verdict, message = "cheats", "; ".join(on_clock)
        elif wrong := next((each.wrong for each in times if each.wrong), ""):
            verdict, message = "wrong", wrong
        elif failed := next((each.reason for each in times if each.failed), ""):
            verdict, message = "undecided", f"every judged answer is right, and in a chain of calls {failed}"
        beyond = [name for name in names if name.startswith(plans.OTHER)]
        if verdict == "accepted" and beyond and self.left > LEAST_SECONDS:
            found.others = self._measured(beyond, needed=False)
        return msgspec.structs.replace(
            base,
            verdict=verdict,
            message=message,
            wrong=self._wrong(found.runs, found.wrong),
            tricks=found.tricks,
            errors=found.errors,
            facts=found.facts,
            speed=times,
            own_check=next((each.own_check for each in seen if each.own_check), ""),
            checked=found.checked,
            unchecked=found.unchecked,
            isolation=list(last.limits.holds),
            not_isolated=list(last.limits.lacks),
            given_up=list(last.limits.open),
            calls=sum(each.calls for each in seen),
        )

    def _timed(self, names: Sequence[str], verdict: str) -> list[plans.CallTime]:
        """Times the solution of each problem. Only solutions that would be accepted are timed."""
        found = []
        for name in names if verdict == "accepted" else ():
            seconds = min(CLOCK_SECONDS[self.plan.profile], self.left / 2)
            asked = plans.TimeSolution(f"{self.folder / FILE}::{name}", seconds, self._judges)
            try:
                found.append(self.workers.ask(asked, timeout=self.settings.seconds))
            except VerifyError as error:
                found.append(plans.CallTime(name, reason=getattr(error, "message", str(error))))
        return found

    def _measured(self, names: Sequence[str], *, needed: bool = True) -> Run:
        """Runs the kernels of the plan with these names and returns the record."""
        enough = max(SHARE * self.left / max(len(names), 1), LEAST_SECONDS)
        settings = session.Session(
            backend=self.settings.backend,
            seed=self.plan.seed,
            timeout=self.settings.seconds,
            asked=Measure("", enough=0.0 if math.isinf(enough) else enough, needed=needed),
            jobs=1,
            judges=self._judges,
            profile=self.plan.profile,
            pool=self.workers,
            progress=self.settings.progress,
        )
        return session.run([f"{self.folder / FILE}::{name}" for name in names], settings, "verify judge")

    def _observed(self, names: Sequence[str]) -> list[plans.Observed]:
        """Reads the notes about the kernels with these names. A kernel that ended early has none."""
        paths = [self.folder / "notes" / f"{name}.json" for name in names]
        return [msgspec.json.decode(path.read_bytes(), type=plans.Observed) for path in paths if path.exists()]

    def _hunted(self, names: Sequence[str]) -> Run | None:
        """Searches for the worst input of a solution. Drops finds where PyTorch is as wrong."""
        length = HUNTS.get(self.plan.profile)
        if length is None:
            return None
        if length.seconds is not None:
            length = replace(length, seconds=min(length.seconds, max(self.left / 3, length.seconds / 2)))
        session = schedule.HuntSession(
            settings=replace(length, seed=self.plan.seed),
            backend=self.settings.backend,
            timeout=self.settings.seconds,
            pool=self.workers,
        )
        try:
            run = schedule.run([f"{self.folder / FILE}::{name}" for name in names], session, "verify judge")
        except UsageError:  # nothing of it can be hunted, because its sizes are too large
            return None
        for kernel in run.kernels:
            kernel.results[:] = [each for each in kernel.results if not self._is_excused(kernel, each)]
        return run

    def _is_excused(self, kernel: record.KernelRun, result: record.Result) -> bool:
        """True if PyTorch is as wrong as the solution at the worst element of a hunt."""
        if result.status != "wrong" or not result.worst:
            return False
        worst = result.worst[0]
        asked = ReplayElement(f"{kernel.target}@eager", worst.origin.case, worst.origin.result, worst.origin.index)
        try:
            theirs = self.workers.ask(asked, timeout=SMALLER_SECONDS).judged
        except VerifyError:
            return False
        mine = worst.ulp if worst.scaled_ulp is None else worst.scaled_ulp
        return abs(float(mine)) <= AS_PYTORCH * theirs

    def _wrong(self, runs: Sequence[Run], wrong: Sequence[record.Result]) -> plans.WrongInput | None:
        """Returns the worst input of the first wrong result, made smaller if possible; None if no result is wrong."""
        results = ((kernel, each) for run in runs for kernel in run.kernels for each in kernel.results if each in wrong)
        for kernel, result in results:
            for worst in result.worst[:1]:
                origin: record.Origin = worst.origin
                with suppress(VerifyError):
                    asked = ReplayElement(kernel.target, origin.case, origin.result, origin.index, shrink=True)
                    small = self.workers.ask(asked, timeout=SMALLER_SECONDS)
                    worst = small.worst if not small.judged <= small.limit else worst
                return plans.WrongInput(
                    result=origin.result,
                    input=", ".join(f"{name} = {text}" for name, text in worst.inputs.items()),
                    index=", ".join(map(str, worst.index)),
                    got=f"{worst.got} ({worst.got_hex})",
                    truth=worst.truth,
                    error=f"{worst.ulp if worst.scaled_ulp is None else worst.scaled_ulp}",
                    reason=result.reason,
                    case=worst.origin.case,
                )
        return None


def tricks_in(seen: plans.Observed, *, wrong: bool) -> Iterator[plans.Trick]:
    """Yields the tricks that observations show. Of a solution that is right only some are looked for."""
    for row in plans.RULES["trick"]:
        value = getattr(seen, row["field"])
        if value and (wrong or row.get("always")):
            shown = ", ".join(value) if isinstance(value, tuple) else value
            yield plans.Trick(row["name"], row.get("text", "{}").format(shown))


# an error within so many times PyTorch's own near the same element is not held against a solution
AS_PYTORCH = 4.0


def excused(result: record.Result) -> bool:
    """True if a result is wrong only where PyTorch, running the reference, is nearly as wrong.

    Otherwise the reference itself would be rejected: PyTorch's gelu loses its tail. Each error is compared with
    PyTorch's near the same element, and an average with PyTorch's average.
    """

    def as_pytorch(each: record.ClassFigures) -> bool:
        if largest(each.figures, result.gate) <= result.limit and each.baseline is not None:  # it is an average
            own, theirs = each.figures, each.baseline
            slant = abs(own.bias or 0.0) - SURE * (own.bias_error or 0.0)
            most = max(BIAS_LIMIT, abs(theirs.bias or 0.0) + SURE * (theirs.bias_error or 0.0))
            return slant <= most and (own.rms or math.inf) <= AS_PYTORCH * (theirs.rms or 0.0)
        return result.excess is not None and 0 < record.value_of(result.excess) <= AS_PYTORCH

    wrong = [each for each in result.classes if each.reason]
    return bool(wrong) and all(map(as_pytorch, wrong))


def mostly_known(result: record.Result) -> bool:
    """True if a result is open only at few elements of demanding inputs, of which float64 says nothing.

    Which elements these are follows from the reference and the inputs.
    """

    def is_known(each: record.ClassFigures) -> bool:
        few = each.name != record.ORDINARY and 0 < each.figures.open <= MOST_OPEN * each.figures.n
        return few and each.limit is not None and largest(each.figures, result.gate) <= each.limit

    open_ = [each for each in result.classes if each.reason]
    return result.status == "undecided" and bool(open_) and all(map(is_known, open_))


def endless(result: record.Result) -> bool:
    """True if PyTorch's error on ordinary inputs is infinite, so that any answer would be excused there."""
    ordinary = [each.baseline for each in result.classes if each.name == record.ORDINARY and each.reason]
    return any(math.isinf(largest(each, result.gate)) for each in ordinary)


class _Found:
    """Derives the verdict and the facts of a judgement from records and notes.

    `run` has the sizes of the problem, `others` other sizes; `seen` has the notes that were written during the calls.
    """

    others: Run | None = None

    def __init__(self, run: Run, seen: Sequence[plans.Observed], hunted: Run | None, *, strict: bool = False) -> None:
        self.run, self.seen, self.hunted = run, seen, hunted
        self.runs = [each for each in (run, hunted) if each]
        results = [result for each in self.runs for kernel in each.kernels for result in kernel.results]
        wrong_ones = [result for result in results if result.status == "wrong"]
        self.excused = [result for result in wrong_ones if excused(result)]
        # Of a reference nothing says what it promises at NaN and infinities; a declaration does, as `strict` says. The
        # results of a hunt have no classes.
        measured = [] if strict else [each for each in wrong_ones if each.source == "run"]
        self.special = [each for each in measured if not any(part.reason for part in each.classes)]
        self.open = [result for result in results if mostly_known(result)]
        self.wrong = [result for result in wrong_ones if result not in self.excused and result not in self.special]
        wrong = bool(self.wrong) or any(kernel.status in BROKEN for kernel in run.kernels)
        self.tricks = list({trick.name: trick for each in seen for trick in tricks_in(each, wrong=wrong)}.values())
        honest = {row["name"] for row in plans.RULES["trick"] if row.get("honest")}
        self.cheats = [trick.name for trick in self.tricks if trick.name not in honest]

    @property
    def verdict(self) -> tuple[plans.SolutionVerdict, str]:
        """Returns the verdict and its reason."""
        kernels = self.run.kernels
        if self.cheats:
            return "cheats", "; ".join(self.cheats)
        if failed := next((each.failed for each in self.seen if each.failed), ""):
            if lacking := next((what for sign, what in plans.RULES["needs"].items() if sign in failed), ""):
                return "undecided", f"it needs {lacking}, which is not installed here: {failed}"
            busy = os.getloadavg()[0] / usable_cores()
            if plans.GAVE_NONE in failed and busy > BUSY:
                return "undecided", f"{failed}, and this machine had {busy:.1f} processes for each core"
            return "fails", failed + (NEEDS_GPU if "active drivers" in failed else "")
        if raised := next((each for each in kernels if each.status in BROKEN), None):
            if raised.status == "timeout":
                return "undecided", f"{raised.message}, the limit of one problem (--timeout)"
            return "fails", raised.message + (NEEDS_GPU if "active drivers" in raised.message else "")
        if self.wrong:
            return "wrong", self.wrong[0].reason
        open_ = next((each for each in kernels if each.status not in DECIDED and not self._is_known(each)), None)
        if any(map(endless, self.excused)):
            return "undecided", "PyTorch's own error on ordinary inputs is infinite: it would excuse any answer"
        # inputs that the reference refuses are none of the problem; `unchecked` lists them
        gaps = [gap.text for gap in self.run.incomplete if gap.kind != "no reference"]
        if kernels and open_ is None and not gaps:
            own = next((each.own_check for each in self.seen if each.own_check.startswith("fails")), "")
            if own and not own.endswith((plans.AS_THE_MODEL, plans.SAYS_NOTHING)):
                return "undecided", f"each answer is within its limit, and one {own}; the problem's own model passes"
            return "accepted", ""
        reasons = [each.reason for each in open_.results if each.status not in DECIDED] if open_ else []
        return "undecided", "; ".join([*reasons, *gaps, *([open_.message] if open_ and open_.message else [])][:3])

    def _is_known(self, kernel: record.KernelRun) -> bool:
        """True if all results of a kernel are decided, but for few elements."""
        return bool(kernel.results) and all(each.status in DECIDED or each in self.open for each in kernel.results)

    @property
    def errors(self) -> list[dict[str, Any]]:
        """Returns the errors of each result. Infinity becomes a text, because JSON has none."""
        rows = ({name: row[name] for name in COLUMNS} for row in rows_of(self.run) if row["result"])
        return [{name: "inf" if value == math.inf else value for name, value in row.items()} for row in rows]

    @property
    def checked(self) -> list[str]:
        """Lists the results that were compared with the exact answer."""
        rows = [row for each in self._every for row in rows_of(each) if row["result"]]
        found = [f"{row['kernel']} {row['result']} {row['dtype']}: {row['elements']:,} elements" for row in rows]
        calls = sum(each.calls for each in self.seen)
        return [*found, f"{calls:,} calls"] if calls else found

    @property
    def _every(self) -> list[Run]:
        """Returns all records."""
        return [*self.runs, *([self.others] if self.others else [])]

    @property
    def unchecked(self) -> list[str]:
        """Lists the results that were not compared."""
        found = ["gradients", "other memory layouts than contiguous ones"]
        found += ["other sizes than those of the problem"] if self.others is None else []
        found += ["its worst input: nothing was hunted"] if self.hunted is None else []
        kernels = [kernel for each in self._every for kernel in each.kernels]
        found += [f"{kernel.name} {note}" for kernel in kernels for note in kernel.notes if NOT_TRIED in note]
        found += [f"{each.output} {each.dtype}: {each.reason}" for each in self.open]
        return found + [gap.text for each in self._every for gap in each.incomplete]

    @property
    def facts(self) -> list[str]:
        """Lists observations that decide nothing."""
        seen = self.seen[-1] if self.seen else plans.Observed()
        functions, written = ", ".join(filter(NAME, seen.functions)), ", ".join(seen.changed)
        found = [f"{plans.SAYS}one call calls the functions {functions} of PyTorch"] if seen.functions else []
        found += [f"{plans.SAYS}it {text}" for text in seen.modes]
        found += [f"it writes into {written}"] if written and not self.tricks else []
        found += ["it writes into an answer that it gave before"] if seen.late and not self.tricks else []
        found += [f"as wrong as PyTorch: {each.output} {each.dtype}, {each.reason}" for each in self.excused]
        found += [f"{each.output} {each.dtype} is {each.reason}" for each in self.special]
        for kernel in self.others.kernels if self.others else ():
            if kernel.status != "ok":
                about = kernel.message or next((each.reason for each in kernel.results if each.reason), "")
                found.append(f"at other sizes than the problem's it is {kernel.status}: {about}")
        return found
