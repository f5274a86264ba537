"""The Hypothesis profiles of the laws: how many cases each tries, and the day as the seed of the long ones."""

from __future__ import annotations

import datetime

EXAMPLES = {"quick": 5, "ci": 12, "nightly": 400, "exhaustive": 4000}


def seed_of_today() -> int:
    """The date (UTC) as YYYYMMDD: two branches tried on one day see the same cases, and tomorrow other ones."""
    return int(datetime.datetime.now(datetime.UTC).strftime("%Y%m%d"))
