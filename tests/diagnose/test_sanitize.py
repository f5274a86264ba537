"""Reports of compute-sanitizer are read right, whatever the kernel looks like in them; and no report is no verdict."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch

import verify
from tests.cli.here import said
from verify.cases import inputs_of
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


def test_memcheck_equal_findings_are_counted_once() -> None:
    report = sanitize.parse("memcheck", MEMCHECK)
    assert report.total == 3
    first, second = report.findings
    assert first == sanitize.Finding(
        tool="memcheck",
        what="Invalid __global__ write of size 4 bytes",
        kernel="scale_kernel(float *, int, float)",
        location="scale.cu:14 (+0x50)",
        thread="thread (287,0,0) in block (3906,0,0)",
        address="0x7f2a1c003c9c is out of bounds",
        times=2,
    )
    assert (second.kernel, second.location) == ("_forward_kernel", "/home/user/rows.py:88 (0x1d0)")
    assert second.address == "0x8000 is misaligned" and second.times == 1


def test_initcheck_counts_what_is_not_printed_too() -> None:
    report = sanitize.parse("initcheck", INITCHECK)
    [finding] = report.findings
    assert report.total == 257
    assert finding.what == "Uninitialized __global__ memory read of size 4 bytes"
    assert (finding.kernel, finding.location) == ("_backward_kernel", "gelu.py:210 (+0x7be0)")
    assert finding.address == "0x7f3c7ec000fc"


@pytest.mark.parametrize(
    ("log", "kernel", "location"),
    [(RACECHECK, "sum_kernel(float *, int)", "sum.cu:9 (+0x140)"), (ONE_LINE_RACE, "reduce(int)", "0x50")],
)
def test_a_race_names_the_first_access(log: str, kernel: str, location: str) -> None:
    report = sanitize.parse("racecheck", log)
    [finding] = report.findings
    assert report.total == 1
    assert finding.what == "Race between write and read access"
    assert (finding.kernel, finding.location) == (kernel, location)


def test_a_barrier_inside_of_an_inlined_function_belongs_to_the_kernel() -> None:
    [finding] = sanitize.parse("synccheck", SYNCCHECK).findings
    assert finding.what == "Barrier error detected. Invalid arguments."
    assert finding.kernel == "broken_sync(float *, unsigned long)"
    assert finding.location == "sm_30_intrinsics.hpp:110 (+0xe0)"


@pytest.mark.parametrize(("log", "total"), [(CLEAN, 0), (NO_RACE, 0), (NOT_STARTED, None), ("", None)])
def test_only_a_summary_is_a_verdict(log: str, total: int | None) -> None:
    report = sanitize.parse("memcheck", log)
    assert report.findings == () and report.total == total


# -- a whole run, with a program in the place of compute-sanitizer -------------------------------------

FAKE = """#!{python}
import pathlib, sys
arguments = sys.argv[1:]
log = pathlib.Path(arguments[arguments.index("--log-file") + 1])
answer = pathlib.Path(arguments[-1])
{body}
"""


def fake(folder: Path, body: str) -> str:
    """A program that takes compute-sanitizer's arguments and does `body` instead."""
    path = folder / "compute-sanitizer"
    path.write_text(FAKE.format(python=sys.executable, body=body))
    path.chmod(0o755)
    return str(path)


def says(log: str, answer: str | None = '{"cases": 9, "failure": ""}', code: int = 0) -> str:
    wrote = "" if answer is None else f"answer.write_text({answer!r})\n"
    return f"log.write_text({log!r})\n{wrote}print('the last word')\nsys.exit({code})"


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (says(CLEAN), "clean", ""),
        (says(INITCHECK), "findings", ""),
        (says(CLEAN.replace("0 errors", "4 errors")), "findings", ""),
        (says(NOT_STARTED), "incomplete", "memcheck gave no summary: Error: Target application terminated before"),
        (says(""), "incomplete", "memcheck gave no summary: the last word"),
        (says(CLEAN, None, 3), "incomplete", "ended with exit code 3 before it was done: the last word"),
        (says(CLEAN, '{"cases": 2, "failure": "k raised RuntimeError"}'), "incomplete", "k raised RuntimeError"),
        (says(CLEAN, '{"cases": 0, "failure": ""}'), "incomplete", "no case was run"),
        ("import time; time.sleep(600)", "incomplete", "no end within 2 s; stopped"),
    ],
)
def test_the_log_the_answer_and_the_exit_code_must_agree(tmp_path: Path, body: str, status: str, message: str) -> None:
    outcome = sanitize.check(fake(tmp_path, body), "memcheck", "here.py::k", "k", timeout=2 if "sleep" in body else 60)
    assert outcome.status == status
    assert message in outcome.message
    assert bool(outcome.findings) == (status == "findings")


def test_the_process_gets_the_tool_the_kernel_and_an_allocator_that_hides_nothing(tmp_path: Path) -> None:
    body = (
        "import json, os\n"
        "kept = ('PYTORCH_NO_CUDA_MEMORY_CACHING',)\n"
        f"pathlib.Path({str(tmp_path / 'seen.json')!r}).write_text(json.dumps([arguments,\n"
        "    json.loads(pathlib.Path(arguments[-2]).read_text()), {k: os.environ.get(k) for k in kept}]))\n"
        + says(CLEAN)
    )
    sanitize.check(fake(tmp_path, body), "initcheck", "here.py::k", "k", dtypes=["float32"])
    arguments, request, environment = json.loads((tmp_path / "seen.json").read_text())
    assert arguments[arguments.index("--tool") + 1] == "initcheck"
    assert arguments[-4].endswith("start.py") and arguments[-3] == "verify.diagnose.sanitize"
    assert request == {"target": "here.py::k", "dtypes": ["float32"]}
    assert environment == {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


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


def test_every_shape_and_layout_is_called_forward_and_backward() -> None:
    calls.clear()
    assert sanitize.exercise(counted, ("float32",), "cpu") == len(calls) == 9
    shapes = {shape for shape, _, _ in calls}
    assert {(1,), (1023,), (1025,), (7, 129), (3, 5, 33)} == shapes
    assert all(requires for _, _, requires in calls)
    assert len({stride for shape, stride, _ in calls if shape == (7, 129)}) == 3  # contiguous, padded, transposed
    assert sanitize.exercise(counted, (), "cpu") == 18  # both dtypes


def test_a_kernel_gets_only_what_it_promises_to_take() -> None:
    calls.clear()
    assert sanitize.exercise(plain_only, (), "cpu") == 5
    assert not any(requires for _, _, requires in calls)


def test_a_tensor_keeps_its_strides_and_nothing_lies_behind_it() -> None:
    case = next(case for case in sanitize.cases_of(counted, "float32") if case.layouts.get("x") == "padded")
    x = inputs_of(counted.op, case, "cpu")["x"]
    assert x is not None
    there = sanitize.moved(x, "cpu")
    assert torch.equal(there, x) and there.stride() == x.stride()
    assert there.untyped_storage().nbytes() == 4 * ((7 - 1) * x.stride(0) + 129)


# -- the command ---------------------------------------------------------------------------------------


def test_without_compute_sanitizer_there_is_no_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sanitize, "executable", lambda: None)
    assert main(["sanitize", "here.py"]) == 3
    said = capsys.readouterr().err
    assert "incomplete: sanitize runs kernels on a GPU under compute-sanitizer" in said
    assert "compute-sanitizer is not on the path" in said


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_there_is_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, says(CLEAN))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    done = said("sanitize", "here.py", cwd=Path.cwd())
    assert done.returncode == 3 and done.stdout == ""
    assert "this machine has no GPU that PyTorch can use" in done.stderr


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
