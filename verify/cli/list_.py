"""`verify list`: the kernels that files declare, or the ops that kernels can compute."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from verify.cli import screen

if TYPE_CHECKING:
    from verify.declare.target import Declared


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "list",
        help="show the declared kernels, or the known ops",
        description="Show the kernels that files or modules declare, or the ops that a kernel can compute.",
    )
    parser.add_argument("targets", nargs="*", metavar="FILE|MODULE[::KERNEL]", help="as for `verify run`")
    parser.add_argument("--ops", action="store_true", help="show the known ops instead")
    parser.add_argument("--op", metavar="NAME", help="show one op: operands, results, parameters")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(handler=main)


def main(options: argparse.Namespace) -> int:
    """List."""
    return _ops(options) if options.ops or options.op else _kernels(options)


def _kernels(options: argparse.Namespace) -> int:
    import msgspec

    from verify.declare import config
    from verify.declare.requests import declared_by
    from verify.errors import UsageError
    from verify.report.words import plural
    from verify.workers.process import Worker

    targets = options.targets
    if not targets:
        settings = config.find()
        targets = list(settings.kernels)
        os.chdir(settings.root)
    if not targets:
        raise UsageError(
            "no target given and no [tool.verify] kernels in pyproject.toml",
            hint="verify list FILE.py",
        )
    found: list[Declared] = []
    failed = []
    with Worker() as worker:
        for target in targets:
            try:
                found += declared_by(worker, target)
            except UsageError as error:
                failed.append(error)
    if options.json:
        screen.print_json(msgspec.to_builtins(found))
    else:
        for item in found:
            params = ", ".join(f"{k}={v!r}" for k, v in item.params.items())
            peer = "  (peer: measured, not judged)" if item.peer else ""
            print(screen.plain(f"{item.target}  {item.op}({params}){peer}"))
            print(screen.plain(f"    {item.promise}"))
        if found:
            print(f"{plural(len(found), 'kernel')}. Next: verify run {screen.plain(found[0].target)}")
    for failure in failed:
        print(f"verify: {failure}", file=sys.stderr)
    return 2 if failed else 0


def _ops(options: argparse.Namespace) -> int:
    import msgspec

    from verify.declare.requests import ListOps
    from verify.workers.process import START_SECONDS, Worker

    with Worker() as worker:
        found = worker.ask(ListOps(options.op or ""), timeout=START_SECONDS)
    if options.json:
        screen.print_json(msgspec.to_builtins(found))
        return 0
    for op in found:
        print(f"{op.name}({', '.join(op.operands)}) -> {', '.join(op.outputs)}    {op.summary}")
        if options.op:
            print(f"    gradients: {', '.join(op.gradients)}")
            for name, default in op.params.items():
                choices = op.choices.get(name)
                print(f"    {name} = {default}" + (f", one of {', '.join(choices)}" if choices else ""))
            print(f"    judged by the {op.gate} error")
    if not options.op:
        print("verify list --op NAME shows one in full.")
    return 0
