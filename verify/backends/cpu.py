"""Defines two backends on a CPU: PyTorch code as it is, and Triton kernels in the corrected interpreter."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
from typing import Self

from verify.backends.backend import Backend
from verify.errors import UsageError


class Cpu(Backend):
    """Runs PyTorch code: any function of tensors, C++ extensions too. It needs no GPU and never imports Triton."""

    name, tested = "cpu", True

    @classmethod
    def here(cls) -> Self:
        return cls("cpu", "CPU (PyTorch)")

    def environment(self) -> dict[str, str]:
        """Returns the instruction set by which PyTorch picks its code, such as cpu_avx2; figures depend on it."""
        import torch

        picked = torch.backends.cpu.get_cpu_capability()
        picked = (platform.machine() if picked == "DEFAULT" else picked).lower()
        return {"arch": f"cpu_{re.sub('[^a-z0-9]+', '_', picked)}"}


class Interpreter(Backend):
    """Runs Triton kernels in Triton's interpreter, whose arithmetic `interpreter/` corrects.

    Casts, fma, min and max, bfloat16 arithmetic and libdevice's exact functions give the bits of sm_90. Approximations
    (exp2, erf, tanh, division) are correctly rounded, and a * b + c is never fused.
    """

    name, tested, triton = "interpreter", True, "interpreted"

    @classmethod
    def here(cls) -> Self:
        return cls("cpu", "CPU (Triton interpreter)")

    @classmethod
    def arch(cls, found: str) -> str:
        return cls.name

    def activate(self) -> None:
        demand_triton()
        if triton_interprets() is False:
            raise UsageError(
                "backend: 'interpreter' must be active before Triton is imported; "
                "Triton is already imported in this process, to compile",
                hint="TRITON_INTERPRET=1 in the environment, or activate the backend before importing kernels",
            )
        os.environ["TRITON_INTERPRET"] = "1"
        from verify.backends.interpreter.install import install

        install()


def demand_triton() -> None:
    """Raises UsageError if Triton is not installed."""
    if importlib.util.find_spec("triton") is None:
        raise UsageError(
            "kernels run on Triton, compiled for a GPU or interpreted on a CPU, and triton is not installed here",
            hint="pip install triton  (verify doctor says what else is missing; --backend cpu judges PyTorch code)",
        )


def told_to_interpret() -> bool:
    """True if TRITON_INTERPRET in the environment requests the interpreter, by Triton's own rule."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "y", "yes")


def triton_interprets() -> bool | None:
    """Returns True if this process imported Triton to interpret, False to compile, None if not at all."""
    standard = sys.modules.get("triton.language.standard")
    if standard is None:
        return None
    # Triton decides this for its own library functions once, at its import.
    return type(standard.sum).__name__ == "InterpretedFunction"
