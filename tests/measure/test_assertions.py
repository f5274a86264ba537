"""`verify.assert_ulp` in somebody's own test."""

from __future__ import annotations

import pytest
import torch
from mpmath import mp

import verify
from verify.truth.figure import shown

X = torch.tensor([-30.0, -3.0, 0.5, 2.0])


def test_a_good_kernel_passes() -> None:
    verify.assert_ulp(torch.nn.functional.silu(X), op="silu", inputs=(X,), max_ulp=4)


def test_a_lost_tail_fails_and_shows_the_element() -> None:
    got = X * 0.5 * (1 + torch.erf(X * 0.5**0.5))
    with pytest.raises(AssertionError) as caught:
        verify.assert_ulp(got, op="gelu", inputs=(X,), max_ulp=4)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("gelu.y is ")
    assert lines[0].endswith("off at flat index 1, the bound is 4")
    assert lines[1].startswith("  got   -0.0040")
    with mp.workdps(40):
        exact = mp.nstr(-3 * mp.ncdf(-3), 30)
    assert lines[2] == f"  truth {exact}"


def test_nan_never_passes() -> None:
    got = torch.nn.functional.silu(X)
    got[2] = torch.nan
    with pytest.raises(AssertionError, match="is inf ULP off at flat index 2"):
        verify.assert_ulp(got, op="silu", inputs=(X,), max_ulp=1e30)


def test_gradients_need_their_upstream() -> None:
    x = X.clone().requires_grad_(True)
    dy = torch.tensor([1.0, -2.0, 0.5, 3.0])
    (dx,) = torch.autograd.grad(torch.nn.functional.silu(x), x, dy)
    verify.assert_ulp(dx, op="silu", inputs=(x,), result="dx", upstream=(dy,), max_ulp=8)
    with pytest.raises(AssertionError, match="silu.dx is "):
        verify.assert_ulp(dx * 1.001, op="silu", inputs=(x,), result="dx", upstream=(dy,), max_ulp=8)
    with pytest.raises(verify.UsageError, match="dx needs upstream"):
        verify.assert_ulp(dx, op="silu", inputs=(x,), result="dx", max_ulp=8)


def test_a_wrong_shape_is_an_assertion() -> None:
    with pytest.raises(AssertionError, match=r"silu.y has shape \(4,\); received \(2,\)"):
        verify.assert_ulp(X[:2], op="silu", inputs=(X,), max_ulp=4)


def test_the_correct_bound_is_the_sharp_one() -> None:
    got = (X.double() / (1 + torch.exp(-X.double()))).float()
    verify.assert_ulp(got, op="silu", inputs=(X,), max_ulp=0.5)
    with pytest.raises(AssertionError):
        verify.assert_ulp(torch.nextafter(got, torch.tensor(9.0)), op="silu", inputs=(X,), max_ulp=0.5)


def test_the_error_has_the_digits_of_a_bound_and_is_rounded_up() -> None:
    x = torch.tensor([0.5])
    got = torch.nextafter(torch.nn.functional.silu(x.double()).float(), torch.tensor(9.0))
    with pytest.raises(AssertionError) as caught:
        verify.assert_ulp(got, op="silu", inputs=(x,), max_ulp=0.1)
    told = str(caught.value).split()[2]
    with mp.workdps(40):
        error = abs(mp.mpf(got.item()) - mp.mpf(0.5) / (1 + mp.exp(-0.5))) * mp.mpf(2) ** 25
    assert told == shown(float(error)) and float(told) >= error
