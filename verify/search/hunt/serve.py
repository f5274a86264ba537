"""Answers requests of `verify hunt` in a worker: lists the hunts that a target allows, runs one hunt, and
pins a case in the corpus with its error.

A hunt reports its progress as JSON and, for each new worst candidate, its case. If the kernel ends the process, the
parent still has the best case so far.
"""

from __future__ import annotations

import os
import time

import msgspec

from verify.backends import Backend
from verify.cases import Case, corpus
from verify.declare import config
from verify.declare.declaration import Kernel
from verify.diagnose.replay import replay
from verify.errors import UsageError
from verify.records import commit
from verify.records.record import Worst, number
from verify.search.hunt.outcome import Hunted, hunt
from verify.search.hunt.requests import DoHunt, Hunt, HuntProgress, HuntReply, Hunts, Pin, Pinned
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
    why = f"worst found by {done.sentence} in {done.state.evaluations:,} evaluations, seed {done.result.basis.seed}"
    gate = kernel.op.gate_of(request.hunt.result)
    return _kept(kernel, request.target, find.case, _evidence(find.worst, request.hunt.result, gate, backend, why))


def pin(kernel: Kernel, request: Pin, backend: Backend) -> Pinned:
    """Runs a case and pins it: an element with its error, or a law with its message."""
    case = Case.from_json(request.case)
    if request.law:
        from verify.laws import engine, registry

        law = registry.get(request.law)
        found = engine.replay_law(law, kernel, case, backend, request.target)
        showed = found.message or found.status
        evidence = corpus.Evidence(law=law.name, showed=showed, backend=backend.name, commit=_commit(), why=request.why)
    else:
        seen = replay(kernel, request.target, backend, case, result=request.result, index=request.index)
        evidence = _evidence(seen.worst, request.result, seen.gate, backend, request.why)
    return _kept(kernel, request.target, case, evidence)


def _evidence(worst: Worst, result: str, gate: str, backend: Backend, why: str) -> corpus.Evidence:
    """Returns what the corpus keeps of an element: its error by the figure that the limit applies to, and its bits."""
    return corpus.Evidence(
        result=result,
        index=worst.origin.index,
        error=worst.ulp if gate == "plain" else worst.scaled_ulp,
        gate=gate,
        showed=f"got {worst.got} ({worst.got_hex}), truth {worst.truth}",
        backend=backend.name,
        commit=_commit(),
        why=why,
    )


def _commit() -> str:
    """Returns the project's commit, or "" if it has none."""
    return str(commit.current(config.find().root).get("commit", ""))


def _kept(kernel: Kernel, target: str, case: Case, evidence: corpus.Evidence) -> Pinned:
    item = corpus.entry(kernel.name, target, kernel.op.name, case, evidence)
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
