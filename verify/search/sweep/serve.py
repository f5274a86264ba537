"""Answers requests of a sweep in a worker: the spaces of a target, chunks of a space, and the record."""

from __future__ import annotations

import shlex
import sys
import time

from verify.backends import Backend, runs_on
from verify.declare.declaration import Kernel
from verify.declare.discovery import load
from verify.declare.sources import sources_of
from verify.declare.target import Target
from verify.errors import UsageError
from verify.records.commit import own_digest
from verify.records.record import KernelRun, value_of
from verify.search.sweep.checking import check
from verify.search.sweep.finishing import finish
from verify.search.sweep.requests import ListSpaces, RecordSweep, Spaces, SweepChunks
from verify.search.sweep.scope import apart, shape_of, space_of, undeclared
from verify.search.sweep.space import Partial, Space
from verify.truth.formats import named
from verify.workers.requests import OnProgress

REPORT_SECONDS = 0.1  # between two reports of progress, each of which is an event of the cluster
SLOW_BITS = 16  # without a GPU, wider dtypes are swept only if they are requested by name


def spaces(request: ListSpaces, backend: Backend) -> Spaces:
    """Returns every space of the kernels of some targets. `skipped` and `hints` say why other kernels have none.

    `place` holds digests of the code on which the figures depend. A sweep of other code is not continued.
    """
    found = Spaces([], [], [], {})
    own = own_digest()
    for text in request.targets:
        target = Target.parse(text)
        loaded = load(target)
        for kernel in loaded:
            try:
                found.spaces.extend(_spaces_of(kernel, str(target.of(kernel.name)), request, backend))
            except UsageError as error:
                if len(loaded) == 1:
                    raise
                found.skipped.append(error.message)
                found.hints.append(error.hint or "")
        found.place[f"sources of {target.source}"] = sources_of(loaded[0])
        found.place[f"verify of {target.source}"] = own
    if request.needs_pairs and found.spaces and all(space.shape == "unary" for space in found.spaces):
        one = found.spaces[0].target
        raise UsageError(
            f"--pairs sweeps kernels of two operands; {one} has one", hint=f"verify sweep {shlex.quote(one)}"
        )
    return found


def _spaces_of(kernel: Kernel, target: str, request: ListSpaces, backend: Backend) -> list[Space]:
    """Returns the spaces of a kernel, one for each dtype. Raises UsageError if it cannot be swept."""
    who = f"kernel {kernel.name!r}"
    if not runs_on(kernel.backends, backend.name):
        raise UsageError(
            f"{who} is declared for {', '.join(kernel.backends)}; this sweep is on {backend.name}",
            hint="verify doctor",
        )
    if kernel.lacking:
        lacking = ", ".join(kernel.lacking)
        raise UsageError(
            f"{who} needs {lacking}, which is not installed", hint=f"install {lacking} for {sys.executable}"
        )
    shape, wanted = shape_of(kernel.op), [named(name).name for name in request.dtypes]
    dtypes = [name for name in kernel.dtypes if not wanted or name in wanted]
    if wanted and not dtypes:
        raise undeclared(kernel, target, wanted)
    if shape is None:
        space_of(kernel, target, kernel.dtypes[0])  # raises the error that says why
    if shape not in (None, "unary") and not request.pairs:
        raise UsageError(
            f"{who} has two operands: --pairs sweeps all 2^32 pairs of a 16-bit dtype",
            hint=f"verify sweep {shlex.quote(target)} --pairs",
        )
    narrow = request.bounds or request.regime
    limit = 32 if shape == "unary" and (backend.scale == "large" or wanted or narrow) else SLOW_BITS
    if not wanted:
        dtypes = [name for name in dtypes if named(name).bits <= limit]
        dtypes = [name for name in dtypes if not apart(kernel, name)] or dtypes  # `space_of` says why
    given = request.bounds
    bounds = request.regime or (None if given is None else (value_of(given[0]), value_of(given[1])))
    return [
        space_of(
            kernel,
            target,
            name,
            results=request.results,
            bounds=bounds,
            baseline=request.baseline,
            hardest=request.hardest,
        )
        for name in dtypes
    ]


def chunks(request: SweepChunks, backend: Backend, progress: OnProgress) -> Partial:
    """Returns the partial result of some chunks, of only the first ones if all take longer than `seconds`."""
    kernel = load(Target.parse(request.space.target))[0]
    last = time.monotonic()

    def report(done: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= REPORT_SECONDS:
            last = now
            progress(str(done))

    return check(kernel, request.space, request.chunks, backend, progress=report, seconds=request.seconds)


def record(request: RecordSweep) -> KernelRun:
    """Returns the record of one result of a kernel over a space, from all findings."""
    kernel = load(Target.parse(request.space.target))[0]
    only = (request.result,)
    return finish(kernel, request.space, request.partial, seconds=request.seconds, curve=request.curve, only=only)
