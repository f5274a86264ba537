"""Problem files at their own sizes, PyTorch as the kernel.

    python -m benchmarks.own_sizes --files DIR --record own.jsonl

DIR has files with a `Model`, `get_inputs()` and `get_init_inputs()`, such as a clone of a public benchmark. Nothing of
it is committed. One `verify run --each` measures all files and writes the record. A file is certified forward if every
output has a verdict, and with gradients if the gradients of the inputs have one too. A second start goes on where the
record ends, also after an interruption. `--sample 20 --seed S` takes so many files. `--times FILE` keeps where the
seconds went. PyTorch's convolutions use TF32 on a GPU and are wrong as float32: that is a verdict too. Exits 1 where
the shares or the times are beyond their limits, 130 after Ctrl-C:

    90% certified forward, 80% with gradients, none out of memory
    one file at a time: median 20 s, 90% of the files within 45 s; with --jobs: 12 files a minute
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FORWARD, WITH_GRADIENTS = 0.9, 0.8
MEDIAN, NINTH, RATE = 20.0, 45.0, 12.0  # seconds, seconds, files a minute

TARGET = '''
import importlib.util, inspect
import torch, verify

spec = importlib.util.spec_from_file_location("problem", {path!r})
problem = importlib.util.module_from_spec(spec)
spec.loader.exec_module(problem)
torch.manual_seed(0)
model = problem.Model(*problem.get_init_inputs()).float()
for part in model.modules():
    if "Dropout" in type(part).__name__:  # its random numbers are PyTorch's own: there is no truth for them
        part.eval()
on = {{}}


def examples():
    """The inputs by shape alone, as their values are not used; integers have to be made."""
    with torch.device("meta"):
        found = problem.get_inputs()
    if all(not torch.is_tensor(each) or each.is_floating_point() for each in found):
        return found
    return problem.get_inputs()


given = examples()
names = [name for name in inspect.signature(model.forward).parameters][: len(given)]


def kernel(*operands):
    device = next(each.device for each in operands if torch.is_tensor(each))
    if device not in on:
        import copy
        on[device] = copy.deepcopy(model).to(device)
    left = iter(operands)
    return on[device](*(next(left) if torch.is_tensor(each) else each for each in given))


# a value that is no tensor is fixed by a default
kernel.__signature__ = inspect.Signature([
    inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD,
                      default=inspect.Parameter.empty if torch.is_tensor(value) else value)
    for name, value in zip(names, given)
])
kernel = verify.kernel(like=model, examples=lambda: given, dtypes=["float32"], name="kernel")(kernel)
'''


def judged(run: dict[str, Any]) -> dict[str, Any]:
    """Which results of a record have a verdict."""
    kernel = next(iter(run["kernels"]), {"results": []})
    results = {each["output"]: each for each in kernel["results"]}
    verdicts = {name: each.get("status", "ok") != "undecided" for name, each in results.items()}
    forward = [known for name, known in verdicts.items() if not name.startswith("d") and " " not in name]
    backward = [known for name, known in verdicts.items() if name.startswith("d") and " " not in name]
    gaps = [gap["text"] for gap in run.get("incomplete", [])]
    # where no input has a gradient there is none to certify; one that no plan affords is a gap
    return {
        "forward": bool(forward) and all(forward),
        "gradients": bool(forward) and all(forward) and all(backward) and (bool(backward) or not gaps),
        "status": kernel.get("status", ""),
        "seen": {name: [each["basis"]["n"], each["basis"].get("of", 0)] for name, each in results.items()},
        "peak": kernel.get("peak", {}),
        "gaps": "; ".join(gaps)[:300],
    }


def row_of(line: dict[str, Any]) -> dict[str, Any]:
    """Returns what came of one file, from its line of the record."""
    row: dict[str, Any] = {"seconds": line["seconds"], "ended": line["ended"], "forward": False, "gradients": False}
    row |= judged(line["record"]) if "record" in line else {}
    why = row.pop("gaps", "") or line.get("problem", "")
    return row | ({} if row["forward"] and row["gradients"] else {"why": why[-300:]})


def minutes(rows: Iterable[dict[str, Any]]) -> float:
    """Returns the minutes in which at least one file was measured, over all starts."""
    total, until = 0.0, -math.inf
    for began, ended in sorted((row["ended"] - row["seconds"], row["ended"]) for row in rows):
        total += max(ended - max(began, until), 0.0)
        until = max(until, ended)
    return total / 60


def summary(rows: dict[str, dict[str, Any]], jobs: int) -> tuple[str, bool]:
    """The figures in words, and whether all are within their limits."""
    times = sorted(row["seconds"] for row in rows.values())
    forward, gradients = (sum(row[key] for row in rows.values()) / len(rows) for key in ("forward", "gradients"))
    ninth = times[math.ceil(0.9 * len(times)) - 1]
    rate = len(rows) / minutes(rows.values())
    killed = sum("out of memory" in row.get("why", "") or "SIGKILL" in row.get("why", "") for row in rows.values())
    text = (
        f"{len(rows)} files: {forward:.1%} certified forward, {gradients:.1%} with gradients; median "
        f"{statistics.median(times):.1f} s, 90% within {ninth:.1f} s, {rate:.1f} files a minute; {killed} out of memory"
    )
    timely = rate >= RATE if jobs > 1 else statistics.median(times) <= MEDIAN and ninth <= NINTH
    return text, forward >= FORWARD and gradients >= WITH_GRADIENTS and timely and not killed


def selected(options: argparse.Namespace) -> list[Path]:
    """The problem files that are measured."""
    paths = sorted(path for path in options.files.rglob("*.py") if re.search(options.match, path.as_posix()))
    paths = [path for path in paths if "def get_inputs" in path.read_text()]
    if options.sample:
        paths = sorted(random.Random(options.seed).sample(paths, min(options.sample, len(paths))))
    return paths


def written(options: argparse.Namespace) -> dict[str, str]:
    """Writes a target for each problem file, beside the record. Returns the names of the files by target."""
    folder, names = targets_of(options), {}
    folder.mkdir(parents=True, exist_ok=True)
    for path in selected(options):
        name = path.relative_to(options.files).as_posix()
        target = name.replace("/", "_")
        (folder / target).write_text(TARGET.format(path=str(path.resolve())))
        names[f"{target}::kernel"] = name
    return names


def targets_of(options: argparse.Namespace) -> Path:
    """The folder of the targets."""
    return Path(options.record.with_suffix(".targets"))


def run(targets: list[str], options: argparse.Namespace) -> int:
    """Runs verify on the targets, until all have ended or the budget has. Returns its exit code."""
    command = [sys.executable, "-m", "verify", "run", *targets, "--each", str(options.record.resolve())]
    command += ["--jobs", str(options.jobs), "--timeout", f"{options.timeout:g}s"]
    command += ["--memory", options.memory] if options.memory else []
    times = {"VERIFY_TIMES": str(options.times.resolve())} if options.times else {}
    path = os.pathsep.join([str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(command, cwd=targets_of(options), env=os.environ | times | {"PYTHONPATH": path}) as process:
        try:
            return process.wait(options.budget)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            process.wait()
            return 0
        except KeyboardInterrupt:
            process.wait()
            return 130


def main() -> int:
    """The command of the docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=Path, required=True, help="the folder of problem files")
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--match", default=r"level[123]/", help="regular expression that the path of a file contains")
    parser.add_argument("--sample", type=int, default=0, help="so many of the files, drawn by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="files at a time")
    parser.add_argument("--timeout", type=float, default=180.0, help="seconds of a file")
    parser.add_argument("--memory", default="", help="as `verify run` takes it")
    parser.add_argument("--times", type=Path, help="a file for where the seconds went")
    parser.add_argument("--budget", type=float, help="seconds after which it stops; another start goes on")
    options = parser.parse_args()
    names = written(options)
    code = run(list(names), options) if names else 0
    lines = map(json.loads, options.record.read_text().splitlines()) if options.record.exists() else iter(())
    rows = {names[line["target"]]: row_of(line) for line in lines if line["target"] in names}
    if not rows:
        print(f"no problem file in {options.files} matches {options.match} and was measured", file=sys.stderr)
        return 2
    for name, row in rows.items():
        print(f"{name}: {json.dumps(row)}")
    text, kept = summary(rows, options.jobs)
    print(text)
    return 130 if code == 130 else 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
