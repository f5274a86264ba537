"""Everything in one go: accuracy, laws, sweeps, hunts, speed, gate, report; in a time budget, and resumable.

A nightly run is a list of stages. Each stage is a list of units of work (a kernel, a sweep, a hunt), and every
finished unit is a run record of its own in the night's folder, written at once. Starting again in that folder
does only what is not there: a machine that was switched off loses the unit it was in, nothing else. At the
end the units merge into one record, which the gate judges and the report shows.

A budget is shared out among the stages; what a stage does not use goes to the later ones. Work that the budget
did not reach is listed in the record and makes the run incomplete: less measured must not look like all well.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from verify.cluster import Cluster, digest
from verify.errors import TruthError, UsageError
from verify.isolate import Answers, Worker
from verify.merge import merge
from verify.record import KernelRun, Run, Stage, load, save, write_atomically
from verify.session import START_SECONDS, Session, answer, describe_target
from verify.session import run as run_kernels

Say = Callable[[str], None]

SETTINGS = "night.json"
IN_ERROR = "the harness is in error, no verdict"
SPENT = "the time budget was spent"  # how a line ends that says what was not reached
HUNT_SECONDS = 20.0  # for one result, at most
MOST_HUNTS = 8  # at a time: the search itself is the device's work, judging what it found the processor's


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


@dataclass(frozen=True)
class Work:
    """One stage: what it is called, its share of the budget, and what does it."""

    name: str
    share: float
    do: Callable[[Night, float | None], Run]


def run(night: Night, works: Sequence[Work], command: str) -> Run:
    """Do every stage, or what the budget allows, and merge. The merged record is not written here."""
    _claim(night)
    started = time.monotonic()
    records: list[Run] = []
    stages: list[Stage] = []
    lines: list[str] = []  # of the stages that gave no record
    in_error = False
    shares = sum(work.share for work in works)
    for work in works:
        begun = time.monotonic()
        until = None
        if night.budget is not None:
            left = max(0.0, night.budget - (begun - started))
            until = begun + left * work.share / shares
        shares -= work.share
        night.say(work.name)
        try:
            record = work.do(night, until)
        except NothingToDoError as nothing:
            stages.append(Stage(name=work.name, status="skipped", message=str(nothing), seconds=_since(begun)))
            continue
        except (UsageError, TruthError) as error:
            in_error = in_error or isinstance(error, TruthError)
            message = error.message if isinstance(error, UsageError) else f"{IN_ERROR}: {error}"
            stages.append(Stage(name=work.name, status="incomplete", message=message, seconds=_since(begun)))
            lines.append(f"{work.name}: {message}")
            continue
        records.append(record)
        stages.append(_stage(work.name, record, begun))
    if not records:
        reasons = [f"{stage.name}: {stage.message}" for stage in stages]
        said = "no stage of the nightly run gave a record: " + "; ".join(reasons or ["none was chosen"])
        raise TruthError(said) if in_error else UsageError(said)
    night.usage += lines
    merged = merge(records, command=command, profile=night.profile, stages=stages)
    return msgspec.structs.replace(merged, incomplete=list(dict.fromkeys([*merged.incomplete, *lines])))


def _stage(name: str, record: Run, begun: float) -> Stage:
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
    return Stage(name=name, status=status, message=", ".join(said), seconds=_since(begun))


def _since(begun: float) -> float:
    return round(time.monotonic() - begun, 1)


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
        "verify": digest(Path(__file__).parent),
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
    return _kernels(night, until, "accuracy", (*night.targets, *night.peers), laws="")


def laws(night: Night, until: float | None) -> Run:
    """Every law of every judged kernel with the night's profile and seed."""
    with _worker(night) as worker:
        judged = _each(worker, night)
    if not judged:
        raise NothingToDoError("no kernel is judged here")
    return _kernels(night, until, "laws", judged, laws=night.profile)


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

    jobs = _hunts(night)
    if not jobs:
        raise NothingToDoError("every input of every kernel is swept")
    count = sum(len(found) for found in jobs.values())
    done = 0

    def one(target: str, found: list[dict[str, str]], workers: list[Answers]) -> Run:
        nonlocal done
        seconds = HUNT_SECONDS
        if until is not None:
            at_once = max(1, len(workers))
            seconds = min(HUNT_SECONDS, max(1.0, (until - time.monotonic()) * at_once / (count - done)))
        done += len(found)
        campaign = Campaign(
            settings=Settings(seed=night.seed, seconds=round(seconds, 1)),
            backend=night.backend,
            dtypes=list(dict.fromkeys(job["dtype"] for job in found)),
            timeout=night.timeout,
            cluster=night.cluster,
            workers=workers,
            watch=lambda moment: night.say(f"hunt {moment.name} {moment.best:.3g}"),
        )
        return run_hunts([target], campaign, "verify nightly: hunt")

    with ExitStack() as stack:
        # they serve every kernel: a process that has met the GPU took seconds to get there
        workers: list[Answers] = []
        if not night.cluster:
            first = stack.enter_context(Worker(night.backend))
            room = night.jobs or answer(first.ask({"do": "environment"}, timeout=START_SECONDS))["room"]
            more = min(MOST_HUNTS, room) - 1
            workers = [first, *(stack.enter_context(Worker(night.backend)) for _ in range(more))]
        makes: dict[str, Callable[[], Run]] = {
            target: partial(one, target, found, workers) for target, found in jobs.items()
        }
        return _units(night, until, "hunt", makes)


def bench(night: Night, until: float | None) -> Run:
    """The speed of every kernel and peer beside PyTorch's, on a GPU; PyTorch's own accuracy with it."""
    from verify.bench import Bench
    from verify.bench import bench as time_them

    if _about(night)["backend"] != "cuda":
        raise NothingToDoError("speed is measured on a GPU only")

    def make() -> Run:
        say = partial(_said, night, "bench")
        session = Session(
            backend=night.backend, seed=night.seed, timeout=night.timeout, deadline=_share(until, TIMING), progress=say
        )
        wanted = Bench(wanted=(*night.targets, *night.peers), accuracy=False, beside_peers=False)
        timed = time_them(wanted, session, "verify nightly: bench")
        stand_ins = [kernel.target for kernel in timed.kernels if "@" in kernel.target]
        again = Session(
            backend=night.backend, seed=night.seed, timeout=night.timeout, jobs=night.jobs, deadline=until, progress=say
        )
        measured = run_kernels(stand_ins, again, "verify nightly: bench")
        night.usage += [*session.usage, *again.usage]
        return merge([timed, measured], command="verify nightly: bench", profile=night.profile)

    return _as_peers(night, unit(night, "bench", "all", make))


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


def _kernels(night: Night, until: float | None, stage: str, targets: Sequence[str], laws: str) -> Run:
    """`verify run` with a memory: a kernel that an earlier start finished is not measured again."""
    folder = night.folder / stage

    def path(target: str) -> Path:
        return unit_path(night, stage, target)

    def known(target: str) -> KernelRun | None:
        if not path(target).exists():
            return None
        try:
            return msgspec.json.decode(path(target).read_bytes(), type=KernelRun)
        except msgspec.DecodeError as error:
            raise UsageError(f"{path(target)} is damaged: {error}", hint=f"remove it: rm {path(target)}") from error

    def finished(target: str, done: KernelRun) -> None:
        write_atomically(path(target), msgspec.json.encode(done))

    folder.mkdir(parents=True, exist_ok=True)
    session = Session(
        backend=night.backend,
        seed=night.seed,
        timeout=night.timeout,
        profile=night.profile,
        laws=laws,
        accuracy=not laws,
        jobs=night.jobs,
        cluster=night.cluster,
        deadline=until,
        known=known,
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
        except TruthError as error:
            in_error[name] = str(error)
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
    worker = night.cluster.workers()[0] if night.cluster else Worker(night.backend)
    try:
        yield worker
    finally:
        worker.stop()


def _spaces(night: Night) -> dict[str, tuple[tuple[str, ...], str]]:
    """The kernels that can be swept here, each with its dtypes and the shape of its inputs."""
    found: dict[str, tuple[tuple[str, ...], str]] = {}
    with _worker(night) as worker:
        about = answer(worker.ask({"do": "environment"}, timeout=START_SECONDS))
        for target in _each(worker, night):
            request: dict[str, Any] = {"do": "sweep spaces", "target": target, "dtypes": [], "results": []}
            # 2^32 pairs through an interpreter would take a day
            request |= {"pairs": about["backend"] == "cuda", "bounds": None, "regime": ""}
            request |= {"baseline": False, "hardest": 0}
            reply = worker.ask(request, timeout=START_SECONDS)
            if spaces := reply.get("spaces", []):
                found[target] = tuple(space["dtype"] for space in spaces), spaces[0]["shape"]
    return found


def _hunts(night: Night) -> dict[str, list[dict[str, str]]]:
    """The hunts of every kernel, without the dtypes that are swept."""
    swept = _spaces(night)
    found: dict[str, list[dict[str, str]]] = {}
    with _worker(night) as worker:
        for target in _each(worker, night):
            reply = worker.ask({"do": "hunts", "target": target, "dtypes": [], "results": []}, timeout=START_SECONDS)
            jobs = [job for job in reply.get("jobs", []) if job["dtype"] not in swept.get(target, ((), ""))[0]]
            if jobs:
                found[target] = jobs
    return found


def _each(worker: Answers, night: Night) -> list[str]:
    """Every judged kernel of the targets that this backend can run."""
    backend = answer(worker.ask({"do": "environment"}, timeout=START_SECONDS))["backend"]
    kernels = []
    for target in night.targets:
        source = target.partition("::")[0]
        kernels += [
            f"{source}::{item['name']}"
            for item in describe_target(worker, target)
            if backend in item["backends"] and not item["lacking"] and not item["peer"]
        ]
    return kernels
