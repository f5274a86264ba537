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
    again: bool = False,
) -> tuple[Tensor | None, ...]:
    """`torch.autograd.grad`, None where there is no path; with `again` to be differentiated once more.

    It compares shapes with a module that imports symbolic algebra, which takes each new process half a second to five.
    """
    run = getattr(torch.autograd.graph, "_engine_run_backward", None)
    if run is None or any(y.shape != dy.shape for y, dy in zip(outputs, arriving, strict=True)):
        return torch.autograd.grad(
            outputs, leaves, arriving, allow_unused=True, retain_graph=retain or again, create_graph=again
        )
    found: tuple[Tensor | None, ...] = run(
        tuple(outputs),
        tuple(arriving),
        retain or again,
        again,
        tuple(leaves),
        allow_unreachable=True,
        accumulate_grad=False,
    )
    return found
