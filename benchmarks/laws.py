"""Where the time of law cases goes: `python -m benchmarks.laws properties/gelu.py::gelu@float32 --json PATH`.

Each law of each kernel named is tried in one dtype for `--seconds`: its fixed cases, then cases by chance with the
sizes of the profile (`--profile nightly`). Per law: cases, milliseconds per case, and how much of that was Triton
compiling, or fetching from its cache, which another shape or alignment may ask for. `--functions N` also lists the
N Python functions that took the most time. One process measures what a case costs; several at once on one GPU, each
with a file of its own, measure what they cost each other.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from verify import backends


@dataclass
class Compiling:
    """What Triton compiled, and what it found compiled on disk."""

    new: int = 0
    new_seconds: float = 0.0
    fetched: int = 0
    fetched_seconds: float = 0.0


@dataclass(frozen=True)
class Figure:
    """One law on one kernel in one dtype. `slowest` is the dearest case after the first."""

    kernel: str
    dtype: str
    law: str
    cases: int
    ms: float
    median_ms: float
    compiling: Compiling
    slowest_ms: float
    slowest: str
    broken: str


@contextmanager
def compiling() -> Iterator[Compiling]:
    """Counts while it lasts."""
    found = Compiling()
    try:
        from triton import knobs
        from triton.runtime.jit import JITFunction
    except ImportError:
        yield found
        return
    hits = []
    before, compile_one = knobs.compilation.listener, JITFunction._do_compile

    def listen(**about: Any) -> None:
        hits.append(bool(about.get("cache_hit")))

    def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        hits.clear()
        started = time.perf_counter()
        try:
            return compile_one(self, *args, **kwargs)
        finally:
            taken = time.perf_counter() - started
            if hits and all(hits):
                found.fetched += 1
                found.fetched_seconds += taken
            else:
                found.new += 1
                found.new_seconds += taken

    knobs.compilation.listener, JITFunction._do_compile = listen, timed
    try:
        yield found
    finally:
        knobs.compilation.listener, JITFunction._do_compile = before, compile_one


def measured(law: Any, subject: Any, seconds: float) -> Figure | None:
    """Cases of a law until the time is over; None where it does not apply."""
    from verify.laws.engine import attempt
    from verify.laws.law import Broken

    if law.applies(subject) is not None:
        return None
    generator = random.Random(f"{law.name}/{subject.kernel.name}/{subject.dtype}")
    ended = time.perf_counter() + seconds
    queue = list(law.fixed(subject))
    space = law.space(subject)
    taken: list[tuple[float, str]] = []
    broken = ""
    with compiling() as compiled:
        while time.perf_counter() < ended:
            case = queue.pop(0) if queue else space.roll(generator)
            started = time.perf_counter()
            try:
                attempt(law, subject, case)
            except Broken as failure:
                broken = broken or f"{failure.rule} {case.to_json()}"
            taken.append((time.perf_counter() - started, case.to_json()))
    slowest = max(taken[1:] or taken)
    times = sorted(each for each, _ in taken)
    return Figure(
        kernel=subject.kernel.name,
        dtype=subject.dtype,
        law=law.name,
        cases=len(taken),
        ms=round(1e3 * sum(times) / len(times), 3),
        median_ms=round(1e3 * times[len(times) // 2], 3),
        compiling=compiled,
        slowest_ms=round(1e3 * slowest[0], 1),
        slowest=slowest[1],
        broken=broken,
    )


def functions(profile: cProfile.Profile, most: int) -> list[str]:
    """The functions in which most time was spent, themselves alone."""
    stats: Any = pstats.Stats(profile)
    rows = sorted(stats.stats.items(), key=lambda item: -item[1][2])[:most]
    return [
        f"{own:8.3f} s own {total:8.3f} s in all {calls:8d} calls  {'/'.join(Path(file).parts[-2:])}:{line} {name}"
        for (file, line, name), (_, calls, own, total, _) in rows
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.laws", description=__doc__)
    parser.add_argument("targets", nargs="+", metavar="FILE::KERNEL[@DTYPE]")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each law of a kernel (default 1)")
    parser.add_argument("--law", action="append", help="only this law (repeatable)")
    parser.add_argument("--profile", default="nightly")
    parser.add_argument("--functions", type=int, default=0, metavar="N")
    parser.add_argument("--backend", choices=["cuda", "interpreter"])
    parser.add_argument("--json", type=Path, required=True, metavar="PATH")
    options = parser.parse_args()
    backend = backends.select(options.backend)
    backends.activate(backend)

    import torch

    from verify.declare.discovery import load
    from verify.declare.target import Target
    from verify.laws import registry
    from verify.laws.engine import PROFILES
    from verify.laws.law import Subject

    torch.set_num_threads(1)
    sizes = PROFILES[options.profile].sizes[backend.scale]
    figures: list[Figure] = []
    profile = cProfile.Profile()
    if options.functions:
        profile.enable()
    for named in options.targets:
        target, _, dtype = named.partition("@")
        for kernel in load(Target.parse(target)):
            for law in registry.ALL:
                if options.law and law.name not in options.law:
                    continue
                subject = Subject(kernel, dtype or kernel.dtypes[0], backend, sizes, target)
                figure = measured(law, subject, options.seconds)
                if figure is None:
                    continue
                figures.append(figure)
                made = figure.compiling
                print(
                    f"{figure.kernel[:28]:<28} {figure.dtype:<9} {figure.law:<28} {figure.cases:5d} cases "
                    f"{figure.ms:9.2f} ms (median {figure.median_ms:8.2f}, slowest {figure.slowest_ms:8.1f})  "
                    f"compiled {made.new:4d} {made.new_seconds:6.2f} s  fetched {made.fetched:4d} "
                    f"{made.fetched_seconds:6.2f} s{'  BROKEN ' + figure.broken if figure.broken else ''}",
                    flush=True,
                )
    profile.disable()
    found = functions(profile, options.functions) if options.functions else []
    print("\n".join(found))
    document = {"device": backend.label, "figures": [asdict(each) for each in figures], "functions": found}
    options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
