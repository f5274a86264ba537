"""`verify run`: measure kernels against the exact answer, print the verdict, write the record and report."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from verify.cli import screen, sinks, spread


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "run",
        help="measure kernels against the exact answer",
        description="Measure kernels against the exact real-valued answer and print the verdict. Without a "
        "target: everything under `[tool.verify] kernels` in pyproject.toml.",
    )
    parser.add_argument(
        "targets",
        nargs="*",
        metavar="FILE|MODULE[::KERNEL]",
        help="what to measure, e.g. accuracy.py::my_gelu",
    )
    parser.add_argument("--dtype", action="append", default=[], metavar="DTYPE", help="only this dtype (repeatable)")
    parser.add_argument("--seed", type=int, help="seed of the observed cases (default 0)")
    parser.add_argument(
        "--like",
        metavar="RECORD.json",
        help="measure the cases of this record again, with its seed and as many as its backend gets; without a target "
        "the kernels that it judged",
    )
    parser.add_argument(
        "--timeout",
        type=screen.seconds,
        default=600.0,
        metavar="SECONDS",
        help="time for one kernel (default 600)",
    )
    parser.add_argument("--backend", choices=("cuda", "interpreter"), help="default: cuda if there is a GPU")
    parser.add_argument(
        "--jobs",
        type=screen.count,
        default=0,
        metavar="N",
        help="kernels at a time (default: one per core, if they fit the GPU)",
    )
    parser.add_argument(
        "--laws",
        choices=("quick", "ci", "nightly", "exhaustive"),
        default="",
        help="try the laws too, with this profile",
    )
    spread.add(parser)
    parser.add_argument("--json", metavar="PATH", help="write the run record; - for stdout instead of the table")
    parser.add_argument("--html", metavar="PATH", help="write the HTML report")
    parser.add_argument("--markdown", metavar="PATH", help="write the Markdown report")
    parser.set_defaults(handler=main)


def main(options: argparse.Namespace) -> int:
    """Run and report; the exit code is the verdict."""
    from verify.declare import config
    from verify.errors import UsageError
    from verify.measure.session import Session, command_line, run
    from verify.truth.formats import named

    settings = config.find()
    targets, seed, plan = options.targets, options.seed or 0, ""
    if options.like:
        targets, seed, plan = _like(options)
        if not options.targets:
            os.chdir(settings.root)  # which the record's targets are relative to
    if not targets:
        if not settings.kernels:
            raise UsageError(
                "no target given and no [tool.verify] kernels in pyproject.toml",
                hint="verify run FILE.py, where FILE.py declares a kernel with @verify.kernel",
            )
        targets = list(settings.kernels)
        os.chdir(settings.root)
    progress = screen.Progress()
    session = Session(
        backend=options.backend,
        seed=seed,
        timeout=options.timeout,
        jobs=options.jobs,
        laws=options.laws,
        profile=options.laws or "default",
        dtypes=tuple(named(item).name for item in options.dtype),
        progress=progress,
        plan=plan,
    )
    with spread.pool(options, targets, options.backend) as session.pool:
        result = run(targets, session, command_line(_arguments(options)))
    progress.clear()
    # where nothing was measured, what is wrong with the command is all there is to say
    sinks.deliver(result, options, (lambda: "") if session.usage and not result.kernels else None)
    for line in session.usage:
        print(f"verify: {line}", file=sys.stderr)
    if result.verdict == "fail":
        return 1
    if session.usage:
        return 2
    return 0 if result.verdict == "pass" else 3


def _like(options: argparse.Namespace) -> tuple[list[str], int, str]:
    """Targets, seed and plan of the record whose cases are to be measured again."""
    from verify.errors import UsageError
    from verify.records.record import load

    record = load(options.like)
    if options.seed not in (None, record.seed):
        raise UsageError(
            f"--like takes the seed of the record, which is {record.seed}; received --seed {options.seed}",
            hint=f"verify run --like {options.like}",
        )
    judged = [kernel for kernel in record.kernels if not kernel.peer]
    targets = [kernel.target for kernel in judged if any(result.source == "run" for result in kernel.results)]
    if not targets and not options.targets:
        raise UsageError(
            f"--like takes a record with kernels that `verify run` judged; {options.like} is of {record.command!r}",
            hint=f"verify run FILE.py --like {options.like}",
        )
    return options.targets or targets, record.seed, record.backend


def _arguments(options: argparse.Namespace) -> list[str]:
    """What determines the figures, as arguments; where output goes does not."""
    arguments = ["run", *options.targets]
    for item in options.dtype:
        arguments += ["--dtype", item]
    if options.laws:
        arguments += ["--laws", options.laws]
    if options.like:
        arguments += ["--like", options.like]
    elif options.seed:
        arguments += ["--seed", str(options.seed)]
    if options.backend:
        arguments += ["--backend", options.backend]
    return arguments
