"""GPUs of AMD and Intel are named for what they are: none gets the bounds of an NVIDIA GPU."""

from __future__ import annotations

import types

import msgspec
import pytest
import torch

from tests.report.sample import passing
from verify import backends
from verify.backends import probes
from verify.errors import UsageError
from verify.records.readings import arch_of


@pytest.fixture
def mi250x(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch says on an MI250X: capability (9, 0), as an H100."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    properties = types.SimpleNamespace(gcnArchName="gfx90a:sramecc+:xnack-", total_memory=64 << 30)
    monkeypatch.setattr(torch.version, "hip", "6.4.1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=0: "AMD Instinct MI250X")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=0: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device=0: properties)


@pytest.fixture
def max_1550(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    monkeypatch.setattr(torch.xpu, "current_device", lambda: 0)
    monkeypatch.setattr(torch.xpu, "get_device_name", lambda device=0: "Intel(R) Data Center GPU Max 1550")


def test_an_amd_gpu_is_never_cuda(mi250x: None) -> None:
    with pytest.raises(UsageError) as error:
        backends.select()
    assert str(error.value) == (
        "backend: no test of verify has run on rocm, so it is used only if it is named; this machine has AMD Instinct "
        "MI250X (rocm gfx90a)\n  next: --backend rocm tries it; --backend interpreter or --backend cpu runs on the CPU"
    )
    with pytest.raises(UsageError, match="'cuda' needs a torch that was built for it; torch.version.hip is 6.4.1"):
        backends.select("cuda")
    named = backends.select("rocm")
    assert (named.name, named.device, named.label) == ("rocm", "cuda:0", "AMD Instinct MI250X (rocm gfx90a)")
    assert named.environment() == {"untested": backends.NEVER_RUN, "arch": "gfx90a"}
    assert (named.workers(64), named.visible) == (16, "HIP_VISIBLE_DEVICES")


def test_an_amd_gpu_has_an_architecture_of_its_own(mi250x: None) -> None:
    assert backends.architecture("cuda") == "gfx90a" == probes.fingerprint("cuda:0")["arch"]


def test_an_intel_gpu_is_named(max_1550: None) -> None:
    with pytest.raises(UsageError, match="no test of verify has run on xpu"):
        backends.select()
    named = backends.select("xpu")
    assert (named.device, named.label.split(" (")[0]) == ("xpu:0", "Intel(R) Data Center GPU Max 1550")
    assert named.environment()["arch"] == "xpu_data_center_gpu_max_1550" == backends.architecture("xpu")


@pytest.mark.parametrize(
    ("backend", "arch", "bounds"),
    [
        ("cuda", "sm_90", "sm_90"),
        ("cuda", "gfx90a", "unknown"),
        ("cuda", "absent", "unknown"),
        ("rocm", "sm_90", "unknown"),
        ("rocm", "gfx90a", "gfx90a"),
        ("xpu", "xpu_max_1550", "xpu_max_1550"),
        ("xpu", "sm_90", "unknown"),
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
