"""Parses a target of a command line, and holds a worker's facts about a kernel. Importing this needs no torch.

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
    """Names a file or module, and optionally one kernel in it."""

    source: str
    kernel: str | None = None

    @staticmethod
    def parse(text: str) -> Target:
        """Parses FILE, FILE::KERNEL, MODULE or MODULE::KERNEL; KERNEL may end in @eager or @compile (standin.py)."""
        source, separator, label = text.partition("::")
        if not source or (separator and not label):
            text = f"a target is FILE, MODULE, FILE::KERNEL or MODULE::KERNEL; received {text!r}"
            raise UsageError(text, hint="verify run accuracy.py::my_gelu")
        return Target(source, label or None)

    def __str__(self) -> str:
        return self.source if self.kernel is None else f"{self.source}::{self.kernel}"

    def of(self, kernel: str) -> Target:
        """Returns a target for a kernel of the same source."""
        return Target(self.source, kernel)

    @property
    def is_file(self) -> bool:
        """True if the source is a file and not a module."""
        return self.source.endswith(".py") or os.sep in self.source

    @property
    def file(self) -> Path | None:
        """Returns the Python file, or None for a module."""
        return Path(self.source) if self.source.endswith(".py") else None

    @property
    def stands_in(self) -> bool:
        """True if the target is PyTorch in a kernel's place."""
        return "@" in (self.kernel or "")

    def demand_source(self) -> None:
        """Raises UsageError if the source is a folder, or a file that does not exist."""
        path = Path(self.source).resolve()
        if path.is_dir() and not (self.source.isidentifier() and (path / "__init__.py").is_file()):
            text = f"a target is a Python file or a module; received the folder {self.source}"
            raise UsageError(text, hint=_in_folder(path))
        if self.is_file and not path.is_file():
            raise UsageError(f"no such file: {self.source}", hint=_in_folder(path.parent))

    def import_command(self) -> str:
        """Returns a command that only imports the target, for a user who wants to see why that fails."""
        return f"python {shlex.quote(self.source)}" if self.file else f"python -c 'import {self.source}'"


def _in_folder(folder: Path) -> str:
    """Returns the next command if no file was named: it names a file of the folder that declares kernels, if any."""
    try:
        files = [item for item in sorted(folder.glob("*.py")) if "verify.kernel" in item.read_text("utf-8", "ignore")]
    except OSError:
        files = []
    if not files:
        return "verify run FILE.py, where FILE.py declares a kernel with @verify.kernel; verify list for all configured"
    return f"verify run {os.path.relpath(files[0])}"


def _facts(of: object, *names: str) -> dict[str, Any]:
    """Returns some fields of an object, for another one that has the same."""
    return {name: getattr(of, name) for name in names}


class Declared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Holds a worker's facts about a declared kernel."""

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
    lacking: tuple[str, ...] = ()  # required packages that are not installed

    @staticmethod
    def of(kernel: Kernel, source: str) -> Declared:
        """Describes a kernel that the source declares."""
        return Declared(
            target=str(Target(source, kernel.name)),
            op=kernel.op.name,
            kind=kernel.op.geometry.name,
            params=dict(kernel.params),
            **_facts(kernel, "name", "promise", "backends", "dtypes", "summary", "peer", "lacking"),
        )

    def run(self, status: Status, message: str = "", **more: Any) -> KernelRun:
        """Returns the kernel's entry for a record. `more` are further fields, such as `results` and `hint`."""
        own = _facts(self, "name", "target", "op", "params", "promise", "peer")
        return KernelRun(**own, **{"status": status, "results": [], "message": message, **more})

    def missing(self) -> str:
        """Returns why the kernel cannot run without its packages, or ""."""
        return f"needs {', '.join(self.lacking)}, which is not installed" if self.lacking else ""

    @property
    def install(self) -> str:
        """Returns the step that makes a missing package of this project importable, or ""."""
        own = [folder for name in self.lacking for folder in ("", "src") if (Path(folder) / name).is_dir()]
        known = any(Path(name).is_file() for name in ("pyproject.toml", "setup.py"))
        return "" if not own else "pip install -e ." if known else f"export PYTHONPATH={own[0] or '.'}"

    def unfit(self, backend: str, this: str) -> str:
        """Returns why `this` (run, hunt) on a backend omits the kernel, or ""."""
        if missing := self.missing():
            return missing
        if not runs_on(self.backends, backend):
            return f"declared for {', '.join(self.backends)}; this {this} is on {backend}"
        return ""
