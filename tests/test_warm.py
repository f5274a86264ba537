"""A warm process ends, prints and takes signals like one that `subprocess` starts."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm


@pytest.mark.parametrize("words", [["--version"], ["no-such-command"]])
def test_it_prints_and_ends_as_another_process_does(words: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "verify", *words]
    cold, fork = (
        start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
        for start in (subprocess.Popen, warm.Popen)
    )
    assert fork.communicate(timeout=60) == cold.communicate(timeout=60)
    assert fork.wait() == cold.wait()


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_ends_it(sent: signal.Signals, tmp_path: Path) -> None:
    with warm.Popen(
        [sys.executable, "-m", "verify", "serve", "--backend", "interpreter"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=tmp_path,
    ) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.1)
        assert process.poll() is None
        process.send_signal(sent)
        # a SIGTERM ends `serve` in order once it serves
        assert process.wait(30) in ((-sent, 3) if sent == signal.SIGTERM else (-sent,))


def test_other_commands_are_not_forks() -> None:
    code = "import sys; print('torch' in sys.modules)"
    done = warm.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert done.communicate(timeout=60)[0] == "False\n"
