"""The launchers: they lay out the operands, allocate the results, and run the kernels that the plan names.

Layouts: results have the bits of contiguous operands. A row stride is used unchanged if Triton compiles the
same kernel for it as for N: both are multiples of 16 or neither is, and neither is 1. Everything else is copied first:
other row strides, a last dimension of stride other than 1, leading dimensions without a common row stride, and strided
vectors. So are tensors that do not start at a multiple of 16 bytes.
"""

from __future__ import annotations

import contextlib
import functools
import math
import struct
from typing import Any

import torch
import triton
from torch import Tensor

from ..launch import INTERPRETED, traced
from ..layouts import aligned, dense
from ..plans import run
from .backward import backward_kernel, columns_kernel, row_sums_kernel
from .backward_paired import backward_paired_kernel
from .forward import forward_kernel
from .forward_blocks import forward_blocks_kernel
from .hard_rows import marked_rows_kernel
from .plan import Call, backward_plan, forward_plan
from .rows import backward_rows_kernel, forward_rows_kernel

Maybe = Tensor | None


def _bits(value: float) -> int:
    """Returns the bits of a float64 as a signed integer."""
    return struct.unpack("<q", struct.pack("<d", value))[0]


def as_rows(tensor: Tensor) -> Tensor:
    """Returns `tensor` as [rows, columns] with column stride 1: a view if strides allow, else a copy.

    Triton compiles different kernels for pointers and strides that are multiples of 16, for others, and for strides of
    1. Their loads have different widths, so their sums have different orders. A view is therefore used only if its
    address and stride fall into the same classes as its contiguous copy's.
    """
    n = tensor.shape[-1]
    if tensor.stride(-1) == 1 or n == 1:
        try:
            rows = tensor.view(-1, n)
        except RuntimeError:  # leading dimensions with more than one stride
            rows = tensor.contiguous().view(-1, n)
        stride = rows.stride(0)
        if stride != n:
            if rows.shape[0] == 1:
                rows = rows.as_strided((1, n), (n, 1))
            elif (stride % 16 == 0) != (n % 16 == 0) or 1 in (stride, n):
                rows = rows.contiguous()
        return aligned(rows)
    return tensor.contiguous().view(-1, n)


def _on_device_of(tensor: Tensor) -> contextlib.AbstractContextManager[Any]:
    """Returns a context whose launches go to the tensor's device. Raises RuntimeError if no kernel runs there."""
    if not (tensor.is_cuda or INTERPRETED or traced()):
        raise RuntimeError(
            "layer_norm: it runs on CUDA tensors, or under Triton's interpreter; "
            f"x is on {tensor.device}: set TRITON_INTERPRET=1 before Triton is imported"
        )
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()


@functools.cache
def _shared_memory(device: torch.device) -> int:
    """Returns the bytes of shared memory that a program can have on a CUDA device."""
    return getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 0)


# A plan depends only on its arguments. To make one takes 10 us of the host's time, longer than a look-up.
planned_forward = functools.lru_cache(maxsize=4096)(forward_plan)
planned_backward = functools.lru_cache(maxsize=4096)(backward_plan)


def _dtype(tensor: Maybe) -> torch.dtype | None:
    return None if tensor is None else tensor.dtype


def _roundings(form: str, dtype: torch.dtype) -> tuple[int, int]:
    """Returns HAS_R and HAS_W of operands.py for a form: "once" or "model ...", and which weight."""
    model = form.startswith("model") and dtype.itemsize == 2
    return 1 + model, 3 if form.endswith("gemma") else 2 if model and form.endswith("llama") else 1


def _flags(**operands: Maybe) -> dict[str, int]:
    """Returns HAS_W=1 for `W=weight`, HAS_W=0 if weight is None."""
    return {f"HAS_{name}": int(t is not None) for name, t in operands.items()}


def _limited(maxnreg: int | None) -> dict[str, int]:
    return {} if maxnreg is None else {"maxnreg": maxnreg}


def _new(x: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty(x.shape, dtype=dtype, device=x.device)


def new_forward(
    x: Tensor, residual: Maybe, input_bias: Maybe, weight: Maybe, bias: Maybe, eps: float, centre: bool,
    gate: Maybe = None, form: str = "once",
) -> tuple[Any, ...]:  # fmt: skip
    """Returns y, s and stats without their values; s is None without a residual."""
    of = _dtype(residual), _dtype(input_bias), _dtype(weight), _dtype(bias)
    light = Call(0, x.shape[-1], x.dtype, *of, centre=centre).light
    shape = math.prod(x.shape[:-1]), 4 if centre else 2
    stats = torch.empty(shape, dtype=torch.float32 if light else torch.float64, device=x.device)
    return _new(x, x.dtype), None if residual is None else _new(x, residual.dtype), stats


def new_fp8(x: Tensor, residual: Maybe, group: int) -> tuple[Any, ...]:
    """Returns codes, s and scales without their values, a scale for `group` columns or, if that is 0, for each row."""
    n = x.shape[-1]
    scales = torch.empty((*x.shape[:-1], n // group if group else min(n, 1)), dtype=torch.float32, device=x.device)
    return _new(x, torch.float8_e4m3fn), None if residual is None else _new(x, residual.dtype), scales


def new_backward(x: Tensor, residual: Maybe, gate: Maybe, vectors: Any, need: Any) -> tuple[Any, ...]:
    """Returns dx, dresidual (or dgate) and the needed gradients of `vectors` without their values.

    dresidual is None if it equals dx: both have one dtype.
    """
    other = None if residual is None or residual.dtype == x.dtype else residual.dtype
    other = other if gate is None else gate.dtype
    sums = (
        torch.empty(x.shape[-1], dtype=x.dtype if t is None else t.dtype, device=x.device) if wanted else None
        for wanted, t in zip(need, vectors, strict=True)
    )
    return _new(x, x.dtype), None if other is None else _new(x, other), *sums


def launch_forward(
    x: Tensor, residual: Maybe, input_bias: Maybe, weight: Maybe, bias: Maybe, eps: float, centre: bool = True,
    gate: Maybe = None, group: int | None = None, form: str = "once",
) -> tuple[Any, ...]:  # fmt: skip
    """Returns y, s and stats; codes, s and scales with `group`.

    Args:
        centre: False: RMS norm, whose rows have no mean
        gate: y is multiplied by silu(gate)
        group: columns that share a scale, a power of two that divides the columns; 0: all
        form: where values are rounded, and the weight's factor: see _roundings
    """
    x2 = as_rows(x)
    m, n = map(int, x2.shape)  # of a compiler too, which makes a program for each number of rows
    beside = gate if residual is None else residual
    r2 = x2 if beside is None else as_rows(beside)
    plain = x, residual, input_bias, weight, bias, eps, centre
    y, s, stats = new_forward(*plain) if group is None else new_fp8(x, residual, group)
    # each pointer argument must be a tensor, even if the kernel does not read it
    weight_, bias_, input_bias_ = (x2 if t is None else dense(t) for t in (weight, bias, input_bias))
    common = (x2, r2, input_bias_, weight_, bias_, y, y if s is None else s, stats, x2.stride(0), r2.stride(0), n)
    scalars = (_bits(float(eps)), _bits(1.0 / n))
    of_sum, of_weight = _roundings(form, x.dtype)
    has = _flags(R=residual, I=input_bias, W=weight, B=bias)
    has |= {"HAS_R": of_sum * has["HAS_R"], "HAS_W": of_weight * has["HAS_W"]}
    call = Call(
        m, n, x.dtype, _dtype(residual), _dtype(input_bias), _dtype(weight), _dtype(bias), centre=centre,
        gated=gate is not None, quantised=group is not None,
    )  # fmt: skip
    plan = planned_forward(call)
    with _on_device_of(x):
        if plan.path == "rows":
            run(
                forward_rows_kernel, (triton.cdiv(m, plan.rows),),
                x2, r2, weight_, bias_, y, y if s is None else s, stats, x2.stride(0), r2.stride(0), m, n, *scalars,
                ROWS=plan.rows, BLOCK=plan.block, FULL=int(plan.block == n), FAST=int(plan.fast), HAS_R=has["HAS_R"],
                GATED=int(gate is not None), GROUP=0 if group is None else group or plan.block, HAS_W=has["HAS_W"],
                HAS_B=has["HAS_B"], CENTRE=int(centre), MODEL=of_sum - 1, num_warps=plan.warps,
                **_limited(plan.maxnreg),
            )  # fmt: skip
        elif plan.path == "wide":
            run(
                forward_blocks_kernel, (m,),
                *common, *scalars, SIGMA=16.0 * call.block, BLOCK=plan.block, **has, CENTRE=int(centre),
                num_warps=plan.warps,
            )  # fmt: skip
        else:
            run(
                forward_kernel, (m,),
                *common, *scalars, BLOCK=plan.block, FULL=int(plan.block == n), FAST=int(plan.path == "fast"),
                MARK=int(plan.mark), PACKED=int(plan.packed), EARLY=int(plan.early), AGAIN=plan.again,
                **has, CENTRE=int(centre), num_warps=plan.warps, **_limited(plan.maxnreg),
            )  # fmt: skip
    return y, s, stats


def launch_backward(
    dy: Tensor, ds: Maybe, x: Tensor, residual: Maybe, input_bias: Maybe, weight: Maybe, bias: Maybe, stats: Tensor,
    eps: float, need: tuple[bool, bool, bool], centre: bool = True, gate: Maybe = None, form: str = "once",
) -> tuple[Any, ...]:  # fmt: skip
    """Returns dx, dresidual, dinput_bias, dweight and dbias, None for each that is not needed.

    Args:
        need: True for each needed gradient of weight, bias and input_bias
        centre: False: RMS norm
        gate: y was multiplied by silu(gate); its gradient takes the place of dresidual
    """
    x2, dy2 = as_rows(x), as_rows(dy)
    m, n = map(int, x2.shape)
    r2 = x2 if residual is None else as_rows(residual)
    ds2 = dy2 if ds is None else as_rows(ds)
    dx, dr, di, dw, db = new_backward(x, residual, gate, (input_bias, weight, bias), (need[2], *need[:2]))
    of_sum, of_weight = _roundings(form, x.dtype)
    dr_, dw_, db_, di_ = (dx if t is None else t for t in (dr, dw, db, di))
    call = Call(
        m, n, x.dtype, _dtype(residual), _dtype(input_bias), _dtype(weight), _dtype(bias), dy.dtype, _dtype(ds), *need,
        centre=centre, gated=gate is not None, offset=of_weight == 3,
    )  # fmt: skip
    kinds = sum(need)
    eps_bits = _bits(float(eps))
    plan = planned_backward(call, _shared_memory(x.device) if x.is_cuda else None)
    fast, wide, redo = plan.path == "fast", plan.path == "wide", plan.redo != "never"
    part = torch.empty((kinds, plan.programs, n), dtype=torch.float32 if plan.fast else torch.float64, device=x.device)
    sums = torch.empty((m, 3), dtype=torch.float64, device=x.device) if plan.separate_sums else stats
    flags = torch.zeros if plan.redo == "after" else torch.empty
    hard = flags(plan.programs + (0 if plan.marked else m) if redo else 0, dtype=torch.int32, device=x.device)
    suspect = hard[plan.programs :]
    weight_, input_bias_ = (x2 if t is None else dense(t) for t in (weight, input_bias))
    needs = {"NEED_W": int(need[0]), "NEED_B": int(need[1])}
    has = _flags(R=residual, I=input_bias, W=weight)
    has |= {"HAS_R": of_sum * has["HAS_R"], "HAS_W": of_weight * has["HAS_W"]}
    of_sums = {**has, "HAS_DS": int(ds is not None)}
    operands = dy2, ds2, x2, r2, input_bias_, weight_, stats, sums, hard
    strides = (dy2.stride(0), ds2.stride(0), x2.stride(0), r2.stride(0), m)
    with _on_device_of(x):
        if plan.path == "rows":
            gate_ = x2 if gate is None else as_rows(gate)
            run(
                backward_rows_kernel, (plan.programs,),
                dy2, x2, gate_, weight_, stats, dx, dr_, part, sums, hard, suspect,
                dy2.stride(0), x2.stride(0), gate_.stride(0), m, n, eps_bits,
                ROWS=plan.rows, BLOCK=plan.block, FULL=int(plan.block == n), FAST=int(plan.fast),
                GATED=int(gate is not None), HAS_W=has["HAS_W"], **needs, AHEAD=max(plan.ahead, 1), TOP=plan.top,
                LIFT=plan.lift, CENTRE=int(centre), MODEL=of_sum - 1, num_warps=plan.warps, **_limited(plan.maxnreg),
            )  # fmt: skip
        elif plan.path == "paired":
            run(
                backward_paired_kernel, (plan.programs,),
                dy2, x2, weight_, stats, dx, part, sums, hard, suspect, dy2.stride(0), x2.stride(0), m, n,
                eps_bits, BLOCK=plan.block, PARTS=8, FULL=int(8 * plan.block == n), HAS_W=has["HAS_W"], **needs,
                FEW=int(plan.few), AHEAD=plan.ahead, CENTRE=int(centre), num_warps=plan.warps,
                **_limited(plan.maxnreg),
            )  # fmt: skip
        else:
            if not plan.whole:
                run(
                    row_sums_kernel, (m,),
                    dy2, x2, r2, input_bias_, weight_, stats, sums,
                    dy2.stride(0), x2.stride(0), r2.stride(0), n,
                    BLOCK=min(call.block, 2048), WIDE=int(wide), **has, CENTRE=int(centre), num_warps=8,
                )  # fmt: skip
            run(
                backward_kernel, (plan.programs, plan.blocks),
                *operands, suspect, dx, dr_, part, *strides, n, eps_bits,
                BLOCK=plan.block, FULL=int(n % plan.block == 0), WHOLE=int(plan.whole), FAST=int(fast),
                WIDE=int(wide), TOP=plan.top, **of_sums, HAS_DR=int(dr is not None), **needs, NEED_I=int(need[2]),
                REDO=int(plan.redo == "inside"), AHEAD=plan.ahead, CENTRE=int(centre), LIFT=plan.lift if fast else 0,
                num_warps=plan.warps, **_limited(plan.maxnreg),
            )  # fmt: skip
        if plan.redo == "after":
            run(
                marked_rows_kernel, (triton.cdiv(m, 32),),
                *operands, dx, dr_, *strides, plan.programs, n,
                ROWS=32, BLOCK=min(plan.block, 512), **of_sums, HAS_DR=int(dr is not None), num_warps=4,
            )  # fmt: skip
        if kinds:
            run(
                columns_kernel, (triton.cdiv(n, plan.column_block), kinds),
                part, dw_, db_, di_, *operands, *strides, plan.programs, n,
                REDO=int(redo), FLOAT16=int(plan.fast and redo and plan.float16), LIFT=plan.lift, **of_sums, **needs,
                NEED_I=int(need[2]), ROWS=plan.column_depth, BLOCK=plan.column_block, CENTRE=int(centre),
                TILE=plan.rows, num_warps=4,
            )  # fmt: skip
    return dx, dr, di, dw, db
