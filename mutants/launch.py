"""SiLU as a Triton kernel: masks, grids, devices, autotuning, configurations.

    y = x sigmoid(x),    dy/dx = s (1 + x (1 - s)),    s = sigmoid(x)

The backward pass launches the same kernel with GRADIENT set.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mutants.mutant import GPU, Family, declare, differentiable
from verify.declare.declaration import Kernel

BLOCK = 64


@triton.jit
def _silu(x, upstream, GRADIENT: tl.constexpr):
    """SiLU or its slope times the upstream gradient, in float64; what underflows keeps its sign."""
    low = tl.minimum(tl.maximum(x, -800.0), 800.0)
    s = 1.0 / (1.0 + tl.exp(-low))
    if GRADIENT:
        value = s * (1.0 + low * (1.0 / (1.0 + tl.exp(low))))
    else:
        value = tl.where(x > 0.0, x, low) * s
    tiny = tl.where(x == -float("inf"), 0.0, -1e-300)
    value = tl.where((value == 0.0) & (x < 0.0), tiny, value)
    value = tl.where(x != x, x, value)
    return value * upstream


@triton.jit
def _kernel(
    x_ptr,  # input, contiguous
    upstream_ptr,  # upstream gradient, contiguous (the input again for the forward pass)
    out_ptr,  # output or gradient, contiguous
    n,
    GRADIENT: tl.constexpr,
    BLOCK: tl.constexpr,
    BUG: tl.constexpr,
):
    offset = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    if BUG == "offsets of another block size":
        offset = tl.program_id(0).to(tl.int64) * 64 + tl.arange(0, BLOCK)
    mask = offset < n
    x = tl.load(x_ptr + offset, mask=mask, other=0.0).to(tl.float64)
    if GRADIENT:
        upstream = tl.load(upstream_ptr + offset, mask=mask, other=0.0).to(tl.float64)
    else:
        upstream = tl.full([BLOCK], 1.0, tl.float64)
    value = _silu(x, upstream, GRADIENT)
    if BUG == "mean of the block joins":
        value += 1e-4 * tl.sum(x, 0) / BLOCK
    out = value.to(tl.float32).to(out_ptr.dtype.element_ty)
    if BUG == "store without a mask":
        tl.store(out_ptr + offset, out)
    else:
        tl.store(out_ptr + offset, out, mask=mask)


@triton.jit
def _adding_kernel(x_ptr, upstream_ptr, out_ptr, n, GRADIENT: tl.constexpr, BLOCK: tl.constexpr):
    """Adds to what `out_ptr` holds: right once, wrong when it runs again."""
    offset = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offset < n
    x = tl.load(x_ptr + offset, mask=mask, other=0.0).to(tl.float64)
    upstream = tl.full([BLOCK], 1.0, tl.float64)
    if GRADIENT:
        upstream = tl.load(upstream_ptr + offset, mask=mask, other=0.0).to(tl.float64)
    held = tl.load(out_ptr + offset, mask=mask, other=0.0).to(tl.float64)
    value = held + _silu(x, upstream, GRADIENT)
    tl.store(out_ptr + offset, value.to(tl.float32).to(out_ptr.dtype.element_ty), mask=mask)


def _configs() -> list[triton.Config]:
    return [triton.Config({"BLOCK": 64}, num_warps=4), triton.Config({"BLOCK": 128}, num_warps=4)]


_tuned = triton.autotune(configs=_configs(), key=["n"])(_kernel)
_tuned_adding = triton.autotune(configs=_configs(), key=["n"])(_adding_kernel)
_tuned_resetting = triton.autotune(configs=_configs(), key=["n"], reset_to_zero=["out_ptr"])(_adding_kernel)
_HAND_TUNED: set[tuple[str | None, int]] = set()


def _launch(x: Tensor, upstream: Tensor, *, gradient: bool, bug: str | None, tuned: str) -> Tensor:
    with torch.cuda.device_of(x):  # Triton launches on the current device
        return _launch_there(x, upstream, gradient=gradient, bug=bug, tuned=tuned)


def _launch_there(x: Tensor, upstream: Tensor, *, gradient: bool, bug: str | None, tuned: str) -> Tensor:
    x, upstream = x.contiguous(), upstream.contiguous()  # on purpose: the kernels know adjacent elements only
    n = x.numel()
    if bug == "elements counted over three dimensions":
        n = math.prod(x.shape[:3])
    elif bug == "block of an empty tensor":
        block = min(BLOCK, n)
        assert (n + block - 1) // block >= 1
    out = torch.empty_like(x)
    if n == 0:
        return out
    if tuned == "tuned":
        _tuned[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, upstream, out, n, GRADIENT=gradient, BUG=bug or "")
        return out
    if tuned:
        out.zero_()
        return _launch_adding(x, upstream, out, gradient=gradient, bug=bug, tuned=tuned)
    programs = triton.cdiv(n, BLOCK)
    if bug == "grid rounded down":
        programs = max(n // BLOCK, 1)
    elif bug == "grid capped" or (bug == "gradient's grid capped" and gradient):
        programs = min(programs, 16)
    if bug == "current device" and x.is_cuda:
        with torch.cuda.device(0):
            _kernel[(programs,)](x, upstream, out, n, GRADIENT=gradient, BLOCK=BLOCK, BUG="")
        return out
    _kernel[(programs,)](x, upstream, out, n, GRADIENT=gradient, BLOCK=BLOCK, BUG=bug or "")
    return out


def _launch_adding(x: Tensor, upstream: Tensor, out: Tensor, *, gradient: bool, bug: str | None, tuned: str) -> Tensor:
    n = x.numel()
    if tuned == "tuned in place":
        tuner = _tuned_adding if bug == "autotuner reruns" else _tuned_resetting
        tuner[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, upstream, out, n, GRADIENT=gradient)
        return out
    if (bug, n) not in _HAND_TUNED:
        # the first call for a size tries both block sizes, as a tuner does that times them
        _HAND_TUNED.add((bug, n))
        for block in (64, 128):
            trial = out if bug == "hand-made tuner reruns" else out.clone()
            _adding_kernel[(triton.cdiv(n, block),)](x, upstream, trial, n, GRADIENT=gradient, BLOCK=block)
    _adding_kernel[(triton.cdiv(n, BLOCK),)](x, upstream, out, n, GRADIENT=gradient, BLOCK=BLOCK)
    return out


def _forward(x: Tensor, *, bug: str | None, tuned: str) -> Any:
    return _launch(x, x, gradient=False, bug=bug, tuned=tuned), (x,)


def _backward(saved: tuple[Tensor, ...], dy: Tensor, *, bug: str | None, tuned: str) -> Tensor:
    (x,) = saved
    return _launch(x, dy, gradient=True, bug=bug, tuned=tuned)


def make(*, bug: str | None, name: str, tuned: str = "") -> Kernel:
    """A Triton SiLU with at most one bug in how it is launched."""
    pair = differentiable(partial(_forward, bug=bug, tuned=tuned), partial(_backward, bug=bug, tuned=tuned))
    return declare("silu", pair, name=name, dtypes=("float32",), max_ulp=2.0)


FAMILY = Family("silu", make)
_add = FAMILY.add
_add(
    "store without a mask",
    "out of bounds",
    "forward",
    "the last block writes past the end",
    killed_by=("memory bounds",),
    unsafe=True,
)
_add(
    "grid rounded down",
    "out of bounds",
    "forward",
    "the last incomplete block is never launched",
    killed_by=("initialised memory",),
)
_add("grid capped", "out of bounds", "forward", "sixteen programs at most", killed_by=("initialised memory",))
_add(
    "gradient's grid capped", "backward for the wrong shape", "backward", "likewise", killed_by=("initialised memory",)
)
_add(
    "elements counted over three dimensions",
    "out of bounds",
    "forward",
    "rank > 3: the rest is never written",
    killed_by=("accuracy", "initialised memory"),
)
_add(
    "mean of the block joins",
    "padded lanes join the variance",
    "forward",
    "neighbours join",
    killed_by=("batch invariance",),
)
_add(
    "block of an empty tensor",
    "empty input",
    "forward",
    "min(BLOCK, 0) programs: division by zero",
    killed_by=("accuracy",),
)
_add(
    "offsets of another block size",
    "configuration-dependent result",
    "forward",
    "64 is baked in: wrong with the second configuration",
    tuned="tuned",
    killed_by=("configuration independence",),
)
_add(
    "autotuner reruns",
    "autotune reruns an in-place kernel",
    "forward",
    "Triton's autotuner runs the kernel again and again on one output",
    tuned="tuned in place",
    backends=GPU,
)
_add(
    "hand-made tuner reruns",
    "autotune reruns an in-place kernel",
    "forward",
    "the first call for a size adds three times",
    tuned="tuned by hand",
)
_add(
    "current device",
    "wrong device",
    "forward",
    "launches on device 0; needs two GPUs",
    killed_by=("other device",),
    backends=GPU,
)
MUTANTS = tuple(FAMILY.mutants)
