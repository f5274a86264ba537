"""A program cut down to a box of a result: what it evaluates are the elements of the whole program."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.ops.graph.suite import SUITE, followed
from verify.errors import BeyondEffort
from verify.ops.graph.boxes import Box, places_in, size_of, taken, whole
from verify.ops.graph.program import Program, trace
from verify.ops.graph.slices import Cut
from verify.ops.graph.spans import Span
from verify.ops.graph.steps import Plain, Run, Step


def _box(shape: tuple[int, ...], seed: int) -> Box:
    random = np.random.default_rng(seed)
    return tuple(np.sort(random.choice(size, random.integers(1, size + 1), replace=False)) for size in shape)


def _values(program: Program, run: Run, *names: str) -> dict[str, Tensor]:
    def make(step: Step, given: list[Tensor]) -> tuple[Tensor, Tensor]:
        value = step.value(run, given)
        return value, value

    return program.values(run, names, make)


@pytest.mark.parametrize("boxes", [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SUITE)
def test_a_cut_program_evaluates_the_elements_of_the_whole_one(name: str, boxes: int) -> None:
    program, run = followed(name).program, followed(name).run()
    results = {result: step for result, step in program.results.items() if math.prod(step.shape)}
    values, intervals = _values(program, run, *results), program.spans(run, list(results))
    for result, step in results.items():
        known, spans = values[result], intervals[result]
        for seed in range(boxes):
            box = _box(step.shape, seed)
            cut, its = Cut(program, run, result, box).made()
            places = torch.from_numpy(places_in(box, step.shape))
            found = _values(cut, its, result)[result]
            assert tuple(found.shape) == tuple(map(len, box))
            wanted = known.reshape(-1)[places]
            assert torch.allclose(found.reshape(-1).double(), wanted.double(), rtol=1e-9, atol=1e-11, equal_nan=True), (
                result
            )
            if isinstance(spans, Span):  # both enclose the number
                span = cut.spans(its, [result])[result]
                lo, hi = (end.expand(step.shape).reshape(-1)[places] for end in (spans.lo, spans.hi))
                apart = (span.lo.reshape(-1) > hi) | (span.hi.reshape(-1) < lo)
                assert not bool(apart.any()), result


def test_a_cut_evaluates_less() -> None:
    x = torch.zeros(64, 4096)
    program = trace(lambda x: torch.softmax(x, -1), {"x": x})
    run = Run({"x": x}, torch.device("cpu"))
    row = (np.array([7]), np.arange(0, 4096, 64))
    assert Cut(program, run, "y", row).work < Cut(program, run, "y", whole((64, 4096))).work / 60
    with pytest.raises(BeyondEffort, match="64 elements of y need more than 4,096 numbers"):
        Cut(program, run, "y", row, most=4096)
    assert size_of(row) == 64


def test_a_tensor_of_one_number_takes_no_memory_for_its_elements() -> None:
    def pooled(x: Tensor) -> Tensor:  # its gradient begins as zeros for each element of each window
        return torch.nn.functional.max_pool2d(x, 4, 1, 1)

    x = torch.rand(1, 2, 64, 64)
    program = trace(pooled, {"x": x}, differentiable=["x"])
    run = Run({"x": x, "grad y": x.new_ones(1, 2, 63, 63)}, torch.device("cpu"))
    large = [step for step in program.steps if isinstance(step, Plain) and math.prod(step.shape) > 4096]
    assert large
    assert all(run.fixed(step).untyped_storage().nbytes() <= 8 for step in large)


def test_indices_that_were_used_on_a_gpu_serve_on_the_host_too() -> None:
    """A judge without forks evaluates a box on the GPU, and then follows single elements of it on the host."""
    kept: dict[tuple[int, torch.device], Tensor] = {}
    box = np.array([0, 2, 3]), np.arange(4)
    taken(torch.empty(4, 4, device="meta"), box, kept)  # as on a GPU, whose tensors the host cannot read
    x = torch.arange(16).reshape(4, 4)
    assert torch.equal(taken(x, box, kept), x[[0, 2, 3]])
    assert len(kept) == 2


def test_a_box_of_many_elements_is_followed_through_dimensions_of_size_one() -> None:
    x = torch.arange(40 * 784, dtype=torch.float64).reshape(40, 784, 1)
    function = lambda x: x.reshape(1, 40 * 784, 1).reshape(40, 1, 784, 1, 1).sum((3, 4)) + 0.0  # noqa: E731
    program = trace(function, {"x": x})
    run = Run({"x": x}, torch.device("cpu"))
    rows = np.arange(0, 40, 2)
    cut, its = Cut(program, run, "y", (rows, np.zeros(1, dtype=np.int64), np.arange(784))).made()
    assert torch.equal(_values(cut, its, "y")["y"], function(x)[::2])
