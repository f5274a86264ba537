"""Problems of shipped ops, made of cases without a kernel."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from verify.cases import Case, inputs_of, problem_of
from verify.cases.values import Stream, fill
from verify.ops import Op, Problem
from verify.truth.formats import named


def variants(op: Op) -> list[dict[str, Any]]:
    """Returns every combination of the parameters that have a closed list of choices."""
    return [dict(zip(op.choices, values, strict=True)) for values in itertools.product(*op.choices.values())]


def build(op: Op, case: Case) -> Problem:
    """Returns the problem of a case, with all results. Upstream gradients have the shapes of the op's outputs."""
    shapes = op.result_shapes(case.dims, op.resolve(case.params))
    upstream = {
        name: fill(case.upstream, named(case.dtype), shapes[name], Stream(case.seed, name, torch.device("cpu")))
        for name in op.all_outputs
    }
    return problem_of(op, case, inputs_of(op, case, "cpu"), upstream, (*op.all_outputs, *op.gradients))
