"""Kernels with quantised operands in plain PyTorch: dequantisers, W4A16, W8A8, FP8, MXFP8 and NVFP4 products.

    verify run examples/quantised_operands.py::w4a16

A kernel receives codes and scales, as its project lays them out. like= receives the numbers that they mean:
docs/low-precision.md.
"""

from __future__ import annotations

import torch

import verify

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
MXFP4 = verify.quantised("e2m1", block=(1, 32), scale="e8m0", packed="low first")
MXFP8 = verify.quantised("e4m3", block=(1, 32), scale="e8m0")
NVFP4 = verify.quantised("e2m1", block=(1, 16), scale="e4m3", second="float32", packed="low first", swizzle="128x4")
INT4 = verify.quantised("int4", block=(1, 32), scale="bfloat16", packed="low first")
INT4_ROWS = verify.quantised("int4", block=(32, 1), scale="bfloat16", packed="low first by rows")
UINT4 = verify.quantised("uint4", block=(1, 32), scale="bfloat16", zero_point="uint4", packed="low first")
HQQ = verify.quantised("uint4", block=(1, 64), scale="bfloat16", zero_point="bfloat16", packed="high first")
AWQ = verify.quantised("uint4", block=(32, 1), scale="float16", zero_point="uint4", packed="awq")
GPTQ = verify.quantised("uint4", block=(32, 1), scale="float16", zero_point="uint4", packed="gptq")
INT8_TOKENS = verify.quantised("int8", block=(1, 0), scale="float32", zero_point="int8")
INT8_ROWS = verify.quantised("int8", block=(1, 0), scale="float32")
FP8_TOKENS = verify.quantised("e4m3", block=(1, 128), scale="float32")  # DeepSeek-V3: activations
FP8_ROWS = verify.quantised("e4m3", block=(1, 0), scale="float32")
FP8_WHOLE = verify.quantised("e4m3", block=(0, 0), scale="float32")
FP8_SQUARES = verify.quantised("e4m3", block=(128, 128), scale="float32")  # and weights
ALONE = {"like": lambda w: w, "shapes": {"w": "n k"}, "gradients": False}
PRODUCT = {"like": lambda a, b: a @ b.mT, "shapes": {"a": "m k", "b": "n k"}, "largest": 8.0, "dtypes": ["bfloat16"],
           "gradients": False}  # fmt: skip
WEIGHTS = {"like": lambda x, w: x @ w.mT, "shapes": {"x": "m k", "w": "n k"}, "largest": 8.0, "dtypes": ["bfloat16"]}
TURNED = {**WEIGHTS, "like": torch.matmul, "shapes": {"x": "m k", "w": "k n"}}
HALF = {**TURNED, "dtypes": ["float16"]}


# -- what codes and scales mean -----------------------------------------------------------------------------


def halves(codes):
    """The two codes of each byte, the low one first."""
    return torch.stack([codes & 15, codes >> 4], -1).flatten(-2)


def signed(nibbles):
    """int4 as numbers from -8 to 7."""
    return (nibbles ^ 8).to(torch.int8) - 8


def powers(scales):
    """e8m0 as float32. Code 0 is 2^-127, below the normal numbers."""
    return torch.where(scales == 255, torch.nan, torch.exp2(scales.double() - 127)).float()


def over_columns(scales, columns):
    """Each scale for all columns of its block."""
    return scales.repeat_interleave(columns, -1)


def unswizzled(scales, rows, columns):
    """Scales in 128x4 tiles as a matrix."""
    high, wide = -(-rows // 128), -(-columns // 4)
    tiles = scales.reshape(high, wide, 32, 4, 4).transpose(2, 3).reshape(high, wide, 128, 4)
    return tiles.transpose(1, 2).reshape(high * 128, wide * 4)[:rows, :columns]


def of_mxfp8(codes, scales):
    return codes.float() * over_columns(powers(scales), 32)


def of_mxfp4(codes, scales):
    return E2M1.to(codes.device)[halves(codes).long()] * over_columns(powers(scales), 32)


def of_nvfp4(codes, scales, second):
    numbers = E2M1.to(codes.device)[halves(codes).long()]
    matrix = unswizzled(scales, numbers.shape[0], numbers.shape[1] // 16)
    return numbers * (over_columns(matrix.float(), 16) * second)


def of_fp8_squares(codes, scales):
    whole = over_columns(scales, 128).repeat_interleave(128, -2)
    return codes.float() * whole[..., : codes.shape[-2], :]


# -- dequantisers -------------------------------------------------------------------------------------------


@verify.kernel(**ALONE, operands={"w": MXFP4}, dtypes=["float32"])
def dequantised_mxfp4(w_codes, w_scales):
    """Numbers of MXFP4."""
    return of_mxfp4(w_codes, w_scales)


@verify.kernel(**ALONE, operands={"w": MXFP8}, dtypes=["float32"])
def dequantised_mxfp8(w_codes, w_scales):
    """Numbers of MXFP8."""
    return of_mxfp8(w_codes, w_scales)


@verify.kernel(**ALONE, operands={"w": NVFP4}, dtypes=["float32"])
def dequantised_nvfp4(w_codes, w_scales, w_second):
    """Numbers of NVFP4, with swizzled scales."""
    return of_nvfp4(w_codes, w_scales, w_second)


@verify.kernel(**ALONE, operands={"w": INT4}, dtypes=["bfloat16"])
def dequantised_int4(w_codes, w_scales):
    """Numbers of INT4 in groups of 32, in bfloat16."""
    return signed(halves(w_codes)).bfloat16() * over_columns(w_scales, 32)


@verify.kernel(**ALONE, operands={"w": UINT4}, dtypes=["bfloat16"])
def dequantised_uint4(w_codes, w_scales, w_zeros):
    """Numbers of UINT4 with zero points in groups of 32, in bfloat16, as AWQ has them."""
    centred = halves(w_codes).to(torch.int8) - over_columns(w_zeros.to(torch.int8), 32)
    return centred.bfloat16() * over_columns(w_scales, 32)


@verify.kernel(**ALONE, operands={"w": HQQ}, dtypes=["float32"])
def dequantised_hqq(w_codes, w_scales, w_zeros):
    """Numbers of UINT4 with zero points that are no integers, in groups of 64, the high code of a byte first."""
    codes = torch.stack([w_codes >> 4, w_codes & 15], -1).flatten(-2)
    return (codes.float() - over_columns(w_zeros, 64).float()) * over_columns(w_scales, 64).float()


# -- products -----------------------------------------------------------------------------------------------


@verify.kernel(**WEIGHTS, operands={"w": INT4})
def w4a16(x, w_codes, w_scales):
    """A product with weights of INT4, which are rounded to bfloat16 before it."""
    w = signed(halves(w_codes)).to(x.dtype) * over_columns(w_scales, 32)
    return (x.float() @ w.float().mT).to(x.dtype)


def halves_of_rows(codes):
    """The two codes of each byte as two rows, the low one first."""
    return torch.stack([codes & 15, codes >> 4], 1).flatten(0, 1)


@verify.kernel(**TURNED, operands={"w": INT4_ROWS})
def w4a16_rows(x, w_codes, w_scales):
    """A product with weights of INT4 in groups of 32 rows. A byte has the codes of two rows, as GPTQ packs them."""
    w = signed(halves_of_rows(w_codes)).to(x.dtype) * w_scales.repeat_interleave(32, 0)
    return (x.float() @ w.float()).to(x.dtype)


def in_words(words, order=range(8)):
    """The eight codes of each int32, as columns; `order` has their places."""
    return torch.stack([words >> 4 * place & 15 for place in order], -1).flatten(-2)


def of_words(codes, scales, zeros):
    """(code - zero point) * scale, for groups of 32 rows."""
    return (codes - zeros.repeat_interleave(32, 0)) * scales.repeat_interleave(32, 0)


@verify.kernel(**HALF, operands={"w": AWQ})
def w4a16_awq(x, w_codes, w_scales, w_zeros):
    """A product with weights as AWQ packs them: codes and zero points of eight columns in an int32."""
    order = (0, 4, 1, 5, 2, 6, 3, 7)
    return (x.float() @ of_words(in_words(w_codes, order), w_scales, in_words(w_zeros, order)).float()).to(x.dtype)


@verify.kernel(**HALF, operands={"w": GPTQ})
def w4a16_gptq(x, w_codes, w_scales, w_zeros):
    """A product with weights as GPTQ packs them: codes of eight rows in an int32, and zero points less one."""
    w = of_words(in_words(w_codes.mT).mT, w_scales, in_words(w_zeros) + 1)
    return (x.float() @ w.float()).to(x.dtype)


@verify.kernel(**WEIGHTS, operands={"w": MXFP4})
def w4a16_mxfp4(x, w_codes, w_scales):
    """A product with weights of MXFP4, as gpt-oss has them."""
    return (x.float() @ of_mxfp4(w_codes, w_scales).mT).to(x.dtype)


@verify.kernel(**WEIGHTS, operands={"w": INT8_ROWS})
def w8a16(x, w_codes, w_scales):
    """A product with weights of INT8, and a scale for each row."""
    return ((x.float() @ w_codes.float().mT) * w_scales.mT).to(x.dtype)


@verify.kernel(**PRODUCT, operands={"a": INT8_ROWS, "b": INT4})
def w4a8(a_codes, a_scales, b_codes, b_scales):
    """A product of rows of INT8 and weights of INT4."""
    b = signed(halves(b_codes)).float() * over_columns(b_scales.float(), 32)
    return ((a_codes.float() @ b.mT) * a_scales).bfloat16()


@verify.kernel(**PRODUCT, operands={"a": FP8_TOKENS, "b": INT4})
def w4a8_fp8(a_codes, a_scales, b_codes, b_scales):
    """A product of FP8 and weights of INT4."""
    b = signed(halves(b_codes)).float() * over_columns(b_scales.float(), 32)
    return ((a_codes.float() * over_columns(a_scales, 128)) @ b.mT).bfloat16()


@verify.kernel(**PRODUCT, operands={"a": INT8_ROWS, "b": INT8_ROWS})
def w8a8(a_codes, a_scales, b_codes, b_scales):
    """A product of rows of INT8, added up exactly in float64: PyTorch has no product of integers on a GPU."""
    return ((a_codes.double() @ b_codes.double().mT).float() * a_scales * b_scales.mT).bfloat16()


@verify.kernel(**PRODUCT, operands={"a": INT8_TOKENS, "b": INT8_ROWS})
def w8a8_asymmetric(a_codes, a_scales, a_zeros, b_codes, b_scales):
    """The same with a zero point for each row of a, which is subtracted from the sum."""
    sums = b_codes.double().sum(1)[None, :] * a_zeros.double()
    return ((a_codes.double() @ b_codes.double().mT - sums).float() * a_scales * b_scales.mT).bfloat16()


@verify.kernel(**PRODUCT, operands={"a": FP8_TOKENS, "b": FP8_SQUARES})
def fp8_blocks(a_codes, a_scales, b_codes, b_scales):
    """A product of FP8 with scales for 1 x 128 and 128 x 128, as DeepGEMM has it."""
    a = a_codes.float() * over_columns(a_scales, 128)
    return (a @ of_fp8_squares(b_codes, b_scales).mT).bfloat16()


@verify.kernel(**PRODUCT, operands={"a": FP8_ROWS, "b": FP8_ROWS})
def fp8_rows(a_codes, a_scales, b_codes, b_scales):
    """A product of FP8 with a scale for each token and for each channel."""
    return ((a_codes.float() @ b_codes.float().mT) * a_scales * b_scales.mT).bfloat16()


@verify.kernel(**PRODUCT, operands={"a": FP8_WHOLE, "b": FP8_WHOLE})
def fp8_whole(a_codes, a_scales, b_codes, b_scales):
    """A product of FP8 with one scale for each operand."""
    return ((a_codes.float() @ b_codes.float().mT) * (a_scales * b_scales)).bfloat16()


@verify.kernel(**PRODUCT, operands={"a": MXFP4, "b": MXFP4})
def mxfp4_product(a_codes, a_scales, b_codes, b_scales):
    """A block-scaled product of MXFP4, emulated."""
    return (of_mxfp4(a_codes, a_scales) @ of_mxfp4(b_codes, b_scales).mT).bfloat16()


@verify.kernel(**PRODUCT, operands={"a": MXFP8, "b": MXFP4})
def mxfp8_mxfp4(a_codes, a_scales, b_codes, b_scales):
    """A block-scaled product of MXFP8 and MXFP4, emulated."""
    return (of_mxfp8(a_codes, a_scales) @ of_mxfp4(b_codes, b_scales).mT).bfloat16()


@verify.kernel(**PRODUCT, operands={"a": MXFP8, "b": MXFP8})
def mxfp8_product(a_codes, a_scales, b_codes, b_scales):
    """A block-scaled product of MXFP8, emulated."""
    return (of_mxfp8(a_codes, a_scales) @ of_mxfp8(b_codes, b_scales).mT).bfloat16()


@verify.kernel(**PRODUCT, operands={"a": NVFP4, "b": NVFP4})
def nvfp4_product(a_codes, a_scales, a_second, b_codes, b_scales, b_second):
    """A block-scaled product of NVFP4, emulated. The second scales multiply the sum."""
    a, b = of_nvfp4(a_codes, a_scales, 1.0), of_nvfp4(b_codes, b_scales, 1.0)
    return ((a @ b.mT) * (a_second * b_second)).bfloat16()


def of_experts(x, w, lengths):
    """Rows of each expert by its matrix."""
    expert = (torch.arange(x.shape[0], device=x.device)[:, None] >= lengths.cumsum(0)).sum(1)
    return torch.einsum("te,tk,enk->tn", torch.nn.functional.one_hot(expert, 3).to(x.dtype), x, w)


EXPERTS = {**PRODUCT, "like": of_experts, "shapes": {"x": "t k", "w": "3 n k", "lengths": "3"},
           "integers": {"lengths": "0 <= lengths <= t, sum t"}}  # fmt: skip


def grouped(x, w, lengths):
    """Each group of rows by its matrix."""
    return torch.cat([part @ w[at].mT for at, part in enumerate(x.split(lengths.tolist()))]).bfloat16()


@verify.kernel(**EXPERTS, operands={"x": FP8_TOKENS, "w": FP8_SQUARES})
def grouped_fp8(x_codes, x_scales, w_codes, w_scales, lengths):
    """A grouped product of FP8 with block scales."""
    return grouped(x_codes.float() * over_columns(x_scales, 128), of_fp8_squares(w_codes, w_scales), lengths)


@verify.kernel(**EXPERTS, operands={"x": MXFP8, "w": MXFP8})
def grouped_mxfp8(x_codes, x_scales, w_codes, w_scales, lengths):
    """A grouped product of MXFP8."""
    return grouped(of_mxfp8(x_codes, x_scales), of_mxfp8(w_codes, w_scales), lengths)


@verify.kernel(**EXPERTS, operands={"w": MXFP4})
def grouped_mxfp4(x, w_codes, w_scales, lengths):
    """A grouped product with weights of MXFP4."""
    return grouped(x.float(), of_mxfp4(w_codes, w_scales), lengths)


@verify.kernel(**EXPERTS, operands={"w": INT4})
def grouped_w4a16(x, w_codes, w_scales, lengths):
    """A grouped product with weights of INT4, which are rounded to bfloat16 before it."""
    return grouped(x.float(), (signed(halves(w_codes)).to(x.dtype) * over_columns(w_scales, 32)).float(), lengths)
