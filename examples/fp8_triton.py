"""FP8 in Triton: a quantiser of activations by 1 x 128, and a product with scales for 1 x 128 and 128 x 128.

    verify run examples/fp8_triton.py

The interpreter gives the bits of an H200. Each block of 128 products is one `tl.dot` of 64 rows, which the GPU computes
by `wgmma`. `tl.fma` leaves the compiler no choice of rounding. docs/low-precision.md describes the accumulator.
"""

import torch
import triton
import triton.language as tl

import verify
from examples.quantised_operands import FP8_SQUARES, FP8_TOKENS, PRODUCT

DECLARED = {**PRODUCT, "accumulate": "14 bits, promoted every 128", "layouts": "contiguous"}
TOKENS = verify.quantised("e4m3", block=(1, 128), scale="float32", by="division", least=1e-4, nan="any")


@triton.jit
def scaled_dot(a, a_scales, b, b_scales, y, m, n, k, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # noqa: PLR0913
    """A tile of y. a and b hold FP8 codes by row, a_scales and b_scales float32; sums are float32, y is bfloat16."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for block in range(k // 128):
        inner = block * 128 + tl.arange(0, 128)
        left = tl.load(a + rows[:, None] * k + inner[None, :], mask=rows[:, None] < m, other=0.0)
        right = tl.load(b + columns[None, :] * k + inner[:, None], mask=columns[None, :] < n, other=0.0)
        of_rows = tl.load(a_scales + rows * (k // 128) + block, mask=rows < m, other=0.0)
        of_squares = tl.load(b_scales + columns // 128 * (k // 128) + block, mask=columns < n, other=0.0)
        scaled = tl.dot(left, right) * of_rows[:, None]
        total = tl.fma(scaled, of_squares[None, :] + tl.zeros((ROWS, COLUMNS), tl.float32), total)
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(y + rows[:, None] * n + columns[None, :], total.to(tl.bfloat16), mask=inside)


def product(a, a_scales, b, b_scales):
    """Launches the kernel."""
    (m, k), n = a.shape, b.shape[0]
    y = torch.empty(m, n, dtype=torch.bfloat16, device=a.device)
    grid = (triton.cdiv(m, 64), triton.cdiv(n, 32))
    scaled_dot[grid](a, a_scales, b, b_scales, y, m, n, k, ROWS=64, COLUMNS=32)
    return y


@verify.kernel(**DECLARED, operands={"a": FP8_TOKENS, "b": FP8_SQUARES})
def fp8_product(a_codes, a_scales, b_codes, b_scales):
    """A product of FP8 with block scales, by `tl.dot`."""
    return product(a_codes, a_scales, b_codes, b_scales)


@triton.jit
def quantised_block(x, codes, scales, LEAST: tl.constexpr):
    """One block of 128. x is bfloat16 or float32, codes are FP8, scales float32. Both divisions are rounded once."""
    at = tl.program_id(0) * 128 + tl.arange(0, 128)
    values = tl.load(x + at).to(tl.float32)
    amax = tl.maximum(tl.max(tl.abs(values), 0), LEAST)
    scale = tl.div_rn(amax, 448.0)
    scaled = tl.div_rn(values, scale)
    tl.store(codes + at, tl.minimum(tl.maximum(scaled, -448.0), 448.0).to(tl.float8e4nv))
    tl.store(scales + tl.program_id(0), scale)


def quantised_tokens(x):
    """Launches the kernel."""
    x = x.contiguous()
    codes = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(x.shape[0], x.shape[1] // 128, device=x.device)
    quantised_block[(scales.numel(),)](x, codes, scales, LEAST=1e-4)
    return codes, scales


@verify.kernel(quantise=TOKENS, dtypes=["bfloat16", "float32"])
def fp8_tokens(x):
    """FP8 of activations in blocks of 128, as DeepSeek-V3 quantises them. Blocks with NaN are not promised anything."""
    return quantised_tokens(x)
