"""`verify selftest` on the command line: the table, the JSON, the exit codes."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.here import said


def test_the_table_says_what_was_killed_and_what_was_not_tried(tmp_path: Path) -> None:
    laws = ["--law", "special values", "--law", "CUDA graph"]
    done = said("selftest", "--backend", "interpreter", *laws, cwd=tmp_path)
    assert done.returncode == 0
    out = done.stdout
    assert out.splitlines()[0].split() == ["law", "seeded", "bug", "result", "assert_close"]
    assert "special values  NaN swallowed                    killed, case 1          blind" in out
    assert "needs a CUDA device" in out
    assert "1 of 1 seeded bugs killed on the interpreter backend, 1 laws not tried, 0 false alarms on 1 correct" in out


def test_json_holds_the_kill_matrix_and_nothing_tried_is_incomplete(tmp_path: Path) -> None:
    done = said("selftest", "--backend", "interpreter", "--law", "CUDA graph", "--json", "-", cwd=tmp_path)
    assert done.returncode == 3
    found = json.loads(done.stdout)
    assert (found["backend"], found["passed"]) == ("interpreter", False)
    assert found["selftest"]["kills"][0] == {
        "assert_close": False,
        "family": "CUDA graph",
        "killed_by": [],
        "loose": False,
        "mutant": "asks the host",
        "visible": False,
    }
