"""Computes how far one rounding of a step moves its numbers: the standard deviation of each element.

A rounding is modelled as a relative change, uniform within +-u. For a sum of n terms, let T be the sum and Q the sum of
the squares. Its variance is

    (u^2 / 3) (n + 1) (T^2 / 3 + Q / 6).

This is the variance of adding the terms one after the other, averaged over all orders. So it depends neither on the
order nor on partial sums. A step that only moves or selects numbers rounds nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Literal

import torch
from torch import Tensor

from verify.ops.graph.elementwise import Map
from verify.ops.graph.functions import FUNCTIONS
from verify.ops.graph.reducing import Contract, Reduce, Running, Spread
from verify.ops.graph.selecting import Positioned
from verify.ops.graph.steps import Move, Plain, Run, Step, moved_from

Accumulate = Literal["float32", "tf32", "14 bits", "14 bits, promoted every 128"]
Stored = Mapping[int, torch.dtype]  # id(step) -> the 16-bit format that stores its result
Sum = Running | Spread | Contract | Reduce  # the steps that add up
Deviation = Tensor | float | None  # of each element, or relative to its size; None: the step is exact in every order
PROMOTED: Accumulate = "14 bits, promoted every 128"
# Sums of 14 bits lose _CUT of the sum, relative, for each product. A promoted sum has _PROMOTED products.
_CUT, _PROMOTED = 2.0**-13, 128
_TF32 = 2.0**-11  # relative rounding of an operand of a product to TF32
# Neighbours in a sum count as equal if they differ by less than _CONSTANT, relative to the largest term. If more than
# the part _MOSTLY of them are equal, their roundings add up.
_CONSTANT, _MOSTLY = 2.0**-20, 0.25
# A sum below this part of its terms is 0 but for float64's roundings.
_CANCELS = 2.0**-40
# Powers of two: of the largest scale, and of numbers whose product with a like one still has a square in float64.
_LARGEST, _SQUARED = 1000, 200
_ROOT3 = math.sqrt(3.0)


@dataclass(frozen=True)
class Rounding:
    """The format that a kernel computes in, and the other formats that it rounds to."""

    kind: torch.dtype = torch.float32  # what steps are rounded to
    products: Accumulate = "float32"  # how products of matrices are added up
    stored: Stored = field(default_factory=dict)  # id(step) -> 16-bit format that stores its result

    @classmethod
    def of(cls, run: Run, *, products: Accumulate = "float32", stored: Stored | None = None) -> Rounding:
        """Returns the rounding of float64 if an operand is float64, else of float32."""
        wide = any(run.leaves[name].dtype == torch.float64 for name in run.leaves if not name.startswith("grad "))
        return cls(torch.float64 if wide else torch.float32, "float32" if wide else products, stored or {})

    @cached_property
    def unit(self) -> float:
        """The largest relative error of one rounding."""
        return unit_of(self.kind)

    @property
    def lowest(self) -> float:
        """The smallest normal number."""
        return torch.finfo(self.kind).smallest_normal

    @property
    def largest(self) -> float:
        """The number beyond which larger numbers overflow. No kernel overflows where this arithmetic does not."""
        return math.inf if self.kind == torch.float64 else 2.0**128


def unit_of(kind: torch.dtype) -> float:
    """Returns the largest relative error of one rounding."""
    return torch.finfo(kind).eps / 2


def size_of_rounding(kind: torch.dtype, value: Tensor) -> Tensor:
    """Returns the largest error of rounding to a format: below its normal numbers, half the spacing of all others."""
    return value.abs().clamp(min=torch.finfo(kind).smallest_normal) * unit_of(kind)


@dataclass(frozen=True)
class Products:
    """Inner products a @ b that a program multiplies by weights and sums.

    A kernel may instead store the weighted sum of the columns of b, and multiply it by a.
    """

    deviation: Tensor
    a: Tensor
    b: Tensor
    kind: torch.dtype | None  # the 16-bit format that a kernel stores in; None: it stores nothing in 16 bits
    stored: Tensor | None = None  # for each row, the variance of the final sum by that storing

    def weighed(self, by: Tensor) -> Products:
        """Returns the products after multiplication by weights."""
        stored = None
        shape = torch.Size((*self.a.shape[:-1], self.b.shape[-1]))
        if self.kind is not None and self.deviation.is_contiguous() and by.numel() == shape.numel():
            unit = unit_of(self.kind) / _ROOT3
            stored = (self.a * (by.reshape(shape) @ self.b.mT)).square().sum(-1) * unit**2
        return Products(self.deviation * by.abs(), self.a, self.b, self.kind, stored)


@dataclass(frozen=True)
class Chain:
    """Numbers as sums of terms that float32 holds: a number itself, or what sums, differences and products made of it.

    A chain decides whether a number is exact in every order of its sums, not just in the order of the definition.
    """

    quantum: Tensor  # largest power of two that divides every term; 0: float32 does not hold them; infinity: no term
    squares: Tensor  # sum of the squares of the terms
    count: Tensor  # number of terms that are not 0
    norms: bool = False  # True: a number less its mean, or a product of it: a kernel may compute x rstd - mean rstd

    @classmethod
    def of(cls, value: Tensor) -> Chain:
        """Returns numbers that are one term each."""
        mantissa, exponent = torch.frexp(value)
        digits = (mantissa * 2.0**53).nan_to_num(0.0, 0.0, 0.0).long()
        lowest = torch.ldexp((digits & -digits).double(), exponent - 53)
        quantum = torch.where(is_held(value), lowest, 0.0).masked_fill(value == 0, math.inf)
        return cls(quantum, value * value, (value != 0).double())

    def __add__(self, other: Chain) -> Chain:
        quantum = torch.minimum(self.quantum, other.quantum)
        return Chain(quantum, self.squares + other.squares, self.count + other.count)

    def __mul__(self, other: Chain) -> Chain:
        count = self.count * other.count
        quantum = (self.quantum * other.quantum).masked_fill(count == 0, math.inf)
        return Chain(quantum, self.squares * other.squares, count, self.norms or other.norms)

    def only(self, exact: Tensor, value: Tensor) -> Chain | None:
        """Returns the chain of the numbers that are exact or a norm's. None if it says no more than the numbers do."""
        if not self.norms and not bool((exact & (self.count > 1)).any()):
            return None
        found = replace(self, quantum=self.quantum.masked_fill(~exact, 0.0))
        return found.as_one_term(~exact & (not self.norms), value)

    def as_one_term(self, mask: Tensor, value: Tensor) -> Chain:
        """Returns the chain with the numbers in a mask as one term each."""
        squares, one = torch.where(mask, value * value, self.squares), (value != 0).double()
        return replace(self, squares=squares, count=torch.where(mask, one, self.count))


def is_held(value: Tensor) -> Tensor:
    """True for finite numbers that float32 represents."""
    return (value.to(torch.float32).to(torch.float64) == value) & torch.isfinite(value)


def in_every_order(quantum: Tensor, squares: Tensor, count: Tensor, unit: float) -> Tensor:
    """True where a format with this largest relative error of a rounding has all digits of any sum of the terms."""
    return (squares * count).sqrt() * unit <= quantum


@dataclass(frozen=True)
class Terms:
    """Holds figures of a sum's terms that its rounding depends on. The figures of parts of a long sum add up."""

    squares: Tensor
    count: Tensor  # number of terms that are not 0
    quantum: Tensor | float  # number that divides every term, as in `Chain`; 0: none is known
    equal: Tensor | float  # number of neighbours that are equal
    all: int  # number of neighbours, or of terms of a product
    product: bool = False  # True: terms of a product of matrices
    promoted: Tensor | float = 0.0  # variance of promoted sums of 14 bits

    def joined(self, other: Terms) -> Terms:
        """Returns the figures of both sums together."""
        return Terms(
            self.squares + other.squares,
            self.count + other.count,
            torch.minimum(torch.as_tensor(self.quantum), torch.as_tensor(other.quantum)),
            self.equal + other.equal,
            self.all + other.all,
            self.product,
            self.promoted + other.promoted,
        )

    def deviation(self, total: Tensor, format: Rounding) -> Tensor | None:
        """Returns the deviation of the sum; None if it is exact in every order, as counts are."""
        found = of_sum(total, self.squares, self.count, format, products=self.product)
        # equal neighbours are all rounded in one direction, until the sum reaches its next power of two
        equal = torch.as_tensor(self.equal / max(self.all, 1), device=total.device)
        together = (total.abs() * self.count * equal * (format.unit / 4)).nan_to_num(0.0, 0.0, 0.0)
        found = torch.where(equal > _MOSTLY, torch.maximum(found, together), found)
        if self.product:
            return self._of_products(found, total, format)
        exact = in_every_order(torch.as_tensor(self.quantum), self.squares, self.count, format.unit)
        return None if bool(exact.all()) else found.masked_fill(exact, 0.0)

    def _of_products(self, found: Tensor, total: Tensor, format: Rounding) -> Tensor:
        """Adds the roundings of products to few bits to the deviation `found` of their sum in float32."""
        if format.products == "float32":
            return found
        if format.products == "tf32":
            return (found * found + self.squares * (2 * _TF32**2 / 3)).sqrt()
        if format.products == PROMOTED:
            return (found * found + self.promoted).sqrt()
        return (found * found + _of_14_bits(total, self.squares, self.all)).sqrt()


def terms_of(step: Contract | Reduce, given: Sequence[Tensor], format: Rounding) -> Terms:
    """Returns the figures of the terms of a sum, or of a product of matrices."""
    if isinstance(step, Contract):
        a, b = given
        squares = (a * a) @ (b * b)
        zeros = bool((a == 0).any()) or bool((b == 0).any())
        count = (
            (a != 0).double() @ (b != 0).double() if zeros else torch.tensor(float(a.shape[-1]), dtype=torch.float64)
        )
        promoted: Tensor | float = 0.0
        for start in range(0, a.shape[-1] if format.products == PROMOTED else 0, _PROMOTED):
            one, other = a[..., start : start + _PROMOTED], b[..., start : start + _PROMOTED, :]
            promoted = promoted + _of_14_bits(one @ other, (one * one) @ (other * other), one.shape[-1])
        return Terms(squares, count.to(squares.device), 0.0, _equal_products(a, b), a.shape[-1], True, promoted)
    [a], dims, keep = given, step.dims, step.keep
    quantum = Chain.of(a).quantum.amin(dims, keep) if a.numel() else 0.0
    change = a.diff(dim=dims[-1]).abs() <= _CONSTANT * a.abs().amax(dims, True) if a.numel() else a != a
    squares = (a * a).sum(dims, keep)
    neighbours = max(change.numel() // max(squares.numel(), 1), 1)
    return Terms(squares, (a != 0).double().sum(dims, keep), quantum, change.double().sum(dims, keep), neighbours)


def _equal_products(a: Tensor, b: Tensor) -> Tensor | float:
    """Returns how many neighbouring terms of each element of a product of matrices are equal.

    Those count whose factors are both equal, or both differ by their sign alone.
    """
    found: Tensor | float = 0.0
    if a.shape[-1] < 2 or not a.numel() or not b.numel():
        return found
    for sign in (1.0, -1.0):
        one, other = (
            (x.narrow(dim, 1, x.shape[dim] - 1) - sign * x.narrow(dim, 0, x.shape[dim] - 1)).abs()
            <= _CONSTANT * x.abs().amax(dim, True)
            for x, dim in ((a, -1), (b, -2))
        )
        if bool((one.double().mean(-1) > _MOSTLY).any()) and bool((other.double().mean(-2) > _MOSTLY).any()):
            found = found + one.double() @ other.double()
    return found


def deviation_of(
    step: Step, run: Run, value: Tensor, given: Sequence[Tensor], format: Rounding, chains: dict[int, Chain]
) -> Deviation:
    """Returns the deviation of a step's rounding; None if the step is exact in every order.

    A tensor has the deviation of each element. A float is relative to the size of each element. `chains` maps the ids
    of steps before it to their chains, if these have several terms. That of the step is added.
    """
    inside = isinstance(step, Spread) or getattr(step, "function", "") in ("product", "rsqrt", "exp")
    # PyTorch rounds partial products and sums, and the root, to 16 bits; in float64, all steps of a float32 operator
    if step.narrow and (step.narrow == torch.float32 if format.kind == torch.float64 else inside and format.stored):
        format = replace(format, kind=step.narrow)
    if isinstance(step, Positioned):
        return deviation_of(step.inner, step.positioned(run, given[0]), value, given[1:], format, {})
    if isinstance(step, Move) or (isinstance(step, Map) and step.function == "negative"):
        if any(id(each) in chains for each in step.inputs):
            chains[id(step)] = _moved(step, run, given, [chains.get(id(each)) for each in step.inputs])
        return None
    if isinstance(step, Map):
        return _of_map(step, run, value, given, format, chains) if step.rounds else None
    if isinstance(step, Running | Spread | Contract) or (
        isinstance(step, Reduce) and step.function == "sum" and step.dims
    ):
        scales = _scales(step, given) if format.kind == torch.float64 else []
        if not scales:
            return _of_sums(step, run, value, given, format, chains)
        by = reduce(torch.mul, [x.amax(step.dims, step.keep) for x in scales] if isinstance(step, Reduce) else scales)
        given = [x * scale for x, scale in zip(given, scales, strict=True)]
        found = _of_sums(step, run, value * by, given, format, {})
        return None if found is None else found / by
    if isinstance(step, Reduce) and step.function == "product":
        part = format.unit / _ROOT3 * math.sqrt(step.inputs[0].shape[step.dims[0]])
        quantum = Chain.of(given[0]).quantum.prod(step.dims[0], step.keep)  # of a factor 0: infinity, or NaN
        exact = (value.abs() * format.unit <= quantum) | (value == 0)  # then so is every product of some factors
        return (value.abs() * part).nan_to_num(0.0, 0.0, 0.0).masked_fill(exact, 0.0) if bool(exact.any()) else part
    return None


def _of_sums(
    step: Sum, run: Run, value: Tensor, given: Sequence[Tensor], format: Rounding, chains: Mapping[int, Chain]
) -> Tensor | None:
    """Returns the deviation of a step that adds numbers up, or products of them."""
    if isinstance(step, Running):
        [a] = given
        squares, count = (a * a).cumsum(step.dim), (a != 0).double().cumsum(step.dim)
        return _unless_exact(value, Chain.of(a).quantum.cummin(step.dim).values, squares, count, format)
    if isinstance(step, Spread):
        known = [chains.get(id(each)) or Chain.of(a) for each, a in zip(step.inputs, given, strict=True)]
        squares, count = (step.value(run, [getattr(c, part) for c in known]) for part in ("squares", "count"))
        # a constant may lie on the host beside operands on a GPU
        least = [c.quantum.min().to(value.device) for c in known if c.quantum.numel()]
        quantum = torch.stack(least or [value.new_zeros(())]).min()
        return _unless_exact(value, quantum, squares, count, format)
    return terms_of(step, given, format).deviation(value, format)


def _scales(step: Step, given: Sequence[Tensor]) -> list[Tensor]:
    """Returns powers of two for each row that a sum adds up: squares of their products are float64 numbers.

    Returns none if all squares are.
    """
    found = []
    for place, x in enumerate(given):
        rows = {Contract: (-1 - place,), Running: (getattr(step, "dim", 0),), Reduce: getattr(step, "dims", ())}
        dims = rows.get(type(step), tuple(range(x.ndim)))
        most = x.abs().nan_to_num(0.0, 0.0, 0.0)
        exponent = torch.frexp(most.amax(dims, True) if most.numel() else most)[1].clamp(-_LARGEST, _LARGEST)
        found.append(torch.ldexp(torch.ones_like(exponent, dtype=x.dtype), -exponent))
    extreme = any(bool(((each > 2.0**_SQUARED) | (each < 2.0**-_SQUARED)).any()) for each in found)
    return found if extreme else []


def _unless_exact(value: Tensor, quantum: Tensor, squares: Tensor, count: Tensor, format: Rounding) -> Tensor | None:
    """Returns the deviation of sums; None if all are exact in every order."""
    exact = in_every_order(quantum, squares, count, format.unit)
    if bool(exact.all()):
        return None
    found = of_sum(value, squares, count, format)
    # terms are equal if their sum is as large as their squares allow; see `Terms.deviation`
    equal = count * squares - value * value <= (2 * _CONSTANT * value).square()
    together = (value.abs() * count * (format.unit / 4)).nan_to_num(0.0, 0.0, 0.0)
    return torch.where(equal, torch.maximum(found, together), found).masked_fill(exact, 0.0)


def _moved(step: Move | Map, run: Run, given: Sequence[Tensor], known: Sequence[Chain | None]) -> Chain:
    """Returns the chain of numbers that a step only moves, or whose sign it changes."""
    each = [Chain.of(value) if chain is None else chain for value, chain in zip(given, known, strict=True)]
    if isinstance(step, Map):
        return each[0]
    fixed = [run.fixed(one) for one in step.by]
    filled = Chain.of(torch.tensor(step.fill, dtype=torch.float64))

    def part(name: str) -> Tensor:
        return step.move([getattr(one, name) for one in each], fixed, float(getattr(filled, name)))

    return Chain(part("quantum"), part("squares"), part("count"), all(one.norms for one in each))


def _of_map(
    step: Map, run: Run, value: Tensor, given: Sequence[Tensor], format: Rounding, chains: dict[int, Chain]
) -> Deviation:
    """Returns the deviation of an elementwise step that rounds."""
    less = step.function == "exact" and getattr(step.inputs[1], "function", "") == "subtract"
    size = (1 - value).abs() if less else value.abs()  # a kernel may compute b of 1 - b again
    if step.halved:  # (1 + erf) / 2 is rounded near 1, erf as 1 - p(t) exp(-x^2) too; a share beyond has lost its tail
        size = torch.where(value >= math.sqrt(format.unit), 1.0, size)
    held, joins = is_held(value) & _is_lossless(step, given[0], value), step.function in _JOINS
    masked = any(getattr(moved_from(each)[-1], "function", "") == "number" for each in step.inputs)  # 1 a is a
    if joins and (step.centred or masked or bool(held.any()) or any(id(each) in chains for each in step.inputs)):
        terms = [chains.get(id(each)) or Chain.of(x) for each, x in zip(step.inputs, given, strict=True)]
        if step.function == "multiply":  # kernels distribute (a + b) c; none multiplies out two sums, as in one pass
            both = (terms[0].count > 1) & (terms[1].count > 1)
            some = bool(both.any())
            terms = [each.as_one_term(both, x) if some else each for each, x in zip(terms, given, strict=True)]
        size, held, made = _of_joined(step, value, terms, format)
        if made is not None:
            chains[id(step)] = made
    if is_exact(step, run):
        return None
    if (slope := EXPONENTIALS.get(step.function)) and format.unit >= unit_of(torch.float32):
        turned = (slope(value) * given[0]).nan_to_num(0.0, 0.0, 0.0)
        size = torch.where(size < format.lowest, size, torch.hypot(size, turned))  # smaller ones may be flushed to zero
    lost, added = _lost_by_constants(step, run), step.function in ("add", "subtract")
    if lost is not None and added and format.unit >= unit_of(torch.float32):
        rounded = size * (format.unit / _ROOT3)
        if not bool((lost <= rounded).all()):
            return torch.hypot(rounded, lost).masked_fill(~torch.isfinite(value), 0.0)
    return _one_rounding(value, size, value == 0 if lost is not None and not added else held, format)


# by name: the slope of a function that GPUs compute as 2^(x log2 e), with that product rounded; of its value
EXPONENTIALS: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": lambda y: y,
    "expm1": lambda y: y + 1,
    "sigmoid": lambda y: y * (1 - y),
    "log_sigmoid": lambda y: -torch.expm1(y),
}


def _is_lossless(step: Map, x: Tensor, value: Tensor) -> Tensor:
    """True where float64 has all digits of a function. That exp(1e-20) is 1 in float64 does not make it exact."""
    known = FUNCTIONS.get(step.function)
    if known is None:
        return torch.ones_like(value, dtype=torch.bool)
    if known.name in _ROOTS:
        return _ROOTS[known.name](value * value, x)
    exact = known.is_exact(x, value)
    return exact if callable(known.exact) else exact | torch.isinf(x) | (value == 0)


_ROOTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sqrt": lambda square, x: square == x,
    "rsqrt": lambda square, x: square * x == 1,
}
_JOINS = ("add", "subtract", "multiply")


def _of_joined(
    step: Map, value: Tensor, terms: Sequence[Chain], format: Rounding
) -> tuple[Tensor, Tensor, Chain | None]:
    """Returns the size that a sum or product of two chains rounds, a mask of the exact numbers, and their chain.

    Exact is what float32 holds in every order, or where there is one order only and float64 lost no digit: it rounds
    1 + 1e-20 to a number that float32 holds. Other sums are rounded as those of `of_sum`. Where rounded numbers
    cancel, as in a - a, they are those of the step before, and a kernel rounds again.
    """
    first, second = terms
    product = step.function == "multiply"
    made = first * second if product else replace(first + second, norms=step.centred)
    held, several = is_held(value), made.count > (1 if product else 2)
    some, all_ = (
        in_every_order(made.quantum, made.squares, made.count, u) for u in (unit_of(value.dtype), format.unit)
    )
    exact = held & (made.quantum > 0) & (~several & some | all_)
    exact = exact | (product & (made.count == 0))
    if product:  # a power of two changes no digit, be the other number computed or not
        exact = exact | _is_power(first) | _is_power(second)
    cancelled = (value.abs() <= _CANCELS * made.squares.sqrt()) & torch.isfinite(made.squares)
    lost = cancelled & (several | (made.quantum == 0))
    size = torch.hypot(value, torch.where(lost, made.squares / 2, 0.0).sqrt())
    if bool(several.any()):
        summed = of_sum(value, made.squares, made.count, format, products=made.norms) * (_ROOT3 / format.unit)
        size = torch.where(several, torch.maximum(size, summed), size)
    return size, exact, made.only(exact, value)


def _is_power(chain: Chain) -> Tensor:
    """True for numbers that are one power of two, which no kernel rounds."""
    return (chain.count == 1) & (chain.quantum > 0) & (chain.quantum * chain.quantum == chain.squares)


def _one_rounding(value: Tensor, size: Tensor, exact: Tensor, format: Rounding) -> Deviation:
    """Returns the deviation of one rounding of numbers of this `size`, but for those in the mask `exact`.

    Elements below the normal numbers may be flushed to zero.
    """
    part = format.unit / _ROOT3
    exact = exact | ~torch.isfinite(value)
    low = ~exact & (size < format.lowest)
    if not bool(exact.any()) and not bool(low.any()) and bool((size == value.abs()).all()):
        return part
    if bool(exact.all()):
        return None
    return torch.where(low, format.lowest / _ROOT3, size * part).masked_fill(exact, 0.0)


def _lost_by_constants(step: Map, run: Run) -> Tensor | None:
    """Returns how far float32 moves the constants of a step, such as 0.9; None if it holds all of them.

    A kernel holds the rounded 0.9. So 0.9 x is not exact even where the product of the definition is, as for every
    tenth x, and x - 0.9 is off by as much near x = 0.9. Many kernels multiply by the reciprocal of a divisor such as
    0.875, so its reciprocal counts.
    """
    if step.function not in ("add", "subtract", "multiply", "divide"):
        return None
    held = [each.reciprocal() if step.function == "divide" else each for each in _constants(step, run)]
    lost = [lost_in(torch.float32, each) for each in held]
    lost = [each for each in lost if bool(each.any())]
    return sum(lost[1:], lost[0]) if lost else None


def lost_in(kind: torch.dtype, value: Tensor) -> Tensor:
    """Returns how far a format moves float64 numbers; 0 for an infinity."""
    return (value.to(kind).double() - value).abs().nan_to_num(0.0, 0.0, 0.0)


def is_exact(step: Map, run: Run) -> bool:
    """True if a step multiplies or divides by constant powers of two."""
    return step.function in ("multiply", "divide") and any(
        bool((torch.frexp(each.abs())[0] == 0.5).all()) for each in _constants(step, run)
    )


def _constants(step: Map, run: Run) -> list[Tensor]:
    """Returns the constants of a step in float64; of a quotient, the divisor alone."""
    operands = step.inputs[1:] if step.function == "divide" else step.inputs
    return [run.fixed(each).double() for each in operands if isinstance(each, Plain) and not each.of]


def of_sum(total: Tensor, squares: Tensor, count: Tensor, format: Rounding, *, products: bool = False) -> Tensor:
    """Returns the deviation of a sum of `count` terms that are not 0.

    In a plain sum (products=False), the first term is only copied, which rounds nothing.
    """
    variance = (count + 1) * (total * total / 3 + squares / 6)
    if not products:
        variance = variance - squares / count.clamp(min=1)
    variance = variance.clamp(min=0) * format.unit**2
    # each term below the normal numbers may be flushed to zero; `<=`, because the squares may underflow to 0
    low = (squares <= count * format.lowest**2) & (count > 0)
    variance = torch.where(low, variance + count * format.lowest**2, variance)
    return (variance.sqrt() / _ROOT3).nan_to_num(0.0, 0.0, 0.0)


def _of_14_bits(total: Tensor, squares: Tensor, count: int) -> Tensor:
    """Returns the variance of `count` products that tensor cores for FP8 add up with 14 bits.

    Each step aligns some products and the sum so far to the largest of them, and cuts off what lies below 14 bits. Cut
    numbers move toward zero: those of products with one sign add up.
    """
    together = (total * total * count / squares / 4).nan_to_num(0.0, 0.0, 0.0)
    found = (total * total / 3 + squares / 6) * ((count + 1) / 3 + together) * _CUT**2
    return found.nan_to_num(0.0, 0.0, 0.0)
