"""Draws the random numbers that disturb a program, and evaluates the runs with them.

    coins = Coins(seed, device)
    for found in coins.runs(16, evaluate, largest):  # `evaluate` calls coins.like(value) for each tensor it disturbs
        ...

A small step takes longer to start than to evaluate. So `torch.vmap` evaluates all small runs after the first together,
with the random numbers that they would have one after the other. Products of matrices may differ in their last bits,
because the library adds in another order.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as trees

Found = TypeVar("Found")  # dicts and tuples of tensors

_COINS = (1 << 20) + 7  # random numbers drawn once and used again
# numbers of the largest step, in all runs that are evaluated together: in a core's cache, or less than 0.3 GB of a GPU
_TOGETHER = {True: 1 << 17, False: 1 << 25}
_LEAST = 4  # runs that are worth evaluating together


@lru_cache(maxsize=8)
def _random_numbers(seed: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns the random numbers of a seed, and the state of the generator after them."""
    generator = torch.Generator(device).manual_seed(seed)
    return _fresh((_COINS,), generator), generator.get_state()


def _fresh(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Returns new random numbers within +-1."""
    return torch.rand(shape, dtype=torch.float64, device=generator.device, generator=generator) * 2 - 1


class Coins:
    """Draws random numbers within +-1. The same seed draws the same numbers in the same order."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._numbers, state = _random_numbers(seed, device)
        self._random, self._generator = random.Random(seed), torch.Generator(device)
        self._generator.set_state(state)
        self._draw = self._drawn
        self.failed = False  # True: `torch.vmap` could not evaluate the runs together

    def like(self, value: Tensor) -> Tensor:
        """Returns random numbers in the shape of a tensor."""
        return self._draw(value.shape)

    def runs(self, count: int, evaluate: Callable[[], Found], largest: float) -> Iterator[Found]:
        """Yields what `evaluate` returns in each of `count` runs.

        `evaluate` calls `like` in the same order with the same shapes each time. `largest` is the number of elements of
        its largest step; infinite: the runs are not evaluated together.
        """
        shapes: list[torch.Size] = []

        def noted(shape: torch.Size) -> Tensor:
            shapes.append(shape)
            return self._drawn(shape)

        self._draw = noted
        first = evaluate()
        self._draw = self._drawn
        yield first
        left = count - 1
        if not shapes:  # nothing is disturbed
            yield from [first] * left
            return
        group = int(min(_TOGETHER[self._numbers.is_cpu] // max(largest, 1), left))
        while left and group >= _LEAST and not self.failed:
            states = self._random.getstate(), self._generator.get_state()
            some = min(group, left)
            try:
                found = self._together(some, evaluate, shapes)
            except RuntimeError as error:
                self.failed = not isinstance(error, torch.OutOfMemoryError)  # a step has no rule for it
                self._random.setstate(states[0])
                self._generator.set_state(states[1])
                break
            yield from found
            left -= some
        for _ in range(left):
            yield evaluate()

    def _together(self, count: int, evaluate: Callable[[], Found], shapes: list[torch.Size]) -> list[Found]:
        """Returns what `evaluate` returns in each of the next `count` runs."""
        drawn = [[self._drawn(shape) for shape in shapes] for _ in range(count)]

        def run(*coins: Tensor) -> Found:
            given = iter(coins)
            self._draw = lambda shape: next(given)
            return evaluate()

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of steps that are evaluated one by one
                found = torch.vmap(run)(*map(torch.stack, zip(*drawn, strict=True)))
        finally:
            self._draw = self._drawn
        flat, form = trees.tree_flatten(found)
        return [trees.tree_unflatten([each[at] for each in flat], form) for at in range(count)]

    def _drawn(self, shape: torch.Size) -> Tensor:
        """Returns random numbers in a shape, cut from the numbers drawn once.

        The rows of a large tensor are overlapping cuts. The sum of a row or a column contains each number once. The sum
        of all elements contains it several times. That adds little, since the noise of such a sum is far larger.
        """
        count, row = math.prod(shape), shape[-1] if shape else 1
        if count <= _COINS // 2:
            start, size = self._random.randrange(_COINS - count), row
        else:
            start = self._random.randrange(_COINS // 8)
            apart = (_COINS - start - row) // (count // row) if row else 0
            if apart < 1:  # very long rows, or very many
                return _fresh(shape, self._generator)
            size = apart - (apart % 2 == 0)
        strides = [1]
        for length in reversed(shape[1:-1]):
            strides.insert(0, size)
            size *= length
        return self._numbers.as_strided(shape, [size, *strides][max(2 - len(shape), 0) :], start)
