"""Knows which decisions of a program at ties are free, and proposes choices of them.

A program decides: which number is larger, which place it has in an order, to which integer it rounds. A decision is
free if a right kernel may take it in another way: two numbers are equal, or a computed number lies so close to the
point of decision that the roundings of its steps decide. A consistent choice of all free decisions is what the program
decides at disturbed numbers, x + tiny p: numbers that differ keep their order, equal ones get the order of p, the same
wherever they are compared, sorted or used as positions. So no operator needs a rule.

    choices = Choices.of(program, run, wanted, reach, noise)  # None: no decision is free
    decisions = explaining(choices, {"y": y, "dx": dx})       # those that explain a kernel's results best

The result is judged by the program's value under these decisions. Directions p are proposed: none (PyTorch's own
convention), all numbers up or down, the first or the last of equal elements wins, PyTorch's roundings, those read off
the results (what the kernel kept, selected or gave a gradient to wins, or loses), and some at random. Then
`verify.ops.graph.explaining` moves and exchanges single numbers. A proposal is accepted only where the decision is free
at the numbers that earlier decisions lead to, so a poor search may reject a right kernel, never accept a wrong one.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import product

import torch
from torch import Tensor

from verify.ops.graph.elementwise import COMPARISONS, QUOTIENTS, REMAINS, Map
from verify.ops.graph.forms import is_whole, only_tests, origins
from verify.ops.graph.noise import SPACINGS
from verify.ops.graph.parts import Parts
from verify.ops.graph.program import Make, Program
from verify.ops.graph.rounded import GRIDS
from verify.ops.graph.rounding import is_held
from verify.ops.graph.selecting import First, Order, in_lines, in_order_of, is_sorted, ramp, ranked, scores_of
from verify.ops.graph.steps import Leaf, Plain, Run, Step, moved_from, places_of
from verify.ops.graph.stored import in_order

Decisions = dict[int, Tensor]  # id(step that decides) -> what it decides
_TIE = 2.0**-30  # what breaks a tie, relative to the number: far below the spacing of a float32
_LITTLE = 2.0**-20  # relative change of a number that what breaks ties may come to
_ALONE = 8  # sources of which each is moved alone, and decisions of which each stays alone
_AT_RANDOM = 32  # directions; of half of them equal operands stay equal
_SHARES = (0.5, 0.25, 0.125, 0.0625)  # of the largest errors of numbers that are rounded to integers


@dataclass
class Proposal:
    """The decisions that a program takes at moved numbers. So they do not contradict each other."""

    decisions: Decisions
    numbers: dict[int, Tensor]  # id(source) -> its moved numbers, -id(order) -> scores that give the order
    moved: Mapping[int, Tensor] = field(default_factory=dict, kw_only=True)  # what it adds to numbers
    side: float = field(default=0.0, kw_only=True)  # see `Choices.proposed`


@dataclass
class Taken(Proposal):
    """The decisions of a proposal, as far as they are free, and the results under them."""

    values: dict[str, Tensor]
    # with PyTorch's own decisions on exactly equal numbers that no kernel rounds; None: these are the same
    plain: Taken | None
    real: dict[int, Tensor]  # id(source) -> its numbers under these decisions, which nothing moves
    changed: Decisions  # id(step) -> mask of the decisions that were proposed and are not free


@dataclass(repr=False)
class Choices:
    """The free decisions of one evaluation of a program."""

    program: Program
    run: Run  # with PyTorch's own decisions
    wanted: Sequence[str]
    # id(step) -> how far a kernel's numbers may be from the real ones; see `verify.ops.graph.noise`
    reach: Mapping[Hashable, Tensor]
    noise: Mapping[str, Tensor]
    pinned: bool = False  # True: exactly equal numbers are decided as in PyTorch
    numbers: dict[int, Tensor] = field(default_factory=dict)  # id(step) -> the numbers that decide, undisturbed
    base: dict[str, Tensor] = field(default_factory=dict)  # the results under PyTorch's own decisions
    # caches, which `replace` leaves empty
    _nears: dict[int, Tensor] = field(default_factory=dict, init=False)
    _exact: dict[int, Tensor | None] = field(default_factory=dict, init=False)

    @classmethod
    def of(
        cls,
        program: Program,
        run: Run,
        wanted: Sequence[str],
        reach: Mapping[Hashable, Tensor],
        noise: Mapping[str, Tensor],
        *,
        pinned: bool = False,
    ) -> Choices | None:
        """Returns the choices of a program, or None if no decision is free."""
        found = cls(program, replace(run, maps={}), list(wanted), reach, noise, pinned)
        if not found.deciding:
            return None
        kept = {id(each) for step in found.deciding for each in step.inputs} | set(map(id, found.sources))
        found.base = program.values(run, wanted, _noting(run, kept, found.numbers))
        numbers = {id(step): [found.numbers[id(each)] for each in step.inputs] for step in found.deciding}
        free = any(bool(found._free(step, numbers[id(step)]).any()) for step in found.deciding)
        return found if free else None

    @cached_property
    def deciding(self) -> list[Step]:
        """The steps that decide by numbers. Integers that follow from other decisions leave open their order alone."""
        steps = [step for step in self.program.needed_for(self.wanted) if step.decides and not only_tests(step)]
        return [step for step in steps if isinstance(step, Order) or not all(map(is_whole, step.inputs))]

    @cached_property
    def _before(self) -> Program:
        """The program up to its decisions. No decision depends on what is omitted, most of a backward pass."""
        ends = {str(number): step for number, step in enumerate((*self.deciding, *self.sources))}
        return replace(self.program, results=ends, needed={}, orders={})

    @property
    def outputs(self) -> list[str]:
        """The results that are no gradient of an operand."""
        return list(filter(self.is_output, self.wanted))

    def is_output(self, name: str) -> bool:
        leaves = self.program.leaves
        return not (name.startswith("d") and name[1:] in leaves and f"grad {name}" not in leaves)

    @cached_property
    def forward(self) -> set[int]:
        """The ids of the steps that outputs depend on."""
        return set(map(id, self.program.needed_for(list(filter(self.is_output, self.program.results)))))

    @cached_property
    def _flat(self) -> set[int]:
        """The ids of the steps that x + tiny p does not move: constants, decisions, and what is made of these alone."""
        found: set[int] = set()
        for step in self.program.needed_for(self.wanted):
            constant = isinstance(step, Plain) or (isinstance(step, Leaf) and not step.real)
            slopes = isinstance(step, Map) and (step.function in REMAINS or step.function.removeprefix("to ") in GRIDS)
            decided = step.decides and not slopes  # a cast passes gradients on
            if constant or decided or (step.inputs and all(id(each) in found for each in step.inputs)):
                found.add(id(step))
        return found

    def _is_settled(self, step: Step) -> bool:
        """True for a comparison of numbers that x + tiny p does not move, such as ceil(x) > 1."""
        compares = isinstance(step, Map) and step.function in COMPARISONS
        return compares and all(id(each) in self._flat for each in step.inputs)

    @cached_property
    def _equal(self) -> dict[int, Tensor]:
        """Maps ids of decisions to masks of those on equal numbers that no kernel rounds."""
        ties = {id(s): self.is_tie(s, [self.numbers[id(each)] for each in s.inputs]) for s in self.deciding}
        return {key: tie.expand(self.run.decisions[key].shape) for key, tie in ties.items() if bool(tie.any())}

    @cached_property
    def _ties(self) -> dict[int, Tensor]:
        """Those of them that outputs depend on."""
        forward = set(map(id, self.program.needed_for(self.outputs)))
        return {key: tie for key, tie in self._equal.items() if key in forward}

    @cached_property
    def _sided(self) -> dict[tuple[int, float], Tensor]:
        """Maps ids of comparisons and a side to masks: there the first of two equal numbers may lie on that side.

        Some direction moves it there. So relu(-1) stays 0. All that equal one computed number need the same direction:
        no element of a is less than a.max() in all of a >= a.max().
        """
        steps = [s for s in self.deciding if isinstance(s, Map) and s.function in ("lt", "le", "gt", "ge")]
        steps = [s for s in steps if id(s) in self._equal]
        ways = [*self._at_random(_ALONE)] if steps else []
        found = {}
        for step, side in product(steps, (1.0, -1.0)):
            tie = self._equal[id(step)]
            seen = torch.stack([each.decisions[id(step)] for each in ways])
            apart = tie & (seen != _at_side(step, torch.full_like(tie, side, dtype=torch.float64)))
            free = seen.any(0) & ~seen.all(0)
            for number in step.inputs:
                if (source := moved_from(number)[-1]).on_operands:
                    places = places_of(number, source, self.run).expand(tie.shape).reshape(-1)
                    counts = torch.zeros(len(ways), math.prod(source.shape), device=tie.device)
                    counts.index_add_(1, places, apart.reshape(len(ways), -1).to(counts.dtype))
                    free = free & (counts[:, places] == 0).any(0).reshape(tie.shape)
            found[id(step), side] = tie & free
        return found

    def _at_random(self, count: int) -> Iterator[Proposal]:
        """Yields random directions. In every second one equal operands stay equal."""
        generator = torch.Generator().manual_seed(0)
        sizes = {id(step): (step, self.size(step)) for step in (*self.sources, *self.orders)}
        for number in range(count):
            moved = dict[int, Tensor]()
            for key, (step, size) in sizes.items():
                coins = torch.rand(size.shape, generator=generator, dtype=size.dtype).to(self.run.device)
                stays = number % 2 == 0 and not isinstance(step, Order) and _breaks_ties(step)
                moved[key] = (2 * coins - 1) * size * (not stays)
            yield self.proposed(moved)

    def _deciding(self, decisions: Decisions) -> Run:
        """Returns a run that has taken these decisions, and none that follows from them."""
        return replace(self.run, decisions={id(step): decisions[id(step)] for step in self.deciding}, maps={})

    def values(self, decisions: Decisions, numbers: dict[int, Tensor] | None = None) -> dict[str, Tensor]:
        """Returns the results under decisions and what follows from them. Fills in the numbers of the sources."""
        run, kept = self._deciding(decisions), set(map(id, self.sources))
        return self.program.values(run, self.wanted, _noting(run, kept, {} if numbers is None else numbers))

    def turned(self) -> list[Run]:
        """Returns runs with other decisions, if these may round a number that decides and is exact in PyTorch's own.

        So sign(c) * c is 0 for a c that is 0 but for its roundings, and no noise of it is known.
        """
        decisions = set(map(id, self.deciding))
        numbers = [each for step in self.deciding for each in step.inputs if each.real]
        after = [each for each in numbers if not decisions.isdisjoint(map(id, in_order([each])))]
        if not any(bool((self.near(each) == 0).any()) for each in after):
            return []
        ways = [self.proposed({id(step): self.size(step) * sign for step in self.sources}) for sign in (1.0, -1.0)]
        return [self._deciding(next(self.taken(way, Parts())).decisions) for way in ways]

    def reaching(self, others: Sequence[Mapping[Hashable, Tensor]]) -> Choices:
        """Returns the same choices where a kernel's numbers may also be as far from the real ones as others say."""
        reach = dict(self.reach)
        for other in others:
            reach |= {key: torch.maximum(size, reach.get(key, size)) for key, size in other.items()}
        return replace(self, reach=reach)

    def complete(self, decisions: Decisions) -> Decisions:
        """Returns the decisions and all that follow from them."""
        run = self._deciding(decisions)
        self.program.decide(run, self.wanted)
        return run.decisions

    @cached_property
    def shapes(self) -> dict[Hashable, Sequence[int]]:
        """Maps results, id(step) of decisions and sources, and -id(order) of the numbers ordered, to their shapes."""
        found: dict[Hashable, Sequence[int]] = {name: value.shape for name, value in self.base.items()}
        found |= {id(step): step.shape for step in self.sources}
        found |= {id(step): self.run.decisions[id(step)].shape for step in self.deciding}
        return found | {-id(step): step.inputs[0].shape for step in self.deciding if isinstance(step, Order)}

    # -- which decisions are free ---------------------------------------------------------------------------

    def near(self, step: Step) -> Tensor:
        """Returns how far a kernel's numbers may be from the real ones: if at all, then no less than float64 tells."""
        if id(step) not in self._nears:
            found, x = self.reach.get(id(step)), self.numbers.get(id(step))
            if found is not None and x is not None:
                found = torch.where(found > 0, torch.maximum(found, x.abs() * torch.finfo(x.dtype).eps), 0.0)
            none = torch.zeros((), dtype=torch.float64, device=self.run.device)
            self._nears[id(step)] = none if found is None else found
        return self._nears[id(step)]

    def is_tie(self, step: Step, given: Sequence[Tensor]) -> Tensor:
        """Returns a mask of the decisions on exactly equal numbers that no kernel rounds.

        An output has the value that PyTorch's convention gives it there, and so has a number that decides later. Only a
        derivative has two sides.
        """
        exact = self._unrounded(step)
        if exact is None or not isinstance(step, Map):
            return torch.zeros((), dtype=torch.bool, device=self.run.device)
        if step.function in COMPARISONS and not self._is_settled(step):
            if not any(leaf.dtype == torch.float64 for leaf in self.run.leaves.values()):
                exact = exact & is_held(given[0])  # of a number that is 0 in PyTorch's own choice no noise is known
            return (given[0] - given[1] == 0) & exact
        return (given[0] == 0) & exact if step.function in ("sign", "signbit") else torch.zeros_like(exact)

    def _unrounded(self, step: Step) -> Tensor | None:
        """Returns a mask of the decisions on numbers that a kernel has exactly; None if there are none.

        A search evaluates the program thousands of times, and this does not change.
        """
        if id(step) not in self._exact:
            exact = reduce(torch.logical_and, [self.near(each) == 0 for each in step.inputs])
            self._exact[id(step)] = exact if bool(exact.any()) else None
        return self._exact[id(step)]

    def _free(self, step: Step, given: Sequence[Tensor]) -> Tensor:
        """Returns a mask of the free decisions of a step on some numbers; for an order, of the rows with one."""
        x, near = given[0], self.near(step.inputs[0])
        if isinstance(step, Order):
            ordered, places = ranked(step, x).sort(-1, descending=True)
            reach = near.expand(x.shape).gather(-1, places)
            close = ordered[..., :-1] - reach[..., :-1] <= ordered[..., 1:] + reach[..., 1:]
            if self._is_ordered(step):  # equal numbers that no kernel rounds keep their order
                close = close & ((reach[..., :-1] > 0) | (reach[..., 1:] > 0))
            return close.any(-1)
        assert isinstance(step, Map)
        tie = self.is_tie(step, given)
        if step.function in COMPARISONS:
            reach = self.reach.get(-id(step), torch.zeros(()))
            return ((given[0] - given[1]).abs() <= reach) & ~self._follows(step, given) & ~(tie & self.pinned)
        if step.function == "integer":
            return ~step.holds(x)
        low, high = self._jumps(step, given, -1.0), self._jumps(step, given, 1.0)
        free = (low != high) & ~torch.isnan(x)
        if (grid := GRIDS.get(step.function.removeprefix("to "))) is not None:  # the noise passes several spacings
            size = x.abs().clamp(min=2.0**grid.least)
            free = free & ((high - low).abs() <= SPACINGS * 2.0**-grid.precision * size)
        return free & ~tie if self.pinned else free | tie

    def _is_ordered(self, step: Order) -> bool:
        """True if the place of equal numbers is defined: by a stable order, and PyTorch's largest is the first."""
        return step.stable or (self.pinned and isinstance(step, First))

    def _jumps(self, step: Map, given: Sequence[Tensor], side: float) -> Tensor:
        """Returns the decision of a step of one number, or of a quotient, where that number has moved to one side."""
        x = given[0] + side * self.near(step.inputs[0])
        if step.function in (*QUOTIENTS, *REMAINS):
            by = given[1]
            turned = (x / by) * self.near(step.inputs[1]) / by.abs()
            down = {**QUOTIENTS, **REMAINS}[step.function]
            x = x + side * turned.abs().nan_to_num(0.0) * by.abs()
            return torch.div(x, by, rounding_mode=down)
        return step.evaluated([x])

    def taken(self, proposal: Proposal, parts: Parts) -> Iterator[Taken]:
        """Yields the decisions of a proposal, then others if not all of those are right.

        A kernel decides on equal numbers as the definition does, at all steps or at one, and its gradient may yet take
        either side of |x| at 0. Other numbers move nearer to the real ones.
        """
        found = self._taken(proposal)
        yield found
        own = self.run.decisions
        ties = [key for key, tie in self._ties.items() if bool((found.decisions[key] != own[key])[tie].any())]
        for settled in dict.fromkeys([tuple(ties), *((key,) for key in ties[:_ALONE])] if ties else []):
            decided = {key: own[key] for key in settled}
            yield self._taken(self.proposed(proposal.moved, decided=decided, side=proposal.side))
        if any(bool(mask.any()) for mask in found.changed.values()):
            yield self._taken(self.repeated(Proposal(proposal.decisions, self._nearer(found, parts))))

    def _taken(self, proposal: Proposal, *, plain: bool = False) -> Taken:
        """Takes the proposed decisions one after the other, each where it is free at the numbers that it decides.

        plain: True: decisions on equal numbers that no kernel rounds stay PyTorch's own, and later ones follow.
        """
        decisions, real, changed = Decisions(), dict[int, Tensor](), Decisions()
        run, deciding, tied = replace(self.run, decisions=decisions, maps={}), set(map(id, self.deciding)), False

        def make(step: Step, given: list[Tensor]) -> tuple[Tensor, Tensor]:
            nonlocal tied
            value = step.value(run, given)
            if id(step) in deciding:
                own, other, tie = decisions[id(step)], proposal.decisions[id(step)], self.is_tie(step, given)
                found = self._admitted(step, given, own, other)
                tied = tied or bool((tie & (found != own)).any())
                decisions[id(step)] = torch.where(tie, own, found) if plain else found
                differs = (found != other) & ((found == found) | (other == other))
                changed[id(step)] = differs & ~self._follows(step, given)
                value = step.value(run, given)
            if id(step) in proposal.numbers:
                real[id(step)] = value
            return value, value

        values = self.program.values(run, self.wanted, make)
        taken = {key: decisions[key] for key in deciding}
        settled = self._taken(proposal, plain=True) if tied and not plain else None
        return Taken(taken, proposal.numbers, values, settled, real, changed)

    def _follows(self, step: Step, given: Sequence[Tensor]) -> Tensor:
        """Returns a mask of the decisions that no direction changes.

        These are integers in range, equal numbers kept in order, and what a kernel rounds from numbers that it has
        exactly: 2.0 has the floor 2, whichever of several 2.0 wins.
        """
        if isinstance(step, Order) and self._is_ordered(step):
            rounded = (self.near(step.inputs[0]).expand(given[0].shape) > 0).any(-1)
            return ~(rounded if isinstance(step, First) else rounded[..., None])
        follows = torch.tensor(isinstance(step, Map) and step.function == "integer", device=self.run.device)
        if isinstance(step, Map) and (step.function not in COMPARISONS or self._is_settled(step)):
            exact = self._unrounded(step)
            follows = follows if exact is None else follows | exact & ~self.is_tie(step, given)
        return follows

    def _stays(self, step: Step, given: Sequence[Tensor], decided: Mapping[int, Tensor]) -> Tensor | None:
        """Returns a mask of the decisions that numbers moved a little leave as they are; None if there are none.

        These are what a kernel rounds from numbers that it has exactly: 2.0 has the floor 2, and 2.0 - tiny has too.
        """
        if id(step) in decided and id(step) in self._ties:
            return self._ties[id(step)] & (decided[id(step)] == self.run.decisions[id(step)])
        known = all(id(each) in self.numbers for each in step.inputs)
        if not known or not isinstance(step, Map) or not step.decides or step.function == "integer":
            return None
        if self._unrounded(step) is None:
            return None
        real = [self.numbers[id(each)] for each in step.inputs]
        found = self._follows(step, real)
        for x, own in zip(given, real, strict=True):
            size = own.abs().nan_to_num(0.0, 0.0, 0.0)
            most = torch.where(size.amax() > 0, size.amax(), 1.0) if size.numel() else size
            found = found & ((x - own).abs() <= _LITTLE * (size + most / 16))
        return found if bool(found.any()) else None

    def _nearer(self, taken: Taken, parts: Parts) -> dict[int, Tensor]:
        """Returns numbers moved in the same direction, by no more than a kernel's may be from the real ones.

        What breaks ties of zeros becomes much smaller: a program may compare it with 1e-12.
        """
        least = torch.full((parts.count,), 0.5, dtype=torch.float64, device=self.run.device)
        for step in self.sources:
            near = self.near(step)
            moved = (taken.numbers[id(step)] - taken.real[id(step)]).abs()
            share = torch.where(near > 0, near / moved, math.inf).nan_to_num(math.inf, math.inf)
            if share.numel():
                share = parts.of(id(step), share).amin(-1)
                least = torch.minimum(least, share if share.numel() == parts.count else share.amin())

        def between(step: Step, real: Tensor, moved: Tensor) -> Tensor:
            share = parts.spread(id(step), least, real) if parts.holds(id(step)) else least.amin()
            share = torch.where((real == 0) & (self.near(step) == 0), share * _LITTLE, share)
            return torch.where(moved == real, real, real + share * (moved - real))

        return {id(s): between(s, taken.real[id(s)], taken.numbers[id(s)]) for s in self.sources if id(s) in taken.real}

    def _admitted(self, step: Step, given: Sequence[Tensor], own: Tensor, proposed: Tensor) -> Tensor:
        """Returns the proposed decisions where they are free and right, and PyTorch's (own) elsewhere."""
        x, near = given[0], self.near(step.inputs[0])
        if isinstance(step, Order):
            reach = near.expand(x.shape)
            right = is_sorted(step, x, reach, proposed)
            if self._is_ordered(step):
                right = right & (reach > 0).any(-1)
            return torch.where(right if isinstance(step, First) else right[..., None], proposed, own)
        assert isinstance(step, Map)
        right = self._free(step, given)
        if step.function not in (*COMPARISONS, "integer"):
            low, high = self._jumps(step, given, -1.0), self._jumps(step, given, 1.0)
            if step.function == "sign":
                tie = self.is_tie(step, given)
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
        placed: Mapping[int, Tensor] | None = None,
        decided: Mapping[int, Tensor] | None = None,
        rounded: torch.dtype | None = None,
        beyond: int | None = None,
        side: float = 0.0,
        level: bool = False,
    ) -> Proposal:
        """Returns the decisions that the program takes if it moves some of its numbers. `taken` admits them.

        `moved` maps id(step) to what is added to its numbers; for an order, to scores: of copies of one number, the
        highest score comes first. `placed` maps id(step) to its numbers. `decided` are orders of equal numbers,
        integers out of range, and decisions on equal numbers that outputs depend on, if they are the program's own.
        With `rounded`, every step is stored in that format. With `beyond`, numbers below the range of an integer dtype
        become its least number, and those above it its end 0 or 1, the least or the greatest. With a `side`,
        comparisons see the first of equal numbers above (1) or below (-1) the second: no x + tiny p moves both columns
        of a softmax down, yet in each the first of equal numbers may be the least so far. With `level`, numbers that
        differ by float64's roundings are equal before they are moved.
        """
        run, numbers = replace(self.run, decisions={}, maps={}), dict[int, Tensor]()
        placed, decided, sources = placed or {}, decided or {}, set(map(id, self.sources))

        def make(step: Step, given: list[Tensor]) -> tuple[Tensor, Tensor]:
            if isinstance(step, Order):
                x = given[0] if rounded is None else given[0].to(rounded)
                if id(step) in moved and not step.stable:
                    run.decisions[id(step)] = in_order_of(step, x, moved[id(step)])
                elif rounded is not None:  # equal numbers may come in another order there
                    run.decisions[id(step)] = step.evaluated(x)
                elif id(step) in decided and not step.stable:
                    places, own = decided[id(step)], step.evaluated(given[0])
                    right = is_sorted(step, given[0], torch.zeros_like(given[0]), places)
                    right = right if isinstance(step, First) else right[..., None]
                    run.decisions[id(step)] = torch.where(right, places, own)
            elif isinstance(step, Map) and step.function == "integer":
                if beyond is not None:
                    run.decisions[id(step)] = step.at_ends(given[0], beyond)
                elif id(step) in decided:
                    run.decisions[id(step)] = decided[id(step)]
            value = step.value(run, given)
            if side and isinstance(step, Map) and (free := self._sided.get((id(step), side))) is not None:
                aside = _at_side(step, torch.full_like(given[0], side))
                run.decisions[id(step)] = torch.where(free, aside, run.decisions[id(step)])
                value = step.value(run, given)
            if (stays := self._stays(step, given, decided)) is not None:
                own = self.run.decisions[id(step)]
                run.decisions[id(step)] = torch.where(stays, own, run.decisions[id(step)])
                value = step.value(run, given)
            value = placed.get(id(step), value)
            value = _level(value) if level and id(step) in sources else value
            if id(step) in moved and not isinstance(step, Order):
                value = value + moved[id(step)]
            if rounded is not None and step.real and not isinstance(step, Leaf):
                value = value.to(rounded).to(torch.float64)
            if id(step) in sources:
                numbers[id(step)] = value
            elif isinstance(step, Order):
                numbers[-id(step)] = scores_of(step, given[0], run.decisions[id(step)])
            return value, value

        self._before.values(run, list(self._before.results), make)
        decisions = {id(step): run.decisions[id(step)] for step in self.deciding}
        return Proposal(decisions, numbers, moved=moved, side=side)

    def repeated(self, proposal: Proposal) -> Proposal:
        """Returns the decisions at the moved numbers of a proposal. Equal numbers keep the order that it gives them."""
        return self.proposed({}, placed=proposal.numbers, decided=proposal.decisions)

    @cached_property
    def sources(self) -> list[Step]:
        """The operands, rounded numbers, and the steps that make the numbers which decide, before these are moved."""
        every: list[Step] = [step for step in self.program.needed_for(self.wanted) if isinstance(step, Leaf)]
        every += [step for step in in_order(each for own in self.deciding for each in own.inputs) if _is_rounded(step)]
        every = [step for step in every if step.real and (not isinstance(step, Leaf) or step.operand)]
        every += [each for step in self.deciding for number in step.inputs for each in origins(number)]
        return list({id(each): each for each in every}.values())

    @cached_property
    def orders(self) -> list[Order]:
        """The steps that may put copies of one number into any order, such as several zeros of a mask."""
        return [step for step in self.deciding if isinstance(step, Order) and not step.stable]

    def size(self, step: Step) -> Tensor:
        """Returns how far the numbers of a source are moved: as far as a kernel's may be, operands to break ties.

        What every kernel computes exactly moves with the sources before it alone: b > 0 and 1 - b > 1 exclude each
        other, although each may be true. For an order, these are scores of its numbers.
        """
        if isinstance(step, Order):
            return torch.ones_like(self.numbers[id(step.inputs[0])])
        x = self.numbers[id(step)]
        if not _breaks_ties(step):
            near = self.near(step).expand(x.shape)
            own = self.reach.get(("own", id(step)))
            return near if own is None else torch.minimum(near, own)
        size = x.abs().nan_to_num(0.0, 0.0, 0.0)
        if size.numel():
            most = torch.where(size.amax() > 0, size.amax(), 1.0)
            gaps = x[torch.isfinite(x)].sort().values.diff()
            coarse = bool(((gaps == 0) | (gaps > _LITTLE * most)).all())  # no two change places
            size = most.expand(size.shape) if coarse else size + most * 2.0**-10
        return _TIE * size + 1e-300

    def directions(self, got: Mapping[str, Tensor]) -> Iterator[Proposal]:
        """Yields the proposals, the likeliest first."""
        sources = [*self.sources, *self.orders]
        sizes = {id(step): self.size(step) for step in sources}
        ramps = {key: ramp(size) for key, size in sizes.items()}
        kinds = {id(s): 2 if isinstance(s, Order) else 3 * _is_rounded(s) or 1 - isinstance(s, Leaf) for s in sources}
        for name, value in got.items():
            if not self.program.results[name].real:
                yield from self._read_off(name, value, sizes)
        for moved in in_lines(kinds, ramps):
            yield self.proposed({key: sizes[key] * line for key, line in moved.items()})
        # copies of one number in their own order, or by places
        ordered = [{id(s): sizes[id(s)] * ramps[id(s)] * sign for s in self.orders if sign} for sign in (0, 1, -1)]
        ordered = ordered if self.orders else [{}]
        for side, scores in product((1.0, -1.0) if self._sided else (), ordered):
            yield self.proposed(scores, side=side)
        alone = [[key] for key in list(sizes)[:_ALONE]] if len(self.sources) > 1 else []
        for keys, sign in product([list(sizes), *alone], (1.0, -1.0)):
            yield self.proposed({key: sizes[key] * sign for key in keys})
        rounds = any(isinstance(step, Map) and step.stepped for step in self.deciding)
        for share, sign in product(_SHARES if rounds else (), (1.0, -1.0)):  # as far as roundings usually go
            yield self.proposed({key: size * (share * sign) for key, size in sizes.items()})
        dtypes = [value.dtype for value in self.run.leaves.values() if value.is_floating_point()]
        for dtype in dict.fromkeys([torch.float32, *(dtype for dtype in dtypes if dtype.itemsize < 4)]):
            for scores in ordered:
                yield self.proposed(scores, rounded=dtype)
        for end in (1, 0) if any(getattr(step, "function", "") == "integer" for step in self.deciding) else ():
            yield self.proposed({}, beyond=end)
        for name, value in got.items():
            alike = [step for step in sources if sizes[id(step)].shape == value.shape]
            if not self.program.results[name].real or not alike:
                continue
            kept = torch.where(value != 0, 1.0, -1.0).to(torch.float64)
            for sign in (1.0, -1.0):
                marks = {id(step): sign * kept for step in alike}
                ways = {key: marks.get(key, 0.0) + line * 2.0**-6 for key, line in ramps.items()}
                yield self.proposed({key: sizes[key] * way for key, way in ways.items()})

        yield from self._at_random(_AT_RANDOM)

    def _read_off(self, name: str, got: Tensor, sizes: Mapping[int, Tensor]) -> Iterator[Proposal]:
        """Yields the decisions that an integer result shows, if it is one: an order, a comparison, or a conversion."""
        result = self.program.results[name]
        step = moved_from(result)[-1]
        if not step.decides or id(step) not in self.run.decisions:
            return
        own = self.run.decisions[id(step)]
        shown = own.expand(step.shape).reshape(-1).clone()
        shown[places_of(result, step, self.run).reshape(-1).to(got.device)] = got.reshape(-1).to(shown.dtype)
        shown = shown.reshape(step.shape)

        def toward(row: Step, way: Tensor) -> dict[int, Tensor]:
            source = moved_from(row)[-1]
            if id(source) not in sizes:
                return {}
            score = torch.zeros(math.prod(source.shape), dtype=torch.float64, device=got.device)
            score[places_of(row, source, self.run).reshape(-1).to(got.device)] = way.expand(row.shape).reshape(-1)
            return {id(source): score.reshape(source.shape) * sizes[id(source)]}

        if isinstance(step, Order):
            row = step.inputs[0]
            places = shown.clamp(0, max(row.shape[-1] - 1, 0))
            yield self.proposed({}, decided={id(step): places})
            wins = scores_of(step, torch.empty(row.shape, device=got.device), places)
            yield self.proposed(toward(row, wins if step.largest else -wins) | {id(step): wins})
        elif isinstance(step, Map) and step.function in COMPARISONS:
            one, none = torch.ones((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
            above, below = (step.evaluated([side, none]).to(got.device) == shown for side in (one, -one))
            way = above.to(torch.float64) - below.to(torch.float64)
            yield self.proposed(toward(step.inputs[0], way) | toward(step.inputs[1], -way))
        else:
            yield self.proposed({}, decided={id(step): shown})


def _noting(run: Run, kept: set[int], numbers: dict[int, Tensor]) -> Make:
    """Returns a `make` that evaluates each step as it is, and notes the numbers of some by their ids."""

    def make(step: Step, given: list[Tensor]) -> tuple[Tensor, Tensor]:
        value = step.value(run, given)
        if id(step) in kept:
            numbers[id(step)] = value
        return value, value

    return make


def _at_side(step: Map, side: Tensor) -> Tensor:
    """Returns what a comparison decides if the first of two equal numbers lies above (1) or below (-1) the second."""
    return step.evaluated([side, torch.zeros_like(side)])


def _level(x: Tensor) -> Tensor:
    """Makes numbers equal that are equal in float32: each becomes the largest of its group."""
    places = torch.unique(x.to(torch.float32), return_inverse=True)[1].reshape(-1)
    largest = torch.full_like(x.reshape(-1), -math.inf).scatter_reduce(0, places, x.reshape(-1), "amax")
    return largest[places].reshape(x.shape)


def _breaks_ties(step: Step) -> bool:
    """True for operands, and for rounded numbers: what breaks the ties of operands does not reach those."""
    return isinstance(step, Leaf) or _is_rounded(step)


def _is_rounded(step: Step) -> bool:
    return isinstance(step, Map) and step.stepped and step.real
