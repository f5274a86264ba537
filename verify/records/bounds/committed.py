"""Reads and writes committed bounds: reports/bounds/<arch>/<kernel>.toml, one bound per output x dtype x part.

A part is a regime or a class of inputs. A file has a table for each output and dtype, with the evidence. A row of a
table is a bound of all parts that have the same one on the same basis. Its `measured` and `worst` come from the part
with the largest error. A bound of a class also limits the share of misrounded elements, the typical error and the
verdict. Files of format 2 have none of these three; they are read as they are.

If any part of a file is not understood, the whole file is refused with its name, the key and the rule. A bound that is
misread or skipped would be lost. The text is canonical: sorted, the same bytes for the same bounds.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from verify.errors import UsageError
from verify.records.bounds import toml
from verify.records.figure import LEAST, rounded_up
from verify.records.files import write_atomically
from verify.records.grouped import grouped
from verify.records.readings import STRENGTH, Key, Reading, Source, as_strong, leading
from verify.records.record import RESULT_STATUSES, Basis, Gate, ResultStatus

FORMAT = 3
FORMATS = (2, FORMAT)  # that are read

Verdict = ResultStatus | Literal[""]
Promise = tuple[float, float | None, float | None, Verdict]  # the four limits of a bound, in the order of PROMISES
PROMISES = ("value", "share", "typical", "verdict")

# Observed maxima differ from seed to seed, more so with few cases; docs/gate.md has the measurements behind these.
HEADROOM = 0.25
FEW, HEADROOM_OF_FEW = 10_000, 2.0
# with fewer cases than MANY, headroom on the part of a maximum that exceeds the last rounding
MANY, HEADROOM_OF_EXCESS = 1_000_000, 1.5
# A bound may be this much looser than a new proposal before it is reported and tightened. An observed maximum also has
# to fall by the headroom: a lucky seed must not pull a bound down. That is too little where a larger maximum was seen
# and accepted: one seed of linear_geglu_float32 gave 0.876 and took an accepted 3.044 to 1.44; another seed gave 1.45.
# An observed maximum below the accepted value therefore needs two seeds.
MARGIN = 0.05
SEEDS_BELOW_ACCEPTED = 2
# Shares and means of independent elements vary by a few standard errors. Elements of a row share a sum, so whole rows
# are misrounded together: four nights of the shipped norms and matrix products differ by a factor of two, and where few
# are misrounded by 3% of all. Errors in a mean are cut at 65,536 ULP, in a root mean square at 256.
DEVIATIONS, FARTHEST, FARTHEST_IN_NOISE = 5.0, 65_536.0, 256.0
HEADROOM_OF_ROWS, SHARE_OF_ROWS = 1.0, 1 / 32

_Text = Annotated[str, Meta(min_length=1)]
_Date = Annotated[str, Meta(pattern="^([0-9]{4}-[0-9]{2}-[0-9]{2}|unknown)$")]
_Error = Annotated[float, Meta(ge=LEAST)]
_Figure = Annotated[float, Meta(ge=0.0)]


@dataclass(frozen=True)
class Evidence:
    """Holds the measurement behind a bound."""

    record: str  # id of the record
    commit: str
    date: str
    source: str  # run, sweep or hunt
    measured: float  # without headroom
    worst: str = ""  # the worst input with its bits, if the record kept it


class Acceptance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Records a loosening and its reason. It is never removed."""

    date: _Date
    old: _Error
    new: _Error
    reason: _Text


@dataclass(frozen=True)
class Bound:
    """Holds a promise: no error of this key is larger than `value` ULP, and no more than a share is misrounded.

    None, and the verdict "", limit nothing.
    """

    key: Key
    value: float
    gate: Gate
    basis: Basis
    reason: str
    evidence: Evidence
    properties: Mapping[str, str]  # source -> hash of the op, the parameters and the cases
    accepted: tuple[Acceptance, ...] = ()
    share: float | None = None
    typical: float | None = None
    verdict: Verdict = ""  # of the results that were measured; a later one must not be worse

    @property
    def promise(self) -> Promise:
        """Returns all limits."""
        return self.value, self.share, self.typical, self.verdict

    def looser(self, than: Bound) -> bool:
        """True if any limit is higher than that of another bound, or gone."""
        pairs = zip(than.promise[:3], self.promise[:3], strict=True)
        higher = any(then is not None and (now is None or now > then) for then, now in pairs)
        # No verdict promises as little as "wrong".
        return higher or (badness(self.verdict or "wrong") > badness(than.verdict or "wrong"))


@dataclass
class Book:
    """Holds all bounds of a folder."""

    folder: Path
    bounds: dict[Key, Bound] = field(default_factory=dict)

    def arches(self, kernel: str) -> list[str]:
        """Returns the architectures for which a kernel has bounds."""
        return sorted({key.arch for key in self.bounds if key.kernel == kernel})


# -- figures --------------------------------------------------------------------------------------------


def headroom_of(reading: Reading) -> float:
    """Returns the share that is added to a maximum.

    It is 0 if the maximum is proven. Otherwise it depends on the number of cases. The last rounding gives up to half a
    unit with every seed; the error before it varies. The gradients of a sweep are proven for dy = 1 alone, but the
    bound holds for every dy, so they get headroom.
    """
    basis = reading.basis
    if reading.counts and not reading.value:  # a wrong integer is no matter of chance
        return 0.0
    if basis.kind != "observed":
        return HEADROOM if reading.source == "sweep" and reading.key.output.startswith("d") else 0.0
    if basis.n >= MANY:
        return HEADROOM
    excess = HEADROOM_OF_EXCESS * (1 - LEAST / max(reading.value, LEAST))
    return HEADROOM_OF_FEW if basis.n < FEW else max(HEADROOM, excess)


def proposal(reading: Reading) -> float:
    """Returns the largest error that a measurement supports: rounded up, with headroom unless it is proven."""
    return rounded_up(max(reading.value, LEAST), headroom=headroom_of(reading))


def supported(found: Sequence[Reading]) -> Promise:
    """Returns the limits that the readings of one key support."""
    shares, means = [], []
    for each in found:
        share, mean = each.share, each.typical
        if headroom_of(each):
            share, mean = by_chance(each, HEADROOM if each.gate == "plain" else HEADROOM_OF_ROWS)
            if share is not None and each.gate != "plain":
                share += SHARE_OF_ROWS
        shares += [] if share is None else [min(1.0, rounded_up(share))]
        means += [] if mean is None else [rounded_up(mean)]
    verdict: Verdict = max((each.verdict for each in found if each.decides), key=badness, default="")
    if not verdict and any(each.verdict == "wrong" for each in found):
        verdict = "wrong"  # so that a reader knows what the bound is of
    return proposal(leading(list(found))), max(shares, default=None), max(means, default=None), verdict


def by_chance(reading: Reading, headroom: float) -> tuple[float | None, float | None]:
    """Returns the share and the typical error that a kernel of the same accuracy may show on other inputs."""
    share, mean, n = reading.share, reading.typical, reading.figures.n
    if share is not None:
        share += headroom * share + _spread(share, 1.0, n)
    if mean is not None and reading.gate == "plain":
        mean += headroom * mean + _spread(mean, min(max(reading.value, LEAST), FARTHEST), n)
    elif mean is not None and reading.gate == "noise":
        most = min(max(reading.value, 1.0), FARTHEST_IN_NOISE)
        mean += headroom * mean + math.sqrt(_spread(mean**2, most**2, reading.figures.weighed))
    elif mean is not None:
        mean = max(mean, LEAST) * (1 + max(headroom, headroom_of(reading)))
    return share, mean


def _spread(mean: float, most: float, n: int) -> float:
    """Returns how much larger the mean of `n` other numbers in [0, most] may be by chance: Bernstein's inequality."""
    return DEVIATIONS * math.sqrt(most * mean / n) + 8 * most / n


def badness(verdict: Verdict) -> int:
    """Returns the sort key of verdicts, the best first."""
    return ("", *RESULT_STATUSES).index(verdict)


def tightened(found: Sequence[Reading], bound: Bound) -> Promise:
    """Returns the limits of a bound, each of them lowered if the readings support that: by the margin and as strongly.

    A better basis tightens without a margin: it replaces an observation by a proof. An observation goes below the value
    that was last accepted only if readings of several seeds prove as much as the bound.
    """
    reading, new = leading(list(found)), supported(found)
    may = as_strong(reading.basis, bound.basis)
    if reading.basis.kind == "observed" and bound.accepted and new[0] < bound.accepted[-1].new:
        seeds = {item.basis.seed for item in found if as_strong(item.basis, bound.basis)} - {None}
        may = may and len(seeds) >= SEEDS_BELOW_ACCEPTED
    better = STRENGTH[reading.basis.kind] > STRENGTH[bound.basis.kind]
    slack = 1.0 if better else 1 + max(MARGIN, headroom_of(reading))

    def lower(now: float | None, then: float | None) -> Any:
        return now if now is not None and (then is None or (may and now * slack < then)) else then

    value, share, mean = (lower(now, then) for now, then in zip(new[:3], bound.promise[:3], strict=True))
    better = not bound.verdict or (may and badness(new[3]) < badness(bound.verdict))
    return value, share, mean, new[3] if better else bound.verdict


# -- names ----------------------------------------------------------------------------------------------

_KEPT = re.compile(r"[A-Za-z0-9_.-]")
WAIVERS = "waivers.toml"  # verify.records.bounds.waivers reads it
_RESERVED = re.compile(r"waivers|(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_LONGEST = 180


def file_name(kernel: str) -> str:
    """Returns the file name of a kernel's bounds. Two kernels never share one, and no name leaves its folder.

    >>> file_name("gelu"), file_name("../gelu")
    ('gelu.toml', '%2E.%2Fgelu.toml')
    """
    try:
        raw = kernel.encode()
    except UnicodeEncodeError:
        raise UsageError(f"a kernel's name is Unicode text; received {kernel!r}") from None
    stem = "".join(chr(byte) if _KEPT.match(chr(byte)) else f"%{byte:02X}" for byte in raw)
    if not stem:
        stem = "%"  # no other name gives this
    elif stem[0] in ".-" or _RESERVED.fullmatch(stem):
        stem = f"%{ord(stem[0]):02X}{stem[1:]}"
    if len(stem) > _LONGEST:  # %- occurs in no other name
        stem = f"{stem[:80]}%-{hashlib.sha256(raw).hexdigest()}"
    return f"{stem}.toml"


# -- reading --------------------------------------------------------------------------------------------


def holds_bounds(path: PurePath) -> bool:
    """True if a file in the folder of an architecture has the bounds of a kernel."""
    return path.suffix == ".toml" and not path.name.startswith(".") and path.name != WAIVERS


def load(folder: str | os.PathLike[str]) -> Book:
    """Reads every bound of every architecture. A folder that does not exist holds none."""
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
    """Reads the bounds of one kernel on one architecture. Raises UsageError if the file contradicts its path."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the bounds {path}: {error.strerror}") from error
    return parse(data, source=str(path), arch=path.parent.name, name=path.name)


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Holds a part of a file. A key that no field has is an error."""


class _Evidence(_Strict, frozen=True):
    """Holds the evidence that all rows of a table share."""

    record: _Text
    commit: _Text
    date: _Date
    source: Source


class _Row(_Strict, frozen=True):
    """Holds the bound of some parts."""

    regimes: Annotated[list[str], Meta(min_length=1)]
    value: _Error
    basis: Literal["observed", "certified", "exhaustive"]
    n: Annotated[int, Meta(ge=1, le=1 << 62)]
    reason: _Text
    measured: _Figure
    seed: int | None = None
    worst: str = ""
    accepted: tuple[Acceptance, ...] = ()
    share: _Figure | None = None
    typical: _Figure | None = None
    verdict: Verdict = ""


class _Table(_Strict, frozen=True):
    """Holds the bounds of one output and dtype with the evidence that they share."""

    output: str
    dtype: str
    gate: Gate
    evidence: _Evidence
    properties: Annotated[dict[Source, Annotated[str, Meta(pattern="^[0-9a-f]{6,64}$")]], Meta(min_length=1)]
    bounds: Annotated[list[_Row], Meta(min_length=1)]


class _Format(msgspec.Struct, frozen=True, kw_only=True):
    format: int


class _File(_Format, frozen=True, forbid_unknown_fields=True):
    arch: Annotated[str, Meta(pattern="^[a-z][a-z0-9_]*$")]
    kernel: str
    result: list[_Table] = []


def parse(data: bytes, *, source: str, arch: str, name: str) -> dict[Key, Bound]:
    """Reads the same from the bytes of a file."""
    values = toml.document(data, source)
    if (format_ := toml.checked(values, source, _Format).format) not in FORMATS:
        raise UsageError(
            f"{source}: format is {format_!r}; this verify reads formats {' and '.join(map(str, FORMATS))}",
            hint="delete the file and write it again: verify bounds propose RUN",
        )
    file = toml.checked(values, source, _File)
    if file.arch != arch:
        raise UsageError(f"{source}: arch is {file.arch!r}, its folder says {arch!r}; bounds of machines never mix")
    if file_name(file.kernel) != name:
        raise UsageError(f"{source}: bounds of the kernel {file.kernel!r} belong in {file_name(file.kernel)}")
    found: dict[Key, Bound] = {}
    for number, table in enumerate(file.result, 1):
        for bound in _bounds(file, table):
            if bound.key in found:
                raise UsageError(f"{source}: result {number} repeats {str(bound.key)!r}; a key has one bound")
            found[bound.key] = bound
    return found


def _bounds(file: _File, table: _Table) -> Iterator[Bound]:
    """Yields the bounds of one output and dtype, one for each regime that a row names."""
    evidence = msgspec.structs.asdict(table.evidence)
    for row in table.bounds:
        bound = Bound(
            Key(file.arch, file.kernel, table.output, table.dtype, ""),
            row.value,
            table.gate,
            Basis(row.basis, row.n, row.seed),
            row.reason,
            Evidence(**evidence, measured=row.measured, worst=row.worst),
            {str(name): value for name, value in table.properties.items()},
            *(row.accepted, row.share, row.typical, row.verdict),
        )
        yield from (_of_regime(bound, regime) for regime in row.regimes)


def _of_regime(bound: Bound, regime: str) -> Bound:
    return dataclasses.replace(bound, key=dataclasses.replace(bound.key, regime=regime))


# -- writing --------------------------------------------------------------------------------------------


def render(arch: str, kernel: str, bounds: Iterable[Bound]) -> str:
    """Returns the text of one file."""
    lines = ["# Errors in ULP that no result may exceed. Written by `verify bounds`, judged by `verify gate`."]
    lines += toml.lines(format=FORMAT, arch=arch, kernel=kernel)
    for (output, dtype, gate, properties, evidence), rows in _tables(bounds).items():
        lines += ["", "[[result]]", *toml.lines(output=output, dtype=dtype, gate=gate)]
        lines += [*toml.lines(properties=dict(properties), evidence=dict(evidence)), "bounds = ["]
        lines += [*(f"  {toml.inline(row)}," for row in rows), "]"]
    return "\n".join(lines) + "\n"


def _tables(bounds: Iterable[Bound]) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """Maps the values that a table shares among its rows to the rows, in the form of the file."""
    tables: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for regimes, bound in agreeing(bounds):
        evidence = dataclasses.asdict(bound.evidence)
        measured, worst = evidence.pop("measured"), evidence.pop("worst")
        row: dict[str, Any] = {"regimes": regimes, **dict(zip(PROMISES, bound.promise, strict=True))}
        row |= {"basis": bound.basis.kind, "n": bound.basis.n, "seed": bound.basis.seed}
        row |= {"reason": bound.reason, "measured": measured, "worst": worst}
        row["accepted"] = [msgspec.structs.asdict(item) for item in bound.accepted]
        row = {name: value for name, value in row.items() if name == "worst" or value not in (None, "", [])}
        shared = tuple(sorted(bound.properties.items())), tuple(evidence.items())
        tables.setdefault((bound.key.output, bound.key.dtype, bound.gate, *shared), []).append(row)
    return tables


def agreeing(bounds: Iterable[Bound]) -> list[tuple[list[str], Bound]]:
    """Groups regimes with equal bounds. Returns their names, and the bound with the largest error."""

    def same(bound: Bound) -> tuple[Any, ...]:
        said = dataclasses.replace(bound.evidence, measured=0.0, worst="")
        key = dataclasses.replace(bound.key, regime="")
        properties = tuple(sorted(bound.properties.items()))
        return key, bound.promise, bound.gate, bound.basis, bound.reason, said, properties, bound.accepted

    groups = grouped(sorted(bounds, key=lambda item: item.key), same).values()
    return [([each.key.regime for each in some], max(some, key=lambda each: each.evidence.measured)) for some in groups]


def save(book: Book, changed: Iterable[Bound]) -> list[Path]:
    """Writes the files where something changed. Every other bound in them stays as it is on disk."""
    groups, written = grouped(changed, lambda bound: (bound.key.arch, bound.key.kernel)), []
    for (arch, kernel), bounds in sorted(groups.items()):
        path = book.folder / arch / file_name(kernel)
        # On a file system that ignores case, two kernels would have one file: load_file then refuses.
        held = load_file(path) if path.exists() else {}
        held.update({bound.key: bound for bound in bounds})
        text = render(arch, kernel, held.values())
        read_back = parse(text.encode(), source=str(path), arch=arch, name=path.name)
        expected = [_of_regime(bound, regime) for regimes, bound in agreeing(held.values()) for regime in regimes]
        if read_back != {bound.key: bound for bound in expected}:
            said = "what would be written does not read back as the same bounds; nothing was written"
            raise UsageError(f"{path}: {said}")
        write_atomically(path, text.encode())
        book.bounds.update(read_back)
        written.append(path)
    return written
