"""The worker's side of a sweep: spaces of a target, chunks of a space, and the record of what was found."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from verify.backends import Backend
from verify.declare.declaration import Kernel
from verify.declare.discovery import load
from verify.declare.sources import sources_of
from verify.declare.target import Target
from verify.errors import UsageError
from verify.records.source_digest import own_digest
from verify.sweep.checking import check, route_of
from verify.sweep.finishing import finish
from verify.sweep.partial import Partial
from verify.sweep.scope import shape_of, space_of, undeclared
from verify.sweep.space import Space
from verify.sweep.torch_route import BASELINE
from verify.truth.formats import named

# what decides a figure: a journal that other code of these began is not continued
REPORT_SECONDS = 0.1  # between two reports of progress: each is an event of the cluster
SLOW_BITS = 16  # without a GPU float32 is swept where it is asked for by name

Emit = Callable[[dict[str, Any]], None]


def spaces(request: dict[str, Any], backend: Backend, emit: Emit) -> dict[str, Any]:
    """Every space of the kernels of a target, or of `targets`, that a request asks for.

    `skipped` and `hints` say why others have none.
    """
    found, references, skipped, hints = [], [], [], []
    place: dict[str, str] = {}
    own = own_digest()
    for target in request.get("targets") or [request["target"]]:
        source = target.partition("::")[0]
        loaded = load(Target.parse(target))
        for kernel in loaded:
            try:
                for space in _spaces_of(kernel, f"{source}::{kernel.name}", request, backend):
                    found.append(msgspec.to_builtins(space))
                    references.append(route_of(kernel, space, backend))
            except UsageError as error:
                if len(loaded) == 1:
                    raise
                skipped.append(error.message)
                hints.append(error.hint or "")
        place |= {f"sources of {source}": sources_of(loaded[0]), f"verify of {source}": own}
    return {"spaces": found, "references": references, "skipped": skipped, "hints": hints, "place": place}


def _spaces_of(kernel: Kernel, target: str, request: dict[str, Any], backend: Backend) -> list[Space]:
    who = f"kernel {kernel.name!r}"
    if backend.name not in kernel.backends:
        raise UsageError(
            f"{who} is declared for {', '.join(kernel.backends)}; this sweep is on {backend.name}",
            hint="verify doctor",
        )
    if kernel.lacking:
        lacking = ", ".join(kernel.lacking)
        raise UsageError(
            f"{who} needs {lacking}, which is not installed", hint=f"install {lacking} for {sys.executable}"
        )
    shape, wanted = shape_of(kernel.op), [named(name).name for name in request["dtypes"]]
    dtypes = [name for name in kernel.dtypes if not wanted or name in wanted]
    if wanted and not dtypes:
        raise undeclared(kernel, target, wanted)
    if shape is None:
        space_of(kernel, target, kernel.dtypes[0])  # says why
    if shape not in (None, "unary") and not request["pairs"]:
        raise UsageError(
            f"{who} has two operands: --pairs sweeps all 2^32 pairs of a 16-bit dtype",
            hint=f"verify sweep {shlex.quote(target)} --pairs",
        )
    narrow = request["bounds"] or request["regime"]
    limit = 32 if shape == "unary" and (backend.name == "cuda" or wanted or narrow) else SLOW_BITS
    if not wanted:
        dtypes = [name for name in dtypes if named(name).bits <= limit]
    bounds = request["bounds"]
    return [
        space_of(
            kernel,
            target,
            name,
            results=tuple(request["results"]),
            bounds=None if bounds is None else (float(bounds[0]), float(bounds[1])),
            regime=request["regime"],
            baseline=request["baseline"],
            hardest=request["hardest"],
        )
        for name in dtypes
    ]


def chunks(request: dict[str, Any], backend: Backend, emit: Emit) -> dict[str, Any]:
    """The partial result of some chunks of a space: of the first ones, where all take longer than `seconds`."""
    space = msgspec.convert(request["space"], Space)
    kernel = load(Target.parse(space.target))[0]
    low, high = request["chunks"]
    last = time.monotonic()

    def report(done: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= REPORT_SECONDS:
            last = now
            emit({"progress": str(done)})

    partial = check(kernel, space, (low, high), backend, progress=report, seconds=request["seconds"])
    return {"partial": partial.encode().decode()}


def record(request: dict[str, Any], backend: Backend, emit: Emit) -> dict[str, Any]:
    """The record of one result of a kernel over a space, from everything that was found."""
    space = msgspec.convert(request["space"], Space)
    kernel = load(Target.parse(space.target))[0]
    name = request["result"]
    first, *others = (_only(Partial.decode(item.encode()), name) for item in request["partials"])
    for other in others:
        first = first.merge(other)
    done = finish(kernel, space, first, seconds=request["seconds"], curve=request["curve"], only=(name,))
    return {"run": msgspec.to_builtins(done)}


def _only(partial: Partial, result: str) -> Partial:
    """What a partial result holds of one result."""
    wanted = (result, BASELINE + result)
    return msgspec.structs.replace(
        partial, parts={name: part for name, part in partial.parts.items() if name in wanted}
    )
