"""Stores the corpus: cases that once broke a law or gave a large error, so that every later run tries them again.

    reports/corpus/my_gelu/3f9a0c12e7d4.json

Each entry is a file in the folder of its kernel, named after a digest of what it pins. So the same finding added twice
is one file, two processes can add at the same time, and version control merges entries without conflict. The folder is
`[tool.verify] corpus` in pyproject.toml, by default reports/corpus.

An entry pins a case and either a law or one element of a result. It also has the error, backend, commit and date of
that time, and the reason for pinning; these are for the reader. A run judges the case again. A file that cannot be read
as an entry is an error with its name, because a counterexample must not be skipped silently.
"""

import datetime
import hashlib
import re
from pathlib import Path
from typing import Any

import msgspec

from verify.cases import Case
from verify.declare import config
from verify.errors import UsageError
from verify.records import recorded
from verify.records.files import read_as, write_atomically
from verify.truth.formats import named

SCHEMA = 1


PinnedCase = recorded.PinnedCase[Case]


def entry(kernel: str, target: str, op: str, case: Case, **shown: Any) -> PinnedCase:
    """Returns a new entry with the current date. `shown`: what the case showed, and why it is pinned."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    made = PinnedCase(SCHEMA, kernel, target, op, case.dtype, case, date=now, **shown)
    _check(made, "the new entry")
    return made


def folder() -> Path:
    """Returns the corpus folder of the project above the working directory."""
    return config.find().corpus


def cases_for(kernel: str, dtype: str | None = None, where: Path | None = None) -> list[PinnedCase]:
    """Returns the entries of a kernel in the order of their files, of one dtype or of all.

    `verify run` judges entries with a `result`. `verify.laws_for` tries entries with a `law`.
    """
    inside = (where or folder()) / _slug(kernel)
    found = [_read(path) for path in sorted(inside.glob("*.json"))] if inside.is_dir() else []
    # two names may share a folder: the file names its kernel
    return [item for item in found if item.kernel == kernel and dtype in (None, item.dtype)]


def add(item: PinnedCase, where: Path | None = None) -> tuple[Path, bool]:
    """Pins an entry. Returns its file, and whether it is new. An existing entry is not changed."""
    _check(item, "the entry")
    path = (where or folder()) / _slug(item.kernel) / f"{item.id}.json"
    if path.exists():
        _read(path)
        return path, False
    raw = msgspec.json.encode(item, order="deterministic")
    write_atomically(path, msgspec.json.format(raw, indent=1) + b"\n")
    return path, True


def _slug(kernel: str) -> str:
    """Returns the folder name of a kernel: its name, or a safe form of it with a digest."""
    if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", kernel):
        return kernel
    return re.sub(r"[^A-Za-z0-9_-]", "_", kernel) + "-" + hashlib.sha256(kernel.encode()).hexdigest()[:6]


def _read(path: Path) -> PinnedCase:
    found = read_as(path, PinnedCase, "corpus entry", "correct the file, or delete it")
    _check(found, str(path))
    if found.id != path.stem:
        text = f"{path} pins the entry {found.id}; a file is named after what it pins"
        raise UsageError(text, hint=f"rename it to {found.id}.json")
    return found


def _check(item: PinnedCase, where: str) -> None:
    """Checks the rules that types cannot express."""
    if item.schema != SCHEMA:
        raise UsageError(f"{where} has corpus schema {item.schema}; this verify reads {SCHEMA}")
    if bool(item.law) == bool(item.result):
        raise UsageError(f"{where} pins a law or a result, one of them; received {item.law!r} and {item.result!r}")
    if item.result and (item.index is None or item.index < 0):
        raise UsageError(f"{where} pins an element of {item.result} by its index from 0; received {item.index!r}")
    if item.law and item.index is not None:
        raise UsageError(f"{where} pins a law, which has no index; received {item.index!r}")
    if not item.kernel or item.dtype != item.case.dtype:
        raise UsageError(f"{where} names its kernel and the dtype of its case, {item.case.dtype}; got {item.dtype!r}")
    named(item.dtype)
