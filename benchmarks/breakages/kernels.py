"""Computes a program as honest and as broken kernels do: other sums, narrow accumulators, constants that are off."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode

OFF = 1.01  # what a constant that is off is multiplied by
_ARITHMETIC = {"mul", "div", "true_divide", "add", "sub", "rsub", "rmul", "radd", "rdiv", "rtruediv", "truediv"}
_BIAS = {"linear": 2, "conv1d": 2, "conv2d": 2, "layer_norm": 3, "group_norm": 3, "batch_norm": 4}


# -- the steps of a graph, with sums of one's own -------------------------------------------------------


@dataclass(frozen=True)
class Sums:
    """How a kernel adds up.

    order: "native" (PyTorch's), "sequential", "reversed", "tree", or "blocks of N".
    accumulator: the dtype that the running sum is rounded to after every addition.
    tf32: whether the operands of products of matrices are rounded to 10 bits.
    without_last: the number of the one sum, in the order of the graph, that ignores its last term; None for none.
    """

    order: str = "native"
    accumulator: torch.dtype = torch.float32
    tf32: bool = False
    without_last: int | None = None


def run(graph: fx.GraphModule, inputs: Sequence[Tensor], sums: Sums) -> list[Tensor]:
    """Returns the results of a graph, all sums taken as `sums` says."""
    with torch.no_grad():
        return list(_Steps(graph, sums).run(*inputs))


def sums_of(graph: fx.GraphModule, inputs: Sequence[Tensor]) -> int:
    """Returns how many sums of two or more terms a graph takes."""
    steps = _Steps(graph, Sums())
    with torch.no_grad():
        steps.run(*inputs)
    return steps.met


class _Steps(fx.Interpreter):
    def __init__(self, graph: fx.GraphModule, sums: Sums) -> None:
        super().__init__(graph)
        self.sums, self.met = sums, 0

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        own = _SUMS.get(_name(target))
        if own is None or not args[0].is_floating_point():
            return super().call_function(target, args, kwargs)
        return own(self, lambda *given: target(*given, **kwargs), *args)

    def product(self, native: Callable[..., Tensor], a: Tensor, b: Tensor) -> Tensor:
        if self.sums.tf32:
            a, b = tf32(a), tf32(b)
        if self._ignores(a.shape[-1]):
            return native(a[..., :-1], b[..., :-1, :])
        if self._is_native():
            return native(a, b)
        return total(a.movedim(-1, 0).unsqueeze(-1) * b.movedim(-2, 0).unsqueeze(-2), self.sums)

    def sum(self, native: Callable[..., Tensor], x: Tensor, *where: Any) -> Tensor:
        dim, keepdim = (*where, *(None, False)[len(where) :])
        dims = sorted(d % x.ndim for d in dim) if dim else list(range(x.ndim))
        rest = [d for d in range(x.ndim) if d not in dims]
        terms = x.permute(*dims, *rest).reshape(-1, *(x.shape[d] for d in rest))
        shape = [1 if d in dims else x.shape[d] for d in range(x.ndim)] if keepdim else [x.shape[d] for d in rest]
        if self._ignores(len(terms)):
            return terms[:-1].sum(0).reshape(shape)
        if self._is_native():
            return native(x, *where)
        return total(terms, self.sums).reshape(shape)

    def running(self, native: Callable[..., Tensor], x: Tensor, dim: int) -> Tensor:
        if self._is_native() or not x.ndim:
            return native(x, dim)
        kept = x.movedim(dim, 0)[0].to(self.sums.accumulator)
        found = [kept]
        for term in x.movedim(dim, 0)[1:]:
            kept = (kept.float() + term).to(self.sums.accumulator)
            found.append(kept)
        return torch.stack(found).float().movedim(0, dim)

    def _is_native(self) -> bool:
        return self.sums.order == "native" and self.sums.accumulator is torch.float32

    def _ignores(self, terms: int) -> bool:
        """True if the sum that comes now is the one that ignores its last term. Counts the sums."""
        if terms < 2:
            return False
        self.met += 1
        return self.met - 1 == self.sums.without_last


_SUMS: dict[str, Callable[..., Any]] = {
    "mm": _Steps.product,
    "bmm": _Steps.product,
    "sum": _Steps.sum,
    "cumsum": _Steps.running,
}


def _name(target: Any) -> str:
    schema = getattr(target, "_schema", None)
    return schema.name.split("::")[1] if schema is not None else getattr(target, "__name__", str(target))


def total(terms: Tensor, sums: Sums) -> Tensor:
    """Returns the sum over the first dimension, rounded to the accumulator after every addition."""
    if not len(terms):
        return terms.sum(0)
    if sums.order == "tree":
        while len(terms) > 1:
            if len(terms) % 2:
                terms = torch.cat([terms, torch.zeros_like(terms[:1])])
            terms = (terms[::2] + terms[1::2]).to(sums.accumulator).float()
        return terms[0]
    if sums.order.startswith("blocks of "):
        block = int(sums.order.removeprefix("blocks of "))
        lacking = -len(terms) % block
        padded = torch.cat([terms, terms.new_zeros(lacking, *terms.shape[1:])])
        one_by_one = replace(sums, order="sequential")
        return total(total(padded.reshape(-1, block, *terms.shape[1:]).transpose(0, 1), one_by_one), one_by_one)
    kept, *others = terms.flip(0) if sums.order == "reversed" else terms
    if sums.accumulator is torch.float32:
        for term in others:
            kept = kept + term
        return kept
    kept = kept.to(sums.accumulator)
    for term in others:
        kept = (kept.float() + term).to(sums.accumulator)
    return kept.float()


def tf32(x: Tensor) -> Tensor:
    """Returns float32 numbers rounded to the 10 bits of TF32, ties to even."""
    bits = x.contiguous().view(torch.int32)
    rounded = ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)
    return torch.where(torch.isfinite(x), rounded, x)


# -- the definition itself, changed in one place --------------------------------------------------------


class _Changed(TorchFunctionMode):
    """Passes every call that a program makes to PyTorch through `change(number, name, function, args, kwargs)`."""

    def __init__(self, change: Callable[..., Any]) -> None:
        super().__init__()
        self.change, self.number = change, -1

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += 1
        return self.change(self.number, function.__name__.strip("_"), function, args, kwargs or {})


def changed(function: Callable[..., Any], change: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function with its calls to PyTorch made by `change`."""

    def broken(*operands: Tensor) -> Any:
        with _Changed(change):
            return function(*operands)

    return broken


Constant = tuple[str, float]  # the function that takes it, and its value


def constants(function: Callable[..., Any], operands: Sequence[Tensor]) -> list[Constant]:
    """Returns the numbers that a program writes down, apart from 0."""
    found: dict[Constant, None] = {}

    def note(number: int, name: str, call: Any, args: Any, kwargs: Any) -> Any:
        found.update(dict.fromkeys((name, float(v)) for v in (*args, *kwargs.values()) if _is_constant(name, v)))
        return call(*args, **kwargs)

    changed(function, note)(*operands)
    return list(found)


def constant_off(function: Callable[..., Any], constant: Constant) -> Callable[..., Any]:
    """Returns the program with one of its constants 1% off, wherever the same function takes it."""

    def off(name: str, value: Any) -> Any:
        return value * OFF if _is_constant(name, value) and (name, float(value)) == constant else value

    def change(number: int, name: str, call: Any, args: Any, kwargs: Any) -> Any:
        return call(*(off(name, v) for v in args), **{key: off(name, v) for key, v in kwargs.items()})

    return changed(function, change)


def _is_constant(name: str, value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value or not math.isfinite(value):
        return False
    return isinstance(value, float) or name in _ARITHMETIC


def without_bias(function: Callable[..., Any], operands: Sequence[Tensor]) -> Callable[..., Any] | None:
    """Returns the program with the first bias missing; None where it has none."""
    found: list[int] = []

    def bias(name: str, args: Any, kwargs: Any) -> Any:
        place = _BIAS.get(name, len(args))
        return args[place] if place < len(args) else kwargs.get("bias") if name in _BIAS else None

    def note(number: int, name: str, call: Any, args: Any, kwargs: Any) -> Any:
        if bias(name, args, kwargs) is not None:
            found.append(number)
        return call(*args, **kwargs)

    def change(number: int, name: str, call: Any, args: Any, kwargs: Any) -> Any:
        if number == found[0]:
            place = _BIAS[name]
            args = (*args[:place], None, *args[place + 1 :]) if place < len(args) else args
            kwargs = {key: v for key, v in kwargs.items() if key != "bias"}
        return call(*args, **kwargs)

    changed(function, note)(*operands)
    return changed(function, change) if found else None


def without_step(function: Callable[..., Any], operands: Sequence[Tensor]) -> tuple[str, Callable[..., Any]] | None:
    """Returns the program without one step in its middle, and the step's name; None where no step can be left out.

    A step can be left out if its result has the shape of its first operand and other values, and if what follows takes
    that operand in its place.
    """
    found: list[tuple[int, str]] = []

    def note(number: int, name: str, call: Any, args: Any, kwargs: Any) -> Any:
        made = call(*args, **kwargs)
        first = args[0] if args else None
        if isinstance(made, Tensor) and isinstance(first, Tensor) and made.is_floating_point():
            alike = (made.shape, made.dtype) == (first.shape, first.dtype)
            if alike and not torch.equal(made, first):
                found.append((number, name))
        return made

    changed(function, note)(*operands)

    def without(left: int) -> Callable[..., Any]:
        return changed(
            function, lambda number, name, call, args, kwargs: args[0] if number == left else call(*args, **kwargs)
        )

    for left, step in found[len(found) // 2 :] + found[: len(found) // 2]:
        with contextlib.suppress(RuntimeError):  # a loss of what are no probabilities, for example
            without(left)(*operands)
            return step, without(left)
    return None
