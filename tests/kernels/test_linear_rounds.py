"""The last tiles of the Hopper kernel of linear_act.py: which are left to the tile kernel, and what that one writes."""

from __future__ import annotations

import functools

import pytest
import torch

from kernels import linear_tiles as module
from kernels.linear_act import linear_act, linear_data_grad
from tests.kernels.test_linear_layouts import Recorder

ACTIVATIONS = ["id", "gelu", "gelu_tanh", "squared_relu"]


def order(tiles_m, tiles_n, group):
    """The order of tile_of: columns within groups of rows."""
    for first in range(0, tiles_m, group):
        for column in range(tiles_n):
            for row in range(first, min(first + group, tiles_m)):
                yield row, column


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
