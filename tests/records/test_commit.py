"""A record says at which commit it was measured, and whether the files were those of the commit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from verify.records import commit


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_commit_and_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VERIFY_COMMIT", raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit.current(tmp_path) == {}
    git(tmp_path, "init", "-q")
    assert commit.current(tmp_path) == {}, "a repository without a commit"
    (tmp_path / "kernel.py").write_text("1\n")
    git(tmp_path, "add", "kernel.py")
    git(tmp_path, "commit", "-qm", "first")
    head = git(tmp_path, "rev-parse", "HEAD")
    assert commit.current(tmp_path) == {"commit": head[:12], "dirty": False}
    (tmp_path / "new.txt").write_text("untracked files change no kernel\n")
    assert commit.current(tmp_path)["dirty"] is False
    (tmp_path / "kernel.py").write_text("2\n")
    assert commit.current(tmp_path)["dirty"] is True


def test_a_machine_without_the_history_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setenv("VERIFY_COMMIT", "0123456789abcdef0123")
    assert commit.current(tmp_path) == {"commit": "0123456789ab", "dirty": False}
    monkeypatch.setenv("VERIFY_COMMIT", "$(reboot)")
    assert commit.current(tmp_path) == {}
