"""kernels/linear_act.py and linear_geglu.py against exact dot products (Fraction) and activations (mpmath)."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial

import mpmath as mp
import pytest
import torch

from kernels import linear_act as act_module
from kernels import linear_tiles
from kernels.linear_act import linear_act
from kernels.linear_geglu import linear_geglu

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
ACTIVATIONS = ["id", "gelu", "gelu_tanh", "squared_relu"]
# precision of the dtype, precision of its sums, exponent of its smallest subnormal
FORMAT = {
    torch.float64: (53, 53, -1074),
    torch.float32: (24, 24, -149),
    torch.float16: (11, 24, -24),
    torch.bfloat16: (8, 24, -133),
}
# largest error of the activation's own arithmetic beyond the rounding of the result, in ULP: measured on all
# float16 and bfloat16 inputs below; float32 is computed in float64; float64 is libdevice's erfc and exp (a few
# ULP, and the tail's condition, which the sum's own error bound has too)
OWN = {torch.float64: 6.0, torch.float32: 0.01, torch.float16: 0.02, torch.bfloat16: 0.12}


def exact_act(a, activation):
    a = mp.mpf(a.numerator) / a.denominator if isinstance(a, Fraction) else mp.mpf(a)
    if activation == "gelu":
        return a * mp.erfc(-a / mp.sqrt(2)) / 2
    if activation == "gelu_tanh":
        return a / (1 + mp.exp(-2 * mp.sqrt(2 / mp.pi) * (a + mp.mpf("0.044715") * a**3)))
    if activation == "squared_relu":
        return max(a, mp.mpf(0)) ** 2
    return a


def steepest(a, reach, activation):
    """A bound of |act'| within `reach` of a."""
    top = 2 * (max(a, 0) + reach)
    return {"id": 1, "gelu": mp.mpf("1.13"), "gelu_tanh": mp.mpf("1.14"), "squared_relu": top}[activation]


def ulp(value, dtype):
    precision, _, smallest = FORMAT[dtype]
    if value == 0:
        return mp.ldexp(1, smallest)
    return mp.ldexp(1, max(math.floor(mp.log(abs(value), 2)) - precision + 1, smallest))


def exact_sums(x, weight, bias, u):
    """For each row and output feature the exact sum, and how far roundings of the unit u move it: K u |x| |w|."""
    xs, ws = ([[Fraction(v) for v in row] for row in t.double().tolist()] for t in (x, weight))
    bs = [Fraction(0)] * len(ws) if bias is None else [Fraction(v) for v in bias.double().tolist()]

    def exact_sum(row, w, b):
        products = [p * q for p, q in zip(row, w, strict=True)]
        a, size = (
            mp.mpf(v.numerator) / v.denominator for v in (sum(products, b), sum(map(abs, products), Fraction(0)))
        )
        return a, len(row) * u * size + (u * abs(a) if bias is not None else 0)

    return [[exact_sum(row, w, b) for w, b in zip(ws, bs, strict=True)] for row in xs]


def tensors(dtype, m=6, k=37, n=9, seed=0, device="cpu"):
    """x, weight and bias."""
    generator = torch.Generator().manual_seed(seed)
    scale = (1.0, 2.0 / math.sqrt(k), 1.0)
    made = [torch.randn(s, generator=generator, dtype=torch.float64) for s in ((m, k), (n, k), (n,))]
    return [(t * c).to(dtype).to(device) for t, c in zip(made, scale, strict=True)]


def worst_ratio(y, x, weight, bias, activation):
    """The largest error of y over the a-priori bound: K u |x| |w| of the sums through act, and one rounding.

    The second half of the sums of a "gated_..." activation are the gates of the first."""
    mp.mp.prec = 300
    dtype, gated = y.dtype, activation.startswith("gated_")
    u, act = mp.ldexp(1, -FORMAT[dtype][1]), activation.removeprefix("gated_")
    worst = mp.mpf(0)
    for sums, got_row in zip(exact_sums(x, weight, bias, u), y.double().tolist(), strict=True):
        half = len(sums) // 2
        pairs = zip(sums[:half], sums[half:], strict=True) if gated else [(None, each) for each in sums]
        for (first, (a, reach)), got in zip(pairs, got_row, strict=True):
            truth = exact_act(a, act)
            bound = reach * steepest(a, reach, act)
            if first is not None:
                p, r = first
                bound = r * abs(truth) + (abs(p) + r) * bound
                truth = p * truth
                bound += 2 * u * abs(truth)
            bound += (mp.mpf("0.5") + (OWN[dtype] if "gelu" in activation else 0)) * ulp(truth, dtype)
            worst = max(worst, mp.inf if math.isnan(got) else abs(mp.mpf(got) - truth) / bound)
    return float(worst)


def formula(p, activation):
    """What a layer makes of its sums, by PyTorch in float64."""
    if activation.startswith("gated_"):
        first, second = p.chunk(2, -1)
        return first * formula(second, activation.removeprefix("gated_"))
    return {
        "id": lambda: p * 1.0,
        "gelu": lambda: p * torch.special.erfc(-p / 2**0.5) / 2,
        "gelu_tanh": lambda: p * torch.sigmoid(2 * (2 / math.pi) ** 0.5 * (p + 0.044715 * p**3)),
        "squared_relu": lambda: p.clamp(min=0) ** 2,
    }[activation]()


LAYERS = {activation: partial(linear_act, activation=activation) for activation in ACTIVATIONS}
LAYERS |= {
    f"gated_{act}": partial(linear_geglu, approximate=form) for act, form in (("gelu", "none"), ("gelu_tanh", "tanh"))
}


def leaves_of(activation, dtype, device, m=6, k=37, n=9, seed=0):
    wide = 2 * n if activation.startswith("gated_") else n
    return [t.requires_grad_() for t in tensors(dtype, m, k, wide, seed, device)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", LAYERS)
@pytest.mark.parametrize("with_bias", [False, True])
def test_within_the_a_priori_bound(backend, dtype, activation, with_bias):
    x, weight, bias = (t.detach().cpu() for t in leaves_of(activation, dtype, "cpu"))
    bias = bias if with_bias else None
    on = [None if t is None else t.to(backend.device) for t in (x, weight, bias)]
    assert worst_ratio(LAYERS[activation](*on).cpu(), x, weight, bias, activation) <= 1.0


def test_the_bound_rejects_lost_products_and_biases_other_forms_swapped_halves_and_second_roundings():
    x, weight, bias = tensors(torch.float32)
    a = x.double() @ weight.double().t() + bias.double()
    good = formula(a, "gelu_tanh").float()
    assert worst_ratio(good, x, weight, bias, "gelu_tanh") <= 1.0
    assert worst_ratio(good, x, weight, bias, "gelu") > 1.0
    assert worst_ratio(good, x, weight, None, "gelu_tanh") > 1.0
    lost = formula(a - x.double()[:, -1:] * weight.double()[:, -1], "gelu_tanh")
    assert worst_ratio(lost.float(), x, weight, bias, "gelu_tanh") > 1.0
    x, weight, bias = tensors(torch.bfloat16, n=18)
    a = x.double() @ weight.double().t() + bias.double()
    for activation in ("gelu_tanh", "gated_gelu_tanh"):
        assert worst_ratio(formula(a, activation).bfloat16(), x, weight, bias, activation) <= 1.0
        twice = formula(a.bfloat16().double(), activation).bfloat16()
        assert worst_ratio(twice, x, weight, bias, activation) > 1.0
    swapped = formula(a.roll(9, -1), "gated_gelu_tanh").bfloat16()
    assert worst_ratio(swapped, x, weight, bias, "gated_gelu_tanh") > 1.0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", LAYERS)
def test_gradients_against_the_formula(backend, dtype, activation):
    leaves = leaves_of(activation, dtype, backend.device, m=70, k=20)
    y = LAYERS[activation](*leaves)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(3)).to(dtype)
    got = torch.autograd.grad(y, leaves, dy.to(backend.device))
    x, weight, bias = (t.detach().cpu().double() for t in leaves)
    p, narrow = x @ weight.t() + bias, dtype in (torch.float16, torch.bfloat16)
    p = (p.to(dtype).double() if narrow else p).requires_grad_()  # a backward pass reads rounded sums
    (dp,) = torch.autograd.grad(formula(p, activation), p, dy.double())
    # dp is rounded once before the products; a few roundings of the sums come on top. In wide formats the errors of the
    # first sums, carried through the derivatives of dp (act'' <= 2), are of that order too.
    size = dp.abs()
    if not narrow:
        reach, dy = x.abs() @ weight.abs().t(), dy.double().abs()
        if activation.startswith("gated_"):
            other = (1 + p.detach().chunk(2, -1)[0].abs()) * sum(reach.chunk(2, -1))
            reach, dy = torch.cat((other, other), -1), torch.cat((dy, dy), -1)
        size = size + 2 * dy * reach
    for name, result, truth, scale in (
        ("dx", got[0], dp @ weight, size @ weight.abs()),
        ("dweight", got[1], dp.t() @ x, size.t() @ x.abs()),
        ("dbias", got[2], dp.sum(0), size.sum(0)),
    ):
        ratio = ((result.cpu().double() - truth).abs() / (2.0 ** -FORMAT[dtype][0] * scale)).max()
        assert ratio <= 4, (name, ratio)


@pytest.mark.parametrize("activation", LAYERS)
def test_sums_are_saved_only_where_a_backward_pass_needs_them_and_change_no_bit(backend, saved, activation):
    leaves = leaves_of(activation, torch.bfloat16, backend.device)
    made = [LAYERS[activation](*leaves, recompute=recompute) for recompute in (True, False)]
    LAYERS[activation](*(t.detach() for t in leaves))
    with torch.no_grad():
        LAYERS[activation](*leaves)
    assert saved == [False, activation != "id", False, False]  # the slope of the identity needs none
    dy = torch.linspace(-1, 1, made[0].numel()).view(made[0].shape).to(made[0])
    results = [(y, *torch.autograd.grad(y, leaves, dy)) for y in made]
    assert all(torch.equal(p, q) for p, q in zip(*results, strict=True))


@pytest.mark.parametrize("activation", LAYERS)
def test_second_derivatives(backend, activation):
    leaves = leaves_of(activation, torch.float64, backend.device, 2, 3, 2, seed=2)
    # what is saved or computed again does not depend on the activation: GELU has every way
    ways = [{"recompute": True}] if activation in ("gelu", "gated_gelu") else [{}]
    for way in [*ways, *([{"return_pre": True}] if activation == "gelu" else [])]:
        assert torch.autograd.gradgradcheck(partial(LAYERS[activation], **way), leaves, fast_mode=True)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ["gelu", "gated_gelu"])
def test_every_kernel_and_configuration_gives_the_same_bits(dtype, activation, monkeypatch):
    x, weight, bias = (t.detach() for t in leaves_of(activation, dtype, "cuda", m=300, k=456, n=264))
    y = LAYERS[activation](x, weight, bias)
    stepped = x.repeat_interleave(2, 1)[:, ::2]  # no copy engine
    for config in linear_tiles._configs(dtype, False, activation == "gated_gelu"):
        monkeypatch.setattr(linear_tiles, "_configs", lambda *_, config=config: [config])
        assert torch.equal(LAYERS[activation](stepped, weight, bias), y), config
    if activation == "gated_gelu":
        pre = act_module._linear(x, weight, bias, "geglu_none", True, False)[1]
        assert torch.equal(pre, linear_act(x, weight, bias))
