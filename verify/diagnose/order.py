"""Recovers the order in which a kernel adds up, by terms that swallow others, for `verify explain --order`.

A large term and its opposite swallow every small one that meets one of them before the two meet. So with M and -M at
two places and ones at all others, the result counts the ones outside of the smallest part of the sum that has both
places. These counts give the whole order (FPRev, arXiv 2411.00442). Squares and exponentials have no opposite: of a
large and two small terms, the small ones survive only if they meet each other before the large one. Many probes are
rows of one call. The kernel is a black box, so an order is a hypothesis: it is replayed on other numbers, and the share
of results that it explains says whether it holds.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice, pairwise, product
from typing import NamedTuple, TypeGuard

import msgspec
import torch
from torch import Tensor

from verify.backends import Backend
from verify.cases import Case, inputs_of
from verify.declare.declaration import Kernel
from verify.diagnose import compiled
from verify.diagnose.requests import Order
from verify.diagnose.same import subject_of
from verify.laws.bits import cases_of
from verify.laws.locality import Rows, separate_rows
from verify.measure.call import run_kernel, run_tensors
from verify.truth import formats
from verify.truth.ulp import bits_of
from verify.workers.requests import OnProgress

Additions = list[tuple[int, int]]  # of terms, by their number, and of earlier additions, numbered after the terms

_LINES = 12  # of an order in words
_SUMS, _PROBES = 4096, 512  # that test an order
# A large number, and a small one of which it swallows thousands, by the dtype of the operand.
_SIGNED = {"float16": (2.0**15, 2.0**-24), "float64": (2.0**200, 1.0)}
_USUAL = (2.0**60, 1.0)
# Operands whose function is a large term of spacing 2, one below 1 and none. The squares of several are large: beside
# one of them the root of a mean square moves visibly, if it is above a power of two.
_POSITIVE = (
    *(("squares", 64.0 * steps, 0.98, 0.0) for steps in range(64, 91)),
    ("exponentials", 0.0, -16.92322, -200.0),
)
_TRIPLES = 32  # of terms, which show whether terms of a kind can be seen


@dataclass(frozen=True)
class _Sum:
    """Calls a kernel on rows of one operand, and reads the results of each row."""

    kernel: Kernel
    case: Case
    rows: Rows
    operand: str
    result: str
    inputs: Mapping[str, Tensor | None]

    @cached_property
    def whole(self) -> Tensor:
        """Returns the operand with its rows in front."""
        value = self.inputs[self.operand]
        assert value is not None
        return value.movedim(self.rows.axis(self.operand) or 0, 0)

    @property
    def places(self) -> int:
        return self.whole[0].numel()

    def results(self, values: Tensor) -> Tensor:
        """Returns the results of each row of `values`. Every call has as many rows: the order may depend on them."""
        return torch.cat([self._call(part) for part in torch.split(values, self.rows.count)])

    def _call(self, values: Tensor) -> Tensor:
        full = torch.zeros(self.whole.shape[0], self.places, dtype=torch.float64)
        full[: len(values)] = values
        axis = self.rows.axis(self.operand) or 0
        made = full.reshape(self.whole.shape).movedim(0, axis).to(self.whole.device, self.whole.dtype).contiguous()
        found = run_tensors(self.kernel, {**self.inputs, self.operand: made}, self.case.params, {})[self.result]
        found = found.movedim(self.rows.axis(self.result) or 0, 0)
        return found.reshape(found.shape[0], -1)[: len(values)].cpu()


class _Signed:
    """Asks for orders of sums whose terms may be negative: the result is linear in the operand."""

    kind = "terms of both signs"

    def __init__(self, of: _Sum, dtype: str, sums: int) -> None:
        self._sums, self.tested = sums, f"{sums:,} other results, bit by bit"
        self._large, self._one = _SIGNED.get(dtype, _USUAL)
        self._sum = _without_added(of, self._one)
        base = self._sum.results(torch.zeros(1, of.places))[0, 0].double()
        alone = self._sum.results(torch.eye(of.places) * self._one)[:, 0].double() - base
        self.terms = alone.nonzero()[:, 0].tolist()
        self._share = alone[self.terms[0]].item() if self.terms else 0.0
        twice = self._sum.results(torch.full((1, of.places), 2 * self._one))[0, 0].double() - base
        self.holds = bool(
            len(self.terms) > 1
            and base == 0
            and (alone[self.terms] == self._share).all()
            and (twice / (2 * self._share) - len(self.terms)).abs() < 0.5
        )

    def levels(self, first: int, others: Sequence[int]) -> list[list[int]]:
        """Returns the others by where they meet the first, the nearest ones first."""
        rows = torch.zeros(len(others), self._sum.places, dtype=torch.float64)
        rows[:, [first, *others]] = self._one
        rows[:, first] = self._large
        rows[torch.arange(len(others)), torch.tensor(others)] = -self._large
        outside = (self._sum.results(rows)[:, 0].double() / self._share).round().tolist()
        groups: dict[float, list[int]] = {}
        for place, count in zip(others, outside, strict=True):
            groups.setdefault(count, []).append(place)
        return [groups[count] for count in sorted(groups, reverse=True)]

    def explained(self, additions: Additions, draw: torch.Generator) -> float:
        """Returns the share of random sums whose bits the order gives."""
        shares = [self._share_of(additions, min(_SUMS, self._sums - at), draw) for at in range(0, self._sums, _SUMS)]
        return sum(shares) / len(shares)

    def _share_of(self, additions: Additions, count: int, draw: torch.Generator) -> float:
        shape = (count, self._sum.places)
        spread = torch.randint(-6, 7, shape, generator=draw)
        values = (torch.randn(shape, generator=draw) * torch.exp2(spread)).to(self._sum.whole.dtype)
        got = self._sum.results(values.double())[:, 0]
        exact = torch.float64 if got.dtype == torch.float64 else torch.float32
        totals = [values[:, place].to(exact) for place in self.terms]
        for one, two in additions:
            totals.append(totals[one] + totals[two])
        share = self._share / self._one
        ends = [totals[-1]] if share >= 1 else [totals[-1] * share, totals[-1] / round(1 / share)]
        return max((bits_of(end.to(got.dtype)) == bits_of(got)).double().mean().item() for end in ends)


class _Positive:
    """Asks for orders of sums of squares or exponentials: which two of three terms meet first."""

    def __init__(self, of: _Sum, kind: str, large: float, small: float, none: float) -> None:
        self.kind, self.tested, self._sum = kind, f"{_PROBES:,} probes of three terms", of
        self._large, self._small, self._none = large, small, none
        self.terms = list(range(of.places))
        if of.places < 3:
            self.holds = False
            return
        draw = torch.Generator().manual_seed(0)
        drawn = [torch.randperm(of.places, generator=draw)[:3].tolist() for _ in range(_TRIPLES)]
        turned = [each[at:] + each[:at] for each in drawn for at in range(3)]
        met = self.survive(*zip(*turned, strict=True))
        self.holds = all(sum(met[at : at + 3]) == 1 for at in range(0, len(met), 3))  # two of three meet first

    def survive(self, large: Sequence[int], one: Sequence[int], two: Sequence[int]) -> list[bool]:
        """Tells for each row whether the small terms at `one` and `two` meet before the large one."""
        every = torch.arange(len(large))
        rows = torch.full((len(large), self._sum.places), self._none, dtype=torch.float64)
        rows[every, torch.tensor(large)], rows[every, torch.tensor(one)] = self._large, self._small
        beside = rows.clone()
        beside[every, torch.tensor(two)] = self._small
        found = [bits_of(self._sum.results(each).contiguous()) for each in (rows, beside)]
        if found[0].shape[1] == self._sum.places:  # the result of the first small term
            found = [each.gather(1, torch.tensor(one)[:, None]) for each in found]
        return (found[0][:, 0] != found[1][:, 0]).tolist()

    def levels(self, first: int, others: Sequence[int]) -> list[list[int]]:
        """Returns the others by where they meet the first, the nearest ones first."""
        if len(others) <= 1:
            return [list(others)] if others else []
        middle, rest = others[len(others) // 2], [*others[: len(others) // 2], *others[len(others) // 2 + 1 :]]
        count = len(rest)
        nearer = self.survive([middle] * count, [first] * count, rest)
        further = self.survive(rest, [first] * count, [middle] * count)
        before = [place for place, near in zip(rest, nearer, strict=True) if near]
        after = [place for place, far in zip(rest, further, strict=True) if far]
        beside = [place for place, *sides in zip(rest, nearer, further, strict=True) if not any(sides)]
        return [*self.levels(first, before), [middle, *beside], *self.levels(first, after)]

    def explained(self, additions: Additions, draw: torch.Generator) -> float:
        """Returns the share of random probes whose answer the order gives."""
        count = len(self.terms)
        above = {node: count + at for at, pair in enumerate(additions) for node in pair}

        def line(node: int) -> list[int]:
            found = [node]
            while found[-1] in above:
                found.append(above[found[-1]])
            return found

        def meet(one: int, two: int) -> int:
            other = set(line(two))
            return next(each for each in line(one) if each in other)

        drawn = torch.stack([torch.randperm(count, generator=draw)[:3] for _ in range(_PROBES)])
        large, one, two = drawn.T.tolist()
        expected = [meet(b, c) < meet(a, b) for a, b, c in zip(large, one, two, strict=True)]
        got = self.survive(large, one, two)
        return sum(a == b for a, b in zip(expected, got, strict=True)) / len(got)


def _is_real(value: Tensor | None) -> TypeGuard[Tensor]:
    return value is not None and value.is_floating_point()


def _without_added(of: _Sum, one: float) -> _Sum:
    """Returns the sum with zeros for the operands that are only added to it, such as a bias."""
    for name, value in of.inputs.items():
        if name == of.operand or not _is_real(value):
            continue
        other = replace(of, inputs={**of.inputs, name: torch.zeros_like(value)})
        row = torch.full((1, of.places), one, dtype=torch.float64)
        moved = [each.results(row)[0, 0].double() - each.results(row * 0)[0, 0].double() for each in (of, other)]
        of = other if moved[0] == moved[1] else of
    return of


def _tree(asked: _Signed | _Positive) -> Additions:
    """Returns the order as additions. Pivots are drawn, so that no order needs a probe for each pair of terms."""
    number, additions, draw = {place: at for at, place in enumerate(asked.terms)}, Additions(), random.Random(0)

    def added(places: Sequence[int]) -> int:
        first = draw.choice(places)
        node = number[first]
        others = [place for place in places if place != first]
        for group in asked.levels(first, others) if others else ():
            additions.append((node, added(group)))
            node = len(number) + len(additions) - 1
        return node

    added(asked.terms)
    return additions


def orders_of(
    kernel: Kernel, backend: Backend, dtype: str, text: str, progress: OnProgress, target: str = "", sums: int = _SUMS
) -> list[Order]:
    """Returns the order of each sum over an operand that has rows, in one dtype, at the sizes of a case.

    The orders in what Triton compiled for a target follow.
    """
    subject = subject_of(kernel, backend, dtype)
    dtype, case = subject.dtype, Case.from_json(text) if text else cases_of(subject)[0]
    found = []
    for rows in separate_rows(kernel, case):
        drawn = inputs_of(kernel.op, case, backend.device)
        inputs = drawn | {name: torch.ones_like(value) for name, value in drawn.items() if _is_real(value)}
        for operand, result in product(kernel.operands, kernel.outputs):
            if operand in rows.axes and result in rows.axes and _is_real(inputs[operand]):
                progress(f"{kernel.name} {dtype}, {result} over {operand}")
                found.append(_order(_Sum(kernel, case, rows, operand, result, inputs), dtype, backend.name, sums))
    if backend.triton and target:
        progress(f"{kernel.name} {dtype}, as compiled")
        named = Order(kernel.name, dtype, backend.name, "", "", 0)
        found += compiled.proved(named, lambda: run_kernel(kernel, case, backend.device), backend, target)
    return found


def _order(of: _Sum, dtype: str, backend: str, sums: int) -> Order:
    """Returns the order of one sum, or why there is none."""
    found = Order(of.kernel.name, dtype, backend, of.operand, of.result, of.rows.count)
    digits = formats.of(of.results(torch.zeros(1, of.places)).dtype).precision
    signed = _Signed(of, dtype, sums)
    kinds: Iterator[_Signed | _Positive] = (_Positive(of, *kind) for kind in _POSITIVE)
    asked = next((each for each in chain([signed], kinds) if each.holds), None)
    if asked is None:
        why = "no term can be seen in the result: it is no sum of terms, of their squares or of their exponentials"
        why += ", or it hides them at this size, as the root of a mean square of 64 or 256 numbers does"
        return msgspec.structs.replace(found, unknown=why)
    if asked is signed and len(asked.terms) >> digits:
        why = f"a result of {digits} bits counts no {len(asked.terms):,} terms; probe a smaller case"
        return msgspec.structs.replace(found, unknown=why)
    additions = _tree(asked)
    deep = [0] * len(asked.terms)
    for one, two in additions:
        deep.append(max(deep[one], deep[two]) + 1)
    return msgspec.structs.replace(
        found,
        kind=asked.kind,
        terms=len(asked.terms),
        additions=additions,
        depth=deep[-1],
        explained=asked.explained(additions, torch.Generator().manual_seed(1)),
        tested=asked.tested,
        spacing=torch.finfo(torch.float64 if digits > formats.named("float32").precision else torch.float32).eps,
        words=in_words(additions),
    )


class _Part(NamedTuple):
    """Holds a part of a sum."""

    first: int  # its first term
    terms: int
    form: int  # a number that parts share which differ in their place alone
    parts: tuple[int, int] | None  # the two that it adds


def in_words(additions: Additions) -> list[str]:
    """Returns an order as lines, the last additions first: parts of one form, how far apart they are, and each."""
    nodes = [_Part(at, 1, 0, None) for at in range(len(additions) + 1)]
    forms: dict[tuple[int, int, int], int] = {}
    for pair in additions:
        one, two = sorted((nodes[at] for at in pair), key=lambda part: part.first)
        form = forms.setdefault((one.form, two.form, two.first - one.first), len(forms) + 1)
        nodes.append(_Part(one.first, one.terms + two.terms, form, pair))
    return list(islice(_lines(nodes, nodes[-1], ""), _LINES))


def _lines(nodes: Sequence[_Part], whole: _Part, indent: str) -> Iterator[str]:
    apart, part = list[str](), whole
    while len(equal := _equal_parts(nodes, part)[0]) == 2 and part.terms == 2 * equal[0].terms:  # pairs of pairs
        apart.append(f"{abs(equal[1].first - equal[0].first):,}")
        part = equal[0]
    if apart:
        yield f"{indent}{whole.terms // part.terms:,} parts of {_terms(part)} in pairs, {', '.join(apart)} apart"
        yield from _lines(nodes, part, indent + "  ")
    elif whole.parts:
        equal, rest = _equal_parts(nodes, whole)
        steps = {abs(one.first - two.first) for one, two in pairwise(sorted(equal))}
        spaced = f", {steps.pop():,} apart" if len(steps) == 1 else ""
        onto = f", onto {_terms(rest)}" if rest else ""
        count = f"{len(equal):,} parts of {_terms(equal[0])}" if len(equal) > 1 else _terms(equal[0])
        yield f"{indent}{count}{spaced}, {'one after the other' if len(equal) > 1 else 'last'}{onto}"
        yield from _lines(nodes, equal[0], indent + "  ")
        if rest:
            yield from _lines(nodes, rest, indent)


def _terms(part: _Part) -> str:
    return f"{part.terms:,} term{'s' * (part.terms > 1)}"


def _equal_parts(nodes: Sequence[_Part], whole: _Part) -> tuple[list[_Part], _Part | None]:
    """Returns the parts of one form that are added last, one after the other, and the sum before them."""
    found: list[_Part] = []
    part: _Part | None = whole
    while part and part.parts:
        small, large = sorted((nodes[at] for at in part.parts), key=lambda each: each.terms)
        if found and small.form != found[0].form:
            break
        found.append(small)
        part = large
        if large.form == small.form:
            found.append(large)
            part = None
    return found, part
