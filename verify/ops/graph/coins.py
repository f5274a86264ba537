"""Draws the random numbers that disturb a program.

coins = Coins(seed, device)
coins.like(value)  # within +-1, for each tensor that is disturbed
"""

import math
import random
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

_COINS = (1 << 20) + 7  # random numbers drawn once and used again


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
        self.used = False  # True: some were drawn

    def like(self, value: Tensor) -> Tensor:
        """Returns random numbers in the shape of a tensor, cut from the numbers drawn once.

        The rows of a large tensor are overlapping cuts. The sum of a row or a column contains each number once. The sum
        of all elements contains it several times. That adds little, since the noise of such a sum is far larger.
        """
        self.used, shape = True, value.shape
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
