"""A run that a signal or its time ends shows each case that was judged, and another start goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.here import started
from verify.cli import exits
from verify.records.files import load

# It stops at its first call with more than 100 rows, and writes a file there. `WRONG` makes small calls wrong.
KERNEL = """
import os, pathlib, time
import torch, verify

@verify.kernel(like=lambda x: 2 * x, shapes={"x": "rows hidden"}, dtypes=["float32"], gradients=False)
def double(x):
    if os.environ.get("STOPS") and x.shape[0] > 100:
        pathlib.Path(os.environ["STOPS"]).touch()
        time.sleep(600)
    return 2 * x * (1.01 if os.environ.get("WRONG") and x.shape[-1] < 100 else 1)
"""

pytestmark = pytest.mark.usefixtures("warm")


def run(folder: Path, *options: str, **variables: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "verify", "run", "k.py", "--jobs", "1", "--json", "run.json", *options]
    return started(command, folder, env={**os.environ, **variables})


@pytest.mark.parametrize(
    ("number", "wrong", "code"), [(signal.SIGINT, "", exits.INCOMPLETE), (signal.SIGTERM, "1", exits.WRONG)]
)
def test_a_signal_loses_no_case_that_was_judged(tmp_path: Path, number: int, wrong: str, code: int) -> None:
    (tmp_path / "k.py").write_text(KERNEL)
    stopped, until = tmp_path / "stopped", time.monotonic() + 240
    running = run(tmp_path, "--resume", "kept", STOPS=str(stopped), WRONG=wrong)
    while not stopped.exists() and running.poll() is None and time.monotonic() < until:
        time.sleep(0.1)
    running.send_signal(number)
    out, err = running.communicate(timeout=240)
    assert running.returncode == code, out + err
    record = load(tmp_path / "run.json")
    [measured] = record.kernels
    [found] = measured.results
    assert found.basis.planned > found.basis.cases > 0 and found.figures.n > 0
    assert f"{found.basis.cases} of {found.basis.planned} planned cases" in out
    assert (measured.status, found.status) == (("wrong", "wrong") if wrong else ("ok", "ok"))
    assert [gap.kind for gap in record.incomplete] == ["interrupted"] and not found.bits
    if not wrong:
        goes_on(tmp_path)


def goes_on(folder: Path) -> None:
    again = run(folder, "--resume", "kept")
    out, err = again.communicate(timeout=240)
    assert again.returncode == exits.PASS, out + err
    [found] = load(folder / "run.json").kernels[0].results
    assert found.basis.planned == 0 and found.bits
