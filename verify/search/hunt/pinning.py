"""Runs a case once and pins it with its error."""

from __future__ import annotations

from dataclasses import replace

from verify.backends import Backend
from verify.cases import Case, corpus
from verify.declare import config
from verify.declare.declaration import Kernel
from verify.diagnose.replay import replay
from verify.records import commit
from verify.records.record import Number, Worst
from verify.search.hunt.requests import Pin, Pinned


def pin(kernel: Kernel, request: Pin, backend: Backend) -> Pinned:
    """Runs a case and pins it: an element with its error, or a law with its message."""
    case = Case.from_json(request.case)
    evidence = corpus.Evidence(why=request.why, backend=backend.name, commit=current_commit())
    if request.law:
        from verify.laws import engine, registry

        law = registry.get(request.law)
        found = engine.replay_law(law, kernel, case, backend, request.target)
        evidence = replace(evidence, law=law.name, showed=found.message or found.status)
    else:
        seen = replay(kernel, request.target, backend, case, result=request.result, index=request.index)
        evidence = replace(
            evidence,
            result=request.result,
            index=request.index,
            error=gated(seen.worst, seen.gate),
            gate=seen.gate,
            showed=shown(seen.worst),
        )
    item = corpus.entry(kernel.name, request.target, kernel.op.name, case, evidence)
    path, new = corpus.add(item)
    return Pinned(item.id, str(path), new)


def gated(worst: Worst, gate: str) -> Number | None:
    """Returns the figure that the limit applies to."""
    return worst.ulp if gate == "plain" else worst.scaled_ulp


def shown(worst: Worst) -> str:
    """Returns the kernel's value and the truth as text."""
    return f"got {worst.got} ({worst.got_hex}), truth {worst.truth}"


def current_commit() -> str:
    """Returns the project's commit, or "" if it has none."""
    return str(commit.current(config.find().root).get("commit", ""))
