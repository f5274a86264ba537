"""One kernel, measured completely: every planned case, every output and gradient, beside PyTorch's own."""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import msgspec
from torch import Tensor

from verify.backends import Backend
from verify.cases import Case, corpus
from verify.cases.fingerprint import fingerprint
from verify.cases.plan import Group, pinned, plan
from verify.cases.regimes import deciding_operand
from verify.declare.declaration import Kernel
from verify.declare.standin import label
from verify.errors import JudgeFailed, KernelError, TruthError, no_verdict
from verify.measure.blind import KEPT
from verify.measure.call import Measured, no_gradient, run_baseline, run_judged
from verify.measure.case import BASELINE, KERNEL, Collected, Pieces, Question, judge_case, question_of
from verify.measure.curve import recorded
from verify.measure.digest import Digest
from verify.measure.remote_call import Run
from verify.measure.result import KEEP_RIGHT, check_limit, result_of
from verify.measure.special import special_values
from verify.measure.trying import Trying
from verify.records.record import RESULT_STATUSES, Basis, Gap, KernelRun, Origin, Result, SpecialValue
from verify.truth import formats
from verify.truth.ulp import pattern_at
from verify.workers.fork_map import LATE, NO_MEMORY, ForkMap
from verify.workers.requests import WorkerDied, WorkerTimeout

Progress = Callable[[str], None]

SHARE = 0.85  # of a kernel's time, after which no further case is tried
JUDGED = 0.95  # of it, after which forks that judge are ended

DIFFER = "two calls with the same input differ"
MOST_ENDED = 13  # processes that a kernel may end
SMALL = 1 << 17  # elements up to which judging on a CPU is faster than launching its many steps on a GPU
PARALLEL = 1 << 21  # the same where others go on meanwhile


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
    seconds: float = math.inf,
    run: Run | None = None,
    judges: int = 1,
) -> KernelRun:
    """Everything about one kernel. A broken contract is a result too: status "error" with its message.

    Without `accuracy` the record has what the kernel declares and no result. `cases_of` names a backend whose cases
    are measured on this one, so that both answer the same questions, but for sums over many rows. Cases that the
    project's corpus has for this kernel are measured after the others, as results of their own. `run` calls the kernel,
    here without one; once it has ended MOST_ENDED processes, no further case is tried. After so many seconds none is
    either, and what has been measured stays. With several `judges` that many cases are judged at a time, in forks of
    this process.
    """
    started = time.monotonic()
    calls = _Calls(run or (lambda case: run_judged(kernel, case, backend.device)))
    trying = Trying(
        kernel, target, until=started + seconds * SHARE, seconds=seconds, lost=lambda: calls.ended >= MOST_ENDED
    )
    notes: list[str] = []
    results: list[Result] = []
    gaps: list[Gap] = []
    sizes: dict[str, int] = {}

    def no_verdict_on(dtype: str, error: TruthError) -> None:
        """A dtype, or what of it was not judged before, has none, which makes the run incomplete."""
        notes.append(f"{dtype}: {no_verdict(error)}")
        gaps.append(Gap("harness error", f"{kernel.name}: {notes[-1]}", target))

    def judge_failed(text: str) -> None:
        """Records what the judge gave no verdict on; the run becomes incomplete."""
        notes.append(text)
        gaps.append(Gap("judge failed", f"{kernel.name}: {text}", target))

    for dtype in (dtypes or kernel.dtypes) if accuracy else ():
        judging: list[_Judging] = []
        unjudged = Counter[str]()  # cases that the judge gave no verdict on, by the reason

        def lose(asked: Asked, reason: str, unjudged: Counter[str] = unjudged) -> None:
            asked[0].open -= 1
            unjudged[reason] += 1

        try:
            cases = [entry.case for entry in corpus.cases_for(kernel.name, dtype) if entry.result]
            planned = plan(kernel, dtype, cases_of or backend.name, seed, rows_of=backend.name)
            judging += map(_Judging, [*planned, *pinned(kernel, dtype, cases)])
            numbers, total = itertools.count(1), sum(len(each.group.cases) for each in judging)

            def begins(dtype: str = dtype, numbers: Iterator[int] = numbers, total: int = total) -> None:
                progress(f"{kernel.name} {dtype}, case {next(numbers)} of {total}")

            with ForkMap(judges, Pieces, _collect, lost=lose, until=started + seconds * JUDGED) as forks:
                for each in judging:
                    _judge(kernel, target, backend, each, seed, notes, calls, trying, begins, judges, forks, unjudged)
        except TruthError as error:
            no_verdict_on(dtype, error)
        measured = (one.cases for each in judging for one in each.found[KERNEL].values())
        for case in itertools.chain.from_iterable(measured):
            for name, size in zip(kernel.op.dims, case.dims, strict=True) if kernel.op.dims else ():
                sizes[name] = max(size, sizes.get(name, 0))
        for reason, count in unjudged.items():
            judge_failed(f"{dtype}: the judge {reason}: {count:,} of {total:,} cases have no verdict")
        try:
            for each in judging:
                if each.asked and not each.open:
                    results += _results_of(kernel, target, backend, dtype, each, seed, notes, calls, trying)
        except TruthError as error:
            no_verdict_on(dtype, error)
    status, message = trying.verdict({result.dtype for result in results})
    if trying.judge_was_late:
        judge_failed(f"the judge {LATE}: {trying.too_late}")
    differs = "" if kernel.peer else calls.difference([result for result in results if result.status == "wrong"])
    if gaps and not results and status == "ok":
        status, message = "skipped", gaps[0].text.removeprefix(f"{kernel.name}: ")
    if status == "ok":
        status = max((result.status for result in results), key=RESULT_STATUSES.index, default="ok")
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
        unrepeatable=differs,
        seconds=round(time.monotonic() - started, 3),
        unmeasured=trying.unmeasured,
        gaps=gaps,
        sizes={} if kernel.op.examples else sizes,
    )


class _Calls:
    """The calls of one kernel, of which the first is kept: where something is wrong, calls are asked for again."""

    def __init__(self, run: Run) -> None:
        self._run, self._count = run, 0
        self.ended = 0  # calls that ended the kernel's process
        self._first: tuple[Case, dict[str, str]] | None = None

    def __call__(self, case: Case) -> Measured:
        try:
            measured = self._run(case)
        except (WorkerDied, WorkerTimeout):
            self.ended += 1
            raise
        self._count += 1
        if self._first is None:
            self._first = case, _digests(measured)
        return measured

    def difference(self, wrong: Sequence[Result]) -> str:
        """How two calls of a wrong kernel with the same input differ: on its worst inputs, or those of its first."""
        try:
            for result in wrong:
                # a result of a mode of inference is found again by its law, which asks for it so
                for worst in [each for each in result.worst[:1] if each.origin.result]:
                    found = self._run(Case.from_json(worst.origin.case)).results[worst.origin.result]
                    fmt = formats.of(found.dtype)
                    pattern = pattern_at(found, worst.origin.index)
                    both_nan = math.isnan(fmt.to_float(pattern)) and worst.got == "nan"
                    if fmt.hex(pattern) != worst.got_hex and not both_nan:
                        at = f"{worst.origin.result} {result.dtype} at {list(worst.index)}"
                        return f"{DIFFER}: {at} was {worst.got_hex}, then {fmt.hex(pattern)}"
            if wrong and self._first is not None:
                case, first = self._first
                later = _digests(self._run(case))
                if other := [name for name in first if later.get(name) != first[name]]:
                    return f"{DIFFER}: {', '.join(other)} of the first call, and after {self._count:,} calls"
        except (KernelError, WorkerDied, WorkerTimeout, JudgeFailed):
            pass
        return ""


def _digests(measured: Measured) -> dict[str, str]:
    found = {name: Digest(formats.of(value.dtype)) for name, value in measured.results.items()}
    for name, digest in found.items():
        digest.add(measured.results[name])
    return {name: digest.text for name, digest in found.items()}


@dataclass
class _Judging:
    """A group of cases on the way to its results."""

    group: Group
    found: dict[str, dict[str, Collected]] = field(default_factory=lambda: {KERNEL: {}, BASELINE: {}})  # and by modes
    open: int = 0  # questions without an answer
    asked: bool = False  # every case was asked about


Asked = tuple[_Judging, Case, dict[str, dict[str, Tensor]]]  # what a question was about, and who gave which results


def _collect(asked: Asked, pieces: Pieces) -> None:
    judging, case, given = asked
    judging.open -= 1
    for by, of_results in pieces.items():
        into = judging.found.setdefault(by, {})
        for name, piece in of_results.items():
            got = given[by][name]
            into.setdefault(name, Collected(fmt=formats.of(got.dtype))).add(case, got, piece)


def _judge(
    kernel: Kernel,
    target: str,
    backend: Backend,
    judging: _Judging,
    seed: int,
    notes: list[str],
    run: Run,
    trying: Trying,
    begins: Callable[[], None],
    judges: int,
    forks: ForkMap[Asked, Pieces],
    unjudged: Counter[str],
) -> None:
    """Every case of a group: called here, and judged in forks while the next ones are called."""
    group = judging.group
    for planned in group.cases:
        begins()
        try:
            made = trying.measured(run, planned)
            if made is None:
                continue
            case, measured = made
            notes += [note for note in _missing(measured) if note not in notes]
            question = question_of(kernel, case, measured, group, target, seed, PARALLEL if judges > 1 else SMALL)
            given = {KERNEL: measured.results}
            if not kernel.peer:
                given |= {BASELINE: run_baseline(kernel, case, backend.device).results, **measured.inference}
            if question.on_host:  # also what a fork shall judge, which cannot use the GPU
                given = {by: {name: value.cpu() for name, value in results.items()} for by, results in given.items()}
        except (MemoryError, JudgeFailed):
            unjudged[NO_MEMORY] += 1
            continue
        for each in _apart(question) if judges > 1 and question.on_host else [question]:
            judging.open += 1
            ask = functools.partial(judge_case, kernel, group, each, given, judging.found)
            forks.ask((judging, case, given), ask, here=not question.on_host)
    judging.asked = True


def _apart(question: Question) -> list[Question]:
    """A question about each result of a long case: the longest decides when all are answered."""
    if not question.problem.is_long:
        return [question]
    return [replace(question, fast={name: fast}) for name, fast in question.fast.items()]


def _results_of(
    kernel: Kernel,
    target: str,
    backend: Backend,
    dtype: str,
    judging: _Judging,
    seed: int,
    notes: list[str],
    run: Run,
    trying: Trying,
) -> list[Result]:
    group, found = judging.group, judging.found
    own, of_baseline = found.pop(KERNEL), found.pop(BASELINE)
    blind = sorted((each for item in own.values() for each in item.blind), reverse=True)[:KEPT]
    notes += [f"{dtype}: {each.words}" for each in blind]
    whole = not group.only_gradients and not group.pinned
    special = _special(kernel, target, dtype, notes, run) if whole and own and not trying.ended else {}
    torch_name = label(backend.device)
    results = [
        _result(kernel, name, dtype, item, of_baseline.get(name), torch_name, group, seed, special.get(name, []))
        for name, item in own.items()
    ]
    for mode, items in found.items():
        for name, item in items.items():
            result = _result(kernel, name, dtype, item, None, torch_name, group, seed, [])
            results.append(_of_inference(result, mode, fingerprint(kernel, f"{name} {mode}", dtype, item.cases)))
    return results


def _of_inference(result: Result, mode: str, properties: str) -> Result:
    """The result of a mode of inference; the law of accuracy calls the kernel so, and replays it."""
    shown = [
        msgspec.structs.replace(worst, origin=Origin(worst.origin.target, worst.origin.case, law="accuracy"))
        for worst in result.worst
    ]
    return msgspec.structs.replace(result, output=f"{result.output} {mode}", properties=properties, worst=shown)


def _missing(measured: Measured) -> list[str]:
    """Why gradients have no figures: a forgotten backward pass must not look like one that was left out on purpose."""
    if measured.missing and not any(name.startswith("d") for name in measured.results):
        return ["no gradients measured: the output does not require grad; gradients=False says so on purpose"]
    return [no_gradient(name) for name in measured.missing]


def _special(kernel: Kernel, target: str, dtype: str, notes: list[str], run: Run) -> dict[str, list[SpecialValue]]:
    """The special-value matrix. A kernel that refuses its small case keeps its figures, and the note says so."""
    try:
        return special_values(kernel, target, dtype, run)
    except (KernelError, WorkerDied, WorkerTimeout, JudgeFailed) as error:
        notes.append(f"{dtype}: special values were not tried one by one: {error}")
        return {}


def _result(
    kernel: Kernel,
    name: str,
    dtype: str,
    item: Collected,
    peer: Collected | None,
    peer_name: str,
    group: Group,
    seed: int,
    special_values: list[SpecialValue],
) -> Result:
    findings = item.findings
    judged = check_limit(kernel, dtype, name, item.parts, item.trivial)
    lists = [item.worst, item.special]
    if judged.only_special:  # first the inputs that the reason names
        lists.reverse()
    described = [entry for entries in lists for _, entry in entries]
    curve = None
    if item.operand is not None:
        beside = None if peer is None else peer.curve
        curve = recorded(deciding_operand(kernel.op), item.operand, item.edges, item.curve, beside)
    basis = Basis("exhaustive", item.n) if group.exhaustive else Basis("observed", item.n, seed)
    result = result_of(
        kernel,
        dtype,
        findings,
        None if peer is None else peer.findings,
        result=name,
        output=group.named(name),
        basis=basis,
        judged=judged,
        bounds=item.bounds,
        worst=described if judged.reason and not kernel.peer else described[:KEEP_RIGHT],
        baseline_name=peer_name,
        baseline_worst=[] if peer is None else [entry for _, entry in peer.worst[:1]],
        properties=_properties(kernel, name, dtype, group, item.cases),
        curve=curve,
    )
    form = "" if item.fmt.name == dtype or name in kernel.op.integers else item.fmt.name
    return msgspec.structs.replace(result, special=special_values, bits=item.digest.text, format=form)


def _properties(kernel: Kernel, name: str, dtype: str, group: Group, cases: Sequence[Case]) -> str:
    """The property hash, of the cases that gave a result: a kernel that begins to refuse some is not comparable.
    The corpus is one property, so that pinning a case does not make its bound incomparable."""
    if group.pinned:
        return fingerprint(kernel, group.named(name), dtype, space="pinned")
    return fingerprint(kernel, name, dtype, cases)
