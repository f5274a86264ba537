"""kernels/linear_geglu.py: tails, infinite halves and extents of one; test_linear.py has the layer."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import verify
from kernels import linear_act as module
from kernels.linear_geglu import linear_geglu
from tests.kernels.test_linear import OWN, leaves_of, worst_ratio

FORMS = ["none", "tanh"]


@pytest.mark.parametrize(("m", "k", "d"), [(1, 1, 1), (3, 1, 1), (1, 5, 1), (1, 1, 3), (3, 5, 1)])
def test_extents_of_one(backend, m, k, d):
    """Triton compiles an int argument of 1 as a number without methods; N is d, and each stride may be 1."""
    leaves = leaves_of("gated_gelu", torch.float32, backend.device, m, k, d)
    y = linear_geglu(*leaves)
    assert worst_ratio(y.detach(), *(t.detach() for t in leaves), "gated_gelu") <= 1.0
    wide = [t.detach().double().requires_grad_() for t in leaves]
    p = F.linear(*wide)
    want = torch.autograd.grad((p[:, :d] * F.gelu(p[:, d:])).sum(), wide)
    for got, exact in zip(torch.autograd.grad(y.sum(), leaves), want, strict=True):
        torch.testing.assert_close(got.double(), exact, rtol=1e-5, atol=1e-6)


def gated(p, approximate="none"):
    first, second = p.chunk(2, -1)
    return first * F.gelu(second, approximate=approximate)


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
    gate = partial(gated, approximate=approximate)
    verify.assert_close(y[0], like=gate, inputs=(p,), max_ulp=0.5 + OWN[torch.bfloat16])


def test_the_gate_that_a_hunt_found_flushed(backend):
    """gelu(-13.5914) is 2.9e-41, and 4029.5 times that -1.2e-37: y was 0, 1.31 units of the scale off."""
    x = torch.ones(1, 2, dtype=torch.bfloat16)
    weight = torch.tensor([[4016.0, 13.5], [-13.5625, -0.02893]]).bfloat16()
    y = linear_geglu(x.to(backend.device), weight.to(backend.device)).cpu()
    p = x.float() @ weight.float().T  # both sums are numbers of float32
    verify.assert_close(y, like=gated, inputs=(p,), max_ulp=0.5 + OWN[torch.bfloat16], check_dtype=False)


@pytest.mark.parametrize("approximate", FORMS)
@pytest.mark.parametrize(("size", "span"), TAILS, ids=str)
@pytest.mark.parametrize("other", [-100, -30, 0, 60])
def test_large_factors_lift_the_tails_in_the_gradients(backend, size, span, other, approximate):
    """dy gelu(p2) and dy p1 gelu'(p2), where a factor or dy p1 is beyond float32 and the result is not."""
    dy, p2 = halves_of(size, span, approximate)
    p1 = torch.exp2(torch.linspace(other - 8, other + 8, len(dy), dtype=torch.float64)).bfloat16()
    p = torch.cat((p1, p2))
    upstream, how = dy[None].to(backend.device), f"geglu_{approximate}"
    dp, _ = module._gradient(upstream, p[None].to(backend.device), how, True, False)
    gate, most = partial(gated, approximate=approximate), 0.5 + OWN[torch.bfloat16]
    verify.assert_close(None, like=gate, inputs=(p,), grads=dp[0].cpu(), upstream=dy, max_ulp=most)


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
