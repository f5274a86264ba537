"""What a user names on a command line: a file or a module, and one kernel in it. Importing this needs no torch."""

from __future__ import annotations

import os
from dataclasses import dataclass

from verify.errors import UsageError


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

    @property
    def is_file(self) -> bool:
        return self.source.endswith(".py") or os.sep in self.source
