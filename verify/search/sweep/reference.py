"""Holds the reference of the fused route, a table on the device with its certificate, and checks its bound."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from verify.backends import architecture
from verify.cases import counter
from verify.declare.declaration import Kernel
from verify.errors import TruthError
from verify.search.sweep.device import reference_kernel
from verify.search.sweep.space import Space
from verify.search.sweep.subject import values_at
from verify.search.sweep.table import Table, points_of, table_for
from verify.truth import certificate
from verify.truth.enclosure import Enclosure
from verify.truth.exact import settle
from verify.truth.formats import named

KIND = "fused"  # precedes the device's kind in the certificate
_VANISHED = Fraction(1, 1 << 340)  # larger than any value beyond the table


@dataclass(frozen=True)
class Reference:
    """Holds the table of one curve on the device, with the bound of its certificate."""

    curve: str
    params: dict[str, Any]
    slope: bool
    table: Table
    rows: Tensor
    units: Tensor
    sentence: str
    dtype: str

    def at(self, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the simple part, the remainder and the scale of its error at some keys."""
        fmt = named(self.dtype)
        high, low, scale = (torch.empty(keys.shape, dtype=torch.float64, device=keys.device) for _ in range(3))
        reference_kernel[(-(-keys.numel() // 1024),)](
            keys, high, low, scale, keys.numel(), self.rows, self.table.first, self.table.last_row,
            int(self.slope), SIGN=fmt.sign_bit, MANTISSA=fmt.mantissa_bits, EMIN=fmt.emin, BLOCK=1024, num_warps=8,
        )  # fmt: skip
        return high, low, scale


def reference_for(kernel: Kernel, dtype: str, slope: bool, device: torch.device | str) -> Reference:
    """Returns the reference of a kernel's curve."""
    return reference_of(kernel.op.gate_curve, kernel.op.resolve(kernel.params), slope, dtype, device)


def reference_of(curve: str, params: dict[str, Any], slope: bool, dtype: str, device: torch.device | str) -> Reference:
    """Returns the reference of a curve or of its slope, for inputs of a dtype."""
    kind = f"{KIND} {architecture(device)}"
    units, sentence = certificate.units_for(curve, params, "dx" if slope else "y", kind)
    table = table_for(curve, str(params.get("approximate", "")), slope)
    rows = torch.tensor(table.rows, dtype=torch.float64, device=device)
    # The product with the other operand of a pair adds two units.
    bound = torch.tensor([(units + 2.0) * 2.0**-53], dtype=torch.float64, device=device)
    return Reference(curve, params, slope, table, rows, bound, sentence, dtype)


def check_reference(reference: Reference, space: Space, low: int, high: int, count: int, seed: int) -> None:
    """Raises TruthError if a random key in a range is beyond the bound of the certificate."""
    keys = torch.sort(counter.below(seed, f"fused/{reference.slope}", count, min(high - low, 1 << 31)) + low).values
    allowed = float(reference.units) * 2.0**53
    worst = max(distances(reference, keys))
    if not worst <= allowed:
        raise TruthError(
            f"the fused reference of {reference.curve} is {worst:.3g} units from the exact value, beyond the "
            f"certified {allowed:.3g}; run `verify certify {reference.curve}` on this machine"
        )


def distances(reference: Reference, keys: Tensor) -> list[float]:
    """Returns the distance from the exact value at keys of finite numbers, in units of 2^-53 of the scale."""
    parts = [part.cpu().tolist() for part in reference.at(keys.to(reference.rows.device))]
    x = values_at(keys, named(reference.dtype))
    points = points_of(reference.curve, reference.params, reference.slope, x)
    found = []
    for point, simple, rest, scale in zip(points, *parts, strict=True):
        unit = Fraction(scale) / (1 << 53)

        def narrow(enclosure: Enclosure, unit: Fraction = unit) -> bool:
            return (enclosure.high - enclosure.low) * 1024 <= unit or enclosure.high - enclosure.low < _VANISHED

        enclosure, _, _ = settle(point, narrow, both=False)
        gap = abs(Fraction(simple) + Fraction(rest) - (enclosure.low + enclosure.high) / 2)
        if gap <= _VANISHED:
            found.append(0.0)
        else:
            found.append(float(gap / unit) if unit else float("inf"))
    return found
