"""Sizes of a PyTorch function's named dimensions: which a declaration allows, and where one of them is long."""

from __future__ import annotations

import torch
from torch.nn import functional

import verify
from verify.backends import Backend
from verify.cases.plan import plan
from verify.cases.sizes import REACHES, REACHES_OF_LAWS, Reach, long_sizes, sizes_of, work_of
from verify.laws import accuracy
from verify.laws.engine import PROFILES
from verify.laws.law import Subject
from verify.ops.graph.shapes import NamedDims, sizes_alone

FAR = Reach(1 << 30, 1 << 20, 1 << 20)


def test_each_dimension_alone_is_one_beyond_a_block_and_the_others_stay() -> None:
    found = dict(sizes_alone(named("n d"), (2, 3), (65, 1025)))
    assert found == {"n": [(65, 3), (1025, 3)], "d": [(2, 65), (2, 1025)]}


def test_a_condition_narrows_the_long_sizes_and_names_others() -> None:
    where = "d % 16 == 0 and d <= 512 and k == 2 * d and n <= 100"
    found = dict(sizes_alone(named("n d k", where), (3, 16, 32), (65, 129, 1025)))
    assert found == {"n": [(65, 16, 32), (100, 16, 32)], "d": [(3, 80, 160), (3, 144, 288), (3, 512, 1024)]}


def named(dims: str, where: str = "") -> NamedDims:
    return NamedDims({}, dims=tuple(dims.split()), where=where)


def test_of_sizes_that_are_all_larger_the_smallest_are_taken() -> None:
    kernel = verify.kernel(like=torch.exp, shapes={"x": "n d"}, where="d % 128 == 0", dtypes=["float32"])(exp)
    (dims,) = sizes_of(kernel.op, 64)
    assert dims[0] * dims[1] <= 256 and kernel.op.geometry.allows(dims)


def exp(x):
    return torch.exp(x)


def attention(q, k, v):
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


CAUSAL = verify.kernel(like=attention, shapes=dict.fromkeys("qkv", "b h t c"), dtypes=["float32"])(attention)
ROWS = verify.kernel(like=torch.exp, shapes={"x": "n d"}, dtypes=["float32", "float64"])(exp)


def test_what_a_case_costs_follows_from_the_program() -> None:
    """Scores of t queries and t keys: four times as many for twice the length, and no longer case than allowed."""
    costs = [work_of(CAUSAL.op, (1, 1, t, 3)) for t in (1024, 2048)]
    assert 3.5 < costs[1] / costs[0] < 4.5
    for reach in (REACHES["small"], REACHES_OF_LAWS["large"]):
        found = long_sizes(CAUSAL.op, reach)
        assert all(work_of(CAUSAL.op, dims) <= reach.work for some in found.values() for dims in some)
    assert max(dims[2] for dims in long_sizes(CAUSAL.op, REACHES_OF_LAWS["small"])["t"]) == 257
    assert max(dims[2] for dims in long_sizes(CAUSAL.op, FAR)["t"]) >= 4097


def test_a_run_and_the_law_of_accuracy_try_long_dimensions(backend: Backend) -> None:
    planned = {case.dims for case in plan(ROWS, "float32", backend.name, 0)[0].cases}
    assert {129, 4097 if backend.scale == "small" else 65_537} <= {d for _, d in planned}
    assert (257 if backend.scale == "small" else 65_537) in {n for n, _ in planned}
    subject = Subject(ROWS, "float32", backend, PROFILES["ci"].sizes[backend.scale])
    [law] = [each for each in accuracy.LAWS if each.name == "accuracy"]
    tried = {case.dims for case in law.fixed(subject)}
    assert {65, 129, 1025, 4097, 65_537} <= {d for _, d in tried}
    assert any(d > 64 and n > 64 for n, d in planned) and any(d > 64 and n > 64 for n, d in tried)
