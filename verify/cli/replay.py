"""`verify replay`: run one case again and judge one element of it exactly."""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import Any

from verify.cli import screen


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "replay",
        help="reproduce one failing element",
        description="Run one case again, to the bit, and judge one element of it by both exact routes. Failure "
        "messages and reports end with such a command. Without a case: the worst element of the record in --run; "
        "TARGET (a kernel's name is enough), --result, --dtype and --regime narrow it down.",
    )
    add_place(parser)
    parser.add_argument("--shrink", action="store_true", help="make the case smaller while it breaks in the same way")
    parser.add_argument(
        "--snippet",
        nargs="?",
        const="-",
        metavar="FILE",
        help="write a script that shows the error without verify, for a bug report (default: stdout)",
    )
    parser.set_defaults(handler=main)


def add_place(parser: Any) -> None:
    """What names an element: shared with `verify explain`, which takes the arguments of a replay as they are."""
    parser.add_argument(
        "target",
        metavar="FILE|MODULE::KERNEL",
        nargs="?",
        default="",
        help="a declared kernel; with --run its name is enough",
    )
    parser.add_argument(
        "case", metavar="CASE", nargs="?", default="", help="the case as JSON, from a message or report"
    )
    parser.add_argument("--result", default="", help="output or gradient, e.g. y or dx (default y)")
    parser.add_argument(
        "--index", type=int, help="flat index of the element (default: 0, for `verify explain` the worst)"
    )
    parser.add_argument("--law", metavar="NAME", help="try this law on the case instead of judging one element")
    parser.add_argument(
        "--run", metavar="RUN.json", help="a run record: its worst element, or what it says of this one"
    )
    parser.add_argument("--dtype", default="", help="with --run and no case: the worst element of this dtype")
    parser.add_argument("--regime", default="", metavar="NAME", help="with --run and no case: of this regime")
    parser.add_argument("--backend", choices=("cuda", "interpreter"), help="default: cuda if there is a GPU")
    parser.add_argument(
        "--timeout", type=screen.seconds, default=600.0, metavar="SECONDS", help="time for the case (default 600)"
    )
    parser.add_argument("--json", action="store_true", help="as JSON")


def main(options: argparse.Namespace) -> int:
    """Replay; exit 1 when the element is beyond the kernel's own limit."""
    from verify.errors import UsageError

    if options.law:
        if options.snippet:
            raise UsageError(
                f"a script shows one element and its exact value; the law of {options.law} is not about one",
                hint="verify replay TARGET CASE --result R --index I --snippet",
            )
        return _law(options)
    recorded = place(options)
    request = {
        "do": "replay",
        "target": options.target,
        "case": options.case,
        "result": options.result or "y",
        "index": options.index or 0,
        "shrink": options.shrink,
        "snippet": options.snippet is not None,
    }
    answer = ask(options, request)
    found = answer["replay"]
    if recorded is not None and found["smaller"] is None:
        found["recorded"] = {"got_hex": recorded.worst.got_hex, "backend": recorded.backend}
    within = _within(found)
    _print(options, found, answer.get("snippet"), within)
    return 0 if within else 1


def place(options: argparse.Namespace) -> Any:
    """Fill in what a record knows about the element asked for; what it says of it, or None."""
    from verify.errors import UsageError

    if (options.dtype or options.regime) and (options.case or not options.run):
        raise UsageError(
            "--dtype and --regime choose an element of the record in --run; a case names its own",
            hint="verify replay KERNEL --run RUN.json --result R --dtype D --regime NAME",
        )
    if not options.run:
        if not options.target or not options.case:
            raise UsageError(
                "an element is named by TARGET and CASE, or by the record of a run",
                hint="copy the replay command of a failure message, or give --run RUN.json",
            )
        return None
    from verify.records.record import load
    from verify.records.recorded import find, worst_of_run

    run = load(options.run)
    if options.case:
        known = find(run, options.target, options.case, options.result or "y", options.index or 0)
        if known is None:
            raise UsageError(f"{options.run} does not show this element; it shows the worst of each result")
        return known
    if options.index is not None:
        raise UsageError("--index belongs to a case; without one, --run gives the worst element of its record")
    known = worst_of_run(run, options.target, dtype=options.dtype, result=options.result, regime=options.regime)
    options.target, options.case = known.origin.target, known.origin.case
    options.result, options.index = known.origin.result, known.origin.index
    return known


def ask(options: argparse.Namespace, request: dict[str, Any]) -> dict[str, Any]:
    """The worker's answer; a kernel that takes the process down is the user's news, not a traceback."""
    from verify.errors import UsageError
    from verify.measure.session import answer
    from verify.workers.process import Worker, WorkerDied, WorkerTimeout

    with Worker(options.backend) as worker:
        try:
            return answer(worker.ask(request, timeout=options.timeout))
        except (WorkerDied, WorkerTimeout) as error:
            raise UsageError(f"{options.target}: {error}") from error


def _within(found: dict[str, Any]) -> bool:
    from verify.records.record import value_of

    worst = found["worst"]
    judged = worst["scaled_ulp"] if found["gate"] == "scaled" else worst["ulp"]
    return abs(value_of(judged)) <= float(found["limit"])


def _print(options: argparse.Namespace, found: dict[str, Any], snippet: str | None, within: bool) -> None:
    if snippet is not None and options.snippet == "-" and not options.json:
        sys.stdout.write(snippet)
        return
    if snippet is not None and options.snippet != "-":
        from verify.records.record import write_atomically

        write_atomically(options.snippet, snippet.encode())
    if options.json:
        screen.print_json(found if snippet is None else {**found, "snippet": snippet})
        return
    lines = element_lines(found)
    lines.append("within its limit" if within else "wrong: beyond its limit")
    if snippet is not None:
        lines.append(f"next: python {shlex.quote(options.snippet)}  (needs no verify)")
    print("\n".join(screen.plain(line) for line in lines))


def element_lines(found: dict[str, Any]) -> list[str]:
    """One element as a person reads it: where, from what, what came out, what it should be, how to see it again."""
    worst, smaller = found["worst"], found.get("smaller")
    lines = [f"{found['kernel']} ({found['op']}) {found['result']} {found['dtype']} on {found['backend']}"]
    if smaller:
        lines.append(f"  smaller   {_effort(smaller, found['worst']['origin'])}")
    lines += [
        f"  at        {_place(worst['index'])}",
        *(f"  {name:<9} {text}" for name, text in worst["inputs"].items()),
        f"  got       {worst['got']} ({worst['got_hex']})",
        f"  truth     {worst['truth']}",
        f"  rounded   {found['right']} ({found['right_hex']})",
        f"  error     {_ulp(worst['ulp'])}"
        + ("" if worst["scaled_ulp"] is None else f", {_ulp(worst['scaled_ulp'])} of scale"),
        f"  limit     {found['limit']:g} ULP ({found['gate']})",
    ]
    baseline, recorded = found["baseline"], found.get("recorded")
    if baseline is not None:
        lines.append(f"  PyTorch   {baseline['got']} ({baseline['got_hex']}), {_ulp(baseline['ulp'])}")
    lines.append(f"  repeat    {'same bits' if found['repeatable'] else 'DIFFERENT bits on a second call'}")
    if recorded is not None:
        same = "the same bits" if recorded["got_hex"] == worst["got_hex"] else "OTHER bits now"
        lines.append(f"  recorded  {recorded['got_hex']} on {recorded['backend']}: {same}")
    lines.append(f"  case      {found['case']}")
    lines.append(f"  replay    {_command(worst['origin'])}")
    if smaller and smaller["original"] != worst["origin"]:
        lines.append(f"  original  {_command(smaller['original'])}")
    return lines


def _command(origin: dict[str, Any]) -> str:
    from verify.records.record import Origin, replay_command

    return replay_command(Origin(**origin))


def _effort(smaller: dict[str, Any], origin: dict[str, Any]) -> str:
    spent = f"{smaller['evaluations']} evaluations"
    if smaller["original"] == origin:
        return f"nothing smaller breaks in the same way, in {spent}"
    return f"found in {spent}" + (", which are all that it may take" if smaller["exhausted"] else "")


def _law(options: argparse.Namespace) -> int:
    from verify.errors import UsageError

    if not options.target or not options.case:
        raise UsageError("--law tries a law on a case: give TARGET and CASE")
    request = {
        "do": "law",
        "target": options.target,
        "case": options.case,
        "law": options.law,
        "shrink": options.shrink,
    }
    reply = ask(options, request)
    found, smaller = reply["law"], reply["smaller"]
    if options.json:
        screen.print_json({**found, "smaller": smaller})
    elif found["status"] == "broken":
        lines = [f"{reply['kernel']} breaks the law of {found['law']} in {found['dtype']}: {found['message']}"]
        if smaller:
            lines.append(f"  {'smaller':<12} {_effort(smaller, found['origin'])}")
        lines += [f"  {name:<12} {value}" for name, value in found["facts"].items()]
        lines += [f"  {'case':<12} {found['origin']['case']}", f"  {'replay':<12} {_command(found['origin'])}"]
        if smaller and smaller["original"] != found["origin"]:
            lines.append(f"  {'original':<12} {_command(smaller['original'])}")
        print("\n".join(screen.plain(line) for line in lines))
    elif found["status"] == "skipped":
        print(screen.plain(f"{found['law']} does not apply: {found['message']}"))
    else:
        print(f"{reply['kernel']} keeps the law of {found['law']} on this case")
    return 1 if found["status"] == "broken" else 0


def _place(index: list[int]) -> str:
    return "[" + ", ".join(str(i) for i in index) + "]"


def _ulp(value: Any) -> str:
    return f"{value:+.6g} ULP" if isinstance(value, int | float) else f"{value} ULP"
