"""kernels/swiglu.py against Arb: pairs over the whole range, both gradients, packing, layouts, contract."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
import torch
from flint import arb, ctx

from kernels import launch, silu_math
from kernels import swiglu as module
from kernels.geglu import _backward_kernel, _forward_kernel
from kernels.swiglu import swiglu, swiglu_split
from tests.kernels.test_geglu import FORMAT, LAYOUTS, product, ulps

LIMIT = {torch.float16: 0.51, torch.bfloat16: 0.51, torch.float32: 0.85, torch.float64: 2.6}
DEEPEST = {torch.float16: -45, torch.bfloat16: -285, torch.float32: -290, torch.float64: -1500}
TOP = {torch.float16: 15.5, torch.bfloat16: 127.0, torch.float32: 127.0, torch.float64: 1000.0}
ZERO = 1.2784645427610738


@pytest.fixture(autouse=True)
def _precision():
    old, ctx.prec = ctx.prec, 3000
    yield
    ctx.prec = old


def exact(x: float) -> tuple[arb, arb]:
    """silu(x) and silu'(x) as balls."""
    v = arb(x)
    s = 1 / (1 + (-v).exp())
    return v * s, s * (1 + v * (1 - s))


def triples(dtype: torch.dtype, n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dy, x1, x2: ordinary ones, large dy and x1 that lift the deep tail back into range, x2 near the slope's zero."""
    draw = np.random.default_rng(11)
    near = -ZERO + draw.choice([-1, 1], n // 2) * 2.0 ** draw.uniform(-12, -1, n // 2)
    x2 = np.concatenate([draw.normal(size=n) * 2, draw.uniform(DEEPEST[dtype], 3, n), near, [-ZERO, -1.28125, ZERO]])
    rest = len(x2) - 2 * n
    lifting = [2.0 ** draw.uniform(-9, TOP[dtype], n) * draw.choice([-1, 1], n) for _ in range(2)]
    x1, dy = (np.concatenate([draw.normal(size=n), large, draw.normal(size=rest)]) for large in lifting)
    return tuple(torch.from_numpy(v).to(dtype) for v in (dy, x1, x2))


@pytest.mark.parametrize("dtype", FORMAT, ids=str)
def test_forward_and_both_gradients_stay_inside_their_bound(backend, dtype):
    dy, x1, x2 = triples(dtype, 250)
    a, b = (t.to(backend.device).requires_grad_() for t in (x1, x2))
    y = swiglu_split(a, b)
    d1, d2 = torch.autograd.grad(y, (a, b), dy.to(backend.device))
    largest, least, lifted = torch.finfo(dtype).max, torch.finfo(dtype).smallest_normal, 0
    for i, v in enumerate(x2.tolist()):
        value, slope = exact(v)
        m, g = arb(x1[i].item()), arb(dy[i].item())
        for got, truth in ((y, m * value), (d1, g * value), (d2, g * m * slope)):
            near = dtype == torch.float64 and got is d2 and abs(v + ZERO) < 2.0**-8  # nothing is promised there
            if abs(truth) < largest and not near:
                assert ulps(got[i].item(), truth, dtype) <= LIMIT[dtype], (g, m, v)
                lifted += abs(truth) > least and (abs(value) < least or abs(g * m) > largest)
    assert lifted > 20  # results of ordinary size from what is beyond the format


def gate(x: float) -> tuple[float, float]:
    """silu(x) and silu'(x) as `product` needs them: only x = +-0 and -inf give zeros, however deep the tail is."""
    if math.isnan(x) or x == 0 or x == math.inf:
        return x, (x if math.isnan(x) else 1.0)
    return (-0.0, -0.0) if x == -math.inf else (math.copysign(1.0, x), math.copysign(1.0, x + ZERO))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", FORMAT, ids=str)
def test_infinite_factors_zeros_and_nan_in_every_combination(backend, dtype, packed):
    ends = torch.finfo(dtype)
    special = [0.0, ends.smallest_normal * ends.eps, 1.0, ends.max, math.inf]
    special = [s * v for v in special for s in (1, -1)] + [math.nan]
    gates = [*special, -0.5, -5.0, -30.0, -44.0, -100.0, -187.0, -280.0, -1e3, -3e4]
    rows = list(itertools.product(special, gates, special))
    x1, x2, dy = (torch.tensor(column, dtype=dtype, device=backend.device) for column in zip(*rows, strict=True))
    if packed:
        x = torch.stack([x1, x2], -1).requires_grad_()
        y = swiglu(x)
        (dx,) = torch.autograd.grad(y, x, dy[:, None])
        results = (y[:, 0], dx[:, 0], dx[:, 1])
    else:
        a, b = x1.requires_grad_(), x2.requires_grad_()
        y = swiglu_split(a, b)
        results = (y, *torch.autograd.grad(y, (a, b), dy))
    decided = 0
    for (first, second, upstream), *got in zip(rows, *(r.tolist() for r in results), strict=True):
        value, slope = gate(second)
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


def test_the_constants_are_those_of_the_definition():
    """The zero u of 1 - u / (1 + exp(-u)), and that function over t = zero - u in powers of t."""
    with mpmath.workprec(200):
        zero = mpmath.findroot(lambda u: u - 1 - mpmath.exp(-u), 1.28)
        series = mpmath.taylor(lambda t: 1 - (zero - t) / (1 + mpmath.exp(t - zero)), 0, 4)[1:]
        high = float(np.float32(float(zero)))
        low = float(np.float32(float(zero - high)))
    assert (silu_math.ZERO32.value, silu_math.ZERO32_LO.value) == (high, low)
    assert silu_math.NEAR.value == pytest.approx([float(c) for c in series], rel=1e-11)
    assert silu_math.NEG_LOG2E.value == -1 / math.log(2)


def test_packed_is_split_with_either_gate(backend):
    torch.manual_seed(0)
    x = torch.randn(3, 5, 14, device=backend.device)
    first, second = x.chunk(2, -1)
    assert torch.equal(swiglu(x), swiglu_split(first, second))
    assert torch.equal(swiglu(x, gate_last=False), swiglu_split(second, first))
    assert swiglu(x).is_contiguous()


@pytest.mark.parametrize("gate_last", [True, False])
def test_packed_backward_is_one_launch_into_one_tensor(backend, monkeypatch, gate_last):
    torch.manual_seed(1)
    x = torch.randn(7, 12, device=backend.device, requires_grad=True)
    first, second = (t.detach().requires_grad_() for t in x.chunk(2, -1))
    dy = torch.randn(7, 6, device=backend.device)
    split = swiglu_split(first, second) if gate_last else swiglu_split(second, first)
    want = torch.cat(torch.autograd.grad(split, (first, second), dy), dim=-1)
    launches, original = [], module._launch
    monkeypatch.setattr(module, "_launch", lambda *a, **k: (launches.append(a[0]), original(*a, **k)))
    (dx,) = torch.autograd.grad(swiglu(x, gate_last=gate_last), x, dy)
    assert launches == [_forward_kernel, _backward_kernel]
    assert torch.equal(dx, want) and dx.is_contiguous()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_give_the_bits_of_the_contiguous_input(backend, layout):
    torch.manual_seed(2)
    x = LAYOUTS[layout](torch.randn(4, 6, 16, device=backend.device))
    before = x.clone()
    a, b = x.detach().requires_grad_(), x.contiguous().detach().requires_grad_()
    ya, yb = swiglu(a), swiglu(b)
    assert torch.equal(ya, yb)
    first, second = x.chunk(2, -1)
    assert ya.stride() == torch.empty_like(first).stride()
    whole = [t.contiguous().requires_grad_() for t in (first.detach(), second.detach())]
    assert torch.equal(swiglu_split(first, second), yb)
    dy = torch.randn(ya.shape, device=backend.device)
    for g in (dy, dy.sum().expand(dy.shape)):
        got, want = (
            torch.autograd.grad(y, t, u, retain_graph=True)[0] for y, t, u in ((ya, a, g), (yb, b, g.contiguous()))
        )
        assert torch.equal(got, want)
        apart = torch.autograd.grad(swiglu_split(*whole), whole, g)  # two contiguous tensors are one long row
        assert torch.equal(torch.cat(apart, -1), want)
    assert torch.equal(x, before)


def test_0d_and_wide_rows(backend):
    v = torch.tensor(2.0, device=backend.device), torch.tensor(-0.5, device=backend.device)
    assert swiglu_split(*v).item() == pytest.approx(2 * float(exact(-0.5)[0]), rel=1e-6)
    x = torch.randn(2, 2 * ((1 << 16) + 33), device=backend.device)  # beyond one block of columns
    halves = x.chunk(2, -1)
    pieces = [swiglu_split(a, b) for a, b in zip(*(h.split(30000, -1) for h in halves), strict=True)]
    assert torch.equal(swiglu(x), torch.cat(pieces, -1))


def test_gradcheck_and_gradgradcheck(backend):
    torch.manual_seed(3)
    x = torch.randn(1, 4, dtype=torch.float64, device=backend.device, requires_grad=True)
    halves = tuple(t.detach().requires_grad_() for t in x.chunk(2, -1))
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        for gate_last in (True, False):
            assert check(lambda t, g=gate_last: swiglu(t, gate_last=g), x, fast_mode=True)
        assert check(swiglu_split, halves, fast_mode=True)


def test_operators_are_registered_and_compiled_calls_give_the_bits_of_plain_ones(backend):
    ops = torch.ops.verify_kernels
    x = torch.randn(3, 8, device=backend.device, requires_grad=True)
    a, b = (torch.randn(3, 4, device=backend.device, requires_grad=True) for _ in range(2))
    torch.library.opcheck(ops.swiglu, (x, True))
    torch.library.opcheck(ops.swiglu_backward, (a, x, False))
    torch.library.opcheck(ops.swiglu_split, (a, b))
    torch.library.opcheck(ops.swiglu_split_backward, (a, b, a))

    def loss(x, a, b):
        return (swiglu(x) * swiglu_split(a, b).sin()).sum()

    leaves = (x, a, b)
    want, got = loss(*leaves), torch.compile(loss, backend="aot_eager", fullgraph=True)(*leaves)
    assert torch.equal(got, want)
    pairs = zip(torch.autograd.grad(got, leaves), torch.autograd.grad(want, leaves), strict=True)
    assert all(torch.equal(p, q) for p, q in pairs)


def test_errors_state_the_rule_and_what_was_received(backend, monkeypatch):
    x = torch.ones(2, 3, device=backend.device)
    with pytest.raises(ValueError, match=r"last dimension must be even.*got shape \(2, 3\)"):
        swiglu(x)
    with pytest.raises(ValueError, match=r"last dimension must be even.*got shape \(\)"):
        swiglu(x[0, 0])
    with pytest.raises(TypeError, match=r"x1 must be float64, .* got torch.int64"):
        swiglu_split(x.long(), x.long())
    with pytest.raises(ValueError, match=r"x2 must have x1's shape, dtype and device .* got \(\(2, 2\)"):
        swiglu_split(x, x[:, :2])
    monkeypatch.setattr(launch, "INTERPRETED", False)
    with pytest.raises(ValueError, match=r"x must be on a CUDA device, got cpu"):
        swiglu(torch.ones(2, 2))
