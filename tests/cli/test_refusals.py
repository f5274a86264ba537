"""What commands refuse: each with its exit code and what it says, in snapshots/refusals.txt."""

from __future__ import annotations

import shlex
from pathlib import Path

import msgspec

from tests.cli.here import Said, said
from tests.golden import asked, golden
from tests.records.bounds.gate_records import kernel, result, run
from tests.records.test_commit import git
from verify.records import files

KERNELS = """
import torch, verify
F = torch.nn.functional

@verify.kernel(op="silu", dtypes=["float32"], gradients=False)
def right(x):
    return F.silu(x)

@verify.kernel(op="silu", dtypes=["bfloat16"], gradients=False)
def sixteen(x):
    return F.silu(x)

@verify.kernel(op="gelu", dtypes=["bfloat16", "float16", "float32"])
def wide(x):
    return F.gelu(x)

@verify.kernel(op="geglu", dtypes=["bfloat16", "float16"])
def gated(x):
    return x

@verify.kernel(op="softmax", dtypes=["float32"])
def rows(x):
    return torch.softmax(x, -1)

@verify.kernel(op="layer_norm", dtypes=["float32"], operands=["x", "weight"], gradients=False)
def scaled_alone(x, weight, *, eps):
    return F.layer_norm(x, x.shape[-1:], weight, None, eps)
"""
DECLARED = "import verify\n@verify.kernel({})\ndef k(x):\n    return x\n"
FILES = {
    "k.py": KERNELS,
    "broken.py": "1 / 0\n",
    "unknown.py": DECLARED.format('op="gelo"'),
    "layout.py": DECLARED.format('op="gelu", layouts="diagonal"'),
    "twice.py": 2 * DECLARED.format('op="gelu"'),
    "none.py": "x = 1\n",
    "s.py": "",
    "empty.json": "",
    "base.json": "",
    "list.txt": "k.py s.py\n",
    "pairs.txt": "# pairs\n\none\n",
    "no_pairs.txt": "# pairs\n",
    "pyproject.toml": "",
}


def project(folder: Path) -> Path:
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "binary").write_bytes(bytes(range(200, 240)))
    (folder / "link.json").symlink_to("run.json")
    (folder / "reports").mkdir()
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "start")
    files.save(run(kernel(result(0.5))), folder / "run.json")
    files.save(
        msgspec.structs.replace(run(kernel(result(source="sweep"))), command="verify sweep"), folder / "sweep.json"
    )
    return folder


def shown(command: str, done: Said, folder: Path) -> str:
    """What a user sees but for the usage, which Python writes differently from version to version."""
    text = done.stderr.replace(f"{folder}/", "").replace(str(folder), ".")
    _, _, error = text.partition(": error: ") if text.startswith("usage: ") else ("", "", text)
    return f"$ verify {command}\n{error}"


def test_a_refused_command_states_the_rule_what_was_received_and_the_next_command(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("CI", raising=False)
    folder, text, path = project(tmp_path), "", Path(__file__).parent / "snapshots" / "refusals.txt"
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    for command in asked(path, "$ verify "):
        words = shlex.split(command)
        takes = words[0] in ("run", "sweep", "hunt", "bench", "replay", "explain") and "--backend" not in command
        done = said(*words, *(["--backend", "interpreter"] if takes else []), cwd=folder)
        assert (done.returncode, done.stdout) == (2, ""), command
        assert done.stderr.count("\n  next: ") == 1 and "Traceback" not in done.stderr, command
        text += shown(command, done, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before, "nothing is written"
    golden(path, text)
