"""Values at infinite arguments, in mpmath."""

from __future__ import annotations

from typing import Any

from mpmath import mp


def mp_limit(x: Any, left: Any, right: Any) -> Any:
    """For an x that is not finite: `left` at -inf, `right` at +inf, NaN at NaN."""
    if mp.isnan(x):
        return x
    return right if x > 0 else left
