"""The noise of a program: how far its results move when each computed step is rounded once.

A kernel cannot be better than its format. So the error of a result is told in units of its noise, the rms change
of an element when every step of the definition is disturbed by one rounding of the format that a kernel computes in:

    noise = noise_of(program, run, ["y", "dx"], Rounding.of(run))["y"]
    noise.deviation    # one number for each element of y
    noise.spread       # how far decisions that fall within their own noise move it; None where there are none

`rounding` says how far one rounding of a step moves its numbers.

The disturbances are far below the roundings that they stand for, so that the response is linear, and decisions stay
as they are. Where a number decides that is within `NEAR` of its own noise of where the decision turns over, some more
runs decide otherwise: what results are then is right too.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import torch
from torch import Tensor

from verify.ops.graph.elementwise import Map
from verify.ops.graph.program import Make, Program
from verify.ops.graph.reducing import Contract, Reduce
from verify.ops.graph.rounding import Products, Rounding, deviation_of, unit_of
from verify.ops.graph.selecting import AtRank, IsExtreme, RankIndex, WhereExtreme, candidates, rivals
from verify.ops.graph.spans import Span
from verify.ops.graph.special import FUNCTIONS
from verify.ops.graph.steps import Leaf, Move, Plain, Run, Step, moved_from

NEAR = 8.0  # of its noise: so far a kernel's number may be from the exact one
RUNS = 16
_MORE_RUNS, _OTHER_SEED = 48, 1009  # before elements are called wrong
_STEP = 2.0**-30  # of a disturbed number
_COINS = (1 << 20) + 7  # random numbers that are drawn once
_FLIPS = 16
_FEW = 1 << 14  # elements of a result whose elements may move together
_TIE = 2.0**-44  # of a number: an exact tie is broken by that much
_ROOT3 = math.sqrt(3.0)
_CHAOTIC = 1e-3  # noise of an element, relative to it, from which its response need not be linear


@dataclass(frozen=True)
class Noise:
    """The noise of one result: `deviation` for each element, and what open decisions do to it.

    `other` is the second right value of elements that have two, NaN elsewhere. Elements that open decisions give more
    than two values have a `spread`: how far they move it at most. Both are None where no decision is open.
    """

    deviation: Tensor
    spread: Tensor | None = None
    other: Tensor | None = None
    value: Tensor | None = None  # the result of the run that nothing disturbed
    together: float = 1.0  # the largest root mean square of a run's deviations in units of their own


def noise_of(
    program: Program, run: Run, wanted: Sequence[str], format: Rounding, runs: int = RUNS, *, seed: int = 0
) -> tuple[dict[str, Noise], dict[int, Tensor]]:
    """Returns the noise of the wanted results, and how far deciding numbers may be off (`Run.reach`)."""
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
    """Returns the deviation of a result from 48 other runs: of so many, an element's own is off by a tenth."""
    sampled = _Samples(program, run, [result], format)
    sampled.sample(_MORE_RUNS, _OTHER_SEED, _STEP / format.unit)
    if sampled.is_chaotic():
        sampled.sample(_MORE_RUNS // 2, _OTHER_SEED + 1, 1.0)
    return sampled.deviation(result)


@lru_cache(maxsize=8)
def _coins(seed: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns the random numbers of a seed, and the state of the generator after them."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.rand(_COINS, dtype=torch.float64, device=device, generator=generator) * 2 - 1, generator.get_state()


class _Samples:
    """One base run of a program, and disturbed ones beside it."""

    def __init__(self, program: Program, run: Run, wanted: Sequence[str], format: Rounding) -> None:
        self.program, self.run, self.format = program, run, format
        self.asked = list(wanted)  # integers among them, whose decisions are looked at too
        self.wanted = [name for name in wanted if program.results[name].real]
        self.steps = program.needed_for(wanted)
        self.ends, self.weighed = self._ends(), self._weighed()
        self.inner: dict[int, Products] = {}  # by step of `weighed`, until they are summed
        self.numbers = {id(step): number for number, step in enumerate(self.steps)}
        self.deciding = {id(each) for step in self.steps if decides(step) for each in step.inputs if each.real}
        self.held: dict[int, Tensor] = {}  # by step: what was decided, and the numbers that decided it
        self.roundings: dict[int, Tensor | float] = {}  # by step: its deviation, or how much of its size that is
        self.stored: dict[int, Tensor] = {}  # by result that is stored: the elements which its format rounds
        self.kept: set[int] = set()  # the steps whose numbers are of the 16-bit format before anything stores them
        self.squares: dict[int, Tensor] = {}  # summed over runs, of how far numbers moved: by step, of `held`
        self.runs = 0
        self.coins: Tensor | None = None
        self.truth = self._results(self._base)
        self.deviations = {name: torch.zeros_like(value) for name, value in self.truth.items()}

    def _results(self, make: Make) -> dict[str, Tensor]:
        found = self.program.values(self.run, self.asked, make)
        return {name: found[name] for name in self.wanted}

    def _ends(self) -> set[int]:
        """The steps whose numbers are results, moved at most."""
        found = {id(self.program.results[name]) for name in self.asked}
        for step in reversed(self.steps):
            if isinstance(step, Move) and id(step) in found:
                found.update(id(each) for each in step.inputs)
        return found

    def _base(self, step: Step, given: list[Tensor]) -> tuple[Tensor, Tensor]:
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
            if deviation is not None or not self._is_kept(step):
                self._store(step, value, deviation)
            self.kept.add(id(step))
        elif deviation is None and self._is_kept(step):
            self.kept.add(id(step))
        return value, value

    def _summed_again(self, step: Step, given: Sequence[Tensor], deviation: Tensor | float | None) -> Tensor | None:
        """Returns how far a weighted sum of inner products moves when its terms are added in another order.

        The sum over j of p_j (a . b_j) is a . (sum of p_j b_j): the backward of attention has either. Where p is one 1
        among zeros, the first repeats numbers that are known, and the second rounds. What the second has in brackets is
        the output of attention, which a kernel stores in 16 bits.
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

    def _weighed(self) -> set[int]:
        """The steps between inner products and weighted sums of them: a product, what moves its factors, the sum."""
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
        """True if a step that rounds nothing is given numbers of the 16-bit format alone."""
        return all(isinstance(each, Leaf | Plain) or id(each) in self.kept for each in step.inputs if each.real)

    def _store(self, step: Step, value: Tensor, deviation: Tensor | float | None) -> None:
        """Adds the rounding to the format that a step is stored in, of the elements which that format has not."""
        format = self.format.stored[id(step)]
        rounded = value.to(format).to(value.dtype) != value
        if id(step) in self.ends:
            self.stored[id(step)] = rounded
        else:  # the number is seen stored alone: both roundings are one
            stored = (value.abs() * (unit_of(format) / _ROOT3)).masked_fill(~rounded, 0.0)
            if deviation is not None:
                first = value.abs() * deviation if isinstance(deviation, float) else deviation
                stored = torch.hypot(first, stored).nan_to_num(0.0, 0.0, 0.0)
            self.roundings[id(step)] = stored

    def sample(self, runs: int, seed: int, shrink: float) -> None:
        """Adds the deviations of some disturbed runs; roundings are multiplied by `shrink` while they run."""
        first = self.runs == 0
        self.random, self.shrink = random.Random(seed), shrink
        device = next(iter(self.truth.values())).device if self.truth else self.run.device
        self.coins, state = _coins(seed, device)
        self.generator = torch.Generator(device)
        self.generator.set_state(state)
        total = {name: torch.zeros_like(value) for name, value in self.truth.items()}
        few = {name: [] for name, value in self.truth.items() if value.numel() <= _FEW}  # type: dict[str, list[Tensor]]
        for _ in range(runs):
            for name, value in self._results(self._disturbed if first else self._disturbed_alone).items():
                square = _squared(value - self.truth[name])
                total[name] += square
                if name in few:
                    few[name].append(square)
        if first:
            self.each = few
        if first:
            self.runs, self.first_shrink = runs, shrink
        for name, value in total.items():
            self.deviations[name] = torch.maximum(self.deviations[name], (value / runs).sqrt() / shrink)

    def _disturbed(self, step: Step, given: list[Tensor]) -> tuple[Tensor, Tensor]:
        """One rounding of a step; how far deciding numbers moved is added to what other runs saw."""
        shown, used = self._disturbed_alone(step, given)
        if id(step) in self.deciding and step.real:
            self._moved(id(step), used - self.held[id(step)])
        if _compares(step):
            self._moved(-id(step), (given[0] - given[1]) - self._apart(step))
        return shown, used

    def _disturbed_alone(self, step: Step, given: list[Tensor]) -> tuple[Tensor, Tensor]:
        if decides(step) and not isinstance(step, AtRank) and getattr(step, "function", "") not in _REMAINS:
            return self.held[id(step)], self.held[id(step)]
        value = self._frozen(step, given)
        deviation = self.roundings.get(id(step))
        if isinstance(deviation, float):
            value = torch.addcmul(value, value, self._tossed(value), value=deviation * self.shrink * _ROOT3)
        elif deviation is not None:
            value = torch.addcmul(value, deviation, self._tossed(value), value=self.shrink * _ROOT3)
        if id(step) not in self.stored:
            return value, value
        unit = unit_of(self.format.stored[id(step)]) * self.shrink
        moved = torch.addcmul(value, value, self._tossed(value), value=unit)
        return value, torch.where(self.stored[id(step)], moved, value)

    def _frozen(self, step: Step, given: list[Tensor]) -> Tensor:
        """A step's value with the decisions within it as they were in the base run."""
        if isinstance(step, AtRank):
            ranks = self.held[id(step.inputs[0])].topk(given[1].shape[-1], -1, step.largest).indices
            return given[2].scatter(-1, ranks, given[1])
        if isinstance(step, Map) and step.function in _REMAINS:
            a, b = (self.held[id(each)] for each in step.inputs)
            left = self.held[id(step)]
            return left + (given[0] - a) - ((a - left) / b).round() * (given[1] - b)
        return step.value(self.run, given)

    def _tossed(self, like: Tensor) -> Tensor:
        """Returns numbers within +-1 of the shape of a tensor: a stretch of those that were drawn once.

        A long tensor reads overlapping stretches, one for each of its rows. Sums of a row or of a column meet each
        number once. Sums of everything meet it several times, which adds little: their own noise is far larger.
        """
        assert self.coins is not None
        count = like.numel()
        if count <= _COINS // 2:
            start = self.random.randrange(_COINS - count)
            return self.coins[start : start + count].view(like.shape)
        row, start = like.shape[-1], self.random.randrange(_COINS // 8)
        apart = (_COINS - start - row) // (count // row) if row else 0
        if apart < 1:  # very long rows, or very many
            fresh = torch.rand(like.shape, dtype=torch.float64, device=like.device, generator=self.generator)
            return fresh * 2 - 1
        strides, size = [1], apart - (apart % 2 == 0)
        for length in reversed(like.shape[1:-1]):
            strides.insert(0, size)
            size *= length
        return self.coins.as_strided(like.shape, [size, *strides], start)

    def _apart(self, step: Step) -> Tensor:
        return self.held[id(step.inputs[0])] - self.held[id(step.inputs[1])]

    def _moved(self, key: int, by: Tensor) -> None:
        square = _squared(by)
        self.squares[key] = self.squares[key] + square if key in self.squares else square

    def is_small(self) -> bool:
        """True if more runs cost little: their number is what a maximum over many elements hangs on."""
        return sum(value.numel() for value in self.truth.values()) <= _FEW

    def is_chaotic(self) -> bool:
        """True if the noise of many elements is so large beside them that their response is not linear."""
        for name, value in self.truth.items():
            large = self.deviations[name] > _CHAOTIC * value.abs()
            if value.numel() and float((large & (value != 0)).double().mean()) > 0.1:
                return True
        return False

    def together(self, name: str) -> float:
        """How far the elements of a small result move together: all may hang on one sum. At least 1."""
        squares = self.each.get(name)
        if not squares:
            return 1.0
        whole = torch.stack(squares)
        mean = whole.mean(0)
        moved = (whole / mean).nan_to_num(0.0, 0.0, 0.0).reshape(len(squares), -1)
        noisy = int((mean > 0).sum())
        return max(1.0, math.sqrt(float(moved.sum(1).max()) / noisy)) if noisy else 1.0

    def deviation(self, name: str) -> Tensor:
        """The noise of a result. That of a gradient through a normalisation is at least an eighth of its row's."""
        found = self.deviations[name]
        for step in self.steps:
            if isinstance(step, Map) and step.centred and step.shape == found.shape and name not in self._outputs():
                dims = _averaged(step)
                if dims:
                    found = torch.maximum(found, (found * found).mean(dims, True).sqrt() / 8)
        return found

    def _outputs(self) -> list[str]:
        return [
            name for name in self.program.results if not name.startswith("d") or "grad " + name in self.program.leaves
        ]

    def _near(self, key: int) -> Tensor | None:
        """`NEAR` times the noise of a deciding number; None where it is not computed."""
        if key not in self.squares or not bool(self.squares[key].any()):
            return None
        return (self.squares[key] / self.runs).sqrt() * (NEAR / self.first_shrink)

    def reaches(self) -> dict[int, Tensor]:
        """How far the numbers that decide something may be off, by step: anywhere, where a kernel's overflow."""
        found: dict[int, Tensor] = {}
        for key in self.deciding:
            reach, beyond = self._near(key), self.held[key].abs() > self.format.largest
            if reach is not None:
                found[key] = torch.where(beyond, math.inf, reach)
        return found

    def flipped(self, seed: int) -> dict[str, Noise]:
        """What open decisions do to each result: `spread` and `other`; {} where none is open.

        At an exact tie a gradient has two sides, while an output is what PyTorch says.
        """
        outputs = set(self._outputs())
        found: dict[str, Noise] = {}
        for ties in (False, True):
            names = [name for name in self.wanted if (name in outputs) is not ties]
            opened = (
                {id(step): at for step in self.steps if (at := self._open(step, ties)) is not None} if names else {}
            )
            made = [self._results(partial(self._decided, opened, way, seed)) for way in range(_FLIPS if opened else 0)]
            for name in names if made else []:
                found[name] = self._moves(name, torch.stack([each[name] for each in made]))
        return found

    def _moves(self, name: str, made: Tensor) -> Noise:
        """The spread of a result, and its other value, from what it was in several runs."""
        truth = self.truth[name]
        moved = _distance(made, truth)
        furthest = moved.max(0)
        other = made.gather(0, furthest.indices[None])[0]
        least = NEAR * self.deviations[name] + 2.0**-30 * truth.abs()
        beside = torch.minimum(moved, _distance(made, other)).amax(0)
        two = beside <= least
        differs = furthest.values > least
        # of more than two values the runs have met some
        spread = torch.where(two, beside, 2 * furthest.values)
        return Noise(self.deviation(name), spread, torch.where(two & differs, other, math.nan))

    def _open(self, step: Step, ties: bool) -> tuple[Tensor, Tensor] | None:
        """Which decisions of a step are open, and by how much their first number is moved to turn them over."""
        if not decides(step) or not step.inputs[0].real:
            return None
        x = self.held[id(step.inputs[0])]
        near = self._near(-id(step) if _compares(step) else id(step.inputs[0]))
        zero = torch.zeros_like(x)
        reach = zero if near is None else near
        if _compares(step):
            apart = self._apart(step).abs()
            mask = (apart <= reach) & (reach > 0)
            computed = self._near(id(step.inputs[0]))
            known = (apart == 0) & (reach == 0) & (zero if computed is None else computed > 0).bool()  # of itself
            mask = mask | ((apart == 0) & ~known & (ties and step.ties))  # type: ignore[attr-defined]
        elif isinstance(step, Map):
            if step.function in _QUOTIENTS + _REMAINS:
                by = self.held[id(step.inputs[1])]
                reach_by = self._near(id(step.inputs[1]))
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
            if isinstance(step, IsExtreme | WhereExtreme):
                mask = candidates(near_x, step.largest)
            else:
                mask = rivals(near_x, exact=not getattr(step, "stable", False)) > 1
            mask = mask & torch.isfinite(x)
            if near is None and not ties and not isinstance(step, RankIndex | WhereExtreme):
                return None
        if not bool(mask.any()):
            return None
        return mask, 2 * reach + x.abs() * _TIE + 1e-300

    def _decided(
        self, opened: Mapping[int, tuple[Tensor, Tensor]], way: int, seed: int, step: Step, given: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """A step's value with its open decisions turned one way or the other."""
        if id(step) not in opened:
            value = step.value(self.run, given)
            return value, value
        mask, by = opened[id(step)]
        if way < 2:
            side = torch.ones_like(by) * (1 if way else -1)
        elif way < 4 and not isinstance(step, Map):  # the last, or the first, of equal ones
            ramp = torch.arange(1, by.shape[-1] + 1, dtype=by.dtype, device=by.device) / by.shape[-1]
            side = (ramp if way == 2 else 1 - ramp).expand(by.shape)
        else:  # the same side for all that the same number decides
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
                value = value - (first - given[0])  # what is left is the jump
        return value, value


def decides(step: Step) -> bool:
    """True if a step turns numbers into a choice: roundings before it may change the choice, never by a little."""
    if isinstance(step, Map):
        jumps = step.function in _COMPARISONS + _QUOTIENTS + _REMAINS or step.function == "signbit"
        return step.inputs[0].real and (jumps or step.stepped)
    return isinstance(step, IsExtreme | WhereExtreme | RankIndex | AtRank)


_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_QUOTIENTS, _REMAINS = ("floor quotient", "trunc quotient"), ("remainder", "fmod")


def _compares(step: Step) -> bool:
    return isinstance(step, Map) and step.function in _COMPARISONS and step.inputs[0].real


def averaged_dims(program: Program, result: str) -> list[int]:
    """Returns the dimensions of a gradient over which noise is averaged: an element then needs its whole row."""
    if not result.startswith("d") or "grad " + result in program.leaves:
        return []
    shape = program.results[result].shape
    steps = [step for step in program.needed_for([result]) if isinstance(step, Map) and step.centred]
    return sorted({dim for step in steps if step.shape == shape for dim in _averaged(step)})


def _averaged(step: Map) -> list[int]:
    """The dimensions whose mean a step subtracts."""
    mean = step.inputs[1].shape
    shape = (1,) * (len(step.shape) - len(mean)) + tuple(mean)
    return [dim for dim, (size, whole) in enumerate(zip(shape, step.shape, strict=True)) if size < whole]


def _squared(difference: Tensor) -> Tensor:
    known = difference.nan_to_num(0.0, 0.0, 0.0)
    return known * known


def _distance(found: Tensor, truth: Tensor) -> Tensor:
    """How far two numbers are apart; 0 where they are equal, both NaN too, and infinite where only one is finite."""
    same = (found == truth) | (torch.isnan(found) & torch.isnan(truth))
    return torch.where(same, 0.0, (found - truth).abs().nan_to_num(math.inf, math.inf, math.inf))
