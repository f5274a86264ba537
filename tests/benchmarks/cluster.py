"""How a sweep scales over the GPUs of one machine: python tests/benchmarks/cluster.py [OUTPUT.json]

The sweep is every pair of GEGLU in both 16-bit formats, both forms, both layouts, forward and gradients, with
PyTorch's own beside each. Each number of GPUs gets a cluster of its own and one sweep that compiles and makes the
tables; then REPEATS are timed, command startup aside. The records must be equal to the bit, whoever did the work.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from verify.cluster import Cluster, gpus
from verify.isolate import Worker
from verify.record import write_atomically
from verify.session import START_SECONDS, answer
from verify.sweep.drive import Settings, sweep

TARGETS = [f"properties/geglu.py::{name}" for name in ("geglu", "geglu_tanh", "geglu_split", "geglu_split_tanh")]
REPEATS = 3


def timed(cluster: Cluster | None) -> tuple[float, str]:
    """Seconds of one sweep, and the identity of its record."""
    settings = Settings(backend="cuda", dtypes=("bfloat16", "float16"), pairs=True, baseline=True, cluster=cluster)
    begun = time.perf_counter()
    run = sweep(TARGETS, settings, "verify sweep")
    return time.perf_counter() - begun, run.id


def main() -> None:
    """Every power of two up to the GPUs that are here."""
    with Worker("cuda") as worker:
        seen = answer(worker.ask({"do": "gpus"}, timeout=START_SECONDS))["gpus"]
        environment = answer(worker.ask({"do": "environment"}, timeout=START_SECONDS))["environment"]
    devices = gpus("all", seen)
    rows: list[dict[str, Any]] = []
    for count in [n for n in (1, 2, 4, 8) if n <= len(devices)]:
        with Cluster.local(devices[:count], "cuda", sorted({t.partition("::")[0] for t in TARGETS})) as cluster:
            first, identity = timed(cluster)
            seconds = []
            for _ in range(REPEATS):
                spent, again = timed(cluster)
                assert again == identity, "two sweeps of the same space differ"
                seconds.append(round(spent, 3))
        median = statistics.median(seconds)
        rows.append({"gpus": count, "first_s": round(first, 2), "seconds": seconds, "median_s": median, "id": identity})
        rows[-1]["speedup"] = round(rows[0]["median_s"] / median, 2)
        print(rows[-1], flush=True)
    record = {
        "environment": {key: value for key, value in environment.items() if key != "probes"},
        "targets": TARGETS,
        "repeats": REPEATS,
        "same_record": len({row["id"] for row in rows}) == 1,
        "rows": rows,
    }
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "cluster.json")
    write_atomically(path, json.dumps(record, indent=1).encode() + b"\n")
    assert record["same_record"], "the number of GPUs changed the record"


if __name__ == "__main__":
    main()
