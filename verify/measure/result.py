"""Turns the tallies of one result into its entry in the record: figures, regimes, the verdict and its reason."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from torch import Tensor

from verify.cases import Case
from verify.cases.case import fingerprint
from verify.cases.classes import deciding_operand
from verify.cases.plan import Group
from verify.declare.declaration import Kernel
from verify.measure.curve import excess, recorded
from verify.measure.digest import Digest
from verify.measure.element import by_accuracy
from verify.measure.findings import BASELINE, KERNEL, CaseFindings, Findings, PartName
from verify.measure.tally import BIAS_LIMIT, Tally, beyond, rms_limit
from verify.measure.trivial import EMPTY, rungs
from verify.ops.geometry import Geometry
from verify.ops.op import Regime
from verify.records.figure import UNIT, shown, signed
from verify.records.readings import APART, FEWEST, NONFINITE, is_open, judged
from verify.records.record import (
    CLASSES,
    EXTREME,
    INTEGERS,
    ORDINARY,
    Basis,
    ClassFigures,
    Figures,
    RegimeFigures,
    Result,
    ResultStatus,
    number,
    value_of,
)
from verify.truth.formats import named

_CHANCE = 0.01  # of a statement that holds for all wrong cases, if being wrong had nothing to do with it
_MOST, _FEW = 2, 2  # statements; wrong cases, of which one is described
_STEPS = (16, 32, 64, 128)

Tried = tuple[Case, Mapping[str, int]]  # a case with its sizes by name
_TELL_SECONDS = 1.0  # between two verdicts in the line of progress
RARE = 1_000  # a verdict that rests on fewer than one element in so many says so
KEEP_RIGHT = 3  # worst elements in the record of a result within its limit, and of a peer's result
RANDOMLY = 1.5  # times the limits of the root mean square for results that are rounded at random
_UNBOUNDED = Regime("", math.nan, math.nan)


@dataclass(frozen=True)
class LimitCheck:
    """Holds the verdict on a result by its limits. `reason` is "" if the result keeps them."""

    reason: str
    only_special: bool  # True: only wrong at infinite or NaN inputs
    classes: Mapping[str, ClassFigures]  # without PyTorch's figures and the worst elements
    status: ResultStatus = "ok"
    trivial: str = ""  # what the limit does not see on ordinary inputs, or why the declaration accepts a vacuous result


def finite(parts: Mapping[PartName, Tally], of_class: str | None = None) -> Tally:
    """Merges the tallies of all parts, or of one class, without leaders.

    Infinite and NaN inputs and inputs beyond the domain are excluded.
    """
    merged = Tally()
    for (regime, its_class), item in parts.items():
        if regime not in APART and of_class in (None, its_class):
            merged = merged.merge(item.without_places())
    return merged


def check_limit(
    kernel: Kernel,
    dtype: str,
    result: str,
    parts: Mapping[PartName, Tally],
    trivial: Mapping[str, Tally] | None = None,
    theirs: Mapping[PartName, Tally] | None = None,
    among: int = 0,
) -> LimitCheck:
    """Returns the verdict on the tallies of one result by the kernel's limits. Ordinary inputs come first.

    `trivial` has the tallies of trivial answers on ordinary inputs, by name; `theirs` those of PyTorch's result, whose
    bias excuses one as large. The judged elements have the largest errors `among` so many.
    """
    limits, trivial = _Limits(kernel, dtype, result), trivial or {}
    classes: dict[str, ClassFigures] = {}
    findings: list[tuple[ResultStatus, str, bool]] = []
    for name in CLASSES:
        counted, limit = finite(parts, name), kernel.limit_of(dtype, name, result, among)
        if not counted.n:
            continue
        status, reason = limits.verdict(counted, limit, name, finite(theirs or {}, name))
        classes[name] = ClassFigures(name, counted.figures(), limit, reason=reason)
        if reason and limit is not None:
            findings.append((status, reason, False))
    if broken := limits.at_special(parts.get((NONFINITE, EXTREME), Tally())):
        findings.append(("wrong", broken, True))
    if not any(part.n for part in parts.values()):
        findings.append(("undecided", "nothing was judged", False))
    vacuous = limits.vacuous(finite(parts, ORDINARY), trivial)
    reason = kernel.vacuous.get(result, "")
    accepted = f"its limit is vacuous, which the declaration accepts: {reason}" if reason else ""
    if vacuous:  # this reason says more than that the result is undecided
        findings = [each for each in findings if each[0] == "wrong"]
        findings += [] if accepted else [("vacuous", vacuous, False)]
    findings.sort(key=lambda each: each[0] != "wrong")  # stable: within a status the classes keep their order
    status, reason, special_only = findings[0] if findings else ("ok", "", False)
    return LimitCheck(reason, special_only, classes, status, accepted if vacuous else limits.unseen(trivial))


class _Limits:
    """Holds a kernel's promise about one result, and compares tallies with it."""

    def __init__(self, kernel: Kernel, dtype: str, result: str) -> None:
        self.kernel, self.dtype, self.result = kernel, dtype, result
        self.gate = kernel.op.gate_of(result)
        self.unit = UNIT[self.gate]
        self.fmt = named(kernel.result_dtype(dtype, result) or dtype)
        self.integers, at_random = result in kernel.op.integers, result in kernel.stochastic
        # stochastic rounding has the variance ulp^2 / 6, to nearest it is ulp^2 / 12
        self.rms = rms_limit(self.fmt.name) * (RANDOMLY if at_random else 1.0)
        self.rms = 1.0 if result in kernel.relative else self.rms
        # of results of up to 16 bits, which are rounded to nearest
        self.has_bias = not (self.fmt.bits > 16 or at_random or self.integers)

    def verdict(
        self, counted: Tally, limit: float | None, inputs: str, theirs: Tally | None = None
    ) -> tuple[ResultStatus, str]:
        """Returns the verdict on the elements with one class of inputs, and the reason."""
        figures, bias, on = counted.figures(), counted.bias, f"on {inputs} inputs"
        if limit is None:  # a fact for the report: no promise gives no verdict
            return "ok", self._worse(counted, inputs) if counted.worse else ""
        if counted.rows:
            promise = self.kernel.relative[self.result].words
            return "wrong", f"{counted.rows:,} of {figures.n:,} elements {on} lie in rows that are not {promise}"
        if not judged(figures, self.gate) <= limit:  # a NaN must fail
            status, reason = self._over(figures, limit, inputs)
            in_ulp = self.gate == "plain" or counted.scaled is None
            few = beyond(counted.counts if in_ulp else counted.scaled_counts, limit)
            if 0 < RARE * few <= figures.n and not figures.nonfinite:  # that reason has its number
                reason += f"; in {f'at most {few:,}' if few > 1 else '1'} of {figures.n:,} elements"
        elif figures.open:
            status, reason = "undecided", f"nothing is known of {figures.open:,} of {figures.n:,} elements {on}"
        elif self.gate == "noise" and figures.weighed >= FEWEST and not (figures.rms or 0.0) <= self.rms:
            size = f"{shown(figures.rms or 0.0)} times what noise and rounding explain"
            status, reason = "wrong", f"{size}, root mean square {on}, the limit is {self.rms:g}"
        elif not bias.sure <= (most := self._bias_limit(limit, theirs or Tally())):
            side = "away from" if bias.mean > 0 else "toward"
            size = f"{signed(bias.mean)} +- {shown(bias.error)} ULP on average, the limit is {most:.3g}"
            status, reason = "wrong", f"{bias.count:,} distinct {inputs} inputs are rounded {side} zero: {size}"
        else:
            return "ok", ""
        if status == "wrong" and self.integers:
            reason = f"{figures.misrounded:,} of {figures.n:,} integers are wrong {on}"
        return status, reason

    def _over(self, figures: Figures, limit: float, inputs: str) -> tuple[ResultStatus, str]:
        """Returns the verdict on a maximum beyond the limit: undecided, if it is not proven beyond it."""
        upper, undecided = judged(figures, self.gate), is_open(figures, self.gate, limit)
        of = f"{figures.nonfinite:,} of {figures.n:,} {inputs} inputs"
        if math.isnan(upper):
            reason = f"NaN at {of} whose exact answer is a number"
        elif math.isinf(upper) and figures.nonfinite:
            reason = f"infinite or unbounded error at {of}"
        elif undecided:
            size = f"up to {shown(upper)} cannot be excluded"
            reason = f"not proven within {limit:g}{self.unit} on {inputs} inputs: {size}"
        else:
            reason = f"{shown(upper)}{self.unit} on {inputs} inputs, the limit is {limit:g}"
        return "undecided" if undecided else "wrong", reason

    def _bias_limit(self, limit: float, theirs: Tally) -> float:
        """Returns the limit of the bias: as declared, else the default or PyTorch's own bias.

        Where a declaration allows errors of several ULP, they may all lie on one side.
        """
        declared = self.kernel.max_bias.get(self.result, self.kernel.max_bias.get(""))
        ulps = max(limit, 1.0) if self.gate == "plain" else 1.0
        default = max(BIAS_LIMIT * ulps, theirs.bias.at_most) if self.has_bias else math.inf
        return default if declared is None else declared

    def at_special(self, counted: Tally) -> str:
        """Returns why results at infinite and NaN inputs break the limit; "" if they keep it."""
        limit, figures = self.kernel.limit_of(self.dtype, EXTREME, self.result), counted.figures()
        if limit is None:
            return self._worse(counted, "infinite or NaN") if counted.worse else ""
        if count := figures.nonfinite:
            return f"wrong at {count:,} infinite or NaN input{'' if count == 1 else 's'}, right at all others"
        if figures.n and not (upper := judged(figures, self.gate)) <= limit:
            return f"{shown(upper)}{self.unit} at an infinite input, the limit is {limit:g}"
        return ""

    @staticmethod
    def _worse(counted: Tally, inputs: str) -> str:
        some = f"{counted.worse:,} of {counted.n:,} {inputs} inputs"
        return f"worse than PyTorch at {some}: beyond the limit where PyTorch is within"

    def vacuous(self, own: Tally, trivial: Mapping[str, Tally]) -> str:
        """Returns why the limit says nothing about a result; "" if it says something."""
        if own.n and 2 * own.open > own.n:
            return f"nothing is known of {own.open:,} of {own.n:,} elements on ordinary inputs"
        for name, each in trivial.items():
            if name in EMPTY and self._admits(each) and not _is_right(each):
                limit = f"{self.kernel.limit(self.dtype, self.result):g}{self.unit}"
                return f"{name} would pass: the limit of {limit} says nothing on ordinary inputs"
        return ""

    def _admits(self, answer: Tally) -> bool:
        """True if a trivial answer would pass on ordinary inputs."""
        return self.verdict(answer, self.kernel.limit(self.dtype, self.result), ORDINARY)[0] != "wrong"

    def unseen(self, trivial: Mapping[str, Tally]) -> str:
        """Returns which trivial answer is right, or which would pass: copies of an operand, errors of some size."""
        most = max((each.n for each in trivial.values()), default=0)
        whole = {name: each for name, each in trivial.items() if each.n == most}
        for name in (name for name, each in whole.items() if _is_right(each)):
            return f"on ordinary inputs {name} {'is' if name.startswith('a ') else 'are'} right"
        passing, steps = [name for name, each in whole.items() if self._admits(each)], rungs(self.fmt)
        words = [f"{name} would pass" for name in passing if name not in steps]
        seen = [share for name, share in steps.items() if name not in passing] + [0.5]  # halves do not pass
        if len(seen) <= len(steps):
            words.append(f"errors below {seen[0]:.0%} are not seen")
        return f"on ordinary inputs {', and '.join(words)}" if words else ""


def _is_right(answer: Tally) -> bool:
    """True if a trivial answer is the correctly rounded truth at every element."""
    return not answer.misrounded and not answer.nan and value_of(answer.plain.seen) <= 0.5


def result_of(
    kernel: Kernel,
    dtype: str,
    result: str,
    findings: Findings,
    verdict: LimitCheck,
    basis: Basis,
    peer: tuple[str, Findings] | None,
    **more: Any,
) -> Result:
    """Returns the entry of one result, beside that of PyTorch (`peer`, with its name).

    `more` has other fields of the entry, such as its curve.
    """
    gate, own = kernel.op.gate_of(result), not kernel.peer
    baseline_name, beside = peer or ("", Findings())

    def figures_of(tally: Tally | None) -> Figures | None:
        return tally.figures() if tally is not None and tally.n else None

    theirs, operand, regimes = beside.regimes, deciding_operand(kernel.op), []
    for name, item in findings.regimes.items():
        region = findings.bounds.get(name, _UNBOUNDED)
        low, high = (end if math.isfinite(end) else None for end in (region.low, region.high))
        worst = findings.worst_of(regime=name) if own else None
        regimes.append(RegimeFigures(name, low, high, item.figures(), figures_of(theirs.get(name)), operand, worst))
    classes = []
    for name, check in verdict.classes.items():
        baseline, worst = figures_of(finite(beside.parts, name)), findings.worst_of(of_class=name) if own else None
        classes.append(msgspec.structs.replace(check, baseline=baseline, worst=worst))
    # the inputs that the reason names come first
    lists = [findings.special, findings.ordinary] if verdict.only_special else [findings.ordinary, findings.special]
    counted = finite(findings.parts)
    entry: dict[str, Any] = {
        "output": result,
        "baseline_worst": beside.ordinary[:1],
        "worst": [*lists[0], *lists[1]][: None if verdict.reason and own else KEEP_RIGHT],
        "reason": f"{findings.mistake}. {verdict.reason}" if verdict.reason and findings.mistake else verdict.reason,
        "where": where(kernel.op.geometry, findings.cases, findings.wrong) if verdict.status == "wrong" and own else "",
        "format": INTEGERS if result in kernel.op.integers else "" if findings.format == dtype else findings.format,
    }
    return Result(
        dtype=dtype,
        basis=basis,
        gate=gate,
        limit=kernel.limit(dtype, result, findings.whole),
        ulp_limit=kernel.ulp_limit(dtype, result) if gate == "noise" else None,
        trivial=verdict.trivial,
        status=verdict.status,
        figures=counted.figures(),
        regimes=regimes,
        histogram=counted.histogram(),
        escalated=findings.escalated,
        certificate="; ".join(findings.certificates),
        baseline=finite(beside.parts).figures() if peer else None,
        baseline_name=baseline_name,
        classes=classes,
        **entry | more,
    )


class GroupFindings:
    """Holds the findings about a group of cases in one dtype, by source, then by result. Makes its entries of them."""

    def __init__(self, kernel: Kernel, dtype: str, group: Group) -> None:
        self.kernel, self.dtype, self.of = kernel, dtype, group
        self.found: dict[str, dict[str, Findings]] = {KERNEL: {}, BASELINE: {}}
        self.open = 0  # number of questions without an answer
        self.left = 0  # number of cases without an outcome: no time or no memory was left for them
        self.asked = False  # True: every case has been called
        self._digests: dict[tuple[str, str], Digest] = {}  # of all results, by source and result
        self._bits = True  # False: they lack results
        self._so_far = (-math.inf, "")  # when it was computed, and the words

    def add(self, given: Mapping[str, Mapping[str, Tensor]], findings: CaseFindings) -> None:
        """Adds the findings about one case, whose results are `given`. Without them, the digest remains unknown."""
        for by, of_results in findings.items():
            into = self.found.setdefault(by, {})
            for name, item in of_results.items():
                into[name] = into.get(name, Findings()).merge(item)
                digest = self._digests.setdefault((by, name), Digest(named(item.format)))
                self._bits = self._bits and by in given
                if item.digest:
                    digest.add_digest(item.digest)
                elif by in given:
                    digest.add(given[by][name])

    def proven_wrong(self) -> str:
        """Returns why a result is wrong on ordinary inputs, by the cases judged so far; "" if none is."""
        for name, each in self.found[KERNEL].items():
            theirs = self.found[BASELINE].get(name, Findings()).parts
            ordinary = check_limit(self.kernel, self.dtype, name, each.parts, None, theirs).classes.get(ORDINARY)
            if ordinary is not None and ordinary.reason:
                return f"{name} {self.dtype}: {ordinary.reason}"
        return ""

    def so_far(self) -> str:
        """Returns what the cases judged so far show, for the line of progress; "" if no case is judged.

        It is computed at most once a second: for many small cases that takes longer than to judge them.
        """
        now = time.monotonic()
        if self.found[KERNEL] and now >= self._so_far[0] + _TELL_SECONDS:
            self._so_far = now, ", wrong so far" if self.proven_wrong() else ", no finding so far"
        return self._so_far[1]

    def results(self, seed: int, baseline: str) -> Iterator[Result]:
        """Yields the results: the kernel's beside PyTorch's, whose name is `baseline`, then those of inference."""
        for by, of_results in self.found.items():
            for name in of_results if by != BASELINE else ():
                yield self._result(by, name, seed, baseline)

    def _result(self, by: str, name: str, seed: int, baseline: str) -> Result:
        kernel, group, dtype, found = self.kernel, self.of, self.dtype, self.found[by][name]
        own, output, theirs = by == KERNEL, group.named(name), None
        # Only cases that gave a result count, so a kernel that starts to refuse some becomes incomparable. All cases of
        # the corpus count as one property, so pinning a case keeps its bound comparable.
        if own and group.pinned:
            properties = fingerprint(kernel, output, dtype, space=group.space)
        else:
            properties = fingerprint(kernel, name if own else f"{name} {by}", dtype, found.cases)
        more: dict[str, Any] = {"bits": self._digests[by, name].text if self._bits else "", "properties": properties}
        if own:
            theirs = self.found[BASELINE].get(name)
        if found.operand:
            fmt, beside = named(found.operand), None if theirs is None else theirs.curve
            more["curve"] = recorded(deciding_operand(kernel.op), fmt, found.edges, found.curve, beside)
        if theirs is not None and found.near:
            more["excess"] = number(excess(found.near, theirs.near, kernel.limit(dtype, name)))
        some = found.whole > found.n
        basis = Basis("observed", found.n, seed, found.whole if some else 0)
        if group.exhaustive and not some:
            basis = Basis("exhaustive", found.n)
        if self.left:
            planned = len(group.cases)
            basis = msgspec.structs.replace(basis, cases=planned - self.left, planned=planned)
        of_pytorch = theirs.parts if theirs else None
        verdict = check_limit(kernel, dtype, name, found.parts, found.trivial, of_pytorch, found.whole)
        peer = None if theirs is None else (baseline, theirs)
        entry = result_of(kernel, dtype, name, found, verdict, basis, peer, **more)
        if own:
            return msgspec.structs.replace(entry, output=output)
        return msgspec.structs.replace(  # only the law of accuracy calls the kernel for inference, so it replays it
            entry,
            output=f"{output} {by}",
            worst=[*filter(None, map(by_accuracy, entry.worst))],
            classes=[msgspec.structs.replace(each, worst=by_accuracy(each.worst)) for each in entry.classes],
            regimes=[msgspec.structs.replace(each, worst=by_accuracy(each.worst)) for each in entry.regimes],
        )


def where(geometry: Geometry, cases: Sequence[Case], wrong: Sequence[bool]) -> str:
    """Returns the cases of a run where a result is wrong: from a size on, with some values, or in a layout.

        in 5 of 33 cases: g from 3 on, right up to 2

    Each statement holds for all wrong cases, and leaves out so many right ones that it hardly holds by chance. If there
    is none, the smallest wrong case is described. Returns "" if no case alone is wrong, or there is one case.
    """
    if not any(wrong) or len(cases) == 1:
        return ""
    tried: list[Tried] = [(case, geometry.sizes_by_name(case.dims)) for case in cases]
    bad = [each for each, is_wrong in zip(tried, wrong, strict=True) if is_wrong]
    count = f"in {f'{len(bad)} of' if len(bad) < len(tried) else 'all'} {len(tried)} cases"
    found = list[str]()
    while len(bad) > _FEW and len(found) < _MOST:
        text, left = min(_rules(bad, tried), key=lambda rule: len(rule[1]), default=("", tried))
        if (len(left) / len(tried)) ** len(bad) > _CHANCE:
            break
        found, tried = [*found, text], left
    if not found and len(bad) < len(cases):
        case, sizes = min(bad, key=lambda each: math.prod(each[0].dims))
        found = [*(f"{name} = {size:,}" for name, size in sizes.items()), *_kinds(case)]
        count += ": the smallest has" if len(bad) > 1 else ":"
        return f"{count} {', '.join(found)}"
    return ": ".join(filter(None, [count, ", ".join(found)]))


def _kinds(case: Case) -> list[str]:
    """Returns the values and the layout of a case."""
    without = [f"without {name}" for name in case.absent]
    values = f"values: {case.fill}" + (f" in {case.only}" if case.only else "")
    return [values, *without, *map(" ".join, case.layouts.items())]


def _rules(bad: Sequence[Tried], tried: Sequence[Tried]) -> Iterator[tuple[str, list[Tried]]]:
    """Yields statements that hold for all wrong cases, each with the cases that it holds for."""
    for name in bad[0][1]:
        own, every = ({sizes[name] for _, sizes in some} for some in (bad, tried))
        low, high = min(own), max(own)
        below, above = ({size for size in every if size < low}, {size for size in every if size > high})
        sized = {f"from {low:,} on, right up to {max(below):,}": every - below} if below else {}
        sized |= {f"up to {high:,}, right from {min(above):,} on": every - above} if above else {}
        sized |= {f"= {low:,}": own} if low == high else {}
        for step in _STEPS:
            whole = {size for size in every if size % step == 0}
            sized |= {f"a multiple of {step}": whole} if own <= whole else {}
            sized |= {f"no multiple of {step}": every - whole} if not own & whole else {}
        for text, fitting in sized.items():
            yield f"{name} {text}", [each for each in tried if each[1][name] in fitting]
    for kind in _kinds(bad[0][0]):
        if all(kind in _kinds(case) for case, _ in bad):
            yield kind, [each for each in tried if kind in _kinds(each[0])]
