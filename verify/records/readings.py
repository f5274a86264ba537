"""Reads the figures of each output x dtype x regime from a record. No other module extracts figures from a record.

The gate, changes of bounds, comparisons and history all judge `Reading`s. A part of a result has one: each regime, and
each class of inputs. A record may come from anywhere. If it contradicts itself, the reading has a `flaw`, and its
figures are not used.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from verify.backends import BACKENDS
from verify.records.figure import ordered
from verify.records.record import Basis, Figures, Gate, Number, Result, ResultStatus, Run, Worst

Source = Literal["run", "sweep", "hunt"]

WHOLE = "all"  # the regime of results without regimes, and of elements that lie in none
# Separate regimes, which the figures of a result omit: see verify.cases.classes. A kernel promises nothing beyond the
# magnitude that its declaration names.
APART = NONFINITE, BEYOND = ("infinite or NaN input", "beyond the declared magnitude")
UNKNOWN = "unknown"
FEWEST = 16  # fewer elements than this have no verdict on their root mean square
RMS_LIMIT = 3.0  # the limit of that root mean square, for formats of more than 16 bits
STRENGTH = {"observed": 0, "certified": 1, "exhaustive": 2}
AS_THEY_ARE = ("gate", "basis", "source", "bits", "status", "counts")  # fields of a result in a reading
FAILED = ("error", "crashed", "timeout")

_ARCH = re.compile(r"[a-z][a-z0-9_]{1,30}")
_HASH = re.compile(r"[0-9a-f]{6,64}")
_ESCAPED = re.compile(r"[%/\x00-\x1f\x7f]")


@dataclass(frozen=True, order=True)
class Key:
    """Names the object of a bound."""

    arch: str
    kernel: str
    output: str
    dtype: str
    regime: str

    @property
    def part(self) -> tuple[str, str, str]:
        """Returns the part of the kernel's results: output, dtype and regime."""
        return self.output, self.dtype, self.regime

    def __str__(self) -> str:
        """Returns for example `gelu/y/bfloat16/around zero`, as `verify bounds accept` takes it, without the arch."""
        return "/".join(_ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", each) for each in (self.kernel, *self.part))


@dataclass(frozen=True)
class Reading:
    """Holds the figures of one part of a result. `value` is the upper end of the judged maximum, in the gate's unit.

    `share` is the share of misrounded elements, of wrong ones for integers. `typical` is the error of a typical
    element. Classes of inputs have both, and whole results without classes and regimes.
    """

    key: Key
    gate: Gate
    value: float
    figures: Figures
    basis: Basis
    source: Source
    properties: str  # hash of the op, the parameters and the cases; empty if the record has none
    bits: str  # digest of the kernel's outputs; empty if unknown
    worst: Worst | None
    record: str
    commit: str
    created: str
    flaw: str = ""
    status: ResultStatus = "ok"  # verdict on the whole result, by the limit that its kernel declares
    why: str = ""  # the reason of a status other than "ok"
    verdict: ResultStatus = "ok"  # that of this class; of a regime beyond the limit, that of the result
    decides: bool = True  # False: other parts of the result have the verdict
    share: float | None = None
    typical: float | None = None
    counts: bool = False  # True: of integers; `value` is 1 if any is wrong, else 0

    @property
    def finite(self) -> bool:
        """True if the figure is a finite number."""
        return math.isfinite(self.value)


def arch_of(run: Run) -> str:
    """Returns the architecture whose bounds apply, such as `interpreter` or `sm_90`. No bounds exist for `unknown`."""
    known, found = BACKENDS.get(run.backend), run.environment.get("arch")
    found = found if isinstance(found, str) else ""
    # A backend that a package adds need not be installed here.
    arch = known.arch(found) if known else found if found.startswith(f"{run.backend}_") else ""
    return arch if _ARCH.fullmatch(arch) else UNKNOWN


def commit_of(run: Run) -> str:
    """Returns the measured commit, marked if files had changed since. Returns `unknown` if the record has none."""
    commit = run.environment.get("commit")
    if not isinstance(commit, str) or not re.fullmatch(r"[0-9a-f]{7,64}", commit):
        return UNKNOWN
    return commit[:12] + (" with changes" if run.environment.get("dirty") is True else "")


def readings(run: Run) -> Iterator[Reading]:
    """Yields every figure of every judged kernel. Peers are not judged."""
    arch, about = arch_of(run), {"record": run.id, "commit": commit_of(run), "created": run.created}
    judged_ones = [(kernel.name, result) for kernel in run.kernels if not kernel.peer for result in kernel.results]
    for kernel, result in judged_ones:
        own: dict[str, Any] = {name: getattr(result, name) for name in AS_THEY_ARE}
        own["properties"] = result.properties if _HASH.fullmatch(result.properties) else ""
        for part in parts(result):
            figures = part.figures
            value, flaw = float(figures.misrounded > 0) if result.counts else part.value(result.gate), ""
            if value < 0:
                flaw = f"the record contradicts itself: its largest error is {value:g} ULP"
            yield Reading(
                key=Key(arch, kernel, result.output, result.dtype, part.name),
                value=value,
                figures=figures,
                worst=_worst(result, part),
                flaw=flaw if figures.n and result.basis.n else "no element was measured",
                why=result.reason,
                verdict=part.verdict,
                decides=part.decides,
                share=figures.misrounded / figures.n if part.counted and figures.n else None,
                typical=typical(figures, result.gate) if part.counted and not result.counts else None,
                **{**about, **own},
            )


@dataclass(frozen=True)
class Part:
    """Holds some elements of a result: those of a regime, of a class of inputs, or all."""

    name: str
    figures: Figures
    worst: Worst | None
    verdict: ResultStatus
    decides: bool = False
    counted: bool = False  # True: shares and means are bounded; the inputs are chosen without regard to their errors

    def value(self, gate: Gate) -> float:
        """Returns the judged maximum. Infinite if an answer is wrong at an infinite or NaN input."""
        wrong = self.name == NONFINITE and self.figures.nonfinite
        return math.inf if wrong else judged(self.figures, gate)


def inputs_of(of_class: str) -> str:
    """Returns the name of the part of a result that has the inputs of one class."""
    return f"{of_class} inputs"


def parts(result: Result) -> list[Part]:
    """Returns the regimes, the whole result if its maximum exceeds theirs, so that no error is lost, and the classes.

    The classes decide. If the verdict is about none of them, as at infinite inputs, each has that of the result.
    """
    blamed, chosen = any(each.reason for each in result.classes), result.source == "hunt"  # chosen for large errors
    found = []
    for each in result.regimes:
        if each.name != BEYOND:
            within = judged(each.figures, result.gate) <= result.limit
            found.append(Part(each.name, each.figures, each.worst, "ok" if within else result.status))
    whole = judged(result.figures, result.gate)
    known = [judged(part.figures, result.gate) for part in found if part.name != NONFINITE]
    if not any(ordered(whole) <= ordered(value) for value in known):
        alone = not result.classes
        found.append(Part(WHOLE, result.figures, None, result.status, alone, alone and not chosen))
    for of in result.classes:
        unproven = of.limit is not None and is_open(of.figures, result.gate, of.limit)
        own: ResultStatus = "ok" if not of.reason else "undecided" if unproven else "wrong"
        verdict = own if blamed else result.status
        found.append(Part(inputs_of(of.name), of.figures, of.worst, verdict, True, not chosen))
    return found


def is_open(figures: Figures, gate: Gate, limit: float) -> bool:
    """True if nothing proves that elements keep a limit, or that one is beyond it."""
    upper, (proven, _) = judged(figures, gate), ends(figures, gate)
    if upper <= limit:
        return figures.open > 0
    return not math.isnan(upper) and proven is not None and float(proven) <= limit


def typical(figures: Figures, gate: Gate) -> float | None:
    """Returns the error of typical elements: the mean in ULP, or in noise the root mean square.

    A scaled error has no mean in the record: it is the quantile that one of 1,000 elements exceeds. None: not known.
    """
    if gate == "noise":
        return figures.rms if figures.weighed >= FEWEST else None
    found = figures.mean if gate == "plain" else figures.scaled_p999
    return None if found is None else float(found)


def ends(figures: Figures, gate: Gate) -> tuple[Number | None, Number | None]:
    """Returns both ends of the maximum that decides a verdict: what is proven, and what cannot be excluded."""
    # An error in ULP may be smaller less noise.
    plain = gate == "plain" and figures.scaled_upper is None
    return (figures.max_ulp, figures.max_upper) if plain else (figures.scaled_max, figures.scaled_upper)


def judged(figures: Figures, gate: Gate) -> float:
    """Returns the figure that is compared with a bound: the upper end of the maximum. NaN if either end is NaN."""
    return max((math.nan if value is None else float(value) for value in ends(figures, gate)), key=ordered)


def _worst(result: Result, part: Part) -> Worst | None:
    """Returns the worst element of a part; of the part `all` that of the whole result."""
    return next(iter(result.worst), None) if part.name == WHOLE else part.worst


def worst_in(result: Result, name: str) -> Worst | None:
    """Returns the worst element of one part, or None. The part `all` exists if no regime has the maximum."""
    return next((_worst(result, part) for part in parts(result) if part.name == name), None)


def decimal(text: str) -> float:
    """Returns the number in `-4.34 (0xc08b)` or `-4.34`. Other text gives 0, which fits no regime in particular."""
    try:
        return float(text.partition(" ")[0])
    except ValueError:
        return 0.0


def as_strong(basis: Basis, as_: Basis) -> bool:
    """True if a maximum on `basis` proves as much as one on `as_`. Numbers of inputs count only if observed."""
    own, other = STRENGTH[basis.kind], STRENGTH[as_.kind]
    return own > other or (own == other and (basis.kind != "observed" or basis.n >= as_.n))


def leading(found: list[Reading]) -> Reading:
    """Returns the reading that decides: the largest error. Among equals it takes the strongest basis."""
    return max(found, key=lambda item: (ordered(item.value), STRENGTH[item.basis.kind], item.basis.n))


def date_of(reading: Reading) -> str:
    """Returns the day of the measurement. Returns `unknown` if the record has none."""
    return reading.created[:10] if re.match(r"\d{4}-\d{2}-\d{2}T", reading.created, re.ASCII) else UNKNOWN


def inputs(worst: Worst | None) -> str:
    """Returns a text such as `x = -4.34 (0xc08b)`. Empty if the record kept no such element."""
    return "" if worst is None else ", ".join(f"{name} = {value}" for name, value in worst.inputs.items())
