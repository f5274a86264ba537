"""Defines value recipes: named ways to fill a tensor, with the same bits on every device.

Element recipes make bit patterns of the dtype, so that every exponent occurs, including subnormals. Row recipes work
along the last dimension: large mean, constant row, one outlier. A recipe is a pure function of `Wanted`: the format,
the size, the stream and the landmarks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

import torch
from torch import Tensor

from verify.cases import blocks, counter
from verify.errors import UsageError
from verify.ops.domain import Domain
from verify.truth.formats import Format, of, torch_dtype
from verify.truth.ordinals import between, moved_inside, to_tensor
from verify.truth.ulp import from_bits, widen

Shape = tuple[int, ...]

_PERIOD = 61  # period of repeated rows: a prime, so that no block of a kernel repeats with it
POOLED = 1 << 16  # numbers of a pool: every pattern of 16 bits
SMALL = 1 << 12  # up to this many elements, a GPU takes longer to launch the operations than a CPU to compute them


@dataclass(frozen=True)
class Stream:
    """Makes random words of one named stream, the same on every device. `part` selects another stream beside it."""

    seed: int
    name: str
    device: torch.device

    def words(self, count: int, part: str = "") -> Tensor:
        """Returns 64-bit words as int64."""
        return counter.words(self.seed, self._named(part), count, device=self.device)

    def below(self, count: int, limit: int, part: str = "") -> Tensor:
        """Returns integers in [0, limit)."""
        return counter.below(self.seed, self._named(part), count, limit, device=self.device)

    def uniform(self, count: int) -> Tensor:
        """Returns float64 numbers in [0, 1)."""
        return counter.uniform(self.seed, self.name, count, device=self.device)

    def bell(self, count: int) -> Tensor:
        """Returns nearly normal float64 numbers."""
        return counter.bell(self.seed, self.name, count, device=self.device)

    def beside(self, part: str) -> Stream:
        """Returns the stream of a part."""
        return replace(self, name=self._named(part))

    def _named(self, part: str) -> str:
        return f"{self.name}/{part}" if part else self.name


@dataclass(frozen=True)
class Wanted:
    """Describes the numbers of a recipe: rows of a width in float64, or `count` numbers of the format, of width 1.

    `landmarks` are the op's boundaries.
    """

    fmt: Format
    count: int
    width: int
    stream: Stream
    landmarks: tuple[float, ...]

    @property
    def device(self) -> torch.device:
        """Returns the device of the numbers."""
        return self.stream.device

    def beside(self, part: str) -> Wanted:
        """Returns the same of another stream."""
        return replace(self, stream=self.stream.beside(part))

    def bell(self) -> Tensor:
        """Returns nearly normal rows."""
        return self.stream.bell(self.count * self.width).reshape(self.count, self.width)

    def levels(self) -> Tensor:
        """Returns one number in [0, 1) for each row, as a column."""
        return self.stream.uniform(self.count)[:, None]


Recipe = Callable[[Wanted], Tensor]


def fill(
    recipe: str, fmt: Format, shape: Shape, stream: Stream, *, landmarks: Sequence[float] = (), shared: bool = False
) -> Tensor:
    """Returns a tensor of a format filled by a recipe.

    `landmarks` are the op's boundaries, for "near" and "mixed".

    A small tensor is made on the CPU, with the same bits: there its many operations cost less than their launches. It
    is cached, because a law builds one case several times. With `shared` the cached tensor itself is returned, and the
    caller must not write to it.
    """
    if math.prod(shape) > SMALL:
        return _filled(recipe, fmt, shape, stream, tuple(landmarks))
    kept = _small(recipe, fmt, shape, replace(stream, device=torch.device("cpu")), tuple(landmarks))
    if shared:
        return kept
    # non_blocking is safe: ordinary memory is read before the call returns, and callers do not write to the cached
    # tensor
    return kept.to(stream.device, copy=True, non_blocking=True)


def within(values: Tensor, fmt: Format, largest: float) -> Tensor:
    """Replaces values beyond a magnitude by the largest number within it. NaN remains."""
    bits = min(fmt.from_float(largest), fmt.max_bits)
    bits -= fmt.to_float(bits) > largest
    end = fmt.to_float(bits)
    wide = widen(values)
    return torch.where(wide.abs() > largest, torch.copysign(torch.full_like(wide, end), wide), wide).to(values.dtype)


def inside(values: Tensor, domain: Domain, largest: float = math.inf, *, recipe: str = "") -> Tensor:
    """Moves values into a domain and within a magnitude by steps of the format: see `folded`.

    By a recipe of `WITH_ENDS`, the first and the last element become the bounds of the domain, if the format has these
    numbers. By one of `AT_BOUNDS` all become the first or the last number inside, if the domain has that bound.
    """
    fmt = of(values.dtype)
    span = between(fmt, max(domain.low, -largest), min(domain.high, largest))
    if span is None:
        raise UsageError(f"{fmt.name} has no number with {domain.text} and a magnitude up to {largest:g}")
    if recipe in AT_BOUNDS and domain.bounds[place := AT_BOUNDS.index(recipe)]:
        return to_tensor(torch.tensor([span[place]]), fmt).to(values.device).expand(values.shape).contiguous()
    made = moved_inside(values, fmt, *span)
    if recipe in WITH_ENDS and made.numel() > 1:
        for place, at, bound in ((0, span[0], domain.low), (-1, span[1], domain.high)):
            number = to_tensor(torch.tensor([at]), fmt).to(made.device)
            if float(widen(number)) == bound:
                made.view(-1)[place] = number[0]
    return made


@lru_cache(maxsize=64)
def _small(recipe: str, fmt: Format, shape: Shape, stream: Stream, landmarks: tuple[float, ...]) -> Tensor:
    made = _filled(recipe, fmt, shape, stream, landmarks)
    # a storage of its own, so that copying it copies nothing else
    return made if made.untyped_storage().nbytes() == made.numel() * made.element_size() else made.clone()


def row_recipe(name: str) -> Recipe | None:
    """Returns a recipe of rows by name; None if there is none.

    `near 1e-06` has numbers of that size. With a recipe of `AT_BOUNDS`, operands without a domain are ordinary.
    """
    if name in AT_BOUNDS:
        return ROW["randn"]
    if name == POOL:
        return _pool
    if name.startswith(NEAR) and 0 < (size := _number(name.removeprefix(NEAR))) < math.inf:
        # down to a 64th of it: the length of a long row is on both sides of the size too
        return lambda wanted: wanted.bell() * (size * torch.exp2(-6.0 * wanted.levels()))
    return ROW.get(name)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _filled(recipe: str, fmt: Format, shape: Shape, stream: Stream, landmarks: tuple[float, ...]) -> Tensor:
    count = math.prod(shape)
    if recipe.startswith("block "):
        return blocks.filled(recipe, fmt, shape).to(stream.device)
    if recipe in ELEMENT:
        return ELEMENT[recipe](Wanted(fmt, count, 1, stream, landmarks)).reshape(shape)
    if (of_rows := row_recipe(recipe)) is not None:
        width = shape[-1] if shape else 1
        values = of_rows(Wanted(fmt, count // width if width else 0, width, stream, landmarks))
        limit = float(fmt.max_finite)
        values = values if recipe in ENDLESS else values.clamp_(-limit, limit)
        return values.to(torch_dtype(fmt)).reshape(shape)
    known = ", ".join(sorted([*ELEMENT, *ROW]))
    raise UsageError(f"unknown value recipe {recipe!r}; the recipes are: {known}")


# -- element recipes ---------------------------------------------------------------------------------------


def special_patterns(fmt: Format) -> list[int]:
    """Returns every kind of special value: zeros, subnormal ends, normal ends, one, infinities, NaN; both signs."""
    normal, one, most = 1 << fmt.mantissa_bits, fmt.from_float(1.0), fmt.max_bits
    positive = [0, 1, 2, normal - 1, normal, one - 1, one, one + 1, most - 1, most]
    positive += [fmt.inf_bits] if fmt.has_inf else []
    return [*positive, *(bits | fmt.sign_bit for bits in positive), fmt.nan_bits]


def nan_patterns(fmt: Format) -> list[int]:
    """Returns the usual NaN, and one with a sign and another payload, if the format has it."""
    other = fmt.nan_bits | fmt.sign_bit | 1
    return [fmt.nan_bits, other] if fmt.is_nan(other) and other != fmt.nan_bits else [fmt.nan_bits]


def landmark_patterns(fmt: Format, landmarks: Sequence[float]) -> list[int]:
    """Returns the patterns within four steps of each landmark."""
    near = [centre + step for centre in _ordinals(fmt, tuple(landmarks)) for step in range(-4, 5)]
    return [fmt.from_ordinal(min(max(each, -fmt.max_bits), fmt.max_bits)) for each in near]


@lru_cache
def _ordinals(fmt: Format, landmarks: tuple[float, ...]) -> tuple[int, ...]:
    """Returns the ordinals of the landmarks that a format can hold. They are the same for every case."""
    held = [x for x in landmarks if math.isfinite(x) and abs(x) <= fmt.max_finite]
    return tuple(fmt.ordinal(fmt.round(Fraction(x))) for x in held)


def _bits(wanted: Wanted) -> Tensor:
    fmt, words = wanted.fmt, wanted.stream.words(wanted.count)
    return from_bits(words if fmt.bits == 64 else (words >> 7) & ((1 << fmt.bits) - 1), fmt)


def _active(wanted: Wanted) -> Tensor:
    """Returns log-uniform magnitudes over 2^-20 .. 2^7, where activation functions bend."""
    fmt, count, stream = wanted.fmt, wanted.count, wanted.stream
    low = fmt.from_float(2.0**-20) if fmt.value(1) < Fraction(2) ** -20 else 1
    high = fmt.from_float(min(128.0, float(fmt.max_finite)))
    offset = stream.below(count, min(high - low, 1 << 31))
    if high - low >= 1 << 31:
        offset = offset * ((high - low) >> 31)
    return to_tensor((offset + low) * (1 - 2 * stream.below(count, 2, "sign")), fmt)


def _near(wanted: Wanted) -> Tensor:
    """Returns numbers around the landmarks, at distances spread log-uniformly over half the mantissa."""
    fmt, count, stream = wanted.fmt, wanted.count, wanted.stream
    ordinals = _ordinals(fmt, wanted.landmarks) or (0,)
    centres = torch.tensor(ordinals, dtype=torch.int64, device=wanted.device)
    which = stream.below(count, len(ordinals))
    octave = stream.below(count, max(fmt.mantissa_bits - 2, 2), "octave")
    span = torch.bitwise_left_shift(torch.ones_like(octave), octave)
    distance = span - 1 + stream.below(count, 1 << 31, "within") % span
    away = stream.below(count, 2, "side") * 2 - 1
    ordinal = (centres[which] + away * distance).clamp(-fmt.max_bits, fmt.max_bits)
    return to_tensor(ordinal, fmt)


def _normal(wanted: Wanted) -> Tensor:
    return wanted.stream.bell(wanted.count).to(torch_dtype(wanted.fmt))


def _mixed(wanted: Wanted) -> Tensor:
    """Returns specials and landmark neighbours first, then bit patterns, active range, landmarks and normal in turn."""
    heads = torch.tensor(_heads(wanted.fmt, wanted.landmarks), dtype=torch.int64, device=wanted.device)
    head = from_bits(heads, wanted.fmt)[: wanted.count]
    rest = wanted.count - head.numel()
    quarter = -(-rest // 4)
    makers = {"bits": _bits, "active": _active, "near": _near, "normal": _normal}
    parts = [maker(replace(wanted.beside(name), count=quarter)).reshape(-1) for name, maker in makers.items()]
    return torch.cat([head, torch.stack(parts, dim=1).reshape(-1)[:rest]])


@lru_cache
def _heads(fmt: Format, landmarks: tuple[float, ...]) -> tuple[int, ...]:
    """Returns the special patterns and those around the landmarks, as signed integers."""
    return tuple(map(fmt.signed, [*special_patterns(fmt), *landmark_patterns(fmt, landmarks)]))


def _shuffled(wanted: Wanted) -> Tensor:
    """Returns the "mixed" values in another order, so that two operands do not have them in step."""
    order = torch.argsort(wanted.stream.words(wanted.count, "order"), stable=True)
    return _mixed(wanted)[order]


ELEMENT: dict[str, Recipe] = {
    "patterns": lambda wanted: from_bits(
        torch.arange(wanted.count, device=wanted.device) % (1 << min(wanted.fmt.bits, 62)), wanted.fmt
    ),
    "bits": _bits,
    "active": _active,
    "near": _near,
    "normal": _normal,
    "mixed": _mixed,
    "shuffled": _shuffled,
    "ones": lambda wanted: torch.ones(wanted.count, dtype=torch_dtype(wanted.fmt), device=wanted.device),
}


# -- row recipes -------------------------------------------------------------------------------------------


def _bell(*, times: float = 1.0, plus: float = 0.0) -> Recipe:
    return lambda wanted: wanted.bell().mul_(times).add_(plus)  # in place: it may fill gigabytes


def _outlier(wanted: Wanted) -> Tensor:
    values = wanted.bell()
    if wanted.width:
        place = wanted.stream.below(wanted.count, wanted.width, "place")
        values[torch.arange(wanted.count, device=wanted.device), place] = 1.0e4
    return values


def _lone_outlier(wanted: Wanted) -> Tensor:
    """Returns rows of which one has an outlier: a kernel that looks for large numbers elsewhere does not see it."""
    values = wanted.bell()
    if values.numel():
        values.view(-1)[wanted.stream.below(1, values.numel(), "place")] = 1.0e4
    return values


def _repeated(wanted: Wanted) -> Tensor:
    """Returns a few rows repeated, so that sums over a million rows are known exactly in seconds."""
    few = replace(wanted, count=min(wanted.count, _PERIOD)).bell()
    return few[torch.arange(wanted.count, device=wanted.device) % _PERIOD]


def _pool(wanted: Wanted) -> Tensor:
    """Returns the finite numbers of a pool, in an order of each operand: every pattern of 16 bits, or `mixed` ones."""
    every = replace(wanted, count=POOLED, width=1)
    numbers = widen(ELEMENT["patterns" if wanted.fmt.bits <= 16 else "mixed"](every)).double()
    numbers = torch.where(numbers.isfinite(), numbers, every.bell()[:, 0])
    chosen = numbers[torch.argsort(wanted.stream.words(POOLED, "order"), stable=True)]
    turn = torch.arange(wanted.count * wanted.width, device=wanted.device) % POOLED
    return chosen[turn].reshape(wanted.count, wanted.width)


def _cancelling(wanted: Wanted) -> Tensor:
    """Returns rows with a sum of 0, of numbers with spread exponents: the result is what the roundings leave."""
    half = wanted.width // 2
    spread = _spread(replace(wanted, width=half))
    order = torch.argsort(wanted.stream.words(half, "order"), stable=True)
    return torch.cat([spread, -spread[:, order], spread.new_zeros(wanted.count, wanted.width % 2)], dim=1)


def _columns(wanted: Wanted) -> Tensor:
    return torch.arange(wanted.width, device=wanted.device)[None, :]


def _spread(wanted: Wanted) -> Tensor:
    """Returns rows with exponents spread over 2^-20 .. 2^20."""
    exponent = wanted.stream.below(wanted.count * wanted.width, 41, "exponent") - 20
    power = ((exponent + 1023) << 52).view(torch.float64).reshape(wanted.count, wanted.width)
    return wanted.bell().mul_(power)


def _confident(wanted: Wanted) -> Tensor:
    """Returns rows with one logit 9 to 17 above the others: among five its softmax is from 0.9994 to 1 - 2^-22.

    It is the first of the first row and the last of the last, as the labels of such a case are.
    """
    values = wanted.bell() * 0.25
    if wanted.width and wanted.count:
        place = wanted.stream.below(wanted.count, wanted.width, "place")
        place[0], place[-1] = 0, wanted.width - 1
        values[torch.arange(wanted.count, device=wanted.device), place] = 9.0 + 8.0 * wanted.levels()[:, 0]
    return values


def _uniform(wanted: Wanted) -> Tensor:
    return wanted.stream.uniform(wanted.count * wanted.width).reshape(wanted.count, wanted.width)


def _one_hot(wanted: Wanted) -> Tensor:
    """Returns rows with one 1 and zeros."""
    place = wanted.stream.below(wanted.count, max(wanted.width, 1), "place")
    return (_columns(wanted) == place[:, None]).double()


def _powers(wanted: Wanted) -> Tensor:
    """Returns powers of two from 2^-8 to 2^8 of both signs: products of these are exact."""
    count = wanted.count * wanted.width
    exponent = wanted.stream.below(count, 17, "exponent") - 8
    sign = 1 - 2 * wanted.stream.below(count, 2, "sign")
    return torch.ldexp(sign.double(), exponent).reshape(wanted.count, wanted.width)


def _medley(wanted: Wanted) -> Tensor:
    """Returns rows of which each has another property that a fast path may look for.

    They are equal, nearly equal, all negative, rising, ordinary but for a 0.5, of alternating signs, or one-hot.
    """
    bell, level = wanted.bell(), wanted.levels() + 0.5
    ramp = _columns(wanted).double().expand_as(bell)
    kinds = [
        ((8 * level).round() / 8).expand_as(bell),  # sums of these are exact in any order
        level + bell * 2.0**-9,
        -bell.abs() - level,
        level * ramp / max(wanted.width, 1),
        torch.where(_one_hot(wanted) > 0, 0.5, bell),
        level * (1 - 2 * (ramp % 2)),
        _one_hot(wanted),
    ]
    return _by_row(wanted, kinds)


def _special(wanted: Wanted) -> Tensor:
    """Returns ordinary rows between rows with NaN and infinities, and rows with zeros of both signs and subnormals."""
    bell = wanted.bell()
    place = wanted.stream.below(wanted.count, max(wanted.width, 1), "place")[:, None]
    strange = bell.clone()
    for more, number in ((0, math.nan), (1, math.inf), (2, -math.inf)):
        strange = torch.where(_columns(wanted) == (place + more) % max(wanted.width, 1), number, strange)
    small = torch.where(_uniform(wanted) < 0.5, bell, torch.copysign(torch.where(bell.abs() < 0.5, 0.0, 1e-39), bell))
    return _by_row(wanted, [bell, strange, bell, small])


def _signs(wanted: Wanted) -> Tensor:
    """Returns normal rows between negative and positive ones. Of few long rows, the columns take turns.

    Padding with 0 joins a maximum only where all numbers are negative, and a minimum where all are positive.
    """
    bell = wanted.bell()
    rows = torch.arange(wanted.count, device=wanted.device)[:, None]
    turn = (_columns(wanted) if wanted.count > wanted.width else rows) % 4
    return torch.where(turn == 1, -bell.abs(), torch.where(turn == 3, bell.abs(), bell))


def _endless(name: str, *chosen: str) -> Recipe:
    """Returns rows of these kinds in turn: ordinary, with a NaN or an infinity, of -inf alone or with -inf in front.

    Rows of several operands have the same kind: -inf marks empty rows in all of them. After each turn of all
    kinds, the next rows have kinds at random, so that one operand is ordinary where another is not. Elements of a
    vector take turns like rows.
    """

    def rows(wanted: Wanted) -> Tensor:
        if wanted.count == 1 < wanted.width:
            return rows(replace(wanted, count=wanted.width, width=1)).reshape(1, wanted.width)
        bell, at = wanted.bell(), _columns(wanted)
        place = at == wanted.stream.below(wanted.count, max(wanted.width, 1), "place")[:, None]
        made = {
            "ordinary": bell,
            "NaN": torch.where(place, math.nan, bell),
            "inf": torch.where(place, math.inf, bell),
            "-inf": torch.where(place, -math.inf, bell),
            "-inf in front": torch.where(at < (wanted.width + 1) // 2, -math.inf, bell),
            "-inf alone": torch.full_like(bell, -math.inf),
        }
        joint = _turns(replace(wanted, stream=replace(wanted.stream, name=name)), len(chosen))
        apart = wanted.stream.below(wanted.count, len(chosen), "apart")
        turn = torch.arange(wanted.count, device=wanted.device) // len(chosen)
        return _chosen_rows([made[each] for each in chosen], torch.where(turn % 2 == 1, apart, joint))

    return rows


def _by_row(wanted: Wanted, kinds: Sequence[Tensor]) -> Tensor:
    """Returns rows of the kinds in turn, from one by chance."""
    return _chosen_rows(kinds, _turns(wanted, len(kinds)))


def _turns(wanted: Wanted, count: int) -> Tensor:
    return (torch.arange(wanted.count, device=wanted.device) + wanted.stream.below(1, count, "kind")) % count


def _chosen_rows(kinds: Sequence[Tensor], chosen: Tensor) -> Tensor:
    return torch.stack(list(kinds))[chosen, torch.arange(len(chosen), device=chosen.device)]


CONFIDENT, MEDLEY, SPECIAL, ZERO_ROWS, NOT_FINITE = "confident", "medley", "special", "zero rows", "not finite"
MASKED = "masked"  # for the numbers whose exponentials are added up
SIGNS = "signs"  # for long rows, where a block is filled up
LEAST = "tiny 1e-38"
ENDLESS = (SPECIAL, NOT_FINITE, MASKED)  # these have NaN and infinities
WITH_ENDS = ("outlier", "spread")  # in these recipes an operand with a domain has its ends
AT_BOUNDS = ("at lower bounds", "at upper bounds")  # in these, operands with a domain, and integers, are at a bound
CANCELLING = "cancelling"  # for sums whose order a result of few digits hides
POOL = "pool"
NEAR = "near "  # followed by a number: normal numbers times it
ROW: dict[str, Recipe] = {
    "randn": _bell(),
    "mean 1e3": _bell(plus=1.0e3),
    "mean 1e4": _bell(plus=1.0e4),
    "constant": lambda wanted: (wanted.levels() * 2000.0 - 1000.0).expand(wanted.count, wanted.width).clone(),
    "nearly constant": _bell(times=2.0**-9, plus=1000.0),
    "outlier": _outlier,
    "lone outlier": _lone_outlier,
    "alternating": lambda wanted: (wanted.levels() + 0.5) * (1.0 - 2.0 * (_columns(wanted) % 2).double()),
    "ramp": lambda wanted: (wanted.levels() + 0.5) * _columns(wanted).double(),
    "spread": _spread,
    CANCELLING: _cancelling,
    "tiny 1e-20": _bell(times=1.0e-20),
    LEAST: _bell(times=1.0e-38),
    "huge 1e30": _bell(times=1.0e30),
    "mean -1e3": _bell(plus=-1.0e3),  # exp of such a row underflows to 0 in float64 too
    "around one": _bell(times=0.25, plus=1.0),
    "around zero": _bell(times=0.25),
    "repeated rows": _repeated,
    CONFIDENT: _confident,
    "uniform": _uniform,
    # multiples of one row
    "rank one": lambda wanted: replace(wanted.beside("row"), count=1).bell() * replace(wanted, width=1).bell(),
    "sparse": lambda wanted: wanted.bell() * (_uniform(wanted.beside("kept")) < 0.1),  # nine of ten numbers are 0
    "one-hot": _one_hot,
    "powers of two": _powers,
    MEDLEY: _medley,
    SPECIAL: _special,
    ZERO_ROWS: lambda wanted: _by_row(wanted, [bell := wanted.bell(), torch.zeros_like(bell)]),  # as padding has them
    NOT_FINITE: _endless(NOT_FINITE, "NaN", "ordinary", "-inf alone", "inf", "-inf in front", "-inf"),
    MASKED: _endless(MASKED, "-inf in front", "ordinary", "-inf in front", "-inf alone"),  # in front, also of two rows
    SIGNS: _signs,
}
# only for `verify judge`
SHIFTS = ("uniform", "lone outlier", "rank one", "sparse", "one-hot", "powers of two", MEDLEY, SPECIAL)
# These are a regime of every op of rows. The others are for weights, for very many rows, or for logits.
_NOT_ALL = ("around", "repeated", CANCELLING, CONFIDENT, ZERO_ROWS, NOT_FINITE, MASKED, SIGNS, *SHIFTS)
ROW_REGIMES = tuple(name for name in ROW if not name.startswith(_NOT_ALL))
MATRIX_REGIMES = ("randn", "mean 1e3", "outlier", "spread")
# `verify judge` tries these at each size, by profile.
_QUICK = ("randn", "outlier", "mean 1e3", MEDLEY, "active", SPECIAL, "uniform", "spread", "lone outlier", "rank one")
_EVERY = (*ROW_REGIMES, *SHIFTS, "active")
RECIPES_OF_PROFILES = {"quick": _QUICK} | dict.fromkeys(("ci", "nightly", "exhaustive"), _EVERY)
