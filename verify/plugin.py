"""pytest plugin: verify's Hypothesis profiles, and one GPU for each worker of pytest-xdist.

The profiles make `--hypothesis-profile=ci` work everywhere:

* quick: a few cases, for the edit loop;
* ci: the same cases every time, no deadline, nothing read from or written to an example database;
* nightly: many cases, seeded by the date, so that two branches tested on one day see the same ones;
* exhaustive: thousands of cases, and every 16-bit number where an op takes one.

quick, nightly and exhaustive remember the cases that broke a law in an example database and try them first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from verify.laws.profiles import EXAMPLES

DATABASE = os.environ.get("VERIFY_EXAMPLES", os.path.join(".hypothesis", "examples"))

for _name, _examples in EXAMPLES.items():
    settings.register_profile(
        _name,
        max_examples=_examples,
        deadline=None,
        derandomize=_name == "ci",
        database=None if _name == "ci" else DirectoryBasedExampleDatabase(DATABASE),
        suppress_health_check=list(HealthCheck),
        print_blob=_name in ("nightly", "exhaustive"),
    )


def pytest_load_initial_conftests() -> None:
    """Give each xdist worker a GPU of its own, before any conftest can initialise CUDA."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    visible = visible_devices(worker, os.environ.get("CUDA_VISIBLE_DEVICES"), _installed(Path("/dev").glob("nvidia*")))
    if visible is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible


def visible_devices(worker: str, given: str | None, installed: int) -> str | None:
    """CUDA_VISIBLE_DEVICES for a worker gw0, gw1, ...; None where nothing is to change.

    The worker's own GPU comes first, which makes it the current device; the others stay visible behind it, because
    a law asks what happens on a device that is not the current one.
    """
    number = re.fullmatch(r"gw(\d+)", worker)
    if number is None:
        return None
    devices = [item.strip() for item in given.split(",")] if given is not None else [str(n) for n in range(installed)]
    devices = [item for item in devices if item]
    if len(devices) < 2 or "-1" in devices:
        return None
    first = int(number[1]) % len(devices)
    return ",".join(devices[first:] + devices[:first])


def _installed(paths: Iterable[Any]) -> int:
    """How many GPUs this machine shows, without a word to the driver: CUDA must not be initialised yet."""
    return sum(re.fullmatch(r"nvidia\d+", path.name) is not None for path in paths)
