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
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verify.declare.declaration import Kernel


def sources_of(kernel: Kernel) -> str:
    """Digest of every module of the kernel's project that is loaded: a changed kernel is another kernel."""
    path = Path(kernel.file).resolve()
    root = next((p for p in path.parents if (p / "pyproject.toml").exists()), path.parent)
    total = hashlib.sha256()
    for name in sorted(sys.modules):
        if name.partition(".")[0] == "verify":
            continue
        file = getattr(sys.modules[name], "__file__", None)
        if not isinstance(file, str) or not os.path.isabs(file) or "site-packages" in file:
            continue
        if root in _folders_of(file) and Path(file).is_file():
            total.update(name.encode() + b"\0" + Path(file).read_bytes() + b"\0")
    return total.hexdigest()[:12]


@cache
def _folders_of(file: str) -> frozenset[Path]:
    """The folders around the file of a module; kept, as links are followed at each of thousands of modules."""
    return frozenset(Path(file).resolve().parents)


def main(arguments: list[str]) -> int:
    """Import the targets and say which files that loaded."""
    from verify import backends
    from verify.declare.discovery import load
    from verify.declare.target import Target
    from verify.errors import UsageError

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
