"""A script for a bug report runs without verify, and shows the bits and the figure that verify shows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from verify import backends
from verify.cases import Case
from verify.declare.declaration import Kernel
from verify.declare.discovery import load
from verify.declare.target import Target
from verify.diagnose.replay import replay, replay_smaller
from verify.diagnose.requests import Replay
from verify.diagnose.snippet import kernel_source, snippet, too_long
from verify.errors import UsageError
from verify.records.record import Origin, replay_command, value_of

PROJECT = '''
from __future__ import annotations

import functools
import sys
import torch, verify
import effects
import registers
import os as unused_and_harmless
from verify import kernel as declares
from parts import half

SQRT_HALF = 0.7071067811865476
UNUSED = 3
sys.setting = registers.VALUE
sys.setting_of_verify = verify.__version__
list(map(print, ()))

if __name__ == "__main__":
    print("not a part of it")


def inner(x):
    return 1.0 + torch.erf(x * SQRT_HALF)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, dy):
        return dy * 0.75


@declares(op="gelu", dtypes=["bfloat16", "float32", "float64"])
def textbook(x):
    """The formula of textbooks."""
    return half(x) * inner(x)


@verify.kernel(op="layer_norm", dtypes=["float32", "float16"])
def one_pass(x, weight, bias, *, eps):
    mean = x.mean(-1, keepdim=True)
    variance = (x * x).mean(-1, keepdim=True) - mean * mean
    return (x - mean) * torch.rsqrt(variance.clamp(min=0) + eps) * weight + (0 if bias is None else bias)


@verify.kernel(op="silu", dtypes=["float16"])
def overflows(x):
    return torch.where(x > 100, torch.inf, x)


def curve(x):
    return torch.log(0.3 + x * x)


@verify.kernel(like=curve, dtypes=["float32"])
def near_root(x):
    return torch.log(0.3 + x * x)


not_defined_here = verify.kernel(op="gelu", name="torch_gelu", dtypes=["float32"])(torch.nn.functional.gelu)
of_a_class = verify.kernel(op="silu", name="of_a_class", dtypes=["float32"])(Scaled.apply)
anonymous = verify.kernel(op="silu", name="anonymous", dtypes=["float32"])(lambda x: x)


@verify.kernel(op="gelu", dtypes=["float32"])
def uses_verify(x):
    return verify.ops.get("gelu").baseline(x)
'''


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "accuracy.py").write_text(PROJECT)
    (folder / "parts.py").write_text("import sys\n\ndef half(x):\n    return x * sys.half\n")
    (folder / "effects.py").write_text("import sys\nsys.half = 0.5\n")
    (folder / "registers.py").write_text("VALUE = 3\n")
    return folder


def kernel(project: Path, name: str) -> Kernel:
    [found] = load(Target(str(project / "accuracy.py"), name))
    return found


DRIVER = """
import contextlib, io, json, runpy, sys
sys.modules["verify"] = None  # importing it is an error
shown = []
for script in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as said:
        try:
            runpy.run_path(script)
        except SystemExit as ended:
            print(f"exit      {int(ended.code)}")
    shown.append(said.getvalue())
print(json.dumps(shown))
"""


def run(project: Path, scripts: list[str]) -> list[dict[str, str]]:
    """The lines that each script prints, by their first word."""
    names = []
    for place, script in enumerate(scripts):
        (project / f"report{place}.py").write_text(script)
        names.append(f"report{place}.py")
    command = [sys.executable, "-c", DRIVER, *names]
    done = subprocess.run(command, capture_output=True, text=True, cwd=project, timeout=300)
    assert done.returncode == 0, done.stderr
    return [
        dict(re.split(r" {2,}", line, maxsplit=1) for line in said.splitlines()) for said in json.loads(done.stdout)
    ]  # type: ignore[misc]


CASES = [
    ("textbook", Case(dtype="bfloat16", dims=(1,), fill="ones", values={"x": "c08b"}), "y", 0),
    (
        "textbook",
        Case(dtype="bfloat16", dims=(3,), fill="normal", upstream="normal", values={"x": "c08b4000c040"}),
        "dx",
        2,
    ),
    ("textbook", Case(dtype="float64", dims=(4,), fill="normal", upstream="normal"), "dx", 3),
    ("one_pass", Case(dtype="float32", dims=(3, 9), fill="mean 1e3", upstream="normal"), "y", 11),
    ("one_pass", Case(dtype="float32", dims=(3, 9), fill="mean 1e3", upstream="normal"), "dweight", 4),
    (
        "one_pass",
        Case(dtype="float16", dims=(2, 5), fill="randn", upstream="normal", layouts={"x": "stepped", "dy": "expanded"}),
        "dx",
        7,
    ),
    ("one_pass", Case(dtype="float32", dims=(3, 9), fill="randn", upstream="normal", absent=("bias",)), "dweight", 4),
    ("overflows", Case(dtype="float16", dims=(1,), fill="ones", values={"x": "7000"}), "y", 0),
    ("overflows", Case(dtype="float16", dims=(1,), fill="ones", values={"x": "fc00"}), "y", 0),
    ("overflows", Case(dtype="float16", dims=(1,), fill="ones", values={"x": "7e00"}), "y", 0),
    ("torch_gelu", Case(dtype="float32", dims=(1,), fill="ones", values={"x": "c0b00000"}), "y", 0),
    # within the noise, and hundreds of ULP off: 0.83666
    ("near_root", Case(dtype="float32", dims=(1,), fill="ones", values={"x": "3f562f5a"}), "y", 0),
    (
        "of_a_class",
        Case(dtype="float32", dims=(2,), fill="ones", upstream="ones", edits={"x": {"1": "3e000000"}}),
        "dx",
        1,
    ),
]


@pytest.fixture(scope="module")
def shown(project: Path) -> list[tuple[Replay, str, dict[str, str]]]:
    """Every case: what verify says, the script, and what that prints; all scripts in one process, for its start."""
    backend, before = backends.select(), os.getcwd()
    os.chdir(project)
    try:
        found, scripts = [], []
        for name, case, result, index in CASES:
            chosen = kernel(project, name)
            found.append(replay(chosen, f"accuracy.py::{name}", backend, case, result=result, index=index))
            scripts.append(snippet(chosen, backend, found[-1]))
        scripts.append(scripts[0].replace("x * SQRT_HALF", "x * SQRT_HALF * 0.5"))
        mended = scripts[0].replace("half(x) * inner(x)", "torch.nn.functional.gelu(x.double()).to(x.dtype)")
        said = run(project, [*scripts, mended])
        return list(zip([*found, found[0], found[0]], [*scripts, mended], said, strict=True))
    finally:
        os.chdir(before)


@pytest.mark.parametrize("place", range(len(CASES)), ids=[f"{c[0]}-{c[2]}-{c[1].dtype}" for c in CASES])
def test_the_script_shows_what_verify_shows(shown: list[tuple[Replay, str, dict[str, str]]], place: int) -> None:
    found, script, said = shown[place]
    head = script.split("# -- the operands")[0].replace("@staticmethod", "")
    assert "import verify" not in script and "@" not in head
    assert said["got"].endswith(f"({found.worst.got_hex})")
    assert said["exact"] == found.worst.truth
    error = value_of(found.worst.ulp)
    assert said["error"] == f"{error:+.6g} ULP"
    if found.worst.scaled_ulp is not None:
        assert said["of scale"] == f"{value_of(found.worst.scaled_ulp):+.6g} ULP"
    assert said["reported"].endswith(": the same bits")
    assert said["exit"] == ("0" if found.judged <= found.limit else "1")


def test_other_bits_are_called_so(shown: list[tuple[Replay, str, dict[str, str]]]) -> None:
    assert shown[-2][2]["reported"].endswith(": other bits here")


def test_it_exits_1_while_the_kernel_is_wrong(shown: list[tuple[Replay, str, dict[str, str]]]) -> None:
    assert (shown[0][2]["exit"], shown[-1][2]["exit"]) == ("1", "0")


def test_what_the_file_does_when_it_is_imported_is_kept(project: Path) -> None:
    """`half` rests on what `import effects` leaves, which nothing in the file names."""
    source, _ = kernel_source(kernel(project, "textbook"))
    assert [line for line in source.splitlines() if line.startswith(("import", "sys", "list"))] == [
        "import sys",
        "import effects",
        "import registers",
        "sys.setting = registers.VALUE",
        "list(map(print, ()))",
    ]


def test_a_script_of_a_case_that_was_made_smaller_names_the_one_it_came_from(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    backend, chosen = backends.select(), kernel(project, "textbook")
    case = Case(dtype="bfloat16", dims=(8,), fill="ones", edits={"x": {"3": "c08b"}})
    found = replay_smaller(chosen, "accuracy.py::textbook", backend, case, result="y", index=3)
    script = snippet(chosen, backend, found)
    original = replay_command(Origin("accuracy.py::textbook", case.to_json(), "y", 3))
    assert f"The case was made smaller; the one that was found:\n\n{original}\n" in script
    given = replay(chosen, "accuracy.py::textbook", backend, case, result="y", index=3)
    assert "made smaller" not in snippet(chosen, backend, given)


def test_only_what_the_kernel_uses_is_copied(project: Path) -> None:
    source, name = kernel_source(kernel(project, "textbook"))
    assert name == "textbook"
    assert "def inner" in source and "SQRT_HALF" in source and "from parts import half" in source
    for absent in ("UNUSED", "one_pass", "functools", "verify", "declares"):
        assert absent not in source


def test_a_function_from_elsewhere_is_imported(project: Path) -> None:
    source, name = kernel_source(kernel(project, "torch_gelu"))
    assert source == f"from {kernel(project, 'torch_gelu').function.__module__} import gelu" and name == "gelu"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("anonymous", "a script needs the source of anonymous: a function or class of its file"),
        ("uses_verify", "a script runs without verify, which uses_verify uses beyond its declaration"),
    ],
)
def test_what_cannot_stand_alone_is_refused(project: Path, name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        kernel_source(kernel(project, name))


def test_a_script_of_many_elements_is_refused(project: Path) -> None:
    backend, chosen = backends.select(), kernel(project, "textbook")
    case = Case(dtype="bfloat16", dims=(65536,), fill="patterns")
    assert too_long(chosen, case, backend) == 65536
    assert too_long(chosen, Case(dtype="bfloat16", dims=(4096,), fill="patterns"), backend) == 0
    found = replay(chosen, "accuracy.py::textbook", backend, case, result="y", index=16256)
    with pytest.raises(UsageError, match="spells out at most 4,096 elements; this case has 65,536"):
        snippet(chosen, backend, found)
