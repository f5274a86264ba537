"""Shipped ops against PyTorch programs of the same function: python -m benchmarks.like_equal docs/like-tables.md

Elementwise ops at all inputs of 16 bits and at random float32 ones of all exponents, the others at random ones: the
interval of the program and the certified float64 reference of the op must overlap at every element; at some the number
that the op has in mpmath must lie in the program's Arb ball, and in the op's own.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import partial, reduce
from operator import add
from pathlib import Path
from typing import Any

import flint
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.like_rules import write
from verify.ops import registry
from verify.ops.elements import mpf_to_arb
from verify.ops.graph.like import Definition
from verify.ops.op import Problem
from verify.ops.precision import arb_bits
from verify.truth import formats
from verify.truth.fast import evaluate


@dataclass(frozen=True)
class Pair:
    """An op by name, and what says the same in PyTorch; `dims` are (rows, columns) or (rows, inner, columns)."""

    op: str
    function: Callable[..., Any]
    shapes: Mapping[str, str] | None = None
    params: Mapping[str, Any] = field(default_factory=dict)


def _gated(gate: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x1, x2: x1 * gate(x2)


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)


def _rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, x.shape[-1:], weight, 1e-6)


_tanh: Callable[[Tensor], Tensor] = partial(functional.gelu, approximate="tanh")
PAIRS = [
    Pair("gelu", functional.gelu),
    Pair("gelu", _tanh, params={"approximate": "tanh"}),
    Pair("silu", functional.silu),
    Pair("geglu_split", _gated(functional.gelu)),
    Pair("geglu_split", _gated(_tanh), params={"approximate": "tanh"}),
    Pair("swiglu_split", _gated(functional.silu)),
    Pair("softmax", lambda x: functional.softmax(x, -1), {"x": "n d"}),
    Pair("layer_norm", _layer_norm, {"x": "n d", "weight": "d", "bias": "d"}),
    Pair("rms_norm", _rms_norm, {"x": "n d", "weight": "d"}),
    Pair("linear", functional.linear, {"x": "m k", "weight": "n k", "bias": "n"}),
]


@dataclass
class Compared:
    """How many elements of a result were compared, how many contradict, and which only one of the two defines."""

    elements: int
    apart: int
    one_sided: int
    balls: int
    balls_apart: int

    def __add__(self, other: Compared) -> Compared:
        return Compared(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


def inputs(pair: Pair, rows: int, columns: int, kind: torch.dtype) -> tuple[Problem, Problem]:
    """The same problem for both; of an elementwise op all numbers of a format of 16 bits, or as many of float32."""
    op, generator = registry.get(pair.op), torch.Generator().manual_seed(1)
    params = op.resolve(pair.params)
    if op.geometry.by_element:
        count = rows * columns
        if kind == torch.float32:
            every = torch.randint(-(2**31), 2**31, (count,), generator=generator, dtype=torch.int32).view(kind)
        else:
            every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(kind)
            every = every if count >= every.numel() else every[:: every.numel() // count]
        others = [every[torch.randperm(every.numel(), generator=generator)] for _ in op.operands[1:]]
        values = dict(zip((operand.name for operand in op.operands), [every, *others], strict=True))
        shape = tuple(every.shape)
    else:
        dims = (rows, columns, rows) if op.geometry.multiplies else (rows, columns)
        shapes = op.shapes(dims, params)
        values = {name: torch.randn(size, generator=generator) for name, size in shapes.items()}
        shape = (rows, rows) if op.geometry.multiplies else (rows, columns)
    upstream = {"y": torch.ones(shape) if op.geometry.by_element else torch.randn(shape, generator=generator)}
    results = ("y", *("d" + name for name in values))
    return Problem(values, params, upstream, results), Problem(values, {}, upstream, results)


def compare(pair: Pair, rows: int, columns: int, sample: int = 50) -> dict[str, Compared]:
    """Both meanings of every result."""
    kinds = [torch.bfloat16, torch.float16, torch.float32] if pair.shapes is None else [torch.float32]
    each = [_compared(pair, *inputs(pair, rows, columns, kind), sample) for kind in kinds]
    return {name: reduce(add, (found[name] for found in each)) for name in each[0]}


def _compared(pair: Pair, ours: Problem, theirs: Problem, sample: int) -> dict[str, Compared]:
    op = registry.get(pair.op)
    like = Definition(pair.function, tuple(ours.inputs), shapes=pair.shapes).op()
    format_ = formats.of(next(value.dtype for value in ours.inputs.values() if value is not None))
    known = evaluate(op, ours, dict.fromkeys(ours.results, format_))
    traced = evaluate(like, theirs, dict.fromkeys(ours.results, format_))
    found = {}
    for name in ours.results:
        a, b = known[name], traced[name]
        near = (a.value - b.value).abs() <= a.bound + b.bound
        same = near | (a.value == b.value) | (torch.isnan(a.value) & torch.isnan(b.value))
        if a.other is not None or b.other is not None:
            same = same | torch.isnan(a.value) | torch.isnan(b.value)
        one_sided = (torch.isnan(a.value) != torch.isnan(b.value)) & ~same
        finite = torch.isfinite(a.value) & torch.isfinite(b.value)
        places = finite.reshape(-1).nonzero().flatten()
        places = places[torch.linspace(0, len(places) - 1, sample).long()].tolist()
        pairs = zip(op.points(ours, name, places), like.points(theirs, name, places), strict=True)
        apart = sum(not (_holds(second, first) and _holds(first, first)) for first, second in pairs)
        count = a.value.numel()
        found[name] = Compared(count, int((~same & ~one_sided).sum()), int(one_sided.sum()), sample, apart)
    return found


def _holds(point: Any, other: Any) -> bool:
    """Whether a ball has room for the other's number, which is right to 2^-592 of itself.

    A ball of a zero that cancels needs no end: 600 bits enclose it by less than any format resolves.
    """
    ball = point.arb(600)
    with arb_bits(1200):
        number = mpf_to_arb(other.mp(600))
        return bool(ball.overlaps(number + flint.arb(0, abs(number).upper() * flint.arb(2) ** -592)))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("page", type=Path)
    page = options.parse_args().page
    lines = [
        "| op | result | elements | apart | only one has a value | mpmath beside balls | apart |",
        "|---|---|---|---|---|---|---|",
    ]
    bad = 0
    for pair in PAIRS:
        label = ", ".join([pair.op, *map(str, pair.params.values())])
        size: Sequence[int] = (320, 320) if pair.shapes is None else (400, 257)
        for name, each in compare(pair, *size, sample=400).items():
            bad += each.apart + each.balls_apart
            cells = (label, name, f"{each.elements:,}", each.apart, each.one_sided, each.balls, each.balls_apart)
            lines.append(f"| {' | '.join(map(str, cells))} |")
            print(lines[-1], flush=True)
    write(page, "like equal", "\n".join(lines) + "\n")
    raise SystemExit(bool(bad))


if __name__ == "__main__":
    main()
