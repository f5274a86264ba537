"""Measures the noise of a program: how far its results move if each computed step is rounded once.

A kernel cannot be better than its format. So errors are measured in units of the noise. To find the noise, one rounding
of the format that a kernel computes in disturbs each step of the definition. The noise of an element is its rms change:

    noise = noise_of(program, run, ["y", "dx"], Rounding.of(run))[0]["y"]
    noise.deviation    # one number for each element of y

`rounding.py` gives the size of one rounding of each step.

The disturbances are much smaller than the roundings they represent. So the response is linear, and no decision changes.
The same runs show how far a kernel's numbers may be from those that decide (`reaches`): `NEAR` times their noise. Where
that leaves a decision free, `choices.py` looks for the one that explains a kernel's results.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from verify.ops.graph import forms
from verify.ops.graph.chunks import PART, Chunked, Totals
from verify.ops.graph.coins import Coins
from verify.ops.graph.elementwise import COMPARISONS, Map
from verify.ops.graph.program import Make, Program
from verify.ops.graph.reducing import Contract, Reduce, Spread
from verify.ops.graph.rounded import GRIDS
from verify.ops.graph.rounding import (
    EXPONENTIALS,
    Chain,
    Rounding,
    Terms,
    deviation_of,
    lost_in,
    size_of_rounding,
    terms_of,
)
from verify.ops.graph.steps import Leaf, Plain, Run, Step, ends_of, moved_from

NEAR = 8.0  # largest error of a kernel's number, in units of its noise
SPACINGS = 8  # of a format: where errors reach further, a rounding to the format decides nothing
RUNS = 16
_ROUNDED_RUNS = 2  # a number that is not rounded by luck is rounded in the other
_MORE_RUNS, _OTHER_SEED = 48, 1009  # used before elements are called wrong
_STEP = 2.0**-30  # size of a disturbance, relative to the number
_FEW = 1 << 14  # most elements for which `together` is measured and additional runs are made
_HELD = 1 << 20  # most elements of an operand in float64 that is kept for all runs
_LOOSE = 8  # runs that take their decisions anew
_ROOT3 = math.sqrt(3.0)
_STEPWISE = 4.0  # largest error of a kernel that takes the program's steps, in units of noise: within every limit
_CHAOTIC = 1e-3  # relative noise of an element above which its response may not be linear
_STEEP = 0.5  # noise of an exponent above which the response is not linear: a softmax may take another element

Reaches = dict[Hashable, Tensor]  # see `Samples.reaches`


@dataclass(frozen=True)
class Noise:
    """The noise of one result."""

    deviation: Tensor  # the noise of each element
    together: float = 1.0  # largest rms of one run's changes, each in units of the element's noise


def noise_of(
    program: Program, run: Run, wanted: Sequence[str], format: Rounding, runs: int = RUNS, *, seed: int = 0
) -> tuple[dict[str, Noise], Reaches]:
    """Returns the noise of each wanted result, and the largest error of each number that decides (`reaches`)."""
    sampled = Samples(program, run, wanted, format)
    few = sum(value.numel() for value in sampled.truth.values()) <= _FEW  # so that more runs cost little
    sampled.measure(runs + runs // 2 if few else runs, seed)
    return {name: Noise(sampled.deviation(name), sampled.together(name)) for name in sampled.wanted}, sampled.reaches()


def sampled_again(program: Program, run: Run, result: str, format: Rounding) -> Tensor:
    """Returns the deviation of a result from 48 other runs. With so many, each element's is accurate to a tenth."""
    sampled = Samples(program, run, [result], format)
    sampled.measure(_MORE_RUNS, _OTHER_SEED)
    return sampled.deviation(result)


def underflowing(program: Program, run: Run, result: str, format: Rounding) -> Tensor:
    """Returns a mask of the elements that are NaN if computed numbers may be 0 where their format has no normal number.

    Only factors of an infinity count. The real number that such a factor means makes the product infinite.
    """

    def make(step: Step, given: list[Tensor]) -> tuple[Tensor, Tensor]:
        product = isinstance(step, Contract) or (isinstance(step, Map) and step.function == "multiply")
        if product:
            given = [_without_subnormal(each, x, format) for each, x in zip(step.inputs, given, strict=True)]
        value = step.value(run, given)
        if isinstance(step, Map) and not product:  # float64 has no value of some functions, such as trigamma(-3.3)
            value = value.masked_fill(torch.isnan(value) & ~reduce(torch.logical_or, map(torch.isnan, given)), 1.0)
        return value, value

    return torch.isnan(program.values(run, [result], make)[result])


def _without_subnormal(step: Step, x: Tensor, format: Rounding) -> Tensor:
    made = moved_from(step)[-1]
    least = torch.finfo(format.stored.get(id(made), format.kind)).smallest_normal
    return x if isinstance(made, Leaf | Plain) else x.masked_fill(x.abs() < least, 0.0)


class Samples:
    """Evaluates a program once undisturbed, and then with disturbances."""

    def __init__(self, program: Program, run: Run, wanted: Sequence[str], format: Rounding) -> None:
        self.program, self.run = program, run
        self.requested = list(wanted)  # with integer results, whose decisions matter too
        self.wanted = [name for name in wanted if program.results[name].real]
        self.steps = program.needed_for(wanted)
        self.format = format
        # ids of the steps whose numbers become results without further computation
        self.ends = set().union(*(ends_of(program.results[name]) for name in self.requested))
        self.weighted = forms.WeightedSums(self.steps, run, format)
        self.gates, self.log_sums = forms.Gates(self.steps, format), forms.LogSums(self.steps, format)
        takes = [step for step in self.steps if step.decides and not forms.only_tests(step)]
        deciding = [each for step in takes for each in step.inputs if each.real]
        # id(constant divisor of a remainder) -> the remainder: kernels round 0.1, and each of many quotients adds that
        self.divisors = {id(b): step for step in self.steps if (b := forms.constant_divisor(step)) is not None}
        self.deciding = {id(each) for step in deciding for each in (step, *forms.origins(step))} | self.divisors.keys()
        self.compared = {
            id(s) for s in self.steps if isinstance(s, Map) and s.function in COMPARISONS and s.inputs[0].real
        }
        self.bent = {id(step) for step in self.steps if forms.bends(step)}
        self.before_bends = {id(each) for step in self.steps if id(step) in self.bent for each in step.inputs}
        exponential = [step for step in self.steps if isinstance(step, Map) and step.function in EXPONENTIALS]
        self.exponents = {id(step.inputs[0]) for step in exponential}
        # ids of steps whose roundings are relative to their numbers: in another run another one may be the largest
        self.below = {id(step) for step in self.steps if forms.less_largest(step)}
        # ids of products that a scattered sum adds up, as in the gradient of a convolution: both are one sum
        self.spread = {id(moved_from(step.inputs[0])[-1]) for step in self.steps if isinstance(step, Spread)}
        # id(probabilities of a softmax whose gradient is computed) -> their value
        self.probabilities = {
            id(found[0]): torch.empty(0)
            for step in self.steps
            if isinstance(step, Map) and (found := forms.softmax_gradient(step))
        }
        exact = [each for step in self.steps if _is_exact(step) for each in (step, step.inputs[1])]
        self.remembered = {*self.deciding, *self.before_bends, *self.exponents, *map(id, exact)}
        self.held: dict[int, Tensor] = {}  # id(step) -> value in the base run, of those that are `remembered`
        self.roundings: dict[int, Tensor | float] = {}  # id(step) -> deviation; a float is relative to the numbers
        self.stored: dict[int, Tensor] = {}  # id(stored result) -> mask of the elements that its format rounds
        self.computed: dict[int, Tensor] = {}  # id(stored step) -> share of its deviation before it is stored
        self.fixed: dict[int, Tensor | None] = {}  # id(step that no disturbance reaches) -> value; None if it is large
        # id(deciding step), -id(comparison) -> root of the squared changes of all runs; 0 -> of the least sure exponent
        self.lengths: dict[int, Tensor] = {}
        self.runs = 0
        self.moved: dict[int, Tensor] = {}  # what one run adds to `lengths`
        self.chains: dict[int, Chain] = {}
        self.truth = self._results(self._evaluate_base)
        self.chains = {}  # no run needs them
        self.device = next(iter(self.truth.values())).device if self.truth else run.device
        if format.stored:
            self._omit_repeated()
        self.deviations = {name: torch.zeros_like(value) for name, value in self.truth.items()}
        # largest rms of the changes by the roundings of `round` and `round_alike`, as `together`
        self.stepwise = dict.fromkeys(self.truth, 1.0)
        self.alike = False  # True: equal numbers of a step are disturbed alike

    def _results(self, make: Make) -> dict[str, Tensor]:
        """Evaluates the program by `make` and returns its real results."""
        found = self.program.values(self.run, self.requested, make)
        return {name: found[name] for name in self.wanted}

    def _evaluate_base(self, step: Step, given: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Evaluates a step undisturbed, and notes its deviation and the numbers that decide."""
        deviation: Tensor | float | None
        if isinstance(step, Chunked):
            value, deviation = _of_parts(step.totals, given, self.format)
            self.held[id(step)] = value
        else:
            value = step.value(self.run, given)
            deviation = deviation_of(step, self.run, value, given, self.format, self.chains)
            if (remainder := self.divisors.get(id(step))) is not None:
                deviation = lost_in(self.format.stored.get(id(remainder), self.format.kind), value) / _STEPWISE
        if id(step) in self.spread and isinstance(step, Contract):
            terms = terms_of(step, given, self.format)
            self.chains[id(step)] = Chain(torch.zeros_like(value), terms.squares, terms.count.expand(value.shape))
        if isinstance(step, Map) and (found := forms.softmax_gradient(step)) is not None:
            y, dims = self.probabilities[id(found[0])], found[1].dims
            deviation = forms.of_softmax_gradient(value, given, deviation, y, dims, self.format)
        if id(step) in self.probabilities:
            self.probabilities[id(step)] = value
        others = (form.deviation(step, given, value) for form in (self.gates, self.log_sums))
        for again in (self.weighted.deviation(step, given, deviation), *others):
            if again is None:
                continue
            deviation = again if deviation is None else torch.hypot(torch.as_tensor(deviation), again)
        if deviation is not None:
            self.roundings[id(step)] = deviation
        if id(step) in self.remembered:
            self.held[id(step)] = value
        if id(step) in self.format.stored:
            self._store(step, value, deviation)
        if id(step) in self.below and isinstance(known := self.roundings.get(id(step)), Tensor):
            self.roundings[id(step)] = (known / value.abs()).nan_to_num(0.0, 0.0, 0.0).clamp(max=1.0)
        disturbed = id(step) in self.roundings or id(step) in self.stored
        if not disturbed and all(id(each) in self.fixed for each in step.inputs):
            self.fixed[id(step)] = value if value.numel() <= (_HELD if isinstance(step, Leaf) else _FEW) else None
        return value, value

    def _store(self, step: Step, value: Tensor, deviation: Tensor | float | None) -> None:
        """Adds the rounding that storing a step causes, for the elements that its format cannot represent."""
        format = self.format.stored[id(step)]
        rounded = value.to(format).to(value.dtype) != value
        if deviation is None and not bool(rounded.any()):
            return
        if id(step) in self.ends:
            self.stored[id(step)] = rounded
        else:  # later steps see only the stored number, so both roundings become one
            first = torch.as_tensor(0.0 if deviation is None else deviation)
            first = value.abs() * first if isinstance(deviation, float) else first
            stored = (size_of_rounding(format, value) / _ROOT3).masked_fill(~rounded, 0.0)
            self.roundings[id(step)] = both = torch.hypot(first, stored).nan_to_num(0.0, 0.0, 0.0)
            self.computed[id(step)] = (first / both).nan_to_num(0.0, 0.0, 0.0)

    def _omit_repeated(self) -> None:
        """Omits the roundings to 16 bits that change no number, whichever way those before them went.

        A number of 16 bits is selected, negated, doubled or added to 0 without another rounding.
        """
        rounds: dict[int, Tensor] = {}

        def make(step: Step, given: list[Tensor]) -> tuple[Tensor, Tensor]:
            value = _plainly(step, self.run, given) if id(step) in self.bent else self._again(step, given)
            if (format := self.format.stored.get(id(step))) is None:
                return value, value
            changes = value.to(format).to(value.dtype) != value
            rounds[id(step)] = changes | rounds.get(id(step), torch.zeros_like(changes))
            moved = torch.addcmul(value, size_of_rounding(format, value), self.coins.like(value))
            return value, torch.where(changes, moved.to(format).to(value.dtype), value)

        self.coins = Coins(_OTHER_SEED, self.device)
        for _ in range(_ROUNDED_RUNS):
            self._results(make)
        stored = {key: mask & rounds[key] for key, mask in self.stored.items()}
        self.stored = {key: mask for key, mask in stored.items() if bool(mask.any())}
        for key, share in self.computed.items():
            rounding = self.roundings.pop(key) * torch.where(rounds[key], 1.0, share)
            self.roundings |= {key: rounding} if bool(rounding.any()) else {}
        self.computed = {}

    def measure(self, runs: int, seed: int) -> None:
        """Finds `deviations` by disturbances, and by roundings."""
        self.sample(runs, seed, _STEP / self.format.unit)
        if self.is_chaotic() or self.is_bent(seed + 3):
            self.sample(runs // 2, seed + 1, 1.0)
        if self.each and self.runs >= RUNS and any(map(_repeats, self.run.leaves.values())):
            self.round_alike(seed + 4)  # measured before `round`, which has one rounding of each number
        self.round()
        self.blurred = {id(step): mask for step in self.steps if (mask := self._is_blurred(step)) is not None}
        if self.blurred:
            self.sample(runs // 2, seed + 2, 1.0, self._on_grid)

    def sample(self, runs: int, seed: int, shrink: float, make: Make | None = None) -> None:
        """Runs the program `runs` times with disturbances and raises `deviations` to the changes seen.

        Disturbances are the roundings times `shrink`.
        """
        first = self.runs == 0
        make, self.shrink = make or (self._disturbed if first else self._disturbed_alone), shrink
        total = {name: torch.zeros_like(value) for name, value in self.truth.items()}
        few = {name: [] for name, value in self.truth.items() if value.numel() <= _FEW}  # type: dict[str, list[Tensor]]

        self.coins, found = Coins(seed, self.device), dict[str, Tensor]()
        for _ in range(runs):
            if self.coins.used or not found:  # without disturbances all runs are one
                self.moved = {}
                found = self._results(make)
            for name, value in found.items():
                apart = _size(value - self.truth[name])
                total[name] = torch.hypot(total[name], apart)
                if name in few:
                    few[name].append(apart)
            for key, apart in self.moved.items():
                self.lengths[key] = torch.hypot(self.lengths[key], apart) if key in self.lengths else apart
        if first:
            self.each, self.runs, self.first_shrink = few, runs, shrink
        for name, value in total.items():
            self.deviations[name] = torch.maximum(self.deviations[name], value / (math.sqrt(runs) * shrink))

    def round_alike(self, seed: int) -> None:
        """Raises `deviations` where equal numbers of a step err alike, as in each kernel, and these errors add up.

        Measures how strongly elements move together then.
        """
        self.coins, self.shrink, self.alike = Coins(seed, self.device), self.first_shrink, True
        found = [self._results(self._disturbed_alone) for _ in range(RUNS)]
        self.alike = False
        for name, truth in self.truth.items():
            apart = torch.stack([_size(each[name] - truth) / self.shrink for each in found])
            noise, size = self.deviations[name], reduce(torch.hypot, apart) / math.sqrt(len(found))
            self.deviations[name] = noise = torch.where(size > 2 * noise, size, noise)
            moved = (apart / noise).nan_to_num(0.0, 0.0, 0.0).square().reshape(len(found), -1).sum(1).amax()
            self.stepwise[name] = max(self.stepwise[name], math.sqrt(float(moved) / max(int((noise > 0).sum()), 1)))

    def round(self) -> None:
        """Raises `deviations` to a part of what changes if each step is rounded to nearest in its format.

        So a kernel that takes the steps of the program is right also where its roundings are no small disturbance, as
        where a sigmoid rounds to 1. Eager PyTorch may round constants of a stored step to 16 bits too, and the steps
        inside of some operators (`Step.narrow`), or may not.
        """
        for narrow in range(3) if self.format.stored else (0,):
            self.narrow = narrow
            for name, value in self._results(self._rounded).items():
                apart = (value - self.truth[name]).abs().nan_to_num(0.0, 0.0, 0.0)
                self.deviations[name] = found = torch.maximum(self.deviations[name], apart / _STEPWISE)
                moved = (apart[found > 0] / found[found > 0]).square()
                self.stepwise[name] = max(self.stepwise[name], float(moved.mean().sqrt()) if moved.numel() else 1.0)

    def _rounded(self, step: Step, given: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Evaluates a step as it is written, and rounds it to its format. Decisions stay as they are."""
        bent, own = id(step) in self.bent, step.narrow if self.narrow else None
        stored = self.format.stored.get(id(step), own or self.format.kind)
        if self.narrow and isinstance(step, Map):
            constant = [isinstance(each, Plain) and each.real and not each.of for each in step.inputs]
            given = [x.to(stored).to(x.dtype) if fixed else x for x, fixed in zip(given, constant, strict=True)]
            if (
                self.narrow > 1
                and step.function == "divide"
                and constant[1]
                and bool((given[1] == given[1].round()).all())
            ):
                # kernels multiply by 1 / n, which PyTorch's gradients of losses hold in 16 bits
                given[1] = given[1].reciprocal().to(stored).to(given[1].dtype).reciprocal()
        value = given[1] if _is_exact(step) else _plainly(step, self.run, given) if bent else self._again(step, given)
        if not step.real or isinstance(step, Leaf):
            return value, value
        return value, value.to(self.format.kind).to(stored).to(value.dtype)

    def _disturbed(self, step: Step, given: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Evaluates a step with a disturbance, and notes how far deciding numbers moved."""
        shown, used = self._disturbed_alone(step, given)
        if id(step) in self.deciding:
            self.moved[id(step)] = _size(used - self.held[id(step)])
        if id(step) in self.compared:
            self.moved[-id(step)] = _size((given[0] - given[1]) - self._difference(step))
        if id(step) in self.exponents and used.numel():
            largest = _size(used - self.held[id(step)]).amax()
            self.moved[0] = torch.maximum(self.moved[0], largest) if 0 in self.moved else largest
        return shown, used

    def _disturbed_alone(self, step: Step, given: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Evaluates a step with a disturbance. Decisions stay as the base run has recorded them."""
        held = self.fixed.get(id(step))
        if held is not None:
            return held, held
        value = self._again(step, given)
        deviation = self.roundings.get(id(step))
        if isinstance(deviation, float):
            value = torch.addcmul(value, value, self._coins(step, value), value=deviation * self.shrink * _ROOT3)
        elif deviation is not None:
            if id(step) in self.below:
                deviation = deviation * value.nan_to_num(0.0, 0.0, 0.0)
            value = torch.addcmul(value, deviation, self._coins(step, value), value=self.shrink * _ROOT3)
        if id(step) not in self.stored:
            return value, value
        size = size_of_rounding(self.format.stored[id(step)], value)
        moved = torch.addcmul(value, size, self._coins(step, value), value=self.shrink)
        return value, torch.where(self.stored[id(step)], moved, value)

    def _coins(self, step: Step, value: Tensor) -> Tensor:
        """Returns random numbers within +-1, one for each number of a step or, `alike`, for all equal ones."""
        if not self.alike or not isinstance(step, Map) or value.numel() > _FEW:
            return self.coins.like(value)
        numbers, places = torch.unique(value, return_inverse=True)
        return self.coins.like(numbers)[places]

    def _is_blurred(self, step: Step) -> Tensor | None:
        """Returns a mask of the numbers whose errors pass several spacings of the format that a step rounds them to."""
        grid = GRIDS.get(step.function.removeprefix("to ")) if isinstance(step, Map) else None
        reach = None if grid is None else self._reach_of(id(step.inputs[0]))
        if grid is None or reach is None:
            return None
        mask = reach > SPACINGS * 2.0**-grid.precision * self.held[id(step.inputs[0])].abs().clamp(min=2.0**grid.least)
        return mask if bool(mask.any()) else None

    def _on_grid(self, step: Step, given: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Evaluates a step with a disturbance, and rounds it to its format.

        Scores of 4e6 are multiples of 0.25. So a row of a kernel's softmax has few different numbers, and to round it
        to 16 bits moves all equal ones in one direction.
        """
        if id(step) in self.bent and (mask := self.blurred.get(id(step))) is not None:
            before = self.held[id(step.inputs[0])]
            value = _plainly(step, self.run, [before]) + (given[0] - before)
            value = torch.where(mask, _plainly(step, self.run, given), value)
            return value, value
        shown, value = self._disturbed_alone(step, given)
        return shown, value.to(self.format.kind).to(value.dtype) if step.real else value

    def _again(self, step: Step, given: list[Tensor]) -> Tensor:
        """Evaluates a step again, but not a long sum if no disturbance reaches its inputs."""
        if isinstance(step, Chunked) and all(id(each) in self.fixed for each in step.inputs):
            return self.held[id(step)]
        if id(step) in self.bent:
            return self._beyond_bend(step, given)
        if _is_exact(step):  # kernels compute the other form
            return self.held[id(step)] + (given[1] - self.held[id(step.inputs[1])]).nan_to_num(0.0, 0.0, 0.0)
        return step.value(self.run, given)

    def _beyond_bend(self, step: Step, given: list[Tensor]) -> Tensor:
        """Evaluates a step with a kink, such as relu, for the largest error of its numbers, `NEAR` disturbances.

        A rounding to a format has kinks too: an error of several spacings passes it.
        Scales the change down again, so that it is the disturbance itself if no kink is near. Of the changes to both
        sides, the larger one counts: relu(-1e-9) is 0, and may be positive in a kernel.
        """
        before = [self.held[id(each)] for each in step.inputs]
        by = NEAR / self.shrink
        apart = [(now - x) * by for now, x in zip(given, before, strict=True)]
        value = _plainly(step, self.run, before)
        up, down = (
            _plainly(step, self.run, [x + side * move for x, move in zip(before, apart, strict=True)]) - value
            for side in (1, -1)
        )
        return value + torch.where(up.abs() >= down.abs(), up, -down).nan_to_num(0.0, 0.0, 0.0) / by

    def _difference(self, step: Step) -> Tensor:
        """Returns the difference of the two inputs of a comparison in the base run."""
        return self.held[id(step.inputs[0])] - self.held[id(step.inputs[1])]

    def is_chaotic(self) -> bool:
        """True if the response may not be linear: a tenth of some result's elements, or an exponent, has much noise."""
        if 0 in self.lengths and float(self.lengths[0]) / math.sqrt(self.runs) > _STEEP * self.first_shrink:
            return True
        for name, value in self.truth.items():
            large = self.deviations[name] > _CHAOTIC * value.abs()
            if value.numel() and float((large & (value != 0)).double().mean()) > 0.1:
                return True
        return False

    def is_bent(self, seed: int) -> bool:
        """True if a disturbance of full size moves an element beyond every limit of its noise so far.

        The square of a number that is 0 but for its rounding does not move with small disturbances, for instance. In
        few runs, some of many elements hardly move by chance.
        """
        if self.runs < RUNS:
            return False
        self.coins, self.shrink = Coins(seed, self.device), 1.0
        for name, value in self._results(self._disturbed_alone).items():
            apart = (value - self.truth[name]).abs().nan_to_num(0.0, 0.0, 0.0)
            if bool((apart > 2 * NEAR * self.deviations[name]).any()):
                return True
        return False

    def together(self, name: str) -> float:
        """Returns how strongly the elements of a small result move together, for instance if all depend on one sum.

        This is the largest rms over the elements, among all runs, of the change in units of the noise. At least 1.
        Of a large result, the runs that round each step count alone.
        """
        runs, stepwise = self.each.get(name), self.stepwise[name]
        if not runs:
            return stepwise
        mean = reduce(torch.hypot, runs) / math.sqrt(len(runs))
        moved = (torch.stack(runs) / mean).nan_to_num(0.0, 0.0, 0.0).square().reshape(len(runs), -1)
        noisy = int((mean > 0).sum())
        return max(stepwise, math.sqrt(float(moved.sum(1).max()) / noisy)) if noisy else stepwise

    def deviation(self, name: str) -> Tensor:
        """Returns the noise of each element of a result.

        A gradient that is always 0, such as that of a gate before the first step, has the rms noise of all elements.
        Kernels compute it as a difference of sums.
        """
        found = self.deviations[name]
        if name in self._outputs():
            return found
        nothing = (found == 0) & (self.truth[name] == 0)
        if not bool(nothing.any()):
            return found
        most = found.amax().clamp(min=2.0**-1022)
        return torch.where(nothing, most * (found / most).square().mean().sqrt(), found)

    def _outputs(self) -> list[str]:
        """Returns the names of the results that are no gradients."""
        return [
            name for name in self.program.results if not name.startswith("d") or "grad " + name in self.program.leaves
        ]

    def _reach_of(self, key: int) -> Tensor | None:
        """Returns `NEAR` times the noise of a deciding number; None if the number never moved."""
        if key not in self.lengths or not bool(self.lengths[key].any()):
            return None
        return self.lengths[key] * (NEAR / self.first_shrink / math.sqrt(self.runs))

    def reaches(self) -> Reaches:
        """Maps id(step) to the largest error of each number that decides.

        A number that overflows in a kernel may be the format's largest. An infinity has no error, as in each kernel.
        Maps -id(step) of a comparison to the largest error of the difference of its two numbers, and ("own", id(step))
        to what is not the error of numbers before it that decide too; nothing if that is not known.
        """
        differences = {-key: self._reach_of(-key) for key in self.compared}
        found: Reaches = {key: reach for key, reach in differences.items() if reach is not None}
        for key in self.deciding:
            reach, beyond = self._reach_of(key), (self.held[key].abs() - self.format.largest).clamp(min=0.0)
            if reach is not None:
                found[key] = torch.where(torch.isinf(beyond), 0.0, reach + beyond)
        inexact = set[int]()  # ids of the steps that have roundings since the numbers that decide
        for step in self.steps:
            follows = any(id(each) in inexact for each in step.inputs)
            if id(step) not in self.deciding:
                rounds = id(step) in self.roundings or id(step) in self.stored
                inexact |= {id(step)} if step.real and (follows or rounds) else set()
            elif not follows and id(step) not in self.stored:
                size, deviation = self.held[id(step)].abs(), self.roundings.get(id(step), 0.0)
                found["own", id(step)] = NEAR * (size * deviation if isinstance(deviation, float) else deviation)
        return found


class _PartSamples(Samples):
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
        """Returns the variance of the sum by the roundings of its terms, and by free decisions about them."""
        value = self.truth[PART]
        if not (self.roundings or self.stored):
            return torch.zeros_like(value)
        self.sample(RUNS, 0, _STEP / self.format.unit)
        return self.deviations[PART].square() + self._of_free_decisions()

    def _of_free_decisions(self) -> Tensor:
        """Returns the variance of the sum if each run takes its decisions anew, at numbers with `NEAR` roundings.

        No search finds the decisions inside of the parts of a long sum, so they count as noise.
        """
        total = torch.zeros_like(self.truth[PART])
        if not self.deciding:
            return total
        own, self.shrink = self.run, NEAR / _ROOT3
        for seed in range(_LOOSE):
            self.coins, self.run = Coins(seed, own.device), replace(own, decisions={})
            found = self._results(self._disturbed_alone)[PART]
            self.run = replace(own, decisions=own.decisions)
            total += _size(found - self.truth[PART]).square()
        self.run = own
        return total / (_LOOSE * NEAR)


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


def _repeats(x: Tensor) -> bool:
    """True for few numbers of which at least half are repeated."""
    return x.is_floating_point() and 2 <= x.numel() <= _FEW and 2 * len(torch.unique(x)) <= x.numel()


def _is_exact(step: Step) -> bool:
    return isinstance(step, Map) and step.function == "exact"


def _plainly(step: Step, run: Run, given: list[Tensor]) -> Tensor:
    """Returns the value of a step. A rounding to a format rounds anew."""
    return step.evaluated(given) if isinstance(step, Map) and step.stepped else step.value(run, given)


def _size(difference: Tensor) -> Tensor:
    """Returns the size of a change, 0 if it is not finite. Its square may be no float64 number: `torch.hypot` adds."""
    return difference.abs().nan_to_num(0.0, 0.0, 0.0)
