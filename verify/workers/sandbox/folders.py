"""Folders of an untrusted process: they may hold links, pipes, sparse files of any size, thousands of folders."""

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from verify.errors import UsageError

MOST_BYTES, MOST_FILES, MOST_DEPTH = 1 << 28, 2_000, 16  # of a solution
CACHE = "__pycache__"  # Python's own files about modules: Python makes them again, and a solution may have forged them


@dataclass(frozen=True)
class Item:
    """An entry of a folder. A link is not followed."""

    path: str
    depth: int
    about: os.stat_result


def walk(top: str, most: int = 1 << 62) -> Iterator[Item]:
    """Yields at most `most` entries below a folder. A folder that cannot be read is empty."""
    left = [(top, 1)]
    while left:
        folder, depth = left.pop()
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    about = entry.stat(follow_symlinks=False)
                    yield Item(entry.path, depth, about)
                    if (most := most - 1) <= 0:
                        return
                    if stat.S_ISDIR(about.st_mode) and entry.name != CACHE:
                        left.append((entry.path, depth + 1))


def remove(top: str) -> None:
    """Deletes a folder, even one with folders without rights, or deeper than a path can be long."""
    number = 0
    with suppress(OSError):
        while folders := _emptied(top):
            for folder in folders:
                # inner folders come up one by one, so that no path grows
                for inner in _emptied(folder):
                    number += 1
                    os.rename(inner, os.path.join(top, f"{number:032x}"))
                os.rmdir(folder)
        os.rmdir(top)


def _emptied(folder: str) -> list[str]:
    """Deletes the files of a folder. Returns its folders, which are now open to their owner."""
    found = []
    os.chmod(folder, 0o700)
    with os.scandir(folder) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                os.chmod(entry.path, 0o700)
                found.append(entry.path)
            else:
                os.unlink(entry.path)
    return found


def copy(source: Path, into: Path) -> Path:
    """Copies a solution, a file or a folder, into a new folder. Returns the copy, which has plain files alone.

    Raises UsageError if the solution is anything else or too large. Nothing is read before.
    """
    try:
        top = Item(str(source), 0, os.lstat(source))
    except OSError as error:
        raise UsageError(f"{source} cannot be read: {error.strerror}") from None
    items = [top, *(walk(str(source), MOST_FILES + 1) if stat.S_ISDIR(top.about.st_mode) else ())]
    size = sum(each.about.st_size for each in items if stat.S_ISREG(each.about.st_mode))
    if len(items) > MOST_FILES or size > MOST_BYTES or max(each.depth for each in items) > MOST_DEPTH:
        most = f"{MOST_FILES:,} files, {MOST_BYTES >> 20} MiB and folders {MOST_DEPTH} deep"
        raise UsageError(f"{source}: a solution has at most {most}; this one has more")
    for item in items:
        target = into / source.name / os.path.relpath(item.path, source)
        if stat.S_ISDIR(item.about.st_mode):
            if target.name != CACHE:
                target.mkdir(parents=True, exist_ok=True)
        elif stat.S_ISREG(item.about.st_mode):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(_read(item))
        else:
            raise UsageError(f"{item.path}: a solution has files and folders; received a link, a pipe or a device")
    return into / source.name


def _read(item: Item) -> bytes:
    """Returns the bytes of a file, unless there is another in its place by now."""
    try:
        with open(os.open(item.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            if not os.path.samestat(item.about, os.fstat(file.fileno())):
                raise OSError(errno.EBUSY, "it changed meanwhile")
            return file.read(MOST_BYTES)
    except OSError as error:
        raise UsageError(f"{item.path} cannot be read: {error.strerror}") from None


def digest(path: Path) -> str:
    """Returns the SHA-256 of a file, or of the names and contents of all files of a folder but Python's own."""
    found = hashlib.sha256()
    items = sorted(each.path for each in walk(str(path)) if stat.S_ISREG(each.about.st_mode)) or [str(path)]
    for each in items:
        with open(each, "rb") as file:
            found.update(f"{os.path.relpath(each, path)}\0".encode() + hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()
