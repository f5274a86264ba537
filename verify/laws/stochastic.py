"""Stochastic rounding: a result is one of the two neighbours of the exact number, and only its seed decides which.

The law calls a kernel with eight seeds. It looks at the results that `stochastic=` names ([what it
demands](like.md#stochastic-rounding)).

Details:

* Neighbours. Each result is a neighbour of the exact number in its format. A number that the format has must stay. The
  float32 number that a kernel rounds may be off by 8 times its noise, or by 10 ULP.
* Mean. A number at a quarter of the way between its neighbours goes up once in four times. So the mean error is zero
  within five standard errors: of all elements, of each sign, of each eighth of the way, and at each of 64 lanes.
* Independence. Two elements at any distance go up independently of each other, in one call and in calls with different
  seeds. Seeds are tried in a row, and half of their range apart.
* The same seed gives the same bits.

The chance of each element is known, so the variance of each sum is known as well. Bernstein's inequality then bounds
the sum, by five standard errors. The bound is wider for few elements, and for many sums. In tensors of fewer than 4,096
elements only neighbours and bits are looked at.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from verify.cases import Case, inputs_of, problem_of
from verify.cases.classes import class_of_recipe
from verify.cases.sizes import largest_of
from verify.cases.strategies import CaseSpace, recipes
from verify.declare.declaration import Kernel
from verify.declare.promises import WIDE
from verify.laws.law import Broken, Inputs, Subject, demand_same, law, place, plain_case, show, space_of
from verify.measure.call import run_tensors
from verify.records.record import EXTREME
from verify.truth.fast import evaluate
from verify.truth.formats import named
from verify.truth.ulp import ulp_exponent, widen

_ELEMENTS = {"small": 1 << 14, "large": 1 << 18}  # of the case whose means are looked at, by the backend
_FEWEST = 1 << 12
_SEEDS = 4  # in a row, and as many half of the range away
_NEAR = 8.0  # times the noise: so far a kernel's number may be from the exact one
_MOST_ROOM = 1 / 16  # of the spacing: numbers that may move further tell nothing about means
_EXPONENT = 12.5  # of the probability of a false alarm: that of five standard errors
_PARTS = tuple(f"{part}/8 to {part + 1}/8 of the way" for part in range(8))
_LANES = tuple(f"lane {lane} of 64" for lane in range(64))


@dataclass(frozen=True)
class _Places:
    """Where exact numbers lie between their neighbours, in units of the spacing there. Tensors are flat."""

    unit: Tensor
    at: Tensor  # the exact numbers
    room: Tensor  # how far the number that a kernel rounds may be from it
    known: Tensor  # whether anything is demanded

    @cached_property
    def share(self) -> Tensor:
        """How far an exact number is from its lower neighbour: its chance to go up."""
        return self.at - self.at.floor()

    @cached_property
    def counted(self) -> Tensor:
        """Whether both neighbours are the same for every number that a kernel may round."""
        inside = (self.share >= self.room) & (self.share + self.room <= 1)
        return self.known & inside & (self.room <= _MOST_ROOM)

    @cached_property
    def groups(self) -> dict[tuple[str, ...], Tensor]:
        """Maps the names of groups to the number of each element's group. The mean of each group is looked at."""
        count = torch.arange(len(self.at), device=self.at.device)
        return {
            ("all",): torch.zeros_like(count),
            ("positive", "negative"): (self.at < 0).long(),
            _PARTS: (self.share * len(_PARTS)).long().clamp(max=len(_PARTS) - 1),
            _LANES: count % len(_LANES),
        }

    @cached_property
    def variance(self) -> Tensor:
        """The variance of going up; 0 where nothing is counted."""
        return torch.where(self.counted, self.share * (1 - self.share), 0.0)


def _reason(subject: Subject) -> str | None:
    kernel = subject.kernel
    if not kernel.stochastic:
        return "the declaration has no stochastic="
    case = _plain(subject)
    for seed in set(kernel.stochastic.values()):
        low, high = range_of(subject, case, seed)
        if high - low < 2 * _SEEDS:
            return f"{seed} has fewer than {2 * _SEEDS} values"
    inputs = inputs_of(kernel.op, case, subject.backend.device)
    for name in kernel.stochastic:
        if not bool((_places(subject, case, inputs, name).variance > 0).any()):
            return f"{name} has nothing to round: the exact numbers of ordinary inputs are numbers of its format"
    return None


def _plain(subject: Subject) -> Case:
    return plain_case(subject, largest_of(subject.kernel.op, _ELEMENTS[subject.backend.scale]))


def _space(subject: Subject) -> CaseSpace:
    """Cases without gradients; nothing is promised of extreme inputs."""
    fill = [each for each in recipes(subject.kernel) if class_of_recipe(each) != EXTREME]
    return space_of(subject, fill=fill, upstream=("",))


def range_of(subject: Subject, case: Case, seed: str) -> tuple[int, int]:
    """Returns the first number that a seed may be, and the first above all."""
    operand = next(each for each in subject.kernel.op.operands if each.name == seed)
    assert operand.range is not None
    return operand.range(case.dims)


def _places(subject: Subject, case: Case, inputs: Inputs, result: str) -> _Places:
    op, fmt = subject.kernel.op, named(subject.kernel.result_dtype(subject.dtype, result) or subject.dtype)
    problem = problem_of(op, case, inputs, {}, (result,))
    truth = evaluate(op, problem, {result: fmt})[result]
    exact, bound = truth.value.reshape(-1), truth.bound.reshape(-1)
    noise = op.meaning.deviation(problem, result).to(exact.device).reshape(-1)
    known = torch.isfinite(exact) & torch.isfinite(bound) & torch.isfinite(noise)
    known &= exact.abs() < float(fmt.max_finite)
    if truth.unknown is not None:
        known &= ~truth.unknown.reshape(-1)
    exact = torch.where(known, exact, 0.0)
    unit = torch.ldexp(torch.ones_like(exact), ulp_exponent(exact, fmt))
    return _Places(unit, exact / unit, torch.where(known, room_of(exact, bound, noise), 0.0) / unit, known)


def room_of(exact: Tensor, bound: Tensor, noise: Tensor) -> Tensor:
    """Returns how far the float32 number of a kernel may be from the exact one."""
    # a step that rounds may also be a function, which float32 kernels compute within this limit
    single = torch.ldexp(torch.ones_like(exact), ulp_exponent(exact, named("float32")))
    return bound + torch.maximum(_NEAR * noise, torch.where(noise > 0, WIDE * single, 0.0))


@law(
    "stochastic rounding",
    _space,
    applies=_reason,
    examples=lambda subject, space: (_plain(subject), *space.each_choice()),
    share=0.25,
)
def stochastic_rounding(subject: Subject, case: Case) -> None:
    """Results are neighbours of the exact numbers, unbiased, independent, and follow from the seed."""
    kernel = subject.kernel
    inputs = inputs_of(kernel.op, case, subject.backend.device)
    for seed in dict.fromkeys(kernel.stochastic.values()):
        names = [name for name, its in kernel.stochastic.items() if its == seed]
        ends = range_of(subject, case, seed)
        seeds = seeds_of(inputs, seed, ends, _SEEDS)
        calls = list(called(kernel, case, inputs, seed, seeds, ends))
        again = run_tensors(kernel, inputs, case.params, {})
        expected = {name: calls[0][name] for name in names}
        demand_same(case, again, expected, "the same seed gives other bits", labels=("second call", "first call"))
        for name in names:
            places, got = _places(subject, case, inputs, name), [call[name] for call in calls]
            _demand_neighbours(case, name, got, seeds, places)
            if got[0].numel() < _FEWEST:
                continue
            up = torch.stack([widen(each).reshape(-1) / places.unit > places.at for each in got])
            moved = torch.where(places.counted, up.double() - places.share, 0.0)
            _demand_independence(case, name, moved, places)
            _demand_means(case, name, moved.sum(0), len(seeds), places)
            # numbers as a narrower format has them, so that the kernel meets exact ones
            kind = got[0].dtype
            smooth = {each: v for each, v in inputs.items() if v is not None and v.is_floating_point()}
            coarse = {**inputs, **{each: value.to(kind).to(value.dtype) for each, value in smooth.items()}}
            exact = [call[name] for call in called(kernel, case, coarse, seed, seeds, ends)]
            _demand_neighbours(case, name, exact, seeds, _places(subject, case, coarse, name))


def seeds_of(inputs: Inputs, seed: str, ends: tuple[int, int], count: int) -> list[int]:
    """Returns as many seeds in a row from that of a case on, and as many more half of the range away.

    An operand of several seeds takes as many numbers.
    """
    given, (low, high) = inputs[seed], ends
    assert given is not None
    first, many = int(given.reshape(-1)[0]) - low, given.numel()
    ways = (0, (high - low) // 2)
    return [low + (first + many * step + away) % (high - low) for away in ways for step in range(count)]


def called(
    kernel: Kernel, case: Case, inputs: Inputs, seed: str, seeds: Sequence[int], ends: tuple[int, int]
) -> Iterator[dict[str, Tensor]]:
    """Yields the outputs of the kernel for each seed."""
    given, (low, high) = inputs[seed], ends
    assert given is not None
    more = torch.arange(given.numel(), device=given.device).reshape(given.shape)
    for value in seeds:
        own = (low + (value - low + more) % (high - low)).to(given.dtype)
        yield run_tensors(kernel, {**inputs, seed: own}, case.params, {})


def _demand_neighbours(case: Case, name: str, got: list[Tensor], seeds: list[int], places: _Places) -> None:
    least, most = (places.at - places.room).floor(), (places.at + places.room).ceil()
    for each, seed in zip(got, seeds, strict=True):
        steps = widen(each).reshape(-1) / places.unit
        wrong = torch.nonzero(places.known & ~((steps >= least) & (steps <= most))).reshape(-1)
        if wrong.numel():
            index = int(wrong[0])
            unit = float(places.unit[index])
            low, high = (float(end[index]) * unit for end in (least, most))
            facts = {
                "at": f"{name} {place(each, index)}, {wrong.numel():,} in all, seed {seed}",
                "got": show(each, index),
                "exact": f"{float(places.at[index]) * unit!r}",
                "neighbours": f"{low!r}" if low == high else f"{low!r} and {high!r}",
            }
            raise Broken("a result is no neighbour of the exact number", case, facts, result=name, index=index)


def limit_of(variance: Tensor, sums: int, exponent: float = _EXPONENT) -> Tensor:
    """Returns how large a sum of independent terms, each at most 1, may be; `sums` of them are looked at."""
    exponent += math.log(sums)
    return exponent / 3 + torch.sqrt(exponent**2 / 9 + 2 * exponent * variance)


def _demand_means(case: Case, name: str, moved: Tensor, calls: int, places: _Places) -> None:
    """`moved` has for each element how much more often it went up than its chance says."""
    sums = sum(map(len, places.groups))
    for labels, group in places.groups.items():
        room = torch.where(places.counted, places.room, 0.0)
        weights = (moved, *(calls * each for each in (places.variance, room, places.counted)))
        total, variance, room, number = (torch.bincount(group, weights=each.double()) for each in weights)
        excess = total.abs() - room - limit_of(variance, sums)
        worst = int(excess.argmax())
        if not float(excess[worst]) <= 0:
            chance = float(torch.where(places.counted & (group == worst), places.share, 0.0).sum()) * calls
            of = float(number[worst])
            facts = {
                "of": f"{of:,.0f} elements of {name}, {labels[worst]}",
                "went up": f"{(chance + float(total[worst])) / of:.4f} of them",
                "should": f"{chance / of:.4f} +- {math.sqrt(float(variance[worst])) / of:.2g}",
                "mean error": f"{float(total[worst]) / of:+.3g} of the spacing",
            }
            raise Broken("upper neighbours are not taken as often as they are near", case, facts, result=name)


def _demand_independence(case: Case, name: str, moved: Tensor, places: _Places) -> None:
    """Raises Broken if two elements go up together, within calls or between calls with different seeds.

    A kernel may round the values or the magnitudes of two elements by one random number, so both are looked at. The
    mean of each group of elements over all calls is subtracted first.
    """
    _, signs, parts, lanes = places.groups.values()
    for group in (signs * len(_PARTS) + parts, lanes):
        number = len(moved) * torch.bincount(group, weights=places.counted.double())
        mean = torch.bincount(group, weights=moved.sum(0)) / number.clamp(min=1)
        moved = torch.where(places.counted, moved - mean[group], 0.0)
    count, everyone = moved.shape[-1], list(range(2 * _SEEDS))
    spread = torch.fft.rfft(places.variance, 2 * count)
    expected = torch.fft.irfft(spread.conj() * spread, 2 * count).clamp(min=0)
    before, after = ([at for at in everyone if (at + more) % _SEEDS] for more in (1, 0))
    pairs = {
        "in the call with the next seed": (before, after),
        "in the call with a seed half of the range away": (everyone[:_SEEDS], everyone[_SEEDS:]),
        "in the same call": (everyone, everyone),
    }
    found = list[tuple[float, dict[str, str]]]()
    for what, sign in (("values", 1.0), ("magnitudes", places.at.sign())):
        waves = torch.fft.rfft(moved * sign, 2 * count)
        for words, (one, other) in pairs.items():
            total = torch.fft.irfft((waves[one].conj() * waves[other]).sum(0), 2 * count)
            excess = total.abs() / limit_of(len(one) * expected, 4 * count)
            if one == other:
                excess[0] = 0.0  # an element and itself
            worst = _first_of_largest(excess)
            distance = worst if worst <= count else worst - 2 * count
            size = float(total[worst]) / max(len(one) * float(expected[worst]), 1e-300)
            facts = {
                "of": f"{what} of {name}, elements {distance} places apart, {words}",
                "correlation": f"{size:+.3g} of what equal random numbers give, in {len(one)} calls of {count:,}",
            }
            found.append((float(excess[worst]), facts))
    # one defect makes other sums uncertain too: the one that stands out most names it
    size, facts = found[_first_of_largest(torch.tensor([each for each, _ in found]))]
    if not size <= 1:
        raise Broken("elements do not round independently", case, facts, result=name)


def _first_of_largest(sizes: Tensor) -> int:
    """Returns the first place with the largest size; NaN is the largest.

    Sizes that differ by the rounding of a Fourier transform alone count as equal: values and magnitudes of an element
    and itself, a distance forward and back. Their order would depend on the processor.
    """
    known = sizes.nan_to_num(nan=math.inf, posinf=math.inf)
    return int((known >= (1 - 2.0**-20) * known.max()).nonzero()[0])


LAWS = (stochastic_rounding,)
