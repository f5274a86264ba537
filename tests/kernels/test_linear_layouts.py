"""Bits of the fused linear layers do not depend on layouts: what a launch is compiled for, and what it returns.

Triton compiles a kernel again for each class of its arguments (a pointer or an int that is a multiple of 16, an int
of 1), and each may distribute a tile otherwise over threads. A kernel that adds across threads must then see one
class for a shape, whatever the layouts of the tensors that it was made from. The interpreter adds in one order, so
here the classes are compared, and on a GPU the bits too.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch

from kernels import linear_act as act
from kernels import linear_geglu as geglu
from kernels import linear_layers, linear_tiles, linear_weight, plans

MODULES = [act, geglu]
SHAPES = [(3, 1, 1), (6, 5, 1), (37, 20, 9), (70, 17, 16)]  # rows, in, out


def classes(arguments):
    """What Triton compiles for, beside the types."""
    return tuple(
        (argument.dtype, argument.data_ptr() % 16 == 0)
        if isinstance(argument, torch.Tensor)
        else (argument == 1, argument % 16 == 0)
        for argument in arguments
    )


class Recorder:
    """A kernel that notes the grid, what `noted` returns of the arguments, and the constants of each launch.

    kernel: None if nothing is to run.
    """

    def __init__(self, kernel, noted=tuple):
        self.kernel, self.noted, self.launches = kernel, noted, []

    def __getitem__(self, grid):
        def launch(*arguments, **constants):
            self.launches.append((grid, self.noted(arguments), constants))
            return self.kernel[grid](*arguments, **constants) if self.kernel else None

        return launch

    def __getattr__(self, name):
        return getattr(self.kernel, name)


def offset(t):
    """t's values in contiguous memory that starts 4 bytes off a multiple of 16."""
    flat = torch.empty(t.numel() + 16, dtype=t.dtype, device=t.device)
    moved = flat[4 // t.element_size() :][: t.numel()].view(t.shape)
    assert moved.data_ptr() % 16 == 4
    return moved.copy_(t)


def views(t):
    """t's values in other layouts; [M, N]."""
    padded = torch.cat((t, t, t), 1)[:, t.shape[1] : 2 * t.shape[1]]
    return {
        "transposed": t.t().contiguous().t(),
        "padded": padded,
        "stepped rows": t.repeat_interleave(2, 0)[::2],
        "stepped": t.repeat_interleave(2, 0).repeat_interleave(2, 1)[::2, ::2],
        "offset": offset(t),
        "offset, transposed": offset(t.t()).t(),
        "odd stride of one column": t.as_strided(t.shape, (1, 5)) if t.shape[1] == 1 else t.clone(),
    }


def layer(module, x, weight, bias, activation):
    if module is geglu:
        return geglu.linear_geglu(x, weight, bias, approximate="tanh" if activation == "gelu_tanh" else "none")
    return act.linear_act(x, weight, bias, activation=activation)


def tensors(module, m, k, n, device, dtype=torch.float32):
    generator = torch.Generator().manual_seed(m)
    wide = 2 * n if module is geglu else n
    shapes = (m, k), (wide, k), (wide,), (m, n)
    return [torch.randn(s, generator=generator).to(dtype).to(device) for s in shapes]


def results(module, monkeypatch, x, weight, bias, dy, activation):
    """(y and the gradients, launches of the reducing kernel, launches of the tiles)"""
    reducing, tiles = Recorder(linear_tiles._gradient_kernel, classes), Recorder(linear_tiles._tile_kernel, classes)
    products = Recorder(linear_weight._weight_kernel, classes)
    configs, weights = linear_tiles._configs, linear_weight._configs
    with monkeypatch.context() as patch:
        # on a GPU, where the configuration is timed for each layout: the first
        patch.setattr(linear_tiles, "_configs", lambda *arguments: configs(*arguments)[:1])
        patch.setattr(linear_weight, "_configs", lambda *arguments: weights(*arguments)[:1])
        patch.setattr(linear_layers, "fastest", {})
        patch.setattr(linear_tiles, "_gradient_kernel", reducing)
        for name in ("_tile_kernel", "_strided_tile_kernel"):
            patch.setattr(linear_tiles, name, tiles)
        for name in ("_weight_kernel", "_strided_weight_kernel"):
            patch.setattr(linear_weight, name, products)
        plans.forget()  # known calls launch their compiled kernels
        leaves = [t.detach().requires_grad_() for t in (x, weight, bias)]
        y = layer(module, *leaves, activation)
        grads = torch.autograd.grad(y, leaves, dy)
    return (y.detach(), *grads), reducing.launches, tiles.launches + products.launches


def same_bits(got, want):
    assert all(torch.equal(p.view(torch.int32), q.view(torch.int32)) for p, q in zip(got, want, strict=True))


CASES = [(act, "id"), (act, "gelu"), (geglu, "gelu")]


# every shape without an activation, every activation in one shape
@pytest.mark.parametrize(
    ("module", "activation", "shape"),
    [
        pytest.param(*case, shape, id=f"{name}-{shape}")
        for place, (case, name) in enumerate(zip(CASES, ("linear", "gelu", "geglu"), strict=True))
        for shape in (SHAPES[:1] if place else SHAPES)
    ],
)
def test_the_upstream_gradients_layout_changes_no_launch_and_no_bit(backend, monkeypatch, module, activation, shape):
    x, weight, bias, dy = tensors(module, *shape, backend.device)
    layouts = {name: (dy, view) for name, view in views(dy).items()}
    for name, one in (("one row", dy[:1]), ("one column", dy[:, :1]), ("one number", dy[:1, :1])):
        expanded = one.expand(dy.shape)
        layouts[f"expanded from {name}"] = expanded.clone(memory_format=torch.contiguous_format), expanded
    before = None
    for name, (dense, view) in layouts.items():
        if dense is not before:
            want, reducing, tiles = results(module, monkeypatch, x, weight, bias, dense, activation)
            before = dense
        got, other_reducing, other_tiles = results(module, monkeypatch, x, weight, bias, view, activation)
        assert other_reducing == reducing, name
        assert len(reducing) == 1
        assert [(grid, constants) for grid, _, constants in other_tiles] == [(g, c) for g, _, c in tiles], name
        same_bits(got, want)


@pytest.mark.parametrize(("module", "activation"), CASES, ids=["linear", "gelu", "geglu"])
def test_the_operands_layouts_change_neither_the_reduction_nor_a_bit(backend, monkeypatch, module, activation):
    x, weight, bias, dy = tensors(module, 37, 20, 9, backend.device)
    want, reducing, _ = results(module, monkeypatch, x, weight, bias, dy, activation)
    for name in (other := views(weight)):
        arguments = views(x)[name], other[name], offset(bias)
        got, other_reducing, _ = results(module, monkeypatch, *arguments, dy, activation)
        assert other_reducing == reducing, name
        same_bits(got, want)


@pytest.mark.parametrize("module", MODULES, ids=["linear", "geglu"])
def test_the_operators_reduction_sees_a_dense_pre_activation_too(backend, monkeypatch, module):
    """A second derivative may hand the operator any pre-activation."""
    *_, bias, dy = tensors(module, 37, 20, 9, backend.device)
    pre = torch.linspace(-3, 3, 37 * len(bias), device=backend.device).view(37, len(bias))
    last = "gelu" if module is act else "geglu_none", True, True
    recorder = Recorder(linear_tiles._gradient_kernel, classes)
    monkeypatch.setattr(linear_tiles, "_gradient_kernel", recorder)
    want = act._gradient(dy, pre, *last)
    for view in views(pre).values():
        same_bits(act._gradient(dy, view, *last), want)
    assert all(launch == recorder.launches[0] for launch in recorder.launches)


@pytest.mark.parametrize(
    "listed",
    [linear_tiles._configs, partial(linear_tiles._configs, paired=True), linear_weight._configs],
    ids=["linear", "geglu", "weight"],
)
@pytest.mark.parametrize("tf32", [False, True])
def test_the_configurations_to_choose_from_step_alike_through_k(monkeypatch, listed, tf32):
    """The choice is timed, for each layout. Zeros that fill the last step turn a sum of -0 into 0."""
    monkeypatch.setattr(linear_layers, "INTERPRETED", False)
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        configs = listed(dtype, tf32)
        assert len({bk for _, _, bk, _, _ in configs}) == 1, dtype
        assert linear_weight.BLOCK % configs[0][2] == linear_weight.PARTS[dtype] % linear_weight.BLOCK == 0
        assert min(bm for bm, *_ in configs) >= 64  # smaller tiles have another matrix instruction


@pytest.mark.gpu
@pytest.mark.parametrize("module", MODULES, ids=["linear", "geglu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_every_layout_of_large_operands_gives_the_same_bits(module, dtype):
    """K > 128 and even shapes: on Hopper 16-bit operands go by the copy engine, as they are or transposed."""
    x, weight, bias, _ = tensors(module, 300, 456, 264, "cuda", dtype)
    y = layer(module, x, weight, bias, "gelu")
    other = views(weight)
    for name, view in views(x).items():
        assert torch.equal(layer(module, view, weight, bias, "gelu"), y), name
        assert torch.equal(layer(module, x, other[name], bias, "gelu"), y), name


def test_column_sums_of_a_second_derivative_do_not_depend_on_the_layout(backend):
    t = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0)).to(backend.device)
    want = act._gradient(t, t, "id", False, True)[1]
    for name, view in views(t).items():
        assert torch.equal(act._gradient(view, view, "id", False, True)[1], want), name
