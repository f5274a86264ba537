"""Defines `verify bench`: accuracy and speed of every implementation of an op, in one table."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from verify.cli import exits, given, options, screen, sinks

if TYPE_CHECKING:
    from verify.declare.config import Config


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "bench",
        help="accuracy and speed of every implementation, side by side",
        description="Compare the kernels of targets. The name of an op selects every declared kernel that computes it "
        "([tool.verify] kernels and peers in pyproject.toml). Each kernel is compared with PyTorch eager and "
        "torch.compile. Speed is measured on a GPU only, interleaved, as a fraction of a copy of the same bytes.",
        examples=(
            "verify bench gelu --dtype bfloat16",
            "verify bench accuracy.py::my_gelu --shape 8192,4096 --forward",
            "verify bench layer_norm --no-accuracy --json bench.json",
        ),
    )
    options.targets(parser, also="OP")
    options.some(parser, "--dtype")
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        type=_shape,
        metavar="N,N",
        help="time at this shape, e.g. 8192,4096; M,K,N for linear (repeatable)",
    )
    parser.add_argument("--forward", action="store_true", help="time the forward pass only")
    parser.add_argument("--backward", action="store_true", help="time the backward pass only")
    parser.add_argument("--no-accuracy", action="store_true", help="time only")
    parser.add_argument("--rounds", type=_rounds, default=15, metavar="N", help="timed rounds (default 15)")
    options.seed(parser, "the observed cases")
    options.add(parser, "--backend", "--jobs")
    options.timeout(parser, "a kernel")
    options.sinks(parser, "the run record", "--json", "--html", "--markdown")
    parser.set_defaults(handler=main)


def main(options: argparse.Namespace) -> int:
    """Measures, and prints the table. The exit code is that of `verify run` over the judged kernels."""
    from verify.declare import config
    from verify.measure.bench import Bench, bench
    from verify.measure.session import Session

    found = config.find()
    wanted = given.targets(options, found)
    session = Session(
        backend=options.backend,
        seed=options.seed,
        timeout=options.timeout,
        jobs=options.jobs,
        dtypes=tuple(options.dtype),
        progress=(progress := screen.Progress()),
    )
    directions: tuple[Literal["forward", "backward"], ...] = ("forward", "backward")
    if options.forward != options.backward:
        directions = ("forward",) if options.forward else ("backward",)
    settings = Bench(
        wanted=tuple(wanted),
        pool=_configured_targets(found, Path.cwd()),
        shapes=tuple(dict.fromkeys(options.shape)),
        directions=directions,
        rounds=options.rounds,
        accuracy=not options.no_accuracy,
    )
    result = bench(settings, session, given.again(options))
    progress.clear()

    def table() -> str:
        from verify.report.terminal import bench_table

        return bench_table.render(result)

    sinks.deliver_run(options, result, table)
    screen.complain(session.usage)
    if result.verdict == "fail":
        return exits.WRONG
    if session.usage:
        return exits.USAGE
    return exits.INCOMPLETE if result.incomplete else exits.PASS


def _configured_targets(settings: Config, here: Path) -> tuple[str, ...]:
    """Returns the kernels and peers of pyproject.toml, with paths relative to `here`.

    The bench looks among them for other implementations of an op.
    """
    from verify.declare.target import Target

    def placed(target: str) -> str:
        named = Target.parse(target)
        if named.file is not None:
            named = Target(os.path.relpath(settings.root / named.file, here), named.kernel)
        return str(named)

    return tuple(placed(item) for item in (*settings.kernels, *settings.peers))


def _shape(text: str) -> tuple[int, ...]:
    """Reads the value of --shape. Raises ArgumentTypeError if it is no shape."""
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        sizes = ()
    if not sizes or any(size < 1 for size in sizes):
        raise argparse.ArgumentTypeError(f"a shape is positive sizes such as 8192,4096; received {text!r}")
    return sizes


def _rounds(text: str) -> int:
    """Reads the value of --rounds. Raises ArgumentTypeError if it is no number from 1 to 10,000."""
    if not text.isdecimal() or not 1 <= int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"rounds are a number from 1 to 10000; received {text!r}")
    return int(text)
