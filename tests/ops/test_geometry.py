"""Geometries: every question has the answer that the shapes of an op's own tensors give."""

from __future__ import annotations

import math

import pytest
import torch

import verify
from verify import ops
from verify.ops.geometry import ByGeometry, alike

DIMS = {name: ops.get(name).geometry.dims_of(4, 6, 8) for name in ops.names()}
KINDS: ByGeometry[str] = ByGeometry("elementwise", "rowwise", "contraction", "graph")


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


@pytest.mark.parametrize("name", ops.names())
def test_dims_with_fewer_dimensions_hold_the_same_values(name: str) -> None:
    op = ops.get(name)
    if op.geometry.multiplies:
        assert op.geometry.merged((2, 3, 4)) == []
        return
    params = op.resolve({})
    generator = torch.Generator().manual_seed(1)
    for dims in ((2, 3, 4), (1, 1, 6), (5, 4), (1, 4)):
        shapes = op.shapes(dims, params)
        given = {each: torch.rand(shape, generator=generator) for each, shape in shapes.items()}
        whole = _first(op.baseline(*given.values(), **params))
        for merged in op.geometry.merged(dims):
            assert len(merged) < len(dims) and math.prod(merged) == math.prod(dims)
            if op.geometry.packed:
                continue  # the halves then lie elsewhere: shrinking keeps such a case only if it still fails
            flat = [given[each].reshape(shape) for each, shape in op.shapes(merged, params).items()]
            assert torch.allclose(_first(op.baseline(*flat, **params)).reshape(whole.shape), whole)


def _first(made: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    return made if isinstance(made, torch.Tensor) else made[0]


def test_a_table_has_a_value_for_each_geometry() -> None:
    named = log_sum_exp.op.geometry
    for geometry in (*(ops.get(name).geometry for name in ops.names()), named):
        assert geometry.of(KINDS) == geometry.name
    table = alike((2, 5, 3), (1, 33, 5))
    for name in ops.names():
        geometry = ops.get(name).geometry
        assert geometry.of(table) == tuple(geometry.dims_of(*sizes) for sizes in ((2, 5, 3), (1, 33, 5)))


def test_named_dimensions_come_from_the_declaration() -> None:
    op = log_sum_exp.op
    assert op.geometry.named and op.geometry.dims == ("n", "d")
    assert op.geometry.allows((3, 8)) and not op.geometry.allows((3, 7))
    assert op.geometry.sizes_by_name((3, 8)) == {"n": 3, "d": 8}
    assert op.shapes((3, 8), {}) == {"x": (3, 8)} and op.result_shapes((3, 8), {}) == {"y": (3,)}
    assert not op.is_unary and ops.get("gelu").is_unary and not ops.get("geglu").is_unary
