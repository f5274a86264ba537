"""Gradients without what `torch.autograd.grad` imports on the way."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def gradients(
    outputs: Sequence[Tensor],
    leaves: Sequence[Tensor],
    arriving: Sequence[Tensor],
    *,
    retain: bool = False,
) -> tuple[Tensor | None, ...]:
    """Returns what `torch.autograd.grad` does, and None where there is no path.

    It compares shapes with a module that imports symbolic algebra, which takes each new process half a second to five.
    """
    run = getattr(torch.autograd.graph, "_engine_run_backward", None)
    if run is None or any(y.shape != dy.shape for y, dy in zip(outputs, arriving, strict=True)):
        return torch.autograd.grad(outputs, leaves, arriving, allow_unused=True, retain_graph=retain)
    found: tuple[Tensor | None, ...] = run(
        tuple(outputs),
        tuple(arriving),
        retain,
        False,
        tuple(leaves),
        allow_unreachable=True,
        accumulate_grad=False,
    )
    return found
