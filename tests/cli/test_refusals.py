"""What commands refuse: each with its exit code and what it says, in snapshots/refusals.txt."""

from __future__ import annotations

import shlex
from pathlib import Path

import msgspec

from tests.cli.here import Said, said
from tests.golden import golden
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
    "pairs.txt": "# pairs\n\none\n",
    "no_pairs.txt": "# pairs\n",
    "pyproject.toml": "",
}
ONE = '\'{"dtype":"bfloat16","dims":[1],"fill":"ones"}\''
COMMANDS = f"""
rnu
benhc
comapre
Nightly
xyzzy
bounds propos
--seconds=3
hunt k.py --seconds=3
bounds review --seconds=3
sweep --results dx
run --dtyp=float32
run --laws quick
run --dtype float31
hunt k --dtype bf16
hunt --seed -1
replay --index 1.5
run --without compield
run k.py --without batch-invariance
gate --timeout soon
run nowhere.py --json - --html -
run
run nowhere.py
run k.py::nobody
run broken.py
run unknown.py
run none.py
run twice.py
run layout.py
run --like run.json --seed 7
run --like sweep.json
run --like nowhere.json
sweep k.py::gated
sweep k.py::rows
sweep k.py::wide --pairs
sweep k.py::wide --range=2:1
sweep k.py::wide --regime nowhere
sweep k.py::wide --result dz
sweep k.py::wide --dtype float64
sweep k.py --dtype float64
hunt k.py::sixteen
hunt k.py::right --result dx
hunt k.py::right --dtype float64
hunt k.py::right --evaluations 0
hunt k.py::right --width 70000
hunt k.py::right --evaluations 5 --duration 3s
bench relu
bench swiglu
bench silu --shape 0,4
bench silu --rounds 0
bench nothing.py
replay
replay k.py::wide
replay k.py::wide {{}}
replay --run run.json --index 9999999
replay nobody --run run.json
replay k.py::sixteen {ONE} --run run.json
replay k.py::wide {ONE} --shrink
replay k.py::wide {{}} --law 'batch invariance' --snippet -
replay k.py::scaled_alone '{{"dtype":"float32","dims":[2,8],"fill":"normal"}}'
replay --law accuracy
explain k.py::sixteen {ONE} --result dz
report
report nowhere.json
report --csv -
report run.json --compare none.json
report run.json --bounds none
gate
gate nowhere.json
gate empty.json
gate run.json --bounds nowhere
gate run.json --kernel my_gelu
gate run.json --seed 1
gate k.py --base nowhere
gate --base --help
gate --base HEAD run.json
bounds review --base nowhere
bounds accept my_silu/y run.json --reason x
compare run.json empty.json
judge
judge s.py
judge nowhere.py s.py
judge s.py nowhere.py
judge s.py s.py
judge k.py::nope s.py
judge --many no.txt
judge --many no_pairs.txt
judge --many binary
judge --many pairs.txt
nightly
"""


def project(folder: Path) -> Path:
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "binary").write_bytes(bytes(range(200, 240)))
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
    folder, text = project(tmp_path), ""
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    for command in COMMANDS.strip().splitlines():
        words = shlex.split(command)
        takes = words[0] in ("run", "sweep", "hunt", "bench", "replay", "explain") and "--backend" not in command
        done = said(*words, *(["--backend", "interpreter"] if takes else []), cwd=folder)
        assert (done.returncode, done.stdout) == (2, ""), command
        assert done.stderr.count("\n  next: ") == 1 and "Traceback" not in done.stderr, command
        text += shown(command, done, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before, "nothing is written"
    golden(Path(__file__).parent / "snapshots" / "refusals.txt", text)
