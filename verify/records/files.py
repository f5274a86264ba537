"""Reads and writes a run record as one JSON file. Reading is strict, the text is canonical, and writing is atomic.

Reading refuses an unknown field, a wrong type, a name that occurs twice, figures that contradict each other and another
schema version. The error names the place. A file holds the classes of `verify.records.record` as plain JSON on one
line, without the fields that hold their default. Its last field is a digest of the others. The digest shows accidental
changes and edits by hand. It does not protect against an author who computes it anew. A path that ends in `.gz` is
written with gzip, which makes the record of a night a sixth as large. Compressed data is read under any name.
"""

import errno
import functools
import gzip
import hashlib
import json
import os
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from verify.errors import UsageError, WriteError
from verify.records.contradictions import contradictions_of
from verify.records.record import SCHEMA, Run

T = TypeVar("T")

LARGEST = 1 << 28  # the most bytes of a record: a small compressed file must not fill the memory
_DIGEST = b',"digest":"%s"}\n'
WRITES_ONE = "verify run --json PATH writes one"


class SealedRun(Run, frozen=True, kw_only=True):
    """Holds a record in the form of its file."""

    digest: str


def encode(run: Run) -> bytes:
    """Returns canonical JSON on one line: fields in the order of their class, names of a mapping sorted."""
    # A 0 in the place of 0.0 would be read as 0.0 and then have another digest. So encode the record as it will be
    # read.
    return _sealed(msgspec.json.decode(msgspec.json.encode(run), type=Run))


def _sealed(run: Run) -> bytes:
    """Returns canonical JSON whose last field is the digest of the others."""
    content = msgspec.json.encode(run, order="deterministic")
    return content[:-1] + _DIGEST % hashlib.sha256(content).hexdigest().encode()


def decode(data: bytes, *, source: str = "record") -> Run:
    """Reads a record from JSON. Raises UsageError that names the file, the bad field and the rule."""
    again = "verify run --json PATH measures again"
    try:
        data = expanded(data)
        version = msgspec.json.decode(data, type=_Version).schema
    except (msgspec.DecodeError, UnicodeDecodeError, zlib.error, RecursionError) as error:
        raise UsageError(f"{source} is not a verify run record: {error}", hint=WRITES_ONE) from error
    if version != SCHEMA:
        said = f"{source} has schema {version}; this verify reads records of schema {SCHEMA}"
        raise UsageError(said, hint="rerun `verify run --json PATH` with this version")
    try:
        fields = msgspec.structs.asdict(msgspec.json.decode(data, type=SealedRun))
        digest = fields.pop("digest")
        run = Run(**fields)
        written = _sealed(run)
        if data != written:  # in another layout, whose names msgspec has not compared
            json.loads(data, object_pairs_hook=_once)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{source} breaks the record schema: {error}", hint=again) from error
    for place, text in contradictions_of(run):
        raise UsageError(f"{source} contradicts itself: {text} - at `${place}`", hint=again)
    own = written[-67:-3].decode()
    if digest != own:
        said = f"its digest is {digest[:12]}..., its content has {own[:12]}..."
        raise UsageError(f"{source} was changed after it was written: {said}", hint=again)
    return run


def _once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object of JSON. Raises ValidationError for a name that occurs twice: readers take either value."""
    names = [name for name, _ in members]
    if twice := [name for name in names if names.count(name) > 1]:
        raise msgspec.ValidationError(f"the name {twice[0]!r} occurs twice in one object")
    return dict(members)


def expanded(data: bytes) -> bytes:
    """Returns the text of a file. Decompresses it if it is gzip, which no JSON text can look like."""
    if not data.startswith(b"\x1f\x8b"):
        return data
    stream = zlib.decompressobj(wbits=31)
    text = stream.decompress(data, LARGEST)
    if stream.unconsumed_tail:
        raise zlib.error(f"it holds more than {LARGEST:,} bytes")
    if not stream.eof:
        raise zlib.error("the compressed data is truncated")
    if stream.unused_data:
        raise zlib.error(f"{len(stream.unused_data):,} bytes follow the compressed data")
    return text


def schema() -> bytes:
    """Returns the JSON schema of a record as it is written now."""
    return msgspec.json.format(msgspec.json.encode(msgspec.json.schema(SealedRun)), indent=2) + b"\n"


def load(path: str | os.PathLike[str]) -> Run:
    """Reads the record in a file."""
    if not isinstance(path, str | os.PathLike):
        raise UsageError(f"a record is read from a file; received {path!r}", hint=WRITES_ONE)
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the record {os.fspath(path)}: {error.strerror}", hint=WRITES_ONE) from error
    return decode(data, source=os.fspath(path))


def read_as(path: Path, form: type[T], what: str, hint: str) -> T:
    """Reads a file of JSON that holds `what`. Raises UsageError if it cannot be read or is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=form)
    except OSError as error:
        raise UsageError(f"cannot read the {what} {path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not a {what}: {error}", hint=hint) from error


def save(run: Run, path: str | os.PathLike[str]) -> None:
    """Writes the record. A reader never sees half of it."""
    write_atomically(path, encode(run))


def write_atomically(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes a file through a temporary neighbour and a rename, so that it is old or new, never half.

    If the path ends in `.gz`, compresses the data without a time: equal data give equal bytes.
    """
    target = Path(path)
    if target.name.endswith(".gz"):
        data = gzip.compress(data, mtime=0)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise _unwritten(target, error) from error
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.umask(mask := os.umask(0))  # the system can only set it, so this sets it twice
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, target)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise _unwritten(target, error) from error
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@functools.cache
def say_lost(path: Path, reason: str | None) -> None:
    """Prints once that a finished part cannot be written. The work continues, and another start repeats that part."""
    print(f"verify: finished parts are not saved: cannot write {path}: {reason}", file=sys.stderr)


def _unwritten(path: Path, error: OSError) -> WriteError:
    """Returns the error about a file that cannot be written."""
    return WriteError(f"cannot write {path}: {error.strerror} ({errno.errorcode.get(error.errno or 0, 'no errno')})")


class _Version(msgspec.Struct):
    """Holds the one field that records of all schemas have. Other fields are ignored."""

    schema: int
