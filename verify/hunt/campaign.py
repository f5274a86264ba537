"""Many hunts, each in a worker process, into one record: what `verify hunt` and the nightly run do.

A kernel that raises, hangs or takes its process down ends one hunt; its best find so far is kept as a note, and the
others go on. Ctrl-C asks the running hunts to stop and to hand over what they have; a second one abandons them.
"""

from __future__ import annotations

import json
import os
import queue
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from verify.cluster import Cluster
from verify.errors import UsageError
from verify.hunt.settings import Settings
from verify.identity import sealed
from verify.isolate import Answers, Worker, WorkerDied, WorkerTimeout
from verify.record import SCHEMA, KernelRun, Result, Run, value_of
from verify.session import START_SECONDS, answer, describe_target

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
    stories: list[Story] = field(default_factory=list)
    interrupted: bool = False


@dataclass
class _Quarry:
    """One kernel and its hunts; filled in as they end."""

    item: dict[str, Any]
    target: str
    jobs: list[dict[str, str]]
    notes: list[str]
    results: list[Result | None]
    failure: tuple[str, str] = ("", "")  # status and message of the first hunt that failed
    seconds: float = 0.0


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
    if campaign.interrupted:
        incomplete.append("interrupted: the hunts say how many evaluations they had made")
    bare = Run(
        schema=SCHEMA,
        id="",
        created="",
        command=command,
        backend=about["backend"],
        seed=campaign.settings.seed,
        profile="hunt",
        environment=about["environment"],
        kernels=kernels,
        incomplete=incomplete,
    )
    return sealed(bare, time.monotonic() - started)


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
            reply = answer(worker.ask(request, timeout=START_SECONDS))
        except UsageError as error:
            if len(items) == 1:
                raise
            quarry.failure = ("skipped", error.message)
            continue
        quarry.jobs, quarry.notes = reply["jobs"], [f"not hunted: {reason}" for reason in reply["left_out"]]
        quarry.results = [None] * len(quarry.jobs)
    return found


def _hunt_all(
    workers: list[Answers], quarries: list[_Quarry], campaign: Campaign, stop: Path, ask_to_stop: Callable[[], None]
) -> None:
    """All hunts over all workers. `stop` exists, here and wherever a hunt runs, once they are asked to end."""
    idle: queue.SimpleQueue[Answers] = queue.SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def one(quarry: _Quarry, place: int) -> None:
        worker = idle.get()
        try:
            if not stop.exists():
                _hunt(worker, quarry, place, campaign, stop)
        finally:
            idle.put(worker)

    with ThreadPoolExecutor(len(workers)) as pool:
        waiting = [pool.submit(one, quarry, place) for quarry in quarries for place in range(len(quarry.jobs))]
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


def _hunt(worker: Answers, quarry: _Quarry, place: int, campaign: Campaign, stop: Path) -> None:
    """One hunt; whatever happens to it is written into its quarry."""
    job, settings = quarry.jobs[place], campaign.settings
    name = f"{quarry.item['name']} {job['result']} {job['dtype']}"
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
    timeout = (settings.seconds or 0.0) + campaign.timeout + CLOSING_SECONDS
    started = time.monotonic()
    try:
        if not worker.alive:
            describe_target(worker, quarry.target)
        reply = worker.ask(request, timeout=timeout, progress=heard)
    except WorkerTimeout:
        _fail(quarry, "timeout", f"{name}: no result within {timeout:g} s; stopped", last)
        return
    except WorkerDied as died:
        _fail(quarry, "crashed", f"{name}: {died}", last)
        return
    finally:
        quarry.seconds += time.monotonic() - started
    if "failure" in reply or "internal" in reply:
        worker.stop()  # an illegal access poisons the CUDA context: the next hunt gets a fresh process
        _fail(quarry, "error", f"{name}: {reply.get('failure') or reply['internal']}", last)
        return
    answer(reply)
    quarry.results[place] = msgspec.convert(reply["result"], Result)
    quarry.notes += reply["notes"]
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


def _fail(quarry: _Quarry, status: str, message: str, last: dict[str, Any]) -> None:
    if not quarry.failure[0]:
        quarry.failure = (status, message)
    if "case" in last:
        quarry.notes.append(
            f"{message}; before that {last['evaluations']:,} evaluations had given {value_of(last['best']):.6g} "
            f"(not judged exactly) at [{last['index']}] of the case {last['case']}"
        )


def _kernel_run(quarry: _Quarry) -> KernelRun:
    item = quarry.item
    results = [result for result in quarry.results if result is not None]
    status, message = quarry.failure
    if not status:
        wrong = any(result.status == "wrong" for result in results)
        status = "wrong" if wrong else "ok" if results else "skipped"
        message = "" if results else "not begun: interrupted"
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
        notes=quarry.notes,
        seconds=round(quarry.seconds, 3),
    )
