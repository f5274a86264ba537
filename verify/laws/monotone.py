"""Monotonicity: where the function rises, the kernel does not fall by more than its limit explains.

Inputs are runs of neighbouring numbers. A correctly rounded kernel (limit 0.5) may not move against the function's
slope at all, a kernel with a limit of 1 by one ulp. A seam between two branches of an implementation shows as a step.

Details:

The runs lie anywhere in the format and around the op's own boundaries. Suppose the slope has one sign over two
neighbours, and the result moves the other way by 2 limits or more. Then one of the two results exceeds its limit.

This law follows from accuracy, so it finds no kernel that an exhaustive accuracy run would not find. But it needs
only the sign of the slope, no exact value. And it looks at neighbours, which random inputs are not.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from verify.cases import Case, inputs_of, problem_of
from verify.cases.strategies import CaseSpace
from verify.laws.compare import place, show
from verify.laws.law import Broken, Law, Subject, said_of, space_of
from verify.measure.call import run_tensors
from verify.ops.domain import Domain
from verify.truth import formats
from verify.truth.ordinals import between, of_tensor, to_tensor
from verify.truth.ulp import ulp_exponent, widen

_RUN = 16  # number of neighbours in a run


def _applies(subject: Subject) -> str | None:
    kernel = subject.kernel
    if not kernel.op.is_unary or kernel.op.gradients != ("dx",):
        return f"{said_of(subject)} is not a function of one number"
    return None


def _space(subject: Subject) -> CaseSpace:
    most = max(1, subject.sizes.elements // _RUN)
    shapes = [(size,) for size in (4, 1, 16, 64, 256) if size <= most]
    fill = ("near", "active", "bits", "normal")
    return space_of(subject, shapes=shapes, fill=fill)


def _examples(subject: Subject, chosen: CaseSpace) -> tuple[Case, ...]:
    return chosen.each_choice(chosen.shapes[-1:])  # more neighbours make a seam among them likelier


def _runs(x: Tensor, domain: Domain | None = None) -> Tensor:
    """Returns one run per row: a finite number of x and the next larger ones. At the domain's end the last repeats."""
    fmt = formats.of(x.dtype)
    span = None if domain is None else between(fmt, domain.low, domain.high)
    most = fmt.max_bits if span is None else span[1]
    steps = of_tensor(x[torch.isfinite(widen(x))], fmt)[:, None] + torch.arange(_RUN, device=x.device)
    steps = steps.clamp(max=most)
    return to_tensor(steps, fmt)


def _check(subject: Subject, case: Case) -> None:
    kernel = subject.kernel
    # everything but the kernel's call runs on the CPU: for so few numbers a GPU takes longer to launch than to compute
    drawn = inputs_of(kernel.op, case, "cpu")["x"]
    assert drawn is not None
    x = _runs(drawn, kernel.op.operands[0].domain)
    if x.numel() == 0:
        return
    y = run_tensors(kernel, {"x": x.to(subject.backend.device)}, case.params, {})["y"].cpu()
    ones = {"y": torch.ones_like(x)}
    slope = kernel.op.fast(problem_of(kernel.op, case, {"x": x}, ones, ("dx",)))["dx"]
    # one sign at both neighbours, and beyond the reference's own rounding
    rises = slope.value > slope.scale * 2.0**-40
    falls = slope.value < slope.scale * -(2.0**-40)
    wide = widen(y)
    change = wide[:, 1:] - wide[:, :-1]
    fmt = formats.of(y.dtype)
    spacing = torch.maximum(ulp_exponent(wide[:, 1:], fmt), ulp_exponent(wide[:, :-1], fmt))
    back = torch.where(rises[:, 1:] & rises[:, :-1], -change, torch.where(falls[:, 1:] & falls[:, :-1], change, 0.0))
    # both results may be off by the limit; the larger one decides the ulp
    allowed = 2.0 * kernel.limit(subject.dtype, "y") * torch.ldexp(torch.ones_like(wide[:, 1:]), spacing)
    if kernel.limit(subject.dtype, "y") == 0.5:
        allowed = torch.zeros_like(allowed)  # rounding to nearest is itself monotone
    finite = torch.isfinite(wide[:, 1:]) & torch.isfinite(wide[:, :-1])
    wrong = torch.nonzero(finite & (back > 0) & ~(back < allowed))
    if wrong.numel():
        row, column = (int(place_) for place_ in wrong[0])
        here, after = row * _RUN + column, row * _RUN + column + 1
        facts = {
            "at": f"two neighbours, {place(x, here)}",
            "x": f"{show(x, here)}, then {show(x, after)}",
            "y": f"{show(y, here)}, then {show(y, after)}",
            "the function": "rises" if bool(rises[row, column]) else "falls",
        }
        raise Broken("y goes the wrong way by more than the limit explains", case, facts, result="y", index=here)


LAWS: Sequence[Law] = (
    Law(
        name="monotone",
        summary="where the function rises, the results do not fall beyond the kernel's limit",
        space=_space,
        check=_check,
        applies=_applies,
        examples=_examples,
        nearest=True,
    ),
)
