"""What a law is: something true of any correct kernel, with a check that raises `Broken`.

A law says when it applies (else the reason why not, which is reported, never swallowed), which cases it
wants, and how one case is checked. It knows nothing of Hypothesis' runner, of pytest or of records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hypothesis import strategies as st

from verify.backends import Backend
from verify.cases import Case, case_of
from verify.cases.sizes import fitted
from verify.cases.strategies import CaseSpace, space
from verify.declare.declaration import Kernel


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
    regime = kernel.op.geometry.regime("randn")
    return case_of(kernel, subject.dtype, dims=fitted(kernel, dims), regime=regime)


def plain_space(subject: Subject, shapes: Sequence[tuple[int, ...]]) -> CaseSpace:
    """The space of cases of some shapes with ordinary values."""
    fill = (subject.kernel.op.geometry.fill,)
    return space(subject.kernel, subject.dtype, sizes=subject.sizes, shapes=shapes, fill=fill)


def plain_cases(subject: Subject, chosen: CaseSpace) -> tuple[Case, ...]:
    """The plainest case of each shape: the fixed cases of a law that asks about shapes alone."""
    return tuple(plain_case(subject, dims) for dims in chosen.shapes)


class Excess(NamedTuple):
    """The error of an element and its limit, in ULP, of scale where the op is judged so."""

    error: float
    limit: float

    def at_most(self, factor: float) -> bool:
        """True if the error is at most so many times the limit."""
        return self.error <= factor * self.limit


class Broken(AssertionError):
    """A law does not hold for a case. `facts` are the lines of the message, in order.

    `excess` is None where the law is not about accuracy.
    `failed`: the kernel raised or returned something else than results, so that the law was not decided.
    """

    def __init__(
        self,
        rule: str,
        case: Case,
        facts: dict[str, str],
        *,
        result: str = "",
        index: int | None = None,
        excess: Excess | None = None,
        failed: bool = False,
    ):
        super().__init__(rule)
        self.rule = rule
        self.case = case
        self.facts = facts
        self.result = result
        self.index = index
        self.excess = excess
        self.failed = failed

    def restated(self, rule: str, case: Case, facts: dict[str, str]) -> Broken:
        """The same failure as another law words it."""
        return Broken(rule, case, facts, result=self.result, index=self.index, excess=self.excess, failed=self.failed)


def said_of(subject: Subject) -> str:
    """`op softmax`; a PyTorch function has no name of its own, so that many kernels share one line."""
    name = subject.kernel.op.name
    return "this PyTorch function" if name.startswith("like ") else f"op {name}"


def always(subject: Subject) -> str | None:
    """A law that applies to every kernel."""
    return None


@dataclass(frozen=True)
class Law:
    """One law. `applies` returns None, or the reason why it does not apply.

    `space` is what a subject's cases are made of. `check` raises `Broken`; it may return a score (the error, say),
    which the search tries to make large. `examples` are tried before anything is drawn, the same ones every time;
    by default every choice of the space once.
    """

    name: str
    summary: str
    space: Callable[[Subject], CaseSpace]
    check: Callable[[Subject, Case], float | None]
    applies: Callable[[Subject], str | None] = always
    examples: Callable[[Subject, CaseSpace], tuple[Case, ...]] = lambda subject, space: space.each_choice()
    rows: bool = False  # whether it is about the rows of the data, which a PyTorch function need not have
    share: float = 1.0  # of a profile's drawn cases: dear laws take fewer

    def reason(self, subject: Subject) -> str | None:
        """Why the law does not apply to a subject; None where it does."""
        if subject.kernel.encoding is not None:
            return "it is about numbers; a quantiser has laws of its own, which every run tries"
        if self.rows and subject.kernel.op.geometry.named:
            return "it is about rows of data, which a PyTorch function need not have; its sizes are tried by accuracy"
        return self.applies(subject)

    def cases(self, subject: Subject) -> st.SearchStrategy[Case]:
        """The strategy of a subject's cases."""
        return self.space(subject).cases()

    def fixed(self, subject: Subject) -> tuple[Case, ...]:
        """The cases that are tried first, whatever is drawn afterwards."""
        return self.examples(subject, self.space(subject))
