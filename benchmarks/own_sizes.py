"""Problem files at their own sizes, PyTorch as the kernel: python -m benchmarks.own_sizes --files DIR --record own.json

DIR has files with a `Model`, `get_inputs()` and `get_init_inputs()`, such as a clone of a public benchmark. Nothing of
it is committed. Each file is one `verify run`. A file is certified forward if every output has a verdict, and with
gradients if the gradients of the inputs have one too. The record is written as each file ends, also where the command
is interrupted, and a second start goes on there. `--sample 20 --seed S` takes so many files. `--times DIR` keeps where
the seconds of each file went. Exits 1 where the shares or the times are beyond their limits, 130 after Ctrl-C:

    90% certified forward, 80% with gradients
    one file at a time: median 20 s, 90% of the files within 45 s; with --jobs: 12 files a minute
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

FORWARD, WITH_GRADIENTS = 0.9, 0.8
_WAITING = 4  # times the seconds of a file, if others have the memory of the GPU before it
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


def measured(path: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Runs verify on one problem file, and returns what came of it."""
    with tempfile.TemporaryDirectory() as folder:
        target, record = Path(folder, "target.py"), Path(folder, "run.json")
        target.write_text(TARGET.format(path=str(path.resolve())))
        command = [sys.executable, "-m", "verify", "run", f"{target}::kernel", "--json", str(record)]
        seconds = options.timeout * (1 if options.jobs == 1 else _WAITING)
        command += ["--timeout", f"{seconds:g}s", "--jobs", "1"]
        command += ["--memory", options.memory] if options.memory else []
        times = {"VERIFY_TIMES": str(options.times.resolve() / f"{path.stem}.txt")} if options.times else {}
        started = time.monotonic()
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=2 * seconds, cwd=folder, env=os.environ | times
            )
            said = (done.stderr or done.stdout).strip()
        except subprocess.TimeoutExpired:
            said = "no end"
        row: dict[str, Any] = {"seconds": round(time.monotonic() - started, 1), "forward": False, "gradients": False}
        if record.exists():
            row |= judged(json.loads(record.read_text()))
    why = row.pop("gaps", "") or said[-300:]
    return row | ({} if row["forward"] and row["gradients"] else {"why": why})


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


def summary(rows: dict[str, dict[str, Any]], minutes: float, jobs: int) -> tuple[str, bool]:
    """The figures in words, and whether all are within their limits."""
    times = sorted(row["seconds"] for row in rows.values())
    forward, gradients = (sum(row[key] for row in rows.values()) / len(rows) for key in ("forward", "gradients"))
    ninth = times[math.ceil(0.9 * len(times)) - 1]
    rate = len(rows) / minutes if minutes else math.inf
    killed = sum("out of memory" in row.get("why", "") or "SIGKILL" in row.get("why", "") for row in rows.values())
    text = (
        f"{len(rows)} files: {forward:.1%} certified forward, {gradients:.1%} with gradients; median "
        f"{statistics.median(times):.1f} s, 90% within {ninth:.1f} s, {rate:.1f} files a minute; {killed} out of memory"
    )
    timely = rate >= RATE if jobs > 1 else statistics.median(times) <= MEDIAN and ninth <= NINTH
    return text, forward >= FORWARD and gradients >= WITH_GRADIENTS and timely and not killed


WARM = """
import torch, verify

@verify.kernel(like=lambda x, w: torch.softmax(torch.nn.functional.gelu(x @ w), -1),
               examples=[(torch.empty(2048, 2048, device="meta"), torch.empty(2048, 2048, device="meta"))],
               dtypes=["float32"])
def warm(x, w):
    return torch.softmax(torch.nn.functional.gelu(x @ w), -1)
"""


def warmed() -> None:
    """Runs one kernel that no figure is about: the first start on a machine reads PyTorch's libraries from its disk."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "warm.py").write_text(WARM)
        command = [sys.executable, "-m", "verify", "run", "warm.py", "--jobs", "1", "--timeout", "90s"]
        subprocess.run(command, capture_output=True, cwd=folder, timeout=180, check=False)


def selected(options: argparse.Namespace) -> list[Path]:
    """The problem files that are measured."""
    paths = sorted(path for path in options.files.rglob("*.py") if re.search(options.match, path.as_posix()))
    paths = [path for path in paths if "def get_inputs" in path.read_text()]
    if options.sample:
        paths = sorted(random.Random(options.seed).sample(paths, min(options.sample, len(paths))))
    return paths


def written(record: Path, known: dict[str, Any]) -> None:
    """Replaces the record at once, so that no interruption leaves half of it."""
    partial = record.with_suffix(".part")
    partial.write_text(json.dumps(known, indent=1))
    os.replace(partial, record)


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
    parser.add_argument("--times", type=Path, help="a folder for where the seconds went, by file")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds after which no further file is begun")
    options = parser.parse_args()
    known = json.loads(options.record.read_text()) if options.record.exists() else {"rows": {}, "minutes": 0.0}
    rows, began, before = known["rows"], time.monotonic(), known["minutes"]
    names = {str(path.relative_to(options.files)): path for path in selected(options)}
    waiting = [name for name in names if name not in rows]
    if options.times:
        options.times.mkdir(parents=True, exist_ok=True)

    def one(name: str) -> dict[str, Any] | None:
        late = time.monotonic() - began > options.budget
        return None if late else measured(names[name], options)

    if waiting:
        warmed()
        began = time.monotonic()
    pool = concurrent.futures.ThreadPoolExecutor(options.jobs)
    asked = {pool.submit(one, name): name for name in waiting}
    interrupted = False
    try:
        for done in concurrent.futures.as_completed(asked):
            if (row := done.result()) is None:
                continue
            rows[asked[done]] = row
            known["minutes"] = round(before + (time.monotonic() - began) / 60, 2)
            print(f"{asked[done]}: {json.dumps(row)}", flush=True)
            written(options.record, known)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        pool.shutdown(wait=not interrupted, cancel_futures=True)
    if not rows:
        print(f"no problem file in {options.files} matches {options.match} and was measured", file=sys.stderr)
        return 2
    text, kept = summary(rows, known["minutes"], options.jobs)
    print(text)
    return 130 if interrupted else 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
