"""Makes the table of special values: results for zeros, subnormal, greatest, infinite and NaN inputs, one at a time.

Its case has ones everywhere. Each operand in turn gets each special value. The case is measured apart from those of the
figures, and each of its special elements is judged in exact arithmetic.
"""

from __future__ import annotations

import msgspec

from verify.cases import Case, case_of, problem_of
from verify.cases.case import operand_dtype
from verify.declare.declaration import Kernel
from verify.measure.element import worst_element
from verify.measure.remote_call import Run
from verify.records.record import EXTREME, Origin, SpecialValue, Worst
from verify.truth import formats
from verify.truth.exact import Judged, digits, judge
from verify.truth.formats import Format
from verify.truth.ulp import pattern_at

SIZE = 256  # elements of the case; those without a special value are ones
DIGITS = 17  # digits of an exact answer; worst inputs have 30


def patterns(fmt: Format) -> list[int]:
    """Returns zero, the smallest and greatest subnormal, the greatest number and infinity, of both signs, and NaN."""
    positive = [0, 1, (1 << fmt.mantissa_bits) - 1, fmt.max_bits] + ([fmt.inf_bits] if fmt.has_inf else [])
    return [bits | sign for bits in positive for sign in (0, fmt.sign_bit)] + [fmt.nan_bits]


def special_case(kernel: Kernel, dtype: str) -> tuple[Case, int] | None:
    """Returns the case, and how many of its leading elements are special; None if a row decides, not an element."""
    op = kernel.op
    if not op.geometry.by_element or not kernel.allows((1, SIZE)):
        return None
    plain = case_of(kernel, dtype, dims=(1, SIZE), fill="ones", upstream="ones" if kernel.differentiable else "")
    widths = {name: shape[-1] for name, shape in op.shapes(plain.dims, op.resolve(kernel.params)).items()}
    edits: dict[str, dict[str, str]] = {}
    place = 0
    for operand in op.operands:
        if operand.name in kernel.absent:
            continue
        fmt = formats.named(operand_dtype(plain, operand))
        for half in range(0, widths[operand.name], SIZE):  # both halves of a packed operand
            for bits in patterns(fmt):
                if operand.domain is not None and not operand.domain.low <= fmt.to_float(bits) <= operand.domain.high:
                    continue
                edits.setdefault(operand.name, {})[str(half + place)] = f"{bits:0{fmt.bits // 4}x}"
                place += 1
    return (msgspec.structs.replace(plain, edits=edits), place) if place else None


def special_values(kernel: Kernel, target: str, dtype: str, run: Run) -> dict[str, list[SpecialValue]]:
    """Returns the table of each result; empty if there is none. Raises KernelError if the kernel refuses the case."""
    made = special_case(kernel, dtype)
    if made is None:
        return {}
    case, count = made
    measured = run(case)
    names = tuple(measured.results)
    problem = problem_of(kernel.op, case, measured.inputs, measured.upstream, names)
    found: dict[str, list[SpecialValue]] = {}
    inputs: list[dict[str, str]] = []
    for name, got in measured.results.items():  # an output comes first, so the inputs are known for every result
        where = [half + index for half in range(0, got.shape[-1], SIZE) for index in range(count)]
        fmt = formats.of(got.dtype)
        rows = []
        for index, point in zip(where, kernel.op.points(problem, name, where), strict=True):
            pattern = pattern_at(got, index)
            judged = judge(point, fmt, pattern, both=True, policy=kernel.policy)
            element = worst_element(kernel.op, problem, got, judged, Origin.here(target, case.to_json(), name, index))
            if name == kernel.outputs[0]:
                inputs.append(element.inputs)
            given = dict(inputs[index % SIZE])
            if got.shape[-1] > SIZE:  # the gradient of a packed operand has two halves
                given["of"] = f"{name}{1 + index // SIZE}"
            element = msgspec.structs.replace(element, inputs=given, truth=digits(point, DIGITS))
            rows.append(_special_value(kernel, dtype, name, element, judged, zero=pattern & ~fmt.sign_bit == 0))
        found[name] = rows
    return found


def _special_value(
    kernel: Kernel, dtype: str, result: str, element: Worst, judged: Judged, *, zero: bool
) -> SpecialValue:
    """Returns the entry of one special element, judged by the limit of extreme inputs."""
    wrong_sign = kernel.policy.signed_zero == "strict" and judged.misrounded and zero
    limit = kernel.limit_of(dtype, EXTREME, result)
    wrong = limit is not None and (wrong_sign or not abs(judged.ulp) <= limit)
    return SpecialValue(
        inputs=element.inputs,
        got=element.got,
        truth=element.truth,
        status="wrong" if wrong else "ok",
        origin=element.origin if wrong else None,
    )
