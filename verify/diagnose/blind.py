"""Finds every blind spot of a kernel's limits, for `verify explain FILE --blind`."""

from __future__ import annotations

from verify.cases import Case, inputs_of, problem_of, upstream_of
from verify.cases.plan import plan
from verify.declare.declaration import Kernel
from verify.diagnose.requests import BlindSpots
from verify.errors import UsageError
from verify.measure.blind import blind_spots, case_of
from verify.measure.judge import JudgedBy
from verify.ops.graph.blind import mutations
from verify.ops.op import Problem
from verify.truth.fast import evaluate
from verify.truth.formats import Format, named, torch_dtype

EVERY = 1 << 16  # limit of changed definitions: all of them


def every_blind_spot(kernel: Kernel, backend: str, dtypes: tuple[str, ...]) -> list[BlindSpots]:
    """Returns the errors of the definition that would pass, by dtype, on the case in which a run looks for them."""
    if kernel.op.meaning is None or kernel.op.gate != "noise":
        raise UsageError(
            f"kernel {kernel.name!r}: blind spots exist only for a definition by like= that adds up numbers",
            hint=f"verify run {kernel.file} says what its limits are",
        )
    found = []
    for dtype in dtypes or kernel.dtypes:
        cases = [case for group in plan(kernel, dtype, backend, 0) for case in group.cases]
        case = case_of(cases)
        if case is None:
            raise UsageError(f"kernel {kernel.name!r} has no case of ordinary inputs in {dtype}", hint="verify list")
        found.append(_of_case(kernel, dtype, case))
    return found


def _of_case(kernel: Kernel, dtype: str, case: Case) -> BlindSpots:
    op = kernel.op
    problem = _problem(kernel, case)
    formats: dict[str, Format] = {}
    for name in problem.results:
        formats[name] = named(kernel.result_dtype(dtype, name) or dtype)
    judged = [
        JudgedBy(op, problem, name, truth, formats[name], floor=kernel.noise_floor(dtype, name))
        for name, truth in evaluate(op, problem, formats).items()
    ]
    spots = blind_spots(judged, {name: kernel.limit(dtype, name) for name in formats}, EVERY)
    assert op.meaning is not None
    tried = len(mutations(op.program(problem)[0], list(formats)))
    return BlindSpots(dtype, case.to_json(), tried, [each.words for each in spots])


def _problem(kernel: Kernel, case: Case) -> Problem:
    """Returns the problem of a case without a kernel.

    The fast reference gives the outputs for the upstream gradients.
    """
    op, inputs = kernel.op, inputs_of(kernel.op, case, "cpu")
    smooth = tuple(name for name in kernel.outputs if name not in op.integers)
    forward = problem_of(op, case, inputs, {}, smooth)
    if not case.upstream:
        return forward
    values = op.fast(forward)
    kinds = {name: torch_dtype(named(kernel.result_dtype(case.dtype, name) or case.dtype)) for name in smooth}
    upstream = upstream_of(op, case, {name: values[name].value.to(kinds[name]) for name in smooth})
    gradients = tuple(f"d{operand.name}" for operand in kernel.differentiable)
    return problem_of(op, case, inputs, upstream, (*smooth, *gradients))
