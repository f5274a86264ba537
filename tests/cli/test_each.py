"""`verify run --each`: every target alone, a line for each as it ends, and a second start that goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.here import as_process
from verify.cli.run import _finished
from verify.errors import UsageError

pytestmark = pytest.mark.usefixtures("warm")

RUN = ("run", "--backend", "interpreter")
KERNEL = """
import torch, verify

@verify.kernel(like=torch.{name}, dtypes=["float32"], gradients=False)
def called(x):
    return torch.{name}(x){change}
"""


def test_a_bad_file_costs_no_other_and_a_second_start_goes_on(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(KERNEL.format(name="neg", change=""))
    (tmp_path / "wrong.py").write_text(KERNEL.format(name="abs", change=" * 1.5"))
    (tmp_path / "dies.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    each = ("--each", "each.jsonl", "--jobs", "1")
    done = as_process(*RUN, "dies.py", "good.py", *each, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "good.py: pass" in done.stdout and "dies.py: incomplete" in done.stdout and "SIGKILL" in done.stdout
    done = as_process(*RUN, "dies.py", "good.py", "wrong.py", *each, cwd=tmp_path)
    assert done.returncode == 1 and done.stdout.count("\n") == 1 and done.stdout.startswith("wrong.py: fail")
    rows = [json.loads(line) for line in (tmp_path / "each.jsonl").read_text().splitlines()]
    assert {row["target"]: row["exit code"] for row in rows} == {"dies.py": 2, "good.py": 0, "wrong.py": 1}
    assert [row["record"]["kernels"][0]["status"] for row in rows if row["target"] == "good.py"] == ["ok"]


def test_a_line_that_was_cut_off_is_measured_again_and_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "each.jsonl"
    assert _finished(path) == {}
    path.write_text('{"target": "a.py", "exit code": 1}\n{"target": "b.py", "ex')
    assert _finished(path) == {"a.py": 1}
    assert path.read_text() == '{"target": "a.py", "exit code": 1}\n'
    for other in ("import torch\n", "no line of it ends"):
        path.write_text(other)
        with pytest.raises(UsageError, match="continues a file of its own"):
            _finished(path)
        assert path.read_text() == other


@pytest.mark.parametrize("other", ["--json", "--html"])
def test_one_record_of_all_and_one_of_each_exclude_each_other(tmp_path: Path, other: str) -> None:
    (tmp_path / "good.py").write_text(KERNEL.format(name="neg", change=""))
    done = as_process(*RUN, "good.py", "--each", "each.jsonl", other, "out", cwd=tmp_path)
    assert done.returncode == 2 and f"--each writes a record for each target; received {other} too" in done.stderr
