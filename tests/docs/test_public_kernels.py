"""examples/public: kernels of other projects, declared without their packages and skipped where those lack."""

from __future__ import annotations

import ast
import importlib.util
import tomllib
from pathlib import Path

import pytest

from benchmarks import public_kernels, public_quantisers
from verify.backends import Backend
from verify.cases import Case
from verify.cases.sizes import sizes_of
from verify.declare.declaration import Kernel
from verify.declare.discovery import load
from verify.declare.target import Target
from verify.measure.call import run_baseline, run_kernel
from verify.records import files

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


def test_the_pages_count_kernels_and_projects_that_the_records_hold(declared: dict[str, list[Kernel]]) -> None:
    benchmarks = Path(__file__).parents[2] / "reports" / "benchmarks"
    runs = [files.load(path) for path in (benchmarks / "sm_90" / "public.json.gz", *public_quantisers.RECORDS)]
    needed = {f"examples/public/{stem}.py::{k.name}": k.requires for stem, found in declared.items() for k in found}
    judged = {kernel.target for run in runs for kernel in run.kernels if kernel.results} & set(needed)
    projects = {needed[target] for target in judged}
    assert len(judged) >= 120 and len(projects) >= 12
    said = f"these are {len(judged)} kernels of {len(projects)} projects"
    assert said in public_quantisers.PAGE.read_text()


def test_what_is_expected_of_a_run_names_kernels_that_are_declared(declared: dict[str, list[Kernel]]) -> None:
    expected = tomllib.loads(public_kernels.EXPECTED.read_text())
    faults = expected.pop("faults")
    for stem, said in expected.items():
        assert list(said) == [kernel.name for kernel in declared[stem]]
    said = {word.partition(" on ")[0].removeprefix("fault ") for some in expected.values() for word in some.values()}
    assert said == {"right", *faults}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_packages_are_imported_in_calls_only_and_have_other_names_than_the_file(path: Path) -> None:
    """A file that is named like a package hides it."""
    imported = {
        (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name).split(".")[0]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom) and node.col_offset
    }
    assert imported and path.stem not in imported


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
