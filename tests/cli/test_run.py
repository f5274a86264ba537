"""`verify run` end to end: verdicts, exit codes, and that one bad kernel never takes the others down."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.here import Said, as_process, said
from tests.golden import golden
from verify.records import files, record

pytestmark = pytest.mark.usefixtures("warm")

KERNELS = """
import os
import torch, verify

F = torch.nn.functional

def right(x):
    wide = x.double().clamp(min=-1000)
    return (wide / (1 + torch.exp(-wide))).half()

@verify.kernel(op="silu", dtypes=["float16"], gradients=False)
def good(x):
    return right(x)

@verify.kernel(op="gelu", dtypes=["bfloat16"])
def textbook(x):
    return x * 0.5 * (1.0 + torch.erf(x / 2**0.5))

@verify.kernel(op="gelu", dtypes=["float16"])
def raises(x):
    raise RuntimeError("no such unit")

@verify.kernel(op="gelu", dtypes=["float16"])
def dies(x):
    os.abort()

@verify.kernel(op="gelu", dtypes=["float16"])
def exits(x):
    os._exit(0)

@verify.kernel(op="gelu", dtypes=["float16"])
def wrong_shape(x):
    return F.gelu(x)[:5]

@verify.kernel(op="gelu", dtypes=["float16"])
def wrong_dtype(x):
    return F.gelu(x).float()

@verify.kernel(op="gelu", dtypes=["float16"])
def wrong_device(x):
    return F.gelu(x).to("meta")

@verify.kernel(op="gelu", dtypes=["float16"])
def no_tensor(x):
    return 3.0

@verify.kernel(op="gelu", dtypes=["float16"])
def overwrites(x):
    with torch.no_grad():
        x.mul_(2)
    return F.gelu(x)

@verify.kernel(op="silu", dtypes=["float16"], gradients=False)
def prints(x):
    print('{"run": "not an answer"}', flush=True)
    return right(x)

@verify.kernel(op="gelu", dtypes=["float16"], backends=["cuda"])
def elsewhere(x):
    return F.gelu(x)
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Said, record.Run, Path]:
    folder = tmp_path_factory.mktemp("project")
    (folder / "accuracy.py").write_text(KERNELS)
    options = ("--json", "run.json", "--backend", "interpreter", "--jobs", "1")
    done = as_process("run", "accuracy.py", *options, cwd=folder)
    return done, files.load(folder / "run.json"), folder


def test_every_kernel_has_its_own_result(ran) -> None:
    done, run, _ = ran
    told = "".join(f"{item.name} {item.status} {item.message}".strip() + "\n" for item in run.kernels)
    golden(Path(__file__).parent / "snapshots" / "kernels.txt", told.replace("cuda:0", "cpu"))
    assert all(item.name in done.stdout for item in run.kernels)
    assert done.returncode == 1
    assert run.verdict == "fail"


def test_the_textbook_formula_is_wrong_on_the_right_input(ran) -> None:
    _, run, _ = ran
    [item] = [item for item in run.kernels if item.name == "textbook"]
    result = item.results[0]
    assert str(result.basis) == "exhaustive, 65,536 inputs"
    # 1 + erf(x / sqrt 2) is 0 in bfloat16 from about -3 on: every digit of the result is lost
    assert 250 < record.value_of(result.figures.max_ulp) < 256
    worst = result.worst[0]
    assert worst.got in ("-0.0", "-0", "0.0", "0")
    assert record.replay_command(worst.origin).startswith("verify replay accuracy.py::textbook '{")


def test_the_replay_command_reproduces_the_figure_exactly(ran) -> None:
    import shlex

    _, run, folder = ran
    [item] = [item for item in run.kernels if item.name == "textbook"]
    worst = item.results[0].worst[0]
    words = shlex.split(record.replay_command(worst.origin))
    done = said(*words[1:], "--json", "-", "--backend", "interpreter", cwd=folder)
    assert done.returncode == 1, done.stderr
    again = json.loads(done.stdout)
    assert again["worst"]["ulp"] == worst.ulp
    assert again["worst"]["got_hex"] == worst.got_hex
    assert again["worst"]["inputs"] == worst.inputs
    assert again["repeatable"] is True


def test_two_runs_give_the_same_record(ran) -> None:
    _, run, folder = ran
    for name in ("a.json", "b.json"):  # against a worker's process, which `ran` had
        said("run", "accuracy.py::good", "--json", name, "--backend", "interpreter", cwd=folder)
    first, second = files.load(folder / "a.json"), files.load(folder / "b.json")
    assert first.id == second.id
    [item] = [item for item in run.kernels if item.name == "good"]
    assert first.kernels[0].results == item.results


def test_a_file_that_ends_the_process_is_named_with_the_command_that_shows_it(tmp_path: Path) -> None:
    (tmp_path / "my exits.py").write_text("import sys\nsys.exit(3)\n")
    done = as_process("run", "my exits.py", "--backend", "interpreter", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "verify: my exits.py: importing it ended the process: the process ended with exit code 3 and no result\n"
        "  next: python 'my exits.py'\n"
    )


def test_a_dtype_that_no_kernel_declares_is_said_with_what_they_declare(ran) -> None:
    done = said("run", "accuracy.py::prints", "--dtype", "float32", "--backend", "interpreter", cwd=ran[2])
    assert done.returncode == 3
    assert "declares float16; --dtype asks for float32\n" in done.stdout
    assert done.stdout.endswith("\nnext: verify list accuracy.py\n") and done.stdout.count("verify list") == 1


def test_a_broken_target_does_not_stop_the_others(ran) -> None:
    folder = ran[2]
    (folder / "broken.py").write_text("1 / 0\n")
    done = said("run", "broken.py", "accuracy.py::good", "--json", "mixed.json", "--backend", "interpreter", cwd=folder)
    run = files.load(folder / "mixed.json")
    assert [item.name for item in run.kernels] == ["good"]
    assert done.returncode == 2
    assert "broken.py fails on import" in done.stderr


SAVED_MEANWHILE = """
import os
import torch, verify

@verify.kernel(op="silu", dtypes=["float16", "bfloat16"], gradients=False)
def k(x):
    if not os.path.exists("saved"):
        open("saved", "w").close()
        with open(__file__, "a") as stream:
            stream.write("FACTOR = 1.5\\n")
    return torch.nn.functional.silu(x)
"""


def test_a_source_that_is_saved_during_the_run_stops_it(tmp_path: Path) -> None:
    (tmp_path / "accuracy.py").write_text(SAVED_MEANWHILE)
    found = said("run", "accuracy.py", "--json", "r.json", cwd=tmp_path)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == (
        "verify: a run measures one state of its sources; accuracy.py changed while it went on, and nothing of it is "
        "judged\n  next: the same command again, once the file is saved\n"
    )
    assert not (tmp_path / "r.json").exists()
