"""Finds kernels that read a number on the host, such as `lengths.max().item()`.

Neither a CUDA graph nor a whole program of torch.compile can hold such a kernel, and no declaration promises it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from verify.cases import Case, inputs_of
from verify.errors import KernelError
from verify.laws.law import NotApplicable, Subject
from verify.measure.call import call_tensors

# operators whose result, or its shape, the host knows only after it has waited for the numbers
_READING = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "equal")


class _Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the first operator that reads numbers on the host."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.first = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        moved = name == "_to_copy" and isinstance(result, Tensor) and result.is_cpu and not args[0].is_cpu
        self.first = self.first or (name if name in _READING or moved else "")
        return result


def excuse(subject: Subject, case: Case) -> None:
    """Raises NotApplicable if the kernel reads a number on the host in a case."""
    inputs = inputs_of(subject.kernel.op, case, subject.backend.device)
    with suppress(KernelError), torch.no_grad(), _Reads() as seen:
        call_tensors(subject.kernel, inputs, case.params, differentiate=False)
    if seen.first:
        raise NotApplicable(f"not applicable: the kernel reads a number on the host ({seen.first})")
