"""Backends: where kernels run. On a GPU, on the CPU through a faithful Triton interpreter, or on the CPU as PyTorch
code.

>>> backend = select()          # a GPU if there is one, else the interpreter; without Triton the CPU
>>> activate(backend)           # before the modules with the kernels are imported

A result carries the name of its backend, and bounds of one backend never apply to another. Importing this package
imports neither torch nor triton.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from verify.backends.backend import Backend, Cpu, Cuda, Interpreter, told_to_interpret
from verify.errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

__all__ = [
    "BACKENDS",
    "Backend",
    "Cpu",
    "Cuda",
    "Interpreter",
    "activate",
    "architecture",
    "asked",
    "demand_agreement",
    "gpu_expected",
    "known",
    "may_compile",
    "named",
    "runs_on",
    "select",
]

#: verify's own backends, in the order in which `select` tries them.
BACKENDS: dict[str, type[Backend]] = {each.name: each for each in (Cuda, Interpreter, Cpu)}
_ACTIVE: list[Backend] = []  # the backend of this process, once it is active


def named(name: str) -> type[Backend]:
    """Returns the backend of a name: one of verify's own, or of an entry point in the group "verify.backends"."""
    if name in BACKENDS:
        return BACKENDS[name]
    if name in (added := _added()).names:
        found: type[Backend] = added[name].load()
        return found
    raise UsageError(f"backend: it is one of {', '.join(known())}; got {name!r}", hint="--backend interpreter")


def known() -> list[str]:
    """Returns the names of all backends, and of the backends in packages."""
    return [*BACKENDS, *sorted(_added().names)]


@cache
def _added() -> EntryPoints:
    """Returns the entry points of backends that packages add."""
    from importlib.metadata import entry_points

    return entry_points(group="verify.backends")


def select(requested: str | None = None) -> Backend:
    """Returns the backend requested by name; by default a GPU if there is one, else the interpreter or the CPU.

    TRITON_INTERPRET=1 in the environment is a request for the interpreter.
    """
    if requested is not None:
        chosen = named(requested)
    elif told_to_interpret():
        chosen = Interpreter
    else:
        chosen = next(each for each in BACKENDS.values() if not each.lacking())
        if chosen is Interpreter and find_spec("triton") is None:
            chosen = Cpu
    demand_agreement(chosen)
    if reason := chosen.lacking():
        raise UsageError(
            f"backend: {chosen.name!r} {reason}",
            hint="--backend interpreter runs Triton kernels on the CPU, --backend cpu PyTorch code; "
            "verify doctor says what is missing",
        )
    return replace(chosen.here(), asked=requested or "")


def demand_agreement(chosen: type[Backend]) -> None:
    """Raises UsageError if TRITON_INTERPRET requests the interpreter, and a backend is another one."""
    if told_to_interpret() and chosen.triton != "interpreted":
        raise UsageError(
            f"backend: {chosen.name!r} interprets no kernels, but TRITON_INTERPRET=1 makes Triton interpret them",
            hint="unset TRITON_INTERPRET",
        )


def activate(backend: Backend) -> None:
    """Prepares the process for a backend; call it before the kernels are imported. Idempotent."""
    backend.activate()
    _ACTIVE[:] = [backend]


def asked() -> str:
    """Returns the backend's name if the user named the backend of this process, else ""."""
    return _ACTIVE[0].asked if _ACTIVE else ""


def architecture(device: Any) -> str:
    """Returns the name that determines the bits of torch's functions on a device: "cpu", "sm_90"."""
    import torch

    kind = torch.device(device).type
    return Cuda.architecture(device) if kind == Cuda.name else kind


def runs_on(declared: Collection[str], name: str) -> bool:
    """True if a kernel declared for these backends runs on the named one; declared for none, it runs on all."""
    return not declared or name in declared


def may_compile(requested: str | None) -> bool:
    """True if Triton would compile kernels once it is imported."""
    return "TRITON_INTERPRET" not in os.environ and (requested is None or named(requested).triton == "compiled")


def gpu_expected() -> bool:
    """True if the driver of a GPU is loaded, as far as a process without torch can tell."""
    return any(each.driver is not None and each.driver.exists() for each in BACKENDS.values())
