"""Runs accuracy, laws, sweeps, hunts and speed in a time budget, and merges the results. A night can be resumed.

A nightly run is a list of stages. Each stage is a list of units of work: a kernel, a sweep, a hunt. Every finished unit
is written at once, as a run record of its own, to the night's folder. A second start in that folder does only the
missing units. A machine that was switched off loses only its unfinished units. At the end the units are merged into one
record, for the gate and the report.

A unit of the stages "hunt" and "laws" is small: one result, or one law in one dtype. The units of all kernels wait in
one queue, so that all workers are busy to the end. Both stages share a pool, whose processes have already imported
torch and the kernels.

The stages share the budget, and later stages get the unused time of earlier ones. The record lists work that the budget
did not reach. Such work makes the run incomplete, so a shorter night never looks like a pass.
"""

import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from verify import backends
from verify.declare import config
from verify.declare.requests import Known, declared_by, sources_of
from verify.declare.target import Declared, Target
from verify.errors import IN_ERROR, InternalError, KernelError, TruthError, UsageError, no_verdict
from verify.measure.requests import Measure
from verify.measure.session import Session
from verify.measure.session import run as run_kernels
from verify.records.commit import digest, own_digest
from verify.records.merge import merge
from verify.records.part_store import PartStore
from verify.records.record import Gap, GapKind, KernelRun, Run, Stage, value_of
from verify.search.hunt.requests import Hunts, ListHunts
from verify.search.sweep.requests import ListSpaces
from verify.workers.machine import usable_cores
from verify.workers.pool import Pool
from verify.workers.process import START_SECONDS

SETTINGS = "night.parts"
TIMING = 0.7  # share of the time of "bench"; the rest is for the accuracy of PyTorch's own implementation
SWEPT_AT_ONCE = 4  # kernels swept on one GPU: while one keeps it busy, others compile and judge their results
HUNT_SECONDS = 20.0  # the longest search for one result
HUNT_GENERATIONS = 32  # generations of one hunt; its finding depends on this number, unless the seconds end it earlier
# the largest share of a budget, and seconds, kept for merging, the gate and the report
CLOSING_SHARE, CLOSING_SECONDS = 0.02, 15.0


class NothingToDoError(Exception):
    """Reports why a stage has nothing to do here. That is not a failure."""


@dataclass
class Night:
    """Holds the settings of a nightly run, its folder and its state."""

    folder: Path
    targets: tuple[str, ...]
    pool: Pool  # does all the work; the caller stops it. Its first worker answers questions
    peers: tuple[str, ...] = ()
    seed: int = 0
    profile: str = "nightly"
    without: tuple[str, ...] = ()  # laws that are not tried
    budget: float | None = None  # seconds
    timeout: float = 1200.0
    jobs: int = 0
    backend: str | None = None
    progress: Callable[[str], None] = lambda text: None
    usage: list[str] = field(default_factory=list)  # what was requested and cannot be done
    lost: str = ""  # why finished work could not be stored; empty: it could
    # answers that are valid for the whole night, because no declaration changes meanwhile
    known: Known = field(default_factory=dict)
    spaces: dict[str, tuple[str, ...]] | None = None


@dataclass(frozen=True)
class PlannedStage:
    """Holds one stage: its name, its share of the budget, and its function."""

    name: str
    share: float
    do: Callable[[Night, float | None], Run]


def run(night: Night, planned: Sequence[PlannedStage], command: str) -> Run:
    """Does the stages one after the other, each until its share of the budget is used, and merges their records.

    Does not write the merged record.
    """
    started = time.monotonic()
    if night.pool.devices == 1 and backends.gpu_expected() and planned and planned[0].do is accuracy:
        # the others start while the first worker lists the kernels
        night.pool.begin(night.jobs or usable_cores())
    kept = _claim(night)
    records: list[Run] = []
    stages: list[Stage] = []
    lost: list[Gap] = []  # stages without a record
    in_error = False
    shares = sum(stage.share for stage in planned)

    def took(name: str, begun: float) -> float:
        """Returns the seconds of a stage, with those of earlier starts, and keeps them for a later start."""
        seconds = round((kept.known(f"seconds of {name}", float) or 0.0) + time.monotonic() - begun, 1)
        kept.keep(f"seconds of {name}", seconds)
        return seconds

    for stage in planned:
        begun = time.monotonic()
        until = None
        if night.budget is not None:
            closing = min(CLOSING_SECONDS, night.budget * CLOSING_SHARE)
            left = max(0.0, night.budget - closing - (begun - started))
            until = begun + left * stage.share / shares
        shares -= stage.share
        night.progress(stage.name)
        try:
            record = stage.do(night, until)
        except NothingToDoError as nothing:
            seconds = took(stage.name, begun)
            stages.append(Stage(name=stage.name, status="skipped", message=str(nothing), seconds=seconds))
            continue
        except Exception as error:
            # an error in one stage must not stop the others or the report
            in_error = in_error or not isinstance(error, UsageError)
            kind: GapKind = "not possible" if isinstance(error, UsageError) else "harness error"
            message = error.message if isinstance(error, UsageError) else _no_verdict(error)
            stages.append(Stage(name=stage.name, status="incomplete", message=message, seconds=took(stage.name, begun)))
            lost.append(Gap(kind, f"{stage.name}: {message}"))
            continue
        except BaseException:  # an interrupted stage has no result, and its time counts
            took(stage.name, begun)
            raise
        records.append(record)
        stages.append(_stage(stage.name, record, took(stage.name, begun)))
    if not records:
        reasons = [f"{each.name}: {each.message}" for each in stages]
        said = "no stage of the nightly run gave a record: " + "; ".join(reasons or ["none was chosen"])
        raise TruthError(said) if in_error else UsageError(said)
    night.usage += [gap.text for gap in lost]
    merged = merge(records, command=command, profile=night.profile, stages=stages)
    return msgspec.structs.replace(merged, incomplete=list(dict.fromkeys([*merged.incomplete, *lost])))


def _stage(name: str, record: Run, seconds: float) -> Stage:
    """Returns the summary of one stage for the record."""
    verdicts = {"pass": "ok", "fail": "wrong", "incomplete": "incomplete"}
    results = sum(len(kernel.results) for kernel in record.kernels)
    cases = sum(law.cases for kernel in record.kernels for law in kernel.laws)
    timed = sum(len(kernel.speed) for kernel in record.kernels)
    counts = {"results": results, "cases of laws": cases, "timings": timed}
    said = [f"{len(record.kernels):,} kernel{'s' * (len(record.kernels) != 1)}"]
    said += [f"{count:,} {what}" for what, count in counts.items() if count]
    status: Any = verdicts[record.verdict] if record.kernels or record.incomplete else "skipped"
    # a stage whose kernels were all judged elsewhere has no verdict of its own
    if status == "incomplete" and not record.incomplete and not record.unproven:
        status = "ok"
    return Stage(name=name, status=status, message=", ".join(said), seconds=seconds)


def _no_verdict(error: Exception) -> str:
    """Returns the text about an error of verify itself. Prints the traceback of an unexpected one."""
    if isinstance(error, TruthError | InternalError):  # a worker has printed the traceback of an InternalError
        return no_verdict(error)
    traceback.print_exception(error)
    return f"{IN_ERROR}: {type(error).__name__}: {error}"


# -- the folder of a night ------------------------------------------------------------------------------


def _claim(night: Night) -> PartStore:
    """Writes the settings to a new folder, and returns the file, which has the seconds of the stages too.

    Raises UsageError if the folder was begun with other settings.
    """
    asked = {name: getattr(night, name) for name in ("targets", "peers", "seed", "profile")}
    asked |= {
        "backend": night.backend or "",
        "sources": sources_of(night.pool, (*night.targets, *night.peers), night.known),
        "pinned cases": digest(config.find().corpus, "*.json"),
        "verify": own_digest(),
    }
    kept = PartStore(night.folder / SETTINGS)
    kept.claim(asked, "nightly run", f"verify nightly --output {night.folder}.2  (or remove {night.folder})")
    night.lost = kept.lost
    return kept


def unit(night: Night, name: str, make: Callable[[], Run]) -> Run:
    """Returns the record of one unit from the folder. If there is none, makes and stores it.

    Does not store a record that ran out of time or met an error of verify: a later start makes it again.
    """
    kept = PartStore(night.folder / "units.parts")
    if (known := kept.known(name, Run)) is not None:
        return known
    made = make()
    if not any(gap.kind in ("out of time", "harness error", "judge failed") for gap in made.incomplete):
        kept.keep(name, made)
        night.lost = night.lost or kept.lost
    return made


# -- stages ---------------------------------------------------------------------------------------------


def accuracy(night: Night, until: float | None) -> Run:
    """Measures every kernel against the exact answer, and the peers too."""
    try:
        return _kernels(night, until, "accuracy", (*night.targets, *night.peers), pool=night.pool)
    finally:
        _shrink(night)


def laws(night: Night, until: float | None) -> Run:
    """Tries every law on every judged kernel with the night's profile and seed."""
    judged = [kernel.target for kernel in _judged(night)]
    if not judged:
        raise NothingToDoError("no kernel is judged here")
    of_laws = Measure("", laws=night.profile, without=night.without, accuracy=False)
    return _kernels(night, until, "laws", judged, _grown(night), asked=of_laws)


def sweep(night: Night, until: float | None) -> Run:
    """Judges every input of every kernel with few enough inputs. On a GPU, that includes pairs."""
    from verify.search.sweep import drive

    spaces = _spaces(night)
    if not spaces:
        raise NothingToDoError("no kernel has few enough inputs to try all of them here")
    about, jobs = night.pool.about(), night.jobs
    if backends.named(about.backend).gpu:
        jobs = min(SWEPT_AT_ONCE * night.pool.devices, night.jobs or night.pool.room(about))

    try:
        night.pool.begin(jobs)
        settings = drive.SweepSettings(
            spaces=ListSpaces(list(spaces), pairs=True, baseline=True),
            jobs=jobs,
            timeout=night.timeout,
            pool=night.pool.first(jobs) if jobs else night.pool,
            until=until,
            contain=True,
            kept=PartStore(night.folder / "sweep.parts"),
            progress=lambda space, done, total: night.progress(
                f"sweep {space.target} {space.dtype} {done / total:.0%}"
            ),
        )
        return unit(night, "sweep", lambda: drive.sweep(settings, "verify nightly: sweep"))
    finally:
        _shrink(night)


def hunt(night: Night, until: float | None) -> Run:
    """Searches for the worst input of every result that is not swept."""
    from verify.search.hunt import schedule
    from verify.search.hunt.requests import Settings

    asked = _hunts(night)
    if not asked:
        raise NothingToDoError("every input of every kernel is swept")

    kept = PartStore(night.folder / "hunt.parts")
    session = schedule.HuntSession(
        settings=Settings(seed=night.seed, generations=HUNT_GENERATIONS, seconds=HUNT_SECONDS),
        timeout=night.timeout,
        pool=_grown(night),
        until=until,
        asked=asked,
        kept=kept,
        contain=True,
        progress=lambda name, progress: night.progress(f"hunt {name} {value_of(progress.best):.3g}"),
    )
    found = schedule.run(list(asked), session, "verify nightly: hunt")
    night.lost = night.lost or kept.lost
    return found


def bench(night: Night, until: float | None) -> Run:
    """Times every kernel and peer beside PyTorch's implementation, on a GPU, and measures the accuracy of PyTorch's."""
    from verify.measure.bench import Bench
    from verify.measure.bench import bench as time_them

    if not backends.named(night.pool.about().backend).clock:
        raise NothingToDoError("speed is measured on a GPU only")

    def timings() -> Run:
        own = night.pool.more is not None  # in a cluster, other machines with other caches may measure
        now = time.monotonic()
        until_then = None if until is None else now + TIMING * max(0.0, until - now)
        session = _session(night, "bench", until_then, night.pool if own else None)  # the pool reports the environment
        wanted = Bench(wanted=(*night.targets, *night.peers), accuracy=False, beside_peers=False)
        timed = time_them(wanted, session, "verify nightly: bench")
        night.usage += session.usage
        return timed

    timed = unit(night, "bench speed", timings)
    stand_ins = [kernel.target for kernel in timed.kernels if "@" in kernel.target]

    def accuracies() -> Run:
        # on the machine that timed them, by the processes that hunt next
        measured = _kernels(night, until, "bench", stand_ins, pool=_grown(night) if night.pool.more else None)
        return msgspec.structs.replace(measured, kernels=[in_brief(kernel) for kernel in measured.kernels])

    measured = unit(night, "bench accuracy of PyTorch", accuracies)
    return _as_peers(night, merge([timed, measured], command="verify nightly: bench", profile=night.profile))


def in_brief(kernel: KernelRun) -> KernelRun:
    """Shortens the record of PyTorch's own implementation to figures and one worst input for each result."""
    short: dict[str, Any] = {"regimes": [], "curve": None, "special": []}
    results = [msgspec.structs.replace(each, worst=each.worst[:1], **short) for each in kernel.results]
    return msgspec.structs.replace(kernel, results=results)


# the first stages get more than they need: later ones use the rest, and hunts and laws can do with less
STAGES = (
    PlannedStage("accuracy", 4.0, accuracy),
    PlannedStage("sweep", 1.5, sweep),
    PlannedStage("bench", 5.0, bench),
    PlannedStage("hunt", 1.6, hunt),
    PlannedStage("laws", 1.9, laws),
)


def _kernels(
    night: Night, until: float | None, stage: str, targets: Sequence[str], pool: Pool | None, **more: Any
) -> Run:
    """Measures kernels as `verify run` does. Skips each dtype of a kernel that an earlier start finished."""
    kept = PartStore(night.folder / f"{stage}.parts")
    more |= {"profile": night.profile, "jobs": night.jobs, "by_dtype": True, "kept": kept, "known": night.known}
    session = _session(night, stage, until, pool, **more)
    found = run_kernels(targets, session, f"verify nightly: {stage}")
    night.usage += session.usage
    night.lost = night.lost or kept.lost
    return _as_peers(night, found)


def _session(night: Night, stage: str, until: float | None, pool: Pool | None, **more: Any) -> Session:
    """Returns the settings of measurements of a stage."""
    own = {name: getattr(night, name) for name in ("backend", "seed", "timeout")}
    return Session(pool=pool, until=until, progress=lambda text: night.progress(f"{stage} {text}"), **own, **more)


def _as_peers(night: Night, record: Run) -> Run:
    """Marks the kernels of the peers' files as peers: they are shown and never judged."""
    files = {Target.parse(target).source for target in night.peers}
    kernels = [
        msgspec.structs.replace(kernel, peer=True) if Target.parse(kernel.target).source in files else kernel
        for kernel in record.kernels
    ]
    return msgspec.structs.replace(record, kernels=kernels)


# -- what there is to do --------------------------------------------------------------------------------


def _grown(night: Night) -> Pool:
    """Adds workers to the pool, as many as memory and cores allow, and returns it."""
    night.pool.grow(night.jobs or night.pool.room(night.pool.about()))
    return night.pool


def _shrink(night: Night) -> None:
    """Ends processes, because the next stage needs the memory of the GPU. The first of each GPU answers questions."""
    if night.pool.more is not None:
        night.pool.stop(keep=night.pool.devices)


def _spaces(night: Night) -> dict[str, tuple[str, ...]]:
    """Maps each kernel that can be swept here to its dtypes, few inputs first."""
    if night.spaces is not None:
        return night.spaces
    unary: dict[str, tuple[str, ...]] = {}
    paired: dict[str, tuple[str, ...]] = {}
    # an interpreter would take a day for 2^32 pairs
    pairs = backends.named(night.pool.about().backend).scale == "large"
    for kernel in _judged(night):
        with suppress(UsageError, KernelError):
            if spaces := night.pool.ask(ListSpaces([kernel.target], pairs=pairs), timeout=START_SECONDS).spaces:
                shape = unary if spaces[0].shape == "unary" else paired
                shape[kernel.target] = tuple(space.dtype for space in spaces)
    night.spaces = unary | paired
    return night.spaces


def _hunts(night: Night) -> dict[str, Hunts]:
    """Maps each kernel to its hunts, without dtypes that are swept, and to the results that cannot be hunted."""
    swept = _spaces(night)
    found: dict[str, Hunts] = {}
    for kernel in _judged(night):
        with suppress(UsageError, KernelError):
            asked = night.pool.ask(ListHunts(kernel.target, [], []), timeout=START_SECONDS)
            if hunts := [hunt for hunt in asked.hunts if hunt.dtype not in swept.get(kernel.target, ())]:
                found[kernel.target] = Hunts(hunts, asked.left_out)
    return found


def _judged(night: Night) -> list[Declared]:
    """Returns every judged kernel of the targets that this backend can run."""
    backend = night.pool.about().backend
    declared = [each for target in night.targets for each in declared_by(night.pool, target, known=night.known)]
    return list({each.target: each for each in declared if not each.peer and not each.unfit(backend, "run")}.values())
