"""Searches for the choices at ties that explain a kernel's results.

    decisions = explaining(choices, {"y": y, "dx": dx})  # those that explain them best

Directions are tried first, then numbers are moved and exchanged one after the other, as long as that brings the results
closer. What a proposal may decide is told by `verify.ops.graph.choices`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product

import torch
from torch import Tensor

from verify.ops.graph.choices import Choices, Decisions, Taken, ramp
from verify.ops.graph.selecting import Order
from verify.ops.graph.steps import Step

_AWAY = 2.0**-30  # a relative change by less is none
_PLACES = 64  # most numbers of a part that are exchanged, where they tie in one of the first
_ROWS = 1024  # unexplained parts
_ROUNDS = 4  # one exchange may need another before it
_TRIED = 384  # most exchanges from one start, and fewer
_WORK = 2**22  # where all of them together would move more numbers


def explaining(choices: Choices, got: Mapping[str, Tensor]) -> Decisions:
    """Returns the decisions under which a program comes closest to the results, part by part where it can."""
    got = {name: value.to(choices.run.device) for name, value in got.items() if name in choices.wanted}
    search = _Search(choices, got)
    if search.is_explained(choices.base):
        return choices.run.decisions
    search.find()
    return search.decisions


class _Search:
    """Searches for the decisions that explain one kernel's results.

    Parts that do not depend on each other are explained one by one. A part is one index into the leading dimensions
    that results and decisions share, if a mixture of two choices gives the mixture of their results.
    """

    def __init__(self, choices: Choices, got: Mapping[str, Tensor]) -> None:
        self.choices, self.got = choices, got
        self.decisions: Decisions = dict(choices.run.decisions)

    def find(self) -> None:
        """Sets `decisions` to the best that the directions offer."""
        choices = self.choices
        proposals = choices.directions(self.got)
        lead = self._independent()
        best = self._cost(choices.base, lead)
        for proposal in proposals:
            taken = choices.taken(proposal)
            cost = self._cost(taken.values, lead)
            better = cost < best
            if bool(better.any()):
                better = better & ~self._barred(taken, lead)
                best = torch.where(better, cost, best)
                self.decisions |= _mixed(better, taken.decisions, self.decisions)
            if not bool((best > 0.0).any()):
                break
        divided = all(tuple(value.shape[:lead]) == self._grid(lead) for value in self.got.values())
        for count, sign in product((lead,) if divided else (lead, 0), (0.0, 1.0)):
            if self.is_explained(choices.values(self.decisions)):
                break
            self._exchange(count, sign)
        self.decisions = choices.complete(self.decisions)

    def _exchange(self, lead: int, sign: float) -> None:
        """Moves single numbers above or below those beside them, and exchanges pairs, as long as that helps.

        Of ten equal numbers a kernel may pick any, in any order, and no direction at random finds it. An exchange puts
        at least one of them into its place. It is tried in all parts at once. `sign` tells which equal number wins at
        first: with 0 PyTorch's, with 1 the first.
        """
        choices, grid = self.choices, self._grid(lead)
        sources = [step for step in choices.sources if step.shape[:lead] == grid and 0 not in step.shape]
        sizes = {id(step): choices.size(step) for step in sources}
        at = {key: (sign * ramp(size)).reshape(math.prod(grid), -1) for key, size in sizes.items()}

        def judged(at: Mapping[int, Tensor]) -> tuple[Tensor, Decisions]:
            moved = {key: size * at[key].reshape(size.shape) for key, size in sizes.items()}
            taken = choices.taken(choices.proposed(moved))
            cost = self._cost(taken.values, lead)
            return cost.masked_fill(self._barred(taken, lead), math.inf), taken.decisions

        best = self._cost(choices.values(self.decisions), lead)
        if not bool((best > 0.0).any()):  # what is not explained depends on many parts
            return
        cost, decisions = judged(at)
        most = min(_TRIED, _WORK // max(map(torch.numel, at.values()), default=1))
        moves = list(islice(self._moves(sources, best > 0.0, lead), most))
        for key, one, other, way in islice(moves * _ROUNDS, most):
            if not bool((cost > 0.0).any()):
                break
            line = at[key].clone()
            line[:, one], line[:, other] = (way, way) if one == other else (at[key][:, other], at[key][:, one])
            found, turned = judged({**at, key: line})
            better = found < cost
            at[key] = torch.where(better.reshape(-1, 1), line, at[key])
            cost, decisions = torch.minimum(cost, found), _mixed(better, turned, decisions)
        self.decisions |= _mixed(cost < best, decisions, self.decisions)

    def _moves(self, sources: Sequence[Step], open: Tensor, lead: int) -> Iterator[tuple[int, int, int, float]]:
        """Yields id(source), two places in a part, and where a single number goes. The likeliest come first.

        These are numbers whose own result is not explained, and those that tie in an unexplained part.
        """
        values, rows = self.choices.values(self.decisions), torch.nonzero(open.reshape(-1)).reshape(-1)[:_ROWS]
        for step in sources:

            def of_open(value: Tensor) -> Tensor:
                return value.reshape(open.numel(), -1)[rows]

            x, reach = of_open(self.choices.numbers[id(step)]), 2 * of_open(self.choices.size(step))
            ordered, places = x.sort(-1)
            near = ordered.diff(dim=-1) <= reach.gather(-1, places)[:, 1:]
            weight = torch.zeros_like(x).scatter_(-1, places[:, 1:], near.to(x.dtype))
            weight = weight.scatter_add_(-1, places[:, :-1], near.to(x.dtype)).amax(0)
            for name in [name for name in self.got if values[name].shape == step.shape]:
                weight = weight + 4.0 * (of_open(self._excess(name, values[name])) > 1.0).any(0)
            chosen = weight.sort(descending=True, stable=True).indices[:_PLACES].tolist()
            for at, place in enumerate(chosen):  # no two go to the same end
                yield from ((id(step), place, place, way * (2.0 + at / _PLACES)) for way in (1.0, -1.0))
            x, reach = x[:, chosen], reach[:, chosen]
            tied = ((x[:, :, None] - x[:, None]).abs() <= reach[:, :, None]).any(0).tolist()
            pairs = ((i, j) for j in range(len(chosen)) for i in range(j) if tied[i][j])
            yield from ((id(step), chosen[i], chosen[j], 0.0) for i, j in pairs)

    def _cost(self, values: Mapping[str, Tensor], lead: int) -> Tensor:
        """Returns how far the results of each part are away, all of them together. 0: they are explained."""
        found = torch.zeros(self._grid(lead), dtype=torch.float64, device=self.choices.run.device)
        for name in self.got:
            excess = self._excess(name, values[name])
            if tuple(excess.shape[:lead]) == self._grid(lead):
                each = torch.where(excess > 1.0, excess.clamp(max=1e300).log1p(), 0.0)
                found = found + (each.flatten(lead).sum(-1) if each.ndim > lead else each)
        return found

    def is_explained(self, values: Mapping[str, Tensor]) -> bool:
        """True if no result is further from the program's than roundings explain."""
        return all(not bool((self._excess(name, values[name]) > 1.0).any()) for name in self.got)

    def _excess(self, name: str, value: Tensor) -> Tensor:
        """Returns how far each element of a result is from a value, in units of what roundings explain."""
        got = self.got[name].reshape(value.shape)
        if not self.choices.program.results[name].real:
            same = got.to(torch.float64) == value.to(torch.float64)
            return torch.where(same, 0.0, math.inf).to(torch.float64)
        kind = torch.finfo(got.dtype)
        got, value = got.to(torch.float64), value.to(torch.float64)
        noise = self.choices.noise.get(name)
        spacing = value.abs() * kind.eps + kind.tiny * kind.eps
        unit = spacing if noise is None else spacing + 2 * noise.nan_to_num(0.0, 0.0, 0.0)
        apart = ((got - value).abs() / unit).nan_to_num(math.inf, math.inf)
        same = (got == value) | (torch.isnan(got) & torch.isnan(value))
        return torch.where(same, 0.0, apart)

    def _barred(self, taken: Taken, lead: int) -> Tensor:
        """Returns a mask of the parts in which a choice changes an output at an exact tie, which has one value."""
        choices, outputs = self.choices, self.choices.outputs
        nothing = torch.zeros(self._grid(lead), dtype=torch.bool, device=choices.run.device)
        if all(torch.equal(taken.decisions[key], plain) for key, plain in taken.plain.items()):
            return nothing
        turned_values, plain = (choices.values(each, outputs) for each in (taken.decisions, taken.plain))
        for name in outputs:
            apart = _differ(turned_values[name], plain[name])
            if lead and tuple(apart.shape[:lead]) != self._grid(lead):
                nothing = nothing | apart.any()
            else:
                nothing = nothing | (apart.flatten(lead).any(-1) if apart.ndim > lead else apart)
        return nothing

    def _grid(self, lead: int) -> tuple[int, ...]:
        return self.choices.deciding[0].shape[:lead] if lead else ()

    def _independent(self) -> int:
        """Returns the number of leading dimensions along which choices may differ.

        Evaluates a mixture of two choices: its results must be those of the choice that each part has.
        """
        choices = self.choices
        steps = choices.deciding
        shapes = [step.shape[:-1] if type(step) is Order else step.shape for step in steps]  # an order is one decision
        lead = min(map(len, shapes))
        while lead and any(shape[:lead] != shapes[0][:lead] for shape in shapes):
            lead -= 1
        if not lead:
            return 0
        generator = torch.Generator(choices.run.device).manual_seed(1)
        drawn = iter(choices.directions({}))
        taken = [choices.taken(next(drawn)) for _ in range(2)]
        pair, made = [each.decisions for each in taken], [each.values for each in taken]
        for count in range(lead, 0, -1):
            grid = shapes[0][:count]
            coins = torch.rand(grid, device=choices.run.device, generator=generator) < 0.5

            def mixed(one: Tensor, other: Tensor, coins: Tensor = coins) -> Tensor:
                return torch.where(_beside(coins, one), one, other)

            both = {id(step): mixed(pair[0][id(step)], pair[1][id(step)]) for step in steps}
            values = choices.values(both)
            fits = [name for name, value in values.items() if tuple(value.shape[:count]) == grid]
            if fits and not any(
                bool(_differ(values[name], mixed(made[0][name], made[1][name])).any()) for name in fits
            ):
                return count
        return 0


def _beside(mask: Tensor, whole: Tensor) -> Tensor:
    """Returns a mask of the leading dimensions of a tensor, broadcast to the others."""
    return mask.reshape((*mask.shape, *[1] * (whole.ndim - mask.ndim)))


def _mixed(mask: Tensor, some: Decisions, other: Decisions) -> Decisions:
    """Returns some decisions in the parts of a mask, and others elsewhere."""
    return {key: torch.where(_beside(mask, each), each, other[key]) for key, each in some.items()}


def _differ(one: Tensor, other: Tensor) -> Tensor:
    """Returns a mask of the elements that differ by more than float64's roundings."""
    if not one.is_floating_point():
        return one != other
    apart = (one - other).abs() > _AWAY * (one.abs() + other.abs())
    return apart & ~(torch.isnan(one) & torch.isnan(other)) | (torch.isnan(one) != torch.isnan(other))
