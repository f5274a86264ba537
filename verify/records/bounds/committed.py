"""Committed bounds: reports/bounds/<arch>/<kernel>.toml, one value per output x dtype x regime, with its evidence.

A file that is not exactly understood is refused with the file, the key and the rule, because a bound that is read
wrongly or skipped is a bound that is lost. What is written is canonical: sorted, the same bytes for the same bounds.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from verify.errors import UsageError
from verify.records.bounds import toml
from verify.records.figure import LEAST, rounded_up
from verify.records.files import write_atomically
from verify.records.readings import STRENGTH, Key, Reading, as_strong
from verify.records.record import Basis

FORMAT = 1

# Observed maxima differ from seed to seed, those of few cases far more; docs/gate.md has the measurements behind these.
HEADROOM = 0.25
FEW, HEADROOM_OF_FEW = 10_000, 2.0
MANY, HEADROOM_OF_EXCESS = 1_000_000, 1.5  # below so many cases, of what a maximum has beyond the last rounding
# How much looser than what would be proposed today a bound may be before it is reported and tightened.
# Observed maxima have to fall by the headroom too: a lucky seed must not pull a bound down.
MARGIN = 0.05

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}|unknown")
_HASH = re.compile(r"[0-9a-f]{6,64}")
_ARCH = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Evidence:
    """The measurement behind a bound."""

    record: str  # id of the record
    commit: str
    date: str
    source: str  # run, sweep or hunt
    measured: float  # without headroom
    worst: str = ""  # the worst input with its bits, if the record kept it


@dataclass(frozen=True)
class Acceptance:
    """A loosening, and why somebody took it; never removed."""

    date: str
    old: float
    new: float
    reason: str


@dataclass(frozen=True)
class Bound:
    """A promise: no error of this key is larger than `value` ULP."""

    key: Key
    value: float
    gate: str
    basis: Basis
    reason: str
    evidence: Evidence
    properties: Mapping[str, str]  # source -> hash of what was asked
    accepted: tuple[Acceptance, ...] = ()


@dataclass
class Book:
    """All bounds of a folder."""

    folder: Path
    bounds: dict[Key, Bound] = field(default_factory=dict)

    def arches(self, kernel: str) -> list[str]:
        """The architectures for which a kernel has bounds."""
        return sorted({key.arch for key in self.bounds if key.kernel == kernel})


# -- figures --------------------------------------------------------------------------------------------


def headroom_of(reading: Reading, asked: float | None = None) -> float:
    """What is added to a maximum: nothing if it is proven, else what was asked for, else by the number of cases.

    The last rounding gives up to half a unit with every seed; what varies is the error before it. The gradients of a
    sweep are proven for dy = 1 alone, and the bound holds for every dy.
    """
    basis = reading.basis
    seen = basis.kind == "observed"
    if not seen and not reading.one_upstream:
        return 0.0
    if asked is not None:
        return asked
    if not seen or basis.n >= MANY:
        return HEADROOM
    excess = HEADROOM_OF_EXCESS * (1 - LEAST / max(reading.value, LEAST))
    return HEADROOM_OF_FEW if basis.n < FEW else max(HEADROOM, excess)


def proposal(reading: Reading, headroom: float | None = None) -> float:
    """The bound that a measurement supports: rounded up, with headroom unless it was proven."""
    return rounded_up(max(reading.value, LEAST), headroom=headroom_of(reading, headroom))


def tightens(reading: Reading, bound: Bound, *, margin: float = MARGIN, headroom: float | None = None) -> bool:
    """Whether a bound is looser than a measurement that rests on at least as much supports, by the margin.

    A better basis tightens without a margin: it replaces what was only seen by what is proven.
    """
    value = proposal(reading, headroom)
    if not value < bound.value or not as_strong(reading.basis, bound.basis):
        return False
    better = STRENGTH[reading.basis.kind] > STRENGTH[bound.basis.kind]
    slack = max(margin, headroom_of(reading, headroom))
    return better or value * (1 + slack) < bound.value


# -- names ----------------------------------------------------------------------------------------------

_KEPT = re.compile(r"[A-Za-z0-9_.-]")
WAIVERS = "waivers.toml"  # verify.records.bounds.waivers reads it
_RESERVED = re.compile(r"waivers|(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_LONGEST = 180


def file_name(kernel: str) -> str:
    """The file of a kernel's bounds: two kernels never share one, and no name leaves its folder.

    >>> file_name("gelu"), file_name("../gelu")
    ('gelu.toml', '%2E.%2Fgelu.toml')
    """
    try:
        raw = kernel.encode()
    except UnicodeEncodeError:
        raise UsageError(f"a kernel's name is Unicode text; received {kernel!r}") from None
    stem = "".join(chr(byte) if _KEPT.match(chr(byte)) else f"%{byte:02X}" for byte in raw)
    if not stem:
        stem = "%"  # which nothing else gives
    elif stem[0] in ".-" or _RESERVED.fullmatch(stem):
        stem = f"%{ord(stem[0]):02X}{stem[1:]}"
    if len(stem) > _LONGEST:  # %- does not occur otherwise
        stem = f"{stem[:80]}%-{hashlib.sha256(raw).hexdigest()}"
    return f"{stem}.toml"


# -- reading --------------------------------------------------------------------------------------------


def holds_bounds(path: PurePath) -> bool:
    """Whether a file in the folder of an architecture has the bounds of a kernel."""
    return path.suffix == ".toml" and not path.name.startswith(".") and path.name != WAIVERS


def load(folder: str | os.PathLike[str]) -> Book:
    """Every bound of every architecture; a folder that does not exist holds none."""
    book = Book(Path(folder))
    try:
        entries = sorted(book.folder.iterdir()) if book.folder.exists() else []
        files = [path for arch in entries if arch.is_dir() for path in sorted(arch.iterdir())]
    except OSError as error:
        raise UsageError(f"cannot read the bounds in {book.folder}: {error.strerror}") from error
    for path in files:
        if holds_bounds(path):
            book.bounds.update(load_file(path))
    return book


def load_file(path: Path) -> dict[Key, Bound]:
    """The bounds of one kernel on one architecture, which the path has to agree with."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the bounds {path}: {error.strerror}") from error
    return parse(data, source=str(path), arch=path.parent.name, name=path.name)


def parse(data: bytes, *, source: str, arch: str, name: str) -> dict[Key, Bound]:
    """The same from the bytes of a file, wherever they come from."""
    top = toml.document(data, source)
    if (format_ := top.take("format", "the number of the format", lambda v: type(v) is int)) != FORMAT:
        raise UsageError(f"{source}: format is {format_!r}; this verify reads format {FORMAT}")
    own_arch = top.text("arch", _ARCH, "lower-case letters, digits and _")
    kernel = top.text("kernel", empty=True)
    if own_arch != arch:
        raise UsageError(f"{source}: arch is {own_arch!r}, its folder says {arch!r}; bounds of machines never mix")
    if file_name(kernel) != name:
        raise UsageError(f"{source}: bounds of the kernel {kernel!r} belong in {file_name(kernel)}")
    entries = top.take("bound", "a list of tables", toml.is_tables, default=[])
    top.done()
    found: dict[Key, Bound] = {}
    for number, entry in enumerate(entries, 1):
        bound = _bound(toml.Table(source, f"bound {number}", entry), own_arch, kernel)
        if bound.key in found:
            raise UsageError(f"{source}: bound {number} repeats {str(bound.key)!r}; a key has one bound")
        found[bound.key] = bound
    return found


def _bound(table: toml.Table, arch: str, kernel: str) -> Bound:
    output, dtype, regime = (table.text(name, empty=True) for name in ("output", "dtype", "regime"))
    table.where = f"bound {output} {dtype} {regime}"
    kind = table.choice("basis", tuple(STRENGTH))
    bound = Bound(
        key=Key(arch, kernel, output, dtype, regime),
        value=table.figure("value", least=LEAST),
        gate=table.choice("gate", ("plain", "scaled", "noise")),
        basis=Basis(
            kind=kind,  # type: ignore[arg-type]
            n=table.take("n", "a positive integer", lambda v: type(v) is int and v > 0),
            seed=table.take("seed", "an integer", lambda v: type(v) is int, default=None),
        ),
        reason=table.text("reason"),
        evidence=_evidence(table.table("evidence")),
        properties=_properties(table.table("properties")),
        accepted=tuple(
            _acceptance(toml.Table(table.source, f"{table.where}: accepted {number}", item))
            for number, item in enumerate(table.take("accepted", "a list of tables", toml.is_tables, default=[]), 1)
        ),
    )
    table.done()
    return bound


def _evidence(table: toml.Table) -> Evidence:
    found = Evidence(
        record=table.text("record"),
        commit=table.text("commit"),
        date=table.text("date", _DATE, "YYYY-MM-DD or unknown"),
        source=table.choice("source", ("run", "sweep", "hunt")),
        measured=table.figure("measured", least=0.0),
        worst=table.text("worst", empty=True, default=""),
    )
    table.done()
    return found


def _properties(table: toml.Table) -> dict[str, str]:
    sources: tuple[str, ...] = ("run", "sweep", "hunt")
    found = {name: table.text(name, _HASH, "hexadecimal digits") for name in sources if name in table.left}
    table.done()
    if not found:
        raise table.fail("it names the hash of what was measured, as { run = ... }; it is empty")
    return found


def _acceptance(table: toml.Table) -> Acceptance:
    found = Acceptance(
        date=table.text("date", _DATE, "YYYY-MM-DD or unknown"),
        old=table.figure("old", least=LEAST),
        new=table.figure("new", least=LEAST),
        reason=table.text("reason"),
    )
    table.done()
    return found


# -- writing --------------------------------------------------------------------------------------------


def render(arch: str, kernel: str, bounds: Iterable[Bound]) -> str:
    """The text of one file."""
    lines = [
        "# Errors in ULP that no result may exceed. Written by `verify bounds`, judged by `verify gate`.",
        toml.line("format", FORMAT),
        toml.line("arch", arch),
        toml.line("kernel", kernel),
    ]
    for bound in sorted(bounds, key=lambda item: item.key):
        assert (bound.key.arch, bound.key.kernel) == (arch, kernel)
        lines += ["", "[[bound]]", *(toml.line(name, value) for name, value in _fields(bound))]
    return "\n".join(lines) + "\n"


def _fields(bound: Bound) -> list[tuple[str, Any]]:
    fields: list[tuple[str, Any]] = [
        ("output", bound.key.output),
        ("dtype", bound.key.dtype),
        ("regime", bound.key.regime),
        ("value", bound.value),
        ("gate", bound.gate),
        ("basis", bound.basis.kind),
        ("n", bound.basis.n),
    ]
    if bound.basis.seed is not None:
        fields.append(("seed", bound.basis.seed))
    fields += [
        ("reason", bound.reason),
        ("evidence", dataclasses.asdict(bound.evidence)),
        ("properties", dict(sorted(bound.properties.items()))),
    ]
    if bound.accepted:
        fields.append(("accepted", [dataclasses.asdict(item) for item in bound.accepted]))
    return fields


def save(book: Book, changed: Iterable[Bound]) -> list[Path]:
    """Write the files in which something changed; every other bound in them stays as it is on disk."""
    groups: dict[tuple[str, str], list[Bound]] = {}
    for bound in changed:
        groups.setdefault((bound.key.arch, bound.key.kernel), []).append(bound)
    written = []
    for (arch, kernel), bounds in sorted(groups.items()):
        path = book.folder / arch / file_name(kernel)
        # a file system that ignores case would give two kernels one file: load_file then refuses
        held = load_file(path) if path.exists() else {}
        held.update({bound.key: bound for bound in bounds})
        text = render(arch, kernel, held.values())
        if parse(text.encode(), source=str(path), arch=arch, name=path.name) != held:
            raise UsageError(
                f"{path}: what would be written does not read back as the same bounds; nothing was written"
            )
        write_atomically(path, text.encode())
        book.bounds.update(held)
        written.append(path)
    return written
