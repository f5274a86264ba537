"""`verify sweep`: judge every input of a kernel, so that its maximum error is a proof."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from verify.cli import screen, sinks, spread


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "sweep",
        help="judge every input: a proof",
        description="Run elementwise kernels on every input of a dtype, or of a range, and judge every result "
        "against the exact value. Without a GPU float32 is swept where --dtype, --range or --regime asks for it.",
    )
    parser.add_argument("targets", nargs="*", metavar="FILE|MODULE[::KERNEL]", help="as for `verify run`")
    parser.add_argument("--dtype", action="append", default=[], metavar="DTYPE", help="only this dtype (repeatable)")
    parser.add_argument(
        "--output", action="append", default=[], metavar="NAME", help="only this result, e.g. y or dx (repeatable)"
    )
    parser.add_argument("--pairs", action="store_true", help="kernels of two operands: all 2^32 pairs of 16 bits")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--range", metavar="LO:HI", help="inputs from LO to HI, both included (of a pair: of the gate)")
    part.add_argument("--regime", default="", metavar="NAME", help="one regime of the op, e.g. 'slope root'")
    parser.add_argument("--baseline", action="store_true", help="sweep PyTorch's own implementation beside it")
    parser.add_argument(
        "--plot",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="keep the error-against-input curve in the record (default)",
    )
    parser.add_argument(
        "--hardest",
        type=screen.count,
        default=0,
        metavar="N",
        help="list the N inputs whose results are hardest to round",
    )
    parser.add_argument("--resume", metavar="FILE", help="begin or continue the sweep whose finished chunks are there")
    parser.add_argument("--backend", choices=("cuda", "interpreter"), help="default: cuda if there is a GPU")
    parser.add_argument(
        "--jobs", type=screen.count, default=0, metavar="N", help="processes (default: 1 on a GPU, else one per core)"
    )
    parser.add_argument(
        "--timeout",
        type=screen.seconds,
        default=600.0,
        metavar="SECONDS",
        help="time for one span of inputs (default 600)",
    )
    spread.add(parser)
    parser.add_argument("--json", metavar="PATH", help="write the run record; - for stdout instead of the table")
    parser.add_argument("--html", metavar="PATH", help="write the HTML report")
    parser.add_argument("--markdown", metavar="PATH", help="write the Markdown report")
    parser.set_defaults(handler=main)


def main(options: argparse.Namespace) -> int:
    """Sweep and report; the exit code is the verdict, 3 after Ctrl-C."""
    from verify.declare import config
    from verify.errors import UsageError
    from verify.measure.session import command_line
    from verify.sweep.drive import InterruptedSweepError, SweepSettings, sweep
    from verify.truth.formats import named

    targets = options.targets
    if not targets:
        settings = config.find()
        if not settings.kernels:
            raise UsageError(
                "no target given and no [tool.verify] kernels in pyproject.toml",
                hint="verify sweep FILE.py, where FILE.py declares a kernel with @verify.kernel",
            )
        targets = list(settings.kernels)
        os.chdir(settings.root)
    arguments = _arguments(options)
    with spread.pool(options, targets, options.backend) as pool, _bar() as progress:
        chosen = SweepSettings(
            backend=options.backend,
            dtypes=tuple(named(item).name for item in options.dtype),
            results=tuple(options.output),
            pairs=options.pairs,
            bounds=_range(options.range),
            regime=options.regime,
            baseline=options.baseline,
            curve=options.plot,
            hardest=options.hardest,
            jobs=options.jobs,
            timeout=options.timeout,
            pool=pool,
            journal=Path(options.resume) if options.resume else None,
            progress=progress,
        )
        try:
            result = sweep(targets, chosen, command_line(arguments))
        except InterruptedSweepError as interrupted:
            again = command_line([*arguments, "--resume", str(interrupted.path)])
            print(f"\nverify: interrupted; what is done is in {interrupted.path}\n  next: {again}", file=sys.stderr)
            return 3
    sinks.deliver(result, options)
    for line in chosen.usage:
        print(f"verify: {screen.plain(line)}", file=sys.stderr)
    if result.verdict == "fail":
        return 1
    judged = [kernel for kernel in result.kernels if not kernel.peer]
    return 0 if result.kernels and all(kernel.status == "ok" for kernel in judged or result.kernels) else 3


@contextlib.contextmanager
def _bar() -> Iterator[Any]:
    """A progress bar on stderr with rate and time left; nothing where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield lambda space, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from verify.declare.target import Target

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>5.1f}%"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        tasks: dict[str, Any] = {}

        def advance(space: Any, done: int, total: int) -> None:
            key = space.identity()
            if key not in tasks:
                name = Target.parse(space.target).kernel
                tasks[key] = shown.add_task(f"{name} {space.dtype}", total=total, completed=0, rate="")
            speed = shown.tasks[tasks[key]].speed
            text = "" if not speed else f"{speed / 1e6:,.1f} M/s"
            shown.update(tasks[key], completed=done, rate=text)

        yield advance


def _arguments(options: argparse.Namespace) -> list[str]:
    """What determines the figures, as arguments; where output goes does not."""
    arguments = ["sweep", *options.targets]
    for flag, values in (("--dtype", options.dtype), ("--output", options.output)):
        for item in values:
            arguments += [flag, item]
    for flag in ("pairs", "baseline"):
        if getattr(options, flag):
            arguments.append(f"--{flag}")
    for flag in ("range", "regime", "backend"):
        value = getattr(options, flag)
        if value:
            arguments += [f"--{flag}={value}"] if value.startswith("-") else [f"--{flag}", value]
    if options.hardest:
        arguments += ["--hardest", str(options.hardest)]
    if not options.plot:
        arguments.append("--no-plot")
    return arguments


def _range(text: str | None) -> tuple[float, float] | None:
    """LO:HI as two numbers."""
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
