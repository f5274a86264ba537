"""Judges figures of records against committed bounds. It is pure: it reads no file, writes none and measures nothing.

Every key that a record measured or a bound names gets one of twelve statuses. A key that cannot be judged is never
skipped: it gets a status of its own, and that status fails.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Literal, NamedTuple, get_args

from verify.errors import INCOMPLETE as UNDECIDED
from verify.errors import PASS, WRONG, UsageError
from verify.records.bounds.committed import PROMISES, Book, Bound, badness, tightened
from verify.records.grouped import grouped
from verify.records.readings import FAILED, UNKNOWN, Key, Reading, Source, arch_of, leading, readings
from verify.records.record import UNPROVEN, KernelRun, ResultStatus, Run

# The most serious first; if a key has several readings, the worst decides.
Breach = Literal["crashed", "nonfinite", "breached", "gone"]
Unknown = Literal["incomparable", "unused", "undecided", "vacuous", "new"]
Status = Literal[Breach, Unknown, "waived", "improved", "ok"]
SEVERITY: tuple[Status, ...] = get_args(Status)
BREACH: frozenset[Status] = frozenset(get_args(Breach))
INCOMPLETE: frozenset[Status] = frozenset(get_args(Unknown))

# the source that a stage of a night measures
MEASURES = {"accuracy": "run", "sweep": "sweep", "hunt": "hunt"}

MEANING: dict[Status, str] = {
    "ok": "within its bound",
    "improved": "within its bound, which is looser than it has to be",
    "waived": "wrong, and excused until a date",
    "breached": "beyond its bound",
    "gone": "has a bound, and its kernel no longer returns it",
    "new": "measured, and no bound says what to expect",
    "vacuous": "measured, and trivial answers would keep the limit of the kernel",
    "undecided": "measured, and not proven within the limit of the kernel",
    "unused": "has a bound and was not measured",
    "incomparable": "measured, but not what the bound is about",
    "nonfinite": "NaN or infinity where the exact answer is a number, or the reverse",
    "crashed": "the kernel raised, crashed or ran out of time",
}


@dataclass(frozen=True)
class Waiver:
    """Excuses findings. Its key is one that the gate prints, one with `*`, or a kernel that does not run."""

    key: str
    reason: str
    expires: date  # the last day (UTC) on which the waiver is valid
    arch: str  # empty: of every machine
    place: str  # the file, and which of its waivers


class Excess(NamedTuple):
    """Holds one limit of a bound that a reading exceeds, or the better verdict of a base record."""

    name: Literal["value", "share", "typical", "verdict"]
    reading: Reading
    limit: float | ResultStatus

    @property
    def measured(self) -> float | ResultStatus:
        """Returns the figure of the reading that is limited."""
        found: float | ResultStatus = getattr(self.reading, self.name)
        return found


@dataclass(frozen=True)
class Row:
    """Holds the verdict on one key. If a kernel failed and has no bounds, output, dtype and regime are empty."""

    key: Key
    status: Status
    reason: str
    bound: Bound | None = None
    readings: tuple[Reading, ...] = ()
    waiver: Waiver | None = None  # of a row that is not "waived": a waiver that has ended
    beyond: tuple[Excess, ...] = ()  # of a breach

    @property
    def leading(self) -> Reading | None:
        """Returns the reading that decides: the one with the largest error."""
        return leading(list(self.readings)) if self.readings else None


@dataclass(frozen=True)
class Verdict:
    """Holds every row, and other facts of the records that a reader should know."""

    rows: tuple[Row, ...]
    missing: tuple[str, ...] = ()  # parts of the runs that did not happen
    notes: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()  # waivers that excuse nothing
    records: tuple[str, ...] = ()  # ids
    targets: Mapping[str, str] = field(default_factory=dict)  # of the judged kernels, by name

    def count(self, status: Status) -> int:
        """Returns the number of keys with a status."""
        return sum(row.status == status for row in self.rows)

    @property
    def exit_code(self) -> int:
        """Returns the exit code of a command with this verdict."""
        found = {row.status for row in self.rows}
        if found & BREACH:
            return WRONG
        return UNDECIDED if found & INCOMPLETE or self.missing or not found else PASS

    @property
    def word(self) -> Literal["pass", "fail", "incomplete"]:
        """Returns the exit code as a word."""
        return {PASS: "pass", WRONG: "fail", UNDECIDED: "incomplete"}[self.exit_code]  # type: ignore[return-value]


def judge(runs: Sequence[Run], book: Book, *, kernels: Sequence[str] = (), base: Sequence[Run] = ()) -> Verdict:
    """Returns the verdict on records. With `kernels`, it ignores the measurements and bounds of other kernels.

    A verdict that is worse than the one in the `base` is a breach, as one that is worse than that of its bound.
    """
    _check_names(runs)
    chosen = _selection(runs, book, kernels)
    of_chosen = (each for run in runs for each in readings(run) if chosen(each.key.kernel))
    found = grouped(of_chosen, lambda each: each.key)
    kernels_of = [(arch_of(run), each) for run in runs for each in run.kernels if not each.peer and chosen(each.name)]
    # Of several runs of one kernel that failed, the first counts.
    failures = {(arch, each.name): each for arch, each in reversed(kernels_of) if each.status in FAILED}
    before = {(each.key, each.source): each.verdict for run in base for each in readings(run)}
    rows = [_row(key, items, book, before) for key, items in found.items()]
    expected = {key for key in book.bounds if key.arch in {arch_of(run) for run in runs} and chosen(key.kernel)}
    absent = [book.bounds[key] for key in expected - set(found)]
    stages, asked = list(dict.fromkeys(stage.name for run in runs for stage in run.stages)), absent
    if all(run.stages for run in runs):  # a run without stages is asked for all bounds
        asked = [bound for bound in absent if not {MEASURES.get(name) for name in stages}.isdisjoint(bound.properties)]
    rows += [_absent(bound, failures, runs) for bound in asked]
    known = {(row.key.arch, row.key.kernel) for row in rows if row.status == "crashed"}
    rows += [
        Row(Key(arch, kernel.name, "", "", ""), "crashed", _why(kernel))
        for (arch, _), kernel in failures.items()
        if (arch, kernel.name) not in known
    ]
    rows.sort(key=lambda row: (SEVERITY.index(row.status), row.key))
    missing, notes = _missing(runs, set(kernels))
    if (count := len(absent) - len(asked)) > 0:
        night = f"the night was asked for {' and '.join(stages)}, and other stages measure them"
        notes.append(f"{count:,} bounds are not asked for: {night}")
    return Verdict(
        tuple(rows),
        missing=tuple(missing),
        notes=(*_notes(runs, chosen), *notes),
        records=tuple(dict.fromkeys(run.id for run in runs)),
        targets={kernel.name: kernel.target for run in runs for kernel in run.kernels if not kernel.peer},
    )


def judged_kernels(runs: Iterable[Run]) -> list[str]:
    """Returns the names of the judged kernels in records. Peers are not judged."""
    return sorted({kernel.name for run in runs for kernel in run.kernels if not kernel.peer})


def _selection(runs: Sequence[Run], book: Book, kernels: Sequence[str]) -> Callable[[str], bool]:
    """Returns a test for the requested kernels. Raises UsageError for an unknown name, which would pass."""
    known = {kernel.name for run in runs for kernel in run.kernels} | {key.kernel for key in book.bounds}
    if unknown := next((name for name in kernels if name not in known), None):
        names = ", ".join(sorted(known)) or "none"
        raise UsageError(f"no record and no bound has a kernel {unknown!r}; known: {names}")
    return lambda name: not kernels or name in kernels


def _check_names(runs: Iterable[Run]) -> None:
    """Raises UsageError if two kernels of a run have one name, because bounds go by the name."""
    for run in runs:
        targets: dict[str, str] = {}
        for kernel in run.kernels:
            if not kernel.peer and targets.setdefault(kernel.name, kernel.target) != kernel.target:
                both = f"{targets[kernel.name]} and {kernel.target}"
                said = f"record {run.id}: two kernels are named {kernel.name!r}: {both}; bounds go by name"
                raise UsageError(said, hint="rename one: @verify.kernel(name=...)")


def _row(key: Key, found: list[Reading], book: Book, before: Mapping[tuple[Key, Source], ResultStatus]) -> Row:
    bound = book.bounds.get(key)
    beyond = [exceeded(reading, bound, before.get((key, reading.source))) for reading in found]
    judged = [_judge(reading, bound, book, bool(more)) for reading, more in zip(found, beyond, strict=True)]
    status, reason = min(judged, key=lambda pair: SEVERITY.index(pair[0]))
    if status == "ok" and bound is not None:
        pairs = zip(bound.promise, tightened(found, bound), strict=True)
        if any(old not in (None, "", new) for old, new in pairs):  # what a bound of format 2 lacks makes it no looser
            status, reason = "improved", "`verify bounds propose` tightens the bound"
    return Row(key, status, reason, bound, tuple(found), beyond=tuple(each for more in beyond for each in more))


def _judge(reading: Reading, bound: Bound | None, book: Book, beyond: bool) -> tuple[Status, str]:
    """Judges one part against its bound. `beyond`: it exceeds that, or its verdict is worse than in a base record."""
    unfit, why = fitness(reading)
    if unfit not in ("ok", *UNPROVEN):
        return unfit, why
    status, reason = _against(reading, bound, book, beyond)
    return (status, reason) if unfit == "ok" or status in ("breached", "incomparable") else (unfit, why)


def _against(reading: Reading, bound: Bound | None, book: Book, beyond: bool) -> tuple[Status, str]:
    """Compares a part with its bound. The verdict on its result plays no part."""
    if bound is None:
        if beyond:
            return "breached", "its verdict is worse than in the base"
        others = [arch for arch in book.arches(reading.key.kernel) if arch != reading.key.arch]
        if others and reading.key.arch not in book.arches(reading.key.kernel):
            return "incomparable", f"bounds exist for {', '.join(others)} only, and say nothing about other machines"
        return "new", "no bound yet"
    if reading.gate != bound.gate:
        return "incomparable", f"the {reading.gate} error was judged, the bound is of the {bound.gate} one"
    known = bound.properties.get(reading.source)
    if known is None and (of := [source for source, hash_ in bound.properties.items() if hash_ == reading.properties]):
        return "incomparable", f"property {reading.properties} is that of a {of[0]}; the record says {reading.source}"
    if known is not None and known != reading.properties:
        return "incomparable", f"something else was measured: property {reading.properties}, the bound's is {known}"
    if beyond:
        return "breached", "beyond its bound"
    if known is None:  # the bound cannot show that its cases are the same
        named = " and a ".join(sorted(bound.properties))
        return "incomparable", f"the bound has the property of a {named}, and none of a {reading.source}"
    return "ok", ""


def exceeded(reading: Reading, bound: Bound | None, before: ResultStatus | None = None) -> tuple[Excess, ...]:
    """Returns the limits of a bound that a reading exceeds. `before` is the verdict in a base record."""
    found = []
    figures = (reading.value, reading.share, reading.typical)
    for name, figure, limit in zip(PROMISES, figures, () if bound is None else bound.promise, strict=False):
        # not (x <= limit): a NaN must fail
        if figure is not None and limit is not None and not figure <= limit:  # type: ignore[operator]
            found.append(Excess(name, reading, limit))  # type: ignore[arg-type]
    verdicts = [each for each in (before, bound and bound.verdict) if each]
    if verdicts and reading.decides and badness(reading.verdict) > badness(best := min(verdicts, key=badness)):
        found.append(Excess("verdict", reading, best))
    return tuple(found)


def fitness(reading: Reading) -> tuple[Status, str]:
    """Returns "ok" if a figure can be judged, else a status and a reason. NaN is wrong beside any bound."""
    if not reading.finite:
        count, n = reading.figures.nonfinite, reading.figures.n
        return "nonfinite", f"NaN or infinity on one side only, at {count:,} of {n:,} elements"
    if reading.flaw:
        return "incomparable", reading.flaw
    if reading.key.arch == UNKNOWN:
        return "incomparable", "the record does not say on which architecture it was measured"
    if not reading.properties:
        return "incomparable", "the record has no property hash, so it is not known what was measured; measure again"
    if reading.status == "vacuous" or reading.status == "undecided":
        return reading.status, reading.why
    return "ok", ""


def _absent(bound: Bound, failures: dict[tuple[str, str], KernelRun], runs: Sequence[Run]) -> Row:
    """Returns the row of a bound without a measurement, with the reason: its kernel failed, or another one."""
    arch, name = bound.key.arch, bound.key.kernel
    if failed := failures.get((arch, name)):
        return Row(bound.key, "crashed", _why(failed), bound)
    there = [kernel for run in runs if arch_of(run) == arch for kernel in run.kernels if kernel.name == name]

    def lost(kernel: KernelRun) -> bool:  # it gave other results of the dtype to the same command, and not this one
        place = bound.key.dtype, bound.evidence.source
        outputs = {each.output for each in kernel.results if (each.dtype, each.source) == place}
        return bool(outputs) and " (" not in bound.key.output and bound.key.output not in outputs

    if not there:
        reason = "the records do not have this kernel"
    elif all(kernel.peer for kernel in there):
        reason = "the kernel is declared a peer, and peers are not judged"
    elif skipped := next((kernel for kernel in there if kernel.status in ("interrupted", "skipped")), None):
        reason = f"the kernel was {skipped.status}: {skipped.message}"
    elif any(lost(kernel) for kernel in there):
        return Row(bound.key, "gone", f"the kernel returns its other results, and no {bound.key.output}", bound)
    else:
        reason = "the kernel was measured without it"
    return Row(bound.key, "unused", reason, bound)


def _why(kernel: KernelRun) -> str:
    word = {"error": "raised an error", "crashed": "crashed", "timeout": "timed out"}[kernel.status]
    return f"{word}: {kernel.message}" if kernel.message else word


def _missing(runs: Iterable[Run], wanted: set[str]) -> tuple[list[str], list[str]]:
    """Returns the missing parts of the wanted kernels, or of all if `wanted` is empty, and the missing parts of the
    others.

    A gap without a target counts for every kernel. A kernel that failed has rows instead of gaps.
    """
    found: tuple[list[str], list[str]] = ([], [])
    for run in runs:
        failed = {kernel.target for kernel in run.kernels if kernel.status in FAILED}
        own = {"", *(kernel.target for kernel in run.kernels if kernel.name in wanted)}
        for gap in run.incomplete:
            if gap.target not in failed:
                found[bool(wanted) and gap.target not in own].append(gap.text)
    return found


def _notes(runs: Iterable[Run], chosen: Callable[[str], bool]) -> Iterable[str]:
    """Yields facts that the gate does not judge and a reader wants to know."""
    for run in runs:
        for kernel in run.kernels:
            if kernel.peer or not chosen(kernel.name):
                continue
            if broken := [law for law in kernel.laws if law.status == "broken"]:
                names = ", ".join(dict.fromkeys(law.law for law in broken))
                yield f"{kernel.name} breaks laws, which `verify run` judges and bounds do not: {names}"
