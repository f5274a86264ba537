"""Changes the form of a program: kernels compute the same number by other steps.

`forms_of` yields the program itself, and then each program with one change: a GELU by tanh or by erf, the factors of a
product in another order, a division in place of `rsqrt`, a - (b + c) in place of (a - b) - c, a + a * b in place of
a * (b + 1), a number that is computed again for each of its uses.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor, fx

from verify.diagnose.places import EXACT, NEAREST, VECTORS, Program, named, trace


def forms_of(program: Program, layer: Callable[..., Any], inputs: Sequence[Tensor]) -> Iterator[tuple[str, Program]]:
    """Yields the program, and then those that compute the same in another form."""
    yield "", program
    more = replace(program, library=NEAREST, usual=EXACT)
    yield "in more digits than float32", more
    yield "functions rounded correctly", replace(program, library=NEAREST)
    yield "erf and tanh as a CPU's vectors have them", replace(program, library=VECTORS)
    gelu = torch.nn.functional.gelu
    other = {"none": "tanh", "tanh": "none"}

    def swapped(x: Tensor, approximate: str = "none") -> Tensor:
        return gelu(x, approximate=other[approximate])

    with mock.patch.object(torch.nn.functional, "gelu", swapped):
        turned = trace(layer, inputs, [node.name for node in program.operands])
    if turned.graph.code != program.graph.code:
        yield "tanh in place of erf, or erf in place of tanh", turned
    for node in program.nodes:
        for change in (
            _tailed,
            _rooted,
            _subtracted,
            _divided,
            _distributed,
            _regrouped,
            partial(_regrouped, side=1),
            _again,
        ):
            graph = copy.deepcopy(program.graph)
            same = next(each for each in graph.graph.nodes if each.name == node.name)
            if said := change(graph, same):
                graph.graph.lint()
                yield said, replace(more if change is _tailed else program, graph=graph)


def _call(graph: fx.GraphModule, at: fx.Node, name: str, *args: Any) -> fx.Node:
    """Inserts a step before a node."""
    operator = getattr(torch.ops.aten, name)
    with graph.graph.inserting_before(at):
        return graph.graph.call_function(operator.default if len(args) == 1 else operator.Tensor, args)


def _finished(graph: fx.GraphModule, node: fx.Node, made: fx.Node) -> None:
    """Puts a new step in a node's place."""
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    graph.graph.eliminate_dead_code()
    for each in graph.graph.nodes:
        if "val" not in each.meta and each.op == "call_function":
            given = [arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in each.args]
            each.meta["val"] = each.target(*given)


def _again(graph: fx.GraphModule, node: fx.Node) -> str:
    """Computes a number again for each of its uses: a compiler stores it for some of them."""
    if node.op != "call_function" or _uncast(node) is not node or len(node.users) < 2:
        return ""
    for user in list(node.users)[1:]:
        with graph.graph.inserting_after(node):
            made = graph.graph.node_copy(node)
        made.meta = dict(node.meta)
        user.replace_input_with(node, made)
    return f"{named(node)} is computed again for each of its uses"


def _regrouped(graph: fx.GraphModule, node: fx.Node, side: int = 0) -> str:
    """Turns (a * b) * c into (a * c) * b, or b * ... with the other side."""
    for inner, c in _factors(node):
        if named(inner) == "mul" and len(inner.users) == 1 and all(isinstance(each, fx.Node) for each in inner.args):
            a, b = inner.args[side], inner.args[1 - side]
            first = _call(graph, node, "mul", a, c)
            _finished(graph, node, _call(graph, node, "mul", first, b))
            return "the factors of a product are grouped otherwise"
    return ""


def _divided(graph: fx.GraphModule, node: fx.Node) -> str:
    """Turns a * rsqrt(b) into a / sqrt(b)."""
    for root, other in _factors(node):
        if named(root) == "rsqrt":
            bottom = _call(graph, node, "sqrt", root.args[0])
            _finished(graph, node, _call(graph, node, "div", other, bottom))
            return "a division by sqrt in place of rsqrt"
    return ""


def _tailed(graph: fx.GraphModule, node: fx.Node) -> str:
    """Turns 1 + tanh(a) into 2 * sigmoid(2 * a), and 1 + erf(a) into erfc(-a): kernels that keep the tails' digits."""
    inner: Any = _uncast(node.args[0]) if named(node) == "add" and list(node.args[1:]) in ([1], [1.0]) else None
    if named(inner) == "tanh":
        half = _call(graph, node, "sigmoid", _call(graph, node, "mul", inner.args[0], 2.0))
        _finished(graph, node, _call(graph, node, "mul", half, 2.0))
        return "2 * sigmoid(2 * a) in place of 1 + tanh(a)"
    if named(inner) == "erf":
        _finished(graph, node, _call(graph, node, "erfc", _call(graph, node, "neg", inner.args[0])))
        return "erfc(-a) in place of 1 + erf(a)"
    return ""


def _rooted(graph: fx.GraphModule, node: fx.Node) -> str:
    """Turns rsqrt(a) into 1 / sqrt(a), whose root may be stored."""
    if named(node) != "rsqrt":
        return ""
    _finished(graph, node, _call(graph, node, "reciprocal", _call(graph, node, "sqrt", node.args[0])))
    return "1 / sqrt in place of rsqrt"


def _subtracted(graph: fx.GraphModule, node: fx.Node) -> str:
    """Turns (a - b) - c into a - (b + c)."""
    inner: Any = _uncast(node.args[0]) if named(node) == "sub" else None
    if named(inner) != "sub" or not all(isinstance(each, fx.Node) for each in (*inner.args, *node.args)):
        return ""
    both = _call(graph, node, "add", inner.args[1], node.args[1])
    _finished(graph, node, _call(graph, node, "sub", inner.args[0], both))
    return "a - (b + c) in place of (a - b) - c"


def _distributed(graph: fx.GraphModule, node: fx.Node) -> str:
    """Turns a * (b + 1) into a + a * b."""
    for inner, a in _factors(node):
        if named(inner) == "add" and list(inner.args[1:2]) in ([1], [1.0]):
            product = _call(graph, node, "mul", a, inner.args[0])
            _finished(graph, node, _call(graph, node, "add", a, product))
            return "a + a * b in place of a * (b + 1)"
    return ""


def _factors(node: fx.Node) -> Iterator[tuple[Any, fx.Node]]:
    """Yields each factor of a product before its cast, with the other one."""
    if named(node) == "mul" and all(isinstance(each, fx.Node) for each in node.args):
        yield from ((_uncast(node.args[at]), node.args[1 - at]) for at in (0, 1))


def _uncast(node: Any) -> Any:
    return node.args[0] if named(node) in ("_to_copy", "convert_element_type") else node
