"""Defines an entry of the corpus: a pinned case, its outcome when it was pinned, and why it is kept."""

from __future__ import annotations

import hashlib
from typing import Any, Generic, TypeVar

import msgspec

from verify.records.record import Number

C = TypeVar("C")  # a `Case`; where torch is not imported, its JSON


class PinnedCase(msgspec.Struct, Generic[C], frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Holds one pinned case. Either `law` is set, or `result` and `index`."""

    schema: int
    kernel: str
    target: str  # FILE::KERNEL or MODULE::KERNEL, from the project's root
    op: str
    dtype: str
    case: C
    law: str = ""
    result: str = ""
    index: int | None = None
    error: Number | None = None  # when it was pinned, in ULP of the gate below; None for a law
    gate: str = ""  # "plain" or "scaled"
    showed: str = ""  # the kernel's value and the truth, or the law's message
    backend: str = ""
    commit: str = ""
    date: str = ""  # ISO 8601, UTC
    why: str = ""

    @property
    def id(self) -> str:
        """Returns 12 hex digits that identify the pinned case, without its outcome and its reason."""
        pinned = [self.kernel, self.op, self.dtype, self.case, self.law, self.result, self.index]
        # Sorted, because the order in which a case names its operands does not matter.
        return hashlib.sha256(msgspec.json.encode(pinned, order="sorted")).hexdigest()[:12]

    @property
    def about(self) -> str:
        """Names the law or the element that is pinned."""
        return f"law of {self.law}" if self.law else f"{self.result}[{self.index}]"


Entry = PinnedCase[dict[str, Any]]
