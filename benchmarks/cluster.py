"""How a sweep scales over the GPUs of one machine: python benchmarks/cluster.py [OUTPUT.json] [--gpus 1,2,4]

The sweep is every pair of GEGLU in both 16-bit formats, both forms, both layouts, forward and gradients, with
PyTorch's own beside each. Each number of GPUs gets a cluster of its own and one sweep that compiles and makes the
tables; then REPEATS are timed, command startup aside. The records must be equal to the bit, whoever did the work.

Each row says where the time of its median sweep went: `busy`, the share of it that each worker spent at requests;
`worker_s`, the seconds of all workers by kind of request; `requests`, how many there were of each; and `own_s`, the
CPU time of this process, which shares the work out and holds the scheduler. The file is written after every row.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

from verify.measure.session import START_SECONDS, answer
from verify.records.record import write_atomically
from verify.sweep.drive import Settings, sweep
from verify.workers.cluster import Cluster, gpus
from verify.workers.process import Worker

TARGETS = [f"properties/geglu.py::{name}" for name in ("geglu", "geglu_tanh", "geglu_split", "geglu_split_tanh")]
DTYPES = ("bfloat16", "float16")
REPEATS = 3


def timed(cluster: Cluster, settings: Settings, targets: list[str]) -> dict[str, Any]:
    """One sweep: its seconds, the identity of its record, and what they were spent on."""
    before, requests = dict(cluster.spent), Counter(cluster.requests)
    begun, own = time.perf_counter(), time.process_time()
    run = sweep(targets, settings, "verify sweep")
    seconds, own = time.perf_counter() - begun, time.process_time() - own
    spent = {key: total - before.get(key, 0.0) for key, total in cluster.spent.items()}
    by_worker: Counter[str] = Counter()
    by_kind: Counter[str] = Counter()
    for (address, kind), part in spent.items():
        by_worker[address] += part
        by_kind[kind] += part
    return {
        "seconds": seconds,
        "id": run.id,
        "busy": sorted(round(part / seconds, 3) for part in by_worker.values()),
        "worker_s": {kind: round(part, 3) for kind, part in sorted(by_kind.items())},
        "requests": dict(sorted((Counter(cluster.requests) - requests).items())),
        "own_s": round(own, 3),
    }


def row_of(cluster: Cluster, settings: Settings, targets: list[str], repeats: int) -> dict[str, Any]:
    """The first sweep and the repeats of one cluster."""
    first = timed(cluster, settings, targets)
    again = [timed(cluster, settings, targets) for _ in range(repeats)]
    assert {item["id"] for item in again} == {first["id"]}, "two sweeps of the same space differ"
    seconds = [round(item["seconds"], 3) for item in again]
    median = statistics.median_low(seconds)
    middle = again[seconds.index(median)]
    return {
        "workers": cluster.size,
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
        seen = answer(worker.ask({"do": "gpus"}, timeout=START_SECONDS))["gpus"]
        environment = answer(worker.ask({"do": "environment"}, timeout=START_SECONDS))["environment"]
    devices = gpus("all", seen)
    asked = [int(part) for part in given.gpus.split(",")] if given.gpus else [1, 2, 4, 8]
    counts = [count for count in asked if count <= len(devices)]
    if not counts or min(counts) < 1:
        parser.error(f"--gpus takes numbers from 1 to {len(devices)} (the GPUs seen here); received {given.gpus}")
    rows: list[dict[str, Any]] = []
    for count in counts:
        begun = time.perf_counter()
        with Cluster.local(devices[:count], "cuda", sorted({t.partition("::")[0] for t in TARGETS})) as cluster:
            start = time.perf_counter() - begun
            settings = Settings(backend="cuda", dtypes=DTYPES, pairs=True, baseline=True, cluster=cluster)
            row = {"gpus": count, "start_s": round(start, 2), **row_of(cluster, settings, TARGETS, given.repeats)}
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
