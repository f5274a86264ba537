"""How a candidate changes: bits, ulps and exponents of single numbers; shapes and scales of whole rows.

Every operator takes some lines of one gene and gives as many back. Operators on numbers climb: the figure that
is searched often changes little between neighbours. Operators on rows jump between regimes, where most of the
damage is: cancellation, absorption, a squeezed variance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from verify.hunt.draws import Draws
from verify.hunt.ordinals import of_float64, to_float64
from verify.hunt.space import Gene, Population, size_of
from verify.truth.formats import Format


@dataclass(frozen=True)
class Lines:
    """Some candidates' numbers of one gene, the same gene of other parents, and what the operators may use."""

    own: Tensor
    mate: Tensor
    fmt: Format
    limit: int  # the largest ordinal
    landmarks: Tensor  # ordinals
    draws: Draws

    @property
    def count(self) -> int:
        return int(self.own.shape[0])

    @property
    def size(self) -> int:
        return int(self.own.shape[1])


Operator = Callable[[Lines], Tensor]


def mutate(genes: tuple[Gene, ...], parents: Population, mates: Population, landmarks: Tensor, draws: Draws) -> None:
    """Change every candidate of `parents` in place, half of them twice, a quarter three times.

    `landmarks` are ordinals in the format of the first gene.
    """
    count = size_of(parents)
    jobs: list[tuple[Gene, Operator | None]] = [(gene, operator) for gene in genes for operator in _operators(gene)]
    jobs += [(gene, None) for gene in genes for other in genes if other is not gene]
    for share in (1, 2, 4):
        order = int(draws.below(1, len(jobs))[0])
        # whose turn it is moves on, so that a small population meets every operator in time
        start = int(draws.below(1, count)[0])
        total = max(1, count // share)
        for place in range(len(jobs)):
            gene, operator = jobs[(place + order) % len(jobs)]
            low, high = (total * place) // len(jobs), (total * (place + 1)) // len(jobs)
            if low == high:
                continue
            lines = (torch.arange(low, high, device=draws.device) + start) % count
            own, mate = parents[gene.name][lines], mates[gene.name][lines]
            view = Lines(own, mate, gene.fmt, gene.limit, landmarks, draws)
            changed = operator(view) if operator is not None else _borrow(view, parents, gene, genes, lines)
            parents[gene.name][lines] = gene.within(changed)


def _operators(gene: Gene) -> tuple[Operator, ...]:
    return NUMBERS if not gene.row else (*NUMBERS, *ROWS)


def _borrow(view: Lines, parents: Population, gene: Gene, genes: tuple[Gene, ...], lines: Tensor) -> Tensor:
    """The numbers of another gene of the same candidate, or their negatives: sums that cancel exactly."""
    fits = [each for each in genes if each is not gene and each.size == gene.size and each.fmt == gene.fmt]
    if not fits:
        return view.mate  # no gene like it: the whole gene of another parent
    other = fits[int(view.draws.below(1, len(fits))[0])]
    return parents[other.name][lines] * view.draws.sign(view.count)[:, None]


# -- single numbers ------------------------------------------------------------------------------------


def _at_one(change: Callable[[Lines, Tensor], Tensor]) -> Operator:
    """An operator on one random number of every line."""

    def operator(lines: Lines) -> Tensor:
        place = lines.draws.below(lines.count, lines.size)[:, None]
        old = lines.own.gather(1, place)[:, 0]
        return lines.own.scatter(1, place, change(lines, old).clamp(-lines.limit, lines.limit)[:, None])

    return operator


def _signed_like(magnitude: Tensor, old: Tensor) -> Tensor:
    return torch.where(old < 0, -magnitude, magnitude)


def _step(lines: Lines, old: Tensor) -> Tensor:
    """Up or down by 1 to 2^mantissa ulps, every octave of distance as likely."""
    return old + lines.draws.sign(lines.count) * lines.draws.step(lines.count, lines.fmt.mantissa_bits)


def _flip(lines: Lines, old: Tensor) -> Tensor:
    """One bit of the magnitude."""
    place = lines.draws.below(lines.count, lines.fmt.bits - 1)
    return _signed_like(old.abs() ^ (old.new_ones(()) << place), old)


def _mantissa(lines: Lines, old: Tensor) -> Tensor:
    """Another number of the same binade."""
    mask = (1 << lines.fmt.mantissa_bits) - 1
    return _signed_like((old.abs() & ~mask) | (lines.draws.words(lines.count) & mask), old)


def _low_bits(lines: Lines, old: Tensor) -> Tensor:
    """Fresh low bits below a random place."""
    place = lines.draws.below(lines.count, lines.fmt.mantissa_bits + 1)
    mask = (old.new_ones(()) << place) - 1
    return _signed_like((old.abs() & ~mask) | (lines.draws.words(lines.count) & mask), old)


def _exponent(lines: Lines, old: Tensor) -> Tensor:
    """The same mantissa in another binade, near ones more often."""
    octaves = max(1, lines.fmt.bits - lines.fmt.precision - 1)
    by = lines.draws.sign(lines.count) * lines.draws.step(lines.count, octaves)
    moved = old.abs() + by.clamp(-(1 << octaves), 1 << octaves) * (1 << lines.fmt.mantissa_bits)
    # wrapped in 64 bits, or below the smallest: stay
    return torch.where((moved < 0) | (moved > lines.limit), old, _signed_like(moved, old))


def _sign(lines: Lines, old: Tensor) -> Tensor:
    """The other side of zero."""
    return -old


def _short(lines: Lines, old: Tensor) -> Tensor:
    """A mantissa that ends in zeros or in ones: powers of two, ties, and the numbers just below."""
    place = lines.draws.below(lines.count, lines.fmt.mantissa_bits + 1)
    mask = (old.new_ones(()) << place) - 1
    ones = lines.draws.below(lines.count, 2) == 1
    magnitude = old.abs()
    return _signed_like(torch.where(ones, magnitude | mask, magnitude & ~mask), old)


def _near(lines: Lines, old: Tensor) -> Tensor:
    """A landmark of the op, or a few ulps to quadrillions beside it."""
    centre = lines.landmarks[lines.draws.below(lines.count, lines.landmarks.shape[0])]
    away = lines.draws.step(lines.count, lines.fmt.mantissa_bits) - 1
    return centre + lines.draws.sign(lines.count) * away


def _copied(lines: Lines, old: Tensor) -> Tensor:
    """Another number of the line, or of another parent's."""
    place = lines.draws.below(lines.count, lines.size)[:, None]
    inner = lines.draws.below(lines.count, 2) == 1
    found = torch.where(inner, lines.own.gather(1, place)[:, 0], lines.mate.gather(1, place)[:, 0])
    return found * lines.draws.sign(lines.count)


NUMBERS: tuple[Operator, ...] = tuple(
    _at_one(change)
    for change in (_step, _step, _mantissa, _mantissa, _low_bits, _flip, _exponent, _sign, _short, _near, _copied)
)


# -- whole rows ----------------------------------------------------------------------------------------


def _positions(lines: Lines) -> Tensor:
    return torch.arange(lines.size, device=lines.own.device)[None, :]


def _power(exponent: Tensor) -> Tensor:
    return ((exponent + 1023) << 52).view(torch.float64)


def _scale(lines: Lines) -> Tensor:
    """All numbers times one power of two."""
    by = lines.draws.sign(lines.count) * lines.draws.step(lines.count, 5)
    return of_float64(to_float64(lines.own, lines.fmt) * _power(by)[:, None], lines.fmt)


def _shift(lines: Lines) -> Tensor:
    """One number added to all, from far below the largest of them to far above."""
    values = to_float64(lines.own, lines.fmt)
    by = lines.draws.below(lines.count, 2 * lines.fmt.precision) - lines.fmt.precision
    size = values.abs().amax(1) * _power(by) * (0.5 + lines.draws.uniform(lines.count))
    return of_float64(values + (size * lines.draws.sign(lines.count))[:, None], lines.fmt)


def _squeeze(lines: Lines) -> Tensor:
    """Distances from the row's first number shrunk: towards a constant row."""
    values = to_float64(lines.own, lines.fmt)
    centre = values[:, :1]
    by = lines.draws.below(lines.count, lines.fmt.precision) + 1
    return of_float64(centre + (values - centre) * _power(-by)[:, None], lines.fmt)


def _noise(lines: Lines) -> Tensor:
    """Every number a few ulps away, as many octaves for the whole row."""
    octave = lines.draws.below(lines.count, lines.fmt.mantissa_bits)[:, None]
    span = (octave.new_ones(()) << octave) * 2
    words = (lines.draws.words(lines.own.numel()) >> 2).reshape(lines.own.shape)
    return lines.own + words % span - span // 2


def _mantissas(lines: Lines) -> Tensor:
    """Other numbers of the same binades and signs."""
    mask = (1 << lines.fmt.mantissa_bits) - 1
    words = lines.draws.words(lines.own.numel()).reshape(lines.own.shape)
    return _signed_like((lines.own.abs() & ~mask) | (words & mask), lines.own)


def _extremes(lines: Lines) -> Tensor:
    """Up to four numbers replaced by one that dwarfs the row."""
    values = to_float64(lines.own, lines.fmt)
    by = lines.draws.below(lines.count, 2 * lines.fmt.precision)
    large = values.abs().amax(1) * _power(by) * lines.draws.sign(lines.count)
    changed = values
    for _ in range(1 + int(lines.draws.below(1, 4)[0])):
        place = lines.draws.below(lines.count, lines.size)[:, None]
        changed = changed.scatter(1, place, (large * lines.draws.sign(lines.count))[:, None])
    return of_float64(changed, lines.fmt)


def _cross(lines: Lines) -> Tensor:
    """A stretch of another parent's row."""
    start = lines.draws.below(lines.count, lines.size)[:, None]
    length = lines.draws.below(lines.count, lines.size)[:, None] + 1
    inside = (_positions(lines) - start) % lines.size < length
    return torch.where(inside, lines.mate, lines.own)


def _roll(lines: Lines) -> Tensor:
    """The same numbers elsewhere: sums are taken in another order."""
    by = lines.draws.below(lines.count, lines.size)[:, None]
    return lines.own.gather(1, (_positions(lines) + by) % lines.size)


def _sorted(lines: Lines) -> Tensor:
    """The same numbers in order of size."""
    order = torch.argsort(lines.own.abs(), dim=1, stable=True)
    return lines.own.gather(1, order)


def _repeat(lines: Lines) -> Tensor:
    """The first few numbers over and over."""
    period = lines.draws.step(lines.count, max(1, lines.size.bit_length() - 1)).clamp(max=lines.size)[:, None]
    return lines.own.gather(1, _positions(lines) % period)


def _mirror(lines: Lines) -> Tensor:
    """The second half is the first, or its negative."""
    half = lines.size - lines.size // 2
    copied = lines.own[:, : lines.size // 2] * lines.draws.sign(lines.count)[:, None]
    return torch.cat([lines.own[:, :half], copied], dim=1)


def _sparse(lines: Lines) -> Tensor:
    """Most numbers become zero, or the row's first."""
    kept = lines.draws.below(lines.own.numel(), 1 << 16).reshape(lines.own.shape)
    rare = (1 << lines.draws.below(lines.count, 15))[:, None]
    rest = lines.own[:, :1] * lines.draws.below(lines.count, 2)[:, None]
    return torch.where(kept < rare, lines.own, rest)


def _alternate(lines: Lines) -> Tensor:
    """Every other sign changed."""
    return torch.where(_positions(lines) % 2 == 0, lines.own, -lines.own)


ROWS: tuple[Operator, ...] = (
    _scale,
    _shift,
    _shift,
    _squeeze,
    _noise,
    _noise,
    _mantissas,
    _extremes,
    _cross,
    _cross,
    _roll,
    _sorted,
    _repeat,
    _mirror,
    _sparse,
    _alternate,
)
