"""What a mutant is: a kernel with one seeded bug, its twin without it, and the class of bug it stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

import verify
from verify.declare.declaration import Kernel

BOTH = ("interpreter", "cuda")
GPU = ("cuda",)
ACCURACY = "accuracy"
LAYOUT = "layout independence"
UPSTREAM = "upstream layout independence"


@dataclass(frozen=True)
class Mutant:
    """One seeded bug.

    `bug_class` is a row of the table in README.md, `killed_by` names laws of which each is expected to kill it,
    `backends` are those on which the bug can be seen at all. `unsafe` kernels touch memory that is not theirs:
    they run in a process of their own, or inside guard bands.
    """

    name: str
    bug_class: str
    direction: Literal["forward", "backward"]
    kernel: Kernel
    twin: Kernel
    killed_by: tuple[str, ...]
    note: str
    backends: tuple[str, ...] = BOTH
    unsafe: bool = False


class Family:
    """Collects the mutants of one parametrised kernel: the twin is made once for each set of options."""

    def __init__(self, name: str, make: Callable[..., Kernel]) -> None:
        self.name = name
        self.make = make
        self.mutants: list[Mutant] = []
        self._twins: dict[str, Kernel] = {}

    def add(
        self,
        bug: str,
        bug_class: str,
        direction: Literal["forward", "backward"],
        note: str,
        *,
        killed_by: Iterable[str] = (ACCURACY,),
        backends: tuple[str, ...] = BOTH,
        unsafe: bool = False,
        **options: Any,
    ) -> None:
        """One mutant: the kernel made with these options and this bug."""
        key = repr(sorted(options.items()))
        label = "".join(_shown(value) for value in options.values())
        if key not in self._twins:
            self._twins[key] = self.make(
                bug=None, name=_identifier(f"{self.name}{label} twin {len(self._twins)}"), **options
            )
        self.mutants.append(
            Mutant(
                name=f"{self.name}{label}: {bug}",
                bug_class=bug_class,
                direction=direction,
                kernel=self.make(bug=bug, name=_identifier(f"{self.name}{label} {bug}"), **options),
                twin=self._twins[key],
                killed_by=tuple(killed_by),
                note=note,
                backends=backends,
                unsafe=unsafe,
            )
        )


def _shown(option: Any) -> str:
    if isinstance(option, tuple):
        return "".join(_shown(each) for each in option)
    return f" {option}" if isinstance(option, str) else ""


def _identifier(text: str) -> str:
    return "_".join("".join(c if c.isalnum() else " " for c in text).split())


def declare(
    op: str,
    function: Callable[..., Any],
    *,
    name: str,
    dtypes: tuple[str, ...],
    max_ulp: float,
    eps: bool = False,
    optional: tuple[str, ...] = (),
    **options: Any,
) -> Kernel:
    """Declare a kernel that refuses what it does not promise: other dtypes, and operands that do not fit together."""

    def accept(operands: tuple[Any, ...]) -> None:
        operands = tuple(operand for operand in operands if operand is not None) if optional else operands
        for operand in operands:
            if not isinstance(operand, Tensor):
                raise TypeError(f"{name}: operands are tensors; received {type(operand).__name__}")
            if str(operand.dtype).removeprefix("torch.") not in dtypes:
                raise TypeError(f"{name}: dtypes are {', '.join(dtypes)}; received {operand.dtype}")
            if operand.is_meta:
                raise ValueError(f"{name}: operands have memory; received one on the meta device")
            if operand.device != operands[0].device:
                raise ValueError(f"{name}: all operands on one device; received {operands[0].device}, {operand.device}")
        _fit(op, name, operands)

    def with_eps(*operands: Tensor, eps: float) -> Any:
        accept(operands)
        return function(*operands, eps)

    def plain(*operands: Tensor) -> Any:
        accept(operands)
        return function(*operands)

    settings = {"gradients": True, **options}
    chosen = with_eps if eps else plain
    return verify.kernel(op=op, dtypes=dtypes, max_ulp=max_ulp, name=name, refuses=False, **settings)(chosen)


def _fit(op: str, name: str, operands: tuple[Tensor, ...]) -> None:
    x = operands[0]
    if op == "linear":
        fits = x.ndim == 2 and operands[1].ndim == 2 and x.shape[1] == operands[1].shape[1]
        fits = fits and (len(operands) < 3 or operands[2].shape == operands[1].shape[:1])
    elif op in ("layer_norm", "rms_norm", "softmax"):
        fits = x.ndim > 0 and all(other.shape == x.shape[-1:] for other in operands[1:])
    elif op == "layer_norm_residual":
        fits = x.ndim > 0 and operands[1].shape == x.shape
        fits = fits and all(other.shape == x.shape[-1:] for other in operands[2:])
    elif op in ("geglu", "swiglu"):
        fits = x.ndim > 0 and x.shape[-1] % 2 == 0
    else:
        fits = all(other.shape == x.shape for other in operands)
    if not fits:
        shapes = ", ".join(str(tuple(operand.shape)) for operand in operands)
        raise ValueError(f"{name}: the shapes of the operands do not fit together: {shapes}")


def differentiable(
    forward: Callable[..., tuple[Any, tuple[Tensor, ...]]], backward: Callable[..., Any]
) -> Callable[..., Any]:
    """An autograd function from `forward(*operands) -> result, saved` and `backward(saved, *upstream) -> gradients`."""

    class Pair(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *operands: Tensor) -> Any:
            result, saved = forward(*operands)
            ctx.save_for_backward(*saved)
            return result

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, *upstream: Tensor) -> Any:
            return backward(ctx.saved_tensors, *upstream)

    return Pair.apply
