"""Sums in Triton, whose orders `python -m benchmarks.same --orders` and tests/diagnose/test_compiled.py know two ways.

Each is declared, so that `verify explain benchmarks/sums.py::NAME --order` shows its order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

import verify


@triton.jit
def row_kernel(x, y, n, BLOCK: tl.constexpr):
    """Adds a row as one block."""
    row, cols = tl.program_id(0), tl.arange(0, BLOCK)
    tl.store(y + row, tl.sum(tl.load(x + row * n + cols, mask=cols < n, other=0.0), 0))


@triton.jit
def rows_kernel(x, y, m, n, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Adds several rows, each along the second dimension of a block."""
    rows, cols = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    mask = (rows[:, None] < m) & (cols[None, :] < n)
    tl.store(y + rows, tl.sum(tl.load(x + rows[:, None] * n + cols[None, :], mask=mask, other=0.0), 1), mask=rows < m)


@triton.jit
def columns_kernel(x, y, m, n, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Adds columns, along the first dimension of a block, tile after tile."""
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, m, ROWS):
        rows = first + tl.arange(0, ROWS)
        mask = (rows[:, None] < m) & (cols[None, :] < n)
        total += tl.sum(tl.load(x + rows[:, None] * n + cols[None, :], mask=mask, other=0.0), 0)
    tl.store(y + cols, total, mask=cols < n)


@triton.jit
def lanes_kernel(x, y, n, BLOCK: tl.constexpr):
    """Adds tiles of a row to each other, and the last tile at the end."""
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, n, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        total += tl.load(x + row * n + cols, mask=cols < n, other=0.0)
    tl.store(y + row, tl.sum(total, 0))


@triton.jit
def tiles_kernel(x, y, n, BLOCK: tl.constexpr):
    """Adds each tile of a row as a whole, and these sums one after the other."""
    row = tl.program_id(0)
    total = 0.0
    for first in range(0, n, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        total += tl.sum(tl.load(x + row * n + cols, mask=cols < n, other=0.0))
    tl.store(y + row, total)


@triton.jit
def softmax_kernel(x, y, n, BLOCK: tl.constexpr):
    """Adds exponentials."""
    row, cols = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(x + row * n + cols, mask=cols < n, other=-float("inf"))
    power = tl.exp(value - tl.max(value, 0))
    tl.store(y + row * n + cols, power / tl.sum(power, 0), mask=cols < n)


@triton.jit
def norm_kernel(x, y, n, BLOCK: tl.constexpr):
    """Adds squares of differences from a mean, which is a sum too."""
    row, cols = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(x + row * n + cols, mask=cols < n, other=0.0)
    centred = tl.where(cols < n, value - tl.sum(value, 0) / n, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, 0) / n + 1e-5)
    tl.store(y + row * n + cols, centred * scale, mask=cols < n)


@triton.jit
def dot_kernel(x, w, y, m, n, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Adds products of rows and 16 columns, 32 terms at a time, without tensor cores."""
    rows, cols = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, 16)
    total = tl.zeros([ROWS, 16], tl.float32)
    for first in range(0, n, BLOCK):
        terms = first + tl.arange(0, BLOCK)
        a = tl.load(x + rows[:, None] * n + terms[None, :], mask=(rows[:, None] < m) & (terms[None, :] < n), other=0.0)
        b = tl.load(w + terms[:, None] * 16 + cols[None, :], mask=terms[:, None] < n, other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
    tl.store(y + rows[:, None] * 16 + cols[None, :], total, mask=rows[:, None] < m)


def _summed(x: Tensor) -> Tensor:
    return x.sum(-1)


def _of_rows(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[0])


declared = verify.kernel(like=_summed, shapes={"x": "m n"}, dtypes=["float32"], gradients=False)


@declared
def row_sum(x: Tensor) -> Tensor:
    """One block for a row."""
    y = _of_rows(x)
    row_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=8)
    return y


@declared
def rows_sum(x: Tensor) -> Tensor:
    """One block for eight rows."""
    y, (m, n) = _of_rows(x), x.shape
    rows_kernel[(triton.cdiv(m, 8),)](x, y, m, n, ROWS=8, BLOCK=triton.next_power_of_2(n))
    return y


@verify.kernel(like=lambda x: x.sum(0), shapes={"x": "m n"}, dtypes=["float32"], gradients=False)
def columns_sum(x: Tensor) -> Tensor:
    """Sums of columns, 32 rows a tile."""
    y, (m, n) = x.new_empty(x.shape[1]), x.shape
    columns_kernel[(triton.cdiv(n, 64),)](x, y, m, n, ROWS=32, BLOCK=64)
    return y


@declared
def lanes_sum(x: Tensor) -> Tensor:
    """A loop over tiles of 512, whose lanes are added at its end."""
    y = _of_rows(x)
    lanes_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=512)
    return y


@declared
def tiles_sum(x: Tensor) -> Tensor:
    """A loop over sums of tiles of 512."""
    y = _of_rows(x)
    tiles_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=512, num_warps=2)
    return y


@verify.kernel(like=lambda x: x.softmax(-1), shapes={"x": "m n"}, dtypes=["float32"], gradients=False)
def softmax(x: Tensor) -> Tensor:
    """One block for a row."""
    y = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y


@verify.kernel(
    like=lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    shapes={"x": "m n"},
    dtypes=["float32"],
    gradients=False,
)
def norm(x: Tensor) -> Tensor:
    """One block for a row."""
    y = torch.empty_like(x)
    norm_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y


@verify.kernel(like=torch.matmul, shapes={"x": "m n", "w": "n 16"}, dtypes=["float32"], gradients=False)
def product(x: Tensor, w: Tensor) -> Tensor:
    """tl.dot in a loop over 32 terms."""
    y, (m, n) = x.new_empty(x.shape[0], 16), x.shape
    dot_kernel[(triton.cdiv(m, 16),)](x.contiguous(), w.contiguous(), y, m, n, ROWS=16, BLOCK=32)
    return y
