"""Searches among the choices of a program for one that explains results.

A program with ties has more choices than can be listed: any direction p for x + tiny p, any order of copies of one
number, any side of roundings where a computed number lies within them, and at comparisons of equal given numbers the
side of the direction wherever no output tells. `Choices` draws them, and `explained` improves one, one by one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from mpmath import mp
from torch import Tensor

from tests.oracle.choices import Evaluation, evaluate
from tests.oracle.numbers import Choice, Oracled

SIZES = (0.0, 1.0, 2.0**-3, 2.0**-10)  # of the pushes by roundings


@dataclass
class Try:
    """One choice: a direction, and what it leaves open."""

    drifts: list[np.ndarray]
    choice: Choice


@dataclass(frozen=True)
class Choices:
    """The choices of a program at its inputs."""

    f: Callable[..., Any]
    inputs: Sequence[Any]
    upstream: Sequence[Tensor | None]

    @cached_property
    def sizes(self) -> list[int]:
        return [x.numel() for x in self.inputs if isinstance(x, Tensor) and x.is_floating_point()]

    def direction(self, source: random.Random) -> list[np.ndarray]:
        return [np.array([source.uniform(-1, 1) for _ in range(n)]) for n in self.sizes]

    def taken(self, tried: Try) -> Evaluation | None:
        """Returns what the program is under a choice; None if it is none: a comparison's side changes an output."""
        try:
            found = evaluate(self.f, self.inputs, self.upstream, tried.drifts, choice=tried.choice)
            if not tried.choice.sides & found.run.sided:
                return found
            plain = replace(tried.choice, sides=frozenset())
            other = evaluate(self.f, self.inputs, self.upstream, tried.drifts, choice=plain)
        except Oracled:  # a number beyond what the oracle can say, under this choice alone
            return None
        return found if _same_outputs(found, other) else None

    @cached_property
    def sides(self) -> list[int]:
        """The comparisons of equal given numbers that may take the side of a direction, as no output shows it."""
        source = random.Random(7)
        directions = [[np.full(n, sign) for n in self.sizes] for sign in (1.0, -1.0)] + [self.direction(source)]
        found = self.taken(Try(directions[0], Choice()))

        def free(some: list[int]) -> list[int]:
            if not some or all(self.taken(Try(each, Choice(sides=frozenset(some)))) for each in directions):
                return some
            half = len(some) // 2
            return free(some[:half]) + free(some[half:]) if half else []

        return free(sorted(found.run.sided)) if found else []

    def drawn(self, seed: int, toward: tuple[int, int] | None = None) -> Try:
        """Draws a choice. toward: an input and a place in it, which win or lose in the first; None: all do."""
        source = random.Random(seed + 1)
        drifts = self.direction(source)
        level = source.random()
        if level < 0.3:  # equal operands of which only some move apart
            drifts = [drift.round() for drift in drifts]
        elif level < 0.5:  # or none: each step orders them anew
            drifts = [drift * 0.0 for drift in drifts]
        if toward is not None and seed < 2:
            drifts[toward[0]][toward[1]] = 4.0 * (-1) ** seed
        elif toward is not None and seed % 2:
            drifts[toward[0]] += self._lines(*toward, source)
        elif seed < 4:
            drifts = [(-1) ** seed * (2.0 + drift) for drift in drifts]
        kept = source.choice([0.0, 0.5, 1.0]) if seed > 3 else float(seed < 2)
        sides = frozenset(side for side in self.sides if source.random() < kept)
        alike, lean = source.random() < 0.5, source.choice([1, -1, 0, 0])
        return Try(drifts, Choice(seed, SIZES[seed % len(SIZES)], alike, lean, sides=sides))

    def _lines(self, operand: int, place: int, source: random.Random) -> np.ndarray:
        """Returns a direction in which some lines through a place win or lose, each by another amount.

        The least of a column is the largest of all least ones if its column wins, and it loses in its column.
        """
        shape = [x.shape for x in self.inputs if isinstance(x, Tensor) and x.is_floating_point()][operand]
        found, at = np.zeros(shape), np.unravel_index(place, shape)
        for dim, index in enumerate(at):
            side = source.choice([8.0, -8.0, 2.0, -2.0, 0.0])
            found[(*[slice(None)] * dim, index)] += side
        return found.reshape(-1)

    def others(self, tried: int, toward: tuple[int, int] | None = None) -> Iterator[Evaluation]:
        """Yields what the program is under choices at random."""
        for seed in range(tried):
            if (found := self.taken(self.drawn(seed, toward))) is not None:
                yield found

    def explained(self, off: Callable[[Evaluation], float], started: int = 16, tried: int = 200) -> bool:
        """Says whether some choice explains results. off: how far they are from an evaluation; 0: it explains them.

        Starts at the best of several choices, then changes one decision after the other, as long as that is no worse.
        """
        source, least, best = random.Random(0), float("inf"), None
        for seed in range(started):
            found = self.taken(drawn := self.drawn(seed))
            if found is not None and (cost := off(found)) < least:
                least, best = cost, (drawn, found)
            if not least:
                return True
        for _ in range(tried if best else 0):
            changed = self._changed(*best, source)
            found = self.taken(changed)
            if found is not None and (cost := off(found)) <= least:
                least, best = cost, (changed, found)
            if not least:
                return True
        return False

    def _changed(self, tried: Try, found: Evaluation, source: random.Random) -> Try:
        """Returns a choice with one decision changed at random."""
        drifts, choice = [each.copy() for each in tried.drifts], tried.choice
        ways = ["drift"] * found.run.directed + ["order"] * bool(found.run.free)
        ways += ["push"] * bool(found.run.decisive) + ["side"] * bool(self.sides) + ["seed"]
        way = source.choice(ways)
        if way == "order":
            place = source.choice(sorted(found.run.free))
            return Try(drifts, replace(choice, orders={**choice.orders, place: source.random()}))
        if way == "push":
            place = source.choice(sorted(found.run.decisive))
            push = source.choice([1.0, -1.0, 0.0, 0.1, -0.1])
            return Try(drifts, replace(choice, pushes={**choice.pushes, place: push}))
        if way == "seed":  # of all orders, pushes and integers that none of those names
            return Try(drifts, replace(choice, seed=source.getrandbits(32)))
        if way == "side":
            return Try(drifts, replace(choice, sides=choice.sides ^ {source.choice(self.sides)}))
        drift = source.choice(drifts)
        drift[source.randrange(len(drift))] = source.choice([2.0, -2.0, 0.0, source.uniform(-1, 1)])
        return Try(drifts, choice)


def _same_outputs(one: Evaluation, other: Evaluation) -> bool:
    """Says whether all outputs are the same but for 500 bits' roundings."""

    def same(a: Any, b: Any) -> bool:
        return bool(a == b or (mp.isnan(a) and mp.isnan(b)) or abs(a - b) <= mp.mpf(2) ** -400 * abs(a))

    pairs = zip(one.values[: one.outputs], other.values[: one.outputs], strict=True)
    return all(same(a, b) for x, y in pairs for a, b in zip(x.flat, y.flat, strict=True))
