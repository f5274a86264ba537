"""Gradients against finite differences, in float64: the backward pass belongs to this forward pass.

`torch.autograd.gradcheck` compares a kernel's gradients with differences of its own outputs, so it needs no truth.
`gradgradcheck` does the same for the gradient of the gradient, and does not apply to a backward pass without
autograd.

Details:

The law avoids inputs where a difference is useless: rows that are nearly constant, and the corner in the slope of
squared ReLU.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError, gradcheck

from verify.cases import Case, inputs_of, upstream_of
from verify.cases.sizes import shapes_for
from verify.errors import KernelError
from verify.laws.law import Broken, Law, Subject, plain_case, plain_space
from verify.measure.call import call_tensors, describe
from verify.ops.geometry import ByGeometry, Shapes

_DIMS: ByGeometry[Shapes] = ByGeometry(
    elementwise=((3,), (1,), (2, 3), (), (2, 1, 4), (17,)),
    rowwise=((2, 5), (1, 4), (5,), (3, 8), (2, 2, 7), (1, 17)),
    contraction=((2, 3, 2), (1, 4, 3), (3, 1, 2), (4, 5, 6)),
)
_STEP, _RELATIVE = 1e-6, 1e-5
# Differences of step h are off by h^2 f''' / 6. For a norm f''' grows as 1 / spread^3: at 0.1 the error is 1e-9.
_SPREAD = 0.1
_CORNER = 1e-3


def _shapes(subject: Subject) -> list[tuple[int, ...]]:
    packed = subject.kernel.op.geometry.packed  # packed halves need a dimension
    return [dims for dims in shapes_for(subject.kernel, _DIMS, 24) if dims or not packed]


def _smooth(subject: Subject, inputs: dict[str, Tensor | None]) -> bool:
    """True if finite differences mean something: no operand near an end of its domain, no flat row, no corner."""
    kernel = subject.kernel
    for operand in kernel.differentiable:  # near an end of its domain a difference would step over it
        value, ends = inputs[operand.name], operand.domain.ends if operand.domain else ()
        if value is not None and any(bool(((value - end).abs() <= _CORNER).any()) for end in ends):
            return False
    if kernel.op.geometry.by_row:
        rows = [inputs[o.name] for o in kernel.op.operands if o.role == "data"]
        total = sum(row for row in rows if row is not None)
        assert isinstance(total, Tensor)
        return bool((total.std(-1, correction=0) > _SPREAD).all())
    if kernel.op.resolve(kernel.params).get("activation") == "squared_relu":
        x, weight, bias = (inputs.get(name) for name in ("x", "weight", "bias"))
        assert x is not None and weight is not None
        before = x @ weight.T + (0.0 if bias is None else bias)
        return bool((before.abs() > _CORNER).all())
    return True


Function = Callable[..., tuple[Tensor, ...]]


def _prepared(subject: Subject, case: Case) -> tuple[Function, tuple[Tensor, ...], bool]:
    """Returns the kernel as a function of its differentiable operands, these operands, and whether they are smooth."""
    kernel = subject.kernel
    inputs = inputs_of(kernel.op, case, subject.backend.device)
    names = tuple(operand.name for operand in kernel.differentiable)
    leaves = tuple(value.requires_grad_(True) for name in names if (value := inputs[name]) is not None)

    def function(*values: Tensor) -> tuple[Tensor, ...]:
        given = inputs | dict(zip(names, values, strict=True))
        resolved = kernel.op.resolve(case.params)
        keywords = {name: value for name, value in resolved.items() if name in kernel.accepted}
        returned = kernel.function(*(given[name] for name in kernel.operands), **keywords)
        outputs = tuple(returned) if isinstance(returned, tuple | list) else (returned,)
        return tuple(output for output in outputs if output.requires_grad)

    return function, leaves, _smooth(subject, inputs)


def _gradients(function: Function, count: int) -> Function:
    """Returns a function from the `count` operands and the upstream gradients of `function` to its gradients."""

    def gradients(*values: Tensor) -> tuple[Tensor, ...]:
        leaves, arriving = values[:count], values[count:]
        found = torch.autograd.grad(function(*leaves), leaves, arriving, create_graph=True, allow_unused=True)
        return tuple(gradient for gradient in found if gradient is not None)

    return gradients


def _together(function: Function, values: Sequence[Tensor]) -> tuple[Function, tuple[Tensor]]:
    """Returns a function as one of a single vector, and the vector: it takes two calls in place of two per operand."""
    sizes = [value.numel() for value in values]

    def joined(flat: Tensor) -> tuple[Tensor, ...]:
        parts = zip(values, torch.split(flat, sizes), strict=True)
        return function(*(part.reshape(value.shape).clone() for value, part in parts))

    flat = torch.cat([value.detach().reshape(-1) for value in values])
    return joined, (flat.requires_grad_(True),)


def _check(subject: Subject, case: Case, *, twice: bool) -> None:
    """Compares gradients with differences; with `twice`, the gradients of gradients."""
    function, leaves, smooth = _prepared(subject, case)
    if not smooth:
        return
    # the kernel's own error divided by the step, summed over about 17 elements
    noise = 1e-6 + subject.kernel.limit(subject.dtype) * 2.0**-53 / _STEP * 100
    try:
        values = leaves
        if twice:
            plain = inputs_of(subject.kernel.op, case, subject.backend.device)
            outputs = call_tensors(subject.kernel, plain, case.params).outputs
            attached = {name: value.detach() for name, value in outputs.items() if value.requires_grad}
            upstream = upstream_of(subject.kernel.op, case, attached)
            values = (*leaves, *(value.requires_grad_(True) for value in upstream.values()))
            function = _gradients(function, len(leaves))
        check = partial(gradcheck, eps=_STEP, atol=noise, rtol=_RELATIVE, fast_mode=True)
        with suppress(GradcheckError):
            if len({value.dtype for value in values}) == 1:
                check(*_together(function, values))
                return
        check(function, values)  # operand by operand, so that the error names one
    except GradcheckError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        facts = {"torch says": lines[0]} | {line.partition(":")[0]: line.partition(":")[2] for line in lines[1:3]}
        checked = "the gradient of the gradient disagrees" if twice else "the gradients disagree"
        raise Broken(f"{checked} with finite differences", case, facts) from None
    except (KernelError, Broken):
        raise
    except Exception as error:
        raise Broken(f"the kernel raised while gradients were checked: {describe(error)}", case, {}) from error


def _applies(subject: Subject, *, twice: bool) -> str | None:
    kernel = subject.kernel
    if "float64" not in kernel.dtypes:
        return "finite differences need float64, which the kernel does not declare"
    if subject.dtype != "float64":
        return "finite differences need float64; this law runs in that dtype"
    if not kernel.differentiable:
        return "the kernel has no gradients"
    if kernel.op.regions:
        return "parts of its operands or results do not count"
    try:
        function, leaves, _ = _prepared(subject, plain_case(subject, _shapes(subject)[0]))
        outputs = function(*leaves)
        if not outputs and kernel.gradients == "auto":
            return "autograd has no path through the kernel"
        if not twice:
            return None
        arriving = [torch.ones_like(output, requires_grad=True) for output in outputs]
        gradients = torch.autograd.grad(outputs, leaves, arriving, create_graph=True, allow_unused=True)
    except Exception:
        return None  # the check raises the same error, and reports it with its case
    attached = [gradient for gradient in gradients if gradient is not None and gradient.requires_grad]
    second: Sequence[Tensor | None] = ()
    with suppress(RuntimeError, NotImplementedError):  # autograd reports a lack only when the gradient is requested
        if attached:
            total = [gradient.sum() for gradient in attached]
            second = torch.autograd.grad(total, [*leaves, *arriving], allow_unused=True)
    # once_differentiable connects its gradients to a node that raises
    return None if any(each is not None for each in second) else "the backward pass is not differentiable"


def _law(name: str, what: str, *, twice: bool) -> Law:
    return Law(
        name=name,
        summary=f"{what} agree with finite differences in float64",
        space=lambda subject: plain_space(subject, _shapes(subject)),
        check=lambda subject, case: _check(subject, case, twice=twice),
        applies=lambda subject: _applies(subject, twice=twice),
        # layouts have laws of their own, and a difference takes many calls
        examples=lambda subject, space: tuple(case for case in space.each_choice() if not case.layouts),
        share=0.25 if twice else 0.5,
    )


LAWS: Sequence[Law] = (
    _law("gradcheck", "gradients", twice=False),
    _law("gradgradcheck", "gradients of gradients", twice=True),
)
