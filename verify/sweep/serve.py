"""The worker's side of a sweep: spaces of a target, chunks of a space, and the record of what was found."""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

import verify
from verify.backends import Backend
from verify.declaration import Kernel, Target, load
from verify.errors import UsageError
from verify.formats import named
from verify.sweep.checking import BASELINE, check, route_of
from verify.sweep.finishing import finish
from verify.sweep.partial import Partial
from verify.sweep.scope import shape_of, space_of, undeclared
from verify.sweep.space import Space

# what decides a figure: a journal that other code of these began is not continued
DECIDING = ("formats", "ulp", "tally", "regimes", "curve", "measure", "ops", "truth", "sweep", "backends")
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


def sources_of(kernel: Kernel) -> str:
    """Digest of every module of the kernel's project that is loaded: a changed kernel is another kernel."""
    path = Path(kernel.file).resolve()
    root = next((p for p in path.parents if (p / "pyproject.toml").exists()), path.parent)
    total = hashlib.sha256()
    for name in sorted(sys.modules):
        if name.partition(".")[0] == "verify":
            continue
        file = getattr(sys.modules[name], "__file__", None)
        if not isinstance(file, str) or not os.path.isabs(file) or "site-packages" in file:
            continue
        if root in _folders_of(file) and Path(file).is_file():
            total.update(name.encode() + b"\0" + Path(file).read_bytes() + b"\0")
    return total.hexdigest()[:12]


@cache
def _folders_of(file: str) -> frozenset[Path]:
    """The folders around the file of a module; kept, as links are followed at each of thousands of modules."""
    return frozenset(Path(file).resolve().parents)


def own_digest() -> str:
    """Digest of the parts of verify that a figure hangs on."""
    folder = Path(verify.__file__).parent
    total = hashlib.sha256()
    for part in DECIDING:
        for file in sorted((folder / part).rglob("*.py")) or [folder / f"{part}.py"]:
            total.update(str(file.relative_to(folder)).encode() + b"\0" + file.read_bytes() + b"\0")
    return total.hexdigest()[:12]
