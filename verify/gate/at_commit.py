"""Bounds as they were at a commit, read from git without touching a file."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from verify.errors import UsageError
from verify.gate.bounds import Book, parse
from verify.gate.worktree import commit_named, git


def book_at(ref: str, folder: Path) -> Book:
    """Every bound that the folder held at a commit; none if it was not there yet."""
    where = _existing(folder)
    top = Path(git(where, "rev-parse", "--show-toplevel")).resolve()
    commit = commit_named(ref, where)
    if not folder.resolve().is_relative_to(top):
        raise UsageError(f"{folder} is not in the repository {top}")
    inside = PurePosixPath(folder.resolve().relative_to(top))
    book = Book(folder)
    for name in git(top, "ls-tree", "-r", "-z", "--name-only", "--full-tree", commit, f"{inside}/").split("\0"):
        path = PurePosixPath(name)
        if path.suffix != ".toml" or path.name.startswith(".") or len(path.relative_to(inside).parts) != 2:
            continue
        text = git(top, "show", f"{commit}:{name}")
        data = text.encode(errors="surrogateescape")
        book.bounds.update(parse(data, source=f"{ref}:{name}", arch=path.parent.name, name=path.name))
    return book


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it: git has to be started somewhere."""
    path = folder.resolve()
    while not path.is_dir():
        path = path.parent
    return path
