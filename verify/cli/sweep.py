"""Defines `verify sweep`: judge every input of a kernel, so that its maximum error is a proof."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from verify.cli import exits, given, options, screen, sinks


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "sweep",
        help="judge every input: a proof",
        description="Run elementwise kernels on every input of a dtype, or of a range, and judge every result "
        "against the exact value. Without a GPU float32 is swept only with --dtype, --range or --regime.",
        examples=(
            "verify sweep accuracy.py::my_gelu --dtype bfloat16",
            "verify sweep accuracy.py::my_gelu --range=-6:-5 --hardest 10",
            "verify sweep accuracy.py::my_geglu --pairs --resume geglu.parts",
        ),
    )
    options.targets(parser)
    options.some(parser, "--dtype", "--result")
    parser.add_argument("--pairs", action="store_true", help="kernels of two operands: all 2^32 pairs of 16 bits")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--range", metavar="LO:HI", help="inputs from LO to HI, both included (of a pair: of the gate)")
    options.one(part, "--regime")
    parser.add_argument("--baseline", action="store_true", help="sweep PyTorch's own implementation beside it")
    parser.add_argument("--no-curve", action="store_true", help="leave the error-against-input curve out of the record")
    parser.add_argument(
        "--hardest",
        type=options.count,
        default=0,
        metavar="N",
        help="list the N inputs whose results are hardest to round",
    )
    options.add(parser, "--resume")
    options.add(parser, "--backend", "--jobs")
    options.timeout(parser, "a span of inputs")
    options.spread(parser)
    options.sinks(parser, "the run record", "--json", "--html", "--markdown", "--sarif", "--junit")
    options.add(parser, "--github")
    parser.set_defaults(handler=main)


def main(options: argparse.Namespace) -> int:
    """Sweeps and reports. The exit code is the verdict, or 3 after Ctrl-C."""
    from verify import api
    from verify.declare import config
    from verify.search.sweep.drive import InterruptedSweepError

    targets = given.targets(options, config.find())
    progress = screen.Progress()
    try:
        own = {"range": _range(options.range), "curve": not options.no_curve, "progress": progress}
        done = api.sweep(targets, **given.arguments(options, api.sweep, **own))
    except InterruptedSweepError as interrupted:
        options.resume = str(interrupted.path)
        again = given.again(options, everything=True)
        print(f"\nverify: interrupted; finished chunks are in {interrupted.path}\n  next: {again}", file=sys.stderr)
        return exits.INCOMPLETE
    progress.clear()
    sinks.deliver_run(options, done.record)  # the record also lists what was not swept
    return done.exit_code


def _range(text: str | None) -> tuple[float, float] | None:
    """Returns LO:HI as two numbers."""
    from verify.errors import UsageError

    if text is None:
        return None
    low, colon, high = text.partition(":")
    try:
        bounds = (float(low), float(high))
    except ValueError:
        bounds = (1.0, 0.0)
    if not colon or not bounds[0] <= bounds[1]:
        raise UsageError(
            f"--range is LO:HI with LO <= HI; received {text!r}",
            hint="verify sweep FILE.py::KERNEL --range=-1:0.5",
        )
    return bounds
