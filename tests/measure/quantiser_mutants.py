"""Bugs of published quantisers that were found late, written from their descriptions. Each has a right twin.

The number in a docstring is that of the issue or change that describes the bug.
"""

from __future__ import annotations

from dataclasses import replace

import torch

import verify
from examples import quantisers as right

NARROW = ["bfloat16"]


def mutant(twin, name, **encoding):
    """Declares a mutant as its twin is declared."""
    return verify.kernel(quantise=replace(twin.encoding, **encoding), dtypes=NARROW, name=name, where=twin.where)


def _mx(x, name="e4m3", rule="floor", *, amax=None, exponent=None, scale=None, saturate=True, nan=True):
    """MX with one step replaced."""
    b = right.blocks(x, 1, 32)
    most = right.amax_of(b) if amax is None else amax(b)
    power = right._RULES[rule](most, name) if exponent is None else exponent(most)
    codes = right.e8m0(power, most) if nan else (power.clamp(-127, 127) + 127).to(torch.uint8).view(right.E8M0)
    wide = torch.exp2(power.clamp(-127, 127).double()) if scale is None else scale(codes).double()
    scaled = (b.double() / wide[..., None, None]).float()
    if name == "e2m1":
        return right.packed(right.unblocked(right.floatx(scaled, name))), codes
    if not saturate:
        scaled = torch.where(scaled.abs() > 464, torch.nan, scaled)
    return right.unblocked(right.cast8(scaled, right.E4M3, 448.0)), codes


@mutant(right.mxfp8, "zero_code")
def zero_code(x):
    """Transformer Engine 3262: code 0 of e8m0 is 2^-127, and a shift by 23 makes 0 of it."""
    return _mx(x, scale=lambda codes: (codes.view(torch.uint8).int() << 23).view(torch.float32))


@mutant(right.mxfp8, "nan_of_amax")
def nan_of_amax(x):
    """Transformer Engine 3550, torchao 4201: amax ignores NaN, and the cast clamps what it leaves."""
    codes, scales = _mx(x.nan_to_num(nan=0.0))
    return codes, scales


@mutant(right.mxfp4, "even_at_1_75")
def even_at_1_75(x):
    """vLLM 43557: experts round the mantissa of amax first, the reference does not; they differ from 1.75."""
    return _mx(x, "e2m1", exponent=lambda amax: right.exponent_even(amax, 1) - 2)


@mutant(right.mxfp8_rceil, "double_rounding")
def double_rounding(x):
    """torchao 4725: amax / 448 goes through bfloat16 before it is rounded up to a power of two."""
    return _mx(x, exponent=lambda amax: right.exponent_ceil((amax / 448).bfloat16().float()))


@mutant(right.mxfp4, "rounded_up")
def rounded_up(x):
    """aiter 3212: the scale is amax / 6 rounded up, where the format's rule rounds down."""
    return _mx(x, "e2m1", "rceil")


@mutant(right.mxfp8, "nan_beyond")
def nan_beyond(x):
    """Model-Optimizer 1633: the cast makes NaN of what is beyond the largest number."""
    return _mx(x, saturate=False)


def _nvfp4(x, *, ties=None, second=None, inverse=False, scales_of=None, tiled=right.tiled, packed=right.packed):
    """NVFP4 with one step replaced."""
    b = right.blocks(x, 1, 16)
    most = right.amax_of(b)
    whole = most.amax()
    encode = torch.where(whole == 0, 1.0, 448.0 * 6 / whole)
    exact = most * (encode * (1 / 6))
    scales = right.cast8(exact, right.E4M3, 448.0)
    used = exact if inverse else scales.float()
    factor = torch.where(used == 0, 0.0, 1 / (used * (1 / encode)))
    if scales_of is not None:
        scales = scales_of(scales)
    scaled = b * factor[..., None, None]
    codes = right.floatx(scaled, "e2m1") if ties is None else ties(scaled)
    made = encode if second == "inverse" else 1 / encode
    return packed(right.unblocked(codes)), tiled(scales), made.reshape(1)


def _by_midpoints(scaled, *, above):
    """Codes of e2m1 by comparisons with its midpoints: > everywhere, or >= everywhere."""
    middles = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], device=scaled.device)
    size = scaled.abs()[..., None]
    code = (size > middles if above else size >= middles).sum(-1)
    return (code | torch.signbit(scaled).long() << 3).to(torch.uint8)


@mutant(right.nvfp4, "ties_to_zero")
def ties_to_zero(x):
    """DeepGEMM's e2m1: > at all seven midpoints, so that 0.75 becomes 0.5 and 3.5 becomes 3."""
    return _nvfp4(x, ties=lambda scaled: _by_midpoints(scaled, above=True))


@mutant(right.nvfp4, "ties_away")
def ties_away(x):
    """aiter 975 and 2247: ties go away from zero."""
    return _nvfp4(x, ties=lambda scaled: _by_midpoints(scaled, above=False))


@mutant(right.nvfp4, "exact_inverse")
def exact_inverse(x):
    """imp 250: elements are divided by the scale before it is rounded to e4m3, and the rounded one is stored."""
    return _nvfp4(x, inverse=True)


@mutant(right.nvfp4, "no_tiles")
def no_tiles(x):
    """triton 10772: the scales lie in rows where the product reads tiles of 128 x 4."""

    def in_rows(scales):
        room = torch.zeros(right.tiled(scales).numel(), dtype=torch.uint8, device=scales.device)
        room[: scales.numel()] = scales.view(torch.uint8).reshape(-1)
        return room

    return _nvfp4(x, tiled=in_rows)


@mutant(right.nvfp4, "empty_scales")
def empty_scales(x):
    """FlashInfer 3398: the buffer of scales stays zero where the rows do not fill a tile."""
    return _nvfp4(x, scales_of=lambda scales: scales if scales.shape[0] % 128 == 0 else torch.zeros_like(scales))


@mutant(right.nvfp4, "swapped")
def swapped(x):
    """The second of two codes lies in the low half of a byte."""
    return _nvfp4(x, packed=lambda codes: codes[:, 1::2] | codes[:, ::2] << 4)


@mutant(right.nvfp4, "inverse_second")
def inverse_second(x):
    """The scale of the tensor is stored as its inverse."""
    return _nvfp4(x, second="inverse")


@mutant(right.mxfp4, "positive_zeros", zero="signed")
def positive_zeros(x):
    """compressed-tensors: the sign of what rounds to zero is dropped, where another path keeps it."""
    b = right.blocks(x, 1, 32)
    power = right._RULES["floor"](right.amax_of(b), "e2m1")
    scaled = (b.double() * torch.exp2(-power.clamp(-127, 127).double())[..., None, None]).float()
    codes = right.floatx(scaled, "e2m1")
    return right.packed(right.unblocked(torch.where(codes == 8, 0, codes))), right.e8m0(power, right.amax_of(b))


@mutant(right.mxfp8, "zeros")
def zeros(x):
    """Nothing was written."""
    codes, scales = _mx(x)
    return torch.zeros_like(codes.view(torch.uint8)).view(right.E4M3), torch.zeros_like(scales.view(torch.uint8))


@mutant(right.mxfp8, "one_off")
def one_off(x):
    """The bias of e8m0 is one too large: every scale is twice what it should be."""
    return _mx(x, exponent=lambda amax: right.exponent_floor(amax) - 7)


@mutant(right.int8_tokens, "zero_point_of_unrounded_codes")
def zero_point_of_unrounded_codes(x):
    """The zero point is cut off instead of rounded."""
    _, scales, _ = right.int8_tokens(x)
    low = x.float().amin(1, keepdim=True).clamp(max=0)
    zeros = (-128 - torch.trunc(low / scales)).clamp(-128, 127)
    codes = (torch.round(x.float() / scales) + zeros).clamp(-128, 127).nan_to_num(nan=0.0)
    return codes.to(torch.int8), scales, zeros.nan_to_num(nan=0.0).to(torch.int8)


@mutant(right.uint4_groups, "symmetric_scale")
def symmetric_scale(x):
    """The range of a block is taken as twice amax, so that half of the codes stay unused."""
    b = right.blocks(x, 1, 32)
    scales = right.divided((2 * right.amax_of(b)).clamp(min=1e-10), 15)
    zeros = torch.full_like(scales, 8)
    codes = (torch.round(b / scales[..., None, None]) + 8).clamp(0, 15).nan_to_num(nan=0.0)
    return right.packed(right.unblocked(codes).to(torch.uint8)), scales, zeros.to(torch.uint8)


@mutant(right.mxfp4_random, "bits_unused")
def bits_unused(x, bits):
    """Elements are rounded to nearest."""
    return right.mxfp4(x)


@mutant(right.mxfp4_random, "bits_compared")
def bits_compared(x, bits):
    """An element goes up where the bits are less than its fraction. The mean is right, the elements are not."""
    return right.mxfp4_random(x, 65535 - bits)


# the words by which the verdict names each, and its twin
CAUSES = [
    (zero_code, "only blocks with the smallest scale, 5.87747e-39, are wrong", right.mxfp8),
    (nan_of_amax, "NaN is lost", right.mxfp8),
    (even_at_1_75, "scales follow the rule even, the declaration says floor", right.mxfp4),
    (double_rounding, "the scale is off by one code (-1)", right.mxfp8_rceil),
    (rounded_up, "scales follow the rule rceil, the declaration says floor", right.mxfp4),
    (nan_beyond, "elements beyond the largest number become nan", right.mxfp8),
    (ties_to_zero, "ties go toward zero, the declaration says to even", right.nvfp4),
    (ties_away, "ties go away from zero, the declaration says to even", right.nvfp4),
    (exact_inverse, "elements are divided by the scale before it is rounded", right.nvfp4),
    (no_tiles, "the scales are in the order of the blocks, the declaration says in 128x4 tiles", right.nvfp4),
    (empty_scales, "the scale is off", right.nvfp4),
    (swapped, "the codes of a byte are swapped: they lie high first", right.nvfp4),
    (inverse_second, "the second scale is", right.nvfp4),
    (positive_zeros, "zeros are positive, the declaration says signed", right.mxfp4),
    (zeros, "every code of the wrong blocks is 0", right.mxfp8),
    (zero_point_of_unrounded_codes, "the zero point is off (-1) in", right.int8_tokens),
    (symmetric_scale, "the scale is off", right.uint4_groups),
    (bits_unused, "elements are rounded to nearest, without the bits", right.mxfp4_random),
    (
        bits_compared,
        "elements are rounded up where the bits are less, the declaration says up where the bits carry",
        right.mxfp4_random,
    ),
    (one_off, "the scale is off by one code (+1)", right.mxfp8),
]
