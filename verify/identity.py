"""The identity of a record: a hash of everything in it but dates and timings."""

from __future__ import annotations

import hashlib

import msgspec

from verify.record import Run


def identity(run: Run) -> str:
    """12 hex digits of everything in a run but dates and timings."""
    timeless = msgspec.structs.replace(
        run,
        id="",
        created="",
        seconds=0.0,
        kernels=[msgspec.structs.replace(item, seconds=0.0, speed=[]) for item in run.kernels],
        stages=[msgspec.structs.replace(item, seconds=0.0) for item in run.stages],
    )
    return hashlib.sha256(msgspec.json.encode(timeless, order="deterministic")).hexdigest()[:12]
