"""Correct twins under many cases of every law: `python -m tests.mutants.endurance --state PATH` counts false alarms.

Each law is tried on every twin to which it applies, in chunks of `--chunk` cases, each chunk from a seed of its own
(its number), until the law has had `--cases` cases over all twins, or `--seconds` are over. A finished chunk is a line
of the state file, so that a run that was stopped goes on where it was; `--shard 2/8` takes every eighth chunk, for as
many processes as there are cores, each with a state file of its own. `--report PATH ...` adds state files up.

Exit code 1: a law raised an alarm against a correct kernel, or the harness failed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from verify import backends


def chunks(laws: Iterable[Any], twins: list[Any], cases: int, chunk: int, applicable: Any) -> Iterator[tuple[Any, ...]]:
    """(law, twin, number) of every chunk: one of each law in turn, so that a run cut short has seen them all."""
    waiting = []
    for law in laws:
        fitting = [twin for twin in twins if applicable(law, twin)]
        if fitting:
            count = -(-cases // chunk)
            waiting.append([(law, fitting[n % len(fitting)], n // len(fitting)) for n in range(count)])
    for turn in range(max(map(len, waiting), default=0)):
        for row in waiting:
            if turn < len(row):
                yield row[turn]


def report(paths: list[Path]) -> int:
    """One line per law over all state files."""
    cases: Counter[str] = Counter()
    twins: dict[str, set[str]] = {}
    alarms = []
    seen = set()
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            key = (entry["law"], entry["twin"], entry["number"])
            if key in seen:
                continue
            seen.add(key)
            cases[entry["law"]] += entry["cases"]
            twins.setdefault(entry["law"], set()).add(entry["twin"])
            alarms += [(entry["law"], entry["twin"], entry["alarm"])] if entry["alarm"] else []
    for law, count in cases.items():
        failed = sum(alarm[0] == law for alarm in alarms)
        print(f"{law:<28} {count:>8,} cases  {len(twins[law]):>3} twins  {failed} alarms")
    for law, twin, alarm in alarms:
        print(f"ALARM {law} on {twin}: {alarm}")
    return int(bool(alarms))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.endurance", description=__doc__)
    parser.add_argument("--state", type=Path, metavar="PATH")
    parser.add_argument("--report", type=Path, nargs="+", metavar="PATH")
    parser.add_argument("--cases", type=int, default=20_000, help="per law, over all twins (default 20,000)")
    parser.add_argument("--chunk", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--shard", default="0/1", help="K/N: every N-th chunk from K on")
    parser.add_argument("--law", action="append", help="only this law (repeatable)")
    parser.add_argument("--without", action="append", default=[], metavar="LAW")
    parser.add_argument("--backend", choices=["cuda", "interpreter"])
    options = parser.parse_args()
    if options.report:
        return report(options.report)
    if options.state is None:
        parser.error("--state PATH says where finished chunks are written")
    backend = backends.select(options.backend)
    backends.activate(backend)
    return endure(options, backend)


def endure(options: argparse.Namespace, backend: backends.Backend) -> int:
    import torch

    from tests.mutants import mutants
    from tests.mutants.matrix import try_law
    from verify.laws import registry
    from verify.laws.engine import PROFILES, Profile
    from verify.laws.law import Subject

    torch.set_num_threads(1)
    sizes = PROFILES["ci"].sizes
    twins = list({mutant.twin.name: mutant.twin for mutant in mutants()}.values())
    chosen = [registry.get(name) for name in options.law or (law.name for law in registry.ALL)]
    laws = [replace(law, share=1.0) for law in chosen if law.name not in options.without]
    done = {
        (entry["law"], entry["twin"], entry["number"])
        for line in (options.state.read_text(encoding="utf-8").splitlines() if options.state.exists() else [])
        for entry in [json.loads(line)]
    }

    def applicable(law: Any, twin: Any) -> bool:
        return any(law.applies(Subject(twin, dtype, backend, sizes[backend.name])) is None for dtype in twin.dtypes)

    shard, shards = (int(part) for part in options.shard.split("/"))
    deadline = time.monotonic() + options.seconds
    alarms = 0
    with options.state.open("a", encoding="utf-8") as state:
        every = chunks(laws, twins, options.cases, options.chunk, applicable)
        for place, (law, twin, number) in enumerate(every):
            if place % shards != shard or (law.name, twin.name, number) in done:
                continue
            if time.monotonic() > deadline:
                break
            # the fixed cases once, then drawn ones from a new seed each time
            profile = Profile("endurance", options.chunk, sizes, seed=number, fixed=None if number == 0 else 0)
            started = time.process_time()
            trial = try_law(law, twin, backend, profile)
            alarm = f"{trial.reason} {trial.case}" if trial.fate in ("killed", "harness error") else ""
            alarms += bool(alarm)
            entry = {"law": law.name, "twin": twin.name, "number": number, "cases": trial.cases, "alarm": alarm}
            entry["cpu_seconds"] = round(time.process_time() - started, 3)
            state.write(json.dumps(entry) + "\n")
            state.flush()
            os.fsync(state.fileno())
    return int(alarms > 0)


if __name__ == "__main__":
    sys.exit(main())
