"""Judges the results of one case against the truth.

The results come from the kernel, from PyTorch (the baseline) and from modes of inference, such as the kernel under
`torch.no_grad()`. `verify.measure.kernel` uses this module in three steps. `question_of` evaluates the float64
references. `judge_case` compares all results with the truth: at a tie, each source with the choice that explains it. It
may run in a fork, so it returns findings that can be sent. `Findings.merge` adds those of all cases of a group.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import torch
from torch import Tensor

from verify.cases import Case, problem_of
from verify.cases.classes import class_of, class_of_recipe, classed, special_parts
from verify.cases.plan import Group
from verify.cases.regimes import deciding_values
from verify.cases.values import ENDLESS
from verify.declare.declaration import Kernel
from verify.measure.blind import blind_spots
from verify.measure.blind import case_of as blind_case
from verify.measure.call import Measured
from verify.measure.curve import Peaks, bins_of, coordinate, edges_for, peaks, peaks_of
from verify.measure.digest import of_many
from verify.measure.element import Whole, worst_element
from verify.measure.findings import Findings, PartName, kept
from verify.measure.judge import CONTENDER_ROUNDS, OPEN_LIMIT, SAMPLE, Effort, JudgedBy, JudgedResult, judge_by
from verify.measure.result import check_limit
from verify.measure.tally import KEEP, Peak, Tally
from verify.measure.trivial import mistake, trivial_at_ordinary
from verify.ops.graph.sampled import Sample
from verify.ops.op import Fast, Op, Problem, Regime, remembering
from verify.records.readings import APART
from verify.records.record import ORDINARY, Origin, Worst, value_of
from verify.truth import formats
from verify.truth.fast import Truth, truth_of
from verify.truth.formats import Format
from verify.truth.ulp import bits_of
from verify.workers.phases import phase

SAMPLE_EACH = 4  # elements of each case whose bound is checked, if the group has several cases
# The float64 truth leaves the rounding of some elements open. At most this many of them are judged exactly, for each
# result of a case: in a group of one case, in a group of several, and for a peer or PyTorch. The others count as
# undecided. Maxima are always settled.
OPEN_ONE_CASE, OPEN_EACH_CASE, OPEN_PEER = 12_000, 2_000, 500
# One exact element of a PyTorch function may depend on all inputs, so fewer elements are judged exactly.
ROUNDS_GRAPH = 1  # rounds of judging the candidates for the maximum
OPEN_GRAPH = 16  # the limit in place of the three above

Parts = tuple[tuple[Regime, str], ...]  # the parts of a result: a regime and a class each

KERNEL, BASELINE = "kernel", "baseline"  # sources of results; a mode of inference is a source too


CaseFindings = dict[str, dict[str, Findings]]  # of one case: by source (`KERNEL`, `BASELINE` or a mode), then by result


class NoAnswer(Exception):
    """The definition has no value for the inputs of a case, such as a singular matrix."""


@dataclass(frozen=True)
class Question:
    """Holds one measured case with its float64 references, and all that is needed to judge its results.

    `host` is the problem in CPU memory, for exact arithmetic: that reads single elements, and each read from a GPU
    would wait for the GPU. For small results `problem` is `host`, and the references are in CPU memory too.
    """

    kernel: Kernel  # its limits and its policy decide
    op: Op  # caches exact values, see `remembering`
    definition: Op  # the same op without the cache: a truth may evaluate all elements, too many to keep
    case: Case
    problem: Problem
    host: Problem
    fast: Mapping[str, Fast | None]  # None: evaluated where the result is judged
    formats: dict[str, Format]
    target: str
    seed: int
    whole: Whole | None = None  # None: all elements are judged
    others: Mapping[str, Question] = field(default_factory=dict)  # by source: the same at other choices at ties

    def explaining(self, given: Mapping[str, Mapping[str, Tensor]]) -> Question:
        """Returns the question with the choices at ties that each source's results need. Uses the problem's device."""
        others: dict[str, Question] = {}
        for by, results in given.items():
            if (own := self._explaining(results)) is not self:
                others[by] = own
        return replace(self, others=others)

    def _explaining(self, results: Mapping[str, Tensor]) -> Question:
        meaning = self.definition.meaning
        if isinstance(meaning, Sample):
            [name] = self.fast
            if name not in results or (sample := meaning.explained(results[name])) is meaning:
                return self
            definition = sample.op(self.definition)
            op = remembering(definition, self.host)
            return replace(self, op=op, definition=definition, fast={name: sample.reference})
        problem = self.definition.meaning.chosen(self.problem, results)
        if problem is self.problem:
            return self
        host = problem if self.problem is self.host else _on_host(problem)
        found = self.definition.fast(problem)
        fast = {name: found[name].cpu() if self.problem is self.host else found[name] for name in self.fast}
        return replace(self, op=remembering(self.definition, host), problem=problem, host=host, fast=fast)

    def of(self, name: str) -> Question:
        """Returns the question about one result alone."""
        others = {by: replace(each, fast={name: each.fast[name]}) for by, each in self.others.items()}
        return replace(self, fast={name: self.fast[name]}, others=others)

    def judged_by(self, result: str) -> JudgedBy:
        """Returns one result with its truth and its rules."""
        fmt, floor = self.formats[result], self.kernel.noise_floor(self.case.dtype, result)
        return JudgedBy(self.op, self.host, result, self.truth(result), fmt, self.kernel.policy, self.seed, floor)

    @property
    def on_host(self) -> bool:
        """True if judging needs no GPU."""
        return self.problem is self.host and all(value is None or value.is_cpu for value in self.host.inputs.values())

    def demand_answer(self, theirs: Mapping[str, Tensor]) -> None:
        """Raises NoAnswer if PyTorch gives a number for finite inputs although the exact answer does not exist.

        For a singular matrix it depends on the processor whether PyTorch raises or gives numbers.
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
    return Question(
        kernel=kernel,
        op=remembering(kernel.op, host),
        definition=kernel.op,
        case=case,
        problem=problem,
        host=host,
        fast=fast,
        formats=kinds,
        target=target,
        seed=seed,
    )


def sampled_question(
    kernel: Kernel, case: Case, measured: Measured, sample: Sample, target: str, seed: int
) -> Question:
    """Returns the question about some elements of one result. Its element numbers are those of the sample."""
    name, got = sample.result, measured.results[sample.result]
    whole = problem_of(kernel.op, case, measured.inputs, measured.upstream, (name,))
    fmt = formats.of(got.dtype)

    def chosen(value: Tensor | None) -> Tensor | None:
        return sample.of(value) if value is not None and value.shape == got.shape else value

    upstream = {key: sample.of(value) if value.shape == got.shape else value for key, value in whole.upstream.items()}
    problem = replace(whole, inputs={key: chosen(value) for key, value in whole.inputs.items()}, upstream=upstream)
    definition = sample.op(kernel.op)
    return Question(
        kernel=kernel,
        op=remembering(definition, problem),
        definition=definition,
        case=case,
        problem=problem,
        host=problem,
        fast={name: sample.reference},
        formats={name: fmt},
        target=target,
        seed=seed,
        whole=Whole(None if sample.alone else whole, tuple(got.shape), sample.places, of_many(got, fmt)),
    )


def _on_host(problem: Problem) -> Problem:
    inputs = {name: None if value is None else value.cpu() for name, value in problem.inputs.items()}
    upstream = {name: value.cpu() for name, value in problem.upstream.items()}
    decisions = {key: value.cpu() for key, value in problem.kept.decisions.items()}
    return replace(problem, inputs=inputs, upstream=upstream, kept=replace(problem.kept, decisions=decisions, exact={}))


def judge_case(
    kernel: Kernel,
    group: Group,
    question: Question,
    given: dict[str, dict[str, Tensor]],
    known: dict[str, dict[str, Findings]],
    *,
    few: bool = False,
) -> CaseFindings:
    """Judges all results of one case and returns the findings about each.

    given: the results by source. PyTorch's results (`BASELINE`) get less effort than the kernel's.
    known: the findings about earlier cases, by source and result. Only elements worse than those are described.
    few: True judges as few elements exactly of a single case as of one among others.
    """
    effort, effort_of_baseline = _efforts(kernel, group, question, few)

    @functools.cache  # shared by all sources: the parts depend on the case alone
    def parts(name: str, shape: tuple[int, ...]) -> tuple[Tensor | None, Parts]:
        if question.case.fill in ENDLESS and not question.op.geometry.by_element:
            beside = given.get(BASELINE, {}).get(name)
            return special_parts(question.case, question.problem, rules[name].truth.value, beside)
        largest = kernel.largest.get(question.case.dtype)
        return classed(question.op, question.case, question.problem, name, shape, largest)

    rules_of: dict[int, dict[str, JudgedBy]] = {}  # of the questions at each choice at ties
    for each in (question, *question.others.values()):
        rules_of[id(each)] = {name: each.judged_by(name) for name in each.fast}
    for by in (BASELINE, KERNEL):  # before either is judged, so that both get the same noise
        rules = rules_of[id(question.others.get(by, question))]
        for name in rules.keys() & given.get(by, {}).keys():
            got = given[by][name].to(rules[name].truth.value.device)
            rules[name] = rules[name].with_noise_again(got)
    judged: CaseFindings = {}
    theirs: dict[str, Tensor] = {}  # by result: True at elements where PyTorch is within the limit
    for by, results in sorted(given.items(), key=lambda item: item[0] != BASELINE):
        own = by != BASELINE
        asked = question.others.get(by, question)
        judging = _Judging(
            asked,
            rules_of[id(asked)],
            parts,
            effort if own else effort_of_baseline,
            each=own and not kernel.peer,
            trivial=by == KERNEL and not kernel.peer and not group.pinned,
            held=getattr(kernel.function, "contained", False),
            theirs=theirs,
        )
        judged[by] = judging.findings(results, known.get(by, {}))
    for name, item in judged.get(KERNEL, {}).items():
        wrong = check_limit(kernel, question.case.dtype, name, item.parts).status == "wrong"
        judged[KERNEL][name] = msgspec.structs.replace(item, wrong=[wrong])
    ordinary = class_of_recipe(question.case.regime or question.case.fill) == ORDINARY
    if kernel.encoded is not None and not kernel.peer and question.whole is None and ordinary:
        for name, findings in judged[KERNEL].items():
            if name not in known[KERNEL] or not known[KERNEL][name].mistake:
                near = rules_of[id(question)][name].truth.value
                got = given[KERNEL][name].to(near.device)
                words = mistake(kernel.encoded, question.definition, question.problem, name, got, near)
                judged[KERNEL][name] = msgspec.structs.replace(findings, mistake=words)
    whole, own = question.whole is None, not kernel.peer and not group.pinned
    if judged.get(KERNEL) and own and whole and question.case == blind_case(group.cases):
        first = next(iter(judged[KERNEL]))
        rules = rules_of[id(question.others.get(KERNEL, question))]
        limits = {name: kernel.limit(question.case.dtype, name) for name in judged[KERNEL]}
        found = blind_spots([rules[name] for name in limits], limits)
        judged[KERNEL][first] = msgspec.structs.replace(judged[KERNEL][first], blind=found)
    return {by: judged[by] for by in given}


def _efforts(kernel: Kernel, group: Group, question: Question, few: bool) -> tuple[Effort, Effort]:
    """Returns the effort for results of a kernel, and the smaller one for PyTorch's."""
    # with several cases the ten worst elements come from different cases; a single case must give all ten
    single = len(group.cases) == 1 and not few
    keep, sample = (KEEP, SAMPLE) if single else (2, SAMPLE_EACH)
    open_limit, open_limit_peer = (OPEN_ONE_CASE if single else OPEN_EACH_CASE), OPEN_PEER
    if kernel.peer:
        sample, open_limit = 1, open_limit_peer
    if question.case.fill in ENDLESS:  # no bound says anything about NaN
        sample = 0
    if group.exhaustive:
        open_limit = open_limit_peer = OPEN_LIMIT
    elif kernel.op.geometry.named:
        open_limit = open_limit_peer = OPEN_GRAPH
    rounds = ROUNDS_GRAPH if kernel.op.geometry.named else CONTENDER_ROUNDS
    # the first source that is judged spends few exact values on the bounds before it spends them all
    at_first = sample if question.host.kept.effort < 1 else 0
    return Effort(sample, keep, open_limit, rounds), Effort(at_first, 1, open_limit_peer, rounds)


@dataclass(frozen=True)
class _Judging:
    """Holds how the results of one case are judged, for one source: the kernel, a mode of inference or PyTorch.

    If `each` is true, the worst element of every part is described too. `theirs` has, by result, the elements at which
    PyTorch is within the limit. Judging PyTorch fills it. Results of the other sources are compared with it.
    """

    question: Question
    rules: dict[str, JudgedBy]
    parts_of: Callable[[str, tuple[int, ...]], tuple[Tensor | None, Parts]]
    effort: Effort
    each: bool
    trivial: bool
    held: bool  # True: errors are compared with PyTorch's in their neighbourhood
    theirs: dict[str, Tensor]

    def findings(self, results: dict[str, Tensor], known: dict[str, Findings]) -> dict[str, Findings]:
        """Returns the findings about every result of one case."""
        return {
            name: self._of_result(by, results[name].to(by.truth.value.device), known.get(name, Findings()))
            for name, by in self.rules.items()
            if name in results
        }

    def _of_result(self, by: JudgedBy, got: Tensor, before: Findings) -> Findings:
        """Judges one result."""
        question, name = self.question, by.result
        op = question.op
        segments, parts = self.parts_of(name, tuple(got.shape))
        outcome = judge_by(by, got, segments=segments, n_segments=len(parts), effort=self.effort)
        near = Peaks()
        if self.held:
            numbers = [place for place, (regime, _) in enumerate(parts) if regime.name in APART]
            apart = None if segments is None else torch.isin(segments, torch.tensor(numbers, device=segments.device))
            near = peaks_of(outcome.errors, coordinate(op, question.problem, by.truth.value), apart)
        outcome = self._compared(name, outcome, segments, len(parts))
        tallies: dict[PartName, Tally] = {}
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
        return Findings(
            parts=tallies,
            bounds={regime.name: regime for (regime, _), part in zip(parts, outcome.tallies, strict=True) if part.n},
            worst=_new_worst(question, name, got, outcome, parts, before, each=self.each),
            escalated=outcome.escalated,
            certificates=[outcome.certificate],
            n=got.numel(),
            whole=got.numel() if question.whole is None else math.prod(question.whole.shape),
            curve=curve,
            operand=operand,
            edges=edges,
            trivial=trivial_at_ordinary(by, segments, parts) if self.trivial else {},
            digest="" if question.whole is None else question.whole.digest,
            near=near,
        )

    def _compared(self, name: str, outcome: JudgedResult, segments: Tensor | None, count: int) -> JudgedResult:
        """Returns the outcome with counts of the elements that are beyond the limit while PyTorch's are within it."""
        limit, found = self.question.kernel.limit(self.question.case.dtype, name), outcome.errors
        if not self.each and name not in self.theirs:  # PyTorch's own result, which is judged first
            self.theirs[name] = found.within(limit)
            return outcome
        if name not in self.theirs:
            return outcome
        beyond = ~(found.least[-1] <= limit) | found.nonfinite
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
    values: Tensor, edges: tuple[float, ...], outcome: JudgedResult, segments: Tensor | None, parts: Parts
) -> list[Peak]:
    """Returns the largest error in each bin of the operand that decides how an element behaves.

    `values` has that operand for every element. Elements with infinite or NaN inputs, or with inputs beyond the
    declared magnitude, are excluded, as in the figures of the result.
    """
    assert segments is not None
    apart = torch.tensor([regime.name in APART for regime, _ in parts], device=segments.device)
    bins = torch.where(apart[segments.reshape(-1)], -1, bins_of(values, edges))
    error = torch.where(outcome.errors.nan, math.nan, outcome.errors.ulp)
    fmt = formats.of(values.dtype)
    return peaks(bins, error, size=len(edges) - 1, base=0, fmt=fmt, bits=lambda at: bits_of(values[at]))


def _new_worst(
    question: Question, result: str, got: Tensor, outcome: JudgedResult, parts: Parts, known: Findings, *, each: bool
) -> list[tuple[float, PartName, Worst]]:
    """Describes the elements of one case that are among the worst so far. `known` has those of the earlier cases."""
    scaled = question.op.gate_of(result) != "plain"

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
    among = kept([*known.worst, *found], each=each)
    return [(error, part, element(error, place)) for error, part, place in among if isinstance(place, int)]
