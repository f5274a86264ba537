"""`make test-machines` runs tests that exist, in every form, and fails if one of the forms does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.processors import FORMS, TESTS, each

ROOT = Path(__file__).parents[1]


def test_every_form_runs_every_test_and_one_failure_is_enough(capfd: pytest.CaptureFixture[str]) -> None:
    assert all((ROOT / name).is_file() for name in TESTS)
    failing = "import os, sys; print(len(sys.argv)); sys.exit(os.environ.get('MKL_CBWR') == 'COMPATIBLE')"
    assert each([sys.executable, "-c", failing]) == 1
    printed = capfd.readouterr().out.splitlines()
    assert printed.count(str(1 + len(TESTS))) == len(FORMS) == sum(line.startswith("== ") for line in printed)
    assert each([sys.executable, "-c", ""]) == 0
