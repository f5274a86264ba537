"""What compute-sanitizer finds in a kernel is shown as it says it; and no report is no verdict."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch

import verify
from tests.cli.here import said
from verify.cases import case_of, inputs_of
from verify.cli import main
from verify.diagnose import sanitize

MEMCHECK = """\
========= COMPUTE-SANITIZER
Running 256 threads
========= Invalid __global__ write of size 4 bytes
=========     at scale_kernel(float *, int, float)+0x50 in scale.cu:14
=========     by thread (287,0,0) in block (3906,0,0)
=========     Address 0x7f2a1c003c9c is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f2a1c000000 of size 15516 bytes
=========
========= Invalid __global__ write of size 4 bytes
=========     at scale_kernel(float *, int, float)+0x50 in scale.cu:14
=========     by thread (288,0,0) in block (3906,0,0)
=========     Address 0x7f2a1c003ca0 is out of bounds
=========
========= Invalid __shared__ read of size 2 bytes
=========     at 0x1d0 in /home/user/rows.py:88:_forward_kernel
=========     by thread (31,0,0) in block (0,0,0)
=========     Address 0x8000 is misaligned
=========
========= Target application returned an error
========= ERROR SUMMARY: 3 errors
"""
INITCHECK = """\
========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at _backward_kernel+0x7be0 in gelu.py:210
=========     by thread (25,0,0) in block (0,0,0)
=========     Address 0x7f3c7ec000fc
=========
========= ERROR SUMMARY: 257 errors
========= ERROR SUMMARY: 256 errors were not printed. Use --print-limit option to adjust the number of printed errors
"""
RACECHECK = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at sum_kernel(float *, int)+0x140 in sum.cu:9
=========     and Read access at sum_kernel(float *, int)+0xe0 in sum.cu:12 [4 hazards]
=========     and Write access at sum_kernel(float *, int)+0x140 in sum.cu:9 [5 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
ONE_LINE_RACE = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at 0x50 in reduce(int) and Read access at 0x90 in reduce(int)
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
SYNCCHECK = """\
========= COMPUTE-SANITIZER
========= Barrier error detected. Invalid arguments.
=========     at __syncwarp(unsigned int)+0xe0 in sm_30_intrinsics.hpp:110
=========     by thread (16,0,0) in block (0,0,0)
=========         Device Frame: broken_sync(float *, unsigned long)+0xb0 in kernel.cu:12
=========
========= ERROR SUMMARY: 1 error
"""
CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
NO_RACE = "========= COMPUTE-SANITIZER\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"
NOT_STARTED = """\
========= COMPUTE-SANITIZER
========= Error: Target application terminated before first instrumented API call
"""


# -- a whole run, with a program in the place of compute-sanitizer -------------------------------------

FAKE = """#!{python}
import pathlib, sys
arguments = sys.argv[1:]
log = pathlib.Path(arguments[arguments.index("--log-file") + 1])
{body}
"""


def fake(folder: Path, body: str) -> str:
    """A program that takes compute-sanitizer's arguments and does `body` instead."""
    path = folder / "compute-sanitizer"
    path.write_text(FAKE.format(python=sys.executable, body=body))
    path.chmod(0o755)
    return str(path)


def says(log: str, code: int = 0) -> str:
    return f"log.write_text({log!r})\nprint('the last word')\nsys.exit({code})"


@pytest.mark.parametrize(
    ("body", "status", "report"),
    [
        (says(CLEAN), "clean", ""),
        (says(NO_RACE), "clean", ""),
        (says(MEMCHECK), "findings", "at scale_kernel(float *, int, float)+0x50 in scale.cu:14"),
        (says(INITCHECK), "findings", "Uninitialized __global__ memory read of size 4 bytes"),
        (
            says(RACECHECK),
            "findings",
            "Race reported between Write access at sum_kernel(float *, int)+0x140 in sum.cu:9",
        ),
        (says(ONE_LINE_RACE), "findings", "Write access at 0x50 in reduce(int)"),
        (says(SYNCCHECK), "findings", "Device Frame: broken_sync(float *, unsigned long)+0xb0 in kernel.cu:12"),
        (says(CLEAN.replace("0 errors", "4 errors")), "findings", "4 errors"),
        (says(NOT_STARTED, 1), "incomplete", "it ended without a summary: the last word"),
        (says(""), "incomplete", "it ended without a summary: the last word"),
        (says(CLEAN, 3), "incomplete", "its process ended with exit code 3: the last word"),
        ("import time; time.sleep(600)", "incomplete", "no end within 0.5 s; stopped"),
    ],
)
def test_the_summary_and_the_exit_code_must_agree(tmp_path: Path, body: str, status: str, report: str) -> None:
    outcome = sanitize.check(fake(tmp_path, body), "memcheck", "here.py::k", timeout=0.5 if "sleep" in body else 60)
    assert outcome.status == status and report in outcome.report


def test_the_process_gets_the_tool_the_kernel_the_case_and_an_allocator_that_hides_nothing(tmp_path: Path) -> None:
    body = (
        "import json, os\n"
        f"pathlib.Path({str(tmp_path / 'seen.json')!r}).write_text(json.dumps([arguments,\n"
        "    os.environ.get('PYTORCH_NO_CUDA_MEMORY_CACHING')]))\n" + says(CLEAN)
    )
    sanitize.check(fake(tmp_path, body), "initcheck", "here.py::k", "{}")
    arguments, switched = json.loads((tmp_path / "seen.json").read_text())
    assert arguments[arguments.index("--tool") + 1] == "initcheck" and switched == "1"
    assert arguments[-4].endswith("start.py") and arguments[-3:] == ["verify.diagnose.sanitize", "here.py::k", "{}"]


def test_the_command_shows_what_each_tool_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = f"log.write_text({MEMCHECK!r} if 'memcheck' in arguments else {CLEAN!r})"
    fake(tmp_path, body)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    done = said("sanitize", "here.py::k", cwd=tmp_path)
    assert done.returncode == 1
    assert "memcheck: findings\n" in done.stdout and "by thread (287,0,0) in block (3906,0,0)" in done.stdout
    assert done.stdout.endswith(
        "initcheck: clean\nracecheck: clean\nsynccheck: clean\n"
        "wrong: 1 of 4 tools found something\nnext: verify run here.py::k\n"
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_there_is_no_verdict(tmp_path: Path) -> None:
    # this one runs the process that calls the kernel, as the real tool does
    run = "import subprocess\nsys.exit(subprocess.run(arguments[arguments.index('--print-limit') + 2 :]).returncode)"
    outcome = sanitize.check(fake(tmp_path, run), "racecheck", "here.py::k")
    assert outcome.status == "incomplete" and "backend: 'cuda'" in outcome.report, outcome.report


# -- what the process does with a kernel ---------------------------------------------------------------

calls: list[tuple[tuple[int, ...], tuple[int, ...], bool]] = []


@verify.kernel(op="silu", dtypes=["float32", "float16"])
def counted(x):
    calls.append((tuple(x.shape), x.stride(), x.requires_grad))
    return x * torch.sigmoid(x)


@verify.kernel(op="silu", dtypes=["float32"], layouts="contiguous", gradients=False)
def plain_only(x):
    calls.append((tuple(x.shape), x.stride(), x.requires_grad))
    return x * torch.sigmoid(x)


def test_every_shape_and_dtype_is_called_forward_and_backward() -> None:
    calls.clear()
    for case in sanitize.cases_of(counted):
        sanitize.call(counted, case, "cpu")
    assert {shape for shape, _, _ in calls} == {(1,), (1023,), (1025,), (7, 129), (3, 5, 33)}
    assert len(calls) == 10 and all(requires for _, _, requires in calls)


def test_a_kernel_without_gradients_is_called_without_them() -> None:
    calls.clear()
    sanitize.call(plain_only, sanitize.cases_of(plain_only)[0], "cpu")
    assert [requires for _, _, requires in calls] == [False]


def test_a_tensor_keeps_its_strides_and_nothing_lies_behind_it() -> None:
    x = inputs_of(counted.op, case_of(counted, "float32", dims=(7, 129), layouts={"x": "padded"}), "cpu")["x"]
    assert x is not None
    there = sanitize.moved(x, "cpu")
    assert torch.equal(there, x) and there.stride() == x.stride()
    assert there.untyped_storage().nbytes() == 4 * ((7 - 1) * x.stride(0) + 129)


# -- the command ---------------------------------------------------------------------------------------


def test_without_compute_sanitizer_there_is_no_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sanitize, "executable", lambda: None)
    assert main(["sanitize", "here.py::k", "--tool", "memcheck"]) == 3
    assert "memcheck: incomplete\ncompute-sanitizer comes with the CUDA toolkit" in capsys.readouterr().out


GPU_KERNELS = """
import torch, triton, triton.language as tl, verify

@triton.jit
def _kernel(x_ptr, y_ptr, n, PAST: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    tl.store(y_ptr + at, x * tl.sigmoid(x.to(tl.float32)), mask=at < n + PAST)

def silu(x, past):
    flat = x.contiguous()
    y = torch.empty_like(flat)
    _kernel[(triton.cdiv(x.numel(), 128),)](flat, y, x.numel(), PAST=past, BLOCK=128)
    return y

@verify.kernel(op="silu", dtypes=["float32"], gradients=False)
def right(x):
    return silu(x, 0)

@verify.kernel(op="silu", dtypes=["float32"], gradients=False)
def past_the_end(x):
    return silu(x, 3)
"""


@pytest.mark.gpu
def test_a_write_past_the_end_is_found_on_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if sanitize.executable() is None:
        pytest.skip("no compute-sanitizer")
    (tmp_path / "kernels.py").write_text(GPU_KERNELS)
    target = str(tmp_path / "kernels.py")
    code = main(["sanitize", f"{target}::right", "--tool", "memcheck", "--timeout", "300"])
    said = capsys.readouterr().out
    if code == 3:
        pytest.skip(f"compute-sanitizer does not work here: {said}")
    assert code == 0, said
    assert main(["sanitize", f"{target}::past_the_end", "--tool", "memcheck", "--timeout", "300"]) == 1
    assert "Invalid __global__ write" in capsys.readouterr().out
