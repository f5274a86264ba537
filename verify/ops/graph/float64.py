"""Takes values from two float64 evaluations where intervals are too wide.

The intervals of a deep program may be wider than a kernel's roundings. There are two other routes in float64: PyTorch's
own operators with autograd's gradients, and the steps of the program. Where the two agree within float64's roundings,
their value becomes the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from verify.ops.graph.noise import NEAR, Noise
from verify.ops.graph.program import names_of
from verify.ops.graph.real import Real, with_kind
from verify.ops.op import Fast, Problem

_NARROW = 0.25  # largest bound of an interval that is narrow enough, relative to the element's noise
_FLOAT64 = 2.0**-29  # a rounding in float64, relative to one in float32
# Largest difference of the two evaluations, relative to the element's noise. PyTorch's backward of a norm errs by up to
# 200 times the noise, in float64 too.
_AGREES = 1024 * _FLOAT64


def narrowed(
    found: dict[str, Fast], noise: Mapping[str, Noise], theirs: Callable[[], Mapping[str, Tensor]]
) -> dict[str, Fast]:
    """Returns the references, with the values of the two evaluations where the intervals are too wide.

    `theirs` evaluates the function in PyTorch's float64. It is called only if some interval is too wide.
    """
    wide: dict[str, Tensor] = {}
    for name, each in noise.items():
        bound, value = found[name].bound, each.value
        if bound is None or value is None:
            continue
        # the middle of an unbounded interval may be any number, so it is compared too
        mask = ~(bound <= _NARROW * each.deviation) | ((found[name].value - value).abs() > each.deviation)
        mask = mask & (each.deviation > 0)
        if bool(mask.any()):
            wide[name] = mask
    results = theirs() if wide else {}
    return found | {
        name: _agreed(found[name], noise[name], results[name], mask) for name, mask in wide.items() if name in results
    }


def _agreed(fast: Fast, noise: Noise, theirs: Tensor, mask: Tensor) -> Fast:
    """Replaces the elements of `mask` in which both evaluations agree; their difference gives the bound."""
    value, bound = noise.value, fast.bound
    assert value is not None and bound is not None
    apart, least = (theirs - value).abs(), value.abs() * 2.0**-50
    sure = mask & (apart <= noise.deviation * _AGREES + least)
    room = torch.maximum(apart, noise.deviation * (NEAR * _FLOAT64) + least)
    return replace(
        fast,
        value=torch.where(sure, value, fast.value),
        bound=torch.where(sure, 2 * room, bound),
        remark=f"; of {int(sure.sum()):,} of {sure.numel():,} two float64 evaluations, which agree",
    )


def in_float64(
    function: Callable[[Sequence[str], Sequence[Tensor]], Any],
    problem: Problem,
    outputs: Sequence[str] | None,
    gradients: Sequence[str],
) -> dict[str, Tensor]:
    """Returns PyTorch's own float64 results: outputs, and gradients by autograd.

    Returns {} if an operand is float64 already, or if the function holds a constant on another device.
    """
    given = {name: value for name, value in problem.inputs.items() if value is not None}
    kinds = [value.dtype for value in given.values()]
    if torch.float64 in kinds:
        return {}
    wanted = [name[1:] for name in gradients]
    values = [
        value.detach().double().requires_grad_(name in wanted) if value.is_floating_point() else value
        for name, value in given.items()
    ]
    main = next((kind for kind in kinds if kind.is_floating_point), torch.float32)
    try:
        with torch.enable_grad(), Real(main):
            made = function(list(given), list(map(with_kind, values, kinds)))
    except RuntimeError:  # a constant of the function is on another device
        return {}
    several = list(made.values()) if isinstance(made, Mapping) else made
    several = list(several) if isinstance(several, tuple | list) else [several]
    found = dict(zip(outputs or names_of(len(several)), several, strict=False))
    ends = [(found[name], g.double()) for name, g in problem.upstream.items() if found[name].requires_grad]
    if wanted and ends:
        leaves = [values[list(given).index(name)] for name in wanted]
        slopes = torch.autograd.grad([end for end, _ in ends], leaves, [g for _, g in ends], allow_unused=True)
        found |= {f"d{name}": g for name, g in zip(wanted, slopes, strict=True) if g is not None}
    return {name: value.detach() for name, value in found.items()}
