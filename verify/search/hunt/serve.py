"""Answers requests of `verify hunt` in a worker: lists the hunts that a target allows, and runs one hunt.

A hunt reports its progress as JSON and, for each new worst candidate, its case. If the kernel ends the process, the
parent still has the best case so far.
"""

from __future__ import annotations

import os
import time

import msgspec

from verify.backends import Backend
from verify.cases import corpus
from verify.declare.declaration import Kernel
from verify.errors import UsageError
from verify.records.record import number
from verify.search.hunt.outcome import Hunted, hunt
from verify.search.hunt.pinning import current_commit, gated, shown
from verify.search.hunt.requests import DoHunt, Hunt, HuntProgress, HuntReply, Hunts, Pinned
from verify.search.hunt.search import Search, State
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
    """Runs one hunt and pins its worst find if requested."""
    done = hunt(
        kernel,
        request.target,
        backend,
        request.hunt,
        request.settings,
        watch=_Reporter(progress),
        stop=lambda: os.path.exists(request.stop),
    )
    pinned = _pin(kernel, request, backend, done) if request.pin else None
    return HuntReply(done.result, done.sentence, done.notes, done.state.seconds, pinned)


def _pin(kernel: Kernel, request: DoHunt, backend: Backend, done: Hunted) -> Pinned | None:
    """Puts the worst find that its case reproduces into the corpus. Returns None if there is none."""
    find = next((find for find in done.finds if find.alone), None)
    if find is None:
        return None
    evidence = corpus.Evidence(
        result=request.hunt.result,
        index=find.index,
        error=gated(find.worst, kernel.op.gate_of(request.hunt.result)),
        gate=kernel.op.gate_of(request.hunt.result),
        showed=shown(find.worst),
        backend=backend.name,
        commit=current_commit(),
        why=f"worst found by {done.sentence} in {done.state.evaluations:,} evaluations, seed {done.result.basis.seed}",
    )
    item = corpus.entry(kernel.name, request.target, kernel.op.name, find.case, evidence)
    path, new = corpus.add(item)
    return Pinned(item.id, str(path), new)


class _Reporter:
    """Reports the progress of a hunt at most once every EVERY seconds, with a case only if it is a new worst one."""

    def __init__(self, progress: OnProgress) -> None:
        self._progress = progress
        self._said = 0.0
        self._best = -1.0

    def __call__(self, search: Search, state: State) -> None:
        now = time.monotonic()
        if now - self._said < EVERY:
            return
        self._said = now
        about = HuntProgress(state.evaluations, number(state.best), state.seconds)
        if state.best > self._best:
            self._best = state.best
            member = search.elite(1)[0]
            case = search.space.case(member.candidate, member.shared, 1).to_json()
            about = msgspec.structs.replace(about, case=case, index=member.element)
        self._progress(msgspec.json.encode(about).decode())
