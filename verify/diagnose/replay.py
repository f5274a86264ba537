"""Replays one element of one case: makes the same inputs, runs the whole case again, and judges the element exactly.

Hypothesis is imported only to try a law or to make a case smaller.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import msgspec
import torch

from verify.backends import Backend
from verify.cases import Case, problem_of
from verify.cases.classes import class_of, classed, segments_of
from verify.declare.declaration import Kernel
from verify.diagnose.requests import Replay, Smaller
from verify.errors import UsageError
from verify.measure.call import Measured, run_baseline, run_kernel
from verify.measure.element import worst_element
from verify.measure.judge import JudgedBy
from verify.measure.quantiser import QuantiserJudging, parts_of
from verify.records.readings import BEYOND, NONFINITE
from verify.records.record import LawRun, Number, Origin, Worst, number
from verify.truth import formats
from verify.truth.exact import Judged, judge_known
from verify.truth.fast import Truth, decided, evaluate
from verify.truth.quantised import Encoding, causes
from verify.truth.quantised import judge as judge_blocks
from verify.truth.ulp import bits_of, pattern_at

if TYPE_CHECKING:
    from verify.laws.law import Law


def replay(kernel: Kernel, target: str, backend: Backend, case: Case, *, result: str, index: int) -> Replay:
    """Runs the case and judges element `index` (flat) of `result`."""
    measured = run_kernel(kernel, case, backend.device)
    if kernel.encoding is not None:
        raise UsageError(
            f"a replay judges one number, and {kernel.name!r} returns codes; on this case "
            + _on_case(kernel, kernel.encoding, target, backend, case, measured),
            hint=f"verify run {target}",
        )
    again = run_kernel(kernel, case, backend.device)
    if result not in measured.results:
        raise UsageError(f"kernel {kernel.name!r} has no result {result!r} here; it has: {', '.join(measured.results)}")
    got = measured.results[result]
    if not 0 <= index < got.numel():
        raise UsageError(f"{result} has {got.numel()} elements; --index received {index}")
    same = all(torch.equal(bits_of(first), bits_of(again.results[name])) for name, first in measured.results.items())
    worst, judged, error = judge_element(kernel, target, case, measured, result, index)
    right = judged.right_bits
    baseline, baseline_error = None, None
    if not kernel.peer:
        theirs = run_baseline(kernel, case, backend.device)
        if result in theirs.results:
            baseline, _, baseline_error = judge_element(kernel, target, case, theirs, result, index)
    fmt = formats.of(got.dtype)
    problem = problem_of(kernel.op, case, measured.inputs, measured.upstream, (result,))
    places, parts = classed(kernel.op, case, problem, result, tuple(got.shape), kernel.largest.get(case.dtype))
    part = parts[0 if places is None else int(places[index])]
    of_class, special = class_of(*part), part[0].name == NONFINITE  # no class: beyond the kernel's domain
    limit = kernel.limit_of(case.dtype, of_class, result) if of_class else None
    return Replay(
        kernel=kernel.name,
        op=kernel.op.name,
        result=result,
        dtype=fmt.name,
        backend=backend.name,
        worst=worst,
        case=case.to_json(),
        flat_index=index,
        ulp_exponent=judged.exponent,
        right="nan" if right is None else repr(fmt.to_float(right)),
        right_hex="any NaN" if right is None else fmt.hex(right),
        misrounded=judged.misrounded,
        repeatable=same,
        baseline=baseline,
        error=error,
        baseline_error=baseline_error,
        limit=kernel.limit(case.dtype, result) if limit is None else limit,
        gate=kernel.op.gate_of(result),
        counts=result in kernel.op.integers,
        unpromised="" if limit is not None else f"{of_class} inputs" if of_class else f"inputs {BEYOND}",
        beside_pytorch=limit is None and special,
    )


def _on_case(kernel: Kernel, encoding: Encoding, target: str, backend: Backend, case: Case, measured: Measured) -> str:
    """Returns the verdict on the blocks of one case as text, with causes and facts.

    An example is `6 blocks: 5 right, 1 wrong: ties go up, ...; block [0, 0], ...`.
    """
    judging = QuantiserJudging(kernel, encoding, case.dtype, target, 0, backend.name, lambda case: measured)
    value, parts = judging.value(case, measured), parts_of(measured)
    found = judge_blocks(encoding, value, parts)
    facts = [f"{name} {text}" for name, text in found.facts().items()]
    return found.words + "".join(f"; {each}" for each in (*causes(encoding, value, parts, found), *facts))


def replay_smaller(kernel: Kernel, target: str, backend: Backend, case: Case, *, result: str, index: int) -> Replay:
    """Does the same for the smallest case that is wrong in the same way."""
    from verify.laws.law import Subject
    from verify.laws.shrink import shrink_element

    given = replay(kernel, target, backend, case, result=result, index=index)
    subject = Subject(kernel, case.dtype, backend, None, target)
    found = shrink_element(subject, case, result, index, given.judged)
    about = Smaller(found.evaluations, found.exhausted, given.worst.origin)
    if found.case == case:
        return msgspec.structs.replace(given, smaller=about)
    place = found.broken.index
    small = replay(kernel, target, backend, found.case, result=result, index=0 if place is None else place)
    return msgspec.structs.replace(small, smaller=about)


def replay_law(
    law: Law, kernel: Kernel, case: Case, backend: Backend, target: str, *, shrink: bool
) -> tuple[LawRun, Smaller | None]:
    """Tries one law on one case. If it breaks and `shrink` is true, replays the smallest case found that breaks it."""
    from verify.laws import engine
    from verify.laws.law import Broken, Subject
    from verify.laws.shrink import EVALUATIONS, shrink_broken

    found = engine.replay_law(law, kernel, case, backend, target)
    if not shrink or found.status != "broken":
        return found, None
    subject = Subject(kernel, case.dtype, backend, None, target)
    try:
        engine.attempt(law, subject, case)
    except Broken as broken:
        small = shrink_broken(law, subject, broken, evaluations=EVALUATIONS)
        about = Smaller(small.evaluations, small.exhausted, found.origin)
        return engine.replay_law(law, kernel, small.case, backend, target), about
    return found, None  # the law breaks only sometimes, so the case cannot be made smaller


def judge_element(
    kernel: Kernel, target: str, case: Case, measured: Measured, result: str, index: int
) -> tuple[Worst, Judged, Number]:
    """Judges one element. Returns its record, the exact verdict, and the error that the limit applies to."""
    got = measured.results[result]
    fmt = formats.of(got.dtype)
    problem = problem_of(kernel.op, case, measured.inputs, measured.upstream, (result,))
    problem = kernel.op.meaning.chosen(problem, measured.results)
    pattern = pattern_at(got, index)

    @cache
    def truth() -> Truth:  # with float64 as the format, the whole result would be evaluated exactly
        return evaluate(kernel.op, problem, {result: formats.named("float32")})[result]

    point = kernel.op.points(problem, result, [index])[0]
    if kernel.op.gate_of(result) == "noise":
        point = decided(point, truth(), truth().for_result(got), index)
    judged = judge_known(
        point, lambda: truth().for_result(got).interval(index), fmt, pattern, both=True, policy=kernel.policy
    )
    gate = kernel.op.gate_of(result)
    floor, error = kernel.noise_floor(case.dtype, result), judged.ulp
    if gate != "plain" or floor > 0:
        by = JudgedBy(kernel.op, problem, result, truth(), fmt, kernel.policy, floor=floor)
        error = by.with_noise_again(got).error(judged, index)
    origin = Origin.here(target, case.to_json(), result, index)
    shown = None if gate == "plain" else error
    return worst_element(kernel.op, problem, got, judged, origin, shown), judged, number(error)


def worst_index(kernel: Kernel, case: Case, measured: Measured, result: str) -> int:
    """Returns the flat index of the worst element of a result by the fast truth.

    Elements with finite inputs come first, because more can be explained there.
    """
    got = measured.results[result]
    fmt = formats.of(got.dtype)
    problem = problem_of(kernel.op, case, measured.inputs, measured.upstream, (result,))
    problem = kernel.op.meaning.chosen(problem, {result: got})
    truth, floor = evaluate(kernel.op, problem, {result: fmt})[result], kernel.noise_floor(case.dtype, result)
    by = JudgedBy(kernel.op, problem, result, truth, fmt, kernel.policy, floor=floor)
    _, found = by.with_noise_beside(got).compared(got)
    judged = torch.nan_to_num(found.deciding, nan=torch.inf)
    segments, regimes = segments_of(kernel.op, case, problem, result, tuple(got.shape))
    if segments is not None and regimes[-1].name == NONFINITE:
        judged = torch.where(segments == len(regimes) - 1, -1.0, judged)
    return int(judged.argmax())
