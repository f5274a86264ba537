"""kernels/geglu.py against Arb: pairs over the whole range, both gradients, packing, layouts, contract."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from flint import arb, ctx

from kernels.geglu import geglu, geglu_split
from tests.kernels.test_gelu import FORMAT, FORMS, exact, ulps


@pytest.fixture(autouse=True)
def _precision():
    old, ctx.prec = ctx.prec, 900
    yield
    ctx.prec = old


def pairs(dtype: torch.dtype, n: int, form: str = "none") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dy, x1, x2: ordinary ones, and large x1 that lifts the deep tail of gelu back into range."""
    draw = np.random.default_rng(11)
    top = {torch.float16: 15.5, torch.bfloat16: 126.0, torch.float32: 126.0, torch.float64: 300.0}[dtype]
    # float64: as far as gelu itself is normal. The other types: until the lifted product underflows.
    deep = {"none": -37.0, "tanh": -20.5}[form] if dtype == torch.float64 else -19.7
    x2 = np.concatenate([draw.normal(size=n) * 2, draw.uniform(deep, 3, n)])
    x1 = np.concatenate([draw.normal(size=n), draw.uniform(-1, 1, n) * 2.0 ** draw.uniform(-9, top, n)])
    dy = np.concatenate([draw.normal(size=n), np.ones(n)])
    return tuple(torch.from_numpy(v).to(dtype) for v in (dy, x1, x2))


LIMIT = {torch.float16: 0.51, torch.bfloat16: 0.51, torch.float32: 0.85, torch.float64: 2.6}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", FORMAT, ids=str)
def test_forward_and_both_gradients_stay_inside_their_bound(backend, dtype, form):
    dy, x1, x2 = pairs(dtype, 350, form)
    a, b = (t.to(backend.device).requires_grad_() for t in (x1, x2))
    y = geglu_split(a, b, form)
    d1, d2 = torch.autograd.grad(y, (a, b), dy.to(backend.device))
    largest = torch.finfo(dtype).max
    for i, v in enumerate(x2.tolist()):
        value, slope = (exact(v, form, slope) for slope in (False, True))
        m, g = arb(x1[i].item()), arb(dy[i].item())
        for got, truth in ((y, m * value), (d1, g * value), (d2, g * m * slope)):
            if abs(truth) < largest:
                assert ulps(got[i].item(), truth, dtype) <= LIMIT[dtype], (g, m, v)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_dy_times_x1_beyond_the_format_is_brought_back_by_a_small_slope(backend, dtype, form):
    """dy x1 up to 2^256: the slope is needed down to 2^-406. At 2.6e38, -2.6e38, -25.25 bfloat16 once gave 1e-2."""
    draw = np.random.default_rng(17)
    n = 200
    deep = draw.uniform(-26, -8, n)
    dy = draw.choice([-1, 1], n) * 2.0 ** draw.uniform(-60, 127.9, n)
    x1 = 2.0 ** draw.uniform(-60, 127.9, n)
    deep[:4] = -25.25, -17.625, -13.5625, -10.625
    dy[:4] = 2.6e38, -3.0e38, 1.8e38, 1.4e38
    x1[:4] = -2.6e38, 3.3e38, 3.2e38, 4.3e37
    deep[4:9], dy[4:9] = np.linspace(-17, -9, 5), 3e38
    x1[4:9] = 2.0 ** np.array([-133, -100, -64, -32, -1])  # the smaller factor is tiny
    dy, x1, x2 = (torch.from_numpy(v).to(dtype) for v in (dy, x1, deep))
    a, b = (t.to(backend.device).requires_grad_() for t in (x1, x2))
    got = torch.autograd.grad(geglu_split(a, b, form), b, dy.to(backend.device))[0]
    lifted = 0
    for i, v in enumerate(x2.tolist()):
        truth = arb(dy[i].item()) * arb(x1[i].item()) * exact(v, form, slope=True)
        if abs(truth) < torch.finfo(dtype).max:
            assert ulps(got[i].item(), truth, dtype) <= LIMIT[dtype], (dy[i].item(), x1[i].item(), v)
            lifted += abs(truth) > torch.finfo(dtype).tiny and abs(dy[i].item() * x1[i].item()) > 2.0**128
    assert lifted >= 5  # results of ordinary size from products beyond the format


def gate(x: float, form: str) -> tuple[float, float]:
    """gelu(x) and gelu'(x) as `product` needs them: only x = +-0 and -inf give zeros, however deep the tail is."""
    if math.isnan(x) or x == 0 or x == math.inf:
        return x, (x if math.isnan(x) else 1.0)
    zero = {"none": -0.7518, "tanh": -0.7525}[form]  # between this and -0.75, no value of any format is tried
    return (-0.0, -0.0) if x == -math.inf else (math.copysign(1.0, x), math.copysign(1.0, x - zero))


@pytest.mark.parametrize(("form", "deepest"), [("none", -54.0), ("tanh", -27.2)])
def test_float64_factors_beyond_the_format_are_brought_back(backend, form, deepest):
    """gelu(x2) and its slope down to 2^-2100, dy x1 up to 2^2047: only the product has to be a float64."""
    draw = np.random.default_rng(5)
    n = 200
    x2 = torch.from_numpy(draw.uniform(deepest, deepest / 1.6, n))
    dy = torch.from_numpy(draw.uniform(1, 2, n) * 2.0 ** draw.uniform(0, 1023, n))
    x1 = torch.from_numpy(2.0 ** draw.uniform(-60, 1023, n))
    a, b = (t.to(backend.device).requires_grad_() for t in (x1, x2))
    y = geglu_split(a, b, form)
    d1, d2 = torch.autograd.grad(y, (a, b), dy.to(backend.device))
    least, largest = torch.finfo(torch.float64).tiny, torch.finfo(torch.float64).max
    lifted = 0
    for i, v in enumerate(x2.tolist()):
        value, slope = (exact(v, form, slope) for slope in (False, True))
        m, g = arb(x1[i].item()), arb(dy[i].item())
        for got, truth in ((y, m * value), (d1, g * value), (d2, g * m * slope)):
            if abs(truth) < largest:
                assert ulps(got[i].item(), truth, torch.float64) <= LIMIT[torch.float64], (g, m, v)
                lifted += abs(truth) > least and (abs(value) < least or g * m > largest)
    assert lifted > 100


@pytest.mark.parametrize("form", FORMS)
def test_float64_gives_nan_for_an_infinite_factor_at_minus_infinity(backend, form):
    x1 = torch.tensor([math.inf, 2.0, math.inf], dtype=torch.float64, device=backend.device, requires_grad=True)
    x2 = torch.full_like(x1, -math.inf).detach().requires_grad_()
    dy = torch.tensor([1.0, math.inf, -math.inf], dtype=torch.float64, device=backend.device)
    y = geglu_split(x1, x2, form)
    d1, d2 = torch.autograd.grad(y, (x1, x2), dy)
    assert y.isnan().tolist() == [True, False, True]
    assert d1.isnan().tolist() == [False, True, True]
    assert d2.isnan().all()


def test_the_bound_would_catch_a_product_rounded_twice():
    """x1 * bfloat16(gelu(x2)): the error that the fused product avoids is reported by the same check."""
    _, x1, x2 = pairs(torch.bfloat16, 100)
    worst = 0.0
    for m, v in zip(x1.tolist()[:100], x2.tolist()[:100], strict=True):
        value = exact(v, "none", slope=False)
        twice = torch.tensor(m, dtype=torch.bfloat16) * torch.tensor(float(value), dtype=torch.bfloat16)
        worst = max(worst, ulps(twice.item(), arb(m) * value, torch.bfloat16))
    assert worst > 0.6


def test_operators_are_registered_for_the_compiler(backend):
    ops = torch.ops.precise_geglu
    x = torch.randn(3, 8, device=backend.device, requires_grad=True)
    a = torch.randn(3, 4, device=backend.device, requires_grad=True)
    b = torch.randn(3, 4, device=backend.device, requires_grad=True)
    torch.library.opcheck(ops.packed, (x, "none", True))
    torch.library.opcheck(ops.packed_backward, (a, x, "tanh", False))
    torch.library.opcheck(ops.split, (a, b, "tanh"))
    torch.library.opcheck(ops.split_backward, (a, b, a, "none"))


def test_a_form_that_does_not_exist_is_refused(backend):
    with pytest.raises(ValueError, match=r'approximate must be "none" or "tanh", got \'erf\''):
        geglu(torch.ones(2, 2, device=backend.device), "erf")
