"""Edits candidates, and makes fresh ones.

One edit changes one number of an operand, a stretch of its numbers, or all of them. Candidates are
ordinals, so every edit is integer arithmetic. Edits of one number climb, because the error often changes little between
neighbours. The same edits of a stretch or of all numbers reach inputs that break rows: sums that cancel, terms that are
absorbed, variances near zero.

Fresh candidates start every climb. They follow the recipes of `verify run`, mixed over a population. The search is
compared with them: a hunt whose candidates are all fresh is random sampling.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from verify.cases.scores import RECIPES as SCORE_RECIPES
from verify.cases.scores import fill_scores
from verify.cases.values import ROW_REGIMES, fill
from verify.search.hunt.draws import Draws
from verify.search.hunt.space import Candidates, SearchSpace, Variable, size_of, whole_numbers
from verify.truth.ordinals import of_tensor


@dataclass(frozen=True)
class Lines:
    """Holds the numbers of one operand in some candidates, one candidate per line, and all that an edit may use."""

    own: Tensor
    mate: Tensor  # numbers of the same operand in other parents
    partner: Tensor  # numbers of a similar operand of the same candidates; `mate` if there is none
    variable: Variable
    landmarks: Tensor  # ordinals
    draws: Draws

    @property
    def count(self) -> int:
        return int(self.own.shape[0])

    @property
    def size(self) -> int:
        return int(self.own.shape[1])

    def sign(self) -> Tensor:
        """Returns +1 or -1 for each line."""
        return self.draws.sign(self.count)[:, None]

    def below(self, limit: int) -> Tensor:
        """Returns an integer in [0, limit) for each line."""
        return self.draws.below(self.count, limit)[:, None]

    def step(self, octaves: int) -> Tensor:
        """Returns a distance for each line, up to 2^octaves, every octave equally likely."""
        return self.draws.step(self.count, octaves)[:, None]

    def signed(self, magnitude: Tensor) -> Tensor:
        """Returns the magnitudes with the signs of the line's numbers."""
        return torch.where(self.own < 0, -magnitude, magnitude)


def edit(
    variables: tuple[Variable, ...], parents: Candidates, mates: Candidates, landmarks: Tensor, draws: Draws
) -> None:
    """Edits every candidate of `parents` in place, half of them twice, a quarter three times."""
    count = size_of(parents)
    for share in (1, 2, 4):
        total = max(1, count // share)
        # The first line and the first edit are drawn, so that a small population gets every edit after some
        # generations.
        start, first = int(draws.below(1, count)[0]), int(draws.below(1, len(EDITS))[0])
        for place in range(len(EDITS)):
            low, high = (total * place) // len(EDITS), (total * (place + 1)) // len(EDITS)
            if low == high:
                continue
            variable = variables[int(draws.below(1, len(variables))[0])]
            at = (torch.arange(low, high, device=draws.device) + start) % count
            partner = _partner(variable, variables, draws)
            own, mate = parents[variable.name][at], mates[variable.name][at]
            beside = mate if partner is None else parents[partner.name][at]
            lines = Lines(own, mate, beside, variable, landmarks, draws)
            changed = variable.within(EDITS[(place + first) % len(EDITS)](lines))
            parents[variable.name][at] = torch.where(_places(lines), changed, own)


def _partner(variable: Variable, variables: tuple[Variable, ...], draws: Draws) -> Variable | None:
    """Draws another operand with the same number of elements and the same format. None if there is none."""
    alike = [
        each for each in variables if each is not variable and (each.size, each.fmt) == (variable.size, variable.fmt)
    ]
    return alike[int(draws.below(1, len(alike))[0])] if alike else None


def _places(lines: Lines) -> Tensor:
    """Returns a mask of the numbers that an edit changes: one number of a line, a stretch, or all, equally likely."""
    start, kind = lines.below(lines.size), lines.below(3)
    length = torch.where(kind == 0, 1, torch.where(kind == 1, 1 + lines.below(lines.size), lines.size))
    return (_positions(lines) - start) % lines.size < length


def _positions(lines: Lines) -> Tensor:
    return torch.arange(lines.size, device=lines.own.device)[None, :]


def _step(lines: Lines) -> Tensor:
    """Moves by 1 to 2^mantissa ulps."""
    return lines.own + lines.sign() * lines.step(lines.variable.fmt.mantissa_bits)


def _low_bits(lines: Lines) -> Tensor:
    """Draws the bits below a random position of the mantissa anew."""
    mask = (lines.own.new_ones(()) << lines.below(lines.variable.fmt.mantissa_bits + 1)) - 1
    words = lines.draws.words(lines.own.numel()).reshape(lines.own.shape)
    return lines.signed((lines.own.abs() & ~mask) | (words & mask))


def _flip(lines: Lines) -> Tensor:
    """Flips one bit of the magnitude."""
    return lines.signed(lines.own.abs() ^ (lines.own.new_ones(()) << lines.below(lines.variable.fmt.bits - 1)))


def _exponent(lines: Lines) -> Tensor:
    """Moves to another binade, more often to a near one."""
    fmt = lines.variable.fmt
    octaves = max(1, fmt.bits - fmt.precision - 1)
    moved = lines.own.abs() + lines.sign() * (lines.step(octaves).clamp(max=1 << octaves) << fmt.mantissa_bits)
    return torch.where((moved < 0) | (moved > lines.variable.limit), lines.own, lines.signed(moved))


def _sign(lines: Lines) -> Tensor:
    """Negates all numbers or every second one."""
    return torch.where(_positions(lines) % (1 + lines.below(2)) == 0, -lines.own, lines.own)


def _short(lines: Lines) -> Tensor:
    """Ends the mantissa in zeros or in ones: makes powers of two, ties, and the numbers just below."""
    mask = (lines.own.new_ones(()) << lines.below(lines.variable.fmt.mantissa_bits + 1)) - 1
    magnitude = lines.own.abs()
    return lines.signed(torch.where(lines.below(2) == 1, magnitude | mask, magnitude & ~mask))


def _near(lines: Lines) -> Tensor:
    """Moves to a landmark of the op or to a number near it."""
    centre = lines.landmarks[lines.below(lines.landmarks.shape[0])]
    return (centre + lines.sign() * (lines.step(lines.variable.fmt.mantissa_bits) - 1)).expand(lines.own.shape)


def _mate(lines: Lines) -> Tensor:
    """Takes the numbers of another parent."""
    return lines.mate


def _borrow(lines: Lines) -> Tensor:
    """Takes the numbers of another operand or their negatives, which makes sums cancel exactly."""
    return lines.partner * lines.sign()


def _elsewhere(lines: Lines) -> Tensor:
    """Takes numbers from other positions of the line: rotates the line, or repeats its first few numbers."""
    period = torch.where(lines.below(2) == 0, lines.size, lines.step(lines.size.bit_length() - 1).clamp(max=lines.size))
    return lines.own.gather(1, (_positions(lines) + lines.below(lines.size)) % period) * lines.sign()


def _squeeze(lines: Lines) -> Tensor:
    """Shrinks the distances from the first number, so that the row becomes more constant."""
    first = lines.own[:, :1]
    return first + ((lines.own - first) >> (1 + lines.below(lines.variable.fmt.precision)))


EDITS = (_step, _low_bits, _flip, _exponent, _sign, _short, _near, _mate, _borrow, _elsewhere, _squeeze)


_ELEMENT = ("bits", "active", "near", "normal")
_UPSTREAM = ("normal", "ones", "active", "bits")
# An edit changes signs, so the mirror of "mean 1e3" adds nothing.
_ROWS = (*(name for name in ROW_REGIMES if not name.startswith("mean -")), "bits", "active")
_UPSTREAM_ROWS = ("randn", "constant", "outlier", "alternating", "spread", "ones")
_PLAIN = {"scale": ("around one", "ones", "spread"), "shift": ("around zero", "around one", "spread")}
_SCORED = 4  # one candidate in four is made by the recipes of scores
_MATRIX = ("around zero", "spread", *_ROWS)


def recipes(variable: Variable) -> tuple[str, ...]:
    """Returns the names of the recipes of one variable."""
    if variable.role in _PLAIN:
        return _PLAIN[variable.role]
    if variable.role == "matrix":
        return _MATRIX
    if not variable.row:
        return _UPSTREAM if variable.role == "upstream" else _ELEMENT
    return _UPSTREAM_ROWS if variable.role == "upstream" else _ROWS


def fresh(space: SearchSpace, count: int, draws: Draws) -> Candidates:
    """Returns new candidates. A recipe is drawn for each variable of each candidate.

    If the op has a softmax over products, the recipes of scores make a quarter of the candidates: they fill queries,
    keys and values together.
    """
    found = {
        variable.name: _filled(space, variable, draws.below(count, len(recipes(variable))), draws)
        for variable in space.variables
    }
    for turn, recipe in enumerate(SCORE_RECIPES if space.kernel.op.scores else ()):
        chosen = torch.arange(min(turn, count), count, _SCORED * len(SCORE_RECIPES), device=draws.device)
        _score(space, recipe, found, chosen, draws)
    return found


def _score(space: SearchSpace, recipe: str, found: Candidates, chosen: Tensor, draws: Draws) -> None:
    """Fills the queries, keys and values of the chosen candidates by a recipe of scores."""
    joint, parts = draws.stream().name, space.kernel.op.scores or {}
    for variable in space.variables:
        if variable.name in parts and chosen.numel():
            part = parts[variable.name]
            moved = replace(part, tokens=part.tokens + 1, features=part.features + 1 if part.features >= 0 else -1)
            shape = (int(chosen.numel()), *variable.shape)
            made = fill_scores(recipe, moved, variable.fmt, shape, draws.stream(), joint)
            ordinals = of_tensor(made, variable.fmt).reshape(-1, variable.size)
            found[variable.name][chosen] = variable.within(ordinals)


def fresh_shared(space: SearchSpace, turn: int, draws: Draws) -> Candidates:
    """Makes the shared variables and integer operands of a climb. Each turn uses the next recipe of each variable."""
    found = whole_numbers(space.kernel, space.layout.dims, draws)
    for variable in space.shared:
        chosen = torch.full((1,), turn % len(recipes(variable)), dtype=torch.int64, device=draws.device)
        found[variable.name] = _filled(space, variable, chosen, draws)
    return found


def _filled(space: SearchSpace, variable: Variable, chosen: Tensor, draws: Draws) -> Tensor:
    """Returns one line of ordinals for each entry of `chosen`, which holds numbers of recipes."""
    landmarks = space.landmarks
    ordinals = torch.zeros(chosen.shape[0], variable.size, dtype=torch.int64, device=draws.device)
    for number, name in enumerate(recipes(variable)):
        lines = torch.nonzero(chosen == number).reshape(-1)
        shape = (int(lines.numel()) * variable.lines, variable.size // variable.lines)
        made = fill(name, variable.fmt, shape, draws.stream(), landmarks=landmarks)
        ordinals[lines] = of_tensor(made, variable.fmt).reshape(-1, variable.size)
    return variable.within(ordinals)
