"""Accuracy and speed of every implementation of an op, in one record.

What is compared: the kernels of the named targets, or all declared ones of an op, each group of them beside PyTorch
eager and torch.compile of the same problem (`verify.declare.standin`). Accuracy comes from an ordinary run of all of
them; speed from timing those that compute the same thing side by side in one worker (`verify.measure.timing`). A
contender that takes the worker down is named and left out, and the rest are timed again without it.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from verify.errors import UsageError
from verify.measure.session import START_SECONDS, Session, answer, run
from verify.records.identity import identity
from verify.records.record import KernelRun, Run, Speed
from verify.workers.process import Worker, WorkerDied, WorkerTimeout

DTYPES = ("bfloat16", "float16", "float32")
STAND_INS = ("eager", "compile")
NOT_TIMED = "speed: not timed, this is the interpreter; speed is measured on a GPU"


@dataclass(frozen=True)
class Bench:
    """What to compare. Empty `shapes`: one large default for each kind of op."""

    wanted: tuple[str, ...]
    pool: tuple[str, ...] = ()  # targets among which an op's implementations are looked for
    shapes: tuple[tuple[int, ...], ...] = ()
    directions: tuple[str, ...] = ("forward", "backward")
    rounds: int = 15
    accuracy: bool = True
    beside_peers: bool = True  # PyTorch's own also where no kernel of a group is judged


@dataclass(frozen=True)
class Entry:
    """One implementation: where it is declared, and with which others it can be timed side by side."""

    target: str
    name: str
    op: str
    params: dict[str, Any]
    promise: str
    group: str
    dtypes: tuple[str, ...]
    backends: tuple[str, ...]
    lacking: tuple[str, ...]
    peer: bool

    @property
    def stands_in(self) -> bool:
        """Whether this is PyTorch in a kernel's place."""
        return "@" in self.target


@dataclass
class _Timings:
    """What timing gave, by target."""

    speeds: dict[str, list[Speed]] = field(default_factory=dict)
    reasons: dict[str, list[str]] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)  # what the deadline did not allow

    def add(self, target: str, speed: Speed | None, reason: str) -> None:
        if speed is not None:
            self.speeds.setdefault(target, []).append(speed)
        elif reason not in self.reasons.setdefault(target, []):
            self.reasons[target].append(reason)


def bench(settings: Bench, session: Session, command: str) -> Run:
    """Compare and return one record; its kernels carry `speed`, and a note for what could not be timed."""
    with Worker(session.backend) as worker:
        session.progress("looking for implementations")
        about = answer(worker.ask({"do": "environment"}, timeout=START_SECONDS))
        entries = entries_of(worker, settings, session)
    session.dtypes = session.dtypes or DTYPES
    on_gpu = about["backend"] == "cuda"
    # first, because it may refuse a shape
    timings = time_all(entries, settings, session) if on_gpu else _Timings()
    result = run([entry.target for entry in entries] if settings.accuracy else [], session, command)
    if not settings.accuracy:
        result = msgspec.structs.replace(result, kernels=[_unmeasured(entry) for entry in entries])
    whole = msgspec.structs.replace(
        result,
        profile="bench",
        kernels=[_with_speed(item, timings) for item in result.kernels],
        incomplete=[*result.incomplete, *timings.late, *([] if on_gpu else [NOT_TIMED])],
    )
    return msgspec.structs.replace(whole, id=identity(whole))


def _unmeasured(entry: Entry) -> KernelRun:
    missing = f"needs {', '.join(entry.lacking)}, which is not installed" if entry.lacking else ""
    return KernelRun(
        name=entry.name,
        target=entry.target,
        op=entry.op,
        params=entry.params,
        promise=entry.promise,
        status="skipped",
        results=[],
        message=missing or "accuracy was not asked for",
        peer=entry.peer,
    )


def _with_speed(kernel: KernelRun, timings: _Timings) -> KernelRun:
    notes = [f"not timed, {reason}" for reason in timings.reasons.get(kernel.target, [])]
    return msgspec.structs.replace(kernel, speed=timings.speeds.get(kernel.target, []), notes=[*kernel.notes, *notes])


# -- which implementations ------------------------------------------------------------------------------


def entries_of(worker: Worker, settings: Bench, session: Session) -> list[Entry]:
    """The implementations to compare, PyTorch's own at the end of each group of comparable ones."""
    known = {item["name"] for item in answer(worker.ask({"do": "ops"}, timeout=START_SECONDS))["ops"]}
    ops = [item for item in settings.wanted if item in known]
    targets = [item for item in settings.wanted if item not in known]
    found: dict[str, Entry] = {}
    for target in targets:
        if not _looks_like_target(target):
            raise UsageError(
                f"{target!r} is neither an op nor a target FILE|MODULE[::KERNEL]; the ops are: "
                f"{', '.join(sorted(known))}",
                hint="verify list --ops",
            )
        found |= {entry.target: entry for entry in _declared(worker, target)}
    for target in settings.pool if ops else ():
        try:
            declared = _declared(worker, target)
        except UsageError as error:
            session.usage.append(str(error))
            continue
        found |= {entry.target: entry for entry in declared if entry.op in ops}
    if not found:
        raise UsageError(
            f"nothing declared computes {', '.join(ops)}",
            hint="verify bench FILE.py, or list files under [tool.verify] kernels or peers in pyproject.toml",
        )
    entries = list(found.values())
    return [*entries, *_stand_ins(worker, entries, beside_peers=settings.beside_peers)]


def _looks_like_target(text: str) -> bool:
    return text.partition("::")[0].endswith(".py") or os.sep in text or "." in text or "::" in text


def _declared(worker: Worker, target: str) -> list[Entry]:
    try:
        reply = answer(worker.ask({"do": "contenders", "target": target}, timeout=START_SECONDS))
    except (WorkerDied, WorkerTimeout) as error:
        raise UsageError(f"{target}: importing it failed: {error}") from None
    return [msgspec.convert(item, Entry) for item in reply["contenders"]]


def _stand_ins(worker: Worker, entries: list[Entry], *, beside_peers: bool = True) -> list[Entry]:
    """PyTorch for every group, in the place of its first judged kernel: that one names the dtypes and the promise."""
    chosen: dict[str, Entry] = {}
    for entry in sorted(entries, key=lambda item: item.peer):
        if not entry.stands_in and (beside_peers or not entry.peer):
            chosen.setdefault(entry.group, entry)
    return [
        found
        for entry in chosen.values()
        for form in STAND_INS
        for found in _declared(worker, f"{entry.target}@{form}")
        if found.target not in {item.target for item in entries}
    ]


# -- timing ---------------------------------------------------------------------------------------------


def time_all(entries: list[Entry], settings: Bench, session: Session) -> _Timings:
    """Time every group of comparable implementations, in each dtype and shape; first those with a judged kernel."""
    timings = _Timings()
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        if not entry.lacking and "cuda" in entry.backends:
            groups.setdefault(entry.group, []).append(entry)
    with Worker(session.backend) as worker:
        for group in sorted(groups.values(), key=lambda group: all(entry.peer for entry in group)):
            for dtype in session.dtypes:
                able = [entry.target for entry in group if dtype in entry.dtypes]
                for shape in (settings.shapes or ((),)) if able else ():
                    if session.deadline is not None and time.monotonic() >= session.deadline:
                        timings.late += [f"{target} {dtype}: not timed: the time budget was spent" for target in able]
                        continue
                    _time(worker, able, dtype, shape, settings, session, timings)
    return timings


def _time(
    worker: Worker,
    targets: list[str],
    dtype: str,
    shape: tuple[int, ...],
    settings: Bench,
    session: Session,
    timings: _Timings,
) -> None:
    """Time some targets together. One that ends the worker or exhausts its time is left out of the next attempt."""
    targets = list(targets)
    while targets:
        current = ""

        def say(text: str) -> None:
            nonlocal current
            current = text
            session.progress(f"timing {text}" if text else "timing")

        request = {
            "do": "time",
            "targets": targets,
            "dtype": dtype,
            "shape": shape,
            "directions": settings.directions,
            "rounds": settings.rounds,
            "seed": session.seed,
        }
        try:
            reply = worker.ask(request, timeout=session.timeout, progress=say)
            failure = reply.get("failure", "")
        except (WorkerDied, WorkerTimeout) as error:
            reply, failure = {}, str(error)
        if not failure:
            for item in answer(reply)["timed"]:
                speed = None if item["speed"] is None else msgspec.convert(item["speed"], Speed)
                timings.add(item["contender"], speed, f"{item['direction']} {dtype}: {item['reason']}")
            return
        worker.stop()  # after a fault the GPU's context is of no use
        blamed = [target for target in targets if target == current] or targets
        for target in blamed:
            timings.add(target, None, f"{dtype}: {failure}")
        targets = [target for target in targets if target not in blamed]
