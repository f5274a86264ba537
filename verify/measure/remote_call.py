"""Calls a kernel in another process. A case goes there as JSON, and its results return as bits.

Inputs are not sent. Both processes make them from the case. So the kernel's process cannot influence the inputs of the
truth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec
import torch
from torch import Tensor

from verify.backends import Backend
from verify.cases import Case, inputs_of, upstream_of
from verify.cases.case import operand_dtype
from verify.declare.declaration import Kernel, expected_shape
from verify.errors import InternalError, KernelError
from verify.measure.budget import give_back
from verify.measure.call import INFERENCE, Form, Measured, check_output, demand_parts, rows_and_columns, sent_all
from verify.measure.lent import borrowed, lent
from verify.measure.requests import Bits, CallKernel, Stored
from verify.truth import formats
from verify.truth.formats import torch_dtype
from verify.truth.ulp import raw
from verify.workers.calls import FOREIGN, AskKernel
from verify.workers.requests import demand_reply
from verify.workers.serving import WithBytes

Run = Callable[[Case], Measured]

WIDEST = 8  # the most bytes of an element
_LARGE = 1 << 24  # results of at least this many bytes stay on the GPU
_kept: list[Tensor] = []  # in the kernel's process: results that the judge has not copied yet


def bits_of_results(measured: Measured) -> WithBytes:
    """Returns the reply of the kernel's process: names and forms of the results, and where the bits of each are.

    The bits follow the reply, or they stay on the GPU, which the judge then reads.
    """
    held = {("", name): value for name, value in measured.to_read.results.items()}
    held |= {(mode, name): value for mode, outputs in measured.inference.items() for name, value in outputs.items()}
    lines = [raw(item) for item in held.values()]
    places = [lent(line) for line in lines] if sum(line.nbytes for line in lines) >= _LARGE else []
    parts: list[memoryview] = []
    if places and None not in places:
        _kept[:] = lines
    else:
        places = [None] * len(lines)
        near = [line.cpu().reshape(-1) for line in lines]
        parts = [memoryview(line.numpy()).cast("B") if line.numel() else memoryview(b"") for line in near]  # type: ignore[arg-type]
    stored = [
        Stored(name, formats.of(item.dtype).name, tuple(item.shape), mode, place)
        for ((mode, name), item), place in zip(held.items(), places, strict=True)
    ]
    return WithBytes(Bits(list(measured.results), stored, measured.missing), parts)


def let_go(backend: Backend) -> None:
    """Frees the results that stayed on the GPU, so that the judge has their memory."""
    _kept.clear()
    give_back(backend)


def runner(kernel: Kernel, target: str, device: str, call: AskKernel) -> Run:
    """Returns a function that calls a kernel in another process, as `run_judged` does in this one."""

    def run(case: Case) -> Measured:
        op, params = kernel.op, kernel.op.resolve(case.params)
        shapes = op.shapes(case.dims, params)
        if kernel.encoding is not None:
            shapes |= kernel.encoding.shapes(rows_and_columns(kernel, case))
        else:
            shapes |= {name: expected_shape(op, case.dims, params, name) for name in kernel.outputs}
        most = WIDEST * (1 + len(INFERENCE)) * sum(map(math.prod, shapes.values()))
        request = CallKernel(target, case.to_json())
        reply = demand_reply(call(msgspec.json.encode(request), most))
        try:
            bits = request.read(reply.value)
        except InternalError:
            raise KernelError(FOREIGN) from None
        found = _tensors(bits.stored, reply.parts, device, most)
        if any(item.lent for item in bits.stored):
            demand_reply(call(msgspec.json.encode(CallKernel(target, "")), 0))
        results = {name: found["", name].to(device) for name in bits.order if ("", name) in found}
        inputs = sent_all(inputs_of(op, case, device, shared=True), device)
        if kernel.encoding is not None:
            demand_parts(kernel, kernel.encoding, case, results)
            return Measured(inputs, {}, results)
        outputs = _checked(kernel, case, device, results, inputs)
        upstream = sent_all(upstream_of(op, case, outputs, shared=True), device)
        inference: dict[str, dict[str, Tensor]] = {}
        for mode, name in found:
            if mode in INFERENCE and name in outputs:
                told = found[mode, name].to(device)
                check_output(f"{kernel.name} {mode}", name, told, Form.like(outputs[name], case))
                inference.setdefault(mode, {})[name] = told
        return Measured(inputs, upstream, results, bits.missing, inference)

    return run


def _tensors(stored: Sequence[Stored], parts: Sequence[bytes], device: str, most: int) -> dict[tuple[str, str], Tensor]:
    """Returns the tensors by mode of inference and name."""
    found: dict[tuple[str, str], Tensor] = {}
    forms = [formats.named(item.dtype) for item in stored]
    sizes = [math.prod(item.shape) * fmt.bits // 8 for item, fmt in zip(stored, forms, strict=True)]
    sent = [size for item, size in zip(stored, sizes, strict=True) if item.lent is None]
    if sent != [len(part) for part in parts] or any(min(item.shape, default=0) < 0 for item in stored):
        raise KernelError("its process sent bits that do not match their description")
    if len(sent) < len(sizes) and (sum(sizes) > most or torch.device(device).type != "cuda"):
        raise KernelError(FOREIGN)
    left = iter(parts)
    for item, fmt in zip(stored, forms, strict=True):
        if item.lent is not None:
            line = borrowed(item.lent, torch.empty(item.shape, dtype=torch_dtype(fmt), device=device))
        else:
            part = next(left)
            line = torch.frombuffer(bytearray(part), dtype=torch_dtype(fmt)) if part else torch.empty(0)
        found[item.mode, item.name] = line.to(torch_dtype(fmt)).reshape(item.shape)
    return found


def _checked(
    kernel: Kernel, case: Case, device: str, results: dict[str, Tensor], inputs: dict[str, Tensor | None]
) -> dict[str, Tensor]:
    """Returns the outputs. Raises KernelError unless all results have the form that the case requires.

    The kernel's process has checked the form already. The kernel could change that check, but not this one.
    """
    op = kernel.op
    params, where = op.resolve(case.params), torch.device(device)
    for name, tensor in results.items():
        if name in kernel.outputs:
            shape, kind = expected_shape(op, case.dims, params, name), kernel.torch_dtype(case.dtype, name)
        else:
            operand = next((each for each in op.operands if "d" + each.name == name), None)
            value = None if operand is None else inputs[operand.name]
            if operand is None or value is None:
                raise KernelError(f"{kernel.name} returned an unexpected result: {name}")
            shape, kind = tuple(value.shape), torch_dtype(formats.named(operand_dtype(case, operand)))
        check_output(kernel.name, name, tensor, Form(shape, kind, where, f"for dims {case.dims}"))
    if absent := [name for name in kernel.outputs if name not in results]:
        raise KernelError(f"{kernel.name} must return {', '.join(kernel.outputs)}; {absent[0]} is missing")
    return {name: results[name] for name in kernel.outputs}
