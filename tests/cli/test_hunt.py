"""`verify hunt` end to end: exit codes, text, record, crash, Ctrl-C, pinning and replay."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest

from tests.cli.here import as_process, said
from verify.records import files, record

pytestmark = pytest.mark.usefixtures("warm")

KERNELS = (Path(__file__).parent.parent / "search" / "hunt" / "quarry.py").read_text()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "pyproject.toml").write_text('[tool.verify]\nkernels = ["k.py"]\ncorpus = "pinned"\n')
    (folder / "k.py").write_text(KERNELS)
    return folder


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")  # no line of a note is broken


def test_a_find_beyond_the_limit_fails_with_one_command_that_replays_it(project: Path) -> None:
    done = said("hunt", "k.py::one_exponent", "--evaluations", "40000", "--json", "run.json", cwd=project)
    assert done.returncode == 1, done.stderr
    assert "observed over 40,000 cases, seed 0" in done.stdout and "exhaustive" not in done.stdout
    assert "searched single elements, x finite; shares and quantiles are of what it tried" in done.stdout
    run = files.load(project / "run.json")
    (result,) = run.kernels[0].results
    assert done.stdout.splitlines()[-1] == f"next: {record.replay_command(result.worst[0].origin)}"
    assert result.source == "hunt" and result.basis == record.Basis("observed", 40_000, 0) and len(result.properties)
    assert run.profile == "hunt" and run.verdict == "fail"
    replayed = said("replay", "--json", "-", *_words(result), cwd=project)
    assert replayed.returncode == 1
    assert json.loads(replayed.stdout)["worst"] == json.loads(json.dumps(_plain(result.worst[0])))


def _words(result: record.Result) -> list[str]:
    import shlex

    return shlex.split(record.replay_command(result.worst[0].origin))[2:]


def _plain(worst: record.Worst) -> object:
    import msgspec

    return {"scaled_ulp": None, **msgspec.to_builtins(worst)}


def test_one_bad_kernel_does_not_take_the_others_down(project: Path) -> None:
    source = KERNELS[: KERNELS.index('@verify.kernel(op="silu", dtypes=["float32"], gradients=False)\ndef one_exp')]
    (project / "few.py").write_text(source + _kernels("aborts", "refuses", "one_exponent", "sixteen_bits"))
    options = ("--evaluations", "200000", "--json", "-", "--junit", "few.xml")
    done = as_process("hunt", "few.py", *options, cwd=project, TRITON_INTERPRET="1")
    assert done.returncode == 1
    kernels = {kernel.name: kernel for kernel in files.decode(done.stdout.encode()).kernels}
    assert kernels["aborts"].status == "crashed" and "SIGABRT" in kernels["aborts"].message
    assert kernels["refuses"].status == "error" and "no such unit" in kernels["refuses"].message
    assert kernels["one_exponent"].status == "wrong"
    assert kernels["sixteen_bits"].status == "skipped" and "can be tried" in kernels["sixteen_bits"].message
    assert kernels["right"].status == "ok"
    cases = [each for each in Xml.parse(project / "few.xml").iter("testcase") if each.find("failure") is not None]
    assert {each.get("classname") for each in cases} == {"aborts", "refuses", "one_exponent", "verify"}


def _kernels(*names: str) -> str:
    parts = KERNELS.split("@verify.kernel(")[1:]
    chosen = ["@verify.kernel(" + part for part in parts if any(f"\ndef {name}(" in part for name in names)]
    return "".join(chosen) + "\naborts_calls: list[int] = []\n"


def test_nothing_found_passes_and_does_not_say_that_nothing_is_there(project: Path) -> None:
    done = said("hunt", "k.py::right", "--evaluations", "5000", cwd=project)
    assert done.returncode == 0
    assert "1 kernel is within the declared limits (1 result); a hunt does not prove" in done.stdout


def test_an_undecided_hunt_is_no_pass(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from verify.errors import BeyondEffort
    from verify.truth import exact

    def beyond(*given: object, **more: object) -> None:
        raise BeyondEffort("too long")

    monkeypatch.setattr(exact, "judge", beyond)
    done = said("hunt", "k.py::right", "--evaluations", "2000", cwd=project)
    assert done.returncode == 3 and "exact arithmetic would have taken too long" in done.stdout


def test_a_peer_is_measured_and_not_judged(project: Path) -> None:
    done = said("hunt", "k.py::compared", "--evaluations", "2000", cwd=project)
    assert done.returncode == 3 and "no kernel was judged" in done.stdout


def test_pinned_finds_are_replayed(project: Path) -> None:
    said("hunt", "k.py::one_exponent", "--evaluations", "20000", "--json", "hunt.json", cwd=project)
    find = files.load(project / "hunt.json").kernels[0].results[0].worst[0]
    pinned = said(
        *shlex.split(record.replay_command(find.origin))[1:], "--pin", "--reason", "found by a hunt", cwd=project
    )
    (path,) = (project / "pinned").glob("one_exponent/*.json")
    assert pinned.returncode == 1 and f"pinned pinned/one_exponent/{path.name}" in pinned.stdout
    entry = json.loads(path.read_text())
    assert entry["result"] == "y" and entry["index"] == 0 and entry["why"] == "found by a hunt"

    assert said("replay", str(path), cwd=project).returncode == 1
    mended = KERNELS.replace("1e-6 + 1e-4 * slope**8", "0.0 * slope")
    assert mended != KERNELS
    (project / "k.py").write_text(mended)
    done = as_process("replay", str(path), cwd=project, TRITON_INTERPRET="1")
    (project / "k.py").write_text(KERNELS)
    assert done.returncode == 0 and "within its limit" in done.stdout, done.stderr


def test_a_replay_pins_its_case(project: Path) -> None:
    case = '{"dtype":"float32","dims":[8],"fill":"ones"}'
    for what, pinned in ((["--index", "3"], ["y", 3]), (["--law", "accuracy"], [None, None])):
        done = said("replay", "k.py::right", case, *what, "--pin", "--reason", "a twin", cwd=project)
        assert done.returncode == 0 and done.stdout.startswith("pinned pinned/right/"), done.stderr
        path = project / done.stdout.split()[1]
        entry = json.loads(path.read_text())
        assert entry["why"] == "a twin" and [entry.get("result"), entry.get("index")] == pinned
        assert said("replay", "k.py::right", case, *what, "--pin", cwd=project).stdout.startswith("pinned before ")
        assert said("replay", str(path), cwd=project).returncode == 0
    (project / "pinned" / "right" / "broken.json").write_text("{}")
    done = said("replay", "pinned/right/broken.json", cwd=project)
    assert done.returncode == 2 and "broken.json is not a corpus entry" in done.stderr
