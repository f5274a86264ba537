"""The sources that a kernel depends on: a digest of what its project has loaded, and the files of its modules.

As a process it prints the latter as one line of JSON, module to file:

    python -m verify.declare.sources BACKEND TARGET...

BACKEND may be empty. A target that cannot be imported is left out: the run of that target reports it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from verify.errors import UsageError
from verify.records.source_digest import digest

if TYPE_CHECKING:
    from verify.declare.declaration import Kernel


class SourceWatch:
    """Notices that a source changed while a run went on. `files` are digests from the worker that imported them.

    Watches the files that are on this machine. A worker elsewhere (not `local`) may have other files of these names:
    only those that are equal here are watched then.
    """

    def __init__(self, files: Mapping[str, str], *, local: bool) -> None:
        self._known: dict[str, tuple[str, tuple[int, ...]]] = {}
        for file, known in files.items():
            state = _state(file)  # before the digest: a later change has another state
            if state and (local or digest(Path(file)) == known):
                self._known[file] = known, () if local else state
        self.demand_unchanged()

    def demand_unchanged(self) -> None:
        """Raises UsageError if a file differs from what was imported first."""
        for file, (known, seen) in self._known.items():
            if (state := _state(file)) != seen:
                if digest(Path(file)) != known:
                    raise UsageError(
                        f"a run measures one state of its sources; {os.path.relpath(file)} changed while it went on, "
                        "and nothing of it is judged",
                        hint="the same command again, once the file is saved",
                    )
                self._known[file] = known, state


def _state(file: str) -> tuple[int, ...]:
    """What changes with a file; empty where there is none."""
    try:
        found = os.stat(file)
    except OSError:
        return ()
    return found.st_ctime_ns, found.st_size, found.st_ino


def digests_of(kernel: Kernel) -> dict[str, str]:
    """Digests the file of every module of the kernel's project that is loaded."""
    return {file: digest(Path(file)) for file in _files_of(kernel).values()}


def sources_of(kernel: Kernel) -> str:
    """Digest of every module of the kernel's project that is loaded: a changed kernel is another kernel."""
    total = hashlib.sha256()
    for name, file in _files_of(kernel).items():
        total.update(name.encode() + b"\0" + Path(file).read_bytes() + b"\0")
    return total.hexdigest()[:12]


def _files_of(kernel: Kernel) -> dict[str, str]:
    """Maps every module of the kernel's project that is loaded to its file, by name."""
    path = Path(kernel.file).resolve()
    root = next((p for p in path.parents if (p / "pyproject.toml").exists()), path.parent)
    found: dict[str, str] = {}
    for name in sorted(sys.modules):
        if name.partition(".")[0] == "verify":
            continue
        file = getattr(sys.modules[name], "__file__", None)
        if not isinstance(file, str) or not os.path.isabs(file) or "site-packages" in file:
            continue
        if root in _folders_of(file) and Path(file).is_file():
            found[name] = file
    return found


@cache
def _folders_of(file: str) -> frozenset[Path]:
    """The folders around the file of a module; kept, as links are followed at each of thousands of modules."""
    return frozenset(Path(file).resolve().parents)


def main(arguments: list[str]) -> int:
    """Import the targets and say which files that loaded."""
    from verify import backends
    from verify.declare.discovery import load
    from verify.declare.target import Target

    requested, *targets = arguments
    backends.activate(backends.select(requested or None))
    for target in targets:
        with contextlib.suppress(UsageError):
            load(Target.parse(target))
    # some modules that are made at run time name a file that is not there, such as torch's "_classes.py"
    files = {
        name: file
        for name, module in list(sys.modules.items())
        if isinstance(file := getattr(module, "__file__", None), str) and os.path.isabs(file)
    }
    print("\n" + json.dumps(files))  # on a line of its own, whatever the modules print
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
