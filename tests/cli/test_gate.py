"""A third-party project from nothing to a ratchet, and a change that the ratchet catches: every command for real."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.cli.here import Said, as_process, said
from tests.records.bounds.gate_records import bound, kernel, result, run
from tests.records.test_commit import git
from verify.records import files
from verify.records.bounds import committed

pytestmark = pytest.mark.usefixtures("warm")

LIBRARY = """
import torch

def fast_silu(x):
    wide = x.double().clamp(min=-1000)
    return (wide / (1 + torch.exp(-wide))).to(x.dtype)
"""
WORSE = LIBRARY.replace("x.double()", "x.float()").replace("wide / (1 +", "wide * 1.001 / (1 +")
DECLARATION = """
import verify
from mylib import fast_silu

@verify.kernel(op="silu", dtypes=["float16"], gradients=False, max_ulp=8)
def my_silu(x):
    return fast_silu(x)
"""
BACKEND = ("--backend", "interpreter")
ROOT = Path(__file__).parents[2]


def verify(*arguments: str, cwd: Path, code: int, **environment: str) -> Said:
    """What imports the project's code runs in a process of its own."""
    if "--base" in arguments:
        path = os.pathsep.join((str(cwd / "src"), str(ROOT)))  # of editable installs of the package and of verify
        done = as_process(*arguments, cwd=cwd, without=["CI"], **{"PYTHONPATH": path, **environment})
    else:
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("CI", raising=False)
            for name, value in environment.items():
                patch.setenv(name, value)
            done = said(*arguments, cwd=cwd)
    assert done.returncode == code, f"{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a kernel in a library of its own, committed and measured once."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "src" / "mylib").mkdir(parents=True)
    (folder / "src" / "mylib" / "__init__.py").write_text(LIBRARY)
    (folder / "accuracy.py").write_text(DECLARATION)
    (folder / "pyproject.toml").write_text('[tool.verify]\nkernels = ["accuracy.py"]\n')
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "start")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder / "src")
        patch.setenv("PYTHONPATH", f"{folder / 'src'}:{os.environ.get('PYTHONPATH', '')}")  # of a worker of its own
        done = said("run", "--json", "run.json", *BACKEND, cwd=folder)
        sys.modules.pop("mylib", None)  # unless a worker of its own imported it
    assert done.returncode == 0, done.stderr
    return folder


def test_from_nothing_to_a_ratchet_and_the_change_it_catches(project: Path) -> None:
    # the gate has nothing to judge by, says so, and names the next command
    done = verify("gate", "run.json", cwd=project, code=3)
    assert "10 results without a bound" in done.stdout
    assert done.stdout.endswith("next: verify bounds propose run.json\n")

    # CI does not write, and a dry run writes nothing
    done = verify("bounds", "propose", "run.json", cwd=project, code=2, CI="true")
    assert "nothing is written on a CI machine" in done.stderr
    verify("bounds", "propose", "run.json", "--dry-run", cwd=project, code=0, CI="true")
    assert not (project / "reports").exists()

    done = verify("bounds", "propose", "run.json", cwd=project, code=0)
    assert "10 bounds: 10 new; written to reports/bounds/" in done.stdout
    assert done.stdout.endswith("next: verify bounds review\n")
    assert {item.value for item in committed.load(project / "reports/bounds").bounds.values()} == {0.5, 0.5001}
    done = verify("gate", "run.json", cwd=project, code=0)
    assert done.stdout.startswith("✓ pass: all 10 bounds hold\n")
    done = verify("bounds", "review", cwd=project, code=0)
    assert "10 bounds changed since HEAD: 10 new" in done.stdout
    git(project, "add", "-A")
    git(project, "commit", "-q", "-m", "bounds")
    assert "no bound changed since HEAD" in verify("bounds", "review", cwd=project, code=0).stdout

    # a change for the worse, in the library only: base and head are measured, and they differ
    (project / "src" / "mylib" / "__init__.py").write_text(WORSE)
    options = ("--output", "both", "--json", "gate.json", "--markdown", "gate.md", *BACKEND)
    done = verify("gate", "--base", "HEAD", *options, cwd=project, code=1)
    assert "✗ worse: " in done.stdout
    assert "✗ breached  my_silu y float16 positive" in done.stdout
    base, head = (files.load(project / "both" / f"{name}.json") for name in ("base", "head"))
    assert base.kernels[0].results == files.load(project / "run.json").kernels[0].results
    assert head.kernels[0].results != base.kernels[0].results
    told = json.loads((project / "gate.json").read_text())
    assert (told["verdict"], told["comparison"]["exit_code"]) == ("fail", 1)
    assert (project / "gate.md").read_text().startswith("### ✗ verify gate: **fail:** ")
    assert len(git(project, "worktree", "list").splitlines()) == 1
    assert verify("compare", "both/base.json", "both/head.json", cwd=project, code=1).stdout.count("✗ worse  ") >= 1

    # one bound is accepted, with its reason; the others still stand
    key = "my_silu/y/float16/positive"
    done = verify("bounds", "accept", key, "both/head.json", "--reason", "a tenth of a percent", cwd=project, code=0)
    assert "accepted; written to" in done.stdout
    [accepted] = [item for item in committed.load(project / "reports/bounds").bounds.values() if item.accepted]
    assert (str(accepted.key), accepted.accepted[0].reason) == (key, "a tenth of a percent")
    judged = json.loads(verify("gate", "both/head.json", "--json", "-", cwd=project, code=1).stdout)
    assert {row["key"]: row["status"] for row in judged["rows"]}[key] == "ok"
    done = verify("bounds", "review", cwd=project, code=1)
    assert "1 bound changed since HEAD: 1 looser\n" in done.stdout
    assert "reason    a tenth of a percent" in done.stdout


def test_a_bound_of_another_gate_is_accepted_with_its_reason(project: Path) -> None:
    place = ("--bounds", "moving")
    verify("bounds", "propose", "run.json", *place, cwd=project, code=0)
    (path,) = (project / "moving").rglob("*.toml")
    path.write_text(path.read_text().replace('gate = "plain"', 'gate = "scaled"'))
    done = verify("gate", "run.json", *place, cwd=project, code=3)
    command = done.stdout.splitlines()[-1]
    assert re.fullmatch(r"next: verify bounds accept '[^']+' run.json --reason '...'", command), command
    done = verify(*shlex.split(command)[2:-1], "ULP again", *place, cwd=project, code=0)
    assert "reason    ULP again" in done.stdout and "0.5001 ULP scaled to 0.5001 ULP" in done.stdout


def test_a_base_that_imports_the_heads_code_is_refused(project: Path) -> None:
    path = project / "leaky.py"
    path.write_text(f"import sys\nsys.path.insert(0, {str(project / 'src')!r})\n{DECLARATION}")
    git(project, "add", "leaky.py")
    git(project, "commit", "-q", "-m", "leaky")
    # without the path from outside, so that the file's own line decides
    done = verify("gate", "--base", "HEAD", "leaky.py", *BACKEND, cwd=project, code=2, PYTHONPATH=str(ROOT))
    assert "the base imports mylib from the working tree" in done.stderr
    assert "so it would be compared with itself" in done.stderr
    assert len(git(project, "worktree", "list").splitlines()) == 1


def test_a_damaged_bound_stops_the_gate(tmp_path: Path) -> None:
    files.save(run(kernel(result(0.9))), tmp_path / "run.json")
    path = tmp_path / "reports" / "bounds" / "sm_90" / "gelu.toml"
    path.parent.mkdir(parents=True)
    path.write_text(committed.render("sm_90", "gelu", [bound(1.0)]).replace("1.0", "nan", 1))
    done = verify("gate", "run.json", cwd=tmp_path, code=2)
    assert "gelu.toml is not TOML: a number is finite, at most 1e+300; received nan" in done.stderr


def test_a_review_shows_a_bound_that_was_removed(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    folder = tmp_path / "reports" / "bounds"
    committed.save(committed.Book(folder), [bound(1.0), bound(0.5, kernel="<script>", arch="interpreter")])
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "bounds")
    (folder / "sm_90" / "gelu.toml").unlink()
    done = verify("bounds", "review", "--json", "review.json", cwd=tmp_path, code=1)
    assert "✗ removed" in done.stdout
    [change] = json.loads((tmp_path / "review.json").read_text())["changes"]
    assert (change["key"], change["change"], change["new"]) == ("gelu/y/bfloat16/all", "removed", None)
