"""Single elements of a program's results, in Arb and in mpmath, evaluated together at the precision that most need."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import flint
import torch
from mpmath import mp
from torch import Tensor

from verify.errors import BeyondEffort
from verify.ops.elements import to_arb
from verify.ops.graph.answers import settled
from verify.ops.graph.arithmetic import Arithmetic, Balls, Decimals
from verify.ops.graph.program import Needed, Program
from verify.ops.graph.steps import Run
from verify.ops.op import Point
from verify.ops.precision import GUARD, mp_bits

_STEPS = (160, 640, 2_560)  # bits at which a number is looked for that float64 says nothing about
_FEWEST = 160  # bits of any evaluation: those that judging begins with, so that what is known of a slice serves again
_SHARP = 60  # bits of a ball that decide nearly everything
_VANISHED = flint.arb(2) ** -1_300
_TOGETHER = 1024  # elements that are evaluated together
_LIMIT = 1 << 14  # bits at which a ball that still has no relative accuracy is a zero
_KEPT = 1 << 21  # elements of all steps that are kept for later ones of the same problem: a network shares its layers
_EFFORT = 1 << 19  # elements of steps that the exact values of a result may cost: a microsecond or two each
_CHEAP = 1 << 12  # of one exact value that are not counted: a row of a norm, a window of a convolution

Slices = dict[int, dict[int, Any]]  # by step: the elements that are known


@dataclass
class Shared:
    """What the exact values of one problem share: what is known of each step, and what each result has cost.

    The same questions in the same order cost the same everywhere, so what is `refused` does not depend on a clock.
    """

    share: float = 1.0  # of the effort that a result may cost
    slices: dict[tuple[type[Arithmetic], int], Slices] = field(default_factory=dict)
    spent: dict[str, float] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)  # results of which one element was too much


class Asked:
    """Elements of one result. Those that are asked for together are evaluated together, at the first precision."""

    def __init__(
        self,
        program: Program,
        run: Run,
        result: str,
        indices: list[int],
        opened: Any,
        gradient: bool,
        shared: Shared,
    ) -> None:
        self.program, self.run, self.result, self.indices, self.opened = program, run, result, indices, opened
        self.gradient, self.shared = gradient, shared
        self.shape = program.results[result].shape
        self.known: dict[tuple[type[Arithmetic], int], dict[int, Any]] = {}
        self.likely: dict[tuple[type[Arithmetic], int], deque[int]] = {}  # to be asked for at a precision
        self.span: Any = None

    def ball(self, place: int, bits: int) -> Any:
        """The enclosure of one element, or a special value."""
        return self._element(place, bits, Balls)

    def enclosure(self, place: int, prec: int) -> Any:
        """The same as a ball of Arb's."""
        return _as_ball(self.ball(place, max(prec, _FEWEST)))

    def _element(self, place: int, bits: int, kind: type[Arithmetic]) -> Any:
        """One element; others that are likely to be asked for at this precision are evaluated with it."""
        known = self.known.setdefault((kind, bits), {})
        if place not in known:
            if (kind, bits) not in self.likely:
                before = [self.known[kind, less] for kept, less in self.known if kept is kind and less < bits]
                places = [n for n in range(len(self.indices)) if all(_is_vague(old.get(n)) for old in before)]
                self.likely[kind, bits] = deque(places)
            waiting = self.likely[kind, bits]
            next_ones = [waiting.popleft() for _ in range(min(_TOGETHER, len(waiting)))]
            slices = self.shared.slices.setdefault((kind, bits), {})
            together = sorted({place, *(n for n in next_ones if n not in known)})
            places, needed = self._affordable(place, together, slices)
            arithmetic = kind()
            with arithmetic.bits(bits):
                wanted = [self.indices[n] for n in places]
                made = self.program.elements(self.run, arithmetic, self.result, wanted, slices, needed)
                known.update(zip(places, made, strict=True))
                if sum(map(len, slices.values())) > _KEPT:
                    slices.clear()
        return known[place]

    def _affordable(self, place: int, places: list[int], slices: Slices) -> tuple[list[int], Needed]:
        """The places if their result has the effort left, else the one; and what has to be evaluated for them."""
        shared, spent = self.shared, self.shared.spent.get(self.result, 0.0)
        refused = self.result in shared.refused
        for some in [[place]] if refused else [places, [place]]:
            free = _CHEAP * len(some)
            most = free + (0 if refused else shared.share * _EFFORT - spent)
            try:
                needed = self.program.places(self.run, self.result, [self.indices[n] for n in some], slices, most)
            except BeyondEffort:
                continue
            shared.spent[self.result] = spent + max(0, sum(len(wanted) for wanted, _ in needed.values()) - free)
            return some, needed
        shared.refused.add(self.result)
        raise BeyondEffort(f"an exact value of {self.result} depends on too many numbers to be evaluated alone")

    def point(self, place: int) -> Point:
        if not self.program.results[self.result].real:
            return Point(
                lambda prec: mp.mpf(self._whole(place, Decimals)), lambda prec: flint.arb(self._whole(place, Balls))
            )
        return Point(
            lambda prec: self._decimal(place, prec),
            lambda prec: self.enclosure(place, prec),
            lambda: self._ends(place),
        )

    def _whole(self, place: int, kind: type[Arithmetic]) -> float:
        """An integer or a condition: the reference's answer where that is one of several."""
        value, at = self._element(place, _FEWEST, kind), self.indices[place]
        shown: Tensor = self._closed().value.to(torch.float64)
        if value is None or float(value) == shown.reshape(-1)[at]:
            return float(shown.reshape(-1)[at])
        other = shown.clone()
        other.view(-1)[at] = float(value)
        return float(settled(self.program, self.run, self.result, other, shown).reshape(-1)[at])

    def _decimal(self, place: int, prec: int) -> Any:
        """mpmath at a precision from which as many bits are left as were asked for: a ball says how many cancel."""
        bits = max(prec, _FEWEST)
        while True:
            ball = self.ball(place, bits)
            if isinstance(ball, float):
                lost = 0
                break
            lost = max(0, bits - ball.rel_accuracy_bits())  # an exact ball has any number of bits
            if ball.is_finite() and 2 * lost < bits:
                break
            if ball.is_finite() and abs(ball) < _VANISHED:  # whatever its digits are: below every format
                lost = 0
                break
            if bits >= _LIMIT and ball.is_finite() and bits - lost >= _SHARP:  # many cancelled, and enough are left
                break
            if bits >= _LIMIT and (ball.is_nan() or ball.contains(0)):
                return mp.nan if ball.is_nan() else mp.zero
            if bits >= _LIMIT:  # two numbers, between which a jump at an exact tie decides
                lost = 0
                break
            bits *= 2
        bits = -(-(max(prec, _FEWEST) + lost + 2 * GUARD) // 128) * 128
        value = self._element(place, bits, Decimals)
        with mp_bits(bits):
            return mp.mpf(value)

    def _closed(self) -> Any:
        if self.span is None:
            self.span = self.program.spans(self.run, [self.result])[self.result]
        return self.span

    def enclosed(self, place: int) -> tuple[float, float] | None:
        """A number and how far the real one may be from it; None where Arb finds none either, or not in time."""
        for bits in _STEPS:
            try:
                ball = self.ball(place, bits)
            except BeyondEffort:
                return None
            if isinstance(ball, float):
                return ball, 0.0
            if ball.is_finite() and (ball.rel_accuracy_bits() > _SHARP or bits == _STEPS[-1]):
                middle = float(ball.mid())
                return middle, 0.0 if math.isinf(middle) else abs(middle) * 2.0**-51 + float(ball.rad()) + 2.0**-1074
        return None

    def _ends(self, place: int) -> tuple[Point, Point] | None:
        if self._is_free(place):
            return _fixed(-math.inf), _fixed(math.inf)
        if self.opened is None:
            return None
        at = self.indices[place]
        several, least, most = (each.reshape(-1)[at].item() for each in self.opened)
        return (_fixed(least), _fixed(most)) if several else None

    def _is_free(self, place: int) -> bool:
        """Whether every answer is right: see `_freed`."""
        if not self.program.elementwise:
            return False
        at = self.indices[place]
        leaves = [leaf for leaf in self.run.leaves.values() if leaf.is_floating_point() and leaf.shape == self.shape]
        values = [float(leaf.reshape(-1)[at]) for leaf in leaves]
        if any(value != value for value in values):
            return self.gradient
        return any(map(math.isinf, values)) and math.isnan(float(self._closed().lo.reshape(-1)[at]))


def _is_vague(ball: Any) -> bool:
    """Whether a ball that is known says too little; what is not known was asked for by nobody."""
    if ball is None or isinstance(ball, float) or not hasattr(ball, "rel_accuracy_bits"):
        return False
    return not ball.is_finite() or ball.rel_accuracy_bits() < _SHARP


def _fixed(value: float) -> Point:
    """A number that is known."""
    return Point(lambda prec: mp.mpf(value), lambda prec: to_arb(value))


def _as_ball(value: Any) -> Any:
    if isinstance(value, float):
        return to_arb(value)
    # around zero nothing but its size is known: a middle of 2^-10^60 and a radius of 1 have no common unit
    return flint.arb(0, value.abs_upper()) if value.is_finite() and value.contains(0) else value
