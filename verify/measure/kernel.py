"""Measures one kernel completely: every planned case, every output and gradient, beside PyTorch's own results."""

import functools
import itertools
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import msgspec
from torch import Tensor

from verify.backends import Backend
from verify.cases import Case, corpus, problem_of
from verify.cases.models import modelled
from verify.cases.plan import Group, captured, pinned, plan
from verify.declare.declaration import Kernel
from verify.declare.standin import label
from verify.declare.target import Declared
from verify.errors import JudgeFailed, KernelError, Refused, TruthError, no_verdict
from verify.measure.call import Measured, run_baseline, run_judged, running_here
from verify.measure.case import NoAnswer, Question, judge_case, question_of, sampled_question
from verify.measure.case_runner import CaseRunner
from verify.measure.effort import Allowance, Effort, beyond, differing, needed, sampled, total_memory, turn
from verify.measure.findings import BASELINE, KERNEL, CaseFindings, Given, JudgedCase
from verify.measure.quantiser import QuantiserJudging
from verify.measure.remote_call import RemoteKernel, Run
from verify.measure.requests import Measure
from verify.measure.result import GroupFindings, finite
from verify.measure.trivial import KEPT
from verify.ops.op import Problem
from verify.records.record import ORDINARY, RESULT_STATUSES, Gap, GapKind, KernelRun, Result
from verify.truth.formats import named
from verify.truth.quantised import Encoding
from verify.workers.fork_map import LATE, NO_MEMORY, ForkMap, ran_out
from verify.workers.phases import phase
from verify.workers.requests import OnProgress, Step

SHARE = 0.85  # after this share of a kernel's time no further case is tried
JUDGED = 0.95  # after this share of it, forks that judge are ended

HALVED = 5  # at most this many plans of a case are tried, each with half the memory of the one before
SMALL = 1 << 17  # up to this many elements, judging on a CPU is faster than launching its many steps on a GPU
PARALLEL = 1 << 21  # the same limit if other cases run at the same time
_AT_LEAST = 0.1  # seconds of a wait that count
_AHEAD = 1 / 8  # share of a GPU that a case may take if the next one is called meanwhile
_WAITS = 6  # a case is tried this many times while others hold the memory of a GPU
_OF_ONE_CALL, _WORK_OF_ONE_CALL = 1 << 14, 2.0**20  # elements of a result of `judged_results`, and numbers in all steps
Questions = list[tuple[Question, Given]]  # about the results of one case
Asked = tuple[GroupFindings, Given, int]  # a question's group, results and number of its case
LITTLE = 1 / 8  # `Effort.exact` of a measurement that should end soon: a softmax of 16,384 columns takes half


def measure_kernel(
    kernel: Kernel,
    asked: Measure,
    backend: Backend,
    *,
    progress: OnProgress = lambda text: None,
    run: Run | None = None,
    effort: Effort | None = None,
) -> KernelRun:
    """Measures one kernel. A broken contract gives a record too, with status "error" and a message.

    run: calls the kernel. None: the kernel is called in this process.
    asked.accuracy: if false, the record has the declaration and no results.
    asked.plan: a backend whose cases are measured on this one, so that both backends get the same cases. Cases with
        sums over many rows may differ.
    asked.seconds: after this time no further case is tried, and the results so far remain. It counts the kernel's calls
        if judging has time of its own, `asked.judging`.
    asked.judges: the number of cases judged at a time, in forks of this process.

    Cases of the project's corpus are measured after the others, and have results of their own.
    """
    started, seconds = time.monotonic(), asked.seconds + asked.judging
    runner = CaseRunner(
        kernel,
        asked.target,
        run or running_here(kernel, backend.device),
        started + seconds * SHARE,
        asked.seconds,
        asked.judging,
        functools.partial(_demand_answer, kernel, backend.device),
        patient=backend.streams,
    )
    effort = effort or Effort.of(backend, asked.memory)
    allowance = Allowance(effort.seconds, started + (asked.enough or math.inf), asked.needed)
    effort = replace(effort, exact=LITTLE) if asked.enough else effort
    judging = Judging(kernel, backend, runner, effort, allowance, asked, started + seconds * JUDGED)
    if asked.judged:
        judging.finish()
    for dtype in (asked.dtypes or kernel.dtypes) if asked.accuracy and not asked.judged else ():
        if kernel.encoding is not None:
            judging.measure_quantiser(kernel.encoding, dtype, progress)
        else:
            judging.measure(dtype, progress)
    seconds = round(time.monotonic() - started, 3)
    return msgspec.structs.replace(judging.record(), target=asked.target, seconds=seconds)


def judged_results(
    kernel: Kernel, backend: Backend, calls: Sequence[tuple[dict[str, Tensor], Given, str]], judges: int
) -> list[list[Result]]:
    """Returns the results of each call. A call has inputs, results by source, and the recipe that its inputs count as.

    Of a large result the elements that differ most from PyTorch's are judged, and some others. Forks of this process
    judge `judges` calls at a time.
    """
    dtype = kernel.dtypes[0]
    runner = CaseRunner(kernel, "", functools.partial(run_judged, kernel, device=backend.device))
    effort = replace(
        Effort.of(backend), whole=_OF_ONE_CALL, elements=_OF_ONE_CALL, drawn=_WORK_OF_ONE_CALL, exact=LITTLE
    )
    groups = list[GroupFindings]()

    def take(of: Asked, findings: CaseFindings) -> None:
        of[0].add(of[1], findings)

    def lose(of: Asked, reason: str) -> None:
        raise TruthError(f"the judge of a timed call {reason}")

    with ForkMap(judges, CaseFindings, take, lost=lose, until=math.inf) as forks:
        for inputs, given, fill in calls:
            judging = Judging(kernel, backend, runner, effort, Allowance(effort.seconds), Measure("", judges=judges))
            case = Case(dtype=dtype, dims=(0,), fill=fill)
            group = GroupFindings(kernel, dtype, Group((case,), pinned=True))
            groups.append(group)
            measured = Measured({name: value.to(backend.device) for name, value in inputs.items()}, {}, given[KERNEL])
            judging._ask(group, judging._questions(group.of, case, measured, given, effort), forks, 0)
    return [list(group.results(0, label(backend.device))) for group in groups]


def _demand_answer(kernel: Kernel, device: str, case: Case) -> None:
    """Raises NoAnswer if there is no answer for inputs that a kernel refuses and may not refuse."""
    if not kernel.peer and not kernel.refuses and kernel.encoding is None:
        with suppress(KernelError):
            theirs = _baseline(kernel, device, case, None)
            if kernel.op.geometry.named:
                problem = problem_of(kernel.op, case, theirs.inputs, theirs.upstream, tuple(theirs.results))
                question_of(kernel, case, theirs, problem, "", 0, SMALL).demand_answer(theirs.results)


def _baseline(kernel: Kernel, device: str, case: Case, measured: Measured | None) -> Measured:
    """Returns PyTorch's results. Raises NoAnswer if it refuses the inputs."""
    try:
        return run_baseline(kernel, case, device, measured)
    except Refused as error:
        if ran_out(error.__cause__ or error):
            raise
        raise NoAnswer(f"PyTorch refuses its inputs: {error}") from error


@dataclass
class Judging:
    """Measures one kernel: holds the settings, the kernel's calls and the findings so far."""

    kernel: Kernel
    backend: Backend
    runner: CaseRunner
    effort: Effort
    allowance: Allowance
    asked: Measure
    until: float = math.inf  # forks that judge are ended at this time
    notes: list[str] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    covered: str = ""  # a note on the pairs that all dtypes so far cover

    @property
    def cases_of(self) -> str:
        """Returns the backend whose cases are measured."""
        return self.asked.plan or self.backend.name

    def measure_quantiser(self, encoding: Encoding, dtype: str, progress: OnProgress) -> None:
        """Calls a quantiser on the cases of one dtype and judges its blocks."""
        numbers = itertools.count(1)

        def call(case: Case) -> Measured | None:
            progress(Step(f"{self.kernel.name} {dtype}, case {next(numbers)}", "case"))
            results = self.runner.measured(case)
            return None if results is None else results[1]

        of = self.runner.target, self.asked.seed, self.cases_of
        judging = QuantiserJudging(self.kernel, encoding, dtype, *of, call)
        for result, note in judging.results():
            self.results.append(result)
            self.notes.append(note)

    def measure(self, dtype: str, progress: OnProgress) -> None:
        """Calls the kernel on every case of one dtype, judges the results and adds them to the findings."""
        groups = list[GroupFindings]()
        unjudged = Counter[str]()  # number of cases without a verdict, by the reason
        left_out, step = 0, Step("")

        def take(of: Asked, findings: CaseFindings) -> None:
            of[0].open -= 1
            of[0].add(of[1], findings)
            case = JudgedCase(dtype, groups.index(of[0]), of[2], findings)
            progress(step.having(judged=msgspec.msgpack.encode(case)))

        def lose(of: Asked, reason: str) -> None:
            of[0].open -= 1
            of[0].left += 1
            unjudged[reason] += 1

        try:
            groups += self._planned(dtype)
            numbers, total = itertools.count(1), sum(len(each.of.cases) for each in groups)
            with ForkMap(self.asked.judges, CaseFindings, take, lost=lose, until=self.until) as forks:
                for each in groups:
                    for case, following in itertools.zip_longest(each.of.cases, each.of.cases[1:]):
                        if self.asked.fail_fast and each.proven_wrong():
                            break
                        number = next(numbers)
                        if self.allowance.is_spent(case.dims, number / total):
                            left_out += 1
                            each.left += 1
                            continue
                        text = f"{self.kernel.name} {dtype}, case {number} of {total}{each.so_far()}"
                        step = Step(text, "case", number, total)
                        progress(step)
                        self.allowance.cases, late = total - number + 1, self.runner.late
                        try:
                            report = functools.partial(lambda of, seconds: progress(of.having(waited=seconds)), step)
                            self._in_turn(each, case, forks, report, following, number)
                            each.left += self.runner.late - late
                        except (MemoryError, JudgeFailed):
                            unjudged[NO_MEMORY] += 1
                            each.left += 1
                    each.asked = True
        except TruthError as error:
            self._lost("harness error", f"{dtype}: {no_verdict(error)}")
        if left_out:
            self.notes.append(f"{dtype}: {left_out:,} of {total:,} cases were not tried: others took their time")
        for reason, count in unjudged.items():
            self._lost("judge failed", f"{dtype}: the judge {reason}: {count:,} of {total:,} cases have no verdict")
        self._add_all(dtype, [each for each in groups if each.asked and not each.open])

    def _planned(self, dtype: str) -> list[GroupFindings]:
        """Returns the groups of cases of a dtype, with no findings."""
        kernel, seed = self.kernel, self.asked.seed
        cases = [entry.case for entry in corpus.cases_for(kernel.name, dtype) if entry.result]
        planned = plan(kernel, dtype, self.cases_of, seed, rows_of=self.backend.name)
        self.covered = planned[0].covered
        if models := (*kernel.models, *self.asked.models):
            of_models = modelled(kernel, dtype, models, self.backend.scale, seed)
            self.notes.extend(of_models.notes)
            if of_models.impossible:
                self._lost("not possible", of_models.impossible)
            planned = [*planned, *of_models.groups]
        planned = [*planned, *pinned(kernel, dtype, cases), *captured(kernel, dtype)]
        return [GroupFindings(kernel, dtype, group) for group in planned]

    def finish(self) -> None:
        """Adds the findings of cases that another process judged, and calls the kernel no more."""
        self.runner.until = -math.inf
        cases = [msgspec.msgpack.decode(each, type=JudgedCase) for each in self.asked.judged]
        for dtype in dict.fromkeys(case.dtype for case in cases):
            groups, numbers = self._planned(dtype), defaultdict[int, set[int]](set)
            for case in cases:
                if case.dtype == dtype:
                    groups[case.group].add({}, case.findings)
                    numbers[case.group].add(case.number)
            for place, group in enumerate(groups):
                group.left = len(group.of.cases) - len(numbers[place])
            self._add_all(dtype, [groups[place] for place in sorted(numbers) if numbers[place]])

    def _add_all(self, dtype: str, groups: Sequence[GroupFindings]) -> None:
        """Adds the results of groups."""
        try:
            for each in groups:
                self._add(each)
        except TruthError as error:
            self._lost("harness error", f"{dtype}: {no_verdict(error)}")

    def _in_turn(
        self,
        group: GroupFindings,
        case: Case,
        forks: ForkMap[Asked, CaseFindings],
        report: Callable[[float], None],
        following: Case | None,
        number: int,
    ) -> None:
        """Judges a case when it has its turn on the GPU. If memory runs out, it has another turn, with twice the need.

        If forks judge, the kernel is called on the `following` case meanwhile, unless the cases are large. `report`
        gets the seconds of a wait. All limits of time move by them.
        """
        need = needed(self.kernel, case, self.backend, self.effort)
        ahead = self.asked.judges > 1 and need <= _AHEAD * total_memory(self.backend)
        run = self.runner.run
        if ahead and isinstance(run, RemoteKernel) and following is not None and following.dims == case.dims:
            run.expect(following)
            need *= 2
        for again in range(_WAITS if self.backend.streams else 1):
            waiting = time.monotonic()
            with turn(self.backend, need * 2**again):
                waited = time.monotonic() - waiting
                if waited > _AT_LEAST:
                    self.runner.until += waited
                    forks.until += waited
                    report(waited)
                try:
                    self._ask(group, self._called(group.of, case), forks, number)
                    return
                except Exception as error:
                    if not ran_out(error):
                        raise
                finally:
                    self.allowance.end()
            time.sleep(2.0**again if self.backend.streams else 0.0)
        raise MemoryError

    def _ask(
        self, group: GroupFindings, questions: Questions, forks: ForkMap[Asked, CaseFindings], number: int
    ) -> None:
        """Has the results of a case judged: here, or in forks while the next cases are called.

        All memory of a case is free when this returns, if the caller holds no question.
        """
        for question, given in questions:
            ask = functools.partial(judge_case, self.kernel, group.of, question, given, group.found)
            group.open += 1
            forks.ask((group, given, number), ask, here=not question.on_host)

    def record(self) -> KernelRun:
        """Returns the record, without the target and the time that the measurement took."""
        kernel, runner, results = self.kernel, self.runner, self.results
        dtypes = {result.dtype for result in results}
        status, message = runner.verdict(dtypes)
        if runner.judge_was_late:
            self._lost("judge failed", f"the judge {LATE}: {runner.too_late}")
        elif runner.late and results:  # they are right or wrong, and a slow kernel is neither
            self._lost("timeout", runner.too_late)
        self.gaps.extend(Gap("refused", f"{kernel.name}: {text}", runner.target) for text in runner.undeclared(dtypes))
        wrong = [result for result in results if result.status == "wrong"]
        with phase("judge: repeat calls with wrong results"):
            own_turn = lambda case: turn(self.backend, needed(kernel, case, self.backend, self.effort))  # noqa: E731
            differs = "" if kernel.peer or self.asked.judged else runner.difference(wrong, own_turn)
        if self.gaps and not results and status == "ok":
            status, message = "skipped", self.gaps[0].text.removeprefix(f"{kernel.name}: ")
        if status == "ok":
            status = max((result.status for result in results), key=RESULT_STATUSES.index, default="ok")
        return Declared.of(kernel, "").run(
            status,
            message,
            definition=kernel.op.definition,
            results=results,
            notes=[*self.notes, *filter(None, [self.covered])],
            unrepeatable=differs,
            unmeasured=runner.unmeasured,
            gaps=self.gaps,
            sizes={} if kernel.op.geometry.examples else self.sizes,
        )

    def _lost(self, kind: GapKind, text: str) -> None:
        """Records that something has no verdict; the run becomes incomplete."""
        gap = Gap(kind, f"{self.kernel.name}: {text}", self.runner.target)
        if gap not in self.gaps:
            self.notes.append(text)
            self.gaps.append(gap)

    def _called(self, group: Group, planned: Case) -> Questions:
        """Calls the kernel and PyTorch on a case. Returns the questions about it; none if the kernel gave no result."""
        effort = self.effort
        try:
            with phase("judge: inputs, and the kernel's results"):
                results = self.runner.measured(planned)
            if results is None:
                return []
            case, measured = results
            with phase("judge: PyTorch's results"):
                given = self._given(case, measured)
            for _ in range(HALVED):
                try:
                    with phase("judge: elements, and their references"):
                        questions = self._questions(group, case, measured, given, effort)
                    for question, some in questions:
                        question.demand_answer(some.get(BASELINE, {}))
                    return questions
                except Exception as error:
                    if not ran_out(error):
                        raise
                    effort = effort.halved()
        except NoAnswer as error:
            self._lost("no reference", f"no verdict where {error}")
            return []
        raise MemoryError

    def _given(self, case: Case, measured: Measured) -> Given:
        """Returns the results of a case by source. PyTorch's results are omitted if memory runs out."""
        given = {KERNEL: measured.results}
        if self.kernel.peer:
            return given
        try:
            baseline = _baseline(self.kernel, self.backend.device, case, measured).results
        except KernelError as error:
            if error.__cause__ is None or not ran_out(error.__cause__):
                raise
            self.notes.append(f"{case.dtype}: PyTorch ran out of memory for dims {case.dims}")
            return {**given, **measured.inference}
        if lacking := measured.lacking(baseline):
            self._lost("no gradient", lacking)
        return {**given, BASELINE: baseline, **measured.inference}

    def _questions(self, group: Group, case: Case, measured: Measured, given: Given, effort: Effort) -> Questions:
        """Returns the questions about a case, each with the results to judge.

        One question covers all results, if that fits. Forks of a long case get one for each result.
        """
        wanted = tuple(filter(group.judges, measured.results))
        problem = problem_of(self.kernel.op, case, measured.inputs, measured.upstream, wanted)
        problem.kept.effort, problem.kept.first = effort.exact, 1.0
        if not effort.holds(self.kernel.op, problem):
            return self._sampled(problem, case, measured, given, effort)
        small = PARALLEL if self.asked.judges > 1 else SMALL
        question = question_of(self.kernel, case, measured, problem, self.runner.target, self.asked.seed, small)
        question = question.explaining(given)
        if question.on_host:  # a fork cannot use the GPU
            given = {by: {name: value.cpu() for name, value in results.items()} for by, results in given.items()}
        several = question.on_host and self.asked.judges > 1 and question.problem.is_long  # so several forks share it
        return [(question.of(name), given) for name in question.fast] if several else [(question, given)]

    def _sampled(self, problem: Problem, case: Case, measured: Measured, given: Given, effort: Effort) -> Questions:
        """Returns questions about some elements of each result.

        If not even one element is affordable, the result is a gap.
        """
        op, found, count = self.kernel.op, [], len(problem.results)
        forks = self.asked.judges > 1
        self.allowance.begin(case.dims)
        for at, name in enumerate(problem.results):
            beside = given.get(BASELINE, {}).get(name)
            singled = differing(measured.results[name], beside)
            own = replace(effort, seconds=self.allowance.share(count - at, count))
            with phase(f"evaluate some elements of {name}"):
                sample = sampled(op, problem, name, singled, own, self.asked.seed, forks=forks)
            if sample is None:
                self._lost("judge failed", f"{case.dtype}: {beyond(name, case)}")
                continue
            question = sampled_question(self.kernel, case, measured, sample, self.runner.target, self.asked.seed)
            question.host.kept.effort = effort.exact
            of_sample = {by: {name: sample.of(results[name])} for by, results in given.items() if name in results}
            found.append((question.explaining(of_sample), of_sample))
        return found

    def _add(self, group: GroupFindings) -> None:
        """Adds the results of a group, its largest sizes, and a note on blind spots."""
        own, geometry = group.found[KERNEL], self.kernel.op.geometry
        for case in itertools.chain.from_iterable(item.cases for item in own.values()) if geometry.named else ():
            for name, size in zip(geometry.dims, case.dims, strict=True):
                self.sizes[name] = max(size, self.sizes.get(name, 0))
        blind = sorted((spot for item in own.values() for spot in item.blind), reverse=True)[:KEPT]
        self.notes.extend(f"{group.dtype}: {words}" for _, words in blind)
        for name in self.kernel.relative.keys() & own.keys():
            promise, theirs = self.kernel.relative[name], group.found[BASELINE].get(name)
            figures = [finite(each.parts, ORDINARY).figures().rms or 0.0 for each in (own[name], theirs) if each]
            shares = ", PyTorch's ".join(f"{promise.share * rms:.2g}" for rms in figures)
            fmt = named(self.kernel.result_dtype(group.dtype, name) or group.dtype)
            alone = 2.0 ** (1 - fmt.precision) / math.sqrt(28)  # ulp / sqrt(12), of numbers spread evenly over a binade
            words = f"the error is {shares} of the root mean square on ordinary inputs"
            words += f", where rounding to {fmt.name} gives about {alone:.2g}"
            self.notes.append(f"{name} {group.dtype}: {words}; promised {promise.words}")
        for name, item in own.items():
            for tie, count in item.slopes.items():
                text = f"{name} {group.dtype}: at equal numbers the slope is not PyTorch's in {count:,} elements"
                self.notes.append(f"{text}, as of {tie}; ties='as like' demands PyTorch's")
        self.results.extend(group.results(self.asked.seed, label(self.backend.device)))
