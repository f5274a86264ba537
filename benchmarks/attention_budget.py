"""How long `verify run --profile ci` takes for causal attention, forward and backward, at the size of a model.

    python -m benchmarks.attention_budget                      2 x 16 x 2048 x 128 in bfloat16, each kernel within 60 s
    python -m benchmarks.attention_budget --size 1,2,64,32     another size
    verify run benchmarks/attention_budget.py::sdpa --profile ci

Prints the results with their basis and the slowest phases of each run (VERIFY_TIMES). Exits with 1 if a run takes
longer, or if it does not judge the output and all three gradients.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import verify
from examples.attention import causal, triton_tutorial

SIZE = "VERIFY_ATTENTION_SIZE"
DEFAULT = "2,16,2048,128"
GRACE = 20.0  # seconds after which a run that is too long is interrupted


def given() -> tuple[torch.Tensor, ...]:
    """Operands of the size that the environment names."""
    shape = tuple(map(int, os.environ.get(SIZE, DEFAULT).split(",")))
    return tuple(torch.empty(shape, dtype=torch.bfloat16) for _ in "qkv")


@verify.kernel(like=causal, examples=given, dtypes=["bfloat16"])
def sdpa(q, k, v):
    """PyTorch's choice among its kernels."""
    return causal(q, k, v)


@verify.kernel(like=causal, examples=given, dtypes=["bfloat16"])
def tutorial(q, k, v):
    """The kernel as Triton's tutorial teaches it."""
    return triton_tutorial(q, k, v)


def main() -> int:
    """The command of the docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default=DEFAULT, help="batch, heads, positions, features")
    parser.add_argument("--seconds", type=float, default=60.0, help="more is an error")
    parser.add_argument("--only", choices=["sdpa", "tutorial"])
    parser.add_argument("--times", type=Path, help="keep the times of all phases in this folder")
    options = parser.parse_args()
    failed = False
    for name in ("sdpa", "tutorial") if options.only is None else (options.only,):
        with tempfile.TemporaryDirectory() as folder:
            failed |= not measured(name, options, Path(folder))
    return int(failed)


def measured(name: str, options: argparse.Namespace, folder: Path) -> bool:
    """Runs one kernel and prints what it took and showed. Returns True if it was in time and judged every result."""
    kept = folder if options.times is None else options.times.resolve()
    kept.mkdir(parents=True, exist_ok=True)
    times, record = kept / f"times-{name}.txt", folder / "run.json"
    times.unlink(missing_ok=True)
    command = [sys.executable, "-m", "verify", "run", f"{__file__}::{name}", "--profile", "ci", "--json", str(record)]
    environment = {**os.environ, SIZE: options.size, "VERIFY_TIMES": str(times)}
    begun = time.monotonic()
    run = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        said, told = run.communicate(timeout=options.seconds + GRACE)
    except subprocess.TimeoutExpired:
        run.send_signal(signal.SIGINT)  # it prints what it has
        try:
            said, told = run.communicate(timeout=GRACE)
        except subprocess.TimeoutExpired:
            run.kill()
            said, told = run.communicate()
    seconds = time.monotonic() - begun
    judged = []
    for kernel in json.loads(record.read_text())["kernels"] if record.exists() else ():
        judged = [each for each in kernel["results"] if each["status"] in ("ok", "wrong")]
        laws = [law["status"] for law in kernel.get("laws", ())]
        for law in kernel.get("laws", ()):
            if law["status"] == "broken" or law.get("in_error"):
                print(law["law"], law.get("message"), law.get("facts"), law.get("origin", {}).get("case"))
        print(*kernel.get("notes", ()), f"laws: {laws.count('ok')} kept, {laws.count('broken')} broken", sep="\n")
    for each in judged:
        print(f"  {each['output']:<3} {each['status']}, max {each['figures'].get('scaled_upper')}, {each['basis']}")
    complete = {each["output"] for each in judged} >= {"y", "dq", "dk", "dv"}
    right = run.returncode in (0, 1) and complete and seconds <= options.seconds
    print(f"{'ok ' if right else 'BAD'} {seconds:6.1f} s  {name} of {options.size}, exit code {run.returncode}")
    phases = times.read_text().splitlines() if times.exists() else []
    slowest = sorted(phases, key=lambda line: -float(line.partition("took")[2].split()[0]))[:8]
    print("\n".join(slowest), flush=True)
    if not right:
        print(said[-3000:], told[-2000:])
    return right


if __name__ == "__main__":
    sys.exit(main())
