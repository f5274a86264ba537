"""Defines a law: something true of any correct kernel, with a check that raises `Broken`.

A law states when it applies, which cases it needs, and how to check one case. If it does not apply, it gives the reason
for the report. It does not depend on Hypothesis' runner, pytest or records. Laws that require the same bits compare two
runs of a kernel by `demand_same`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from verify.backends import Backend
from verify.cases import Case, case_of
from verify.cases.sizes import fitted
from verify.cases.strategies import CaseSpace, space
from verify.declare.declaration import Kernel
from verify.truth import formats
from verify.truth.ulp import bits_of, pattern_at, same_bits

Inputs = dict[str, Tensor | None]  # operands by name; None: absent


@dataclass(frozen=True)
class Subject:
    """Holds a kernel that a law is about, in one dtype, with its backend and the sizes of its cases."""

    kernel: Kernel
    dtype: str
    backend: Backend
    sizes: Any
    target: str = ""
    until: float = math.inf  # after this time of time.monotonic() no further case is tried

    @property
    def late(self) -> bool:
        """True if the time for a further case has run out."""
        return time.monotonic() >= self.until

    @property
    def sums(self) -> bool:
        """True for a PyTorch function that sums: the order may depend on a setting, within the kernel's limit."""
        return self.kernel.op.geometry.named and self.kernel.op.gate != "plain"


def plain_case(subject: Subject, dims: tuple[int, ...]) -> Case:
    """Returns the plainest case of a subject with some dims: ordinary values, contiguous, every gradient."""
    kernel = subject.kernel
    regime = kernel.op.geometry.regime("randn")
    return case_of(kernel, subject.dtype, dims=fitted(kernel, dims), regime=regime)


def space_of(subject: Subject, **choices: Any) -> CaseSpace:
    """Returns the space of the subject's cases with these choices, as `space` has them."""
    return space(subject.kernel, subject.dtype, **({"sizes": subject.sizes} | choices))


def plain_space(subject: Subject, shapes: Sequence[tuple[int, ...]]) -> CaseSpace:
    """Returns the space of cases of some shapes with ordinary values."""
    return space_of(subject, shapes=shapes, fill=(subject.kernel.op.geometry.fill,))


def plain_cases(subject: Subject, chosen: CaseSpace) -> tuple[Case, ...]:
    """Returns the plainest case of each shape. These are the fixed cases of a law about shapes alone."""
    return tuple(plain_case(subject, dims) for dims in chosen.shapes)


class Excess(NamedTuple):
    """Holds the error of an element and its limit, in ULP, or in ULP of scale if the op is judged by the scale."""

    error: float
    limit: float

    def at_most(self, factor: float) -> bool:
        """True if the error is at most `factor` times the limit."""
        return self.error <= factor * self.limit


@dataclass(eq=False, repr=False)
class Broken(AssertionError):
    """Reports that a law does not hold for a case. `facts` are the lines of the message, in order.

    excess: the error and its limit; None if the law is not about accuracy.
    failed: True if the kernel raised or returned something else than results, so the law was not decided.
    """

    rule: str
    case: Case
    facts: dict[str, str]
    _: KW_ONLY
    result: str = ""
    index: int | None = None
    excess: Excess | None = None
    failed: bool = False

    def __str__(self) -> str:
        return self.rule

    def restated(self, rule: str, case: Case, facts: dict[str, str]) -> Broken:
        """Returns the same failure in the words of another law."""
        return Broken(rule, case, facts, result=self.result, index=self.index, excess=self.excess, failed=self.failed)


class BrokenBeyond(Broken):
    """Reports that a law does not hold at larger sizes than the case has, so no smaller case is searched."""


class NotApplicable(Exception):
    """Reports that a law turned out not to apply to a kernel, with the reason."""


def said_of(subject: Subject) -> str:
    """Returns a name such as `op softmax`.

    A PyTorch function gets a common name, so that reports list many kernels in one line.
    """
    name = subject.kernel.op.name
    return "this PyTorch function" if name.startswith("like ") else f"op {name}"


def has_gradients(subject: Subject) -> str | None:
    """Returns the reason of a law about gradients for a kernel that has none."""
    return None if subject.kernel.differentiable else "the kernel has no gradients"


Check = Callable[[Subject, Case], float | None]


@dataclass(frozen=True)
class Law:
    """Holds one law.

    applies: returns None, or the reason why the law does not apply.
    space: returns the space of a subject's cases.
    check: raises `Broken`, or returns a score such as the error. The search tries to make the score large.
    examples: returns the fixed cases, which are tried before any drawn case. By default each choice of the space occurs
        once.
    """

    name: str
    summary: str
    space: Callable[[Subject], CaseSpace]
    check: Check
    applies: Callable[[Subject], str | None] = lambda subject: None
    examples: Callable[[Subject, CaseSpace], tuple[Case, ...]] = lambda subject, space: space.each_choice()
    nearest: bool = False  # True: results that are rounded at random need not keep the law
    of_draws: bool = False  # True: a kernel whose results are drawn at random can keep the law
    share: float = 1.0  # share of a profile's drawn cases; expensive laws take fewer
    sees: Callable[[Subject], str] = lambda subject: ""  # the smallest error that it finds, for the notes of a run

    def reason(self, subject: Subject) -> str | None:
        """Returns why the law does not apply to a subject; None if it applies."""
        if subject.kernel.encoding is not None:
            return "it is about numbers; a quantiser has laws of its own, which every run tries"
        if subject.kernel.draws and not self.of_draws:
            return f"{', '.join(subject.kernel.draws)} is drawn at random: the law of distributions is about it"
        if self.nearest and subject.kernel.stochastic:
            return f"{', '.join(subject.kernel.stochastic)} is rounded at random, by the place of an element"
        return self.applies(subject)

    def fixed(self, subject: Subject) -> tuple[Case, ...]:
        """Returns the fixed cases, which are tried first."""
        return self.examples(subject, self.space(subject))


def law(name: str, space: Callable[[Subject], CaseSpace] = space_of, **options: Any) -> Callable[[Check], Law]:
    """Makes a law of the function below, which checks one case. Its docstring begins with a statement about any kernel.

    @law("side stream", applies=on_gpu, share=0.25)
    def side_stream(subject: Subject, case: Case) -> None:
    """
    return lambda check: Law(name, (check.__doc__ or "").partition("\n")[0].rstrip("."), space, check, **options)


def first_difference(left: Tensor, right: Tensor) -> int | None:
    """Returns the flat index of the first element whose bits differ; None if all agree. NaNs count as equal."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return 0
    both_nan = torch.isnan(left.float()) & torch.isnan(right.float())
    differ = (bits_of(left.detach()) != bits_of(right.detach())) & ~both_nan
    places = torch.nonzero(differ.reshape(-1))
    return int(places[0]) if places.numel() else None


def show(tensor: Tensor, index: int) -> str:
    """Returns one element as text, in decimal and hex."""
    fmt = formats.of(tensor.dtype)
    flat = tensor.detach().reshape(-1)
    if index >= flat.numel():
        return f"shape {tuple(tensor.shape)} {tensor.dtype}"
    pattern = pattern_at(flat, index)
    return f"{fmt.to_float(pattern)!r} ({fmt.hex(pattern)})"


def place(tensor: Tensor, index: int) -> str:
    """Returns the position of a flat index and the shape, as text."""
    position = []
    for size in reversed(tensor.shape):
        index, at = divmod(index, size) if size else (0, 0)
        position.append(at)
    return f"{list(reversed(position))} of shape {list(tensor.shape)}"


def laid(case: Case) -> dict[str, str]:
    """Returns the layouts of operands as a fact of the message, if any is unusual."""
    said = ", ".join(f"{name} {layout}" for name, layout in case.layouts.items())
    return {"layouts": said} if said else {}


def demand_same(
    case: Case,
    got: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    rule: str,
    *,
    labels: tuple[str, str] = ("got", "expected"),
    facts: Mapping[str, str] | None = None,
    excused: Callable[[], object] = lambda: False,
) -> None:
    """Raises `Broken` with the rule at the first element whose bits differ.

    If any differ, `excused` is called: True allows other bits, as of a sum within the kernel's limit.
    """
    equal = expected.keys() <= got.keys()
    if equal and (same_bits([got[name] for name in expected], list(expected.values())) or excused()):
        return
    for name, right in expected.items():
        left = got.get(name)
        if left is None:
            raise Broken(f"{name} is missing", case, {"rule": rule, **(facts or {})}, result=name)
        if left.shape != right.shape or left.dtype != right.dtype:
            forms = (f"{each.dtype} {list(each.shape)}" for each in (left, right))
            shapes = dict(zip(labels, forms, strict=True))
            raise Broken(rule, case, {**(facts or {}), "at": name, **shapes}, result=name)
        index = first_difference(left, right)
        if index is not None:
            where = {"at": f"{name} {place(right, index)}", labels[0]: show(left, index), labels[1]: show(right, index)}
            raise Broken(rule, case, {**(facts or {}), **where}, result=name, index=index)
