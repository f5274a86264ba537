"""The last tiles of the Hopper kernel of linear_act.py: which are left to the tile kernel, and what that one writes."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
import triton
import triton.language as tl

from kernels import linear_act as module
from kernels.linear_act import linear_act, linear_data_grad
from kernels.linear_layers import tile_of
from tests.kernels.test_linear_layouts import Recorder

ACTIVATIONS = ["id", "gelu", "gelu_tanh", "squared_relu"]
MODES = [a + more for more in (0, module.GRAD.value, module.SAVE.value) for a in range(4)]


def order(tiles_m, tiles_n, group):
    """The order of tile_of: columns within groups of rows."""
    for first in range(0, tiles_m, group):
        for column in range(tiles_n):
            for row in range(first, min(first + group, tiles_m)):
                yield row, column


@triton.jit
def numbered(row_ptr, column_ptr, tiles_m, tiles_n, GROUP: tl.constexpr, SIZE: tl.constexpr):
    t = tl.arange(0, SIZE)
    row, column = tile_of(t, tiles_m, tiles_n, GROUP)
    tl.store(row_ptr + t, row, mask=t < tiles_m * tiles_n)
    tl.store(column_ptr + t, column, mask=t < tiles_m * tiles_n)


def test_the_enumeration_is_the_kernels(backend):
    for tiles_m in (1, 2, 3, 7, 8, 9, 15, 16, 17, 19):
        for tiles_n in (1, 2, 5):
            for group in (1, 3, 8):
                rows, columns = (torch.zeros(tiles_m * tiles_n, dtype=torch.int32).to(backend.device) for _ in range(2))
                numbered[(1,)](rows, columns, tiles_m, tiles_n, GROUP=group, SIZE=128)
                tiles = list(zip(rows.tolist(), columns.tolist(), strict=True))
                assert tiles == list(order(tiles_m, tiles_n, group))


UNITS = (1, 15, 16, 32, 78, 114, 132)


@pytest.mark.parametrize("group", [1, 3, 8])
def test_what_whole_rounds_leave_is_exactly_the_rectangle(group):
    found = dict.fromkeys(UNITS, 0)
    for tiles_m, tiles_n in itertools.product(range(1, 36), repeat=2):
        tiles = list(order(tiles_m, tiles_n, group))
        for units in UNITS:
            found[units] += leaves_a_rectangle(tiles, tiles_m, tiles_n, units, group)
    assert {units for units, times in found.items() if times} == {units for units in UNITS if units >= 16}


def leaves_a_rectangle(tiles, tiles_m, tiles_n, units, group):
    """True if tiny tiles do what whole rounds leave, and then exactly that."""
    whole, rows, columns = module._rounds(tiles_m, tiles_n, units, group)
    corner = set(itertools.product(range(tiles_m - rows, tiles_m), range(tiles_n - columns, tiles_n)))
    assert set(tiles[whole:]) == corner
    left = len(tiles) % units
    if rows:
        assert whole == len(tiles) - left > 0
        assert whole % units == 0
        assert 0 < left * 16 <= units  # a tile is 16 tiny ones
        return True
    assert (whole, columns) == (len(tiles), 0)
    return False


def launched(mode, a, b, bias, gate, y, pre, sub=()):
    """The tile kernel into y[sub], and pre and from gate likewise."""
    (m, k), n = a.shape, b.shape[0]
    y_sub, gate_sub, pre_sub = (t[sub] if sub else t for t in (y, gate, pre))
    bm, bn, bk = module._TINY
    module._tile_kernel[(-(-m // bm) * -(-n // bn),)](
        a, b, bias, gate_sub, y_sub, pre_sub, m, n, k, *a.stride(), *b.stride(), y.stride(0),
        MODE=mode, HAS_BIAS=True, PRECISION="ieee", BM=bm, BN=bn, BK=bk, GROUP=8, num_warps=4, num_stages=1,
    )  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_the_tile_kernel_writes_a_rectangle_of_wider_results(backend, mode):
    generator = torch.Generator().manual_seed(mode)
    a, b, bias = (torch.randn(s, generator=generator).bfloat16().to(backend.device) for s in ((70, 150), (72, 150), 72))
    gate = torch.randn(100, 200, generator=generator).bfloat16().to(backend.device)
    sub = slice(20, 90), slice(104, 176)
    narrow = [torch.full((70, 72), 77.0).to(gate) for _ in range(2)]
    launched(mode, a, b, bias, gate[sub].contiguous(), *narrow)
    assert (narrow[1] != 77).any() == (mode >= module.SAVE.value)
    wide = [torch.full((100, 200), 77.0).to(gate) for _ in range(2)]
    launched(mode, a, b, bias, gate, *wide, sub)
    for got, want in zip(wide, narrow, strict=True):
        assert torch.equal(got[sub], want)
        got[sub] = 77
        assert (got == 77).all()


def whole_numbers(shape, generator, dtype):
    """Small ones: their products and sums are exact in every order."""
    return torch.randint(-2, 3, shape, generator=generator).to(dtype)


@functools.cache
def operands(m, n):
    """The operands, a bias and a gate of bfloat16, the same for every launch."""
    generator = torch.Generator().manual_seed(m)
    whole = (whole_numbers(s, generator, torch.bfloat16) for s in ((m, 1024), (n, 1024), (n,)))
    return *whole, torch.randn(m, n, generator=generator).bfloat16()


def leaving_a_rest(units):
    """Tiles of a product whose last round is cut: 8 rows of them where that works, else fewer."""
    for tiles_m in range(8, 0, -1):
        for tiles_n in range(1, 2 * units):
            if module._rounds(tiles_m, tiles_n, units, 8)[1]:
                return tiles_m, tiles_n
    raise AssertionError(units)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_cut_last_round_changes_no_bit(monkeypatch, dtype, ragged, with_bias):
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("the Hopper kernel is for compute capability 9")
    tiles_m, tiles_n = leaving_a_rest(torch.cuda.get_device_properties(0).multi_processor_count)
    m, n, k = tiles_m * 128, tiles_n * 256, 1024
    if ragged:
        m, n = m - 37, n - 80
    generator = torch.Generator("cuda").manual_seed(0)
    x, weight, bias, pre = (
        torch.randn(s, generator=generator, device="cuda").to(dtype) for s in ((m, k), (n, k), (n,), (m, n))
    )
    weight *= k**-0.5
    bias = bias if with_bias else None
    layouts = {"plain": weight, "transposed": weight.t().contiguous().t()}

    def results(w):
        made = {}
        for activation in ACTIVATIONS:
            made[activation, 0] = (linear_act(x, w, bias, activation=activation),)
            made[activation, "save"] = linear_act(x, w, bias, activation=activation, return_pre=True)
            if not with_bias:  # a product of its own, which has none
                made[activation, "grad"] = (linear_data_grad(x, w.t(), pre, activation),)
        return made

    def launches(w):
        recorder = Recorder(module._tile_kernel)
        with monkeypatch.context() as patch:
            patch.setattr(module, "_tile_kernel", recorder)
            return results(w), len(recorder.launches)

    for name, w in layouts.items():
        cut, count = launches(w)
        assert count == len(cut), name
        with monkeypatch.context() as patch:
            patch.setattr(module, "_rounds", lambda tiles_m, tiles_n, *_: (tiles_m * tiles_n, 0, 0))
            whole, count = launches(w)
        assert count == 0, name
        for key, got in cut.items():
            for p, q in zip(got, whole[key], strict=True):
                assert torch.equal(p.view(torch.int16), q.view(torch.int16)), (name, key)
    if not ragged:  # a transposed A is not cut
        y, count = linear_act(x, weight, bias), Recorder(module._tile_kernel)
        monkeypatch.setattr(module, "_tile_kernel", count)
        assert torch.equal(linear_act(x.t().contiguous().t(), weight, bias), y)
        assert not count.launches
