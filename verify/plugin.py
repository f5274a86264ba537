"""Registers verify's Hypothesis profiles in pytest, and gives each worker of pytest-xdist a GPU of its own.

pytest loads this plugin in every project of an environment that has verify. It does nothing until a project uses it:

* `--hypothesis-profile=verify-NAME` registers the profiles verify-quick, verify-ci, verify-nightly, verify-exhaustive;
* that option, or a `[tool.verify]` table in pyproject.toml, gives each xdist worker its GPU.

It imports Hypothesis only for the profiles, and never torch.

* verify-quick: a few cases, for quick answers while editing;
* verify-ci: the same cases every time, no deadline;
* verify-nightly: many cases, seeded by the date, so that two branches tested on one day get the same cases;
* verify-exhaustive: thousands of cases, and every 16-bit number for ops of one number.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from verify.laws.profiles import EXAMPLES, PREFIX


def register_profiles() -> None:
    """Registers the profiles in Hypothesis, for a conftest.py that loads or changes one of them.

    A profile that the project has already registered is not changed.
    """
    from hypothesis import HealthCheck, settings
    from hypothesis.errors import InvalidArgument

    for name, examples in EXAMPLES.items():
        try:
            settings.get_profile(PREFIX + name)
        except InvalidArgument:
            settings.register_profile(
                PREFIX + name,
                max_examples=examples,
                deadline=None,
                derandomize=name == "ci",
                suppress_health_check=list(HealthCheck),
                print_blob=name in ("nightly", "exhaustive"),
            )


@pytest.hookimpl(tryfirst=True)  # Hypothesis loads the profile in the same hook
def pytest_configure(config: pytest.Config) -> None:
    """Registers the profiles if the command line names one of them."""
    if _wants_profile(config.option):
        register_profiles()


def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Gives each xdist worker its GPU, before a conftest.py can initialise CUDA."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if not worker or not (_wants_profile(early_config.known_args_namespace) or _has_table(early_config.rootpath)):
        return
    visible = visible_devices(worker, os.environ.get("CUDA_VISIBLE_DEVICES"), _installed(Path("/dev").glob("nvidia*")))
    if visible is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible


def _wants_profile(options: Any) -> bool:
    """True if the command line names one of verify's profiles."""
    return (getattr(options, "hypothesis_profile", None) or "").startswith(PREFIX)


def _has_table(root: Path) -> bool:
    """True if the nearest pyproject.toml has a `[tool.verify]` table."""
    for folder in (root, *root.parents):
        path = folder / "pyproject.toml"
        if path.is_file():
            try:
                return "verify" in tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {})
            except (OSError, ValueError):
                return False
    return False


def visible_devices(worker: str, given: str | None, installed: int) -> str | None:
    """Returns CUDA_VISIBLE_DEVICES for a worker gw0, gw1, ..., or None if it must not change.

    The worker's own GPU comes first, which makes it the current device. The others remain visible behind it, because
    one law tests a device that is not the current one.
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
    """Returns the number of GPUs of this machine. Does not call the driver, as CUDA must not be initialised yet."""
    return sum(re.fullmatch(r"nvidia\d+", path.name) is not None for path in paths)
