"""`verify sweep` from outside: verdicts, usage errors, Ctrl-C, and a process that is really killed."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.cli.here import Here, Said, said, started
from verify import worker
from verify.cli import main
from verify.records.files import load
from verify.records.part_store import checked
from verify.records.record import Run, replay_command
from verify.search.sweep.space import CHUNK, bits_of_key
from verify.truth.formats import named
from verify.workers import process as isolate

pytestmark = pytest.mark.usefixtures("warm")

ROOT = Path(__file__).resolve().parents[2]
SUBJECTS = "tests/search/sweep/subjects.py"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "verify", "sweep", "--backend", "interpreter", *arguments]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **more}


def swept(*arguments: str, folder: Path = ROOT, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), cwd=folder, env=environment(**more), capture_output=True, text=True, timeout=300
    )


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """A sweep in this process: where nothing is killed it needs no process, and no worker, of its own."""
    monkeypatch.setattr(isolate, "Worker", Here)

    def call(*arguments: str, folder: Path = ROOT, **more: str) -> Said:
        monkeypatch.chdir(folder)
        worker._environment_of.cache_clear()  # it names the commit of the folder
        for name, value in more.items():
            monkeypatch.setenv(name, value)
        code = main(command(*arguments)[3:])
        return Said(code, *capsys.readouterr())

    return call


def test_all_16_bit_inputs_of_a_wrong_kernel(here, tmp_path: Path) -> None:
    record, findings = tmp_path / "run.json", tmp_path / "run.sarif"
    forms = ("--json", str(record), "--sarif", str(findings))
    done = here(f"{SUBJECTS}::naive", "--dtype", "bfloat16", "--hardest", "2", *forms)
    assert done.returncode == 1, done.stderr
    assert "all 2^16" in done.stdout and "255.2 ULP on ordinary inputs" in done.stdout
    run = load(record)
    assert [(item.output, item.basis.kind, item.basis.n) for item in run.kernels[0].results] == [
        ("y", "exhaustive", 65_536),
        ("dx", "exhaustive", 65_536),
    ]
    assert {each["ruleId"] for each in json.loads(findings.read_text())["runs"][0]["results"]} == {"wrong"}
    result = run.kernels[0].results[0]
    assert len(result.hardest) == 2 and result.curve is not None and result.source == "sweep"
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
    process = started(command(*arguments), folder, env=environment(VERIFY_TEST_GATE=str(gate)))
    deadline = time.monotonic() + 120
    while lines_of(journal) < lines and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert process.poll() is None and lines_of(journal) >= lines, process.communicate()
    return process


def stripped(run: Run) -> object:
    """A run without its times and its command."""
    kernels = [msgspec.structs.replace(item, seconds=0.0, peak={}) for item in run.kernels]
    return msgspec.structs.replace(run, id="", created="", seconds=0.0, command="", kernels=kernels)


def test_a_killed_sweep_resumes_to_the_same_record(here, tmp_path: Path) -> None:
    journal, gate = tmp_path / "j", tmp_path / "gate"
    target = f"{ROOT / SUBJECTS}::patient"
    arguments = [target, two_chunks(), "--dtype", "float32", "--result", "y", "--jobs", "1"]
    process = begun([*arguments, "--resume", str(journal)], journal, 2, tmp_path, gate)
    os.kill(process.pid, signal.SIGKILL)
    gate.touch()  # the worker that lost its parent ends once its kernel returns
    process.communicate(timeout=60)
    before = journal.read_bytes()
    journal.write_bytes(before + b"0123456789abcdef {half a li")  # as if it had died writing
    resumed = swept(
        *arguments, "--resume", str(journal), "--json", "resumed.json", folder=tmp_path, VERIFY_TEST_GATE=str(gate)
    )
    assert resumed.returncode == 0, resumed.stderr
    assert journal.read_bytes().startswith(before), "nothing that was done is done again"
    spans = [msgspec.json.decode(body)[1] for line in journal.read_bytes().splitlines() if (body := checked(line))][1:]
    covered = sorted(chunk for span in spans for low, high in span["chunks"] for chunk in range(low, high))
    assert covered == [0, 1]
    fresh = here(*arguments, "--json", "fresh.json", folder=tmp_path, VERIFY_TEST_GATE=str(gate))
    assert fresh.returncode == 0, fresh.stderr
    assert stripped(load(tmp_path / "resumed.json")) == stripped(load(tmp_path / "fresh.json"))
    other = here(*arguments, "--hardest", "1", "--resume", str(journal), folder=tmp_path)
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
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(again)],
        cwd=tmp_path,
        env=environment(VERIFY_TEST_GATE=str(gate)),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert lines_of(watched) >= 3


def test_a_changed_kernel_does_not_continue_the_old_sweep(here, tmp_path: Path) -> None:
    file, journal = tmp_path / "mine.py", tmp_path / "j"
    text = "import torch, verify\n@verify.kernel(op='silu', dtypes=['bfloat16'], gradients=False)\n"
    text += "def mine(x):\n    return torch.nn.functional.silu(x)\n"
    file.write_text(text)
    assert here(str(file), "--range=0:1", "--resume", str(journal), folder=tmp_path).returncode == 0
    file.write_text(text + "# changed\n")
    done = here(str(file), "--range=0:1", "--resume", str(journal), folder=tmp_path)
    assert done.returncode == 2 and "holds a sweep with other sources of" in done.stderr
