"""Defines `verify corpus`: the pinned cases that every later run tries again."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from verify.cli import exits, given, options, sinks

if TYPE_CHECKING:
    from verify.records.pinned import Entry
    from verify.workers.requests import Request


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "corpus",
        help="list, add, remove or replay the pinned cases",
        description="The corpus keeps cases that once broke a law or gave a large error, one file each under "
        "`[tool.verify] corpus` (default reports/corpus). `verify run` and `verify.laws_for` try them every time.",
        examples=("verify corpus list", "verify corpus replay my_gelu"),
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    listing = actions.add_parser(
        "list", help="show the entries", description="Show the pinned cases.", examples=("verify corpus list my_gelu",)
    )
    listing.add_argument("kernels", nargs="*", metavar="KERNEL", help="only of these kernels")
    listing.set_defaults(handler=list_entries)

    adding = actions.add_parser(
        "add",
        help="pin a case",
        description="Run a case once and pin it with today's outcome: element 0 of y, the element of --result and "
        "--index, or the law of --law.",
        examples=("""verify corpus add k.py::gelu '{"dtype":"float32","dims":[8],"fill":"ones"}'""",),
    )
    adding.add_argument("target", type=options.read_path, metavar="TARGET", help="FILE.py::KERNEL or MODULE::KERNEL")
    adding.add_argument("case", metavar="CASE", help="the case as JSON, from a failure message or a report")
    options.one(adding.add_mutually_exclusive_group(), "--result", "--law")
    options.add(adding, "--index", default=0)
    options.add(adding, "--reason", default="")
    adding.set_defaults(handler=add_entry, result="y")

    removing = actions.add_parser(
        "remove",
        help="unpin entries",
        description="Unpin entries by their id.",
        examples=("verify corpus remove 0123456789ab",),
    )
    removing.add_argument("ids", nargs="+", metavar="ID", help="as `verify corpus list` shows it")
    removing.set_defaults(handler=remove_entries)

    replaying = actions.add_parser(
        "replay",
        help="try the entries again",
        description="Try pinned cases again; exit 1 when one is still wrong.",
        examples=("verify corpus replay", "verify corpus replay my_gelu"),
    )
    replaying.add_argument("names", nargs="*", metavar="KERNEL|ID", help="only these (default: all)")
    replaying.set_defaults(handler=replay_entries)

    for action in (adding, replaying):
        options.add(action, "--backend")
        options.timeout(action, "a case")
    for action in (listing, adding, removing, replaying):
        options.sinks(action, "the entries", "--json")


def list_entries(options: argparse.Namespace) -> int:
    """Lists the entries."""
    found = [item for item in _entries() if not options.kernels or item.kernel in options.kernels]
    sinks.deliver_data(options, lambda: [_plain(item) for item in found], lambda: sinks.lines(*_listed(found)))
    return exits.PASS


def _listed(found: list[Entry]) -> list[str]:
    lines = []
    for item in found:
        lines.append(f"{item.id}  {_about(item)}{_then(item)}")
        if item.why:
            lines.append(f"    {item.why}")
    if not found:
        return sinks.ending("nothing is pinned", "verify hunt --pin")
    return lines + sinks.ending(f"{len(found)} pinned", "verify corpus replay")


def add_entry(options: argparse.Namespace) -> int:
    """Runs a case once and pins it with its outcome."""
    from verify.search.hunt.requests import Pin
    from verify.workers.process import Worker, ask_about

    request = Pin(options.target, options.case, options.reason, options.law or "", options.result, options.index)
    with Worker(options.backend) as worker:
        reply = ask_about(worker, request, options.target, timeout=options.timeout)
    item = reply.entry
    state = "pinned" if reply.new else "pinned before, unchanged"
    sentence = f"{state}: {item.id}  {_about(item)}{_then(item)}"
    end = sinks.ending(sentence, given.on_backend(f"verify corpus replay {item.id}", options.backend))
    sinks.deliver_data(
        options,
        lambda: {**_plain(item), "new": reply.new},
        lambda: sinks.lines(f"entry: {os.path.relpath(reply.path)}", *end),
    )
    return exits.PASS


def remove_entries(options: argparse.Namespace) -> int:
    """Unpins entries."""
    from verify.search.hunt.requests import Unpin

    removed = _corpus(Unpin(options.ids))
    lines = [f"removed {item.id}  {_about(item)}" for item in removed]
    lines += sinks.ending(f"{len(removed)} removed", "verify corpus list")
    sinks.deliver_data(options, lambda: [_plain(item) for item in removed], lambda: sinks.lines(*lines))
    return exits.PASS


def replay_entries(options: argparse.Namespace) -> int:
    """Replays entries. Exit code 1 if one is still wrong, 3 if one could not be tried."""
    from verify.declare import config
    from verify.errors import UsageError
    from verify.workers.process import Worker

    chosen = _entries()
    for name in options.names:
        if not any(name in (item.id, item.kernel) for item in chosen):
            raise UsageError(f"the corpus has no entry and no kernel {name!r}", hint="verify corpus list")
    if options.names:
        chosen = [item for item in chosen if {item.id, item.kernel} & set(options.names)]
    given.enter(options, config.find().root)
    tried = []
    with Worker(options.backend) as worker:
        for item in chosen:
            tried.append((item, *_again(worker, item, options.timeout)))
    plain = [{**_plain(item), "now": now, "shows": shows} for item, now, shows in tried]
    sinks.deliver_data(options, lambda: plain, lambda: sinks.lines(*_replayed(tried)))
    states = {now for _, now, _ in tried}
    return exits.WRONG if "wrong" in states else exits.INCOMPLETE if "not tried" in states else exits.PASS


def _replayed(tried: list[tuple[Entry, str, str]]) -> list[str]:
    lines = []
    for item, now, shows in tried:
        lines += [f"{now:<10}  {item.id}  {_about(item)}", f"    {shows}{_then(item)}"]
    wrong = [item for item, now, _ in tried if now == "wrong"]
    open_ones = sum(now == "not tried" for _, now, _ in tried)
    verdict = f"{len(tried) - open_ones} tried, {len(wrong)} still wrong"
    if open_ones:
        verdict += f", {open_ones} could not be tried"
    return lines + sinks.ending(verdict, f"verify corpus list {wrong[0].kernel if wrong else ''}".rstrip())


def _again(worker: Any, item: Entry, timeout: float) -> tuple[str, str]:
    """Returns the state of a pinned case, "right", "wrong" or "not tried", and what it shows."""
    import json

    from verify.diagnose.requests import ReplayElement, ReplayLaw
    from verify.errors import UsageError
    from verify.workers.process import ask_about

    target, case = item.target, json.dumps(item.case)
    try:
        if item.law:
            law = ask_about(worker, ReplayLaw(target, case, item.law), target, timeout=timeout).law
            states = {"ok": "right", "broken": "wrong", "skipped": "not tried"}
            return states[law.status], law.message or "the law holds"
        element = ReplayElement(target, case, item.result, item.index or 0)
        found = ask_about(worker, element, target, timeout=timeout).replay
    except UsageError as error:
        return "not tried", error.message
    shows = f"now {found.judged:.6g} {'scaled ' if found.gate == 'scaled' else ''}ULP, limit {found.limit:g}"
    return "right" if found.within else "wrong", shows


def _plain(item: Entry) -> dict[str, Any]:
    """Returns an entry as JSON values, with its id."""
    import msgspec

    return {"id": item.id, **msgspec.to_builtins(item)}


def _about(item: Entry) -> str:
    what = f"law of {item.law}" if item.law else f"{item.result}[{item.index}]"
    return f"{item.kernel} {item.dtype}  {what}"


def _then(item: Entry) -> str:
    """Returns the outcome of the case when it was pinned."""
    if item.error is None:
        return f"  (then: {item.showed})" if item.showed else ""
    size = item.error if isinstance(item.error, str) else f"{item.error:.6g}"
    where = f" on {item.backend}" if item.backend else ""
    return f"  (then {size} {'scaled ' if item.gate == 'scaled' else ''}ULP{where})"


def _entries() -> list[Entry]:
    from verify.search.hunt.requests import ListPinned

    return _corpus(ListPinned())


def _corpus(request: Request[list[Entry]]) -> list[Entry]:
    """Asks for entries in a worker: it reads cases, and this process never imports torch."""
    from verify.workers.process import START_SECONDS, Worker, ask_about

    with Worker("cpu") as worker:
        return ask_about(worker, request, "the corpus", timeout=START_SECONDS)
