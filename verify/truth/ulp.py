"""The error of a whole tensor against the truth, in ULP, on the tensor's own device.

`errors()` is one pass of vectorised float64: no element travels to the host. The truth comes as a float64
`value`, optionally with a float64 `low` part (value + low is then the truth, as float64 outputs need), and
an absolute `bound` on how far the real number may be from it. Every error is therefore an interval
`ulp +- width`, and every statement about rounding is one of: right, wrong, undecided.

`verify.truth.formats.Format.error` is the same definition in rational arithmetic; tests hold the two together.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from verify.truth.formats import Format

_INTEGER = {8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}
_NONE = 2.0**-20  # ULP of noise that are none
_FEW = 1 << 14  # bytes up to which tensors in the memory of the host are compared as bytes
_FETCHED = 1 << 18  # bytes up to which tensors on a GPU are compared in the memory of the host
_JOINED = 1 << 22  # bytes up to which those that are compared there are compared as one


@dataclass(frozen=True)
class Policy:
    """What counts as an error where IEEE arithmetic leaves room.

    nan: "match" wants NaN exactly where the truth has none to offer (payloads are ignored); "any" accepts
        every value there. NaN against a number is wrong under both.
    overflow: "continuous" places infinity one ulp above the largest finite number for truths beyond that number;
        where the largest finite number or a smaller one is right, infinity is wrong by an infinite error, and so is a
        finite value where the truth is an infinity. "saturate" wants the largest finite number instead of infinity.
    signed_zero: "ignore" or "strict" (a zero with the wrong sign counts as misrounded).
    subnormals: "gradual", or "flush": a zero is right wherever the truth is below the smallest normal.
    """

    nan: Literal["match", "any"] = "match"
    overflow: Literal["continuous", "saturate"] = "continuous"
    signed_zero: Literal["ignore", "strict"] = "ignore"
    subnormals: Literal["gradual", "flush"] = "gradual"


@dataclass(frozen=True)
class Yardstick:
    """The unit of results that a program defines: how far its own roundings move each element (rms), its `noise`.

    Half a ULP of the result, which every kernel may round, and the `spread` of open decisions are no error. The unit is
    at least `floor` ULP of the result.
    """

    noise: Tensor
    spread: Tensor | None
    floor: float

    def flat(self) -> Yardstick:
        """Returns the same in one dimension."""
        return Yardstick(self.noise.reshape(-1), None if self.spread is None else self.spread.reshape(-1), self.floor)

    def at(self, places: Tensor) -> Yardstick:
        """Returns that of some elements, by their flat indices."""
        flat = self.flat()
        return Yardstick(flat.noise[places], None if flat.spread is None else flat.spread[places], self.floor)


@dataclass(frozen=True)
class Errors:
    """Per element, flat: signed error and its half width in ULP, and what is known about rounding.

    `ulp` is +inf where NaN meets a number (or the reverse), where infinity stands for a truth that is at most the
    largest finite number, and where a finite value stands for an infinite truth: such an element is the worst there
    can be. `scaled` is None when neither a scale nor a yardstick was given. `outward` is the error away from zero, in
    ULP, or beside a yardstick in units of the rms that it and rounding to the format explain; NaN where nothing is
    rounded, so that there is no such unit.
    """

    ulp: Tensor
    width: Tensor
    misrounded: Tensor
    undecided: Tensor
    nonfinite: Tensor
    nan: Tensor
    zero_sign: Tensor
    scaled: Tensor | None
    scaled_width: Tensor | None
    scale_exponent: Tensor | None
    yardstick: Yardstick | None = None
    outward: Tensor | None = None


def bits_of(tensor: Tensor) -> Tensor:
    """Bit patterns as a non-negative int64 tensor (as a signed one for 64-bit formats)."""
    width = tensor.element_size() * 8
    raw = tensor.contiguous().view(_INTEGER[width]).to(torch.int64)
    return raw if width == 64 else raw & ((1 << width) - 1)


def usable_scale(scale: Tensor, value: Tensor) -> Tensor:
    """What scaled errors are measured by. An unusable scale must not make one look small: the result is the least."""
    return torch.where(torch.isfinite(scale), torch.maximum(scale, value.abs()), value.abs())


def same_bits(left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    """Whether tensors are the same bit for bit, pair by pair. NaN equals itself, the two zeros differ.

    Small tensors on a GPU travel to the host, larger ones are joined: each question there is a wait, which is what
    costs. One side may be at hand already.
    """
    if any(a.shape != b.shape or a.dtype != b.dtype for a, b in zip(left, right, strict=True)):
        return False
    if any(map(_is_away, (*left, *right))):
        small = 2 * sum(a.numel() * a.element_size() for a in left) <= _FETCHED
        # larger ones stay where they are, unless one side lies elsewhere
        moved = [at for at, (a, b) in enumerate(zip(left, right, strict=True)) if small or a.device != b.device]
        sides = fetched([side[at] for side in (left, right) for at in moved])
        rest = [at for at in range(len(left)) if at not in moved]
        left, right = (
            [*part, *(side[at] for at in rest)]
            for part, side in ((sides[: len(moved)], left), (sides[len(moved) :], right))
        )
        if len(rest) > 1 and not moved and sum(a.numel() * a.element_size() for a in left) <= _JOINED:
            return torch.equal(_joined(left), _joined(right))
    return all(map(_same, left, right))


def _same(a: Tensor, b: Tensor) -> bool:
    size = a.numel() * a.element_size()
    if size <= _FEW and a.is_cpu and b.is_cpu and a.is_contiguous() and b.is_contiguous():
        # as bytes: a quarter of what the calls to torch cost
        return ctypes.string_at(a.data_ptr(), size) == ctypes.string_at(b.data_ptr(), size)
    return torch.equal(raw(a), raw(b))


def fetched(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same values in the memory of the host; those of one device travel together: each way takes a wait."""
    found = list(tensors)
    if not any(map(_is_away, found)):
        return found
    away: dict[torch.device, list[int]] = {}
    for at, tensor in enumerate(tensors):
        if _is_away(tensor):
            away.setdefault(tensor.device, []).append(at)
    for places in away.values():
        # the widest numbers first: each tensor then begins where one of its numbers may
        places.sort(key=lambda at: -tensors[at].element_size())
        one_kind = len({tensors[at].dtype for at in places}) == 1 and tensors[places[0]].element_size() > 1
        lines = [tensors[at].detach().reshape(-1) for at in places]
        if not one_kind:
            lines = [_flat(line.contiguous()).view(torch.uint8) for line in lines]
        line = (lines[0] if len(lines) == 1 else torch.cat(lines)).cpu()
        start = 0
        for at, part in zip(places, lines, strict=True):
            stop = start + part.numel()
            found[at] = line[start:stop].view(tensors[at].dtype).reshape(tensors[at].shape)
            start = stop
    return found


def _is_away(tensor: Tensor) -> bool:
    return not tensor.is_cpu


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    """The bytes of all tensors, in their order: for sides of equal shapes and dtypes as good as each pair."""
    return torch.cat([_flat(raw(tensor)).view(torch.uint8) for tensor in tensors])


def _flat(tensor: Tensor) -> Tensor:
    """A contiguous tensor in one dimension. With a single element it may still carry any stride, which views refuse."""
    return tensor.as_strided((tensor.numel(),), (1,))


def raw(tensor: Tensor) -> Tensor:
    """The bits as signed integers of the same width, in the usual order; of a contiguous tensor in its own memory."""
    return tensor.detach().contiguous().view(_INTEGER[tensor.element_size() * 8])


def pattern_at(tensor: Tensor, index: int) -> int:
    """The bit pattern of one element, by its flat index, as a non-negative number."""
    one = tensor.reshape(-1)[index : index + 1]
    return int(bits_of(one)[0]) & ((1 << 8 * one.element_size()) - 1)


def from_bits(bits: Tensor, fmt: Format) -> Tensor:
    """The tensor of a format with the given patterns (int64 in, as `bits_of` gives them)."""
    from verify.truth.formats import torch_dtype

    if fmt.bits < 64:  # wrap to the signed range without relying on overflowing casts
        bits = torch.where(bits >= fmt.sign_bit, bits - (1 << fmt.bits), bits)
    result: Tensor = bits.to(_INTEGER[fmt.bits]).view(torch_dtype(fmt))
    return result


def widen(tensor: Tensor) -> Tensor:
    """The same values in float64 (exact for every format here)."""
    return tensor.to(torch.float32).to(torch.float64) if tensor.element_size() == 1 else tensor.double()


def ulp_exponent(value: Tensor, fmt: Format, low: Tensor | None = None) -> Tensor:
    """Exponent e (int64) of the spacing 2^e of a format at float64 `value` (+ `low`).

    Beyond the largest number it stays that of the largest, for a scale too: in a wider unit every finite result would
    be right beside large enough terms, and so would infinity.
    """
    raw = value.view(torch.int64)
    exponent = ((raw >> 52) & 0x7FF) - 1023
    if low is not None:
        # just below a power of two: the high part has rounded up into the next binade
        is_power = (raw & ((1 << 52) - 1)) == 0
        below = is_power & (torch.sign(low) * torch.sign(value) < 0)
        exponent = exponent - below.to(torch.int64)
    return exponent.clamp(fmt.emin, fmt.emax) - fmt.mantissa_bits


def errors(
    got: Tensor,
    value: Tensor,
    fmt: Format,
    *,
    low: Tensor | None = None,
    bound: Tensor | None = None,
    scale: Tensor | Yardstick | None = None,
    policy: Policy | None = None,
) -> Errors:
    """Errors of `got` (in the format's dtype) against the truth; all tensors broadcast-free, same shape."""
    policy = policy or Policy()
    scaled_by = _ldexp_for(fmt)
    actual = widen(got.reshape(-1).detach())
    value = value.reshape(-1)
    low = None if low is None else low.reshape(-1)
    bound = torch.zeros_like(value) if bound is None else bound.reshape(-1)

    truth_nan = torch.isnan(value)
    got_nan = torch.isnan(actual)
    exponent = ulp_exponent(value, fmt, low)
    unit = -exponent

    # Everything below is in units of ulp(truth). `top` is where infinity stands in those units.
    reference = scaled_by(value, unit)
    top_exponent = fmt.emax - fmt.mantissa_bits
    top = float(fmt.overflow / fmt.ulp(fmt.overflow))
    if policy.overflow == "saturate":
        top -= 1.0
    at_top = exponent == top_exponent
    beyond = at_top & (reference.abs() >= top)
    if low is not None:
        beyond = beyond & ~((reference.abs() == top) & (torch.sign(low) * torch.sign(value) < 0))
    clipped = torch.where(beyond, torch.copysign(torch.full_like(value, top), value), reference)

    is_inf = torch.isinf(actual)
    width = scaled_by(bound, unit)
    if not fmt.has_inf and policy.overflow != "saturate":
        # NaN is how e4m3fn overflows: no mismatch where the truth does, or may do, the same
        overflowed = got_nan & at_top & (reference.abs() + width > top - 0.5)
        got_nan = got_nan & ~overflowed
        actual = torch.where(overflowed, torch.copysign(torch.full_like(value, torch.inf), value), actual)
        is_inf = is_inf | overflowed
    infinity = scaled_by(
        torch.copysign(torch.full_like(value, float(fmt.overflow / fmt.ulp(fmt.overflow))), actual),
        unit + top_exponent,
    )
    scaled_got = torch.where(is_inf, infinity, scaled_by(actual, unit))

    signed = scaled_got - clipped
    residual = torch.zeros_like(signed)  # what the subtraction of `low` rounds off
    if low is not None:
        tail = torch.where(beyond, torch.zeros_like(value), scaled_by(low, unit))
        whole, signed = signed, signed - tail
        residual = (whole - signed) - tail
    lower, upper = _magnitude_range(value, low, bound)
    width = _over_binades(signed, width, exponent, lower, upper, fmt)
    # a truth that is beyond infinity's place for certain stands at that place, however uncertain it is itself
    certain = beyond & (scaled_by(lower, unit) >= top)
    width = torch.where(certain, torch.zeros_like(width), width)

    if policy.subnormals == "flush":
        smallest = float(fmt.min_normal)
        flushed = (actual == 0) & (upper < smallest)
        signed = torch.where(flushed, torch.zeros_like(signed), signed)
        width = torch.where(flushed, torch.zeros_like(width), width)
        open_flush = (actual == 0) & ~flushed & (lower < smallest)
        width = torch.where(open_flush, torch.maximum(width, signed.abs()), width)

    nan = got_nan & ~truth_nan
    mismatch = got_nan != truth_nan
    if policy.nan == "any":
        mismatch = mismatch & ~truth_nan
    largest = float(fmt.max_finite)
    finite_truth = value.abs() <= largest
    truth_inf = torch.isinf(value)
    if low is not None:  # float64: infinite with a nonzero low is a finite truth that overflows
        truth_inf = truth_inf & (low == 0)
        finite_truth = finite_truth & ~((value.abs() == largest) & (low * value > 0))
    wrong_infinity = is_inf & truth_inf & (torch.signbit(actual) != torch.signbit(value))
    infinite_error = mismatch | wrong_infinity
    if policy.overflow != "saturate":  # which wants the largest finite number there
        infinite_error = infinite_error | (torch.isfinite(actual) & truth_inf)
    early = is_inf & ~truth_nan & torch.where(bound > 0, upper <= largest, finite_truth)
    nonfinite = infinite_error | early
    if scale is None:
        # of a sum that may be off by units of its terms the scaled error says whether that is much
        infinite_error = nonfinite
        # whether a truth this close to the largest number is beyond it, its bound leaves open
        unsure = is_inf & (bound > 0) & (lower <= largest) & (upper > largest)
        width = torch.where(unsure, torch.full_like(width, torch.inf), width)

    settled = truth_nan & ~mismatch
    zero = torch.zeros_like(signed)
    signed = torch.where(settled, zero, torch.where(infinite_error, zero + torch.inf, signed))
    width = torch.where(settled | infinite_error, zero, width)
    width = torch.where(torch.isnan(width), zero + torch.inf, width)

    distance = signed.abs()
    even = (bits_of(got.reshape(-1)) & 1) == 0
    exact_tie = (distance == 0.5) & (width == 0) & (residual == 0)
    undecided = ((distance - 0.5).abs() <= width) & ~exact_tie & (width > 0)
    misrounded = ~(distance <= 0.5) | (exact_tie & ~even)
    misrounded = misrounded | ((distance == 0.5) & (residual * torch.sign(signed) > 0))
    zero_sign = (actual == 0) & (torch.signbit(actual) != torch.signbit(value)) & ~truth_nan & (distance <= 0.5)
    if policy.signed_zero == "strict":
        misrounded = misrounded | zero_sign
    undecided = undecided & ~infinite_error

    relative: Tensor | None = None
    relative_width: Tensor | None = None
    scale_exponent: Tensor | None = None
    yardstick: Yardstick | None = None
    outward = signed * torch.sign(value)
    if isinstance(scale, Yardstick):
        yardstick = scale.flat()
        noise, free = _in_ulps(yardstick, unit, scaled_by)
        relative = torch.sign(signed) * (distance - free).clamp(min=0) / noise
        relative_width = torch.where(settled | infinite_error, zero, scaled_by(bound, unit) / noise)
        relative = torch.where(torch.isnan(relative), zero, relative)  # no error, and no noise
        relative_width = torch.where(torch.isnan(relative_width), zero, relative_width)
        expected = (noise * noise + (free - 0.5) * (free - 0.5) + 1 / 12).sqrt()
        outward = torch.where(scaled_by(yardstick.noise, unit) > _NONE, outward / expected, math.nan)
    elif scale is not None:
        scale_exponent = ulp_exponent(usable_scale(scale.reshape(-1), value), fmt)
        relative = scaled_by(signed, exponent - scale_exponent)
        # an error may have more ulps of a tiny truth than a float64 can count, and few of the scale
        countless = torch.isinf(signed) & torch.isfinite(actual) & torch.isfinite(value)
        relative = torch.where(countless, scaled_by(actual - value, -scale_exponent), relative)
        relative_width = scaled_by(bound, -scale_exponent)
        known = (torch.isinf(signed) & ~countless) | settled | certain
        relative_width = torch.where(known, zero, relative_width)
    return Errors(
        ulp=signed,
        width=width,
        misrounded=misrounded & ~undecided,
        undecided=undecided,
        nonfinite=nonfinite,
        nan=nan,
        zero_sign=zero_sign,
        scaled=relative,
        scaled_width=relative_width,
        scale_exponent=scale_exponent,
        yardstick=yardstick,
        outward=outward,
    )


def _in_ulps(
    yardstick: Yardstick, unit: Tensor, scaled_by: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Returns the noise of each element and the error that is free, in ULP of the truth."""
    noise = scaled_by(yardstick.noise, unit).clamp(min=yardstick.floor)
    free = torch.full_like(noise, 0.5)
    return noise, free if yardstick.spread is None else free + scaled_by(yardstick.spread, unit)


def _magnitude_range(value: Tensor, low: Tensor | None, bound: Tensor) -> tuple[Tensor, Tensor]:
    """Smallest and largest |truth| that `bound` allows; both |value| where it is zero."""
    magnitude = value.abs()
    tilt = torch.zeros_like(value) if low is None else low * torch.sign(value)
    infinity = torch.full_like(value, torch.inf)
    lower = torch.nextafter(magnitude + (tilt - bound), -infinity).clamp_min(0)
    upper = torch.nextafter(magnitude + (tilt + bound), infinity)
    exact = bound == 0
    return torch.where(exact, magnitude, lower), torch.where(exact, magnitude, upper)


def _over_binades(signed: Tensor, width: Tensor, exponent: Tensor, lower: Tensor, upper: Tensor, fmt: Format) -> Tensor:
    """The half width of an error whose unit is uncertain: the truth may lie in another binade.

    With r between 2^-coarser and 2^finer, error * r differs from `signed` by at most the first term
    for the truth's own uncertainty and the second for the unit's.
    """
    scaled_by = _ldexp_for(fmt)
    uncertain = lower < upper
    finer = torch.where(uncertain, exponent - ulp_exponent(lower, fmt), 0).clamp_min(0)
    coarser = torch.where(uncertain, ulp_exponent(upper, fmt) - exponent, 0).clamp_min(0)
    one = torch.ones_like(signed)
    change = torch.maximum(scaled_by(one, finer) - one, one - scaled_by(one, -coarser))
    return torch.where((finer > 0) | (coarser > 0), scaled_by(width, finer) + signed.abs() * change, width)


def _ldexp_for(fmt: Format) -> Callable[[Tensor, Tensor], Tensor]:
    """number * 2^exponent for exponents that are differences of a format's own.

    Those of formats up to float32 are below 300, so that the power of two is a float64 itself: one product in place
    of three, and no other value, because no number here comes near the ends of float64.
    """
    return ldexp if fmt.bits == 64 else _ldexp_once


def _ldexp_once(number: Tensor, exponent: Tensor) -> Tensor:
    return number * _power_of_two(exponent)


def ldexp(number: Tensor, exponent: Tensor) -> Tensor:
    """number * 2^exponent in float64: exact unless the result itself leaves the range of float64.

    torch.ldexp multiplies by pow(2, exponent), which overflows long before the product does.
    """
    # three factors reach 2^+-3000, further than a float64 subnormal and a float64 ulp are apart
    third = torch.div(exponent, 3, rounding_mode="trunc").clamp(-1022, 1023)
    rest = (exponent - 2 * third).clamp(-1022, 1023)
    power = _power_of_two(third)
    # grow before shrinking is not needed: each factor moves in the same direction
    return number * power * power * _power_of_two(rest)


def _power_of_two(exponent: Tensor) -> Tensor:
    return ((exponent + 1023) << 52).view(torch.float64)
