"""Measures the noise of a program: how far its results move if each computed step is rounded once.

A kernel cannot be better than its format. So errors are measured in units of the noise. To find the noise, one rounding
of the format that a kernel computes in disturbs each step of the definition. The noise of an element is its rms change:

    noise = noise_of(program, run, ["y", "dx"], Rounding.of(run))[0]["y"]
    noise.deviation    # one number for each element of y
    noise.spread       # how far open decisions move each element; None if no decision is open

`rounding.py` gives the size of one rounding of each step.

The disturbances are much smaller than the roundings they represent. So the response is linear, and no decision changes.
A decision is open if the deciding number lies within `NEAR` times its own noise of the point where the decision
changes. Some more runs then decide the other way. Their results are right too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

import torch
from torch import Tensor

from verify.ops.graph.chunks import PART, Chunked, Totals
from verify.ops.graph.coins import Coins
from verify.ops.graph.elementwise import Map
from verify.ops.graph.program import Make, Program
from verify.ops.graph.reducing import Contract, Reduce
from verify.ops.graph.rounding import Products, Rounding, Terms, deviation_of, is_exact, terms_of, unit_of
from verify.ops.graph.selecting import AtRank, IsExtreme, RankIndex, WhereExtreme, candidates, rivals
from verify.ops.graph.spans import Span
from verify.ops.graph.special import FUNCTIONS
from verify.ops.graph.steps import Leaf, Move, Plain, Run, Step, moved_from

NEAR = 8.0  # largest error of a kernel's number, in units of its noise
RUNS = 16
_MORE_RUNS, _OTHER_SEED = 48, 1009  # used before elements are called wrong
_STEP = 2.0**-30  # size of a disturbance, relative to the number
_FLIPS = 16  # runs with open decisions turned
_FEW = 1 << 14  # most elements for which `together` is measured and additional runs are made
_HELD = 1 << 20  # most elements of an operand in float64 that is kept for all runs
_TIE = 2.0**-44  # change that breaks an exact tie, relative to the number
_ROOT3 = math.sqrt(3.0)
_CHAOTIC = 1e-3  # relative noise of an element above which its response may not be linear


@dataclass(frozen=True)
class Noise:
    """The noise of one result, and the effect of open decisions on it.

    `spread` and `other` are None if no decision is open.
    """

    deviation: Tensor  # the noise of each element
    spread: Tensor | None = None  # the most that open decisions move an element, where it has more than two values
    other: Tensor | None = None  # the second right value of an element that has two; NaN elsewhere
    value: Tensor | None = None  # the result of the undisturbed run
    together: float = 1.0  # largest rms of one run's changes, each in units of the element's noise


def noise_of(
    program: Program, run: Run, wanted: Sequence[str], format: Rounding, runs: int = RUNS, *, seed: int = 0
) -> tuple[dict[str, Noise], dict[int, Tensor]]:
    """Returns the noise of each wanted result, and the largest error of each deciding number (`Run.reach`)."""
    sampled = _Samples(program, run, wanted, format)
    if sampled.is_small():
        runs += runs // 2
    sampled.sample(runs, seed, _STEP / format.unit)
    if sampled.is_chaotic():
        sampled.sample(runs // 2, seed + 1, 1.0)
    flipped = sampled.flipped(seed)
    found = {}
    for name in sampled.wanted:
        each = flipped.get(name, Noise(sampled.deviation(name)))
        found[name] = replace(each, value=sampled.truth[name], together=sampled.together(name))
    return found, sampled.reaches()


def sampled_again(program: Program, run: Run, result: str, format: Rounding) -> Tensor:
    """Returns the deviation of a result from 48 other runs. With so many, each element's is accurate to a tenth."""
    sampled = _Samples(program, run, [result], format)
    sampled.sample(_MORE_RUNS, _OTHER_SEED, _STEP / format.unit)
    if sampled.is_chaotic():
        sampled.sample(_MORE_RUNS // 2, _OTHER_SEED + 1, 1.0)
    return sampled.deviation(result)


class _Samples:
    """Evaluates a program once undisturbed, and then with disturbances."""

    def __init__(self, program: Program, run: Run, wanted: Sequence[str], format: Rounding) -> None:
        self.program, self.run, self.format = program, run, format
        self.requested = list(wanted)  # with integer results, whose decisions matter too
        self.wanted = [name for name in wanted if program.results[name].real]
        self.steps = program.needed_for(wanted)
        self.ends, self.weighed = self._ends(), self._weighted_sums()
        self.inner: dict[int, Products] = {}  # id(step of `weighed`) -> products that are not summed yet
        self.numbers = {id(step): number for number, step in enumerate(self.steps)}
        self.deciding = {id(each) for step in self.steps if decides(step) for each in step.inputs if each.real}
        self.compared = {id(step) for step in self.steps if _compares(step)}
        settled = (step for step in self.steps if decides(step) and not isinstance(step, AtRank))
        # decisions that no disturbance changes
        self.chosen = {id(step) for step in settled if getattr(step, "function", "") not in _REMAINS}
        self.held: dict[int, Tensor] = {}  # id(step) -> value in the base run, of decisions and deciding numbers
        self.roundings: dict[int, Tensor | float] = {}  # id(step) -> deviation; a float is relative to the numbers
        self.stored: dict[int, Tensor] = {}  # id(stored result) -> mask of the elements that its format rounds
        self.kept: set[int] = set()  # ids of steps whose numbers are all of the 16-bit format
        self.fixed: dict[int, Tensor | None] = {}  # id(step that no disturbance reaches) -> value; None if it is large
        self.squares: dict[int, Tensor] = {}  # id(deciding step), -id(comparison) -> sum of squared changes over runs
        self.runs = 0
        self.moved: dict[int, Tensor] = {}  # what one run adds to `squares`
        self.truth = self._results(self._evaluate_base)
        self.deviations = {name: torch.zeros_like(value) for name, value in self.truth.items()}

    def _results(self, make: Make) -> dict[str, Tensor]:
        """Evaluates the program by `make` and returns its real results."""
        found = self.program.values(self.run, self.requested, make)
        return {name: found[name] for name in self.wanted}

    def _ends(self) -> set[int]:
        """Returns the ids of the steps whose numbers become results without further computation."""
        found = {id(self.program.results[name]) for name in self.requested}
        for step in reversed(self.steps):
            if isinstance(step, Move) and id(step) in found:
                found.update(id(each) for each in step.inputs)
        return found

    def _evaluate_base(self, step: Step, given: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Evaluates a step undisturbed, and notes its deviation and its decision."""
        deviation: Tensor | float | None
        if isinstance(step, Chunked):
            value, deviation = _of_parts(step.totals, given, self.format)
            self.held[id(step)] = value
        else:
            value = step.value(self.run, given)
            deviation = deviation_of(step, self.run, value, given, self.format)
        again = self._summed_again(step, given, deviation)
        if again is not None:
            deviation = again if deviation is None else torch.hypot(torch.as_tensor(deviation), again)
        if deviation is not None:
            self.roundings[id(step)] = deviation
        if decides(step) or (id(step) in self.deciding and step.real):
            self.held[id(step)] = value
        if id(step) in self.format.stored:
            # a product of two 16-bit numbers fits float32, so that it has no deviation, but not 16 bits
            inexact = isinstance(step, Map) and step.rounds and not is_exact(step, self.run)
            if deviation is not None or inexact or not self._is_kept(step):
                self._store(step, value, deviation)
            self.kept.add(id(step))
        elif deviation is None and self._is_kept(step):
            self.kept.add(id(step))
        disturbed = id(step) in self.roundings or id(step) in self.stored
        if not disturbed and all(id(each) in self.fixed for each in step.inputs):
            self.fixed[id(step)] = value if value.numel() <= (_HELD if isinstance(step, Leaf) else _FEW) else None
        return value, value

    def _summed_again(self, step: Step, given: Sequence[Tensor], deviation: Tensor | float | None) -> Tensor | None:
        """Returns how far a weighted sum of inner products moves if a kernel sums in the other order.

        Returns None for all steps but such a sum.

        The sum over j of p_j (a . b_j) equals a . (sum of p_j b_j). The backward pass of attention may compute either.
        If p is one 1 among zeros, the first form repeats a computed number, and the second form rounds. The bracket of
        the second form is the output of attention, which a kernel stores in 16 bits.
        """
        place = next((n for n, each in enumerate(step.inputs) if id(each) in self.inner), None)
        if id(step) not in self.weighed:
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

    def _weighted_sums(self) -> set[int]:
        """Returns the ids of the steps from inner products to a weighted sum of them.

        These are the inner products, the steps that move them, the multiplication by weights and the sum.
        """
        found: set[int] = set()
        for step in self.steps:
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

    def _is_kept(self, step: Step) -> bool:
        """True if all numbers that a step reads are of the 16-bit format, or not computed."""
        return all(isinstance(each, Leaf | Plain) or id(each) in self.kept for each in step.inputs if each.real)

    def _store(self, step: Step, value: Tensor, deviation: Tensor | float | None) -> None:
        """Adds the rounding that storing a step causes, for the elements that its format cannot represent."""
        format = self.format.stored[id(step)]
        rounded = value.to(format).to(value.dtype) != value
        if id(step) in self.ends:
            self.stored[id(step)] = rounded
        else:  # later steps see only the stored number, so both roundings become one
            stored = (value.abs() * (unit_of(format) / _ROOT3)).masked_fill(~rounded, 0.0)
            if deviation is not None:
                first = value.abs() * deviation if isinstance(deviation, float) else deviation
                stored = torch.hypot(first, stored).nan_to_num(0.0, 0.0, 0.0)
            self.roundings[id(step)] = stored

    def sample(self, runs: int, seed: int, shrink: float) -> None:
        """Runs the program `runs` times with disturbances and raises `deviations` to the changes seen.

        Disturbances are the roundings times `shrink`.
        """
        first = self.runs == 0
        make, self.shrink = self._disturbed if first else self._disturbed_alone, shrink
        total = {name: torch.zeros_like(value) for name, value in self.truth.items()}
        few = {name: [] for name, value in self.truth.items() if value.numel() <= _FEW}  # type: dict[str, list[Tensor]]

        def evaluate() -> tuple[dict[str, Tensor], dict[int, Tensor]]:
            self.moved = {}
            found = self._results(make)
            return {name: _squared(value - self.truth[name]) for name, value in found.items()}, self.moved

        device = next(iter(self.truth.values())).device if self.truth else self.run.device
        self.coins = Coins(seed, device)
        for squares, moved in self.coins.runs(runs, evaluate, self._largest()):
            for name, square in squares.items():
                total[name] += square
                if name in few:
                    few[name].append(square)
            for key, square in moved.items():
                self.squares[key] = self.squares[key] + square if key in self.squares else square
        self.program.apart |= self.coins.failed
        if first:
            self.each, self.runs, self.first_shrink = few, runs, shrink
        for name, value in total.items():
            self.deviations[name] = torch.maximum(self.deviations[name], (value / runs).sqrt() / shrink)

    def _disturbed(self, step: Step, given: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Evaluates a step with a disturbance, and notes how far deciding numbers moved."""
        shown, used = self._disturbed_alone(step, given)
        if id(step) in self.deciding and step.real:
            self.moved[id(step)] = _squared(used - self.held[id(step)])
        if id(step) in self.compared:
            self.moved[-id(step)] = _squared((given[0] - given[1]) - self._difference(step))
        return shown, used

    def _disturbed_alone(self, step: Step, given: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Evaluates a step with a disturbance. Decisions stay as in the base run."""
        held = self.held[id(step)] if id(step) in self.chosen else self.fixed.get(id(step))
        if held is not None:
            return held, held
        value = self._with_base_decisions(step, given)
        deviation = self.roundings.get(id(step))
        if isinstance(deviation, float):
            value = torch.addcmul(value, value, self.coins.like(value), value=deviation * self.shrink * _ROOT3)
        elif deviation is not None:
            value = torch.addcmul(value, deviation, self.coins.like(value), value=self.shrink * _ROOT3)
        if id(step) not in self.stored:
            return value, value
        unit = unit_of(self.format.stored[id(step)]) * self.shrink
        moved = torch.addcmul(value, value, self.coins.like(value), value=unit)
        return value, torch.where(self.stored[id(step)], moved, value)

    def _with_base_decisions(self, step: Step, given: list[Tensor]) -> Tensor:
        """Evaluates a step that contains a decision, with the decision of the base run.

        Does not evaluate a long sum again if no disturbance reaches its inputs.
        """
        if isinstance(step, Chunked) and all(id(each) in self.fixed for each in step.inputs):
            return self.held[id(step)]
        if isinstance(step, AtRank):
            ranks = self.held[id(step.inputs[0])].topk(given[1].shape[-1], -1, step.largest).indices
            return given[2].scatter(-1, ranks, given[1])
        if isinstance(step, Map) and step.function in _REMAINS:
            a, b = (self.held[id(each)] for each in step.inputs)
            left = self.held[id(step)]
            return left + (given[0] - a) - ((a - left) / b).round() * (given[1] - b)
        return step.value(self.run, given)

    def _largest(self) -> float:
        """Returns the number of elements of the largest step; infinity if its runs are not evaluated together."""
        if self.program.apart or any(isinstance(step, Chunked) for step in self.steps):
            return math.inf
        return max((math.prod(step.shape) for step in self.steps), default=0)

    def _difference(self, step: Step) -> Tensor:
        """Returns the difference of the two inputs of a comparison in the base run."""
        return self.held[id(step.inputs[0])] - self.held[id(step.inputs[1])]

    def is_small(self) -> bool:
        """True if all results together have few elements, so that more runs cost little."""
        return sum(value.numel() for value in self.truth.values()) <= _FEW

    def is_chaotic(self) -> bool:
        """True if a tenth of some result's elements have so much noise that the response may not be linear."""
        for name, value in self.truth.items():
            large = self.deviations[name] > _CHAOTIC * value.abs()
            if value.numel() and float((large & (value != 0)).double().mean()) > 0.1:
                return True
        return False

    def together(self, name: str) -> float:
        """Returns how strongly the elements of a small result move together, for instance if all depend on one sum.

        This is the largest rms over the elements, among all runs, of the change in units of the noise. At least 1.
        """
        squares = self.each.get(name)
        if not squares:
            return 1.0
        whole = torch.stack(squares)
        mean = whole.mean(0)
        moved = (whole / mean).nan_to_num(0.0, 0.0, 0.0).reshape(len(squares), -1)
        noisy = int((mean > 0).sum())
        return max(1.0, math.sqrt(float(moved.sum(1).max()) / noisy)) if noisy else 1.0

    def deviation(self, name: str) -> Tensor:
        """Returns the noise of each element of a result.

        For a gradient through a normalisation, it is at least an eighth of the rms noise of the row.
        """
        found = self.deviations[name]
        for step in self.steps:
            if isinstance(step, Map) and step.centred and step.shape == found.shape and name not in self._outputs():
                dims = _averaged(step)
                if dims:
                    found = torch.maximum(found, (found * found).mean(dims, True).sqrt() / 8)
        return found

    def _outputs(self) -> list[str]:
        """Returns the names of the results that are no gradients."""
        return [
            name for name in self.program.results if not name.startswith("d") or "grad " + name in self.program.leaves
        ]

    def _reach_of(self, key: int) -> Tensor | None:
        """Returns `NEAR` times the noise of a deciding number; None if the number never moved."""
        if key not in self.squares or not bool(self.squares[key].any()):
            return None
        return (self.squares[key] / self.runs).sqrt() * (NEAR / self.first_shrink)

    def reaches(self) -> dict[int, Tensor]:
        """Maps id(step) to the largest error of each deciding number; infinity where a kernel's number overflows."""
        found: dict[int, Tensor] = {}
        for key in self.deciding:
            reach, beyond = self._reach_of(key), self.held[key].abs() > self.format.largest
            if reach is not None:
                found[key] = torch.where(beyond, math.inf, reach)
        return found

    def flipped(self, seed: int) -> dict[str, Noise]:
        """Returns, for each result, its noise with `spread` and `other` from runs with open decisions turned.

        Returns {} if no decision is open. An exact tie is open for gradients, which have two sides there. It is not
        open for outputs, where PyTorch's answer holds.
        """
        outputs = set(self._outputs())
        found: dict[str, Noise] = {}
        for ties in (False, True):
            names = [name for name in self.wanted if (name in outputs) is not ties]
            opened = (
                {id(step): at for step in self.steps if (at := self._open_decisions(step, ties)) is not None}
                if names
                else {}
            )
            made = [
                self._results(partial(self._with_turned, opened, way, seed)) for way in range(_FLIPS if opened else 0)
            ]
            for name in names if made else []:
                found[name] = self._noise_of_runs(name, torch.stack([each[name] for each in made]))
        return found

    def _noise_of_runs(self, name: str, made: Tensor) -> Noise:
        """Returns the noise of a result with its spread and second value, given its values `made` in several runs."""
        truth = self.truth[name]
        moved = _distance(made, truth)
        furthest = moved.max(0)
        other = made.gather(0, furthest.indices[None])[0]
        least = NEAR * self.deviations[name] + 2.0**-30 * truth.abs()
        beside = torch.minimum(moved, _distance(made, other)).amax(0)
        two = beside <= least
        differs = furthest.values > least
        # with more than two values, the runs have seen only some, so the furthest counts twice
        spread = torch.where(two, beside, 2 * furthest.values)
        return Noise(self.deviation(name), spread, torch.where(two & differs, other, math.nan))

    def _open_decisions(self, step: Step, ties: bool) -> tuple[Tensor, Tensor] | None:
        """Returns a mask of the open decisions of a step, and the change of its first input that turns them.

        Returns None if no decision is open. With `ties`, an exact tie is open too.
        """
        if not decides(step) or not step.inputs[0].real:
            return None
        x = self.held[id(step.inputs[0])]
        near = self._reach_of(-id(step) if _compares(step) else id(step.inputs[0]))
        zero = torch.zeros_like(x)
        reach = zero if near is None else near
        if _compares(step):
            apart = self._difference(step).abs()
            mask = (apart <= reach) & (reach > 0)
            computed = self._reach_of(id(step.inputs[0]))
            # True where a computed number is compared with itself
            known = (apart == 0) & (reach == 0) & (zero if computed is None else computed > 0).bool()
            mask = mask | ((apart == 0) & ~known & (ties and step.ties))  # type: ignore[attr-defined]
        elif isinstance(step, Map):
            if step.function in _QUOTIENTS + _REMAINS:
                by = self.held[id(step.inputs[1])]
                reach_by = self._reach_of(id(step.inputs[1]))
                reach = reach + (0.0 if reach_by is None else (x / by).abs() * reach_by)
                lower = step.function in ("floor quotient", "remainder")
                jumps: Callable[[Tensor], Tensor]
                jumps = partial(torch.div, other=by, rounding_mode="floor" if lower else "trunc")
            else:
                jumps = torch.signbit if step.function == "signbit" else FUNCTIONS[step.function].torch
            mask = (jumps(x + reach) != jumps(x - reach)) & (reach > 0)
            mask = mask | ((x == 0) & (ties and step.function == "sign"))
        else:
            near_x = Span(x - reach, x + reach)
            if isinstance(step, IsExtreme):
                mask = step.several(near_x)
            elif isinstance(step, WhereExtreme):
                mask = candidates(near_x, step.largest)
            else:
                mask = rivals(near_x, exact=not getattr(step, "stable", False)) > 1
            mask = mask & torch.isfinite(x)
            if near is None and not ties and not isinstance(step, RankIndex | WhereExtreme):
                return None
        if not bool(mask.any()):
            return None
        return mask, 2 * reach + x.abs() * _TIE + 1e-300

    def _with_turned(
        self, opened: Mapping[int, tuple[Tensor, Tensor]], way: int, seed: int, step: Step, given: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Evaluates a step with its open decisions turned one way or the other.

        The runs 0 and 1 turn all decisions to one side, 2 and 3 choose the first or last of equal elements, the others
        are random.
        """
        if id(step) not in opened:
            value = step.value(self.run, given)
            return value, value
        mask, by = opened[id(step)]
        if way < 2:
            side = torch.ones_like(by) * (1 if way else -1)
        elif way < 4 and not isinstance(step, Map):  # the last, or the first, of equal elements
            ramp = torch.arange(1, by.shape[-1] + 1, dtype=by.dtype, device=by.device) / by.shape[-1]
            side = (ramp if way == 2 else 1 - ramp).expand(by.shape)
        else:  # all decisions by the same number turn to the same side
            key = seed * 1009 + way * 31 + self.numbers[id(step.inputs[0])]
            generator = torch.Generator(by.device).manual_seed(key)
            side = torch.randint(0, 2, by.shape, device=by.device, generator=generator).to(by.dtype) * 2 - 1
        if isinstance(step, Map) and step.function in ("eq", "ne"):
            value = step.value(self.run, given)
            value = torch.where(mask, (side > 0).expand(mask.shape), value)
        else:
            first = torch.where(mask, given[0] + side * by, given[0])
            value = step.value(self.run, [first, *given[1:]])
            if isinstance(step, Map) and step.function in _REMAINS:
                value = value - (first - given[0])  # only the jump remains
        return value, value


class _PartSamples(_Samples):
    """Samples some terms of a long sum. Leaves out the rounding of the sum, which is that of all terms together."""

    terms: Terms | None = None

    def _evaluate_base(self, step: Step, given: list[Tensor]) -> tuple[Tensor, Tensor]:
        if step is not self.program.results[PART]:
            return super()._evaluate_base(step, given)
        value = step.value(self.run, given)
        if isinstance(step, Contract) or (isinstance(step, Reduce) and step.function == "sum"):
            self.terms = terms_of(step, given, self.format)
        return value, value

    def variance(self) -> Tensor:
        """Returns the variance of the sum by the roundings of its terms, and by open decisions about them."""
        value = self.truth[PART]
        if not (self.roundings or self.stored):
            return torch.zeros_like(value)
        self.sample(RUNS, 0, _STEP / self.format.unit)
        found = _squared(self.deviations[PART])
        for each in self.flipped(0).values():
            assert each.spread is not None and each.other is not None
            found = found + torch.where(torch.isnan(each.other), _squared(each.spread), _squared(each.other - value))
        return found


def _of_parts(totals: Totals, given: Sequence[Tensor], format: Rounding) -> tuple[Tensor, Tensor | None]:
    """Returns the value of a long sum, and its deviation if its inputs are not disturbed. Keeps both in `totals`.

    Roundings in different parts are independent, so their variances add up.
    """
    if totals.value is None:
        values, variances, terms = list[Tensor](), list[Tensor](), list[Terms]()
        for program, run in totals.each(given):
            part = _PartSamples(program, run, [PART], replace(format, stored=program.stored))
            values.append(part.truth[PART])
            variances.append(part.variance())
            terms += [part.terms] if part.terms else []
        made, moved = torch.stack(values), torch.stack(variances)
        totals.value = totals.last.value(run, [made])
        if terms:
            whole = reduce(Terms.joined, terms)
            own = whole.deviation(totals.value, format)
            totals.size = (whole.squares * whole.count).sqrt()
            variance = moved.sum(0) + (0.0 if own is None else own * own)
        else:  # a largest or smallest element moves as it does alone
            variance = torch.where(made == totals.value, moved, 0.0).amax(0)
        totals.deviation = variance.sqrt() if bool(variance.any()) else None
    return totals.value, totals.deviation


def decides(step: Step) -> bool:
    """True if a step turns numbers into a choice, which a rounding of these numbers changes wholly or not at all."""
    if isinstance(step, Map):
        jumps = step.function in _COMPARISONS + _QUOTIENTS + _REMAINS or step.function == "signbit"
        return step.inputs[0].real and (jumps or step.stepped)
    return isinstance(step, IsExtreme | WhereExtreme | RankIndex | AtRank)


_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_QUOTIENTS, _REMAINS = ("floor quotient", "trunc quotient"), ("remainder", "fmod")


def _compares(step: Step) -> bool:
    return isinstance(step, Map) and step.function in _COMPARISONS and step.inputs[0].real


def averaged_dims(program: Program, result: str) -> list[int]:
    """Returns the dimensions of a gradient over which its noise is averaged; [] for an output.

    To know the noise of one element there, all elements along these dimensions are needed.
    """
    if not result.startswith("d") or "grad " + result in program.leaves:
        return []
    shape = program.results[result].shape
    steps = [step for step in program.needed_for([result]) if isinstance(step, Map) and step.centred]
    return sorted({dim for step in steps if step.shape == shape for dim in _averaged(step)})


def _averaged(step: Map) -> list[int]:
    """Returns the dimensions whose mean a step subtracts."""
    mean = step.inputs[1].shape
    shape = (1,) * (len(step.shape) - len(mean)) + tuple(mean)
    return [dim for dim, (size, whole) in enumerate(zip(shape, step.shape, strict=True)) if size < whole]


def _squared(difference: Tensor) -> Tensor:
    known = difference.nan_to_num(0.0, 0.0, 0.0)
    return known * known


def _distance(found: Tensor, truth: Tensor) -> Tensor:
    """Returns the distance of two numbers: 0 if they are equal or both NaN, infinity if only one is finite."""
    same = (found == truth) | (torch.isnan(found) & torch.isnan(truth))
    return torch.where(same, 0.0, (found - truth).abs().nan_to_num(math.inf, math.inf, math.inf))
