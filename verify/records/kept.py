"""A folder of finished parts of a run, each written at once as a file of its own, so that a later start has them.

The settings under which they were measured stand beside them: what was measured otherwise is refused with what differs.
Runs and nights both keep their parts so.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from verify.errors import UsageError, WriteError
from verify.records.files import write_atomically
from verify.records.record import KernelRun

CACHED_SECONDS = 14 * 86400.0  # after which parts in the cache that nobody came back for are removed


def cache(name: str) -> Path:
    """The folder of this user's cache for something that can be made again."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "verify" / name


def temporary(name: str) -> Path | None:
    """A new folder in the cache, whose name begins with a digest of `name`; None where none can be made."""
    try:
        place = cache("runs")
        place.mkdir(parents=True, exist_ok=True)
        for old in place.iterdir():
            if old.stat().st_mtime < time.time() - CACHED_SECONDS:
                shutil.rmtree(old, ignore_errors=True)
        return Path(tempfile.mkdtemp(prefix=hashlib.sha256(name.encode()).hexdigest()[:12] + "-", dir=place))
    except (OSError, RuntimeError):  # RuntimeError: nobody has a home here
        return None


class Kept:
    """The parts in a folder. Those that cannot be written are not kept, and `lost` says why: the run goes on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lost = ""
        self.begun = False  # a part was kept, now or by an earlier start

    def path(self, name: str) -> Path:
        """Where the record of one part lies; any name gives a file name of its own."""
        safe = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in name)[:80]
        return self.folder / f"{safe}.{hashlib.sha256(name.encode()).hexdigest()[:8]}.json"

    def known(self, name: str) -> KernelRun | None:
        """A part that an earlier start finished."""
        path = self.path(name)
        if not path.exists():
            return None
        self.begun = True
        try:
            return msgspec.json.decode(path.read_bytes(), type=KernelRun)
        except msgspec.DecodeError as error:
            raise UsageError(f"{path} is damaged: {error}", hint=f"remove it: rm {path}") from error

    def keep(self, name: str, done: KernelRun) -> None:
        """Write a part that is finished."""
        try:
            write_atomically(self.path(name), msgspec.json.encode(done))
            self.begun = True
        except WriteError as error:
            self.lost = self.lost or str(error)

    def claim(self, settings: dict[str, Any], what: str, *, file: str, fresh: str, alone: bool = False) -> None:
        """Begin the folder, or go on in it if it was begun with the same settings; `fresh` begins anew elsewhere.

        With `alone` the folder that is begun holds nothing else: `clear` removes it as a whole.
        """
        path = self.folder / file
        if not path.exists():
            if alone and self.folder.is_dir() and any(self.folder.iterdir()):
                raise UsageError(f"{self.folder} holds other files and no {what}", hint=fresh)
            try:
                write_atomically(path, msgspec.json.format(msgspec.json.encode(settings, order="sorted"), indent=1))
            except WriteError as error:
                self.lost = str(error)
            return
        try:
            begun = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        except (OSError, msgspec.DecodeError) as error:
            raise UsageError(f"{path} is not the settings of a {what}: {error}", hint=fresh) from error
        for name, value in msgspec.json.decode(msgspec.json.encode(settings)).items():
            if begun.get(name) != value:
                raise UsageError(
                    f"{self.folder} holds a {what} with other {name}{_differing(begun.get(name), value)}: its figures "
                    "cannot be mixed with this one's",
                    hint=fresh,
                )

    def clear(self) -> None:
        """Remove the folder of a run that needs it no more."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _differing(before: Any, now: Any) -> str:
    """What of a setting is another now."""
    if isinstance(before, dict) and isinstance(now, dict):
        names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
        return "".join(f" ({name}: {before.get(name)!r}, now {now.get(name)!r})" for name in names[:1])
    return f" ({before!r}, now {now!r})"
