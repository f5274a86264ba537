"""`and`, `or`, `not` and comparisons as Triton compiles them: on tensors, element by element, every operand evaluated.

The shipped interpreter runs them as Python does. In Python a block is true, so `(r < m) and (c < n)` is the second mask
alone, and a load beyond the tensor crashes the process. Of two scalars Python may not evaluate the second. The rules
come from Triton 3.6.0 (`CodeGenerator.visit_BoolOp`, `visit_UnaryOp`, `visit_Compare`).
"""

import ast
from collections.abc import Callable
from typing import Any

from verify.backends.interpreter import programs

#: Names that a rewritten kernel calls. They live in Triton's interpreter, which adds its names to the kernel's module.
COMBINED, NEGATED, CHAINED = "_verify_combined", "_verify_negated", "_verify_chained"
COUNTED = "_verify_range"


def combined(method: str, *operands: Callable[[], Any]) -> Any:
    """Computes `and` (logical_and) or `or` (logical_or).

    Operands that are no tensors short-circuit as in Python; tensors are combined element by element.
    """
    from triton.language import core

    tensors, value = [], None
    for operand in operands:
        value = operand()
        if isinstance(value, core.tensor):
            tensors.append(value)
        elif bool(value) is (method == "logical_or"):
            return value
    if not tensors:
        return value
    out = tensors.pop()
    while tensors:
        out = getattr(tensors.pop(), method)(out)
    return out


def negated(value: Any) -> Any:
    """Computes `not`."""
    from triton.language import core

    return value.__not__() if isinstance(value, core.tensor) else not value


def chained(text: str) -> Any:
    """Raises TypeError for `a < b < c`, which Triton does not compile."""
    raise TypeError(
        f"simultaneous multiple comparison is not supported: {text} does not compile on a GPU. Next: (a < b) & (b < c)"
    )


def _called(name: str, arguments: list[ast.expr], node: ast.expr) -> ast.Call:
    return ast.copy_location(ast.Call(ast.Name(name, ast.Load()), arguments, []), node)


def bool_op(self: ast.NodeTransformer, node: ast.BoolOp) -> ast.expr:
    """Replaces ASTTransformer.visit_BoolOp: calls `combined`."""
    self.generic_visit(node)
    method = ast.Constant("logical_and" if isinstance(node.op, ast.And) else "logical_or")
    nothing = ast.arguments([], [], None, [], [], None, [])
    return _called(COMBINED, [method, *(ast.Lambda(nothing, value) for value in node.values)], node)


def unary_op(self: ast.NodeTransformer, node: ast.UnaryOp) -> ast.expr:
    """Replaces ASTTransformer.visit_UnaryOp: calls `negated` for `not`."""
    self.generic_visit(node)
    return _called(NEGATED, [node.operand], node) if isinstance(node.op, ast.Not) else node


def compare(self: ast.NodeTransformer, node: ast.Compare) -> ast.expr:
    """Replaces ASTTransformer.visit_Compare: calls `chained` for a chain."""
    if len(node.ops) > 1:
        return _called(CHAINED, [ast.Constant(ast.unparse(node))], node)
    self.generic_visit(node)
    return node


def assigning(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces ASTTransformer.visit_Assign: also visits the assigned value, which the shipped method skips."""

    def visit(self: Any, node: ast.Assign) -> Any:
        node.value = self.visit(node.value)
        return original(self, node)

    return visit


def loop(self: ast.NodeTransformer, node: ast.For) -> ast.For:
    """Replaces ASTTransformer.visit_For: `range` becomes tl.range, as in a compiled kernel."""
    self.generic_visit(node)
    if isinstance(node.iter, ast.Call) and isinstance(node.iter.func, ast.Name) and node.iter.func.id == "range":
        node.iter.func.id = COUNTED
    return node


METHODS = {"visit_BoolOp": bool_op, "visit_UnaryOp": unary_op, "visit_Compare": compare, "visit_For": loop}
FUNCTIONS = {COMBINED: combined, NEGATED: negated, CHAINED: chained, COUNTED: programs.ranging(range)}
