"""kernels/rms_norm.py against exact sums: every path and regime, layouts, special values, contract, operators.

Layer norm's kernels run here without a mean; what both share is tested in test_layer_norm.py."""

from __future__ import annotations

import math

import pytest
import torch

from kernels.layer_norm import plan
from kernels.layer_norm.operators import forward_op
from kernels.rms_norm import rms_norm, rms_norm_residual
from tests.kernels.test_layer_norm import DEVICE, DTYPES, FORMATS, Y_BOUND, called, draw, name_of
from tests.kernels.test_layer_norm import exact_errors as errors_of_norm

X_BOUND = {torch.float64: 8.0, torch.float32: 0.501, torch.float16: 0.51, torch.bfloat16: 0.502}


pytestmark = pytest.mark.usefixtures("norms_are_planned_at_each_call")


def run(x, weight, dy, eps, residual=None, ds=None):
    """Outputs and gradients, by name."""
    norm = rms_norm if residual is None else rms_norm_residual
    return called(norm, eps, dy, ds, x=x, residual=residual, weight=weight)


def exact_errors(x, weight, dy, eps, outputs, gradients, residual=None, ds=None, pick=None):
    """The worst scaled error of each result; pick: the columns that are judged."""
    upstream = [t for t in (dy, ds) if t is not None]
    return errors_of_norm((x, weight, None, residual), outputs, upstream, gradients, eps, pick, centre=False)


def errors_of(x, weight, dy, eps, residual=None, ds=None, pick=None):
    """The worst scaled error of each result of a call."""
    return exact_errors(x, weight, dy, eps, *run(x, weight, dy, eps, residual, ds), residual, ds, pick)


def assert_within(found, dtype):
    assert found["y"] <= Y_BOUND[dtype], found
    assert found.get("s", 0.0) <= 0.5001, found
    assert all(found.get(name, 0.0) <= X_BOUND[dtype] for name in ("x", "residual", "weight")), found


def regime(name, m, n, dtype):
    """(x, dy, eps) of one regime, in the ranges that the dtype has."""
    z, dy, eps = draw(m, n, seed=len(name) + n), draw(m, n, seed=3), 1e-5
    info = torch.finfo(dtype)
    least = info.smallest_normal * info.eps
    places = torch.arange(m * n).reshape(m, n)
    if name == "outlier":
        z[:, 0], z[:, n // 2] = 1e4, -3e4
    elif name == "far from zero":
        z += 1e4
    elif name == "small":
        z, eps = z * 1e-6, 1e-12
    elif name == "subnormal":
        z, eps = (5 * places % 7 - 3).double() * least, 0.0
        dy *= 2.0 ** (FORMATS[dtype][1] // 2)  # keeps most of dx finite
    elif name == "largest":
        z = z.sign() * info.max
    elif name == "spread":  # from the largest number to the smallest in one row: an xhat of 2^-250 is not 0
        z = z.sign() * 2.0 ** (places % 5 * (math.log2(info.max) - math.log2(least)) / 4.1 + math.log2(least))
        eps = 0.0
    elif name == "tiny beside small":  # products of xhat with sums underflow float32, times rstd they would not
        z, eps = torch.where(places % 3 == 0, torch.tensor(2.0**-40).double(), least), 0.0
        dy = dy * 2.0**-60
    elif name == "b beyond float32":  # rstd^2 c2 underflows, times rows of this size it would not
        z, dy, eps = z * 2.0**40, torch.where(places % n == 1 % n, 2.0**-60, 0.0), 0.0
    elif name == "sum beyond float32":  # the sum of dy x underflows, times rstd^3 it would not
        z, dy, eps = z * 2.0**-38, torch.where(places % n == 1 % n, 2.0**-110, 0.0), 0.0
    elif name == "tiny beside large":  # xhat is subnormal or 0 in float32, what it is multiplied by is large
        z[:, ::3] *= max(2.0**-120, least)
        z[:, 1::3] *= min(2.0**48, info.max / 8)
        z[-1, 1::3] *= min(2.0**-20, 64 * 8 / info.max)  # a row that is not redone
        dy[:, ::5] *= max(2.0**-120, least)
        dy[:, 1::2] *= min(2.0**90, info.max / 8)
        dy[-1, 1::2] *= 2.0**-60
    elif name == "upstream small":
        dy = dy * max(2.0**-90, least)
    elif name == "upstream large":
        dy = dy * info.max / 8
    elif name == "a row of zeros":
        z[0] = 0.0
    elif name == "one upstream":
        dy = torch.where(places == 1, dy, 0.0)
    return z.to(dtype), dy.to(dtype), eps


REGIMES = (
    "randn", "outlier", "far from zero", "small", "subnormal", "largest", "spread", "tiny beside small",
    "b beyond float32", "sum beyond float32", "tiny beside large",
    "upstream small", "upstream large", "a row of zeros", "one upstream",
)  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("name", REGIMES)
def test_every_regime_is_within_its_bound(name, dtype):
    if dtype == torch.float16 and (name == "tiny beside small" or "beyond" in name):
        pytest.skip("the format has no such numbers")
    if dtype == torch.float64 and name in ("largest", "spread", "upstream large"):
        pytest.skip("no wider format holds what these rows are made of")
    for m, n in ((2, 1), (3, 67)):
        x, dy, eps = regime(name, m, n, dtype)
        weight = draw(n, seed=1).to(dtype)
        if name == "upstream large" or "beyond" in name:
            weight = weight.sign() / 2
        for w in (weight, *[None] * (dtype == torch.float32)):  # absent alike in every dtype
            assert_within(errors_of(x, w, dy, eps), dtype)


@pytest.mark.parametrize("n", [33, 256])  # one row and four rows of a program
def test_a_large_weight_brings_a_tiny_bfloat16_number_back(n):
    """xhat of 2^-140 is no number of float32's; times 4,096 it is one of bfloat16's."""
    x = draw(4, n) * 2.0**-64
    x[:, 0], x[3, 0] = 2.0**80, 2.0**30
    weight, dy = torch.full((n,), 4096.0), draw(4, n, seed=3).bfloat16()
    weight[::5] = 2.0**-100
    for residual in (None, torch.zeros(4, n).bfloat16()):
        ds = None if residual is None else torch.zeros(4, n).bfloat16()
        given = x.bfloat16(), weight.bfloat16(), dy, 1e-6
        assert_within(errors_of(*given, residual, ds), torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=name_of)
def test_float32_weights_of_16_bit_sums_have_gradients_of_float32(dtype):
    """One number makes up the row and a float32 does not hold it: squared without its last bits, it is 2^-24 off."""
    x, residual = torch.zeros(1, 9).to(dtype), torch.zeros(1, 9).to(dtype)
    eps = torch.finfo(dtype).eps
    x[0, 4], residual[0, 4] = 2.0**-15 * (1 + 1 / eps), 2.0**9 * (1 + eps)
    dy, weight = torch.ones(1, 9).to(dtype), torch.ones(9)
    found = errors_of(x, weight, dy, 1e-6, residual, torch.zeros_like(dy))
    assert found["weight"] <= 0.501


@pytest.mark.parametrize("name", ["randn", "largest", "far from zero", "a row of zeros"])
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_sums_with_a_residual_are_within_their_bound(dtype, name):
    """bfloat16 numbers near the largest add up beyond float32; elsewhere a residual cancels most of x."""
    if dtype == torch.float64 and name == "largest":
        pytest.skip("the sum leaves the format")
    x, dy, eps = regime(name, 3, 67, dtype)
    residual = (x.double() * torch.tensor([-1, 0.9, -0.999]).double()[:, None]).to(dtype)
    if name == "far from zero":
        residual = (-x.double() + draw(3, 67, seed=8)).to(dtype)
    weight, ds = draw(67, seed=1).to(dtype), draw(3, 67, seed=4).to(dtype)
    outputs, gradients = run(x, weight, dy, eps, residual, ds)
    within = torch.isfinite(outputs[1]).all(-1)  # a sum beyond the format has no s
    if name == "largest":
        assert within.tolist() == [True, False, True] and torch.isfinite(outputs[0]).all()
    outputs[1] = torch.where(within[:, None], outputs[1], torch.nan_to_num(outputs[1]))
    found = exact_errors(x, weight, dy, eps, outputs, gradients, residual, ds)
    if name == "largest":
        del found["s"]
    assert_within(found, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_the_residual_keeps_its_dtype(dtype):
    x, residual = draw(3, 40).to(dtype), draw(3, 40, seed=1).float()
    weight, dy, ds = draw(40, seed=2).float(), draw(3, 40, seed=3).to(dtype), draw(3, 40, seed=4).float()
    outputs, gradients = run(x, weight, dy, 1e-6, residual, ds)
    assert [t.dtype for t in outputs] == [dtype, torch.float32]
    assert gradients["residual"].dtype == gradients["weight"].dtype == torch.float32
    found = exact_errors(x, weight, dy, 1e-6, outputs, gradients, residual, ds)
    assert found["y"] <= Y_BOUND[dtype] and found["x"] <= X_BOUND[dtype]
    assert max(found["residual"], found["weight"], found["s"]) <= 0.501


@pytest.mark.parametrize("n", [4_099, 17_000])  # float32: the paired kernel, and one that goes block by block
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_long_rows(dtype, n, monkeypatch):
    monkeypatch.setattr(plan, "PAIRED_ROWS", 1)
    x, dy, eps = regime("outlier", 2, n, dtype)
    weight = draw(n, seed=1).to(dtype)
    pick = sorted({0, 1, 2_047, 2_048, 4_097, n - 1, *range(5, n, 401)})
    found = errors_of(x, weight, dy, eps, pick=pick)
    paired = dtype == torch.float32 and n < 8_192
    assert found["y"] <= Y_BOUND[dtype] and found["x"] <= (0.7 if paired else X_BOUND[dtype]), found
    assert found["weight"] <= (2.0 if paired else X_BOUND[dtype]), found


@pytest.mark.parametrize(
    "name", ["small", "largest", "tiny beside large", "upstream small", "upstream large", "a row of zeros"]
)
def test_the_paired_kernel_in_hard_regimes(name, monkeypatch):
    monkeypatch.setattr(plan, "PAIRED_ROWS", 1)
    n = 4_099
    x, dy, eps = regime(name, 2, n, torch.float32)
    found = errors_of(x, None, dy, eps, pick=[0, 1, n - 1, *range(5, n, 401)])
    assert found["x"] <= 1.5 and found["y"] <= 0.501, found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=name_of)
def test_column_sums_over_programs_with_hard_rows(dtype, monkeypatch):
    """A row that float32 cannot hold is redone, and the sums that it is part of."""
    monkeypatch.setattr(plan, "PROGRAMS", 2)
    x, dy, weight = draw(7, 33).to(dtype), draw(7, 33, seed=1).to(dtype), draw(33, seed=2).to(dtype)
    x[3], dy[3] = x[3] * 2.0**-60, dy[3] * 2.0**-115
    assert_within(errors_of(x, weight, dy, 0.0), dtype)


@pytest.mark.parametrize("n", [64, 128])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=name_of)
def test_heads_that_float32_cannot_hold_share_a_tile_with_others(dtype, n, monkeypatch):
    """Tiny and large rows, rows of zeros and upstreams of 0 or 2^50 are right and change no bit of another row."""
    monkeypatch.setattr(plan, "PROGRAMS", 4)
    x, dy, weight, eps = draw(21, n), draw(21, n, seed=1), draw(n, seed=2).to(dtype), 1e-14
    x[3], x[5], dy[7] = x[3] * 2.0**-21, 0.0, 0.0
    if dtype == torch.bfloat16:
        x[9], dy[11], x[13], dy[15] = x[9] * 2.0**100, dy[11] * 2.0**50, x[13] * 2.0**-60, dy[15] * 2.0**-115
    x, dy = x.to(dtype), dy.to(dtype)
    (y,), gradients = run(x, weight, dy, eps)
    assert_within(exact_errors(x, weight, dy, eps, [y], gradients), dtype)
    for i in (3, 4, 5, 8, 9, 11, 12, 13, 15, 20):
        (alone,), some = run(x[i : i + 1], weight, dy[i : i + 1], eps)
        assert torch.equal(y[i], alone[0]) and torch.equal(gradients["x"][i], some["x"][0])


def test_statistics_of_16_bit_rms_norm_are_two_float32_numbers_a_row():
    for dtype, of_weight, residual, centre, columns, wanted in (
        (torch.bfloat16, torch.bfloat16, False, False, 2, torch.float32),
        (torch.bfloat16, torch.float32, False, False, 2, torch.float64),
        (torch.bfloat16, torch.bfloat16, True, False, 2, torch.float64),
        (torch.float32, torch.float32, False, False, 2, torch.float64),
        (torch.bfloat16, torch.bfloat16, False, True, 4, torch.float64),
    ):
        x, weight = draw(3, 64).to(dtype).to(DEVICE), draw(64).to(of_weight).to(DEVICE)
        arguments = x, x if residual else None, None, weight, None, 1e-6, centre
        for stats in (forward_op(*arguments)[2], forward_op.registered(*(a for a in arguments))[2]):
            assert (stats.shape, stats.dtype) == ((3, columns), wanted)


@pytest.mark.parametrize("n", [33, 64])
@pytest.mark.parametrize("scale", [2.0**-100, 2.0**100])
def test_a_row_that_float32_cannot_hold_adds_nothing_where_its_upstream_is_zero(scale, n):
    x, dy, weight = draw(3, n).bfloat16(), draw(3, n, seed=1).bfloat16(), draw(n, seed=2).bfloat16()
    x[1], dy[1] = x[1] * scale, 0.0
    assert_within(errors_of(x, weight, dy, 0.0), torch.bfloat16)


@pytest.mark.parametrize("n", [33, 128])
def test_a_gradient_of_float16_that_large_terms_leave_when_they_cancel(n):
    """One element is almost the whole row, so g and xhat c2 cancel: rstd needs more bits than float32 has."""
    x, dy, weight = torch.full((9, n), 3e-6).half(), torch.full((9, n), -4e4).half(), torch.zeros(n).half()
    weight[5] = 1e4
    x[:, 5] = torch.linspace(0.5, 0.9, 9)
    dx = run(x, weight, dy, 0.0)[1]["x"].double()
    wide = x.double().requires_grad_()
    torch.nn.functional.rms_norm(wide, (n,), weight.double(), 0.0).backward(dy.double())
    assert (dx - wide.grad).abs().max() <= 0.51 * 32  # the spacing of the largest numbers


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_special_values_and_signs_of_zeros(dtype):
    x = torch.tensor([[1.0, -math.inf, -3.0, 0.0], [1.0, math.nan, 2.0, 3.0], [-0.0, 2.0, 0.0, -1.0]], dtype=dtype)
    y = rms_norm(x.to(DEVICE)).cpu()
    assert y[0].isnan().tolist() == [False, True, False, False] and y[1].isnan().all()
    assert torch.equal(y[0, [0, 2, 3]], torch.zeros(3, dtype=dtype))
    assert torch.signbit(y[0, [0, 2, 3]]).tolist() == [False, True, False]
    assert torch.signbit(y[2]).tolist() == [True, False, False, True]
    summed, _ = rms_norm_residual(x.to(DEVICE), torch.zeros_like(x).to(DEVICE))
    assert torch.equal(summed.cpu().isnan(), y.isnan())
