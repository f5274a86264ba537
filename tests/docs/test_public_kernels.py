"""examples/public: kernels of other projects, declared without their packages and skipped where those lack."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from verify.backends import Backend
from verify.cases import Case
from verify.cases.sizes import sizes_of
from verify.declare.declaration import Kernel
from verify.declare.discovery import load
from verify.declare.target import Target
from verify.measure.call import run_baseline, run_kernel

FILES = sorted((Path(__file__).parents[2] / "examples" / "public").glob("*.py"))


@pytest.fixture(scope="module")
def declared() -> dict[str, list[Kernel]]:
    return {path.stem: load(Target.parse(str(path))) for path in FILES}


def test_kernels_of_several_projects_are_declared_and_each_says_what_it_needs(
    declared: dict[str, list[Kernel]],
) -> None:
    kernels = [kernel for found in declared.values() for kernel in found]
    assert len(kernels) >= 25 and len({kernel.requires for kernel in kernels}) >= 5
    for kernel in kernels:
        assert kernel.summary and not kernel.peer
        assert kernel.lacking == tuple(name for name in kernel.requires if importlib.util.find_spec(name) is None)


def test_an_installed_kernel_computes_what_it_is_declared_for(
    declared: dict[str, list[Kernel]], backend: Backend
) -> None:
    found = [k for some in declared.values() for k in some if not k.lacking and backend.name in k.backends]
    if not found:
        pytest.skip("none of the packages is installed")
    for kernel in found:
        sizes = sizes_of(kernel.op, 256) if kernel.op.geometry.named else [(4, 64)]
        dims = next((each for each in sizes if min(each) > 2), sizes[0])  # a row of one number has no gradient
        fill = "normal" if kernel.op.geometry.by_element else "randn"
        upstream = "normal" if kernel.differentiable else ""
        case = Case(dtype=kernel.dtypes[0], dims=dims, fill=fill, params=dict(kernel.params), upstream=upstream)
        theirs = run_baseline(kernel, case, backend.device).results
        for name, value in run_kernel(kernel, case, backend.device).results.items():
            error = (value.double() - theirs[name].double()).abs().nan_to_num().max()
            assert error <= 0.1 * theirs[name].double().abs().nan_to_num().max(), f"{kernel.name} {name}"
