"""Writes steps of a program as short expressions, such as `x * rsqrt(...)`."""

import math
from collections.abc import Iterator, Sequence

from verify.ops.graph.elementwise import Map
from verify.ops.graph.reducing import Contract, Reduce, Running, Spread
from verify.ops.graph.selecting import First
from verify.ops.graph.steps import Leaf, Move, Plain, Step

_EXACT = ("where", "negative", "magnitude", "maximum", "minimum", "integer", "number", "wrap")
_SIGNS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}
_LONGEST = 44  # characters of a step's text
_DEEPEST = 3


def rounds(step: Step) -> bool:
    """True if a kernel rounds the results of a step. Other steps only select or move existing numbers."""
    if isinstance(step, Map):
        return step.real and step.function not in _EXACT and not step.decides
    return isinstance(step, Contract | Running | Spread) or (
        isinstance(step, Reduce) and step.function in ("sum", "product")
    )


def words(step: Step, depth: int = _DEEPEST) -> str:
    """Returns a step with those before it, as an expression."""
    if depth or isinstance(step, Leaf | Plain):
        return _text(step, [words(each, depth - (rounds(step) and depth > 0)) for each in step.inputs])
    return "..."


def names(steps: Sequence[Step]) -> dict[int, str]:
    """Returns the text of each step that rounds, such as `t2 = exp(t1)`. Other steps are part of the next text."""
    short: dict[int, str] = {}
    found: dict[int, str] = {}
    for step in steps:
        text = _text(step, [short[id(each)] for each in step.inputs])
        if rounds(step):
            short[id(step)] = f"t{len(found) + 1}"
            found[id(step)] = f"{short[id(step)]} = {text}"
        else:
            short[id(step)] = text
    return {key: _cut(text) for key, text in found.items()}


def _text(step: Step, given: Sequence[str]) -> str:
    if isinstance(step, Leaf):
        return step.name.replace("grad ", "d")
    if isinstance(step, Plain):
        return next(_constant(step), "c")
    if isinstance(step, Move):
        return given[0] if len(given) == 1 else _cut(f"({', '.join(given)})")
    if isinstance(step, Contract):
        return " @ ".join(given)
    if isinstance(step, First):
        return _cut(f"{'argmax' if step.largest else 'argmin'}({', '.join(given)})")
    if isinstance(step, Map) and step.function in _SIGNS and len(given) == 2:
        return f"{given[0]} {_SIGNS[step.function]} {given[1]}"
    name = {Running: "running sum", Spread: "sum by place"}.get(type(step), getattr(step, "function", "") or "chosen")
    return _cut(f"{name.replace('magnitude', 'abs').replace('amax', 'max').replace('amin', 'min')}({', '.join(given)})")


def _constant(step: Plain) -> Iterator[str]:
    if math.prod(step.shape) == 1 and not step.of:
        yield f"{float(step.compute([]).reshape(-1)[0]):.6g}"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
