"""Answers requests of `verify hunt` in a worker: lists the hunts that a target allows, runs one hunt, and
pins a case in the corpus with its error.

A hunt reports its progress as JSON and, for each new worst candidate, its case. If the kernel ends the process, the
parent still has the best case so far.
"""

import os
import time
from typing import Any

import msgspec

from verify.backends import Backend
from verify.cases import Case, corpus
from verify.declare import config
from verify.declare.declaration import Kernel
from verify.diagnose.replay import replay
from verify.errors import UsageError
from verify.records import commit
from verify.records.record import number
from verify.search.hunt.outcome import hunt
from verify.search.hunt.requests import DoHunt, Hunt, HuntProgress, HuntReply, Hunts, Pin, Pinned
from verify.search.hunt.search import Search
from verify.search.hunt.space import searchable
from verify.workers.requests import OnProgress

EVERY = 0.2  # seconds between two reports of progress


def allowed(kernel: Kernel, dtypes: list[str], results: list[str]) -> Hunts:
    """Returns the hunts of a kernel, and why results that the caller did not name have none.

    Raises UsageError if a dtype or result requested by name cannot be hunted.
    """
    hunts: list[Hunt] = []
    left_out: list[str] = []
    for dtype in dtypes or kernel.dtypes:
        if dtype not in kernel.dtypes:
            raise UsageError(f"kernel {kernel.name!r} declares {', '.join(kernel.dtypes)}; --dtype received {dtype!r}")
        everything = [*kernel.outputs, *("d" + operand.name for operand in kernel.differentiable)]
        rules = {result: searchable(kernel, dtype, result) for result in results or everything}
        for reason in filter(None, rules.values()):
            if results:
                raise UsageError(reason)
            if reason not in left_out:
                left_out.append(reason)
        found = [Hunt(dtype, result) for result, reason in rules.items() if reason is None]
        if dtypes and not found:
            raise UsageError(left_out[-1])
        hunts += found
    if not hunts:
        raise UsageError(f"kernel {kernel.name!r} has nothing to hunt: {left_out[0]}")
    return Hunts(hunts, left_out)


def serve(kernel: Kernel, request: DoHunt, backend: Backend, progress: OnProgress) -> HuntReply:
    """Runs one hunt."""
    done = hunt(
        kernel,
        request.target,
        backend,
        request.hunt,
        request.settings,
        watch=_Reporter(progress),
        stop=lambda: os.path.exists(request.stop),
    )
    return HuntReply(done.result, done.notes)


def pin(kernel: Kernel, request: Pin, backend: Backend) -> Pinned:
    """Runs a case and pins it: an element with its error by the figure that the limit applies to, or a law."""
    case = Case.from_json(request.case)
    now = str(commit.current(config.find().root).get("commit", ""))
    shown: dict[str, Any]
    if request.law:
        from verify.laws import engine, registry

        law = registry.get(request.law)
        found = engine.replay_law(law, kernel, case, backend, request.target)
        shown = {"law": law.name, "showed": found.message or found.status}
    else:
        seen = replay(kernel, request.target, backend, case, result=request.result, index=request.index)
        error = seen.worst.ulp if seen.gate == "plain" else seen.worst.scaled_ulp
        showed = f"got {seen.worst.got} ({seen.worst.got_hex}), truth {seen.worst.truth}"
        shown = {"result": request.result, "index": request.index, "error": error, "gate": seen.gate, "showed": showed}
    shown |= {"backend": backend.name, "commit": now, "why": request.why}
    item = corpus.entry(kernel.name, request.target, kernel.op.name, case, **shown)
    path, new = corpus.add(item)
    return Pinned(item.id, str(path), new)


class _Reporter:
    """Reports the progress of a hunt at most once every EVERY seconds."""

    def __init__(self, progress: OnProgress) -> None:
        self._progress = progress
        self._said = 0.0

    def __call__(self, search: Search) -> None:
        now = time.monotonic()
        if now - self._said < EVERY:
            return
        self._said = now
        about = HuntProgress(search.evaluations, number(search.best), search.seconds)
        self._progress(msgspec.json.encode(about).decode())
