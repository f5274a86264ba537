"""The worker's side of `verify hunt`: which hunts a target allows, and one hunt as request and answer.

While it searches, a hunt says as JSON how far it is and, whenever it has something worse, the case: if the kernel
takes the process down, the parent still has the best so far.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

import msgspec

from verify.backends import Backend
from verify.cases import corpus
from verify.declare.declaration import Kernel
from verify.errors import UsageError
from verify.hunt.outcome import Hunted, hunt
from verify.hunt.pinning import current_commit, gated, shown
from verify.hunt.search import Search, State
from verify.hunt.settings import Settings
from verify.hunt.space import searchable
from verify.records.record import number

EVERY = 0.2  # seconds between two words of progress

Emit = Callable[[dict[str, Any]], None]


def allowed(kernel: Kernel, dtypes: list[str], results: list[str]) -> dict[str, Any]:
    """The hunts of a kernel and, where dtypes or results were left open, what is left out and why.

    What was asked for by name and cannot be is an error with the rule.
    """
    jobs: list[dict[str, str]] = []
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
        found = [{"dtype": dtype, "result": result} for result, reason in rules.items() if reason is None]
        if dtypes and not found:
            raise UsageError(left_out[-1])
        jobs += found
    if not jobs:
        raise UsageError(f"kernel {kernel.name!r} has nothing to hunt: {left_out[0]}")
    return {"jobs": jobs, "left_out": left_out}


def serve(kernel: Kernel, request: dict[str, Any], backend: Backend, emit: Emit) -> dict[str, Any]:
    """One hunt."""
    settings = msgspec.convert(request["settings"], Settings)
    told = _Progress(emit)
    done = hunt(
        kernel,
        request["target"],
        backend,
        request["dtype"],
        request["result"],
        settings,
        watch=told,
        stop=lambda: os.path.exists(request["stop"]),
    )
    pinned = _pin(kernel, request, backend, done) if request.get("pin") else None
    return {
        "result": msgspec.to_builtins(done.result),
        "sentence": done.sentence,
        "notes": done.notes,
        "evaluations": done.state.evaluations,
        "generations": done.state.generations,
        "seconds": done.state.seconds,
        "interrupted": done.interrupted,
        "pinned": pinned,
    }


def _pin(kernel: Kernel, request: dict[str, Any], backend: Backend, done: Hunted) -> dict[str, Any] | None:
    """Put the worst find that its case reproduces into the corpus."""
    find = next((find for find in done.finds if find.alone), None)
    if find is None:
        return None
    item = corpus.entry(
        kernel.name,
        request["target"],
        kernel.op.name,
        find.case,
        result=request["result"],
        index=find.index,
        error=gated(find.worst, kernel.op.gate),
        gate=kernel.op.gate,
        showed=shown(find.worst),
        backend=backend.name,
        commit=current_commit(),
        why=f"worst found by {done.sentence} in {done.state.evaluations:,} evaluations, seed {done.result.basis.seed}",
    )
    path, new = corpus.add(item)
    return {"id": item.id, "path": str(path), "new": new}


class _Progress:
    """Speaks at most every so often; says the case only when there is a worse one."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._said = 0.0
        self._best = -1.0

    def __call__(self, search: Search, state: State) -> None:
        now = time.monotonic()
        if now - self._said < EVERY:
            return
        self._said = now
        about: dict[str, Any] = {
            "evaluations": state.evaluations,
            "best": number(state.best),
            "seconds": state.seconds,
        }
        if state.best > self._best:
            self._best = state.best
            member = search.elite(1)[0]
            about["case"] = search.space.case(member.candidate, member.shared, 1).to_json()
            about["index"] = member.element
        self._emit({"progress": json.dumps(about)})
