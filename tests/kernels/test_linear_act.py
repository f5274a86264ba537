"""kernels/linear_act.py: its activations, what it saves, and its gradient of data; test_linear.py has the layer."""

from __future__ import annotations

import math
from functools import partial

import mpmath as mp
import pytest
import torch

import verify
from kernels import gelu_of_sums
from kernels import linear_act as module
from kernels import linear_geglu as geglu_module
from kernels.linear_act import linear_act, linear_data_grad
from tests.kernels.test_linear import ACTIVATIONS, DTYPES, FORMAT, OWN, exact_act, tensors, ulp


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_the_activation_of_16_bit_inputs(backend, dtype, activation):
    """K = 1 and a weight of 1 leave the activation alone: one in 32 of all finite inputs, and the edges."""
    mp.mp.prec = 300
    bits = torch.arange(-(1 << 15), 1 << 15, 32, dtype=torch.int32).to(torch.int16)
    x = bits.view(dtype)
    edges = torch.tensor([-5.9, -5.5, -13.7, -0.751, 0.0, 1e-7, -1e-7, 5.9, 13.7, 300.0, -300.0], dtype=dtype)
    x = torch.cat((x[x.isfinite()], edges))
    one = torch.ones(1, 1, dtype=dtype, device=backend.device)
    y = linear_act(x.to(backend.device)[:, None], one, activation=activation).cpu().flatten()
    worst = mp.mpf(0)
    for v, got in zip(x.tolist(), y.tolist(), strict=True):
        truth = exact_act(v, activation)
        worst = max(worst, abs(mp.mpf(got) - truth) / ulp(truth, dtype))
    assert not math.isnan(float(worst))
    assert worst <= 0.5 + OWN[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_infinities_and_nan(backend, dtype, activation):
    x = torch.tensor([math.inf, -math.inf, math.nan], dtype=dtype, device=backend.device)[:, None]
    y = linear_act(x, torch.ones_like(x[:1]), activation=activation).flatten().tolist()
    assert y[0] == math.inf
    assert y[1] == (-math.inf if activation == "id" else 0.0)
    assert math.isnan(y[2])


def minimax(f, top, powers):
    """The sum of these powers nearest to f on [0, top], lowest first, by Remez's exchange; and its error."""
    mp.mp.dps = 30
    count = len(powers)
    grid = [mp.mpf(top) * (1 - mp.cos(mp.pi * i / 400)) / 2 for i in range(401)]
    if powers[0] > 0:
        grid = grid[1:]  # no error at 0 to balance
    values = [f(u) for u in grid]
    points = [grid[round(i * (len(grid) - 1) / count)] for i in range(count + 1)]
    for _ in range(20):
        system = mp.matrix(count + 1, count + 1)
        right = mp.matrix(count + 1, 1)
        for i, u in enumerate(points):
            for j, power in enumerate(powers):
                system[i, j] = u**power
            system[i, count] = (-1) ** i
            right[i] = f(u)
        solved = mp.lu_solve(system, right)
        errors = [sum(solved[j] * u**p for j, p in enumerate(powers)) - v for u, v in zip(grid, values, strict=True)]
        turns: list[int] = []
        for i, e in enumerate(errors):
            if turns and (e > 0) == (errors[turns[-1]] > 0):
                if abs(e) > abs(errors[turns[-1]]):
                    turns[-1] = i
            else:
                turns.append(i)
        assert len(turns) == count + 1
        if [grid[i] for i in turns] == points:
            break
        points = [grid[i] for i in turns]
    return [float(solved[j]) for j in range(count)], float(max(abs(e) for e in errors))


def log2_tail(u):
    """log2 Phi(-u)"""
    return mp.log(mp.erfc(u / mp.sqrt(2)) / 2, 2)


def log2_value(u):
    """log2 -gelu(-u)"""
    return mp.log(u, 2) + log2_tail(u)


def log2_slope(u):
    """log2 -gelu'(-u)"""
    return mp.log(u * mp.npdf(u) - mp.erfc(u / mp.sqrt(2)) / 2, 2)


@pytest.mark.parametrize(("name", "cap", "relative"), [("FP16", 5.9, 2.0**-18.2), ("BF16", 13.7, 2.0**-12.6)])
def test_the_tail_polynomials_are_the_minimax_ones(name, cap, relative):
    committed = list(getattr(gelu_of_sums, f"TAIL_{name}").value)
    assert getattr(gelu_of_sums, f"CAP_{name}").value == cap
    coefficients, error = minimax(lambda u: 12 + log2_tail(u), cap, range(len(committed)))
    assert committed == pytest.approx(coefficients, rel=1e-9)
    assert error * math.log(2) <= relative


@pytest.mark.parametrize(
    ("name", "function", "cap", "end", "relative"),
    [
        ("FAR_BF16", log2_value, "13.7", "19.5", 2.0**-15.2),
        ("FAR_SLOPE_BF16", log2_slope, "13.7", "19.5", 2.0**-18.4),
        ("FAR_SLOPE_FP16", log2_slope, "5.9", "9.4", 2.0**-16),
    ],
)
def test_past_the_caps_the_polynomials_are_the_minimax_ones(name, function, cap, end, relative):
    mp.mp.dps = 30
    committed = list(getattr(gelu_of_sums, name).value)
    cap, end = mp.mpf(cap), mp.mpf(end)
    coefficients, error = minimax(lambda t: function(cap + t) - function(cap), end - cap, range(1, len(committed) + 1))
    assert committed == pytest.approx(coefficients, rel=1e-9)
    assert error * math.log(2) <= relative
    assert committed[-1] < 0


def test_the_other_constants():
    mp.mp.dps = 40
    a = 2 * mp.sqrt(2 / mp.pi)
    expected = {
        "RSQRT2": 1 / mp.sqrt(2),
        "RSQRT_2PI": 1 / mp.sqrt(2 * mp.pi),
        "HALF_LOG2E": 1 / mp.log(2) / 2,
        "LOG2_RSQRT_2PI": -mp.log(2 * mp.pi, 2) / 2,
        "TANH_A": a,
        "TANH_B": a * mp.mpf("0.044715"),
        "TANH_A_LOG2E": a / mp.log(2),
        "TANH_B_LOG2E": a * mp.mpf("0.044715") / mp.log(2),
    }
    assert {name: getattr(gelu_of_sums, name).value for name in expected} == {
        name: float(value) for name, value in expected.items()
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("launcher", "linear", "n"),
    [(module, partial(linear_act, activation="gelu"), 66), (geglu_module, geglu_module.linear_geglu, 132)],
    ids=["gelu", "geglu"],
)
def test_strides_rows_and_tiles_do_not_change_a_bit(backend, dtype, launcher, linear, n, monkeypatch):
    x, weight, bias = (t.to(backend.device) for t in tensors(dtype, m=70, k=50, n=n))
    y = linear(x, weight, bias)
    views = {
        "x transposed": (x.t().contiguous().t(), weight, bias),
        "weight transposed": (x, weight.t().contiguous().t(), bias),
        "padded": (torch.cat((x, x), 1)[:, :50], torch.cat((weight, weight), 1)[:, :50], bias),
        "stepped": (x.repeat_interleave(2, 1)[:, ::2], weight.repeat_interleave(3, 0)[::3], bias),
        "bias stepped": (x, weight, bias.repeat_interleave(2)[::2]),
    }
    for name, arguments in views.items():
        assert torch.equal(linear(*arguments), y), name
    assert torch.equal(linear(x[3], weight, bias), y[3])
    assert torch.equal(linear(x.view(7, 2, 5, 50), weight, bias).view(70, 66), y)
    assert torch.equal(linear(x[:1].expand(4, 50), weight, bias), y[:1].expand(4, 66))
    if backend.name == "interpreter":
        for config in ((64, 128, 16, 4, 1), (128, 64, 64, 4, 1)):
            monkeypatch.setattr(launcher, "_configs", lambda *_, config=config: [config])
            assert torch.equal(linear(x, weight, bias), y), config


def test_gradient_through_the_saved_pre_activation(backend):
    arguments = [t.detach().to(backend.device).requires_grad_() for t in tensors(torch.float64)]
    y, pre = linear_act(*arguments, activation="gelu", return_pre=True)
    assert torch.equal(pre, linear_act(*arguments))
    both = torch.autograd.grad((y * 2).sum() + (pre * 3).sum(), arguments, retain_graph=True)
    one = torch.autograd.grad((y * 2).sum(), arguments, retain_graph=True)
    two = torch.autograd.grad((pre * 3).sum(), arguments)
    for total, first, second in zip(both, one, two, strict=True):
        torch.testing.assert_close(total, first + second, rtol=1e-13, atol=1e-13)


# dtype, powers of two of dy, and a range of the pre-activation: at its end the result is a number of the dtype, or
# just not
TAILS = [
    (torch.bfloat16, (-5, 5), (-5.0, -13.9)),
    (torch.bfloat16, (20, 60), (-9.0, -16.5)),
    (torch.bfloat16, (90, 127.9), (-12.0, -18.9)),
    (torch.float16, (-5, 5), (-2.0, -6.5)),
    (torch.float16, (8, 15.9), (-3.0, -8.0)),
]


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
@pytest.mark.parametrize(("dtype", "size", "span"), TAILS, ids=str)
def test_a_large_upstream_gradient_lifts_the_tail_of_the_slope(backend, dtype, size, span, activation):
    """dy gelu'(x) is a number where gelu'(x) is none: once -1.7e-2 for dy = 2^126 at every x below -13.7."""
    generator = torch.Generator().manual_seed(5)
    low, high = size
    dy = torch.exp2(torch.rand(300, generator=generator, dtype=torch.float64) * (high - low) + low).to(dtype)
    end = max(span[1], -13.2) if activation == "gelu_tanh" else span[1]
    pre = torch.cat((torch.linspace(span[0], end, 298), torch.tensor([-40.0, -1000.0]))).to(dtype)
    g, _ = module._gradient(dy[None].to(backend.device), pre[None].to(backend.device), activation, True, False)
    form = {"approximate": "tanh" if activation == "gelu_tanh" else "none"}
    of_gelu = {"op": "gelu", "inputs": (pre,), "params": form, "result": "dx", "upstream": (dy,)}
    verify.assert_ulp(g[0].cpu(), max_ulp=0.5 + OWN[dtype], **of_gelu)
    # the same as a product's epilogue: K = 1 and a weight of 1 leave dy
    one = torch.ones(1, 300, dtype=dtype, device=backend.device)
    rows = dy[:, None].to(backend.device)
    column = linear_data_grad(rows, one[:, :1], pre[:, None].to(backend.device), activation)
    verify.assert_ulp(column[:, 0].cpu(), max_ulp=0.5 + OWN[dtype], **of_gelu)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_an_infinite_gradient_at_an_infinite_pre_activation(backend, dtype, activation):
    inf = math.inf
    dy = torch.tensor([[inf, inf, -inf, 1.0, 1.0, inf]], dtype=dtype, device=backend.device)
    pre = torch.tensor([[-inf, inf, inf, -inf, inf, math.nan]], dtype=dtype, device=backend.device)
    g, _ = module._gradient(dy, pre, activation, True, False)
    torch.testing.assert_close(
        g[0].float().cpu(), torch.tensor([math.nan, inf, -inf, 0.0, 1.0, math.nan]), equal_nan=True
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_data_gradient(backend, dtype, activation):
    """(dy @ W) * act'(pre) is what autograd makes of act followed by a linear layer."""
    dy, weight, _ = (t.to(backend.device) for t in tensors(dtype, m=5, k=7, n=9))
    weight = weight.t()  # [7, 9]: out, in
    pre = torch.linspace(-4, 4, 45).view(5, 9).to(dtype).to(backend.device)
    got = linear_data_grad(dy, weight, pre, activation)
    inner = pre.double().requires_grad_()
    eye = torch.eye(9, dtype=torch.float64, device=backend.device)
    outer = linear_act(inner, eye, activation=activation) @ weight.double().t()
    (truth,) = torch.autograd.grad(outer, inner, dy.double())
    unit = 2.0 ** -FORMAT[dtype][0]
    size = (dy.double().abs() @ weight.double().abs()).clamp(min=1e-3)
    slope_bound = 8.0 if activation == "squared_relu" else 1.2
    assert ((got.double() - truth).abs() <= 4 * unit * size * slope_bound).all()
    if dtype == torch.float64:
        leaves = [t.detach().requires_grad_() for t in (dy, weight, pre + 0.01)]

        def run(dy, weight, pre):
            return linear_data_grad(dy, weight, pre, activation)

        assert torch.autograd.gradcheck(run, leaves, fast_mode=True)
        once, again = (torch.autograd.grad(run(*leaves), leaves, pre, create_graph=how) for how in (False, True))
        torch.testing.assert_close(once, tuple(t.detach() for t in again), rtol=1e-13, atol=1e-13)
        assert not any(t.requires_grad for t in once) and all(t.requires_grad for t in again)
        if activation == "gelu":  # the others differ in act'' alone, which is checked above
            assert torch.autograd.gradgradcheck(run, leaves, fast_mode=True)
