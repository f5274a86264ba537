"""kernels/geglu.py against Arb: pairs over the whole range, both gradients, packing, layouts, contract."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from flint import arb, ctx

from kernels import geglu as module
from kernels import launch
from kernels.geglu import geglu, geglu_split

FORMS = ("none", "tanh")
FORMAT = {
    torch.float64: (53, -1022),
    torch.float32: (24, -126),
    torch.float16: (11, -14),
    torch.bfloat16: (8, -126),
}


@pytest.fixture(autouse=True)
def _precision():
    old, ctx.prec = ctx.prec, 900
    yield
    ctx.prec = old


def exact(x: float, form: str) -> tuple[arb, arb]:
    """gelu(x) and gelu'(x) as balls."""
    v = arb(x)
    if form == "none":
        tail = (-v / arb(2).sqrt()).erfc() / 2
        return v * tail, tail + v * (-v * v / 2).exp() / (2 * arb.pi()).sqrt()
    k, c = (2 / arb.pi()).sqrt(), arb("0.044715")
    e = (-2 * k * (v + c * v**3)).exp()
    return v / (1 + e), (1 + e * (1 + 2 * k * v * (1 + 3 * c * v * v))) / (1 + e) ** 2


def ulps(got: float, truth: arb, dtype: torch.dtype) -> float:
    if not np.isfinite(got):
        return float("inf")
    precision, least = FORMAT[dtype]
    mantissa, exponent = abs(truth).mid().man_exp()
    top = int(exponent) + int(mantissa).bit_length() - 1 if mantissa else -(10**6)
    error = abs(arb(got) - truth) * arb(2) ** (precision - 1 - max(top, least))
    return float(error.mid())


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
        value, slope = exact(v, form)
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
        truth = arb(dy[i].item()) * arb(x1[i].item()) * exact(v, form)[1]
        if abs(truth) < torch.finfo(dtype).max:
            assert ulps(got[i].item(), truth, dtype) <= LIMIT[dtype], (dy[i].item(), x1[i].item(), v)
            lifted += abs(truth) > torch.finfo(dtype).tiny and abs(dy[i].item() * x1[i].item()) > 2.0**128
    assert lifted >= 5  # results of ordinary size from products beyond the format


def product(*factors: float) -> float:
    """The sign and kind of a product of extended reals, as a NaN, a zero, an infinity or +-1 for a finite number."""
    if any(math.isnan(f) for f in factors):
        return math.nan
    sign = math.prod(math.copysign(1.0, f) for f in factors)
    if any(math.isinf(f) for f in factors):
        return math.nan if 0.0 in factors else sign * math.inf
    return sign * 0.0 if 0.0 in factors else sign


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
        value, slope = exact(v, form)
        m, g = arb(x1[i].item()), arb(dy[i].item())
        for got, truth in ((y, m * value), (d1, g * value), (d2, g * m * slope)):
            if abs(truth) < largest:
                assert ulps(got[i].item(), truth, torch.float64) <= LIMIT[torch.float64], (g, m, v)
                lifted += abs(truth) > least and (abs(value) < least or g * m > largest)
    assert lifted > 100


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_infinite_factors_zeros_and_nan_in_every_combination(backend, dtype, form, packed):
    """An infinite x1 or dy times the zero at x2 = -inf is NaN, times the smallest tail of a finite x2 an infinity.

    The formulas stop at a finite |x2|, whose value at -inf gave an infinity; bfloat16 gradients lost the tail.
    """
    ends = torch.finfo(dtype)
    special = [0.0, ends.smallest_normal * ends.eps, 1.0, ends.max, math.inf]
    special = [s * v for v in special for s in (1, -1)] + [math.nan]
    gates = [*special, -0.5, -5.0, -8.0, -14.5, -17.5, -20.0, -24.0, -40.0, -3e4]
    rows = list(itertools.product(special, gates, special))
    x1, x2, dy = (torch.tensor(column, dtype=dtype, device=backend.device) for column in zip(*rows, strict=True))
    if packed:
        x = torch.stack([x1, x2], -1).requires_grad_()
        y = geglu(x, form)
        (dx,) = torch.autograd.grad(y, x, dy[:, None])
        results = (y[:, 0], dx[:, 0], dx[:, 1])
    else:
        a, b = x1.requires_grad_(), x2.requires_grad_()
        y = geglu_split(a, b, form)
        results = (y, *torch.autograd.grad(y, (a, b), dy))
    decided = 0
    for (first, second, upstream), *got in zip(rows, *(r.tolist() for r in results), strict=True):
        value, slope = gate(second, form)
        factors = ((first, value), (upstream, value), (upstream, first, slope))
        for number, parts in zip(got, factors, strict=True):
            want = product(*parts)
            if math.isnan(want) or math.isinf(want):
                assert math.isnan(number) if math.isnan(want) else number == want, (first, second, upstream, number)
                decided += 1
            else:
                assert not math.isnan(number), (first, second, upstream)
                assert want != 0 or number == 0, (first, second, upstream, number)
    assert decided > 1000


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
        value, _ = exact(v, "none")
        twice = torch.tensor(m, dtype=torch.bfloat16) * torch.tensor(float(value), dtype=torch.bfloat16)
        worst = max(worst, ulps(twice.item(), arb(m) * value, torch.bfloat16))
    assert worst > 0.6


def test_packed_is_split_with_either_gate(backend):
    torch.manual_seed(0)
    x = torch.randn(3, 5, 14, device=backend.device)
    first, second = x.chunk(2, -1)
    assert torch.equal(geglu(x), geglu_split(first, second))
    assert torch.equal(geglu(x, gate_last=False), geglu_split(second, first))
    assert geglu(x).is_contiguous()


@pytest.mark.parametrize("gate_last", [True, False])
def test_packed_backward_is_one_launch_into_one_tensor(backend, monkeypatch, gate_last):
    torch.manual_seed(1)
    x = torch.randn(7, 12, device=backend.device, requires_grad=True)
    first, second = (t.detach().requires_grad_() for t in x.chunk(2, -1))
    dy = torch.randn(7, 6, device=backend.device)
    split = geglu_split(first, second) if gate_last else geglu_split(second, first)
    want = torch.cat(torch.autograd.grad(split, (first, second), dy), dim=-1)
    y = geglu(x, gate_last=gate_last)
    launches = []
    original = module._launch
    monkeypatch.setattr(module, "_launch", lambda *a, **k: (launches.append(a[0]), original(*a, **k)))
    (dx,) = torch.autograd.grad(y, x, dy)
    assert launches == [module._backward_kernel]
    assert torch.equal(dx, want)
    assert dx.is_contiguous()


LAYOUTS = {
    "rows apart": lambda t: t[:, :, :10],
    "offset": lambda t: t[1:, :, 2:],
    "every second row": lambda t: t[:, ::2],
    "permuted": lambda t: t.permute(1, 0, 2),
    "last dimension strided": lambda t: t[..., ::2],
    "last dimension first": lambda t: t.permute(2, 1, 0),
    "expanded": lambda t: t[:1].expand(3, -1, -1),
    "one row": lambda t: t[0, 0],
    "empty rows": lambda t: t[:0],
    "empty columns": lambda t: t[..., :0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_give_the_bits_of_the_contiguous_input(backend, layout):
    torch.manual_seed(2)
    x = LAYOUTS[layout](torch.randn(4, 6, 16, device=backend.device))
    before = x.clone()
    a, b = x.detach().requires_grad_(), x.contiguous().detach().requires_grad_()
    ya, yb = geglu(a), geglu(b)
    assert torch.equal(ya, yb)
    first, second = x.chunk(2, -1)
    assert ya.stride() == torch.empty_like(first).stride()
    assert torch.equal(geglu_split(first, second), yb)
    dy = torch.randn(ya.shape, device=backend.device)
    for g in (dy, dy.sum().expand(dy.shape)):
        assert torch.equal(
            torch.autograd.grad(ya, a, g, retain_graph=True)[0],
            torch.autograd.grad(yb, b, g.contiguous(), retain_graph=True)[0],
        )
    assert torch.equal(x, before)


def test_0d_and_wide_rows(backend):
    v = torch.tensor(2.0, device=backend.device), torch.tensor(-0.5, device=backend.device)
    assert geglu_split(*v).item() == pytest.approx(2 * float(exact(-0.5, "none")[0]), rel=1e-6)
    x = torch.randn(2, 2 * ((1 << 16) + 33), device=backend.device)  # beyond one block of columns
    halves = x.chunk(2, -1)
    pieces = [geglu_split(a, b) for a, b in zip(*(h.split(30000, -1) for h in halves), strict=True)]
    assert torch.equal(geglu(x), torch.cat(pieces, -1))


@pytest.mark.parametrize("form", FORMS)
def test_gradcheck_and_gradgradcheck(backend, form):
    """In torch's fast mode: a difference along one direction, in which every wrong entry of a Jacobian shows."""
    torch.manual_seed(3)
    x = torch.randn(1, 4, dtype=torch.float64, device=backend.device, requires_grad=True)
    for gate_last in (True, False):
        assert torch.autograd.gradcheck(lambda t, g=gate_last: geglu(t, form, gate_last=g), x, fast_mode=True)
        assert torch.autograd.gradgradcheck(lambda t, g=gate_last: geglu(t, form, gate_last=g), x, fast_mode=True)
    halves = tuple(t.detach().requires_grad_() for t in x.chunk(2, -1))
    assert torch.autograd.gradcheck(lambda a, b: geglu_split(a, b, form), halves, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda a, b: geglu_split(a, b, form), halves, fast_mode=True)


def test_operators_are_registered_for_the_compiler(backend):
    ops = torch.ops.precise_geglu
    x = torch.randn(3, 8, device=backend.device, requires_grad=True)
    a = torch.randn(3, 4, device=backend.device, requires_grad=True)
    b = torch.randn(3, 4, device=backend.device, requires_grad=True)
    torch.library.opcheck(ops.packed, (x, "none", True))
    torch.library.opcheck(ops.packed_backward, (a, x, "tanh", False))
    torch.library.opcheck(ops.split, (a, b, "tanh"))
    torch.library.opcheck(ops.split_backward, (a, b, a, "none"))


def test_errors_state_the_rule_and_what_was_received(backend, monkeypatch):
    x = torch.ones(2, 3, device=backend.device)
    with pytest.raises(ValueError, match=r"last dimension must be even.*got shape \(2, 3\)"):
        geglu(x)
    with pytest.raises(ValueError, match=r"last dimension must be even.*got shape \(\)"):
        geglu(x[0, 0])
    with pytest.raises(ValueError, match=r'approximate must be "none" or "tanh", got \'erf\''):
        geglu(x[:, :2], "erf")
    with pytest.raises(TypeError, match=r"x1 must be float64, .* got torch.int64"):
        geglu_split(x.long(), x.long())
    with pytest.raises(ValueError, match=r"x2 must have x1's shape, dtype and device .* got \(\(2, 2\)"):
        geglu_split(x, x[:, :2])
    monkeypatch.setattr(launch, "INTERPRETED", False)
    with pytest.raises(ValueError, match=r"x must be on a CUDA device, got cpu"):
        geglu(torch.ones(2, 2))
