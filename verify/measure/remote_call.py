"""Calls a kernel in another process. A case goes there as JSON, and its results return as bits.

Inputs are not sent. Both processes make them from the case. So the kernel's process cannot influence the inputs of the
truth.
"""

import math
from collections.abc import Callable, Sequence

import msgspec
from torch import Tensor

from verify.backends import Backend
from verify.cases import Case, inputs_of, upstream_of
from verify.cases.case import operand_dtype
from verify.declare.declaration import Kernel
from verify.errors import KernelError
from verify.measure.call import INFERENCE, Measured, demand_parts, is_first, rows_and_columns, sent_all
from verify.measure.effort import give_back
from verify.measure.form import check_output
from verify.measure.requests import Bits, CallKernel, Stored
from verify.measure.tensors import LARGE, lent, tensors_in, view_of
from verify.truth import formats
from verify.truth.ulp import raw
from verify.workers.calls import FOREIGN, BeginKernel, WithBytes
from verify.workers.requests import Outcome, Reply, demand_reply

Run = Callable[[Case], Measured]

WIDEST = 8  # the most bytes of an element
_kept: list[Tensor] = []  # in the kernel's process: results that the judge has not copied yet


def bits_of_results(measured: Measured) -> WithBytes:
    """Returns the reply of the kernel's process: names and forms of the results, and where the bits of each are.

    The bits follow the reply, or they stay on the GPU, which the judge then reads.
    """
    held = {("", name): value for name, value in measured.to_read.results.items()}
    held |= {(mode, name): value for mode, outputs in measured.inference.items() for name, value in outputs.items()}
    lines = [raw(item) for item in held.values()]
    places = [lent(line) for line in lines] if sum(line.nbytes for line in lines) >= LARGE else []
    parts: list[memoryview] = []
    if places and None not in places:
        _kept[:] = lines
    else:
        places, parts = [None] * len(lines), [*map(view_of, lines)]
    stored = [
        Stored(name, str(item.dtype), tuple(item.shape), place, mode)
        for ((mode, name), item), place in zip(held.items(), places, strict=True)
    ]
    return WithBytes(Bits(stored, measured.missing), parts)


def let_go(backend: Backend) -> None:
    """Frees the results that stayed on the GPU, so that the judge has their memory."""
    _kept.clear()
    give_back(backend)


class RemoteKernel:
    """Calls a kernel in another process, as `run_judged` does in this one."""

    def __init__(self, kernel: Kernel, target: str, device: str, begin: BeginKernel) -> None:
        self._kernel, self._target, self._device, self._begin = kernel, target, device, begin
        self._expected: Case | None = None
        self._asked = {*kernel.dtypes} if kernel.peer else set[str]()
        self._begun: tuple[str, Callable[[], Outcome]] | None = None  # the case of a call that goes on

    def expect(self, case: Case) -> None:
        """Lets the kernel begin with this case when the results of the next call, of equal sizes, are copied."""
        self._expected = case

    def end(self) -> None:
        """Waits for a call that was begun. No message to the caller may cross its reply."""
        begun, self._begun = self._begun, None
        if begun is not None:
            begun[1]()

    def _begin_call(self, case: str, most: int, *, again: bool = False) -> Callable[[], Outcome]:
        return self._begin(msgspec.json.encode(CallKernel(self._target, case, again)), most)

    def _reply(self, case: str, most: int, *, again: bool = False) -> Reply:
        """Returns the reply to a call, which may have begun already."""
        if self._begun is not None and self._begun[0] != case:
            self.end()
        _, wait = self._begun or ("", self._begin_call(case, most, again=again))
        self._begun = None
        return demand_reply(wait())

    def __call__(self, case: Case) -> Measured:
        kernel, op, params, device = self._kernel, self._kernel.op, self._kernel.op.resolve(case.params), self._device
        expected, self._expected = self._expected, None
        shapes = op.shapes(case.dims, params)
        if kernel.encoding is not None:
            shapes |= kernel.encoding.shapes(rows_and_columns(kernel, case))
        else:
            shapes |= {name: op.result_shapes(case.dims, params)[name] for name in kernel.outputs}
        most = WIDEST * (1 + len(INFERENCE)) * sum(map(math.prod, shapes.values()))
        again = self._begun is None and is_first(self._asked, case)
        reply = self._reply(case.to_json(), most, again=again)
        try:
            bits = msgspec.json.decode(reply.value, type=Bits)
        except msgspec.DecodeError:
            raise KernelError(FOREIGN) from None
        found = _tensors(bits.stored, reply.parts, device, most)
        if expected is not None:  # its call also frees the results of this one
            self._begun = expected.to_json(), self._begin_call(expected.to_json(), most)
        elif any(item.lent for item in bits.stored):
            self._reply("", 0)
        results = {name: tensor.to(device) for (mode, name), tensor in found.items() if not mode}
        inputs = sent_all(inputs_of(op, case, device, shared=True), device)
        if kernel.encoding is not None:
            demand_parts(kernel, kernel.encoding, case, results)
            return Measured(inputs, {}, results)
        outputs = _checked(kernel, case, device, results, inputs)
        upstream = sent_all(upstream_of(op, case, outputs, shared=True), device)
        inference: dict[str, dict[str, Tensor]] = {}
        for mode, name in found:
            if mode in INFERENCE and name in outputs:
                tensor, like = found[mode, name].to(device), outputs[name]
                about = f"for dims {case.dims}"
                check_output(f"{kernel.name} {mode}", name, tensor, (tuple(like.shape), like.dtype, device), about)
                inference.setdefault(mode, {})[name] = tensor
        return Measured(inputs, upstream, results, bits.missing, inference)


def _tensors(
    stored: Sequence[Stored], parts: Sequence[bytearray], device: str, most: int
) -> dict[tuple[str, str], Tensor]:
    """Returns the tensors by mode of inference and name."""
    try:
        found = tensors_in(stored, parts, device, lambda size: most)
    except (ValueError, RuntimeError, TypeError):  # the last two: PyTorch has no such tensor
        raise KernelError("its process sent bits that do not match their description") from None
    return {(item.mode, item.name): each for item, each in zip(stored, found, strict=True)}


def _checked(
    kernel: Kernel, case: Case, device: str, results: dict[str, Tensor], inputs: dict[str, Tensor | None]
) -> dict[str, Tensor]:
    """Returns the outputs. Raises KernelError unless all results have the form that the case requires.

    The kernel's process has checked the form already. The kernel could change that check, but not this one.
    """
    op = kernel.op
    params = op.resolve(case.params)
    for name, tensor in results.items():
        if name in kernel.outputs:
            shape, kind = op.result_shapes(case.dims, params)[name], kernel.torch_dtype(case.dtype, name)
        else:
            operand = next((each for each in op.operands if "d" + each.name == name), None)
            value = None if operand is None else inputs[operand.name]
            if operand is None or value is None:
                raise KernelError(f"{kernel.name} returned an unexpected result: {name}")
            shape, kind = tuple(value.shape), formats.torch_dtype(formats.named(operand_dtype(case, operand)))
        check_output(kernel.name, name, tensor, (shape, kind, device), f"for dims {case.dims}")
    if absent := [name for name in kernel.outputs if name not in results]:
        raise KernelError(f"{kernel.name} must return {', '.join(kernel.outputs)}; {absent[0]} is missing")
    return {name: results[name] for name in kernel.outputs}
