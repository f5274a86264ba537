"""How fast `verify history` answers, the first time and later, over thousands of records.

    python -m benchmarks.history reports/published/interpreter/run.json.gz --kernel gelu --records 1000 3000

Records are copies of a real one, each with an identity and a date of its own; `--only` leaves out its other kernels, so
that a record is as large as that of a small project. Times are those of whole processes, from start to exit, on a warm
file cache: of the first, which reads every record, and the best of five later ones.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from verify.records import files


def copies(record: str, kernel: str, count: int, folder: Path, *, only: bool) -> int:
    """Writes the records; returns the size of one in bytes."""
    run = files.load(record)
    if only:
        run = msgspec.structs.replace(run, kernels=[each for each in run.kernels if each.name == kernel], incomplete=[])
    size = 0
    for number in range(count):
        created = time.strftime("%Y-%m-%dT%H:%M:00+00:00", time.gmtime(1.6e9 + 3600 * number))
        data = files.encode(msgspec.structs.replace(run, id=f"{number:012x}", created=created))
        (folder / f"{number:06d}.json").write_bytes(data)
        size = len(data)
    time.sleep(3)  # a file that has just changed is read again
    return size


def answer(folder: Path, cache: Path, *arguments: str) -> float:
    """Seconds of one process."""
    command = [sys.executable, "-m", "verify", "history", *arguments, "--runs", str(folder)]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    started = time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def main() -> None:
    """Make the records, read them once, ask."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("record")
    parser.add_argument("--kernel", required=True)
    parser.add_argument("--records", type=int, nargs="+", default=[1_000, 3_000])
    parser.add_argument("--only", action="store_true")
    options = parser.parse_args()
    for count in options.records:
        with tempfile.TemporaryDirectory(prefix="verify-history-") as place:
            folder, cache = Path(place) / "runs", Path(place) / "cache"
            folder.mkdir()
            found: dict[str, float] = {"records": count}
            found["bytes per record"] = copies(options.record, options.kernel, count, folder, only=options.only)
            for name, arguments in (
                ("first", [options.kernel]),
                ("later", [options.kernel]),
                ("later, all regimes", [options.kernel, "--regime", "all"]),
                ("later, kernels", []),
            ):
                times = [answer(folder, cache, *arguments) for _ in range(1 if name == "first" else 5)]
                found[f"{name}, seconds"] = round(min(times), 3)
            found["kept bytes"] = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file())
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
