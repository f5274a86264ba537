"""Parts that the linear layers share: order and shape of tiles, sums of parts, backward passes, rules for arguments."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .checks import check_dtype
from .launch import INTERPRETED, autocasts, check_device, overlapping, wait_for_previous
from .plans import run, unrecorded

Config = tuple[int, int, int, int, int]  # BM, BN, BK, num_warps, num_stages
WIDE = {torch.float64: torch.float64}  # dtype of column sums; float32 for all other dtypes
FEW_TILES = 64  # up to this number of tiles nothing is timed
fastest: dict[tuple[Any, ...], Config] = {}  # the configurations chosen so far
# Tile shapes of a product with or without an activation, by the unit that adds the products (see configs_of)
PRODUCT_CONFIGS: dict[str, list[Config]] = {
    "float64": [(64, 64, 16, 4, 3)],
    "float32": [(128, 64, 16, 4, 3), (64, 64, 16, 4, 3), (128, 128, 16, 8, 3)],
    "tf32": [(128, 128, 32, 8, 3), (64, 128, 32, 4, 4)],
    "16 bits": [(128, 256, 64, 8, 3), (128, 128, 64, 8, 3), (64, 128, 64, 4, 4)],
}
# the same of GEGLU; BN columns of each half
GATED_CONFIGS = {
    "float64": [(64, 64, 16, 4, 2)],
    "float32": [(64, 64, 16, 8, 3), (128, 64, 16, 8, 2)],
    "tf32": [(128, 64, 32, 8, 3), (64, 64, 32, 4, 4)],
    "16 bits": [(128, 128, 64, 8, 3), (64, 128, 64, 4, 3)],
}


@triton.jit
def tile_of(t, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Returns row and column of tile t. The order keeps GROUP rows of tiles together, so L2 serves A and B."""
    per_group = GROUP * tiles_n
    first = (t // per_group) * GROUP
    rows = tl.minimum(tiles_m - first, GROUP)
    rest = t % per_group
    return first + rest % rows, rest // rows


def configs_of(table: dict[str, list[Config]], dtype: torch.dtype, allow_tf32: bool) -> list[Config]:
    """Returns the tile shapes of `table` for a dtype. Its keys are "float64", "float32", "tf32" and "16 bits".

    All shapes of one list give the same bits, so the fastest may be chosen. float32 and float64 sums are chains of
    fused multiply-adds in the order of k. The matrix units add 16 products at a time (tf32: 8), in the order of k, if
    BM >= 64 on Hopper; smaller tiles use an older instruction. float64 has one entry, because its instruction depends
    on the tile. All entries of a list have one BK, because the zeros that fill the last step can turn a sum of -0 into
    0.
    """
    if INTERPRETED:
        return [(64, 64, 32, 4, 1)]
    if dtype.itemsize == 2:
        return table["16 bits"]
    return table["float64" if dtype == torch.float64 else "tf32" if allow_tf32 else "float32"]


def few(elements: int, configs: list[Config]) -> list[Config]:
    """Returns only the smallest tile if it occurs at most FEW_TILES times, else all.

    Then each tile has its own processor, and no timing is needed.
    """
    small = min(configs, key=lambda config: config[0] * config[1])
    return [small] if elements <= FEW_TILES * small[0] * small[1] else configs


def choose(key: tuple[Any, ...], configs: list[Config], launch: Callable[[Config], None]) -> Config:
    """Returns the fastest of `configs` for this key, timed once. Each writes the same bits to the same output."""
    if len(configs) == 1 or torch.cuda.is_current_stream_capturing():
        return fastest.get(key, configs[0])  # a capture cannot be timed
    if key not in fastest:
        times = []
        with unrecorded():
            for config in configs:
                launch(config)  # compile
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                for _ in range(3):
                    launch(config)
                end.record()
                end.synchronize()
                times.append(start.elapsed_time(end))
        fastest[key] = configs[times.index(min(times))]
    return fastest[key]


def in_sixteens(a: Tensor, b: Tensor, *others: Tensor) -> bool:
    """True if the tile kernel for multiples of 16 applies: to K, to addresses, and to strides other than 1."""
    sixteens = all(min(t.stride()) == 1 and max(t.stride()) % 16 == 0 for t in (a, b))
    return sixteens and a.shape[1] % 16 == 0 and all(t.data_ptr() % 16 == 0 for t in (a, b, *others))


def matrix(x: Tensor) -> Tensor:
    """Returns [..., K] as [M, K]: a view if the leading dimensions allow one, else a copy."""
    return x if x.dim() == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def shaped(t: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Undoes `matrix`. Returns t itself for two dimensions, because an operator must not return a view of it."""
    return t if len(shape) == 2 else t.view(shape)


@triton.jit(do_not_specialize=["parts"])
def _added_kernel(
    part_ptr,  # [parts, N], contiguous: partial sums
    sum_ptr,  # [N]: their sums in the dtype of the result
    parts,
    N,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr = False,
):
    wait_for_previous(OVERLAP)
    cols = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((ROWS, BLOCK), tl.float64)
    for i in range(0, parts, ROWS):
        rows = i + tl.arange(0, ROWS)[:, None].to(tl.int64)
        mask = (rows < parts) & (cols < N)[None, :]
        acc += tl.load(part_ptr + rows * N + cols[None, :], mask=mask, other=0.0).to(tl.float64)
    total = tl.sum(acc, 0)
    out = sum_ptr.dtype.element_ty
    if out != tl.float64:  # PyTorch converts by way of float32 too
        total = total.to(tl.float32)
    tl.store(sum_ptr + cols, total.to(out), mask=cols < N)


def parts_added(part: Tensor, total: Tensor) -> None:
    """Writes the sums of part: [parts, ...] over its first dimension to total, added in float64 in a fixed order."""
    n, parts = total.numel(), part.shape[0]
    rows, block = (4, 1024) if n >= 1 << 16 else (64, 32) if parts > 256 else (16, 64)
    run(
        _added_kernel, (triton.cdiv(n, block),), part, total, parts, n,
        ROWS=rows, BLOCK=block, num_warps=4, **overlapping(part.device),
    )  # fmt: skip


def added(part: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns partial column sums added in float64, in an order that depends only on their number."""
    if part.numel() == 0:
        return part.new_zeros(part.shape[1:], dtype=dtype)
    total = part.new_empty(part.shape[1:], dtype=dtype)
    parts_added(part, total)
    return total


def rows_of_part(m: int, n: int) -> int:
    """Returns the rows of one partial sum of the columns of [m, n]. Sizes decide, so all devices give the same bits."""
    return 32 if m * n <= 1 << 22 else 128


def autocast(*tensors: Any) -> tuple[Any, ...]:
    """Casts the tensors as torch.nn.functional.linear does under torch.autocast: all but float64."""
    kind = autocasts(tensors[0])
    if kind is None:
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    keep = (None, torch.float64)
    return tuple(t if getattr(t, "dtype", None) in keep else t.to(dtype) for t in tensors)


def wants_gradient(*tensors: Any) -> bool:
    """True if a backward pass may follow."""
    return torch.is_grad_enabled() and any(getattr(t, "requires_grad", False) for t in tensors)


def check_operands(op: str, name: str, x: Tensor, others: tuple[Any, ...]) -> None:
    """Raises unless x, called `name`, and all of `others`, (name, tensor or None), share a dtype and a device."""
    check_dtype(op, name, x)
    for other, t in others:
        if t is None:
            continue
        if t.dtype != x.dtype:
            raise TypeError(
                f"{op}: {other} must have {name}'s dtype {x.dtype}, got {t.dtype}; "
                "convert one of them, or run under torch.autocast"
            )
        if t.device != x.device:
            raise ValueError(f"{op}: {other} must be on {name}'s device {x.device}, got {t.device}")
    check_device(op, name, x)


def check_weight(op: str, name: str, x: Tensor, weight: Tensor) -> None:
    """Raises ValueError unless weight has two dimensions and x at least one."""
    if weight.dim() != 2:
        raise ValueError(f"{op}: weight must have 2 dimensions [out, in], got shape {tuple(weight.shape)}")
    if x.dim() == 0:
        raise ValueError(f"{op}: {name} must have at least 1 dimension, got a scalar")


def check_layer(op: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Raises ValueError unless the shapes fit x @ weight.T + bias."""
    check_weight(op, "x", x, weight)
    n, k = weight.shape
    if x.shape[-1] != k:
        raise ValueError(f"{op}: weight has {k} input features, x has {x.shape[-1]}")
    if bias is not None and bias.shape != (n,):
        raise ValueError(f"{op}: bias must have shape ({n},), one per output feature, got {tuple(bias.shape)}")
