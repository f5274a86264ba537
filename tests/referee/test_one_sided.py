"""`verify judge` finds rounding to one side by default: mutants/biased.py, each as a problem and its solutions."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

from mutants import biased
from tests.referee.test_judging import judged_pairs

PROBLEM = """
class {name}(nn.Module):
    def forward(self, *operands):
        return {call}


def get_inputs():
    return [torch.randn(size).to(torch.{dtype}) for size in {sizes}]


def get_init_inputs():
    return []
"""
NAMES = [name for name in biased.NOTES if name != "silu_gradient"]  # a solution has no gradient


def shared() -> tuple[str, dict[str, str]]:
    """Returns the statements of the mutants without their declarations, and the definition of each by its name."""
    body, likes = ["import torch", "from torch import Tensor, nn", "from torch.nn import functional"], {}
    for node in ast.parse(inspect.getsource(biased)).body:
        if isinstance(node, ast.FunctionDef):
            for call in node.decorator_list:
                assert isinstance(call, ast.Call)
                likes[node.name] = next(ast.unparse(each.value) for each in call.keywords if each.arg == "like")
            node.decorator_list = []
        if isinstance(node, ast.FunctionDef | ast.Assign):
            body.append(ast.unparse(node))
    return "\n\n".join(body), likes


@pytest.mark.slow
def test_mutants_are_wrong_and_their_twins_pass(tmp_path: Path) -> None:
    source, likes = shared()
    pairs = []
    for name in NAMES:
        kernel = getattr(biased, name)
        sizes = list(kernel.op.shapes((64, 128) if len(kernel.op.geometry.dims) == 2 else (4096,), {}).values())
        calls = {name: f"{name}(*operands, right=True)", f"{name}_wrong": f"{name}(*operands, right=False)"}
        dtype = kernel.dtypes[0]
        problem = tmp_path / f"problem_{name}.py"
        problem.write_text(
            source + PROBLEM.format(name="Model", call=f"{likes[name]}(*operands)", sizes=sizes, dtype=dtype)
        )
        for stem, call in calls.items():
            path = tmp_path / f"{stem}.py"
            path.write_text(source + PROBLEM.format(name="ModelNew", call=call, sizes=sizes, dtype=dtype))
            pairs.append((problem, path))
    found = judged_pairs(pairs)
    for stem, each in found.items():
        assert each.verdict == ("wrong" if stem.endswith("_wrong") else "accepted"), (stem, each)
