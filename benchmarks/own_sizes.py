"""Problem files at their own sizes, PyTorch as the kernel.

    python -m benchmarks.own_sizes --lot SEED --files DIR --record own.jsonl --jobs 14

DIR has files with a `Model`, `get_inputs()` and `get_init_inputs()`, such as clones of public benchmarks. Nothing of it
is committed; the record names the files. `--lot SEED` draws 100 of them (`--count`), without it all are measured. One
`verify run --each` writes the record. A file is certified forward if every output has a verdict, and with gradients if
the gradients of the inputs have one too. A second start goes on where the record ends, also after an interruption
(`timeout -s INT 600 python -m ...` gives it ten minutes). PyTorch computes float32 without TF32. Exits 1 where the
shares or the times are beyond their limits, 130 after Ctrl-C:

    95% certified forward and 93% with gradients, each in 90 s (`--timeout`); PyTorch wrong in 2%; none out of memory
    with --jobs: 20 files a minute; one file at a time: median 15 s
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FORWARD, WITH_GRADIENTS, WRONG = 0.95, 0.93, 0.02
MEDIAN, RATE = 15.0, 20.0  # seconds, files a minute

TARGET = '''
import copy, importlib.util, inspect
import torch, verify

torch.backends.cudnn.allow_tf32 = False
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


def row_of(line: dict[str, Any]) -> dict[str, Any]:
    """Returns what came of one file, from its line of the record."""
    run = line.get("record", {"kernels": []})
    kernel = next(iter(run["kernels"]), {"results": []})
    verdicts = {each["output"]: each.get("status", "ok") != "undecided" for each in kernel["results"]}
    gradient = {name: name.startswith("d") for name in verdicts if " " not in name}
    forward = [verdicts[name] for name, is_gradient in gradient.items() if not is_gradient]
    backward = [verdicts[name] for name, is_gradient in gradient.items() if is_gradient]
    gaps = "; ".join(gap["text"] for gap in run.get("incomplete", [])) or line.get("problem", "")
    certified = bool(forward) and all(forward)
    row = {name: line[name] for name in ("seconds", "ended")} | {"status": kernel.get("status", "")}
    # where no input has a gradient there is none to certify; one that no plan affords is a gap
    row |= {"forward": certified, "gradients": certified and all(backward) and (bool(backward) or not gaps)}
    return row if row["forward"] and row["gradients"] else row | {"why": gaps[-300:]}


def minutes(rows: Iterable[dict[str, Any]]) -> float:
    """Returns the minutes in which at least one file was measured, over all starts."""
    total, until = 0.0, -math.inf
    for began, ended in sorted((row["ended"] - row["seconds"], row["ended"]) for row in rows):
        total += max(ended - max(began, until), 0.0)
        until = max(until, ended)
    return total / 60


def summary(rows: dict[str, dict[str, Any]], jobs: int) -> tuple[str, bool]:
    """Returns the figures in words, and True if all are within their limits."""
    forward, gradients = (sum(row[key] for row in rows.values()) / len(rows) for key in ("forward", "gradients"))
    wrong = sum(row["status"] == "wrong" for row in rows.values())
    median, rate = statistics.median(row["seconds"] for row in rows.values()), len(rows) / minutes(rows.values())
    killed = sum("out of memory" in row.get("why", "") or "SIGKILL" in row.get("why", "") for row in rows.values())
    text = (
        f"{len(rows)} files: {forward:.1%} certified forward, {gradients:.1%} with gradients, "
        f"PyTorch wrong in {wrong}; median {median:.1f} s, {rate:.1f} files a minute; {killed} out of memory"
    )
    timely = rate >= RATE if jobs > 1 else median <= MEDIAN
    right = forward >= FORWARD and gradients >= WITH_GRADIENTS and wrong <= WRONG * len(rows)
    return text, right and timely and not killed


def written(options: argparse.Namespace, folder: Path) -> dict[str, str]:
    """Writes a target for each problem file to the folder. Returns the names of the files by target."""
    paths = [path for path in sorted(options.files.rglob("*.py")) if "def get_inputs" in path.read_text()]
    if options.lot is not None:
        paths = sorted(random.Random(options.lot).sample(paths, min(options.count, len(paths))))
    folder.mkdir(parents=True, exist_ok=True)
    names = {}
    for path in paths:
        name = path.relative_to(options.files).as_posix()
        target = name.replace("/", "_")
        (folder / target).write_text(TARGET.format(path=str(path.resolve())))
        names[f"{target}::kernel"] = name
    return names


def run(targets: list[str], options: argparse.Namespace, folder: Path) -> int:
    """Runs verify on the targets. Returns its exit code; 130 after Ctrl-C, which verify gets too."""
    command = [sys.executable, "-m", "verify", "run", *targets, "--each", str(options.record.resolve())]
    command += ["--jobs", str(options.jobs), "--timeout", f"{options.timeout:g}s"]
    path = os.pathsep.join([str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(command, cwd=folder, env=os.environ | {"PYTHONPATH": path}) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            return 130


def main() -> int:
    """The command of the docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=Path, required=True, help="the folder of problem files")
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--lot", type=int, metavar="SEED", help="draw the files by this seed")
    parser.add_argument("--count", type=int, default=100, help="number of files that --lot draws")
    parser.add_argument("--jobs", type=int, default=1, help="files at a time")
    parser.add_argument("--timeout", type=float, default=90.0, help="seconds of a file")
    options = parser.parse_args()
    folder = options.record.with_suffix(".targets")
    names = written(options, folder)
    code = run(list(names), options, folder) if names else 0
    lines = map(json.loads, options.record.read_text().splitlines()) if options.record.exists() else iter(())
    rows = {names[line["target"]]: row_of(line) for line in lines if line["target"] in names}
    if not rows:
        print(f"{options.files} has no problem file that was measured", file=sys.stderr)
        return 2
    for name, row in rows.items():
        print(f"{name}: {json.dumps(row)}")
    text, kept = summary(rows, options.jobs)
    print(text)
    return 130 if code == 130 else 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
