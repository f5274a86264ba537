"""Finds the sources that a kernel depends on: a digest of the loaded modules of its project, and their files.

As a process it prints the files as one line of JSON, module to file:

    python -P verify/start.py verify.declare.sources BACKEND TARGET...

BACKEND may be empty. A target that cannot be imported is omitted: the run of that target reports it.
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
from verify.records.commit import digest

if TYPE_CHECKING:
    from verify.declare.declaration import Kernel


class SourceWatch:
    """Notices a change of the sources during a run. `files` are digests from the worker that imported them.

    A worker on another machine (not `local`) may have other files of these names. Then only equal files are watched.
    """

    def __init__(self, files: Mapping[str, str], *, local: bool) -> None:
        self._known = {file: known for file, known in files.items() if local or digest(Path(file)) == known}
        self.demand_unchanged()

    def demand_unchanged(self) -> None:
        """Raises UsageError if a file differs from the one that was imported first."""
        for file, known in self._known.items():
            if digest(Path(file)) != known:
                raise UsageError(
                    f"a run measures one state of its sources; {os.path.relpath(file)} changed while it went on, "
                    "and nothing of it is judged",
                    hint="the same command again, once the file is saved",
                )


def sources_of(kernel: Kernel) -> str:
    """Returns a digest of every loaded module of the kernel's project: a changed kernel is another kernel."""
    return hashlib.sha256(" ".join(sorted(digests_of(kernel).values())).encode()).hexdigest()[:12]


def digests_of(kernel: Kernel) -> dict[str, str]:
    """Maps the file of every loaded module of the kernel's project to its digest, in the order of module names."""
    path = Path(kernel.file).resolve()
    root = next((p for p in path.parents if (p / "pyproject.toml").exists()), path.parent)
    found = {}
    for name in sorted(sys.modules):
        if name.partition(".")[0] == "verify":
            continue
        file = getattr(sys.modules[name], "__file__", None)
        if not isinstance(file, str) or not os.path.isabs(file) or "site-packages" in file:
            continue
        if root in _folders_of(file) and Path(file).is_file():
            found[file] = digest(Path(file))
    return found


@cache
def _folders_of(file: str) -> frozenset[Path]:
    """Returns the folders around a module's file. Cached: following links is slow for thousands of modules."""
    return frozenset(Path(file).resolve().parents)


def main(arguments: list[str]) -> int:
    """Imports the targets and prints the files that this loaded."""
    from verify import backends
    from verify.declare.discovery import load
    from verify.declare.target import Target

    requested, *targets = arguments
    backends.activate(backends.select(requested or None))
    for target in targets:
        with contextlib.suppress(UsageError):
            load(Target.parse(target))
    # Some modules that are made at run time name a file that does not exist, such as torch's "_classes.py".
    files = {
        name: file
        for name, module in list(sys.modules.items())
        if isinstance(file := getattr(module, "__file__", None), str) and os.path.isabs(file)
    }
    print("\n" + json.dumps(files))  # on a line of its own, because modules may print while they are imported
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
