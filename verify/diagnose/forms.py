"""Changes the form of a program: kernels compute the same number by other steps.

`forms_of` yields each program with one change: functions of another library, a GELU by tanh or by erf, a number that is
computed again for each of its uses, or steps by `RULES`. A search that takes a form looks at the forms of that one.
"""

import ast
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any
from unittest import mock

import torch
from torch import Tensor, fx

from verify.diagnose.places import EXACT, NEAREST, VECTORS, Program, named, trace

# Steps, and others that compute the same number. A letter is a number; terms and factors may change sides.
RULES = (
    ("rsqrt(a)", "reciprocal(sqrt(a))"),  # the root may be stored
    ("a * rsqrt(b)", "a / sqrt(b)"),
    ("(a - b) - c", "a - (b + c)"),
    ("a * (b + 1)", "a + a * b"),
    ("(a * b) * c", "(a * c) * b"),
)
TAILS = (("1 + tanh(a)", "2.0 * sigmoid(2.0 * a)"), ("1 + erf(a)", "erfc(-a)"))  # keep the digits of a tail
_LIBRARIES = {NEAREST: "functions rounded correctly", VECTORS: "erf and tanh as a CPU's vectors have them"}
_FUNCTIONS = {ast.Mult: "mul", ast.Div: "div", ast.Add: "add", ast.Sub: "sub", ast.USub: "neg"}


def forms_of(program: Program, layer: Callable[..., Any], inputs: Sequence[Tensor]) -> Iterator[tuple[str, Program]]:
    """Yields the programs that differ from one in a single change, each with the change in words."""
    more = replace(program, library=NEAREST, usual=EXACT)
    if program.usual != EXACT:
        yield "in more digits than float32", more
        for library, text in _LIBRARIES.items():
            if program.library != library:
                yield text, replace(program, library=library)
    names, gelu = [node.name for node in program.operands], torch.nn.functional.gelu
    other = {"none": "tanh", "tanh": "none"}

    def swapped(x: Tensor, approximate: str = "none") -> Tensor:
        return gelu(x, approximate=other[approximate])

    with mock.patch.object(torch.nn.functional, "gelu", swapped):
        turned = trace(layer, inputs, names)
    if program.graph.code == trace(layer, inputs, names).graph.code != turned.graph.code:
        yield "tanh in place of erf, or erf in place of tanh", replace(program, graph=turned.graph)
    for node in program.nodes:
        for old, new in (*RULES, *TAILS):
            for way in _ways(node, _parsed(old), {}):
                changed = _rewritten(program.graph, node, _parsed(new), way)
                yield f"{new} in place of {old}", replace(more if (old, new) in TAILS else program, graph=changed)
        if node.op == "call_function" and len(node.users) > 1:
            yield f"{named(node)} is computed again for each of its uses", replace(program, graph=_again(program, node))


@cache
def _parsed(text: str) -> Any:
    """Returns steps as a tree: a letter, a number, or the operator such as "mul" with its operands."""

    def of(part: Any) -> Any:
        if isinstance(part, ast.Name | ast.Constant):
            return part.id if isinstance(part, ast.Name) else part.value
        if isinstance(part, ast.Call):
            return part.func.id, *map(of, part.args)  # type: ignore[attr-defined]
        operands = (part.left, part.right) if isinstance(part, ast.BinOp) else (part.operand,)
        return _FUNCTIONS[type(part.op)], *map(of, operands)

    return of(ast.parse(text, mode="eval").body)


def _ways(node: Any, pattern: Any, letters: Mapping[str, fx.Node]) -> Iterator[Mapping[str, fx.Node]]:
    """Yields the nodes of a pattern's letters, for each way in which a node computes the pattern."""
    if isinstance(pattern, str):
        if isinstance(node, fx.Node) and letters.get(pattern, node) is node:
            yield {**letters, pattern: node}
    elif not isinstance(pattern, tuple):
        yield from [letters] * (node == pattern)
    elif named(node) == pattern[0]:
        for operands in (node.args, node.args[::-1])[: 2 if pattern[0] in ("add", "mul") else 1]:
            ways = [letters]
            for operand, part in zip(operands, pattern[1:], strict=False):
                ways = [more for way in ways for more in _ways(operand, part, way)]
            yield from ways


def _rewritten(graph: fx.GraphModule, node: fx.Node, pattern: Any, letters: Mapping[str, fx.Node]) -> fx.GraphModule:
    """Returns a graph in which other steps compute a node."""
    changed = copy.deepcopy(graph)
    nodes = {each.name: each for each in changed.graph.nodes}
    at = nodes[node.name]

    def built(part: Any) -> Any:
        if not isinstance(part, tuple):
            return nodes[letters[part].name] if isinstance(part, str) else part
        operands = sorted(map(built, part[1:]), key=lambda each: not isinstance(each, fx.Node))  # numbers come last
        operator = getattr(torch.ops.aten, part[0])
        target = operator.default if len(operands) == 1 else operator.Tensor
        made = changed.graph.call_function(target, tuple(operands))
        made.meta["val"] = target(*(each.meta["val"] if isinstance(each, fx.Node) else each for each in operands))
        return made

    with changed.graph.inserting_before(at):
        made = built(pattern)
    made.meta = dict(at.meta)
    at.replace_all_uses_with(made)
    changed.graph.eliminate_dead_code()
    changed.graph.lint()
    return changed


def _again(program: Program, node: fx.Node) -> fx.GraphModule:
    """Returns a graph that computes a number again for each of its uses, from numbers that are stored.

    A compiler stores a number for some of its uses, or one that it follows from by elementwise steps.
    """
    changed = copy.deepcopy(program.graph)
    same = next(each for each in changed.graph.nodes if each.name == node.name)

    def copied(each: fx.Node) -> fx.Node:
        elementwise = torch.Tag.pointwise in getattr(each.target, "tags", ())
        return changed.graph.node_copy(each, copied) if elementwise or each is same else each

    for user in list(same.users)[1:]:
        with changed.graph.inserting_before(user):
            user.replace_input_with(same, copied(same))
    return changed
