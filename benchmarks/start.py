"""How soon a verdict comes: a run of one small kernel, and the tenth candidate that a warm worker gets.

    python -m benchmarks.start --record start.json                 four measurements, about a minute on a GPU
    python -m benchmarks.start --backend cpu --side 64 --only row  one of them, small

`run` starts `verify run` on one small kernel twice, and measures the second start. The others send ten files to one
warm pool. Each file has one kernel that no worker has seen: an elementwise kernel of side^2 float32 numbers, a softmax
of side rows, or a product of two matrices, with its gradients; side is 4,096. Prints the seconds of each start or
candidate, and the phases of the last (VERIFY_TIMES). Exits 1 if a measurement is beyond its limit, or if a kernel has
no verdict:

    run 10 s, of which imports 5 s; tenth candidate: elementwise 3 s, row 5 s, product 8 s
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import verify
from verify.workers.machine import usable_cores
from verify.workers.phases import VARIABLE
from verify.workers.pool import Pool

LIMITS = {"run": 10.0, "elementwise": 3.0, "row": 5.0, "product": 8.0}  # seconds
IMPORTS = 5.0  # seconds of `run`
CANDIDATES = 10
IMPORTING = ("worker: import torch", "worker: import triton")
SHOWN = 16  # phases
CANDIDATE = """
import torch, verify
from torch.nn import functional


def examples():
    return [(torch.empty({side}, {side}, device="meta"),) * {operands}]


@verify.kernel(like={like}, examples=examples, dtypes=["float32"])
def candidate_{number}({names}):
    assert {number} >= 0  # so that each candidate has code of its own, and all have the same results
    return {body}
"""
# by measurement: the definition, the names of the operands, and the body of a candidate
KINDS = {
    "run": ("functional.silu", "x", "x * torch.sigmoid(x)"),
    "elementwise": ("functional.gelu", "x", "x * torch.special.ndtr(x)"),
    "row": ("lambda x: x.softmax(-1)", "x", "torch.softmax(x, -1)"),
    "product": ("torch.matmul", "a, b", "a @ b"),
}


def written(folder: Path, kind: str, number: int, side: int) -> Path:
    """Writes the file of one candidate."""
    like, names, body = KINDS[kind]
    path = folder / f"{kind}_{number}.py"
    operands = names.count(",") + 1
    path.write_text(CANDIDATE.format(side=side, operands=operands, like=like, names=names, number=number, body=body))
    return path


def phases(times: Path) -> dict[str, float]:
    """Returns the seconds of each kind of phase in a file of VERIFY_TIMES, the longest first.

    A kind has those of the process that spent most on it, as processes run at the same time.
    """
    found: Counter[tuple[str, str]] = Counter()
    for line in times.read_text().splitlines() if times.exists() else ():
        seconds, process, name = re.fullmatch(r".*? took +([\d.]+) s +process (\d+) +(.*)", line).groups()  # type: ignore[union-attr]
        found[re.sub(r" of \S*::.*| of \S*\.py", "", name), process] += float(seconds)
    most = dict[str, float]()
    for (name, _), spent in found.most_common():
        most.setdefault(name, round(spent, 3))
    return most


def show(longest: dict[str, float]) -> None:
    """Prints the longest phases."""
    for text, seconds in list(longest.items())[:SHOWN]:
        print(f"      {seconds:7.3f} s  {text}")


def repeated(times: Path, tries: int, once: Callable[[int], tuple[str, bool]]) -> dict[str, Any]:
    """Tries something several times. Returns the seconds, the phases of the last, and the tries without a verdict."""
    seconds, failed = list[float](), list[str]()
    for number in range(tries):
        times.unlink(missing_ok=True)
        began = time.monotonic()
        status, judged = once(number)
        seconds.append(round(time.monotonic() - began, 2))
        if not judged:
            failed.append(f"try {number}: {status}")
    return {"seconds": seconds, "phases": phases(times), "failed": failed}


def run_small(folder: Path, times: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Starts `verify run` twice on a kernel of 1,024 numbers."""
    path, record = written(folder, "run", 0, 32), folder / "run.json"
    command = [sys.executable, "-m", "verify", "run", str(path), "--json", str(record)]
    command += ["--backend", options.backend] if options.backend else []

    def once(number: int) -> tuple[str, bool]:
        record.unlink(missing_ok=True)
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        return (done.stderr or done.stdout)[-300:], record.exists() and judged(json.loads(record.read_text()))

    return repeated(times, 2, once)


def candidates(kind: str, folder: Path, times: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Sends ten candidates to a warm pool, one after the other. All cores judge one candidate's cases."""
    paths = [written(folder, kind, number, options.side) for number in range(options.candidates)]
    with Pool.started(options.backend) as pool:

        def once(number: int) -> tuple[str, bool]:
            done = verify.run(str(paths[number]), backend=options.backend, pool=pool)
            return str(done)[-300:], judged({"kernels": [{"results": done.rows()}]})

        return repeated(times, options.candidates, once)


def judged(record: dict[str, Any]) -> bool:
    """True if the kernels of a record have results, and each has a verdict."""
    results = [each for kernel in record["kernels"] for each in kernel["results"]]
    return bool(results) and all(each.get("status", "ok") in ("ok", "wrong") for each in results)


def within(kind: str, row: dict[str, Any], limits: dict[str, float]) -> bool:
    """True if the last try of a measurement took no longer than it may, and every try had verdicts."""
    imports = importing(row) if kind == "run" else 0.0
    return not row["failed"] and row["seconds"][-1] <= limits[kind] and imports <= IMPORTS


def importing(row: dict[str, Any]) -> float:
    """Returns the seconds of the last try of a measurement in which PyTorch and Triton were imported."""
    return sum(row["phases"].get(name, 0.0) for name in IMPORTING)


def machine() -> dict[str, Any]:
    """Returns the machine, and the seconds that it takes to import PyTorch in a new process."""
    code = """if 1:
        import torch, time
        print(time.time(), torch.__version__, torch.cuda.get_device_name() if torch.cuda.is_available() else "")
    """
    began = time.time()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported, torch, gpu = done.stdout.rstrip("\n").split(" ", 2)
    seconds = round(float(imported) - began, 2)
    return {"gpu": gpu, "cores": usable_cores(), "torch": torch, "import_torch": seconds}


def main() -> int:
    """The command of the docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(KINDS), help="only this (repeatable)")
    parser.add_argument("--backend", help="as `verify run` takes it")
    parser.add_argument("--side", type=int, default=4096, help="rows and columns of the operands of candidates")
    parser.add_argument("--candidates", type=int, default=CANDIDATES)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--times", type=Path, help="keep the phases of the last start or candidate in this folder")
    options = parser.parse_args()
    rows: dict[str, Any] = {"limits": {**LIMITS, "imports": IMPORTS}, "side": options.side}
    if options.record:
        rows["environment"] = machine()
    kept = True
    for kind in options.only or KINDS:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            times = (options.times or folder).resolve() / f"{kind}.txt"
            times.parent.mkdir(parents=True, exist_ok=True)
            os.environ[VARIABLE] = str(times)
            small = kind == "run"
            rows[kind] = run_small(folder, times, options) if small else candidates(kind, folder, times, options)
        good = within(kind, rows[kind], LIMITS)
        kept &= good
        each = ", ".join(f"{seconds:.1f}" for seconds in rows[kind]["seconds"])
        print(f"{'ok ' if good else 'BAD'} {kind}: {each} s; the last may take {LIMITS[kind]:g} s", flush=True)
        show(rows[kind]["phases"])
        for text in rows[kind]["failed"]:
            print(f"      {text}")
        if options.record:  # after each measurement, so that an interruption loses one
            options.record.write_text(json.dumps(rows, indent=1))
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
