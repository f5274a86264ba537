"""Makes modules whose affine parameters and running statistics are not 0 and 1, under any name.

PyTorch makes the weight of a norm from ones, and its bias and its running mean from zeros. A solution that leaves them
out would be right. So a parameter or a vector of a module's buffers whose numbers are all equal gets others, which
depend on its shape, on its number and on a seed alone: the model of a problem and the module of a solution get the
same ones, also while they are made, so that a solution may prepare its weights in its constructor.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.nn.modules.batchnorm import _NormBase

SPREAD = 0.5  # of the new numbers: around 1 they stay positive, as a variance is
_WRITERS: tuple[tuple[Any, str], ...] = (
    *((torch.nn.init, name) for name in ("ones_", "zeros_", "constant_")),
    (_NormBase, "reset_running_stats"),
)


def constructed(make: Callable[..., Any], arguments: Sequence[Any], seed: int) -> Any:
    """Returns what a constructor makes after torch.manual_seed(seed), with other numbers in place of equal ones."""
    torch.manual_seed(seed)
    with _varying(seed):
        made = make(*arguments)
    for value in (*made.parameters(), *made.buffers()) if isinstance(made, Module) else ():
        _vary(value, seed)
    return made


def _vary(value: Any, seed: int) -> None:
    """Writes other numbers into a parameter, or into a vector, whose numbers are all equal."""
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.is_meta or not value.numel():
        return
    if not isinstance(value, Parameter) and (value.ndim != 1 or value.numel() == 1):
        return
    flat = value.detach().reshape(-1)
    number = float(flat[0])
    if abs(number) > 1e6 or not bool((flat == number).all()) or (flat.numel() == 1 and number not in (0, 1)):
        return
    generator = torch.Generator().manual_seed(hash((seed, tuple(value.shape), number)) & ((1 << 62) - 1))
    drawn = SPREAD * (2 * torch.rand(value.shape, generator=generator) - 1)
    value.data.copy_(number * (1 + drawn) if number else drawn)


@contextmanager
def _varying(seed: int) -> Iterator[None]:
    """Lets the parts of PyTorch that write equal numbers write others."""
    kept = [(owner, name, getattr(owner, name)) for owner, name in _WRITERS]

    def written(original: Any) -> Any:
        def call(first: Any, *given: Any, **more: Any) -> Any:
            found = original(first, *given, **more)
            for value in (first.running_mean, first.running_var) if isinstance(first, Module) else (first,):
                _vary(value, seed)
            return found

        return call

    try:
        for owner, name, original in kept:
            setattr(owner, name, written(original))
        yield
    finally:
        for owner, name, original in kept:
            setattr(owner, name, original)
