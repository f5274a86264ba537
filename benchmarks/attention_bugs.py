"""The six defects of shipped attention under `verify run --profile ci --fail-fast`, and their twins.

    python -m benchmarks.attention_bugs                        each kernel alone, with its verdict and its time
    python -m benchmarks.attention_bugs --seconds 60           an error if one takes longer
    verify run benchmarks/attention_bugs.py::attention_fp8_twin_1 --profile ci

Exits with 1 if a defect passes or a twin fails.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import replace

from mutants.attention import MUTANTS

KERNELS = {
    kernel.name: replace(kernel, module=__name__, file=__file__)
    for mutant in MUTANTS
    for kernel in (mutant.kernel, mutant.twin)
}
globals().update(KERNELS)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention_bugs", description=__doc__)
    parser.add_argument("--backend", default="cuda", choices=["cuda", "interpreter"])
    parser.add_argument("--seconds", type=float, default=float("inf"), help="more is an error")
    parser.add_argument("--only", default="", help="kernels whose name contains this")
    options = parser.parse_args()
    twins = {mutant.twin.name for mutant in MUTANTS}
    failed = False
    for name in (name for name in KERNELS if options.only in name):
        started = time.monotonic()
        target = f"{__file__}::{name}"
        command = [sys.executable, "-m", "verify", "run", target, "--profile", "ci", "--fail-fast"]
        command += ["--backend", options.backend]
        done = subprocess.run(command, capture_output=True, text=True)
        seconds = time.monotonic() - started
        right = (done.returncode == 0) == (name in twins) and done.returncode in (0, 1) and seconds <= options.seconds
        failed |= not right
        verdict = {0: "passes", 1: "is wrong"}.get(done.returncode, f"ends with {done.returncode}")
        print(f"{'ok ' if right else 'BAD'} {seconds:6.1f} s  {name} {verdict}", flush=True)
        if not right:
            print(done.stdout[-3000:], done.stderr[-2000:])
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
