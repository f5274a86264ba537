"""Measures accuracy and speed of every implementation of an op, for one record.

The kernels of the named targets are compared, or all declared kernels of an op. PyTorch eager and torch.compile of the
same problem are added to each group of kernels (`verify.declare.standin`). An ordinary run of all of them gives the
accuracy. One worker times side by side the implementations that compute the same thing (`verify.measure.timing`). If an
implementation ends the worker, the record names it, and the rest are timed again without it.
"""

import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

import msgspec

from verify.backends import named
from verify.declare.target import Target
from verify.errors import SPENT, KernelError, UsageError
from verify.measure.requests import Contender, ListContenders, Time
from verify.measure.session import Session, run
from verify.records.merge import identity
from verify.records.record import Gap, Run, Speed
from verify.workers import process
from verify.workers.pool import Pool, using
from verify.workers.requests import Died, Environment, Late

STAND_INS = ("eager", "compile")
NOT_TIMED = "speed: not timed, this is the interpreter; speed is measured on a GPU"


@dataclass(frozen=True)
class Bench:
    """Holds the settings of a comparison. Empty `shapes` means one large default shape for each kind of op."""

    wanted: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...] = ()
    directions: tuple[Literal["forward", "backward"], ...] = ("forward", "backward")
    rounds: int = 15
    accuracy: bool = True
    beside_peers: bool = True  # True: add PyTorch's implementations also to groups that contain only peers


Timings = defaultdict[str, list[Speed | str]]  # by target: its speeds, and the reasons for missing ones


def bench(settings: Bench, session: Session, command: str) -> Run:
    """Compares the implementations and returns one record. Its kernels have `speed`, or a note with the reason."""
    with using(session.pool, session.backend) as worker:
        session.progress("looking for implementations")
        backend = worker.ask(Environment(), timeout=process.START_SECONDS).backend
        found = contenders(worker, settings)
    declared = {dtype for item in found for dtype in item.kernel.dtypes}
    session.dtypes = session.dtypes or tuple(sorted(declared - {"float64"}))
    on_gpu = named(backend).clock
    # timing comes first, because it may refuse a shape
    timings, late = Timings(list), [Gap("not timed", NOT_TIMED)]
    if on_gpu:
        timings, late = time_all(found, settings, session, backend)
    result = run([item.kernel.target for item in found] if settings.accuracy else [], session, command)
    measured, kernels = result.kernels, []
    if not settings.accuracy:
        kept = [each.kernel for each in found]
        measured = [each.run("skipped", each.missing() or "accuracy was not requested") for each in kept]
    for item in measured:
        speeds = [each for each in timings[item.target] if isinstance(each, Speed)]
        reasons = dict.fromkeys(each for each in timings[item.target] if isinstance(each, str))
        notes = [*item.notes, *(f"not timed, {reason}" for reason in reasons)]
        kernels.append(msgspec.structs.replace(item, speed=speeds, notes=notes))
    incomplete = [*result.incomplete, *late]
    whole = msgspec.structs.replace(result, profile="bench", kernels=kernels, incomplete=incomplete)
    return msgspec.structs.replace(whole, id=identity(whole))


# -- which implementations ------------------------------------------------------------------------------


def contenders(worker: process.Answers, settings: Bench) -> list[Contender]:
    """Returns the implementations to compare. PyTorch's implementations come last."""
    found: dict[str, Contender] = {}
    for target in settings.wanted:
        found |= {item.kernel.target: item for item in _declared(worker, target)}
    both = list(found.values())
    return [*both, *_stand_ins(worker, both, beside_peers=settings.beside_peers)]


def _declared(worker: process.Answers, target: str) -> list[Contender]:
    try:
        return worker.ask(ListContenders(target), timeout=process.START_SECONDS)
    except (Died, Late) as error:
        raise UsageError(f"{target}: importing it failed: {error}") from None


def _stand_ins(worker: process.Answers, contenders_: list[Contender], *, beside_peers: bool = True) -> list[Contender]:
    """Returns PyTorch's implementations for every group.

    The first judged kernel of a group decides their dtypes and their promise. A group of peers alone uses its first
    peer.
    """
    chosen: dict[str, Contender] = {}
    for item in sorted(contenders_, key=lambda item: item.kernel.peer):
        if not Target.parse(item.kernel.target).stands_in and (beside_peers or not item.kernel.peer):
            chosen.setdefault(item.group, item)
    known = {item.kernel.target for item in contenders_}
    return [
        stand_in
        for item in chosen.values()
        for form in STAND_INS
        for stand_in in _declared(worker, f"{item.kernel.target}@{form}")
        if stand_in.kernel.target not in known
    ]


# -- timing ---------------------------------------------------------------------------------------------


def time_all(entries: list[Contender], settings: Bench, session: Session, backend: str) -> tuple[Timings, list[Gap]]:
    """Times every group of comparable implementations, in each dtype and shape. Groups with a judged kernel come first.

    Returns the timings, and a gap for each contender that the deadline left untimed.
    """
    timings, late = Timings(list), list[Gap]()
    groups: dict[str, list[Contender]] = {}
    for item in entries:
        if not item.kernel.unfit(backend, "run"):
            groups.setdefault(item.group, []).append(item)
    requests: list[Time] = []
    for group in sorted(groups.values(), key=lambda group: all(item.kernel.peer for item in group)):
        for dtype in session.dtypes:
            able = [item.kernel.target for item in group if dtype in item.kernel.dtypes]
            for shape in (settings.shapes or ((),)) if able else ():
                requests.append(Time(able, dtype, shape, settings.directions, settings.rounds, session.seed))
    beside = sorted({target for request in requests for target in request.targets})
    # With one process, every request after the first finds the compiler imported and the GPU initialised.
    with Pool.of([worker := process.Worker(session.backend)]):
        for request in requests:
            if session.until is not None and time.monotonic() >= session.until:
                text = f"{request.dtype}: not timed: {SPENT}"
                late += [Gap("out of time", f"{target} {text}", target) for target in request.targets]
            else:
                _time(worker, request, beside, session, timings)
    return timings, late


def _time(worker: process.AnyWorker, request: Time, beside: list[str], session: Session, timings: Timings) -> None:
    """Times some targets together. A target that ends the worker or exceeds its time is omitted from the next attempt.

    If another group may have caused a failure, `beside` is emptied. Each group then gets a process of its own.
    """
    targets, dtype = list(request.targets), request.dtype
    while targets:
        current = ""

        def say(text: str) -> None:
            nonlocal current
            current = text
            session.progress(f"timing {text}" if text else "timing")

        asked = msgspec.structs.replace(request, targets=targets, beside=tuple(beside))
        try:
            found = worker.ask(asked, timeout=session.timeout, progress=say)
        except (KernelError, Died, Late) as error:
            worker.stop()  # times from a process after a failure cannot be trusted
            if current not in targets and beside:
                beside.clear()
                continue
            blamed = [target for target in targets if target == current] or targets
            for target in blamed:
                timings[target].append(f"{dtype}: {error}")
            targets = [target for target in targets if target not in blamed]
            continue
        for item in found:
            timings[item.contender].append(item.speed or f"{item.direction} {dtype}: {item.reason}")
        return
