"""Correct twins under many cases of every law: `python -m mutants.endurance --state PATH` counts false alarms.

Each law is tried on every twin to which it applies, until it has had `--cases` cases over all twins, or `--seconds` are
over. `--jobs N` starts N worker processes, `--gpus K` spreads them over the first K GPUs. A worker stays with one twin
for a while, so that what is compiled for it serves many cases, and takes next the law that has had the least time:
where time is short, cheap laws reach their number and dear ones have had as much of it as the others.

The first chunk of a law and a twin is what the engine does: the law's fixed cases, then a short search. All others are
rolled, each factor of a case by chance: a correct kernel gives a search nothing to find. Of a law that compiles for
seconds each case that is rolled is followed by others with the same shape and layouts and other values. `--shipped`
tries the judged kernels of this repository in place of the twins.

A finished chunk, with a seed of its own (its number), is a line of the state file, so that a run that was stopped goes
on where it was. A worker that dies (an illegal access is the end of a process on a GPU) is an alarm, and replaced.
`--report PATH ...` adds state files up, of several machines perhaps, that took `--shard K/N` of the twins each. Where
the state of an earlier run is not there any more, `--first N` begins beyond its chunks, and `--add REPORT.json` counts
what it found.

Exit code 1: a law raised an alarm against a correct kernel, a worker died, or the harness failed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from verify import backends

CHUNK_SECONDS = 3.0  # what a chunk should take: short against a run, long against starting a search
FIRST, MOST = 5, 1000  # cases of a pair's first chunks, and of any
HANGS_SECONDS, GRACE_SECONDS = 600.0, 30.0  # for a chunk; for one that is under way when the time is over
STAY_SECONDS = 20.0  # with one twin, if others are waiting
# Far addresses, and more rows than a grid axis holds, belong to a GPU: the interpreter takes minutes for each case.
LARGE = ("large offsets", "large tensors")
SHARED = {"compiled": 25}  # cases with values of their own that share what is compiled
# One at a time holds many gigabytes of a GPU, while two more make their cases, judge, or wait for the memory.
HUGE, HUGE_AT_ONCE = ("large offsets", "large tensors"), 3

Chunk = dict[str, Any]


def entries_of(path: Path) -> list[Chunk]:
    """The finished chunks of a state file; the last line may have been cut off."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


# -- the worker: tries chunks that it reads from its standard input, one line each ----------------------


def pairs_of(backend: backends.Backend, *, shipped: bool = False) -> dict[tuple[str, str], tuple[Any, Any]]:
    """Every law with every twin of the zoo. Whether it applies shows when tried.

    With `shipped` every law with every judged kernel that the project declares, and no twin.
    """
    from mutants import mutants
    from verify.declare import config
    from verify.declare.discovery import load
    from verify.declare.target import Target
    from verify.laws import registry

    if shipped:
        declared = [kernel for target in config.find().kernels for kernel in load(Target.parse(target))]
        zoo = [kernel for kernel in declared if not kernel.peer]
    else:
        zoo = list({mutant.twin.name: mutant.twin for mutant in mutants()}.values())
    return {
        (law.name, twin.name): (replace(law, share=1.0), twin)
        for law in registry.ALL
        for twin in (zoo if backend.name == "cuda" or law.name not in LARGE else ())
    }


def sizes_for(law: str) -> dict[str, Any]:
    """How large the cases of a law are."""
    from verify.laws.engine import PROFILES

    sizes = dict(PROFILES["ci"].sizes)
    if law == "many rows" or law in LARGE:
        sizes["large"] = replace(sizes["large"], many_rows=70_000)
    return sizes


def rolled(law: Any, subjects: list[Any], number: int, count: int) -> tuple[int, str]:
    """How many cases of a chunk were tried, as many in each dtype, and the alarm of the last one, "" if there is none.

    What is rolled depends on the law, the twin, the dtype and the number of the chunk.
    """
    from verify.laws.engine import attempt
    from verify.laws.law import Broken

    tried, shared = 0, SHARED.get(law.name, 1)
    for place, subject in enumerate(subjects):
        space = law.space(subject)
        generator = random.Random(f"{law.name}/{subject.kernel.name}/{subject.dtype}/{number}")
        for turn, _ in enumerate(range(place, count, len(subjects))):
            if turn % shared == 0:
                case = space.roll(generator)
            else:
                case = msgspec.structs.replace(case, seed=generator.getrandbits(16))
            tried += 1
            try:
                attempt(law, subject, case)
            except Broken as broken:
                return tried, f"{broken.rule} {case.to_json()}"
    return tried, ""


def work(backend: backends.Backend, *, shipped: bool) -> int:
    """Answer each line {law, twin, number, cases} with the chunk's entry. Ends after an alarm: the GPU may be lost."""
    import torch

    from mutants.matrix import try_law
    from verify.laws.engine import Profile
    from verify.laws.law import Subject

    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a kernel prints is no answer
    pairs = pairs_of(backend, shipped=shipped)
    print(json.dumps([*pairs]), file=answers, flush=True)
    applying: dict[tuple[str, str], list[Subject]] = {}
    for line in sys.stdin:
        task = json.loads(line)
        pair = task["law"], task["twin"]
        law, twin = pairs[pair]
        sizes = sizes_for(law.name)
        started = time.monotonic()
        try:
            if task["number"] == 0:
                trial = try_law(law, twin, backend, Profile("endurance", task["cases"], sizes))
                alarm = f"{trial.reason} {trial.case}" if trial.fate in ("killed", "harness error") else ""
                cases = trial.cases
            else:
                if pair not in applying:
                    subjects = [Subject(twin, dtype, backend, sizes[backend.scale]) for dtype in twin.dtypes]
                    applying[pair] = [subject for subject in subjects if law.reason(subject) is None]
                cases, alarm = rolled(law, applying[pair], task["number"], task["cases"])
        except Exception as error:
            alarm, cases = f"the harness failed: {type(error).__name__}: {error}", 0
        entry = task | {"cases": cases, "alarm": alarm, "seconds": round(time.monotonic() - started, 3)}
        entry["device"] = backend.label
        if backend.name == "cuda" and law.name in LARGE:
            torch.cuda.empty_cache()  # the other workers need the memory
        print(json.dumps(entry), file=answers, flush=True)
        if alarm:
            return 1
    return 0


# -- the driver: who does what next ----------------------------------------------------------------------


@dataclass
class Schedule:
    """What is still to be tried. Chunks are taken and finished under one lock."""

    cases: int
    laws: list[str]
    shard: tuple[int, int]
    entries: list[Chunk]
    deadline: float
    first: int = 0  # number of a pair's first chunk
    at_once: int = 1  # how many chunks of a huge law
    begun: bool = False
    pairs: list[tuple[str, str]] = field(default_factory=list)
    had: Counter[tuple[str, str]] = field(default_factory=Counter)  # cases, those under way too
    chunks: Counter[tuple[str, str]] = field(default_factory=Counter)
    law_seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    twin_seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    pace: dict[tuple[str, str], float] = field(default_factory=dict)  # seconds per case
    busy: Counter[str] = field(default_factory=Counter)  # laws and twins that a worker is at

    def begin(self, pairs: list[tuple[str, str]]) -> None:
        """The pairs of laws and twins, as the first worker that started found them."""
        if self.begun:
            return
        self.begun = True
        twins = list(dict.fromkeys(twin for _, twin in pairs))
        place, of = self.shard
        mine = {twin for at, twin in enumerate(twins) if at % of == place}
        self.pairs = [(law, twin) for law, twin in pairs if twin in mine and (not self.laws or law in self.laws)]
        for entry in self.entries:
            self._add(entry)
            self.chunks[entry["law"], entry["twin"]] = max(
                self.chunks[entry["law"], entry["twin"]], entry["number"] + 1
            )
            self.had[entry["law"], entry["twin"]] += entry["cases"]

    def take(self, twin: str, since: float) -> Chunk | None:
        """The next chunk for a worker that has been at a twin since then; None when nothing is left, or no time."""
        if time.monotonic() > self.deadline:
            return None
        quota = {law: -(-self.cases // count) for law, count in Counter(law for law, _ in self.pairs).items()}
        open_pairs = [
            (law, name)
            for law, name in self.pairs
            if self.had[law, name] < quota[law] and not (law in HUGE and self.busy[law] >= self.at_once)
        ]
        if not open_pairs:
            return None
        if time.monotonic() - since > STAY_SECONDS or all(name != twin for _, name in open_pairs):
            twin = min((name for _, name in open_pairs), key=lambda name: (self.busy[name], self.twin_seconds[name]))
        law = min((law for law, name in open_pairs if name == twin), key=lambda law: self.law_seconds[law])
        pair = (law, twin)
        size = min(MOST, max(1, int(CHUNK_SECONDS / self.pace[pair]))) if pair in self.pace else FIRST
        size = min(size, quota[law] - self.had[pair])
        number = max(self.first, self.chunks[pair])
        self.chunks[pair] = number + 1
        self.had[pair] += size
        self.busy.update(pair)
        # as if it had taken its time already: the others choose another law
        self.law_seconds[law] += CHUNK_SECONDS
        return {"law": law, "twin": twin, "number": number, "cases": size}

    def finish(self, task: Chunk, entry: Chunk) -> None:
        """Book what a chunk took in the end."""
        pair = (task["law"], task["twin"])
        self.busy.subtract(pair)
        self.had[pair] += entry["cases"] - task["cases"]
        self.law_seconds[task["law"]] -= CHUNK_SECONDS
        self._add(entry)
        if not entry["cases"] and not entry["alarm"]:  # the law does not apply to this twin
            self.pairs.remove(pair)

    def _add(self, entry: Chunk) -> None:
        self.law_seconds[entry["law"]] += entry["seconds"]
        self.twin_seconds[entry["twin"]] += entry["seconds"]
        if entry["cases"] and entry["number"]:  # the first chunk compiles, and has the fixed cases
            self.pace[entry["law"], entry["twin"]] = entry["seconds"] / entry["cases"]


def serve(schedule: Schedule, lock: threading.Lock, state: Any, command: list[str], gpus: str) -> None:
    """Keep one worker busy until nothing is left; replace it when it ends."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | ({"CUDA_VISIBLE_DEVICES": gpus} if gpus else {})
    worker: subprocess.Popen[str] | None = None
    twin, since, failures = "", 0.0, 0
    while failures < 3:
        if worker is None:
            worker = subprocess.Popen(
                command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            first = worker.stdout.readline()  # type: ignore[union-attr]
            if not first:
                worker, failures = None, failures + 1
                continue
            with lock:
                schedule.begin([(law, name) for law, name in json.loads(first)])
        with lock:
            task = schedule.take(twin, since)
        if task is None:
            break
        if task["twin"] != twin:
            twin, since = task["twin"], time.monotonic()
        started = time.monotonic()
        limit = threading.Timer(min(HANGS_SECONDS, max(0.0, schedule.deadline - started) + GRACE_SECONDS), worker.kill)
        limit.start()
        try:
            print(json.dumps(task), file=worker.stdin, flush=True)
            answer = worker.stdout.readline()  # type: ignore[union-attr]
        except BrokenPipeError:
            answer = ""
        limit.cancel()
        if not answer and time.monotonic() > schedule.deadline:
            break  # cut off, not dead
        died = {"cases": 0, "alarm": "the worker died", "seconds": round(time.monotonic() - started, 3)}
        entry = json.loads(answer) if answer else task | died
        with lock:
            schedule.finish(task, entry)
            if entry["cases"] or entry["alarm"]:
                print(json.dumps(entry), file=state, flush=True)
        if entry["alarm"]:
            worker.wait()
            worker, failures = None, failures if answer else failures + 1
    if worker is not None:
        worker.stdin.close()  # type: ignore[union-attr]
        worker.wait()


def drive(options: argparse.Namespace) -> None:
    """All workers, until everything was tried or the time is over."""
    place, of = (int(part) for part in options.shard.split("/"))
    schedule = Schedule(
        options.cases,
        options.law or [],
        (place, of),
        entries_of(options.state),
        time.monotonic() + options.seconds,
        first=options.first,
        at_once=HUGE_AT_ONCE * max(1, options.gpus),
    )
    command = [sys.executable, "-m", "mutants.endurance", "--worker"]
    command += ["--backend", options.backend] if options.backend else []
    command += ["--shipped"] if options.shipped else []
    lock, count = threading.Lock(), options.gpus
    with options.state.open("a", encoding="utf-8") as state:
        # a worker sees its own GPU first, and the next one, which the law of the other device asks for
        gpus = [list(dict.fromkeys((at % count, (at + 1) % count))) for at in range(options.jobs)] if count else []
        visible = [",".join(map(str, each)) for each in gpus] or [""] * options.jobs
        threads = [threading.Thread(target=serve, args=(schedule, lock, state, command, each)) for each in visible]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


# -- the report ------------------------------------------------------------------------------------------


def report(paths: list[Path], out: Path | None, earlier: list[Path] | None = None) -> int:
    """One line per law over all state files and earlier reports, and the same as JSON."""
    chunks = {(entry["law"], entry["twin"], entry["number"]): entry for path in paths for entry in entries_of(path)}
    by_law: defaultdict[str, list[Chunk]] = defaultdict(list)
    for entry in chunks.values():
        by_law[entry["law"]].append(entry)
    before = [json.loads(path.read_text(encoding="utf-8")) for path in earlier or []]
    past: defaultdict[str, list[Chunk]] = defaultdict(list)
    for row in (row for document in before for row in document["laws"]):
        past[row["law"]].append(row)
    rows = []
    for law in dict.fromkeys((*past, *by_law)):
        entries, told = by_law[law], past[law]
        cases, seconds = (sum(entry[what] for entry in (*entries, *told)) for what in ("cases", "seconds"))
        # a report has no names of twins: at least as many as one of them had
        twins = max(len({entry["twin"] for entry in entries}), *(row["twins"] for row in (*told, {"twins": 0})))
        alarms = sum(bool(entry["alarm"]) for entry in entries) + sum(row["alarms"] for row in told)
        rows.append({"law": law, "cases": cases, "twins": twins, "alarms": alarms, "seconds": round(seconds, 1)})
        rate = cases / seconds if seconds else 0.0
        print(f"{law:<28} {cases:>8,} cases  {twins:>3} twins  {alarms} alarms  {rate:8.1f} cases per second and core")
    found = [entry for document in before for entry in document["alarms"]]
    found += [entry for entry in chunks.values() if entry["alarm"]]
    for entry in found:
        print(f"ALARM {entry['law']} on {entry['twin']}, chunk {entry['number']}: {entry['alarm']}")
    total = sum(row["cases"] for row in rows)
    print(f"{total:,} cases of {len(rows)} laws, {len(found)} alarms")
    if out is not None:
        devices = {entry["device"] for entry in chunks.values() if "device" in entry}
        devices |= {device for document in before for device in document["devices"]}
        document = {"devices": sorted(devices), "cases": total, "laws": rows, "alarms": found}
        out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return int(bool(found) or not rows)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m mutants.endurance", description=__doc__)
    parser.add_argument("--state", type=Path, metavar="PATH")
    parser.add_argument("--report", type=Path, nargs="+", metavar="PATH")
    parser.add_argument("--add", type=Path, nargs="+", metavar="JSON", help="earlier reports that count, too")
    parser.add_argument("--json", type=Path, metavar="PATH", help="the report as JSON")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number of the first chunk (default 0)")
    parser.add_argument("--cases", type=int, default=20_000, help="per law, over all twins (default 20,000)")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="worker processes")
    parser.add_argument("--gpus", type=int, default=0, metavar="K", help="spread the workers over the first K GPUs")
    parser.add_argument("--shard", default="0/1", help="K/N: every N-th twin from the K-th on")
    parser.add_argument("--law", action="append", help="only this law (repeatable)")
    parser.add_argument("--shipped", action="store_true", help="the project's judged kernels instead of the twins")
    parser.add_argument("--backend", choices=["cuda", "interpreter"])
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        backend = backends.select(options.backend)
        backends.activate(backend)
        return work(backend, shipped=options.shipped)
    if options.state is None and not options.report:
        parser.error("--state PATH says where finished chunks are written")
    if options.state is not None:
        drive(options)
    return report(options.report or [options.state], options.json, options.add)


if __name__ == "__main__":
    sys.exit(main())
