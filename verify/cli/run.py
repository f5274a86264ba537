"""`verify run`: measure kernels against the exact answer, print the verdict, write the record and report."""

from __future__ import annotations

import argparse
from typing import Any

from verify.cli import exits, given, options, screen, sinks, spread


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "run",
        help="measure kernels against the exact answer",
        description="Measure kernels against the exact real-valued answer and print the verdict.",
        examples=(
            "verify run accuracy.py",
            "verify run accuracy.py::my_gelu --dtype bfloat16",
            "verify run accuracy.py --profile quick                 # the laws too",
            "verify run accuracy.py --json run.json --html report.html",
        ),
    )
    options.targets(parser)
    options.some(parser, "--dtype")
    options.profile(parser, default="", named="the laws are not tried")
    options.seed(parser, "the observed cases", default=None)
    parser.add_argument(
        "--like",
        metavar="RUN.json",
        help="measure the cases of this record again, with its seed and as many as its backend gets; without a target "
        "the kernels that it judged",
    )
    options.add(parser, "--backend", "--jobs")
    options.timeout(parser, "a kernel")
    options.spread(parser)
    options.sinks(parser, "the run record", "--json", "--html", "--markdown")
    parser.set_defaults(handler=main)


def main(options: argparse.Namespace) -> int:
    """Run and report; the exit code is the verdict."""
    from verify.declare import config
    from verify.measure.session import Session, command_line, run

    settings = config.find()
    seed, plan = options.seed or 0, ""
    if options.like:
        targets, seed, plan = _like(options)
        if not options.targets:
            given.enter(options, settings.root)  # which the record's targets are relative to
    else:
        targets = given.targets(options, settings)
    progress = screen.Progress()
    session = Session(
        backend=options.backend,
        seed=seed,
        timeout=options.timeout,
        jobs=options.jobs,
        laws=options.profile,
        profile=options.profile or "default",
        dtypes=tuple(options.dtype),
        progress=progress,
        plan=plan,
    )
    with spread.pool(options, targets, options.backend) as session.pool:
        result = run(targets, session, command_line(given.words(options)))
    progress.clear()
    # where nothing was measured, what is wrong with the command is all there is to say
    sinks.deliver_run(options, result, (lambda: "") if session.usage and not result.kernels else None)
    screen.complain(session.usage)
    if result.verdict == "fail":
        return exits.WRONG
    return exits.USAGE if session.usage else exits.OF_VERDICT[result.verdict]


def _like(options: argparse.Namespace) -> tuple[list[str], int, str]:
    """Targets, seed and plan of the record whose cases are to be measured again."""
    from verify.errors import UsageError
    from verify.records.files import load

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
