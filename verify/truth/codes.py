"""Defines formats of at most 8 bits by tables: the number of each code, rounding, special values.

A table lists the value of each code as a float, which is exact. Everything else here follows from the table. These are
the formats of quantised data and its scales. `verify.truth.formats` has the formats of tensors, as in `dtypes=`.

>>> e2m1 = code_format("e2m1")
>>> e2m1.numbers
(-6.0, -4.0, -3.0, -2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
>>> [e2m1.numbers[e2m1.nearest(torch.tensor(1.25), ties)] for ties in ("even", "up", "to zero")]
[1.0, 1.5, 1.0]
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from verify.errors import UsageError

Ties = Literal["even", "up", "away", "to zero", "truncate", "outward"]
TIES: tuple[Ties, ...] = ("even", "up", "away", "to zero", "truncate", "outward")


@dataclass(frozen=True)
class CodeFormat:
    """A format with the codes 0 to 2^bits - 1. `table[code]` is a number, -0.0, an infinity or NaN."""

    name: str
    bits: int
    table: tuple[float, ...]

    # -- specials ---------------------------------------------------------------------------------

    @cached_property
    def nan_codes(self) -> tuple[int, ...]:
        """The codes of NaN."""
        return tuple(code for code, value in enumerate(self.table) if math.isnan(value))

    @cached_property
    def inf_codes(self) -> tuple[int, ...]:
        """The codes of infinities."""
        return tuple(code for code, value in enumerate(self.table) if math.isinf(value))

    @cached_property
    def negative_zero(self) -> int | None:
        """The code of -0; None if the format has no -0."""
        signs = (code for code, value in enumerate(self.table) if value == 0 and math.copysign(1.0, value) < 0)
        return next(signs, None)

    @cached_property
    def largest(self) -> float:
        """The largest number."""
        return self.numbers[-1]

    @cached_property
    def emax(self) -> int:
        """The exponent of the binade of the largest number."""
        return math.frexp(self.largest)[1] - 1

    # -- numbers ----------------------------------------------------------------------------------

    @cached_property
    def numbers(self) -> tuple[float, ...]:
        """All numbers in ascending order. Both zeros are one number."""
        return tuple(sorted({value + 0.0 for value in self.table if math.isfinite(value)}))

    @cached_property
    def code_of(self) -> dict[float, int]:
        """Maps a number to its code, and zero to the code of +0."""
        return {value + 0.0: code for code, value in reversed(list(enumerate(self.table))) if math.isfinite(value)}

    @cached_property
    def places(self) -> tuple[int, ...]:
        """The place of each code's value in `numbers`; -1 for NaN and infinities."""
        at = {value: place for place, value in enumerate(self.numbers)}
        return tuple(at[value + 0.0] if math.isfinite(value) else -1 for value in self.table)

    @cached_property
    def even(self) -> tuple[bool, ...]:
        """True for each number with an even code, to which ties go under round-to-even."""
        return tuple(self.code_of[value] % 2 == 0 for value in self.numbers)

    @cached_property
    def midpoints(self) -> tuple[float, ...]:
        """The midpoint of each two neighbours, exactly."""
        return tuple((low + high) / 2 for low, high in zip(self.numbers, self.numbers[1:], strict=False))

    # -- tensors ----------------------------------------------------------------------------------

    def tensor(self, what: str, device: torch.device | str = "cpu") -> Tensor:
        """Returns one of the tables as a tensor: "table", "numbers", "midpoints", "places" or "even"."""
        kinds = {"places": torch.int64, "even": torch.bool}
        return torch.tensor(getattr(self, what), dtype=kinds.get(what, torch.float64), device=device)

    def decode(self, codes: Tensor) -> Tensor:
        """Returns the values of codes as float64."""
        return self.tensor("table", codes.device)[codes.long()]

    def nearest(self, real: Tensor, ties: Ties = "even") -> Tensor:
        """Returns the places in `numbers` of the nearest numbers to float64 values, ties by rule.

        Values at midpoints must be exact.
        """
        middles, even = self.tensor("midpoints", real.device), self.tensor("even", real.device)
        if ties in ("truncate", "outward"):
            numbers = self.tensor("numbers", real.device)
            down = torch.searchsorted(numbers, real, right=True) - 1
            up = torch.searchsorted(numbers, real)
            return torch.where((real < 0) == (ties == "truncate"), up, down).clamp(0, len(numbers) - 1)
        low = torch.searchsorted(middles, real)  # at a tie the number below
        beyond = torch.nn.functional.pad(middles, (0, 1), value=torch.nan)
        high = low + (beyond[low] == real)  # at a tie the number above
        if ties == "up":
            return high
        if ties == "even":
            return torch.where(even[high], high, low)
        outward = ties == "away"
        return torch.where((real > 0) == outward, high, low)


def _of_floats(name: str, bits: int, mantissa: int, bias: int, specials: str) -> CodeFormat:
    """Makes a format with sign, exponent and mantissa.

    `specials` chooses the special values:

    - "ieee": infinities and NaN in the last binade;
    - "fn": NaN if all bits but the sign are ones;
    - "fnuz": NaN in place of -0;
    - "none": numbers only.
    """
    sign, table = 1 << bits - 1, []
    for code in range(1 << bits):
        exponent, fraction = divmod(code & sign - 1, 1 << mantissa)
        size = math.ldexp(fraction + (exponent > 0) * (1 << mantissa), max(exponent, 1) - bias - mantissa)
        if specials == "ieee" and exponent == (sign - 1) >> mantissa:
            size = math.nan if fraction else math.inf
        if (specials == "fn" and code & sign - 1 == sign - 1) or (specials == "fnuz" and code == sign):
            size = math.nan
        table.append(-size if code & sign else size)
    return CodeFormat(name, bits, tuple(table))


def _of_integers(name: str, bits: int, *, signed: bool) -> CodeFormat:
    """Makes a format of integers, in two's complement if signed."""
    half = 1 << bits - 1
    values = (code - (1 << bits) if signed and code >= half else code for code in range(1 << bits))
    return CodeFormat(name, bits, tuple(map(float, values)))


E8M0 = CodeFormat("e8m0", 8, (*(math.ldexp(1.0, code - 127) for code in range(255)), math.nan))
CODE_FORMATS: dict[str, CodeFormat] = {
    each.name: each
    for each in (
        _of_floats("e4m3fn", 8, 3, 7, "fn"),
        _of_floats("e5m2", 8, 2, 15, "ieee"),
        _of_floats("e4m3fnuz", 8, 3, 8, "fnuz"),
        _of_floats("e5m2fnuz", 8, 2, 16, "fnuz"),
        E8M0,
        _of_floats("e2m3", 6, 3, 1, "none"),
        _of_floats("e3m2", 6, 2, 3, "none"),
        _of_floats("e2m1", 4, 1, 1, "none"),
        _of_integers("int8", 8, signed=True),
        _of_integers("int4", 4, signed=True),
        _of_integers("uint8", 8, signed=False),
        _of_integers("uint4", 4, signed=False),
    )
}
ALIASES = {"e4m3": "e4m3fn", "float8_e4m3fn": "e4m3fn", "float8_e5m2": "e5m2", "ue8m0": "e8m0"}


def code_format(name: str) -> CodeFormat:
    """Returns the format with a name or an alias, such as "e4m3" for e4m3fn. Raises UsageError if there is none."""
    short = ALIASES.get(name, name)
    if short not in CODE_FORMATS:
        raise UsageError(f"unknown format of codes {name!r}; verify knows: {', '.join(CODE_FORMATS)}")
    return CODE_FORMATS[short]
