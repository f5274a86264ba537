"""Values at infinite arguments, in mpmath."""

from __future__ import annotations

from typing import Any

from mpmath import mp


def mp_limit(x: Any, left: Any, right: Any) -> Any:
    """Returns `left` for -inf, `right` for +inf and NaN for NaN. Call it only if x is not finite."""
    if mp.isnan(x):
        return x
    return right if x > 0 else left
