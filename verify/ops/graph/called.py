"""The function of a definition as it is called: with operands by name or position, some of them held by a module."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor


@dataclass
class Meaning:
    """The function, called with the operands of a kernel, some of which may be parameters of a module."""

    function: Any
    names: tuple[str, ...]
    name: str
    loose: frozenset[str] = frozenset()  # operands that the function may leave out: derived ones, and their sources
    fixed: Mapping[int, Any] = field(default_factory=dict)  # arguments that are no tensors, by position

    @cached_property
    def module(self) -> torch.nn.Module | None:
        if not isinstance(self.function, torch.nn.Module):
            return None
        return moved_module(self.function, torch.float64, torch.device("cpu"))

    @cached_property
    def parameters(self) -> dict[str, str]:
        """Operand to the dotted name of the module's parameter or buffer that it stands for."""
        if self.module is None:
            return {}
        known = [name for name, _ in (*self.module.named_parameters(), *self.module.named_buffers())]
        flat = {name.replace(".", "_"): name for name in known}
        return {name: flat[name] for name in self.names if name in flat}

    @cached_property
    def by_name(self) -> tuple[str, ...]:
        """Operands that the function takes under their own names; the others come by position."""
        known = self._signature
        own = [name for name in self.names if name not in self.parameters and name not in self.unused]
        taken = [name for name in own if name in known and known[name].kind is not inspect.Parameter.POSITIONAL_ONLY]
        return tuple(taken) if len(taken) == len(own) else ()

    @cached_property
    def _signature(self) -> Mapping[str, inspect.Parameter]:
        target = self.module.forward if self.module is not None else self.function
        try:
            return inspect.signature(target).parameters
        except (TypeError, ValueError):
            return {}

    @cached_property
    def unused(self) -> frozenset[str]:
        """The operands that the function does not take: the loose ones that it does not name."""
        return self.loose - self._signature.keys() - self.parameters.keys()

    def held(self, operand: str) -> Tensor:
        """What the module holds for an operand."""
        assert self.module is not None
        held = dict((*self.module.named_parameters(), *self.module.named_buffers()))
        return held[self.parameters[operand]].detach()

    def __call__(self, present: Sequence[str], values: Sequence[Tensor]) -> Any:
        given = {n: value for n, value in zip(present, values, strict=True) if n not in self.unused}
        inner = {self.parameters[name]: given.pop(name) for name in list(given) if name in self.parameters}
        args: list[Any] = []
        if self.fixed or not self.by_name:
            args, given = list(given.values()), {}
            for place, value in sorted(self.fixed.items()):
                args.insert(place, value)
        if self.module is None:
            return self.function(*args, **given)
        with _unchanged(self.module) as buffers:
            return torch.func.functional_call(self.module, {**buffers, **inner}, tuple(args), given)


def moved_module(module: torch.nn.Module, dtype: torch.dtype, device: torch.device) -> torch.nn.Module:
    """A copy in another format, with the tensors that it holds as plain attributes too."""
    made = copy.deepcopy(module).to(device=device, dtype=dtype).requires_grad_(False)
    for part in made.modules():
        for name, value in vars(part).items():
            if isinstance(value, Tensor):
                vars(part)[name] = value.to(device, dtype if value.is_floating_point() else None)
    return made


@contextmanager
def _unchanged(module: torch.nn.Module) -> Iterator[dict[str, Tensor]]:
    """Copies of the buffers for a call to write to; what it leaves as attributes is forgotten.

    A batch norm in training counts what it has seen, a network that keeps its hidden state would start elsewhere, and
    one that writes to it would keep what autograd knows of the operand.
    """
    before = [(part, dict(vars(part))) for part in module.modules()]
    for part, held in before:
        vars(part).update({name: value.clone() for name, value in held.items() if isinstance(value, Tensor)})
    try:
        yield {name: buffer.clone() for name, buffer in module.named_buffers()}
    finally:
        for part, held in before:
            vars(part).clear()
            vars(part).update(held)
