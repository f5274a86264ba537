"""Accuracy: every output and gradient is within the kernel's own limit of the exact answer.

The search tries to make the error large (Hypothesis' `target`), over shapes, value recipes and parameters.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st
from torch import Tensor

from verify import formats
from verify.cases import Case, problem_of
from verify.cases.strategies import cases as draw_cases
from verify.element import describe
from verify.judge import judge_result
from verify.laws.law import Broken, Law, Subject
from verify.measure import run_kernel
from verify.regimes import NONFINITE, segments_of
from verify.truth.fast import evaluate


def _cases(subject: Subject) -> st.SearchStrategy[Case]:
    return draw_cases(subject.kernel, subject.dtype, sizes=subject.sizes)


def _check(subject: Subject, case: Case) -> float:
    measured = run_kernel(subject.kernel, case, subject.backend.device)
    return judge_results(subject, case, measured.inputs, measured.upstream, measured.results)


def judge_results(
    subject: Subject,
    case: Case,
    inputs: dict[str, Tensor | None],
    upstream: dict[str, Tensor],
    results: dict[str, Tensor],
) -> float:
    """The largest error of results of given inputs, in ULP; `Broken` if it is beyond the kernel's own limit."""
    kernel = subject.kernel
    problem = problem_of(kernel.op, case, inputs, upstream, tuple(results))
    kinds = {name: formats.of(tensor.dtype) for name, tensor in results.items()}
    limit = kernel.limit(subject.dtype)
    largest = 0.0
    for name, truth in evaluate(kernel.op, problem, kinds).items():
        got = results[name]
        if got.numel() == 0:
            continue
        segments, regimes = segments_of(kernel.op, case, problem, name, tuple(got.shape))
        outcome = judge_result(
            kernel.op,
            problem,
            name,
            got,
            truth,
            kinds[name],
            policy=kernel.policy,
            segments=segments,
            n_segments=len(regimes),
            seed=case.seed,
            sample=0,
            keep=1,
        )
        scaled = kernel.op.gate == "scaled"
        for regime, part in zip(regimes, outcome.tallies, strict=True):
            special = regime.name == NONFINITE
            upper = part.scaled_upper if scaled else part.upper
            within = not part.nonfinite if special else upper <= limit and not part.nan
            if not special:
                largest = max(largest, upper)
            if within or not part.worst:
                continue
            error, index = part.worst[0]
            judged = outcome.exact[index]
            worst = describe(
                kernel.op, case, problem, name, got, index, judged, subject.target, scaled=error if scaled else None
            )
            facts = {
                "at": f"{name} {list(worst.index)}",
                **worst.inputs,
                "got": f"{worst.got} ({worst.got_hex})",
                "truth": worst.truth,
                "error": f"{error:.6g} ULP" + (" of scale" if scaled else ""),
                "limit": f"{limit:g} ULP",
            }
            rule = "wrong at an infinite or NaN input" if special else "beyond the kernel's own limit"
            raise Broken(rule, case, facts, result=name, index=index)
    return largest


LAWS: Sequence[Law] = (
    Law(
        name="accuracy",
        summary="every result is within the declared limit of the exact answer",
        cases=_cases,
        check=_check,
    ),
)
