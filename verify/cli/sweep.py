"""Judge every input: a proof.

Run elementwise kernels on every input of a dtype, or of a range, and judge every result against the exact value.
Without a GPU float32 is swept only with --dtype or --range.

    verify sweep accuracy.py::my_gelu --dtype bfloat16
    verify sweep accuracy.py::my_gelu --range=-6:-5
    verify sweep accuracy.py::my_geglu --pairs --resume geglu.parts

targets --dtype ... --result ...
--pairs  kernels of two operands: all 2^32 pairs of 16 bits
--range LO:HI  inputs from LO to HI, both included (of a pair: of the gate)
--baseline  sweep PyTorch's own implementation beside it
--no-curve  leave the error-against-input curve out of the record
--resume --backend --jobs
--timeout: a span of inputs
--gpus | --scheduler
--json: the run record
--html --markdown --sarif --junit --github
"""

import argparse
import sys

from verify import api
from verify.cli import exits, given, screen, sinks
from verify.declare import config
from verify.errors import UsageError
from verify.search.sweep.drive import InterruptedSweepError


def main(options: argparse.Namespace) -> int:
    """Carries out the command."""
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
    sinks.deliver_run(options, done.record)  # the record also lists the rest
    return done.exit_code


def _range(text: str | None) -> tuple[float, float] | None:
    """Returns LO:HI as two numbers."""
    if text is None:
        return None
    low, colon, high = text.partition(":")
    try:
        bounds = (float(low), float(high))
    except ValueError:
        bounds = (1.0, 0.0)
    if not colon or not bounds[0] <= bounds[1]:
        then = "verify sweep FILE.py::KERNEL --range=-1:0.5"
        raise UsageError(f"--range is LO:HI with LO <= HI; received {text!r}", hint=then)
    return bounds
