"""kernels/rope.py: the bits of Llama's function and of one rounding, every layout, partial rotation, empty operands."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
import torch

from kernels.rope import rope
from properties.rope import half_turned
from tests.kernels.public import DEVICE

HALVES = (torch.bfloat16, torch.float16)
ANGLES = [(x, c) for x in HALVES for c in (x, torch.float32)]


def drawn(seed, *shapes):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(DEVICE) for shape in shapes]


def operands(dtype, of_angles, shape=(2, 6, 5, 12), heads=2, turned=12, batch=1):
    """q, k, cos and sin. Halves have angles of their own, which no model has."""
    q, k, *angles = drawn(len(shape), shape, (shape[0], heads, *shape[2:]), *[(batch, shape[2], turned)] * 2)
    return [q.to(dtype), k.to(dtype), *(t.clamp(-1, 1).to(of_angles) for t in angles)]


def llama(q, k, cos, sin):
    """apply_rotary_pos_emb of OLMo, which is Llama's where dtypes do not differ, with the models' partial rotation."""
    results = []
    for x in (q, k):
        turned, others = x.tensor_split([cos.shape[-1]], -1)
        y = turned * cos.unsqueeze(1) + half_turned(turned) * sin.unsqueeze(1)
        results.append(torch.cat((y.to(x.dtype), others), -1))
    return results


def results(function, q, k, *angles, upstream=None, **how):
    """Both results, their gradients, and second derivatives."""
    leaves = [t.detach().requires_grad_() for t in (q, k)]
    outputs = function(*leaves, *angles, **how)
    upstream = upstream or [t.detach().to(torch.float64).cos().to(t.dtype) for t in outputs]
    upstream = [t.detach().requires_grad_() for t in upstream]
    gradients = torch.autograd.grad(outputs, leaves, upstream, create_graph=True)
    seconds = torch.autograd.grad(gradients, upstream, [t.detach() for t in leaves])
    return [t.detach() for t in (*outputs, *gradients, *seconds)]


def same(a, b):
    """True if all bits are equal, except those of NaN."""
    ints = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    pairs = [(s.contiguous(), t.contiguous()) for s, t in zip(a, b, strict=True)]
    views = [(s.view(ints[s.itemsize]), t.view(ints[t.itemsize]), s.isnan() & t.isnan()) for s, t in pairs]
    return all(((s == t) | both).all() for s, t, both in views)


@pytest.mark.parametrize(("dtype", "of_angles"), ANGLES, ids=str)
@pytest.mark.parametrize("turned", [12, 8])
def test_the_models_contract_has_the_bits_of_llamas_function(dtype, of_angles, turned):
    for batch in (1, 2):
        given = operands(dtype, of_angles, turned=turned, batch=batch)
        given[0][0, :, 0] = 0.0  # zeros of both signs
        given[1][:, 0] *= -0.0
        given[3][:, 1] = -0.0
        wanted = results(llama, *given)
        assert same(results(rope, *given, contract="model")[:4], wanted[:4])
        assert not same(results(rope, *given)[2:4], wanted[2:4])


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_every_number_turns_as_in_llamas_function(dtype):
    """65,536 numbers, each beside one angle; among them NaN, infinities, zeros and subnormal numbers."""
    every = torch.arange(65536, dtype=torch.int32, device=DEVICE).to(torch.int16).view(dtype)
    x = every.view(1, 8, 256, 32)
    cos, sin = (t.to(dtype) for t in drawn(1, (1, 256, 32), (1, 256, 32)))
    given = x, x.flip(3)[:, :3], cos, sin
    upstream = [given[0].flip(1), given[1].flip(2)]
    got = results(rope, *given, contract="model", upstream=upstream)
    assert same(got[:4], results(llama, *given, upstream=upstream)[:4])


@pytest.mark.parametrize(("dtype", "of_angles"), [*ANGLES, (torch.float32, torch.float32)], ids=str)
def test_once_is_the_sum_of_exact_products(dtype, of_angles):
    """Both contracts of float32 are this one. Products are exact in float64; 16 bits are rounded to float32 before."""
    given = operands(dtype, of_angles)
    wanted = llama(*(t.double() for t in given))
    between = torch.float32 if dtype != torch.float32 else torch.float64
    for contract in ("once",) if dtype != torch.float32 else ("once", "model"):
        got = rope(*given, contract=contract)
        assert same(got, [t.to(between).to(dtype) for t in wanted])
        assert all(
            torch.equal(a, b) for a, b in zip(results(rope, *given)[4:], got, strict=True)
        )  # of a linear function


def test_float64_sums_that_cancel_keep_their_digits():
    q, k, cos, sin = operands(torch.float64, torch.float64, heads=6)
    q[..., 6:] = q[..., :6] * cos[..., :6].unsqueeze(1) / sin[..., :6].unsqueeze(1)  # y1 is about 0
    for x, y in zip((q, k), rope(q, k, cos, sin), strict=True):
        for b, h, t, i in itertools.product(range(2), range(3), range(5), range(6)):
            exact = Fraction(float(x[b, h, t, i])) * Fraction(float(cos[0, t, i]))
            exact -= Fraction(float(x[b, h, t, i + 6])) * Fraction(float(sin[0, t, i]))
            assert abs(Fraction(float(y[b, h, t, i])) - exact) <= abs(exact) * Fraction(3, 2) * Fraction(2) ** -52


def laid_out(t, how):
    """A tensor with the numbers of t in another layout."""
    if how == "heads last":
        return t.transpose(1, 2).contiguous().transpose(1, 2)
    if how == "columns first":
        return t.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0)
    if how == "gaps":
        return torch.cat((t, t * 3, t * 5), -1)[..., : t.shape[-1]]
    if how == "off by one":
        return torch.cat((t.flatten()[:1], t.flatten()))[1:].view(t.shape)
    return t[..., ::2].repeat_interleave(2, -1).flip(-1)[..., :1].expand(t.shape)  # one number for a head


@pytest.mark.parametrize("how", ["heads last", "columns first", "gaps", "off by one", "expanded"])
def test_any_layout_has_the_bits_of_a_contiguous_copy(how):
    for dtype, contract in ((torch.bfloat16, "model"), (torch.float32, "once")):
        q, k, cos, sin = operands(dtype, dtype, heads=3, turned=8)
        q, k, dq, dk = (laid_out(t, how) for t in (q, k, q.cos(), k.cos()))
        cos, sin = (laid_out(t.unsqueeze(0), how).squeeze(0) for t in (cos, sin))
        got = results(rope, q, k, cos, sin, upstream=[dq, dk], contract=contract)
        dense = [t.contiguous() for t in (q, k, cos, sin)]
        wanted = results(rope, *dense, upstream=[dq.contiguous(), dk.contiguous()], contract=contract)
        assert same(got, wanted)
        assert [t.stride() for t in got[:2]] == [torch.empty_like(t).stride() for t in (q, k)]


def test_a_constant_upstream_gradient_and_one_result_alone():
    q, k, cos, sin = operands(torch.bfloat16, torch.bfloat16)
    leaves = q.requires_grad_(), k.requires_grad_()
    a, b = rope(*leaves, cos, sin)
    one, zero = torch.ones_like(a), torch.zeros_like(b)
    wanted = torch.autograd.grad((a, b), leaves, (one, zero), retain_graph=True)
    assert same(torch.autograd.grad(a.sum(), leaves), wanted)


def test_an_element_depends_on_its_own_operands_alone():
    """Whatever the numbers of batches, heads and tokens are, and so the shape of a program."""
    q, k, cos, sin = operands(torch.bfloat16, torch.float32, (3, 11, 37, 20), 5, 16, 3)
    whole = rope(q, k, cos, sin)
    for b, h, t in ((0, 0, 0), (2, 4, 36), (1, 3, 17)):
        at = (slice(b, b + 1), slice(h, h + 1), slice(t, t + 1))
        part = rope(q[at], k[at], cos[at[0], at[2]], sin[at[0], at[2]])
        assert same(part, [y[at] for y in whole])


@pytest.mark.parametrize("shape", [(0, 2, 3, 8), (2, 0, 3, 8), (2, 2, 0, 8), (2, 2, 3, 0), (2, 2, 3, 8)])
def test_operands_without_elements(shape):
    for heads in (2, 0):
        given = operands(torch.bfloat16, torch.bfloat16, shape, heads, min(4, shape[3]), 1)
        assert same(rope(*given, contract="model"), llama(*given))
        assert same(rope(*given[:2], *(t[..., :0] for t in given[2:])), given[:2])  # nothing turns


COMPILE = """
import torch
from kernels import rope
from kernels.operators import launcher_of
from tests.kernels.compiled import compiled_for

x, angles = torch.empty(2, 8, 64, 64, dtype=torch.bfloat16), torch.empty(1, 64, 64, dtype=torch.bfloat16)
with compiled_for(90):
    for back in (False, True):
        launcher_of(rope._rotate)(x, x, angles, angles, "model ", back)
"""


def test_rounded_products_are_not_fused_with_their_sum(printed, tmp_path):
    """LLVM makes products of bfloat16 of them, and fuses those unless it is told not to."""
    printed(COMPILE, tmp_path, 120)
    codes = [path.read_text() for path in (tmp_path / "cache").rglob("*.ptx")]
    assert len(codes) == 2 and all("mul.rn.bf16" in code and "fma.rn.bf16" not in code for code in codes)


@pytest.mark.gpu
def test_operands_beyond_32_bit_offsets_and_grids():
    n = (1 << 31) // 128 + 3  # tokens
    for shape in ((1, 1, n, 128), (n // 16, 1, 1, 2048), (70_000, 1, 1, 64)):
        places = torch.arange(shape[-1], device=DEVICE)
        cos, sin = (t.bfloat16().expand(1, *shape[2:]) for t in (places.cos(), places.sin()))
        q = places.tan().bfloat16().expand(shape).clone()
        part = rope(*[q[:1, :, :1].clone()] * 2, cos[:, :1], sin[:, :1])[0]
        for y in rope(q, q[..., :1, :].expand(shape), cos, sin):
            assert torch.equal(y, part.expand(shape))


def test_angles_that_need_a_gradient_are_refused():
    q, k, cos, sin = operands(torch.float32, torch.float32)
    for angles in ((cos.clone().requires_grad_(), sin), (cos, sin.clone().requires_grad_())):
        with pytest.raises(ValueError, match="rope: cos and sin get no gradient; pass cos.detach"):
            rope(q, k, *angles)
        with torch.no_grad():
            assert same(rope(q, k, *angles), rope(q, k, cos, sin))
