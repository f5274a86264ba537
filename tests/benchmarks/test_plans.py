"""The benchmark of plans calls variants of the shipped plan and puts that one back."""

from __future__ import annotations

import pytest
import torch

from benchmarks import plans
from kernels.bench.promises import Row
from kernels.layer_norm import launch


@pytest.mark.parametrize(
    ("group", "name", "shape", "count"), [("norms", "layer_norm", (3, 2048), 18), ("heads", "rms_norm", (9, 128), 10)]
)
def test_every_variant_has_the_bits_of_the_plan_on_the_interpreter(
    backend, group: str, name: str, shape: tuple[int, int], count: int
) -> None:
    """There a sum has one order."""
    row = Row(group, name, "bfloat16", shape)
    draw = torch.Generator().manual_seed(1)
    sizes = [shape, shape[1:], shape[1:]][: 3 if name == "layer_norm" else 2]
    arguments = [torch.randn(size, generator=draw).bfloat16().to(backend.device) for size in sizes]
    planned = launch.planned_forward
    shipped, tried = plans.called(row, arguments, {})()[0], plans.variants(row)
    assert len(tried) == count
    for change in (tried[0], tried[-1]):
        assert plans.unlike(plans.called(row, arguments, change)()[0], shipped) == 0
    assert plans.unlike(-shipped, shipped) == shipped.numel()
    assert launch.planned_forward is planned
