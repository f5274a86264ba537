"""Measure kernels against the exact answer.

Measure kernels against the exact real-valued answer and print the verdict.

    verify run accuracy.py
    verify run accuracy.py::my_gelu --dtype bfloat16
    verify run accuracy.py --profile quick                 # the laws too
    verify run accuracy.py --profile ci --without compiled
    verify run accuracy.py --json run.json --html report.html
    verify run accuracy.py --sarif run.sarif --junit run.xml
    verify run accuracy.py --model qwen3-moe               # at its sizes too
    verify run accuracy.py --resume build/run        # or continues there
    verify run kernels/*.py --jobs auto
    verify run kernels/*.py --each records.jsonl --jobs 8

targets --dtype ...
--profile: the laws are not tried
--without ...
--seed N  seed of the observed cases (default: 0)
--like RUN.json  measure the cases of this record again, with its seed and its backend's number of cases; without a
    target the kernels that it judged
--backend --jobs
--timeout TIME = 10m  stop one dtype of a kernel once its calls took this time, and judging as much, e.g. 90s, 20m
    or 1h30m (default 10m)
--memory --fail-fast
--model NAME ...  measure at the sizes of this public model too, such as qwen3-moe, or of all; `verify list --models`
--resume
--each PATH  run each target alone, --jobs at a time and on all GPUs, and add its record to this file as a line of
    JSON when it ends; a second start leaves out the targets that are there
--gpus | --scheduler
--json: the run record
--html --markdown --sarif --junit --github
"""

import argparse
import json
import os
import shlex
import time
from pathlib import Path
from typing import Any

import msgspec

from verify import api
from verify.cli import exits, given, screen, sinks
from verify.declare import config
from verify.errors import INCOMPLETE, UsageError, WriteError
from verify.records.files import load
from verify.records.part_store import PartStore, temporary


def main(options: argparse.Namespace) -> int:
    """Carries out the command."""
    settings = config.find()
    if options.without and not options.profile:
        hint = f"verify run {' '.join(options.targets)} --profile ci --without {shlex.quote(options.without[0])}"
        raise UsageError("--without leaves out laws, and only --profile tries them; received it alone", hint=hint)
    seed, plan = options.seed or 0, ""
    if options.like:
        targets, seed, plan = _like(options)
        if not options.targets:
            given.enter(options, settings.root)  # the folder that the record's targets are relative to
    else:
        targets = given.targets(options, settings)
    if options.each:
        return _each(options, targets, seed)
    progress = screen.Progress()
    path = Path(options.resume) if options.resume else temporary(f"{Path.cwd()} {given.again(options)}")
    kept = None if path is None else PartStore(path)
    try:
        with exits.terminated_as_interrupted():
            own = {"seed": seed, "cases_of": plan, "resume": kept, "progress": progress, "partial": True}
            done = api.run(targets, **given.arguments(options, api.run, **own))
        progress.clear()
        # If nothing was measured, the problems of the command are the only output.
        sinks.deliver_run(options, done.record, (lambda: "") if done.problems and not done.record.kernels else None)
    except WriteError as error:
        raise error if kept is None or kept.lost else WriteError(str(error), hint=_on(options, kept)) from None
    except BaseException:
        if kept is not None and not options.resume and not kept.begun:
            kept.clear()
        raise
    if kept is not None:
        if not (kept.begun or kept.lost) or not any(gap.kind in AGAIN for gap in done.record.incomplete):
            kept.clear()
        elif not kept.lost:  # another start can continue from them
            if any(gap.kind == "timeout" for gap in done.record.incomplete):
                options.timeout = 2 * options.timeout
            screen.complain([f"finished parts are kept in {kept.path}\n  next: {_on(options, kept)}"])
    screen.complain(done.problems)
    return done.exit_code


def _each(options: argparse.Namespace, targets: list[str], seed: int) -> int:
    """Runs each target alone. Prints a line and writes a line of JSON as each ends; the exit code is the worst."""
    others = ("json", "html", "markdown", "sarif", "junit", "github", "resume", "like", "gpus", "scheduler")
    if flag := next((flag for flag in others if getattr(options, flag)), ""):
        then = "verify run FILE.py ... --each records.jsonl --jobs 4"
        raise UsageError(f"--each writes a record for each target; received --{flag} too", hint=then)
    path = Path(options.each)
    codes = _finished(path)
    arguments = given.arguments(options, api.run, seed=seed)
    arguments = {name: value for name, value in arguments.items() if name not in (*others, "command")}
    waiting = [target for target in targets if target not in codes]
    with path.open("a", encoding="utf-8") as lines, exits.terminated_as_interrupted():
        for target, done, seconds in api.run_many(waiting, **arguments):
            row: dict[str, Any] = {"target": target, "seconds": round(seconds, 3), "ended": round(time.time(), 3)}
            if isinstance(done, api.CompletedRun):
                row |= {"exit code": done.exit_code, "verdict": done.verdict}
                row["record"] = msgspec.to_builtins(done.record)
                why = "; ".join([*done.problems, *(gap.text for gap in done.record.incomplete)])
            else:
                row |= {"exit code": INCOMPLETE, "verdict": "incomplete", "problem": (why := str(done))}
            codes[target] = row["exit code"]
            lines.write(json.dumps(row) + "\n")
            lines.flush()
            text = f"{target}: {row['verdict']}, {seconds:.1f} s" + (f": {why}" if why else "")
            print(screen.plain(" ".join(text.split())), flush=True)
    return max((codes.get(target, INCOMPLETE) for target in targets), key=exits.worse, default=exits.PASS)


def _finished(path: Path) -> dict[str, int]:
    """Returns the exit codes of the targets in a file of --each. Cuts off a last line that was not written whole."""
    try:
        data = path.read_bytes() if path.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]
        found = {row["target"]: int(row["exit code"]) for row in map(json.loads, whole.splitlines())}
        if data and not found:
            raise ValueError("it has no finished target")
        if len(whole) < len(data):
            os.truncate(path, len(whole))
    except (OSError, ValueError, TypeError, KeyError) as error:
        said = f"--each continues a file of its own; cannot read {path}: {error}"
        raise UsageError(said, hint="name another file") from error
    return found


AGAIN = ("interrupted", "timeout", "crashed", "judge failed", "out of time")  # gaps that another start may fill


def _on(options: argparse.Namespace, kept: PartStore) -> str:
    """Returns the command that continues from the kept parts."""
    again = argparse.Namespace(**{**vars(options), "resume": str(kept.path)})
    return given.again(again, everything=True)


def _like(options: argparse.Namespace) -> tuple[list[str], int, str]:
    """Returns targets, seed and plan of the record whose cases are to be measured again."""
    record = load(options.like)
    if options.seed not in (None, record.seed):
        said = f"--like takes the seed of the record, which is {record.seed}; received --seed {options.seed}"
        raise UsageError(said, hint=f"verify run --like {options.like}")
    judged = [kernel for kernel in record.kernels if not kernel.peer]
    targets = [kernel.target for kernel in judged if any(result.source == "run" for result in kernel.results)]
    if not targets and not options.targets:
        said = f"--like takes a record with kernels that `verify run` judged; {options.like} is of {record.command!r}"
        raise UsageError(said, hint=f"verify run FILE.py --like {options.like}")
    return options.targets or targets, record.seed, record.backend
