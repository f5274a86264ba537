"""Solutions that attack the machine or the judge: each has its own verdict, and nothing of it is left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from multiprocessing import resource_tracker
from pathlib import Path

import pytest

from tests.referee.samples import LINEAR, solution, written
from verify.referee.judging import Settings, judge_many
from verify.referee.plan import Judgement
from verify.workers.process_tree import END_SECONDS, LOOK_SECONDS, living
from verify.workers.sandbox import starter

pytestmark = pytest.mark.usefixtures("warm")

SMALL = LINEAR.replace("randn(6, 24)", "randn(4, 4)").replace("[24, 10]", "[4, 6]")  # fewer may all be 0 after relu
RIGHT = "return torch.relu(functional.linear(x, weight, bias))"
FILES = "for place in range(1000):\n    open(f'f{place}', 'wb').write(bytes(1 << 26))"
PRINTS_AND_SURVIVES = f"""
import os, time
print("::error::it was here", flush=True)
os.write(2, b"it was here")
if not os.path.exists("alive") and os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open("alive", "w").close()
        time.sleep(600)
    os._exit(0)
{RIGHT}
"""
FORGES = f"""
import os
for number in range(3, 64):
    try:
        os.write(number, b'\\x00\\x00\\x00\\x16{{"number":1,"tensors":[]}}')
    except OSError:
        pass
{RIGHT}
"""
FORKS = """
import os, time
while True:
    try:
        if os.fork() == 0:
            time.sleep(600)
    except OSError:
        raise RuntimeError("no more processes") from None
"""
WRITES = f"open({{path!r}}, 'w').write('it was here')\n{RIGHT}"
# the verdict, a part of the message, the body
ATTACKS = {
    "segfault": ("fails", "died of SIGSEGV", "import ctypes\nctypes.string_at(0)"),
    "forges": ("cheats", "forges an answer", FORGES),
    "writes": ("fails", "Permission denied", WRITES),
    "prints_and_survives": ("accepted", "", PRINTS_AND_SURVIVES),
}
SLOW = {
    "exit": ("fails", "ended with exit code 0", "import os\nos._exit(0)"),
    "loop": ("fails", "gave no answer within", "while True:\n    pass"),
    "forks": ("fails", "", FORKS),
    "disk": ("fails", "", FILES),
    "memory": ("fails", "", "kept = []\nwhile True:\n    kept.append(torch.ones(1 << 24))"),
    "kills": ("fails", "", "import os, signal\nos.kill(os.getppid() or -1, signal.SIGKILL)\nos.kill(-1, 9)"),
    "network": ("fails", "not permitted", "import socket\nsocket.create_connection(('127.0.0.1', 22), 1)"),
    "looks": ("fails", "Permission denied", "import os\nos.listdir({folder!r})"),
    "raises": ("fails", "ValueError: no thanks (solution.py:14)", "raise ValueError('no thanks')"),
}


def judged(folder: Path, attacks: dict[str, tuple[str, str, str]]) -> dict[str, Judgement]:
    """Judges each attack with one worker, a right solution before and after it."""
    problem = written(folder, problem=SMALL)["problem"]
    bodies = {name: body for name, (_, _, body) in attacks.items()} | {"after": RIGHT}
    for name in bodies.keys() & {"writes", "looks"}:
        bodies[name] = bodies[name].format(path=str(folder / "out"), folder=str(folder))
    paths = written(folder, **{name: solution(body) for name, body in bodies.items()})
    settings = Settings(backend="cpu", timeout=48, memory=1 << 30)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda _: {0})  # more cores are forks for each case
        patch.delenv("TRITON_INTERPRET", raising=False)
        found = list(judge_many([(str(problem), str(path)) for path in paths.values()], settings, 1))
    return {Path(each.solution).stem: each for each in found}


def demand_verdicts(folder: Path, attacks: dict[str, tuple[str, str, str]]) -> None:
    if os.getuid() and not Path("/proc/self/ns/user").exists():
        pytest.skip("this kernel has no namespaces")
    resource_tracker.ensure_running()  # judging starts it again if an earlier test has ended it
    before = living({os.getpid()}, "")
    found = judged(folder, attacks)
    for name, (verdict, text, _) in attacks.items():
        assert (found[name].verdict, text in found[name].message) == (verdict, True), (name, found[name].message)
    assert found["after"].verdict == "accepted"
    starter.stop()
    end = time.monotonic() + END_SECONDS  # a killed process closes its pipes a moment before it is gone
    while left := living({os.getpid()}, "") - before:
        assert time.monotonic() < end, left
        time.sleep(LOOK_SECONDS)
    assert not (folder / "out").exists()


def test_an_attack_has_its_own_verdict_and_leaves_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    demand_verdicts(tmp_path, ATTACKS)
    assert "it was here" not in "".join(capfd.readouterr())


@pytest.mark.slow
def test_what_exhausts_the_machine_has_its_own_verdict_and_leaves_nothing(tmp_path: Path) -> None:
    demand_verdicts(tmp_path, SLOW)


@pytest.mark.slow
def test_a_judge_that_is_terminated_leaves_nothing(tmp_path: Path) -> None:
    """No folder in the temporary one, and no process: also of a solution that never answers."""
    (place := tmp_path / "temporary").mkdir()
    paths = written(tmp_path, problem=SMALL, endless=solution("import time\ntime.sleep(600)"))
    command = [sys.executable, "-m", "verify", "judge", str(paths["problem"]), str(paths["endless"])]
    plain = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"} | {"TMPDIR": str(place)}
    process = subprocess.Popen(
        [*command, "--backend", "cpu", "--allow-weaker"], env=plain, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    until = time.monotonic() + 120
    while not [*place.glob("*/*/solution.py")] and time.monotonic() < until:
        time.sleep(0.1)
    time.sleep(1)
    family = living({process.pid}, "")
    process.terminate()
    errors = process.communicate(timeout=60)[1].decode()
    assert process.returncode in (1, 3) and "Traceback" not in errors, errors
    assert not [*place.iterdir()]
    until = time.monotonic() + END_SECONDS
    while left := {each for each in family if living({each}, "")}:
        assert time.monotonic() < until, left
        time.sleep(LOOK_SECONDS)


@pytest.mark.slow
def test_a_solution_with_the_name_of_a_module_runs_in_its_own_process_alone(tmp_path: Path) -> None:
    """The current folder has it: there `import copy` of the judge would find it first."""
    mark = "import os\nopen(os.path.join(os.path.dirname(__file__), f'executed_by_{os.getpid()}'), 'w').close()\n"
    paths = written(tmp_path, problem=SMALL, copy=solution(RIGHT, before=mark))
    plain = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    plain["PYTHONPATH"] = str(Path(__file__).parents[2])
    command = [sys.executable, "-m", "verify", "judge", "problem.py", "copy.py", "--backend", "cpu", "--allow-weaker"]
    done = subprocess.run(command, cwd=paths["copy"].parent, env=plain, capture_output=True, text=True, timeout=300)
    assert done.stdout.startswith("✓ accepted  copy.py"), done.stdout + done.stderr
    assert sorted(each.name for each in tmp_path.iterdir()) == ["copy.py", "problem.py"]
