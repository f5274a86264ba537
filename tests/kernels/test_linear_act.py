"""kernels/linear_act.py: its activations, what it saves, and its gradient of data; test_linear.py has the layer."""

from __future__ import annotations

import math
from functools import partial

import mpmath as mp
import pytest
import torch

import verify
from kernels import linear_act as module
from kernels import linear_tiles
from kernels.linear_act import linear_act, linear_data_grad
from kernels.linear_geglu import linear_geglu
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("linear", "n"),
    [(partial(linear_act, activation="gelu"), 66), (linear_geglu, 132)],
    ids=["gelu", "geglu"],
)
def test_rows_and_tiles_do_not_change_a_bit(backend, dtype, linear, n, monkeypatch):
    x, weight, bias = (t.to(backend.device) for t in tensors(dtype, m=70, k=50, n=n))
    y = linear(x, weight, bias)
    assert torch.equal(linear(x[3], weight, bias), y[3])
    assert torch.equal(linear(x.view(7, 2, 5, 50), weight, bias).view(70, 66), y)
    assert torch.equal(linear(x[:1].expand(4, 50), weight, bias), y[:1].expand(4, 66))
    if backend.name == "interpreter":
        for config in ((64, 128, 16, 4, 1), (128, 64, 64, 4, 1)):
            monkeypatch.setattr(linear_tiles, "_configs", lambda *_, config=config: [config])
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
    gelu = partial(torch.nn.functional.gelu, approximate="tanh" if activation == "gelu_tanh" else "none")
    of_gelu = {"like": gelu, "inputs": (pre,), "upstream": dy, "max_ulp": 0.5 + OWN[dtype]}
    verify.assert_close(None, grads=g[0].cpu(), **of_gelu)
    # the same as a product's epilogue: K = 1 and a weight of 1 leave dy
    one = torch.ones(1, 300, dtype=dtype, device=backend.device)
    rows = dy[:, None].to(backend.device)
    column = linear_data_grad(rows, one[:, :1], pre[:, None].to(backend.device), activation)
    verify.assert_close(None, grads=column[:, 0].cpu(), **of_gelu)


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
