"""Finds the commit that a project has checked out. Records and pinned cases name it as evidence."""

from __future__ import annotations

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
