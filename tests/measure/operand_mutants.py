"""Kernels that read quantised operands wrongly, the cause that a verdict names, and the right twin of each."""

from __future__ import annotations

import torch

import verify
from examples import quantised_operands as right
from examples.fp8_triton import DECLARED, fp8_product


def mutant(twin, name):
    """Declares a mutant as its twin is declared."""
    declared = right.ALONE if twin.operands[0].startswith("w") else right.PRODUCT
    return verify.kernel(**{**declared, "operands": twin.encoded.encodings, "dtypes": twin.dtypes}, name=name)


# -- dequantisers -------------------------------------------------------------------------------------------


def swapped(codes):
    """The two codes of each byte, the high one first."""
    return torch.stack([codes >> 4, codes & 15], -1).flatten(-2)


@mutant(right.dequantised_mxfp4, "swapped_nibbles")
def swapped_nibbles(w_codes, w_scales):
    """The codes of a byte come in the other order."""
    return right.E2M1.to(w_codes.device)[swapped(w_codes).long()] * right.over_columns(right.powers(w_scales), 32)


@mutant(right.dequantised_nvfp4, "unswizzled_scales")
def unswizzled_scales(w_codes, w_scales, w_second):
    """The tiles of scales are read as rows."""
    numbers = right.E2M1.to(w_codes.device)[right.halves(w_codes).long()]
    rows, columns = numbers.shape[0], numbers.shape[1] // 16
    scales = w_scales[: rows * columns].reshape(rows, columns).float()
    return numbers * right.over_columns(scales, 16) * w_second


@mutant(right.dequantised_mxfp8, "shifted_exponent")
def shifted_exponent(w_codes, w_scales):
    """The bias of e8m0 is taken as 126."""
    return w_codes.float() * right.over_columns(right.powers(w_scales) * 2, 32)


@mutant(right.dequantised_int4, "unsigned_codes")
def unsigned_codes(w_codes, w_scales):
    """int4 is not extended by its sign."""
    return right.halves(w_codes).bfloat16() * right.over_columns(w_scales, 32)


@mutant(right.dequantised_nvfp4, "second_forgotten")
def second_forgotten(w_codes, w_scales, w_second):
    """The scale of the whole tensor is left out."""
    return right.of_nvfp4(w_codes, w_scales, 1.0)


@mutant(right.dequantised_mxfp8, "nothing")
def nothing(w_codes, w_scales):
    """Zeros."""
    return torch.zeros(w_codes.shape, device=w_codes.device)


@mutant(right.dequantised_uint4, "one_less")
def one_less(w_codes, w_scales, w_zeros):
    """The zero point is stored less one, as GPTQ does, and this kernel adds 1 to a zero point that is not."""
    centred = right.halves(w_codes).to(torch.int8) - right.over_columns(w_zeros.to(torch.int8) + 1, 32)
    return centred.bfloat16() * right.over_columns(w_scales, 32)


@mutant(right.dequantised_uint4, "always_eight")
def always_eight(w_codes, w_scales, w_zeros):
    """The zero points are not read: 8 stands for them."""
    return (right.halves(w_codes).to(torch.int8) - 8).bfloat16() * right.over_columns(w_scales, 32)


# -- products -----------------------------------------------------------------------------------------------

W4 = {"like": lambda x, w: x @ w.mT, "shapes": {"x": "m k", "w": "n k"}, "largest": 8.0, "gradients": False}


@verify.kernel(**W4, operands={"w": right.INT4}, dtypes=["bfloat16"])
def next_group(x, w_codes, w_scales):
    """Each group has the scale of the next one."""
    w = right.signed(right.halves(w_codes)).to(x.dtype) * right.over_columns(w_scales.roll(-1, -1), 32)
    return (x.float() @ w.float().mT).to(x.dtype)


@verify.kernel(**right.TURNED, operands={"w": right.INT4_ROWS})
def swapped_rows(x, w_codes, w_scales):
    """The two rows of a byte come in the other order."""
    codes = right.signed(right.halves_of_rows(w_codes << 4 | w_codes >> 4))
    return (x.float() @ (codes.to(x.dtype) * w_scales.repeat_interleave(32, 0)).float()).to(x.dtype)


@verify.kernel(**right.HALF, operands={"w": right.AWQ})
def awq_in_order(x, w_codes, w_scales, w_zeros):
    """The codes and zero points of a word of AWQ are read from the lowest bits on."""
    w = right.of_words(right.in_words(w_codes), w_scales, right.in_words(w_zeros))
    return (x.float() @ w.float()).to(x.dtype)


@verify.kernel(**right.HALF, operands={"w": right.AWQ})
def awq_zeros_in_order(x, w_codes, w_scales, w_zeros):
    """Only the zero points are read from the lowest bits on."""
    w = right.of_words(right.in_words(w_codes, (0, 4, 1, 5, 2, 6, 3, 7)), w_scales, right.in_words(w_zeros))
    return (x.float() @ w.float()).to(x.dtype)


@verify.kernel(**right.HALF, operands={"w": right.GPTQ})
def gptq_as_stored(x, w_codes, w_scales, w_zeros):
    """GPTQ stores zero points less one, and this kernel adds nothing."""
    w = right.of_words(right.in_words(w_codes.mT).mT, w_scales, right.in_words(w_zeros))
    return (x.float() @ w.float()).to(x.dtype)


@mutant(right.mxfp8_product, "fnuz")
def fnuz(a_codes, a_scales, b_codes, b_scales):
    """The codes of b are read as e4m3fnuz, which is half as large."""
    b = b_codes.view(torch.uint8).view(torch.float8_e4m3fnuz)
    return (right.of_mxfp8(a_codes, a_scales) @ right.of_mxfp8(b, b_scales).mT).bfloat16()


@mutant(right.nvfp4_product, "unswizzled_product")
def unswizzled_product(a_codes, a_scales, a_second, b_codes, b_scales, b_second):
    """The scales of b are read as rows. Their padding is NaN, which a product keeps."""
    a = right.of_nvfp4(a_codes, a_scales, a_second)
    numbers = right.E2M1.to(b_codes.device)[right.halves(b_codes).long()]
    rows, columns = numbers.shape[0], numbers.shape[1] // 16
    scales = b_scales[: rows * columns].reshape(rows, columns).float()
    return (a @ (numbers * right.over_columns(scales, 16) * b_second).mT).bfloat16()


@verify.kernel(**DECLARED, operands=fp8_product.encoded.encodings)
def first_scale(a_codes, a_scales, b_codes, b_scales):
    """In Triton: every block of a row of b has the scale of the first one."""
    first = b_scales[:, :1].expand(b_scales.shape).contiguous()
    return fp8_product(a_codes, a_scales, b_codes, first)


CAUSES = [
    (swapped_nibbles, "w: the codes of a byte are swapped: they lie low first", right.dequantised_mxfp4),
    (unswizzled_scales, "w: the scales are read in the order of the blocks, they lie in 128x4 tiles",
     right.dequantised_nvfp4),
    (shifted_exponent, "w: the scale is read off by one code (+1)", right.dequantised_mxfp8),
    (unsigned_codes, "w: the codes are read as uint4, they are int4", right.dequantised_int4),
    (second_forgotten, "w: the second scale is left out", right.dequantised_nvfp4),
    (one_less, "w: the zero point is off by one (+1)", right.dequantised_uint4),
    (always_eight, "w: the middle of the codes is taken as the zero point", right.dequantised_uint4),
    (nothing, "every element is 0", right.dequantised_mxfp8),
    (next_group, "w: the scale is that of the next block in a row", right.w4a16),
    (swapped_rows, "w: the codes of a byte are swapped: they lie low first by rows", right.w4a16_rows),
    (awq_in_order, "w: the codes of an int32 lie in the order 0 4 1 5 2 6 3 7, the kernel reads 0 1 2 3",
     right.w4a16_awq),
    (awq_zeros_in_order, "w: the zero points of an int32 lie in the order 0 4 1 5 2 6 3 7", right.w4a16_awq),
    (gptq_as_stored, "w: the zero point is off by one (-1)", right.w4a16_gptq),
    (fnuz, "a or b: the codes are read as e4m3fnuz, they are e4m3fn", right.mxfp8_product),
    (first_scale, "b: the scale is that of the first block in a row", fp8_product),
    (unswizzled_product, "b: the scales are read in the order of the blocks, they lie in 128x4 tiles",
     right.nvfp4_product),
]  # fmt: skip
