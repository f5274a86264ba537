"""Small products on Hopper: the tiles that their sizes choose, and the bits of the kernels that read them by boxes."""

from __future__ import annotations

import contextlib

import pytest
import torch

from kernels import hopper_product, linear_act, linear_geglu, linear_tiles, linear_weight
from kernels.launch import INTERPRETED

DTYPES = [torch.float16, torch.bfloat16]
CHOSEN = pytest.mark.skipif(not INTERPRETED, reason="a GPU chooses by itself: the tests on a GPU compare the bits")


@contextlib.contextmanager
def hopper(monkeypatch, units=132):
    """Launches as on a Hopper GPU, by the interpreter, which has no persistent kernel. Yields the launched kernels."""
    launched = []
    with monkeypatch.context() as patch:
        patch.setattr(hopper_product, "INTERPRETED", False)
        patch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
        patch.setattr(hopper_product, "units_of", lambda device: units)
        for module in (linear_tiles, linear_weight):
            run = module.run

            def noted(kernel, grid, *arguments, run=run, **constants):
                launched.append((kernel.fn.__name__, constants.get("BOXES", False)))
                run(kernel, grid, *arguments, **constants)

            patch.setattr(module, "run", noted)
        yield launched


def drawn(dtype, *shapes):
    generator = torch.Generator().manual_seed(len(shapes))
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def bits(tensors):
    return [None if t is None else t.contiguous().view(torch.int16) for t in tensors]


def layouts(t):
    return {"plain": t, "transposed": t.t().contiguous().t(), "padded": torch.cat((t, t), 1)[:, : t.shape[1]]}


@CHOSEN
@pytest.mark.parametrize(  # in one step of 128; in steps of 64 with a rest. The dtype only rounds.
    ("k", "dtype", "read"), [(128, torch.float16, ("plain", "padded")), (200, torch.bfloat16, ("transposed",))], ids=str
)
def test_boxes_give_the_bits_of_loads(monkeypatch, dtype, k, read):
    m, n = 72, 144
    x, weight, bias, dy = drawn(dtype, (m, k), (n, k), (n,), (m, n))

    def results(x, weight, dy):
        """Of layers with and without stored pre-activation, of GEGLU, and of their gradients."""
        found = []
        for name in ("id", "gelu"):  # an activation changes no load; one of them has a gradient that reads the sums
            leaves = [t.detach().requires_grad_() for t in (x, weight, bias)]
            y = linear_act.linear_act(*leaves, activation=name)
            found += [y.detach(), *torch.autograd.grad(y, leaves, dy)]
            found.append(linear_act.linear_act(x, weight, None, activation=name))
        leaves = [t.detach().requires_grad_() for t in (x, weight, bias)]
        y = linear_geglu.linear_geglu(*leaves)
        found += [y.detach(), *torch.autograd.grad(y, leaves, dy[:, : n // 2])]
        found.append(linear_act.linear_data_grad(dy, weight, x, "gelu"))
        return bits(found)

    want = results(x, weight, dy)
    for name in read:
        with hopper(monkeypatch) as launched:
            got = results(layouts(x)[name], layouts(weight)[name], layouts(dy)[name])
        products = [boxed for kernel, boxed in launched if kernel in ("_tile_kernel", "_weight_kernel")]
        assert len(products) >= 10 and all(products), launched
        assert all(torch.equal(g, w) for g, w in zip(got, want, strict=True)), name


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_launches_that_overlap_change_no_bit(monkeypatch, dtype):
    """In a graph too. A wrong order would read the memory of the run before, which has other numbers."""
    from kernels import launch, plans

    def steps(found):
        for seed, (m, n, k) in enumerate(((512, 1024, 512), (2048, 256, 512), (64, 4096, 1024), (4096, 64, 64)) * 3):
            x, weight, bias, dy = (t.cuda() + seed / 8 for t in drawn(dtype, (m, k), (n, k), (n,), (m, n)))
            leaves = [t.detach().requires_grad_() for t in (x, weight * k**-0.5, bias)]
            for layer in (linear_act.linear_act(*leaves, activation="gelu"), linear_geglu.linear_geglu(*leaves)):
                found += [layer.detach(), *torch.autograd.grad(layer, leaves, dy[:, : layer.shape[1]].contiguous())]
        return found

    monkeypatch.setattr(launch, "OVERLAPS", False)
    plans.forget()
    want = bits(steps([]))
    monkeypatch.setattr(launch, "OVERLAPS", True)
    plans.forget()
    for _ in range(3):
        assert all(torch.equal(g, w) for g, w in zip(bits(steps([])), want, strict=True))
    stream, graph, found = torch.cuda.Stream(), torch.cuda.CUDAGraph(), []
    stream.wait_stream(torch.cuda.current_stream())
    m, n, k = 512, 1024, 512
    x, weight, bias, dy = (t.cuda() for t in drawn(dtype, (m, k), (n, k), (n,), (m, n)))
    leaves = [t.detach().requires_grad_() for t in (x, weight, bias)]

    def step():
        y = linear_act.linear_act(*leaves, activation="gelu")
        return [y.detach(), *torch.autograd.grad(y, leaves, dy)]

    with torch.cuda.stream(stream):
        expected = [step() for _ in range(3)][-1]
    with torch.cuda.graph(graph, stream=stream):
        found = [step() for _ in range(4)]
    for _ in range(5):
        graph.replay()
    torch.cuda.synchronize()
    for each in found:
        assert all(torch.equal(g, w) for g, w in zip(bits(each), bits(expected), strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_tile_gives_the_same_bits(monkeypatch, dtype):
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("the Hopper kernel is for compute capability 9")
    for m, n, k in ((64, 512, 1024), (200, 264, 448), (512, 1024, 1024), (1030, 520, 136)):
        x, weight, bias, dy = (t.cuda() for t in drawn(dtype, (m, k), (n, k), (n,), (m, n)))
        weight *= k**-0.5

        def results(x=x, weight=weight, bias=bias, dy=dy):
            leaves = [t.detach().requires_grad_() for t in (x, weight, bias)]
            y, z = linear_act.linear_act(*leaves, activation="gelu"), linear_geglu.linear_geglu(*leaves)
            made = [y.detach(), *torch.autograd.grad(y, leaves, dy)]
            made += [z.detach(), *torch.autograd.grad(z, leaves, dy[:, : dy.shape[1] // 2].contiguous())]
            return bits([*made, linear_act.linear_data_grad(dy, weight, x, "gelu_tanh")])

        want = results()
        for config in [config for config, _ in hopper_product._ROUNDS]:
            if k % config[2]:
                config = (*config[:2], 64, config[3], config[4])
            with monkeypatch.context() as patch:
                patch.setattr(hopper_product, "tile", lambda *sizes, config=config: config)
                got = results()
            assert all(torch.equal(g, w) for g, w in zip(got, want, strict=True)), (m, n, k, config)
