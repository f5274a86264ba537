"""Reads and applies waivers: committed excuses, each for findings of the gate, with a reason and a last day.

`waivers.toml` beside the bounds is valid for every machine, `<arch>/waivers.toml` for one. A waiver never hides a
finding: the row stays in the verdict as "waived", and once its day (UTC) has passed the finding fails again. In its key
`*` means any output, dtype or regime: `my_norm/dx/float16/*` excuses each finding of that result. A row without a
verdict ("new", "vacuous", "undecided", "unused", "incomparable") has no waiver, because it says nothing about the
kernel.
"""

import dataclasses
import datetime
import os
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from verify.errors import UsageError, closest
from verify.records.bounds import toml
from verify.records.bounds import verdict as gate
from verify.records.bounds.committed import WAIVERS, Book
from verify.records.bounds.verdict import Row, Verdict, Waiver
from verify.records.merge import demand_one_tree
from verify.records.readings import Key, arch_of
from verify.records.record import Run

EXCUSED = ("breached", "nonfinite", "crashed")
ANY = "*"


def judge(
    runs: Sequence[Run],
    book: Book,
    *,
    kernels: Sequence[str] = (),
    base: Sequence[Run] = (),
    today: datetime.date | None = None,
) -> Verdict:
    """Returns the verdict of the gate with the waivers in the folder of the bounds. `today` is a day in UTC.

    Raises UsageError if the runs are not of one tree: passes of two trees are no pass of either.
    """
    demand_one_tree(runs)
    found, held = gate.judge(runs, book, kernels=kernels, base=base), load(book.folder)
    return applied(found, held, runs, kernels, today or datetime.datetime.now(datetime.UTC).date())


def applied(
    found: Verdict, waivers: Iterable[Waiver], runs: Sequence[Run], kernels: Sequence[str], today: datetime.date
) -> Verdict:
    """Returns a verdict where waivers excuse their findings. A finding whose waiver has ended names that waiver."""
    machines = {arch_of(run) for run in runs}
    chosen = {_name(kernel) for kernel in kernels}
    rows, idle = list(found.rows), []
    for waiver in waivers:
        if (waiver.arch and waiver.arch not in machines) or (chosen and waiver.key.split("/")[0] not in chosen):
            continue
        places = [place for place, row in enumerate(rows) if _is_about(waiver, row)]
        if not places:
            names = {_name(row.key.kernel) for row in rows} | {str(row.key) for row in rows if row.key.output}
            said = f"the records and bounds have no key {waiver.key!r}{closest(waiver.key, sorted(names))}"
            then = "verify gate RUN.json --all --json -  (names the keys); --kernel NAME leaves other kernels out"
            raise UsageError(f"{waiver.place}: {said}; a waiver excuses one finding", hint=then)
        excused = []
        for place in places:
            # a kernel's waiver excuses only that it does not run, any other only figures
            of_kernel, crashed = waiver.key == _name(rows[place].key.kernel), rows[place].status == "crashed"
            excused += [place] if rows[place].status in EXCUSED and of_kernel == crashed else []
        for place in excused:
            status = rows[place].status if today > waiver.expires else "waived"
            rows[place] = dataclasses.replace(rows[place], status=status, waiver=waiver)
        if not excused:
            states = " and ".join(dict.fromkeys(rows[place].status for place in places))
            idle.append(f"{waiver.key}: {states}; the waiver can go ({waiver.place})")
    rows.sort(key=lambda row: (gate.SEVERITY.index(row.status), row.key))
    return dataclasses.replace(found, rows=tuple(rows), idle=tuple(idle))


def _name(kernel: str) -> str:
    """Returns the name of a kernel as keys spell it."""
    return str(Key("", kernel, "", "", "")).split("/")[0]


def _is_about(waiver: Waiver, row: Row) -> bool:
    if waiver.arch not in ("", row.key.arch):
        return False
    wanted, parts = waiver.key.split("/"), str(row.key).split("/")
    if len(wanted) == 1:
        return wanted[0] == parts[0]
    same = len(wanted) == len(parts) and wanted[0] == parts[0]
    return same and all(one in (ANY, part) for one, part in zip(wanted[1:], parts[1:], strict=True))


# -- reading --------------------------------------------------------------------------------------------


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Holds one waiver of a file."""

    key: Annotated[str, Meta(min_length=1)]
    reason: Annotated[str, Meta(pattern=r"\S")]
    expires: datetime.date


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    waiver: list[_Entry]


def load(folder: Path) -> tuple[Waiver, ...]:
    """Reads every waiver below the folder of the bounds."""
    files = sorted(folder.rglob(WAIVERS))
    try:
        return read((shown(path), path.relative_to(folder), path.read_bytes()) for path in files)
    except OSError as error:
        raise UsageError(f"cannot read {error.filename}: {error.strerror}") from error


def shown(path: Path) -> str:
    """Returns a path as messages name it: from the current folder if it is below that."""
    return os.path.relpath(path) if path.resolve().is_relative_to(Path.cwd()) else str(path)


def read(files: Iterable[tuple[str, PurePath, bytes]]) -> tuple[Waiver, ...]:
    """Reads the waivers of files, each given by its name for errors, its place below the bounds, and its bytes."""
    found: dict[tuple[str, str], Waiver] = {}
    for source, inside, data in files:
        if len(inside.parts) > 2:
            raise UsageError(f"{source}: waivers lie beside the bounds, in {WAIVERS} or <arch>/{WAIVERS}")
        arch = inside.parts[0] if len(inside.parts) == 2 else ""
        for number, entry in enumerate(toml.read(data, source, _File).waiver, 1):
            waiver = Waiver(entry.key, entry.reason.strip(), entry.expires, arch, f"{source}: waiver {number}")
            for other in found.values():
                if (other.key == waiver.key and "" in (arch, other.arch)) or (waiver.key, arch) in found:
                    raise UsageError(f"{waiver.place} repeats {waiver.key!r}; a finding has one waiver")
            found[waiver.key, arch] = waiver
    return tuple(found.values())


# -- review ---------------------------------------------------------------------------------------------

Kind = Literal["added", "extended", "changed", "removed"]
APPROVED: tuple[Kind, ...] = ("added", "extended")  # changes that a reviewer has to approve, as with a looser bound


def changed(old: Iterable[Waiver], new: Iterable[Waiver]) -> list[tuple[Kind, Waiver]]:
    """Returns the changes between two states of the waivers, those that excuse more first."""
    before, after = ({(item.key, item.arch): item for item in side} for side in (old, new))
    found: list[tuple[Kind, Waiver]] = []
    for key in sorted(before.keys() | after.keys()):
        was, now = before.get(key), after.get(key)
        if now is None:
            assert was is not None
            found.append(("removed", was))
        elif was is None:
            found.append(("added", now))
        elif now.expires > was.expires:
            found.append(("extended", now))
        elif (now.expires, now.reason) != (was.expires, was.reason):
            found.append(("changed", now))
    return sorted(found, key=lambda pair: pair[0] not in APPROVED)
