"""Finds every blind spot of a kernel's limits, for `verify explain FILE --blind`."""

from __future__ import annotations

from verify.backends import Backend
from verify.cases import Case, problem_of
from verify.cases.plan import plan
from verify.declare.declaration import Kernel
from verify.diagnose.requests import BlindSpots
from verify.errors import UsageError
from verify.measure.call import run_kernel
from verify.measure.case import question_of
from verify.measure.kernel import SMALL
from verify.measure.trivial import blind_spots, case_of
from verify.ops.graph.blind import mutations

EVERY = 1 << 16  # limit of changed definitions: all of them


def every_blind_spot(kernel: Kernel, backend: Backend, dtypes: tuple[str, ...]) -> list[BlindSpots]:
    """Returns the errors of the definition that would pass, by dtype, on the case in which a run looks for them."""
    if kernel.op.gate != "noise":
        raise UsageError(
            f"kernel {kernel.name!r}: blind spots exist only for a definition by like= that adds up numbers",
            hint=f"verify run {kernel.file} says what its limits are",
        )
    found = []
    for dtype in dtypes or kernel.dtypes:
        cases = [case for group in plan(kernel, dtype, backend.name, 0) for case in group.cases]
        case = case_of(cases)
        if case is None:
            raise UsageError(f"kernel {kernel.name!r} has no case of ordinary inputs in {dtype}", hint="verify list")
        found.append(_of_case(kernel, backend, case))
    return found


def _of_case(kernel: Kernel, backend: Backend, case: Case) -> BlindSpots:
    measured = run_kernel(kernel, case, backend.device)
    problem = problem_of(kernel.op, case, measured.inputs, measured.upstream, tuple(measured.results))
    question = question_of(kernel, case, measured, problem, "", 0, SMALL)
    limits = {name: kernel.limit(case.dtype, name) for name in problem.results}
    spots = blind_spots([question.judged_by(name) for name in limits], limits, EVERY)
    tried = len(mutations(kernel.op.program(problem)[0], list(limits)))
    return BlindSpots(case.dtype, case.to_json(), tried, [words for _, words in spots])
