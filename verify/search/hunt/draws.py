"""Draws the random numbers of a hunt from a sequence of counter streams. The seed decides all of them.

Words come in the order of the calls, the same on every device. They are made in bulk, because a small population asks
thousands of times for a few words.
"""

import torch
from torch import Tensor

from verify.cases.values import Stream

_BULK = 1 << 16


class Draws:
    """Holds the draws of one generation."""

    def __init__(self, seed: int, label: str, device: str) -> None:
        self.seed, self.label, self.device = seed, label, torch.device(device)
        self._streams = 0
        self._stock = torch.empty(0, dtype=torch.int64, device=device)

    def stream(self) -> Stream:
        """Returns the next stream."""
        self._streams += 1
        return Stream(self.seed, f"hunt/{self.label}/{self._streams}", self.device)

    def words(self, count: int) -> Tensor:
        """Returns uniform int64 numbers."""
        if count > self._stock.shape[0]:
            self._stock = self.stream().words(max(count, _BULK))
        taken, self._stock = self._stock[:count], self._stock[count:]
        return taken

    def below(self, count: int, limit: int) -> Tensor:
        """Returns uniform integers in [0, limit), for limit <= 2^31."""
        return ((self.words(count) >> 32) & 0xFFFFFFFF) % limit

    def uniform(self, count: int) -> Tensor:
        """Returns uniform float64 numbers in [0, 1), multiples of 2^-53."""
        return ((self.words(count) >> 11) & ((1 << 53) - 1)).double() * 2.0**-53

    def sign(self, count: int) -> Tensor:
        """Returns +1 or -1, equally likely."""
        return self.below(count, 2) * 2 - 1

    def step(self, count: int, octaves: int) -> Tensor:
        """Returns positive integers spread log-uniformly up to 2^octaves."""
        octave = self.below(count, octaves + 1)
        mask = (octave.new_ones(()) << octave) - 1
        return 1 + (self.words(count) & mask)
