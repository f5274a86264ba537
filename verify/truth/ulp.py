"""Measures the error of a whole tensor against the truth, in ULP, on the tensor's own device.

`errors()` is one vectorised pass in float64; no element is copied to the host. The truth is a float64 `value`, plus a
float64 `low` part for float64 outputs. An absolute `bound` limits the distance of the real number from it. So every
error is an interval `ulp +- width`, and a rounding is right, wrong or undecided.

`verify.truth.formats.Format.error` defines the same error in rational arithmetic. Tests compare the two.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, get_args, get_type_hints

import torch
from torch import Tensor

from verify.errors import one_of
from verify.truth.formats import Format

_INTEGER = {8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}
_NONE = 2.0**-20  # noise, in ULP, that counts as none
_FEW = 1 << 14  # most bytes of host tensors that are compared as byte strings
_ROOM = 48  # bits of a scale that float64 arithmetic of some operations resolves
_FETCHED = 1 << 18  # most bytes of GPU tensors that are copied to the host for a comparison
_JOINED = 1 << 22  # most bytes of GPU tensors that are joined for one comparison


@dataclass(frozen=True)
class Policy:
    """The choices that decide what counts as an error at special values.

    nan: With "match", a kernel must return NaN where the truth does not exist. With "any", every value is right there.
        NaN in place of a number is wrong in both cases. Payloads never count.
    overflow: With "continuous", infinity counts as one ulp above the largest finite number if the truth is beyond that
        number. For any other truth, infinity has an infinite error. So has a finite value if the truth is infinite.
        With "saturate", the largest finite number is right in place of infinity.
    signed_zero: With "strict", a zero with the wrong sign counts as misrounded. With "ignore", it does not.
    subnormals: With "flush", zero is right if the truth is below the smallest normal number. With "gradual", it is not.
    """

    nan: Literal["match", "any"] = "match"
    overflow: Literal["continuous", "saturate"] = "continuous"
    signed_zero: Literal["ignore", "strict"] = "ignore"
    subnormals: Literal["gradual", "flush"] = "gradual"

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(Policy).items():
            one_of("Policy", name, getattr(self, name), get_args(hint))


@dataclass(frozen=True)
class Yardstick:
    """The unit of error for results of a program: the `noise` of each element.

    Half a ULP of the result, the final rounding of every kernel, is no error. `beside` ULP, the
    unit is an ULP, and an error beyond half a ULP shrinks by the factor by which the noise exceeds `floor`.
    """

    noise: Tensor  # rms change of each element by the roundings of the program's own steps
    floor: float  # least unit, in ULP of the result
    together: float = 1.0  # how strongly the elements move together; see `verify.ops.graph.noise.Noise`
    beside: bool = False

    def at(self, places: Tensor) -> Yardstick:
        """Returns the yardstick of some elements, given by flat indices."""
        return replace(self, noise=self.noise.reshape(-1)[places])


@dataclass(frozen=True)
class Errors:
    """The errors of all elements, as flat tensors.

    `ulp` is +inf in three cases. One is NaN in place of a number, or the reverse. One is infinity in place of a truth
    that is at most the largest finite number. The last is a finite value in place of an infinite truth.
    """

    ulp: Tensor  # signed error in ULP of the truth
    width: Tensor  # half width of the interval of the error, in ULP
    misrounded: Tensor  # mask: the rounding is certainly wrong
    undecided: Tensor  # mask: the bound does not decide the rounding
    nonfinite: Tensor  # mask: one of the cases with an infinite error
    nan: Tensor  # mask: NaN in place of a number
    zero_sign: Tensor  # mask: zero with the wrong sign
    scaled: Tensor | None  # error in units of the scale or of the yardstick; None: neither was given
    scaled_width: Tensor | None
    scale_exponent: Tensor | None  # exponent of the scale's unit
    yardstick: Yardstick | None = None
    # proven error in units of the rms that noise and the final rounding explain; NaN if there is no noise, hence no
    # unit. None without a yardstick: that in ULP counts
    in_rms: Tensor | None = None

    @property
    def figures(self) -> list[tuple[Tensor, Tensor]]:
        """Returns (magnitude, half width) of every error that has a maximum. The one that decides comes last."""
        found = [(self.ulp.abs(), self.width)]
        if self.scaled is not None and self.scaled_width is not None:
            found.append((self.scaled.abs(), self.scaled_width))
        return found

    @property
    def least(self) -> list[Tensor]:
        """Returns the proven magnitude of every error that has a maximum: the lower end of its interval.

        The middle of an interval is no error: it grows with the width, and nothing shows that a result has it.
        """
        return [torch.where(torch.isinf(width), 0.0, error - width).clamp(min=0) for error, width in self.figures]

    @property
    def deciding(self) -> Tensor:
        """Returns the magnitudes of the error that decides the verdict."""
        return self.figures[-1][0]

    @property
    def upper(self) -> Tensor:
        """Returns the largest magnitudes that this error may have."""
        size, width = self.figures[-1]
        return size + width

    def within(self, limit: float) -> Tensor:
        """Returns the mask of the elements that are proven to be within a limit."""
        return (self.upper <= limit) & ~self.nonfinite

    def beyond(self, limit: float) -> Tensor:
        """Returns the mask of the elements that are proven to be beyond a limit; not (x <= limit), so a NaN is."""
        return ~(self.least[-1] <= limit) | self.nonfinite


def bits_of(tensor: Tensor) -> Tensor:
    """Returns the bit patterns as an int64 tensor: non-negative, but signed for 64-bit formats."""
    width = tensor.element_size() * 8
    raw = tensor.contiguous().view(_INTEGER[width]).to(torch.int64)
    return raw if width == 64 else raw & ((1 << width) - 1)


def same_bits(left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    """True if the tensors of each pair have the same bits. Equal NaN are the same, the two zeros differ.

    Waiting for a GPU costs most. So small tensors on a GPU are copied to the host, and larger ones are joined for a
    single comparison. One side may be on the host already.
    """
    if any(a.shape != b.shape or a.dtype != b.dtype for a, b in zip(left, right, strict=True)):
        return False
    if any(map(_is_away, (*left, *right))):
        small = 2 * sum(a.numel() * a.element_size() for a in left) <= _FETCHED
        # larger ones stay on the GPU, unless the other side is on another device
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
    """True if two tensors of the same shape and dtype have the same bits."""
    size = a.numel() * a.element_size()
    if size <= _FEW and a.is_cpu and b.is_cpu and a.is_contiguous() and b.is_contiguous():
        # comparing byte strings takes a quarter of the time of the calls to torch
        return ctypes.string_at(a.data_ptr(), size) == ctypes.string_at(b.data_ptr(), size)
    return torch.equal(raw(a), raw(b))


def fetched(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Returns the tensors in host memory. Copies those of one device in one transfer, because each transfer waits."""
    found = list(tensors)
    if not any(map(_is_away, found)):
        return found
    away: dict[torch.device, list[int]] = {}
    for at, tensor in enumerate(tensors):
        if _is_away(tensor):
            away.setdefault(tensor.device, []).append(at)
    for places in away.values():
        # widest numbers first, so that each tensor begins at an aligned address
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
    """True if a tensor is not in host memory."""
    return not tensor.is_cpu


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    """Returns the bytes of all tensors in one line. Equal lines mean equal pairs, if shapes and dtypes agree."""
    return torch.cat([_flat(raw(tensor)).view(torch.uint8) for tensor in tensors])


def _flat(tensor: Tensor) -> Tensor:
    """Flattens a contiguous tensor. A single element may have any stride, which `view` would refuse."""
    return tensor.as_strided((tensor.numel(),), (1,))


def raw(tensor: Tensor) -> Tensor:
    """Returns the bits as signed integers of the same width, contiguous. Shares memory if the tensor is contiguous."""
    return tensor.detach().contiguous().view(_INTEGER[tensor.element_size() * 8])


def pattern_at(tensor: Tensor, index: int) -> int:
    """Returns the bit pattern of one element, given by its flat index, as a non-negative integer."""
    one = tensor.reshape(-1)[index : index + 1]
    return int(bits_of(one)[0]) & ((1 << 8 * one.element_size()) - 1)


def from_bits(bits: Tensor, fmt: Format) -> Tensor:
    """Returns the tensor with these bit patterns, the inverse of `bits_of`."""
    from verify.truth.formats import torch_dtype

    if fmt.bits < 64:  # wrap to the signed range without relying on overflowing casts
        bits = torch.where(bits >= fmt.sign_bit, bits - (1 << fmt.bits), bits)
    result: Tensor = bits.to(_INTEGER[fmt.bits]).view(torch_dtype(fmt))
    return result


def widen(tensor: Tensor) -> Tensor:
    """Converts to float64, which is exact for every format here."""
    return tensor.to(torch.float32).to(torch.float64) if tensor.element_size() == 1 else tensor.double()


def unit_of_scale(scale: Tensor, value: Tensor, fmt: Format) -> Tensor:
    """Returns the exponent e (int64) of the unit 2^e of scaled errors: that of the spacing at the scale.

    Beyond the largest number it stays that of the largest number: with a larger unit, every finite result and infinity
    would be right if the terms are large enough. But no arithmetic in float64 can be right to less than 2^-48 of terms
    that cancel, so the unit of a smaller format is at least that. It is not if an error of 2^-48 of the terms leaves
    the value beyond the largest number.
    """
    # at least the value, so that a wrong scale makes no error look small
    usable = torch.where(torch.isfinite(scale), torch.maximum(scale, value.abs()), value.abs())
    unit = ulp_exponent(usable, fmt)
    if fmt.mantissa_bits > _ROOM:
        return unit
    cancelled = value.abs() - usable * 2.0**-_ROOM <= float(fmt.overflow)  # False for an infinite value
    return torch.where(cancelled, torch.maximum(unit, _exponent(usable) - _ROOM), unit)


def _exponent(value: Tensor) -> Tensor:
    return ((value.view(torch.int64) >> 52) & 0x7FF) - 1023


def ulp_exponent(value: Tensor, fmt: Format, low: Tensor | None = None) -> Tensor:
    """Returns the exponent e (int64) of the spacing 2^e of a format at float64 `value` (+ `low`).

    Beyond the largest number, it is that of the largest number.
    """
    raw = value.view(torch.int64)
    exponent = _exponent(value)
    if low is not None:
        # the truth is just below a power of two, but its high part was rounded up to it
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
    """Returns the errors of `got`, in the format's dtype, against the truth. All tensors have the same shape.

    Args:
        value: The truth in float64, to which `low` is added.
        bound: Largest distance of the real number from the truth; None: zero.
        scale: Magnitude of the terms of each element, or a yardstick: also gives errors in this unit.
    """
    policy = policy or Policy()
    actual, value = widen(got.reshape(-1).detach()), value.reshape(-1)
    low = None if low is None else low.reshape(-1)
    bound = torch.zeros_like(value) if bound is None else bound.reshape(-1)

    truth_nan, got_nan = torch.isnan(value), torch.isnan(actual)
    exponent = ulp_exponent(value, fmt, low)
    in_units = _scaling(-exponent, fmt)

    # Everything below is in units of ulp(truth). `top` is the number that infinity counts as, in these units.
    reference = in_units(value)
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
    width = reach = in_units(bound)
    if not fmt.has_inf and policy.overflow != "saturate":
        # e4m3fn overflows to NaN, so NaN is no mismatch if the truth overflows or may overflow
        overflowed = got_nan & at_top & (reference.abs() + width > top - 0.5)
        got_nan = got_nan & ~overflowed
        actual = torch.where(overflowed, torch.copysign(torch.full_like(value, torch.inf), value), actual)
        is_inf = is_inf | overflowed
    infinity = _scaling(top_exponent - exponent, fmt)(
        torch.copysign(torch.full_like(value, float(fmt.overflow / fmt.ulp(fmt.overflow))), actual)
    )
    scaled_got = torch.where(is_inf, infinity, in_units(actual))

    signed = scaled_got - clipped
    residual = torch.zeros_like(signed)  # rounding error of the subtraction of `low`
    if low is not None:
        tail = torch.where(beyond, 0.0, in_units(low))
        whole, signed = signed, signed - tail
        residual = (whole - signed) - tail
    lower, upper = _magnitude_range(value, low, bound)
    shift, width = _over_binades(signed, width, exponent, lower, upper, fmt)
    # A truth that is certainly beyond `top` counts as `top`, so its own uncertainty does not matter.
    certain = beyond & (in_units(lower) >= top)
    width = torch.where(certain, 0.0, width)

    if policy.subnormals == "flush":
        smallest = float(fmt.min_normal)
        flushed = (actual == 0) & (upper < smallest)
        signed, shift, width = (torch.where(flushed, 0.0, each) for each in (signed, shift, width))
        open_flush = (actual == 0) & ~flushed & (lower < smallest)
        width = torch.where(open_flush, torch.maximum(width, (signed + shift).abs()), width)

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
    if policy.overflow != "saturate":  # under "saturate" the largest finite number is right there
        infinite_error = infinite_error | (torch.isfinite(actual) & truth_inf)
    early = is_inf & ~truth_nan & torch.where(bound > 0, upper <= largest, finite_truth)
    nonfinite = infinite_error | early
    if scale is None or (isinstance(scale, Yardstick) and scale.beside):
        # With a scale, the scaled error decides instead: a sum may err by units of its terms.
        infinite_error = nonfinite
        # the bound does not decide whether a truth this close to the largest number is beyond it
        unsure = is_inf & (bound > 0) & (lower <= largest) & (upper > largest)
        shift, width = torch.where(unsure, 0.0, shift), torch.where(unsure, torch.inf, width)

    settled = truth_nan & ~mismatch
    known = settled | infinite_error
    signed = torch.where(settled, 0.0, torch.where(infinite_error, torch.inf, signed))
    width = torch.where(known, 0.0, torch.where(torch.isnan(width), torch.inf, width))

    middle = torch.where(known, signed, signed + shift)
    distance = middle.abs()
    even = (bits_of(got.reshape(-1)) & 1) == 0
    exact_tie = (distance == 0.5) & (width == 0) & (residual == 0)
    undecided = ((distance - 0.5).abs() <= width) & ~exact_tie & (width > 0)
    misrounded = ~(distance <= 0.5) | (exact_tie & ~even)
    misrounded = misrounded | ((distance == 0.5) & (residual * torch.sign(middle) > 0))
    zero_sign = (actual == 0) & (torch.signbit(actual) != torch.signbit(value)) & ~truth_nan & (distance <= 0.5)
    if policy.signed_zero == "strict":
        misrounded = misrounded | zero_sign
    undecided = undecided & ~infinite_error

    relative: Tensor | None = None
    relative_width: Tensor | None = None
    scale_exponent: Tensor | None = None
    yardstick: Yardstick | None = None
    in_rms: Tensor | None = None
    if isinstance(scale, Yardstick):
        yardstick = replace(scale, noise=scale.noise.reshape(-1))
        noise = in_units(yardstick.noise).clamp(min=yardstick.floor)
        beyond = (signed.abs() - 0.5).clamp(min=0)
        if yardstick.beside:
            shrunk = (yardstick.floor / noise).nan_to_num(1.0)
            # the noise is no multiple of an ULP, so it does not matter if the truth may lie in another binade
            noisy = shrunk < 1
            relative = torch.copysign(torch.minimum(signed.abs(), 0.5 + beyond * shrunk), signed)
            relative = torch.where(noisy, relative, middle)
            relative_width = torch.where(noisy & (width > 0), torch.fmin(width + shift.abs(), reach * shrunk), width)
        else:
            relative = torch.sign(signed) * beyond / noise
            relative_width = torch.where(known, 0.0, reach / noise)
        relative = torch.where(torch.isnan(relative), 0.0, relative)  # no error, and no noise
        relative_width = torch.where(torch.isnan(relative_width), 0.0, relative_width)
        if not yardstick.beside:
            noisy = in_units(yardstick.noise) > _NONE
            # the mean square of the final rounding, in ULP: at least 1/12, that of random numbers; equal numbers are
            # all rounded alike, by up to half a ULP
            rest = (reference[noisy] - reference[noisy].round()).nan_to_num(0.0)  # NaN where the truth is infinite
            rounding = rest.square().sum().div(max(rest.numel(), 1)).clamp(min=1 / 12)
            explained = ((noise * yardstick.together).square() + rounding).sqrt()
            proven = torch.where(known, signed.abs(), (signed.abs() - reach).clamp(min=0))
            in_rms = torch.where(noisy, proven / explained, math.nan)
    elif scale is not None:
        scale_exponent = unit_of_scale(scale.reshape(-1), value, fmt)
        relative = ldexp(signed, exponent - scale_exponent)  # the scale may lie far beyond the format
        # An error in ulps of a tiny truth may overflow float64, though it is small in units of the scale.
        countless = torch.isinf(signed) & torch.isfinite(actual) & torch.isfinite(value)
        in_scale = _scaling(-scale_exponent, fmt)
        relative = torch.where(countless, in_scale(actual - value), relative)
        relative_width = in_scale(bound)
        known = (torch.isinf(signed) & ~countless) | settled | certain
        relative_width = torch.where(known, 0.0, relative_width)
    return Errors(
        ulp=middle,
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
        in_rms=in_rms,
    )


def _magnitude_range(value: Tensor, low: Tensor | None, bound: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the smallest and the largest |truth| that `bound` allows; |value| for both if the bound is zero."""
    magnitude = value.abs()
    tilt = torch.zeros_like(value) if low is None else low * torch.sign(value)
    infinity = torch.full_like(value, torch.inf)
    lower = torch.nextafter(magnitude + (tilt - bound), -infinity).clamp_min(0)
    upper = torch.nextafter(magnitude + (tilt + bound), infinity)
    exact = bound == 0
    return torch.where(exact, magnitude, lower), torch.where(exact, magnitude, upper)


def _over_binades(
    signed: Tensor, width: Tensor, exponent: Tensor, lower: Tensor, upper: Tensor, fmt: Format
) -> tuple[Tensor, Tensor]:
    """Returns by how much the middle of each error moves, and its half width, if the truth may have another unit.

    In another binade the error is up to 2^finer times as large, or 2^coarser times as small.
    """
    uncertain = lower < upper
    finer = torch.where(uncertain, exponent - ulp_exponent(lower, fmt), 0).clamp_min(0)
    coarser = torch.where(uncertain, ulp_exponent(upper, fmt) - exponent, 0).clamp_min(0)
    size, larger = signed.abs(), _scaling(finer, fmt)
    most = larger(size + width)
    # an interval on one side of zero ends nearest to zero in the coarser unit, another one in the finer unit
    least = torch.where(size > width, _scaling(-coarser, fmt)(size - width), larger(size - width))
    changed = (finer > 0) | (coarser > 0)
    shift = torch.sign(signed) * ((most + least) / 2 - size)
    return torch.where(changed & torch.isfinite(shift), shift, 0.0), torch.where(changed, (most - least) / 2, width)


def _scaling(exponent: Tensor, fmt: Format) -> Callable[[Tensor], Tensor]:
    """Returns a function for number * 2^exponent, where exponents are differences of exponents of the format.

    For formats up to float32, these are below 300. So the power of two is a float64 number, and one product gives the
    same value as the three products of `_scaling_far`.
    """
    return _scaling_far(exponent) if fmt.bits == 64 else partial(torch.mul, _power_of_two(exponent))


def ldexp(number: Tensor, exponent: Tensor) -> Tensor:
    """Returns number * 2^exponent in float64. It is exact unless the result leaves the range of float64.

    torch.ldexp multiplies by pow(2, exponent), which may overflow although the product does not.
    """
    return _scaling_far(exponent)(number)


def _scaling_far(exponent: Tensor) -> Callable[[Tensor], Tensor]:
    """Returns a function for `ldexp` with one exponent."""
    # three factors reach 2^+-3000, more than the ratio of any two float64 numbers needs
    third = torch.div(exponent, 3, rounding_mode="trunc").clamp(-1022, 1023)
    power, rest = _power_of_two(third), _power_of_two((exponent - 2 * third).clamp(-1022, 1023))
    # the order of the factors does not matter, because all grow or all shrink
    return lambda number: number * power * power * rest


def _power_of_two(exponent: Tensor) -> Tensor:
    """Returns 2^exponent in float64, for exponents from -1022 to 1023."""
    return ((exponent + 1023) << 52).view(torch.float64)
