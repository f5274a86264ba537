"""Workflows, the action and the hook: every command in them exists, and the comment is nobody else's."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.commands import check_commands, commands_of, scripts
from verify.cli import parser

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
WORKFLOWS = {path.name: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}
RECIPES = [
    yaml.safe_load(block)
    for block in re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "gate.md").read_text(), re.DOTALL)
]


def test_the_commands_of_the_action_exist_with_their_options() -> None:
    found = [parser().parse_args(words).command.prog for words in check_commands(ROOT / "action.yml")]
    assert found == ["verify gate", "verify bounds review"]
    assert all(("uses" in step) != (step.get("shell") == "bash") for step in ACTION["runs"]["steps"])


def test_the_commands_of_workflows_exist_with_their_options() -> None:
    found = {
        name: [parser().parse_args(words).command.prog for words in commands_of(document)]
        for name, document in WORKFLOWS.items()
    }
    assert {name: commands for name, commands in found.items() if commands} == {"nightly.yml": ["verify nightly"]}
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    texts = [text for document in WORKFLOWS.values() for text in scripts(document)]
    assert set(re.findall(r"make (\S+)", "\n".join(texts))) <= {*targets, ".venv/.installed"}
    assert (ROOT / ".ci" / "run").exists()


def test_what_is_handed_to_an_action_is_something_that_it_takes() -> None:
    used = [step for document in [*WORKFLOWS.values(), *RECIPES] for step in steps(document) if of_this_action(step)]
    assert len(used) == 3
    for step in used:
        assert set(step["with"]) <= set(ACTION["inputs"])
    text = (ROOT / "action.yml").read_text()
    assert set(re.findall(r"inputs\.(\w+)", text)) == set(ACTION["inputs"])
    for script in scripts(ACTION):
        assert "${{" not in script  # what a pull request names would be run
    for step in ACTION["runs"]["steps"]:
        if "run" not in step:
            continue
        given = set(re.findall(r"\$\{?([A-Z]+)\b", step["run"])) - {"GITHUB"}
        assert given <= set(step.get("env", {})), step["run"]


def steps(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in document.get("jobs", {}).values() for step in job["steps"]]


def of_this_action(step: dict[str, Any]) -> bool:
    return step.get("uses") in ("./", "OWNER/REPOSITORY@COMMIT")


def test_the_hook_runs_the_gate() -> None:
    [hook] = HOOKS
    assert hook["language"] == "system" and hook["pass_filenames"] is False
    own = [item for recipe in RECIPES for repo in recipe.get("repos", ()) for item in repo["hooks"]]
    assert [item["id"] for item in own] == [hook["id"]]
    for arguments in (hook["args"], own[0]["args"]):
        options = parser().parse_args([*hook["entry"].split()[1:], *arguments])
        assert (options.command.prog, bool(options.base)) == ("verify gate", True)


# -- the steps of the action as they stand, with programs that answer from files ----------------------------


def step_named(**named: str) -> str:
    """Returns the script of the step whose id or beginning of a name is given."""
    [(key, text)] = named.items()
    [step] = [step for step in ACTION["runs"]["steps"] if step.get(key, "").startswith(text)]
    return str(step["run"])


def ran(script: str, **environment: object) -> subprocess.CompletedProcess[str]:
    command = ["/bin/bash", "-eo", "pipefail", "-c", script]
    env = {name: str(value) for name, value in environment.items()}
    return subprocess.run(command, env=env, capture_output=True, text=True)


def path_with(folder: Path, name: str, text: str) -> str:
    """Returns a PATH that begins with a program."""
    (folder / "bin").mkdir()
    (folder / "bin" / name).write_text(text)
    (folder / "bin" / name).chmod(0o755)
    return f"{folder / 'bin'}:{os.environ['PATH']}"


GH = """#!/bin/sh
echo "$@" >> "$LOG"
test "$1 $2" = "api graphql" || exit 0
while [ "$1" != --jq ]; do shift; done
for page in "$PAGES"/*; do jq -r "$2" "$page" || exit 1; done
"""
MARK = "<!-- verify gate -->"


@pytest.mark.skipif(shutil.which("jq") is None, reason="gh's --jq is tried with jq, which is not here")
@pytest.mark.parametrize(
    ("comments", "call"),
    [
        ([], "--method POST repos/o/n/issues/7/comments"),
        ([(1, False, f"{MARK}\nforged")], "--method POST repos/o/n/issues/7/comments"),
        ([(1, True, "another one")], "--method POST repos/o/n/issues/7/comments"),
        ([(1, False, MARK), (2, True, f"{MARK}\nold"), (3, True, MARK)], "--method PATCH repos/o/n/issues/comments/2"),
    ],
)
def test_a_comment_is_overwritten_only_where_this_account_wrote_it(
    tmp_path: Path, comments: list[tuple[int, bool, str]], call: str
) -> None:
    """`gh` answers with a comment on each page."""
    (tmp_path / "pages").mkdir()
    for place, (number, own, body) in enumerate(comments or [(0, False, "")]):
        node = {"databaseId": number, "viewerDidAuthor": own, "body": body}
        page = {"data": {"repository": {"pullRequest": {"comments": {"nodes": [node]}}}}}
        (tmp_path / "pages" / f"{place}.json").write_text(json.dumps(page))
    (tmp_path / "comment.md").write_text("### ✓ verify gate\n")
    numbers = {"GITHUB_REPOSITORY": "o/n", "NUMBER": 7, "OUTPUT": tmp_path}
    files = {"LOG": tmp_path / "log", "PAGES": tmp_path / "pages"}
    done = ran(step_named(name="One comment"), PATH=path_with(tmp_path, "gh", GH), **numbers, **files)
    assert done.returncode == 0, done.stderr
    log = (tmp_path / "log").read_text()
    assert f"api {call} -F body=@{tmp_path}/body.md" in log and log.count("--method") == 1
    assert (tmp_path / "body.md").read_text() == f"{MARK}\n### ✓ verify gate\n"


VERIFY = """#!/bin/sh
echo "$@" >> "$LOG"
test "$CODE" = 3 || touch "$OUTPUT/comment.md"
test "$CODE" = 3 || echo '{}' > "$OUTPUT/gate.sarif"
exit "$CODE"
"""


@pytest.mark.parametrize(
    ("given", "base", "code"),
    [("origin/main", "origin/main", 0), ("0" * 40, "HEAD~1", 1), ("", "HEAD~1", 3), ("00ff", "00ff", 1)],
)
def test_the_step_of_the_gate_finds_its_base_and_reports_what_there_is(
    tmp_path: Path, given: str, base: str, code: int
) -> None:
    """`verify` writes files; a push of a new branch names zeros."""
    given_to_it = {"CODE": code, "TARGETS": "a.py b.py", "BASE": given, "BACKEND": "cuda"}
    files = {"LOG": tmp_path / "log", "GITHUB_OUTPUT": tmp_path / "outputs", "OUTPUT": tmp_path / "gate"}
    done = ran(step_named(id="gate"), PATH=path_with(tmp_path, "verify", VERIFY), **given_to_it, **files)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "log").read_text().startswith(f"gate a.py b.py --base {base} --backend cuda ")
    outputs = (tmp_path / "outputs").read_text().splitlines()
    assert outputs == [f"base={base}", f"status={code}", *(["sarif=true"] if code != 3 else [])]


def test_the_comment_is_left_to_the_summary_where_the_runner_has_no_gh(tmp_path: Path) -> None:
    (tmp_path / "comment.md").write_text("### ✓ verify gate\n")
    done = ran(step_named(name="One comment"), PATH=tmp_path, OUTPUT=tmp_path)
    assert done.returncode == 0 and done.stdout == "::notice::gh is not here: only the summary has the comment\n"
    assert not (tmp_path / "body.md").exists()


def test_the_verdict_of_the_action_is_that_of_the_gate() -> None:
    script = ACTION["runs"]["steps"][-1]["run"]
    for status, code in (("0", 0), ("1", 1), ("", 3)):
        assert ran(script, STATUS=status).returncode == code
