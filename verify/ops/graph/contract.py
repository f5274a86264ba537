"""Encloses what a program's results may be if it stores numbers in 16 bits after some steps alone: its contract.

    found = Allowed(program, run, ["y"], program.stored, Rounding.of(run)).spans()    # as eager PyTorch stores numbers
    found["y"].lo <= y <= found["y"].hi                                       # of each kernel that keeps the contract

All other steps are computed in float32. How a kernel does that is free: the order of a sum, contraction, the library of
its functions. So a number that is not stored is an interval: `NEAR` roundings of its step to both sides. Rounding to 16
bits makes one number of most intervals. A decision about an interval that may go either way leaves both results.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import product
from typing import Any

import torch
from torch import Tensor

from verify.ops.graph.elementwise import COMPARISONS, Map, holds_integers
from verify.ops.graph.noise import NEAR, Samples
from verify.ops.graph.program import Program
from verify.ops.graph.reducing import Reduce
from verify.ops.graph.rounding import Rounding
from verify.ops.graph.spans import Span
from verify.ops.graph.steps import Leaf, Move, Plain, Run, Step

Contract = Mapping[int, torch.dtype]  # id(step) -> the format that its numbers are stored in
Way = tuple[bool, bool]  # see `Allowed`
PLAIN: Way = (False, False)


class Allowed(Samples):
    """Evaluates a program under a contract: as numbers, which takes the decisions and sizes, then as intervals.

    Args:
        way: Whether steps inside of some operators, and constants of stored steps, are rounded first. PyTorch does both
            in some operators, which depends on the device.
    """

    def __init__(
        self, program: Program, run: Run, wanted: Sequence[str], contract: Contract, format: Rounding, way: Way = PLAIN
    ) -> None:
        self.contract, (self.inside, self.constants) = contract, way
        self.doubts: dict[int, Tensor] = {}  # id(step) -> mask of the booleans and integers that are not decided
        super().__init__(program, replace(run, decisions={}, maps={}), wanted, replace(format, stored={}))

    def _evaluate_base(self, step: Step, given: list[Tensor]) -> tuple[Tensor, Tensor]:
        value, _ = super()._evaluate_base(step, given)
        kind = self.contract.get(id(step))
        return value, value if kind is None else value.to(kind).to(value.dtype)

    def spans(self) -> dict[str, Span]:
        """Returns the interval of each real result, before it is rounded to its own format.

        An interval from -inf to inf allows every number: a decision that the result depends on is not decided.
        """
        held: dict[int, Any] = {}
        for step in self.steps:
            given = [held[id(each)] for each in step.inputs]
            doubts = [self.doubts.get(id(each)) for each in step.inputs]
            found = step.span(self.run, given)
            if isinstance(step, Map) and step.function == "exact":
                found = _hull(*given)  # the same number in two forms
            if step.decides:
                found = self._decided(step, given, found)
            elif any(each is not None for each in doubts):
                found = self._followed(step, given, found, doubts)
            if step.real and not isinstance(step, Leaf | Plain):
                found = self._stored(step, given, self._widened(step, found))
            held[id(step)] = found
        return {name: held[id(self.program.results[name])] for name in self.wanted}

    def _widened(self, step: Step, found: Span) -> Span:
        """Moves the ends of an interval outwards by what kernels lose by roundings, and out of the range."""
        deviation = self.roundings.get(id(step))
        if getattr(step, "halved", False):  # (1 + erf(x)) / 2 is rounded near 1, also where its value is small
            deviation = torch.full_like(found.lo, self.format.unit)
        if deviation is not None:
            relative = isinstance(deviation, float) or id(step) in self.below
            room = (found.size() * deviation if relative else torch.as_tensor(deviation)) * NEAR
            room = room.nan_to_num(0.0, 0.0, 0.0)
            found = Span(found.lo - room, found.hi + room)
        size = found.size()
        if bool((small := (size > 0) & (size < self.format.lowest)).any()):  # kernels may have 0 in its place
            lo, hi = found.lo.clamp(max=0.0), found.hi.clamp(min=0.0)
            found = Span(torch.where(small, lo, found.lo), torch.where(small, hi, found.hi))
        beyond = (size >= self.format.largest) & ~found.is_infinite()
        return _unknown(found, beyond) if bool(beyond.any()) else found

    def _stored(self, step: Step, given: list[Any], found: Span) -> Span:
        """Rounds an interval to the format of the contract, if it has one for the step."""
        kind = self.contract.get(id(step), step.narrow if self.inside else None)
        if kind is None:
            return found
        constant = [isinstance(each, Plain) and each.real and not each.of for each in step.inputs]
        if self.constants and isinstance(step, Map) and any(constant):
            pairs = zip(given, constant, strict=True)
            given = [_to(each, kind) if fixed else each for each, fixed in pairs]
            found = self._widened(step, step.span(self.run, given))
        return _to(found, kind)

    # -- decisions ------------------------------------------------------------------------------------------------

    def _decided(self, step: Step, given: list[Any], found: Any) -> Any:
        """Returns the result of a decision; notes in `doubts` where the intervals of its numbers leave it open."""
        if all(bool((each.lo == each.hi).all()) for each in given if isinstance(each, Span)):
            return found
        if isinstance(step, Map) and step.stepped:
            return Span(*(step.evaluated([end]) for end in (given[0].lo, given[0].hi)))
        open_ = torch.ones(step.shape, dtype=torch.bool, device=self.run.device)
        if isinstance(step, Map) and step.function in ("eq", "ne"):
            a, b = given
            open_ = (a.lo <= b.hi) & (b.lo <= a.hi) & ~((a.lo == a.hi) & (b.lo == b.hi))
        elif isinstance(step, Map) and step.function in (*COMPARISONS, "signbit"):
            results = [step.evaluated(list(ends)) for ends in product(*((each.lo, each.hi) for each in given))]
            open_ = reduce(torch.logical_or, [each != results[0] for each in results])
        if step.real:
            return _unknown(found, open_)
        self.doubts[id(step)] = open_.expand(step.shape)
        return found

    def _followed(self, step: Step, given: list[Any], found: Any, doubts: list[Tensor | None]) -> Any:
        """Returns the result of a step with undecided inputs: both numbers of a `where`, or every number."""
        known = [each for each in doubts if each is not None]
        if isinstance(step, Map) and step.real and step.function == "where" and doubts[1:] == [None, None]:
            both = _hull(given[1], given[2])
            return Span(torch.where(known[0], both.lo, found.lo), torch.where(known[0], both.hi, found.hi))
        if isinstance(step, Map) and step.function == "number" and not holds_integers(step.inputs[0]):
            return Span(found.lo.masked_fill(known[0], 0.0), found.hi.masked_fill(known[0], 1.0))
        mask = torch.ones(step.shape, dtype=torch.bool, device=self.run.device)
        if isinstance(step, Map):
            mask = reduce(torch.logical_or, known).expand(step.shape)
        elif isinstance(step, Move) and not step.real:
            none = [torch.zeros(each.shape, dtype=torch.bool, device=self.run.device) for each in step.inputs]
            mask = step.span(self.run, [each if own is None else own for each, own in zip(none, doubts, strict=True)])
        elif isinstance(step, Reduce) and step.function == "any":
            mask = step.value(self.run, known)
        if step.real:
            return _unknown(found, mask)
        self.doubts[id(step)] = mask
        return found


def _to(found: Span, kind: torch.dtype) -> Span:
    return found.moved(lambda end: end.to(kind).to(end.dtype))


def _hull(a: Span, b: Span) -> Span:
    return Span(torch.minimum(a.lo, b.lo), torch.maximum(a.hi, b.hi))


def _unknown(found: Span, mask: Tensor) -> Span:
    return Span(found.lo.masked_fill(mask, -math.inf), found.hi.masked_fill(mask, math.inf))
