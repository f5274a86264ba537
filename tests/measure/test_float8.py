"""float8 from end to end: as the dtype of operands, of results, and of both."""

from __future__ import annotations

import pytest

import verify
from tests.measure import float8_kernels
from verify.backends import Backend
from verify.laws import registry
from verify.laws.engine import profile_named, try_law
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure
from verify.records.record import KernelRun

TARGET = "tests/measure/float8_kernels.py::it"


def measured(kernel: verify.Kernel, backend: Backend) -> KernelRun:
    return measure_kernel(kernel, Measure(TARGET), backend)


@pytest.mark.parametrize(
    ("kernel", "limits"),
    [
        (float8_kernels.cast, {0.51}),
        (float8_kernels.relu, {0.51}),
        (float8_kernels.product, {1.0}),
        (float8_kernels.silu, {0.51}),
    ],
    ids=lambda each: getattr(each, "name", ""),
)
def test_a_right_kernel_of_float8_passes_beside_pytorch(
    kernel: verify.Kernel, limits: set[float], backend: Backend
) -> None:
    run = measured(kernel, backend)
    assert (run.status, run.message) == ("ok", ""), run
    assert {result.dtype for result in run.results} == set(kernel.dtypes)
    assert {result.limit for result in run.results} == limits
    assert all(result.baseline is not None and float(result.figures.max_ulp) <= 0.5 for result in run.results)


def test_all_inputs_of_8_and_16_bits_are_tried(backend: Backend) -> None:
    assert {result.basis.n for result in measured(float8_kernels.relu, backend).results} == {256}
    ends = {result.dtype: result.basis for result in measured(float8_kernels.cast, backend).results}
    assert (ends["bfloat16"].kind, ends["bfloat16"].n) == ("exhaustive", 65_536)


def test_a_cast_that_truncates_is_wrong(backend: Backend) -> None:
    run = measured(float8_kernels.truncated, backend)
    (result,) = run.results
    assert run.status == "wrong" and result.format == "float8_e5m2"
    assert 0.51 < float(result.figures.max_ulp) <= 1, "dropped bits are up to one ulp"


@pytest.mark.parametrize("law", ["special values", "accuracy", "layout independence"])
def test_laws_take_float8(law: str, backend: Backend) -> None:
    found = try_law(registry.get(law), float8_kernels.relu, "float8_e4m3fn", backend, profile_named("quick"), TARGET)
    assert (found.status, found.message) == ("ok", ""), found
