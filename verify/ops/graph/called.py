"""Calls the function of a definition with a kernel's operands, as arguments or as parameters of a module."""

import copy
import functools
import inspect
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

LONGEST_SOURCE = 4_000  # characters of a definition in a record


@dataclass
class Callee:
    """A function or module with the names of a kernel's operands. Calling it passes each operand where it belongs."""

    function: Any
    names: tuple[str, ...]
    name: str
    loose: frozenset[str] = frozenset()  # operands that the function need not take: derived ones, and their sources
    fixed: Mapping[int, Any] = field(default_factory=dict)  # arguments that are no tensors, by position

    @cached_property
    def module(self) -> torch.nn.Module | None:
        """A float64 copy of the module on the CPU; None if the function is no module."""
        if not isinstance(self.function, torch.nn.Module):
            return None
        return moved_module(self.function, torch.float64, torch.device("cpu"))

    @cached_property
    def parameters(self) -> dict[str, str]:
        """Maps an operand to the dotted name of the module's parameter or buffer that it replaces."""
        if self.module is None:
            return {}
        known = [name for name, _ in (*self.module.named_parameters(), *self.module.named_buffers())]
        flat = {name.replace(".", "_"): name for name in known}
        return {name: flat[name] for name in self.names if name in flat}

    @cached_property
    def source(self) -> str:
        """Returns the source of the function, or its name if it has none, for reports."""
        function = self.function if self.module is None else type(self.function)
        fixed = ""
        if isinstance(function, functools.partial):
            given = [*map(repr, function.args), *(f"{name}={value!r}" for name, value in function.keywords.items())]
            fixed, function = f"# with {', '.join(given)}\n", function.func
        room = (getattr(function, "__module__", "") or "torch").replace("torch._C._nn", "torch.nn.functional")
        with suppress(OSError, TypeError):
            if not room.startswith("torch"):
                return fixed + textwrap.dedent(inspect.getsource(function))[:LONGEST_SOURCE]
        return f"{fixed}{room}.{getattr(function, '__name__', type(function).__name__)}"

    @cached_property
    def by_name(self) -> tuple[str, ...]:
        """Returns the operands to pass by keyword: all if the function knows every name, else none."""
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
        """Returns the loose operands that the function has no parameter for."""
        return self.loose - self._signature.keys() - self.parameters.keys()

    def held(self, operand: str) -> Tensor:
        """Returns the module's own tensor for an operand."""
        assert self.module is not None
        held = dict((*self.module.named_parameters(), *self.module.named_buffers()))
        return held[self.parameters[operand]].detach()

    def __call__(self, present: Sequence[str], values: Sequence[Tensor]) -> Any:
        """Calls the function with the values of the operands `present`, and with the fixed arguments."""
        given = {n: value for n, value in zip(present, values, strict=True) if n not in self.unused}
        inner = {self.parameters[name]: given.pop(name) for name in list(given) if name in self.parameters}
        args: list[Any] = []
        if self.fixed or not self.by_name:
            own = [name for name in self.names if name not in self.parameters and name not in self.unused]
            args, given = [given.get(name) for name in own], {}  # None: an optional operand is absent
            for place, value in sorted(self.fixed.items()):
                args.insert(place, value)
        if self.module is None:
            return self.function(*args, **given)
        with _restored(self.module) as buffers:
            return torch.func.functional_call(self.module, {**buffers, **inner}, tuple(args), given)


def name_of(function: Any) -> str:
    """Returns a name for reports: of a module its class; "like" for a lambda."""
    if isinstance(function, torch.nn.Module):
        return type(function).__name__
    name = getattr(function, "__name__", "") or type(function).__name__
    return "like" if name == "<lambda>" else str(name)


def moved_module(module: torch.nn.Module, dtype: torch.dtype, device: torch.device) -> torch.nn.Module:
    """Copies a module to a dtype and device, tensors in plain attributes included.

    Moves each parameter once, without a copy in its own dtype: a wide layer has gigabytes.
    """
    memo: dict[int, Any] = {}
    for held in (*module.parameters(), *module.buffers()):
        moved = held.detach().to(device, dtype if held.is_floating_point() else None, copy=True)
        memo[id(held)] = torch.nn.Parameter(moved, False) if isinstance(held, torch.nn.Parameter) else moved
    made = copy.deepcopy(module, memo)
    for part in made.modules():
        for name, value in vars(part).items():
            if isinstance(value, Tensor):
                vars(part)[name] = value.to(device, dtype if value.is_floating_point() else None)
    return made


@contextmanager
def _restored(module: torch.nn.Module) -> Iterator[dict[str, Tensor]]:
    """Yields copies of the module's buffers for one call, and restores all attributes afterwards.

    So each call starts alike. Without this, a batch norm in training would count its calls, and a network with a hidden
    state would start from the last one, to which autograd's record of the operands may be attached.
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
