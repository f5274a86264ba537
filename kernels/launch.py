"""What the launchers of several families share: the interpreter or a GPU, and kernels for operands of any alignment."""

from __future__ import annotations

from typing import Any

import torch
import triton

from kernels.arithmetic import neg

#: whether Triton's interpreter was asked for (TRITON_INTERPRET=1) when the kernels were imported
INTERPRETED = not isinstance(neg, triton.runtime.JITFunction)
INTERPRETER_BLOCK = 1 << 16  # elements at most: the interpreter runs programs one by one, and every lane of each


def check_device(op: str, name: str, t: torch.Tensor) -> None:
    if not t.is_cuda and not INTERPRETED and t.device.type != "meta":
        raise ValueError(
            f"{op}: {name} must be on a CUDA device, got {t.device}; move it with {name}.cuda(), or set "
            "TRITON_INTERPRET=1 before the import to run on the CPU (slow)"
        )


def check_strided(op: str, name: str, t: torch.Tensor) -> None:
    if t.layout is not torch.strided:
        raise TypeError(f"{op}: {name} must be a dense strided tensor, got {t.layout}; call {name}.to_dense()")


def autocasts(t: torch.Tensor) -> str | None:
    """The device type that torch.autocast is on for, if it is on for this tensor's device."""
    kind = "cuda" if t.is_cuda else t.device.type
    return kind if kind != "meta" and torch.is_autocast_enabled(kind) else None


#: compute capabilities with half as many units for float64 as for float32; elsewhere it is a 32nd or a 64th
MANY_FLOAT64 = ((6, 0), (7, 0), (8, 0), (9, 0), (10, 0))


def few_float64(device: torch.device) -> bool:
    """Whether float64 arithmetic is so slow on a device that several times as many float32 operations are faster."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) not in MANY_FLOAT64


def of_any_alignment(kernel: Any) -> Any:
    """The kernel compiled once for all strides, sizes and addresses, not once for each class of them.

    Triton compiles a kernel again for pointers and integers that are multiples of 16, and for integers of 1.
    """
    names = kernel.fn.__code__.co_varnames[: kernel.fn.__code__.co_argcount]
    return triton.jit(do_not_specialize=[n for n in names if n not in kernel.fn.__annotations__])(kernel.fn)
