"""Computes operands from other operands, such as offsets from lengths, or values that a kernel's forward pass saves.

    derive={"offsets": lambda lengths: F.pad(lengths.cumsum(0), (1, 0)), "lse": lambda q, k: (q @ k.T).logsumexp(-1)}

A case does not store a derived operand. Each process computes it from the others, and gets the same bits. PyTorch
computes integers. For floating-point numbers, the function over the real numbers is rounded once to the operand's
format: float64 intervals decide nearly all elements, and Arb decides the others.
"""

import hashlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from verify.errors import UsageError
from verify.ops.geometry import Shape
from verify.ops.graph.program import Program, trace
from verify.ops.graph.rounded import GRIDS, nearest_ball, rounded
from verify.ops.graph.single import ElementEvaluator, Shared
from verify.ops.graph.spans import Span
from verify.ops.graph.steps import Run

_HOLDS = 16  # most programs kept
_BITS = (160, 640, 2_560)  # tried in turn by `_by_ball`


@dataclass(frozen=True)
class Derivation:
    """One derived operand with the function that computes it."""

    name: str
    function: Callable[..., Any]
    takes: tuple[str, ...]  # the operands that the function takes: the names of its parameters
    depth: int = 0  # greater than that of each derived operand that it takes
    programs: dict[Any, Program] = field(default_factory=dict, compare=False)

    def of(self, given: Mapping[str, Tensor | None], dtype: torch.dtype | None, shape: Shape) -> Tensor:
        """Computes the operand from tensors on any device.

        `dtype` is its floating-point format; None: it is integers. Raises UsageError if the function returns another
        shape, or integers in place of floating-point numbers or the reverse.
        """
        values = {name: value.detach().cpu() for name in self.takes if (value := given[name]) is not None}
        if self.exact and dtype is not None:
            made = self._exactly(values).to(dtype)
        else:
            made = self._exactly(values) if dtype is None else self._rounded(values, dtype)
        if tuple(made.shape) != shape or made.is_floating_point() != (dtype is not None):
            kind = "integers" if dtype is None else "numbers"
            raise UsageError(
                f"derive={{{self.name!r}: ...}} returns {kind} of the shape {shape}; received {made.dtype} of the "
                f"shape {tuple(made.shape)}",
                hint="shapes= declares the shape",
            )
        return made

    def kind(self, given: Mapping[str, Tensor]) -> Tensor:
        """Calls the function on sample operands and returns its result, which shows dtype and shape.

        Raises UsageError if the function raises anything.
        """
        try:
            return self._exactly({name: given[name] for name in self.takes})
        except Exception as error:
            raise UsageError(
                f"derive={{{self.name!r}: ...}} fails for a sample: {type(error).__name__}: {str(error)[:300]}",
                hint="the function takes operands as tensors and returns a tensor",
            ) from error

    def _exactly(self, values: Mapping[str, Tensor]) -> Tensor:
        """Calls the function on float64 copies of floating-point operands, and returns integers as int64."""
        made = self.function(*(v.double() if v.is_floating_point() else v for v in values.values()))
        return made if made.dtype == torch.bool or made.is_floating_point() else made.long()  # type: ignore[no-any-return]

    def _rounded(self, values: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """Evaluates the function over the real numbers and rounds each element once to `dtype`."""
        program = self._program({name: (tuple(value.shape), value.dtype) for name, value in values.items()})
        run = Run(dict(values), torch.device("cpu"))
        with torch.no_grad():
            span = program.spans(run, ["y"])["y"]
        if not isinstance(span, Span):
            return span  # type: ignore[no-any-return]
        format = str(dtype).removeprefix("torch.")
        low, high = rounded(span.lo, format), rounded(span.hi, format)
        found = torch.where(torch.isnan(span.lo), torch.nan, low)
        open_ = torch.nonzero(((low != high) & ~torch.isnan(span.lo)).reshape(-1)).reshape(-1).tolist()
        if open_:
            evaluator = ElementEvaluator(program, run, "y", open_, Shared(share=math.inf))
            balls = [_by_ball(evaluator, place, format) for place in range(len(open_))]
            found.view(-1)[open_] = torch.tensor(balls, dtype=torch.float64)
        return found.to(dtype)

    def _program(self, kinds: Mapping[str, tuple[Shape, torch.dtype]]) -> Program:
        """Traces the function for these shapes and dtypes, or returns the program that it traced before."""
        key = tuple(kinds.items())
        if key not in self.programs:
            if len(self.programs) >= _HOLDS:
                self.programs.pop(next(iter(self.programs)))
            zeros = {name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype) in kinds.items()}
            self.programs[key] = trace(self.function, zeros, outputs=("y",))
        return self.programs[key]

    @property
    def exact(self) -> str:
        """Says what a function computes that returns numbers of the operand's format; empty for any other function."""
        return str(getattr(self.function, "exact", ""))

    def identity(self, kinds: Mapping[str, tuple[Shape, torch.dtype]]) -> str:
        """Returns a digest of the function's program, or of its source if the program cannot be traced."""
        if self.exact:
            return self.exact
        try:
            return self._program({name: kinds[name] for name in self.takes}).digest
        except UsageError:
            code = self.function.__code__
            return hashlib.sha256(_source(self.function, code).encode()).hexdigest()[:12]


def _by_ball(evaluator: ElementEvaluator, place: int, format: str) -> float:
    """Evaluates one element with growing precision until both ends of its ball round to the same number.

    An element that 2,560 bits do not decide counts as a tie.
    """
    found = math.nan
    for bits in _BITS:
        ball = evaluator.ball(place, bits)
        if isinstance(ball, float):
            return ball
        if not ball.is_finite():
            continue
        ends = [_nearest(end, format) for end in (ball.lower(), ball.mid(), ball.upper())]
        found = ends[1]
        if ends[0] == ends[2]:
            break
    return found


def _nearest(x: Any, format: str) -> float:
    return float(x) if format == "float64" else float(nearest_ball(x, GRIDS[format]))


@lru_cache
def _source(function: Any, code: Any) -> str:
    """Returns the source of a function, or its byte code if there is none. `code` is part of the cache's key."""
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return f"{code.co_code.hex()} {code.co_names}"


def derivations(derive: Mapping[str, Any] | None, names: Sequence[str]) -> dict[str, Derivation]:
    """Reads derive= and returns the derived operands, each after all operands that its function takes.

    Raises UsageError if a function takes something that is no operand, or if operands depend on each other in a circle.
    """
    found: dict[str, Derivation] = {}
    for name, function in (derive or {}).items():
        hint = 'derive={"offsets": lambda lengths: ...}: the parameters have the names of operands'
        if name not in names or not callable(function):
            raise UsageError(f"derive= has a function for an operand of the kernel; received {name!r}", hint=hint)
        takes = tuple(inspect.signature(function).parameters)
        if unknown := [each for each in takes if each not in names or each == name]:
            raise UsageError(
                f"derive={{{name!r}: ...}} takes operands, {', '.join(names)}; received {', '.join(unknown)}", hint=hint
            )
        found[name] = Derivation(name, function, takes)
    ordered: dict[str, Derivation] = {}
    while len(ordered) < len(found):
        missing = found.keys() - ordered.keys()
        ready = [name for name in missing if missing.isdisjoint(found[name].takes)]
        if not ready:
            rest = ", ".join(name for name in found if name not in ordered)
            raise UsageError(
                f"derive= computes operands from each other: {rest}", hint="remove one of these dependences"
            )
        ordered |= {name: replace(found[name], depth=len(ordered)) for name in sorted(ready)}
    return ordered
