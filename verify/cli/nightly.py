"""`verify nightly`: accuracy, laws, sweeps, hunts, speed, gate and report in one command, within a time budget."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verify.cli import screen, spread

if TYPE_CHECKING:
    from verify.gate.verdict import Verdict
    from verify.nightly import Night
    from verify.records.record import Run

TIMEOUT = 1800.0
STAGES = ("accuracy", "sweep", "bench", "hunt", "laws")


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "nightly",
        help="everything: accuracy, laws, sweeps, hunts, speed, gate, report",
        description="Measure everything, judge it by the committed bounds and write one report, within a time budget. "
        "Every finished part is kept: the same command goes on where an interrupted one stopped. Without a target: "
        "everything under `[tool.verify] kernels`, beside the `peers`.",
        epilog="exit codes: 0 pass, 1 something is wrong or a bound is breached, 2 usage, 3 something was not measured",
    )
    parser.add_argument("targets", nargs="*", metavar="FILE|MODULE[::KERNEL]", help="what to measure")
    parser.add_argument(
        "--budget",
        type=screen.seconds,
        metavar="TIME",
        help="time for all stages, e.g. 20m, 1h30m, 900s (default: none)",
    )
    parser.add_argument("--output", metavar="DIR", help="folder of this night (default build/nightly/DATE)")
    parser.add_argument(
        "--stages",
        type=_stages,
        default=STAGES,
        metavar="LIST",
        help=f"some of {','.join(STAGES)} (default: all)",
    )
    parser.add_argument(
        "--seed", type=int, metavar="SEED", help="default: the date, so that branches see the same cases"
    )
    parser.add_argument(
        "--profile",
        choices=("quick", "ci", "nightly", "exhaustive"),
        default="nightly",
        help="how hard the laws are tried (default nightly)",
    )
    parser.add_argument(
        "--jobs", type=screen.count, default=0, metavar="N", help="kernels at a time, as for `verify run`"
    )
    parser.add_argument(
        "--timeout",
        type=screen.seconds,
        default=TIMEOUT,
        metavar="TIME",
        help="the longest that one part may take before it is stopped (default 30m): in accuracy one dtype of a "
        "kernel, in sweep one span of inputs, in bench what is timed together in one dtype, in hunt one result in one "
        "dtype beyond its own time, in laws one law of one kernel in one dtype",
    )
    parser.add_argument("--backend", choices=("cuda", "interpreter"), help="default: cuda if there is a GPU")
    parser.add_argument("--bounds", metavar="DIR", help="folder of the bounds (default reports/bounds)")
    parser.add_argument("--runs", metavar="DIR", help="folder of earlier records for the trends (default reports/runs)")
    parser.add_argument("--keep", action="store_true", help="add this night's record to that folder")
    spread.add(parser)
    parser.set_defaults(handler=main)


def main(options: argparse.Namespace) -> int:
    """Do the stages, judge, report; the exit code is the worst of it."""
    from verify import nightly
    from verify.declare import config
    from verify.errors import UsageError
    from verify.laws.profiles import seed_of_today
    from verify.measure.session import command_line
    from verify.records.record import save, write_atomically

    settings = config.find()
    targets = tuple(options.targets) or settings.kernels
    if not targets:
        raise UsageError(
            "no target given and no [tool.verify] kernels in pyproject.toml",
            hint="verify nightly FILE.py, where FILE.py declares a kernel with @verify.kernel",
        )
    if not options.targets:
        os.chdir(settings.root)
    seed = seed_of_today() if options.seed is None else options.seed
    folder = Path(options.output or f"build/nightly/{seed}")
    progress = screen.Progress()
    with spread.cluster(options, targets, options.backend) as cluster:
        night = nightly.Night(
            folder=folder,
            targets=targets,
            peers=() if options.targets else settings.peers,
            seed=seed,
            profile=options.profile,
            budget=options.budget,
            timeout=options.timeout,
            jobs=options.jobs,
            backend=options.backend,
            cluster=cluster,
            say=progress,
        )
        works = [work for work in nightly.WORKS if work.name in options.stages]
        try:
            record = nightly.run(night, works, command_line(_arguments(options, seed)))
        except KeyboardInterrupt:
            progress.clear()
            print(f"verify: interrupted; what is finished is kept in {folder}", file=sys.stderr)
            print(f"  next: {command_line(_arguments(options, seed, everything=True))}", file=sys.stderr)
            return 3
    progress.clear()
    save(record, folder / "run.json")
    verdict = _judge(record, Path(options.bounds) if options.bounds else settings.bounds)
    runs = Path(options.runs) if options.runs else settings.runs
    paths = _report(night, record, verdict, runs)
    if options.keep:
        kept = runs / f"{record.created[:10]}-{record.id}.json.gz"
        save(record, kept)
        paths.append(("kept", kept))
    again = command_line(_arguments(options, seed, everything=True))
    _show(record, verdict, folder / "run.json", again)
    for line in night.usage:
        print(f"verify: {screen.plain(line)}", file=sys.stderr)
    for label, path in [("record", folder / "run.json"), *paths]:
        print(f"{label}: {path.resolve()}")
    write_atomically(folder / "exit", f"{_exit(record, verdict)}\n".encode())
    return _exit(record, verdict)


def _judge(record: Run, folder: Path) -> Verdict | None:
    """The gate's verdict; None while the project has no bounds for this architecture."""
    from verify.gate import bounds
    from verify.gate import verdict as gate

    book = bounds.load(folder)
    if not book.bounds:
        return None
    return gate.judge([record], book)


def _exit(record: Run, verdict: Verdict | None) -> int:
    codes = [{"pass": 0, "fail": 1, "incomplete": 3}[record.verdict]]
    if verdict is not None:
        codes.append(verdict.exit_code)
    return 1 if 1 in codes else max(codes)


def _report(night: Night, record: Run, verdict: Verdict | None, runs: Path) -> list[tuple[str, Path]]:
    from verify.cli.report import comment, earlier
    from verify.records.record import write_atomically
    from verify.report.html import record_html

    page, text = night.folder / "report.html", night.folder / "report.md"
    history = earlier(runs, record) if runs.is_dir() else {}
    write_atomically(page, record_html.render(record, gate=verdict, history=history).encode())
    write_atomically(text, comment(record, str(night.folder / "run.json"), None, verdict).encode())
    return [("report", text), ("report", page)]


def _show(record: Run, verdict: Verdict | None, path: Path, again: str) -> None:
    """The report; `again` goes on in the same folder, which the record's own command does not name."""
    import msgspec

    from verify.report.terminal import gate_text, record_text

    terminal = screen.terminal()
    shown = msgspec.structs.replace(record, command=again)
    sys.stdout.write(record_text.render(shown, terminal, record=str(path)))
    if verdict is not None:
        sys.stdout.write("\n" + gate_text.render(verdict, terminal, records=[str(path)]))


def _arguments(options: argparse.Namespace, seed: int, *, everything: bool = False) -> list[str]:
    """What determines the figures, as arguments; `everything` adds what a person would type again."""
    arguments = ["nightly", *options.targets, "--seed", str(seed)]
    if tuple(options.stages) != STAGES:
        arguments += ["--stages", ",".join(options.stages)]
    if options.profile != "nightly":
        arguments += ["--profile", options.profile]
    if options.backend:
        arguments += ["--backend", options.backend]
    if everything:
        if options.output:
            arguments += ["--output", options.output]
        if options.budget is not None:
            arguments += ["--budget", f"{options.budget:g}s"]
        if options.timeout != TIMEOUT:
            arguments += ["--timeout", f"{options.timeout:g}s"]
        if options.jobs:
            arguments += ["--jobs", str(options.jobs)]
        if options.gpus:
            arguments += ["--gpus", options.gpus]
        if options.scheduler:
            arguments += ["--scheduler", options.scheduler]
    return arguments


def _stages(text: str) -> tuple[str, ...]:
    chosen = [part.strip() for part in text.split(",")]
    for part in chosen:
        if part not in STAGES:
            raise argparse.ArgumentTypeError(f"the stages are {','.join(STAGES)}; received {part!r}")
    return tuple(name for name in STAGES if name in chosen)
