"""mypy takes kernels that Triton compiles for untyped functions; every other function of kernels/ has annotations."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]


def untyped(source: str) -> list[str]:
    """The functions, those of Triton and Gluon apart, that lack the type of an argument or of their result."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef) or any("jit" in ast.unparse(each) for each in node.decorator_list):
            continue
        given = node.args
        named = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        bare = [each for each in named if each and each.annotation is None and each.arg not in ("self", "cls")]
        if bare or node.returns is None:
            found.append(node.name)
    return found


def test_every_function_that_triton_does_not_compile_has_annotations() -> None:
    paths = [path for path in (ROOT / "kernels").rglob("*.py") if path.parent.name not in ("bench", "derive")]
    assert len(paths) > 30
    assert {str(path): names for path in paths if (names := untyped(path.read_text()))} == {}
