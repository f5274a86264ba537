"""One kernel, measured completely: every planned case, every output and gradient, beside PyTorch's own."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from verify.backends import Backend
from verify.cases import Case, corpus, problem_of
from verify.cases.fingerprint import fingerprint
from verify.cases.plan import Group, pinned, plan
from verify.cases.regimes import NONFINITE, deciding_operand, deciding_values, segments_of
from verify.declare.declaration import Kernel
from verify.declare.standin import label
from verify.errors import KernelError, TruthError, no_verdict
from verify.measure.call import Measured, run_baseline, run_kernel
from verify.measure.curve import Envelope, edges_for, envelope, recorded
from verify.measure.digest import Digest
from verify.measure.element import describe
from verify.measure.judge import ESCALATION_LIMIT, SAMPLE, Outcome, judge_result
from verify.measure.special import special_values
from verify.measure.tally import KEEP, Tally, worst_of
from verify.ops.op import Op, Point, Problem, Regime
from verify.records.record import (
    Basis,
    Figures,
    Gap,
    KernelRun,
    RegimeFigures,
    Result,
    SpecialValue,
    Worst,
    value_of,
)
from verify.truth import formats
from verify.truth.fast import Truth, evaluate
from verify.truth.figure import LEAST, shown
from verify.truth.formats import Format
from verify.truth.ulp import Policy

Progress = Callable[[str], None]

KEEP_RIGHT = 3  # worst elements that the record keeps of a result within its limit, and of a peer's
SAMPLE_EACH = 4  # elements whose certificate is checked in each case of a group of many
#: Elements per case and result whose open rounding is judged exactly, where not every input is tried: of one case, of
#: each of many, and of what is not judged. Beyond it they count as undecided; maxima are settled in any case.
ROOM, ROOM_EACH, ROOM_PEER = 12_000, 2_000, 500

SMALL = 1 << 17  # elements up to which judging on a CPU is faster than launching its many steps on a GPU
KEEP_SPECIAL = 3  # of its worst elements


@dataclass
class _Collected:
    """What accumulates for one output over the cases of a group."""

    fmt: Format
    regimes: dict[str, Tally] = field(default_factory=dict)
    bounds: dict[str, Regime] = field(default_factory=dict)
    worst: list[tuple[float, Worst]] = field(default_factory=list)
    special: list[tuple[float, Worst]] = field(default_factory=list)  # infinite or NaN inputs
    each: dict[str, tuple[float, Worst]] = field(default_factory=dict)  # the worst of each regime
    escalated: int = 0
    certificates: list[str] = field(default_factory=list)
    n: int = 0
    envelope: Envelope | None = None
    operand: Format | None = None  # of the operand that the envelope is about

    def __post_init__(self) -> None:
        self.digest = Digest(self.fmt)

    @property
    def total(self) -> Tally:
        """Everything but the infinite and NaN inputs, which are a regime of their own."""
        merged = Tally()
        for name, item in self.regimes.items():
            if name != NONFINITE:
                merged = merged.merge(item)
        return merged


def measure_kernel(
    kernel: Kernel,
    target: str,
    backend: Backend,
    *,
    seed: int = 0,
    dtypes: tuple[str, ...] = (),
    accuracy: bool = True,
    cases_of: str = "",
    progress: Progress = lambda text: None,
) -> KernelRun:
    """Everything about one kernel. A broken contract is a result too: status "error" with its message.

    Without `accuracy` the record has what the kernel declares and no result. `cases_of` names a backend whose cases
    are measured on this one, so that both answer the same questions. Cases that the project's corpus has for this
    kernel are measured after the others, as results of their own.
    """
    started = time.monotonic()
    notes: list[str] = []
    results: list[Result] = []
    gaps: list[Gap] = []
    status, message = "ok", ""
    for dtype in (dtypes or kernel.dtypes) if accuracy else ():
        try:
            cases = [entry.case for entry in corpus.cases_for(kernel.name, dtype) if entry.result]
            for group in (*plan(kernel, dtype, cases_of or backend.name, seed), *pinned(kernel, dtype, cases)):
                progress(f"{kernel.name} {dtype}")
                results += _measure_group(kernel, target, backend, dtype, group, seed, notes)
        except TruthError as error:
            # no verdict on this dtype, which makes the run incomplete
            notes.append(f"{dtype}: {no_verdict(error)}")
            gaps.append(Gap("harness error", f"{kernel.name}: {notes[-1]}", target))
        except KernelError as error:
            status, message = "error", f"{dtype}: {error}"
            break
    if gaps and not results and status == "ok":
        status, message = "skipped", gaps[0].text.removeprefix(f"{kernel.name}: ")
    if status == "ok" and any(result.status == "wrong" for result in results):
        status = "wrong"
    return KernelRun(
        name=kernel.name,
        target=target,
        op=kernel.op.name,
        params=dict(kernel.params),
        promise=kernel.promise,
        status=status,  # type: ignore[arg-type]
        results=results,
        message=message,
        peer=kernel.peer,
        notes=notes,
        seconds=round(time.monotonic() - started, 3),
        gaps=gaps,
    )


@dataclass(frozen=True)
class _Question:
    """One case with its truth, put to a kernel and to the baseline alike: both had the same inputs.

    `host` is the problem for exact arithmetic, which asks for elements one at a time: from a GPU each would be waited
    for. Where results are small, problem and truths are there too.
    """

    op: Op  # of which both ask for exact values: see `_remembering`
    case: Case
    problem: Problem
    host: Problem
    truths: dict[str, Truth]
    formats: dict[str, Format]
    target: str
    policy: Policy
    seed: int


def _measure_group(
    kernel: Kernel,
    target: str,
    backend: Backend,
    dtype: str,
    group: Group,
    seed: int,
    notes: list[str],
) -> list[Result]:
    ours: dict[str, _Collected] = {}
    theirs: dict[str, _Collected] = {}
    # over many cases the worst ten come from different ones; a single case has to give them all
    single = len(group.cases) == 1
    keep, sample = (KEEP, SAMPLE) if single else (2, SAMPLE_EACH)
    room, room_peer = (ROOM if single else ROOM_EACH), ROOM_PEER
    if kernel.peer:
        sample, room = 1, room_peer
    if group.exhaustive:
        room = room_peer = ESCALATION_LIMIT
    refused: list[KernelError] = []
    for case in group.cases:
        try:
            measured = run_kernel(kernel, case, backend.device)
        except KernelError as error:
            refused.append(error)
            # a peer is shown for what it can do; of a judged kernel every case was promised
            if not kernel.peer or len(refused) == len(group.cases):
                raise
            notes.append(f"{dtype} {list(case.dims)}: not measured: {error}")
            continue
        notes += [note for note in _missing(measured) if note not in notes]
        question = _question(kernel, case, measured, group, target, seed)
        _collect(question, measured.results, ours, keep=keep, sample=sample, room=room, each=not kernel.peer)
        if not kernel.peer:
            peer = run_baseline(kernel.op, case, backend.device, kernel.outputs)
            _collect(question, peer.results, theirs, keep=1, sample=0, room=room_peer)
    whole = not group.only_gradients and not group.pinned
    special = _special(kernel, target, backend, dtype, notes) if whole else {}
    return [
        _result(kernel, name, dtype, item, theirs.get(name), label(backend.device), group, seed, special.get(name, []))
        for name, item in ours.items()
    ]


def _missing(measured: Measured) -> list[str]:
    """Why gradients have no figures: a forgotten backward pass must not look like one that was left out on purpose."""
    if measured.missing and not any(name.startswith("d") for name in measured.results):
        return ["no gradients measured: the output does not require grad; gradients=False says so on purpose"]
    return [f"no gradient {name}: autograd has no path to it" for name in measured.missing]


def _special(
    kernel: Kernel, target: str, backend: Backend, dtype: str, notes: list[str]
) -> dict[str, list[SpecialValue]]:
    """The special-value matrix. A kernel that refuses its small case keeps its figures, and the note says so."""
    try:
        return special_values(kernel, target, backend, dtype)
    except KernelError as error:
        notes.append(f"{dtype}: special values were not tried one by one: {error}")
        return {}


def _question(kernel: Kernel, case: Case, measured: Measured, group: Group, target: str, seed: int) -> _Question:
    wanted = tuple(name for name in measured.results if name.startswith("d") or not group.only_gradients)
    problem = problem_of(kernel.op, case, measured.inputs, measured.upstream, wanted)
    kinds = {name: formats.of(measured.results[name].dtype) for name in wanted}
    truths = evaluate(kernel.op, problem, kinds)
    host = _on_host(problem)
    if max((truth.value.numel() for truth in truths.values()), default=0) <= SMALL:
        problem, truths = host, {name: truth.cpu() for name, truth in truths.items()}
    op = _remembering(kernel.op, host)
    return _Question(op, case, problem, host, truths, kinds, target, kernel.policy, seed)


def _remembering(op: Op, problem: Problem) -> Op:
    """The op with the exact values of one problem kept.

    A kernel and its baseline are often off by the most at the same elements, and an element that Arb has judged may be
    asked for again with mpmath beside it. One element of a row of 2,048 takes milliseconds by each route.
    """
    known: dict[tuple[str, int, str, int], Any] = {}

    def kept(result: str, index: int, route: str, make: Callable[[int], Any]) -> Callable[[int], Any]:
        def value(precision: int) -> Any:
            key = (result, index, route, precision)
            if key not in known:
                known[key] = make(precision)
            return known[key]

        return value

    def points(asked: Problem, result: str, indices: Sequence[int]) -> list[Point]:
        assert asked is problem, "the values of one problem are no other's"
        return [
            Point(
                mp=kept(result, index, "mpmath", point.mp),
                arb=None if point.arb is None else kept(result, index, "Arb", point.arb),
            )
            for index, point in zip(indices, op.points(problem, result, indices), strict=True)
        ]

    return replace(op, points=points)


def _on_host(problem: Problem) -> Problem:
    inputs = {name: None if value is None else value.cpu() for name, value in problem.inputs.items()}
    return replace(problem, inputs=inputs, upstream={name: value.cpu() for name, value in problem.upstream.items()})


def _collect(
    question: _Question,
    results: dict[str, Tensor],
    into: dict[str, _Collected],
    *,
    keep: int,
    sample: int,
    room: int,
    each: bool = False,
) -> None:
    """Judge every result of one case and merge it in; with `each` also the worst element of every regime."""
    op, case, problem = question.op, question.case, question.problem
    for name, truth in question.truths.items():
        if name not in results:
            continue
        got = results[name].to(truth.value.device)
        segments, regimes = segments_of(op, case, problem, name, tuple(got.shape))
        outcome = judge_result(
            op,
            question.host,
            name,
            got,
            truth,
            question.formats[name],
            policy=question.policy,
            segments=segments,
            n_segments=len(regimes),
            seed=question.seed,
            sample=sample,
            keep=keep,
            room=room,
        )
        item = into.setdefault(name, _Collected(fmt=question.formats[name]))
        for regime, part in zip(regimes, outcome.tallies, strict=True):
            if part.n:
                item.regimes[regime.name] = item.regimes.get(regime.name, Tally()).merge(part)
                item.bounds[regime.name] = regime
        item.escalated += outcome.escalated
        item.n += got.numel()
        item.digest.add(got)
        if op.kind == "elementwise":
            found = _envelope(question, name, outcome, segments, regimes)
            item.operand = formats.of(deciding_values(op, problem, name).dtype)
            item.envelope = found if item.envelope is None else item.envelope.merge(found)
        if outcome.certificate not in item.certificates:
            item.certificates.append(outcome.certificate)
        _keep_worst(question, name, got, outcome, regimes, item, each=each)


def _envelope(
    question: _Question, result: str, outcome: Outcome, segments: Tensor | None, regimes: tuple[Regime, ...]
) -> Envelope:
    """Error against the operand that decides, of all elements whose inputs are numbers."""
    op, problem, errors = question.op, question.problem, outcome.errors
    values = deciding_values(op, problem, result)
    nonfinite = next(place for place, regime in enumerate(regimes) if regime.name == NONFINITE)
    assert segments is not None
    left_out = segments.reshape(-1) == nonfinite
    edges = edges_for(op, problem.params, formats.of(values.dtype))
    return envelope(values, errors.ulp, errors.nan, left_out, edges)


def _keep_worst(
    question: _Question,
    result: str,
    got: Tensor,
    outcome: Outcome,
    regimes: tuple[Regime, ...],
    item: _Collected,
    *,
    each: bool,
) -> None:
    """Add the worst elements of one case to the worst so far; infinite and NaN inputs have their own list."""
    op, case, problem, target = question.op, question.case, question.host, question.target
    scaled = op.gate == "scaled"
    told: dict[int, Worst] = {}

    def element(error: float, index: int) -> Worst:
        if index not in told:
            shown = error if scaled else None
            told[index] = describe(op, case, problem, result, got, index, outcome.exact[index], target, scaled=shown)
        return told[index]

    for ordinary, kept, room in ((True, item.worst, KEEP), (False, item.special, KEEP_SPECIAL)):
        found = [
            entry
            for regime, part in zip(regimes, outcome.tallies, strict=True)
            if (regime.name != NONFINITE) == ordinary
            for entry in part.worst
            if entry[0] > 0.0
        ]
        for error, index in worst_of(found, room):
            if len(kept) >= room and error <= kept[-1][0]:
                break
            kept.append((error, element(error, index)))
            kept.sort(key=lambda entry: -entry[0])  # stable: earlier cases first among equals
            del kept[room:]
    if not each:
        return
    for regime, part in zip(regimes, outcome.tallies, strict=True):
        # no bound is below what correct rounding may have, so that nobody asks for the worst of a smaller error
        if part.worst and part.worst[0][0] > max(LEAST, item.each.get(regime.name, (0.0,))[0]):
            item.each[regime.name] = (part.worst[0][0], element(*part.worst[0]))


def _result(
    kernel: Kernel,
    name: str,
    dtype: str,
    item: _Collected,
    peer: _Collected | None,
    peer_name: str,
    group: Group,
    seed: int,
    special_values: list[SpecialValue],
) -> Result:
    total = item.total
    figures = total.figures()
    gate = kernel.op.gate
    limit = kernel.limit(dtype)
    judged = judged_upper(figures, gate)
    special = item.regimes.get(NONFINITE, Tally())
    worst = [entry for _, entry in [*item.worst, *item.special]]
    reason = ""
    # not (x <= limit): a NaN must fail
    if not judged <= limit:
        reason = over_the_limit(figures, judged, limit, gate)
    elif special.nonfinite:
        reason = only_at_special(special.nonfinite)
        worst = [entry for _, entry in [*item.special, *item.worst]]  # first what the reason speaks of
    exhaustive = group.exhaustive
    operand = deciding_operand(kernel.op)
    curve = None
    if item.envelope is not None and item.operand is not None:
        curve = recorded(operand, item.operand, item.envelope, None if peer is None else peer.envelope)
    regimes = [
        RegimeFigures(
            name=regime,
            low=_finite(item.bounds[regime].low),
            high=_finite(item.bounds[regime].high),
            figures=part.figures(),
            baseline=None if peer is None or regime not in peer.regimes else peer.regimes[regime].figures(),
            operand=operand,
            worst=item.each[regime][1] if regime in item.each else None,
        )
        for regime, part in item.regimes.items()
    ]
    return Result(
        output=group.named(name),
        dtype=dtype,
        basis=Basis(
            kind="exhaustive" if exhaustive else "observed",
            n=item.n,
            seed=None if exhaustive else seed,
        ),
        gate=gate,
        limit=limit,
        status="wrong" if reason else "ok",
        reason=reason,
        figures=figures,
        regimes=regimes,
        histogram=total.histogram(),
        worst=worst if reason and not kernel.peer else worst[:KEEP_RIGHT],
        escalated=item.escalated,
        certificate="; ".join(item.certificates),
        baseline=None if peer is None else peer.total.figures(),
        baseline_name="" if peer is None else peer_name,
        baseline_worst=[] if peer is None else [entry for _, entry in peer.worst[:1]],
        properties=_properties(kernel, name, dtype, group),
        curve=curve,
        special=special_values,
        bits=item.digest.text,
    )


def _properties(kernel: Kernel, name: str, dtype: str, group: Group) -> str:
    """The property hash. The corpus is one property, so that pinning a case does not make its bound incomparable."""
    if group.pinned:
        return fingerprint(kernel, group.named(name), dtype, space="pinned")
    return fingerprint(kernel, name, dtype, group.cases)


def over_the_limit(figures: Figures, judged: float, limit: float, gate: str) -> str:
    unit = "scaled ULP" if gate == "scaled" else "ULP"
    if math.isnan(judged):
        return f"NaN at {figures.nonfinite:,} of {figures.n:,} inputs whose exact answer is a number"
    if math.isinf(judged):
        return f"infinite or unbounded error at {figures.nonfinite:,} of {figures.n:,} inputs"
    proven = figures.scaled_max if gate == "scaled" else figures.max_ulp
    if proven is not None and not value_of(proven) > limit:
        return f"not proven within {limit:g} {unit}: up to {shown(judged)} cannot be excluded"
    return f"{shown(judged)} {unit}, the limit is {limit:g}"


def only_at_special(count: int) -> str:
    return f"wrong at {count:,} infinite or NaN input{'' if count == 1 else 's'}, right at all others"


def judged_upper(figures: Figures, gate: str) -> float:
    upper = figures.scaled_upper if gate == "scaled" else figures.max_upper
    return math.nan if upper is None else value_of(upper)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
