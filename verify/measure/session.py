"""A whole run: targets to kernels, every kernel in a worker, everything into one record.

A target that cannot be imported, a kernel that raises, hangs or takes the process down: each becomes its own
line, and the rest goes on. So does an error of the harness itself (its two routes disagree, or it raises): the kernel,
or that dtype or law of it, has no verdict then, and the run is incomplete.
"""

from __future__ import annotations

import math
import queue
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from verify.errors import IN_ERROR, SPENT, TruthError, UsageError
from verify.records.identity import assembled
from verify.records.merge import together
from verify.records.record import KernelRun, Run
from verify.workers.cluster import Cluster
from verify.workers.process import Answers, Worker, WorkerDied, WorkerTimeout

OUT_OF_TIME = "the same `verify nightly` command again goes on where this one stopped; a larger --budget reaches more"
START_SECONDS = 180.0  # importing torch on a cold, slow disk, then the user's module


@dataclass
class Session:
    """Settings of a run, and the lines about what could not be asked for."""

    backend: str | None = None
    seed: int = 0
    timeout: float = 600.0
    dtypes: tuple[str, ...] = ()
    profile: str = "default"
    laws: str = ""  # profile of the laws; none are tried without one
    accuracy: bool = True  # whether to measure; without it only the laws are tried
    plan: str = ""  # the backend whose cases are measured, wherever they run; the own one without it
    jobs: int = 0  # 0: one per core, or as many as fit the GPU
    by_dtype: bool = False  # each dtype of a kernel is measured on its own, so that many workers are busy to the end
    cluster: Cluster | None = None  # a verify.workers.cluster.Cluster whose workers do the work
    workers: Sequence[Answers] = ()  # of the caller, who stops them; else they are started
    deadline: float | None = None  # of time.monotonic(): kernels not done by then are reported as such
    known: Callable[[str], KernelRun | None] = lambda part: None  # what an earlier, interrupted run has done
    finished: Callable[[str, KernelRun], None] = lambda part, done: None
    progress: Callable[[str], None] = lambda text: None
    usage: list[str] = field(default_factory=list)


def answer(reply: dict[str, Any]) -> dict[str, Any]:
    """The reply of a worker, or the error it carries."""
    if "usage" in reply:
        raise UsageError(reply["usage"], hint=reply.get("hint") or None)
    if "truth" in reply:
        raise TruthError(reply["truth"])
    if "failure" in reply:
        raise UsageError(reply["failure"])
    if "internal" in reply:
        raise RuntimeError(f"verify itself failed in the worker: {reply['internal']}")
    return reply


def describe_target(worker: Answers, target: str, timeout: float = START_SECONDS) -> list[dict[str, Any]]:
    """The kernels that a target declares."""
    try:
        kernels: list[dict[str, Any]] = answer(worker.ask({"do": "list", "target": target}, timeout=timeout))["kernels"]
        return kernels
    except WorkerTimeout:
        raise UsageError(f"{target}: importing it took more than {timeout:g} s; stopped", hint=_alone(target)) from None
    except WorkerDied as died:
        raise UsageError(f"{target}: importing it ended the process: {died}", hint=_alone(target)) from None


def _alone(target: str) -> str:
    """The command that imports a target and nothing else, to see what happens."""
    source = target.partition("::")[0]
    return f"python {shlex.quote(source)}" if source.endswith(".py") else f"python -c 'import {source}'"


def run(targets: Sequence[str], session: Session, command: str) -> Run:
    """Measure every kernel of every target."""
    started = time.monotonic()
    incomplete: list[str] = []
    with _first(session) as worker:
        session.progress("starting")
        about = answer(worker.ask({"do": "environment"}, timeout=START_SECONDS))
        work: list[tuple[str, dict[str, Any]]] = []
        for target in targets:
            try:
                found = describe_target(worker, target)
            except UsageError as error:
                session.usage.append(str(error))
                incomplete.append(error.message)
                continue
            source = target.partition("::")[0]
            work += [(f"{source}::{item['name']}", item) for item in found]
        parts = _parts(work, about["backend"], session)
        measured = _measure_all(worker, parts, about, session)
    kernels: dict[str, KernelRun] = {}
    for part, done in zip(parts, measured, strict=True):
        if done.status in ("crashed", "timeout") or done.hint == OUT_OF_TIME:
            incomplete.append(f"{done.name}: {done.message}")
        incomplete += errors_of(done)
        known = kernels.get(part.target)
        kernels[part.target] = done if known is None else together(known, done)
    return assembled(
        about,
        command=command,
        seed=session.seed,
        profile=session.profile,
        kernels=list(kernels.values()),
        incomplete=incomplete,
        seconds=time.monotonic() - started,
    )


def errors_of(kernel: KernelRun) -> list[str]:
    """What of a kernel has no verdict because the harness is in error: all of it, a dtype (a note), or a law."""
    found = [kernel.message, *kernel.notes]
    found += [f"the law of {law.law} in {law.dtype}: {law.message}" for law in kernel.laws if law.status == "skipped"]
    return [f"{kernel.name}: {line}" for line in found if IN_ERROR in line]


@contextmanager
def _first(session: Session) -> Iterator[Answers]:
    """The worker that is asked what there is to do."""
    if session.workers:
        yield session.workers[0]
        return
    with session.cluster.workers()[0] if session.cluster else Worker(session.backend) as worker:
        yield worker


class _Part(NamedTuple):
    """What one worker measures at a time: a kernel, or one dtype of it."""

    target: str
    item: dict[str, Any]
    dtypes: tuple[str, ...]  # empty: all that it declares
    dtype: str = ""  # where it is one of several

    @property
    def key(self) -> str:
        """What an interrupted run knows it by."""
        return f"{self.target} {self.dtype}".rstrip()


def _parts(work: list[tuple[str, dict[str, Any]]], backend: str, session: Session) -> list[_Part]:
    """What is measured, in the order of the record."""
    found = []
    for target, item in work:
        wanted = tuple(name for name in session.dtypes if name in item["dtypes"])
        each = wanted if session.dtypes else tuple(item["dtypes"])
        if session.by_dtype and len(each) > 1 and backend in item["backends"] and not item["lacking"]:
            found += [_Part(target, item, (dtype,), dtype) for dtype in each]
        else:
            found.append(_Part(target, item, wanted))
    return list({part.key: part for part in found}.values())


def _measure_all(first: Answers, work: list[_Part], about: dict[str, Any], session: Session) -> list[KernelRun]:
    """Measure every part, `session.jobs` at a time, each job in a worker of its own; results in order."""
    idle: queue.SimpleQueue[Answers] = queue.SimpleQueue()
    if session.workers:
        workers = list(session.workers)
    elif session.cluster:
        workers = list(session.cluster.workers())
    else:
        jobs = session.jobs or about["room"]
        workers = [first, *(Worker(session.backend) for _ in range(max(1, min(jobs, len(work))) - 1))]
    for worker in workers:
        idle.put(worker)
    done = 0
    ended = False  # by Ctrl-C or an error: the workers are stopped, which is no kernel's crash

    def say(text: str) -> None:
        session.progress(f"{done}/{len(work)} {text}")

    def one(part: _Part) -> KernelRun:
        nonlocal done
        worker = idle.get()
        try:
            before = session.known(part.key)
            if before is not None:
                return before
            result = _measure(worker, part, about, session, say)
            if result.hint != OUT_OF_TIME and not errors_of(result) and not ended:
                session.finished(part.key, result)
            return result
        finally:
            done += 1
            idle.put(worker)

    with ThreadPoolExecutor(len(workers)) as pool:
        try:
            begun = {part.key: pool.submit(one, part) for part in sorted(work, key=_turn)}
            return [begun[part.key].result() for part in work]
        except BaseException:
            # after an error of the harness or Ctrl-C nobody waits for what is still running
            ended = True
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.stop()
            raise
        finally:
            for worker in workers if not session.workers else ():
                worker.stop()


LONGEST = ("contraction", "rowwise", "elementwise")  # the kinds of ops, by how long their kernels take
_SLOWEST = ("float64", "float32")  # dtypes, by how much of their judging is exact arithmetic


def _turn(part: _Part) -> tuple[bool, int, int]:
    """What is judged first, should time run out; the longest first, so that no worker is left with it at the end."""
    slow = _SLOWEST.index(part.dtype) if part.dtype in _SLOWEST else len(_SLOWEST)
    return part.item["peer"], LONGEST.index(part.item["kind"]), slow


def _measure(
    worker: Answers,
    part: _Part,
    about: dict[str, Any],
    session: Session,
    progress: Callable[[str], None],
) -> KernelRun:
    target, item, wanted = part.target, part.item, list(part.dtypes)

    def failed(status: Any, message: str, hint: str = "") -> KernelRun:
        return KernelRun(
            name=item["name"],
            target=target,
            op=item["op"],
            params=item["params"],
            promise=item["promise"],
            status=status,
            results=[],
            message=f"{part.dtype}: {message}" if part.dtype else message,
            hint=hint,
            peer=item["peer"],
        )

    if item["lacking"]:
        return failed("skipped", f"needs {', '.join(item['lacking'])}, which is not installed")
    if about["backend"] not in item["backends"]:
        return failed(
            "skipped",
            f"declared for {', '.join(item['backends'])}; this run is on {about['backend']}",
        )
    if session.dtypes and not wanted:
        source = shlex.quote(target.partition("::")[0])
        received = ", ".join(session.dtypes)
        return failed(
            "skipped", f"declares {', '.join(item['dtypes'])}; --dtype asks for {received}", f"verify list {source}"
        )
    left = math.inf if session.deadline is None else session.deadline - time.monotonic()
    if left <= 0:
        return failed("skipped", f"not begun: {SPENT}", OUT_OF_TIME)
    timeout = min(session.timeout, left)
    request = {"do": "measure", "target": target, "seed": session.seed, "dtypes": wanted}
    request |= {"laws": session.laws, "accuracy": session.accuracy, "plan": session.plan}
    again = f"verify run {shlex.quote(target)}"
    if not worker.alive:
        # importing torch again after a crash is not the next kernel's time
        describe_target(worker, target)
    try:
        reply = worker.ask(request, timeout=timeout, progress=progress)
    except WorkerTimeout:
        if timeout < session.timeout:
            return failed("skipped", f"not finished: {SPENT}", OUT_OF_TIME)
        return failed(
            "timeout",
            f"no result within {session.timeout:g} s; stopped",
            f"{again} --timeout {2 * session.timeout:g}",
        )
    except WorkerDied as died:
        return failed("crashed", f"{died}", again)
    if "failure" in reply:
        return failed("error", reply["failure"], again)
    if "usage" in reply:
        return failed("error", reply["usage"], reply.get("hint", ""))
    if "internal" in reply:
        worker.stop()
        return failed("skipped", f"{IN_ERROR}: verify itself failed: {reply['internal']}", again)
    if "truth" in reply:
        return failed("skipped", f"{IN_ERROR}: {reply['truth']}", again)
    done = msgspec.convert(answer(reply)["run"], KernelRun)
    if done.status == "error" and about["backend"] == "cuda":
        worker.stop()  # an illegal access poisons the CUDA context: the next kernel gets a fresh process
    if done.status == "error" and not done.hint:
        done = msgspec.structs.replace(done, hint=again)
    return done


def command_line(arguments: Sequence[str]) -> str:
    """The command as the user would type it again."""
    return "verify " + " ".join(shlex.quote(item) for item in arguments)
