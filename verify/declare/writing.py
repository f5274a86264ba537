"""Turns kernels that write into operands or buffers into functions that return their results.

An in-place optimiser has writes={"p": "p_"}: the new content of the operand p is its result p_. A kernel with an `out=`
argument has into=["y"]: the argument y is a buffer, and its new content is the result y.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from verify.errors import UsageError

Arguments = Sequence[Tensor | None]


@dataclass
class Writing:
    """Describes how to call a kernel that writes. It returns the results that are neither in `writes` nor in `into`."""

    function: Callable[..., Any]
    order: tuple[str, ...]  # the arguments that come by position
    writes: Mapping[str, str]  # operand -> result
    into: tuple[str, ...]  # names of arguments that are also results
    outputs: tuple[str, ...]
    hidden: tuple[str, ...] = ()  # operands that it does not take: others are derived from them
    kernel: Any = None  # the declaration, once it is made

    @property
    def operands(self) -> tuple[str, ...]:
        """Returns the names of the arguments that are no buffers, then the hidden operands."""
        return (*(name for name in self.order if name not in self.into), *self.hidden)

    def buffers(self, arguments: Arguments) -> dict[str, Tensor]:
        """Copies the written operands, and makes buffers of the results' shapes, full of NaN (integers: of 99)."""
        given = dict(zip(self.operands, arguments, strict=True))
        found = {name: _copied(value) for name in self.writes if (value := given[name]) is not None}
        if self.into:
            present = {name: value for name, value in given.items() if value is not None}
            device = next(iter(present.values())).device
            for name, (shape, dtype) in self._results(present).items():
                found[name] = torch.full(shape, math.nan if dtype.is_floating_point else 99, dtype=dtype, device=device)
        return found

    def _results(self, present: Mapping[str, Tensor]) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Returns the shape of each buffer, and its declared dtype, or else the dtype that the definition returns."""

        def fits(dtype: str) -> bool:
            kinds = self.kernel.captured_dtypes(dtype).items()
            return all(name not in present or present[name].dtype == kind for name, kind in kinds)

        of_case = next((dtype for dtype in self.kernel.dtypes if fits(dtype)), "")
        found = self.kernel.op.meaning.outputs_of(present)
        for name in self.into:
            if of_case and name not in self.kernel.op.integers:
                found[name] = found[name][0], self.kernel.torch_dtype(of_case, name) or found[name][1]
        return {name: found[name] for name in self.into}

    def call(self, buffers: Mapping[str, Tensor], arguments: Arguments, **keywords: Any) -> tuple[Any, ...]:
        """Calls the kernel on these buffers and returns its results in order."""
        given = {**dict(zip(self.operands, arguments, strict=True)), **buffers}
        by_name = {name: given[name] for name in self.into if name not in self.order}
        with torch.no_grad():
            returned = self.function(*(given[name] for name in self.order), **by_name, **keywords)
        written = {result: buffers[name] for name, result in self.writes.items()}
        written |= {name: buffers[name] for name in self.into}
        rest = [name for name in self.outputs if name not in written]
        items = list(returned) if isinstance(returned, tuple | list) else [returned]
        if rest and len(items) != len(rest):
            raise TypeError(f"it returns {', '.join(rest)} beside what it writes; received {len(items)} value(s)")
        return tuple((written | dict(zip(rest, items, strict=False)))[name] for name in self.outputs)


def functional(
    about: str,
    function: Callable[..., Any],
    writes: Mapping[str, str] | None,
    into: Iterable[str] | None,
    outputs: Iterable[str] | None,
    gradients: Any,
    derive: Mapping[str, Any] | None,
) -> tuple[Callable[..., Any], tuple[str, ...]]:
    """Returns a function that writes nowhere, and the names of its results in the order in which like= returns them.

    It also takes the operands that only `derive` names, after all others.
    """
    if gradients not in ("auto", False):
        raise UsageError(f"{about}: a kernel that writes has no gradients", hint="gradients=False, or neither")
    written, buffers = dict(writes or {}), (into,) if isinstance(into, str) else tuple(into or ())
    signature = inspect.signature(function)
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = signature.parameters.items()
    order = tuple(name for name, each in parameters if each.default is each.empty and each.kind in plain)
    results = tuple(outputs) if outputs is not None else (*written.values(), *buffers)
    for what, names, allowed in (
        ("writes names operands of the kernel", written, tuple(name for name in order if name not in buffers)),
        ("into names arguments of the kernel", buffers, tuple(signature.parameters)),
        ("outputs names what is written", (*written.values(), *buffers), results),
    ):
        for name in names:
            if name not in allowed:
                raise UsageError(
                    f"{about}: {what}, {', '.join(allowed)}; received {name!r}",
                    hint='writes={"p": "p_"}: like= returns the new p under the name p_; into=["y"] for an argument y',
                )
    hidden = sources_of(derive, signature.parameters)
    writing = Writing(function, order, written, buffers, results, hidden)

    @functools.wraps(function)
    def call(*arguments: Tensor | None, **keywords: Any) -> Any:
        found = writing.call(writing.buffers(arguments), arguments, **keywords)
        return found[0] if len(found) == 1 else found

    call.writing = writing  # type: ignore[attr-defined]
    own = [each for name, each in parameters if name not in buffers]
    count = sum(each.kind in plain and each.default is each.empty for each in own)
    own[count:count] = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in hidden]
    call.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
    return call, results


def sources_of(derive: Mapping[str, Any] | None, taken: Collection[str]) -> tuple[str, ...]:
    """Returns the names that the functions of `derive` take and the kernel does not."""
    found = [name for each in (derive or {}).values() if callable(each) for name in inspect.signature(each).parameters]
    return tuple(dict.fromkeys(name for name in found if name not in taken))


def _copied(value: Tensor) -> Tensor:
    """Copies a tensor into memory of its own, with the same strides unless elements share memory."""
    if any(stride == 0 and size > 1 for size, stride in zip(value.shape, value.stride(), strict=True)):
        return value.detach().clone(memory_format=torch.contiguous_format)
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).copy_(
        value.detach()
    )
