"""`verify replay`: run one case again and judge one element of it exactly."""

from __future__ import annotations

import argparse
from typing import Any

from verify.cli import screen


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "replay",
        help="reproduce one failing element",
        description="Run one case again, to the bit, and judge one element of it by both exact routes.",
    )
    parser.add_argument("target", metavar="FILE|MODULE::KERNEL")
    parser.add_argument("case", metavar="CASE", help="the case as JSON, from a failure message or a report")
    parser.add_argument("--result", default="y", help="output or gradient, e.g. y or dx (default y)")
    parser.add_argument("--index", type=int, default=0, help="flat index of the element (default 0)")
    parser.add_argument("--law", metavar="NAME", help="try this law on the case instead of judging one element")
    parser.add_argument("--backend", choices=("cuda", "interpreter"), help="default: cuda if there is a GPU")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(handler=main)


def main(options: argparse.Namespace) -> int:
    """Replay; exit 1 when the element is beyond the kernel's own limit."""
    from verify.record import value_of

    if options.law:
        return _law(options)
    request = {
        "do": "replay",
        "target": options.target,
        "case": options.case,
        "result": options.result,
        "index": options.index,
    }
    found = _ask(options, request)["replay"]
    worst = found["worst"]
    judged = worst["scaled_ulp"] if found["gate"] == "scaled" else worst["ulp"]
    within = abs(value_of(judged)) <= found["limit"]
    if options.json:
        screen.print_json(found)
        return 0 if within else 1
    baseline = found["baseline"]
    lines = [
        f"{found['kernel']} ({found['op']}) {found['result']} {found['dtype']} on {found['backend']}",
        f"  at        {_place(worst['index'])}",
        *(f"  {name:<9} {text}" for name, text in worst["inputs"].items()),
        f"  got       {worst['got']} ({worst['got_hex']})",
        f"  truth     {worst['truth']}",
        f"  rounded   {found['right']} ({found['right_hex']})",
        f"  error     {_ulp(worst['ulp'])}"
        + ("" if worst["scaled_ulp"] is None else f", {_ulp(worst['scaled_ulp'])} of scale"),
        f"  limit     {found['limit']:g} ULP ({found['gate']})",
    ]
    if baseline is not None:
        lines.append(f"  PyTorch   {baseline['got']} ({baseline['got_hex']}), {_ulp(baseline['ulp'])}")
    lines.append(f"  repeat    {'same bits' if found['repeatable'] else 'DIFFERENT bits on a second call'}")
    lines.append("within its limit" if within else "wrong: beyond its limit")
    print("\n".join(screen.plain(line) for line in lines))
    return 0 if within else 1


def _ask(options: argparse.Namespace, request: dict[str, Any]) -> dict[str, Any]:
    """The worker's answer; a kernel that takes the process down is the user's news, not a traceback."""
    from verify.errors import UsageError
    from verify.isolate import Worker, WorkerDied, WorkerTimeout
    from verify.session import answer

    with Worker(options.backend) as worker:
        try:
            return answer(worker.ask(request, timeout=options.timeout))
        except (WorkerDied, WorkerTimeout) as error:
            raise UsageError(f"{options.target}: {error}") from error


def _law(options: argparse.Namespace) -> int:
    request = {"do": "law", "target": options.target, "case": options.case, "law": options.law}
    reply = _ask(options, request)
    found = reply["law"]
    if options.json:
        screen.print_json(found)
    elif found["status"] == "broken":
        lines = [f"{reply['kernel']} breaks the law of {found['law']} in {found['dtype']}: {found['message']}"]
        lines += [f"  {name:<12} {value}" for name, value in found["facts"].items()]
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
