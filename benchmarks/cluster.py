"""How a sweep scales over the GPUs of one machine: python benchmarks/cluster.py [OUTPUT.json] [--gpus 1,2,4]

The sweep is every pair of GEGLU in both 16-bit formats, both forms, both layouts, forward and gradients, with
PyTorch's own beside each. Each number of GPUs gets a pool of its own and one sweep that compiles and makes the
tables; then REPEATS are timed, command startup aside. The records must be equal to the bit, whichever worker did what.

Each row says where the time of its median sweep went: `busy`, the share of it that each worker spent at requests;
`worker_s`, the seconds of all workers by kind of request; `requests`, how many there were of each; and `own_s`, the
CPU time of this process, which shares the work out. The file is written after every row.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

from verify.records.files import write_atomically
from verify.search.sweep.drive import SweepSettings, sweep
from verify.search.sweep.requests import ListSpaces
from verify.workers.check_workers_identical import check_equal
from verify.workers.machine import gpus
from verify.workers.pool import Pool
from verify.workers.process import START_SECONDS, Worker
from verify.workers.requests import CountGpus, Environment

TARGETS = [f"properties/geglu.py::{name}" for name in ("geglu", "geglu_tanh", "geglu_split", "geglu_split_tanh")]
DTYPES = ("bfloat16", "float16")
REPEATS = 3


def timed(pool: Pool, spaces: ListSpaces) -> dict[str, Any]:
    """One sweep: its seconds, the identity of its record, and what they were spent on."""
    before, requests = dict(pool.spent), Counter(pool.requests)
    begun, own = time.perf_counter(), time.process_time()
    run = sweep(SweepSettings(spaces=spaces, pool=pool), "verify sweep")
    seconds, own = time.perf_counter() - begun, time.process_time() - own
    spent = {key: total - before.get(key, 0.0) for key, total in pool.spent.items()}
    by_worker: Counter[int] = Counter()
    by_kind: Counter[str] = Counter()
    for (place, kind), part in spent.items():
        by_worker[place] += part
        by_kind[kind] += part
    return {
        "seconds": seconds,
        "id": run.id,
        "busy": sorted(round(part / seconds, 3) for part in by_worker.values()),
        "worker_s": {kind: round(part, 3) for kind, part in sorted(by_kind.items())},
        "requests": dict(sorted((Counter(pool.requests) - requests).items())),
        "own_s": round(own, 3),
    }


def row_of(pool: Pool, spaces: ListSpaces, repeats: int) -> dict[str, Any]:
    """The first sweep and the repeats of one pool."""
    first = timed(pool, spaces)
    again = [timed(pool, spaces) for _ in range(repeats)]
    assert {item["id"] for item in again} == {first["id"]}, "two sweeps of the same space differ"
    seconds = [round(item["seconds"], 3) for item in again]
    median = statistics.median_low(seconds)
    middle = again[seconds.index(median)]
    return {
        "workers": len(pool.workers),
        "first_s": round(first["seconds"], 2),
        "seconds": seconds,
        "median_s": median,
        "id": first["id"],
        **{name: middle[name] for name in ("busy", "worker_s", "requests", "own_s")},
    }


def main() -> None:
    """Every power of two up to the GPUs that are here, or the numbers that --gpus names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", nargs="?", type=Path, default=Path("cluster.json"))
    parser.add_argument("--gpus", help="numbers of GPUs, such as 1,4; the first is what the others are compared with")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    given = parser.parse_args()
    with Worker("cuda") as worker:
        seen = worker.ask(CountGpus(), timeout=START_SECONDS)
        environment = worker.ask(Environment(), timeout=START_SECONDS).environment
    devices = gpus("all", seen)
    asked = [int(part) for part in given.gpus.split(",")] if given.gpus else [1, 2, 4, 8]
    counts = [count for count in asked if count <= len(devices)]
    if not counts or min(counts) < 1:
        parser.error(f"--gpus takes numbers from 1 to {len(devices)} (the GPUs seen here); received {given.gpus}")
    rows: list[dict[str, Any]] = []
    for count in counts:
        begun = time.perf_counter()
        with Pool.on_gpus(devices[:count], "cuda") as pool:
            check_equal(pool)
            start = time.perf_counter() - begun
            spaces = ListSpaces(TARGETS, dtypes=DTYPES, pairs=True, baseline=True)
            row = {"gpus": count, "start_s": round(start, 2), **row_of(pool, spaces, given.repeats)}
        rows.append(row)
        row["speedup"] = round(rows[0]["median_s"] / row["median_s"] * rows[0]["gpus"], 2)
        print(json.dumps(row), flush=True)
        record = {
            "environment": {key: value for key, value in environment.items() if key != "probes"},
            "targets": TARGETS,
            "repeats": given.repeats,
            "same_record": len({row["id"] for row in rows}) == 1,
            "rows": rows,
        }
        write_atomically(given.output, json.dumps(record, indent=1).encode() + b"\n")
    assert record["same_record"], "the number of GPUs changed the record"


if __name__ == "__main__":
    main()
