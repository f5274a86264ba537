"""Merges several records of one machine: the stages of a nightly run, or a sweep and the run that it completes.

It averages and chooses nothing: the record lists all results, each with its basis, and the worst status counts.
"""

import datetime
import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, get_args

import msgspec

from verify.errors import IN_ERROR, UsageError
from verify.records.contradictions import contradictions
from verify.records.readings import Source, arch_of
from verify.records.record import SCHEMA, Gap, KernelRun, Run, Stage


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


# In two records of a kernel, the later status counts.
ORDER = "skipped interrupted ok vacuous undecided wrong timeout crashed error".split()


def merge(runs: Sequence[Run], *, command: str, profile: str, stages: Sequence[Stage] = ()) -> Run:
    """Returns one record of everything in `runs`, in their order. Raises UsageError if the environments differ.

    If there are stages, the record took their time: that of a stage has all its starts, that of a run only the last.
    """
    if not runs:
        raise UsageError("merging takes at least one record; received none")
    first = runs[0]
    demand_same(runs, "merge", ("backend",), None)
    bare = msgspec.structs.replace(
        first,
        schema=SCHEMA,
        command=command,
        profile=profile,
        kernels=by_kernel(chain.from_iterable(run.kernels for run in runs)),
        incomplete=list(dict.fromkeys(gap for run in runs for gap in run.incomplete)),
        stages=list(stages),
    )
    return sealed(bare, sum(part.seconds for part in stages or runs))


def shards(runs: Sequence[Run], command: str) -> Run:
    """Returns one record of runs of one command that divided kernels or dtypes, each measured once."""
    demand_same(runs, "merge", ("profile", "seed", "backend"), None)
    results = [(kernel.target, result) for run in runs for kernel in run.kernels for result in kernel.results]
    keys = Counter((target, result.output, result.dtype, result.source) for target, result in results)
    if twice := next((key for key, count in keys.items() if count > 1), None):
        said = f"each result is in one of the records that merge; {' '.join(twice[:3])} is in two"
        raise UsageError(said, hint=TWO_MEASUREMENTS)
    return merge(runs, command=command, profile=runs[0].profile)


TWO_MEASUREMENTS = "verify compare BASE.json HEAD.json  (two measurements of the same kernels)"
TREE = ("commit", "torch", "triton", "cuda")  # the code that a record measured


def demand_one_tree(runs: Sequence[Run]) -> None:
    """Raises UsageError if runs on one machine measured different code, or the same results with different seeds."""
    for arch in dict.fromkeys(map(arch_of, runs)):
        alike = [run for run in runs if arch_of(run) == arch]
        demand_same(alike, "are judged together", (), TREE)
        for source in get_args(Source):
            sampled = [run for run in alike if source in {each.source for k in run.kernels for each in k.results}]
            demand_same(sampled, "are judged together", ("seed",), ())


def demand_same(runs: Sequence[Run], what: str, fields: Sequence[str], names: Sequence[str] | None) -> None:
    """Raises UsageError, with all that differs, if runs differ in fields or in entries of their environment.

    `names` are those entries, None all but `dirty`.
    """
    known = sorted({name for run in runs for name in run.environment} - {"dirty"}) if names is None else names
    each = [(name, [getattr(run, name) for run in runs]) for name in fields]
    each += [(name, [run.environment.get(name) for run in runs]) for name in known]
    differing = {name: dict.fromkeys(map(repr, values)) for name, values in each if any(v != values[0] for v in values)}
    if differing:
        texts = "; ".join(f"{name} is {' and '.join(values)}" for name, values in differing.items())
        raise UsageError(f"records of one {', '.join(differing)} {what}; {texts}", hint=TWO_MEASUREMENTS)


def by_kernel(entries: Iterable[KernelRun]) -> list[KernelRun]:
    """Merges the entries of each kernel into one, in the order of first occurrence."""
    found: dict[str, KernelRun] = {}
    for item in entries:
        found[item.target] = together(found[item.target], item) if item.target in found else item
    return list(found.values())


def together(one: KernelRun, two: KernelRun) -> KernelRun:
    """Merges two entries of the same kernel. Raises UsageError if they declare it differently."""
    both = {name: (getattr(one, name), getattr(two, name)) for name in one.__struct_fields__}
    for name in ("name", "op", "params", "peer"):
        first, second = both[name]
        if first != second:
            said = f"{one.target} is declared differently in two records: {name} is {first!r} and {second!r}"
            raise UsageError(said)
    worse = max(one, two, key=lambda item: ORDER.index(item.status))
    merged: dict[str, Any] = {name: getattr(worse, name) for name in ("status", "message", "hint")}
    merged |= {name: list(chain(*both[name])) for name in ("results", "laws", "unmeasured", "gaps", "speed")}
    merged |= {name: list(dict.fromkeys(chain(*both[name]))) for name in ("notes", "left")}
    merged |= {name: _largest(*both[name]) for name in ("sizes", "peak")}
    merged |= {name: both[name][0] or both[name][1] for name in ("unrepeatable", "definition")}
    merged["printed"] = one.printed.plus(two.printed) if one.printed else two.printed
    merged["seconds"] = round(one.seconds + two.seconds, 3)
    return msgspec.structs.replace(one, **merged)


def _largest(one: dict[str, int], two: dict[str, int]) -> dict[str, int]:
    """Returns the larger size under each name."""
    return {**one, **{name: max(size, one.get(name, 0)) for name, size in two.items()}}
