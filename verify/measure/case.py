"""One case, judged: what a kernel, PyTorch and modes of inference gave for it, against one truth."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import torch
from torch import Tensor

from verify.cases import Case, problem_of
from verify.cases.classes import class_of, classed
from verify.cases.plan import Group
from verify.cases.regimes import deciding_values
from verify.declare.declaration import Kernel
from verify.measure.blind import Blind, blind_spots
from verify.measure.blind import case_of as blind_case
from verify.measure.call import Measured
from verify.measure.curve import bins_of, edges_for, peaks
from verify.measure.digest import Digest, of_many
from verify.measure.element import Whole, worst_element
from verify.measure.judge import (
    CONTENDER_ROUNDS,
    OPEN_LIMIT,
    SAMPLE,
    Effort,
    JudgedBy,
    JudgedResult,
    judge_by,
    with_noise_again,
)
from verify.measure.result import KEEP_SPECIAL, Findings
from verify.measure.tally import KEEP, Peak, Tally, merged_peaks, worst
from verify.measure.trivial import trivial_at_ordinary
from verify.ops.graph.sampled import Sample
from verify.ops.op import Fast, Largest, Op, Problem, Regime, remembering
from verify.records.figure import LEAST
from verify.records.readings import APART, BEYOND, NONFINITE
from verify.records.record import Origin, Worst, value_of
from verify.truth import formats
from verify.truth.fast import Truth, device_kind, truth_of
from verify.truth.formats import Format
from verify.truth.ulp import Policy, bits_of

SAMPLE_EACH = 4  # elements whose certificate is checked in each case of a group of many
# Elements of one result of one case whose open rounding is judged exactly: where the group has one case, where it has
# many, and of a peer or PyTorch. Beyond the limit they count as undecided; maxima are settled in any case.
OPEN_ONE_CASE, OPEN_EACH_CASE, OPEN_PEER = 12_000, 2_000, 500
ROUNDS_GRAPH = 1
OPEN_GRAPH = 16  # the same of a PyTorch function, each element of which may depend on all inputs

Parts = tuple[tuple[Regime, str], ...]  # of a result: a regime and a class each

KERNEL, BASELINE = "kernel", "baseline"  # who gave results, besides modes of inference


class Piece(msgspec.Struct, frozen=True):
    """What judging one result of one case gave; `worst`, `special` and `each` beyond what was known by then."""

    parts: dict[tuple[str, str], Tally]  # by regime and class; a place is an index in one case
    bounds: dict[str, Regime]
    worst: list[tuple[float, Worst]]
    special: list[tuple[float, Worst]]
    each: dict[tuple[str, str], tuple[float, Worst]]
    escalated: int
    certificate: str
    curve: list[Peak]
    operand: str
    edges: tuple[float, ...]
    trivial: dict[str, Tally] = {}
    blind: list[Blind] = []
    whole: int = 0  # elements of the result, where only some of them were judged
    digest: str = ""  # of all of them then


Pieces = dict[str, dict[str, Piece]]  # of one case, by who gave the results (`KERNEL`, `BASELINE`, a mode) and result


@dataclass
class Collected:
    """What accumulates for one output over the cases of a group."""

    fmt: Format
    parts: dict[tuple[str, str], Tally] = field(default_factory=dict)  # by regime and class
    bounds: dict[str, Regime] = field(default_factory=dict)
    worst: list[tuple[float, Worst]] = field(default_factory=list)  # with their errors; of ordinary inputs
    special: list[tuple[float, Worst]] = field(default_factory=list)  # of infinite or NaN inputs
    each: dict[tuple[str, str], tuple[float, Worst]] = field(default_factory=dict)  # the worst of each part
    escalated: int = 0
    certificates: list[str] = field(default_factory=list)
    n: int = 0
    whole: int = 0  # elements of the results, judged or not
    cases: list[Case] = field(default_factory=list)  # those that gave this result
    curve: list[Peak] = field(default_factory=list)  # places number the elements of all cases
    operand: Format | None = None  # of the operand that the curve is about
    edges: tuple[float, ...] = ()  # of the bins of the curve
    trivial: dict[str, Tally] = field(default_factory=dict)  # trivial answers, judged on ordinary inputs
    blind: list[Blind] = field(default_factory=list)  # errors of the definition that would pass

    def __post_init__(self) -> None:
        self.digest = Digest(self.fmt)

    def add(self, case: Case, got: Tensor, piece: Piece) -> None:
        """Merge one case in: the results do not depend on where it was judged, nor when."""
        for key, part in piece.parts.items():
            self.parts[key] = self.parts.get(key, Tally()).merge(part)
        for name, part in piece.trivial.items():
            self.trivial[name] = self.trivial.get(name, Tally()).merge(part)
        self.blind += piece.blind
        self.bounds |= piece.bounds
        self.cases.append(case)
        self.escalated += piece.escalated
        if piece.digest:
            self.digest.add_digest(piece.digest)
        else:
            self.digest.add(got)
        if piece.operand:
            self.operand, self.edges = formats.named(piece.operand), piece.edges
            moved = [msgspec.structs.replace(peak, place=peak.place + self.n) for peak in piece.curve]
            self.curve = merged_peaks(self.curve, moved)
        self.n += got.numel()
        self.whole += piece.whole or got.numel()
        if piece.certificate not in self.certificates:
            self.certificates.append(piece.certificate)
        for kept, found, most in ((self.worst, piece.worst, KEEP), (self.special, piece.special, KEEP_SPECIAL)):
            kept += found
            kept.sort(key=lambda entry: -entry[0])  # stable: earlier cases first among equals
            del kept[most:]
        for key, entry in piece.each.items():
            if entry[0] > self.each.get(key, (0.0,))[0]:
                self.each[key] = entry

    @property
    def findings(self) -> Findings:
        """What was found in all cases."""
        return Findings(self.parts, self.escalated, self.certificates, self.each, self.bounds)


@dataclass(frozen=True)
class Question:
    """One case with its float64 references, put to a kernel and to the baseline alike: both had the same inputs.

    `host` is the problem for exact arithmetic, which asks for elements one at a time: from a GPU each would be waited
    for. Where results are small, problem and references are there too. Whoever judges makes truths of these.
    """

    op: Op  # of which both ask for exact values: see `remembering`
    definition: Op  # the same, which keeps no exact values: they may be those of all elements
    case: Case
    problem: Problem
    host: Problem
    fast: dict[str, Fast]
    kind: str  # of the device that these were evaluated on
    formats: dict[str, Format]
    target: str
    policy: Policy
    seed: int
    largest: Largest | None
    floors: dict[str, float]  # the least noise of each result, in ULP
    limits: dict[str, float]  # of each result on ordinary inputs
    whole: Whole | None = None  # where only some elements of its one result are judged

    def judged_by(self, result: str, truth: Truth) -> JudgedBy:
        """Returns one result with its truth and its rules."""
        fmt, floor = self.formats[result], self.floors[result]
        return JudgedBy(self.op, self.host, result, truth, fmt, self.policy, self.seed, floor)

    @property
    def on_host(self) -> bool:
        """Whether judging asks nothing of a GPU."""
        return self.problem is self.host and all(value is None or value.is_cpu for value in self.host.inputs.values())

    def truth(self, result: str) -> Truth:
        """The truth of one result."""
        return truth_of(self.definition, self.host, result, self.fast[result], self.formats[result], self.kind)


def question_of(
    kernel: Kernel, case: Case, measured: Measured, group: Group, target: str, seed: int, small: int
) -> Question:
    wanted = tuple(filter(group.judges, measured.results))
    problem = problem_of(kernel.op, case, measured.inputs, measured.upstream, wanted)
    kinds = {name: formats.of(measured.results[name].dtype) for name in wanted}
    found = kernel.op.fast(problem)
    fast, kind = {name: found[name] for name in wanted}, device_kind(found)
    host = _on_host(problem)
    if max((each.value.numel() for each in fast.values()), default=0) <= small:
        problem, fast = host, {name: each.cpu() for name, each in fast.items()}
        for name in wanted:  # for forks: beside a GPU they have no autograd, which follows PyTorch's functions
            kernel.op.points(host, name, ())
    rules = _rules_of(kernel, case, kinds)
    return Question(
        op=remembering(kernel.op, host),
        definition=kernel.op,
        case=case,
        problem=problem,
        host=host,
        fast=fast,
        kind=kind,
        target=target,
        seed=seed,
        **rules,
    )


def sampled_question(
    kernel: Kernel, case: Case, measured: Measured, sample: Sample, target: str, seed: int
) -> Question:
    """The question about some elements of one result, numbered as they are in the sample."""
    name, got = sample.result, measured.results[sample.result]
    whole = problem_of(kernel.op, case, measured.inputs, measured.upstream, (name,))
    fmt = formats.of(got.dtype)

    def chosen(value: Tensor | None) -> Tensor | None:
        return sample.of(value) if value is not None and value.shape == got.shape else value

    upstream = {key: sample.of(value) if value.shape == got.shape else value for key, value in whole.upstream.items()}
    problem = replace(whole, inputs={key: chosen(value) for key, value in whole.inputs.items()}, upstream=upstream)
    definition = sample.op(kernel.op)
    return Question(
        op=remembering(definition, problem),
        definition=definition,
        case=case,
        problem=problem,
        host=problem,
        fast={name: sample.fast},
        kind=device_kind({name: sample.fast}),
        target=target,
        seed=seed,
        whole=Whole(whole, tuple(got.shape), sample.places, of_many(got, fmt)),
        **_rules_of(kernel, case, {name: fmt}),
    )


def _rules_of(kernel: Kernel, case: Case, kinds: dict[str, Format]) -> dict[str, Any]:
    """What decides on the results of a case, by field of `Question`."""
    return {
        "formats": kinds,
        "policy": kernel.policy,
        "largest": kernel.largest.get(case.dtype),
        "floors": {name: kernel.noise_floor(case.dtype, name) for name in kinds},
        "limits": {name: kernel.limit(case.dtype, name) for name in kinds},
    }


def _on_host(problem: Problem) -> Problem:
    inputs = {name: None if value is None else value.cpu() for name, value in problem.inputs.items()}
    return replace(problem, inputs=inputs, upstream={name: value.cpu() for name, value in problem.upstream.items()})


def judge_case(
    kernel: Kernel,
    group: Group,
    question: Question,
    given: dict[str, dict[str, Tensor]],
    known: dict[str, dict[str, Collected]],
) -> Pieces:
    """Judge all results of one case: of the kernel and its modes of inference, and with less effort PyTorch's."""
    # over many cases the worst ten come from different ones; a single case has to give them all
    single = len(group.cases) == 1
    keep, sample = (KEEP, SAMPLE) if single else (2, SAMPLE_EACH)
    open_limit, open_limit_peer = (OPEN_ONE_CASE if single else OPEN_EACH_CASE), OPEN_PEER
    if kernel.peer:
        sample, open_limit = 1, open_limit_peer
    if group.exhaustive:
        open_limit = open_limit_peer = OPEN_LIMIT
    elif kernel.op.geometry.named:
        open_limit = open_limit_peer = OPEN_GRAPH
    rounds = ROUNDS_GRAPH if kernel.op.geometry.named else CONTENDER_ROUNDS

    @functools.cache  # of the case alone: the same for whoever gave the result
    def parts(name: str, shape: tuple[int, ...]) -> tuple[Tensor | None, Parts]:
        return classed(question.op, question.case, question.problem, name, shape, question.largest)

    truths = {name: question.truth(name) for name in question.fast}
    for by in (BASELINE, KERNEL):  # before either is judged: both by the same noise
        for name in truths.keys() & given.get(by, {}).keys():
            got = given[by][name].to(truths[name].value.device)
            fmt = question.formats[name]
            truths[name] = with_noise_again(question.op, question.host, name, got, truths[name], fmt)
    pieces: Pieces = {}
    theirs: dict[str, Tensor] = {}  # where PyTorch's results are within the limit
    for by, results in sorted(given.items(), key=lambda item: item[0] != BASELINE):
        own = by != BASELINE
        judging = _Judging(
            question,
            truths,
            parts,
            Effort(sample, keep, open_limit, rounds) if own else Effort(0, 1, open_limit_peer, rounds),
            each=own and not kernel.peer,
            trivial=by == KERNEL and not kernel.peer and not group.pinned,
            theirs=theirs,
        )
        pieces[by] = judging.pieces(results, known.get(by, {}))
    if pieces.get(KERNEL) and not kernel.peer and not group.pinned and _looks_for_blind_spots(question, group):
        first = next(iter(pieces[KERNEL]))
        found = blind_spots([question.judged_by(name, truths[name]) for name in pieces[KERNEL]], question.limits)
        pieces[KERNEL][first] = msgspec.structs.replace(pieces[KERNEL][first], blind=found)
    return {by: pieces[by] for by in given}


def _looks_for_blind_spots(question: Question, group: Group) -> bool:
    return question.whole is None and question.case == blind_case(group.cases)


@dataclass(frozen=True)
class _Judging:
    """How the results of one case are judged, for a kernel, a mode of inference or PyTorch.

    `each` also keeps the worst element of every regime. `theirs` collects, by result, the elements at which PyTorch is
    within the limit; other results are compared with it.
    """

    question: Question
    truths: dict[str, Truth]
    parts_of: Callable[[str, tuple[int, ...]], tuple[Tensor | None, Parts]]
    effort: Effort
    each: bool
    trivial: bool
    theirs: dict[str, Tensor]

    def pieces(self, results: dict[str, Tensor], known: dict[str, Collected]) -> dict[str, Piece]:
        """Every result of one case judged."""
        question = self.question
        found = {}
        for name, truth in self.truths.items():
            if name in results:
                before = known.get(name) or Collected(fmt=question.formats[name])
                found[name] = self._piece(name, truth, results[name].to(truth.value.device), before)
        return found

    def _piece(self, name: str, truth: Truth, got: Tensor, before: Collected) -> Piece:
        question = self.question
        op = question.op
        segments, parts = self.parts_of(name, tuple(got.shape))
        by = question.judged_by(name, truth)
        outcome = judge_by(by, got, segments=segments, n_segments=len(parts), effort=self.effort)
        outcome = self._compared(name, outcome, segments, len(parts))
        tallies: dict[tuple[str, str], Tally] = {}
        for (regime, of_class), part in zip(parts, outcome.tallies, strict=True):
            if part.n:
                key = (regime.name, class_of(regime, of_class))
                tallies[key] = tallies.get(key, Tally()).merge(part.without_places())
        curve, operand, edges = list[Peak](), "", tuple[float, ...]()
        if op.geometry.by_element:
            values = deciding_values(op, question.problem, name).detach().reshape(-1)
            of_operand = formats.of(values.dtype)
            operand, edges = of_operand.name, edges_for(op, question.problem.params, of_operand)
            curve = _curve(values, edges, outcome, segments, parts)
        worst, special, of_each = _new_worst(question, name, got, outcome, parts, before, each=self.each)
        return Piece(
            parts=tallies,
            bounds={regime.name: regime for (regime, _), part in zip(parts, outcome.tallies, strict=True) if part.n},
            worst=worst,
            special=special,
            each=of_each,
            escalated=outcome.escalated,
            certificate=outcome.certificate,
            curve=curve,
            operand=operand,
            edges=edges,
            trivial=trivial_at_ordinary(by, segments, parts) if self.trivial else {},
            whole=0 if question.whole is None else math.prod(question.whole.shape),
            digest="" if question.whole is None else question.whole.digest,
        )

    def _compared(self, name: str, outcome: JudgedResult, segments: Tensor | None, count: int) -> JudgedResult:
        """The outcome with the elements counted that are beyond the limit where PyTorch's are within it."""
        limit, found = self.question.limits[name], outcome.errors
        figure, width = (found.ulp, found.width) if found.scaled is None else (found.scaled, found.scaled_width)
        assert width is not None
        if not self.each and name not in self.theirs:  # PyTorch's own, which is judged first
            self.theirs[name] = (figure.abs() + width <= limit) & ~found.nonfinite
            return outcome
        if name not in self.theirs:
            return outcome
        beyond = ~(figure.abs() - width <= limit) | found.nonfinite
        worse = beyond & self.theirs[name].to(beyond.device) & ~found.undecided
        if not bool(worse.any()):
            return outcome
        member = torch.zeros_like(worse, dtype=torch.int64) if segments is None else segments.reshape(-1)
        counts = torch.bincount(member[worse & (member >= 0)], minlength=count).tolist()
        tallies = [
            msgspec.structs.replace(part, worse=many) for part, many in zip(outcome.tallies, counts, strict=True)
        ]
        return replace(outcome, tallies=tallies)


def _curve(
    values: Tensor,
    edges: tuple[float, ...],
    outcome: JudgedResult,
    segments: Tensor | None,
    parts: Parts,
) -> list[Peak]:
    """Error against the values that decide, of all elements that figures are about."""
    assert segments is not None
    apart = torch.tensor([regime.name in APART for regime, _ in parts], device=segments.device)
    bins = torch.where(apart[segments.reshape(-1)], -1, bins_of(values, edges))
    error = torch.where(outcome.errors.nan, math.nan, outcome.errors.ulp)
    fmt = formats.of(values.dtype)
    return peaks(bins, error, size=len(edges) - 1, base=0, fmt=fmt, bits=lambda at: bits_of(values[at]))


def _new_worst(
    question: Question,
    result: str,
    got: Tensor,
    outcome: JudgedResult,
    parts: Parts,
    known: Collected,
    *,
    each: bool,
) -> tuple[list[tuple[float, Worst]], list[tuple[float, Worst]], dict[tuple[str, str], tuple[float, Worst]]]:
    """The worst elements of one case that are worse than those known; of infinite and NaN inputs; of each part."""
    op, case, problem, target = question.op, question.case, question.host, question.target
    scaled = op.gate_of(result) != "plain"
    described: dict[int, Worst] = {}

    def element(error: float, index: int) -> Worst:
        if index not in described:
            shown = error if scaled else None
            judged = outcome.exact[index]
            origin = Origin(target, case.to_json(), result, index)
            described[index] = worst_element(op, problem, got, judged, origin, shown, question.whole)
        return described[index]

    lists = []
    for ordinary, before, most in ((True, known.worst, KEEP), (False, known.special, KEEP_SPECIAL)):
        leaders = [
            leader
            for (regime, _), part in zip(parts, outcome.tallies, strict=True)
            if regime.name != BEYOND and (regime.name != NONFINITE) == ordinary
            for leader in part.leaders
            if value_of(leader.upper) > 0.0
        ]
        found: list[tuple[float, Worst]] = []
        errors = [error for error, _ in before]
        for leader in worst(leaders, most):
            error = value_of(leader.upper)
            if len(errors) >= most and error <= errors[-1]:
                break
            found.append((error, element(error, leader.place)))
            errors = sorted([*errors, error], reverse=True)[:most]
        lists.append(found)
    of_each: dict[tuple[str, str], tuple[float, Worst]] = {}
    for (regime, of_class), part in zip(parts, outcome.tallies, strict=True):
        if each and part.leaders:
            key = (regime.name, class_of(regime, of_class))
            error, index = value_of(part.leaders[0].upper), part.leaders[0].place
            # an error of at most LEAST has no entry: correct rounding may have it, and no bound is below
            if error > max(LEAST, known.each.get(key, (0.0,))[0], of_each.get(key, (0.0,))[0]):
                of_each[key] = (error, element(error, index))
    return lists[0], lists[1], of_each
