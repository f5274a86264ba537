"""Finds steps that kernels compute in another form than the definition, whose noise is that of both forms."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from verify.ops.graph.elementwise import REMAINS, Map, stays_whole
from verify.ops.graph.reducing import Contract, Reduce
from verify.ops.graph.rounding import Deviation, Products, Rounding, of_sum, unit_of
from verify.ops.graph.selecting import AtOrder
from verify.ops.graph.steps import Move, Plain, Run, Step, moved_from, reached


def softmax_gradient(step: Map) -> tuple[Step, Reduce] | None:
    """Returns y and the sum of a step a - y sum(a), which is the gradient of a softmax or of its logarithm."""
    if step.function != "subtract" or not isinstance(product := step.inputs[1], Map) or product.function != "multiply":
        return None
    for place, factor in enumerate(product.inputs):
        total = moved_from(factor)[-1]
        if isinstance(total, Reduce) and total.function == "sum" and total.inputs[0] is step.inputs[0]:
            return product.inputs[1 - place], total
    return None


def of_softmax_gradient(
    value: Tensor, given: Sequence[Tensor], deviation: Deviation, y: Tensor, dims: tuple[int, ...], format: Rounding
) -> Tensor:
    """Adds to the deviation of a softmax's gradient a - y sum(a) the rounding of its sum, at the largest element.

    A softmax by hand subtracts the maximum, whose gradient is minus the sum over the row. The sum is 0 but for the
    roundings of its terms.
    """
    own = torch.as_tensor(0.0 if deviation is None else deviation)
    own = value.abs() * own if isinstance(deviation, float) else own
    a, b = given
    squares, count = (a * a + b * b).sum(dims, True), torch.tensor(float(math.prod(y.shape[dim] for dim in dims)))
    total = of_sum(a.sum(dims, True), squares, count.to(y.device), format)
    return torch.where(y == y.amax(dims, True), torch.hypot(own, total).nan_to_num(0.0, 0.0, 0.0), own)


def less_largest(step: Step) -> bool:
    """True if a step subtracts the largest number of a row from its numbers, as a softmax does."""
    if not isinstance(step, Map) or step.function != "subtract":
        return False
    largest = moved_from(step.inputs[1])[-1]
    if not isinstance(largest, Reduce) or largest.function != "amax":
        return False
    return moved_from(largest.inputs[0])[-1] is moved_from(step.inputs[0])[-1]


def bends(step: Step) -> bool:
    """True if the slope of a step jumps, as that of a rounding to a format does."""
    found = step.function if isinstance(step, Map) and step.real else ""
    return found in ("maximum", "minimum", "magnitude") or found.startswith("to ")


def constant_divisor(step: Step) -> Plain | None:
    """Returns the divisor of a remainder if it is a constant, such as 0.1."""
    divisor = step.inputs[1] if isinstance(step, Map) and step.function in REMAINS and step.real else None
    return divisor if isinstance(divisor, Plain) and not divisor.of else None


def origins(step: Step) -> list[Step]:
    """Returns the steps that make the numbers of a step: operands, and the steps before it that round.

    The steps between only move or select numbers, as max(x, 0) does.
    """

    def selected(each: Step) -> Sequence[Step]:
        moves = isinstance(each, Move | AtOrder) or getattr(each, "function", "") in _SELECTS
        return each.inputs if moves and each.real and each.on_operands else ()

    found = [each for each in reached([step], selected) if each.real and each.on_operands]
    return [each for each in found if not selected(each)]


MOST_OF_LOG_SUM = 2.0**-9  # share of a probability: a rounding of bfloat16
_SELECTS = ("maximum", "minimum", "negative", "magnitude", "where", "amax", "amin")


def only_tests(step: Step) -> bool:
    """True if a step only tests numbers, so that no kernel decides otherwise."""
    return isinstance(step, Map) and step.function in ("isnan", "isinf")


def is_whole(step: Step) -> bool:
    """True if numbers are integers already. They have no error that a second rounding could enlarge."""

    def made(each: Step) -> bool:
        return not each.on_operands or (isinstance(each, Map) and each.function in ("number", "wrap"))

    return stays_whole(step, made)


class WeightedSums:
    """Adds the noise of the other order of a weighted sum of inner products."""

    def __init__(self, steps: Sequence[Step], run: Run, format: Rounding) -> None:
        self.steps, self.run, self.format = _weighted_sums(steps), run, format
        self.inner: dict[int, Products] = {}  # id(step of `steps`) -> products that are not summed yet

    def deviation(self, step: Step, given: Sequence[Tensor], deviation: Deviation) -> Tensor | None:
        """Returns how far a weighted sum of inner products moves if a kernel sums in the other order.

        Returns None for all steps but such a sum.

        The sum over j of p_j (a . b_j) equals a . (sum of p_j b_j). The backward pass of attention may compute either.
        If p is one 1 among zeros, the first form repeats a computed number, and the second form rounds. The bracket of
        the second form is the output of attention, which a kernel stores in 16 bits.
        """
        place = next((n for n, each in enumerate(step.inputs) if id(each) in self.inner), None)
        if id(step) not in self.steps:
            return None
        if isinstance(step, Contract) and isinstance(deviation, Tensor):
            self.inner[id(step)] = Products(
                deviation, given[0], given[1], next(iter(self.format.stored.values()), None)
            )
        elif place is None:
            return None
        elif isinstance(step, Move):
            products = self.inner[id(step.inputs[0])]
            self.inner[id(step)] = replace(products, deviation=step.value(self.run, [products.deviation]))
        elif isinstance(step, Map):
            self.inner[id(step)] = self.inner.pop(id(step.inputs[place])).weighed(given[1 - place])
        elif isinstance(step, Reduce):
            products = self.inner.pop(id(step.inputs[0]))
            squares = products.deviation.square().sum(step.dims, step.keep)
            if products.stored is not None and squares.numel() == products.stored.numel():
                squares = squares + products.stored.reshape(squares.shape)
            return squares.sqrt()
        return None


def _weighted_sums(steps: Sequence[Step]) -> set[int]:
    """Returns the ids of the steps from inner products to a weighted sum of them.

    These are the inner products, the steps that move them, the multiplication by weights and the sum.
    """
    found: set[int] = set()
    for step in steps:
        if not (isinstance(step, Reduce) and step.function == "sum" and step.dims):
            continue
        product = step.inputs[0]
        if isinstance(product, Map) and product.function == "multiply":
            for factor in product.inputs:
                way = moved_from(factor)
                if isinstance(way[-1], Contract):
                    found.update(map(id, (step, product, *way)))
                    break
    return found


class LogSums:
    """Adds the noise of another form of attention: probabilities exp(s - l), where l is the rounded log-sum-exp of s.

    Kernels that divide the keys among processors weigh each part by exp(its l - l), and backward passes compute the
    probabilities so. An l of 700 is off by 3e-5, and so is a probability of 1, which s less its largest number gives
    exactly. Beyond a rounding of bfloat16 this form is no excuse: an l of 4e6 is off by 0.25. A program that writes
    exp(x - l) itself gets the same: where one number is far above the others, its l is that number in float64, and only
    a kernel that sums in this way has no rounding there.
    """

    def __init__(self, steps: Sequence[Step], format: Rounding) -> None:
        self.unit = format.unit / math.sqrt(3.0)
        self.before: dict[int, Step] = {}  # id(probabilities) -> scores less their largest, or less l
        self.largest: dict[int, Tensor] = {}  # id(scores less their largest or l) -> size of that
        products = set[int]()  # ids of the steps that depend on a product of matrices
        for step in steps:
            of_product = isinstance(step, Contract) or (
                isinstance(step, Reduce) and _is_map(step.inputs[0], "multiply")
            )
            if of_product or any(id(each) in products for each in step.inputs):
                products.add(id(step))
            if _is_map(step, "divide") and _is_map(step.inputs[0], "exp"):
                scores = step.inputs[0].inputs[0]
                if id(scores) in products and less_largest(scores):
                    self.before[id(step)] = scores
            if _is_map(step, "exp") and _is_map(step.inputs[0], "subtract") and _is_log_sum(step.inputs[0].inputs[1]):
                self.before[id(step)] = step.inputs[0]
        self.scores = set(map(id, self.before.values()))

    def deviation(self, step: Step, given: Sequence[Tensor], value: Tensor) -> Tensor | None:
        """Returns how far the rounding of l moves probabilities; None for all other steps."""
        if id(step) in self.scores:
            self.largest[id(step)] = given[1].abs()
        if (scores := self.before.get(id(step))) is None:
            return None
        share = (self.largest[id(scores)] * self.unit).clamp(max=MOST_OF_LOG_SUM)
        return (value * share).nan_to_num(0.0, 0.0, 0.0)


class Gates:
    """Adds the noise of another form of the gradient of g, where a program scales a state S by e^g.

    Let a = e^g S be a part of the next state, a + b. The gradient of g is the sum of a d, where d is the gradient of a.
    Kernels have the next state, not a, and sum (a + b) d - b d: in linear attention, q dq - k dk. That rounds also
    where a is 0, as in the first step. The sum of (a + b) d holds the gradient of the next g, so the roundings add up.
    """

    def __init__(self, steps: Sequence[Step], format: Rounding) -> None:
        self.format = format
        self.after: dict[int, tuple[int, int]] = {}  # id(S) -> id(a + b), place of b in it
        self.factors: dict[int, int] = {}  # id(a) -> id(S)
        self.products: dict[int, int] = {}  # id(d S) -> id(S), where d S is summed to the gradient of e^g
        self.totals: dict[int, int] = {}  # id(sum of d S) -> id(S)
        self.held: dict[int, list[Tensor]] = {}  # id(S) -> e^g; a + b and b, later times d
        self.variances: dict[int, Tensor] = {}  # id(S) -> variance of the gradient of g
        for step in steps:
            for place, a in enumerate(step.inputs) if _is_map(step, "add") else ():
                for state in a.inputs if _is_map(a, "multiply") else ():
                    if (by := next((each for each in a.inputs if each is not state), None)) and _is_map(
                        moved_from(by)[-1], "exp"
                    ):
                        self.after[id(state)], self.factors[id(a)] = (id(step), 1 - place), id(state)
        readers: dict[int, list[Step]] = {}
        for step in steps if self.after else ():
            for each in step.inputs:
                readers.setdefault(id(each), []).append(step)
        for step in steps:
            if _is_map(step, "multiply") and id(step) not in self.factors:
                for state in step.inputs:
                    first = id(state) in self.after and id(state) not in self.totals.values()
                    for total in readers.get(id(step), ()) if first else ():
                        if isinstance(total, Reduce) and total.function == "sum" and _meets_exp(total, readers):
                            self.products[id(step)] = self.totals[id(total)] = id(state)
        self.sums = {after: (state, place) for state, (after, place) in self.after.items()}

    def deviation(self, step: Step, given: Sequence[Tensor], value: Tensor) -> Tensor | None:
        """Returns how far the other form's roundings move the gradient of e^g; None for all other steps."""
        if (scaled := self.factors.get(id(step))) is not None:
            by = next(n for n, each in enumerate(step.inputs) if id(each) != scaled)
            self.held[scaled] = [given[by].expand(value.shape)]
        if id(step) in self.sums:
            before, place = self.sums[id(step)]
            self.held[before] += [value, given[place].expand(value.shape)]
        state = self.products.get(id(step), self.totals.get(id(step), 0))
        if len(held := self.held.get(state, [])) < 3:
            return None
        if not isinstance(step, Reduce):
            d = next(x for x, each in zip(given, step.inputs, strict=True) if id(each) != state)
            self.held[state] = [held[0], *(each * d for each in held[1:])]
            return None
        factor, *terms = self.held.pop(state)
        variance = self.variances.get(self.after[state][0], torch.zeros_like(value))
        # kernels store the states in 16 bits, or numbers of other forms that need more digits than these states
        kind = self.format.stored.get(self.after[state][0])
        stored = 0.0 if kind is None else unit_of(kind) ** 2 / 3
        for each in terms:
            squares, count = (x.sum(step.dims, step.keep) for x in (each * each, (each != 0).double()))
            summed = of_sum(each.sum(step.dims, step.keep), squares, count, self.format)
            variance = variance + summed.square() + squares * stored
        self.variances[state] = variance
        return (variance.sqrt() / factor.amax(step.dims, step.keep)).nan_to_num(0.0, 0.0, 0.0)


def _is_map(step: Step, function: str) -> bool:
    return isinstance(step, Map) and step.function == function


def _is_log_sum(step: Step) -> bool:
    """True if a step is a log-sum-exp: log(sum(exp(x - largest))) + largest."""
    total = moved_from(step)[-1]
    logs = [moved_from(each)[-1] for each in total.inputs] if _is_map(total, "add") else []
    sums = [moved_from(each.inputs[0])[-1] for each in logs if _is_map(each, "log")]
    return any(
        isinstance(s, Reduce) and s.function == "sum" and _is_map(moved_from(s.inputs[0])[-1], "exp") for s in sums
    )


def _meets_exp(step: Step, readers: Mapping[int, Sequence[Step]]) -> bool:
    """True if numbers are only moved or added up before an exponential multiplies them, as a gradient of it is."""

    def after(each: Step) -> Sequence[Step]:
        only = isinstance(each, Move | Reduce) or getattr(each, "function", "") in ("add", "where")
        return readers.get(id(each), ()) if each is step or only else ()

    products = (each for each in reached([step], after) if each is not step and _is_map(each, "multiply"))
    return any(_is_map(moved_from(factor)[-1], "exp") for each in products for factor in each.inputs)
