"""Runs a kernel, or an op's baseline, on a case. Collects its outputs and gradients and checks its contract.

A kernel breaks its contract if it returns the wrong number of tensors, a wrong shape, dtype or device, or something
that is not a tensor, if it changes its inputs, or if a later call changes what an earlier one returned. `KernelError`
then gives the rule and what was received. This module makes no numerical decision.
"""

from __future__ import annotations

import math
import re
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch
from torch import Tensor

from verify.cases import Case, inputs_of, upstream_of
from verify.cases.values import ENDLESS, SMALL
from verify.declare.declaration import Kernel
from verify.declare.standin import baseline_of
from verify.errors import KernelError, Refused, RefusedBackward, UsageError, said_by
from verify.measure.form import as_rows, check_output, demand_own_memory, demand_values, outputs_of
from verify.measure.state import working_folder
from verify.ops import autograd
from verify.truth.quantised.encoding import Encoding, Parts, WrongForm
from verify.truth.ulp import fetched, same_bits

device_of_module: AbstractContextManager[Any] = nullcontext()  # set as the default device while a kernel is called
_LARGE = 1 << 20  # elements of operands beyond which PyTorch is not asked about them on a CPU first
_AGAIN = 1 << 24  # elements of results from which inputs that another kernel was given are not made again
# how kernels, PyTorch and Triton say that a machine has no GPU, or that a tensor is not on one
_GPU = re.compile(r"\b(CUDA|GPU|NVIDIA|CUDA_HOME)\b|\b0 active drivers")
_PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Measured:
    """Holds the inputs and upstream gradients of one call, and its results: outputs, then gradients."""

    inputs: dict[str, Tensor | None]
    upstream: dict[str, Tensor]
    results: dict[str, Tensor]
    missing: tuple[str, ...] = ()  # gradients that autograd has no path to
    # outputs by mode of inference, if their bits differ
    inference: Mapping[str, dict[str, Tensor]] = field(default_factory=dict)
    on_host: Measured | None = None  # for small tensors: the same values in CPU memory, read-only

    @property
    def to_read(self) -> Measured:
        """Returns the copy with the same values that is cheapest to read."""
        return self.on_host or self

    def lacking(self, theirs: Mapping[str, Tensor]) -> str:
        """Returns which of PyTorch's gradients the kernel does not give, and how a declaration says so; "" if none."""
        lost = [name for name in self.missing if name in theirs]
        own = [name for name in self.inputs if f"d{name}" in self.results]
        said = f"gradients={own!r}" if own else "gradients=False"
        return f"no {', '.join(lost)}, which PyTorch has; if that is meant, declare {said}" if lost else ""

    def snapshot(self) -> dict[str, Tensor]:
        """Returns the results as they are now, safe from changes by later calls."""
        held = self.to_read.results
        alone = {name for name, value in held.items() if value.data_ptr() != self.results[name].data_ptr()}
        return {name: value if name in alone else value.clone() for name, value in held.items()}


class Unchanged:
    """Compares tensors that a kernel must not change.

    `demand` compares all of them at once, as each comparison waits for the GPU.
    """

    def __init__(self) -> None:
        self._pairs: list[tuple[Tensor, Tensor, str]] = []

    def watch(self, before: Mapping[str, Tensor], after: Mapping[str, Tensor], complaint: str) -> None:
        """Adds tensors after a call, and the copies made before it. Copies may be on the device or in CPU memory.

        `complaint` is the message. The tensor's name replaces {name} in it.
        """
        self._pairs += [(before[name], after[name], complaint.replace("{name}", name)) for name in before]

    def watch_inputs(self, label: str, before: Mapping[str, Tensor | None], after: Mapping[str, Tensor | None]) -> None:
        """Adds the operands of a call of the kernel `label`. Absent operands are None in both mappings."""
        old, new = ({name: value for name, value in some.items() if value is not None} for some in (before, after))
        self.watch(old, new, f"{label} must not change its inputs; {{name}} differs after the call")

    def demand(self, *results: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
        """Raises KernelError with the complaint about the first tensor with other bits than its copy.

        Returns the results. They are in CPU memory if all tensors are small, because they are then fetched together
        with the others.
        """
        pairs, self._pairs = self._pairs, []
        before, after = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        found = [value for some in results for value in some.values()]
        line = [*before, *after, *found]
        if all(value.numel() <= SMALL for value in line):
            line = fetched(line)
        count = len(pairs)
        before, after = line[:count], line[count : 2 * count]
        if not same_bits(before, after):
            complaints = zip(before, after, (words for _, _, words in pairs), strict=True)
            raise KernelError(next(words for old, new, words in complaints if not same_bits([old], [new])))
        taken = iter(line[2 * count :])
        return [dict(zip(some, taken, strict=False)) for some in results]


def sent(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Copies a tensor to a device, into memory of its own, and keeps its layout. `clone` does not always keep it."""
    # non_blocking is safe: ordinary CPU memory is read before the call returns
    if _is_compact(tensor):
        if tensor.is_cpu and device == "cpu":
            return tensor.clone()
        return tensor.to(device, copy=True, non_blocking=True)
    whole = tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)
    copied = whole.to(device, copy=True, non_blocking=True)
    moved: Tensor = copied.new_empty(0).set_(
        copied.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
    )
    return moved


_Some = TypeVar("_Some", Tensor, Tensor | None)


def sent_all(tensors: Mapping[str, _Some], device: torch.device | str) -> dict[str, _Some]:
    """Applies `sent` to several tensors. An absent tensor (None) remains None."""
    return {name: value if value is None else sent(value, device) for name, value in tensors.items()}


def _is_small_on_host(tensor: Tensor) -> bool:
    return tensor.is_cpu and tensor.numel() <= SMALL


def copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns contiguous copies for comparison. On a GPU, one operation copies all tensors of one dtype."""
    found = dict(tensors)
    if all(tensor.is_cpu for tensor in tensors.values()):
        return {name: _contiguous_copy(tensor.detach()) for name, tensor in tensors.items()}
    alike: dict[Any, list[str]] = {}
    for name, tensor in tensors.items():
        alike.setdefault((tensor.dtype, tensor.device), []).append(name)
    for names in alike.values():
        pieces = [tensors[name].detach().reshape(-1) for name in names]
        line = pieces[0].clone() if len(names) == 1 else torch.cat(pieces)
        parts = torch.split(line, [piece.numel() for piece in pieces])
        found |= {name: part.view(tensors[name].shape) for name, part in zip(names, parts, strict=True)}
    return found


def _is_compact(tensor: Tensor) -> bool:
    """True if a tensor is contiguous and fills its storage."""
    return tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def _contiguous_copy(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def run_kernel(
    kernel: Kernel, case: Case, device: str, *, contiguous: bool = False, beside: Measured | None = None
) -> Measured:
    """Runs a declared kernel on a case. With `contiguous`, its tensors have no other layout.

    Takes the inputs of `beside`, another kernel's results of the same case, if they are large.
    """
    if case.fill in ENDLESS and device != "cpu":
        demand_numbers(kernel, case)
    op, label, about = kernel.op, kernel.name, f"for dims {case.dims}"

    def placed(value: Tensor) -> Tensor:
        return sent(_contiguous_copy(value) if contiguous and not _is_compact(value) else value, device)

    large = beside is not None and sum(value.numel() for value in beside.results.values()) > _AGAIN
    originals = beside.inputs if large and beside else inputs_of(op, case, device, shared=True)
    given = {name: None if value is None else placed(value) for name, value in originals.items()}
    graph = call_tensors(kernel, given, case.params, differentiate=bool(case.upstream))
    results, unchanged = graph.values, Unchanged()
    if kernel.encoding is not None:
        demand_parts(kernel, kernel.encoding, case, results)
        unchanged.watch_inputs(label, originals, given)
        unchanged.demand()
        # codes and scales may have any dtype of one byte; records know float8_e5m2, of which only the bits are used
        bits = {name: each.view(torch.float8_e5m2) if each.itemsize == 1 else each for name, each in results.items()}
        return Measured(given, {}, bits)
    for name, tensor in graph.outputs.items():
        shape = op.result_shapes(case.dims, op.resolve(case.params))[name]
        check_output(label, name, tensor, (shape, kernel.torch_dtype(case.dtype, name), device), about, hint=True)
    demand_own_memory(kernel, case, given, graph.outputs)

    small = all(_is_small_on_host(value) for value in originals.values() if value is not None)
    same = large and beside is not None and all(_alike(results[name], value) for name, value in beside.upstream.items())
    arriving = beside.upstream if same and beside else upstream_of(op, case, results, shared=small)
    upstream = {name: placed(value) for name, value in arriving.items()}
    results |= gradients_of(kernel, graph, upstream, unchanged=unchanged, originals=arriving)
    missing = _missing(graph, results) if upstream else ()
    unchanged.watch_inputs(label, originals, given)
    (found,) = unchanged.demand(results)
    small = small and all(map(_is_small_on_host, (*arriving.values(), *found.values())))
    on_host = Measured(originals, arriving, found, missing) if small else None
    return Measured(given, upstream, results, missing, on_host=on_host)


def demand_numbers(kernel: Kernel, case: Case) -> None:
    """Raises Refused if PyTorch refuses a small case on a CPU for its numbers, such as the entropy of NaN.

    A GPU only finds out in the middle of a kernel: it asserts, and the process can compute nothing any more.
    """
    shapes = kernel.op.shapes(case.dims, kernel.op.resolve(case.params))
    if sum(map(math.prod, shapes.values())) > _LARGE:
        return
    theirs = baseline_of(kernel)
    try:
        run_kernel(theirs, case, "cpu")
    except KernelError:
        try:
            run_kernel(theirs, msgspec.structs.replace(case, fill="randn"), "cpu")
        except KernelError:  # whatever the numbers: a CPU may lack the operator in this dtype
            return
        raise


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.device == b.device


def demand_parts(kernel: Kernel, encoding: Encoding, case: Case, parts: Mapping[str, Tensor]) -> None:
    """Raises KernelError unless a quantiser returned each part in the form that a case requires."""
    try:
        encoding.demand_form(Parts(**{name: parts[name] for name in encoding.names}), rows_and_columns(kernel, case))
    except (KeyError, WrongForm) as error:
        raise KernelError(f"{kernel.name}: {error}") from None


def rows_and_columns(kernel: Kernel, case: Case) -> tuple[int, int]:
    """Returns the numbers of rows and columns of a quantiser's input in a case."""
    shape = kernel.op.result_shapes(case.dims, kernel.op.resolve(case.params))[kernel.outputs[0]]
    if len(shape) != 2:
        raise UsageError(f"{kernel.name}: a quantiser's data has rows and columns; received the shape {shape}")
    return shape[0], shape[1]


@dataclass(frozen=True)
class Graph:
    """Holds one call on given tensors: the outputs with their autograd graph, and the leaves of that graph."""

    outputs: dict[str, Tensor]
    leaves: dict[str, Tensor]

    @property
    def values(self) -> dict[str, Tensor]:
        """Returns the outputs without their autograd graph."""
        return {name: tensor.detach() for name, tensor in self.outputs.items()}


def call_tensors(
    kernel: Kernel, inputs: Mapping[str, Tensor | None], params: Mapping[str, Any], *, differentiate: bool = True
) -> Graph:
    """Calls a declared kernel on given tensors in any layout. Does not copy or check the inputs."""
    resolved = kernel.op.resolve(params)
    wanted = {operand.name for operand in kernel.differentiable} if differentiate else set()
    leaves: dict[str, Tensor] = {}
    arguments: list[Tensor | None] = []
    regions = kernel.op.regions
    for name in kernel.operands:
        value = inputs[name]
        if value is not None and name in wanted and value.is_floating_point():
            value = leaves[name] = value.detach().requires_grad_(True)
            if regions is not None:
                regions.limit_gradient(name, value, inputs)
        arguments.append(value)
    keywords = {name: value for name, value in resolved.items() if name in kernel.accepted}
    returned = _call(kernel.function, arguments, keywords, kernel.name)
    if kernel.encoding is not None:
        return Graph(outputs_of(returned, kernel.encoding.names, kernel.name, ()), {})
    outputs = outputs_of(returned, kernel.outputs, kernel.name, kernel.op.integers)
    if kernel.draws:
        shapes = kernel.op.meaning.outputs_of({name: value for name, value in inputs.items() if value is not None})
        outputs |= {name: as_rows(kernel.name, name, outputs[name], shapes[name][0]) for name in kernel.draws}
    return Graph(outputs if regions is None else regions.cut(outputs, inputs), leaves)


def gradients_of(
    kernel: Kernel,
    graph: Graph,
    upstream: Mapping[str, Tensor],
    *,
    retain: bool = False,
    unchanged: Unchanged | None = None,
    originals: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Returns the gradients that a call's backward pass gives for `upstream`, one tensor per output.

    unchanged: None compares `upstream` with its copies here. Otherwise the caller must call `unchanged.demand`.
    originals: the tensors that `upstream` was copied from. Without them, copies are made here.
    """
    label, leaves, required = kernel.name, graph.leaves, kernel.gradients != "auto"
    if not leaves or not upstream:
        return {}
    attached = {name: tensor for name, tensor in graph.outputs.items() if tensor.requires_grad}
    if not attached:
        if required:
            promised = f"{label} promises gradients for {', '.join(leaves)}"
            raise KernelError(f"{promised}, but its output is not attached to autograd")
        return {}
    # copied: a backward pass that overwrites dy would otherwise change the input of the truth
    arrived = {name: _contiguous_copy(upstream[name]) if originals is None else originals[name] for name in attached}
    try:
        arriving = tuple(upstream[name] for name in attached)
        with device_of_module:
            found = autograd.gradients(tuple(attached.values()), tuple(leaves.values()), arriving, retain=retain)
    except Exception as error:
        raise _raised(f"{label} raised in backward: {describe(error)}", error, RefusedBackward) from error
    gradients: dict[str, Tensor] = {}
    for (name, leaf), gradient in zip(leaves.items(), found, strict=True):
        if gradient is None:
            continue
        demand_values(label, "d" + name, gradient)
        if gradient.shape != leaf.shape or gradient.dtype != leaf.dtype:
            raise KernelError(
                f"{label} must return d{name} like {name}: {tuple(leaf.shape)} {leaf.dtype}; it returned "
                f"{tuple(gradient.shape)} {gradient.dtype}"
            )
        gradients["d" + name] = gradient.detach()
    if required and (missing := _missing(graph, gradients)):
        raise KernelError(f"{label} promises {', '.join(missing)}, but autograd has no path to it")
    watched = unchanged or Unchanged()
    watched.watch(
        arrived, upstream, f"{label} must not change the gradient that arrives at {{name}}; it differs after backward"
    )
    if unchanged is None:
        watched.demand()
    return gradients


def _missing(graph: Graph, gradients: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Returns the gradients that autograd has no path to."""
    return tuple("d" + name for name in graph.leaves if "d" + name not in gradients)


def run_tensors(
    kernel: Kernel,
    inputs: Mapping[str, Tensor | None],
    params: Mapping[str, Any],
    upstream: Mapping[str, Tensor],
    *,
    unchanged: Unchanged | None = None,
    originals: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Returns the outputs and gradients of one call on given tensors; without `upstream`, the outputs only."""
    graph = call_tensors(kernel, inputs, params, differentiate=bool(upstream))
    return graph.values | gradients_of(kernel, graph, upstream, unchanged=unchanged, originals=originals)


def run_baseline(kernel: Kernel, case: Case, device: str, beside: Measured | None = None) -> Measured:
    """Runs PyTorch's implementation of the kernel's op on the same case. `beside` has the kernel's own results."""
    return run_kernel(baseline_of(kernel), case, device, beside=beside)


def _call(function: Callable[..., Any], arguments: list[Tensor | None], keywords: Mapping[str, Any], label: str) -> Any:
    """Calls the function. Raises KernelError, with the place in the user's code, for an exception."""
    try:
        with device_of_module:
            return function(*arguments, **keywords)
    except KernelError:
        raise
    except Exception as error:
        here = all(value.is_cpu for value in arguments if value is not None)
        lacks = here and _GPU.search(str(error)) is not None
        said = "needs a GPU (declare backends=['cuda']): it raised" if lacks else "raised"
        raise _raised(f"{label} {said} {describe(error)}", error, Refused) from error


def _raised(text: str, error: Exception, refused: type[Refused]) -> KernelError:
    """Returns the error for a kernel that raised: a refusal, or a plain KernelError if the GPU reported a fault."""
    return KernelError(text) if is_fault(error) else refused(text)


def is_fault(error: BaseException) -> bool:
    """True if a GPU reported a fault of a kernel, such as a misaligned address. Any later call may raise it."""
    return type(error).__name__ == "AcceleratorError" or "CUDA error" in said_by(error)


@lru_cache
def _is_ours(file: str) -> bool:
    return _PACKAGE in Path(file).parents


def describe(error: BaseException) -> str:
    """Returns an error as one line: its type, the first line of its message, and the place in the user's code.

    A file below the working folder is named from there, because records are published.
    """
    text = next((line.strip() for line in said_by(error).splitlines() if line.strip()), "no message")
    walked = reversed(list(traceback.walk_tb(error.__traceback__)))
    frames = ((frame.f_code.co_filename, line) for frame, line in walked)
    base = f"{working_folder()}/"
    own = ((file, line) for file, line in frames if "/site-packages/" not in file and not _is_ours(file))
    place = next((f" ({file.removeprefix(base)}:{line})" for file, line in own), "")
    return f"{type(error).__name__}: {text}{place}"


# A kernel may take another path if nothing is saved for a backward pass. All other judged calls ask for gradients.
INFERENCE: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "where no operand requires a gradient": nullcontext,
    "under torch.no_grad()": torch.no_grad,
    "under torch.inference_mode()": torch.inference_mode,
}


def inferred(kernel: Kernel, case: Case, measured: Measured) -> dict[str, dict[str, Tensor]]:
    """Repeats a measured call in each mode of inference. Returns the outputs by mode, only where their bits differ."""
    if not case.upstream:
        return {}
    near, unchanged = measured.to_read, Unchanged()
    given = sent_all(near.inputs, next(iter(measured.results.values())).device)
    runs = []
    for mode, entered in INFERENCE.items():
        called = replace(kernel, name=f"{kernel.name} {mode}")
        with entered():
            outputs = call_tensors(called, given, case.params, differentiate=entered is torch.no_grad).values
        for name, tensor in outputs.items():
            like, about = measured.results[name], f"for dims {case.dims}"
            check_output(called.name, name, tensor, (tuple(like.shape), like.dtype, like.device), about)
        runs.append(outputs)
    unchanged.watch_inputs(f"{kernel.name} for inference", near.inputs, given)
    runs = unchanged.demand(*runs)
    trained = [near.results[name] for name in kernel.outputs]
    return {
        mode: copies(outputs)
        for mode, outputs in zip(INFERENCE, runs, strict=True)
        if not same_bits(list(outputs.values()), trained)
    }


def alone(kernel: Kernel, case: Case, measured: Measured) -> dict[str, dict[str, Tensor]]:
    """Repeats a measured call with a gradient for one operand alone, for each operand.

    Returns the gradients with other bits than in the measured call, by a text that names the operand.
    """
    near, found = measured.to_read, {}
    names = [operand.name for operand in kernel.differentiable if "d" + operand.name in measured.results]
    for name in names if len(names) > 1 else ():
        called = replace(kernel, gradients=(name,), name=f"{kernel.name} where only {name} requires a gradient")
        device = measured.results["d" + name].device
        given, arriving = sent_all(near.inputs, device), sent_all(near.upstream, device)
        gradients = copies(run_tensors(called, given, case.params, arriving))
        wanted = {"d" + name: gradients["d" + name]}
        if not same_bits(list(sent_all(wanted, "cpu").values()), [near.results["d" + name].cpu()]):
            found[f"where only {name} requires a gradient"] = wanted
    return found


_OTHERS = 2  # this many later calls must not change a result: a kernel may use buffers in turn
_SHORT = 8  # the largest size of a dimension in these calls, where the kernel allows that


def is_first(asked: set[str], case: Case) -> bool:
    """True for the first case of a dtype. Adds the dtype to those asked for."""
    first = case.dtype not in asked
    asked.add(case.dtype)
    return first


def run_judged(kernel: Kernel, case: Case, device: str, *, again: bool = False) -> Measured:
    """Returns all results of a kernel on one case that `verify run` judges.

    With `again`, raises KernelError if later calls change the results of an earlier one.
    """
    measured = run_kernel(kernel, case, device)
    if kernel.peer:
        return measured
    measured = replace(measured, inference=inferred(kernel, case, measured))
    if again:  # last: a first call may differ from all later ones
        _demand_kept(kernel, case, device)
    return measured


def running_here(kernel: Kernel, device: str) -> Callable[[Case], Measured]:
    """Returns a function that calls a kernel in this process."""
    asked = {*kernel.dtypes} if kernel.peer else set[str]()
    return lambda case: run_judged(kernel, case, device, again=is_first(asked, case))


def _demand_kept(kernel: Kernel, case: Case, device: str) -> None:
    """Raises KernelError if calls with other values change the results of a call on a few elements."""
    dims = tuple(min(size, _SHORT) for size in case.dims)
    short = msgspec.structs.replace(case, dims=dims, edits={}, values={}) if kernel.allows(dims) else case
    if short.fill == "patterns":  # which no seed changes
        short = msgspec.structs.replace(short, fill="normal")
    shapes = kernel.op.shapes(short.dims, kernel.op.resolve(case.params))
    kernel = replace(kernel, op=replace(kernel.op, regions=None))  # else its results are copies
    if not 0 < sum(map(math.prod, shapes.values())) <= SMALL:
        return
    try:
        live = run_kernel(kernel, short, device).results
        early = copies(live)
        for later in range(1, _OTHERS + 1):
            run_kernel(kernel, msgspec.structs.replace(short, seed=case.seed + later), device)
    except KernelError:  # the case itself, or a later one, says why
        return
    for name, value in copies(live).items():
        if not same_bits([value], [early[name]]):
            raise KernelError(
                f"{kernel.name} must not change what it has returned: later calls with other values change {name} of "
                f"an earlier call, for dims {short.dims}"
            )
