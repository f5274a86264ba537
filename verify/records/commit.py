"""Identifies code: the commit that a project has checked out, which records name as evidence, and digests of sources.

Results of different code must not mix.
"""

import hashlib
import os
import re
import subprocess
from pathlib import Path

_HEX = re.compile(r"[0-9a-f]{7,64}")


def current(folder: Path) -> dict[str, str | bool]:
    """Returns {"commit": 12 hex digits, "dirty": True if files differ from it}. Empty outside a repository.

    If a machine has the sources without their history, VERIFY_COMMIT names the commit.
    """
    said = os.environ.get("VERIFY_COMMIT", "")
    if _HEX.fullmatch(said):
        return {"commit": said[:12], "dirty": False}
    commit = _git(folder, "rev-parse", "--short=12", "HEAD")
    if commit is None or not _HEX.fullmatch(commit):
        return {}
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": changes != ""}


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "--no-optional-locks", *arguments]
    try:
        found = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() if found.returncode == 0 else None


def own_digest() -> str:
    """Returns 12 hex digits of all modules of verify."""
    return digest(Path(__file__).parents[1])


def digest(path: Path, pattern: str = "*.py") -> str:
    """Returns 12 hex digits of a file, or of every Python file below a folder. `pattern` selects other files."""
    files = sorted(path.rglob(pattern)) if path.is_dir() else [path]
    total = hashlib.sha256()
    for file in files:
        try:
            total.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
        except OSError:
            return "missing"
    return total.hexdigest()[:12]
