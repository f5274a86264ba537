"""Reads bounds as they were at a commit, from git, without touching a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path, PurePath, PurePosixPath

from verify.errors import UsageError
from verify.records.bounds import waivers
from verify.records.bounds.committed import WAIVERS, Book, holds_bounds, parse
from verify.records.bounds.verdict import Waiver
from verify.records.bounds.worktree import commit_named, git


def book_at(ref: str, folder: Path) -> Book:
    """Returns every bound that the folder held at a commit. Empty if the folder did not exist yet."""
    book = Book(folder)
    for source, path, data in _files_at(ref, folder, lambda path: holds_bounds(path) and len(path.parts) == 2):
        book.bounds.update(parse(data, source=source, arch=path.parent.name, name=path.name))
    return book


def waivers_at(ref: str, folder: Path) -> tuple[Waiver, ...]:
    """Returns every waiver that the folder held at a commit."""
    return waivers.read(_files_at(ref, folder, lambda path: path.name == WAIVERS))


def _files_at(ref: str, folder: Path, wanted: Callable[[PurePath], bool]) -> Iterator[tuple[str, PurePosixPath, bytes]]:
    """Yields for each wanted file: its name in errors, its place in the folder at a commit, and its bytes."""
    where = _existing(folder)
    top = Path(git(where, "rev-parse", "--show-toplevel")).resolve()
    commit = commit_named(ref, where)
    if not folder.resolve().is_relative_to(top):
        raise UsageError(f"{folder} is not in the repository {top}")
    inside = PurePosixPath(folder.resolve().relative_to(top))
    for name in git(top, "ls-tree", "-r", "-z", "--name-only", "--full-tree", commit, f"{inside}/").split("\0"):
        if name and wanted(path := PurePosixPath(name).relative_to(inside)):
            text = git(top, "show", f"{commit}:{name}")
            yield f"{ref}:{name}", path, text.encode(errors="surrogateescape")


def _existing(folder: Path) -> Path:
    """Returns the folder, or the nearest existing one above it, in which git can run."""
    path = folder.resolve()
    while not path.is_dir():
        path = path.parent
    return path
