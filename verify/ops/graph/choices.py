"""Knows which decisions of a program at ties are free, and proposes choices of them.

A program decides: which number is larger, which place it has in an order, to which integer it rounds. A decision is
free if a right kernel may take it in another way: two numbers are equal, or a computed number lies so close to the
point of decision that the roundings of its steps decide. A consistent choice of all free decisions is what the program
decides at disturbed numbers, x + tiny p: numbers that differ keep their order, equal ones get the order of p, the same
wherever they are compared, sorted or used as positions. So no operator needs a rule.

    choices = Choices.of(program, run, wanted, reach, noise)  # None: no decision is free
    decisions = explaining(choices, {"y": y, "dx": dx})       # those that explain a kernel's results best

The result is judged by the program's value under these decisions. Directions p are proposed: none (PyTorch's own
convention), all numbers up or down, the first or the last of equal elements wins, PyTorch's roundings, and those read
off the results: what the kernel kept, selected or gave a gradient to wins, or loses. `verify.ops.graph.explaining` then
moves and exchanges single numbers. A proposal is accepted only where the decision is free at the numbers that earlier
decisions lead to, so a poor search may reject a right kernel, but never accepts a wrong one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from verify.ops.graph.elementwise import COMPARISONS, QUOTIENTS, REMAINS, Map
from verify.ops.graph.noise import origins
from verify.ops.graph.program import Program, undisturbed
from verify.ops.graph.selecting import First, Order
from verify.ops.graph.steps import Leaf, Move, Run, Step, moved_from

Decisions = dict[int, Tensor]  # id(step that decides) -> what it decides
_TIE = 2.0**-30  # what breaks a tie, relative to the number: far below the spacing of a float32


@dataclass
class Taken:
    """The decisions of a proposal, as far as they are free, and the results under them."""

    decisions: Decisions
    values: dict[str, Tensor]
    plain: Decisions  # the same, with PyTorch's own decisions on exactly equal numbers that no kernel rounds


@dataclass(repr=False)
class Choices:
    """The free decisions of one evaluation of a program."""

    program: Program
    run: Run  # with PyTorch's own decisions
    wanted: Sequence[str]
    # id(step) -> how far a kernel's numbers may be from the real ones; -id(comparison): the difference of its numbers
    reach: Mapping[int, Tensor]
    noise: Mapping[str, Tensor]
    numbers: dict[int, Tensor] = field(default_factory=dict)  # id(step) -> the numbers that decide, undisturbed
    base: dict[str, Tensor] = field(default_factory=dict)  # the results under PyTorch's own decisions

    @classmethod
    def of(
        cls,
        program: Program,
        run: Run,
        wanted: Sequence[str],
        reach: Mapping[int, Tensor],
        noise: Mapping[str, Tensor],
    ) -> Choices | None:
        """Returns the choices of a program, or None if no decision is free."""
        found = cls(program, replace(run, maps={}), list(wanted), reach, noise)
        if not found.deciding:
            return None
        kept = {id(each) for step in found.deciding for each in step.inputs} | set(map(id, found.sources))

        def make(step: Step, given: list[Tensor]) -> tuple[Tensor, Tensor]:
            value = step.value(run, given)
            if id(step) in kept:
                found.numbers[id(step)] = value
            return value, value

        found.base = program.values(run, wanted, make)
        numbers = {id(step): [found.numbers[id(each)] for each in step.inputs] for step in found.deciding}
        free = any(bool(found._free(step, numbers[id(step)]).any()) for step in found.deciding)
        return found if free else None

    @cached_property
    def deciding(self) -> list[Step]:
        """The steps that decide by numbers. Integers that follow from other decisions decide nothing themselves."""
        steps = [step for step in self.program.needed_for(self.wanted) if step.decides and not _follows(step)]
        return [step for step in steps if not all(map(is_whole, step.inputs))]

    @property
    def outputs(self) -> list[str]:
        """The results that are no gradient of an operand."""
        leaves = self.program.leaves

        def is_gradient(name: str) -> bool:
            return name.startswith("d") and name[1:] in leaves and f"grad {name}" not in leaves

        return [name for name in self.program.results if not is_gradient(name)]

    def _deciding(self, decisions: Decisions) -> Run:
        """Returns a run that has taken these decisions, and none that follows from them."""
        return replace(self.run, decisions={id(step): decisions[id(step)] for step in self.deciding}, maps={})

    def values(self, decisions: Decisions, wanted: Sequence[str] | None = None) -> dict[str, Tensor]:
        """Returns the results under some decisions. What follows from them is decided anew."""
        run = self._deciding(decisions)
        wanted = self.wanted if wanted is None else wanted
        return self.program.values(run, wanted, undisturbed(run))

    def complete(self, decisions: Decisions) -> Decisions:
        """Returns the decisions with those that follow from them."""
        run = self._deciding(decisions)
        self.program.decide(run, self.wanted)
        return run.decisions

    # -- which decisions are free ---------------------------------------------------------------------------

    def _near(self, step: Step) -> Tensor | float:
        found = self.reach.get(id(step))
        return 0.0 if found is None else found

    def _is_tie(self, step: Step, given: Sequence[Tensor]) -> Tensor:
        """Returns a mask of the decisions on exactly equal numbers that no kernel rounds.

        An output has the value that PyTorch's convention gives it there. Only a derivative has two sides.
        """
        if isinstance(step, Map) and step.function in COMPARISONS:
            near = [torch.as_tensor(self._near(each)) for each in step.inputs]
            return (given[0] - given[1] == 0) & (near[0] == 0) & (near[1] == 0)
        if isinstance(step, Map) and step.function in ("sign", "signbit"):
            return (given[0] == 0) & (torch.as_tensor(self._near(step.inputs[0])) == 0)
        return torch.zeros((), dtype=torch.bool, device=self.run.device)

    def _free(self, step: Step, given: Sequence[Tensor]) -> Tensor:
        """Returns a mask of the free decisions of a step on some numbers; for an order, of the rows with one."""
        x, near = given[0], self._near(step.inputs[0])
        if isinstance(step, Order):
            ordered, places = _ranked(step, x).sort(-1, descending=True)
            reach = torch.as_tensor(near, dtype=x.dtype, device=x.device).expand(x.shape).gather(-1, places)
            close = ordered[..., :-1] - reach[..., :-1] <= ordered[..., 1:] + reach[..., 1:]
            if step.stable:  # equal numbers that no kernel rounds keep their order
                close = close & ((reach[..., :-1] > 0) | (reach[..., 1:] > 0))
            return close.any(-1)
        assert isinstance(step, Map)
        if step.function in COMPARISONS:
            return (given[0] - given[1]).abs() <= self.reach.get(-id(step), torch.zeros(()))
        if step.function == "integer":
            return ~step.holds(x)
        low, high = self._jumps(step, given, -near), self._jumps(step, given, near)
        return (low != high) & ~torch.isnan(x) | self._is_tie(step, given)

    def _jumps(self, step: Map, given: Sequence[Tensor], moved: Tensor | float) -> Tensor:
        """Returns the decision of a step of one number, or of a quotient, where that number has moved."""
        x = given[0] + moved
        if step.function in (*QUOTIENTS, *REMAINS):
            by = given[1]
            turned = (x / by) * torch.as_tensor(self._near(step.inputs[1])) / by.abs()
            down = {**QUOTIENTS, **REMAINS}[step.function]
            x = x + torch.where(x > given[0], 1.0, -1.0) * turned.abs().nan_to_num(0.0) * by
            return torch.div(x, by, rounding_mode=down)
        return step.evaluated([x])

    def taken(self, proposed: Decisions) -> Taken:
        """Takes the proposed decisions one after the other, each where it is free at the numbers that it decides."""
        run, reverted = replace(self.run, decisions={}, maps={}), dict[int, Tensor]()
        deciding = set(map(id, self.deciding))

        def make(step: Step, given: list[Tensor]) -> tuple[Tensor, Tensor]:
            value = step.value(run, given)
            if id(step) in deciding:
                own = run.decisions[id(step)]
                found = run.decisions[id(step)] = self.admitted(step, given, own, proposed[id(step)])
                reverted[id(step)] = torch.where(self._is_tie(step, given), own, found)
                value = step.value(run, given)
            return value, value

        values = self.program.values(run, self.wanted, make)
        return Taken({key: run.decisions[key] for key in deciding}, values, reverted)

    def admitted(self, step: Step, given: Sequence[Tensor], own: Tensor, proposed: Tensor) -> Tensor:
        """Returns the proposed decisions where they are free and right, and PyTorch's (own) elsewhere."""
        x, near = given[0], self._near(step.inputs[0])
        if isinstance(step, Order):
            reach = torch.as_tensor(near, dtype=x.dtype, device=x.device).expand(x.shape)
            line = _ranked(step, x)
            places = proposed[..., None] if isinstance(step, First) else proposed
            taken, room = line.gather(-1, places), reach.gather(-1, places)
            rest = (line - reach).scatter(-1, places, -math.inf).amax(-1, True)
            later = torch.cat([taken - room, rest], -1).flip(-1).cummax(-1).values.flip(-1)[..., 1:]
            right = (taken + room >= later).all(-1) & (places.sort(-1).values.diff(dim=-1) != 0).all(-1)
            if step.stable:
                right = right & (reach > 0).any(-1)
            return torch.where(right if isinstance(step, First) else right[..., None], proposed, own)
        assert isinstance(step, Map)
        right = self._free(step, given)
        if step.function not in (*COMPARISONS, "integer"):
            low, high = self._jumps(step, given, -near), self._jumps(step, given, near)
            if step.function == "sign":
                tie = self._is_tie(step, given)
                low, high = torch.where(tie, -1.0, low), torch.where(tie, 1.0, high)
            if not step.real:
                low, high = torch.zeros_like(low), torch.ones_like(high)
            number = proposed.to(low.dtype)
            right = right & (number >= torch.minimum(low, high)) & (number <= torch.maximum(low, high))
        return torch.where(right, proposed, own)

    # -- proposals -------------------------------------------------------------------------------------------

    def proposed(
        self,
        moved: Mapping[int, Tensor],
        *,
        rounded: torch.dtype | None = None,
        saturates: bool = False,
        last: bool = False,
        decided: Mapping[int, Tensor] | None = None,
    ) -> Decisions:
        """Returns the decisions that the program takes if it moves some of its numbers. `taken` admits them.

        `moved` maps id(step) to what is added to its numbers. With `rounded`, every step is stored in that format. With
        `saturates`, numbers beyond the range of an integer dtype become its end. With `last`, the last of several
        copies of a number comes first. `decided` are decisions taken before.
        """
        run = replace(self.run, decisions=dict(decided or {}), maps={})

        def make(step: Step, given: list[Tensor]) -> tuple[Tensor, Tensor]:
            if rounded is not None and isinstance(step, Order):  # equal numbers may come in another order there
                run.decisions[id(step)] = step.evaluated(given[0].to(rounded))
            if last and isinstance(step, Order) and id(step) not in run.decisions:
                run.decisions[id(step)] = given[0].shape[-1] - 1 - step.evaluated(given[0].flip(-1))
            if saturates and isinstance(step, Map) and step.function == "integer":
                run.decisions[id(step)] = given[0].nan_to_num(0.0).clamp(*step.within).to(torch.int64)
            value = step.value(run, given)
            if id(step) in moved:
                value = value + moved[id(step)]
            if rounded is not None and step.real and not isinstance(step, Leaf):
                value = value.to(rounded).to(torch.float64)
            return value, value

        self.program.values(run, self.wanted, make)
        return {id(step): run.decisions[id(step)] for step in self.deciding}

    @cached_property
    def sources(self) -> list[Step]:
        """The operands, and the steps that make the numbers which decide, before they are moved to where they do."""
        steps = self.program.needed_for(self.wanted)
        every: list[Step] = [step for step in steps if isinstance(step, Leaf) and step.real and step.operand]
        every += [each for step in self.deciding for number in step.inputs for each in origins(number)]
        return list({id(each): each for each in every}.values())

    def size(self, step: Step) -> Tensor:
        """Returns how far the numbers of a source are moved: as far as a kernel's may be, at least to break ties."""
        x = self.numbers[id(step)]
        size = x.abs().nan_to_num(0.0, 0.0, 0.0)
        least = _TIE * (size + size.amax() * 2.0**-10 if size.numel() else size) + 1e-300
        return torch.maximum(least, torch.as_tensor(self._near(step), dtype=x.dtype, device=x.device))

    def _sided(self) -> Iterator[Decisions]:
        """Yields the decisions that take all exact ties for less, or all for more.

        A number compared with itself, as in x >= x.amax(), does not move against itself, so it is no tie.
        """
        generator = torch.Generator(self.run.device).manual_seed(2)
        apart: dict[int, Tensor] = {}
        compared = [step for step in self.deciding if isinstance(step, Map) and step.function in COMPARISONS]
        run = replace(self.run, decisions={}, maps={})
        sizes = {id(step): self.size(step) for step in self.sources}

        def make(step: Step, given: list[Tensor]) -> tuple[Tensor, Tensor]:
            value = step.value(run, given)
            if id(step) in sizes:
                drawn = torch.rand(value.shape, dtype=torch.float64, device=value.device, generator=generator)
                value = value + (drawn - 0.5) * sizes[id(step)]
            if any(step is each for each in compared):
                apart[id(step)] = given[0] - given[1]
            return value, value

        self.program.values(run, self.wanted, make)
        for sign in (-1.0, 1.0):
            found = dict(self.run.decisions)
            for step in compared:
                tie = (self.numbers[id(step.inputs[0])] == self.numbers[id(step.inputs[1])]) & (apart[id(step)] != 0)
                side = torch.tensor(sign, dtype=torch.float64, device=tie.device)
                found[id(step)] = torch.where(tie, step.evaluated([side, torch.zeros_like(side)]), found[id(step)])
            yield found

    def directions(self, got: Mapping[str, Tensor]) -> Iterator[Decisions]:
        """Yields the proposals, the likeliest first."""
        sources = self.sources
        sizes = {id(step): self.size(step) for step in sources}
        ramps = {id(step): ramp(self.numbers[id(step)]) for step in sources}
        for name, value in got.items():
            if not self.program.results[name].real:
                yield from self._read_off(name, value, sizes)
        for sign in (1.0, -1.0):
            yield self.proposed({key: size * ramps[key] * sign for key, size in sizes.items()}, last=sign < 0)
        for sign in (1.0, -1.0):
            yield self.proposed({key: size * sign for key, size in sizes.items()})
        yield from self._sided()
        kinds = [value.dtype for value in self.run.leaves.values() if value.is_floating_point()]
        for kind in dict.fromkeys([torch.float32, *(kind for kind in kinds if kind.itemsize < 4)]):
            yield self.proposed({}, rounded=kind)
        if any(isinstance(step, Map) and step.function == "integer" for step in self.deciding):
            yield self.proposed({}, saturates=True)
        for name, value in got.items():
            alike = [step for step in sources if step.shape == value.shape]
            if not self.program.results[name].real or not alike:
                continue
            kept = torch.where(value != 0, 1.0, -1.0).to(torch.float64)
            for sign in (1.0, -1.0):
                marks = {id(step): sign * kept for step in alike}
                rest = {key: ramps[key] * 2.0**-6 for key in sizes}
                yield self.proposed({key: sizes[key] * (marks.get(key, 0.0) + rest[key]) for key in sizes})

    def _read_off(self, name: str, got: Tensor, sizes: Mapping[int, Tensor]) -> Iterator[Decisions]:
        """Yields the decisions that an integer result shows, if it is one: an order, or a conversion."""
        result = self.program.results[name]
        step = moved_from(result)[-1]
        if not step.decides or id(step) not in self.run.decisions:
            return
        own = self.run.decisions[id(step)]
        shown = own.expand(step.shape).reshape(-1).clone()
        shown[_moved(result, step).reshape(-1).to(got.device)] = got.reshape(-1).to(shown.dtype)
        places = shown.reshape(step.shape)
        if isinstance(step, Order):
            places = places.clamp(0, max(step.inputs[0].shape[-1] - 1, 0))
        yield self.proposed({}, decided={id(step): places})
        if not isinstance(step, Order):
            return
        row = step.inputs[0]
        places = places[..., None] if isinstance(step, First) else places
        count = places.shape[-1]
        rank = torch.arange(count, 0, -1, dtype=torch.float64, device=got.device) / max(count, 1)
        wins = torch.full(row.shape, -1.0, dtype=torch.float64, device=got.device)
        wins = wins.scatter(-1, places, rank.expand(places.shape))
        source = moved_from(row)[-1]
        score = torch.zeros(math.prod(source.shape), dtype=torch.float64, device=got.device)
        score[_moved(row, source).reshape(-1).to(got.device)] = (wins if step.largest else -wins).reshape(-1)
        if id(source) in sizes:
            yield self.proposed({id(source): sizes[id(source)] * score.reshape(source.shape)})


def _ranked(step: Order, x: Tensor) -> Tensor:
    """Returns numbers of which the larger ones come first. NaN is the largest number, and each extreme of its row."""
    nan, largest = torch.isnan(x), torch.finfo(x.dtype).max
    if isinstance(step, First):
        x = torch.where(nan.any(-1, True), nan.to(x.dtype) * (1 if step.largest else -1), x)
    x = x.clamp(-largest, largest).masked_fill(nan, math.inf)
    return x if step.largest else -x


def _follows(step: Step) -> bool:
    """True if a step only tests numbers, so that no kernel decides otherwise."""
    return isinstance(step, Map) and step.function in ("isnan", "isinf")


def is_whole(step: Step) -> bool:
    """True if numbers are integers already. They have no error that a second rounding could enlarge."""
    if isinstance(step, Move):
        return all(map(is_whole, step.inputs)) and float(step.fill).is_integer()
    if not step.on_operands:
        return True
    if isinstance(step, Map) and step.function in ("maximum", "minimum", "add", "subtract", "multiply", "negative"):
        return all(map(is_whole, step.inputs))
    return isinstance(step, Map) and step.function in ("number", "wrap")


def _moved(step: Step, source: Step) -> Tensor:
    """Returns, for each element of a step that only moves elements, its place in `source`."""
    if step is source:
        return torch.arange(math.prod(source.shape)).reshape(source.shape)
    assert isinstance(step, Move)
    return step.move([_moved(step.inputs[0], source)], [], 0)


def ramp(values: Tensor) -> Tensor:
    """Returns numbers from 1 down to -1 that fall along each dimension."""
    found = torch.zeros_like(values)
    for dim, size in enumerate(values.shape):
        line = 1.0 - 2.0 * torch.arange(size, dtype=values.dtype, device=values.device) / max(size - 1, 1)
        found = found + line.reshape([-1 if at == dim else 1 for at in range(values.ndim)]) / max(values.ndim, 1)
    return found
