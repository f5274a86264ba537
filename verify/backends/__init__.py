"""Where kernels run: on the GPU, or on the CPU through a Triton interpreter made faithful.

>>> backend = select()          # a GPU if there is one, else the interpreter
>>> activate(backend)           # before the modules with the kernels are imported

A result carries the name of its backend; bounds of one backend say nothing about the other. Importing this
package imports neither torch nor triton.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass

from verify.errors import UsageError

__all__ = ["Backend", "activate", "select"]

_NAMES = ("cuda", "interpreter")


@dataclass(frozen=True)
class Backend:
    """A place to run kernels: `device` is where their tensors live, `label` what reports print."""

    name: str
    device: str
    label: str
    details: str


def select(requested: str | None = None) -> Backend:
    """The backend asked for by name; by default a GPU if there is one, else the interpreter.

    TRITON_INTERPRET=1 in the environment is a request for the interpreter.
    """
    if requested is not None and requested not in _NAMES:
        raise UsageError(
            f"backend: it is one of {', '.join(_NAMES)}; got {requested!r}",
            hint="--backend interpreter",
        )
    if requested == "cuda" and _interpreting():
        raise UsageError(
            "backend: 'cuda' compiles kernels, but TRITON_INTERPRET=1 makes Triton interpret them",
            hint="unset TRITON_INTERPRET",
        )
    if requested == "interpreter" or (requested is None and _interpreting()):
        return _interpreter()
    import torch

    if torch.cuda.is_available():
        index = torch.cuda.current_device()
        name = torch.cuda.get_device_name(index)
        major, minor = torch.cuda.get_device_capability(index)
        return Backend(
            name="cuda",
            device=f"cuda:{index}",
            label=f"{name} (sm_{major}{minor})",
            details=f"compiled kernels on {name}, CUDA {torch.version.cuda}",
        )
    if requested == "cuda":
        raise UsageError(
            "backend: 'cuda' needs a GPU that torch can use; torch.cuda.is_available() is False",
            hint="--backend interpreter runs Triton kernels on the CPU; verify doctor says what is missing",
        )
    return _interpreter()


def activate(backend: Backend) -> None:
    """Prepare the process for a backend; call it before the kernels are imported. Idempotent."""
    if importlib.util.find_spec("triton") is None:
        raise UsageError(
            "kernels run on Triton, compiled for a GPU or interpreted on a CPU, and triton is not installed here",
            hint="pip install triton  (verify doctor says what else is missing)",
        )
    if backend.name == "cuda":
        if _triton_interprets():
            raise UsageError(
                "backend: 'cuda' compiles kernels; got a process whose Triton was imported to interpret them",
                hint="unset TRITON_INTERPRET and start a new process",
            )
        return
    if _triton_interprets() is False:
        raise UsageError(
            "backend: 'interpreter' must be active before Triton is imported; "
            "Triton is already imported in this process, to compile",
            hint="TRITON_INTERPRET=1 in the environment, or activate the backend before importing kernels",
        )
    os.environ["TRITON_INTERPRET"] = "1"
    from verify.backends.interpreter.install import install

    install()


def _interpreter() -> Backend:
    return Backend(
        name="interpreter",
        device="cpu",
        label="CPU (Triton interpreter)",
        details=(
            "Triton kernels through the faithful interpreter: casts, fma, min/max, bfloat16 arithmetic and "
            "libdevice's exact functions as on sm_90; approximations (exp2, erf, tanh, division) correctly "
            "rounded; a * b + c is never fused"
        ),
    )


def _interpreting() -> bool:
    """Whether the environment asks Triton to interpret, by Triton's own reading of the variable."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "y", "yes")


def _triton_interprets() -> bool | None:
    """How the Triton of this process was imported: to interpret, to compile, or not yet (None)."""
    standard = sys.modules.get("triton.language.standard")
    if standard is None:
        return None
    # Triton decides for its own library functions when it is imported, and not again.
    return type(standard.sum).__name__ == "InterpretedFunction"
