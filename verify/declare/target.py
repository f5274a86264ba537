"""What a user names on a command line, and what a worker tells of a kernel found there. Importing this needs no torch.

>>> str(Target.parse("accuracy.py").of("my_gelu"))
'accuracy.py::my_gelu'
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from verify.backends import runs_on
from verify.errors import UsageError
from verify.records.record import KernelRun, Status

if TYPE_CHECKING:
    from verify.declare.declaration import Kernel


@dataclass(frozen=True)
class Target:
    """What the user named: a file or module, and optionally one kernel in it."""

    source: str
    kernel: str | None = None

    @staticmethod
    def parse(text: str) -> Target:
        """FILE, FILE::KERNEL, MODULE or MODULE::KERNEL; KERNEL may end in @eager or @compile (declare/standin.py)."""
        source, separator, label = text.partition("::")
        if not source or (separator and not label):
            raise UsageError(
                f"a target is FILE, MODULE, FILE::KERNEL or MODULE::KERNEL; received {text!r}",
                hint="verify run accuracy.py::my_gelu",
            )
        return Target(source, label or None)

    def __str__(self) -> str:
        return self.source if self.kernel is None else f"{self.source}::{self.kernel}"

    def of(self, kernel: str) -> Target:
        """A kernel of the same source."""
        return Target(self.source, kernel)

    @property
    def is_file(self) -> bool:
        """Whether the source is named as a file rather than as a module."""
        return self.source.endswith(".py") or os.sep in self.source

    @property
    def file(self) -> Path | None:
        """The Python file that is named; None for a module."""
        return Path(self.source) if self.source.endswith(".py") else None

    @property
    def stands_in(self) -> bool:
        """Whether it is PyTorch in a kernel's place."""
        return "@" in (self.kernel or "")

    def import_command(self) -> str:
        """The command that imports it and nothing else, to see what happens."""
        return f"python {shlex.quote(self.source)}" if self.file else f"python -c 'import {self.source}'"


class Declared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker tells of a declared kernel."""

    target: str  # with the kernel's name
    name: str
    op: str
    kind: Literal["elementwise", "rowwise", "contraction", "graph"]
    params: dict[str, Any]
    promise: str
    backends: tuple[str, ...]
    dtypes: tuple[str, ...]
    summary: str = ""
    peer: bool = False
    lacking: tuple[str, ...] = ()  # packages that it requires and that are not installed

    @staticmethod
    def of(kernel: Kernel, source: str) -> Declared:
        """A kernel that the source declares."""
        return Declared(
            target=str(Target(source, kernel.name)),
            name=kernel.name,
            op=kernel.op.name,
            kind=kernel.op.geometry.name,
            params=dict(kernel.params),
            promise=kernel.promise,
            backends=kernel.backends,
            dtypes=kernel.dtypes,
            summary=kernel.summary,
            peer=kernel.peer,
            lacking=kernel.lacking,
        )

    def run(self, status: Status, message: str = "", **more: Any) -> KernelRun:
        """What the record says of it: `more` are further fields of a KernelRun, such as `results` and `hint`."""
        fields: dict[str, Any] = {"status": status, "results": [], "message": message, **more}
        return KernelRun(
            name=self.name,
            target=self.target,
            op=self.op,
            params=self.params,
            promise=self.promise,
            peer=self.peer,
            **fields,
        )

    def missing(self) -> str:
        """Why it cannot run where its packages are not installed; empty where they are."""
        return f"needs {', '.join(self.lacking)}, which is not installed" if self.lacking else ""

    def unfit(self, backend: str, this: str) -> str:
        """Why `this` (run, hunt) on a backend leaves it out; empty where it can run."""
        if missing := self.missing():
            return missing
        if not runs_on(self.backends, backend):
            return f"declared for {', '.join(self.backends)}; this {this} is on {backend}"
        return ""
