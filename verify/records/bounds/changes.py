"""Changes bounds: proposes them from records (new, tighter, never looser) and accepts single ones with a reason.

It is pure, as the gate is: it takes records and bounds and returns changed bounds.
`verify.records.bounds.committed.save` writes them.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from verify.errors import UsageError, nearest
from verify.records.bounds import verdict as gate
from verify.records.bounds.committed import PROMISES, Acceptance, Book, Bound, Evidence, Promise, supported, tightened
from verify.records.figure import UNIT
from verify.records.readings import Key, Reading, date_of, inputs, leading
from verify.records.record import Run

Kind = Literal["new", "tighter", "restated", "looser", "removed"]


@dataclass(frozen=True)
class Change:
    """Holds one bound before and after. `restated` means the same value on newer evidence."""

    kind: Kind
    old: Bound | None
    new: Bound | None

    @property
    def key(self) -> Key:
        """Returns the key of the bound."""
        bound = self.new or self.old
        assert bound is not None
        return bound.key


@dataclass(frozen=True)
class Proposal:
    """Holds the changes that may be written, and the verdict from which they come."""

    changes: tuple[Change, ...]
    verdict: gate.Verdict
    left: tuple[gate.Row, ...]  # rows that are not ok and that no change covers


def propose(runs: Sequence[Run], book: Book, *, kernels: Sequence[str] = ()) -> Proposal:
    """Proposes new bounds for keys without one, and tighter ones if a measurement supports them. None gets looser."""
    verdict = gate.judge(runs, book, kernels=kernels)
    pairs = [(row, _proposed(row)) for row in verdict.rows]
    left = [row for row, change in pairs if change is None and row.status not in ("ok", "improved")]
    return Proposal(tuple(change for _, change in pairs if change is not None), verdict, tuple(left))


def _proposed(row: gate.Row) -> Change | None:
    """Returns a new, tighter or restated bound, or None if the readings change nothing or cannot carry a bound."""
    usable = _usable(row.readings)
    if not usable or len(usable) < len(row.readings):
        return None
    reading = leading(usable)
    if row.bound is None:
        return Change("new", None, _bound(row, reading, supported(usable), "first measured"))
    old = row.bound
    if row.beyond or any(item.gate != old.gate or gate.exceeded(item, old) for item in usable):
        return None
    asked: dict[str, str] = {**old.properties, **{str(item.source): item.properties for item in usable}}
    stale = old.evidence.source in asked and asked[old.evidence.source] != old.properties.get(old.evidence.source)
    promise = tightened(usable, old)
    if stale and (value := supported(usable)[0]) < old.value:
        promise = (value, *promise[1:])
    if promise[0] < old.value:
        return Change("tighter", old, _bound(row, reading, promise, f"tightened from {old.value:g}"))
    if stale:
        return Change("restated", old, _bound(row, reading, promise, "measured again, because its cases have changed"))
    if promise != old.promise or asked != dict(old.properties):
        new = dataclasses.replace(_promising(old, promise), properties=asked)
        return Change(_kind(old, new), old, new)
    return None


def accept(text: str, reason: str, runs: Sequence[Run], book: Book, *, today: str) -> Change:
    """Returns the bound that a record needs, for exactly one key, with the reason that the file keeps.

    It is looser, or of a result that is judged by another gate now, or on other cases.
    """
    if not reason.strip():
        raise UsageError("a loosening needs a reason, which stays in the file; --reason is empty")
    measured = [row for row in gate.judge(runs, book).rows if row.readings]
    rows = [row for row in measured if str(row.key) == text]
    if not rows:
        meant = nearest(text, [str(row.key) for row in measured if row.status == "breached"])
        raise UsageError(
            f"the records measured no key {text!r}",
            hint=f"verify bounds accept {meant!r} --reason ..." if meant else "verify gate RUN  (names the keys)",
        )
    if len(rows) > 1:
        machines = ", ".join(row.key.arch for row in rows)
        raise UsageError(f"{text} was measured on {machines}; accept it from the record of one machine")
    [row] = rows
    usable = _usable(row.readings)
    if not usable or len(usable) < len(row.readings):
        raise UsageError(f"{text} is {row.status} and cannot be accepted: {row.reason}")
    reading, old = leading(usable), row.bound
    if old is None:
        raise UsageError(f"{text} has no bound to loosen", hint="verify bounds propose RUN")
    beyond = {each.name for item in usable for each in gate.exceeded(item, old)}
    other = any(each.gate != old.gate for each in usable)
    other |= any(old.properties.get(each.source, each.properties) != each.properties for each in usable)
    if not beyond and not other:
        raise UsageError(
            f"{text} is within its bound: {reading.value:.6g}{UNIT[reading.gate]}, the bound is {old.value:g}",
            hint="verify bounds propose RUN  (never loosens)",
        )
    promise = supported(usable)
    if not other:  # only what is exceeded gets looser
        pairs = zip(PROMISES, promise, old.promise, strict=True)
        promise = tuple(new if name in beyond else then for name, new, then in pairs)  # type: ignore[assignment]
    entry = Acceptance(today, old.value, promise[0], reason.strip())
    new = dataclasses.replace(_bound(row, reading, promise, reason.strip()), accepted=(*old.accepted, entry))
    return Change(_kind(old, new), old, new)


def review(old: Book, new: Book) -> list[Change]:
    """Returns the changes between two states of the bounds, removed and loosened ones first."""
    order: tuple[Kind, ...] = ("removed", "looser", "new", "tighter", "restated")
    pairs = [(old.bounds.get(key), new.bounds.get(key)) for key in old.bounds.keys() | new.bounds.keys()]
    changes = [Change(_kind(before, after), before, after) for before, after in pairs if before != after]
    return sorted(changes, key=lambda change: (order.index(change.kind), change.key))


def explained(change: Change) -> bool:
    """True if a loosening has its reason: an added acceptance of exactly this value, with all earlier ones kept."""
    if change.old is None or change.new is None:
        return False
    known = len(change.old.accepted)
    kept, added = change.new.accepted[:known], change.new.accepted[known:]
    return kept == change.old.accepted and any(entry.new == change.new.value for entry in added)


def dropped(before: Bound, after: Bound) -> set[str]:
    """Returns the commands whose measurements the bound no longer judges, because their properties are gone."""
    return before.properties.keys() - after.properties.keys()


def needs_approval(changes: Iterable[Change]) -> list[Change]:
    """Returns the changes that take back a promise."""
    return [change for change in changes if change.kind in ("looser", "removed")]


def _kind(before: Bound | None, after: Bound | None) -> Kind:
    if before is None:
        return "new"
    if after is None:
        return "removed"
    # Another gate measures in other units: a scaled ULP is larger, so the promise is another one.
    if after.looser(before) or after.gate != before.gate or dropped(before, after):
        return "looser"
    pairs = zip(before.promise, after.promise, strict=True)
    known = _promising(before, [new if old in (None, "") else old for old, new in pairs])
    return "tighter" if known.looser(after) else "restated"


def _usable(found: Iterable[Reading]) -> list[Reading]:
    """Returns readings that can carry a bound: proven, finite, without a flaw, of a known machine and cases."""
    return [reading for reading in found if gate.fitness(reading)[0] == "ok"]


def _promising(bound: Bound, promise: Sequence[Any]) -> Bound:
    return dataclasses.replace(bound, **dict(zip(PROMISES, promise, strict=True)))


def _bound(row: gate.Row, reading: Reading, promise: Promise, reason: str) -> Bound:
    """Returns the bound of a row with its limits, a reason and the evidence of a reading."""
    old = row.bound
    asked: dict[str, str] = {item.source: item.properties for item in _usable(row.readings)}
    if old is not None and old.gate == reading.gate:
        asked = {**old.properties, **asked}
    evidence = Evidence(
        reading.record or "unknown",
        reading.commit,
        date_of(reading),
        reading.source,
        measured=reading.value,
        worst=inputs(reading.worst),
    )
    accepted = old.accepted if old is not None else ()
    bound = Bound(row.key, promise[0], reading.gate, reading.basis, reason, evidence, asked, accepted)
    return _promising(bound, promise)
