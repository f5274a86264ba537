"""Defines names of the laws, sizes of the Hypothesis profiles and the seed of the day.

This module does not import torch.
"""

import datetime
from collections.abc import Iterable

from verify.errors import UsageError, closest

# The laws in the order of `registry.ALL`.
NAMES = tuple(
    """\
determinism, accuracy, mixed dtypes, stochastic rounding, distribution, special values, gradcheck, gradgradcheck, \
layout independence, upstream layout independence, memory bounds, initialised memory, nothing overwritten, \
no stale results, batch invariance, same bits, roundings, causality, decode equals prefill, \
padding, many rows, configuration independence, error contract, compiled, autocast, \
side stream, CUDA graph, other device, large offsets, large tensors""".split(", ")
)
EXAMPLES = {"quick": 5, "ci": 8, "nightly": 400, "exhaustive": 4000}
PREFIX = "verify-"  # prefix of the Hypothesis profiles; Hypothesis and other projects have a profile "ci" of their own


def seed_of_today() -> int:
    """Returns the date (UTC) as YYYYMMDD.

    Two branches tried on one day get the same cases; the next day has new ones.
    """
    return int(datetime.datetime.now(datetime.UTC).strftime("%Y%m%d"))


def named(text: str) -> str:
    """Returns the name of a law. Hyphens may replace the spaces, as in the ids of pytest."""
    for name in NAMES:
        if text.replace("-", " ").lower() == name.lower():
            return name
    known = closest(text, NAMES) or f"; the laws are: {', '.join(NAMES)}"
    raise UsageError(f"no law is named {text!r}{known}")


def remaining(without: Iterable[str]) -> tuple[str, ...]:
    """Returns the names of all other laws."""
    left_out = set(map(named, without))
    return tuple(name for name in NAMES if name not in left_out)
