"""`verify bench`: accuracy and speed of every implementation of an op, in one table."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any, Literal

from verify.cli import screen


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "bench",
        help="accuracy and speed of every implementation, side by side",
        description="Compare implementations: the kernels of the named targets, or everything declared that computes "
        "an op ([tool.verify] kernels and peers in pyproject.toml), each beside PyTorch eager and torch.compile. "
        "Speed is measured on a GPU only, interleaved, as a fraction of a copy of the same bytes.",
    )
    parser.add_argument(
        "wanted", nargs="+", metavar="OP|FILE|MODULE[::KERNEL]", help="an op's name, or what declares kernels"
    )
    parser.add_argument("--dtype", action="append", default=[], metavar="DTYPE", help="only this dtype (repeatable)")
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
    parser.add_argument("--seed", type=int, default=0, help="seed of the observed cases (default 0)")
    parser.add_argument(
        "--timeout", type=screen.seconds, default=600.0, metavar="SECONDS", help="time for one kernel (default 600)"
    )
    parser.add_argument("--backend", choices=("cuda", "interpreter"), help="default: cuda if there is a GPU")
    parser.add_argument(
        "--jobs",
        type=screen.count,
        default=0,
        metavar="N",
        help="kernels at a time (default: one per core, if they fit the GPU)",
    )
    parser.add_argument("--json", metavar="PATH", help="write the run record; - for stdout instead of the table")
    parser.add_argument("--html", metavar="PATH", help="write the HTML report")
    parser.set_defaults(handler=main)


def main(options: argparse.Namespace) -> int:
    """Compare and report; the exit code is that of `verify run` over the judged kernels."""
    from verify.declare import config
    from verify.measure.bench import Bench, bench
    from verify.measure.session import Session, command_line
    from verify.records.record import encode, save, write_atomically
    from verify.truth.formats import named

    wanted, pool = _resolved(options.wanted, config.find())
    session = Session(
        backend=options.backend,
        seed=options.seed,
        timeout=options.timeout,
        jobs=options.jobs,
        dtypes=tuple(named(item).name for item in options.dtype),
        progress=(progress := screen.Progress()),
    )
    directions: tuple[Literal["forward", "backward"], ...] = ("forward", "backward")
    if options.forward != options.backward:
        directions = ("forward",) if options.forward else ("backward",)
    settings = Bench(
        wanted=wanted,
        pool=pool,
        shapes=tuple(dict.fromkeys(options.shape)),
        directions=directions,
        rounds=options.rounds,
        accuracy=not options.no_accuracy,
    )
    result = bench(settings, session, command_line(_arguments(options)))
    progress.clear()
    if options.json and options.json != "-":
        save(result, options.json)
    if options.html:
        from verify.report.html import record_html

        write_atomically(options.html, record_html.render(result).encode())
    if options.json == "-":
        sys.stdout.write(encode(result).decode())
    else:
        from verify.report.terminal import bench_table

        sys.stdout.write(bench_table.render(result))
        for label, path in (("record", options.json), ("report", options.html)):
            if path:
                print(f"{label}: {Path(path).resolve()}")
    for line in session.usage:
        print(f"verify: {line}", file=sys.stderr)
    if result.verdict == "fail":
        return 1
    if session.usage:
        return 2
    return 3 if result.incomplete else 0


def _resolved(wanted: list[str], settings: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What was asked for, and the configured targets as they are found from here."""
    from verify.declare.target import Target

    here = Path.cwd()

    def placed(target: str) -> str:
        named = Target.parse(target)
        if named.file is not None:
            named = Target(os.path.relpath(settings.root / named.file, here), named.kernel)
        return str(named)

    return tuple(wanted), tuple(placed(item) for item in (*settings.kernels, *settings.peers))


def _arguments(options: argparse.Namespace) -> list[str]:
    """What determines the figures, as arguments; where output goes does not."""
    arguments = ["bench", *options.wanted]
    for item in options.dtype:
        arguments += ["--dtype", item]
    for shape in options.shape:
        arguments += ["--shape", ",".join(map(str, shape))]
    arguments += [f"--{name}" for name in ("forward", "backward") if getattr(options, name)]
    arguments += ["--no-accuracy"] if options.no_accuracy else []
    for name, default in (("rounds", 15), ("seed", 0), ("backend", None)):
        if getattr(options, name) != default:
            arguments += [f"--{name}", str(getattr(options, name))]
    return arguments


def _shape(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        sizes = ()
    if not sizes or any(size < 1 for size in sizes):
        raise argparse.ArgumentTypeError(f"a shape is positive sizes such as 8192,4096; received {text!r}")
    return sizes


def _rounds(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"rounds are a number from 1 to 10000; received {text!r}")
    return int(text)
