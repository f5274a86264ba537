"""How soon `verify judge` answers, and how many judgements a minute it makes.

    python -m benchmarks.judge --record judge.json                    about three minutes on a GPU with 16 cores
    python -m benchmarks.judge --backend cpu --side 8 --only quick    small

`quick` and `ci` start `verify judge` once for each of three problems, with a right solution in Triton. The problems are
an elementwise function and a softmax of 16 x 16,384 numbers, and a product of 2,048 x 2,048 x 2,048. `--side` scales
these sizes; 16 makes those above. The seconds are of the whole command.

`many` gives one command a list of 36 such solutions, and counts the judgements that come within `--seconds` of its
start. The minutes begin with the first request to a worker that has imported PyTorch.

`large` judges a cumulative sum of 4.3 GB (`--side` 16), and one of 16 KB.

`--only` (repeatable) measures some of it: quick, ci, many, large, or quick:silu. The longest phases of each start are
printed (VERIFY_TIMES); `--times` keeps all of them in a folder. Exits 1 if a solution is not accepted, or if a figure
is beyond its limit:

    quick 10 s, ci 30 s; many: 20 a minute; large: 15 s more than the small one
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.start import machine, phases, show
from verify.workers.phases import VARIABLE

# seconds, seconds, judgements a minute, seconds more than of a small result
LIMITS = {"quick": 10.0, "ci": 30.0, "many": 20.0, "large": 15.0}
LAST_SECONDS = 150.0  # a command that takes longer is ended
ENDING_SECONDS = 15.0  # a command that takes longer to end is killed
PROBLEM = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, {operands}):
        return {reference}

def get_inputs():
    return [{inputs}]

def get_init_inputs():
    return []
"""
SOLUTION = """
import torch
from torch import nn
{kernel}

class ModelNew(nn.Module):
    def forward(self, {operands}):
        {body}
"""
TRITON = {
    "silu": """
import triton
from triton import language as tl

@triton.jit
def each(x, y, n, size: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    g = tl.load(x + at, at < n)
    tl.store(y + at, g / (1 + tl.exp(-g)), at < n)
""",
    "softmax": """
import triton
from triton import language as tl

@triton.jit
def rows(x, y, n, size: tl.constexpr):
    row, c = tl.program_id(0).to(tl.int64), tl.arange(0, size)
    g = tl.load(x + row * n + c, c < n, -float("inf"))
    e = tl.exp(g - tl.max(g, 0))
    tl.store(y + row * n + c, e / tl.sum(e, 0), c < n)
""",
    "product": """
import triton
from triton import language as tl

@triton.jit
def product(a, b, c, n, T: tl.constexpr, K: tl.constexpr):
    i = tl.program_id(0) * T + tl.arange(0, T)
    j = tl.program_id(1) * T + tl.arange(0, T)
    total = tl.zeros((T, T), tl.float32)
    for k in range(0, n, K):
        d = k + tl.arange(0, K)
        left, right = tl.load(a + i[:, None] * n + d[None]), tl.load(b + d[:, None] * n + j[None])
        total += tl.dot(left, right, input_precision="ieee")
    tl.store(c + i[:, None] * n + j[None], total)
""",
}
# by problem: operands, reference, inputs, and how a solution launches its kernel, or computes the result without Triton
PROBLEMS = {
    "silu": (
        "x",
        "x * torch.sigmoid(x)",
        "torch.randn({side}, 1024 * {side})",
        "y = torch.empty_like(x); each[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), 1024); return y",
        "return x / (1 + torch.exp(-x))",
    ),
    "softmax": (
        "x",
        "torch.softmax(x, 1)",
        "torch.randn({side}, 1024 * {side})",
        "y = torch.empty_like(x); rows[(len(x),)](x, y, x.shape[1], triton.next_power_of_2(x.shape[1])); return y",
        "e = torch.exp(x - x.amax(1, True)); return e / e.sum(1, True)",
    ),
    "product": (
        "x, y",
        "x @ y",
        "torch.randn(128 * {side}, 128 * {side}), torch.randn(128 * {side}, 128 * {side})",
        "z = torch.empty_like(x); product[(len(x) // 64, len(x) // 64)](x, y, z, len(x), 64, 32); return z",
        "return (x.double() @ y.double()).float()",
    ),
    "sum": ("x", "torch.cumsum(x, 1)", "torch.randn(2048 * {side}, 2048 * {side})", "", "return torch.cumsum(x, 1)"),
    "small_sum": ("x", "torch.cumsum(x, 1)", "torch.randn(64, 64)", "", "return torch.cumsum(x, 1)"),
}
STARTED = ("silu", "softmax", "product")


def written(folder: Path, name: str, side: int, *, triton: bool, copies: int = 0) -> list[tuple[str, str]]:
    """Writes a problem with its solution, or with some `copies` that differ in a comment. Returns the pairs."""
    operands, reference, inputs, launch, plain = PROBLEMS[name]
    problem = folder / f"{name}_problem.py"
    given = inputs.format(side=side)
    problem.write_text(PROBLEM.format(operands=operands, reference=reference, inputs=given))
    before, body = (TRITON[name], launch) if triton and name in TRITON else ("", plain)
    text = SOLUTION.format(kernel=before, operands=operands, body=body)
    found = []
    for number in range(max(copies, 1)):
        path = folder / f"{name}{number if copies else ''}.py"
        path.write_text(text + f"# {number}\n")
        found.append((problem.name, path.name))
    return found


def judge(arguments: Sequence[str], folder: Path, backend: str | None, times: Path) -> subprocess.Popen[str]:
    """Starts `verify judge` in a folder. It writes its phases to a file, and its errors to errors.txt."""
    times.unlink(missing_ok=True)
    path = os.pathsep.join([str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")])
    with (folder / "errors.txt").open("w") as errors:
        command = [sys.executable, "-m", "verify", "judge", "--allow-weaker", *arguments]
        return subprocess.Popen(
            command + (["--backend", backend] if backend else []),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path, VARIABLE: str(times)},
        )


@contextmanager
def ending(process: subprocess.Popen[str], seconds: float) -> Iterator[None]:
    """Interrupts a command after some seconds, as Ctrl-C does, and kills it if it goes on."""
    timers = [
        threading.Timer(seconds + more, os.killpg, (process.pid, kind))
        for more, kind in ((0.0, signal.SIGINT), (ENDING_SECONDS, signal.SIGKILL))
    ]
    for timer in timers:
        timer.start()
    try:
        yield
        process.wait()
    finally:
        for timer in timers:
            timer.cancel()


def errors_of(folder: Path) -> str:
    """Returns the last characters that the command in a folder wrote to stderr."""
    return (folder / "errors.txt").read_text()[-300:]


def alone(name: str, profile: str, folder: Path, times: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Judges one solution by a command of its own. Returns its seconds, its verdict and its phases."""
    [pair] = written(folder, name, options.side, triton=options.backend != "cpu")
    began = time.monotonic()
    process = judge([*pair, "--profile", profile, "--json", "-"], folder, options.backend, times)
    with ending(process, LAST_SECONDS):
        out, _ = process.communicate()
    seconds = round(time.monotonic() - began, 2)
    found = json.loads(out) if out else {"verdict": "no answer", "message": errors_of(folder)}
    row = {"seconds": seconds, "verdict": found["verdict"], "phases": phases(times)}
    return row | ({"message": found["message"]} if found["verdict"] != "accepted" else {})


def many(folder: Path, times: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Judges a list of solutions by one command, and counts the judgements that come in time."""
    copies = -(-options.candidates // len(STARTED))
    each = [written(folder, name, options.side, triton=options.backend != "cpu", copies=copies) for name in STARTED]
    pairs = [pair for together in zip(*each, strict=True) for pair in together][: options.candidates]
    (folder / "list.txt").write_text("".join(f"{problem} {solution}\n" for problem, solution in pairs))
    began = time.monotonic()
    process = judge(["--many", "list.txt", "--jobs", str(options.jobs)], folder, options.backend, times)
    assert process.stdout is not None
    found = []
    with ending(process, options.seconds):
        for line in process.stdout:
            now, answer = time.monotonic() - began, json.loads(line)
            if now <= options.seconds:
                found.append({"at": now, **{key: answer[key] for key in ("seconds", "verdict", "message")}})
    return rated(found, options.candidates, options.seconds) | ({} if found else {"message": errors_of(folder)})


def measured(kind: str, name: str, folder: Path, times: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Returns the figures of one measurement."""
    if kind == "many":
        return many(folder, times, options)
    if kind == "large":
        small = alone("small_sum", "quick", folder, times, options)
        row = alone(name, "quick", folder, times, options)
        return row | {"more": round(row["seconds"] - small["seconds"], 2), "small": small["verdict"]}
    return alone(name, kind, folder, times, options)


def rated(found: Sequence[dict[str, Any]], count: int, seconds: float) -> dict[str, Any]:
    """Returns the judgements a minute: from the first request until the last judgement, or until the time is over.

    Args:
        found: the judgements, with the seconds from the start of the command, and the seconds that each took
        count: how many solutions there are
        seconds: the time
    """
    warm = min((each["at"] - each["seconds"] for each in found), default=seconds)
    until = max(each["at"] for each in found) if len(found) == count else seconds
    by_verdict = Counter(each["verdict"] for each in found)
    return {
        "judgements": len(found),
        "of": count,
        "warm": round(warm, 2),
        "first": round(min((each["at"] for each in found), default=seconds), 2),
        "until": round(until, 2),
        "a_minute": round(60 * len(found) / (until - warm), 1) if found else 0.0,
        "verdicts": dict(by_verdict),
        "others": [each["message"][:200] for each in found if each["verdict"] != "accepted"],
        "seconds": [each["seconds"] for each in found],
    }


def within(kind: str, row: dict[str, Any]) -> bool:
    """True if a figure is within its limit and every solution was accepted."""
    if kind == "many":
        return set(row["verdicts"]) == {"accepted"} and bool(row["a_minute"] >= LIMITS[kind])
    return row["verdict"] == "accepted" and bool(row.get("more", row["seconds"]) <= LIMITS[kind])


def said(kind: str, name: str, row: dict[str, Any]) -> str:
    """Returns the line about a measurement."""
    mark = "ok " if within(kind, row) else "BAD"
    if kind == "many":
        text = f"{row['judgements']} of {row['of']} judgements, the first after {row['first']:.1f} s"
        text += f", {row['a_minute']:.1f} a minute; wanted {LIMITS[kind]:g}"
        return f"{mark} many: {text} {row['verdicts']} {row['others'] or row.get('message', '')}"
    more = f", {row['more']:.1f} s more than the small one" if "more" in row else ""
    text = f"{row['seconds']:.1f} s{more}; at most {LIMITS[kind]:g}; {row['verdict']} {row.get('message', '')}"
    return f"{mark} {kind} {name}: {text}"


def main() -> int:
    """The command of the docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    starts = [f"{kind}:{name}" for kind in ("quick", "ci") for name in STARTED]
    starts.append("large:sum")
    kinds = [*LIMITS, *starts]
    parser.add_argument("--only", action="append", choices=kinds, metavar="KIND[:NAME]", help="repeatable")
    parser.add_argument("--backend", help="as `verify judge` takes it")
    parser.add_argument("--side", type=int, default=16, help="sizes, where 16 is as published")
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--candidates", type=int, default=36, help="of the list of `many`")
    parser.add_argument("--seconds", type=float, default=90.0, help="of `many`")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--times", type=Path, help="a folder for the phases")
    options = parser.parse_args()
    wanted = options.only or list(LIMITS)
    record: dict[str, Any] = {"environment": machine(), "limits": LIMITS, "jobs": options.jobs}
    print(json.dumps(record["environment"]), flush=True)
    kept = True
    for item in ["many", *starts]:
        kind, _, name = item.partition(":")
        if item not in wanted and kind not in wanted:
            continue
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            times = (options.times or folder).resolve() / f"{kind}-{name or 'all'}.txt"
            times.parent.mkdir(parents=True, exist_ok=True)
            row = measured(kind, name, folder, times, options)
        record.setdefault(kind, {}).update(row if kind == "many" else {name: row})
        kept &= within(kind, row)
        print(said(kind, name, row), flush=True)
        show(row.get("phases", {}))
        if options.record:  # after each measurement, so that an interruption loses one
            options.record.write_text(json.dumps(record, indent=1))
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
