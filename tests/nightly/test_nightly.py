"""A night goes on where it was interrupted, keeps to its budget, and never mixes settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.cli.here import Here
from tests.report.sample import passing
from tests.workers.fake import texts
from verify import nightly
from verify.errors import TruthError, UsageError
from verify.laws import registry
from verify.measure import session
from verify.nightly import Night, PlannedStage
from verify.records.record import Gap, Run
from verify.search.sweep import drive
from verify.workers import process
from verify.workers.pool import Pool

pytestmark = pytest.mark.usefixtures("warm")

KERNELS = """
from collections.abc import Iterator
from pathlib import Path
import torch
import verify

def _count(name):
    with open(Path(__file__).parent / name, "a") as stream:
        stream.write("x")

@verify.kernel(op="silu", dtypes=["bfloat16"], gradients=False)
def first(x):
    _count("first")
    return torch.where(x == -torch.inf, 0, torch.nn.functional.silu(x.double())).to(x.dtype)

@verify.kernel(op="silu", dtypes=["bfloat16"], gradients=False)
def second(x):
    _count("second")
    if not (Path(__file__).parent / "go").exists():
        raise KeyboardInterrupt
    return torch.where(x == -torch.inf, 0, torch.nn.functional.silu(x.double())).to(x.dtype)
"""


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are this process. A kernel that raises KeyboardInterrupt has to end one of its own."""
    monkeypatch.setattr(process, "Worker", Here)


STAGES = (PlannedStage("accuracy", 1.0, nightly.accuracy),)
POOLS: list[Pool] = []


@pytest.fixture(autouse=True)
def _stopped() -> Iterator[None]:
    yield
    while POOLS:
        POOLS.pop().stop()


def night(tmp_path: Path, **settings: object) -> Night:
    target = tmp_path / "accuracy.py"
    if not target.exists():
        target.write_text(KERNELS)
    POOLS.append(Pool.started("interpreter"))
    folder, targets = tmp_path / "night", (str(target),)
    return Night(folder, targets, POOLS[-1], backend="interpreter", jobs=1, timeout=120, **settings)  # type: ignore[arg-type]


def test_an_interrupted_night_does_only_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = nightly.run(night(tmp_path), STAGES, "verify nightly")
    assert [kernel.status for kernel in broken.kernels] == ["ok", "crashed"]
    calls = len((tmp_path / "first").read_text())
    # what a power cut leaves behind: the unit that was running has no record
    kept = tmp_path / "night" / "accuracy.parts"
    kept.write_bytes(b"".join(line for line in kept.read_bytes().splitlines(keepends=True) if b"::second" not in line))
    (tmp_path / "go").touch()
    monkeypatch.setattr(process, "Worker", Here)  # nothing ends a process any more
    whole = nightly.run(night(tmp_path), STAGES, "verify nightly")
    assert [kernel.status for kernel in whole.kernels] == ["ok", "ok"]
    assert len((tmp_path / "first").read_text()) == calls
    assert whole.kernels[0] == broken.kernels[0]
    assert whole.verdict == "pass"
    assert [(stage.name, stage.status) for stage in whole.stages] == [("accuracy", "ok")]


@pytest.mark.usefixtures("here")
def test_what_the_budget_does_not_reach_makes_the_night_incomplete(tmp_path: Path) -> None:
    short = nightly.run(night(tmp_path, budget=0.0), STAGES, "verify nightly")
    assert [kernel.status for kernel in short.kernels] == ["skipped", "skipped"]
    assert short.verdict == "incomplete"
    assert "first: not begun: the time budget was spent" in texts(short)
    assert not (tmp_path / "night" / "accuracy.parts").exists(), "a kernel that was not measured leaves no record"
    assert {kernel.hint for kernel in short.kernels} == {session.OUT_OF_TIME}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("change", [{"seed": 2}, {"profile": "ci"}, {"peers": ("others.py",)}])
def test_a_folder_of_other_settings_is_refused(tmp_path: Path, change: dict) -> None:
    nightly._claim(night(tmp_path))
    nightly._claim(night(tmp_path))
    with pytest.raises(UsageError, match=f"with other {next(iter(change))}"):
        nightly._claim(night(tmp_path, **change))


@pytest.mark.usefixtures("here")
def test_changed_sources_are_another_night(tmp_path: Path) -> None:
    mine = night(tmp_path)
    nightly._claim(mine)
    Path(mine.targets[0]).write_text(KERNELS + "\n")
    with pytest.raises(UsageError, match="with other sources"):
        nightly._claim(night(tmp_path))


@pytest.mark.usefixtures("here")
def test_a_stage_that_cannot_be_done_is_reported_and_the_rest_goes_on(tmp_path: Path) -> None:
    def impossible(night: Night, until: float | None) -> Run:
        raise UsageError("there is no GPU")

    (tmp_path / "go").touch()
    mine = night(tmp_path)
    found = nightly.run(mine, (PlannedStage("speed", 1.0, impossible), *STAGES), "verify nightly")
    assert [(stage.name, stage.status) for stage in found.stages] == [("speed", "incomplete"), ("accuracy", "ok")]
    assert found.incomplete == [Gap("not possible", "speed: there is no GPU")]
    assert found.verdict == "incomplete"
    with pytest.raises(UsageError, match="no stage of the nightly run gave a record"):
        nightly.run(mine, (PlannedStage("speed", 1.0, impossible),), "verify nightly")


@pytest.mark.usefixtures("here")
def test_a_night_whose_folder_takes_nothing_measures_all_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "go").touch()
    (tmp_path / "night").touch()  # a file, in which no folder can be made: no write of the night succeeds
    others = tuple(law.name for law in registry.ALL if law.name != "determinism")
    mine = night(tmp_path, profile="quick", without=others)
    mine.folder = mine.folder / "of today"
    stages = tuple(stage for stage in nightly.STAGES if stage.name in ("accuracy", "sweep", "laws"))
    found = nightly.run(mine, stages, "verify nightly")
    assert [(stage.name, stage.status) for stage in found.stages] == [(stage.name, "ok") for stage in stages]
    assert found.verdict == "pass" and {result.source for result in found.kernels[0].results} == {"run", "sweep"}
    assert [law.status for law in found.kernels[0].laws if law.law == "determinism"] == ["ok"]
    said = capsys.readouterr().err
    assert "cannot write" in mine.lost and all(name in said for name in ("night.parts", "laws.parts", "sweep.parts"))


@pytest.mark.usefixtures("here")
def test_an_error_of_the_harness_in_a_stage_leaves_the_others(tmp_path: Path) -> None:
    def sound(night: Night, until: float | None) -> Run:
        return passing()

    def broken(night: Night, until: float | None) -> Run:
        raise TruthError("two routes disagree")

    stages = (PlannedStage("broken", 1.0, broken), PlannedStage("sound", 1.0, sound))
    mine = night(tmp_path)
    found = nightly.run(mine, stages, "verify nightly")
    assert [stage.status for stage in found.stages] == ["incomplete", "ok"]
    assert texts(found) == mine.usage
    assert texts(found) == ["broken: the harness is in error, no verdict: two routes disagree"]
    assert found.verdict == "incomplete"
    with pytest.raises(TruthError, match="gave a record: broken: the harness"):
        nightly.run(mine, stages[:1], "verify nightly")


def test_a_unit_that_may_end_better_is_made_again(tmp_path: Path) -> None:
    mine, made = night(tmp_path), []

    def make(gap: Gap) -> Run:
        made.append(gap)
        return msgspec.structs.replace(passing(), incomplete=[gap])

    late, in_error = Gap("out of time", "gelu bfloat16: not timed"), Gap("harness error", "sweep of gelu: no verdict")
    for gap in (late, in_error, Gap("crashed", "gelu: crashed"), Gap("not possible", "never")):
        nightly.unit(mine, "bench all", lambda gap=gap: make(gap))  # type: ignore[misc]
    assert len(made) == 3, "the third was whole, whatever it found, and is kept"


@pytest.mark.parametrize("status", ["vacuous", "undecided"])
def test_a_stage_without_a_verdict_on_a_kernel_is_incomplete(status: str) -> None:
    first = msgspec.structs.replace(passing().kernels[0], status=status)
    open_one = msgspec.structs.replace(passing(), kernels=[first])
    assert nightly._stage("hunt", open_one, 1.0).status == "incomplete"
    peers = msgspec.structs.replace(open_one, kernels=[msgspec.structs.replace(first, peer=True)])
    assert nightly._stage("hunt", peers, 1.0).status == "ok"


def test_ctrl_c_in_a_sweep_ends_the_night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sweep(*_: object) -> Run:
        raise drive.InterruptedSweepError(tmp_path)

    monkeypatch.setattr(drive, "sweep", sweep)
    monkeypatch.setattr(process, "Worker", Here)
    mine = night(tmp_path, spaces={"a": (("float32",), "unary")})
    with pytest.raises(KeyboardInterrupt):
        nightly.run(mine, (PlannedStage("sweep", 1.0, nightly.sweep), *STAGES), "verify nightly")
