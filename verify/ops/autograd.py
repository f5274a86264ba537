"""Uses PyTorch without its slow imports: computes gradients, and sees each operator that is called."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


def gradients(
    outputs: Sequence[Tensor],
    leaves: Sequence[Tensor],
    arriving: Sequence[Tensor],
    *,
    retain: bool = False,
    again: bool = False,
) -> tuple[Tensor | None, ...]:
    """Returns the gradients of `leaves`, given the gradients `arriving` at the outputs. None: no path leads to a leaf.

    With `again`, the gradients have gradients themselves.

    torch.autograd.grad compares shapes with a module that imports sympy. That takes each new process 0.5 to 5 s. So
    this function calls PyTorch's engine directly, if the shapes agree and the engine is where it is expected.
    """
    run = getattr(torch.autograd.graph, "_engine_run_backward", None)
    if run is None or any(y.shape != dy.shape for y, dy in zip(outputs, arriving, strict=True)):
        return torch.autograd.grad(
            outputs, leaves, arriving, allow_unused=True, retain_graph=retain or again, create_graph=again
        )
    ends = tuple(outputs), tuple(arriving), retain or again, again, tuple(leaves)
    found: tuple[Tensor | None, ...] = run(*ends, allow_unreachable=True, accumulate_grad=False)
    return found


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gets each operator while it is entered. By default the first call would import the compiler, for seconds."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
