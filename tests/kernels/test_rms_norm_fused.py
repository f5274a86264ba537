"""RMS norm with a gate and with an FP8 result: exact errors, the quantiser oracle, layouts, contract, derivatives."""

from __future__ import annotations

from functools import partial

import flint
import pytest
import torch
from torch.nn import functional

import verify
from kernels.layer_norm import plan
from kernels.rms_norm import rms_norm, rms_norm_fp8, rms_norm_gated, rms_norm_residual
from tests.kernels.test_layer_norm import DEVICE, draw, in_balls, name_of, reals, worst
from tests.kernels.test_rms_norm import assert_within, exact_errors, run
from verify.truth.quantised import Parts, Value, judge

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
BOUND = {torch.float32: 0.53, torch.float16: 0.501, torch.bfloat16: 0.501}
EPS = 1e-6


pytestmark = pytest.mark.usefixtures("norms_are_planned_at_each_call")


def gated(x, gate, weight, dy):
    """y and the gradients of x, gate and weight."""
    leaves = [t.to(DEVICE).detach().requires_grad_() for t in (x, gate, weight)]
    y = rms_norm_gated(*leaves, eps=EPS)
    return [t.detach().cpu() for t in (y, *torch.autograd.grad(y, leaves, dy.to(DEVICE)))]


@in_balls
def gated_errors(x, gate, weight, dy, results):
    """The worst error of each result, in ULP of the sum of the magnitudes that it is made of."""
    m, n = x.shape
    v, z, w, up = (reals(t) for t in (x, gate, weight, dy))
    wanted = [[], [], []]
    terms = [[] for _ in range(n)]
    for i in range(m):
        at = range(i * n, i * n + n)
        rstd = 1 / (sum(v[k] * v[k] for k in at) / n + flint.arb(EPS)).sqrt()
        s = {k: 1 / (1 + (-z[k]).exp()) for k in at}
        g = {k: up[k] * z[k] * s[k] * w[k - i * n] for k in at}
        c2, size = (sum(f(g[k] * v[k]) for k in at) * rstd / n for f in (lambda a: a, abs))
        for k in at:
            xhat, value = v[k] * rstd, z[k] * s[k]
            slope = s[k] * (1 + z[k] * (1 - s[k]))
            wanted[0].append((k, xhat * w[k - i * n] * value, abs(xhat * w[k - i * n] * value)))
            wanted[1].append((k, rstd * (g[k] - xhat * c2), rstd * (abs(g[k]) + abs(xhat) * size)))
            of_gate = up[k] * xhat * w[k - i * n]
            wanted[2].append((k, of_gate * slope, abs(of_gate * slope)))
            terms[k - i * n].append(up[k] * value * xhat)
    wanted.append([(j, sum(terms[j]), sum(map(abs, terms[j]))) for j in range(n)])
    found = []
    for got, entries in zip(results, wanted, strict=True):
        values = got.double().flatten().tolist()
        found.append(worst(((values[k], truth, scale) for k, truth, scale in entries), got.dtype))
    return found


@pytest.mark.parametrize(("m", "n"), [(3, 1), (5, 67), (2, 128), (2, 1030)])
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_a_gated_norm_is_rounded_once(dtype, m, n):
    x, gate, weight, dy = (draw(*s, seed=k).to(dtype) for k, s in enumerate(((m, n), (m, n), (n,), (m, n))))
    gate[0] *= 8
    every = gated(x, gate, weight, dy)
    assert max(gated_errors(x, gate, weight, dy, every)) <= BOUND[dtype]
    if n > 1:
        x[0, 0] = torch.inf  # a row has the bits that it has among others, whatever these are
        *alone, _ = gated(x[1:2], gate[1:2], weight, dy[1:2])
        *among, _ = gated(x, gate, weight, dy)
        assert all(
            torch.equal(a[0], b[1]) and torch.equal(b[1], c[1]) for a, b, c in zip(alone, among, every, strict=False)
        )


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_gates_far_from_zero_and_rows_of_any_size(dtype):
    """silu is 2^-100 here and there; x1 brings the product back; a sum of gradients has terms of 2^-40 and of 2^10."""
    x, gate, weight, dy = (draw(*s, seed=k) for k, s in enumerate(((4, 40), (4, 40), (40,), (4, 40))))
    gate[:, ::3], gate[:, 1::7] = -70.0, 60.0
    small = 2.0**-12 if dtype == torch.float16 else 2.0**-60
    x[1] *= small
    weight[::3] *= 2.0**10
    given = [t.to(dtype) for t in (x, gate, weight, dy)]
    assert max(gated_errors(*given, gated(*given))) <= BOUND[dtype] + 0.005


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_rows_as_long_as_a_head(dtype):
    """Several rows for each program; the last tile is not full, and 96 columns do not fill a block."""
    for m, n in ((19, 64), (7, 96), (5, 256)):
        assert plan.forward_plan(plan.Call(m, n, dtype, centre=False)).path == "rows"
        x, dy, weight = draw(m, n).to(dtype), draw(m, n, seed=1).to(dtype), draw(n, seed=2).to(dtype)
        outputs, gradients = run(x, weight, dy, EPS)
        assert_within(exact_errors(x, weight, dy, EPS, outputs, gradients), dtype)
        _, alone = run(x[m - 2 :], weight, dy[m - 2 :], EPS)
        assert torch.equal(gradients["x"][m - 2 :], alone["x"])


def test_sums_of_heads_over_several_tiles_of_a_program(monkeypatch):
    monkeypatch.setattr(plan, "PROGRAMS", 2)
    for dtype in DTYPES:
        x, gate, weight, dy = (draw(*s, seed=k).to(dtype) for k, s in enumerate(((90, 64), (90, 64), (64,), (90, 64))))
        outputs, gradients = run(x, weight, dy, EPS)
        assert_within(exact_errors(x, weight, dy, EPS, outputs, gradients), dtype)
        first = gated(x, gate, weight, dy)
        assert max(gated_errors(x, gate, weight, dy, first)) <= BOUND[dtype]
        assert all(torch.equal(a, b) for a, b in zip(first, gated(x, gate, weight, dy), strict=True))


def encoding(group):
    return verify.quantised("e4m3", block=(1, group or 0), scale="float32", by="division", least=1e-10)


@pytest.mark.parametrize("group", [None, 16, 128])
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_codes_and_scales_are_those_of_the_float32_norm(dtype, group):
    """The kernel computes in float64 and rounds once, so PyTorch's float64 norm rounds to the same float32."""
    x, residual, weight = draw(6, 384).to(dtype), draw(6, 384, seed=1).to(dtype), draw(384, seed=2).to(dtype)
    x[1], residual[1] = 0.0, 0.0
    x[2] *= 2.0**-10
    for r in (None, residual):
        given = [t if t is None else t.to(DEVICE) for t in (x, weight, r)]
        codes, scales, *s = rms_norm_fp8(*given, group=group, eps=EPS)
        assert codes.dtype == torch.float8_e4m3fn and scales.shape == (6, 384 // group if group else 1)
        v = x.double() if r is None else x.double() + r.double()
        y = functional.rms_norm(v, (384,), weight.double(), EPS).float()
        found = judge(encoding(group), Value.of(y), Parts(codes.cpu(), scales.cpu()))
        assert found.wrong == 0 and found.counts["right"] > 0, found.words
        assert torch.equal(scales[1].cpu(), torch.full_like(scales[1].cpu(), 1e-10) / 448)
        if r is not None:
            assert torch.equal(s[0], rms_norm_residual(given[0], given[2], given[1])[1])


def test_a_wrong_scale_is_found():
    x = draw(4, 128).float()
    codes, scales = rms_norm_fp8(x.to(DEVICE))
    y = functional.rms_norm(x.double(), (128,), None, EPS).float()
    assert judge(encoding(None), Value.of(y), Parts(codes.cpu(), scales.cpu() * (1 + 2**-10))).wrong == 4


def test_a_gate_of_float16_that_weight_and_upstream_bring_back():
    """silu(-50) is 1e-20; times dy, weight and 1 / rms it is above the smallest float16 number. A hunt found this."""
    x, dy = torch.full((1, 64), 3e-5).half(), torch.full((1, 64), 65504.0).half()
    gate, weight = torch.full((1, 64), -60.0).half(), torch.full((64,), 65504.0).half()
    gate[:, ::2] = -40
    results = gated(x, gate, weight, dy)
    assert max(gated_errors(x, gate, weight, dy, results)) <= BOUND[torch.float16]


def test_nan_and_infinity_do_not_reach_other_rows():
    x = draw(3, 128).bfloat16()
    x[1, 5], x[2, 7] = float("nan"), float("inf")
    codes, scales = (t.cpu() for t in rms_norm_fp8(x.to(DEVICE)))
    assert codes[1].float().isnan().all() and codes[2, 7].float().isnan()
    alone = [t.cpu() for t in rms_norm_fp8(x[:1].to(DEVICE))]
    assert torch.equal(codes[:1].float(), alone[0].float()) and torch.equal(scales[:1], alone[1])
    y = rms_norm_gated(x.to(DEVICE), torch.full_like(x, -float("inf")).to(DEVICE)).cpu()
    assert y[1].isnan().all() and (y[0] == 0).all()


VIEWS = (
    lambda t: t[:, :, :16], lambda t: t[1:, :, 2:18], lambda t: t[:, ::2], lambda t: t.permute(1, 0, 2),
    lambda t: t[..., ::2], lambda t: t[:1].expand(3, -1, -1), lambda t: t[0, 0],
)  # fmt: skip


@pytest.mark.parametrize("view", VIEWS)
def test_layouts_give_the_bits_of_the_contiguous_input(view):
    x, gate, dy = (view(draw(4, 6, 32, seed=k).float().to(DEVICE)) for k in range(3))
    results = []
    for copied in (False, True):
        given = [(t.contiguous() if copied else t).detach().requires_grad_() for t in (x, gate)]
        y, plain = rms_norm_gated(*given), rms_norm(given[0])
        gradients = *torch.autograd.grad(y, given, dy), *torch.autograd.grad(plain, given[0], dy)
        results.append([y, plain, *gradients, *rms_norm_fp8(given[0], None, given[1], group=16)])
    assert all(torch.equal(a.float(), b.float()) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("shape", [(0, 16), (3, 0), (2, 0, 16)])
def test_empty_inputs(shape):
    x, gate, weight = (torch.randn(s, device=DEVICE).requires_grad_() for s in (shape, shape, shape[-1:]))
    y = rms_norm_gated(x, gate, weight)
    assert y.shape == shape
    assert all((g == 0).all() and g.shape == t.shape for g, t in zip(
        torch.autograd.grad(y.sum(), (x, gate, weight)), (x, gate, weight), strict=True
    ))  # fmt: skip
    codes, scales, s = rms_norm_fp8(x, weight, gate, group=16)
    assert codes.shape == s.shape == shape and scales.shape == (*shape[:-1], shape[-1] // 16)


def test_the_quantised_norm_writes_to_nothing_given():
    given = [draw(*s, seed=k).float().to(DEVICE) for k, s in enumerate(((4, 64), (64,), (4, 64)))]
    before = [t.clone() for t in given]
    rms_norm_fp8(*given)
    assert all(torch.equal(a, b) for a, b in zip(given, before, strict=True))


def test_second_derivatives_are_those_of_the_formula():
    def second(function, leaves, dy):
        first = torch.autograd.grad(function(*leaves), leaves, dy, create_graph=True)
        return torch.autograd.grad([(g * g.sin()).sum() for g in first], [dy, *leaves])

    given = [draw(*s, seed=k).float().to(DEVICE) for k, s in enumerate(((3, 9), (3, 9), (9,), (3, 9)))]
    *ours, dy = (t.clone().requires_grad_() for t in given)
    *theirs, upstream = (t.double().requires_grad_() for t in given)
    wanted = second(lambda x, z, w: functional.rms_norm(x, (9,), w, EPS) * functional.silu(z), theirs, upstream)
    for a, b in zip(second(partial(rms_norm_gated, eps=EPS), ours, dy), wanted, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_rows_beyond_2_to_the_31_elements():
    """The last rows have the bits that they have alone: offsets have 64 bits."""
    if DEVICE != "cuda":
        pytest.skip("2^31 elements take hours on the interpreter")
    x = torch.randn(1 << 17, (1 << 14) + 0, device=DEVICE, dtype=torch.bfloat16)
    x = torch.cat([x, x[:3]])
    assert torch.equal(rms_norm_gated(x, x)[-3:], rms_norm_gated(x[:3], x[:3]))
    assert torch.equal(rms_norm_fp8(x)[0][-3:].float(), rms_norm_fp8(x[:3])[0].float())
    heads = x.view(-1, 128)
    assert torch.equal(rms_norm(heads)[-5:], rms_norm(heads[-5:]))


def test_twice_the_upstream_gradient_is_twice_each_gradient_of_a_bfloat16_gate():
    """dy xhat weight has 24 bits. Between 1 and 4 it was a subnormal number, and lost bits that decide a rounding."""
    made = torch.Generator().manual_seed(5)
    x, gate = (torch.randn(2048, 256, generator=made).mul(scale).bfloat16() for scale in (1.0, 0.3))
    weight, dy = (torch.rand(shape, generator=made).add(1).bfloat16() for shape in ((256,), (2048, 256)))
    once, twice = (gated(x, gate, weight, times * dy)[1:] for times in (1, 2))
    assert all(torch.equal(b, 2 * a) for a, b in zip(once, twice, strict=True))
