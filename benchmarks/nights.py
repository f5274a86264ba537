"""Measures how a night scales over the GPUs of one machine.

    python -m benchmarks.nights [OUTPUT.json] [--gpus 1,2] [TARGET ...]

Each number of GPUs does the same night: accuracy, sweep, hunt and laws, without timings. It begins in an empty folder,
with empty caches of compiled kernels and CORES cores for each GPU. The nights run side by side, each on GPUs and cores
of its own, so the machine needs as many as all of them together. Exits with 1 if the records differ in a figure, or if
a night over N GPUs is less than 0.9 N times as fast as one over the first number. Differences are counted by kernel. A
kernel whose own results vary from call to call has some, for example a gradient that adds by atomics.

A hunt that the clock ended has tried as much as the machine could in its time. Such hunts are counted and not compared.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.same_records import comparable, differences
from verify.backends.gpu import Cuda
from verify.records.files import load, write_atomically
from verify.records.record import Run

STAGES = ("accuracy", "sweep", "hunt", "laws")
CORES = 16
SHARE = 0.9  # of the speed of so many GPUs
FREE = "of free GPU memory"  # in the message of a law that found too little: others beside it used some


def night(devices: list[int], cores: range, targets: list[str], profile: str, folder: Path) -> float:
    """Runs a night on these GPUs and cores; returns its seconds."""
    stages = [part for stage in STAGES for part in ("--stage", stage)]
    places = ["--profile", profile, "--seed", "1", "--gpus", str(len(devices)), "--jobs", str(len(cores))]
    command = [sys.executable, "-m", "verify", "nightly", *targets, *stages, *places, "--output", str(folder)]
    caches = {f"{name}_CACHE_DIR": str(folder.parent / name.lower()) for name in ("TRITON", "TORCHINDUCTOR")}
    seen = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, devices)), **caches}
    pinned = ["taskset", "-c", f"{cores[0]}-{cores[-1]}", *command]
    begun = time.monotonic()
    with open(folder.parent / "log", "wb") as log:
        subprocess.run(pinned, env={**os.environ, **seen}, stdout=log, stderr=log, check=False)
    took = time.monotonic() - begun
    print(f"{len(devices)} GPUs: {took:.1f} s", flush=True)
    return took


def ended_by_the_clock(records: list[Run]) -> set[tuple[str, str]]:
    """Returns the kernel of each hunt that the clock ended in some record, and its result with its dtype."""
    return {
        (kernel.name, found[1])
        for record in records
        for kernel in record.kernels
        for note in kernel.notes
        if (found := re.match(r"(.+): stopped after .* the time budget was spent$", note))
    }


def without(hunts: set[tuple[str, str]], record: Run) -> dict[str, Any]:
    """Returns the parts of a record to compare: not these hunts, their notes, how much memory a law found free, or the
    messages of stages.
    """
    plain = comparable(record)
    for kernel in plain["kernels"]:
        for law in kernel.get("laws", []):
            if FREE in law.get("message", ""):
                law.pop("message")
        mine = {result for name, result in hunts if name == kernel["name"]}
        kernel["notes"] = [each for each in kernel.get("notes", []) if each.partition(": ")[0] not in mine]
        kernel["results"] = [
            each
            for each in kernel["results"]
            if each.get("source") != "hunt" or f"{each['output']} {each['dtype']}" not in mine
        ]
    for stage in plain.get("stages", []):
        stage.pop("message", None)  # counts the findings of all hunts
    return plain


def compared(counts: list[int], seconds: list[float], records: list[Run]) -> list[dict[str, Any]]:
    """Prints and returns a row for each night: its speed, and the number of figures of each kernel that differ."""
    clocked = ended_by_the_clock(records)
    first = without(clocked, records[0])
    rows: list[dict[str, Any]] = []
    for count, took, record in zip(counts, seconds, records, strict=True):
        unlike = list(differences(first, without(clocked, record)))
        print("\n".join(unlike[:10]))
        places = (re.match(r"kernels\[\d+: (.+?)\]", each) for each in unlike)
        speedup = seconds[0] / took * counts[0]
        row = {"gpus": count, "seconds": round(took, 1), "speedup": round(speedup, 2)}
        row["differences"] = dict(Counter(place[1] if place else "" for place in places))
        stages = {stage.name: round(stage.seconds, 1) for stage in record.stages}
        rows.append({**row, "verdict": record.verdict, "stages": stages})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> int:
    """The command of the docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", nargs="?", type=Path, default=Path("nights.json"))
    parser.add_argument("targets", nargs="*", help="by default all of pyproject.toml")
    parser.add_argument("--gpus", default="1,2", help="numbers of GPUs; the others are compared with the first")
    parser.add_argument("--cores", type=int, default=CORES, help="cores for each GPU")
    parser.add_argument("--profile", default="nightly", help="of the laws")
    parser.add_argument("--keep", type=Path, help="the folder for the nights, instead of a temporary one")
    options = parser.parse_args()
    counts = [int(part) for part in options.gpus.split(",")]
    have, cores = Cuda.torch_module().device_count(), os.cpu_count() or 1
    if min(counts) < 1 or sum(counts) > have or sum(counts) * options.cores > cores:
        parser.error(
            f"the nights run side by side and need {sum(counts)} GPUs and {sum(counts) * options.cores} cores; "
            f"received {have} and {cores}"
        )
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(len(counts)) as threads:
        folders = [(options.keep or Path(scratch)).resolve() / str(count) / "night" for count in counts]
        going, used = [], 0
        for count, folder in zip(counts, folders, strict=True):
            folder.parent.mkdir(parents=True)
            devices = list(range(used, used + count))
            own = range(used * options.cores, (used + count) * options.cores)
            going.append(threads.submit(night, devices, own, options.targets, options.profile, folder))
            used += count
        seconds = [each.result() for each in going]
        for folder in folders:
            if not (folder / "run.json").exists():
                print(folder.parent.joinpath("log").read_text()[-3000:])
                return 1
        records = [load(folder / "run.json") for folder in folders]
    rows = compared(counts, seconds, records)
    about = {name: item for name, item in records[0].environment.items() if name != "probes"}
    whole = {"environment": about, "targets": options.targets, "cores": options.cores, "profile": options.profile}
    whole |= {"rows": rows, "hunts ended by the clock": len(ended_by_the_clock(records))}
    write_atomically(options.output, json.dumps(whole, indent=1).encode() + b"\n")
    held = all(not row["differences"] and row["speedup"] >= SHARE * row["gpus"] for row in rows)
    return int(not held)


if __name__ == "__main__":
    sys.exit(main())
