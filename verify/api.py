"""Defines the public functions run, sweep, hunt, judge, gate and load, and their results (docs/api.md).

    run = verify.run("accuracy.py", dtypes=["bfloat16"])
    run.verdict, run.worst, run.rows()

The commands of the same names call these functions. Kernels run in processes of their own, so this module needs no
torch. The functions print nothing and never end the process. `problems` has the lines that a command writes to stderr.
"""

import contextlib
import inspect
import math
import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Unpack

import msgspec

from verify.backends import Cuda, demand_agreement, named
from verify.declare import config
from verify.declare.arguments import Declaration, HuntDeclaration, demand_known
from verify.declare.models import models_of
from verify.declare.target import Target
from verify.errors import INCOMPLETE, OF_VERDICT, PASS, USAGE, WRONG, UsageError, VerifyError
from verify.measure import session
from verify.measure.requests import Measure
from verify.records import files
from verify.records.bounds import committed, waivers
from verify.records.bounds.verdict import Verdict
from verify.records.figure import shown
from verify.records.part_store import PartStore, cache
from verify.records.record import Run, number
from verify.referee import judging, words
from verify.referee.plan import EXIT_CODES, Judgement, SolutionVerdict
from verify.report import gate_data, gate_words, run_table
from verify.report.html import record_html
from verify.report.markdown import comment
from verify.report.present import present
from verify.report.rows import Row, rows_of, worst_of
from verify.report.terminal import text_page
from verify.search.hunt import schedule
from verify.search.hunt.requests import Settings
from verify.search.sweep import drive
from verify.search.sweep.requests import ListSpaces
from verify.search.sweep.space import Space
from verify.workers import process, process_tree
from verify.workers.machine import gpus as devices
from verify.workers.pool import Pool, check_equal, spread
from verify.workers.requests import CountGpus

TIMEOUT = 600.0  # seconds
DURATION = 60.0  # seconds of a search
Profile = Literal["quick", "ci", "nightly", "exhaustive"]  # sizes of laws and of judgements
AnyPath = str | os.PathLike[str]
Progress = Callable[[str], None]


def _silent(text: str) -> None:
    """Reports no progress."""


@dataclass(frozen=True, repr=False)
class CompletedRun:
    """Holds a finished run, sweep or hunt: its record, with its verdict, rows and pages."""

    record: Run
    problems: tuple[str, ...] = ()  # targets that could not be imported, dtypes that could not be swept

    @property
    def verdict(self) -> Literal["pass", "fail", "incomplete"]:
        """Returns the verdict in the words of the command: pass, fail or incomplete."""
        return self.record.verdict

    @property
    def exit_code(self) -> int:
        """Returns the exit code of the command: 0 pass, 1 fail, 2 usage, 3 incomplete."""
        run = self.record
        if self.verdict == "fail":
            return WRONG
        if run.profile == "sweep":
            judged = [kernel for kernel in run.kernels if not kernel.peer] or run.kernels
            return PASS if judged and all(kernel.status == "ok" for kernel in judged) else INCOMPLETE
        return USAGE if any(gap.kind == "not importable" for gap in run.incomplete) else OF_VERDICT[self.verdict]

    @property
    def worst(self) -> Row | None:
        """Returns the row of the worst result: furthest beyond its limit, else closest to it. None without results."""
        return worst_of(self.record)

    def rows(self) -> list[Row]:
        """Returns a flat dict for each row of the table; docs/api.md describes the columns."""
        return rows_of(self.record)

    def save(self, path: AnyPath) -> Path:
        """Writes the record for `verify.load` and for every command. A name that ends in .gz makes it gzip."""
        files.save(self.record, path)
        return Path(path)

    def html(self, path: AnyPath) -> Path:
        """Writes the report as one self-contained page."""
        files.write_atomically(path, record_html.render(self.record).encode())
        return Path(path)

    def markdown(self) -> str:
        """Returns the report as GitHub Markdown."""
        return comment.render(run_table.document(self.record))

    def __str__(self) -> str:
        """Returns the report as the terminal shows it."""
        return text_page.render(run_table.document(self.record), _screen())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {present(self.record).sentence}>"

    def _repr_html_(self) -> str:
        return record_html.notebook(self.record)


def _screen() -> text_page.Terminal:
    return text_page.Terminal(shutil.get_terminal_size((120, 40)).columns)


@dataclass(frozen=True, repr=False)
class CompletedGate:
    """Holds the verdict of the committed bounds on one or more records."""

    judged: Verdict
    records: tuple[str, ...] = ()  # the files of the judged records, for the next command
    bounds: Path = Path()  # the folder of the bounds

    @property
    def verdict(self) -> Literal["pass", "fail", "incomplete"]:
        """Returns the verdict in the words of the command."""
        return self.judged.word

    @property
    def exit_code(self) -> int:
        """Returns the exit code of `verify gate`."""
        return self.judged.exit_code

    def data(self) -> dict[str, Any]:
        """Returns the data that `verify gate --json` writes."""
        return gate_data.of_verdict(self.judged)

    def rows(self) -> list[dict[str, Any]]:
        """Returns a flat dict for each figure or bound: its key, status and reason, the bound and the largest error."""
        return gate_data.flat_rows(self.judged)

    def markdown(self) -> str:
        """Returns the verdict as GitHub Markdown."""
        return comment.render(gate_words.document(self.judged))

    def __str__(self) -> str:
        return text_page.render(gate_words.document(self.judged, records=self.records), _screen())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.verdict}: {len(self.judged.rows):,} rows>"


def run(
    targets: Any,
    *,
    kernels: Iterable[str] = (),
    dtypes: Iterable[str] = (),
    profile: Profile | Literal[""] = "",
    without: Iterable[str] = (),
    seed: int = 0,
    cases_of: str = "",
    backend: str | None = None,
    jobs: int = 0,
    timeout: float = TIMEOUT,
    memory: int = 0,
    fail_fast: bool = False,
    models: str | Iterable[str] = (),
    resume: AnyPath | PartStore | None = None,
    gpus: str | None = None,
    scheduler: str | None = None,
    pool: Pool | None = None,
    progress: Progress = _silent,
    command: str = "",
    partial: bool = False,
    **declaration: Unpack[Declaration],
) -> CompletedRun:
    """Measures kernels against the exact answer, as `verify run` does. docs/api.md explains every argument.

    targets: one target or a list. A target is a path, "FILE.py::KERNEL", "MODULE", a kernel that `@verify.kernel`
        declares, or a function.
    declaration: declares a function, for instance with like=torch.nn.functional.gelu.
    partial: True: Ctrl-C returns the finished part of the run. False: Ctrl-C raises KeyboardInterrupt.
    """
    dtypes, without = _dtypes(dtypes), _laws(profile, without)
    _demand_numbers(timeout, seed=seed, jobs=jobs, memory=memory)
    listed = _targets(run, targets, kernels, dtypes, declaration)
    asked = Measure(
        "",
        laws=profile,
        plan=named(cases_of).name if cases_of else "",
        judging=timeout,
        without=without,
        memory=memory,
        fail_fast=fail_fast,
        models=models_of("models", models) if models else (),
    )
    settings = session.Session(
        backend=backend,
        seed=seed,
        timeout=timeout,
        asked=asked,
        jobs=jobs,
        profile=profile or "default",
        dtypes=dtypes,
        progress=progress,
        kept=_kept(resume, listed),
        whole=True,
        by_dtype=True,
    )
    said = {"dtype": dtypes, "profile": profile, "without": without, "seed": seed, "backend": backend}
    said |= {"memory": memory, "fail-fast": fail_fast, "model": asked.models}
    with workers(gpus, scheduler, listed, backend, pool, progress) as settings.pool:
        record = session.run(listed, settings, command or _command("run", listed, said))
    if not partial and any(gap.kind == "interrupted" for gap in record.incomplete):
        raise KeyboardInterrupt
    return CompletedRun(record, tuple(settings.usage))


def run_many(
    targets: Sequence[str], *, jobs: int = 0, backend: str | None = None, **options: Any
) -> Iterator[tuple[str, CompletedRun | VerifyError, float]]:
    """Yields each target with its run, or with the error that ended it, and its seconds, as the runs end.

    `jobs` runs go on at a time, each with a worker that stays warm; 0 is one for each core, or as many as fit on the
    GPUs. They go round the GPUs that this process sees. A target that ends its process costs no other. `options` are
    the keyword arguments of `run`.
    """

    def one(target: str, pool: Pool) -> tuple[str, CompletedRun | VerifyError, float]:
        began = time.monotonic()
        try:
            done: CompletedRun | VerifyError = run(target, backend=backend, jobs=1, pool=pool, **options)
        except VerifyError as error:
            done = error
        return target, done, time.monotonic() - began

    yield from spread(targets, jobs, backend, one, probed=True)


def sweep(
    targets: Any,
    *,
    kernels: Iterable[str] = (),
    dtypes: Iterable[str] = (),
    results: Iterable[str] = (),
    pairs: bool = False,
    range: tuple[float, float] | None = None,
    baseline: bool = False,
    curve: bool = True,
    backend: str | None = None,
    jobs: int = 0,
    timeout: float = TIMEOUT,
    resume: AnyPath | None = None,
    gpus: str | None = None,
    scheduler: str | None = None,
    pool: Pool | None = None,
    progress: Progress = _silent,
    command: str = "",
    **declaration: Unpack[Declaration],
) -> CompletedRun:
    """Judges every input of elementwise kernels, as `verify sweep` does.

    Ctrl-C raises InterruptedSweepError, which names the file with the finished part. `resume=` continues from that
    file.
    """
    dtypes, results = _dtypes(dtypes), tuple(results)
    _demand_numbers(timeout, jobs=jobs)
    named = _targets(sweep, targets, kernels, dtypes, declaration)
    said = {"dtype": dtypes, "result": results, "pairs": pairs, "range": range and f"{range[0]!r}:{range[1]!r}"}
    said |= {"baseline": baseline, "no-curve": not curve, "backend": backend}
    begun: dict[str, float] = {}

    def advanced(space: Space, done: int, total: int) -> None:
        spent = time.monotonic() - begun.setdefault(space.identity(), time.monotonic())
        left = f", {spent * (total - done) / done:,.0f} s left" if done and spent > 1 else ""
        progress(f"{Target.parse(space.target).kernel} {space.dtype}: {done / total:.1%} of {total:,} inputs{left}")

    bounds = range and (number(range[0]), number(range[1]))
    with workers(gpus, scheduler, named, backend, pool, progress) as pool:
        settings = drive.SweepSettings(
            spaces=ListSpaces(named, dtypes, results, pairs, bounds, baseline, needs_pairs=pairs),
            backend=backend,
            curve=curve,
            jobs=jobs,
            timeout=timeout,
            pool=pool,
            kept=None if resume is None else PartStore(Path(resume)),
            progress=advanced,
        )
        record = drive.sweep(settings, command or _command("sweep", named, said))
    return CompletedRun(record, tuple(settings.usage))


def hunt(
    targets: Any,
    *,
    kernels: Iterable[str] = (),
    dtypes: Iterable[str] = (),
    results: Iterable[str] = (),
    duration: float | None = None,
    evaluations: int | None = None,
    seed: int = 0,
    width: int = 0,
    largest: float | None = None,
    strategy: Literal["hunt", "random"] = "hunt",
    backend: str | None = None,
    timeout: float = TIMEOUT,
    gpus: str | None = None,
    scheduler: str | None = None,
    pool: Pool | None = None,
    progress: Progress = _silent,
    stopping: Callable[[], None] = lambda: None,
    command: str = "",
    **declaration: Unpack[HuntDeclaration],
) -> CompletedRun:
    """Searches for the worst input, as `verify hunt` does, for `duration` seconds or `evaluations` of each result.

    The first Ctrl-C calls `stopping` and returns the findings. A second one raises KeyboardInterrupt.
    """
    dtypes, results = list(_dtypes(dtypes)), list(results)
    _demand_numbers(timeout, seed=seed, width=width)
    named = _targets(hunt, targets, kernels, dtypes, declaration)
    if duration is not None and evaluations is not None:
        raise UsageError("a hunt has a duration or a number of evaluations; received both")
    said = {"dtype": dtypes, "result": results, "duration": duration and f"{duration:g}s", "evaluations": evaluations}
    said |= {"seed": seed, "width": width, "largest": largest, "strategy": strategy, "backend": backend}
    seconds = None if evaluations is not None else duration or DURATION
    with workers(gpus, scheduler, named, backend, pool, progress) as pool:
        session = schedule.HuntSession(
            settings=Settings(seed, evaluations, seconds, strategy=strategy, width=width, largest=largest),
            backend=backend,
            dtypes=dtypes,
            results=results,
            timeout=timeout,
            pool=pool,
            progress=lambda name, going: progress(
                f"{name}: worst so far {shown(float(going.best))} after {going.evaluations:,} evaluations"
            ),
            stopping=stopping,
        )
        record = schedule.run(named, session, command or _command("hunt", named, said))
    return CompletedRun(record)


def gate(
    runs: CompletedRun | Run | AnyPath | Sequence[CompletedRun | Run | AnyPath],
    bounds: AnyPath | None = None,
    *,
    kernels: Iterable[str] = (),
    base: Run | None = None,
) -> CompletedGate:
    """Judges runs, records or files of records by the committed bounds, as `verify gate` does.

    bounds: the folder of the bounds; None: the folder of [tool.verify] in pyproject.toml.
    kernels: only these kernels; empty: all.
    base: an earlier record; a verdict that is worse than in it is a breach, whatever the bounds allow.
    """
    given: list[Any] = list(runs) if isinstance(runs, Iterable) and not isinstance(runs, str) else [runs]
    if not given:
        raise UsageError("a gate judges records; received none", hint="verify.gate(verify.run('accuracy.py'))")
    folder = config.find().bounds if bounds is None else Path(bounds)
    if bounds is not None and not folder.is_dir():
        hint = "verify bounds propose RUN.json"
        raise UsageError(f"the bounds are a folder; there is none at {folder}", hint=hint)
    loaded = [each if isinstance(each, CompletedRun | Run) else load(each) for each in given]
    records = [each if isinstance(each, Run) else each.record for each in loaded]
    paths = [os.fspath(each) for each in given if not isinstance(each, CompletedRun | Run)]
    before = [] if base is None else [base]
    found = waivers.judge(records, committed.load(folder), kernels=list(kernels), base=before)
    return CompletedGate(found, tuple(paths), folder)


@dataclass(frozen=True, repr=False)
class CompletedJudgement:
    """Holds the judgement of one solution."""

    judgement: Judgement

    @property
    def verdict(self) -> SolutionVerdict:
        """Returns accepted, wrong, cheats, fails or undecided."""
        return self.judgement.verdict

    @property
    def exit_code(self) -> int:
        """Returns the exit code of `verify judge`: 0 accepted, 1 wrong, cheats or fails, 3 undecided.

        It is 3 for an accepted solution too, if nothing held that (`allow_weaker`).
        """
        code = EXIT_CODES[self.verdict]
        return code or (INCOMPLETE if self.judgement.given_up else PASS)

    @property
    def rank(self) -> tuple[int, float]:
        """Returns a key that sorts judgements, the best first: by the verdict, then by the largest share of a limit."""
        shares = [float(each["ordinary"] or 0) / each["limit"] for each in self.judgement.errors if each["limit"]]
        return list(EXIT_CODES).index(self.verdict), max(shares, default=math.inf)

    def data(self) -> dict[str, Any]:
        """Returns the data that `verify judge --json` writes."""
        return dict(msgspec.to_builtins(self.judgement))

    def __str__(self) -> str:
        return "\n".join(words.lines_of(self.judgement))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.verdict}: {self.judgement.solution}>"


def judge(
    problem: AnyPath,
    solution: AnyPath,
    *,
    profile: Profile = "quick",
    backend: str | None = None,
    seed: int | None = None,
    timeout: float | None = None,
    allow_weaker: bool = False,
    pool: Pool | None = None,
    progress: Progress = _silent,
) -> CompletedJudgement:
    """Judges an untrusted solution, as `verify judge` does (docs/judge.md)."""
    settings = judging.Settings(profile, backend, seed, timeout, allow_weaker=allow_weaker, progress=progress)
    return CompletedJudgement(judging.judge(os.fspath(problem), os.fspath(solution), settings, pool))


def judge_many(
    pairs: Sequence[tuple[AnyPath, AnyPath]], *, jobs: int = 1, **options: Any
) -> Iterator[CompletedJudgement]:
    """Yields the judgements of (problem, solution) pairs as they are made, `jobs` at a time.

    `options` are the keyword arguments of `judge`.
    """
    given = [(os.fspath(problem), os.fspath(solution)) for problem, solution in pairs]
    for found in judging.judge_many(given, judging.Settings(**options), jobs):
        yield CompletedJudgement(found)


def load(path: AnyPath) -> CompletedRun:
    """Returns the run in a file that `save` or the --json of a command wrote."""
    return CompletedRun(files.load(path))


@contextlib.contextmanager
def workers(
    gpus: str | None,
    scheduler: str | None,
    targets: Sequence[str],
    backend: str | None,
    pool: Pool | None = None,
    progress: Progress = _silent,
) -> Iterator[Pool | None]:
    """Yields workers on GPUs of this machine or in a Dask cluster; `pool` without `gpus` and `scheduler`."""
    if process_tree.MARK in os.environ:
        said = "a worker imports the file of a kernel, and importing it measured kernels again"
        raise UsageError(said, hint='if __name__ == "__main__": above the call')
    if gpus and scheduler:
        raise UsageError("workers are on GPUs of this machine or in a cluster; received gpus= and scheduler=")
    missing = []
    for each in targets:
        try:
            Target.parse(each).demand_source()
        except UsageError as error:
            missing.append(error)
    if missing and len(missing) == len(targets):  # no worker has to import torch to find no kernel
        raise missing[0]
    if scheduler:
        from verify.workers.cluster import Cluster  # Dask is optional

        sources = sorted({str(file) for target in targets if (file := Target.parse(target).file) is not None})
        with Cluster.connect(scheduler, backend, sources, progress) as cluster:
            yield cluster.pool()
    elif gpus:
        kind = named(backend or Cuda.name)
        demand_agreement(kind)
        with process.Worker("cpu") as worker:  # counting GPUs needs torch, not a GPU context
            count = worker.ask(CountGpus(), timeout=process.START_SECONDS)
        with Pool.on_gpus(devices(gpus, count, kind.visible), backend) as found:
            check_equal(found)
            yield found
    else:
        yield pool


def _kept(resume: AnyPath | PartStore | None, targets: Sequence[str]) -> PartStore | None:
    """Returns the store of finished parts. Functions cannot have one: their modules may change unnoticed."""
    if resume is None or isinstance(resume, PartStore):
        return resume
    if any(Path(each).parent == cache("cells") for each in targets):
        said = "resume= needs kernels in files, to find changes; received a function"
        raise UsageError(said, hint="put it in a file")
    return PartStore(Path(resume))


def _dtypes(given: Iterable[str]) -> tuple[str, ...]:
    """Returns the names of dtypes. Raises UsageError for one that verify does not know."""
    names = tuple(given)
    if names:
        from verify.truth import formats  # this import needs torch

        names = tuple(formats.named(name).name for name in names)
    return names


def _laws(profile: str, without: Iterable[str]) -> tuple[str, ...]:
    """Returns the names of the laws to leave out. Raises UsageError for an unknown law or profile."""
    from verify.laws import profiles

    if profile and profile not in profiles.EXAMPLES:
        raise UsageError(f"profile= is one of {', '.join(profiles.EXAMPLES)}; received {profile!r}")
    names = tuple(dict.fromkeys(map(profiles.named, without)))
    if names and not profile:
        raise UsageError("without= leaves out laws, and only profile= tries them; received without= alone")
    return names


def _demand_numbers(timeout: float, **whole: int) -> None:
    """Raises UsageError unless the timeout is positive and the others are whole numbers from 0."""
    for name, value in whole.items():
        if not isinstance(value, int) or not 0 <= value < 1 << 63:
            raise UsageError(f"{name}= is a whole number from 0; received {value!r}")
    if not isinstance(timeout, int | float) or not timeout > 0:
        raise UsageError(f"timeout= is a positive number of seconds; received {timeout!r}")


def _targets(
    caller: Callable[..., Any], given: Any, kernels: Iterable[str], dtypes: Iterable[str], declaration: HuntDeclaration
) -> list[str]:
    """Returns the targets as the command line names them. Writes a file for a function without one."""
    demand_known(f"verify.{caller.__name__}", declaration, inspect.signature(caller).parameters)
    items = list(given) if isinstance(given, list | tuple | set) else [given]
    if not items:
        rule = "targets are files, modules, kernels or functions; received none"
        raise UsageError(rule, hint="verify.run('FILE.py')")
    said: dict[str, Any] = {**declaration, **({"dtypes": list(dtypes)} if declaration and dtypes else {})}
    found = []
    for item in items:
        if isinstance(item, str | os.PathLike):
            found.append(os.fspath(item))
        elif callable(item):
            from verify.declare import written  # this import needs torch

            found.append(written.target_of(item, said))
        else:
            rule = f"a target is a path, FILE.py::KERNEL, MODULE, a kernel or a function; received {item!r}"
            raise UsageError(rule, hint="verify.run('FILE.py')")
    if declaration and all(isinstance(item, str | os.PathLike) for item in items):
        rule = "a declaration belongs to a function that is measured; received only files or modules"
        raise TypeError(f"{', '.join(declaration)}: {rule}")
    if not (wanted := list(kernels)):
        return found
    if len(found) != 1 or "::" in found[0]:
        raise UsageError(f"kernels= chooses among those of one file or module; received {', '.join(found)}")
    return [f"{found[0]}::{name}" for name in wanted]


def _command(name: str, targets: Sequence[str], options: Mapping[str, Any]) -> str:
    """Returns the command that does the same, with the options that differ from their default."""
    words = ["verify", name, *targets]
    for flag, value in options.items():
        for each in value if isinstance(value, list | tuple) else [value]:
            if each not in (None, False, "", 0, "hunt"):
                text = [] if each is True else [str(each)]
                words += [f"--{flag}={each}"] if str(each).startswith("-") else [f"--{flag}", *text]
    return shlex.join(words)
