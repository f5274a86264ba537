"""A kernel that runs in another process: a case goes there as JSON, its results come back as bits.

Inputs do not travel. Both sides make them from the case, so that the kernel's process has nothing to say about what
the truth is computed from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import torch
from torch import Tensor

from verify.cases import Case, inputs_of, upstream_of
from verify.cases.case import operand_dtype
from verify.declare.declaration import Kernel, expected_shape
from verify.errors import KernelError
from verify.measure.call import INFERENCE, Measured, check_output, sent_all
from verify.measure.requests import Bits, CallKernel, Stored
from verify.truth import formats
from verify.truth.formats import torch_dtype
from verify.truth.ulp import raw

Run = Callable[[Case], Measured]

WIDEST = 8  # bytes of an element


class Calls(Protocol):
    """What sends a request to the kernel's process: the reply, and at most so many bytes beside it."""

    def __call__(self, request: bytes, *, most: int) -> tuple[msgspec.Raw, bytearray]: ...


def bits_of_results(measured: Measured) -> tuple[Bits, list[memoryview]]:
    """What goes back: the names and forms of the results, and their bits one after the other, the widest first."""
    held = {("", name): value for name, value in measured.to_read.results.items()}
    held |= {(mode, name): value for mode, outputs in measured.inference.items() for name, value in outputs.items()}
    keys = sorted(held, key=lambda key: -held[key].element_size())
    stored = [Stored(key[1], formats.of(held[key].dtype).name, tuple(held[key].shape), key[0]) for key in keys]
    lines = [raw(held[key]).cpu().reshape(-1) for key in keys if held[key].numel()]
    parts = [memoryview(line.numpy()).cast("B") for line in lines]  # type: ignore[arg-type]
    return Bits(list(measured.results), stored, measured.missing), parts


def runner(kernel: Kernel, target: str, device: str, calls: Calls) -> Run:
    """`run_kernel` of a kernel that another process calls."""

    def run(case: Case) -> Measured:
        op, params = kernel.op, kernel.op.resolve(case.params)
        shapes = op.shapes(case.dims, params)
        shapes |= {name: expected_shape(op, case.dims, params, name) for name in kernel.outputs}
        most = WIDEST * (1 + len(INFERENCE)) * sum(map(math.prod, shapes.values()))
        reply, beside = calls(msgspec.json.encode(CallKernel(target, case.to_json())), most=most)
        bits = msgspec.json.decode(reply, type=Bits)
        found = _tensors(bits.stored, beside)
        results = {name: found["", name].to(device) for name in bits.order if ("", name) in found}
        inputs = sent_all(inputs_of(op, case, device, shared=True), device)
        outputs = _checked(kernel, case, device, results, inputs)
        upstream = sent_all(upstream_of(op, case, outputs, shared=True), device)
        inference: dict[str, dict[str, Tensor]] = {}
        for mode, name in found:
            if mode in INFERENCE and name in outputs:
                like, told = outputs[name], found[mode, name].to(device)
                shape, label = tuple(like.shape), f"{kernel.name} {mode}"
                check_output(label, name, told, shape, like.dtype, like.device, f"for dims {case.dims}")
                inference.setdefault(mode, {})[name] = told
        return Measured(inputs, upstream, results, bits.missing, inference)

    return run


def _tensors(stored: Sequence[Stored], beside: bytearray) -> dict[tuple[str, str], Tensor]:
    """The tensors by mode of inference and name."""
    found: dict[tuple[str, str], Tensor] = {}
    start = 0
    for item in stored:
        fmt = formats.named(item.dtype)
        count = math.prod(item.shape)
        stop = start + count * fmt.bits // 8
        if stop > len(beside) or min(item.shape, default=0) < 0:
            raise KernelError("its process sent fewer bits than it said")
        line = torch.frombuffer(beside, dtype=torch_dtype(fmt), count=count, offset=start) if count else torch.empty(0)
        found[item.mode, item.name] = line.to(torch_dtype(fmt)).reshape(item.shape)
        start = stop
    return found


def _checked(
    kernel: Kernel, case: Case, device: str, results: dict[str, Tensor], inputs: dict[str, Tensor | None]
) -> dict[str, Tensor]:
    """The outputs among the results, all of which have the form that the case asks for: said here again, where the
    kernel cannot reach what says it."""
    op = kernel.op
    params, where = op.resolve(case.params), torch.device(device)
    for name, tensor in results.items():
        if name in kernel.outputs:
            shape, kind = expected_shape(op, case.dims, params, name), kernel.torch_dtype(case.dtype, name)
        else:
            operand = next((each for each in op.operands if "d" + each.name == name), None)
            value = None if operand is None else inputs[operand.name]
            if operand is None or value is None:
                raise KernelError(f"{kernel.name} gave a result that nobody asked for: {name}")
            shape, kind = tuple(value.shape), torch_dtype(formats.named(operand_dtype(case, operand)))
        check_output(kernel.name, name, tensor, shape, kind, where, f"for dims {case.dims}")
    if absent := [name for name in kernel.outputs if name not in results]:
        raise KernelError(f"{kernel.name} must return {', '.join(kernel.outputs)}; there was no {absent[0]}")
    return {name: results[name] for name in kernel.outputs}
