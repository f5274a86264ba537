"""The laws of many kernels over many workers: what the nightly run does.

One law of one kernel in one dtype is a unit of its own, so that all workers are busy to the end, and so that whatever
happens to it (the kernel takes the process down, the harness is in error, time runs out) happens to it alone. Units of
the first round of all kernels come before those of the second (`verify.laws.engine.rounds`): a budget that ends early
leaves every law tried on every kernel with fewer cases, not some kernels untried. Within a round a worker stays with
one kernel in one dtype, law after law, because a Triton kernel takes longer to compile for a shape than a law to check
it, and what was compiled for one law serves the next. Kernels that take longest come first.

Finished units stand in a journal, one line each, and are not done again.
"""

from __future__ import annotations

import math
import os
import shlex
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from verify.errors import IN_ERROR, SPENT, UsageError
from verify.measure.session import LONGEST, START_SECONDS, answer, describe_target
from verify.records.identity import assembled
from verify.records.record import KernelRun, LawRun, Run
from verify.workers.process import Answers, WorkerDied, WorkerTimeout

GIVEN_UP = 3  # times that a kernel may crash or hang: each costs a fresh process, or the whole time limit


@dataclass
class Spread:
    """What to try, how hard, for how long, and where finished units are kept."""

    profile: str
    seed: int = 0
    backend: str | None = None
    timeout: float = 600.0  # for one law
    until: float | None = None  # of time.monotonic(): nothing begins later
    journal: Path | None = None
    progress: Callable[[str], None] = lambda text: None


class Unit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One round of one law on one kernel in one dtype, as it stands in the journal: its result, or how it failed."""

    target: str
    dtype: str
    law: str
    round: int
    run: LawRun | None = None
    status: str = ""
    message: str = ""

    @property
    def key(self) -> tuple[str, str, str, int]:
        return self.target, self.dtype, self.law, self.round


@dataclass
class _Subject:
    """A kernel and what its laws came to."""

    item: dict[str, Any]
    target: str
    done: dict[tuple[str, str], list[Unit]] = field(default_factory=dict)  # by dtype and law, round after round
    late: list[str] = field(default_factory=list)
    in_error: list[str] = field(default_factory=list)
    failures: int = 0
    seconds: float = 0.0


def run(judged: Mapping[str, dict[str, Any]], workers: Sequence[Answers], spread: Spread, command: str) -> Run:
    """Every law of every kernel of `judged`: by target, what each declares. `workers` are stopped by the caller."""
    started = time.monotonic()
    about = answer(workers[0].ask({"do": "environment"}, timeout=START_SECONDS))
    plan = answer(workers[0].ask({"do": "laws", "profile": spread.profile}, timeout=START_SECONDS))
    subjects = [_Subject(item, target) for target, item in judged.items()]
    work = _Work(subjects, plan["laws"], plan["rounds"], spread)
    work.do(workers)
    kernels = [_kernel_run(subject, plan["laws"], plan["rounds"]) for subject in subjects]
    return assembled(
        about,
        command=command,
        seed=spread.seed,
        profile=spread.profile,
        kernels=kernels,
        incomplete=[line for subject, done in zip(subjects, kernels, strict=True) for line in _lines(subject, done)],
        seconds=time.monotonic() - started,
    )


class _Place(NamedTuple):
    """A unit in the queue, by numbers; the smallest is done first where nothing else decides."""

    round: int
    turn: int  # of the kind of op
    subject: int
    dtype: int
    law: int

    @property
    def forms(self) -> tuple[int, int]:
        """What is compiled for one such unit serves the others."""
        return self.subject, self.dtype


class _Work:
    """The queue of units. Each unit that is done puts the next round of its law into it."""

    def __init__(self, subjects: Sequence[_Subject], laws: Sequence[str], rounds: int, spread: Spread) -> None:
        self.subjects, self.laws, self.rounds, self.spread = subjects, laws, rounds, spread
        self.known = _read(spread.journal)
        self.changed = threading.Condition()
        self.queue: list[_Place] = []
        self.busy: Counter[tuple[int, int]] = Counter()  # workers at each subject in each dtype
        self.running = self.finished = 0
        self.ended = False  # by Ctrl-C or an error: the workers are stopped, which is no kernel's crash
        for place, subject in enumerate(subjects):
            for law in range(len(laws)):
                for dtype in range(len(subject.item["dtypes"])):
                    self._put(0, law, place, dtype)
        self.total = len(self.queue)

    def do(self, workers: Sequence[Answers]) -> None:
        """All units, on all workers at a time."""
        with ThreadPoolExecutor(len(workers)) as pool:
            busy = [pool.submit(self._serve, worker) for worker in workers]
            try:
                for future in busy:
                    future.result()
            except BaseException:
                with self.changed:
                    self.ended = True
                    self.queue.clear()
                    self.running = -len(workers)  # nobody waits for what is not to come
                    self.changed.notify_all()
                for worker in workers:
                    worker.stop()
                raise

    def _put(self, number: int, law: int, place: int, dtype: int) -> None:
        self.queue.append(_Place(number, LONGEST.index(self.subjects[place].item["kind"]), place, dtype, law))

    def _serve(self, worker: Answers) -> None:
        for unit in self._units():
            subject = self.subjects[unit.subject]
            again = False
            try:
                name = subject.item["dtypes"][unit.dtype]
                again = self._try(worker, subject, name, self.laws[unit.law], unit.round)
            finally:
                with self.changed:
                    self.running -= 1
                    self.busy[unit.forms] -= 1
                    self.finished += unit.round == 0
                    if again and unit.round + 1 < self.rounds:
                        self._put(unit.round + 1, unit.law, unit.subject, unit.dtype)
                    self.changed.notify_all()

    def _units(self) -> Iterator[_Place]:
        last: tuple[int, int] | None = None
        while True:
            with self.changed:
                while not self.queue and self.running > 0:
                    self.changed.wait()
                if not self.queue:
                    return
                self.running += 1
                unit = min(self.queue, key=lambda each: (each.round, each.forms != last, self.busy[each.forms], each))
                self.queue.remove(unit)
                self.busy[unit.forms] += 1
                last = unit.forms
            yield unit

    def _try(self, worker: Answers, subject: _Subject, dtype: str, law: str, number: int) -> bool:
        """One unit; says whether another round of it makes sense."""
        label = f"{dtype} {law}"
        unit = self.known.get((subject.target, dtype, law, number))
        if unit is None:
            left = math.inf if self.spread.until is None else self.spread.until - time.monotonic()
            if left <= 0 or subject.failures >= GIVEN_UP:
                if number == 0:
                    reason = f"not begun: {SPENT}" if left <= 0 else f"not begun: it failed {GIVEN_UP} times"
                    subject.late.append(f"{label}: {reason}")
                return False
            self.spread.progress(f"{self.finished}/{self.total} {subject.item['name']} {label}")
            started = time.monotonic()
            unit = self._ask(worker, subject, Unit(subject.target, dtype, law, number), left)
            with self.changed:
                subject.seconds += time.monotonic() - started
            if unit is None or self.ended:
                return False
            self._keep(unit)
        with self.changed:
            subject.done.setdefault((dtype, law), []).append(unit)
            subject.failures += unit.run is None
        return unit.run is not None and unit.run.status == "ok"

    def _ask(self, worker: Answers, subject: _Subject, unit: Unit, left: float) -> Unit | None:
        """The unit with its result; None where there is none to keep, which is then on a list."""
        label = f"{unit.dtype} {unit.law}"
        timeout = min(self.spread.timeout, left)
        request = {"do": "try law", "target": unit.target, "dtype": unit.dtype, "law": unit.law, "round": unit.round}
        request |= {"profile": self.spread.profile, "seed": self.spread.seed}
        failed = ""
        try:
            if not worker.alive:
                describe_target(worker, unit.target)  # importing torch again after a crash is not the next law's time
            reply = worker.ask(request, timeout=timeout)
        except WorkerTimeout:
            if timeout < self.spread.timeout:
                if unit.round == 0:
                    subject.late.append(f"{label}: not finished: {SPENT}")
                return None
            return msgspec.structs.replace(
                unit, status="timeout", message=f"{label}: no result within {timeout:g} s; stopped"
            )
        except WorkerDied as died:
            return msgspec.structs.replace(unit, status="crashed", message=f"{label}: {died}")
        if "law" in reply:
            run = msgspec.convert(reply["law"], LawRun)
            if not reply["healthy"]:
                worker.stop()  # an illegal access poisons the CUDA context: the next law gets a fresh process
            if IN_ERROR not in run.message:
                return msgspec.structs.replace(unit, run=run)
            failed = run.message
        elif "truth" in reply or "internal" in reply:
            worker.stop()
            failed = f"{IN_ERROR}: {reply.get('truth') or reply['internal']}"
        else:
            worker.stop()
        if failed:
            subject.in_error.append(f"{label}: {failed}")
            return None
        said = str(reply.get("failure") or reply.get("usage") or reply)
        return msgspec.structs.replace(unit, status="error", message=f"{label}: {said}")

    def _keep(self, unit: Unit) -> None:
        if self.spread.journal is None:
            return
        line = msgspec.json.encode(unit) + b"\n"
        with self.changed:
            handle = os.open(self.spread.journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                os.write(handle, line)  # at once: a line is whole or, after a power cut, the last and half
            finally:
                os.close(handle)


def _read(path: Path | None) -> dict[tuple[str, str, str, int], Unit]:
    """The finished units of an earlier start. Half a line at the end is what a power cut leaves; it is cut off."""
    if path is None or not path.exists():
        return {}
    whole, _, half = path.read_bytes().rpartition(b"\n")
    if half:
        os.truncate(path, len(whole) + bool(whole))
    try:
        units = [msgspec.json.decode(line, type=Unit) for line in whole.splitlines()]
    except msgspec.DecodeError as error:
        raise UsageError(f"{path} is damaged: {error}", hint=f"remove it: rm {path}") from error
    return {unit.key: unit for unit in units}


def _kernel_run(subject: _Subject, laws: Sequence[str], rounds: int) -> KernelRun:
    item = subject.item
    found: list[LawRun] = []
    failed: list[Unit] = []
    short = 0
    for law in laws:
        for dtype in item["dtypes"]:
            units = sorted(subject.done.get((dtype, law), []), key=lambda unit: unit.round)
            failed += [unit for unit in units if unit.run is None]
            if runs := [unit.run for unit in units if unit.run is not None]:
                found.append(msgspec.structs.replace(runs[-1], cases=sum(run.cases for run in runs)))
                short += runs[-1].status == "ok" and len(units) < rounds
    status: Any = "wrong" if any(law.status == "broken" for law in found) else "ok" if found else "skipped"
    message = "" if found else "no law was tried"
    if failed:
        status, message = failed[0].status, failed[0].message
    notes = [f"{short} of {len(found)} laws had fewer cases than the profile draws: {SPENT}"] if short else []
    return KernelRun(
        name=item["name"],
        target=subject.target,
        op=item["op"],
        params=item["params"],
        promise=item["promise"],
        status=status,
        results=[],
        message=message,
        hint=f"verify run {shlex.quote(subject.target)}" if failed else "",
        laws=found,
        peer=item["peer"],
        notes=notes,
        seconds=round(subject.seconds, 3),
    )


def _lines(subject: _Subject, done: KernelRun) -> list[str]:
    """What of a kernel has no verdict."""
    lines = [f"{done.name}: {done.message}"] if done.status in ("crashed", "timeout") else []
    lines += [f"{done.name}: the law of {line}" for line in sorted(subject.in_error)]
    return lines + [f"{done.name}: the law of {line}" for line in sorted(subject.late)]
