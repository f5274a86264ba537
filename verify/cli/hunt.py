"""Search for the worst input where trying every input is impossible.

Search for the worst input of each result: rows, pairs, float64, dot products, sums over rows. Every find is judged
exactly and comes with a command that replays it. A hunt proves that an error exists, never that none does.

    verify hunt accuracy.py::my_norm --result dx --duration 5m
    verify hunt accuracy.py --evaluations 1000000 --seed 7 --json hunt.json
    verify hunt accuracy.py --pin                          # keep the finds

targets --dtype ... --result ...
--duration TIME  how long to search for each result of each dtype, e.g. 90s, 20m or 1h30m (default 1m)
| --evaluations N  how many candidates to judge there instead
--seed: the search
--width N = 0  length of rows and dot products, numbers of a case of like= (default 128; 16 in float64 and of sums)
--largest X  search inputs of at most this magnitude
--strategy {hunt,random} = hunt  random: draw every candidate fresh, for comparison
--pin --backend
--timeout: a search that is past its duration
--gpus | --scheduler
--json: the run record
--html --markdown --sarif --junit --github
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import sys

from verify import api
from verify.api import CompletedRun
from verify.cli import given, screen, sinks
from verify.declare import config
from verify.records.figure import UNIT, signed
from verify.records.readings import FAILED
from verify.records.record import KernelRun, Result, replay_command, value_of
from verify.report import blocks, words
from verify.search.hunt.schedule import HuntSummary

LONG = 600  # characters; a longer replay command is not printed


def main(options: argparse.Namespace) -> int:
    """Carries out the command."""
    targets = given.targets(options, config.find())
    progress = screen.Progress()
    said = "\nverify: stopping; the finds are judged and kept. Ctrl-C again abandons them."
    own = {"progress": progress, "stopping": lambda: print(said, file=sys.stderr)}
    done = api.hunt(targets, **given.arguments(options, api.hunt, **own))
    progress.clear()
    sinks.deliver_run(options, done.record, lambda: sinks.lines(*text(done, _then(options, done))))
    return done.exit_code


def _then(options: argparse.Namespace, done: CompletedRun) -> str:
    """Returns the next command: replay the pinned finds, search again and pin, run what failed, or use another seed."""
    states: dict[str, str] = {kernel.status: kernel.target for kernel in done.record.kernels if not kernel.peer}
    again = argparse.Namespace(**vars(options))
    if pinned := next((summary.pinned for summary in done.finds if summary.pinned), None):
        return given.on_backend(f"verify replay {os.path.relpath(pinned.path)}", options.backend)
    if "wrong" in states:
        again.pin = True
    elif failed := set(FAILED) & set(states):
        return f"verify run {shlex.quote(states[failed.pop()])}"
    else:
        again.seed += 1
    return f"verify {shlex.join(given.words(again, everything=True))}"


def text(done: CompletedRun, then: str) -> list[str]:
    """Returns the finds as lines for the screen."""
    result = done.record
    summaries = {(item.target, item.hunt.dtype, item.hunt.result): item for item in done.finds}
    lines: list[str] = []
    for kernel in result.kernels:
        for found in kernel.results:
            lines += _found(kernel, found, summaries[kernel.target, found.dtype, found.output])
        if kernel.message:
            lines.append(screen.plain(f"{kernel.name}  {kernel.status}: {kernel.message}"))
        shares = "the shares and quantiles of a hunt"
        lines += [screen.plain(f"    note      {note}") for note in kernel.notes if shares not in note]
    judged = [kernel for kernel in result.kernels if not kernel.peer]
    wrong = [kernel.name for kernel in judged if kernel.status == "wrong"]
    failed = [kernel.name for kernel in judged if kernel.status in FAILED]
    verdict = "nothing beyond a limit was found, which does not prove that nothing is"
    if result.unproven:
        names = ", ".join(kernel.name for kernel in result.unproven)
        verdict = f"undecided: the largest error of {names} is not known"
    if failed:
        verdict = f"failed: {', '.join(failed)}"
    if wrong and failed:
        lines.append(screen.plain(verdict))
    if wrong:
        verdict = f"wrong: an input beyond its own limit was found for {', '.join(wrong)}"
    return lines + sinks.ending(verdict, then)


def _found(kernel: KernelRun, found: Result, summary: HuntSummary) -> list[str]:
    """Returns the lines about the worst find of one result."""
    figure = found.figures.max_ulp if found.gate == "plain" else found.figures.scaled_max
    unit = UNIT[found.gate]
    limit = "" if found.counts else f"limit {found.limit:g}: "
    status = "measured, not judged" if kernel.peer else limit + found.status
    tries = f"{found.basis.n:,} evaluations, seed {found.basis.seed}"
    rate = found.basis.n / summary.seconds if summary.seconds else 0.0
    worst_words = f"{words.ulp(figure or 0.0)}{unit} found"
    if found.counts:
        worst_words = "a wrong integer found" if found.reason else "no wrong integer"
    lines = [
        f"{kernel.name} {found.output} {words.dtype_of(found)}",
        f"    worst     {worst_words} in {tries} ({status})",
        f"    searched  {summary.sentence.removeprefix('hunt: ')}; {rate:,.0f} evaluations a second",
    ]
    if found.reason:
        lines.append(f"    why       {found.reason}")
    if found.worst and (found.reason or not found.counts):
        worst = found.worst[0]
        lines += [f"    {name:<9} {text}" for name, text in blocks.element(worst, counts=found.counts)]
        if worst.scaled_ulp is not None and math.isfinite(value_of(worst.ulp)):
            plain, of_scale = signed(value_of(worst.ulp)), signed(value_of(worst.scaled_ulp))
            lines.append(f"    error     {plain} ULP, {of_scale}{unit}")
        if len(command := replay_command(worst.origin)) <= LONG:
            lines += ["    replay", f"    {command}"]
        elif summary.pinned is not None:
            command = f"verify replay {os.path.relpath(summary.pinned.path)}"
            lines.append(f"    replay    {given.on_backend(command, worst.origin.backend)}")
        else:
            lines.append("    replay    its case is long: --pin adds it to the corpus, --json PATH keeps the command")
    if summary.pinned is not None:
        state = "pinned" if summary.pinned.new else "pinned before"
        lines.append(f"    {state:<9} {summary.pinned.id}")
    return [screen.plain(line) for line in lines]
