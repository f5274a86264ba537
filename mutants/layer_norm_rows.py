"""Layer norm as Triton kernels, rows in blocks: masks, padded lanes, offsets, partial sums.

forward    BLOCK lanes per row, ROWS rows per program; lanes past N are masked
backward   the same blocks; dweight and dbias through one row of partial sums per program
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mutants.mutant import GPU, Family, declare, differentiable
from verify.declare.declaration import Kernel

ROWS = 8


@triton.jit
def _forward_kernel(
    x_ptr,  # input, (M, N), rows adjacent
    weight_ptr,
    bias_ptr,
    y_ptr,  # output, like x
    mean_ptr,  # (M,) float64
    rstd_ptr,  # (M,) float64
    M,
    N,
    eps,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    BUG: tl.constexpr,
):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    mask = (row < M) & (column < N)
    offset = row * N + column
    if BUG == "int16 offsets":
        offset = (row.to(tl.int16) * tl.full([1, 1], N, tl.int16) + column.to(tl.int16)).to(tl.int64)
        offset = tl.where(offset < 0, 0, offset)  # a wrapped address, kept inside the tensor
    elif BUG == "int32 offsets":
        offset = row.to(tl.int32) * N + column
    x = tl.load(x_ptr + offset, mask=mask, other=0.0).to(tl.float64)
    mean = tl.sum(x, 1)[:, None] / N
    centred = x - mean
    if BUG != "padded lanes join the variance":
        centred = tl.where(mask, centred, 0.0)
    count = N
    if BUG == "variance over BLOCK":
        count = BLOCK
    rstd = 1.0 / tl.sqrt(tl.sum(centred * centred, 1)[:, None] / count + eps)
    weight = tl.load(weight_ptr + column, mask=column < N, other=0.0).to(tl.float64)
    bias = tl.load(bias_ptr + column, mask=column < N, other=0.0).to(tl.float64)
    y = (x - mean) * rstd * weight + bias
    place = row * N + column
    store = mask
    if BUG == "last column not stored":
        store = mask & ((column < N - 1) | (N % 2 == 0))
    tl.store(y_ptr + place, y.to(tl.float32).to(y_ptr.dtype.element_ty), mask=store)
    tl.store(mean_ptr + row, mean, mask=row < M)
    tl.store(rstd_ptr + row, rstd, mask=row < M)


@triton.jit
def _backward_kernel(
    x_ptr,
    weight_ptr,
    dy_ptr,  # upstream gradient, like x
    mean_ptr,
    rstd_ptr,
    dx_ptr,  # gradient, like x
    partial_ptr,  # (programs, 2, N) float64: each program's share of dweight and dbias
    M,
    N,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    BUG: tl.constexpr,
):
    program = tl.program_id(0)
    row = (program * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    mask = (row < M) & (column < N)
    offset = row * N + column
    x = tl.load(x_ptr + offset, mask=mask, other=0.0).to(tl.float64)
    dy = tl.load(dy_ptr + offset, mask=mask, other=0.0).to(tl.float64)
    mean = tl.load(mean_ptr + row, mask=row < M, other=0.0)
    rstd = tl.load(rstd_ptr + row, mask=row < M, other=0.0)
    weight = tl.load(weight_ptr + column, mask=column < N, other=0.0).to(tl.float64)
    xhat = tl.where(mask, (x - mean) * rstd, 0.0)
    g = dy * weight
    count = N
    if BUG == "means over BLOCK backward":
        count = BLOCK
    mean_g = tl.sum(g, 1)[:, None] / count
    mean_gx = tl.sum(g * xhat, 1)[:, None] / count
    dx = rstd * (g - mean_g - xhat * mean_gx)
    if BUG == "every row stored to row 0":
        offset = row * 0 + column
    tl.store(dx_ptr + offset, dx.to(tl.float32).to(dx_ptr.dtype.element_ty), mask=mask)

    lane = tl.arange(0, BLOCK)
    slot = program
    if BUG == "partial sums share a slot":
        slot = program // 2
    if BUG == "unlocked partial sums":
        slot = program % 2
    dweight = tl.sum(dy * xhat, 0)
    dbias = tl.sum(dy, 0)
    share = partial_ptr + slot.to(tl.int64) * 2 * N + lane
    if BUG == "unlocked partial sums":  # the load, add and store of one program can interleave with another's
        dweight += tl.load(share, mask=lane < N)
        dbias += tl.load(share + N, mask=lane < N)
    tl.store(share, dweight, mask=lane < N)
    tl.store(share + N, dbias, mask=lane < N)
    if BUG == "idle programs write past the end":
        tl.store(share + 2 * N, dbias * 0.0 + 1.0, mask=lane < N)


def _forward(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float, bug: str | None) -> Any:
    # contiguous on purpose: the kernels know row-adjacent memory only
    x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
    width = x.shape[-1]
    count = x.numel() // width if width else 0
    y = torch.empty_like(x)
    mean, rstd = (torch.empty(count, dtype=torch.float64, device=x.device) for _ in range(2))
    if count:
        block = triton.next_power_of_2(width)
        if bug == "block too small" and block >= 256:
            block //= 2
        with torch.cuda.device_of(x):  # Triton launches on the current device
            _forward_kernel[(triton.cdiv(count, ROWS),)](
                x, weight, bias, y, mean, rstd, count, width, eps, ROWS=ROWS, BLOCK=block, BUG=bug or ""
            )
    return y, (x, weight, mean, rstd)


def _backward(saved: tuple[Tensor, ...], dy: Tensor, *, bug: str | None) -> Any:
    x, weight, mean, rstd = saved
    dy = dy.contiguous()
    width = x.shape[-1]
    count = x.numel() // width if width else 0
    programs = triton.cdiv(count, ROWS)
    dx = torch.zeros_like(x) if bug == "every row stored to row 0" else torch.empty_like(x)
    slots = 2 if bug == "unlocked partial sums" else programs
    shares = torch.zeros if bug and "partial sums" in bug else torch.empty
    partial_sums = shares((slots, 2, width), dtype=torch.float64, device=x.device)
    if count:
        if bug == "tail rows skipped backward":
            dx.zero_()
            partial_sums.zero_()
            programs = max(count // ROWS, 1)
        with torch.cuda.device_of(x):
            _backward_kernel[(programs,)](
                x,
                weight,
                dy,
                mean,
                rstd,
                dx,
                partial_sums,
                count,
                width,
                ROWS=ROWS,
                BLOCK=triton.next_power_of_2(width),
                BUG=bug or "",
            )
    if bug == "partial sums not zeroed" and programs:
        partial_sums = torch.cat([partial_sums, torch.empty_like(partial_sums[:1])])
    dweight, dbias = partial_sums.sum(0).to(weight.dtype)
    return dx, dweight, dbias


def make(*, bug: str | None, name: str, dtypes: tuple[str, ...] = ("float32",), max_ulp: float = 2.0) -> Kernel:
    """A Triton layer norm with at most one bug."""

    def function(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        pair = differentiable(partial(_forward, eps=eps, bug=bug), partial(_backward, bug=bug))
        return pair(x, weight, bias)

    return declare("layer_norm", function, name=name, dtypes=dtypes, max_ulp=max_ulp, eps=True)


FAMILY = Family("layer_norm_rows", make)
_add = FAMILY.add
_add(
    "padded lanes join the variance",
    "padded lanes join the variance",
    "forward",
    "each lane past N adds mean^2 to the sum of squares",
)
_add(
    "padded lanes join the variance",
    "padded lanes join the variance",
    "forward",
    "the same in bfloat16",
    dtypes=("bfloat16",),
)
_add("variance over BLOCK", "padded lanes join the variance", "forward", "right at powers of two only")
_add("means over BLOCK backward", "padded lanes join the variance", "backward", "right at powers of two only")
_add(
    "block too small", "configuration-dependent result", "forward", "columns beyond the block are never read or stored"
)
_add("last column not stored", "out of bounds", "forward", "a mask that is one short for odd N")
_add("int16 offsets", "int32 offsets", "forward", "the class scaled down: offsets wrap at 2^15 instead of 2^31")
_add(
    "int32 offsets",
    "int32 offsets",
    "forward",
    "row * N wraps beyond 2^31 elements",
    backends=GPU,
    killed_by=("large tensors",),
)
_add("every row stored to row 0", "backward for the wrong shape", "backward", "the row index is lost in the store")
_add("tail rows skipped backward", "backward for the wrong shape", "backward", "the last incomplete block of rows")
_add("partial sums share a slot", "race on partial sums", "backward", "two programs, one slot, the last one wins")
_add(
    "partial sums not zeroed",
    "race on partial sums",
    "backward",
    "one slot more than programs: stale memory joins",
    killed_by=("initialised memory",),
)
_add(
    "unlocked partial sums",
    "race on partial sums",
    "backward",
    "load, add, store without a lock; a sequential interpreter cannot show it",
    backends=GPU,
)
_add(
    "idle programs write past the end",
    "out of bounds",
    "backward",
    "each program also writes the slot after its own; the last one's is not there",
    unsafe=True,
    killed_by=("memory bounds",),
)
MUTANTS = tuple(FAMILY.mutants)
