"""Many hunts, each in a worker process, into one record: what `verify hunt` and the nightly run do.

A kernel that raises, hangs or takes its process down ends one hunt; its best find so far is kept as a note, and the
others go on. Ctrl-C asks the running hunts to stop and to hand over what they have; a second one abandons them.

All hunts of all kernels wait in one queue, the longest first, so that no worker idles while another is at the last
results of a kernel. A `Campaign` with a moment `until` shares out what is left of its time among the hunts that have
not begun; those that the time did not reach are named in the record.
"""

from __future__ import annotations

import json
import math
import os
import queue
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec

from verify.errors import IN_ERROR, SPENT, UsageError
from verify.hunt.settings import Settings
from verify.measure.session import START_SECONDS, answer, describe_target
from verify.records.identity import assembled
from verify.records.record import KernelRun, Result, Run, value_of
from verify.workers.cluster import Cluster
from verify.workers.process import Answers, Worker, WorkerDied, WorkerTimeout

CLOSING_SECONDS = 120.0  # to judge the finds exactly, after the budget is spent


@dataclass(frozen=True)
class Moment:
    """How far one hunt is."""

    name: str
    evaluations: int
    best: float
    seconds: float


@dataclass(frozen=True)
class Story:
    """What one hunt of a campaign came to, beside its result in the record."""

    kernel: str
    target: str
    dtype: str
    result: str
    sentence: str
    seconds: float
    pinned: dict[str, Any] | None


@dataclass
class Campaign:
    """What to hunt and how."""

    settings: Settings
    backend: str | None = None
    dtypes: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    pin: bool = False
    timeout: float = 600.0  # beyond the time budget of one hunt
    cluster: Cluster | None = None
    workers: Sequence[Answers] = ()  # of the caller, who stops them; else one is started, or the cluster's are taken
    watch: Callable[[Moment], None] = lambda moment: None
    stopping: Callable[[], None] = lambda: None  # told once, when the first Ctrl-C arrives
    until: float | None = (
        None  # of time.monotonic(): no hunt begins later, and earlier ones share the time that is left
    )
    asked: Mapping[str, dict[str, Any]] | None = (
        None  # replies to "hunts" by target, where the caller has asked already
    )
    known: Callable[[str, dict[str, str]], KernelRun | None] = lambda target, job: None  # one that was hunted before
    finished: Callable[[str, dict[str, str], KernelRun], None] = lambda target, job, done: None
    contain: bool = False  # an error of the harness is a line of the record, else it ends the campaign
    late: list[str] = field(default_factory=list)  # what the time did not reach
    in_error: list[str] = field(default_factory=list)  # hunts without a verdict
    stories: list[Story] = field(default_factory=list)
    interrupted: bool = False


@dataclass
class _Quarry:
    """One kernel and its hunts; filled in as they end."""

    item: dict[str, Any]
    target: str
    jobs: list[dict[str, str]]
    notes: list[str]
    done: list[KernelRun | None]  # of each job
    failure: tuple[str, str] = ("", "")  # status and message of a kernel that cannot be hunted
    reason: str = "not begun: interrupted"  # why a hunt that was not done was not


def run(targets: Sequence[str], campaign: Campaign, command: str) -> Run:
    """Hunt in every kernel of every target."""
    campaign.settings.check()
    started = time.monotonic()
    workers = list(campaign.workers)
    if not workers:
        workers = list(campaign.cluster.workers()) if campaign.cluster else [Worker(campaign.backend)]
    try:
        first = workers[0]
        about = answer(first.ask({"do": "environment"}, timeout=START_SECONDS))
        quarries = [quarry for target in targets for quarry in _quarries(first, target, about["backend"], campaign)]
        with tempfile.TemporaryDirectory(prefix="verify-hunt-") as folder:
            stop = Path(folder) / "stop"
            with campaign.cluster.flag(stop) if campaign.cluster else nullcontext(stop.touch) as ask_to_stop:
                _hunt_all(workers, quarries, campaign, stop, ask_to_stop)
    finally:
        if not campaign.workers:
            for worker in workers:
                worker.stop()
    kernels = [_kernel_run(quarry) for quarry in quarries]
    incomplete = [f"{kernel.name}: {kernel.message}" for kernel in kernels if kernel.status in ("crashed", "timeout")]
    incomplete += [*campaign.in_error, *campaign.late]
    if campaign.interrupted:
        incomplete.append("interrupted: the hunts say how many evaluations they had made")
    return assembled(
        about,
        command=command,
        seed=campaign.settings.seed,
        profile="hunt",
        kernels=kernels,
        incomplete=incomplete,
        seconds=time.monotonic() - started,
    )


def _quarries(worker: Answers, target: str, backend: str, campaign: Campaign) -> list[_Quarry]:
    """The kernels of a target with their hunts. A target of several kernels leaves out what cannot be hunted."""
    items = describe_target(worker, target)
    source = target.partition("::")[0]
    found = []
    for item in items:
        name = f"{source}::{item['name']}"
        quarry = _Quarry(item, name, [], [], [])
        found.append(quarry)
        if backend not in item["backends"]:
            quarry.failure = ("skipped", f"declared for {', '.join(item['backends'])}; this hunt is on {backend}")
            continue
        if item["lacking"]:
            quarry.failure = ("skipped", f"needs {', '.join(item['lacking'])}, which is not installed")
            continue
        request = {"do": "hunts", "target": name, "dtypes": campaign.dtypes, "results": campaign.results}
        try:
            before = campaign.asked[name] if campaign.asked else None
            reply = before or answer(worker.ask(request, timeout=START_SECONDS))
        except UsageError as error:
            if len(items) == 1:
                raise
            quarry.failure = ("skipped", error.message)
            continue
        quarry.jobs, quarry.notes = reply["jobs"], [f"not hunted: {reason}" for reason in reply["left_out"]]
        quarry.done = [None] * len(quarry.jobs)
    return found


def _hunt_all(
    workers: list[Answers], quarries: list[_Quarry], campaign: Campaign, stop: Path, ask_to_stop: Callable[[], None]
) -> None:
    """All hunts over all workers. `stop` exists, here and wherever a hunt runs, once they are asked to end."""
    idle: queue.SimpleQueue[Answers] = queue.SimpleQueue()
    for worker in workers:
        idle.put(worker)
    hunts = [(quarry, place) for quarry in quarries for place in range(len(quarry.jobs))]
    hunts = _in_turn(hunts)
    left = len(hunts)

    def one(quarry: _Quarry, place: int) -> None:
        nonlocal left
        worker = idle.get()
        try:
            share = None if campaign.until is None else (campaign.until - time.monotonic()) * len(workers) / left
            left -= 1
            before = campaign.known(quarry.target, quarry.jobs[place])
            if before is not None:
                quarry.done[place] = before
            elif share is not None and share <= 0:
                _left_out(quarry, place, f"not begun: {SPENT}", campaign.late)
            elif not stop.exists():
                _hunt(worker, quarry, place, campaign, stop, share)
        finally:
            idle.put(worker)

    with ThreadPoolExecutor(len(workers)) as pool:
        waiting = [pool.submit(one, quarry, place) for quarry, place in hunts]
        try:
            _settle(waiting)
        except KeyboardInterrupt:
            campaign.interrupted = True
            stop.touch()
            campaign.stopping()
            try:
                ask_to_stop()
                _settle(waiting)
            except KeyboardInterrupt:
                for worker in workers:
                    worker.stop()
                raise
        except BaseException:
            stop.touch()
            for worker in workers:
                worker.stop()
            raise


def _settle(waiting: list[Future[None]]) -> None:
    """Wait for all, in slices: a wait without an end does not notice Ctrl-C everywhere."""
    left = set(waiting)
    while left:
        done, left = wait(left, timeout=0.2)
        for future in done:
            future.result()


_SLOWEST = ("rowwise", "contraction", "elementwise")  # a call of rows is the largest, and has the most steps


def _in_turn(hunts: list[tuple[_Quarry, int]]) -> list[tuple[_Quarry, int]]:
    """The longest first, those in float64 and the others by turns: the former keep a core busy, the latter the GPU.

    Sorting is stable: among hunts that take as long, the kernels keep their order.
    """
    hunts = sorted(hunts, key=lambda hunt: _SLOWEST.index(hunt[0].item["kind"]))
    exact = [hunt for hunt in hunts if hunt[0].jobs[hunt[1]]["dtype"] == "float64"]
    others = [hunt for hunt in hunts if hunt[0].jobs[hunt[1]]["dtype"] != "float64"]
    pairs = zip_longest(exact, others)
    return [hunt for pair in pairs for hunt in pair if hunt is not None]


def _left_out(quarry: _Quarry, place: int, reason: str, lines: list[str]) -> None:
    job = quarry.jobs[place]
    quarry.reason = reason
    lines.append(f"hunt of {quarry.target} {job['result']} {job['dtype']}: {reason}")


def _hunt(
    worker: Answers, quarry: _Quarry, place: int, campaign: Campaign, stop: Path, share: float | None = None
) -> None:
    """One hunt; whatever happens to it is written into its quarry. `share` is its part of the time that is left."""
    job, settings = quarry.jobs[place], campaign.settings
    name = f"{quarry.item['name']} {job['result']} {job['dtype']}"
    timeout = (settings.seconds or 0.0) + campaign.timeout + CLOSING_SECONDS
    most = math.inf
    if share is not None and campaign.until is not None:
        settings = replace(settings, seconds=round(max(1.0, min(share, settings.seconds or share)), 1))
        most = max(0.0, campaign.until - time.monotonic()) + CLOSING_SECONDS
    last: dict[str, Any] = {}

    def heard(text: str) -> None:
        said = json.loads(text)
        last.update(said)
        campaign.watch(Moment(name, said["evaluations"], value_of(said["best"]), said["seconds"]))

    request = {
        "do": "hunt",
        "target": quarry.target,
        **job,
        "settings": msgspec.to_builtins(settings),
        "stop": os.fspath(stop),
        "pin": campaign.pin,
    }
    started = time.monotonic()

    def done(status: str, message: str = "", result: Result | None = None, notes: Sequence[str] = ()) -> None:
        found = KernelRun(
            name=quarry.item["name"],
            target=quarry.target,
            op=quarry.item["op"],
            params=quarry.item["params"],
            promise=quarry.item["promise"],
            status=status,  # type: ignore[arg-type]
            results=[] if result is None else [result],
            message=message,
            peer=quarry.item["peer"],
            notes=[*notes, *(_best_so_far(message, last) if message else ())],
            seconds=round(time.monotonic() - started, 3),
        )
        quarry.done[place] = found
        if not stop.exists():  # one that was interrupted is no finished unit
            campaign.finished(quarry.target, job, found)

    try:
        if not worker.alive:
            describe_target(worker, quarry.target)
        reply = worker.ask(request, timeout=min(timeout, most), progress=heard)
    except WorkerTimeout:
        if most < timeout:
            _left_out(quarry, place, f"not finished: {SPENT}", campaign.late)
            quarry.notes += _best_so_far(f"{name}: {quarry.reason}", last)
        else:
            done("timeout", f"{name}: no result within {timeout:g} s; stopped")
        return
    except WorkerDied as died:
        done("crashed", f"{name}: {died}")
        return
    if "failure" in reply or "internal" in reply:
        worker.stop()  # an illegal access poisons the CUDA context: the next hunt gets a fresh process
    if campaign.contain and ("truth" in reply or "internal" in reply):
        said = reply.get("truth") or f"verify itself failed: {reply['internal']}"
        _left_out(quarry, place, f"{IN_ERROR}: {said}", campaign.in_error)
        return
    if "failure" in reply or "internal" in reply:
        done("error", f"{name}: {reply.get('failure') or reply['internal']}")
        return
    answer(reply)
    result = msgspec.convert(reply["result"], Result)
    done(result.status, result=result, notes=reply["notes"])
    campaign.stories.append(
        Story(
            kernel=quarry.item["name"],
            target=quarry.target,
            dtype=job["dtype"],
            result=job["result"],
            sentence=reply["sentence"],
            seconds=reply["seconds"],
            pinned=reply["pinned"],
        )
    )


def _best_so_far(message: str, last: dict[str, Any]) -> list[str]:
    """What a hunt that failed had found."""
    if "case" not in last:
        return []
    best = f"{last['evaluations']:,} evaluations had given {value_of(last['best']):.6g} (not judged exactly)"
    return [f"{message}; before that {best} at [{last['index']}] of the case {last['case']}"]


def _kernel_run(quarry: _Quarry) -> KernelRun:
    """All hunts of a kernel as one; the first that failed says what the kernel's status is."""
    item = quarry.item
    done = [each for each in quarry.done if each is not None]
    results = [result for each in done for result in each.results]
    status, message = quarry.failure
    failed = [(each.status, each.message) for each in done if each.status not in ("ok", "wrong")]
    if not status and failed:
        status, message = failed[0]
    if not status:
        wrong = any(result.status == "wrong" for result in results)
        status = "wrong" if wrong else "ok" if results else "skipped"
        message = "" if results else quarry.reason
    return KernelRun(
        name=item["name"],
        target=quarry.target,
        op=item["op"],
        params=item["params"],
        promise=item["promise"],
        status=status,  # type: ignore[arg-type]
        results=results,
        message=message,
        peer=item["peer"],
        notes=[*quarry.notes, *(note for each in done for note in each.notes)],
        seconds=round(sum(each.seconds for each in done), 3),
    )
