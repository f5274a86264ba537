"""Finds the dtypes that eager PyTorch stores the numbers of a program in."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch

from verify.ops.graph.elementwise import Map
from verify.ops.graph.real import Real
from verify.ops.graph.recorder import Node, Recorder, Traced
from verify.ops.graph.reducing import Contract
from verify.ops.graph.rewrite import Rewriter, steps_in
from verify.ops.graph.steps import Leaf, Plain, Step, moved_from, reached


def stored_in(recorder: Recorder, rewriter: Rewriter, real: Real, steps: Sequence[Step]) -> dict[int, torch.dtype]:
    """Maps id(step) to the 16-bit type that eager PyTorch stores its result in."""
    found = kinds_of(reversed(recorder.stored()), rewriter, Plain)  # a float32 gradient is cast where it arrives
    ours = kinds_of(((recorder.node(made), made.dtype) for made in real.made if isinstance(made, Traced)), rewriter)
    for made in real.attention:
        if not isinstance(made, Traced):
            continue
        node = recorder.node(made)
        step = rewriter.known.get(recorder.unrounded.get(node, node))  # none if no result depends on it
        step = moved_from(step)[-1] if isinstance(step, Step) else None
        if isinstance(step, Contract):
            for fused in _within_attention(step, ours, steps):
                found.pop(fused, None)
    return found


def note_narrow(recorder: Recorder, rewriter: Rewriter) -> None:
    """Notes the dtype of each step inside of an operator whose result PyTorch keeps in 16 bits."""
    for node, kind, functions in recorder.narrow:
        given = set(map(id, steps_in([rewriter.known.get(each) for each in node.inputs])))
        inside = lambda step, given=given: () if id(step) in given else step.inputs  # noqa: E731
        for step in reached(steps_in([rewriter.known.get(node)]), inside):
            named = not functions or getattr(step, "function", "") in functions
            if named and id(step) not in given and not isinstance(step, Leaf | Plain):
                step.narrow = kind


def kinds_of(
    made: Iterable[tuple[Node, torch.dtype]], rewriter: Rewriter, given: type | tuple[type, ...] = (Leaf, Plain)
) -> dict[int, torch.dtype]:
    """Maps id(step) to the dtype of the first of these nodes that the step makes. What is `given` is not made."""
    found: dict[int, torch.dtype] = {}
    for node, kind in made:
        step = rewriter.known.get(node)
        step = moved_from(step)[-1] if isinstance(step, Step) else None
        if step is not None and not isinstance(step, given):
            found.setdefault(id(step), kind)
    return found


def widens(results: Sequence[Step], dtypes: Sequence[torch.dtype], kinds: Mapping[int, torch.dtype]) -> bool:
    """True if some result depends on numbers that the function computes in a narrower dtype than the result's."""
    return any(
        id(step) in kinds and kinds[id(step)].itemsize < dtype.itemsize
        for result, dtype in zip(results, dtypes, strict=True)
        if dtype.is_floating_point
        for step in in_order([result])
    )


def _within_attention(y: Contract, ours: Collection[int], steps: Sequence[Step]) -> set[int]:
    """Returns the id of each step of PyTorch's attention whose result no kernel stores in 16 bits.

    Kernels keep the scores and their gradient in float32. They round probabilities, and their gradient, before the
    products with v, k and q, and round these products once, after the scale.
    """
    weights = moved_from(y.inputs[0])[-1]
    found = set(map(id, reached(weights.inputs, lambda step: () if id(step) in ours else step.inputs))) - set(ours)
    for step in steps:
        if isinstance(step, Map) and step.function == "multiply":
            a, b = (moved_from(each)[-1] for each in step.inputs)
            scaled = next((x for x, by in ((a, b), (b, a)) if isinstance(by, Plain) or by is weights), None)
            if isinstance(scaled, Contract) and id(scaled) not in ours:
                found.add(id(scaled))
    return found


def in_order(results: Any) -> list[Step]:
    """Returns the steps that the results depend on, each after its inputs."""
    order: list[Step] = []
    seen: set[int] = set()
    for last in results:
        pending = [(last, iter(last.inputs))]
        if id(last) in seen:
            continue
        seen.add(id(last))
        while pending:
            step, rest = pending[-1]
            for each in rest:
                if id(each) not in seen:
                    seen.add(id(each))
                    pending.append((each, iter(each.inputs)))
                    break
            else:
                order.append(step)
                pending.pop()
    return order
