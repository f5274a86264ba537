"""The examples are what users copy: they import without what they compare with, and say so."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from verify.backends import Backend
from verify.cases import Case
from verify.declare import declaration
from verify.declare.discovery import load
from verify.declare.target import Target
from verify.measure.call import run_baseline, run_kernel

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LIGER = importlib.util.find_spec("liger_kernel") is not None


def kernels(path: Path) -> list[declaration.Kernel]:
    return load(Target.parse(str(path)))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_declares_kernels_without_their_packages(path: Path) -> None:
    found = kernels(path)
    assert found
    for kernel in found:
        assert kernel.summary
        if path.stem.startswith("liger"):
            assert kernel.requires == ("liger_kernel",) and kernel.peer
            assert kernel.lacking == (() if LIGER else ("liger_kernel",))
        elif path.stem == "losses_and_norms":  # of several packages, each kernel with its own
            packages = {"liger": {"liger_kernel"}, "fla": {"fla", "einops"}}
            assert set(kernel.requires) == packages.get(kernel.name.partition("_")[0], set())
        else:
            assert not kernel.requires


@pytest.mark.parametrize(
    "name", [kernel.name for kernel in kernels(ROOT / "examples" / "textbook.py") if not kernel.op.geometry.multiplies]
)
def test_a_textbook_formula_is_right_on_ordinary_inputs(name: str, backend: Backend) -> None:
    """A wrong formula would make whatever stands beside it look good."""
    kernel = load(Target.parse(f"{ROOT / 'examples' / 'textbook.py'}::{name}"))[0]
    fill = "randn" if kernel.op.geometry.by_row else "normal"
    case = Case(dtype="float64", dims=(8, 33), fill=fill, params=dict(kernel.params), upstream="normal")
    ours = run_kernel(kernel, case, backend.device).results
    theirs = run_baseline(kernel, case, backend.device).results
    assert set(ours) == set(theirs)
    for key, value in ours.items():
        scale = theirs[key].abs().max()
        assert float((value - theirs[key]).abs().max() / scale) < 1e-12, key


@pytest.mark.skipif(not LIGER, reason="liger-kernel is not installed")
@pytest.mark.parametrize("kernel", kernels(ROOT / "examples" / "liger.py"), ids=lambda kernel: kernel.name)
def test_a_liger_kernel_computes_the_op_that_it_is_declared_for(kernel: declaration.Kernel, backend: Backend) -> None:
    fill = "randn" if kernel.op.geometry.by_row else "normal"
    upstream = "normal" if kernel.differentiable else ""
    case = Case(dtype="float32", dims=(4, 64), fill=fill, params=dict(kernel.params), upstream=upstream)
    ours = run_kernel(kernel, case, backend.device).results
    theirs = run_baseline(kernel, case, backend.device).results
    assert ours
    for key, value in ours.items():
        assert float((value - theirs[key]).abs().max() / theirs[key].abs().max()) < 1e-5, key
