"""Keeps finished parts of a run, a night, laws or a sweep in one file, from which a later start continues.

Each part is appended at once as one line: a digest, then its name and value in JSON. If a process is killed, the file
has whole lines and at most one torn line at the end. The next start cuts that line off. It also ignores a line with a
wrong digest, and repeats that part.
"""

import hashlib
import os
import tempfile
import time
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from verify.errors import UsageError
from verify.records.files import say_lost

CACHED_SECONDS = 14 * 86400.0  # a file in the cache that no start used for this long is removed
SETTINGS = ""  # the name of the part that holds the settings
_DIGITS = 16  # hex digits of the digest in front of each line's JSON

T = TypeVar("T")


def cache(name: str) -> Path:
    """Returns a folder of this user's cache, for files that can be made again."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "verify" / name


def temporary(name: str) -> Path | None:
    """Returns a new file in the cache, whose name begins with a digest of `name`. None if it cannot be made."""
    try:
        place = cache("runs")
        place.mkdir(parents=True, exist_ok=True)
        for old in place.iterdir():
            if old.stat().st_mtime < time.time() - CACHED_SECONDS:
                with suppress(OSError):
                    old.unlink()
        handle, path = tempfile.mkstemp(".parts", hashlib.sha256(name.encode()).hexdigest()[:12] + "-", place)
        os.close(handle)
        return Path(path)
    except (OSError, RuntimeError):  # RuntimeError: the user has no home folder
        return None


class PartStore:
    """Holds the parts in a file. If a part cannot be written, this is reported once, and the work continues."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lost = ""  # why parts could not be written
        self._kept = False

    @cached_property
    def parts(self) -> dict[str, msgspec.Raw]:
        """Maps the names of parts that earlier starts finished to their JSON.

        Cuts a torn last line off the file, and ignores lines with a wrong digest.
        """
        try:
            data = self.path.read_bytes() if self.path.exists() else b""
        except OSError as error:
            raise UsageError(f"cannot read {self.path}: {error.strerror}", hint="name another file") from error
        whole = data[: data.rfind(b"\n") + 1]
        bodies = [body for line in whole.splitlines() if (body := checked(line)) is not None]
        if data and not bodies:
            raise UsageError(f"{self.path} holds no finished parts", hint="name another file")
        if len(whole) < len(data):
            with suppress(OSError):
                os.truncate(self.path, len(whole))
        return dict(msgspec.json.decode(body, type=tuple[str, msgspec.Raw]) for body in bodies)

    @property
    def begun(self) -> bool:
        """True if a part was kept, now or by an earlier start."""
        return self._kept or any(name != SETTINGS for name in self.parts)

    def known(self, name: str, kind: type[T]) -> T | None:
        """Returns a part that an earlier start finished."""
        if (body := self.parts.get(name)) is None:
            return None
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.DecodeError as error:
            raise UsageError(f"{self.path} is damaged: {error}", hint=f"remove it: rm {self.path}") from error

    def keep(self, name: str, value: Any) -> None:
        """Appends a finished part. It is on the disk when this returns, unless the disk is full."""
        line = msgspec.json.encode((name, value))
        line = _digest(line) + b" " + line + b"\n"
        try:
            with suppress(OSError):
                self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                while line:
                    line = line[os.write(handle, line) :]
                os.fsync(handle)
            finally:
                os.close(handle)
            self._kept = self._kept or name != SETTINGS
        except OSError as error:  # another start repeats a part that was cut off, and one that follows on the same line
            self.lost = self.lost or f"cannot write {self.path}: {error.strerror}"
            say_lost(self.path, error.strerror)

    def claim(self, settings: dict[str, Any], what: str, fresh: str) -> None:
        """Begins the file, or continues it if it was begun with the same settings.

        Raises UsageError if it was begun with other settings; `fresh` is the hint to use another file.
        """
        try:
            begun = self.known(SETTINGS, dict[str, Any])
        except UsageError as error:
            raise UsageError(error.message, hint=fresh) from error
        settings = {"command": what, **settings}
        if begun is None and not self.parts:
            self.keep(SETTINGS, settings)
            return
        begun = begun or {}
        for name, value in msgspec.json.decode(msgspec.json.encode(settings)).items():
            if begun.get(name) != value:
                other = f"{name}{_differing(begun.get(name), value)}"
                said = f"holds a {what} with other {other}: its figures cannot be mixed with this one's"
                raise UsageError(f"{self.path} {said}", hint=fresh)

    def clear(self) -> None:
        """Removes the file once the run no longer needs it."""
        with suppress(OSError):
            self.path.unlink()


def checked(line: bytes) -> bytes | None:
    """Returns the JSON of a line, or None if its digest is wrong."""
    check, _, body = line.partition(b" ")
    return body if check == _digest(body) else None


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest()[:_DIGITS].encode()


def _differing(before: Any, now: Any) -> str:
    """Returns a text that shows how a setting changed."""
    if isinstance(before, dict) and isinstance(now, dict):
        names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
        return "".join(f" ({name}: {before.get(name)!r}, now {now.get(name)!r})" for name in names[:1])
    return f" ({before!r}, now {now!r})"
