"""Computes digests of result bits, which show whether any bit differs between two records.

A digest covers the results of all cases in order, element by element. All NaNs count as equal: their sign and payload
are ignored, as everywhere in `verify`. The sign of a zero counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from verify.truth import formats
from verify.truth.ulp import bits_of, widen

_LARGE = 1 << 22  # elements: SHA-256 of gigabytes takes the host half a minute and two copies of them
_STORED = {8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64}


class Digest:
    """Accumulates tensors of one format. `text` is 16 hex digits of the SHA-256 of their bits, little-endian."""

    def __init__(self, fmt: formats.Format) -> None:
        self._fmt = fmt
        self._hash: Any = hashlib.sha256(fmt.name.encode())

    def add(self, tensor: Tensor) -> Digest:
        """Adds the next result. Its shape counts too. Returns this digest."""
        plain = tensor.detach()
        bits = torch.where(torch.isnan(widen(plain)), self._fmt.nan_bits, bits_of(plain))
        self._hash.update(repr(tuple(tensor.shape)).encode())
        self._hash.update(bits.to(_STORED[self._fmt.bits]).cpu().numpy().astype(f"<i{self._fmt.bits // 8}").tobytes())
        return self

    def add_digest(self, text: str) -> None:
        """Adds the next result by its own digest, see `of_many`."""
        self._hash.update(text.encode())

    @property
    def text(self) -> str:
        """Returns the digest so far."""
        digest: str = self._hash.hexdigest()
        return digest[:16]


def digests_of(results: Mapping[str, Tensor]) -> dict[str, str]:
    """Returns the digest of each result of one call. Those of large results are sums, made where the results are."""
    found = {}
    for name, value in results.items():
        fmt = formats.of(value.dtype)
        found[name] = of_many(value, fmt) if value.numel() > _LARGE else Digest(fmt).add(value).text
    return found


_AT_ONCE = {True: 1 << 18, False: 1 << 24}  # elements per step, on a CPU (True) and on a GPU
_FACTOR = 0x9E3779B97F4A7C15  # an odd number with ones and zeros at all positions


def of_many(tensor: Tensor, fmt: formats.Format) -> str:
    """Returns 16 hex digits of a sum over all bits of a large tensor, each weighed by its place.

    NaN counts as in `Digest`. A change of one element changes the sum.
    """
    total, line = 0, tensor.detach().reshape(-1)
    step = _AT_ONCE[line.is_cpu]
    weights = (torch.arange(min(step, line.numel()), device=line.device) * 2 + 1) ** 3
    for first in range(0, line.numel(), step):
        part = line[first : first + step]
        bits, strange = bits_of(part), torch.isnan(widen(part))
        if bool(strange.any()):
            bits = bits.masked_fill(strange, fmt.nan_bits)
        total = (total * _FACTOR + int((bits * weights[: part.numel()]).sum())) % (1 << 64)
    return f"{total:016x}"
