"""Kernels that write into operands or buffers: the right ones, and one with each bug that writing invites."""

from __future__ import annotations

import functools
import itertools

import torch
import triton
import triton.language as tl
from torch import Tensor

import verify


def adamw(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The new p, m and v; nothing is written."""
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return p - 1e-3 * m / (v.sqrt() + 1e-8), m, v


optimiser = verify.kernel(
    like=adamw,
    shapes=dict.fromkeys("pgmv", "n"),
    writes={"p": "p_", "m": "m_", "v": "v_"},
    domain={"v": "0 <= v"},
    dtypes=["float32"],
    max_noise=16.0,
)


@optimiser
def step(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> Tensor:
    m.mul_(0.9).add_(g, alpha=0.1)
    v.mul_(0.999).addcmul_(g, g, value=0.001)
    return p.addcdiv_(m, v.sqrt().add_(1e-8), value=-1e-3)


@optimiser
def forgets_v(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> None:
    m.mul_(0.9).add_(g, alpha=0.1)
    p.addcdiv_(m, (0.999 * v + 0.001 * g * g).sqrt().add_(1e-8), value=-1e-3)


@optimiser
def squares_g_in_place(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> None:
    m.mul_(0.9).add_(g, alpha=0.1)
    v.mul_(0.999).add_(g.square_(), alpha=0.001)
    p.addcdiv_(m, v.sqrt().add_(1e-8), value=-1e-3)


@optimiser
def first_call_alone(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> None:
    """Wrong on a buffer that it has seen: it keeps no reference, so that fresh copies look new to it."""
    again = getattr(p, "seen", False)
    p.seen = True  # type: ignore[attr-defined]
    step.function.writing.function(p, g, m, v)
    if again:
        p.add_(1.0)


@verify.kernel(like=torch.exp, dtypes=["float32"], into=["y"])
def exp_into(x: Tensor, y: Tensor) -> None:
    torch.exp(x, out=y)


@verify.kernel(like=torch.exp, dtypes=["float32"], into=["y"])
def exp_added(x: Tensor, y: Tensor) -> None:
    """Adds to what the buffer holds, as if it were full of zeros."""
    y.add_(torch.exp(x))


def normalised(x: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The row minus its mean, the running mean, and the mean."""
    mean = x.mean(-1, keepdim=True)
    return x - mean, 0.9 * state + 0.1 * mean, mean


@verify.kernel(
    like=normalised,
    shapes={"x": "n d", "state": "n 1"},
    dtypes=["float32"],
    writes={"state": "state_"},
    into=["y"],
    outputs=["y", "state_", "mean"],
)
def all_three(x: Tensor, y: Tensor, state: Tensor) -> Tensor:
    """Fills a buffer, updates a state and returns the mean."""
    mean = x.mean(-1, keepdim=True)
    torch.sub(x, mean, out=y)
    state.mul_(0.9).add_(mean, alpha=0.1)
    return mean


@triton.jit
def _double(x_ptr, y_ptr, n, beyond, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    tl.store(y_ptr + at, x + x, mask=at < n + beyond)


def doubled(x: Tensor, y: Tensor, beyond: int) -> None:
    if x.numel():
        _double[(triton.cdiv(x.numel() + beyond, 64),)](x, y, x.numel(), beyond, BLOCK=64)


contiguous = {"dtypes": ["float32"], "layouts": "contiguous"}


@verify.kernel(like=lambda x: 2 * x, writes={"x": "x_"}, **contiguous)
def doubled_in_place(x: Tensor) -> None:
    doubled(x, x, 0)


@verify.kernel(like=lambda x: 2 * x, writes={"x": "x_"}, **contiguous)
def doubled_too_far(x: Tensor) -> None:
    """Writes one element behind its operand."""
    doubled(x, x, 1)


@verify.kernel(like=lambda x: 2 * x, into=["y"], **contiguous)
def doubled_too_far_into(x: Tensor, y: Tensor) -> None:
    """Writes one element behind its buffer."""
    doubled(x, y, 1)


def sums(x: Tensor, lengths: Tensor) -> Tensor:
    """The sum of each sequence."""
    own = (torch.arange(len(x))[:, None] >= lengths.cumsum(0)).sum(1)
    return torch.zeros(len(lengths), x.shape[1], dtype=x.dtype).index_add(0, own, x)


of_sequences = functools.partial(
    verify.kernel,
    like=sums,
    shapes={"x": "t d", "lengths": "b", "offsets": "b+1"},
    integers={"lengths": "0 <= lengths <= t, sum t"},
    derive={"offsets": lambda lengths: torch.nn.functional.pad(lengths.cumsum(0), (1, 0))},
    dtypes=["float32"],
    into=["y"],
)


@of_sequences()
def sums_into(x: Tensor, offsets: Tensor, y: Tensor) -> None:
    """It receives no lengths."""
    for row, (start, end) in enumerate(itertools.pairwise(offsets.tolist())):
        torch.sum(x[start:end], 0, out=y[row])


@of_sequences()
def sums_without_the_last(x: Tensor, offsets: Tensor, y: Tensor) -> None:
    sums_into.function.writing.function(x, offsets, y)
    y[-1] = 0


@verify.kernel(
    like=lambda x, slots: torch.zeros(16, x.shape[1], dtype=x.dtype).index_copy(0, slots, x),
    shapes={"x": "n d", "slots": "n"},
    integers={"slots": "distinct 16"},
    operand_dtypes={"slots": "int32"},
    dtypes=["float32"],
    into=["y"],
)
def put_into(x: Tensor, slots: Tensor, y: Tensor) -> None:
    """Its definition gets int64, as every definition does."""
    assert slots.dtype == torch.int32
    y.zero_()
    y[slots.long()] = x
