"""Answers requests of a sweep in a worker: the spaces of a target, chunks of a space, and the record."""

import shlex
import sys
import time
from collections.abc import Sequence
from typing import Literal

from verify.backends import Backend, runs_on
from verify.declare.declaration import Kernel
from verify.declare.discovery import load
from verify.declare.promises import differing
from verify.declare.sources import sources_of
from verify.declare.target import Target
from verify.errors import UsageError
from verify.ops.op import Op
from verify.records.commit import own_digest
from verify.records.record import KernelRun, value_of
from verify.search.sweep.checking import check
from verify.search.sweep.finishing import finish
from verify.search.sweep.requests import ListSpaces, RecordSweep, Spaces, SweepChunks
from verify.search.sweep.space import PAIR_BITS, Partial, Space, key_of_value
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
            f"{who} is declared for {', '.join(kernel.backends)}; this sweep is on {backend.name}", hint="verify doctor"
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
    limit = 32 if shape == "unary" and (backend.scale == "large" or wanted or request.bounds) else SLOW_BITS
    if not wanted:
        dtypes = [name for name in dtypes if named(name).bits <= limit]
        dtypes = [name for name in dtypes if not apart(kernel, name)] or dtypes  # `space_of` says why
    bounds = request.bounds and (value_of(request.bounds[0]), value_of(request.bounds[1]))
    return [
        space_of(kernel, target, name, results=request.results, bounds=bounds, baseline=request.baseline)
        for name in dtypes
    ]


def chunks(request: SweepChunks, backend: Backend, progress: OnProgress) -> Partial:
    """Returns the partial result of some chunks."""
    kernel = load(Target.parse(request.space.target))[0]
    last = time.monotonic()

    def report(done: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= REPORT_SECONDS:
            last = now
            progress(str(done))

    return check(kernel, request.space, request.chunks, backend, progress=report)


def record(request: RecordSweep) -> KernelRun:
    """Returns the record of one result of a kernel over a space, from all findings."""
    kernel = load(Target.parse(request.space.target))[0]
    only = (request.result,)
    return finish(kernel, request.space, request.partial, seconds=request.seconds, curve=request.curve, only=only)


# -- the space of one kernel in one dtype --------------------------------------------------------------------


def shape_of(op: Op) -> Literal["unary", "pairs", "packed pairs"] | None:
    """Returns how an op's inputs can be enumerated. None: they cannot."""
    if not op.geometry.by_element or op.gate != "plain":
        return None
    if len(op.operands) == 1:
        return "packed pairs" if op.geometry.packed else "unary"
    return "pairs" if len(op.operands) == 2 else None


def apart(kernel: Kernel, dtype: str) -> dict[str, str]:
    """Maps each operand whose dtype differs from the case's to that dtype. Such operands have no common order."""
    return differing(dtype, kernel.operand_dtypes.get(dtype, {}))


def space_of(
    kernel: Kernel,
    target: str,
    dtype: str,
    *,
    results: tuple[str, ...] = (),
    bounds: tuple[float, float] | tuple[int, int] | None = None,
    baseline: bool = False,
) -> Space:
    """Returns the space of one kernel in one dtype.

    `bounds` are values, both included, or keys (as ints, half-open).
    """
    shape, fmt = shape_of(kernel.op), named(dtype)
    who, again = f"kernel {kernel.name!r}", f"verify sweep {shlex.quote(target)}"
    elsewhere = f"verify run {shlex.quote(target)}"
    if shape is None:
        raise UsageError(
            f"a sweep enumerates the inputs of elementwise ops judged by the plain error; {who} computes "
            f"{kernel.op.name}, which is not one",
            hint=elsewhere,
        )
    if mixed := apart(kernel, dtype):
        said = ", ".join(f"{name} as {item}" for name, item in mixed.items())
        raise UsageError(
            f"a sweep enumerates kernels of one dtype; {who} has {said} beside {dtype}",
            hint=f"{elsewhere} --dtype {dtype}",
        )
    if dtype not in kernel.dtypes:
        raise undeclared(kernel, target, [dtype])
    if fmt.bits > (32 if shape == "unary" else PAIR_BITS):
        what = f"2^{fmt.bits}" if shape == "unary" else f"2^{2 * fmt.bits}"
        raise UsageError(
            f"{who} in {dtype} has {what} inputs, too many to enumerate", hint=f"{elsewhere} --dtype {dtype}"
        )
    known = (*kernel.outputs, *("d" + operand.name for operand in kernel.differentiable))
    for name in results:
        if name not in known:
            raise UsageError(
                f"{who} has results {', '.join(known)}; received {name!r}", hint=f"{again} --result {known[0]}"
            )
    if shape != "unary" and fmt.bits != PAIR_BITS:
        raise UsageError(
            f"{who} has two operands, whose pairs are enumerated in 16-bit dtypes; received {dtype}",
            hint=f"{elsewhere} --dtype {dtype}",
        )
    start, stop = 0, 1 << fmt.bits
    if bounds is not None and all(isinstance(bound, int) for bound in bounds):
        start, stop = int(bounds[0]), int(bounds[1])
    elif bounds is not None:
        start, stop = key_of_value(fmt, bounds[0]), key_of_value(fmt, bounds[1], above=True)
    if not 0 <= start < stop <= 1 << fmt.bits:
        raise UsageError(
            f"{who}: {dtype} has no number in the requested range", hint=f"{again} --dtype {dtype} --range=-1:1"
        )
    return Space(target, fmt.name, results or known, shape, start, stop, baseline and not kernel.peer)


def undeclared(kernel: Kernel, target: str, received: Sequence[str]) -> UsageError:
    """Returns the error about undeclared dtypes. Its hint names the first declared dtype that can be swept."""
    most = 32 if shape_of(kernel.op) == "unary" else PAIR_BITS
    declared, where = ", ".join(kernel.dtypes), shlex.quote(target)
    able = next((name for name in kernel.dtypes if named(name).bits <= most), None)
    return UsageError(
        f"kernel {kernel.name!r} declares {declared}; received {', '.join(received)}",
        hint=f"verify run {where}" if able is None else f"verify sweep {where} --dtype {able}",
    )
