"""Evaluates a program of PyTorch in 500 bits under every choice at ties that the oracle tries."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from mpmath import mp, mpf
from torch import Tensor

from tests.oracle.functions import Tensors
from tests.oracle.numbers import NEAR, Choice, Number, Oracled, Run, backward
from tests.oracle.tensors import SMALL, filled

BITS = {torch.float64: 53}  # 16-bit kernels compute in float32 within an operator
STEPS = 60_000  # a program of more is beyond the oracle's time


@dataclass
class Evaluation:
    """Outputs, then gradients of floating-point inputs in their order: exact values, and which of them are open."""

    values: list[np.ndarray]
    open: list[np.ndarray]
    ties: int
    nears: int  # numbers in whose place roundings may choose another
    exponent: int  # of the largest number that came up
    outputs: int  # how many of the values are outputs
    run: Run  # tells what is free
    adds: list[bool]  # which of the outputs are the result of sums


def evaluate(
    f: Callable[..., Any],
    inputs: Sequence[Any],
    upstream: Sequence[Tensor | None],
    drifts: Sequence[np.ndarray] | None = None,
    disturbed: int | None = None,
    last: bool = False,
    choice: Choice | None = None,
    strength: float = 1.0,
    signs: Sequence[int] | None = None,
) -> Evaluation:
    """Returns what f is at inputs + tiny drifts.

    disturbed: the seed of roundings after every step, of this strength. last: of equal places the last one wins, or as
    a choice says. signs: those by which another run has ordered numbers.
    """
    kinds = [x.dtype for x in inputs if isinstance(x, Tensor) and x.is_floating_point()]
    run = Run(
        BITS.get(kinds[0], 24) if kinds else 24, drifts is not None, disturbed, last, kinds, choice, strength, signs
    )
    run.outer = max([run.unit, *(2.0 ** -SMALL[kind] for kind in kinds if kind in SMALL)])
    given: list[Any] = []
    leaves: list[np.ndarray] = []
    for x in inputs:
        if not isinstance(x, Tensor):
            given.append(x)
            continue
        moves = (
            drifts[len(leaves)].flatten().tolist()
            if drifts is not None and x.is_floating_point()
            else [0.0] * x.numel()
        )
        numbers = filled([Number(mpf(v), 0.0, d) for v, d in zip(x.flatten().tolist(), moves, strict=True)], x.shape)
        if x.is_floating_point():
            leaves.append(numbers)
            for number in numbers.flat:
                number.outer = 2.0 ** -SMALL[x.dtype] if x.dtype in SMALL else 0.0
        given.append(Tensors(numbers, x.detach()))
    found = f(*given)
    outputs = list(found) if isinstance(found, (tuple, list)) else [found]
    if len(run.tape) > STEPS or not all(isinstance(y, Tensors) for y in outputs):
        raise Oracled("too many steps, or an output that no input reaches")
    arrays = [np.asarray(y.array) for y in outputs]
    pairs = []
    for y, values, dy in zip(outputs, arrays, itertools.chain(upstream, itertools.repeat(None)), strict=False):
        if dy is not None and y.dtype.is_floating_point:
            pairs += list(zip(values.flat, dy.flatten().tolist(), strict=True))
    backward(pairs)
    values = [_each(lambda n: n.value, a) for a in arrays] + [
        _each(lambda n: mpf(0) if n.grad is None else n.grad, a) for a in leaves
    ]
    opened = [_each(lambda n: n.open, a) for a in arrays] + [_each(lambda n: n.grad_open, a) for a in leaves]
    exponent = max((n.value._mpf_[2] + n.value._mpf_[3] for n in run.tape if mp.isfinite(n.value)), default=0)
    run.tape = []
    adds = [any(n.adds for n in a.flat) for a in arrays]
    return Evaluation(values, [a.astype(bool) for a in opened], run.ties, run.nears, exponent, len(arrays), run, adds)


def _each(of: Callable[[Number], Any], numbers: np.ndarray) -> np.ndarray:
    return filled([of(n) for n in numbers.flat], numbers.shape)


def choices(
    f: Callable[..., Any], inputs: Sequence[Any], upstream: Sequence[Tensor | None], some: int = 3
) -> list[Evaluation]:
    """Returns evaluations: PyTorch's convention, then, if numbers tie, first wins, last wins, and some at random."""
    first = evaluate(f, inputs, upstream)
    if not first.ties:
        return [first]
    sizes = [x.numel() for x in inputs if isinstance(x, Tensor) and x.is_floating_point()]
    ramps = [np.arange(n, 0, -1.0) / n for n in sizes]
    tried = [ramps, [-ramp for ramp in ramps]]
    source = random.Random(0)
    tried += [[np.array([source.uniform(-1, 1) for _ in range(n)]) for n in sizes] for _ in range(some)]
    return [first, *(evaluate(f, inputs, upstream, drifts, last=bool(at % 2)) for at, drifts in enumerate(tried))]


def opened(found: Sequence[Evaluation]) -> list[np.ndarray]:
    """Returns which elements of each result are open in any evaluation."""
    return [np.logical_or.reduce([each.open[at] for each in found]) for at in range(len(found[0].open))]


def disturbed(
    f: Callable[..., Any],
    inputs: Sequence[Any],
    upstream: Sequence[Tensor | None],
    runs: int,
    strength: float,
    signs: Sequence[int] | None = None,
) -> Iterator[Evaluation]:
    """Yields what f is with roundings of a strength, but where they lead to what the oracle cannot say."""
    for seed in range(runs):
        with suppress(Oracled):
            yield evaluate(f, inputs, upstream, disturbed=seed, strength=strength, signs=signs)


def noise(
    f: Callable[..., Any], inputs: Sequence[Any], upstream: Sequence[Tensor | None], runs: int = 12
) -> list[np.ndarray]:
    """Returns the root mean square by which roundings after every step move each element.

    They are those that any kernel may have: of results and gradients that PyTorch stores in 16 bits between its
    operators (`kept`), of slopes that it takes from stored results (`saved`), of constants, and of the noisier of two
    forms where it takes that one. Of numbers that a narrow format rounds, an eighth of what eight roundings in each
    step do counts, if that is more: within those, either neighbour is right. Numbers
    keep their order. If no run with roundings leads to numbers, nothing is known, and the noise is infinite.
    """
    exact = evaluate(f, inputs, upstream)
    found = [np.zeros(values.shape) for values in exact.values]
    for strength in (1.0, NEAR) if exact.run.stores else (1.0,):
        moved = list(disturbed(f, inputs, upstream, runs, strength, exact.run.signs))
        for at, values in enumerate(exact.values):
            squares = sum((_squares(each.values[at], values) for each in moved), np.zeros(values.shape))
            found[at] = np.maximum(found[at], np.sqrt(squares / len(moved)) / strength if moved else np.inf)
    return found


def _squares(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    gaps = [x - y for x, y in zip(a.flat, b.flat, strict=True)]
    return np.array([float(gap) ** 2 if mp.isfinite(gap) else 0.0 for gap in gaps]).reshape(a.shape)


def rounded(values: np.ndarray, dtype: torch.dtype) -> Tensor:
    """Returns the numbers of a dtype nearest to exact values; integers and conditions as they are."""
    if dtype.is_floating_point:
        return torch.tensor([float(v) for v in values.flat], dtype=torch.float64).reshape(values.shape).to(dtype)
    return torch.tensor([int(v) for v in values.flat], dtype=torch.float64).reshape(values.shape).to(dtype)
