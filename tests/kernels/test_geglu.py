"""kernels/geglu.py against Arb: pairs over the whole range, both gradients, packing, layouts, contract."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from flint import arb, ctx

from kernels.geglu import geglu_split
from kernels.swiglu import swiglu_split
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


def count_lifted(split, curve, operands, device, promised=lambda result, x2: True) -> int:
    """Holds y and both gradients against their bound, where the format has the result and one is `promised`.

    operands: dy, x1, x2. Returns how many normal results come from a gate or a product of factors that are none.
    """
    dy, x1, x2 = operands
    a, b = (t.to(device).requires_grad_() for t in (x1, x2))
    y = split(a, b)
    ends, count = torch.finfo(x2.dtype), 0
    results = [y, *torch.autograd.grad(y, (a, b), dy.to(device))]
    for g, m, v, *got in zip(*(t.tolist() for t in (dy, x1, x2, *results)), strict=True):
        value, slope = curve(v)
        m, g = arb(m), arb(g)
        for name, number, truth in zip(("y", "dx1", "dx2"), got, (m * value, g * value, g * m * slope), strict=True):
            if abs(truth) < ends.max and promised(name, v):
                assert ulps(number, truth, x2.dtype) <= LIMIT[x2.dtype], (name, g, m, v)
                count += abs(truth) > ends.tiny and (abs(value) < ends.tiny or abs(g * m) > ends.max)
    return count


def curve_of(form):
    return lambda x: [exact(x, form, slope) for slope in (False, True)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", FORMAT, ids=str)
def test_forward_and_both_gradients_stay_inside_their_bound(backend, dtype, form):
    count_lifted(partial(geglu_split, approximate=form), curve_of(form), pairs(dtype, 350, form), backend.device)


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
    operands = [torch.from_numpy(v).to(dtype) for v in (dy, x1, deep)]
    split = partial(geglu_split, approximate=form)
    assert count_lifted(split, curve_of(form), operands, backend.device, lambda result, x2: result == "dx2") >= 5


GATES = {form: partial(geglu_split, approximate=form) for form in FORMS} | {"silu": swiglu_split}


def bfloat16_slopes(gate, device, dy, x1, x2) -> torch.Tensor:
    """Returns dx2 of these numbers."""
    dy, x1, x2 = (torch.as_tensor(v, dtype=torch.bfloat16, device=device) for v in (dy, x1, x2))
    x2.requires_grad_()
    (dx2,) = torch.autograd.grad(gate(x1, x2), x2, dy)
    return dx2


@pytest.mark.parametrize("gate", GATES.values(), ids=GATES)
def test_twice_the_upstream_gradient_is_twice_the_gradient_of_bfloat16(backend, gate):
    """dx2 once depended on which of dy and x1 is larger, and on which of them is above 1."""
    draw = np.random.default_rng(3)
    n = 2**19
    dy, x1 = (draw.choice([-1, 1], n) * 2.0 ** draw.uniform(-3, 3, n) for _ in range(2))
    dy[n // 2 :], x1[n // 2 :] = 2.0 ** draw.uniform(-2, 60, (2, n // 2))
    x2 = np.concatenate([draw.normal(size=n // 2) * 2, draw.uniform(-6, 4, n // 2)])
    once, twice = (bfloat16_slopes(gate, backend.device, times * dy, x1, x2) for times in (1, 2))
    assert (once.abs() > 2.0**-100).all()
    assert torch.equal(twice, once * 2)


@pytest.mark.parametrize("gate", GATES.values(), ids=GATES)
def test_an_infinite_factor_of_bfloat16_keeps_its_sign_at_every_slope(backend, gate):
    """inf times a slope below the format was NaN once, if the other factor was above 1."""
    x2 = [-3e38, -256.0, -32.0, -3.0, -0.25, 0.0, 3.0, 3e38]
    signs = [-1.0] * 4 + [1.0] * 4
    for dy, x1 in [(1.25, math.inf), (math.inf, 1.25), (2.0**-130, -math.inf), (-math.inf, 3e38), (math.inf, math.inf)]:
        got = bfloat16_slopes(gate, backend.device, [dy] * 8, [x1] * 8, x2)
        assert got.tolist() == [dy * x1 * sign for sign in signs], (dy, x1)


@pytest.mark.parametrize(("form", "deepest"), [("none", -54.0), ("tanh", -27.2)])
def test_float64_factors_beyond_the_format_are_brought_back(backend, form, deepest):
    """gelu(x2) and its slope down to 2^-2100, dy x1 up to 2^2047: only the product has to be a float64."""
    draw = np.random.default_rng(5)
    n = 200
    x2 = torch.from_numpy(draw.uniform(deepest, deepest / 1.6, n))
    dy = torch.from_numpy(draw.uniform(1, 2, n) * 2.0 ** draw.uniform(0, 1023, n))
    x1 = torch.from_numpy(2.0 ** draw.uniform(-60, 1023, n))
    split = partial(geglu_split, approximate=form)
    assert count_lifted(split, curve_of(form), (dy, x1, x2), backend.device) > 100


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
