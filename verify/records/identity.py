"""The identity of a record, a hash of everything in it but dates and timings, and the seal that puts it there."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from verify.records.record import SCHEMA, KernelRun, Run


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


def assembled(
    about: Mapping[str, Any],
    *,
    command: str,
    seed: int,
    profile: str,
    kernels: list[KernelRun],
    incomplete: list[str],
    seconds: float,
) -> Run:
    """The sealed record of kernels on the backend and in the environment that a worker answered with (`about`)."""
    bare = Run(
        schema=SCHEMA,
        id="",
        created="",
        command=command,
        backend=about["backend"],
        seed=seed,
        profile=profile,
        environment=about["environment"],
        kernels=kernels,
        incomplete=incomplete,
    )
    return sealed(bare, seconds)


def sealed(run: Run, seconds: float) -> Run:
    """A finished run with its identity, the moment and how long it took."""
    return msgspec.structs.replace(
        run,
        id=identity(run),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        seconds=round(seconds, 3),
    )
