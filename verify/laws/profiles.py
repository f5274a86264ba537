"""What is known of the laws before torch is imported: their names, the Hypothesis profiles, the day as a seed."""

from __future__ import annotations

import datetime
from collections.abc import Iterable

from verify.errors import UsageError

# In the order in which they are tried: `registry` has them.
NAMES = tuple(
    """\
determinism, accuracy, mixed dtypes, special values, gradcheck, gradgradcheck, layout independence, upstream layout \
independence, memory bounds, initialised memory, nothing overwritten, no stale results, batch invariance, causality, \
decode equals prefill, grouped heads, shapes, many rows, exact identities, linear backward, monotone, configuration \
independence, error contract, compiled, custom operators, autocast, side stream, CUDA graph, other device, large \
offsets, large tensors""".split(", ")
)
EXAMPLES = {"quick": 5, "ci": 8, "nightly": 400, "exhaustive": 4000}
PREFIX = "verify-"  # of the Hypothesis profiles: Hypothesis and other projects have a profile "ci" of their own


def seed_of_today() -> int:
    """The date (UTC) as YYYYMMDD: two branches tried on one day see the same cases, and tomorrow other ones."""
    return int(datetime.datetime.now(datetime.UTC).strftime("%Y%m%d"))


def named(text: str) -> str:
    """The law of that name; hyphens do for the spaces, as in the ids of pytest."""
    for name in NAMES:
        if text.replace("-", " ").lower() == name.lower():
            return name
    import difflib

    near = difflib.get_close_matches(text, NAMES, n=1)
    known = f" (closest: {near[0]})" if near else f"; the laws are: {', '.join(NAMES)}"
    raise UsageError(f"no law is named {text!r}{known}")


def remaining(without: Iterable[str]) -> tuple[str, ...]:
    """All laws but these."""
    left_out = set(map(named, without))
    return tuple(name for name in NAMES if name not in left_out)
