"""`verify sanitize`: compute-sanitizer on kernels, where there is a GPU."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from verify.cli import screen

_RULE = "sanitize runs kernels on a GPU under compute-sanitizer, which comes with the CUDA toolkit"


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "sanitize",
        help="run kernels under compute-sanitizer (GPU only)",
        description="Run kernels, forward and backward, under the tools of compute-sanitizer: memcheck (accesses out "
        "of bounds), initcheck (reads of memory that nobody wrote), racecheck (races in shared memory), synccheck "
        "(barriers that some threads miss). Exit code 3 without a GPU or without compute-sanitizer.",
    )
    parser.add_argument("target", metavar="FILE|MODULE[::KERNEL]", help="what to run")
    parser.add_argument(
        "--tool", choices=("memcheck", "initcheck", "racecheck", "synccheck", "all"), default="all", help="default all"
    )
    parser.add_argument("--dtype", action="append", default=[], metavar="DTYPE", help="only this dtype (repeatable)")
    parser.add_argument(
        "--timeout", type=screen.seconds, default=600.0, metavar="SECONDS", help="for one tool on one kernel"
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(handler=main)


def main(options: argparse.Namespace) -> int:
    """Run the tools; 1 when one of them finds something, 3 when one of them could not say."""
    from verify.declare.requests import declared_by
    from verify.diagnose import sanitize
    from verify.truth.formats import named
    from verify.workers.process import START_SECONDS, Worker
    from verify.workers.requests import Environment

    program = sanitize.executable()
    if program is None:
        return _cannot("compute-sanitizer is not on the path, nor under CUDA_HOME or /usr/local/cuda")
    with Worker() as worker:
        if worker.ask(Environment(), timeout=START_SECONDS).backend != "cuda":
            return _cannot("this machine has no GPU that PyTorch can use")
        kernels = declared_by(worker, options.target)
    tools = sanitize.TOOLS if options.tool == "all" else (options.tool,)
    dtypes = [named(item).name for item in options.dtype]
    progress = screen.Progress()
    outcomes = []
    for kernel in kernels:
        if "cuda" not in kernel.backends or (dtypes and not set(dtypes) & set(kernel.dtypes)):
            continue
        for tool in tools:
            progress(f"{kernel.name}: {tool}")
            outcome = sanitize.check(program, tool, kernel.target, kernel.name, dtypes=dtypes, timeout=options.timeout)
            progress.clear()
            outcomes.append(outcome)
            if not options.json:
                print("\n".join(screen.plain(line) for line in lines_of(outcome)), flush=True)
    if not outcomes:
        return _cannot(f"{options.target} has no kernel for cuda in the dtypes asked for")
    if options.json:
        screen.print_json([outcome.plain() for outcome in outcomes])
    return _verdict(outcomes, quiet=options.json)


def lines_of(outcome: Any) -> list[str]:
    """One tool on one kernel, as a person reads it."""
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


def _verdict(outcomes: list[Any], *, quiet: bool) -> int:
    found = sum(outcome.status == "findings" for outcome in outcomes)
    open_ones = sum(outcome.status == "incomplete" for outcome in outcomes)
    if found:
        text, code = f"wrong: {found} of {len(outcomes)} runs of a tool found something", 1
    elif open_ones:
        text, code = f"incomplete: {open_ones} of {len(outcomes)} runs of a tool gave no verdict", 3
    else:
        text, code = f"clean: {len(outcomes)} runs of a tool found nothing", 0
    if not quiet:
        print(text)
    return code


def _cannot(reason: str) -> int:
    print(f"verify: incomplete: {_RULE}; {reason}", file=sys.stderr)
    return 3
