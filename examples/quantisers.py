"""Published block quantisers in plain PyTorch: MXFP8, MXFP6, MXFP4, NVFP4, FP8 by blocks, rows and tensors, INT8, INT4.

    verify run examples/quantisers.py::nvfp4
    python -m benchmarks.quantisers

Each follows the rule that its project documents, and `verify.quantised` says that rule: docs/low-precision.md.
`dequantise` is the way back: the benchmark tries every code with every scale.
"""

from __future__ import annotations

import math

import torch

import verify

E4M3, E5M2, E8M0 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0, "e2m3": 7.5, "e3m2": 28.0, "e2m1": 6.0}
_FLOATX = {"e2m3": (3, 0), "e3m2": (2, -2), "e2m1": (1, 0)}  # mantissa bits, exponent of the smallest normal number


def blocks(x, rows, columns):
    """x as (blocks down, blocks across, rows, columns) in float32."""
    m, k = x.shape
    return x.float().reshape(m // rows, rows, k // columns, columns).transpose(1, 2)


def unblocked(values):
    """The inverse of `blocks`."""
    high, wide, rows, columns = values.shape
    return values.transpose(1, 2).reshape(high * rows, wide * columns)


def amax_of(b):
    """The largest magnitude of each block; NaN where the block has one."""
    return b.abs().amax((-1, -2))


# -- scales that are powers of two --------------------------------------------------------------------------


def exponent_floor(amax):
    """floor(log2 amax); of zero less than any format has."""
    return torch.where(amax == 0, -1000, torch.frexp(amax)[1] - 1)


def exponent_ceil(amax):
    mantissa, exponent = torch.frexp(amax)
    return torch.where(amax == 0, -1000, exponent - (mantissa == 0.5).int())


def exponent_even(amax, mantissa_bits):
    """The exponent once the mantissa is rounded to so many bits, half up."""
    bits = amax.view(torch.int32) + (1 << (22 - mantissa_bits))
    return torch.where(amax < 2.0**-126, exponent_floor(amax), (bits >> 23 & 255) - 127)


def e8m0(exponent, amax):
    """The code of 2^exponent within the range of e8m0; NaN where amax is no number."""
    code = (exponent.clamp(-127, 127) + 127).to(torch.uint8)
    return torch.where(torch.isfinite(amax), code, 255).to(torch.uint8).view(E8M0)


# -- elements -------------------------------------------------------------------------------------------------


def cast8(values, kind, largest):
    """float8 with saturation; NaN stays."""
    return values.clamp(-largest, largest).to(kind)


def floatx(values, name):
    """Codes of a format without NaN and infinities, rounded to nearest even with saturation, the sign kept."""
    bits, least = _FLOATX[name]
    magnitude = values.abs().clamp(max=LARGEST[name]).nan_to_num(nan=0.0)
    exponent = exponent_floor(magnitude).clamp(min=least)
    steps = torch.round(magnitude.double() / torch.exp2(exponent.double() - bits)).long()
    code = steps + ((exponent - least).long() << bits)  # a mantissa that rounds up carries into the exponent by itself
    sign = torch.signbit(values).long() << {"e2m1": 3, "e2m3": 5, "e3m2": 5}[name]
    return (code | sign).to(torch.uint8)


def packed(codes):
    """Two 4-bit codes in a byte, the first in the low half."""
    return codes[:, ::2] | codes[:, 1::2] << 4


def tiled(scales):
    """Scales in tiles of 128 x 4, filled up with zeros, as tensor cores of sm_100 read them."""
    m, k = scales.shape
    high, wide = -(-m // 128), -(-k // 4)
    full = torch.zeros(high * 128, wide * 4, dtype=torch.uint8, device=scales.device)
    full[:m, :k] = scales.view(torch.uint8)
    tiles = full.reshape(high, 4, 32, wide, 4).permute(0, 3, 2, 1, 4)
    return tiles.reshape(-1)


# -- MX: blocks of 32 along a row, e8m0 scales --------------------------------------------------------------------

_RULES = {
    "floor": lambda amax, name: exponent_floor(amax) - _emax(name),
    "ceil": lambda amax, name: exponent_ceil(amax) - _emax(name),
    "even": lambda amax, name: exponent_even(amax, {"e4m3": 3, "e5m2": 2, "e2m1": 1}[name]) - _emax(name),
    "rceil": lambda amax, name: exponent_ceil(divided(amax, LARGEST[name])),
}


def divided(x, number):
    """x / number. By a tensor: on a GPU, PyTorch multiplies by the rounded reciprocal of a Python number."""
    return x / x.new_tensor(number)


def _emax(name):
    return math.frexp(LARGEST[name])[1] - 1


def mx(x, name, rule, size=32):
    """MX of the Open Compute Project, with the rule of torchao's `to_mx` for the scale."""
    b = blocks(x, 1, size)
    amax = amax_of(b)
    exponent = _RULES[rule](amax, name)
    scales = e8m0(exponent, amax)
    scaled = (b.double() * torch.exp2(-exponent.clamp(-127, 127).double())[..., None, None]).float()
    if name in ("e4m3", "e5m2"):
        return unblocked(cast8(scaled, E4M3 if name == "e4m3" else E5M2, LARGEST[name])), scales
    codes = unblocked(floatx(scaled, name))
    return (packed(codes) if name == "e2m1" else codes), scales


def declared_mx(name, rule, label):
    pack = "low first" if name == "e2m1" else ""
    encoding = verify.quantised(name, block=(1, 32), scale="e8m0", rule=rule, packed=pack, by="division")

    def quantise(x):
        """MX of the Open Compute Project in blocks of 32, by one of its rules for the scale."""
        return mx(x, name, rule)

    return verify.kernel(quantise=encoding, dtypes=["bfloat16", "float32"], name=label)(quantise)


mxfp8 = declared_mx("e4m3", "floor", "mxfp8")  # OCP MX 1.0, torchao's default
mxfp8_e5m2 = declared_mx("e5m2", "floor", "mxfp8_e5m2")
mxfp8_rceil = declared_mx("e4m3", "rceil", "mxfp8_rceil")  # cuBLAS, Transformer Engine
mxfp8_ceil = declared_mx("e4m3", "ceil", "mxfp8_ceil")
mxfp8_even = declared_mx("e4m3", "even", "mxfp8_even")  # Quark
mxfp6_e2m3 = declared_mx("e2m3", "floor", "mxfp6_e2m3")
mxfp6_e3m2 = declared_mx("e3m2", "floor", "mxfp6_e3m2")
mxfp4 = declared_mx("e2m1", "floor", "mxfp4")
mxfp4_even = declared_mx("e2m1", "even", "mxfp4_even")
mxfp4_rceil = declared_mx("e2m1", "rceil", "mxfp4_rceil")  # aiter, FlashInfer


# -- NVFP4: blocks of 16, e4m3 scales, one float32 scale ----------------------------------------------------------


def nvfp4_parts(x):
    """Codes, scales and the scale of the tensor, all unpacked: Transformer Engine's order of operations."""
    b = blocks(x, 1, 16)
    amax = amax_of(b)
    whole = amax.amax()
    encode = torch.where(whole == 0, 1.0, LARGEST["e4m3"] * LARGEST["e2m1"] / whole)
    scales = cast8(amax * (encode * (1 / LARGEST["e2m1"])), E4M3, LARGEST["e4m3"])
    per_block = torch.where(scales.float() == 0, 0.0, 1 / (scales.float() * (1 / encode)))
    return unblocked(floatx(b * per_block[..., None, None], "e2m1")), scales, (1 / encode).reshape(1)


_NVFP4 = {"block": (1, 16), "scale": "e4m3", "second": "float32", "packed": "low first"}


@verify.kernel(quantise=verify.quantised("e2m1", swizzle="128x4", **_NVFP4), dtypes=["bfloat16", "float32"])
def nvfp4(x):
    """NVFP4 with scales in tiles of 128 x 4."""
    codes, scales, second = nvfp4_parts(x)
    return packed(codes), tiled(scales), second


def by_scales(b, scales, decode):
    """Codes of blocks by e4m3 scales, and the sum of their squared errors."""
    whole = scales.float()[..., None, None] * decode
    codes = floatx(torch.where(whole == 0, 0.0, b / whole), "e2m1")
    return codes, (float_of(codes, "e2m1") * whole - b).square().sum((-1, -2))


def four_over_six(x):
    """Codes, scales and the scale of the tensor; each block has the scale with the smaller squared error."""
    b = blocks(x, 1, 16)
    amax = amax_of(b)
    decode = torch.where(amax.amax() == 0, 1.0, amax.amax() / (6 * 256))
    six, four = (cast8(amax / decode / most, E4M3, LARGEST["e4m3"]) for most in (6.0, 4.0))
    (codes, error), (others, error_of_others) = (by_scales(b, scales, decode) for scales in (six, four))
    is_four = error_of_others < error
    codes = torch.where(is_four[..., None, None], others, codes)
    scales = torch.where(is_four, four.view(torch.uint8), six.view(torch.uint8))
    return unblocked(codes), scales.view(E4M3), decode.reshape(1)


@verify.kernel(quantise=verify.quantised("e2m1", rule="4over6", **_NVFP4), dtypes=["bfloat16", "float32"])
def nvfp4_4over6(x):
    """NVFP4 whose blocks have 6 or 4 as the maximum: Four Over Six."""
    codes, scales, second = four_over_six(x)
    return packed(codes), scales, second


# -- float32 scales -------------------------------------------------------------------------------------------


def scaled8(x, rows, columns, least=0.0, power=False):
    """FP8 with a float32 scale amax / 448 for each block, as DeepSeek and vLLM compute it."""
    b = blocks(x, rows or x.shape[0], columns or x.shape[1])
    scales = divided(amax_of(b).clamp(min=least), LARGEST["e4m3"])
    if power:
        scales = torch.exp2(exponent_ceil(scales).float())
    inside = torch.where(scales == 0, 1.0, scales)
    return unblocked(cast8(b / inside[..., None, None], E4M3, LARGEST["e4m3"])), scales


def declared_fp8(label, block, **rule):
    encoding = verify.quantised("e4m3", block=block, scale="float32", by="division", **rule)

    def quantise(x):
        """FP8 with a float32 scale for each block."""
        return scaled8(x, *block, rule.get("least", 0.0), rule.get("rule") == "rceil")

    return verify.kernel(quantise=encoding, dtypes=["bfloat16", "float32"], name=label)(quantise)


fp8_blocks = declared_fp8("fp8_blocks", (1, 128), least=1e-4)  # DeepGEMM's activations
fp8_squares = declared_fp8("fp8_squares", (128, 128), least=1e-4)  # DeepGEMM's weights
fp8_powers = declared_fp8("fp8_powers", (1, 128), least=1e-4, rule="rceil")  # DeepGEMM with use_ue8m0
fp8_rows = declared_fp8("fp8_rows", (1, 0), least=1e-10)  # vLLM, one scale for each token
fp8_tensor = declared_fp8("fp8_tensor", (0, 0), least=1e-10)  # vLLM, one scale for the tensor


def integers(x, columns, largest, least):
    """Symmetric integers: amax / largest in float32, elements rounded half to even."""
    b = blocks(x, 1, columns or x.shape[1])
    scales = divided(amax_of(b).clamp(min=least), largest)
    codes = torch.round(b / scales[..., None, None]).clamp(-largest - 1, largest)
    return unblocked(codes.nan_to_num(nan=0.0).to(torch.int8)), torch.where(torch.isnan(amax_of(b)), torch.nan, scales)


INT8 = verify.quantised("int8", block=(1, 0), scale="float32", by="division", least=1e-10)
INT4 = verify.quantised("int4", block=(1, 128), scale="float32", by="division", least=1e-10, packed="low first")


@verify.kernel(quantise=INT8, dtypes=["bfloat16", "float32"])
def int8_rows(x):
    """INT8 activations, one scale for each token."""
    return integers(x, 0, 127, 1e-10)


@verify.kernel(quantise=INT4, dtypes=["bfloat16", "float32"])
def int4_groups(x):
    """INT4 weights in groups of 128, two in a byte (W4A16)."""
    codes, scales = integers(x, 128, 7, 1e-10)
    return packed(codes.view(torch.uint8) & 15), scales


INT4_COLUMNS = verify.quantised("int4", block=(32, 1), scale="bfloat16", least=1e-10, packed="low first by rows")


def integers_of_columns(x):
    """INT4 by groups of 32 rows, with scales rounded to bfloat16 before they divide."""
    b = blocks(x, 32, 1)
    scales = divided(amax_of(b).clamp(min=1e-10), 7.0).bfloat16()
    codes = torch.round(b / scales.float()[..., None, None]).clamp(-8, 7).nan_to_num(nan=0.0)
    return unblocked(codes).to(torch.int8).view(torch.uint8) & 15, scales


@verify.kernel(quantise=INT4_COLUMNS, dtypes=["bfloat16", "float32"])
def int4_columns(x):
    """INT4 weights in groups of 32 rows with bfloat16 scales. A byte has the codes of two rows, as GPTQ packs them."""
    codes, scales = integers_of_columns(x)
    return codes[::2] | codes[1::2] << 4, scales


def asymmetric(x, columns, first, last, least):
    """Integers with zero points: the range of a block with 0 over all codes, rounded half to even."""
    b = blocks(x, 1, columns or x.shape[1])
    low, high = b.amin((-1, -2)).clamp(max=0), b.amax((-1, -2)).clamp(min=0)
    scales = divided((high - low).clamp(min=least), last - first)
    zeros = (first - torch.round(low / scales)).clamp(first, last)
    codes = (torch.round(b / scales[..., None, None]) + zeros[..., None, None]).clamp(first, last)
    return unblocked(codes.nan_to_num(nan=0.0)), scales, zeros.nan_to_num(nan=0.0)


ZERO_INT8 = verify.quantised("int8", block=(1, 0), scale="float32", zero_point="int8", by="division", least=1e-10)


@verify.kernel(quantise=ZERO_INT8, dtypes=["bfloat16", "float32"])
def int8_tokens(x):
    """INT8 activations with a scale and a zero point for each token."""
    codes, scales, zeros = asymmetric(x, 0, -128, 127, 1e-10)
    return codes.to(torch.int8), scales, zeros.to(torch.int8)


UINT4 = verify.quantised(
    "uint4", block=(1, 32), scale="float32", zero_point="uint4", by="division", least=1e-10, packed="low first"
)


@verify.kernel(quantise=UINT4, dtypes=["bfloat16", "float32"])
def uint4_groups(x):
    """UINT4 weights in groups of 32 with a scale and a zero point for each, two codes in a byte (AWQ, HQQ)."""
    codes, scales, zeros = asymmetric(x, 32, 0, 15, 1e-10)
    return packed(codes.to(torch.uint8)), scales, zeros.to(torch.uint8)


HALF_QUADRATIC = verify.quantised(
    "uint4", block=(1, 64), scale="float32", zero_point="float32", by="division", least=1e-10, packed="high first"
)


def shifted(x, columns):
    """UINT4 with a zero point in float32, which is added before an element is rounded."""
    b = blocks(x, 1, columns)
    low, high = b.amin((-1, -2)).clamp(max=0), b.amax((-1, -2)).clamp(min=0)
    scales = divided((high - low).clamp(min=1e-10), 15.0)
    zeros = -low / scales
    codes = torch.round(b / scales[..., None, None] + zeros[..., None, None]).clamp(0, 15).nan_to_num(nan=0.0)
    return unblocked(codes).to(torch.uint8), scales, zeros


@verify.kernel(quantise=HALF_QUADRATIC, dtypes=["bfloat16", "float32"])
def uint4_hqq(x):
    """UINT4 with zero points that are no integers: HQQ, before it optimises them. The high code of a byte is first."""
    codes, scales, zeros = shifted(x, 64)
    return codes[:, ::2] << 4 | codes[:, 1::2], scales, zeros


# -- stochastic rounding ----------------------------------------------------------------------------------------


def by_bits(scaled, bits):
    """e2m1 by 16 random bits: the fraction below the last place is cut to 16 bits and added to them; a carry rounds up.

    The codes of magnitudes are in their order, so that the next code is the next magnitude.
    """
    size = scaled.abs().clamp(max=6.0)
    code = torch.where(
        size < 1, size * 2, torch.where(size < 2, size * 2, torch.where(size < 4, size + 2, size / 2 + 4))
    )
    whole = code.floor()
    up = torch.floor((code - whole) * 65536) + bits >= 65536
    return (whole + up).clamp(max=7).to(torch.uint8) | torch.where(torch.signbit(scaled), 8, 0).to(torch.uint8)


RANDOM = verify.quantised(
    "e2m1", block=(1, 32), scale="e8m0", packed="low first", random="add", random_bits=16, nan="block"
)


@verify.kernel(quantise=RANDOM, dtypes=["bfloat16"])
def mxfp4_random(x, bits):
    """MXFP4 with elements rounded by 16 random bits each, as `cvt.rs` does."""
    _, scales = mx(x, "e2m1", "floor")
    scaled = unblocked(blocks(x, 1, 32).double() / scale_of(scales.view(torch.uint8), "e8m0")[..., None, None])
    return packed(by_bits(scaled.nan_to_num(nan=0.0), bits)), scales


# -- the way back ---------------------------------------------------------------------------------------------


def float_of(codes, name):
    """The numbers of codes as float32, by bits."""
    if name in _FLOATX:
        bits, least = _FLOATX[name]
        width = {"e2m1": 3, "e2m3": 5, "e3m2": 5}[name]
        size, wide = codes.int() & (1 << width) - 1, torch.int32
        exponent, mantissa = size >> bits, (size & (1 << bits) - 1).to(wide)
        normal = torch.exp2((exponent + least - 1).float()) * (1 + mantissa / (1 << bits))
        value = torch.where(exponent == 0, mantissa * 2.0 ** (least - bits), normal)
        return torch.where(codes.int() >> width & 1 == 1, -value, value)
    if name.startswith("uint"):
        return codes.float()
    if name.startswith("int"):
        half = 1 << int(name[3:]) - 1
        return ((codes.int() + half) % (2 * half) - half).float()
    return codes.view({"e4m3": E4M3, "e5m2": E5M2}[name]).float()


def scale_of(codes, name):
    """e8m0 or e4m3 scales as float32; code 0 of e8m0 is the subnormal 2^-127."""
    if name == "e4m3":
        return codes.view(E4M3).float()
    bits = torch.where(codes == 0, 1 << 22, codes.int() << 23)
    return torch.where(codes == 255, torch.nan, bits.view(torch.float32))


def dequantise(codes, scales, data, scale):
    """The product in float32 of each code and its scale."""
    return float_of(codes, data) * scale_of(scales, scale)
