"""`verify selftest`: shows that every law can fail on this machine, on kernels with one seeded bug each."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from verify.cli import screen

if TYPE_CHECKING:
    from verify.laws.requests import Tried


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "selftest",
        help="show that every law can fail here",
        description="Try each law on a kernel with one seeded bug, which it must find, and on the same kernel without "
        "it, which it must leave alone. What a law needs and this machine lacks is said.",
    )
    parser.add_argument("--law", action="append", default=[], metavar="NAME", help="only this law (repeatable)")
    parser.add_argument("--backend", choices=("cuda", "interpreter"), help="default: cuda if there is a GPU")
    parser.add_argument(
        "--timeout", type=screen.seconds, default=600.0, metavar="SECONDS", help="time for all of it (default 600)"
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(handler=main)


def main(options: argparse.Namespace) -> int:
    """Run it; exit 1 when a bug survives or a law raises a false alarm, 3 when nothing could be tried."""
    import msgspec

    from verify.laws.requests import TrySeeded
    from verify.workers.process import Worker
    from verify.workers.requests import WorkerDied, WorkerTimeout

    progress = screen.Progress()
    with Worker(options.backend) as worker:
        try:
            reply = worker.ask(TrySeeded(options.law), timeout=options.timeout, progress=progress)
        except (WorkerDied, WorkerTimeout) as error:
            progress.clear()
            print(screen.plain(f"verify selftest: {error}"))
            return 3
    progress.clear()
    if options.json:
        screen.print_json(msgspec.to_builtins(reply))
    else:
        print("\n".join(screen.plain(line) for line in _lines(reply)))
    if all(trial.fate == "not tried" for trial in reply.trials):
        return 3
    return 0 if reply.passed else 1


def _lines(reply: Tried) -> list[str]:
    trials = reply.trials
    kills = {kill.mutant: kill for kill in reply.selftest.kills}
    width = max(len(trial.law) for trial in trials)
    lines = [f"{'law':<{width}}  {'seeded bug':<31}  {'result':<22}  assert_close"]
    for trial in trials:
        kill = kills[trial.bug]
        result = f"killed, case {trial.cases}" if trial.fate == "killed" else trial.fate
        close = "sees it" if kill.assert_close else "blind"
        lines.append(f"{trial.law:<{width}}  {trial.bug:<31}  {result:<22}  {close}")
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
        (
            f"{len(killed)} of {len(tried)} seeded bugs killed on the {reply.backend} backend, "
            f"{len(trials) - len(tried)} laws not tried, {len(alarms)} false alarms on {len(tried)} correct twins."
        ),
        (
            f"torch.testing.assert_close on contiguous randn, default tolerances, is blind to {len(blind)} of the "
            f"{len(killed)}."
        ),
    ]
    return lines
