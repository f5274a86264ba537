"""kernels/layer_norm against exact rational moments, through Triton's interpreter or a GPU.

The inputs are dyadic rationals: sums, means and variances are computed in integers, only the square
root is rounded (to 250 bits), and what follows from it is in balls. Nothing here is shared with verify's own truth,
but one test asks that."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator

import flint
import pytest
import torch

from verify import backends

BACKEND = backends.select()
backends.activate(BACKEND)

from kernels.layer_norm import (  # noqa: E402
    launch,
    layer_norm,
    layer_norm_residual,
    layer_norm_residual_bias,
    plan,
)
from kernels.rms_norm import rms_norm, rms_norm_residual  # noqa: E402
from tests.kernels.test_gelu import FORMAT as FORMATS  # noqa: E402

DEVICE = BACKEND.device
BITS = 250  # of a ball's middle
UNIT = 1200  # every finite float64 is an integer times 2**-UNIT
HALF = (torch.float16, torch.bfloat16)


pytestmark = pytest.mark.usefixtures("norms_are_planned_at_each_call")


def in_balls(function):
    """Called with Arb at BITS."""

    @functools.wraps(function)
    def inside(*args, **options):
        before, flint.ctx.prec = flint.ctx.prec, BITS
        try:
            return function(*args, **options)
        finally:
            flint.ctx.prec = before

    return inside


def integers(tensor):
    """The values times 2**UNIT."""
    ratios = (v.as_integer_ratio() for v in tensor.detach().cpu().double().flatten().tolist())
    return [a << UNIT + 1 - b.bit_length() for a, b in ratios]  # b is a power of two


def real(integer):
    return flint.arb((integer, -UNIT))


def reals(tensor):
    """The values, each of which is exact as a ball."""
    return [flint.arb(v) for v in tensor.detach().cpu().double().flatten().tolist()]


class Row:
    """Exact mean and variance of one row of integers; xhat(i) = deviations[i] * factor.

    Without `centre` nothing is subtracted, as in RMS norm."""

    def __init__(self, values, eps, centre=True):
        n = len(values)
        bits = functools.reduce(operator.or_, values)
        low = max((bits & -bits).bit_length() - 1, 0)  # zeros at the end of all: a thousand bits of each product
        values = [v >> low for v in values]
        total = sum(values) if centre else 0
        self.deviations = [n * v - total for v in values]  # n 2**(UNIT - low) (v - mean)
        squares = sum(d * d for d in self.deviations)
        var = flint.arb((squares, 2 * (low - UNIT))) / n**3
        self.rstd = 1 / (var + flint.arb(eps)).sqrt()
        self.factor = self.rstd * flint.arb((1, low - UNIT)) / n

    def xhat(self, i):
        return self.deviations[i] * self.factor


def ulp(scale, dtype):
    bits, least = FORMATS[dtype]
    whole, place = scale.mid().man_exp()
    exponent = int(whole).bit_length() + int(place) - 1
    return flint.arb((1, max(exponent, least) - bits + 1))


@in_balls
def error(got, truth, scale, dtype):
    """|got - truth| / ulp(scale). An infinite got is right where truth rounds to it."""
    if math.isinf(got):
        top = flint.arb(torch.finfo(dtype).max)
        rounds_up = truth * got > 0 and abs(truth) >= top + ulp(top, dtype) / 2
        return 0.0 if rounds_up else math.inf
    difference = (got - truth).abs_upper()
    if difference == 0:
        return 0.0
    found = math.inf if scale == 0 else float(difference / ulp(scale, dtype))
    assert not math.isnan(found), (got, truth, scale)
    return found


def worst(pairs, dtype):
    """The largest error of (got, truth, scale); NaN counts as infinite."""
    result = 0.0
    for got, truth, scale in pairs:
        e = math.inf if math.isnan(got) else error(got, truth, scale, dtype)
        result = max(result, e)
    return result


def numbers(tensor, n):
    """A vector as exact reals, ones if absent."""
    return [1] * n if tensor is None else reals(tensor)


def summed(x, residual, input_bias):
    """The elements that are normalised: x, the residual and the bias of the input added, exactly."""
    values = integers(x)
    if residual is not None:
        values = [a + b for a, b in zip(values, integers(residual), strict=True)]
    if input_bias is not None:
        values = [v + b for v, b in zip(values, integers(input_bias) * (x.numel() // x.shape[-1]), strict=True)]
    return values


@in_balls
def exact_errors(inputs, outputs, upstream, gradients, eps, pick=None, centre=True):
    """Worst scaled error of y, dx, dweight, dbias (and of s, dinput_bias where they exist).

    inputs: x, weight, bias[, residual[, input_bias]] (None allowed). pick: columns to judge. centre: whether the norm
    subtracts the mean."""
    x, weight, bias, residual, input_bias = (*inputs, None, None)[:5]
    m, n = x.numel() // x.shape[-1], x.shape[-1]
    columns = range(n) if pick is None else pick
    values = summed(x, residual, input_bias)
    rows = [Row(values[i * n : (i + 1) * n], eps, centre) for i in range(m)]
    w, b = numbers(weight, n), [0] * n if bias is None else numbers(bias, n)
    y = outputs[0].double().flatten().tolist()
    found = {}
    pairs = []
    for i, row in enumerate(rows):
        for j in columns:
            part = row.xhat(j) * w[j]
            pairs.append((y[i * n + j], part + b[j], abs(part) + abs(b[j])))
    found["y"] = worst(pairs, x.dtype)
    if residual is not None:
        s = outputs[1].double().flatten().tolist()
        sums = [real(v) for v in values]
        found["s"] = worst(((g, t, abs(t)) for g, t in zip(s, sums, strict=True)), residual.dtype)
    if gradients is None:
        return found
    dy = reals(upstream[0])
    ds = None if len(upstream) == 1 else reals(upstream[1])
    hats = [[row.xhat(j) for j in range(n)] for row in rows]
    dx = gradients["x"].double().flatten().tolist()
    pairs, totals, magnitudes = [], [flint.arb(0)] * n, [flint.arb(0)] * n
    for i, row in enumerate(rows):
        g = [dy[i * n + j] * w[j] for j in range(n)]
        h = hats[i]
        gh = [p * q for p, q in zip(g, h, strict=True)]
        c1, c2 = sum(g) / n * centre, sum(gh) / n
        a1 = sum(map(abs, g)) / n * centre
        a2 = sum(map(abs, gh)) / n
        for j in columns:
            truth = row.rstd * (g[j] - c1 - h[j] * c2)
            scale = row.rstd * (abs(g[j]) + a1 + abs(h[j]) * a2)
            if ds is not None:
                truth, scale = truth + ds[i * n + j], scale + abs(ds[i * n + j])
            totals[j] += truth
            magnitudes[j] += scale
            pairs.append((dx[i * n + j], truth, scale))
    found["x"] = worst(pairs, x.dtype)
    if "residual" in gradients:
        got = gradients["residual"].double().flatten().tolist()
        places = [i * n + j for i in range(m) for j in columns]
        found["residual"] = worst(((got[k], t, s) for k, (_, t, s) in zip(places, pairs, strict=True)), residual.dtype)
    if "input_bias" in gradients:
        got = gradients["input_bias"].double().tolist()
        found["input_bias"] = worst(((got[j], totals[j], magnitudes[j]) for j in columns), input_bias.dtype)
    if weight is not None:
        got = gradients["weight"].double().tolist()
        pairs = []
        for j in columns:
            terms = [dy[i * n + j] * hats[i][j] for i in range(m)]
            pairs.append((got[j], sum(terms), sum(map(abs, terms))))
        found["weight"] = worst(pairs, weight.dtype)
    if bias is not None:
        got = gradients["bias"].double().tolist()
        pairs = []
        for j in columns:
            terms = [dy[i * n + j] for i in range(m)]
            pairs.append((got[j], sum(terms), sum(map(abs, terms))))
        found["bias"] = worst(pairs, bias.dtype)
    return found


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def called(norm, eps, dy, ds, **operands):
    """Outputs of a norm, and its gradients by name."""
    leaves = {k: t.detach().to(DEVICE).requires_grad_() for k, t in operands.items() if t is not None}
    outputs = norm(**leaves, eps=eps)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    upstream = [t.to(DEVICE) for t in (dy, ds) if t is not None]
    grads = torch.autograd.grad(outputs[: len(upstream)], tuple(leaves.values()), upstream)
    return [o.detach().cpu() for o in outputs], {k: g.cpu() for k, g in zip(leaves, grads, strict=True)}


def run(x, weight, bias, dy, eps, residual=None, input_bias=None, ds=None):
    """Outputs and gradients, by name, of whichever function fits the operands."""
    norm = layer_norm if residual is None else layer_norm_residual if input_bias is None else layer_norm_residual_bias
    return called(norm, eps, dy, ds, x=x, weight=weight, bias=bias, residual=residual, input_bias=input_bias)


def errors_of(x, weight, bias, dy, eps, residual=None, input_bias=None, ds=None, pick=None, forward=False):
    """The worst error of each result of a call; forward: of the outputs alone."""
    outputs, gradients = run(x, weight, bias, dy, eps, residual, input_bias, ds)
    upstream, inputs = [t for t in (dy, ds) if t is not None], (x, weight, bias, residual, input_bias)
    return exact_errors(inputs, outputs, upstream, None if forward else gradients, eps, pick=pick)


def regime(name, m, n, dtype):
    """Values of one regime in `dtype`, and its eps; None where the dtype has no such numbers."""
    z, eps = draw(m, n, seed=len(name) + n), 1e-5
    top = {torch.float16: 6e4, torch.bfloat16: 1e30, torch.float32: 1e30, torch.float64: 1e300}
    if name == "randn":
        x = z
    elif name.startswith("mean"):
        x = z + float(name.split()[1])
    elif name == "constant":
        x = torch.full((m, n), 1000.0, dtype=torch.float64) * (1 + torch.arange(m)[:, None] / 3)
    elif name == "one step":  # all equal but the last, which is the next number up
        x = torch.full((m, n), 1001.0, dtype=torch.float64).to(dtype)
        x[:, -1] *= 1 + 2.0 ** (1 - FORMATS[dtype][0])
    elif name == "outlier":
        x = z.clone()
        x[:, 0] = 1e4
        x[:, n // 2] = -3e4
    elif name == "first far":  # the shift of the float32 sums is an outlier
        x = 1000 + z
        x[:, 0] = -5e4
    elif name == "tiny":
        x = z * 1e-20
    elif name == "tiny no eps":
        x, eps = z * 1e-38, 1e-80
    elif name == "subnormal":
        least = FORMATS[dtype][1] - FORMATS[dtype][0] + 1
        x = ((5 * torch.arange(m * n).reshape(m, n)) % 7 - 3) * torch.tensor(2.0**least, dtype=torch.float64)
        eps = 0.0
    elif name == "small eps":
        x, eps = z * 1e-6, 1e-12
    elif name == "huge":
        x, eps = z.clamp(-1, 1) * top[dtype], 1e-5
    elif name == "largest":
        x = z.sign() * torch.finfo(dtype).max
    return x.to(dtype), eps


REGIMES = (
    "randn", "mean 1e3", "mean 1e4", "constant", "one step", "outlier", "first far",
    "tiny", "tiny no eps", "subnormal", "small eps", "huge", "largest",
)  # fmt: skip
# The docstring's bounds. For float64, a few roundings (2.7 was the most seen).
Y_BOUND = {torch.float64: 4.0, torch.float32: 0.501, torch.float16: 0.502, torch.bfloat16: 0.5002}
X_BOUND = {torch.float64: 4.0, torch.float32: 0.501, torch.float16: 0.51, torch.bfloat16: 0.502}
DTYPES = tuple(FORMATS)


def name_of(dtype):
    return str(dtype).removeprefix("torch.")


def assert_within(found, x_dtype, weight_dtype=None):
    assert found["y"] <= Y_BOUND[x_dtype], found
    assert found.get("s", 0.0) <= 0.5001, found
    assert found.get("x", 0.0) <= X_BOUND[x_dtype], found
    bound = X_BOUND[weight_dtype or x_dtype]
    for name in ("weight", "bias", "residual", "input_bias"):
        assert found.get(name, 0.0) <= bound, (name, found)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("name", REGIMES)
def test_every_regime_is_within_its_bound(name, dtype):
    for m, n in ((2, 1), (2, 131)):
        if n == 1 and name == "subnormal":
            continue  # 0 * inf: judged with the special rows
        x, eps = regime(name, m, n, dtype)
        weight, bias = draw(n, seed=1).to(dtype), draw(n, seed=2).to(dtype)
        dy = draw(m, n, seed=3).to(dtype)
        if name in ("subnormal", "tiny no eps"):
            dy *= 2.0 ** (FORMATS[dtype][1] // 2)  # keeps most of dx finite
        for w, b in ((weight, bias), *[(None, None)] * (dtype == torch.float32)):  # absent alike in every dtype
            outputs, gradients = run(x, w, b, dy, eps)
            assert_within(exact_errors((x, w, b), outputs, (dy,), gradients, eps), dtype)


def test_the_judge_rejects_one_pass_moments_and_a_constant_off_by_an_ulp():
    x = (draw(2, 64) + 1e4).float()
    mean = x.mean(-1, keepdim=True)
    var = (x * x).mean(-1, keepdim=True) - mean * mean
    y = (x - mean) * torch.rsqrt(var.abs() + 1e-5)
    assert exact_errors((x, None, None), [y], (), None, 1e-5)["y"] > 1e3
    good = layer_norm(x.to(DEVICE)).cpu()
    off = good.clone()
    off[1, 5] = torch.nextafter(off[1, 5], torch.tensor(9.0))
    assert exact_errors((x, None, None), [good], (), None, 1e-5)["y"] <= 0.501
    assert exact_errors((x, None, None), [off], (), None, 1e-5)["y"] > 0.501


LONG = [("outlier", dtype, 65_537) for dtype in DTYPES]  # beyond one block
LONG += [(name, torch.float32, 65_537) for name in ("randn", "mean 1e4")]
LONG += [(name, torch.float32, 8_192) for name in ("randn", "mean 1e4", "outlier", "first far")]  # read twice


@pytest.mark.parametrize(("name", "dtype", "n"), LONG)
def test_long_rows_forward(name, dtype, n):
    x, eps = regime(name, 1, n, dtype)
    weight, bias = draw(n, seed=1).to(dtype), draw(n, seed=2).to(dtype)
    y = layer_norm(*(t.to(DEVICE) for t in (x, weight, bias)), eps=eps).cpu()
    columns = [0, 1, n // 2 - 1, n // 2, n - 2, n - 1, *range(17, n, n // 64)]
    found = exact_errors((x, weight, bias), [y], (), None, eps, pick=columns)
    assert found["y"] <= Y_BOUND[dtype], found


@in_balls
def at_the_mean(row, got):
    """The error of one element in ulp of its scale, which is at least 2^-24 deviations (docs/reductions.md)."""
    truth = row.xhat(len(row.deviations) - 1)
    return error(got, truth, max(abs(truth), flint.arb(2) ** -24), torch.float32)


@pytest.mark.parametrize("n", [128, 1_024, 8_192, 20_000])  # in registers, twice those, read twice, in blocks
@pytest.mark.parametrize("residual", [False, True])
def test_an_element_at_the_mean_of_a_row_that_begins_with_an_outlier(n, residual):
    x = draw(6, n, seed=n)
    x[:, 0] = 1e3
    x = x.float()
    for _ in range(3):  # the last element moves the mean by less each time
        x[:, -1] = x.double().mean(-1).float()
    if residual:
        outputs = layer_norm_residual(x.to(DEVICE), torch.zeros_like(x).to(DEVICE), eps=0.0)
    else:
        outputs = (layer_norm(x.to(DEVICE), eps=0.0),)
    y = outputs[0].cpu().double()
    errors = [at_the_mean(Row(integers(x[i]), 0.0), float(y[i, -1])) for i in range(len(x))]
    assert max(errors) <= 0.55, errors


@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float16, marks=pytest.mark.slow), torch.bfloat16, torch.float32], ids=name_of
)
@pytest.mark.parametrize("n", [4_099, 8_300])  # float32: the paired kernel, and the tiled one
def test_long_rows_backward(n, dtype, monkeypatch):
    monkeypatch.setattr(plan, "PAIRED_ROWS", 1)
    x, eps = regime("mean 1e3", 2, n, dtype)
    weight, bias, dy = draw(n, seed=1).to(dtype), draw(n, seed=2).to(dtype), draw(2, n).to(dtype)
    columns = [0, 1, 2_047, 2_048, 4_097, 4_098, n - 1, *range(5, n, 61)]
    found = errors_of(x, weight, bias, dy, eps, pick=columns)
    paired = dtype == torch.float32 and n < 8_192
    assert found["x"] <= (0.7 if paired else X_BOUND[dtype]), found
    assert found["weight"] <= (2.0 if paired else X_BOUND[dtype]), found
    assert found["bias"] <= X_BOUND[dtype], found


@pytest.mark.parametrize("name", ["outlier", "mean 1e4", "huge", "tiny no eps", "one step"])
def test_paired_kernel_in_hard_regimes(name, monkeypatch):
    """Some without a weight; several rows per program, so that the next row is prefetched."""
    monkeypatch.setattr(plan, "PAIRED_ROWS", 1)
    monkeypatch.setattr(plan, "PAIRED_PROGRAMS", 1)
    n = 4_097
    x, eps = regime(name, 3, n, torch.float32)
    # correlated with x: all three terms of dx count
    dy = (draw(3, n, seed=3) + 3 * draw(3, n, seed=len(name) + n)).float()
    weight = draw(n, seed=1).float()
    columns = [0, 1, n // 2, n - 1, *range(7, n, 97)]
    w = None if name in ("huge", "one step") else weight
    found = errors_of(x, w, None, dy * 2.0**-60, eps, pick=columns)
    assert found["x"] <= 0.7 and found.get("weight", 0.0) <= 2.0, found


def test_paired_kernel_sums_dbias_without_drift(monkeypatch):
    """1/3 added 40 times in float32 is ulps off; the kernel adds in float64."""
    m, n = 40, 4_097
    monkeypatch.setattr(plan, "PAIRED_ROWS", 1)
    monkeypatch.setattr(plan, "PAIRED_PROGRAMS", 1)
    dy = torch.full((m, n), 1 / 3)
    truth = flint.arb(float(dy[0, 7])) * m
    naive = sum(dy[1:, 7], dy[0, 7])
    assert error(float(naive), truth, truth, torch.float32) > 2
    _, gradients = run(draw(m, n).float(), None, torch.zeros(n), dy, 1e-5)
    assert error(float(gradients["bias"][7]), truth, truth, torch.float32) <= 0.501


def beyond_float32(dtype, n, residual):
    """x, dy, r: rows whose gradients float32 cannot hold, and ordinary ones between them."""
    top = torch.finfo(dtype).max
    least = 2.0 ** (FORMATS[dtype][1] - FORMATS[dtype][0] + 1)
    sign = 1.0 - 2.0 * (torch.arange(n) % 2).double()
    z = [draw(n, seed=20 + k) for k in range(12)]
    one = torch.ones(n, dtype=torch.float64)
    near = one.clone()  # constant but for small steps: rstd is large, nothing cancels exactly
    near[::5] += 2.0 ** (1 - FORMATS[dtype][0])
    one_large = z[8].clone()
    one_large[n // 2] = top
    # x, dy: rstd = 316 and large dy; large dy of both signs; an outlier; large x and dy, and dx of
    # ordinary size; gradients at the lower end; no gradient; an ordinary row
    rows = (
        (1.69e-6 * one, z[0] * top / 4),
        (near * least * 8, -top * one),
        (near * least * 8, top * near.flip(0) * 0.99),
        (z[1], top * sign),
        (z[2], one_large),
        (z[3].clamp(-1, 1) * top, z[3].clamp(-1, 1) * top),
        (z[4] * 1e-6, z[5] * least * 20),
        (z[6], 0 * one),
        (z[7], z[9]),
    )
    x = torch.stack([a.clamp(-top, top) for a, _ in rows]).to(dtype)
    dy = torch.stack([b.clamp(-top, top) for _, b in rows]).to(dtype)
    if not residual:
        return x, dy, None
    r = draw(len(rows), n, seed=40).to(dtype)
    r[0], r[5] = x[0], x[5]  # twice the largest number, and a constant row
    r[1], r[2] = 0, (-x[2].double() + z[10] * least * 4).to(dtype)
    r[8] = 1e4 * (1 + 0 * r[8]) + 1e-3 * r[8]
    return x, dy, r


@pytest.mark.parametrize("dtype", HALF, ids=name_of)
@pytest.mark.parametrize("form", ["plain", "bare", "residual", "residual bias"])
def test_gradients_that_float32_cannot_hold(form, dtype, monkeypatch):
    """Several rows of each kind share a program, so that its column sums have to be redone."""
    monkeypatch.setattr(plan, "PROGRAMS", 6)
    for n in (33, 64):
        x, dy, r = beyond_float32(dtype, n, form.startswith("residual"))
        ds = None if r is None else draw(*x.shape, seed=7).to(dtype)
        weight, bias = (draw(n, seed=1) + 2).to(dtype), draw(n, seed=2).to(dtype)
        if form == "bare":
            weight = bias = None
        input_bias = draw(n, seed=3).to(dtype) if form.endswith("bias") else None
        found = errors_of(x, weight, bias, dy, 1e-5, r, input_bias, ds)
        assert max(found.values()) <= 0.51, found


def test_float16_column_sums_of_terms_beyond_its_range(monkeypatch):
    """The terms cancel: what float32 loses of partial sums of 10^6 shows in a result of 10^2."""
    monkeypatch.setattr(plan, "PROGRAMS", 2)
    rows = draw(2, 16, seed=60).half()
    v = rows.double()
    xhat = (v - v.mean(-1, keepdim=True)) / (v.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    there = 2.0**13 * (-1.0) ** torch.arange(16).double()  # a row's own sum is small: no row is redone for its size
    back = -there * xhat[0] / xhat[1]
    upstream = torch.stack([there, torch.where(back.abs() < 2.0**15, back, 0.0)]).half()
    x, dy = rows.repeat_interleave(400, 0), upstream.repeat_interleave(400, 0)
    weight, bias = torch.ones(16).half(), torch.zeros(16).half()
    _, gradients = run(x, weight, bias, dy, 1e-5)
    exact = 400 * (upstream.double() * xhat).sum(0)
    within = exact.abs() < 60_000
    assert within.sum() >= 4
    assert torch.equal(gradients["weight"][within], exact[within].half())


@pytest.mark.parametrize("dtype", HALF, ids=name_of)
def test_sums_that_float32_cannot_hold(dtype):
    """Sums of 16-bit operands: beyond the largest number and back, far apart, constant, one number."""
    top = torch.finfo(dtype).max
    for n in (1, 40):
        z = draw(n, seed=50).clamp(-1, 1)
        one = torch.ones(n, dtype=torch.float64)
        x = torch.stack([top * one, z * top, 1e4 * one, 1000 * one, 1e-4 * z, top * one]).to(dtype)
        r = torch.stack([top / 2 * z, z * top, 1e-7 * z, 0.1 * z, top * one, -top * one]).to(dtype)
        for i in (None, draw(n, seed=51).to(dtype), (top * one).to(dtype)):
            found = errors_of(x, None, None, x.new_zeros(x.shape), 1e-5, r, i, forward=True)
            assert found["y"] <= Y_BOUND[dtype], (n, i, found)
            assert found["s"] <= 0.51, (n, i, found)


def test_three_operands_far_apart_do_not_lose_the_last():
    """Float32 pairs have no room for 1e4, 3e-4 and 1e-11 at once; (x + input_bias) + residual in float64 would be 0."""
    z, large = draw(1, 40), torch.full((1, 40), 1e20)
    far = [t.bfloat16() for t in (z * 0 + 1e4, 1e-11 * z, z[0] * 0 + 3e-4)]
    for x, r, i in (far, (large, -large, (1e-3 * z[0]).float())):
        found = errors_of(x, None, None, x * 0, 1e-5, r, i, forward=True)
        assert found["y"] <= Y_BOUND[x.dtype], found


def hidden(m, n):
    """x, r: in every other row one operand hides the other from a float64 sum; ordinary rows between."""
    z = draw(m, n, seed=60)
    x, r = draw(m, n, seed=61), draw(m, n, seed=62)
    step = 1.0 + torch.arange(n).double() * 2.0**-20  # slowly varying
    far = ((-6.1e16, 1e-3), (3.3e38, 1.0), (32.0, 1e-12), (1e9, 1e-6))
    for k in range(0, m, 2):
        large, small = far[k // 2 % len(far)]
        x[k], r[k] = small * z[k], large * (step if k // 2 == 3 else 1)
        if k % 4:
            x[k], r[k] = r[k].clone(), x[k].clone()
    return x, r


F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
HIDDEN = (  # x, residual, weight; columns; three operands
    (F32, F32, F32, 40, False),
    (F32, F32, F32, 33, True),
    (BF16, F32, BF16, 40, True),
    (F32, BF16, F32, 40, False),
    (BF16, BF16, F32, 40, False),
    (F32, F32, F32, 4_099, False),
    (BF16, BF16, BF16, 8_195, False),
    (F32, F32, F32, 16_389, False),
)


@pytest.mark.parametrize(("x_dtype", "r_dtype", "w_dtype", "n", "three"), HIDDEN)
def test_operands_hidden_from_a_float64_sum(x_dtype, r_dtype, w_dtype, n, three, monkeypatch):
    """y, dx, dresidual, dweight and dinput_bias are those of the exact sum, in every kernel."""
    monkeypatch.setattr(plan, "PROGRAMS", 6)  # hard rows and others share a program
    x, r = hidden(8 if n < 100 else 2, n)
    x, r = x.to(x_dtype), r.to(r_dtype)
    dy, ds = draw(*x.shape, seed=63).to(x_dtype), (draw(*x.shape, seed=64) * 1e-3).to(r_dtype)
    weight, bias = draw(n, seed=1).to(w_dtype), None
    i = (1e-3 * draw(n, seed=65)).to(x_dtype) if three else None
    pick = None if n < 100 else [0, 1, n - 1, *range(5, n, 901)]
    found = errors_of(x, weight, bias, dy, 1e-5, r, i, ds, pick=pick)
    assert max(found.values()) <= 0.51, found


@pytest.mark.parametrize("three", [False, True])
def test_a_sum_next_to_the_mean_of_large_sums(three):
    """A float64 sum of 2^54 and 1.9 loses the 1.9, by which the last element differs from the mean. Hunts found it."""
    n = 1_023
    x, r = torch.zeros(1, n), torch.full((1, n), 2.0**54)
    x[:, -1] = 1.9
    r[:, :-1:2] += 2.0**47
    r[:, 1:-1:2] -= 2.0**47
    i = torch.full((n,), 1e-3) if three else None
    y = run(x, None, None, torch.zeros_like(x), 0.0, r, i, torch.zeros_like(x))[0][0]
    assert at_the_mean(Row(summed(x, r, i), 0.0), float(y[0, -1])) <= 0.75


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_hard_rows_anywhere_in_a_program(dtype, monkeypatch):
    """A program redoes its first, a middle and its last row, and leaves the others as they are without them."""
    monkeypatch.setattr(plan, "PROGRAMS", 4)
    plain, residual = draw(37, 48, seed=73).to(dtype), draw(37, 48, seed=74).to(dtype)
    dy, ds = draw(37, 48, seed=75).to(dtype), draw(37, 48, seed=76).to(dtype)
    x = plain.clone()
    for row in (0, 17, 36):
        if dtype == torch.float16:
            dy[row] *= 2.0**14
        else:
            residual[row], x[row] = 2.0**16, 2.0**-20 * plain[row]
    outputs, gradients = run(x, None, None, dy, 1e-5, residual, None, ds)
    found = exact_errors((x, None, None, residual), outputs, (dy, ds), gradients, 1e-5)
    assert max(found.values()) <= 0.51, found
    ordinary = [row for row in range(37) if row not in (0, 17, 36)]
    _, alone = run(x[ordinary], None, None, dy[ordinary], 1e-5, residual[ordinary], None, ds[ordinary])
    assert torch.equal(gradients["x"][ordinary], alone["x"])


@pytest.mark.parametrize("n", [17, 100, 1000, 5000])
@pytest.mark.parametrize("residual", [False, True])
def test_float64_means_that_large_elements_leave_when_they_cancel(n, residual):
    """Pairs a, -a cancel; what is left, 2^-40 to 2^-75 of them, is the mean, and elements are as small as it is."""
    z = draw(n, seed=77)
    z[n // 2 :] *= torch.exp2(-40.0 - torch.arange(n - n // 2) % 36)
    z[n // 4 : 2 * (n // 4)] = -z[: n // 4]
    z[2 * (n // 4) : n // 2] = 0.0
    x = z[torch.randperm(n, generator=torch.Generator().manual_seed(78))][None]
    r = (draw(1, n, seed=79) * 2.0**-50 * x.abs()) if residual else None
    pick = None if n < 1000 else [*range(0, n, 7)]
    for eps in (1e-5, 0.0):
        found = errors_of(x, None, None, x, eps, r, pick=pick, forward=True)
        assert found["y"] <= Y_BOUND[torch.float64], found


def test_one_number_per_row_has_no_gradient_of_weight():
    """Three operands far apart, gradients that make 16-bit rows suspect."""
    for dtype in (*HALF, torch.float32):
        top = torch.finfo(dtype).max
        x = torch.tensor([[30.0], [3.0], [1e4]]).to(dtype)
        r, i = torch.tensor([[1e-17], [1e-7], [1e-7]]).to(dtype), torch.tensor([3e-5]).to(dtype)
        one = torch.ones(1, dtype=dtype)
        for eps in (1e-5, 1e30):
            _, gradients = run(x, one, one, x.new_full(x.shape, top), eps, r, i)
            assert float(gradients["weight"]) == 0, (dtype, eps, gradients["weight"])
            assert (gradients["x"] == 0).all(), (dtype, eps, gradients["x"])


@pytest.mark.parametrize("bare", [False, True])
def test_paired_kernel_beyond_float32(bare, monkeypatch):
    """g rstd, g, dy xhat and rstd^2 c2 leave float32 upwards and downwards; dx may be finite or not."""
    monkeypatch.setattr(plan, "PAIRED_ROWS", 1)
    monkeypatch.setattr(plan, "PAIRED_PROGRAMS", 3)
    n = 4_097
    z = [draw(n, seed=70 + k) for k in range(8)]
    top = torch.finfo(torch.float32).max
    rows = (  # x, dy
        (1e-6 * z[0], z[1] * 1e37),
        (1e-6 * z[0], 3.4e38 * z[0].sign()),
        (z[2] * 1e3, z[3].clamp(-1, 1) * top),
        (z[0].clamp(-1, 1) * top, z[0].clamp(-1, 1) * top),
        (1e-6 * z[4], z[5] * 1e-42),
        (z[4], z[5]),
        (1e11 * z[4], z[4] * 1e-14),
        (z[6], 0 * z[7]),
    )
    x, dy = (torch.stack([row[k] for row in rows]).float() for k in range(2))
    weight = None if bare else (draw(n, seed=1) * 4).float()
    bias = None if bare else draw(n, seed=2).float()
    pick = [0, 1, 2_048, n - 1, *range(5, n, 801)]
    found = errors_of(x, weight, bias, dy, 1e-5, pick=pick)
    assert found["x"] <= 0.7, found
    assert found.get("weight", 0) <= 2 and found.get("bias", 0) <= 0.501, found


def test_a_large_constant_row_with_a_tiny_eps_gives_the_bias():
    """rstd asks for a scale of 2^49, which the values have no room for."""
    x, bias = torch.full((1, 5), 1e36, dtype=torch.bfloat16), torch.arange(5).bfloat16()
    outputs, gradients = run(x, bias + 1, bias, torch.ones_like(x), 1e-30)
    assert torch.equal(outputs[0][0], bias)
    assert (gradients["weight"] == 0).all()
    assert gradients["x"].isfinite().all()


def test_only_what_exceeds_float32_is_infinite():
    n = 40
    x = (1e-6 * draw(2, n, seed=80)).float()
    dy = (draw(2, n, seed=81) * 2e36).float()
    outputs, gradients = run(x, None, None, dy, 1e-5)
    found = exact_errors((x, None, None), outputs, (dy,), gradients, 1e-5)
    assert found["x"] <= 0.501, found
    infinite = gradients["x"].isinf()
    assert infinite.any() and not infinite.all()


MIXED = (  # x, weight, bias, residual, input_bias
    (torch.bfloat16, torch.float32, torch.float32, None, None),
    (torch.float16, torch.float32, torch.float16, None, None),
    (torch.float32, torch.bfloat16, torch.float16, None, None),
    (torch.float32, torch.float64, torch.float64, None, None),
    (torch.bfloat16, torch.float64, None, None, None),
    (torch.float32, None, torch.float32, None, None),
    (torch.bfloat16, torch.bfloat16, torch.bfloat16, torch.bfloat16, None),
    (torch.bfloat16, torch.bfloat16, None, torch.float32, None),
    (torch.float32, torch.float32, torch.float32, torch.float16, torch.float32),
    (torch.float16, None, None, torch.float16, torch.float32),
    (torch.float32, torch.float32, torch.float32, torch.float64, None),
    (torch.float64, torch.float64, torch.float64, torch.float64, torch.float64),
)


@pytest.mark.parametrize("dtypes", MIXED, ids=lambda d: "-".join(name_of(t) for t in d))
def test_mixed_dtypes_and_residuals(dtypes):
    m, n = 3, 70
    operands = [None if d is None else draw(n, seed=k).to(d) for k, d in enumerate(dtypes)]
    operands[0] = (draw(m, n, seed=5) + 100).to(dtypes[0])
    ds = None
    if dtypes[3] is not None:
        operands[3] = (draw(m, n, seed=6) - 100).to(dtypes[3])
        ds = draw(m, n, seed=7).to(dtypes[3])
    dy = draw(m, n, seed=8).to(dtypes[0])
    x, weight, bias, residual, input_bias = operands
    outputs, gradients = run(x, weight, bias, dy, 1e-5, residual, input_bias, ds)
    upstream = (dy,) if ds is None else (dy, ds)
    found = exact_errors(operands, outputs, upstream, gradients, 1e-5)
    assert [o.dtype for o in outputs] == [d for d in (dtypes[0], dtypes[3]) if d is not None]
    for name, tensor in (("x", x), ("weight", weight), ("bias", bias), ("residual", residual)):
        if tensor is not None:
            assert gradients[name].dtype == tensor.dtype
    wide = torch.float64 in (dtypes[0], dtypes[3], dtypes[4])
    assert found["y"] <= (Y_BOUND[dtypes[0]] if not wide else 4.0), found
    assert found.get("s", 0.0) <= 0.5001, found
    assert found["x"] <= X_BOUND[dtypes[0]], found
    for name, dtype in zip(("weight", "bias", "residual", "input_bias"), dtypes[1:], strict=True):
        if dtype is not None:
            # float64 vectors of float32 rows: the moments hold 53 bits less log2(8 n)
            bound = X_BOUND[dtype] if dtype != torch.float64 or wide else 600.0
            assert found[name] <= bound, (name, found)


def test_the_sum_is_not_rounded_before_it_is_normalised():
    """1000 + r in bfloat16 is a constant row; the exact sum is not."""
    x = torch.full((1, 64), 1000.0, dtype=torch.bfloat16)
    residual = (draw(1, 64) * 0.1).bfloat16()
    y, s = layer_norm_residual(x.to(DEVICE), residual.to(DEVICE))
    assert (s == 1000).all()
    found = exact_errors((x, None, None, residual), [y.cpu(), s.cpu()], (), None, 1e-5)
    assert found["y"] <= Y_BOUND[torch.bfloat16], found


@pytest.mark.parametrize("n", [2048, 4096])
@pytest.mark.parametrize("three", [False, True])
def test_packed_sums_are_those_of_operands_read_one_by_one(n, three):
    """Weight and bias of another dtype are read one by one, and so is all else then."""
    torch.manual_seed(n)
    x, r = (torch.randn(9, n, dtype=torch.bfloat16, device=DEVICE) for _ in range(2))
    i, w, b = (torch.randn(n, dtype=torch.bfloat16, device=DEVICE) for _ in range(3))
    x[1], r[1] = 3.0, -3.0
    x[2, 1::2], r[3, ::2] = torch.inf, torch.nan
    x[4], r[4] = 2.0**127, -(2.0**127)
    x[5] *= 1e-30
    r[5] *= 1e-36
    x[6, n - 1] = 1e30
    r[7] = 0.0
    x[7, 0] = -0.0
    call = layer_norm_residual_bias if three else layer_norm_residual
    operands = (x, r, i) if three else (x, r)
    for weight, bias in ((w, b), (w, None), (None, b)):
        packed = call(*operands, weight, bias)
        single = call(*operands, *(None if t is None else t.float() for t in (weight, bias)))
        for got, expected in zip(packed, single, strict=True):
            assert got.dtype == expected.dtype == torch.bfloat16
            assert torch.equal(got.view(torch.int16), expected.view(torch.int16))


def test_constant_rows_give_the_bias_and_without_eps_nan():
    for dtype in DTYPES:
        for n in (1, 3, 49, 98, 1_000):  # 49 * RN(1 / 49) != 1: the mean needs its correction
            for value in (1.0, 1.1):
                x = torch.full((2, n), value, dtype=torch.float64).to(dtype).to(DEVICE)
                bias = draw(n).to(dtype).to(DEVICE)
                assert torch.equal(layer_norm(x, bias=bias), bias.expand(2, n))
                assert (layer_norm(x) == 0).all()
        assert layer_norm(x, eps=0.0).isnan().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("n", [1, 3])
def test_an_infinite_operand_makes_an_infinite_sum(n, dtype):
    inf = math.inf
    cases = [(inf, 1.0, 0.0), (-inf, 1.0, 2.0), (1.0, inf, 1.0), (0.0, 0.0, -inf), (inf, inf, 1.0), (inf, 0.0, inf)]
    for values in [*cases, (inf, -inf, 0.0), (inf, 0.0, -inf), (0.0, inf, -inf), (math.nan, inf, 1.0)]:
        x, input_bias, residual = (torch.full((2, n), v, dtype=dtype, device=DEVICE) for v in values)
        y, s = layer_norm_residual_bias(x, residual, input_bias[0])
        assert torch.equal(s.nan_to_num(7.0, 8.0, 9.0), (x + input_bias + residual).nan_to_num(7.0, 8.0, 9.0)), values
        assert y.isnan().all()
        y, s = layer_norm_residual(x, residual)
        assert torch.equal(s.nan_to_num(7.0, 8.0, 9.0), (x + residual).nan_to_num(7.0, 8.0, 9.0)), values


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_the_gradient_of_one_number_per_row_is_that_of_the_sum(dtype):
    weight = draw(1, seed=5).double().to(DEVICE)  # dy weight is rounded: its error is no gradient
    x, dy, ds = (draw(3, 1, seed=k).to(dtype).to(DEVICE) for k in range(3))
    x[0] = torch.finfo(dtype).max
    for w in (weight, weight.to(dtype)):
        _, got = run(x, w, None, dy, 1e-5)
        assert torch.equal(got["x"].cpu(), torch.zeros(3, 1, dtype=dtype))
        _, got = run(x, w, None, dy, 1e-5, residual=torch.ones_like(x), ds=ds)
        assert torch.equal(got["x"].cpu(), ds.cpu())


def test_a_row_does_not_depend_on_the_others_and_runs_repeat():
    for dtype in DTYPES:
        x, dy = draw(9, 65).to(dtype), draw(9, 65, seed=1).to(dtype)
        weight, bias = draw(65, seed=2).to(dtype), draw(65, seed=3).to(dtype)
        (y,), gradients = run(x, weight, bias, dy, 1e-5)
        (again,), repeated = run(x, weight, bias, dy, 1e-5)
        (part,), some = run(x[4:6], weight, bias, dy[4:6], 1e-5)
        assert torch.equal(y, again)
        assert all(torch.equal(gradients[k], repeated[k]) for k in gradients)
        assert torch.equal(y[4:6], part)
        assert torch.equal(gradients["x"][4:6], some["x"])


@pytest.mark.parametrize("centre", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_several_rows_per_program(dtype, centre, monkeypatch):
    """The loop over rows, which prefetches: few programs, padded rows, against one row each."""
    norm, wide = layer_norm if centre else rms_norm, draw(2, 11, 70).to(dtype)
    x, dy = wide[0, :, :60], wide[1, :, 3:63]
    weight, bias = draw(60, seed=2).to(dtype), draw(60, seed=3).to(dtype) if centre else None

    def gradients(rows=slice(None)):
        return called(norm, 1e-5, dy[rows], None, x=x[rows], weight=weight, bias=bias)

    _, alone = gradients()
    monkeypatch.setattr(plan, "PROGRAMS", 4)
    (y,), found = gradients()
    (part,), some = gradients(slice(4, 6))
    assert torch.equal(found["x"], alone["x"])
    assert torch.equal(y[4:6], part) and torch.equal(found["x"][4:6], some["x"])
    found = exact_errors((x, weight, bias), [y], (dy,), found, 1e-5, centre=centre)
    assert found["x"] <= (X_BOUND[dtype] if centre or dtype != torch.float64 else 8.0) and found["y"] <= Y_BOUND[dtype]


def test_more_partial_sums_than_one_block_of_them():
    """257 programs, one row each: their sums of columns are added up 256 at a time."""
    x, dy = draw(257, 3).bfloat16(), draw(257, 3, seed=1).bfloat16()
    weight, bias = draw(3, seed=2).bfloat16(), draw(3, seed=3).bfloat16()
    (y,), gradients = run(x, weight, bias, dy, 1e-5)
    assert_within(exact_errors((x, weight, bias), [y], (dy,), gradients, 1e-5), torch.bfloat16)


@pytest.mark.parametrize("norm", [layer_norm_residual, rms_norm_residual])
def test_gradients_of_x_and_residual_may_be_changed_independently(norm):
    x = draw(2, 8).to(DEVICE).requires_grad_()
    residual = draw(2, 8, seed=1).to(DEVICE).requires_grad_()
    y, s = norm(x, residual)
    (y.square().sum() + s.sum()).backward()
    want = residual.grad.clone()
    x.grad.zero_()
    assert torch.equal(residual.grad, want)


@pytest.mark.parametrize("norm", [layer_norm_residual, rms_norm_residual])
def test_only_the_sum_used(norm):
    x = draw(2, 8).to(DEVICE).requires_grad_()
    weight = draw(8).to(DEVICE).requires_grad_()
    _, s = norm(x, draw(2, 8, seed=1).to(DEVICE), weight)
    of_x, of_weight = torch.autograd.grad(s.sum(), (x, weight))
    assert (of_x == 1).all() and (of_weight == 0).all()


@pytest.mark.parametrize("columns", [256, 512])
@pytest.mark.parametrize("centre", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_rows_that_share_a_program_have_the_bits_of_rows_alone(monkeypatch, dtype, centre, columns):
    generator = torch.Generator().manual_seed(columns)
    x = torch.randn(7, columns, generator=generator)
    x[1], x[2], x[3, 5], x[4, 6], x[5], x[6] = 7, 0, torch.inf, torch.nan, x[5] + 1000, x[6] * 1e-5
    x, w, b = (t.to(DEVICE, dtype) for t in (x, *torch.randn(2, columns, generator=generator)))
    operands = [(w, b if centre else None), (w.float(), None), (None, None)]
    together = [launch.launch_forward(x, None, None, *each, 1e-5, centre) for each in operands]
    planned = launch.planned_forward
    monkeypatch.setattr(launch, "planned_forward", lambda *a, **k: dataclasses.replace(planned(*a, **k), rows=1))
    for each, (y, _, stats) in zip(operands, together, strict=True):
        alone = launch.launch_forward(x, None, None, *each, 1e-5, centre)
        assert torch.equal(y.view(torch.int16), alone[0].view(torch.int16))
        assert torch.equal(stats.view(torch.int64), alone[2].view(torch.int64))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=name_of)
def test_an_upstream_brings_back_what_is_subnormal_in_float32(dtype):
    """xhat of 2^-140, beside large elements of opposite sign, times an upstream of 2^37."""
    n, info = 66, torch.finfo(dtype)
    half = draw(2, n // 2, seed=4)
    half[:, 1::2] *= max(2.0**-110, info.smallest_normal)
    half[:, ::2] *= min(2.0**30, info.max / 8)
    x = torch.stack([half, -half], 2).flatten(1).to(dtype)  # the mean is 0
    dy = (draw(2, n, seed=5) * min(2.0**37, info.max / 8)).to(dtype)
    weight = torch.ones(n, dtype=dtype, device=DEVICE, requires_grad=True)
    y = layer_norm(x.to(DEVICE), weight, torch.zeros(n, dtype=dtype, device=DEVICE), eps=1e-5)
    (got,) = torch.autograd.grad(y, weight, dy.to(DEVICE))
    terms = dy.double() * x.double() / (x.double().square().mean(1, keepdim=True) + 1e-5).sqrt()
    unit = 2.0 ** terms.abs().sum(0).log2().floor().clamp_min(math.log2(info.smallest_normal)) * info.eps
    assert ((got.cpu().double() - terms.sum(0)).abs() <= 0.51 * unit).all()
