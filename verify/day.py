"""The day as a seed: two branches tried on one day see the same cases, and tomorrow other ones."""

from __future__ import annotations

import datetime


def seed_of_today() -> int:
    """The date (UTC) as YYYYMMDD."""
    return int(datetime.datetime.now(datetime.UTC).strftime("%Y%m%d"))
