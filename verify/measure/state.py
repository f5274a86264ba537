"""Compares the state of a process before and after a kernel, to find the side effects of the kernel.

A kernel runs in a process that ends with it, so nothing has to be restored. A changed mode is an error nevertheless: a
user's program starts no process for a kernel, so the rest of the program would compute otherwise.
"""

from __future__ import annotations

import builtins
import fractions
import functools
import math
import operator
import os
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from verify.records.record import SideEffect

SHOWN = 4  # at most this many names in one line
_SUBNORMAL, _HALF_ULP = [5e-324], [2.0**-54]  # in lists, so that the compiler cannot evaluate them in advance

# A kernel that replaces an attribute of these changes verdicts. Triton is not listed, as kernels compute with it.
_JUDGES = (torch, torch.Tensor, torch.nn.functional, torch.autograd, math, operator, builtins, fractions.Fraction)
_BY_NAME = ("numpy", "mpmath", "flint", "msgspec")
_CODE = (
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType),
    *(types.GetSetDescriptorType, type, staticmethod, classmethod, property),
)

_MODES: dict[str, Callable[[], Any]] = {
    "grad mode": torch.is_grad_enabled,
    "inference mode": torch.is_inference_mode_enabled,
    "autocast": lambda: {
        device: (torch.is_autocast_enabled(device), str(torch.get_autocast_dtype(device))) for device in ("cpu", "cuda")
    },
    "torch's default dtype": torch.get_default_dtype,
    "torch's default device": torch.get_default_device,
    "flushing of subnormals": lambda: _SUBNORMAL[0] * 1.0 == 0.0,
    "rounding": lambda: (1.0 + _HALF_ULP[0], -1.0 - _HALF_ULP[0]),
    "torch's number of threads": torch.get_num_threads,
    "float32 matmul precision": torch.get_float32_matmul_precision,
    "TF32 in cuDNN": lambda: torch.backends.cudnn.allow_tf32,
    "cudnn.benchmark": lambda: torch.backends.cudnn.benchmark,
    "reduced precision of float16 sums": lambda: torch._C._get_cublas_allow_fp16_reduced_precision_reduction(),
    "reduced precision of bfloat16 sums": lambda: torch._C._get_cublas_allow_bf16_reduced_precision_reduction(),
    "deterministic algorithms": torch.get_deterministic_debug_mode,
    "anomaly detection": torch.is_anomaly_enabled,
    "torch's function modes": torch._C._len_torch_function_stack,
    "torch's dispatch modes": torch._C._len_torch_dispatch_stack,
    "the working directory": lambda: working_folder(),
}


# Attributes of a module or class by name, and the code of its functions by name.
_Members = tuple[dict[str, Any], dict[str, types.CodeType]]


@dataclass(frozen=True)
class ProcessState:
    """Holds the state of this process at one time, to compare with a later one."""

    modes: dict[str, str]
    members: dict[str, _Members]  # by the name of the module or class

    @staticmethod
    def now() -> ProcessState:
        """Returns the current state."""
        return ProcessState(
            modes={name: str(read()) for name, read in _MODES.items()},
            members=dict(map(_members, _owners())),
        )

    def left(self, after: Literal["import", "call"], now: ProcessState | None = None) -> list[SideEffect]:
        """Returns the side effects since this state.

        `after` says whether an import or calls of a kernel caused them.
        """
        now = now or ProcessState.now()
        replaced = [
            name for owner, was in self.members.items() for name in _replaced(owner, was, now.members.get(owner))
        ]
        modes = (
            SideEffect("mode", after, f"changed {name} from {was} to {now.modes[name]}")
            for name, was in self.modes.items()
            if now.modes[name] != was
        )
        more = f" and {len(replaced) - SHOWN} more" if len(replaced) > SHOWN else ""
        text = f"replaced {', '.join(replaced[:SHOWN])}{more}"
        return [*([SideEffect("judge", after, text)] if replaced else []), *modes]


def working_folder() -> str:
    """Returns the path of the working folder, or why there is none."""
    try:
        return os.getcwd()
    except OSError as error:
        return f"gone ({error.strerror})"


def _owners() -> Iterator[Any]:
    """Yields modules and classes whose functions decide verdicts."""
    yield from _JUDGES
    for name, module in list(sys.modules.items()):
        own = name.partition(".")[0] == "verify"
        if own or name in _BY_NAME:
            yield module
        for item in list(vars(module).values()) if own else ():
            if isinstance(item, type) and item.__module__ == name:
                yield item


def _members(owner: Any) -> tuple[str, _Members]:
    """Returns the name of a module or a class, and its attributes.

    Inherited attributes of a class count too: a kernel could hide one by adding another to the class.
    """
    name = owner.__name__ if isinstance(owner, types.ModuleType) else f"{owner.__module__}.{owner.__qualname__}"
    members: dict[str, Any] = {}
    for base in reversed(owner.__mro__) if owner in _JUDGES and isinstance(owner, type) else [owner]:
        members.update(vars(base))
    code = {label: item.__code__ for label, item in members.items() if type(item) is types.FunctionType}
    return name, (members, code)


def _replaced(owner: str, was: _Members, now: _Members | None) -> list[str]:
    """Returns the names of functions and classes that another package has replaced or removed."""
    (before, code), (after, code_after) = was, now or ({}, {})
    changed = {name for name, item in before.items() if after.get(name) is not item and isinstance(item, _CODE)}
    changed |= {name for name, body in code.items() if code_after.get(name) is not body}
    names = [name for name in before if name in changed]
    return [f"{owner}.{name}" for name in names if not _is_own(owner, name, before[name], after.get(name))]


def _is_own(owner: str, name: str, was: Any, now: Any) -> bool:
    """True if an attribute's own package put another one in its place. torch wraps some functions late."""
    package = owner.partition(".")[0]
    if isinstance(now, type) and isinstance(was, type):
        return now.__module__.partition(".")[0] == package  # torch.Storage follows the default dtype
    body = getattr(now, "__code__", None) if now is not was and isinstance(now, _CODE) else None
    return getattr(body, "co_filename", "").startswith(_folder_of(package)) and getattr(now, "__name__", "") == name


@functools.cache
def _folder_of(package: str) -> str:
    file = getattr(sys.modules.get(package), "__file__", None)
    return f"{Path(file).parent}{os.sep}" if file else "\0"
