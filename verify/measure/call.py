"""Run a kernel (or an op's baseline) on a case and collect outputs and gradients, checked for contract.

A kernel that returns the wrong number of tensors, a wrong shape, dtype or device, something that is not a
tensor, or that changes its inputs, has broken its contract: `KernelError` says the rule and what was
received. Nothing here knows what is numerically right.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter

from verify.cases import Case, inputs_of, upstream_of
from verify.cases.values import SMALL
from verify.declare.declaration import Kernel, expected_shape
from verify.declare.standin import baseline_of
from verify.errors import KernelError, OtherDtype, Refused, RefusedBackward, UsageError, said_by
from verify.ops import autograd
from verify.truth import formats
from verify.truth.quantised.encoding import Encoding, Parts, WrongForm
from verify.truth.ulp import fetched, same_bits

device_of_module: AbstractContextManager[Any] = nullcontext()  # the default device while a kernel is called
_PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Measured:
    """Inputs as given, upstream gradients as given, and every result: outputs, then gradients."""

    inputs: dict[str, Tensor | None]
    upstream: dict[str, Tensor]
    results: dict[str, Tensor]
    missing: tuple[str, ...]  # gradients that the kernel does not provide
    inference: Mapping[str, dict[str, Tensor]] = field(default_factory=dict)  # outputs by mode, where their bits differ
    on_host: Measured | None = None  # of small tensors the same values in the memory of the host, to be read only

    @property
    def to_read(self) -> Measured:
        """The same values where reading them costs least."""
        return self.on_host or self

    @property
    def without_figures(self) -> list[str]:
        """Says which gradients have no figures: a forgotten backward pass must not look like a deliberate omission."""
        if self.missing and not any(name.startswith("d") for name in self.results):
            return ["no gradients measured: the output does not require grad; gradients=False says so on purpose"]
        return [no_gradient(name) for name in self.missing]

    def snapshot(self) -> dict[str, Tensor]:
        """The results as they are now, whatever a later call does to them."""
        held = self.to_read.results
        alone = {name for name, value in held.items() if value.data_ptr() != self.results[name].data_ptr()}
        return {name: value if name in alone else value.clone() for name, value in held.items()}


class Unchanged:
    """What a kernel must leave as it is. `demand` compares all of it at once: each comparison waits for the GPU."""

    def __init__(self) -> None:
        self._pairs: list[tuple[Tensor, Tensor, str]] = []

    def watch(self, before: Mapping[str, Tensor], after: Mapping[str, Tensor], complaint: str) -> None:
        """Tensors after a call, and copies that were made of them before it, on the device or on the host.

        `complaint` is the message, with the name in place of {name}.
        """
        self._pairs += [(before[name], after[name], complaint.replace("{name}", name)) for name in before]

    def watch_inputs(self, label: str, before: Mapping[str, Tensor | None], after: Mapping[str, Tensor | None]) -> None:
        """The operands of a call of the kernel `label`; those that are absent are None in both."""
        old, new = ({name: value for name, value in some.items() if value is not None} for some in (before, after))
        self.watch(old, new, f"{label} must not change its inputs; {{name}} differs after the call")

    def demand(self, *results: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
        """Raise the complaint about the first tensor whose bits differ from those of its copy.

        Returns the results, in the memory of the host if all tensors are small: they are then copied with the others.
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


def run_contiguous(kernel: Kernel, case: Case, device: str) -> Measured:
    """Run a declared kernel on contiguous copies of what the case's layouts hold."""
    return run_kernel(kernel, case, device, prepare=_compact)


def sent(tensor: Tensor, device: torch.device | str) -> Tensor:
    """The same values on a device in memory of their own with the same layout, which `clone` would not always keep."""
    # nothing waits: ordinary memory is read before the call returns
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
    """`sent` for each of several; those that are absent stay so."""
    return {name: value if value is None else sent(value, device) for name, value in tensors.items()}


def _is_small_on_host(tensor: Tensor) -> bool:
    return tensor.is_cpu and tensor.numel() <= SMALL


def copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous copies, on a GPU by one operation for all tensors of one dtype: to be compared, not used."""
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
    """Whether a tensor is contiguous and alone in its memory."""
    return tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def _compact(tensor: Tensor) -> Tensor:
    return tensor if _is_compact(tensor) else _contiguous_copy(tensor)


def _contiguous_copy(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def run_kernel(
    kernel: Kernel,
    case: Case,
    device: str,
    *,
    prepare: Callable[[Tensor], Tensor] = lambda tensor: tensor,
) -> Measured:
    """Run a declared kernel on a case. `prepare` may change how each tensor lies in memory, not its values."""
    if kernel.encoding is not None:
        return _run_quantiser(kernel, kernel.encoding, case, device, prepare)
    op, label, about = kernel.op, kernel.name, f"for dims {case.dims}"
    originals = inputs_of(op, case, device, shared=True)
    given = {name: None if value is None else sent(prepare(value), device) for name, value in originals.items()}
    graph = call_tensors(kernel, given, case.params, differentiate=bool(case.upstream))
    for name, tensor in graph.outputs.items():
        shape = expected_shape(op, case.dims, op.resolve(case.params), name)
        form = Form(shape, kernel.torch_dtype(case.dtype, name), torch.device(device), about)
        check_output(label, name, tensor, form, hint=True)

    results = graph.values
    small = all(_is_small_on_host(value) for value in originals.values() if value is not None)
    arriving = upstream_of(op, case, results, shared=small)
    upstream = {name: sent(prepare(value), device) for name, value in arriving.items()}
    missing: tuple[str, ...] = ()
    unchanged = Unchanged()
    if upstream and graph.leaves:
        gradients, missing = _gradients(kernel, graph, upstream, unchanged, originals=arriving)
        results |= gradients
    unchanged.watch_inputs(label, originals, given)
    (found,) = unchanged.demand(results)
    small = small and all(map(_is_small_on_host, (*arriving.values(), *found.values())))
    on_host = Measured(originals, arriving, found, missing) if small else None
    return Measured(given, upstream, results, missing, on_host=on_host)


def _run_quantiser(
    kernel: Kernel, encoding: Encoding, case: Case, device: str, prepare: Callable[[Tensor], Tensor]
) -> Measured:
    """Run a quantiser on a case. It returns codes and scales in bytes of any dtype.

    Each byte travels as float8_e5m2, the format of one byte that a record knows; only its bits are read.
    """
    originals = inputs_of(kernel.op, case, device, shared=True)
    given = {name: None if value is None else sent(prepare(value), device) for name, value in originals.items()}
    returned = _call(kernel.function, [given[name] for name in kernel.operands], {}, kernel.name)
    parts = outputs_of(returned, encoding.names, kernel.name, ())
    demand_parts(kernel, encoding, case, parts)
    results = {
        name: (each.view(torch.float8_e5m2) if each.element_size() == 1 else each).detach()
        for name, each in parts.items()
    }
    unchanged = Unchanged()
    unchanged.watch_inputs(kernel.name, originals, given)
    unchanged.demand()
    return Measured(given, {}, results, ())


def demand_parts(kernel: Kernel, encoding: Encoding, case: Case, parts: Mapping[str, Tensor]) -> None:
    """KernelError unless a quantiser returned each part in the form that a case asks for."""
    try:
        encoding.demand_form(Parts(*(parts[name] for name in encoding.names)), rows_and_columns(kernel, case))
    except (KeyError, WrongForm) as error:
        raise KernelError(f"{kernel.name}: {error}") from None


def rows_and_columns(kernel: Kernel, case: Case) -> tuple[int, int]:
    """Returns the rows and columns of the numbers that a quantiser is given in a case."""
    shape = expected_shape(kernel.op, case.dims, kernel.op.resolve(case.params), kernel.outputs[0])
    if len(shape) != 2:
        raise UsageError(f"{kernel.name}: a quantiser's data has rows and columns; received the shape {shape}")
    return shape[0], shape[1]


@dataclass(frozen=True)
class Graph:
    """One call on given tensors: the outputs as autograd has them, and the leaves that they hang on."""

    outputs: dict[str, Tensor]
    leaves: dict[str, Tensor]

    @property
    def values(self) -> dict[str, Tensor]:
        """The outputs without their history."""
        return {name: tensor.detach() for name, tensor in self.outputs.items()}


def call_tensors(
    kernel: Kernel, inputs: Mapping[str, Tensor | None], params: Mapping[str, Any], *, differentiate: bool = True
) -> Graph:
    """Call a declared kernel on given tensors, in whatever layout they are; no copies, no checks of its inputs."""
    resolved = kernel.op.resolve(params)
    wanted = {operand.name for operand in kernel.differentiable} if differentiate else set()
    leaves: dict[str, Tensor] = {}
    arguments: list[Tensor | None] = []
    for name in kernel.operands:
        value = inputs[name]
        if value is not None and name in wanted and value.is_floating_point():
            value = leaves[name] = value.detach().requires_grad_(True)
        arguments.append(value)
    keywords = {name: value for name, value in resolved.items() if name in kernel.accepted}
    returned = _call(kernel.function, arguments, keywords, kernel.name)
    return Graph(outputs_of(returned, kernel.outputs, kernel.name, kernel.op.integers), leaves)


def gradients_of(
    kernel: Kernel,
    graph: Graph,
    upstream: Mapping[str, Tensor],
    *,
    retain: bool = False,
    unchanged: Unchanged | None = None,
    originals: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """The gradients that a call's backward pass gives for `upstream`, one tensor per output.

    Whether `upstream` is as it was is compared here, unless the caller passes `unchanged`, which it must then `demand`.
    `originals` are what `upstream` was made from, where there is such a thing; else copies are made.
    """
    if not graph.leaves or not upstream:
        return {}
    watched = Unchanged() if unchanged is None else unchanged
    found, _ = _gradients(kernel, graph, upstream, watched, retain=retain, originals=originals)
    if unchanged is None:
        watched.demand()
    return found


def run_tensors(
    kernel: Kernel,
    inputs: Mapping[str, Tensor | None],
    params: Mapping[str, Any],
    upstream: Mapping[str, Tensor],
    *,
    unchanged: Unchanged | None = None,
    originals: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Outputs and gradients of one call on given tensors; without `upstream`, outputs only."""
    graph = call_tensors(kernel, inputs, params, differentiate=bool(upstream))
    return graph.values | gradients_of(kernel, graph, upstream, unchanged=unchanged, originals=originals)


# A kernel may take another path where nothing is kept for a backward pass: every judged call else asks for gradients.
INFERENCE: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "where no operand requires a gradient": nullcontext,
    "under torch.no_grad()": torch.no_grad,
    "under torch.inference_mode()": torch.inference_mode,
}


def inferred(kernel: Kernel, case: Case, measured: Measured) -> dict[str, dict[str, Tensor]]:
    """The outputs of a measured call made for inference, under each mode in which they have other bits."""
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
            wanted = measured.results[name]
            check_output(called.name, name, tensor, Form.like(wanted, case))
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
    """The gradient of each operand of a measured call where no other one requires any, if it has other bits then."""
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


def run_judged(kernel: Kernel, case: Case, device: str) -> Measured:
    """Everything of a kernel that `verify run` judges on one case."""
    measured = run_kernel(kernel, case, device)
    return measured if kernel.peer else replace(measured, inference=inferred(kernel, case, measured))


def run_baseline(kernel: Kernel, case: Case, device: str) -> Measured:
    """Run PyTorch's own implementation of the kernel's op on the same case."""
    return run_kernel(baseline_of(kernel), case, device)


def _call(
    function: Callable[..., Any],
    arguments: list[Tensor | None],
    keywords: Mapping[str, Any],
    label: str,
) -> Any:
    try:
        with device_of_module:
            return function(*arguments, **keywords)
    except KernelError:
        raise
    except Exception as error:
        raise _raised(f"{label} raised {describe(error)}", error, Refused) from error


def _raised(text: str, error: Exception, refused: type[Refused]) -> KernelError:
    """A refusal, unless the GPU reports a fault: that is no word of the kernel's."""
    fault = type(error).__name__ == "AcceleratorError" or "CUDA error" in said_by(error)
    return KernelError(text) if fault else refused(text)


def outputs_of(returned: Any, outputs: tuple[str, ...], label: str, integers: tuple[str, ...]) -> dict[str, Tensor]:
    """What a call returned, by name; integers and conditions as float64 numbers, which hold all that index a tensor."""
    if isinstance(returned, Mapping):
        returned = tuple(returned.values())
    items = tuple(returned) if isinstance(returned, tuple | list) else (returned,)
    if len(items) != len(outputs):
        raise KernelError(
            f"{label} must return {len(outputs)} tensor(s): {', '.join(outputs)}; it returned {len(items)}"
        )
    for name, item in zip(outputs, items, strict=True):
        _demand_values(label, name, item)
        if name in integers and item.is_floating_point():
            raise KernelError(f"{label} must return integers or conditions as {name}; it returned {item.dtype}")
    named_ = zip(outputs, items, strict=True)
    return {name: item.to(torch.float64) if name in integers else item for name, item in named_}


def _demand_values(label: str, name: str, item: Any) -> None:
    """KernelError unless a result is a plain tensor whose values lie in its memory.

    A subclass, a sparse tensor or a lazy negation may compute when it is read: neither its time nor its bits are those
    of the kernel.
    """
    if not isinstance(item, Tensor):
        raise KernelError(f"{label} must return a torch.Tensor for {name}; it returned {type(item).__name__}")
    what = ""
    if type(item) not in (Tensor, Parameter):
        what = f"the subclass {type(item).__qualname__}"
    elif item.layout is not torch.strided:
        what = f"one with the layout {item.layout}"
    elif item.is_neg() or item.is_conj() or item._is_zerotensor():
        what = "a lazy view, whose values are computed when it is read"
    elif item.numel() and item.untyped_storage().nbytes() < _reach(item):
        what = f"one whose storage has {item.untyped_storage().nbytes()} of {_reach(item)} bytes"
    if what:
        raise KernelError(f"{label} must return {name} as a plain tensor with its values in memory; it returned {what}")


def _reach(tensor: Tensor) -> int:
    """Bytes of the storage up to the last element."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return int(tensor.storage_offset() + sum((size - 1) * step for size, step in steps) + 1) * tensor.element_size()


@dataclass(frozen=True)
class Form:
    """The form that an output must have; `about` says in the message what the shape follows from."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None  # None: any floating-point one
    device: torch.device
    about: str

    @staticmethod
    def like(tensor: Tensor, case: Case) -> Form:
        """Returns the form of a tensor that a call on this case gave."""
        return Form(tuple(tensor.shape), tensor.dtype, tensor.device, f"for dims {case.dims}")


def check_output(label: str, name: str, tensor: Tensor, form: Form, *, hint: bool = False) -> None:
    """Raises KernelError unless an output has this form. With `hint` the message says how another dtype is declared."""
    shape, dtype, device = form.shape, form.dtype, form.device
    if tuple(tensor.shape) != shape:
        text = f"of shape {shape} {form.about}; it returned {tuple(tensor.shape)}"
        raise KernelError(f"{label} must return {name} {text}")
    if not tensor.is_floating_point():
        raise KernelError(f"{label} must return a floating-point {name}; it returned {tensor.dtype}")
    if dtype is not None and tensor.dtype != dtype:
        other = formats.of(tensor.dtype).name
        declared = f" (if that is meant: output_dtypes={{{name!r}: {other!r}}})" if hint else ""
        text = f"{label} must return {name} as {dtype}; it returned {tensor.dtype}{declared}"
        raise OtherDtype(text, name, other)
    if tensor.device.type != device.type:
        raise KernelError(f"{label} must return {name} on {device}; it returned a tensor on {tensor.device}")


def no_gradient(name: str) -> str:
    """The note on a gradient that a kernel does not provide and did not promise."""
    return f"no gradient {name}: autograd has no path to it"


def _gradients(
    kernel: Kernel,
    graph: Graph,
    upstream: Mapping[str, Tensor],
    unchanged: Unchanged,
    *,
    retain: bool = False,
    originals: Mapping[str, Tensor] | None = None,
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    label, leaves, required = kernel.name, graph.leaves, kernel.gradients != "auto"
    attached = {name: tensor for name, tensor in graph.outputs.items() if tensor.requires_grad}
    if not attached:
        if required:
            raise KernelError(
                f"{label} promises gradients for {', '.join(leaves)}, but its output is not attached to autograd"
            )
        return {}, tuple("d" + name for name in leaves)
    # kept apart: a backward pass that overwrites dy would overwrite what the truth is computed from
    arrived = {name: _contiguous_copy(upstream[name]) if originals is None else originals[name] for name in attached}
    try:
        arriving = tuple(upstream[name] for name in attached)
        with device_of_module:
            found = autograd.gradients(tuple(attached.values()), tuple(leaves.values()), arriving, retain=retain)
    except Exception as error:
        raise _raised(f"{label} raised in backward: {describe(error)}", error, RefusedBackward) from error
    unchanged.watch(
        arrived, upstream, f"{label} must not change the gradient that arrives at {{name}}; it differs after backward"
    )
    gradients: dict[str, Tensor] = {}
    missing: list[str] = []
    for (name, leaf), gradient in zip(leaves.items(), found, strict=True):
        if gradient is None:
            missing.append("d" + name)
            continue
        _demand_values(label, "d" + name, gradient)
        if gradient.shape != leaf.shape or gradient.dtype != leaf.dtype:
            raise KernelError(
                f"{label} must return d{name} like {name}: {tuple(leaf.shape)} {leaf.dtype}; it returned "
                f"{tuple(gradient.shape)} {gradient.dtype}"
            )
        gradients["d" + name] = gradient.detach()
    if missing and required:
        raise KernelError(f"{label} promises {', '.join(missing)}, but autograd has no path to it")
    return gradients, tuple(missing)


@lru_cache
def _is_ours(file: str) -> bool:
    return _PACKAGE in Path(file).parents


def describe(error: BaseException) -> str:
    """One line: type, first line of the message, and the place in the user's code."""
    text = next((line.strip() for line in said_by(error).splitlines() if line.strip()), "no message")
    walked = reversed(list(traceback.walk_tb(error.__traceback__)))
    frames = ((frame.f_code.co_filename, line) for frame, line in walked)
    own = (f"{file}:{line}" for file, line in frames if "/site-packages/" not in file and not _is_ours(file))
    place = next((f" ({where})" for where in own), "")
    return f"{type(error).__name__}: {text}{place}"
