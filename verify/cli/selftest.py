"""Defines `verify selftest`: shows that every law can fail on this machine, on kernels with one seeded bug each."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from verify.cli import exits, options, screen, sinks

if TYPE_CHECKING:
    from verify.laws.requests import Tried


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "selftest",
        help="show that every law can fail here",
        description="Try each law on a kernel with one seeded bug, which it must find, and on the same kernel without "
        "the bug, on which it must find nothing. A law that this machine cannot try is listed as not tried.",
        examples=("verify selftest", "verify selftest --law determinism --law 'batch invariance'"),
    )
    options.some(parser, "--law")
    options.add(parser, "--backend")
    options.timeout(parser, "the self-test")
    options.sinks(parser, "the kill matrix", "--json")
    parser.set_defaults(handler=main)


def main(options: argparse.Namespace) -> int:
    """Runs the self-test. Exit code 1 if a bug survives or a law raises a false alarm, 3 if nothing could be tried."""
    import msgspec

    from verify.laws.requests import TrySeeded
    from verify.workers.process import Worker
    from verify.workers.requests import Died, Late

    progress = screen.Progress()
    with Worker(options.backend) as worker:
        try:
            reply = worker.ask(TrySeeded(options.law), timeout=options.timeout, progress=progress)
        except (Died, Late) as error:
            progress.clear()
            print(screen.plain(f"verify: selftest: {error}"), file=sys.stderr)
            return exits.INCOMPLETE
    progress.clear()
    sinks.deliver_data(options, lambda: msgspec.to_builtins(reply), lambda: sinks.lines(*_lines(reply)))
    if all(trial.fate == "not tried" for trial in reply.trials):
        return exits.INCOMPLETE
    return exits.PASS if reply.passed else exits.WRONG


def _lines(reply: Tried) -> list[str]:
    trials = reply.trials
    kills = {kill.mutant: kill for kill in reply.selftest.kills}
    width = max(len(trial.law) for trial in trials)
    lines = [f"{'law':<{width}}  {'seeded bug':<31}  {'result':<22}  assert_close"]
    for trial in trials:
        kill = kills.get(trial.bug)
        result = f"killed, case {trial.cases}" if trial.fate == "killed" else trial.fate
        close = "" if kill is None else "sees it" if kill.assert_close else "blind"
        lines.append(f"{trial.law:<{width}}  {trial.bug:<31}  {result:<22}  {close}".rstrip())
        if trial.fate == "not tried":
            lines.append(f"{'':<{width}}  {trial.message}")
        if trial.alarm:
            lines.append(f"{'':<{width}}  FALSE ALARM on the correct twin: {trial.alarm}")
    tried = [trial for trial in trials if trial.fate != "not tried"]
    killed = [trial for trial in tried if trial.fate == "killed"]
    blind = [trial for trial in killed if not kills[trial.bug].assert_close]
    alarms = [trial for trial in trials if trial.alarm]
    lines += [
        "",
        f"torch.testing.assert_close, contiguous randn, default tolerances: blind to {len(blind)} of {len(killed)}",
    ]
    verdict = (
        f"{len(killed)} of {len(tried)} seeded bugs killed on the {reply.backend} backend, "
        f"{len(trials) - len(tried)} laws not tried, {len(alarms)} false alarms on {len(tried)} correct twins"
    )
    return lines + sinks.ending(verdict, "verify run --profile quick")
