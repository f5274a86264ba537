"""A solution's folder is copied as plain files, its digest covers each of them, and any folder can be removed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.referee.samples import TRACE
from verify.errors import UsageError
from verify.referee import formats
from verify.workers.sandbox import folders
from verify.workers.sandbox.folders import remove


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(200 << 30)


def deep(path: Path, depth: int = 2100) -> None:
    """Makes folders deeper than a path can be long."""
    path.mkdir()
    with tempfile.TemporaryDirectory():
        before = os.getcwd()
        os.chdir(path)
        try:
            for _ in range(depth):
                os.mkdir("a")
                os.chdir("a")
        finally:
            os.chdir(before)


REFUSED = {
    "a link to a file": (lambda path: (path / "a").symlink_to("/etc/passwd"), "received a link"),
    "a link to a folder": (lambda path: (path / "a").symlink_to("/etc"), "received a link"),
    "a dangling link": (lambda path: (path / "a").symlink_to("nothing"), "received a link"),
    "a loop": (lambda path: (path / "a").symlink_to("."), "received a link"),
    "a pipe": (lambda path: os.mkfifo(path / "a"), "received a link, a pipe"),
    "a sparse file": (lambda path: sparse(path / "a"), "has at most"),
    "many files": (lambda path: [(path / f"{n}").touch() for n in range(folders.MOST_FILES)], "has at most"),
    "deep folders": (lambda path: deep(path / "a", 40), "has at most"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_folder_of_anything_but_files_is_refused(name: str, tmp_path: Path) -> None:
    make, message = REFUSED[name]
    place = tmp_path / "solution"
    place.mkdir()
    make(place)  # type: ignore[no-untyped-call]
    with pytest.raises(UsageError, match=message):
        folders.copy(place, tmp_path / "copy")


def test_a_link_or_a_pipe_in_the_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link.py").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "pipe.py")
    for name in ("link.py", "pipe.py", "nothing.py"):
        with pytest.raises(UsageError):
            folders.copy(tmp_path / name, tmp_path / "copy")


def test_a_solution_is_copied_without_the_files_of_python(tmp_path: Path) -> None:
    """Poisoned ones are imported in the place of a source of the same time."""
    place = tmp_path / "solution"
    (place / "__pycache__").mkdir(parents=True)
    (place / "__pycache__" / "helper.cpython-311.pyc").write_bytes(b"poison")
    (place / "more").mkdir()
    for name in ("solution.py", "README", "more/data.bin"):
        (place / name).write_text(name)
    copy = folders.copy(place, tmp_path / "copy")
    assert {str(each.relative_to(copy)) for each in copy.rglob("*") if each.is_file()} == {
        "solution.py",
        "README",
        "more/data.bin",
    }
    assert folders.digest(copy) == folders.digest(place)
    before = folders.digest(copy)
    for name in ("README", "more/data.bin", "more/new", "helper.pyc"):
        (copy / name).write_text("other")
        assert before != (before := folders.digest(copy)), name


def test_any_folder_can_be_removed(tmp_path: Path) -> None:
    place = tmp_path / "left"
    place.mkdir()
    deep(place / "deep")
    (place / "closed" / "inner").mkdir(parents=True)
    (place / "closed" / "inner" / "file").touch()
    (place / "link").symlink_to(tmp_path)
    os.mkfifo(place / "pipe")
    (place / "closed" / "inner").chmod(0)
    (place / "closed").chmod(0)
    remove(str(place))
    assert not place.exists() and tmp_path.exists()
    remove(str(place))  # nothing there


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"sources": 3}',
        '{"sources": [], "spec": {"entry_point": 7}}',
        '{"sources": [{"path": "../a.py", "content": ""}], "spec": {"entry_point": "a.py::run"}}',
        '{"sources": [{"path": "' + 5000 * "a" + '", "content": ""}], "spec": {"entry_point": "a.py::run"}}',
    ],
)
def test_what_is_no_solution_of_its_format_is_refused_by_name(text: str, tmp_path: Path) -> None:
    problem, scratch = TRACE.write(tmp_path / "problem"), tmp_path / "scratch"
    (solution := tmp_path / "solution.json").write_text(text)
    scratch.mkdir()
    with pytest.raises(UsageError, match="solution.json") as raised:
        formats.place("trace", str(problem), solution, scratch)
    assert len(str(raised.value)) < 400 and not list(scratch.glob("../a.py"))
