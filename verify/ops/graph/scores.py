"""Finds a softmax over the product of two operands in a program, as in attention or a linear cross entropy.

Such a program computes a score for each query and key, takes exponentials and divides by their sums. Recipes of values
(`verify.cases.scores`) and laws (`verify.laws.attention`) use the operands found here. The search looks at the steps
alone, never at the operands' names.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from verify.ops.graph.elementwise import Map
from verify.ops.graph.program import Program
from verify.ops.graph.reducing import Contract, Reduce, Spread
from verify.ops.graph.steps import Leaf, Move, Places, Run, Step, reached
from verify.ops.op import ScorePart, Scores

_PlacesOf = Callable[[Step, Places, Step], Places]  # see `_places`
_LISTED = 1 << 27  # elements of a step whose positions may be listed


def scores_of(program: Program, integers: Mapping[str, Tensor] | None = None) -> Scores | None:
    """Maps the operands of the first softmax over a product to their parts: query, key and, if found, value.

    Returns None without such a softmax. The query and the key must be two operands, multiplied with all their features:
    a projection in between, or one packed operand, gives None. `integers` are values that operands with a structure may
    have.
    """
    places = partial(_places, program, integers or {})
    for total in program.steps:
        if isinstance(total, Reduce) and total.function == "sum" and _is_exponential(total.inputs[0]):
            exponentials = total.inputs[0]
            product = next((step for step in _upstream(exponentials) if isinstance(step, Contract)), None)
            found = None if product is None else _parts(places, total, product)
            if found is not None:
                value = _value(program.steps, places, exponentials)
                return {**found, **({} if value is None or value[0] in found else dict([value]))}
    return None


def normalised(program: Program) -> tuple[str, ...]:
    """Returns the operands whose exponentials a softmax or a log-sum-exp adds up.

    There -inf marks masked or empty parts. Such an exponent is a difference of two numbers that both depend on the
    operand; the first is the operand itself, moved, masked, scaled by a constant, or plus something.
    """
    found, below = set[str](), dict[int, frozenset[str]]()  # id(step) -> the operands that it depends on
    for step in program.steps:
        below[id(step)] = frozenset(_names([step])).union(*(below.get(id(each), frozenset()) for each in step.inputs))
        for each in _upstream(step.inputs[0], _as_large) if _is_exponential(step) else ():
            if isinstance(each, Map) and each.function == "subtract":
                found |= _names(_upstream(each.inputs[0], _as_large)) & below.get(id(each.inputs[1]), frozenset())
    return tuple(sorted(found))


def _names(steps: Iterable[Step]) -> set[str]:
    return {each.name for each in steps if isinstance(each, Leaf) and each.operand and each.real}


def _as_large(step: Step) -> Sequence[Step]:
    """Returns the inputs of a step whose infinities it has, too."""
    function = step.function if isinstance(step, Map) else ""
    if function in ("subtract", "divide"):
        return step.inputs[:1]
    scales = function == "multiply" and sum(each.on_operands for each in step.inputs) == 1
    return step.inputs if scales or isinstance(step, Move) or function in ("add", "where") else ()


def _is_exponential(step: Step) -> bool:
    return isinstance(step, Map) and step.function == "exp"


def _upstream(step: Step, onward: Callable[[Step], Sequence[Step]] | None = None) -> Iterator[Step]:
    """Yields a step and the steps before it, the nearest first. Stops at products of matrices, or goes `onward`."""
    ahead, seen = [step], {id(step)}
    while ahead:
        each = ahead.pop(0)
        yield each
        following = each.inputs if not isinstance(each, Contract) or each is step else ()
        new = [one for one in (onward(each) if onward else following) if id(one) not in seen]
        ahead += new
        seen.update(map(id, new))


def _parts(places: _PlacesOf, total: Reduce, product: Contract) -> dict[str, ScorePart] | None:
    """Returns the operands that are query and key of a product, whose exponentials `total` adds up; None if unclear."""
    _, rows, columns = product.shape
    inner = product.inputs[0].shape[2]
    # uses the last sum: under a causal mask the last query sees the most keys
    summed = places(total, np.array([int(np.prod(total.shape)) - 1]), product) % max(rows * columns, 1)
    row, column = (len(np.unique(each)) > 1 for each in np.divmod(summed, columns))
    if row == column:
        return None
    left = _part(places, product.inputs[0], np.arange(inner), np.arange(rows) * inner)
    right = _part(places, product.inputs[1], np.arange(inner) * columns, np.arange(columns))
    if left is None or right is None or left[0] == right[0]:
        return None
    query, key = (right, left) if row else (left, right)
    return {query[0]: ScorePart("query", *query[1:]), key[0]: ScorePart("key", *key[1:])}


def _part(places: _PlacesOf, side: Step, features: Places, tokens: Places) -> tuple[str, int, int] | None:
    """Returns the operand behind one side of a product, and its axes of tokens and of features."""
    leaf = _operand(side)
    if leaf is None:
        return None
    along = _axis(places, side, features, leaf)
    if along is None or leaf.shape[along] != len(features):
        return None
    across = _axis(places, side, tokens, leaf, beside=along)
    # with one token no axis varies, so this assumes the axis beside the features
    across = (along - 1 if along else 1) if across is None and len(tokens) == 1 and len(leaf.shape) > 1 else across
    return None if across is None or across == along else (leaf.name, across, along)


def _value(steps: Sequence[Step], places: _PlacesOf, exponentials: Step) -> tuple[str, ScorePart] | None:
    """Returns the operand that the softmax averages, with its axis of tokens; None if none is found."""
    following = {id(exponentials)}
    for step in steps:
        if not any(id(each) in following for each in step.inputs):
            continue
        if not isinstance(step, Contract):
            following.add(id(step))
            continue
        weights, averaged = step.inputs
        first = id(weights) in following
        side, columns, inner = (averaged if first else weights), step.shape[2], weights.shape[2]
        leaf = _operand(side)
        if leaf is None:
            return None
        axis = _axis(places, side, np.arange(inner) * (columns if first else 1), leaf)
        return None if axis is None else (leaf.name, ScorePart("value", axis))
    return None


def _operand(side: Step) -> Leaf | None:
    """Returns the largest operand behind one side of a product; None if another product lies between."""
    steps = list(_upstream(side))
    leaves = [step for step in steps if isinstance(step, Leaf) and step.operand and step.real]
    if not leaves or any(isinstance(step, Contract) for step in steps):
        return None
    return max(leaves, key=lambda leaf: int(np.prod(leaf.shape)))


def _axis(places: _PlacesOf, step: Step, wanted: Places, leaf: Leaf, beside: int = -1) -> int | None:
    """Returns the one axis of an operand along which the needed elements differ; None if there is not exactly one.

    The needed elements are those that the wanted elements of `step` depend on. The axis `beside` does not count: a
    rotation or a norm of a token needs several of its features.
    """
    coordinates = np.unravel_index(places(step, wanted, leaf), leaf.shape)
    varying = [axis for axis, each in enumerate(coordinates) if axis != beside and len(np.unique(each)) > 1]
    return varying[0] if len(varying) == 1 else None


def _leaves(program: Program) -> Iterator[Leaf]:
    """Yields the operands, including operands that only give positions."""
    every = reached(program.steps, lambda each: (*each.inputs, *getattr(each, "by", ()), *getattr(each, "of", ())))
    yield from (each for each in every if isinstance(each, Leaf))


def _places(program: Program, integers: Mapping[str, Tensor], step: Step, wanted: Places, of: Step) -> Places:
    """Returns the elements of `of` that the wanted elements of `step` need; none if that takes gigabytes.

    `integers` are operands with a structure, such as lengths that have a sum; others are zeros.
    """
    leaves = {
        each.name: torch.zeros((), dtype=torch.float64 if each.real else torch.int64).expand(each.shape)
        for each in _leaves(program)
    } | dict(integers)
    part = Program(program.steps, {"part": step}, program.leaves)
    listed = [each for each in part.needed_for(["part"]) if isinstance(each, Spread | Move)]
    listed = [each for each in listed if not (isinstance(each, Move) and each.view and len(each.inputs) == 1)]
    if any(math.prod(one.shape) > _LISTED for each in listed for one in (each, *each.inputs)):
        return np.zeros(0, dtype=np.int64)
    found = part.places(Run(leaves, torch.device("cpu")), "part", wanted.tolist(), {}, every=True)
    return found[id(of)][0] if id(of) in found else np.zeros(0, dtype=np.int64)
