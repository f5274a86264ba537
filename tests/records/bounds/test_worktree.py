"""Two states of a project: whose files Python finds, and that nothing of the checkout is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import verify
from tests.records.test_commit import git
from verify.errors import UsageError
from verify.records.bounds import worktree


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with two commits; its virtual environment lies inside it."""
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "sub").mkdir()
    (folder / ".venv" / "lib" / "site-packages").mkdir(parents=True)
    (folder / "sub" / "a.txt").write_text("")
    git(folder, "init", "-q", "-b", "main")
    for text in ("old", "new"):
        (folder / "src" / "library.py").write_text(f"STATE = {text!r}\n")
        git(folder, "add", "src", "sub")
        git(folder, "commit", "-q", "-m", text)
    return folder


def test_each_side_imports_its_own_files_and_our_verify(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "verify.py").write_text("raise RuntimeError('the verify of the project, not ours')\n")
    packages = str(project / ".venv" / "lib" / "site-packages")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(project / "src"), packages, "/elsewhere"]))
    code = "import library, verify; print(library.STATE, verify.__file__)"
    with worktree.checkout("HEAD~1", project) as found:
        for side, state in ((found.base, "old"), (found.head, "new")):
            with worktree._environment(side, found) as environment:
                done = subprocess.run(
                    [sys.executable, "-c", code], cwd=side.here, env=environment, capture_output=True, text=True
                )
                seen, file = done.stdout.split()
                assert (seen, Path(file).resolve()) == (state, Path(verify.__file__).resolve()), done.stderr
                path = environment["PYTHONPATH"].split(os.pathsep)
                assert path[1] == str(side.top / "src")
                assert path[-2:] == [packages, "/elsewhere"]  # an environment is not the project
        tree = found.base.top
        assert (tree / "src" / "library.py").read_text() == "STATE = 'old'\n"
    assert not tree.exists()
    assert worktree.git(project, "worktree", "list").count("\n") == 0


def test_the_folder_in_which_one_stands_is_kept(project: Path) -> None:
    with worktree.checkout("HEAD", project / "sub") as found:
        assert (found.head.here.name, found.base.here) == ("sub", found.base.top / "sub")
    (project / "later").mkdir()
    with pytest.raises(UsageError, match="HEAD has no folder later"), worktree.checkout("HEAD", project / "later"):
        pass


def test_the_worktree_goes_whatever_happens(project: Path) -> None:
    seen = []

    def fails() -> None:
        with worktree.checkout("HEAD", project) as found:
            seen.append(found.base.top)
            (found.base.top / "left.txt").write_text("made by a run")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert not seen[0].exists()
    assert worktree.git(project, "worktree", "list").count("\n") == 0


def test_a_hook_of_the_project_does_not_run(project: Path) -> None:
    hook = project / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {project}/ran\n")
    hook.chmod(0o755)
    with worktree.checkout("HEAD", project):
        pass
    assert not (project / "ran").exists()


@pytest.mark.parametrize("ref", ["nowhere", "--help", "-f", "HEAD:src", "", "HEAD~9"])
def test_a_name_that_is_no_commit(project: Path, ref: str) -> None:
    with pytest.raises(UsageError, match="git knows no commit"), worktree.checkout(ref, project):
        pass
