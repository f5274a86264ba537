"""Exact identities: equations between two calls of one kernel, which need no truth.

Floating-point arithmetic that rounds to nearest is symmetric in sign and in powers of two. So y(2^k x, 4^k eps) = y
of layer norm and similar identities hold bit for bit, but for the sign of a zero, overflow and subnormals.

Details:

These identities hold bit for bit:

* every op: negating the upstream gradient negates all gradients, doubling it doubles them;
* gated: y(-x1, x2) = -y and y(2^k x1, x2) = 2^k y;
* layer norm: y(2^k x, 4^k eps) = y, and y(-x, -bias) = -y; RMS norm: both without a bias;
* linear without an activation: y(2^k x, 2^k bias) = 2^k y.

Layer norm does not change under x + c either, but a kernel rounds its mean differently there. The law of accuracy
covers that, and identities of the real functions, such as y(x) - y(-x) = x of GELU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from verify.cases import Case, counter, inputs_of, upstream_of
from verify.cases.strategies import CaseSpace
from verify.laws.law import Broken, Inputs, Law, Subject, has_gradients, place, said_of, show, space_of
from verify.measure.call import Unchanged, call_tensors, gradients_of, run_tensors, sent_all
from verify.ops.op import Symmetry
from verify.truth import formats
from verify.truth.ulp import widen

Results = dict[str, Tensor]

# Powers of two are exact only above subnormals. This many binades remain free, for products inside the kernel.
_MARGIN = 6


def _space(subject: Subject) -> CaseSpace:
    geometry = subject.kernel.op.geometry
    fill = ("randn", "mean 1e3", "outlier") if geometry.by_row else (geometry.fill,)
    return space_of(subject, fill=fill)


def _run(subject: Subject, case: Case, inputs: Inputs, **changed: Any) -> Results:
    """Returns the results of one call, in CPU memory if they and the inputs are small."""
    given = sent_all(inputs, subject.backend.device)
    (results,) = Unchanged().demand(run_tensors(subject.kernel, given, {**case.params, **changed}, {}))
    return results


def _scaled(inputs: Inputs, factor: float, names: Sequence[str]) -> Inputs:
    return {
        name: _times(value, factor) if value is not None and name in names else value for name, value in inputs.items()
    }


def _times(value: Tensor, factor: float) -> Tensor:
    """Returns a product by a power of two, rounded once. PyTorch cannot multiply formats of 8 bits."""
    return value * factor if value.element_size() > 1 else (widen(value) * factor).to(value.dtype)


def _exact(before: Inputs, after: Inputs) -> bool:
    """True if scaling overflowed nothing. Scaling up is exact otherwise."""
    pairs = [(before[name], value) for name, value in after.items() if value is not None and value is not before[name]]
    return all(
        bool(torch.isfinite(widen(value)).all())
        for old, value in pairs
        if old is not None and bool(torch.isfinite(widen(old)).all())
    )


def _demand(case: Case, got: Results, base: Results, factor: float, rule: str) -> None:
    """Raises `Broken` unless every result is `factor` times the other one, bit for bit.

    Values near the ends of the range are not compared.
    """
    for name, value in base.items():
        fmt = formats.of(value.dtype)
        wanted = _times(value, factor)
        if torch.equal(got[name], wanted):
            continue
        sizes = torch.minimum(widen(value).abs(), widen(wanted).abs())
        largest = torch.maximum(widen(value).abs(), widen(wanted).abs())
        usual = torch.isfinite(largest) & (largest <= float(fmt.max_finite) * 2.0**-_MARGIN)
        if abs(factor) != 1.0:
            # a zero may come from an underflow of the value or of its multiple, so the two may differ
            compared = torch.where(largest == 0, widen(got[name]).abs(), sizes)
            usual &= ~(compared < float(fmt.min_normal) * 2.0**_MARGIN)
        differs = (widen(got[name]) != widen(wanted)) & usual
        wrong = torch.nonzero(differs.reshape(-1))
        if wrong.numel():
            index = int(wrong[0])
            facts = {
                "at": f"{name} {place(value, index)}",
                "got": show(got[name], index),
                "wanted": f"{factor:g} times {show(value, index)}",
            }
            raise Broken(rule, case, facts, result=name, index=index)


# -- the identities: each takes one case's inputs, and raises ------------------------------------------


def _power(case: Case) -> int:
    return 1 + int(counter.below(case.seed, "identity/power", 1, 3)[0])


def _gate(subject: Subject, case: Case, inputs: Inputs) -> None:
    base = _run(subject, case, inputs)
    for factor in (-1.0, 2.0 ** _power(case)):
        changed = dict(inputs)
        x, x1 = inputs.get("x"), inputs.get("x1")
        if x1 is not None:
            changed["x1"] = _times(x1, factor)
        elif x is not None:
            first, second = x.chunk(2, -1)
            changed["x"] = torch.cat([_times(first, factor), second], -1)
        if _exact(inputs, changed):
            _demand(case, _run(subject, case, changed), base, factor, f"y({factor:g} x1, x2) is not {factor:g} y")


def _norm(subject: Subject, case: Case, inputs: Inputs) -> None:
    kernel = subject.kernel
    summed = [name for name in ("x", "residual", "input_bias") if name in kernel.operands]
    base = _run(subject, case, inputs)
    negated = _run(subject, case, _scaled(inputs, -1.0, [*summed, "bias"]))
    _demand(case, negated, base, -1.0, "y(-x, -bias) is not -y")
    if "eps" not in kernel.accepted or "eps" in kernel.params:
        return
    power = _power(case)
    scaled = _scaled(inputs, 2.0**power, summed)
    if not _exact(inputs, scaled):
        return
    eps = kernel.op.resolve(case.params)["eps"]
    got = _run(subject, case, scaled, eps=eps * 4.0**power)
    _demand(case, {"y": got["y"]}, {"y": base["y"]}, 1.0, f"y({2**power} x, {4**power} eps) is not y")


def _linear(subject: Subject, case: Case, inputs: Inputs) -> None:
    power = _power(case)
    scaled = _scaled(inputs, 2.0**power, ["x", "bias"])
    if _exact(inputs, scaled):
        rule = f"y({2**power} x, {2**power} bias) is not {2**power} y"
        _demand(case, _run(subject, case, scaled), _run(subject, case, inputs), 2.0**power, rule)


Identity = Callable[[Subject, Case, Inputs], None]
_IDENTITIES: dict[Symmetry, Identity] = {
    "gate": _gate,
    "norm": _norm,
    "linear": _linear,
}


def _applies(subject: Subject) -> str | None:
    kernel = subject.kernel
    if kernel.op.symmetry is None:
        return f"no exact identity is known for {said_of(subject)}"
    if kernel.op.domains:
        return f"an identity changes operands, and these have a domain: {kernel.op.domain_words}"
    activation = kernel.op.resolve(kernel.params).get("activation", "id")
    if activation != "id":
        return f"no exact identity is known for op {kernel.op.name} with activation {activation}"
    return None


def _check(subject: Subject, case: Case) -> None:
    inputs = inputs_of(subject.kernel.op, case, subject.backend.device, shared=True)
    assert subject.kernel.op.symmetry is not None
    _IDENTITIES[subject.kernel.op.symmetry](subject, case, inputs)


# -- linearity of the backward pass --------------------------------------------------------------------


def _check_backward(subject: Subject, case: Case) -> None:
    kernel = subject.kernel
    device, unchanged = subject.backend.device, Unchanged()
    graph = call_tensors(kernel, inputs_of(kernel.op, case, device), case.params)
    upstream = upstream_of(kernel.op, case, graph.values, shared=True)
    runs = []
    for factor in (1.0, -1.0, 2.0):
        originals = {name: value if factor == 1.0 else _times(value, factor) for name, value in upstream.items()}
        arriving = sent_all(originals, device)
        runs.append(gradients_of(kernel, graph, arriving, retain=True, unchanged=unchanged, originals=originals))
    base, negated, doubled = unchanged.demand(*runs)
    for factor, got in ((-1.0, negated), (2.0, doubled)):
        _demand(case, got, base, factor, f"{factor:g} times the upstream gradient does not give {factor:g} times it")


LAWS: Sequence[Law] = (
    Law(
        name="exact identities",
        summary="scaling, negation and symmetry that hold for the op hold for the kernel",
        space=_space,
        check=_check,
        applies=_applies,
        share=0.5,
        nearest=True,
    ),
    Law(
        name="linear backward",
        summary="negating or doubling the upstream gradient does the same to every gradient",
        space=_space,
        check=_check_backward,
        applies=has_gradients,
        share=0.5,
    ),
)
