"""Softmax as Triton kernels, rows in blocks: what masked lanes hold when they meet a maximum or a sum."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mutants.mutant import Family, declare, differentiable
from verify.declare.declaration import Kernel

ROWS = 8


@triton.jit
def _forward_kernel(
    x_ptr,  # input, (M, N), rows adjacent
    y_ptr,  # output, like x
    wide_ptr,  # output in float64, for the backward pass
    M,
    N,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    BUG: tl.constexpr,
):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    mask = (row < M) & (column < N)
    offset = row * N + column
    if BUG == "the next row is read too":
        mask_in = row < M
    else:
        mask_in = mask
    if BUG == "padded lanes join the sum" or BUG == "padded lanes join the maximum" or BUG == "rows padded with 0":
        x = tl.load(x_ptr + offset, mask=mask_in, other=0.0).to(tl.float64)
    else:
        x = tl.load(x_ptr + offset, mask=mask_in, other=-float("inf")).to(tl.float64)
    if BUG == "maximum not subtracted":
        weights = tl.exp(x.to(tl.float32)).to(tl.float64)
    else:
        top = tl.max(x, 1)[:, None]
        if BUG == "padded lanes join the maximum":  # in float32, as such kernels work: a far maximum underflows
            weights = tl.exp((x - top).to(tl.float32)).to(tl.float64)
            weights = tl.where(mask, weights, 0.0)
        elif BUG == "rows padded with 0":  # in float64: all of a row beyond 745 below zero underflows
            weights = tl.where(mask, tl.exp(x - top), 0.0)
        else:
            weights = tl.exp(x - top)
    y = weights / tl.sum(weights, 1)[:, None]
    tl.store(y_ptr + offset, y.to(tl.float32).to(y_ptr.dtype.element_ty), mask=mask)
    tl.store(wide_ptr + offset, y, mask=mask)


@triton.jit
def _backward_kernel(
    wide_ptr,  # softmax in float64
    dy_ptr,
    dx_ptr,
    M,
    N,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    BUG: tl.constexpr,
):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    mask = (row < M) & (column < N)
    offset = row * N + column
    y = tl.load(wide_ptr + offset, mask=mask, other=0.0)
    dy = tl.load(dy_ptr + offset, mask=mask, other=0.0).to(tl.float64)
    dot = tl.sum(y * dy, 1)[:, None]
    if BUG == "dot product in float16":
        dot = dot.to(tl.float32).to(tl.float16).to(tl.float64)
    dx = y * (dy - dot) + (dot - dot)  # no gradient where an upstream gradient is not finite
    if BUG == "dot product lost":
        dx = y * dy
    tl.store(dx_ptr + offset, dx.to(tl.float32).to(dx_ptr.dtype.element_ty), mask=mask)


def _forward(x: Tensor, *, bug: str | None) -> Any:
    x = x.contiguous()  # on purpose: the kernels know row-adjacent memory only
    width = x.shape[-1]
    rows = x.numel() // width if width else 0
    y, wide = torch.empty_like(x), torch.empty_like(x, dtype=torch.float64)
    if bug == "maximum over nothing":
        x.amax(-1)
    if rows:
        block = triton.next_power_of_2(width)
        with torch.cuda.device_of(x):  # Triton launches on the current device
            _forward_kernel[(triton.cdiv(rows, ROWS),)](x, y, wide, rows, width, ROWS=ROWS, BLOCK=block, BUG=bug or "")
    if bug == "softmax saved in the input's dtype":
        wide = y.to(torch.float64)
    return y, (wide,)


def _backward(saved: tuple[Tensor, ...], dy: Tensor, *, bug: str | None) -> Tensor:
    (wide,) = saved
    dy = dy.contiguous()
    width = wide.shape[-1]
    rows = wide.numel() // width if width else 0
    dx = torch.empty_like(dy)
    if rows:
        block = triton.next_power_of_2(width)
        grid = (triton.cdiv(rows, ROWS),)
        with torch.cuda.device_of(dy):
            _backward_kernel[grid](wide, dy, dx, rows, width, ROWS=ROWS, BLOCK=block, BUG=bug or "")
    return dx


def make(*, bug: str | None, name: str, dtypes: tuple[str, ...] = ("float32",), max_ulp: float = 2.0) -> Kernel:
    """A Triton softmax with at most one bug."""
    pair = differentiable(partial(_forward, bug=bug), partial(_backward, bug=bug))
    return declare("softmax", pair, name=name, dtypes=dtypes, max_ulp=max_ulp)


BF16: dict[str, Any] = {"dtypes": ("bfloat16",), "max_ulp": 0.6}
FAMILY = Family("softmax", make)
_add = FAMILY.add
_add("padded lanes join the sum", "padded lanes join the variance", "forward", "each adds exp(0 - max) to the sum")
_add("padded lanes join the maximum", "padded lanes join the variance", "forward", "a zero tops rows far below it")
_add("rows padded with 0", "rows far below zero", "forward", "a padded lane is the maximum of such a row")
_add("maximum not subtracted", "square overflows", "forward", "exp overflows for x > 88")
_add(
    "the next row is read too",
    "out of bounds",
    "forward",
    "loads masked by row only: past the row's end lies the next row, past the last one foreign memory",
    unsafe=True,
    killed_by=("initialised memory",),
)
_add("maximum over nothing", "empty input", "forward", "amax of zero columns raises", killed_by=("accuracy",))
_add("softmax saved in the input's dtype", "mean/rstd saved in the input dtype", "backward", "rounded y", **BF16)
_add("dot product in float16", "rounding point moved", "backward", "a partial result passes through 16 bits")
_add("dot product lost", "term of a formula lost", "backward", "only y * dY")
MUTANTS = tuple(FAMILY.mutants)
