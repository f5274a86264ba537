"""What a night says of its stages' time when it took several calls."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from verify.records import stage_time
from verify.records.stage_time import LOG, StageTime


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    moment = [1000.0]
    monkeypatch.setattr(stage_time.time, "time", lambda: moment[0])
    return moment


def finished(path: Path, moment: float) -> None:
    path.parent.mkdir(exist_ok=True)
    path.touch()
    os.utime(path, (moment, moment))


def test_a_stage_takes_from_its_beginning_to_its_end(tmp_path: Path, now: list[float]) -> None:
    clock = StageTime(tmp_path)
    clock.begin("accuracy")
    now[0] += 12.34
    assert clock.end("accuracy") == 12.3
    clock.begin("sweep")
    now[0] += 5.0
    assert clock.end("sweep") == 5.0


def test_a_finished_stage_of_an_earlier_call_counts(tmp_path: Path, now: list[float]) -> None:
    for seconds, total in ((100.0, 100.0), (3.0, 103.0), (2.0, 105.0)):
        clock = StageTime(tmp_path)
        clock.begin("accuracy")
        now[0] += seconds
        assert clock.end("accuracy") == total
        now[0] += 1000.0


@pytest.mark.parametrize("place", ["hunt.parts", "hunt/pairs.parts"])
def test_a_stage_that_was_stopped_took_until_its_last_finished_unit(
    place: str, tmp_path: Path, now: list[float]
) -> None:
    StageTime(tmp_path).begin("hunt")
    finished(tmp_path / place, 1040.0)
    with (tmp_path / LOG).open("a") as log:
        log.write('{"stage": "hunt", "beg')  # as a power cut leaves it
    now[0] = 2000.0
    clock = StageTime(tmp_path)
    clock.begin("hunt")
    finished(tmp_path / place, 2005.0)  # a later unit of the same file
    now[0] = 2007.0
    assert clock.end("hunt") == 47.0
    clock.begin("hunt")  # another call, which ends at once
    assert clock.end("hunt") == 47.0


def test_a_stage_that_was_stopped_before_its_first_unit_counts_from_there_on_only(
    tmp_path: Path, now: list[float]
) -> None:
    finished(tmp_path / "laws.parts", 900.0)  # a file of another time
    StageTime(tmp_path).begin("laws")
    now[0] = 1500.0
    clock = StageTime(tmp_path)
    clock.begin("laws")
    now[0] = 1504.0
    assert clock.end("laws") == 4.0
