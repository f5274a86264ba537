"""Propose, review and accept bounds.

Bounds are the largest errors that a project allows itself, one per output, dtype and part of the inputs. They get
tighter from records, and looser only one by one, with a reason.

    verify bounds propose run.json
    verify bounds review --base origin/main

## propose

Write new and tighter bounds from records.

Write a bound for every figure that has none, and tighten bounds that a record shows to be loose. No bound gets
looser and none is removed. Exit code 1: the bounds are written, but some figure is beyond its bound.

    verify bounds propose run.json
    verify bounds propose run.json --kernel my_gelu --dry-run

records: RUN.json ...  records of runs
--kernel ... --bounds
--dry-run  show, and write nothing
--on-ci
--json: the changes

## review

Show what changed in the bounds since a commit.

Show every bound and waiver that changed since a commit, loosened and removed ones first. Exit code 1: a bound was
loosened or removed, or a waiver added or extended.

    verify bounds review
    verify bounds review --base origin/main

--base = HEAD --bounds
--json: the changes

## accept

Loosen one bound, with the reason in the file.

Replace one bound by what a record measured: a larger figure, one of another unit, or one of other cases. The reason
and the date stay in the file.

    verify bounds accept my_gelu/y/bfloat16/tail run.json --reason 'faster erf'

key: KEY  kernel/output/dtype/regime, as `verify gate` prints it
records: RUN.json ...  records of runs
--reason! --bounds --on-ci
--json: the changes
"""

import argparse
import datetime
import os

from verify.cli import exits, given, sinks
from verify.declare import config
from verify.errors import UsageError
from verify.records.bounds import changes, committed, waivers
from verify.records.bounds.verdict import BREACH
from verify.records.bounds.worktree import book_at, waivers_at
from verify.records.files import load
from verify.report import bounds_words, gate_data


def propose(options: argparse.Namespace) -> int:
    """Carries out the step."""
    if not options.dry_run:
        _may_write(options, "propose")
    book = _book(options)
    found = changes.propose([load(path) for path in options.records], book, kernels=options.kernel)
    made = [] if options.dry_run else [change.new for change in found.changes if change.new]
    written = [waivers.shown(path) for path in committed.save(book, made)]
    left = [{"key": str(row.key), "status": row.status, "reason": row.reason} for row in found.left]
    data = {"changes": gate_data.of_changes(found.changes), "written": written, "left": left}
    sinks.deliver_data(options, data, bounds_words.proposal(found, written=written, dry=options.dry_run))
    return exits.WRONG if any(row.status in BREACH for row in found.left) else exits.PASS


def review(options: argparse.Namespace) -> int:
    """Carries out the step."""
    book = _book(options)
    found = changes.review(book_at(options.base, book.folder), book)
    excused = waivers.changed(waivers_at(options.base, book.folder), waivers.load(book.folder))
    moved = [{"change": kind, **gate_data.of_waiver(waiver)} for kind, waiver in excused]
    data = {"base": options.base, "changes": gate_data.of_changes(found), "waivers": moved}
    sinks.deliver_data(options, data, bounds_words.review(found, options.base, waivers=excused))
    approved = changes.needs_approval(found) or any(kind in waivers.APPROVED for kind, _ in excused)
    return exits.WRONG if approved else exits.PASS


def accept(options: argparse.Namespace) -> int:
    """Carries out the step."""
    _may_write(options, "accept")
    book = _book(options)
    runs = [load(path) for path in options.records]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    change = changes.accept(options.key, options.reason, runs, book, today=today)
    assert change.new is not None
    written = [waivers.shown(path) for path in committed.save(book, [change.new])]
    data = {"changes": gate_data.of_changes([change]), "written": written}
    return sinks.deliver_data(options, data, bounds_words.accepted(change, written=written))


def _book(options: argparse.Namespace) -> committed.Book:
    # The first proposal creates the folder.
    return committed.load(given.bounds_folder(options, config.find(), created=True))


def _may_write(options: argparse.Namespace, step: str) -> None:
    if os.environ.get("CI", "").lower() not in ("", "0", "false") and not options.on_ci:
        rule = "bounds are changed by people and reviewed, so nothing is written on a CI machine; CI is set here"
        raise UsageError(rule, hint=f"verify bounds {step} on your own machine with the record, or --on-ci")
