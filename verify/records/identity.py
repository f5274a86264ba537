"""Computes the identity of a record, a hash of all but dates, timings and memory, and adds it to the record."""

from __future__ import annotations

import datetime
import hashlib

import msgspec

from verify.errors import IN_ERROR
from verify.records.contradictions import contradictions
from verify.records.record import Gap, Run


def identity(run: Run) -> str:
    """Returns 12 hex digits of everything in a run but dates, timings and memory."""
    timeless = msgspec.structs.replace(
        run,
        id="",
        created="",
        seconds=0.0,
        kernels=[msgspec.structs.replace(item, seconds=0.0, speed=[], peak={}) for item in run.kernels],
        stages=[msgspec.structs.replace(item, seconds=0.0) for item in run.stages],
    )
    return hashlib.sha256(msgspec.json.encode(timeless, order="deterministic")).hexdigest()[:12]


def sealed(run: Run, seconds: float) -> Run:
    """Returns a finished run with its identity, the present time and its duration.

    If the figures of a kernel contradict each other, the kernel loses its verdict, and the run gets a gap.
    """
    kernels, gaps = [], list(run.incomplete)
    for kernel in run.kernels:
        if found := next(contradictions(kernel), None):
            said = f"{IN_ERROR}: {found[1]} - at `{found[0]}`"
            gaps.append(Gap("harness error", f"{kernel.name}: {said}", kernel.target))
            kernel = msgspec.structs.replace(kernel, status="skipped", message=said, results=[], laws=[])
        kernels.append(kernel)
    run = msgspec.structs.replace(run, kernels=kernels, incomplete=gaps)
    return msgspec.structs.replace(
        run,
        id=identity(run),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        seconds=round(seconds, 3),
    )
