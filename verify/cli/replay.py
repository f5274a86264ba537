"""Reproduce one failing element.

Run one case again, to the bit, and judge one element of it by both exact routes (default: element 0 of y); with
--law, try the law on the case instead. Failure messages and reports end with such a command. Without a case: the
worst element of the record in --run; TARGET (a kernel's name is enough), --result, --dtype, --regime and --index
narrow it down. A file of the corpus is a target too; who deletes it unpins its case.

    verify replay --run run.json
    verify replay my_gelu --run run.json --result dx --dtype bfloat16
    verify replay my_gelu --run run.json --shrink
    verify replay reports/corpus/my_gelu/3f9a0c12e7d4.json

target case --result --index --law --run --dtype --regime --backend
--timeout: the case
--json: what was found
--shrink  make the case smaller while it breaks in the same way
--pin --reason
"""

import argparse
import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from verify.cli import exits, given, sinks
from verify.declare import config
from verify.diagnose.requests import LawReplayed, Replay, ReplayElement, ReplayLaw, Smaller
from verify.errors import UsageError
from verify.records.figure import UNIT
from verify.records.files import load, read_as
from verify.records.record import INTEGERS, Origin, Worst, replay_command
from verify.records.recorded import Entry, find, worst_of_run
from verify.search.hunt.requests import Pin
from verify.workers.pool import Pool, using
from verify.workers.process import START_SECONDS, ask_about
from verify.workers.requests import Environment, R, Request


class Recorded(NamedTuple):
    """Holds an element that a record names, and the backend of the record."""

    worst: Worst
    backend: str


class Outcome(NamedTuple):
    """Holds the finding of a replay: for programs, as an exit code, and as lines for people."""

    data: dict[str, Any]
    exit_code: int
    lines: list[str]


def main(options: argparse.Namespace) -> int:
    """Carries out the command."""
    if options.target.endswith(".json") and not options.case:  # a file of the corpus, with paths in the project
        entry = read_as(Path(options.target), Entry, "corpus entry", "verify replay TARGET CASE")
        given.enter(options, config.find().root)
        options.target, options.case = entry.target, json.dumps(entry.case)
        options.law, options.result, options.index = entry.law or None, entry.result or None, entry.index
    done = outcome(options)
    if options.pin:
        law, result, index = options.law or "", options.result or "y", options.index or 0
        pinned = ask(options, Pin(options.target, options.case, options.reason, law, result, index))
        done.lines.insert(0, f"{'pinned' if pinned.new else 'pinned before'} {os.path.relpath(pinned.path)}")
    sinks.deliver_data(options, done.data, done.lines)
    return done.exit_code


def outcome(options: argparse.Namespace, pool: Pool | None = None) -> Outcome:
    """Replays: the law if the options name one, else an element. Without a pool, it starts a worker."""
    return _law(options, pool) if options.law else _element(options, pool)


def _element(options: argparse.Namespace, pool: Pool | None) -> Outcome:
    asked = given.words(argparse.Namespace(**{**vars(options), "shrink": False, "pin": False, "reason": ""}))
    recorded = place(options)
    result, index = options.result or "y", options.index or 0
    found = ask(options, ReplayElement(options.target, options.case, result, index, shrink=options.shrink), pool)
    if found.smaller is not None:
        recorded = None  # it is about another element
    if found.within:
        said = f"nothing is promised on {found.unpromised}" if found.excused else "within its limit"
        end = sinks.ending(said, _run_again(options))
    else:
        then = replay_command(found.worst.origin).replace("verify replay", "verify explain", 1)
        then = then if found.smaller else f"verify explain {shlex.join(asked[1:])}"
        end = sinks.ending("wrong: beyond its limit", then)
    data: dict[str, Any] = dict(msgspec.to_builtins(found))
    if recorded is not None:
        data["recorded"] = {"got_hex": recorded.worst.got_hex, "backend": recorded.backend}
    return Outcome(data, exits.PASS if found.within else exits.WRONG, [*element_lines(found, recorded), *end])


def _run_again(options: argparse.Namespace) -> str:
    """Returns the command that measures the kernel."""
    backend = f" --backend {shlex.quote(options.backend)}" if options.backend else ""
    return f"verify run {shlex.quote(options.target)}{backend}"


def place(options: argparse.Namespace) -> Recorded | None:
    """Fills in the options from a record, and returns the record's finding about the element. None without a record."""
    if (options.dtype or options.regime) and (options.case or not options.run):
        rule = "--dtype and --regime choose an element of the record in --run; a case names its own"
        raise UsageError(rule, hint="verify replay KERNEL --run RUN.json --result R --dtype D --regime NAME")
    if not options.run:
        if not options.target or not options.case:
            rule = "an element is named by TARGET and CASE, or by the record of a run"
            raise UsageError(rule, hint="copy the replay command of a failure message, or give --run RUN.json")
        return None

    run = load(options.run)
    if options.case:
        known = find(run, options.target, options.case, options.result or "y", options.index or 0)
        if known is None:
            raise UsageError(f"{options.run} does not show this element; it shows the worst of each result")
    else:
        chosen = {name: getattr(options, name) for name in ("dtype", "result", "regime", "index")}
        known = worst_of_run(run, options.target, **chosen)
        if known.origin.law:
            said = f"the worst result, {known.got} for {known.truth}, shows only in the law of {known.origin.law}"
            raise UsageError(said, hint=replay_command(known.origin))
        options.target, options.case = known.origin.target, known.origin.case
        options.result, options.index = known.origin.result, known.origin.index
    options.backend = options.backend or known.origin.backend or None
    return Recorded(known, run.backend)


def ask(options: argparse.Namespace, request: Request[R], pool: Pool | None = None) -> R:
    """Returns the worker's reply to a request about the target. Without a pool, it starts a worker."""
    if pool is not None and options.backend:
        here = pool.ask(Environment(), timeout=START_SECONDS).backend
        if here != options.backend:
            said = f"the record's finding is of the backend {options.backend}; these processes run on {here}"
            raise UsageError(said, hint=f"verify serve --backend {options.backend}")
    with using(pool, options.backend) as answers:
        return ask_about(answers, request, options.target, timeout=options.timeout)


def report(options: argparse.Namespace, request: Request[R], lines_of: Callable[[R], list[str]]) -> int:
    """Shows a worker's findings about the target. That is no verdict: the exit code is 0."""
    found = ask(options, request)
    return sinks.deliver_data(options, found, lines_of(found))


def element_lines(found: Replay, recorded: Recorded | None) -> list[str]:
    """Returns one element as lines for the screen: place, inputs, the kernel's value, the truth, the command."""
    worst, smaller, baseline = found.worst, found.smaller, found.baseline
    kind = INTEGERS if found.counts else found.dtype
    lines = [f"{found.kernel} ({found.op}) {found.result} {kind} on {found.backend}"]
    if smaller:
        lines.append(f"  smaller   {_effort(smaller, worst.origin)}")
    lines += [
        f"  at        {list(worst.index)}",
        *(f"  {name:<9} {text}" for name, text in worst.inputs.items()),
        f"  got       {worst.got}" + ("" if found.counts else f" ({worst.got_hex})"),
        f"  truth     {worst.truth}",
    ]
    if not found.counts:
        in_noise, scaled, limit = found.gate == "noise", "", f"{found.limit:g} ULP ({found.gate})"
        if worst.scaled_ulp is not None:
            scaled = f", {_signed(worst.scaled_ulp)}" + (UNIT["noise"] if in_noise else " ULP of scale")
        if found.gate == "plain" and found.error != worst.ulp:
            scaled = f", counted as {_signed(found.error)} ULP beside its noise"
        limit = f"{found.limit:g}{UNIT['noise']}" if in_noise else limit
        if found.unpromised:  # the element has no limit of its own
            limit = f"none on {found.unpromised}; {limit} on ordinary ones"
        lines.append(f"  rounded   {found.right} ({found.right_hex})")
        lines += [f"  error     {_signed(worst.ulp)} ULP{scaled}", f"  limit     {limit}"]
    if baseline is not None:
        bits = "" if found.counts else f" ({baseline.got_hex}), {_signed(baseline.ulp)} ULP"
        lines.append(f"  PyTorch   {baseline.got}{bits}")
    lines.append(f"  repeat    {'same bits' if found.repeatable else 'DIFFERENT bits on a second call'}")
    if recorded is not None:
        same = "the same bits" if recorded.worst.got_hex == worst.got_hex else "OTHER bits now"
        lines.append(f"  recorded  {recorded.worst.got_hex} on {recorded.backend}: {same}")
    lines += [f"  case      {found.case}", f"  replay    {replay_command(worst.origin)}"]
    return lines + _original(smaller, worst.origin, 9)


def _original(smaller: Smaller | None, origin: Origin, width: int) -> list[str]:
    """Returns the line of the case that was made smaller, if it was."""
    if smaller is None or smaller.original in (None, origin):
        return []
    return [f"  {'original':<{width}} {replay_command(smaller.original)}"]


def _effort(smaller: Smaller, origin: Origin | None) -> str:
    same = smaller.original == origin
    found = "nothing smaller breaks in the same way, in" if same else "found in"
    return f"{found} {smaller.evaluations} evaluations" + ", the most it may use" * (smaller.exhausted and not same)


def _law(options: argparse.Namespace, pool: Pool | None) -> Outcome:
    if not options.target or not options.case:
        raise UsageError("--law tries a law on a case: give TARGET and CASE")
    reply = ask(options, ReplayLaw(options.target, options.case, options.law, options.shrink), pool)
    whole = {**msgspec.to_builtins(reply.law), "smaller": msgspec.to_builtins(reply.smaller)}
    code = exits.WRONG if reply.law.status == "broken" else exits.PASS
    return Outcome(whole, code, _law_lines(options, reply))


def _law_lines(options: argparse.Namespace, reply: LawReplayed) -> list[str]:
    found, smaller = reply.law, reply.smaller
    again = f"{_run_again(options)} --profile quick"
    if found.status == "skipped":
        return sinks.ending(f"{found.law} does not apply: {found.message}", again)
    if found.origin is None:
        return sinks.ending(f"{reply.kernel} keeps the law of {found.law} on this case", again)
    lines = [f"{reply.kernel} breaks the law of {found.law} in {found.dtype}: {found.message}"]
    if smaller:
        lines.append(f"  {'smaller':<12} {_effort(smaller, found.origin)}")
    replayed = replay_command(found.origin)
    lines += [f"  {name:<12} {value}" for name, value in found.facts.items()]
    lines += [f"  {'case':<12} {found.case}", f"  {'replay':<12} {replayed}"]
    lines += _original(smaller, found.origin, 12)
    explained = replayed.replace("verify replay", "verify explain", 1)
    return lines + sinks.ending("wrong: the law is broken", explained if smaller else f"{replayed} --shrink")


def _signed(value: Any) -> str:
    return f"{value:+.6g}" if isinstance(value, int | float) else str(value)
