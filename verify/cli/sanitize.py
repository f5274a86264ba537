"""Defines `verify sanitize`: compute-sanitizer on kernels, on a GPU."""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import Any

from verify.cli import exits, given, options, screen, sinks

_RULE = "sanitize runs kernels on a GPU under compute-sanitizer, which comes with the CUDA toolkit"


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "sanitize",
        help="run kernels under compute-sanitizer (GPU only)",
        description="Run kernels, forward and backward, under the tools of compute-sanitizer: memcheck (accesses out "
        "of bounds), initcheck (reads of memory that was never written), racecheck (races in shared memory), synccheck "
        "(barriers that some threads miss). Exit code 3 without a GPU or without compute-sanitizer.",
        examples=("verify sanitize accuracy.py", "verify sanitize accuracy.py::my_gelu --tool memcheck"),
    )
    options.targets(parser)
    options.some(parser, "--dtype")
    parser.add_argument(
        "--tool", choices=("memcheck", "initcheck", "racecheck", "synccheck", "all"), default="all", help="default all"
    )
    options.timeout(parser, "a tool on a kernel")
    options.sinks(parser, "the findings", "--json")
    parser.set_defaults(handler=main)


def main(options: argparse.Namespace) -> int:
    """Runs the tools. Exit code 1 if one of them finds something, 3 if one of them gave no verdict."""
    from verify.backends import named, runs_on
    from verify.declare import config
    from verify.declare.requests import declared_by
    from verify.diagnose import sanitize
    from verify.workers.process import START_SECONDS, Worker
    from verify.workers.requests import Environment

    program = sanitize.executable()
    if program is None:
        return _cannot("compute-sanitizer is not on the path, nor under CUDA_HOME or /usr/local/cuda")
    targets = given.targets(options, config.find())
    with Worker() as worker:
        backend = worker.ask(Environment(), timeout=START_SECONDS).backend
        if not named(backend).sanitizer:
            return _cannot("this machine has no GPU that PyTorch can use")
        kernels = [kernel for target in targets for kernel in declared_by(worker, target)]
    tools = sanitize.TOOLS if options.tool == "all" else (options.tool,)
    progress = screen.Progress()
    outcomes = []
    for kernel in kernels:
        if not runs_on(kernel.backends, backend) or (options.dtype and not set(options.dtype) & set(kernel.dtypes)):
            continue
        for tool in tools:
            progress(f"{kernel.name}: {tool}")
            outcome = sanitize.check(
                program, tool, kernel.target, kernel.name, dtypes=options.dtype, timeout=options.timeout
            )
            progress.clear()
            outcomes.append(outcome)
            if not sinks.quiet(options):
                print(sinks.lines(*lines_of(outcome)), end="", flush=True)
    if not outcomes:
        return _cannot(f"{', '.join(targets)}: no kernel for cuda in the requested dtypes")
    verdict, code = _verdict(outcomes)
    end = sinks.ending(verdict, shlex.join(["verify", "run", *targets]))
    sinks.deliver_data(options, lambda: [outcome.plain() for outcome in outcomes], lambda: sinks.lines(*end))
    return code


def lines_of(outcome: Any) -> list[str]:
    """Returns the findings of one tool on one kernel as lines for the screen."""
    head = f"{outcome.kernel}  {outcome.tool}"
    if outcome.status == "clean":
        return [f"{head}: nothing found in {outcome.cases} cases, {outcome.seconds:.0f} s"]
    if outcome.status == "incomplete":
        return [f"{head}: incomplete: {outcome.message}"]
    lines = [f"{head}: {len(outcome.findings)} findings"]
    for finding in outcome.findings:
        lines.append(f"  {finding.what}")
        for name in ("kernel", "location", "thread", "address"):
            value = getattr(finding, name)
            if value:
                lines.append(f"    {name:<9} {value}")
        if finding.times > 1:
            lines.append(f"    {'times':<9} {finding.times} of those printed")
    return lines


def _verdict(outcomes: list[Any]) -> tuple[str, int]:
    found = sum(outcome.status == "findings" for outcome in outcomes)
    open_ones = sum(outcome.status == "incomplete" for outcome in outcomes)
    if found:
        return f"wrong: {found} of {len(outcomes)} runs of a tool found something", exits.WRONG
    if open_ones:
        return f"incomplete: {open_ones} of {len(outcomes)} runs of a tool gave no verdict", exits.INCOMPLETE
    return f"clean: {len(outcomes)} runs of a tool found nothing", exits.PASS


def _cannot(reason: str) -> int:
    print(f"verify: incomplete: {_RULE}; {reason}", file=sys.stderr)
    return exits.INCOMPLETE
