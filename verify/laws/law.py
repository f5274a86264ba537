"""What a law is: something true of any correct kernel, with a check that raises `Broken`.

A law says when it applies (else the reason why not, which is reported, never swallowed), which cases it
wants, and how one case is checked. It knows nothing of Hypothesis' runner, of pytest or of records.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from verify.backends import Backend
from verify.cases import Case
from verify.declaration import Kernel


@dataclass(frozen=True)
class Subject:
    """The kernel that a law is about, in one dtype, where it runs, and how large its cases may be."""

    kernel: Kernel
    dtype: str
    backend: Backend
    sizes: Any
    target: str = ""


def plain_case(subject: Subject, dims: tuple[int, ...]) -> Case:
    """The plainest case of a subject with some dims: ordinary values, contiguous, every gradient."""
    kernel = subject.kernel
    fill = "normal" if kernel.op.kind == "elementwise" else "randn"
    return Case(
        dtype=subject.dtype,
        dims=dims,
        fill=fill,
        params=dict(kernel.params),
        upstream="normal" if kernel.differentiable else "",
        absent=kernel.absent,
        regime="" if kernel.op.kind == "elementwise" else fill,
    )


class Broken(AssertionError):
    """A law does not hold for a case. `facts` are the lines of the message, in order."""

    def __init__(self, rule: str, case: Case, facts: dict[str, str], *, result: str = "", index: int | None = None):
        super().__init__(rule)
        self.rule = rule
        self.case = case
        self.facts = facts
        self.result = result
        self.index = index


def always(subject: Subject) -> str | None:
    """A law that applies to every kernel."""
    return None


@dataclass(frozen=True)
class Law:
    """One law. `applies` returns None, or the reason why it does not apply.

    `cases` gives the strategy of a subject's cases; `check` raises `Broken`. `examples` are cases that are
    always tried first. `score`, if given, is what the search tries to make large (the error, say).
    """

    name: str
    summary: str
    cases: Callable[[Subject], st.SearchStrategy[Case]]
    check: Callable[[Subject, Case], float | None]
    applies: Callable[[Subject], str | None] = always
    examples: Callable[[Subject], tuple[Case, ...]] = field(default=lambda subject: ())
    share: float = 1.0  # of a profile's examples: dear laws take fewer
