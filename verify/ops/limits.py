"""Values at infinite arguments, in mpmath and in Arb."""

from __future__ import annotations

from typing import Any

from mpmath import mp


def mp_limit(x: Any, left: Any, right: Any) -> Any:
    """For an x that is not finite: `left` at -inf, `right` at +inf, NaN at NaN."""
    if mp.isnan(x):
        return x
    return right if x > 0 else left


def arb_limit(x: Any, left: Any, right: Any) -> Any:
    """The same for a ball."""
    if x.is_nan():
        return x
    return right if x > 0 else left
