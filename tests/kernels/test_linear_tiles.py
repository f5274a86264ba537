"""Small products on Hopper: the tiles that their sizes choose, and the bits of the kernels that read them by boxes."""

from __future__ import annotations

import contextlib

import pytest
import torch

from kernels import hopper_product, linear_act, linear_geglu, linear_weight
from kernels.hopper_product import PERSISTENT, tile
from kernels.launch import INTERPRETED
from tests.kernels.compiled import WITHOUT_PTXAS

DTYPES = [torch.float16, torch.bfloat16]
CHOSEN = pytest.mark.skipif(not INTERPRETED, reason="a GPU chooses by itself: the tests on a GPU compare the bits")


def test_small_products_have_one_tile_for_each_processor():
    for m in (1, 64, 100, 512, 2048, 8192):
        for n in (8, 256, 1000, 4096, 16384):
            bm, bn, bk, _, _ = config = tile(m, n, 1024, 132)
            assert bk == 64 or 1024 % bk == 0
            if config != PERSISTENT:
                assert -(-m // bm) * -(-n // bn) <= 3 * 132
            assert tile(m, n, 1024 + 8, 132)[2] == 64


@contextlib.contextmanager
def hopper(monkeypatch, units=132):
    """Launches as on a Hopper GPU, by the interpreter, which has no persistent kernel. Yields the launched kernels."""
    launched = []
    with monkeypatch.context() as patch:
        patch.setattr(hopper_product, "INTERPRETED", False)
        patch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
        patch.setattr(hopper_product, "units_of", lambda device: units)
        for module in (linear_act, linear_geglu, linear_weight):
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
    ("k", "dtype"), [(128, torch.float16), (200, torch.bfloat16)], ids=str
)
def test_boxes_give_the_bits_of_loads(monkeypatch, dtype, k):
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
    for name in ("plain", "transposed", "padded"):
        with hopper(monkeypatch) as launched:
            got = results(layouts(x)[name], layouts(weight)[name], layouts(dy)[name])
        products = [boxed for kernel, boxed in launched if kernel in ("_tile_kernel", "_weight_kernel")]
        assert len(products) >= 10 and all(products), launched
        assert all(torch.equal(g, w) for g, w in zip(got, want, strict=True)), name


@CHOSEN
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_parts_of_a_small_weight_gradient_are_a_choice_of_sizes(monkeypatch, dtype):
    assert linear_weight.rows_of_weight_part(16384, 512, 512, dtype) == 2048
    assert linear_weight.rows_of_weight_part(16384, 512, 512, torch.float32) == linear_weight.PARTS[torch.float32]
    assert linear_weight.rows_of_weight_part(8192, 4096, 4096, dtype) >= 8192
    m, n, k = 1000, 16, 24
    assert linear_weight.rows_of_weight_part(m, n, k, dtype) == linear_weight.PARTS[dtype]
    monkeypatch.setattr(linear_weight, "rows_of_weight_part", lambda *sizes: 512)
    g, x = drawn(dtype, (m, n), (m, k))
    want = linear_weight.weight_gradient(g, x, False)
    parts = [g[first : first + 512].float().t() @ x[first : first + 512].float() for first in (0, 512)]
    torch.testing.assert_close(want.float(), sum(parts), rtol=2**-7, atol=0.05)
    for name in ("plain", "transposed", "padded"):
        with hopper(monkeypatch) as launched:
            got = linear_weight.weight_gradient(layouts(g)[name], layouts(x)[name], False)
        assert ("_weight_kernel", True) in launched
        assert torch.equal(got, want), name


OVERLAP = """
import re
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from kernels import linear_act, linear_geglu, linear_layers, linear_weight

for module, name, types in (
    (linear_act, "_gradient_kernel", {"ACT": 2, "ROWS": 32, "BM": 32, "BN": 64}),
    (linear_geglu, "_gradient_kernel", {"TANH": True, "ROWS": 32, "BM": 8, "BN": 128}),
    (linear_layers, "_added_kernel", {"ROWS": 16, "BLOCK": 64}),
    (linear_act, "_tile_kernel", {"MODE": 10, "BM": 64, "BN": 64, "BK": 64}),
    (linear_geglu, "_tile_kernel", {"MODE": 10, "BM": 64, "BN": 64, "BK": 64}),
    (linear_weight, "_weight_kernel", {"PART": 512, "BLOCK": 0, "BM": 64, "BN": 64, "BK": 64}),
):
    kernel = getattr(module, name)
    constants = {"OVERLAP": True, "STORE": True, "SUM": True, "HAS_BIAS": True, "PRECISION": "ieee", "GROUP": 8}
    constants |= {"BOXES": True, "A_T": False, "B_T": False, "G_T": False, "X_T": False, **types}
    constants |= {n: 0 for n in kernel.arg_names if n.startswith("stride_") and n != "stride_ym"}
    boxes = {"a_ptr", "b_ptr", "g_ptr", "x_ptr"} if "BOXES" in kernel.arg_names else ()
    signature = {}
    for n in kernel.arg_names:
        kind = "*fp32" if n in ("part_ptr", "sum_ptr") else "*bf16" if n.endswith("_ptr") else "i32"
        signature[n] = "constexpr" if n in constants else "tensordesc<bf16[64, 64]>" if n in boxes else kind
    values = {(kernel.arg_names.index(n),): v for n, v in constants.items() if n in kernel.arg_names}
    options = {"num_warps": 4, "launch_pdl": True}
    source = ASTSource(kernel, signature, values)
    ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
    print(module.__name__, *re.findall(r"griddepcontrol.\\w+|ld.global|st.global|cp.async.bulk.tensor", ptx)[:3])
"""


def test_a_kernel_that_starts_early_waits_before_it_reads_or_writes(printed, tmp_path):
    lines = printed(WITHOUT_PTXAS + OVERLAP, tmp_path, 240).splitlines()
    assert len(lines) == 6
    for line in lines:
        _, first, second, third = line.split()
        assert (first, second) == ("griddepcontrol.wait", "griddepcontrol.launch_dependents"), line
        assert third in ("ld.global", "cp.async.bulk.tensor"), line


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
