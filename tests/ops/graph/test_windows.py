"""Windows, and functions that PyTorch composes of operators, have its values and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from verify.ops.graph.program import trace
from verify.ops.graph.steps import Run

# by the shapes of the operands x, w and b
CALLS = {
    ((2, 2, 7, 6),): """F.max_pool2d(x, 3, 2, 1, 2, True)|F.max_pool2d(x, (3, 2), (2, 1), 1)|F.max_pool2d(x[0], 2)
F.avg_pool2d(x, 3, 2, 1, True, False)|F.avg_pool2d(x, (3, 2), (2, 1), 1, True)|F.avg_pool2d(x, 3, 2, 1, False, True, 5)
F.avg_pool2d(x[0], 2)|F.adaptive_avg_pool2d(x, (3, 2))|F.adaptive_max_pool2d(x, (3, 4))|F.adaptive_avg_pool2d(x[0], 5)
F.interpolate(x, scale_factor=1.7)|F.interpolate(x, (9, 4), mode="nearest-exact")|F.interpolate(x, 9, mode="bilinear")
F.interpolate(x, scale_factor=1.7, mode="bicubic", align_corners=True)|F.pad(x, (1, 2, 3, 0), mode="replicate")""",
    ((1, 2, 4, 5, 4),): """F.max_pool3d(x, 2)|F.avg_pool3d(x, 2, 1, 1)|F.adaptive_max_pool3d(x, (2, 3, 2))
F.adaptive_avg_pool3d(x, (2, 3, 2))|F.interpolate(x, (7, 9, 4), mode="trilinear")|F.interpolate(x, (3, 9, 4))""",
    ((2, 3, 9),): """F.max_pool1d(x, 3, 2)|F.avg_pool1d(x, 3, 2, 1)|F.adaptive_avg_pool1d(x, 4)
F.adaptive_max_pool1d(x, 4)|F.pad(x, (1, 2), mode="replicate")|F.interpolate(x, 7, mode="linear")|F.instance_norm(x)""",
    ((2, 4, 6, 5), (6, 2, 3, 3), (6,)): """F.conv2d(x, w, b, 2, 1, 1, 2)|F.conv2d(x, w, b, 1, 2, 2, 2)
F.conv2d(x[0], w, b, groups=2)""",
    ((2, 4, 6, 5), (4, 3, 3, 3), (6,)): """F.conv_transpose2d(x, w, b, 2, 1, 1, 2)
F.conv_transpose2d(x[0], w, b, 1, 2, 0, 2, 2)""",
    ((4, 6), (4, 1)): "torch._weight_norm(x, w, 0)",
    ((4, 5),): """x.quantile(torch.tensor([0.1, 0.75], dtype=x.dtype), 1)|x.quantile(0.3, 0, interpolation="lower")
torch.cov(x, fweights=torch.tensor([1, 2, 1, 3, 1]))|torch.corrcoef(x)""",
}
EACH = [(call, shapes) for shapes, text in CALLS.items() for line in text.splitlines() for call in line.split("|")]


@pytest.mark.parametrize(("call", "shapes"), EACH, ids=[call for call, _ in EACH])
def test_a_program_has_pytorchs_value_and_gradients(call: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    function: Callable[..., Any] = eval(f"lambda x, w=None, b=None: {call}", {"torch": torch, "F": functional})
    made = torch.Generator().manual_seed(1)

    def drawn(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=made, dtype=torch.float64)

    operands = {name: drawn(shape) for name, shape in zip("xwb", shapes, strict=False)}
    live = [value.clone().requires_grad_() for value in operands.values()]
    y = function(*live)
    upstream = drawn(tuple(y.shape))
    program = trace(function, operands, differentiable=tuple(operands))
    found = program.spans(Run({**operands, "grad y": upstream}, torch.device("cpu")), list(program.results))
    for span, wanted in zip(found.values(), (y, *torch.autograd.grad(y, live, upstream)), strict=True):
        torch.testing.assert_close(span.mid(), wanted, rtol=1e-11, atol=1e-12)
