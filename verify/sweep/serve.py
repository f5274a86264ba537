"""The worker's side of a sweep: spaces of a target, chunks of a space, and the record of what was found."""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

import verify
from verify.backends import Backend
from verify.declaration import Kernel, Target, load
from verify.errors import UsageError
from verify.formats import named
from verify.sweep.checking import check, route_of
from verify.sweep.finishing import finish
from verify.sweep.partial import Partial
from verify.sweep.scope import shape_of, space_of, undeclared
from verify.sweep.space import Space

# what decides a figure: a journal that other code of these began is not continued
DECIDING = ("formats", "ulp", "tally", "regimes", "curve", "measure", "ops", "truth", "sweep", "backends")
SLOW_BITS = 16  # without a GPU float32 is swept where it is asked for by name

Emit = Callable[[dict[str, Any]], None]


def spaces(request: dict[str, Any], backend: Backend, emit: Emit) -> dict[str, Any]:
    """Every space of a target's kernels that a request asks for; `skipped` and `hints` say why others have none."""
    found, references, skipped, hints = [], [], [], []
    source = request["target"].partition("::")[0]
    loaded = load(Target.parse(request["target"]))
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
    return {
        "spaces": found,
        "references": references,
        "skipped": skipped,
        "hints": hints,
        "place": {"sources": sources_of(loaded[0]), "verify": own_digest()},
    }


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
    """The partial result of some chunks of a space."""
    space = msgspec.convert(request["space"], Space)
    kernel = load(Target.parse(space.target))[0]
    low, high = request["chunks"]
    partial = check(kernel, space, (low, high), backend, progress=lambda done: emit({"progress": str(done)}))
    return {"partial": partial.encode().decode()}


def record(request: dict[str, Any], backend: Backend, emit: Emit) -> dict[str, Any]:
    """The record of a kernel over a space from everything that was found."""
    space = msgspec.convert(request["space"], Space)
    kernel = load(Target.parse(space.target))[0]
    partial = Partial.decode(request["partial"].encode())
    done = finish(kernel, space, partial, seconds=request["seconds"], curve=request["curve"])
    return {"run": msgspec.to_builtins(done)}


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
        if root in Path(file).resolve().parents and Path(file).is_file():
            total.update(name.encode() + b"\0" + Path(file).read_bytes() + b"\0")
    return total.hexdigest()[:12]


def own_digest() -> str:
    """Digest of the parts of verify that a figure hangs on."""
    folder = Path(verify.__file__).parent
    total = hashlib.sha256()
    for part in DECIDING:
        for file in sorted((folder / part).rglob("*.py")) or [folder / f"{part}.py"]:
            total.update(str(file.relative_to(folder)).encode() + b"\0" + file.read_bytes() + b"\0")
    return total.hexdigest()[:12]
