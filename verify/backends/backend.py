"""The protocol of a backend: the questions that verify asks about a place where kernels run.

The class answers without torch, because the parent process knows only the name of a backend. An instance is a device
that was found. A package adds a backend by an entry point in the group "verify.backends"
(tests/backends/test_added.py).

verify's own backends follow: on a CPU, PyTorch code as it is and Triton kernels in the corrected interpreter; GPUs that
torch drives, NVIDIA's, on which verify is tested, and two kinds on which it never ran.
"""

import importlib.util
import os
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from verify.errors import UsageError


@dataclass(frozen=True)
class Backend:
    """A device on which kernels run. `device` is its name in torch, `label` its name in reports.

    `asked` is its name if the user named it, else "". Commands that repeat something say it.
    """

    device: str
    label: str = ""
    asked: str = ""

    name: ClassVar[str]  # its name in records and in --backend
    scale: ClassVar[Literal["small", "large"]] = "small"  # the sizes of cases, searches and sweeps that are affordable
    gpu: ClassVar[bool] = False  # one process keeps the device busy in a sweep; figures do not depend on the CPU
    forks: ClassVar[bool] = True  # a process may fork after it used the device
    triton: ClassVar[Literal["", "compiled", "interpreted"]] = ""  # how Triton kernels run; "": no Triton
    clock: ClassVar[bool] = False  # `measure/timing.py` can time kernels
    streams: ClassVar[bool] = False  # torch.cuda has streams, graphs and free memory: `laws/device.py` needs them
    arches: ClassVar[str] = ""  # prefix of its architectures, "" for NAME_; bounds apply to no other
    visible: ClassVar[str] = "CUDA_VISIBLE_DEVICES"  # the variable that selects devices for a process
    driver: ClassVar[Path | None] = None  # a file that exists if its driver is loaded

    @classmethod
    def lacking(cls) -> str:
        """Returns what this machine lacks, as the rest of a sentence about the backend; "" if nothing."""
        return ""

    @classmethod
    def here(cls) -> Self:
        """Returns the device of this machine. Called only if `lacking` returns ""."""
        raise NotImplementedError

    @classmethod
    def count(cls) -> int:
        """Returns how many of its devices this process sees. A process gets one of them by the variable `visible`."""
        return 1

    @classmethod
    def is_single(cls) -> bool:
        """True if it is known without torch that this process sees one device at most."""
        listed = os.environ.get(cls.visible, "")
        return "," not in listed if listed else not cls.gpu

    @classmethod
    def arch(cls, found: str) -> str:
        """Returns the architecture whose bounds apply to a record that names `found`; "" if none do."""
        return found if found.startswith(cls.arches or f"{cls.name}_") else ""

    def activate(self) -> None:
        """Prepares the process; called before kernels are imported. May be called twice."""

    def usable(self) -> bool:
        """Returns False if this process can no longer use the device, for example after an illegal access."""
        return True

    def launches(self) -> int:
        """Returns how many launches of Triton kernels this process has interpreted."""
        return 0

    def workers(self, cores: int) -> int:
        """Returns how many processes may measure at a time."""
        return cores

    def environment(self) -> dict[str, str]:
        """Returns entries of a record in addition to the fingerprint that all backends share."""
        return {}


class Cpu(Backend):
    """Runs PyTorch code: any function of tensors, C++ extensions too. It needs no GPU and never imports Triton."""

    name = "cpu"

    @classmethod
    def here(cls) -> Self:
        return cls("cpu", "CPU (PyTorch)")

    def environment(self) -> dict[str, str]:
        """Returns the instruction set of PyTorch's code, such as cpu_avx2; figures depend on it."""
        import torch

        picked = torch.backends.cpu.get_cpu_capability()
        picked = (platform.machine() if picked == "DEFAULT" else picked).lower()
        return {"arch": f"cpu_{re.sub('[^a-z0-9]+', '_', picked)}"}


class Interpreter(Backend):
    """Runs Triton kernels in Triton's interpreter, whose arithmetic `interpreter/` corrects.

    Casts, fma, min and max, bfloat16 arithmetic and libdevice's exact functions give the bits of sm_90. Approximations
    (exp2, erf, tanh, division) are correctly rounded, and a * b + c is never fused.
    """

    name, triton = "interpreter", "interpreted"

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

    def launches(self) -> int:
        from verify.backends.interpreter import programs

        return programs.now.launches


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


SHARE = 4 << 30  # bytes of GPU memory for each worker: its context, and a case with its truth


class Cuda(Backend):
    """One GPU of NVIDIA."""

    name, arches, scale, gpu, forks, triton = "cuda", "sm_", "large", True, False, "compiled"
    clock = streams = True
    driver: ClassVar[Path | None] = Path("/dev/nvidiactl")

    @classmethod
    def is_single(cls) -> bool:
        alone = not os.environ.get(cls.visible) and len(list(Path("/dev").glob("nvidia[0-9]*"))) <= 1
        return alone or super().is_single()

    @classmethod
    def architecture(cls, device: Any) -> str:
        """Returns the architecture of a GPU, such as sm_90."""
        import torch

        major, minor = torch.cuda.get_device_capability(device)
        return f"sm_{major}{minor}"

    @classmethod
    def lacking(cls) -> str:
        import torch

        if torch.version.hip:
            return f"needs a torch that was built for it; torch.version.hip is {torch.version.hip}"
        return "" if torch.cuda.is_available() else "needs a GPU that torch can use; torch.cuda.is_available() is False"

    @classmethod
    def here(cls) -> Self:
        import torch

        index = torch.cuda.current_device()
        return cls(f"cuda:{index}", f"{torch.cuda.get_device_name(index)} ({cls.architecture(index)})")

    @classmethod
    def count(cls) -> int:
        import torch

        return torch.cuda.device_count()

    def activate(self) -> None:
        demand_triton()
        if triton_interprets():
            raise UsageError(
                f"backend: {self.name!r} compiles kernels; got a process whose Triton was imported to interpret them",
                hint="unset TRITON_INTERPRET and start a new process",
            )

    def usable(self) -> bool:
        """Asks the GPU: after an illegal access every later call of the process fails.

        A process without a tensor on the GPU is not asked: that would make its context, of half a gigabyte.
        """
        import torch

        cuda: Any = torch.cuda
        if not cuda.is_initialized() or not cuda.max_memory_reserved(self.device):
            return True
        try:
            cuda.synchronize(self.device)
            return bool(torch.zeros(1, device=self.device).sum() == 0)
        except Exception:
            return False

    def workers(self, cores: int) -> int:
        """Returns one per core, because exact verdicts are the CPU's work, or as many as fit into the GPU's memory."""
        import torch

        memory: int = torch.cuda.get_device_properties(self.device).total_memory
        return max(1, min(cores, memory // SHARE))
