"""Turns verdicts, changes of bounds and comparisons into plain values for `--json`, complete and uncut."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import msgspec

from verify.records.bounds.changes import Change, explained
from verify.records.bounds.committed import PROMISES, Bound
from verify.records.bounds.verdict import SEVERITY, Row, Verdict, Waiver
from verify.records.compare import Comparison, Pair
from verify.records.figure import rank
from verify.records.readings import Key, Reading, inputs
from verify.records.record import number, replay_command

VERSION = 1


def of_verdict(verdict: Verdict) -> dict[str, Any]:
    """Returns the verdict of the gate."""
    return {
        "version": VERSION,
        "verdict": verdict.word,
        "exit_code": verdict.exit_code,
        "records": list(verdict.records),
        "missing": list(verdict.missing),
        "notes": list(verdict.notes),
        "counts": {status: verdict.count(status) for status in SEVERITY},
        "rows": [_row(row) for row in verdict.rows],
        "idle_waivers": list(verdict.idle),
    }


def flat_rows(verdict: Verdict) -> list[dict[str, Any]]:
    """Returns the rows of a verdict as flat dicts, with the bound and the largest error. NaN is infinite."""
    return [
        {**_key(row.key), "status": row.status, "reason": row.reason}
        | {"bound": row.bound and row.bound.value, "max": row.leading and rank(row.leading.value)}
        for row in verdict.rows
    ]


def of_changes(changes: Sequence[Change]) -> list[dict[str, Any]]:
    """Returns changes of bounds."""
    return [
        {**_key(change.key), "change": change.kind, "explained": explained(change)}
        | {"old": change.old and _bound(change.old), "new": change.new and _bound(change.new)}
        for change in changes
    ]


def of_comparison(found: Comparison) -> dict[str, Any]:
    """Returns a comparison of two records."""
    return {
        "version": VERSION,
        "exit_code": found.exit_code,
        "base": found.base.id,
        "head": found.head.id,
        "broke": [{"kernel": name, "message": message} for name, message in found.broke],
        "mended": list(found.fixed),
        "pairs": [_pair(pair) for pair in found.pairs],
    }


def _key(key: Key) -> dict[str, Any]:
    return {"key": str(key), **dataclasses.asdict(key)}


def _row(row: Row) -> dict[str, Any]:
    return {
        **_key(row.key),
        "status": row.status,
        "reason": row.reason,
        "bound": row.bound and _bound(row.bound),
        "waiver": row.waiver and of_waiver(row.waiver),
        "beyond": [each.name for each in row.beyond],
        "readings": [_reading(reading) for reading in row.readings],
    }


def of_waiver(waiver: Waiver) -> dict[str, Any]:
    """Returns one waiver."""
    return {**dataclasses.asdict(waiver), "expires": waiver.expires.isoformat()}


def _bound(bound: Bound) -> dict[str, Any]:
    return {
        **dict(zip(PROMISES, bound.promise, strict=True)),
        "gate": bound.gate,
        "basis": str(bound.basis),
        "reason": bound.reason,
        "evidence": dataclasses.asdict(bound.evidence),
        "properties": dict(bound.properties),
        "accepted": [msgspec.structs.asdict(entry) for entry in bound.accepted],
    }


def _reading(reading: Reading) -> dict[str, Any]:
    worst = reading.worst
    own = ("share", "verdict", "gate", "source", "properties", "bits", "record", "commit")
    return {
        **{name: getattr(reading, name) for name in own},
        **{name: getattr(worst, name, "") for name in ("got", "got_hex", "truth")},
        "ulp": number(reading.value),
        "basis": str(reading.basis),
        "typical": None if reading.typical is None else number(reading.typical),
        "input": inputs(worst),
        "index": list(worst.index) if worst else None,
        "replay": replay_command(worst.origin if worst else None),
    }


def _pair(pair: Pair) -> dict[str, Any]:
    return {
        **_key(pair.key),
        "source": pair.source,
        "change": pair.change,
        "bits": pair.bits,
        "reason": pair.why,
        "grew": [each.name for each in pair.grew],
        "base": pair.base and _reading(pair.base),
        "head": pair.head and _reading(pair.head),
    }
