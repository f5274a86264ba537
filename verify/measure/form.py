"""Checks the form of a kernel's results: tensors with their values in memory, of a shape, a dtype and a device.

`KernelError` gives the rule and the received value.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from verify.cases import Case
from verify.declare.declaration import Kernel
from verify.errors import KernelError
from verify.truth import formats


def items_of(returned: Any, names: tuple[str, ...] = ()) -> tuple[Any, ...]:
    """Returns the items that a call returned: those of these names if it has them, else all in order, without None.

    Only mappings and objects have names. Sequences may be nested.
    """
    held = returned if isinstance(returned, Mapping) else getattr(returned, "__dict__", {})
    if hasattr(returned, "_asdict"):
        held = returned._asdict()
    if names and not isinstance(returned, Tensor) and all(name in held for name in names):
        return tuple(held[name] for name in names)
    items = tuple(returned.values()) if isinstance(returned, Mapping) else returned
    if not isinstance(items, tuple | list):
        return (items,)
    inside = (items_of(each) if isinstance(each, tuple | list | Mapping) else (each,) for each in items)
    return tuple(one for some in inside for one in some if one is not None)


def outputs_of(returned: Any, outputs: tuple[str, ...], label: str, integers: tuple[str, ...]) -> dict[str, Tensor]:
    """Returns the tensors that a call returned, by name.

    Integers and conditions are converted to float64, which is exact for every valid index of a tensor.
    """
    items = items_of(returned, outputs)
    if len(items) != len(outputs):
        text = f"{label} must return {len(outputs)} tensor(s): {', '.join(outputs)}; it returned {len(items)}"
        raise KernelError(text)
    for name, item in zip(outputs, items, strict=True):
        demand_values(label, name, item)
        if name in integers and item.is_floating_point():
            raise KernelError(f"{label} must return integers or conditions as {name}; it returned {item.dtype}")
    named_ = zip(outputs, items, strict=True)
    return {name: item.to(torch.float64) if name in integers else item for name, item in named_}


def as_rows(label: str, name: str, drawn: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Returns drawn numbers as rows of a one and zeros, in the shape of their probabilities.

    Raises KernelError unless there is a number of the range for each row.
    """
    *rows, count = shape
    if list(drawn.shape) not in (rows, [*rows, 1]):
        raise KernelError(f"{label} must return {name} of shape {tuple(rows)}; it returned {tuple(drawn.shape)}")
    wrong = drawn[~((drawn >= 0) & (drawn < count))]
    if wrong.numel():
        raise KernelError(f"{label} must draw {name} from 0 to {count - 1}; it returned {int(wrong[0])}")
    return torch.nn.functional.one_hot(drawn.reshape(rows).long(), count).double()


def demand_values(label: str, name: str, item: Any) -> None:
    """Raises KernelError unless a result is a plain tensor."""
    if not isinstance(item, Tensor):
        raise KernelError(f"{label} must return a torch.Tensor for {name}; it returned {type(item).__name__}")
    if what := unlike_plain(item):
        raise KernelError(f"{label} must return {name} as a plain tensor with its values in memory; it returned {what}")


def unlike_plain(item: Any) -> str:
    """Returns what an object is in place of a plain tensor of real numbers whose values are in its memory; else "".

    A subclass, a sparse tensor or a lazy negation may compute when it is read. The time and the bits would not be the
    kernel's own.
    """
    if not isinstance(item, Tensor):
        return type(item).__name__
    if type(item) not in (Tensor, Parameter):
        return f"the subclass {type(item).__qualname__}"
    if item.layout is not torch.strided or item.is_nested:
        return f"one with the layout {item.layout}" + (", nested" if item.is_nested else "")
    if item.is_neg() or item.is_conj() or item._is_zerotensor():
        return "a lazy view, whose values are computed when it is read"
    if item.is_complex() or item.is_quantized:
        return f"one of {item.dtype}"
    steps = zip(item.shape, item.stride(), strict=True)
    last = int(item.storage_offset() + sum((size - 1) * step for size, step in steps))
    held, needed = item.untyped_storage().nbytes(), (last + 1) * item.element_size()
    return f"one whose storage has {held} of {needed} bytes" if item.numel() and held < needed else ""


# the shape, dtype and device that an output must have; None: any floating-point dtype
Required = tuple[tuple[int, ...], torch.dtype | None, str | torch.device]


def check_output(label: str, name: str, tensor: Tensor, required: Required, about: str, *, hint: bool = False) -> None:
    """Raises KernelError unless an output has the required form.

    `about` is the part of the message that explains the shape. `hint` adds the declaration of its dtype.
    """
    shape, dtype, device = required
    if tuple(tensor.shape) != shape:
        text = f"of shape {shape} {about}; it returned {tuple(tensor.shape)}"
        raise KernelError(f"{label} must return {name} {text}")
    if not tensor.is_floating_point():
        raise KernelError(f"{label} must return a floating-point {name}; it returned {tensor.dtype}")
    if dtype is not None and tensor.dtype != dtype:
        other = formats.of(tensor.dtype).name
        declared = f" (if that is meant: output_dtypes={{{name!r}: {other!r}}})" if hint else ""
        raise KernelError(f"{label} must return {name} as {dtype}; it returned {tensor.dtype}{declared}")
    if tensor.device.type != torch.device(device).type:
        raise KernelError(f"{label} must return {name} on {device}; it returned a tensor on {tensor.device}")


def demand_own_memory(
    kernel: Kernel, case: Case, given: Mapping[str, Tensor | None], outputs: Mapping[str, Tensor]
) -> None:
    """Raises KernelError if an output lies in the memory of an operand, and PyTorch's does not.

    A later change of one in place would change the other.
    """
    op, held = kernel.op, {_memory(value): name for name, value in given.items() if value is not None}
    borrowed = {
        name: held[_memory(value)] for name, value in outputs.items() if value.numel() and _memory(value) in held
    }
    if not borrowed:
        return
    theirs = zip(op.all_outputs, items_of(op.baseline(*given.values(), **op.resolve(case.params))), strict=False)
    new = {name for name, value in theirs if _memory(value) not in held}
    for name, operand in borrowed.items():
        if name in new:
            raise KernelError(
                f"{kernel.name} must return {name} in new memory, as PyTorch does; it returned the memory of {operand} "
                f"for dims {case.dims}"
            )


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
