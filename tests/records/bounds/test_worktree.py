"""Two states of a project: whose files Python finds, and that nothing of the checkout is left behind."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import verify
from tests.records.test_commit import git
from verify import start
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
    """Files of the project that are named like verify or a module of Python are executed on neither side."""
    (project / "src" / "target.py").write_text("import library\n")
    for folder, name in (("src", "copy"), ("src", "verify"), ("sub", "copy"), ("sub", "json")):
        (project / folder / f"{name}.py").write_text(f"open({str(project / 'executed')!r}, 'w').close()\n")
    git(project, "add", "src", "sub")
    git(project, "commit", "-q", "-m", "traps")
    packages = str(project / ".venv" / "lib" / "site-packages")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(project / "src"), packages, "/elsewhere"]))
    (project / "src" / "library.py").write_text("STATE = 'newer'\n")
    with worktree.checkout("HEAD", project / "sub") as found:
        sides = found.base, found.head
        asked = ("verify.declare.sources", "", "target")
        imports = [worktree._started(side, found, *asked, stdout=subprocess.PIPE) for side in sides]
        for side, done in zip(sides, imports, strict=True):
            environment = worktree._environment(side, found)
            files = json.loads(done.stdout.splitlines()[-1])
            assert files["library"] == str(side.top / "src" / "library.py"), done.stderr
            assert Path(files["verify"]).resolve() == Path(verify.__file__).resolve()
            path = environment[start.PATH].split(os.pathsep)
            assert path[0] == str(side.top / "src")
            assert path[-2:] == [packages, "/elsewhere"]  # an environment is not the project
        with monkeypatch.context() as patch:
            patch.setattr(worktree, "_started", lambda *given, **streams: imports[0])
            worktree.check_imports(found, ["target"], None)
        measured = worktree.measure(found.base, found, ["target"], project / "record.json")
        assert measured.kernels == []  # it declares none
        assert not (project / "executed").exists()
        tree = found.base.top
        assert (tree / "src" / "library.py").read_text() == "STATE = 'new'\n"
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
