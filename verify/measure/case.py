"""Judges the results of one case against the truth.

The results come from the kernel, from PyTorch (the baseline) and from modes of inference, such as the kernel under
`torch.no_grad()`. `verify.measure.kernel` uses this module in three steps. `question_of` evaluates the float64
references. `judge_case` compares all results with the truth: at a tie, each source with the choice that explains it. It
may run in a fork, so it returns findings that can be sent. `Findings.merge` adds the findings of all cases of a group.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import msgspec
import torch
from torch import Tensor

from verify.cases import Case, problem_of
from verify.cases.classes import class_of, class_of_recipe, classed, deciding_values, special_parts
from verify.cases.plan import Group
from verify.cases.values import ENDLESS
from verify.declare.declaration import Kernel
from verify.measure.call import Measured
from verify.measure.curve import Peaks, bins_of, coordinate, edges_for, peaks, peaks_of
from verify.measure.digest import of_many
from verify.measure.effort import efforts_of
from verify.measure.element import WholeResult, worst_element
from verify.measure.findings import BASELINE, KERNEL, CaseFindings, Findings, Given, PartName, kept
from verify.measure.judge import JudgedBy, JudgedResult, judge_by
from verify.measure.result import check_limit
from verify.measure.tally import Peak, Tally
from verify.measure.trivial import blind_spots, mistake, trivial_at_ordinary
from verify.measure.trivial import case_of as blind_case
from verify.ops.graph.sampled import Sample
from verify.ops.op import Fast, Op, Problem, Regime, remembering
from verify.records.readings import APART
from verify.records.record import EXTREME, ORDINARY, Origin, Worst, value_of
from verify.truth import formats
from verify.truth.fast import Truth, truth_of
from verify.truth.formats import Format
from verify.truth.ulp import bits_of
from verify.workers.phases import phase

Parts = tuple[tuple[Regime, str], ...]  # the parts of a result: a regime and a class each


class NoAnswer(Exception):
    """The definition has no value for the inputs of a case, such as a singular matrix."""


@dataclass(frozen=True)
class Question:
    """Holds one measured case with its float64 references, and all that is needed to judge its results.

    `host` is the problem in CPU memory, for exact arithmetic: that reads single elements, and each read from a GPU
    would wait for the GPU. For small results `problem` is `host`, and the references are in CPU memory too.
    """

    kernel: Kernel  # its limits and its policy decide
    definition: Op  # the kernel's op, or that of some elements of a result
    case: Case
    problem: Problem
    host: Problem
    fast: Mapping[str, Fast | None]  # None: evaluated where the result is judged
    formats: dict[str, Format]
    target: str
    seed: int
    whole: WholeResult | None = None  # None: all elements are judged
    others: Mapping[str, Question] = field(default_factory=dict)  # by source: the same at other choices at ties
    excused: Mapping[str, Tensor] = field(default_factory=dict)  # by result: a mask of elements that are not judged

    @functools.cached_property
    def op(self) -> Op:
        """The definition with a cache of exact values. A truth may evaluate all elements, too many to keep."""
        return remembering(self.definition, self.host)

    def explaining(self, given: Mapping[str, Mapping[str, Tensor]]) -> Question:
        """Returns the question with the choices at ties that each source's results need. Uses the problem's device."""
        explained = {by: self._explaining(results) for by, results in given.items()}
        return replace(self, others={by: own for by, own in explained.items() if own is not self})

    def _explaining(self, results: Mapping[str, Tensor]) -> Question:
        meaning = self.definition.meaning
        if isinstance(meaning, Sample):
            [name] = self.fast
            if name not in results or (sample := meaning.explained(results[name])) is meaning:
                return self
            return replace(self, definition=sample.op(self.definition), fast={name: sample.reference})
        problem = self.definition.meaning.chosen(self.problem, results)
        if problem is self.problem:
            return self
        host = problem if self.problem is self.host else _on_host(problem)
        found = self.definition.fast(problem)
        fast = {name: found[name].cpu() if self.problem is self.host else found[name] for name in self.fast}
        return replace(self, problem=problem, host=host, fast=fast)

    def of(self, name: str) -> Question:
        """Returns the question about one result alone."""
        others = {by: replace(each, fast={name: each.fast[name]}) for by, each in self.others.items()}
        return replace(self, fast={name: self.fast[name]}, others=others)

    def judged_by(self, result: str) -> JudgedBy:
        """Returns one result with its truth and its rules."""
        fmt, floor = self.formats[result], self.kernel.noise_floor(self.case.dtype, result)
        return JudgedBy(self.op, self.host, result, self.truth(result), fmt, self.kernel.policy, self.seed, floor)

    def rules(self) -> dict[str, JudgedBy]:
        """Returns every result with its truth and its rules."""
        return {name: self.judged_by(name) for name in self.fast}

    @property
    def on_host(self) -> bool:
        """True if judging needs no GPU."""
        return self.problem is self.host and all(value is None or value.is_cpu for value in self.host.inputs.values())

    def demand_answer(self, theirs: Mapping[str, Tensor]) -> None:
        """Raises NoAnswer if PyTorch gives a number for finite inputs although the exact answer does not exist.

        For a singular matrix, it depends on the processor whether PyTorch raises or gives numbers.
        """
        for name, fast in self.fast.items() if self.op.geometry.named else ():
            if fast is None or name not in theirs:
                continue
            number = ~torch.isnan(theirs[name]).to(fast.value.device)
            known = torch.isfinite(fast.value if fast.bound is None else fast.value + fast.bound)
            if not bool((number & ~known).any()):
                continue
            truth = self.truth(name)  # by exact arithmetic where float64 does not know
            inputs = (value for value in self.problem.inputs.values() if value is not None)
            lacking = bool((number & torch.isnan(truth.value) & (truth.bound == 0)).any())
            if lacking and all(bool(value.isfinite().all()) for value in inputs):
                raise NoAnswer("the exact answer does not exist, and PyTorch gives a number")

    def truth(self, result: str) -> Truth:
        """Returns the truth of one result."""
        with phase(f"evaluate some elements of {result}") if self.fast[result] is None else nullcontext():
            fast = self.fast[result] or self.definition.fast(self.host)[result]
        return truth_of(self.definition, self.host, result, fast, self.formats[result])


def question_of(
    kernel: Kernel, case: Case, measured: Measured, problem: Problem, target: str, seed: int, small: int
) -> Question:
    """Evaluates the references of a measured case and returns its question about the results of `problem`.

    If no result has more than `small` elements, everything is moved to CPU memory: judging is faster there.
    """
    wanted = problem.results
    kinds = {name: formats.of(measured.results[name].dtype) for name in wanted}
    found = kernel.op.fast(problem)
    fast = {name: found[name] for name in wanted}
    host = _on_host(problem)
    if max((each.value.numel() for each in fast.values()), default=0) <= small:
        problem, fast = host, {name: each.cpu() for name, each in fast.items()}
        # A PyTorch function is traced with autograd, which does not work in a fork of a process that uses a GPU. Asking
        # for no points traces it here.
        for name in wanted:
            kernel.op.points(host, name, ())
    return Question(kernel, kernel.op, case, problem, host, fast, kinds, target, seed)


def sampled_question(
    kernel: Kernel, case: Case, measured: Measured, sample: Sample, target: str, seed: int
) -> Question:
    """Returns the question about some elements of one result. The sample numbers its elements."""
    name, got = sample.result, measured.results[sample.result]
    whole = problem_of(kernel.op, case, measured.inputs, measured.upstream, (name,))
    fmt = formats.of(got.dtype)

    def chosen(value: Tensor | None) -> Tensor | None:
        return sample.of(value) if value is not None and value.shape == got.shape else value

    upstream = {key: sample.of(value) if value.shape == got.shape else value for key, value in whole.upstream.items()}
    problem = replace(whole, inputs={key: chosen(value) for key, value in whole.inputs.items()}, upstream=upstream)
    some = WholeResult(None if sample.alone else whole, tuple(got.shape), sample.places, of_many(got, fmt))
    fast = {name: sample.reference}
    return Question(kernel, sample.op(kernel.op), case, problem, problem, fast, {name: fmt}, target, seed, some)


def _on_host(problem: Problem) -> Problem:
    inputs = {name: None if value is None else value.cpu() for name, value in problem.inputs.items()}
    upstream = {name: value.cpu() for name, value in problem.upstream.items()}
    decisions = {key: value.cpu() for key, value in problem.kept.decisions.items()}
    return replace(problem, inputs=inputs, upstream=upstream, kept=replace(problem.kept, decisions=decisions, exact={}))


def judge_case(kernel: Kernel, group: Group, question: Question, given: Given, earlier: CaseFindings) -> CaseFindings:
    """Judges all results of one case and returns the findings about each.

    given: the results by source. PyTorch's results (`BASELINE`) get less effort than the kernel's.
    earlier: the findings about earlier cases, by source and result. Only elements worse than those are described.
    """
    judge, case = _CaseJudge(kernel, group, question, given), question.case
    judged = {by: judge.findings(by, earlier.get(by, {})) for by in sorted(given, key=lambda by: by != BASELINE)}
    for outcome, index in judge.shown:  # at the end, so that no budget of exact values depends on what is shown
        outcome.printed(index)
    own, rules = judged.get(KERNEL, {}), judge.rules.get(KERNEL, {})
    for name, item in own.items():
        wrong = check_limit(kernel, case.dtype, name, item.parts, among=item.whole).status == "wrong"
        slopes = question.others.get(KERNEL, question).problem.kept.slopes.get(name)
        counts = {} if slopes is None else {slopes.tie: slopes.elements}
        own[name] = msgspec.structs.replace(item, wrong=[wrong], slopes=counts)
    if kernel.peer or question.whole is not None:
        return {by: judged[by] for by in given}
    if kernel.encoded is not None and class_of_recipe(case.regime or case.fill) == ORDINARY:
        for name, item in own.items():
            before = earlier.get(KERNEL, {}).get(name)
            if before is None or not before.mistake:
                near = rules[name].truth.value
                got = given[KERNEL][name].to(near.device)
                words = mistake(kernel.encoded, question.definition, question.problem, name, got, near)
                own[name] = msgspec.structs.replace(item, mistake=words)
    if own and not group.pinned and case == blind_case(group.cases):
        first = next(iter(own))
        spots = blind_spots([rules[name] for name in own], {name: kernel.limit(case.dtype, name) for name in own})
        own[first] = msgspec.structs.replace(own[first], blind=spots)
    return {by: judged[by] for by in given}


class _CaseJudge:
    """Judges the results of one case from every source: PyTorch first, with whose errors the others are compared."""

    def __init__(self, kernel: Kernel, group: Group, question: Question, given: Given) -> None:
        self.kernel, self.group, self.question, self.given = kernel, group, question, given
        fill, kept = question.case.fill, question.host.kept
        self.effort, self.effort_of_baseline = efforts_of(kernel, group, fill, kept)
        shared = question.rules()  # of the sources that need no other choices at ties
        self.rules = {by: question.others[by].rules() if by in question.others else shared for by in given}
        self._parts: dict[str, tuple[Tensor, Parts]] = {}
        self.shown: list[tuple[JudgedResult, int]] = []  # the elements whose figures may be printed
        self.within: dict[str, Tensor] = {}  # by result: True at elements where PyTorch is within the limit
        for by in (BASELINE, KERNEL):  # before either is judged, so that both get the same noise
            rules = self.rules.get(by, {})
            for name in rules.keys() & given.get(by, {}).keys():
                got = given[by][name].to(rules[name].truth.value.device)
                rules[name] = rules[name].with_noise_again(got)

    def parts(self, name: str, got: Tensor) -> tuple[Tensor, Parts]:
        """Returns the number of the part of every element of a result, and the parts. They depend on the case alone."""
        question, case = self.question, self.question.case
        if name not in self._parts:
            segments: Tensor | None
            if case.fill in ENDLESS and not question.op.geometry.by_element:
                value, beside = self.rules[KERNEL][name].truth.value, self.given.get(BASELINE, {}).get(name)
                segments, parts = special_parts(case, question.problem, value, beside)
            else:
                largest = self.kernel.largest.get(case.dtype)
                segments, parts = classed(question.op, case, question.problem, name, tuple(got.shape), largest)
            if segments is None and name.startswith("d") and self._overflows():  # no training step sees this gradient
                parts = tuple((regime, EXTREME) for regime, _ in parts)
            if segments is None:
                segments = torch.zeros(got.numel(), dtype=torch.int64, device=got.device)
            segments = segments.reshape(-1)
            whole, regions = question.whole, self.kernel.op.regions
            held = question.problem if whole is None else whole.problem
            if regions is not None and held is not None:  # what does not count belongs to no part
                like = got if whole is None else got.new_empty(1).expand(whole.shape)
                outside = regions.outside(name, like, held.inputs)
                if outside is not None:
                    mask = outside.reshape(-1).to(segments.device)
                    mask = mask if whole is None else mask[torch.as_tensor(whole.places, device=mask.device)]
                    segments = segments.masked_fill(mask, -1)
            if name in question.excused:
                segments = segments.masked_fill(question.excused[name].to(segments.device), -1)
            self._parts[name] = segments, parts
        return self._parts[name]

    def _overflows(self) -> bool:
        """True if an output's format does not hold its exact value: a backward pass that reads it has an infinity."""
        for name in self.rules[KERNEL].keys() & set(self.question.op.outputs):
            by = self.rules[KERNEL][name]
            exact, low = by.truth.value, 0.0 if by.truth.low is None else by.truth.low
            largest = float(min(by.fmt.overflow, Fraction(sys.float_info.max)))
            # an infinity with a rest is a finite number beyond float64
            beyond = torch.where(torch.isinf(exact), low != 0, exact.abs() > largest)
            if bool(beyond.any()):
                return True
        return False

    def findings(self, source: str, earlier: dict[str, Findings]) -> dict[str, Findings]:
        """Returns the findings about every result of one source."""
        results = self.given[source]
        return {
            name: self._of_result(source, by, results[name].to(by.truth.value.device), earlier.get(name, Findings()))
            for name, by in self.rules[source].items()
            if name in results
        }

    def _of_result(self, source: str, by: JudgedBy, got: Tensor, before: Findings) -> Findings:
        """Judges one result."""
        question, kernel, name = self.question.others.get(source, self.question), self.kernel, by.result
        own, effort = source != BASELINE, self.effort_of_baseline if source == BASELINE else self.effort
        segments, parts = self.parts(name, got)
        outcome = judge_by(by, got, segments=segments, n_segments=len(parts), effort=effort)
        errors, limit = outcome.errors, kernel.limit(question.case.dtype, name)
        if not own:
            self.within[name] = errors.within(limit)
        elif name in self.within:
            beyond = errors.beyond(limit)
            worse = segments[beyond & self.within[name].to(beyond.device) & ~errors.undecided & (segments >= 0)]
            pairs = zip(outcome.tallies, torch.bincount(worse, minlength=len(parts)).tolist(), strict=True)
            outcome = replace(outcome, tallies=[msgspec.structs.replace(part, worse=count) for part, count in pairs])
        if name in kernel.relative and question.whole is None:
            broken = kernel.relative[name].broken(got.double(), by.truth.value).reshape(-1)
            counts = torch.bincount(segments[broken & (segments >= 0)], minlength=len(parts)).tolist()
            pairs = zip(outcome.tallies, counts, strict=True)
            outcome = replace(outcome, tallies=[msgspec.structs.replace(part, rows=count) for part, count in pairs])
        numbers = [place for place, (regime, _) in enumerate(parts) if regime.name in APART]
        apart = torch.isin(segments, torch.tensor(numbers, dtype=torch.int64, device=segments.device))
        near = Peaks()
        if getattr(kernel.function, "contained", False):  # it is compared with PyTorch's errors near the same numbers
            near = peaks_of(errors, coordinate(question.op, question.problem, by.truth.value), apart)
        tallies: dict[PartName, Tally] = {}
        for (regime, of_class), part in zip(parts, outcome.tallies, strict=True):
            if part.n:
                key = (regime.name, class_of(regime, of_class))
                tallies[key] = tallies.get(key, Tally()).merge(part.without_places())
        curve, operand, edges = list[Peak](), "", tuple[float, ...]()
        if question.op.geometry.by_element:
            # without elements with infinite or NaN inputs, or beyond the declared magnitude, as in the figures
            values = deciding_values(question.op, question.problem, name).detach().reshape(-1)
            fmt = formats.of(values.dtype)
            operand, edges = fmt.name, edges_for(question.op, question.problem.params, fmt)
            bins = torch.where(apart, -1, bins_of(values, edges))
            size = torch.where(errors.nan, math.nan, errors.ulp)
            curve = peaks(bins, size, size=len(edges) - 1, base=0, fmt=fmt, bits=lambda at: bits_of(values[at]))
        trivial = source == KERNEL and not kernel.peer and not self.group.pinned
        whole, counted = question.whole, int((segments >= 0).sum())
        return Findings(
            parts=tallies,
            bounds={regime.name: regime for (regime, _), part in zip(parts, outcome.tallies, strict=True) if part.n},
            worst=self._new_worst(source, name, got, outcome, parts, before),
            escalated=outcome.escalated,
            certificates=[by.truth.certificate],
            cases=[question.case],
            format=by.fmt.name,
            n=counted,
            whole=counted if whole is None else math.prod(whole.shape),
            curve=curve,
            operand=operand,
            edges=edges,
            trivial=trivial_at_ordinary(by, segments, parts) if trivial else {},
            digest="" if whole is None else whole.digest,
            near=near,
        )

    def _new_worst(
        self, source: str, result: str, got: Tensor, outcome: JudgedResult, parts: Parts, earlier: Findings
    ) -> list[tuple[float, PartName, Worst]]:
        """Describes the elements that are among the worst so far. `earlier` has the findings of the earlier cases."""
        question = self.question.others.get(source, self.question)
        scaled, each = question.op.gate_of(result) != "plain", source != BASELINE and not self.kernel.peer

        def element(error: float, index: int) -> Worst:
            origin = Origin.here(question.target, question.case.to_json(), result, index)
            shown, exact = error if scaled else None, outcome.exact[index]
            return worst_element(question.op, question.host, got, exact, origin, shown, question.whole)

        found: list[tuple[float, PartName, Any]] = [
            (error, (regime.name, class_of(regime, of_class)), leader.place)
            for (regime, of_class), part in zip(parts, outcome.tallies, strict=True)
            for leader in part.leaders
            if (error := value_of(leader.upper)) > 0.0
        ]
        found.sort(key=lambda entry: entry[2])
        entries = [*earlier.worst, *found]
        among = kept(entries, each=each)
        if source == BASELINE:  # the record shows one of them; mpmath for ten took a tenth of a run of layer norm
            among = [entry for entry in among if entry[1][0] not in APART][:1]
        self.shown += [(outcome, place) for _, _, place in among if isinstance(place, int)]
        return [(error, part, element(error, place)) for error, part, place in among if isinstance(place, int)]
