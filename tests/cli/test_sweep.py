"""`verify sweep` from outside: verdicts, usage errors, Ctrl-C, and a process that is really killed."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from tests.cli.here import as_process, said, started
from verify.records.files import load
from verify.records.part_store import checked
from verify.records.record import Run, replay_command
from verify.search.sweep.space import CHUNK, bits_of_key
from verify.truth.formats import named

pytestmark = pytest.mark.usefixtures("warm")

ROOT = Path(__file__).resolve().parents[2]
SUBJECTS = "tests/search/sweep/subjects.py"


SWEEP = ("sweep", "--backend", "interpreter")
VARIABLES = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def test_all_16_bit_inputs_of_a_wrong_kernel(tmp_path: Path) -> None:
    record, findings = tmp_path / "run.json", tmp_path / "run.sarif"
    forms = ("--json", str(record), "--sarif", str(findings))
    done = said(*SWEEP, f"{SUBJECTS}::naive", "--dtype", "bfloat16", *forms, cwd=ROOT)
    assert done.returncode == 1, done.stderr
    assert "all 2^16" in done.stdout and "255.2 ULP on ordinary inputs" in done.stdout
    run = load(record)
    assert [(item.output, item.basis.kind, item.basis.n) for item in run.kernels[0].results] == [
        ("y", "exhaustive", 65_536),
        ("dx", "exhaustive", 65_536),
    ]
    assert {each["ruleId"] for each in json.loads(findings.read_text())["runs"][0]["results"]} == {"wrong"}
    result = run.kernels[0].results[0]
    assert result.curve is not None and result.source == "sweep"
    replay = shlex.split(replay_command(result.worst[0].origin))
    again = said(*replay[1:], "--backend", "interpreter", cwd=ROOT)
    assert again.returncode == 1 and "+255.195 ULP" in again.stdout


# -- interruption: two chunks, of which the second waits for a file ---------------------------------------------


def two_chunks() -> str:
    """A range with a thousand inputs of one chunk and, of the next, as many as the kernel waits for."""
    fmt = named("float32")
    border = (fmt.sign_bit + 0x40000000) // CHUNK * CHUNK
    low, high = (fmt.to_float(bits_of_key(fmt, key)) for key in (border - 1000, border + 120_000))
    return f"--range={low!r}:{high!r}"


def lines_of(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def begun(arguments: list[str], journal: Path, lines: int, folder: Path, gate: Path) -> subprocess.Popen[str]:
    """A sweep whose journal holds so many lines and that waits in its second chunk."""
    env = {**os.environ, **VARIABLES, "VERIFY_TEST_GATE": str(gate)}
    process = started([sys.executable, "-m", "verify", *SWEEP, *arguments], folder, env=env)
    deadline = time.monotonic() + 120
    while lines_of(journal) < lines and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert process.poll() is None and lines_of(journal) >= lines, process.communicate()
    return process


def stripped(run: Run) -> object:
    """A run without its times and its command."""
    kernels = [msgspec.structs.replace(item, seconds=0.0, peak={}) for item in run.kernels]
    return msgspec.structs.replace(run, id="", created="", seconds=0.0, command="", kernels=kernels)


def test_a_killed_sweep_resumes_to_the_same_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, gate = tmp_path / "j", tmp_path / "gate"
    target = f"{ROOT / SUBJECTS}::patient"
    arguments = [target, two_chunks(), "--dtype", "float32", "--result", "y", "--jobs", "1"]
    process = begun([*arguments, "--resume", str(journal)], journal, 2, tmp_path, gate)
    os.kill(process.pid, signal.SIGKILL)
    gate.touch()  # the worker that lost its parent ends once its kernel returns
    process.communicate(timeout=60)
    before = journal.read_bytes()
    journal.write_bytes(before + b"0123456789abcdef {half a li")  # as if it had died writing
    words = (*SWEEP, *arguments, "--resume", str(journal), "--json", "resumed.json")
    resumed = as_process(*words, cwd=tmp_path, **VARIABLES, VERIFY_TEST_GATE=str(gate))
    assert resumed.returncode == 0, resumed.stderr
    assert journal.read_bytes().startswith(before), "nothing that was done is done again"
    spans = [msgspec.json.decode(body)[1] for line in journal.read_bytes().splitlines() if (body := checked(line))][1:]
    covered = sorted(chunk for span in spans for low, high in span["chunks"] for chunk in range(low, high))
    assert covered == [0, 1]
    monkeypatch.setenv("VERIFY_TEST_GATE", str(gate))
    fresh = said(*SWEEP, *arguments, "--json", "fresh.json", cwd=tmp_path)
    assert fresh.returncode == 0, fresh.stderr
    assert stripped(load(tmp_path / "resumed.json")) == stripped(load(tmp_path / "fresh.json"))
    other = said(*SWEEP, *arguments, "--baseline", "--resume", str(journal), cwd=tmp_path)
    assert other.returncode == 2 and "holds a sweep with other inputs" in other.stderr


def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(tmp_path: Path) -> None:
    gate, watched = tmp_path / "gate", tmp_path / "watched"
    arguments = [f"{ROOT / SUBJECTS}::patient", two_chunks(), "--dtype", "float32", "--result", "y", "--jobs", "1"]
    process = begun([*arguments, "--resume", str(watched)], watched, 2, tmp_path, gate)
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 3, said
    again = next(line.removeprefix("  next: ") for line in said.splitlines() if line.startswith("  next: "))
    gate.touch()
    done = as_process(*shlex.split(again)[1:], cwd=tmp_path, **VARIABLES, VERIFY_TEST_GATE=str(gate))
    assert done.returncode == 0, done.stderr
    assert lines_of(watched) >= 3


def test_a_changed_kernel_does_not_continue_the_old_sweep(tmp_path: Path) -> None:
    file, journal = tmp_path / "mine.py", tmp_path / "j"
    text = "import torch, verify\n@verify.kernel(op='silu', dtypes=['bfloat16'], gradients=False)\n"
    text += "def mine(x):\n    return torch.nn.functional.silu(x)\n"
    file.write_text(text)
    assert said(*SWEEP, str(file), "--range=0:1", "--resume", str(journal), cwd=tmp_path).returncode == 0
    file.write_text(text + "# changed\n")
    done = said(*SWEEP, str(file), "--range=0:1", "--resume", str(journal), cwd=tmp_path)
    assert done.returncode == 2 and "holds a sweep with other sources of" in done.stderr
