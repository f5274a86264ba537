"""Repeats a measured call: for inference, with a gradient for one operand alone, and with other values.

A kernel may return other numbers then, or change its earlier results.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import msgspec
import torch
from torch import Tensor

from verify.cases import Case
from verify.cases.values import SMALL
from verify.declare.declaration import Kernel
from verify.errors import KernelError
from verify.measure.call import Measured, Unchanged, call_tensors, copies, run_kernel, run_tensors, sent_all
from verify.measure.form import check_output
from verify.truth.ulp import same_bits

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

    Returns the gradients whose bits differ from those of the measured call, by a text that names the operand.
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
