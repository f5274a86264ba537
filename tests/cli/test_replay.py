"""`verify replay` and `verify explain` end to end: an element of a record, made smaller, as a script, explained."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import msgspec
import pytest

from tests.cli.here import Said, said
from tests.measure.test_kernel import few_cases
from verify import backends
from verify.records import files, record

BACKEND = backends.select().name

CASE = '{"dtype":"bfloat16","dims":[65536],"fill":"patterns","upstream":"ones"}'
KERNELS = """
import torch, verify

@verify.kernel(op="gelu", dtypes=["bfloat16"])
def textbook(x):
    return x * 0.5 * (1.0 + torch.erf(x * 0.7071067811865476))

@verify.kernel(op="silu", dtypes=["float32"], gradients=False)
def ignores_strides(x):
    flat = torch.as_strided(x, (x.numel(),), (1,), x.storage_offset())
    return torch.nn.functional.silu(flat.reshape(x.shape))

@verify.kernel(op="layer_norm", dtypes=["float32"], operands=["x", "weight"], gradients=False)
def scaled_alone(x, weight, *, eps):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, None, eps)
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "accuracy.py").write_text(KERNELS)
    run_textbook("run.json", BACKEND, folder)
    return folder


def run_textbook(path: str, backend: str, folder: Path) -> Said:
    with pytest.MonkeyPatch.context() as patch:
        few_cases(patch)
        return said("run", "accuracy.py::textbook", "--json", path, "--backend", backend, cwd=folder)


@pytest.fixture(scope="module")
def on_cpu(project: Path) -> Said:
    return run_textbook("cpu.json", "cpu", project)


def test_the_message_holds_everything(project: Path) -> None:
    case = '{"dtype":"bfloat16","dims":[2],"fill":"normal","values":{"x":"3f80c08b"}}'
    done = said("replay", "accuracy.py::textbook", case, "--index", "1", cwd=project)
    assert done.returncode == 1, done.stderr
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert lines[0] == f"textbook (gelu) y bfloat16 on {BACKEND}"
    shown = dict(line.split(maxsplit=1) for line in lines[1:-2])
    assert shown["at"] == "[1]" and shown["x"] == "-4.34 (0xc08b)"
    assert shown["got"] == "-0 (0x8000)" and shown["truth"].startswith("-3.0421650658398137")
    assert shown["error"] == "+255.195 ULP" and shown["limit"] == "1 ULP (plain)"
    assert shown["case"] == case
    again = shlex.split(shown["replay"])
    assert again[:4] == ["verify", "replay", "accuracy.py::textbook", case]
    asked = f"accuracy.py::textbook {shlex.quote(case)} --index 1"
    assert lines[-2:] == ["wrong: beyond its limit", f"next: verify explain {asked}"]


def test_the_worst_element_of_a_record_has_the_same_bits_again(project: Path) -> None:
    worst = files.load(project / "run.json").kernels[0].results[0].worst[0]
    done = said("replay", "--run", "run.json", "--json", "-", cwd=project)
    found = json.loads(done.stdout)
    assert found["recorded"] == {"got_hex": found["worst"]["got_hex"], "backend": BACKEND}
    words = shlex.split(record.replay_command(worst.origin))[1:]
    shown = said(*words, "--run", "run.json", cwd=project).stdout
    assert f"recorded  {worst.got_hex} on {BACKEND}: the same bits" in shown
    second = files.load(project / "run.json").kernels[0].results[0].worst[1]
    index = str(second.origin.index)
    shown = said("replay", "textbook", "--run", "run.json", "--dtype", "bfloat16", "--index", index, cwd=project).stdout
    assert f"recorded  {second.got_hex} on {BACKEND}: the same bits" in shown


def test_other_bits_than_recorded_are_called_so(project: Path) -> None:
    run = files.load(project / "run.json")
    changed = run.kernels[0].results[0].worst[0]
    text = msgspec.json.encode(run).replace(f'"{changed.got_hex}"'.encode(), b'"0x1234"')
    files.save(msgspec.json.decode(text, type=record.Run), project / "edited.json")
    words = shlex.split(record.replay_command(changed.origin))[1:]
    shown = said(*words, "--run", "edited.json", cwd=project).stdout
    assert f"recorded  0x1234 on {BACKEND}: OTHER bits now" in shown


def test_a_smaller_case(project: Path) -> None:
    words = ("replay", "accuracy.py::textbook", CASE, "--index", "49291")
    done = said(*words, "--shrink", cwd=project)
    assert done.returncode == 1, done.stderr
    assert '"values":{"x":"c08b"}' in done.stdout
    assert f"original  verify replay accuracy.py::textbook '{CASE}' --result y --index 49291" in done.stdout


def test_a_law_is_made_smaller(project: Path) -> None:
    case = '{"dtype":"float32","dims":[9,21],"fill":"active","layouts":{"x":"transposed"}}'
    words = ("replay", "accuracy.py::ignores_strides", case, "--law", "layout independence")
    plain, small = said(*words, cwd=project), said(*words, "--shrink", cwd=project)
    assert plain.returncode == small.returncode == 1
    assert "case         " + case in plain.stdout and "replay       verify replay" in plain.stdout
    assert '"dims":[2,2]' in small.stdout and "original     verify replay" in small.stdout


def test_explain_takes_a_replay_as_it_is(project: Path) -> None:
    worst = files.load(project / "run.json").kernels[0].results[0].worst[0]
    words = shlex.split(record.replay_command(worst.origin))[2:]
    done = said("explain", *words, cwd=project)
    assert done.returncode == 0, done.stderr
    assert "every step rounded to bfloat16, each sum once: same bits in 65,536 of 65,536" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("cause: t3 = erf(t2) in bfloat16")
    again = ("accuracy.py::textbook", "--run", "run.json", "--result", "y")
    recorded = said("explain", *again, "--json", "-", cwd=project)
    assert json.loads(recorded.stdout)["replay"]["worst"]["got_hex"] == worst.got_hex
    law = said("explain", words[0], words[1], "--law", "accuracy", cwd=project)
    assert "cause: " in law.stdout


def test_a_case_that_memory_does_not_hold_is_refused(project: Path) -> None:
    case = '{"dtype":"bfloat16","dims":[1000000000000],"fill":"ones"}'
    done = said("replay", "accuracy.py::textbook", case, cwd=project)
    assert done.returncode == 2 and "the operands of the case take 2,000,000,000,000 bytes, and " in done.stderr


def test_where_nothing_is_promised_an_element_is_wrong_only_at_special_values(tmp_path: Path) -> None:
    (tmp_path / "tiny.py").write_text(
        "import torch, verify\n"
        "def rough(x): return torch.exp(x) - 1\n"
        'declare = dict(dtypes=["float32"], gradients=False)\n'
        "as_pytorch = verify.kernel(like=rough, name='as_pytorch', **declare)(rough)\n"
        "worse = verify.kernel(like=torch.expm1, name='worse', **declare)(lambda x: torch.exp(x) - 1)\n"
        "def far(x): return torch.tanh(x) * torch.where(x.abs() > 100, 0.9, 1.0)\n"
        "beyond = verify.kernel(like=torch.tanh, name='beyond', largest=100.0, **declare)(far)\n"
        "limits = {'ordinary': 10, 'demanding': None}\n"
        "demanding = verify.kernel(like=torch.tanh, name='demanding', max_ulp=limits, **declare)(far)\n"
    )

    def replayed(kernel: str, number: str) -> Said:
        case = {"dtype": "float32", "dims": [1], "fill": "ones", "values": {"x": number}}
        return said("replay", f"tiny.py::{kernel}", json.dumps(case), cwd=tmp_path)

    tiny, ordinary = "00800000", "3a012345"  # 2^-126, 2^-11 (1 + 0.0089)
    done = replayed("worse", tiny)
    assert done.returncode == 0 and "nothing is promised on extreme inputs\n" in done.stdout, (
        "although PyTorch is right"
    )
    assert "  limit     none on extreme inputs; 10 ULP (plain) on ordinary ones\n" in done.stdout
    done = replayed("demanding", "7f800000")  # infinity
    assert done.returncode == 1 and "wrong: beyond its limit\n" in done.stdout, "PyTorch's is 1"
    done = replayed("worse", ordinary)
    assert done.returncode == 1 and "  limit     10 ULP (plain)\n" in done.stdout
    for number in (tiny, ordinary):
        done = replayed("as_pytorch", number)  # takes the steps of its definition
        assert done.returncode == 0 and " ULP beside its noise\n" in done.stdout, done
    for kernel, where in (("beyond", "inputs beyond the declared magnitude"), ("demanding", "demanding inputs")):
        done = replayed(kernel, "43480000")  # 200
        assert done.returncode == 0 and f"nothing is promised on {where}\n" in done.stdout, done
        assert "within its limit\n" in replayed(kernel, "3f800000").stdout


@pytest.mark.usefixtures("on_cpu")
def test_a_case_beside_its_record_runs_on_the_backend_of_the_record(project: Path) -> None:
    worst = files.load(project / "cpu.json").kernels[0].results[0].worst[0]
    words = shlex.split(record.replay_command(worst.origin))[1:-2]
    done = said(*words, "--run", "cpu.json", cwd=project)
    assert "on cpu: the same bits" in done.stdout, done
    assert done.stdout.splitlines()[0].endswith(" on cpu")


def test_an_error_for_inference_alone_is_replayed_by_its_law(tmp_path: Path) -> None:
    (tmp_path / "k.py").write_text(
        "import torch, verify\n"
        'halved = verify.kernel(like=torch.neg, name="halved", dtypes=["float16"])(\n'
        "    lambda x: -x * (0.5 if torch.is_inference_mode_enabled() else 1.0))\n"
    )
    ran = said("run", "k.py", "--json", "run.json", cwd=tmp_path)
    command = ran.stdout.splitlines()[-1].partition("next: ")[2]
    assert ran.returncode == 1 and command.endswith(" --law accuracy"), ran
    done = said("replay", "--run", "run.json", cwd=tmp_path)
    assert done.returncode == 2 and "shows only in the law of accuracy" in done.stderr
    assert done.stderr.rstrip().endswith(f"next: {command}")
    assert said(*shlex.split(command)[1:], cwd=tmp_path).returncode == 1


def test_a_run_that_passes_for_inference_too_shows_an_element_of_a_call(tmp_path: Path) -> None:
    (tmp_path / "k.py").write_text(
        "import torch, verify\n"
        "def third(x): return x * (1 / 3)\n"
        'rough = verify.kernel(like=third, name="rough", dtypes=["float32"], max_ulp=40)(\n'
        "    lambda x: third(x) * (1 + 2.0**-20 if torch.is_inference_mode_enabled() else 1.0))\n"
    )
    assert said("run", "k.py", "--json", "run.json", "--dtype", "float32", cwd=tmp_path).returncode == 0
    found = {item.output: item.worst for item in files.load(tmp_path / "run.json").kernels[0].results}
    (worst, *_) = found["y under torch.inference_mode()"]
    assert worst.origin.law == "accuracy"
    for more in ((), ("--index", str(found["y"][0].origin.index), "--result", "y")):
        done = said("replay", "rough", "--run", "run.json", *more, cwd=tmp_path)
        assert done.returncode == 0 and "within its limit\n" in done.stdout, done
