"""Measures two states of a project with one installation of verify, on one device, one after the other.

Only the project's files differ. The base is a git worktree in a temporary folder. Both runs get the same targets and
are started by the running `verify`. Python may import from folders of the project, for example with an editable
install. These are replaced by the folders of the worktree: otherwise the base would quietly import the head's code, and
every comparison would say "same". `check_imports` checks afterwards that this worked.

Bounds as they were at a commit need no worktree: `book_at` and `waivers_at` read them from git.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

import verify
from verify import start
from verify.errors import UsageError
from verify.records.bounds import waivers
from verify.records.bounds.committed import WAIVERS, Book, holds_bounds, parse
from verify.records.bounds.verdict import Waiver
from verify.records.files import load
from verify.records.record import Run


@dataclass(frozen=True)
class Side:
    """Holds one state of the project: its top folder, and the folder in it where commands run."""

    top: Path
    here: Path


@dataclass(frozen=True)
class Checkout:
    """Holds the working tree, and the commit to compare it with."""

    head: Side
    base: Side
    commit: str


@contextlib.contextmanager
def checkout(ref: str, here: Path | None = None) -> Iterator[Checkout]:
    """Checks out the commit `ref` in a temporary worktree beside the working tree at `here`. Removes it at the end."""
    where = (here or Path.cwd()).resolve()
    top = Path(git(where, "rev-parse", "--show-toplevel")).resolve()
    commit = commit_named(ref, where)
    with tempfile.TemporaryDirectory(prefix="verify-base-") as folder:
        tree = Path(folder).resolve() / "tree"
        git(top, "worktree", "add", "--detach", "--quiet", str(tree), commit)
        try:
            inside = tree / where.relative_to(top)
            if not inside.is_dir():
                raise UsageError(f"{ref} has no folder {where.relative_to(top)}; run from one that exists there")
            yield Checkout(Side(top, where), Side(tree, inside), commit)
        finally:
            with contextlib.suppress(UsageError):
                git(top, "worktree", "remove", "--force", str(tree))
            shutil.rmtree(tree, ignore_errors=True)
            with contextlib.suppress(UsageError):
                git(top, "worktree", "prune")


def commit_named(ref: str, where: Path) -> str:
    """Returns the commit of a branch, a tag or a hash."""
    try:
        return git(where, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    except UsageError as error:
        raise UsageError(f"git knows no commit {ref!r} in {where}", hint="git fetch, or name another commit") from error


def git(where: Path, *arguments: str) -> str:
    """Runs a git command without hooks and returns its output. Raises UsageError with git's message if it fails."""
    # A hook that runs verify has set GIT_DIR and the like, which would be about another folder.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-c", f"core.hooksPath={os.devnull}", *arguments]
    try:
        done = subprocess.run(command, cwd=where, env=clean, capture_output=True, text=True, errors="surrogateescape")
    except OSError as error:
        raise UsageError(f"git cannot be run: {error.strerror}") from error
    if done.returncode:
        line = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise UsageError(f"git {arguments[0]} failed in {where}: {line}")
    return done.stdout.removesuffix("\n")


def measure(side: Side, found: Checkout, arguments: Sequence[str], record: Path) -> Run:
    """Runs `verify run` in one state of the project. Writes the record to `record` and returns it."""
    shown = None if sys.stderr.isatty() else subprocess.PIPE
    command = ("verify", "run", *arguments, "--json", str(record))
    done = _started(side, found, *command, stdout=subprocess.DEVNULL, stderr=shown)
    if not record.exists():
        what = "the base" if side is found.base else "the head"
        said = "".join(f"\n{line}" for line in (done.stderr or "").strip().splitlines()[-12:])
        raise UsageError(f"measuring {what} gave no record (exit code {done.returncode}){said}")
    return load(record)


def check_imports(found: Checkout, targets: Sequence[str], backend: str | None) -> None:
    """Raises UsageError if the base imports the head's code: it would be compared with itself."""
    request = ("verify.declare.sources", backend or "", *targets)
    done = _started(found.base, found, *request, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        files = json.loads(done.stdout.splitlines()[-1])
    except (json.JSONDecodeError, IndexError):
        return  # the targets end the process that imports them, which the run has already reported
    for name, file in sorted(files.items()):
        if _is_of(Path(file), found.head.top):
            raise UsageError(
                f"the base imports {name} from the working tree ({file}), so it would be compared with itself",
                hint=f"make {name.split('.')[0]} importable from a checkout: PYTHONPATH=src, or an editable install "
                "that adds a folder to the path",
            )


def _is_of(file: Path, top: Path) -> bool:
    """True if a file belongs to the project itself, not to an environment inside it and not to verify."""
    path = file.resolve()
    others = (Path(sys.prefix), Path(sys.base_prefix), Path(verify.__file__).parent)
    if any(path.is_relative_to(other.resolve()) for other in others) or "site-packages" in path.parts:
        return False
    return path.is_relative_to(top)


def _started(side: Side, found: Checkout, *command: str, **streams: Any) -> subprocess.CompletedProcess[str]:
    """Runs a module of verify in one state of the project."""
    settings = {"cwd": side.here, "env": _environment(side, found), "text": True, "errors": "replace", **streams}
    return subprocess.run(start.command(*command), **settings)


def _environment(side: Side, found: Checkout) -> dict[str, str]:
    """Returns the environment of a run: the project's folders in this state come first on PYTHONPATH."""
    given = [item for item in os.environ.get("PYTHONPATH", "").split(os.pathsep) if item]
    moved = {item: _moved(item, side, found) for item in [*given, *sys.path]}
    path = [*filter(None, moved.values()), *(item for item in given if moved[item] is None)]
    return start.environment({**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(path))})


def _moved(entry: str, side: Side, found: Checkout) -> str | None:
    """Returns the place of a project's folder in this state of the project. None for other folders."""
    path = Path(entry or ".").resolve()
    moved = side.top / path.relative_to(found.head.top) if _is_of(path, found.head.top) else None
    return str(moved) if moved is not None and moved.is_dir() else None


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
    where = folder.resolve()
    while not where.is_dir():  # git runs in the nearest existing folder
        where = where.parent
    top = Path(git(where, "rev-parse", "--show-toplevel")).resolve()
    commit = commit_named(ref, where)
    if not folder.resolve().is_relative_to(top):
        raise UsageError(f"{folder} is not in the repository {top}")
    inside = PurePosixPath(folder.resolve().relative_to(top))
    for name in git(top, "ls-tree", "-r", "-z", "--name-only", "--full-tree", commit, f"{inside}/").split("\0"):
        if name and wanted(path := PurePosixPath(name).relative_to(inside)):
            text = git(top, "show", f"{commit}:{name}")
            yield f"{ref}:{name}", path, text.encode(errors="surrogateescape")
