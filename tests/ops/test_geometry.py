"""Geometries: every question has the answer that the shapes of an op's own tensors give."""

from __future__ import annotations

import pytest
import torch

import verify
from verify import ops

DIMS = {name: ops.get(name).geometry.dims_of(4, 6, 8) for name in ops.names()}


@verify.kernel(like=lambda x: torch.logsumexp(x, -1), shapes={"x": "n d"}, where="d % 8 == 0", dtypes=["float32"])
def log_sum_exp(x):
    return torch.logsumexp(x, -1)


@pytest.mark.parametrize("name", ops.names())
def test_a_geometry_says_what_shapes_the_baseline_takes_and_returns(name: str) -> None:
    op, dims = ops.get(name), DIMS[name]
    params = op.resolve({})
    given = {each: torch.rand(shape) for each, shape in op.shapes(dims, params).items()}
    made = op.baseline(*given.values(), **params)
    made = made if isinstance(made, tuple) else (made,)
    shapes = op.result_shapes(dims, params)
    assert [tuple(each.shape) for each in made] == [shapes[output] for output in op.all_outputs]
    assert op.geometry.packed == (given[op.operands[0].name].shape[-1] == 2 * dims[-1] and op.geometry.by_element)


def test_named_dimensions_come_from_the_declaration() -> None:
    op = log_sum_exp.op
    assert op.geometry.named and op.geometry.dims == ("n", "d")
    assert op.geometry.allows((3, 8)) and not op.geometry.allows((3, 7))
    assert op.geometry.sizes_by_name((3, 8)) == {"n": 3, "d": 8}
    assert op.shapes((3, 8), {}) == {"x": (3, 8)} and op.result_shapes((3, 8), {}) == {"y": (3,)}
    assert not op.is_unary and ops.get("gelu").is_unary and not ops.get("geglu").is_unary
