"""Predicts what one call's error does to a stack of layers, and measures it, for `verify drift`.

A layer changes a stream h: the kernel returns the stream itself, as a fused residual add does, or a branch that is
added in the dtype of the case. As in a model, a branch gets the stream over its root mean square, and a random matrix
mixes its results. Each layer has other operands and another matrix. The stack in float64 gives the right stream H. The
error of a stream has a mean, as a share of H, and a deviation, the root mean square of the rest over that of H.

`measured` is the error of the kernel's stack. `predicted` follows from the error of single calls on right streams, and
from the derivative of the block: the mean error of each call is carried on as a vector, its noise as a size.
"""

import math
from dataclasses import dataclass, replace
from itertools import product

import msgspec
import torch
from torch import Tensor

from verify.backends import Backend
from verify.cases import Case, inputs_of
from verify.declare.declaration import Kernel
from verify.declare.standin import baseline_of
from verify.diagnose.contracts import case_of_size
from verify.diagnose.requests import Drift
from verify.errors import UsageError
from verify.measure.call import run_tensors
from verify.workers.requests import OnProgress

_CARRIES = 0.5  # a result is the stream itself if its derivative along the stream differs from 1 by no more
_DIMS = (64, 64)  # of the stream of an elementwise kernel
_STEP = 2.0**-6  # of the stream: for difference quotients of functions that may compute in float32


@dataclass(frozen=True)
class _Stack:
    """Holds a kernel as a layer, the operand that is the stream, and the result that carries it or is added to it."""

    kernel: Kernel
    case: Case
    device: str
    operand: str
    result: str
    carries: bool = True

    def after(self, layer: int, stream: Tensor) -> Tensor:
        """Returns the stream after a layer: of PyTorch for a stream in float64, else of the kernel."""
        h, kind, width = stream, stream.dtype, stream.shape[-1]
        if not self.carries:
            h = h.double()
            h = (h / h.square().mean(-1, keepdim=True).sqrt()).to(kind)
        given = inputs_of(self.kernel.op, msgspec.structs.replace(self.case, seed=layer), self.device)
        kernel = self.kernel
        if kind == torch.float64:
            kernel = baseline_of(kernel)
            given = {name: v.double() if v is not None and v.is_floating_point() else v for name, v in given.items()}
        found = run_tensors(kernel, given | {self.operand: h}, self.case.params, {})[self.result]
        if not self.carries:
            matrix = torch.randn(width, width, generator=torch.Generator().manual_seed(layer), dtype=torch.float64)
            found = stream + (found.double() @ matrix.to(self.device) / math.sqrt(width)).to(kind)
        return found.to(kind)

    def derivative(self, layer: int, stream: Tensor, along: Tensor) -> Tensor:
        """Returns the derivative of a layer along a direction."""
        step = _STEP * _size(stream) / max(_size(along), 1e-300)
        up, down = (self.after(layer, stream + side * step * along) for side in (1, -1))
        return (up - down) / (2 * step)


def _size(x: Tensor) -> float:
    return float(x.double().square().mean().sqrt())


def _figures(error: Tensor, stream: Tensor, noise: float = 0.0) -> tuple[float, float]:
    """Returns the mean and the deviation of an error, to which noise of this size is added."""
    mean = float((error * stream).sum() / (stream * stream).sum())
    return mean, math.hypot(_size(error - mean * stream), noise) / _size(stream)


def _stack(kernel: Kernel, case: Case, device: str) -> tuple[_Stack, Tensor]:
    """Returns the kernel as a layer, and the first stream: the operand and the result of one shape that fit best."""
    given = inputs_of(kernel.op, case, device)
    shapes = {name: each.shape for name, each in run_tensors(kernel, given, case.params, {}).items()}
    found: list[tuple[float, _Stack, Tensor]] = []
    for name, result in product(kernel.operands, kernel.outputs):
        value = given[name]
        if value is not None and value.is_floating_point() and value.ndim and value.shape == shapes[result]:
            one, wide = _Stack(kernel, case, device, name, result), value.double()
            found.append((abs(_figures(one.derivative(0, wide, wide), wide)[0] - 1), one, value))
    if not found:
        raise UsageError(
            f"kernel {kernel.name!r} has no result in the shape of an operand, so its layers are no stack",
            hint="declare a kernel that returns a stream, or a branch that is added to it",
        )
    apart, stack, stream = min(found, key=lambda each: each[0])
    return replace(stack, carries=apart <= _CARRIES), stream


def drift_of(kernel: Kernel, backend: Backend, dtype: str, layers: int, progress: OnProgress) -> Drift:
    """Returns the drift of a stream over a stack of layers: predicted from single calls, and measured."""
    if layers < 1:
        raise UsageError(f"a stack has one layer or more; received {layers}", hint="--layers 72")
    case = msgspec.structs.replace(case_of_size(kernel, dtype, backend), fill="randn", regime="")
    if kernel.op.geometry.by_element and kernel.allows(_DIMS):
        case = msgspec.structs.replace(case, dims=_DIMS)
    stack, stream = _stack(kernel, case, backend.device)
    right, got = stream.double(), stream
    carried, noise, first = torch.zeros_like(right), 0.0, (0.0, 0.0)
    generator = torch.Generator().manual_seed(0)
    for layer in range(layers):
        progress(f"{kernel.name} {case.dtype}, layer {layer + 1} of {layers}")
        here = right.to(stream.dtype)
        after = stack.after(layer, here.double())
        own = _figures(stack.after(layer, here).double() - after, after)
        first = first if layer else own
        push = torch.randn(right.shape, generator=generator, dtype=torch.float64).to(right.device)
        gain = _size(stack.derivative(layer, right, push)) / _size(push)
        noise = math.hypot(noise * gain, own[1] * _size(after))
        carried = stack.derivative(layer, right, carried)
        right, got = stack.after(layer, right), stack.after(layer, got)
        carried = carried + own[0] * right
        if not bool(torch.isfinite(right).all() & torch.isfinite(got).all()):
            raise UsageError(f"the stream is not finite after layer {layer + 1}", hint=f"--layers {layer}")
    return Drift(
        kernel=kernel.name, dtype=case.dtype, layers=layers, stream=stack.operand, result=stack.result,
        carries=stack.carries, elements=right.numel(), gain=gain, call=first,
        predicted=_figures(carried, right, noise), measured=_figures(got.double() - right, right),
    )  # fmt: skip
