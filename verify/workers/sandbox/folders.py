"""Folders of an untrusted process: they may hold links, pipes, sparse files of any size, thousands of folders."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

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
