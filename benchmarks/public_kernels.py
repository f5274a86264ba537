"""Every kernel of examples/public, measured in parallel: python -m benchmarks.public_kernels OUT

OUT gets `records.tar.gz` (the record and what was printed of each kernel) and `times.json`. Each kernel has a process
of its own, which stops a dtype after `--each` seconds; after `--all` seconds what still runs is interrupted and keeps
what is finished.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FILES = sorted(str(path) for path in Path("examples/public").glob("*.py"))
GRACE = 10  # seconds from an interrupt to the end of a process


def declared(files: list[str]) -> list[str]:
    """The kernels of the files as targets, those of different files in turn, so that no package is tried last."""
    from verify.declare.discovery import load
    from verify.declare.target import Target

    each = [[f"{file}::{kernel.name}" for kernel in load(Target.parse(file))] for file in files]
    longest = max(map(len, each))
    return [names[place] for place in range(longest) for names in each if place < len(names)]


def measured(target: str, folder: Path, each: int, more: list[str], until: float) -> tuple[str, float, int]:
    """One kernel: its record and what was printed in the folder; target, seconds and exit code."""
    name = target.removeprefix("examples/public/").replace(".py::", ".")
    command = [sys.executable, "-m", "verify", "run", target, "--jobs", "1", "--timeout", f"{each}s"]
    command += ["--json", str(folder / f"{name}.json"), "--resume", str(folder / ".kept" / name), *more]
    began = time.monotonic()
    if began > until:
        return target, 0.0, -1
    with (folder / f"{name}.txt").open("w") as shown:
        process = subprocess.Popen(
            command, stdout=shown, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        try:
            code = process.wait(until - began)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            try:
                code = process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                code = process.wait()
    return target, round(time.monotonic() - began, 1), code


def main() -> None:
    """The command of the docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--each", type=int, default=60, help="seconds for one dtype of a kernel")
    parser.add_argument("--all", type=int, default=240, help="seconds for everything")
    parser.add_argument("--only", action="append", help="a file or a target (repeatable)")
    options, more = parser.parse_known_args()  # the rest is for `verify run`
    until = time.monotonic() + options.all - GRACE
    wanted = options.only or FILES
    targets = declared([each for each in wanted if "::" not in each]) if any("::" not in w for w in wanted) else []
    targets += [each for each in wanted if "::" in each]
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as held:
        folder = Path(held)
        with ThreadPoolExecutor(options.jobs) as pool:
            found = list(pool.map(lambda target: measured(target, folder, options.each, more, until), targets))
        with tarfile.open(options.out / "records.tar.gz", "w:gz") as packed:
            for path in sorted((*folder.glob("*.json"), *folder.glob("*.txt"))):
                packed.add(path, path.name)
    times = [{"target": target, "seconds": seconds, "exit": code} for target, seconds, code in found]
    (options.out / "times.json").write_text(json.dumps(times, indent=1))
    for target, seconds, code in found:
        print(f"{seconds:7.1f} s  exit {code:3d}  {target}")


if __name__ == "__main__":
    main()
