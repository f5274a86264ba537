"""Names the mistake of a kernel that reads a quantised operand wrongly.

Each mistake that `verify.truth.quantised.misread` lists makes other numbers of the operand. PyTorch computes the result
of these in float64, and the result of the kernel is compared with it.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from verify.declare.quantiser import Encoded
from verify.ops.op import Kept, Op, Problem
from verify.truth.quantised.misread import misread

_NEAR = 2.0**-6  # of a number and of the root mean square of all: no rounding moves a result so far, a mistake does
_SHOWN = 3
_WRONG, _LEFT = 0.05, 0.01  # how many elements are wrong, and how many may stay wrong under an explanation


def mistake(encoded: Encoded, op: Op, problem: Problem, result: str, got: Tensor, truth: Tensor) -> str:
    """Returns the mistakes that explain a result, in words; empty if nothing is wrong or nothing explains it.

    Several may make the same numbers: scales half as large, or codes of a format with half their values.
    """
    if result in op.integers or not got.numel() or _off(got, truth) <= _WRONG:
        return ""
    if not bool(got.any()) and bool(truth.any()):
        return "every element is 0"
    found: dict[str, list[str]] = {}
    for name, encoding in encoded.encodings.items():
        own = {part: key for key, (operand, part) in encoded.parts.items() if operand == name}
        parts = {part: value for part, key in own.items() if (value := problem.inputs[key]) is not None}
        for words, others, other in misread(encoding, parts):
            inputs = {**problem.inputs, **{own[part]: value for part, value in others.items()}}
            function = encoded.reading({**encoded.encodings, name: other})
            changed = replace(problem, inputs=inputs, kept=Kept())
            made = op.meaning.in_place_of(function, changed).get(result)
            if made is not None and _off(got, made) <= _LEFT:
                found.setdefault(words, []).append(name)
    return "; or ".join(f"{' or '.join(names)}: {words}" for words, names in list(found.items())[:_SHOWN])


def _off(got: Tensor, numbers: Tensor) -> float:
    """Returns the share of elements that are far from numbers, or NaN where these are not."""
    got, numbers = got.double(), numbers.double()
    known = torch.isfinite(numbers)
    size = torch.where(known, numbers, 0.0)
    room = _NEAR * (size.abs() + size.square().mean().sqrt())
    same = (got == numbers) | (torch.isnan(got) & torch.isnan(numbers))
    return float((~(same | ((got - numbers).abs() <= room))).double().mean())
