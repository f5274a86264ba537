"""Choosing and activating a backend, in fresh processes where it matters."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch

from tests.report.sample import passing
from verify.backends import Cuda, activate, select
from verify.errors import UsageError
from verify.records.readings import arch_of

ROOT = Path(__file__).resolve().parents[2]
GPU = torch.cuda.is_available()


def python(code: str, **environment: str) -> str:
    """The output of a fresh interpreter, which must succeed."""
    clean = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | environment
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=clean, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_an_unknown_name() -> None:
    with pytest.raises(UsageError) as error:
        select("npu")
    assert str(error.value) == (
        "backend: it is one of cuda, interpreter, cpu; got 'npu'\n  next: --backend interpreter"
    )


@pytest.mark.parametrize(
    ("backend", "arch", "bounds"),
    [
        ("cuda", "sm_90", "sm_90"),
        ("cuda", "gfx90a", "unknown"),
        ("cuda", "absent", "unknown"),
        ("cpu", "cpu_avx2", "cpu_avx2"),
        ("cpu", "sm_90", "unknown"),
        ("interpreter", "sm_90", "interpreter"),
        ("npu", "npu_1000", "npu_1000"),
        ("npu", "sm_90", "unknown"),
        ("npu", "interpreter", "unknown"),
        ("", "_x", "unknown"),
    ],
)
def test_bounds_of_another_backend_never_apply(backend: str, arch: str, bounds: str) -> None:
    run = msgspec.structs.replace(passing(), backend=backend, environment={"arch": arch})
    assert arch_of(run) == bounds


@pytest.mark.skipif(GPU, reason="needs a machine without a GPU")
def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    backend = select()
    assert (backend.name, backend.device) == ("interpreter", "cpu")
    assert backend.label == "CPU (Triton interpreter)"
    with pytest.raises(UsageError) as error:
        select("cuda")
    assert str(error.value).startswith("backend: 'cuda' needs a GPU that torch can use; torch.cuda.is_available() is")
    assert "next: --backend interpreter" in str(error.value)


def test_a_gpu_is_the_default_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: f"Test GPU {i}")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda i: (9, 0))
    assert select() == replace(select("cuda"), asked="")
    assert (select().asked, select("cuda").asked) == ("", "cuda"), "commands repeat what the user named"
    assert select().name == "cuda" and select().device == "cuda:1" and select().label == "Test GPU 1 (sm_90)"
    assert select("interpreter").name == "interpreter"
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert select().name == "interpreter"
    with pytest.raises(UsageError, match="'cuda' interprets no kernels, but TRITON_INTERPRET=1 makes Triton interpret"):
        select("cuda")


def test_activation_before_triton_is_imported_prepares_the_kernels() -> None:
    code = """
import sys
from verify import backends
assert 'triton' not in sys.modules
backends.activate(backends.select('interpreter'))
backends.activate(backends.select('interpreter'))
sys.path.insert(0, 'tests/backends/interpreter')
import interpreted_kernels as k, torch
x = torch.tensor([1 + 2.0**-8, 1 + 3 * 2.0**-8, 1.0, 2.0])
y = torch.empty(4, dtype=torch.bfloat16)
k.cast[(1,)](x, y, N=4)
print(torch.equal(y, x.bfloat16()))
"""
    assert python(code) == "True"


def test_activation_after_triton_was_imported_to_compile_is_refused() -> None:
    code = """
import triton
from verify import backends
from verify.errors import UsageError
from verify.records.readings import arch_of
try:
    backends.activate(backends.select('interpreter'))
except UsageError as error:
    print(error)
"""
    out = python(code)
    assert "'interpreter' must be active before Triton is imported; Triton is already imported" in out
    assert "next: TRITON_INTERPRET=1 in the environment, or activate the backend before importing kernels" in out


def test_cuda_in_an_interpreting_process_is_refused(faithful: None) -> None:
    with pytest.raises(UsageError, match="whose Triton was imported to interpret them") as error:
        activate(Cuda("cuda:0"))
    assert "next: unset TRITON_INTERPRET and start a new process" in str(error.value)
