"""Decides which integer and boolean results are right if a tie, or a few roundings, decide between answers.

Such results are compared exactly, as float64 numbers. More than one answer may be right for:

- the place of the largest element, if several are equal or so close that a kernel's roundings decide;
- an order;
- a condition;
- a rounding to integers.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from verify.errors import UsageError
from verify.ops.graph.elementwise import Map
from verify.ops.graph.program import Program
from verify.ops.graph.reducing import Reduce
from verify.ops.graph.selecting import RankIndex, WhereExtreme
from verify.ops.graph.spans import Span
from verify.ops.graph.steps import Leaf, Move, Places, Plain, Run, Step


def demand_answers(program: Program, name: str, function: str) -> None:
    """Raises UsageError if this module cannot decide which answers of an integer result are right."""
    step = program.results[name]
    base, _ = _traced_back(None, step, np.zeros(0, dtype=np.int64))
    if step.real or isinstance(base, WhereExtreme | RankIndex | Plain | Leaf) or _is_map(base):
        return
    raise UsageError(
        f"like={function} returns {name}, integers that it computes from indices; verify judges the indices themselves",
        hint="return the indices as PyTorch gives them: x.argmax(-1), x.topk(k).indices",
    )


def _is_map(step: Step) -> bool:
    return isinstance(step, Map | Reduce) and step.function != "where"


def _traced_back(run: Run | None, step: Step, places: Places) -> tuple[Step, Places]:
    """Returns the step that makes the elements at some places, and their places in its result.

    A negative place belongs to a padding. Without a run, only the step is meaningful.
    """
    while isinstance(step, Move) and len(step.inputs) == 1:
        if run is not None:
            held = places >= 0
            [places[held]] = step.sources(run, places[held])
        step = step.inputs[0]
    return step, places


def settled(program: Program, run: Run, name: str, got: Tensor, value: Tensor) -> Tensor:
    """Returns a kernel's answers `got`, with each right answer that differs from the reference `value` replaced by it.

    A later comparison with `value` then finds only wrong answers.
    """
    given, known = got.detach().reshape(-1), value.reshape(-1).to(got.dtype)
    other = torch.nonzero((given != known) & torch.isfinite(given)).reshape(-1)
    if not other.numel():
        return got
    rounding = Run(run.leaves, run.device, "rounding", reach=run.reach)
    base, places = _traced_back(rounding, program.results[name], np.arange(given.numel()))
    right = _right(program, rounding, base, torch.from_numpy(places).to(given.device), given)[other]
    answers = given.clone()
    answers[other[right]] = known[other[right]]
    return answers.reshape(got.shape)


def _right(program: Program, run: Run, base: Step, places: Tensor, got: Tensor) -> Tensor:
    """Returns a mask of the right answers among `got`; `places` are their places in the result of `base`."""
    held = places >= 0
    if isinstance(base, WhereExtreme | RankIndex):
        near = run.blurred(base.inputs[0], _span(program, run, base.inputs[0]))
        width = base.inputs[0].shape[-1]
        count = 1 if isinstance(base, WhereExtreme) else base.shape[-1]
        fits = held & (got >= 0) & (got < width) & (got == got.floor())
        index = torch.where(fits, got, 0).long()
        row = torch.where(held, places, 0) // count
        lo, hi = (end.reshape(-1, width)[row].nan_to_num(math.inf, math.inf, -math.inf) for end in (near.lo, near.hi))
        if not base.largest:
            lo, hi = -hi, -lo
            strange = torch.isnan(near.lo.reshape(-1, width)[row])
            lo, hi = (torch.where(strange, math.inf if count == 1 else -math.inf, end) for end in (lo, hi))
        mine = index[:, None]
        before = (lo > hi.gather(1, mine)).sum(1)
        after = (hi < lo.gather(1, mine)).sum(1)
        rank = places % count
        fits = fits & (before <= rank) & (rank <= width - 1 - after)
        met = torch.zeros(math.prod(base.shape) // count, width, dtype=torch.int64, device=got.device)
        met.index_put_((row[fits], index[fits]), torch.ones_like(index[fits]), accumulate=count > 1)
        return fits & (met[row, index] <= 1)
    if isinstance(base, Map) and base.function == "integer":
        span = _span(program, run, base.inputs[0])
        lo, hi = (torch.take(end.broadcast_to(base.shape), places.clamp(min=0)) for end in (span.lo, span.hi))
        beyond = ~((lo >= base.within[0]) & (hi < base.within[1] + 1))  # PyTorch defines no integer for these
        return held & ((lo <= got) & (got <= hi) | beyond)
    truths = _span(program, run, base)
    if isinstance(truths, Span) or truths.open is None:
        return torch.zeros_like(held)
    opened: Tensor = torch.take(truths.open.broadcast_to(base.shape), places.clamp(min=0))
    return held & opened & ((got == 0) | (got == 1))


def _span(program: Program, run: Run, step: Step) -> Any:
    return replace(program, results={"": step}, needed={}).spans(run, [""])[""]
