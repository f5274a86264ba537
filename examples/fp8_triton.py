"""A product of FP8 in Triton, with scales for 1 x 128 and for 128 x 128. On the interpreter it has the bits of the GPU.

    verify run examples/fp8_triton.py

Each block of 128 products is one `tl.dot`, whose sum is scaled and added in float32: docs/low-precision.md.
"""

import torch
import triton
import triton.language as tl

import verify
from examples.quantised_operands import FP8_SQUARES, FP8_TOKENS, PRODUCT

DECLARED = {**PRODUCT, "accumulate": "14 bits, promoted every 128", "layouts": "contiguous"}


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
        total += tl.dot(left, right) * of_rows[:, None] * of_squares[None, :]
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(y + rows[:, None] * n + columns[None, :], total.to(tl.bfloat16), mask=inside)


def product(a, a_scales, b, b_scales):
    """Launches the kernel."""
    (m, k), n = a.shape, b.shape[0]
    y = torch.empty(m, n, dtype=torch.bfloat16, device=a.device)
    grid = (triton.cdiv(m, 32), triton.cdiv(n, 32))
    scaled_dot[grid](a, a_scales, b, b_scales, y, m, n, k, ROWS=32, COLUMNS=32)
    return y


@verify.kernel(**DECLARED, operands={"a": FP8_TOKENS, "b": FP8_SQUARES})
def fp8_product(a_codes, a_scales, b_codes, b_scales):
    """A product of FP8 with block scales, by `tl.dot`."""
    return product(a_codes, a_scales, b_codes, b_scales)
