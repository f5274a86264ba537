"""GPUs that torch drives: NVIDIA's, on which verify is tested, and two kinds on which it never ran."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, ClassVar, Self

from verify.backends.backend import Backend
from verify.backends.cpu import demand_triton, triton_interprets
from verify.errors import UsageError

SHARE = 4 << 30  # bytes of GPU memory for each worker: its context, and a case with its truth
MOST_LETTERS = 27  # of a GPU's name that its architecture keeps


class Gpu(Backend):
    """One GPU. `driven_by` is the module of torch that drives it; `hip` is True for AMD's."""

    scale, gpu, forks, triton = "large", True, False, "compiled"
    driven_by: ClassVar[str] = "cuda"
    hip: ClassVar[bool] = False

    @classmethod
    def torch_module(cls) -> Any:
        """Returns torch.cuda or torch.xpu."""
        import torch

        return getattr(torch, cls.driven_by)

    @classmethod
    def architecture(cls, device: Any) -> str:
        """Returns the architecture of a GPU, such as sm_90."""
        raise NotImplementedError

    @classmethod
    def lacking(cls) -> str:
        import torch

        if bool(torch.version.hip) != cls.hip:
            return f"needs a torch that was built for it; torch.version.hip is {torch.version.hip}"
        if not cls.torch_module().is_available():
            return f"needs a GPU that torch can use; torch.{cls.driven_by}.is_available() is False"
        return ""

    @classmethod
    def here(cls) -> Self:
        index = cls.torch_module().current_device()
        name, arch = cls.torch_module().get_device_name(index), cls.architecture(index)
        return cls(f"{cls.driven_by}:{index}", f"{name} ({arch if cls.tested else f'{cls.name} {arch}'})")

    @classmethod
    def count(cls) -> int:
        return int(cls.torch_module().device_count())

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

        if not self.torch_module().is_initialized() or not self.torch_module().max_memory_reserved(self.device):
            return True
        try:
            self.torch_module().synchronize(self.device)
            return bool(torch.zeros(1, device=self.device).sum() == 0)
        except Exception:
            return False

    def workers(self, cores: int) -> int:
        """Returns one per core, because exact verdicts are the CPU's work, or as many as fit into the GPU's memory."""
        memory: int = self.torch_module().get_device_properties(self.device).total_memory
        return max(1, min(cores, memory // SHARE))

    def environment(self) -> dict[str, str]:
        return {} if self.tested else {"arch": self.architecture(self.device), **super().environment()}


class Cuda(Gpu):
    """NVIDIA."""

    name, tested, arches = "cuda", True, "sm_"
    clock = streams = True
    driver: ClassVar[Path | None] = Path("/dev/nvidiactl")

    @classmethod
    def is_single(cls) -> bool:
        alone = not os.environ.get(cls.visible) and len(list(Path("/dev").glob("nvidia[0-9]*"))) <= 1
        return alone or super().is_single()

    @classmethod
    def architecture(cls, device: Any) -> str:
        major, minor = cls.torch_module().get_device_capability(device)
        return f"sm_{major}{minor}"


class Rocm(Gpu):
    """AMD. Its PyTorch uses the names of CUDA; the capability (9, 0) that it reports does not mean sm_90."""

    name, arches, visible, hip = "rocm", "gfx", "HIP_VISIBLE_DEVICES", True
    clock = streams = True

    @classmethod
    def architecture(cls, device: Any) -> str:
        # such as gfx90a:sramecc+:xnack-, gfx90a with two features
        return str(cls.torch_module().get_device_properties(device).gcnArchName).partition(":")[0]


class Xpu(Gpu):
    """Intel. torch has no name of the architecture, so the GPU's own name serves."""

    name = driven_by = "xpu"

    @classmethod
    def architecture(cls, device: Any) -> str:
        name = cls.torch_module().get_device_name(device).lower().removeprefix("intel(r) ")
        return f"xpu_{re.sub('[^a-z0-9]+', '_', name).strip('_')[-MOST_LETTERS:]}"
