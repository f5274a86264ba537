"""Measure everything: accuracy, laws, sweeps, hunts, speed, gate, report.

Measure everything, judge it by the committed bounds and write one report, within a time budget. Every finished part
is kept: the same command continues an interrupted one. Without a target the configured `peers` are measured too.
--timeout limits a part of a stage: in accuracy one dtype of a kernel, in sweep one span of inputs, in bench the
timings of one dtype, in hunt one result in one dtype beyond its own time, in laws those of one kernel in one dtype.

    verify nightly --budget 60m
    verify nightly accuracy.py --stage accuracy --stage laws --profile ci

targets
--stage {accuracy,sweep,bench,hunt,laws} ...  only this stage (default: all, in this order)
--budget
--profile = nightly: nightly
--without ...
--seed N  seed of the cases (default: the date; branches see the same cases)
--backend --jobs
--timeout = 30m: a part of a stage
--gpus | --scheduler
--output: run.json, report.html, report.md and every part (default: build/nightly/SEED)
--json: the run record
--sarif --junit --github --bounds
"""

import argparse
import sys
from pathlib import Path

import msgspec

from verify import api, nightly
from verify.cli import exits, given, screen, sinks
from verify.cli.report import pages
from verify.declare import config
from verify.errors import UsageError
from verify.laws.profiles import seed_of_today
from verify.records.bounds import committed, waivers
from verify.records.bounds.verdict import judged_kernels
from verify.records.files import encode
from verify.report.checks import of_night
from verify.report.html import record_html
from verify.report.markdown import comment
from verify.workers.pool import using


def main(options: argparse.Namespace) -> int:
    """Carries out the command."""
    settings = config.find()
    targets = tuple(given.targets(options, settings))
    if options.seed is None:
        options.seed = seed_of_today()
    folder = Path(options.output or f"build/nightly/{options.seed}")
    command, again = given.again(options), given.again(options, everything=True)
    progress = screen.Progress()
    with (
        api.workers(options.gpus, options.scheduler, targets, options.backend, progress=progress) as spread,
        using(spread, options.backend) as pool,
    ):
        night = nightly.Night(
            folder=folder,
            targets=targets,
            peers=() if options.targets else settings.peers,
            seed=options.seed,
            profile=options.profile,
            without=tuple(dict.fromkeys(options.without)),
            budget=options.budget,
            timeout=options.timeout,
            jobs=options.jobs,
            backend=options.backend,
            pool=pool,
            progress=progress,
        )
        stages = [stage for stage in nightly.STAGES if stage.name in options.stage or not options.stage]
        try:
            record = nightly.run(night, stages, command)
        except KeyboardInterrupt:
            progress.clear()
            print(f"verify: interrupted; finished parts are kept in {folder}", file=sys.stderr)
            print(f"  next: {again}", file=sys.stderr)
            return exits.INCOMPLETE
    progress.clear()
    try:
        asked = [record] if options.targets else []  # without targets, every bound of this machine is judged
        book = committed.load(bounds := given.bounds_folder(options, settings, created=True))
        verdict = waivers.judge([record], book, kernels=judged_kernels(asked)) if book.bounds else None
    except UsageError:  # bounds that cannot be read
        sinks.write({folder / "run.json": lambda: encode(record)})
        raise
    path = folder / "run.json"
    found = pages(record, str(path), None, verdict)
    makes: dict[str | Path, sinks.Make] = {
        path: lambda: encode(record),
        folder / "report.md": lambda: comment.render(*found).encode(),
        folder / "report.html": lambda: record_html.render(record, beside=found[:-1], record="run.json").encode(),
    }
    listed = [f"{'record' if file == path else 'report'}: {Path(file).resolve()}" for file in makes]
    codes = [exits.OF_VERDICT[record.verdict], *([verdict.exit_code] if verdict is not None else [])]
    code = max(codes, key=exits.worse)
    # `again` continues in the same folder, which the record's own command does not name
    named = msgspec.structs.replace(record, command=again)
    sinks.deliver(
        options,
        lambda: sinks.lines(*listed) + sinks.pages(*pages(named, str(path), None, verdict)),
        kind="record",
        checks=lambda: of_night(record, verdict, bounds),
        json=lambda: encode(record),
    )
    screen.complain([*night.usage, *([f"finished parts are not saved: {night.lost}"] if night.lost else [])])
    sinks.write({**makes, folder / "exit": f"{code}\n".encode})
    return code
