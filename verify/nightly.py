"""Everything in one go: accuracy, laws, sweeps, hunts, speed, gate, report; in a time budget, and resumable.

A nightly run is a list of stages. Each stage is a list of units of work (a kernel, a sweep, a hunt), and every
finished unit is a run record of its own in the night's folder, written at once. Starting again in that folder
does only what is not there: a machine that was switched off loses the unit it was in, nothing else. At the
end the units merge into one record, which the gate judges and the report shows.

A budget is shared out among the stages; what a stage does not use goes to the later ones. Work that the budget
did not reach is listed in the record and makes the run incomplete: less measured must not look like all well.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from verify.errors import UsageError
from verify.merge import merge
from verify.record import KernelRun, Run, Stage, load, save, write_atomically
from verify.session import OUT_OF_TIME, Session
from verify.session import run as run_kernels

Say = Callable[[str], None]

SETTINGS = "night.json"


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
    cluster: Any = None
    stages: tuple[str, ...] = ()
    say: Say = lambda text: None
    usage: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Work:
    """One stage: what it is called, its share of the budget, and what does it."""

    name: str
    share: float
    do: Callable[[Night, float | None], Run]


def today() -> int:
    """The seed of a night: the date, so that two branches see the same cases."""
    return int(datetime.datetime.now(datetime.UTC).strftime("%Y%m%d"))


def run(night: Night, works: Sequence[Work], command: str) -> Run:
    """Do every stage, or what the budget allows, and merge. The merged record is not written here."""
    _claim(night)
    started = time.monotonic()
    records: list[Run] = []
    stages: list[Stage] = []
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
        except UsageError as error:
            stages.append(Stage(name=work.name, status="incomplete", message=error.message, seconds=_since(begun)))
            night.usage.append(f"{work.name}: {error.message}")
            continue
        records.append(record)
        stages.append(_stage(work.name, record, begun))
    if not records:
        raise UsageError("no stage of the nightly run gave a record: " + "; ".join(night.usage))
    merged = merge(records, command=command, profile=night.profile, stages=stages)
    lines = [f"{stage.name}: {stage.message}" for stage in stages if stage.status == "incomplete" and stage.message]
    return msgspec.structs.replace(merged, incomplete=list(dict.fromkeys([*merged.incomplete, *lines])))


def _stage(name: str, record: Run, begun: float) -> Stage:
    verdicts = {"pass": "ok", "fail": "wrong", "incomplete": "incomplete"}
    results = sum(len(kernel.results) for kernel in record.kernels)
    cases = sum(law.cases for kernel in record.kernels for law in kernel.laws)
    said = [f"{len(record.kernels)} kernels"]
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
        "sources": {target.partition("::")[0]: _digest(target) for target in (*night.targets, *night.peers)},
        "verify": _digest(str(Path(__file__).parent)),
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


def _digest(target: str) -> str:
    """12 hex digits of a target's file, or of a folder's Python files; a module by name has none."""
    path = Path(target.partition("::")[0])
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    total = hashlib.sha256()
    for file in files:
        if file.is_file():
            total.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return total.hexdigest()[:12]


def unit_path(night: Night, stage: str, name: str) -> Path:
    """Where the record of one unit lies; any name gives a file name of its own."""
    safe = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in name)[:80]
    return night.folder / stage / f"{safe}.{hashlib.sha256(name.encode()).hexdigest()[:8]}.json"


def unit(night: Night, stage: str, name: str, make: Callable[[], Run]) -> Run:
    """The record of one unit: as it lies in the folder, else made now and kept."""
    path = unit_path(night, stage, name)
    if path.exists():
        return load(path)
    made = make()
    save(made, path)
    return made


# -- stages ---------------------------------------------------------------------------------------------


def accuracy(night: Night, until: float | None) -> Run:
    """Every kernel measured against the exact answer, and the peers beside them."""
    return _kernels(night, until, "accuracy", (*night.targets, *night.peers), laws="")


def laws(night: Night, until: float | None) -> Run:
    """Every law of every kernel with the night's profile and seed."""
    return _kernels(night, until, "laws", night.targets, laws=night.profile)


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
        progress=lambda text: night.say(f"{stage} {text}"),
    )
    found = run_kernels(targets, session, f"verify nightly: {stage}")
    night.usage += session.usage
    return found


def reached(record: Run) -> bool:
    """Whether nothing in a record was cut off by the budget."""
    return all(kernel.hint != OUT_OF_TIME for kernel in record.kernels)
