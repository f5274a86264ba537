"""Programs that are run at once give the bits of programs that are run one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from verify.backends.interpreter import programs

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="of the interpreter")


@triton.jit
def rows(x_ptr, y_ptr, m, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + cols, mask=cols < n, other=0.0)
    x = x - tl.max(x, 0)
    e = tl.exp(x) * (cols < n)
    tl.store(y_ptr + row * n + cols, e / tl.sum(e, axis=0), mask=cols < n)


@triton.jit
def parting(x_ptr, y_ptr, m, n, BLOCK: tl.constexpr):
    """Stores before it decides, so that what was stored has to be taken back; in place."""
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + cols, mask=cols < n, other=0.0)
    tl.store(x_ptr + row * n + cols, x + 1, mask=cols < n)
    tl.store(y_ptr + row * n + cols, x, mask=cols < n)
    if row % 3 == 1:
        tl.store(y_ptr + row * n + cols, -x, mask=cols < n)
    elif tl.sum(x, axis=0) > 0:
        tl.store(y_ptr + row * n + cols, 2 * x, mask=cols < n)


@triton.jit
def striding(x_ptr, y_ptr, m, n, BLOCK: tl.constexpr):
    """Rows p, p + P, p + 2P, ...: one program may have a row more than another."""
    cols = tl.arange(0, BLOCK)
    for row in range(tl.program_id(0), m, tl.num_programs(0)):
        x = tl.load(x_ptr + row * n + cols, mask=cols < n, other=0.0)
        tl.store(y_ptr + row * n + cols, tl.cumsum(x, 0), mask=cols < n)


@triton.jit
def lengths(x_ptr, y_ptr, m, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = 0.0
    for column in range(row % 3):
        total += tl.load(x_ptr + row * n + column)
    tl.store(y_ptr + row * n, total)


@triton.jit
def tiles(x_ptr, y_ptr, m, n, BLOCK: tl.constexpr):
    """A grid of two axes; a matrix product, a transposition and reductions along either axis."""
    r = tl.program_id(0) * 16 + tl.arange(0, 16)
    c = tl.program_id(1) * 16 + tl.arange(0, 16)
    inside = (r[:, None] < m) & (c[None, :] < n)
    x = tl.load(x_ptr + r[:, None] * n + c[None, :], mask=inside, other=0.0)
    y = tl.dot(x, x.T, input_precision="ieee") + tl.sum(x, 1)[:, None] + tl.max(x, 0, keep_dims=True)
    y += tl.trans(tl.reshape(x, (8, 32)).reshape(16, 16) + tl.sum(x))
    if tl.program_id(1) == 0:
        y = -y
    tl.store(y_ptr + r[:, None] * n + c[None, :], y, mask=inside)


@triton.jit
def adding(x_ptr, y_ptr, m, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + cols, mask=cols < n, other=0.0)
    tl.atomic_add(y_ptr + cols, x, mask=cols < n)


@triton.jit
def failing(x_ptr, y_ptr, m, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    tl.store(y_ptr + row * n, 7.0)
    tl.device_assert(row < 5, "the sixth row")
    if row >= 5:
        tl.store(y_ptr + row * n, tl.sum(tl.arange(0, 3), 0))


LAUNCHES: dict[str, tuple[Callable[..., None], tuple[int, ...]]] = {
    "rows": (rows, (21,)),
    "parting": (parting, (21,)),
    "striding": (striding, (8,)),
    "lengths": (lengths, (21,)),
    "tiles": (tiles, (2, 3)),
    "adding": (adding, (21,)),
}


@pytest.fixture(autouse=True)
def _unknown() -> Iterator[None]:
    """What earlier launches found out of a kernel is forgotten."""
    programs._plans.clear()
    yield
    programs._plans.clear()


def launched(kernel: Callable[..., None], grid: tuple[int, ...], dtype: torch.dtype, times: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    kept = []
    for _ in range(times):
        x, y = torch.randn(21, 40, generator=generator).to(dtype), torch.zeros(21, 40, dtype=dtype)
        kernel[grid](x, y, 21, 40, BLOCK=64)
        kept += [x, y]
    return kept


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", LAUNCHES)
def test_the_bits_are_those_of_one_program_after_the_other(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, grid = LAUNCHES[name]
    if dtype == torch.bfloat16 and name in ("rows", "tiles"):
        pytest.skip("tl.exp takes float32, and a matrix product of bfloat16 has another type")
    found = []
    at_once = programs._at_once
    monkeypatch.setattr(programs, "_at_once", lambda call, ids: found.append(at_once(call, ids)) or found[-1])
    together = launched(kernel, grid, dtype, 3)  # the second knows what the first found out
    assert found and (None in found) == (name != "adding")  # atomics are left to one program at a time
    monkeypatch.setattr(programs, "_MOST", 1)
    for one, other in zip(launched(kernel, grid, dtype, 3), together, strict=True):
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def test_what_fails_says_so_as_if_alone_and_leaves_what_came_before() -> None:
    x, y = torch.zeros(21, 40), torch.zeros(21, 40)
    with pytest.raises(Exception, match="arange's range must be a power of 2"):
        failing[(21,)](x, y, 21, 40, BLOCK=64)
    assert (y[:6, 0] == 7).all() and (y[6:] == 0).all()


def test_without_programs_nothing_is_run() -> None:
    y = torch.zeros(21, 40)
    rows[(0,)](torch.zeros(21, 40), y, 21, 40, BLOCK=64)
    assert (y == 0).all()
