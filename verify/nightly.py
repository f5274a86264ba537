"""Everything in one go: accuracy, laws, sweeps, hunts, speed, gate, report; in a time budget, and resumable.

A nightly run is a list of stages. Each stage is a list of units of work (a kernel, a sweep, a hunt), and every
finished unit is a run record of its own in the night's folder, written at once. Starting again in that folder
does only what is not there: a machine that was switched off loses the units it was in, nothing else. At the
end the units merge into one record, which the gate judges and the report shows.

Hunts and laws are cut fine (one result, one law in one dtype) and wait in one queue over all kernels: so many small
units keep all workers busy to the end. Both stages share their workers, which have met the GPU and the kernels by then.

A budget is shared out among the stages; what a stage does not use goes to the later ones. Work that the budget
did not reach is listed in the record and makes the run incomplete: less measured must not look like all well.
"""

from __future__ import annotations

import hashlib
import json
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from verify.errors import IN_ERROR, SPENT, TruthError, UsageError
from verify.measure.session import START_SECONDS, Session, answer, describe_target
from verify.measure.session import run as run_kernels
from verify.records.merge import merge
from verify.records.record import KernelRun, Run, Stage, load, save, write_atomically
from verify.records.source_digest import own_digest
from verify.records.stage_time import StageTime
from verify.workers.cluster import Cluster
from verify.workers.process import Answers, Worker

Say = Callable[[str], None]

SETTINGS = "night.json"
HUNT_SECONDS = 20.0  # for one result, at most
HUNT_GENERATIONS = 32  # of one hunt: what it finds is a matter of this count, unless the seconds cut it short
CLOSING_SHARE, CLOSING_SECONDS = 0.02, 15.0  # of a budget, at most: for merging, the gate and the report


class NothingToDoError(Exception):
    """A stage has nothing to do here, and that is no failure: the reason."""


@dataclass
class Night:
    """The settings of a nightly run, and where its work lies."""

    folder: Path
    targets: tuple[str, ...]
    peers: tuple[str, ...] = ()
    seed: int = 0
    profile: str = "nightly"
    budget: float | None = None  # seconds
    timeout: float = 1200.0
    jobs: int = 0
    backend: str | None = None
    cluster: Cluster | None = None
    say: Say = lambda text: None
    usage: list[str] = field(default_factory=list)
    clerk: Answers | None = None  # while `run` is at work: the process that is asked what there is to do
    staff: list[Answers] = field(default_factory=list)  # and those that hunt and try laws


@dataclass(frozen=True)
class Work:
    """One stage: what it is called, its share of the budget, and what does it."""

    name: str
    share: float
    do: Callable[[Night, float | None], Run]


def run(night: Night, works: Sequence[Work], command: str) -> Run:
    """Do every stage, or what the budget allows, and merge. The merged record is not written here."""
    started = time.monotonic()
    try:
        if not night.cluster:
            # it answers for all stages: to import torch and to meet a GPU takes seconds
            night.clerk = Worker(night.backend)
        return _run(night, works, command, started)
    finally:
        for worker in (night.clerk, *night.staff):
            if worker is not None:
                worker.stop()
        night.clerk, night.staff = None, []


def _run(night: Night, works: Sequence[Work], command: str, started: float) -> Run:
    _claim(night)
    records: list[Run] = []
    stages: list[Stage] = []
    lines: list[str] = []  # of the stages that gave no record
    in_error = False
    shares = sum(work.share for work in works)
    clock = StageTime(night.folder)
    for work in works:
        begun = time.monotonic()
        clock.begin(work.name)
        until = None
        if night.budget is not None:
            closing = min(CLOSING_SECONDS, night.budget * CLOSING_SHARE)
            left = max(0.0, night.budget - closing - (begun - started))
            until = begun + left * work.share / shares
        shares -= work.share
        night.say(work.name)
        try:
            record = work.do(night, until)
        except NothingToDoError as nothing:
            stages.append(Stage(name=work.name, status="skipped", message=str(nothing), seconds=clock.end(work.name)))
            continue
        except Exception as error:
            # whatever a stage runs into, the others go on and the report is written
            in_error = in_error or not isinstance(error, UsageError)
            message = error.message if isinstance(error, UsageError) else f"{IN_ERROR}: {_said_by(error)}"
            stages.append(Stage(name=work.name, status="incomplete", message=message, seconds=clock.end(work.name)))
            lines.append(f"{work.name}: {message}")
            continue
        records.append(record)
        stages.append(_stage(work.name, record, clock.end(work.name)))
    if not records:
        reasons = [f"{stage.name}: {stage.message}" for stage in stages]
        said = "no stage of the nightly run gave a record: " + "; ".join(reasons or ["none was chosen"])
        raise TruthError(said) if in_error else UsageError(said)
    night.usage += lines
    merged = merge(records, command=command, profile=night.profile, stages=stages)
    return msgspec.structs.replace(merged, incomplete=list(dict.fromkeys([*merged.incomplete, *lines])))


def _stage(name: str, record: Run, seconds: float) -> Stage:
    verdicts = {"pass": "ok", "fail": "wrong", "incomplete": "incomplete"}
    results = sum(len(kernel.results) for kernel in record.kernels)
    cases = sum(law.cases for kernel in record.kernels for law in kernel.laws)
    said = [f"{len(record.kernels):,} kernel{'s' * (len(record.kernels) != 1)}"]
    if results:
        said.append(f"{results:,} results")
    if cases:
        said.append(f"{cases:,} cases of laws")
    if timed := sum(len(kernel.speed) for kernel in record.kernels):
        said.append(f"{timed:,} timings")
    status: Any = verdicts[record.verdict] if record.kernels else "skipped"
    # a stage of which every kernel was judged elsewhere has no verdict of its own
    if status == "incomplete" and not record.incomplete:
        status = "ok"
    return Stage(name=name, status=status, message=", ".join(said), seconds=seconds)


def _said_by(error: Exception) -> str:
    """What an error of the harness says; one that nobody foresaw names its type, and its place on stderr."""
    if isinstance(error, TruthError):
        return str(error)
    traceback.print_exception(error)
    return f"{type(error).__name__}: {error}"


# -- the folder of a night ------------------------------------------------------------------------------


def _claim(night: Night) -> None:
    """Begin the folder, or go on in it if it was begun with the same settings."""
    mine = {
        "targets": list(night.targets),
        "peers": list(night.peers),
        "seed": night.seed,
        "profile": night.profile,
        "backend": night.backend or "",
        "sources": _sources(night),
        "verify": own_digest(),
    }
    path = night.folder / SETTINGS
    if not path.exists():
        write_atomically(path, json.dumps(mine, indent=1, sort_keys=True).encode() + b"\n")
        return
    try:
        theirs = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is not the settings of a nightly run: {error}", hint=_fresh(night)) from error
    for name, value in mine.items():
        if not isinstance(theirs, dict) or theirs.get(name) != value:
            raise UsageError(
                f"{night.folder} holds a nightly run with other {name}: its figures cannot be mixed with this one's",
                hint=_fresh(night),
            )


def _fresh(night: Night) -> str:
    return f"verify nightly --output {night.folder}.2  (or remove {night.folder})"


def _sources(night: Night) -> dict[str, str]:
    """A digest for each target of every module of its project that it imports: a changed kernel is another kernel."""
    found = {}
    with _worker(night) as worker:
        for target in (*night.targets, *night.peers):
            reply = worker.ask({"do": "list", "target": target}, timeout=START_SECONDS)
            # what cannot be imported is reported by the stages; that it could not is part of the settings
            found[target] = str(reply.get("sources") or reply.get("usage") or reply)
    return found


def unit_path(night: Night, stage: str, name: str) -> Path:
    """Where the record of one unit lies; any name gives a file name of its own."""
    safe = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in name)[:80]
    return night.folder / stage / f"{safe}.{hashlib.sha256(name.encode()).hexdigest()[:8]}.json"


def unit(night: Night, stage: str, name: str, make: Callable[[], Run]) -> Run:
    """The record of one unit: as it lies in the folder, else made now, and kept if the budget did not cut it short."""
    path = unit_path(night, stage, name)
    if path.exists():
        return load(path)
    made = make()
    if not any(line.endswith(SPENT) for line in made.incomplete):
        save(made, path)
    return made


# -- stages ---------------------------------------------------------------------------------------------


def accuracy(night: Night, until: float | None) -> Run:
    """Every kernel measured against the exact answer, and the peers beside them."""
    return _kernels(night, until, "accuracy", (*night.targets, *night.peers))


def laws(night: Night, until: float | None) -> Run:
    """Every law of every judged kernel with the night's profile and seed."""
    from verify.laws import schedule

    with _worker(night) as worker:
        judged = _judged(worker, night)
    if not judged:
        raise NothingToDoError("no kernel is judged here")
    folder = night.folder / "laws"
    folder.mkdir(parents=True, exist_ok=True)
    settings = schedule.Spread(
        profile=night.profile,
        seed=night.seed,
        timeout=night.timeout,
        until=until,
        journal=folder / "laws.jsonl",
        progress=partial(_said, night, "laws"),
    )
    with _staff(night) as workers:
        return schedule.run(judged, workers, settings, "verify nightly: laws")


def sweep(night: Night, until: float | None) -> Run:
    """Every input of every kernel whose inputs can be enumerated, pairs too where there is a GPU."""
    from verify.sweep import drive

    spaces = _spaces(night)
    if not spaces:
        raise NothingToDoError("no kernel has few enough inputs to try all of them here")

    def one(target: str, dtypes: tuple[str, ...], shape: str) -> Run:
        settings = drive.Settings(
            backend=night.backend,
            dtypes=dtypes,
            pairs=True,
            baseline=True,
            hardest=10 if shape == "unary" else 0,  # a product ties trivially
            timeout=night.timeout,
            cluster=night.cluster,
            journal=unit_path(night, "sweep", target).with_suffix(".journal"),
            progress=lambda space, done, total: night.say(f"sweep {target} {space.dtype} {done / total:.0%}"),
        )
        return drive.sweep([target], settings, "verify nightly: sweep")

    return _units(night, until, "sweep", {target: partial(one, target, *found) for target, found in spaces.items()})


def hunt(night: Night, until: float | None) -> Run:
    """A search for the worst input of every result that is not swept."""
    from verify.hunt.campaign import Campaign
    from verify.hunt.campaign import run as run_hunts
    from verify.hunt.settings import Settings

    asked = _hunts(night)
    if not asked:
        raise NothingToDoError("every input of every kernel is swept")

    def path(target: str, job: dict[str, str]) -> Path:
        return unit_path(night, "hunt", f"{target} {job['result']} {job['dtype']}")

    campaign = Campaign(
        settings=Settings(seed=night.seed, generations=HUNT_GENERATIONS, seconds=HUNT_SECONDS),
        backend=night.backend,
        timeout=night.timeout,
        cluster=night.cluster,
        until=until,
        asked=asked,
        known=lambda target, job: _known(path(target, job)),
        finished=lambda target, job, done: write_atomically(path(target, job), msgspec.json.encode(done)),
        contain=True,
        watch=lambda moment: night.say(f"hunt {moment.name} {moment.best:.3g}"),
    )
    (night.folder / "hunt").mkdir(parents=True, exist_ok=True)
    with _staff(night) as workers:
        campaign.workers = workers
        return run_hunts(list(asked), campaign, "verify nightly: hunt")


def bench(night: Night, until: float | None) -> Run:
    """The speed of every kernel and peer beside PyTorch's, on a GPU; PyTorch's own accuracy with it."""
    from verify.measure.bench import Bench
    from verify.measure.bench import bench as time_them

    if _about(night)["backend"] != "cuda":
        raise NothingToDoError("speed is measured on a GPU only")

    say = partial(_said, night, "bench")

    def timings() -> Run:
        session = Session(
            backend=night.backend, seed=night.seed, timeout=night.timeout, deadline=_share(until, TIMING), progress=say
        )
        wanted = Bench(wanted=(*night.targets, *night.peers), accuracy=False, beside_peers=False)
        timed = time_them(wanted, session, "verify nightly: bench")
        night.usage += session.usage
        return timed

    timed = unit(night, "bench", "speed", timings)
    stand_ins = [kernel.target for kernel in timed.kernels if "@" in kernel.target]

    def accuracies() -> Run:
        session = Session(
            backend=night.backend, seed=night.seed, timeout=night.timeout, jobs=night.jobs, deadline=until, progress=say
        )
        measured = run_kernels(stand_ins, session, "verify nightly: bench")
        night.usage += session.usage
        return msgspec.structs.replace(measured, kernels=[in_brief(kernel) for kernel in measured.kernels])

    measured = unit(night, "bench", "accuracy of PyTorch", accuracies)
    return _as_peers(night, merge([timed, measured], command="verify nightly: bench", profile=night.profile))


def in_brief(kernel: KernelRun) -> KernelRun:
    """What stands beside a speed and is said of PyTorch's own: figures and one worst input for each result."""
    results = [
        msgspec.structs.replace(result, worst=result.worst[:1], regimes=[], curve=None, hardest=[], special=[])
        for result in kernel.results
    ]
    return msgspec.structs.replace(kernel, results=results)


TIMING = 0.7  # of the stage's time; the rest is for the accuracy of PyTorch's own


def _share(until: float | None, share: float) -> float | None:
    """The moment when a share of the time that is left will have passed."""
    now = time.monotonic()
    return None if until is None else now + max(0.0, until - now) * share


WORKS = (
    Work("accuracy", 3.0, accuracy),
    Work("sweep", 1.0, sweep),
    Work("bench", 1.5, bench),
    Work("hunt", 1.5, hunt),
    Work("laws", 3.0, laws),
)


def _said(night: Night, stage: str, text: str) -> None:
    night.say(f"{stage} {text}")


def _known(path: Path) -> KernelRun | None:
    """A unit that an earlier start finished."""
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=KernelRun)
    except msgspec.DecodeError as error:
        raise UsageError(f"{path} is damaged: {error}", hint=f"remove it: rm {path}") from error


def _kernels(night: Night, until: float | None, stage: str, targets: Sequence[str]) -> Run:
    """`verify run` with a memory: a dtype of a kernel that an earlier start finished is not measured again."""
    folder = night.folder / stage

    def path(part: str) -> Path:
        return unit_path(night, stage, part)

    def finished(part: str, done: KernelRun) -> None:
        write_atomically(path(part), msgspec.json.encode(done))

    folder.mkdir(parents=True, exist_ok=True)
    session = Session(
        backend=night.backend,
        seed=night.seed,
        timeout=night.timeout,
        profile=night.profile,
        jobs=night.jobs,
        cluster=night.cluster,
        deadline=until,
        by_dtype=True,
        known=lambda part: _known(path(part)),
        finished=finished,
        progress=partial(_said, night, stage),
    )
    found = run_kernels(targets, session, f"verify nightly: {stage}")
    night.usage += session.usage
    return _as_peers(night, found)


def _units(night: Night, until: float | None, stage: str, makes: dict[str, Callable[[], Run]]) -> Run:
    """Every unit that is finished or that the budget allows to begin; the others, and those in error, are named."""
    records: list[Run] = []
    late: list[str] = []
    in_error: dict[str, str] = {}
    for name, make in makes.items():
        out_of_time = until is not None and time.monotonic() >= until
        if out_of_time and not unit_path(night, stage, name).exists():
            late.append(f"{stage} of {name}: not begun: the time budget was spent")
            continue
        try:
            records.append(unit(night, stage, name, make))
        except (TruthError, RuntimeError) as error:
            in_error[name] = _said_by(error)
    if not records and in_error:
        raise TruthError("; ".join([*(f"{name}: {error}" for name, error in in_error.items()), *late]))
    if not records:
        raise UsageError(f"the time budget was spent before the first of {len(makes)}")
    merged = merge(records, command=f"verify nightly: {stage}", profile=night.profile)
    broken = [f"{stage} of {name}: {IN_ERROR}: {error}" for name, error in in_error.items()]
    return msgspec.structs.replace(merged, incomplete=[*merged.incomplete, *broken, *late])


def _as_peers(night: Night, record: Run) -> Run:
    """What the peers' files declare is shown and never judged, however they declare it."""
    files = {target.partition("::")[0] for target in night.peers}
    kernels = [
        msgspec.structs.replace(kernel, peer=True) if kernel.target.partition("::")[0] in files else kernel
        for kernel in record.kernels
    ]
    return msgspec.structs.replace(record, kernels=kernels)


# -- what there is to do --------------------------------------------------------------------------------


def _about(night: Night) -> dict[str, Any]:
    with _worker(night) as worker:
        return answer(worker.ask({"do": "environment"}, timeout=START_SECONDS))


@contextmanager
def _worker(night: Night) -> Iterator[Answers]:
    """Whoever is asked what there is to do."""
    if night.clerk is not None:
        yield night.clerk
        return
    worker = night.cluster.workers()[0] if night.cluster else Worker(night.backend)
    try:
        yield worker
    finally:
        worker.stop()


@contextmanager
def _staff(night: Night) -> Iterator[list[Answers]]:
    """The workers of hunts and laws, as many as there is room for. Those of a night stay for its next stage."""
    if night.staff:
        yield night.staff
        return
    if night.cluster:
        yield list(night.cluster.workers())
        return
    room = night.jobs or _about(night)["room"]
    workers: list[Answers] = [Worker(night.backend) for _ in range(max(1, room))]
    if night.clerk is not None:
        night.staff = workers
        yield workers
        return
    try:
        yield workers
    finally:
        for worker in workers:
            worker.stop()


def _spaces(night: Night) -> dict[str, tuple[tuple[str, ...], str]]:
    """The kernels that can be swept here, each with its dtypes and the shape of its inputs."""
    found: dict[str, tuple[tuple[str, ...], str]] = {}
    with _worker(night) as worker:
        about = answer(worker.ask({"do": "environment"}, timeout=START_SECONDS))
        for target in _judged(worker, night):
            request: dict[str, Any] = {"do": "sweep spaces", "target": target, "dtypes": [], "results": []}
            # 2^32 pairs through an interpreter would take a day
            request |= {"pairs": about["backend"] == "cuda", "bounds": None, "regime": ""}
            request |= {"baseline": False, "hardest": 0}
            reply = worker.ask(request, timeout=START_SECONDS)
            if spaces := reply.get("spaces", []):
                found[target] = tuple(space["dtype"] for space in spaces), spaces[0]["shape"]
    return found


def _hunts(night: Night) -> dict[str, dict[str, Any]]:
    """The hunts of every kernel, without the dtypes that are swept, and what cannot be hunted."""
    swept = _spaces(night)
    found: dict[str, dict[str, Any]] = {}
    with _worker(night) as worker:
        for target in _judged(worker, night):
            reply = worker.ask({"do": "hunts", "target": target, "dtypes": [], "results": []}, timeout=START_SECONDS)
            jobs = [job for job in reply.get("jobs", []) if job["dtype"] not in swept.get(target, ((), ""))[0]]
            if jobs:
                found[target] = {"jobs": jobs, "left_out": reply["left_out"]}
    return found


def _judged(worker: Answers, night: Night) -> dict[str, dict[str, Any]]:
    """Every judged kernel of the targets that this backend can run, and what it declares."""
    backend = answer(worker.ask({"do": "environment"}, timeout=START_SECONDS))["backend"]
    kernels: dict[str, dict[str, Any]] = {}
    for target in night.targets:
        source = target.partition("::")[0]
        kernels |= {
            f"{source}::{item['name']}": item
            for item in describe_target(worker, target)
            if backend in item["backends"] and not item["lacking"] and not item["peer"]
        }
    return kernels
