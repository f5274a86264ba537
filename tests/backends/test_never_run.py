"""GPUs of AMD and Intel are named for what they are: none gets the bounds of an NVIDIA GPU."""

from __future__ import annotations

import msgspec
import pytest

from tests.report.sample import passing
from verify.records.readings import arch_of


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
