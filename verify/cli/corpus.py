"""`verify corpus`: the pinned cases that every later run tries again."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from verify.cli import screen

if TYPE_CHECKING:
    from verify.workers.requests import Request


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "corpus",
        help="list, add, remove or replay the pinned cases",
        description="The corpus keeps cases that once broke a law or gave a large error, one file each under "
        "`[tool.verify] corpus` (default reports/corpus). `verify run` and `verify.laws_for` try them every time.",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    listing = actions.add_parser("list", help="show the entries", description="Show the pinned cases.")
    listing.add_argument("kernels", nargs="*", metavar="KERNEL", help="only of these kernels")
    listing.set_defaults(handler=list_entries)

    adding = actions.add_parser(
        "add", help="pin a case", description="Try a case once and pin it with what it shows today."
    )
    adding.add_argument("target", metavar="FILE|MODULE::KERNEL", help="the kernel that the case is about")
    adding.add_argument("case", metavar="CASE", help="the case as JSON, from a failure message or a report")
    what = adding.add_mutually_exclusive_group()
    what.add_argument("--result", default="y", help="output or gradient, e.g. y or dx (default y)")
    what.add_argument("--law", metavar="NAME", help="pin it for this law instead of one element")
    adding.add_argument("--index", type=int, default=0, help="flat index of the element (default 0)")
    adding.add_argument("--why", default="", metavar="TEXT", help="why it is worth keeping")
    adding.set_defaults(handler=add_entry)

    removing = actions.add_parser("remove", help="unpin entries", description="Unpin entries by their id.")
    removing.add_argument("ids", nargs="+", metavar="ID", help="as `verify corpus list` shows it")
    removing.set_defaults(handler=remove_entries)

    replaying = actions.add_parser(
        "replay", help="try the entries again", description="Try pinned cases again; exit 1 when one still shows."
    )
    replaying.add_argument("names", nargs="*", metavar="KERNEL|ID", help="only these (default: all)")
    replaying.set_defaults(handler=replay_entries)

    for action in (adding, replaying):
        action.add_argument("--backend", choices=("cuda", "interpreter"), help="default: cuda if there is a GPU")
        action.add_argument("--timeout", type=screen.seconds, default=600.0, metavar="SECONDS", help="for each case")
    for action in (listing, adding, removing, replaying):
        action.add_argument("--json", action="store_true", help="as JSON")


def list_entries(options: argparse.Namespace) -> int:
    """Show."""
    found = [item for item in _entries() if not options.kernels or item["kernel"] in options.kernels]
    if options.json:
        screen.print_json(found)
        return 0
    for item in found:
        print(screen.plain(f"{item['id']}  {item['kernel']} {item['dtype']}  {_about(item)}{_then(item)}"))
        if item.get("why"):
            print(screen.plain(f"    {item['why']}"))
    print(f"{len(found)} pinned. Next: verify corpus replay" if found else "nothing is pinned")
    return 0


def add_entry(options: argparse.Namespace) -> int:
    """Try once, then pin with what it showed."""
    from verify.hunt.requests import Pin
    from verify.workers.process import Worker, ask_about

    request = Pin(options.target, options.case, options.why, options.law or "", options.result, options.index)
    with Worker(options.backend) as worker:
        reply = ask_about(worker, request, options.target, timeout=options.timeout)
    item = reply.entry
    if options.json:
        screen.print_json({**item, "new": reply.new})
        return 0
    state = "pinned" if reply.new else "pinned before, and left as it was"
    print(screen.plain(f"{state}: {item['id']}  {item['kernel']} {item['dtype']}  {_about(item)}{_then(item)}"))
    print(f"{os.path.relpath(reply.path)}")
    return 0


def remove_entries(options: argparse.Namespace) -> int:
    """Unpin."""
    from verify.hunt.requests import Unpin

    removed = _corpus(Unpin(options.ids))
    if options.json:
        screen.print_json(removed)
        return 0
    for item in removed:
        print(screen.plain(f"removed {item['id']}  {item['kernel']} {item['dtype']}  {_about(item)}"))
    return 0


def replay_entries(options: argparse.Namespace) -> int:
    """Try again; exit 1 when one still shows, 3 when one could not be tried."""
    from verify.declare import config
    from verify.errors import UsageError
    from verify.workers.process import Worker

    chosen = _entries()
    for name in options.names:
        if not any(name in (item["id"], item["kernel"]) for item in chosen):
            raise UsageError(f"the corpus has no entry and no kernel {name!r}", hint="verify corpus list")
    if options.names:
        chosen = [item for item in chosen if {item["id"], item["kernel"]} & set(options.names)]
    os.chdir(config.find().root)
    tried = []
    with Worker(options.backend) as worker:
        for item in chosen:
            tried.append({**item, **_again(worker, item, options.timeout)})
    if options.json:
        screen.print_json(tried)
    else:
        for item in tried:
            print(screen.plain(f"{item['now']:<10}  {item['id']}  {item['kernel']} {item['dtype']}  {_about(item)}"))
            print(screen.plain(f"    {item['shows']}{_then(item)}"))
        print(f"{len(tried)} tried, {sum(item['now'] == 'wrong' for item in tried)} still wrong")
    states = {item["now"] for item in tried}
    return 1 if "wrong" in states else 3 if "not tried" in states else 0


def _again(worker: Any, item: dict[str, Any], timeout: float) -> dict[str, str]:
    """What a pinned case shows now."""
    import json

    from verify.diagnose.requests import ReplayElement, ReplayLaw
    from verify.errors import UsageError
    from verify.records.record import value_of
    from verify.workers.process import ask_about

    target, case = item["target"], json.dumps(item["case"])
    try:
        if item.get("law"):
            law = ask_about(worker, ReplayLaw(target, case, item["law"]), target, timeout=timeout).law
            states = {"ok": "right", "broken": "wrong", "skipped": "not tried"}
            return {"now": states[law.status], "shows": law.message or "the law holds"}
        element = ReplayElement(target, case, item["result"], item["index"])
        found = ask_about(worker, element, target, timeout=timeout).replay
    except UsageError as error:
        return {"now": "not tried", "shows": error.message}
    scaled = found["gate"] == "scaled"
    size = abs(value_of(found["worst"]["scaled_ulp" if scaled else "ulp"]))
    within = size <= found["limit"]
    shows = f"now {size:.6g} {'scaled ' if scaled else ''}ULP, limit {found['limit']:g}"
    return {"now": "right" if within else "wrong", "shows": shows}


def _about(item: dict[str, Any]) -> str:
    return f"law of {item['law']}" if item.get("law") else f"{item['result']}[{item['index']}]"


def _then(item: dict[str, Any]) -> str:
    """What it showed when it was pinned."""
    if item.get("error") is None:
        return f"  (then: {item['showed']})" if item.get("showed") else ""
    size = item["error"] if isinstance(item["error"], str) else f"{item['error']:.6g}"
    where = f" on {item['backend']}" if item.get("backend") else ""
    return f"  (then {size} {'scaled ' if item.get('gate') == 'scaled' else ''}ULP{where})"


def _entries() -> list[dict[str, Any]]:
    from verify.hunt.requests import ListPinned

    return _corpus(ListPinned())


def _corpus(request: Request[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Cases are read in a worker: this process never imports torch."""
    from verify.workers.process import START_SECONDS, Worker, ask_about

    with Worker("interpreter") as worker:
        return ask_about(worker, request, "the corpus", timeout=START_SECONDS)
