"""Takes values from two float64 evaluations where intervals are too wide.

The intervals of a deep program may be wider than a kernel's roundings. There are two other routes in float64: PyTorch's
own operators with autograd's gradients, and the steps of the program. Where the two agree within float64's roundings,
their value becomes the reference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from verify.ops.graph.noise import NEAR, Noise
from verify.ops.graph.program import Program
from verify.ops.graph.recorder import evaluated, nodes_in
from verify.ops.graph.steps import Run
from verify.ops.op import Fast

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


def in_float64(program: Program, run: Run) -> dict[str, Tensor]:
    """Returns the results of PyTorch's own operators in float64: those of the function and of autograd, as recorded.

    Returns {} if an operand is float64 already, or if an operator has no float64 on this device.
    """
    if any(leaf.dtype == torch.float64 for name, leaf in run.leaves.items() if not name.startswith("grad ")):
        return {}
    nodes, ends = program.recorded
    operands = [node for node in nodes if node.target == "operand"]
    given = (run.leaves[name] for name in program.leaves)
    values = {n: leaf.double() if leaf.is_floating_point() else leaf for n, leaf in zip(operands, given, strict=True)}
    wanted = {name: end for name, end in zip(program.results, ends, strict=True) if end is not None}
    uses = Counter(wanted.values())
    for node in reversed(nodes):
        if node in uses:
            uses.update(nodes_in((node.args, node.kwargs)))
    try:
        for node in nodes:
            if node in uses and node not in values:
                values[node] = evaluated(node, values, run.device)
                for each in nodes_in((node.args, node.kwargs)):
                    uses[each] -= 1
                    if not uses[each]:
                        del values[each]
    except RuntimeError:
        return {}
    return {name: values[end] for name, end in wanted.items()}
