"""`verify hunt`: search for the worst input where trying every input is impossible."""

from __future__ import annotations

import argparse
import math
import os
import sys
from typing import TYPE_CHECKING, Any

from verify.cli import screen, sinks, spread
from verify.truth.figure import shown, signed

if TYPE_CHECKING:
    from verify.hunt.campaign import Campaign, Moment, Story
    from verify.records.record import KernelRun, Result, Run

BUDGET = 60.0
LONG = 600  # characters of a replay command that still goes on a screen


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "hunt",
        help="search for the worst input where trying every input is impossible",
        description="Search for the worst input of each result: rows, pairs, float64, dot products. What is found "
        "is judged exactly and comes with a command that replays it. A hunt proves that an error exists, never "
        "that none does. Without a target: everything under `[tool.verify] kernels` in pyproject.toml.",
    )
    parser.add_argument(
        "targets", nargs="*", metavar="FILE|MODULE[::KERNEL]", help="what to search, e.g. accuracy.py::my_norm"
    )
    parser.add_argument("--dtype", action="append", default=[], metavar="DTYPE", help="only this dtype (repeatable)")
    parser.add_argument(
        "--result", action="append", default=[], metavar="NAME", help="only this output or gradient, e.g. y or dx"
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--budget",
        type=screen.seconds,
        metavar="TIME",
        help="time for each result of each dtype, e.g. 60s or 5m (default 60s)",
    )
    length.add_argument("--evaluations", type=int, metavar="N", help="candidates to judge for each result instead")
    parser.add_argument("--seed", type=int, default=0, help="seed of the search (default 0)")
    parser.add_argument(
        "--width", type=int, default=0, metavar="N", help="length of rows and dot products (default 128; float64 16)"
    )
    parser.add_argument("--largest", type=float, metavar="X", help="search inputs of at most this magnitude")
    parser.add_argument(
        "--strategy",
        choices=("hunt", "random"),
        default="hunt",
        help="random: every candidate fresh, to see what searching is worth",
    )
    parser.add_argument("--pin", action="store_true", help="add the worst find of each result to the corpus")
    parser.add_argument("--backend", choices=("cuda", "interpreter"), help="default: cuda if there is a GPU")
    parser.add_argument(
        "--timeout",
        type=screen.seconds,
        default=600.0,
        metavar="TIME",
        help="time for one hunt beyond its budget (default 600)",
    )
    spread.add(parser)
    parser.add_argument("--json", metavar="PATH", help="write the run record; - for stdout instead of the text")
    parser.add_argument("--html", metavar="PATH", help="write the HTML report")
    parser.set_defaults(handler=main)


def main(options: argparse.Namespace) -> int:
    """Hunt; exit 1 when something beyond a limit was found."""
    from verify.declare import config
    from verify.errors import UsageError
    from verify.hunt.campaign import Campaign, run
    from verify.hunt.settings import Settings
    from verify.measure.session import command_line
    from verify.truth.formats import named

    settings = config.find()
    targets = options.targets
    if not targets:
        if not settings.kernels:
            raise UsageError(
                "no target given and no [tool.verify] kernels in pyproject.toml",
                hint="verify hunt FILE.py, where FILE.py declares a kernel with @verify.kernel",
            )
        targets = list(settings.kernels)
        os.chdir(settings.root)
    budget = None if options.evaluations is not None else options.budget or BUDGET
    with spread.cluster(options, targets, options.backend) as cluster, _Screen() as shown:
        campaign = Campaign(
            settings=Settings(
                seed=options.seed,
                evaluations=options.evaluations,
                seconds=budget,
                strategy=options.strategy,
                width=options.width,
                largest=options.largest,
            ),
            backend=options.backend,
            dtypes=[named(item).name for item in options.dtype],
            results=list(options.result),
            pin=options.pin,
            timeout=options.timeout,
            cluster=cluster,
            watch=shown,
            stopping=_stopping,
        )
        result = run(targets, campaign, command_line(_arguments(options)))
    sinks.deliver(result, options, lambda: "\n".join(text(result, campaign)) + "\n")
    return {"pass": 0, "fail": 1, "incomplete": 3}[_verdict(result, campaign)]


def _verdict(result: Run, campaign: Campaign) -> str:
    """The run's, where peers that were named alone are not held against it either."""
    if result.verdict == "incomplete" and not result.incomplete and not campaign.interrupted:
        return "pass" if any(kernel.results for kernel in result.kernels) else "incomplete"
    return result.verdict


def text(result: Run, campaign: Campaign) -> list[str]:
    """The finds as a person reads them."""
    stories = {(story.target, story.dtype, story.result): story for story in campaign.stories}
    lines: list[str] = []
    for kernel in result.kernels:
        for found in kernel.results:
            lines += _found(kernel, found, stories[kernel.target, found.dtype, found.output])
        if kernel.message:
            lines.append(screen.plain(f"{kernel.name}  {kernel.status}: {kernel.message}"))
        shares = "the shares and quantiles of a hunt"
        lines += [screen.plain(f"    note      {note}") for note in kernel.notes if shares not in note]
    judged = [kernel for kernel in result.kernels if not kernel.peer]
    wrong = [kernel.name for kernel in judged if kernel.status == "wrong"]
    failed = [kernel.name for kernel in judged if kernel.status in ("error", "crashed", "timeout")]
    if failed:
        lines.append(screen.plain(f"failed: {', '.join(failed)}"))
    if wrong:
        lines.append(screen.plain(f"wrong: an input beyond its own limit was found for {', '.join(wrong)}"))
    elif not failed:
        lines.append("nothing beyond a limit was found, which does not prove that nothing is")
    if campaign.pin:
        lines.append("Next: verify corpus list")
    return lines


def _found(kernel: KernelRun, found: Result, story: Story) -> list[str]:
    from verify.records.record import replay_command, value_of
    from verify.report import words

    scaled = found.gate == "scaled"
    figure = found.figures.scaled_max if scaled else found.figures.max_ulp
    unit = "scaled ULP" if scaled else "ULP"
    status = "measured, not judged" if kernel.peer else f"limit {found.limit:g}: {found.status}"
    tries = f"{found.basis.n:,} evaluations, seed {found.basis.seed}"
    rate = found.basis.n / story.seconds if story.seconds else 0.0
    lines = [
        f"{kernel.name} {found.output} {found.dtype}",
        f"    worst     {words.ulp(figure or 0.0)} {unit} found in {tries} ({status})",
        f"    searched  {story.sentence.removeprefix('hunt: ')}; {rate:,.0f} evaluations a second",
    ]
    if found.worst:
        worst = found.worst[0]
        inputs = [f"{name} = {value}" for name, value in worst.inputs.items()]
        if inputs:
            lines.append(f"    input     {', '.join(inputs)} at {list(worst.index)}")
        lines += [f"    got       {worst.got} ({worst.got_hex})", f"    truth     {worst.truth}"]
        if worst.scaled_ulp is not None and math.isfinite(value_of(worst.ulp)):
            plain, of_scale = signed(value_of(worst.ulp)), signed(value_of(worst.scaled_ulp))
            lines.append(f"    error     {plain} ULP, {of_scale} of scale")
        if len(command := replay_command(worst.origin)) <= LONG:
            lines += ["    replay", f"    {command}"]
        elif story.pinned is not None:
            lines.append(f"    replay    verify corpus replay {story.pinned['id']}")
        else:
            lines.append("    replay    its case is long: --pin adds it to the corpus, --json PATH keeps the command")
    if story.pinned is not None:
        state = "pinned" if story.pinned["new"] else "pinned before"
        lines.append(f"    {state:<9} {story.pinned['id']}")
    return [screen.plain(line) for line in lines]


def _stopping() -> None:
    print("\nverify: stopping; what was found is judged and kept. Ctrl-C again abandons it.", file=sys.stderr)


class _Screen:
    """Best so far, evaluations and rate of every running hunt; silent unless stderr is a terminal."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._progress: Any = None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> _Screen:
        if self._shown:
            from rich.console import Console
            from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            self._progress = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                TextColumn("worst so far {task.fields[best]}", markup=False),
                TextColumn("{task.fields[evaluations]} evaluations, {task.fields[rate]}/s", markup=False),
                TimeElapsedColumn(),
                console=Console(file=sys.stderr),
                transient=True,
            )
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def __call__(self, moment: Moment) -> None:
        if self._progress is None:
            return
        fields = {
            "best": shown(moment.best),
            "evaluations": f"{moment.evaluations:,}",
            "rate": f"{moment.evaluations / max(moment.seconds, 1e-9):,.0f}",
        }
        name = screen.plain(moment.name)
        if name not in self._tasks:
            for task in self._tasks.values():
                self._progress.update(task, visible=False)
            self._tasks[name] = self._progress.add_task(name, total=None, **fields)
        self._progress.update(self._tasks[name], visible=True, **fields)


def _arguments(options: argparse.Namespace) -> list[str]:
    """What determines the figures, as arguments; where output goes does not."""
    arguments = ["hunt", *options.targets]
    for flag, items in (("--dtype", options.dtype), ("--result", options.result)):
        for item in items:
            arguments += [flag, item]
    for flag, value in (("--evaluations", options.evaluations), ("--budget", options.budget)):
        if value is not None:
            arguments += [flag, f"{value:g}" if isinstance(value, float) else str(value)]
    for flag, value in (("--seed", options.seed), ("--width", options.width), ("--largest", options.largest)):
        if value:
            arguments += [flag, str(value)]
    if options.strategy != "hunt":
        arguments += ["--strategy", options.strategy]
    if options.backend:
        arguments += ["--backend", options.backend]
    return arguments
