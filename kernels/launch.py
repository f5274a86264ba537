"""Interpreter or GPU, rules for devices, and one compiled kernel for all alignments. All launchers use these."""

from __future__ import annotations

import threading
from typing import Any

import torch
import triton
import triton.language as tl

from .arithmetic import neg

#: True if TRITON_INTERPRET=1 was set when the kernels were imported: Triton's interpreter runs them
INTERPRETED = not isinstance(neg, triton.runtime.JITFunction)
INTERPRETER_BLOCK = 1 << 16  # most elements of a program there: the interpreter runs programs one by one


_thread = threading.local()


def trace(on: bool) -> bool:
    """Sets whether a compiler traces the launches of this thread. Returns the earlier setting."""
    before, _thread.traced = traced(), on
    return before


def traced() -> bool:
    """True if a compiler traces the launches of this thread: its tensors have no addresses."""
    return getattr(_thread, "traced", False)


def check_device(op: str, name: str, t: torch.Tensor) -> None:
    """Raises ValueError if a tensor is on a device that the kernels cannot use."""
    if not t.is_cuda and not INTERPRETED and t.device.type != "meta":
        raise ValueError(
            f"{op}: {name} must be on a CUDA device, got {t.device}; move it with {name}.cuda(), or set "
            "TRITON_INTERPRET=1 before the import to run on the CPU (slow)"
        )


def check_strided(op: str, name: str, t: torch.Tensor) -> None:
    """Raises TypeError if a tensor is sparse or has another layout without strides."""
    if t.layout is not torch.strided:
        raise TypeError(f"{op}: {name} must be a dense strided tensor, got {t.layout}; call {name}.to_dense()")


def autocasts(t: torch.Tensor) -> str | None:
    """Returns the device type for which torch.autocast is on, or None if it is off for this tensor's device."""
    kind = "cuda" if t.is_cuda else t.device.type
    return kind if kind != "meta" and torch.is_autocast_enabled(kind) else None


#: compute capabilities with half as many float64 units as float32 units; others have a 32nd or a 64th
MANY_FLOAT64 = ((6, 0), (7, 0), (8, 0), (9, 0), (10, 0))


def few_float64(device: torch.device) -> bool:
    """True if a device has so few float64 units that several float32 operations are faster than one of float64."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) not in MANY_FLOAT64


OVERLAPS = True  # False: each kernel starts when the one before it has ended


def overlapping(device: torch.device) -> dict[str, bool]:
    """Returns the options of a launch that may start before the stream's previous kernel has ended (Hopper and later).

    Its kernel calls `wait_for_previous` before anything else. The five kernels of a step of a layer of 64 x 512 x 512
    take 11.8 us instead of 17.0 on an H100.
    """
    able = OVERLAPS and device.type == "cuda" and not INTERPRETED and torch.version.cuda is not None
    return {"OVERLAP": True, "launch_pdl": True} if able and torch.cuda.get_device_capability(device)[0] >= 9 else {}


@triton.jit
def wait_for_previous(OVERLAP: tl.constexpr):
    """Waits until the previous kernel has ended and its results can be read, and lets the next kernel start."""
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


def of_any_alignment(kernel: Any) -> Any:
    """Returns the kernel compiled once for all strides, sizes and addresses.

    By default Triton compiles a kernel again for pointers and integers that are multiples of 16, and for integers of 1.
    """
    names = kernel.fn.__code__.co_varnames[: kernel.fn.__code__.co_argcount]
    return triton.jit(do_not_specialize=[n for n in names if n not in kernel.fn.__annotations__])(kernel.fn)
