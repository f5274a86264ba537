"""Judges a quantised tensor block by block, without a tolerance.

A block is *right* if its scale and its codes equal the exact quotients, rounded by the declared rules. It is right
*at a tie* if an element is so near a midpoint that float32 arithmetic may round it either way. It is right
*under another scale* if float32 arithmetic may give that scale. Every other block is *wrong*. If scales are powers of
two, arithmetic is exact, and there is one right answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from verify.truth.quantised.encoding import FLOATS, Encoding, Parts
from verify.truth.quantised.rules import FLOAT32, LEAST_OF_ALL, Reach, place, reach, reach_of_second, reach_of_zero

RIGHT, TIE, OTHER, WRONG, FREE = range(5)
_LARGEST_4OVER6 = 256.0  # the largest scale of 4over6: 1.5 times as much is a number of e4m3
KINDS = ("right", "right at a tie", "right under another scale", "wrong", "not promised")


@dataclass(frozen=True)
class Value:
    """Holds the numbers before they are quantised, as intervals in rows and columns."""

    low: Tensor  # float64
    high: Tensor
    negative: Tensor  # mask of the numbers with a minus sign, zeros included
    random: Tensor | None = None  # the random bits of each element

    @staticmethod
    def of(x: Tensor, random: Tensor | None = None) -> Value:
        """Returns the value of exact numbers."""
        wide = x.double()
        return Value(wide, wide, torch.signbit(wide), random)

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows and of columns."""
        return (self.low.shape[0], self.low.shape[1])


@dataclass(frozen=True)
class Judged:
    """Holds the verdict on each block, in rows and columns of blocks."""

    encoding: Encoding
    value: Value
    kinds: Tensor  # verdict of each block: RIGHT, TIE, OTHER, WRONG or FREE
    away: Tensor  # blocks x elements: codes to the nearest right one; infinite for a NaN that is lost or made
    scale: Tensor  # the scales that the quantiser gave
    wanted: Reach  # the scales that are right
    codes: Tensor  # blocks x elements: the codes that the quantiser gave
    zero: Reach | None = None  # the zero points that are right
    zeros: Tensor | None = None  # the zero points that the quantiser gave, one for each block
    second: str = ""  # why the second scale is wrong

    @cached_property
    def counts(self) -> dict[str, int]:
        """Counts the blocks of each verdict."""
        found = torch.bincount(self.kinds.reshape(-1), minlength=len(KINDS)).tolist()
        return dict(zip(KINDS, found, strict=True))

    @property
    def wrong(self) -> int:
        """The number of wrong blocks."""
        return self.counts["wrong"]

    @property
    def words(self) -> str:
        """The counts in words, such as `4,096 blocks: 4,010 right, 86 right at a tie, 0 wrong`."""
        return f"{self.kinds.numel():,} blocks: {counted(self.counts)}"

    @cached_property
    def scale_off(self) -> Tensor:
        """The mask of the blocks with a scale that the rule cannot give."""
        return ~((self.scale >= self.wanted.low) & (self.scale <= self.wanted.high))

    def facts(self) -> dict[str, str]:
        """Describes the first wrong block. Maps names of facts, such as "scale", to texts; {} if no block is wrong."""
        wrong = torch.nonzero(self.kinds == WRONG)
        if not len(wrong):
            return {}
        place = int(wrong[0, 0]), int(wrong[0, 1])
        at = place[0] * self.kinds.shape[1] + place[1]
        x = in_blocks(self.value.low, self.encoding, 0.0)[at]
        element = int(self.away[at].argmax())
        scale, low, high = (float(each[place]) for each in (self.scale, self.wanted.low, self.wanted.high))
        nominal, width = float(self.wanted.nominal[place]), -(-self.encoding.data.bits // 4)
        also = "" if low == high else f" ({low:.9g} to {high:.9g} can be reached)"
        zero = None
        if self.zero is not None and self.zeros is not None:
            zero = f"{float(self.zeros[at]):g}; the rule gives {float(self.zero.nominal[at]):g}"
        amax = float(x.abs().nan_to_num(nan=0.0).max())
        return {
            "block": f"[{place[0]}, {place[1]}], amax {amax:.9g} ({amax.hex()})",
            "scale": f"{scale:.9g}; the rule gives {nominal:.9g}{also}",
            **({} if zero is None else {"zero point": zero}),
            "codes": " ".join(f"{code:0{width}x}" for code in self.codes[at][:16].tolist()),
            "element": f"{element}: x = {float(x[element]):.9g} ({float(x[element]).hex()}), "
            f"x / scale = {float(x[element]) / scale if scale else float('nan'):.9g}, "
            f"got {self.encoding.data.table[int(self.codes[at][element])]:g}",
        }


def counted(counts: Mapping[str, int]) -> str:
    """Returns the blocks of each verdict as text, such as `4,010 right, 86 right at a tie, 0 wrong`."""
    shown = {name: count for name, count in counts.items() if count or name in ("right", "wrong")}
    return ", ".join(f"{count:,} {name}" for name, count in shown.items())


def in_blocks(values: Tensor, encoding: Encoding, padding: float | int | bool) -> Tensor:
    """Puts the elements of each block into a row. Fills a block at an edge with `padding`."""
    shape = (values.shape[0], values.shape[1])
    (rows, columns), (high, wide) = encoding.block_in(shape), encoding.grid(shape)
    missing = (0, wide * columns - shape[1], 0, high * rows - shape[0])
    full = torch.nn.functional.pad(values, missing, value=padding) if any(missing) else values
    return full.reshape(high, rows, wide, columns).transpose(1, 2).reshape(high * wide, rows * columns)


def judge(encoding: Encoding, value: Value, parts: Parts, *, ties: bool = True) -> Judged:
    """Judges the parts of a value. Raises WrongForm for a wrong shape or dtype. Without `ties`, TIE becomes RIGHT."""
    shape = value.shape
    encoding.demand_form(parts, shape)
    grid = encoding.grid(shape)
    low, high = (in_blocks(each, encoding, 0.0) for each in (value.low, value.high))
    codes = in_blocks(encoding.codes_of(parts), encoding, encoding.data.code_of.get(0.0, 0))
    scale, second = encoding.scales_of(parts, shape).reshape(-1), encoding.second_of(parts)
    nan, infinite = torch.isnan(low), torch.isinf(low) | torch.isinf(high)
    least, most = _range(low, high, nan) if encoding.zero_point else _amax(low, high, nan)
    wanted = reach(encoding, least, most, second)
    if encoding.rule == "4over6":
        wanted = _nearer(scale, wanted, reach(encoding, least * 1.5, most * 1.5, second))
    reachable = (scale >= wanted.low) & (scale <= wanted.high)
    zeros = encoding.zeros_of(parts).expand(grid).reshape(-1, 1) if encoding.zero_point else None
    zero = None
    if zeros is not None:
        first, last = (each.masked_fill(nan, 0.0).amin(1).clamp(max=0) for each in (low, high))
        zero = reach_of_zero(encoding, first, last, scale)
    if zero is not None and zeros is not None:
        reachable &= (zeros[:, 0] >= zero.low) & (zeros[:, 0] <= zero.high)
    numbers = encoding.data.decode(codes) - (0.0 if zeros is None else zeros)
    empty = (most == 0) & ~nan.any(1)
    random = None if value.random is None else in_blocks(value.random.long(), encoding, 0)
    elements = _Elements(encoding, low, high, (scale * second)[:, None], codes, zeros, random)
    away = elements.away()
    away = torch.where(empty[:, None], torch.where(numbers == 0, 0.0, numbers.abs()), away)
    if encoding.zero != "any" and encoding.data.negative_zero is not None:
        minus = in_blocks(value.negative, encoding, False) & (encoding.zero == "signed")
        away = torch.where((numbers == 0) & (torch.signbit(numbers) != minus) & ~nan, 1.0, away)
    away = away.nan_to_num(nan=float("inf"))
    kinds = torch.full_like(codes[:, 0], RIGHT)
    if ties:
        kinds[~elements.are_exact().all(1)] = TIE
    kinds[scale != wanted.nominal] = OTHER
    if zero is not None and zeros is not None:
        kinds[zeros[:, 0] != zero.nominal] = OTHER
    kinds[empty] = RIGHT
    kinds[~(away == 0).all(1) | ~(reachable | empty) | ~torch.isfinite(scale)] = WRONG
    away, kinds = _of_nan(encoding, nan, away, kinds, (numbers * scale[:, None]).isnan(), reachable)
    kinds[infinite.any(1)] = FREE
    if encoding.zero_point:  # a range, greatest minus least, may overflow
        kinds[most > torch.finfo(torch.float32).max] = FREE
    beyond = encoding.second and len(most) > 0 and float(most.max()) < LEAST_OF_ALL
    no_second = bool(infinite.any()) or (bool(nan.any()) and not bool(torch.isfinite(second)))
    if beyond or (encoding.second and no_second):
        kinds[~nan.any(1) | infinite.any(1)] = FREE  # the one scale of all numbers does not exist
    wrong_second = "" if beyond or bool(nan.any()) or not len(most) else _second(encoding, least, most, second)
    if wrong_second:
        kinds[(kinds != FREE) & ~empty] = WRONG
    form = Reach(*(each.reshape(grid) for each in (wanted.nominal, wanted.low, wanted.high)))
    shaped = (kinds.reshape(grid), away, scale.reshape(grid), form, codes)
    return Judged(encoding, value, *shaped, zero, None if zeros is None else zeros[:, 0], wrong_second)


def _nearer(got: Tensor, one: Reach, other: Reach) -> Reach:
    """Returns, for each element, the one of two reaches whose exact result is nearer."""
    is_other = (got - other.nominal).abs() < (got - one.nominal).abs()
    pairs = ((one.nominal, other.nominal), (one.low, other.low), (one.high, other.high))
    return Reach(*(torch.where(is_other, second, first) for first, second in pairs))


def _amax(low: Tensor, high: Tensor, nan: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the least and the greatest amax (largest magnitude) that each block may have. NaN does not count."""
    straddles = (low < 0) & (high > 0)
    near = torch.where(straddles, 0.0, torch.minimum(low.abs(), high.abs())).masked_fill(nan, 0.0)
    far = torch.maximum(low.abs(), high.abs()).masked_fill(nan, 0.0)
    return near.amax(1), far.amax(1)


def _range(low: Tensor, high: Tensor, nan: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the least and the greatest range that each block may have: the length of the interval that contains its
    numbers and 0.
    """
    low, high = low.masked_fill(nan, 0.0), high.masked_fill(nan, 0.0)
    least = low.amax(1).clamp(min=0) - high.amin(1).clamp(max=0)
    return least, high.amax(1).clamp(min=0) - low.amin(1).clamp(max=0)


@dataclass(frozen=True)
class _Elements:
    """Holds the elements of blocks as intervals, with the codes that a quantiser gave them at its scales."""

    encoding: Encoding
    low: Tensor
    high: Tensor
    scale: Tensor
    codes: Tensor
    zeros: Tensor | None  # zero points
    random: Tensor | None  # random bits

    @property
    def places(self) -> Tensor:
        """The place of each code among the numbers of the format, in ascending order; negative for NaN and infinity."""
        return self.encoding.data.tensor("places", self.codes.device)[self.codes]

    def away(self) -> Tensor:
        """Returns how many codes each element is from the nearest right one; infinity for a wrong NaN or infinity."""
        encoding, codes = self.encoding, self.codes
        # the largest relative error of x / scale in float32; 0 if the scale is a power of two
        width = torch.where(torch.frexp(self.scale)[0] == 0.5, 0.0, FLOAT32)
        none = self.scale == 0  # every code decodes to 0
        low, high = (torch.where(none, 0.0, each / self.scale) for each in (self.low, self.high))
        low, high = low - low.abs() * width, high + high.abs() * width
        if self.zeros is not None and encoding.zero_point in FLOATS:  # x / scale + zero point is rounded to float32
            room = (torch.maximum(low.abs(), high.abs()) + self.zeros.abs()) * FLOAT32
            low, high = low - room, high + room
        least, most = self._ends(low, high)
        got = self.places
        off = torch.maximum(least - got, got - most).clamp(min=0).double().masked_fill(none, 0.0)
        special = torch.full_like(off, float("inf"))
        if encoding.overflow == "saturate":
            return torch.where(got < 0, special, off)
        end = encoding.data.largest + (encoding.data.largest - encoding.data.numbers[-2]) / 2
        kinds = encoding.data.nan_codes if encoding.overflow == "nan" else encoding.data.inf_codes
        is_special = torch.isin(codes, torch.tensor(kinds, dtype=codes.dtype, device=codes.device))
        beyond, may = torch.minimum(low.abs(), high.abs()) > end, torch.maximum(low.abs(), high.abs()) > end
        return torch.where(got < 0, torch.where(is_special & may, 0.0, special), torch.where(beyond, special, off))

    def _ends(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the least and the greatest place to which quotients between `low` and `high` can round."""
        encoding, given = self.encoding, (self.zeros, self.random)
        if encoding.ties != "any" or (self.random is not None and encoding.random):
            return place(encoding, low, *given), place(encoding, high, *given)
        if self.zeros is not None:
            return place(encoding, low, *given, -(2.0**-40)), place(encoding, high, *given, 2.0**-40)
        down, up = ([encoding.data.nearest(each, ties) for ties in ("to zero", "away")] for each in (low, high))
        return torch.minimum(*down), torch.maximum(*up)

    def are_exact(self) -> Tensor:
        """Returns a mask of the elements whose code is the exact quotient, rounded by the declared rule for ties."""
        middle = torch.where(self.low == self.high, self.low, (self.low + self.high) / 2) / self.scale
        wanted = place(self.encoding, middle, self.zeros, self.random)
        return (wanted == self.places) | (self.scale == 0)


def _of_nan(
    encoding: Encoding, nan: Tensor, away: Tensor, kinds: Tensor, decoded: Tensor, reachable: Tensor
) -> tuple[Tensor, Tensor]:
    """Judges the blocks that contain NaN. Returns `away` and `kinds` with these blocks replaced.

    Args:
        nan: mask of the elements that are NaN before they are quantised
        decoded: mask of the elements that decode to NaN
        reachable: mask of the blocks with a scale that the rule can give
    """
    has = nan.any(1)
    if not bool(has.any()):
        return away, kinds
    lost = nan & ~decoded
    if encoding.nan == "block":
        lost = has[:, None] & ~decoded
    elif encoding.nan == "any":
        lost = torch.zeros_like(nan)
    judged = torch.zeros_like(away)
    if encoding.nan == "element":
        judged = torch.where(nan, 0.0, away)
    of_nan = torch.where(lost, float("inf"), judged)
    wrong = (of_nan != 0).any(1) | ((encoding.nan == "element") & ~reachable)
    kinds = torch.where(has, torch.where(wrong, WRONG, FREE if encoding.nan == "any" else RIGHT), kinds)
    return torch.where(has[:, None], of_nan, away), kinds


def _second(encoding: Encoding, least: Tensor, most: Tensor, second: Tensor) -> str:
    """Returns why the second scale, that of the whole tensor, is wrong; "" if it is right."""
    amax = least.max()
    if not encoding.second or not float(amax) or not torch.isfinite(amax):
        return ""
    wanted = reach_of_second(encoding, amax, most.max())
    if encoding.rule == "4over6":
        wanted = _nearer(second, wanted, reach_of_second(encoding, amax, most.max(), _LARGEST_4OVER6))
    if wanted.low <= second <= wanted.high:
        return ""
    return f"the second scale is {float(second):.9g}; amax {float(amax):.9g} gives {float(wanted.nominal):.9g}"
