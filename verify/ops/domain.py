"""Reads the domain of an operand: the numbers that a kernel is declared for, such as `0 <= v` or `-8 <= g < 0`.

The bounds are decimal numbers. The text is parsed, never evaluated as code.
"""

from __future__ import annotations

import math
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from verify.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?"
_LARGEST = sys.float_info.max


@dataclass(frozen=True)
class Domain:
    """The numbers from `low` to `high`, both included. NaN and infinities are in no domain.

    A strict bound is stored as the next float64 number inside: no format has a number between the two.
    """

    text: str  # as declared
    low: float = -_LARGEST
    high: float = _LARGEST

    @staticmethod
    def of(about: str, operand: str, text: Any) -> Domain:
        """Reads `low <= operand < high`. Raises UsageError if the text has another form or no number is inside."""
        form = rf"(?:({_NUMBER})\s*(<=?)\s*)?{re.escape(operand)}(?:\s*(<=?)\s*({_NUMBER}))?"
        found = re.fullmatch(form, text.strip(), re.ASCII | re.IGNORECASE) if isinstance(text, str) else None
        bounds = [] if found is None else [float(each) for each in found.group(1, 4) if each]
        if found is None or not bounds or not all(map(math.isfinite, bounds)):
            raise UsageError(
                f"{about}: a domain has the form low <= {operand} <= high, or one side of it, with < or <= and "
                f"finite decimal numbers; received {text!r}",
                hint=f'domain={{{operand!r}: "0 <= {operand}"}}',
            )
        low, high = -_LARGEST, _LARGEST
        if found[1]:
            low = float(found[1]) if found[2] == "<=" else math.nextafter(float(found[1]), math.inf)
        if found[4]:
            high = float(found[4]) if found[3] == "<=" else math.nextafter(float(found[4]), -math.inf)
        if not low <= high:
            raise UsageError(f"{about}: no number fulfils the domain {text!r}", hint="low <= name <= high, low first")
        return Domain(" ".join(text.split()), low, high)

    def holds(self, values: Tensor) -> Tensor:
        """Returns a mask of the float64 numbers inside the domain."""
        return (values >= self.low) & (values <= self.high)

    @property
    def bounds(self) -> tuple[bool, bool]:
        """Whether the declaration gives a lower and an upper bound."""
        return self.low > -_LARGEST, self.high < _LARGEST

    @property
    def ends(self) -> tuple[float, ...]:
        """The bounds that the declaration gives: one or two."""
        return tuple(end for end in (self.low, self.high) if abs(end) < _LARGEST)
