"""The protocol of a backend: the questions that verify asks about a place where kernels run.

The class answers without torch, because the parent process knows only the name of a backend. An instance is a device
that was found. A package adds a backend by an entry point in the group "verify.backends"
(tests/backends/test_added.py).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Self

NEVER_RUN = "no test of verify has run there, so nothing is known of its results"


@dataclass(frozen=True)
class Backend:
    """A device on which kernels run. `device` is its name in torch, `label` its name in reports.

    `asked` is its name if the user named it, else "". Commands that repeat something say it.
    """

    device: str
    label: str = ""
    asked: str = ""

    name: ClassVar[str]  # its name in records and in --backend
    tested: ClassVar[bool] = False  # True: verify's own tests have run there; False: it must be selected by name
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

    def workers(self, cores: int) -> int:
        """Returns how many processes may measure at a time."""
        return cores

    def environment(self) -> dict[str, str]:
        """Returns entries of a record in addition to the fingerprint that all backends share."""
        return {} if self.tested else {"untested": NEVER_RUN}
