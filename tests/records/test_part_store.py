"""Finished parts survive what can happen to a file that a dying process was writing."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from verify.errors import UsageError
from verify.records.part_store import PartStore, checked
from verify.search.sweep.drive import keep, known_of
from verify.search.sweep.space import Part, Partial

SETTINGS: dict[str, Any] = {"seed": 1, "device": {"gpu": "none"}}


def written(path: Path, *names: str) -> bytes:
    store = PartStore(path)
    store.claim(SETTINGS, "sweep", "another file")
    for name in names:
        store.keep(name, [name])
    return path.read_bytes()


def known(path: Path) -> list[str]:
    store = PartStore(path)
    store.claim(SETTINGS, "sweep", "another file")
    names = [name for name in store.parts if name]
    assert all(store.known(name, list[str]) == [name] for name in names)
    return names


def test_what_was_kept_is_known_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "j"
    written(path, "one", "two")
    assert known(path) == ["one", "two"]
    store = PartStore(path)
    assert store.begun and store.known("three", list[str]) is None
    store.keep("three", ["three"])
    assert known(path) == ["one", "two", "three"]
    store.clear()
    assert not path.exists() and not PartStore(path).begun


def test_a_torn_last_line_is_cut_off_wherever_it_tore(tmp_path: Path) -> None:
    path = tmp_path / "j"
    one = written(path, "one")
    whole = written(path, "two")
    for size in range(len(one), len(whole)):
        path.write_bytes(whole[:size])
        assert known(path) == ["one"]
        assert path.read_bytes() == one, "the next line begins on a line of its own"
    path.write_bytes(whole)
    assert known(path) == ["one", "two"]


def test_a_file_that_died_before_its_first_line_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_bytes(b"")
    assert known(path) == [] and path.read_bytes().count(b"\n") == 1


def test_a_changed_byte_loses_its_line_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "j"
    lines = written(path, "one", "two", "three").splitlines(keepends=True)
    lines[2] = lines[2].replace(b'["two"]', b'["too"]')
    path.write_bytes(b"".join(lines))
    assert known(path) == ["one", "three"]
    body = lines[1].split(b" ", 1)[1].rstrip(b"\n")
    assert checked(lines[1].rstrip(b"\n")) == body
    assert checked(lines[1].rstrip(b"\n") + b" ") is None and checked(b"") is None


@pytest.mark.parametrize(
    ("settings", "what", "message"),
    [
        ({**SETTINGS, "device": {"gpu": "H200"}}, "sweep", r"other device \(gpu: 'none', now 'H200'\)"),
        ({**SETTINGS, "seed": 2}, "sweep", r"other seed \(1, now 2\): its figures cannot be mixed"),
        (SETTINGS, "run", r"other command \('sweep', now 'run'\)"),
    ],
)
def test_what_was_begun_otherwise_is_refused(tmp_path: Path, settings: dict[str, Any], what: str, message: str) -> None:
    path = tmp_path / "j"
    before = written(path, "one")
    with pytest.raises(UsageError, match=message):
        PartStore(path).claim(settings, what, "another file")
    assert path.read_bytes() == before


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("do not touch\n")
    with pytest.raises(UsageError, match="holds no finished parts"):
        PartStore(path).claim(SETTINGS, "sweep", "another file")
    assert path.read_text() == "do not touch\n"
    with pytest.raises(UsageError, match="cannot read"):
        PartStore(tmp_path).claim(SETTINGS, "sweep", "another file")


def test_a_part_of_another_form_is_named(tmp_path: Path) -> None:
    path = tmp_path / "j"
    written(path, "one")
    with pytest.raises(UsageError, match=r"j is damaged: Expected `int`"):
        PartStore(path).known("one", int)


def test_a_full_disk_costs_what_is_kept_and_not_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half a line is all that there was room for; what is kept once there is room again counts."""
    path, write, room = tmp_path / "j", os.write, [20]

    def full(handle: int, data: bytes) -> int:
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(handle, data[: room.pop()])

    written(path, "one")
    store = PartStore(path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        store.keep("two", ["two"])
        store.keep("three", ["three"])
    said = capsys.readouterr().err
    assert said == f"verify: finished parts are not saved: cannot write {path}: No space left on device\n"
    assert store.lost and store.lost in said
    store.keep("four", ["four"])  # stands behind the half line, and is lost with it
    store.keep("five", ["five"])
    assert known(path) == ["one", "five"]


def test_chunks_of_a_sweep_count_once(tmp_path: Path) -> None:
    store = PartStore(tmp_path / "j")
    for low, high in ((4, 8), (0, 2), (0, 2), (1, 5)):
        keep(store, Partial("space", "torch cpu", [(low, high)], {"y": Part(escalated=high - low)}))
    found = known_of(PartStore(tmp_path / "j"))["space"]
    assert found.chunks == [(0, 2), (4, 8)] and found.parts["y"].escalated == 6, "what overlaps is done again"
