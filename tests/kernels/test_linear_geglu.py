"""kernels/linear_geglu.py against exact dot products (Fraction) and the exact GELU (mpmath)."""

from __future__ import annotations

import math

import mpmath as mp
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import verify
from kernels import linear_geglu as module
from kernels.linear_act import linear_act
from kernels.linear_geglu import linear_geglu
from tests.kernels import test_linear_act
from tests.kernels.test_linear_act import DTYPES, FORMAT, OWN, exact_act, exact_sums, ulp

FORMS = ["none", "tanh"]


def exact_gelu(a, approximate):
    return exact_act(a, "gelu" if approximate == "none" else "gelu_tanh")


def worst_ratio(y, x, weight, bias, approximate):
    """The largest error of y over the a-priori bound: K u |x| |w| of both sums, and one rounding."""
    mp.mp.prec = 300
    u = mp.ldexp(1, -FORMAT[y.dtype][1])
    worst = mp.mpf(0)
    half = len(weight) // 2
    for sums, got_row in zip(exact_sums(x, weight, bias, u), y.double().tolist(), strict=True):
        for (p1, r1), (p2, r2), got in zip(sums[:half], sums[half:], got_row, strict=True):
            gate = exact_gelu(p2, approximate)
            truth = p1 * gate
            bound = r1 * abs(gate) + (abs(p1) + r1) * mp.mpf("1.14") * r2
            bound += (mp.mpf("0.5") + OWN[y.dtype]) * ulp(truth, y.dtype) + 2 * u * abs(truth)
            worst = max(worst, mp.inf if math.isnan(got) else abs(mp.mpf(got) - truth) / bound)
    return float(worst)


def tensors(dtype, m=6, k=37, d=9, seed=0, device="cpu"):
    return [t.to(device) for t in test_linear_act.tensors(dtype, m, k, 2 * d, seed)]


def leaves_of(*arguments, **options):
    return [t.requires_grad_() for t in tensors(*arguments, **options)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("approximate", FORMS)
@pytest.mark.parametrize("with_bias", [False, True])
def test_within_the_a_priori_bound(backend, dtype, approximate, with_bias):
    x, weight, bias = tensors(dtype)
    bias = bias if with_bias else None
    on = [None if t is None else t.to(backend.device) for t in (x, weight, bias)]
    y = linear_geglu(*on, approximate=approximate).cpu()
    assert worst_ratio(y, x, weight, bias, approximate) <= 1.0


@pytest.mark.parametrize(("m", "k", "d"), [(1, 1, 1), (3, 1, 1), (1, 5, 1), (1, 1, 3), (3, 5, 1)])
def test_extents_of_one(backend, m, k, d):
    """Triton compiles an int argument of 1 as a number without methods; N is d, and each stride may be 1."""
    x, w, b = tensors(torch.float32, m, k, d, device=backend.device)
    leaves = [t.requires_grad_() for t in (x, w, b)]
    y = linear_geglu(*leaves)
    assert worst_ratio(y.detach(), x.detach(), w.detach(), b.detach(), "none") <= 1.0
    wide = [t.detach().double().requires_grad_() for t in leaves]
    p = F.linear(*wide)
    want = torch.autograd.grad((p[:, :d] * F.gelu(p[:, d:])).sum(), wide)
    for got, exact in zip(torch.autograd.grad(y.sum(), leaves), want, strict=True):
        torch.testing.assert_close(got.double(), exact, rtol=1e-5, atol=1e-6)


def test_the_bound_rejects_swapped_halves_a_lost_bias_and_an_early_rounding():
    x, weight, bias = tensors(torch.bfloat16)
    p1, p2 = (x.double() @ weight.double().t() + bias.double()).chunk(2, -1)
    right = (p1 * F.gelu(p2, approximate="tanh")).bfloat16()
    assert worst_ratio(right, x, weight, bias, "tanh") <= 1.0
    swapped = (p2 * F.gelu(p1, approximate="tanh")).bfloat16()
    assert worst_ratio(swapped, x, weight, bias, "tanh") > 1.0
    assert worst_ratio(right, x, weight, None, "tanh") > 1.0
    rounded = p1.bfloat16().double() * F.gelu(p2.bfloat16().double(), approximate="tanh")
    assert worst_ratio(rounded.bfloat16(), x, weight, bias, "tanh") > 1.0


def layer_of(p, device):
    """x and weight whose products are these p, exactly; K = 192 is what the kernel for Hopper takes."""
    x, weight = torch.zeros(1, 192, dtype=p.dtype), torch.zeros(len(p), 192, dtype=p.dtype)
    x[:, 0], weight[:, 0] = 1.0, p
    return x.to(device), weight.to(device)


# powers of two of the first half, and a range of the gate: at its end their product is a number, or just not
TAILS = [((-5, 5), (-5.0, -13.9)), ((20, 60), (-9.0, -16.5)), ((90, 127.9), (-12.0, -18.9))]


def halves_of(size, span, approximate, count=296):
    generator = torch.Generator().manual_seed(5)
    low, high = size
    p1 = torch.exp2(torch.rand(count, generator=generator, dtype=torch.float64) * (high - low) + low)
    p1 *= torch.randint(0, 2, (count,), generator=generator) * 2 - 1
    end = max(span[1], -13.2) if approximate == "tanh" else span[1]
    p2 = torch.linspace(span[0], end, count, dtype=torch.float64)
    p2[-2:] = torch.tensor([-40.0, -1000.0])
    return p1.bfloat16(), p2.bfloat16()


@pytest.mark.parametrize("approximate", FORMS)
@pytest.mark.parametrize(("size", "span"), TAILS, ids=str)
def test_a_large_half_lifts_the_tail_of_the_gate(backend, size, span, approximate):
    """p1 gelu(p2) is a normal number where gelu(p2) is below float32: it was lost from p2 = -13.7 on."""
    p = torch.cat(halves_of(size, span, approximate))
    x, weight = layer_of(p, backend.device)
    y = linear_geglu(x, weight, approximate=approximate).cpu()
    form = {"approximate": approximate}
    verify.assert_ulp(y[0], op="geglu", inputs=(p,), params=form, max_ulp=0.5 + OWN[torch.bfloat16])
    activation = {"activation": "geglu_tanh" if approximate == "tanh" else "geglu"}
    verify.assert_ulp(y, op="linear", inputs=(x.cpu(), weight.cpu()), params=activation, max_ulp=0.51)


def test_the_gate_that_a_hunt_found_flushed(backend):
    """gelu(-13.5914) is 2.9e-41, and 4029.5 times that -1.2e-37: y was 0, 1.31 units of the scale off."""
    x = torch.ones(1, 2, dtype=torch.bfloat16)
    weight = torch.tensor([[4016.0, 13.5], [-13.5625, -0.02893]]).bfloat16()
    y = linear_geglu(x.to(backend.device), weight.to(backend.device)).cpu()
    verify.assert_ulp(y, op="linear", inputs=(x, weight), params={"activation": "geglu"}, max_ulp=0.01)


@pytest.mark.parametrize("approximate", FORMS)
@pytest.mark.parametrize(("size", "span"), TAILS, ids=str)
@pytest.mark.parametrize("other", [-100, -30, 0, 60])
def test_large_factors_lift_the_tails_in_the_gradients(backend, size, span, other, approximate):
    """dy gelu(p2) and dy p1 gelu'(p2), where a factor or dy p1 is beyond float32 and the result is not."""
    dy, p2 = halves_of(size, span, approximate)
    p1 = torch.exp2(torch.linspace(other - 8, other + 8, len(dy), dtype=torch.float64)).bfloat16()
    p = torch.cat((p1, p2))
    dp, _ = module._gradient(dy[None].to(backend.device), p[None].to(backend.device), approximate, False)
    problem = {"op": "geglu", "inputs": (p,), "params": {"approximate": approximate}, "result": "dx", "upstream": (dy,)}
    verify.assert_ulp(dp[0].cpu(), max_ulp=0.5 + OWN[torch.bfloat16], **problem)


@pytest.mark.parametrize("approximate", FORMS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_infinite_halves(backend, dtype, approximate):
    inf = math.inf
    p1 = torch.tensor([inf, 1.0, inf, 1.0, math.nan, inf, -1.0], dtype=dtype)
    p2 = torch.tensor([-inf, -inf, 2.0, inf, 1.0, inf, inf], dtype=dtype)
    weight = torch.cat((p1, p2))[:, None].to(backend.device)
    y = linear_geglu(torch.ones_like(weight[:1]), weight, approximate=approximate)[0].float().cpu()
    expected = torch.tensor([math.nan, 0.0, inf, inf, math.nan, inf, -inf])
    torch.testing.assert_close(y, expected, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_more_accurate_than_a_product_and_torchs_geglu(backend, dtype):
    x, weight, _ = tensors(dtype, m=24, d=40, seed=1)
    p1, p2 = (x.double() @ weight.double().t()).chunk(2, -1)
    truth = p1 * F.gelu(p2)
    q1, q2 = (x @ weight.t()).chunk(2, -1)
    ours = linear_geglu(x.to(backend.device), weight.to(backend.device)).cpu()
    error, reference = ((t.double() - truth).square().mean().sqrt() for t in (ours, q1 * F.gelu(q2)))
    assert error <= 0.7 * reference


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_kernel_and_configuration_gives_the_same_bits(dtype, monkeypatch):
    x, weight, bias = tensors(dtype, m=300, k=456, d=264, device="cuda")
    y, pre = module._linear_geglu(x, weight, bias, "none", True, False)
    assert torch.equal(pre, linear_act(x, weight, bias))
    stepped = x.repeat_interleave(2, 1)[:, ::2]  # no copy engine
    for config in module._configs(dtype, False):
        monkeypatch.setattr(module, "_configs", lambda *_, config=config: [config])
        again = module._linear_geglu(stepped, weight, bias, "none", True, False)
        assert torch.equal(again[0], y), config
        assert torch.equal(again[1], pre), config


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("approximate", FORMS)
def test_gradients_against_the_formula(backend, dtype, approximate):
    leaves = leaves_of(dtype, m=70, k=20, d=9, device=backend.device)
    y = linear_geglu(*leaves, approximate=approximate)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(3)).to(dtype)
    got = torch.autograd.grad(y, leaves, dy.to(backend.device))

    x, weight, bias = (t.detach().cpu().double() for t in leaves)
    p = x @ weight.t() + bias
    narrow = dtype in (torch.float16, torch.bfloat16)
    if narrow:
        p = p.to(dtype).double()  # the backward pass reads the rounded pre-activation
    p.requires_grad_()
    p1, p2 = p.chunk(2, -1)
    gate = p2 * torch.special.erfc(-p2 / 2**0.5) / 2 if approximate == "none" else None
    gate = F.gelu(p2, approximate="tanh") if gate is None else gate
    (dp,) = torch.autograd.grad(p1 * gate, p, dy.double())
    unit = 2.0 ** -FORMAT[dtype][0]
    # dp is rounded once before the products. In wide formats the sums' own errors, carried through the
    # derivatives of dp (at most 2 |dy| (1 + |p|)), are of that order too
    size = dp.abs()
    if not narrow:
        reach = (x.abs() @ weight.abs().t()).chunk(2, -1)
        other = 2 * dy.double().abs() * (1 + p1.detach().abs()) * (reach[0] + reach[1])
        size = size + torch.cat((other, other), -1)
    for name, result, truth, scale in (
        ("dx", got[0], dp @ weight, size @ weight.abs()),
        ("dweight", got[1], dp.t() @ x, size.t() @ x.abs()),
        ("dbias", got[2], dp.sum(0), size.sum(0)),
    ):
        ratio = ((result.cpu().double() - truth).abs() / (unit * scale)).max()
        assert ratio <= 4, (name, ratio)


@pytest.mark.parametrize("approximate", FORMS)
def test_saved_and_recomputed_pre_activation_give_the_same_gradients(backend, approximate):
    leaves = leaves_of(torch.bfloat16, device=backend.device)
    results = []
    for recompute in (True, False):
        y = linear_geglu(*leaves, approximate=approximate, recompute=recompute)
        results.append((y, *torch.autograd.grad(y, leaves, torch.ones_like(y))))
    assert all(torch.equal(p, q) for p, q in zip(*results, strict=True))


def test_nothing_is_saved_where_no_gradient_is_wanted(backend, saved):
    leaves = leaves_of(torch.float32, device=backend.device)
    linear_geglu(*leaves)
    with torch.no_grad():
        linear_geglu(*leaves)
    linear_geglu(*(t.detach() for t in leaves))
    linear_geglu(*leaves, recompute=True)
    assert saved == [True, False, False, False]


@pytest.mark.parametrize("approximate", FORMS)
def test_gradcheck_and_gradgradcheck(backend, approximate):
    leaves = leaves_of(torch.float64, 2, 3, 2, seed=2, device=backend.device)
    for recompute in (True, False):

        def run(x, weight, bias, recompute=recompute):
            return linear_geglu(x, weight, bias, approximate=approximate, recompute=recompute)

        assert torch.autograd.gradcheck(run, leaves, fast_mode=True)
        if not recompute or approximate == "none":
            assert torch.autograd.gradgradcheck(run, leaves, fast_mode=True)


def test_operators_are_registered_correctly(backend):
    x, weight, bias = leaves = leaves_of(torch.float32, 3, 4, 5, device=backend.device)
    for save_pre in (False, True):
        torch.library.opcheck(module._linear_geglu.registered, (*leaves, "none", save_pre, False))
    dy, pre = torch.ones(3, 5, device=backend.device), torch.ones(3, 10, device=backend.device)
    arguments = (dy, x, weight, bias, None, "tanh", True, True, True, False)
    torch.library.opcheck(module._backward.registered, arguments, test_utils=("test_schema", "test_faketensor"))
    torch.library.opcheck(module._gradient.registered, (dy.requires_grad_(), pre.requires_grad_(), "tanh", True))


@pytest.mark.parametrize(("m", "k", "d"), [(0, 4, 5), (3, 0, 5), (3, 4, 0)])
def test_empty(backend, m, k, d):
    x, weight = torch.ones(m, k, device=backend.device), torch.ones(2 * d, k, device=backend.device)
    bias = torch.linspace(-2, 2, 2 * d, device=backend.device)
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    y = linear_geglu(*leaves)
    assert y.shape == (m, d)
    if k == 0:
        first, second = bias.detach().double().chunk(2)
        torch.testing.assert_close(y.double(), (first * F.gelu(second)).expand(m, d), rtol=1e-6, atol=0)
    grads = torch.autograd.grad(y.sum(), leaves)
    assert [g.shape for g in grads] == [x.shape, weight.shape, bias.shape]
    if m == 0:
        assert not any(g.any() for g in grads)
