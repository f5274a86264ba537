"""Searches for the choices at ties that explain a kernel's results.

    decisions = explaining(choices, {"y": y, "dx": dx})  # those that explain them best

Directions are tried first, then numbers are moved and exchanged one after the other, as long as that brings the results
closer. What a proposal may decide is told by `verify.ops.graph.choices`.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from itertools import islice, takewhile, zip_longest
from typing import Any

import torch
from torch import Tensor

from verify.ops.graph.choices import Choices, Decisions, Proposal, Taken
from verify.ops.graph.parts import Parts
from verify.ops.graph.selecting import First, Order, ramp, scores_of
from verify.ops.graph.steps import Leaf, Step, moved_from, places_of
from verify.ops.graph.wording import words
from verify.ops.op import Slopes

_AWAY = 2.0**-30  # a relative change by less is none
_PLACES = 64  # most numbers of a part that are exchanged, where they tie in one of the first
_ROWS = 1024  # unexplained parts
_ALIKE = 2  # most proposals for each of the exchanges that decide otherwise than those before
_TRIED = 512  # most such exchanges from one start, and fewer
_WORK = 2**22  # where all of them together would move more numbers
_EFFORT = 2**14  # or evaluate more steps
_OFTEN = 8  # of so many exchanges, one asks for that: it takes as long as a third of an exchange
_ENOUGH = 48  # exchanges after which a number that is beyond all values so far counts as unexplainable


def explaining(choices: Choices, got: Mapping[str, Tensor], calls: int | None = None) -> Decisions:
    """Returns the decisions under which a program comes closest to the results, part by part where it can.

    The results of several `calls` that draw are frequencies, and the program's their probabilities.
    """
    got = {name: value.to(choices.run.device) for name, value in got.items() if name in choices.wanted}
    search = _Search(choices, got, calls)
    if search.is_explained(choices.base):
        return choices.run.decisions
    return search.find()


def slopes_of(choices: Choices, decisions: Decisions) -> dict[str, Slopes]:
    """Returns, by gradient, the elements that other decisions on exactly equal numbers than PyTorch's change."""
    plain, moved = dict(decisions), list[Step]()
    for step in choices.deciding:
        own, found = choices.run.decisions[id(step)], decisions[id(step)]
        given = [choices.numbers[id(each)] for each in step.inputs]
        tie = choices.is_tie(step, given)
        if isinstance(step, First):
            tie = ~(choices.near(step.inputs[0]).expand(given[0].shape) > 0).any(-1)
        plain[id(step)] = torch.where(tie, own, found)
        moved += [step] if bool((plain[id(step)] != found).any()) else []
    if not moved:
        return {}
    values, others = choices.values(decisions), choices.values(plain)
    counts = {name: int((values[name] != others[name]).sum()) for name in values if not choices.is_output(name)}
    return {name: Slopes(number, words(moved[0])) for name, number in counts.items() if number}


class _Search:
    """Searches for the decisions that explain one kernel's results.

    Parts that do not depend on each other are explained one by one, if a mixture of two choices gives the mixture of
    their results.
    """

    def __init__(self, choices: Choices, got: Mapping[str, Tensor], calls: int | None) -> None:
        self.choices, self.got, self.calls = choices, got, calls
        self.wide = {name: value.to(torch.float64) for name, value in got.items()}
        self.noise = {name: 2 * choices.noise[name].nan_to_num(0.0, 0.0, 0.0) for name in got if name in choices.noise}
        own = {id(step): choices.run.decisions[id(step)] for step in choices.deciding}
        orders = [step for step in choices.deciding if isinstance(step, Order)]
        scores = {-id(s): scores_of(s, choices.numbers[id(s.inputs[0])], own[id(s)]) for s in orders}
        self.found = self.own = Proposal(own, choices.numbers | scores)
        # the least and the greatest value of each element so far
        self.low = {name: choices.base[name].to(torch.float64) for name in got}
        self.high = dict(self.low)
        self.exchanges = 0

    def find(self) -> Decisions:
        """Returns the best decisions that the directions offer.

        What is found part by part is a choice only if the program decides so where all parts are moved together.
        Otherwise all numbers are one part.
        """
        choices, divided = self.choices, self._divided()
        for parts in (divided, Parts()) if divided.count > 1 else (divided,):
            self._follow_directions(parts)
            for start in () if self._is_possible() else (self._found, lambda size, _: ramp(size), None):
                self._exchange(parts, start)
            if parts.count > 1 and not self._is_choice(self.found):
                self.found = self.own
            elif self.is_explained(choices.values(self.found.decisions)) or all(map(parts.holds, self.got)):
                break
        return choices.complete(self.found.decisions)

    def _is_possible(self) -> bool:
        """True if the best so far has everything that was drawn. No choice has just the frequencies."""
        if not self.calls:
            return False
        values = self.choices.values(self.found.decisions)
        return not any(bool(torch.isinf(self._excess(name, values[name])).any()) for name in self.got)

    def _is_choice(self, found: Proposal) -> bool:
        """True if the program decides so where it moves the numbers of all parts together."""
        whole = Parts()
        taken = next(self.choices.taken(self.choices.repeated(found), whole))
        return _is_same(taken.decisions, found.decisions) and not bool(self._barred(taken, whole).any())

    def _follow_directions(self, parts: Parts) -> None:
        """Sets `found` to the best of the directions in each part."""
        cost = self._cost(self.choices.values(self.found.decisions), parts)
        for proposal in self.choices.directions(self.got):
            if not bool((cost > 0.0).any()):
                break
            cost, self.found = self._better(proposal, parts, cost, self.found)

    def _better(self, proposal: Proposal, parts: Parts, cost: Tensor, than: Proposal) -> tuple[Tensor, Proposal]:
        """Returns the costs of the parts under the better of two proposals, and both mixed."""
        for taken in self.choices.taken(proposal, parts):
            found = self._cost(taken.values, parts)
            for name, value in ((name, taken.values[name].to(torch.float64)) for name in self.got):
                self.low[name] = torch.minimum(self.low[name], value)
                self.high[name] = torch.maximum(self.high[name], value)
            better = found < cost
            if bool(better.any()):
                better = better & ~self._barred(taken, parts)
                cost, than = torch.where(better, found, cost), _mixed(parts, better, taken, than)
            if not bool((cost > 0.0).any()):
                break
        return cost, than

    def _exchange(self, parts: Parts, start: Callable[[Tensor, int], Tensor] | None) -> None:
        """Moves single numbers above or below those beside them, and exchanges pairs, as long as that helps.

        Of ten equal numbers a kernel may pick any, in any order, and no direction at random finds it. An exchange puts
        at least one of them into its place. It is tried in all parts at once. `start` says where numbers are at first:
        as in the best so far, or the first of equal ones wins. None: equal ones stay equal, since the definition may
        average them, and copies come in the best order so far.
        """
        choices, out = self.choices, 2.0 if start else 0.25  # how far a single number moves
        copies = [step for step in choices.orders if not isinstance(moved_from(step.inputs[0])[-1], Leaf)]
        every = {id(step): choices.size(step) for step in choices.sources}
        every |= {-id(step): choices.size(step) for step in copies}
        sizes = {key: size for key, size in every.items() if bool(size.any()) and parts.holds(key)}
        start = start or (lambda size, key: self._found(size, key) if key < 0 else torch.zeros_like(size))
        at = {key: parts.of(key, start(size, key)) for key, size in sizes.items()}

        def judged(at: Mapping[int, Tensor]) -> tuple[Tensor, Proposal]:
            by = {abs(key): size * parts.spread(key, at[key], size) for key, size in sizes.items()}
            proposal, none = choices.proposed(by, level=out < 1), torch.full_like(best, math.inf)
            known = hash(tuple(bytes(each.cpu().numpy()) for each in proposal.decisions.values()))
            if known in seen:  # other numbers, which decide alike
                return none, self.own
            seen.add(known)
            return self._better(proposal, parts, none, self.own)

        best, seen = self._cost(choices.values(self.found.decisions), parts), set[int]()
        if self._is_settled(best, parts):  # or what is not explained depends on many parts
            return
        cost, turned = judged(at)
        count = max(map(torch.numel, at.values()), default=1)
        most = min(_TRIED, _WORK // count, _EFFORT // len(choices.program.steps))
        moves = self._moves(sizes, turned, cost > 0.0, parts)
        for number in range(_ALIKE * most):
            if len(seen) > most or self._is_settled(cost, parts) or (move := next(moves, None)) is None:
                break
            self.exchanges += 1
            key, one, other, way = move
            line = at[key].clone()
            end = way * ((out if key > 0 else 2.0) + number / _TRIED / 2)  # further out than each before it
            line[:, one], line[:, other] = (end, end) if one == other else (at[key][:, other], at[key][:, one])
            found, new = judged({**at, key: line})
            better = found < cost
            if bool(better.any()):
                at[key] = torch.where(better.reshape(-1, 1), line, at[key])
                cost, turned = torch.minimum(cost, found), _mixed(parts, better, new, turned)
                moves = self._moves(sizes, turned, cost > 0.0, parts)
        self.found = _mixed(parts, cost < best, turned, self.found)

    def _found(self, size: Tensor, key: int) -> Tensor:
        """Returns where the best so far has the numbers of a source, in sizes, and scores of an order."""
        moved = ((self.found.numbers[key] - self.choices.numbers.get(key, 0.0)) / size).nan_to_num(0.0, 0.0, 0.0)
        return moved + 2.0**-12 * ramp(size)  # no two are equal, or an exchange would change nothing

    def _moves(
        self, sizes: Mapping[int, Tensor], best: Proposal, open: Tensor, parts: Parts
    ) -> Iterator[tuple[int, int, int, float]]:
        """Yields a key of `sizes`, two places in a part, and the end that a single number goes to. The likeliest first.

        These are numbers whose own result the best so far does not explain, and those that tie in an unexplained part.
        """
        values, rows = self.choices.values(best.decisions), torch.nonzero(open).reshape(-1)[:_ROWS]
        rowed = {-id(step): self.choices.numbers[id(step.inputs[0])] for step in self.choices.orders}
        made = {-id(step): (step.inputs[0], moved_from(step.inputs[0])[-1]) for step in self.choices.orders}
        lines = {key: torch.arange(x.numel(), device=x.device) // max(x.shape[-1], 1) for key, x in rowed.items()}

        def moves(key: int, size: Tensor) -> Iterator[tuple[int, int, int, float]]:
            def of_open(value: Tensor) -> Tensor:
                return parts.of(key, value)[rows]

            x = of_open(rowed[key] if key in rowed else self.choices.numbers[key])
            reach = torch.zeros_like(x) if key in rowed else 2 * of_open(size)
            ordered, places = x.sort(-1)
            near = ordered.diff(dim=-1) <= reach.gather(-1, places)[:, 1:]
            weight = torch.zeros_like(x).scatter_(-1, places[:, 1:], near.to(x.dtype))
            weight = weight.scatter_add_(-1, places[:, :-1], near.to(x.dtype)).amax(0)
            row, source = made.get(key, (None, None))  # what a copy is a copy of
            for name in [name for name in self.got if values[name].shape == (source.shape if source else size.shape)]:
                wrong = (self._excess(name, values[name]) > 1.0).to(x.dtype)
                wrong = wrong.reshape(-1)[places_of(row, source, self.choices.run)] if row and source else wrong
                weight = weight + 4.0 * of_open(wrong).amax(0)
            chosen = weight.sort(descending=True, stable=True).indices[:_PLACES].tolist()
            x, reach = x[:, chosen], reach[:, chosen]
            line = of_open(lines[key])[:, chosen] if key in lines else torch.zeros_like(x)  # copies tie in their line
            close = ((x[:, :, None] - x[:, None]).abs() <= reach[:, :, None]) & (line[:, :, None] == line[:, None])
            tied = close.any(0).tolist()
            for j, place in enumerate(chosen):
                yield from ((key, place, place, way) for way in (1.0, -1.0))
                yield from ((key, chosen[i], place, 0.0) for i in range(j) if tied[i][j])

        for each in zip_longest(*(moves(key, size) for key, size in sizes.items())):
            yield from (move for move in each if move is not None)

    def _cost(self, values: Mapping[str, Tensor], parts: Parts) -> Tensor:
        """Returns how far the results of each part are away, all of them together. 0: they are explained."""
        found = torch.zeros(parts.count, dtype=torch.float64, device=self.choices.run.device)
        for name in filter(parts.holds, self.got):
            excess = parts.of(name, self._excess(name, values[name]))
            found = found + torch.where(excess > 1.0, excess.clamp(max=1e300).log1p(), 0.0).sum(-1)
        return found

    def _is_settled(self, cost: Tensor, parts: Parts) -> bool:
        """True if each part is explained, or has an element far beyond all the values that choices gave it."""
        open_ = cost > 0.0
        looks = self.exchanges >= _ENOUGH and self.exchanges % _OFTEN == 0 and bool(open_.any())
        for name in filter(parts.holds, self.got) if looks else ():
            low, high = self.low[name], self.high[name]
            got = self.got[name].reshape(low.shape).to(torch.float64)
            nearest = torch.minimum(torch.maximum(got, 2 * low - high), 2 * high - low)
            beyond = (self._excess(name, nearest) > 1.0) & ~torch.isnan(nearest)
            open_ = open_ & ~parts.of(name, beyond).any(-1)
        return not bool(open_.any())

    def is_explained(self, values: Mapping[str, Tensor]) -> bool:
        """True if no result is further from the program's than roundings explain."""
        return all(not bool((self._excess(name, values[name]) > 1.0).any()) for name in self.got)

    def _excess(self, name: str, value: Tensor) -> Tensor:
        """Returns how far each element of a result is from a value, in units of what roundings explain."""
        got = self.got[name].reshape(value.shape)
        if name in self.choices.program.integers:
            same = got.to(torch.float64) == value.to(torch.float64)
            return torch.where(same, 0.0, math.inf).to(torch.float64)
        kind = torch.finfo(got.dtype)
        got, value = self.wide[name].reshape(value.shape), value.to(torch.float64)
        if self.calls:
            share = value.clamp(0.0, 1.0)
            apart = ((got - share).abs() / (share * (1 - share) / self.calls).sqrt()).nan_to_num(math.inf, math.inf)
            return torch.where((got == share) | torch.isnan(share), 0.0, apart)  # a row of NaN has no probabilities
        # the noise is that of PyTorch's choice: another one has roundings where its own gradient is 0
        ulp = torch.ldexp(torch.full_like(value, kind.eps / 2), torch.frexp(value)[1]).masked_fill(value == 0, 0.0)
        ulp = ulp.clamp(min=kind.tiny * kind.eps)
        unit = ulp * (4 if kind.bits >= 32 else 1)
        if name in self.noise:
            unit = torch.maximum(unit, ulp / 2 + self.noise[name])
        apart = ((got - value).abs() / unit).nan_to_num(math.inf, math.inf)
        beyond = torch.isinf(got) & (got == value.to(self.got[name].dtype))  # of its format
        same = (got == value) | beyond | (torch.isnan(got) & torch.isnan(value))
        return torch.where(same, 0.0, apart)

    def _barred(self, taken: Taken, parts: Parts) -> Tensor:
        """Returns a mask of the parts where a choice is none.

        It has decisions that are not free, or an exact tie changes an output or a number that decides: those have one
        value. A gradient at x + tiny p is a number where PyTorch's own is: x / |x|, for one.
        """
        choices, plain = self.choices, taken.plain
        masks: list[tuple[Hashable, Tensor]] = [*taken.changed.items()]
        found = torch.zeros(parts.count, dtype=torch.bool, device=choices.run.device)
        if plain is not None:
            forward = [id(step) for step in choices.sources if id(step) in plain.real and id(step) in choices.forward]
            masks += [(name, _differ(taken.values[name], plain.values[name])) for name in choices.outputs]
            masks += [(at, _differ(taken.real[at], plain.real[at])) for at in forward]
            masks += [(name, torch.isnan(x) & ~torch.isnan(choices.base[name])) for name, x in taken.values.items()]
        for key, mask in masks:
            found = found | (parts.of(key, mask).any(-1) if parts.holds(key) else mask.any())
        return found

    def _divided(self) -> Parts:
        """Returns the smallest parts that may choose for themselves: rows, single elements, or columns.

        Evaluates a mixture in which parts have different choices. Each must have the results of its own choice.
        """
        choices, steps = self.choices, self.choices.deciding
        shapes = [step.shape[:-1] if type(step) is Order else step.shape for step in steps]  # an order is one decision
        lead = sum(1 for _ in takewhile(lambda sizes: len(set(sizes)) == 1, zip(*shapes, strict=False)))
        pair = list(islice(choices.directions({}), 2))
        made = [next(choices.taken(each, Parts())) for each in pair]
        generator = torch.Generator(choices.run.device).manual_seed(1)
        dims = max(len(step.shape) for step in choices.sources)
        for count in (*range(lead, 0, -1), *range(-1, -dims - 1, -1)):
            parts = Parts.leading(choices.shapes, shapes[0][:count]) if count > 0 else self._parts_along(count)
            if parts is None or parts.count < 2 or not any(map(parts.holds, choices.base)):
                continue
            coins = torch.rand(parts.count, device=choices.run.device, generator=generator) < 0.5
            decided = [(key, one != made[1].decisions[key]) for key, one in made[0].decisions.items()]
            other = sum(parts.of(key, differs).any(-1) for key, differs in decided if parts.holds(key))
            some = torch.nonzero(torch.as_tensor(other)).reshape(-1)[:2]  # a mixture has a part of each
            coins[some[1:]] = ~coins[some[:1]]
            values, both = choices.values(_mixed(parts, coins, *made).decisions), _mixed(parts, coins, *pair)
            wanted = _mixed_tensors(parts, coins, *(each.values for each in made))
            apart = {name for name in values if parts.holds(name) and bool(_differ(values[name], wanted[name]).any())}
            parts = parts.without(apart)  # each of these elements depends on several columns
            held = any(map(parts.holds, choices.base)) and not (apart and count > 0)
            if held and _is_same(choices.repeated(both).decisions, both.decisions):
                return parts
        return Parts()

    def _parts_along(self, back: int) -> Parts | None:
        """Returns one part for each index into a dimension of the operands; None if some decision has no such index.

        Takes each tensor's dimension of that size for it. A mixture of choices shows if that is wrong.
        """
        sizes = {
            step.shape[back] for step in self.choices.sources if isinstance(step, Leaf) and len(step.shape) >= -back
        } - {1}
        if len(sizes) != 1:
            return None
        [count] = sizes
        dims = dict[Hashable, int]()
        for key, shape in self.choices.shapes.items():
            fitting = [dim for dim, size in enumerate(shape) if size == count]
            if fitting:
                dims[key] = len(shape) + back if len(shape) + back in fitting else fitting[0]
        for step in self.choices.deciding:
            if isinstance(step, Order):
                if (dim := dims.get(-id(step))) in (None, len(step.inputs[0].shape) - 1):
                    return None
                dims |= {id(step): dim}
            elif id(step) not in dims:
                return None
        return Parts.along(self.choices.shapes, dims)


def _mixed(parts: Parts, mask: Tensor, some: Proposal, other: Proposal) -> Proposal:
    """Returns one proposal in the parts of a mask, and another elsewhere."""
    return Proposal(
        _mixed_tensors(parts, mask, some.decisions, other.decisions),
        _mixed_tensors(parts, mask, some.numbers, other.numbers),
    )


def _mixed_tensors(
    parts: Parts, mask: Tensor, some: Mapping[Any, Tensor], other: Mapping[Any, Tensor]
) -> dict[Any, Tensor]:
    def both(key: Hashable, one: Tensor, two: Tensor) -> Tensor:
        if not parts.holds(key):  # numbers of several parts
            return one if bool(mask.all()) else two
        return torch.where(parts.spread(key, mask, one), one, two)

    return {key: both(key, each, other[key]) for key, each in some.items()}


def _is_same(one: Decisions, other: Decisions) -> bool:
    return all(bool(((each == other[key]) | (each != each)).all()) for key, each in one.items())


def _differ(one: Tensor, other: Tensor) -> Tensor:
    """Returns a mask of the elements that differ by more than float64's roundings."""
    if not one.is_floating_point():
        return one != other
    close = (one - other).abs() <= _AWAY * (one.abs() + other.abs())
    return ~(close & torch.isfinite(one + other) | (one == other) | torch.isnan(one) & torch.isnan(other))
