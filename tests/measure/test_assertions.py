"""`verify.assert_ulp` in somebody's own test."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch
from mpmath import mp

import verify
from verify.cases import Case
from verify.cli import parser
from verify.declare.declaration import Kernel
from verify.measure.call import run_kernel
from verify.truth import formats
from verify.truth.figure import shown
from verify.truth.ulp import pattern_at

X = torch.tensor([-30.0, -3.0, 0.5, 2.0])


def test_a_good_kernel_passes() -> None:
    verify.assert_ulp(torch.nn.functional.silu(X), op="silu", inputs=(X,), max_ulp=4)


def test_a_lost_tail_fails_and_shows_the_element() -> None:
    got = X * 0.5 * (1 + torch.erf(X * 0.5**0.5))
    with pytest.raises(AssertionError) as caught:
        verify.assert_ulp(got, op="gelu", inputs=(X,), max_ulp=4)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("gelu.y is ")
    assert lines[0].endswith("off at [1], the bound is 4; 1 of 4 elements fail")
    assert lines[1] == "  x       -3 (0xc0400000)"
    assert lines[2].startswith("  got     -0.0040")
    with mp.workdps(40):
        exact = mp.nstr(-3 * mp.ncdf(-3), 30)
    assert lines[3] == f"  truth   {exact}"
    assert len(lines) == 5


def explained(message: str, kernel: Kernel) -> tuple[str, str]:
    """What the message got, and what the case of its explain command gives a declared kernel."""
    got, command = re.search(r"got +\S+ \((\S+)\)", message), message.partition("explain ")[2]
    options = parser().parse_args(shlex.split(command)[1:])
    assert got is not None and (options.target, options.handler.__module__) == ("FILE.py::KERNEL", "verify.cli.explain")
    found = run_kernel(kernel, Case.from_json(options.case), "cpu").results[options.result]
    return got[1], formats.of(found.dtype).hex(pattern_at(found, options.index))


@pytest.mark.parametrize("result", ["y", "dx"])
def test_the_command_of_the_message_is_about_the_element(result: str) -> None:
    rough = verify.kernel(op="gelu", dtypes=["float32"], max_ulp=4)(lambda x: x * 0.5 * (1 + torch.erf(x * 0.5**0.5)))
    x, dy = X.reshape(2, 2).clone().requires_grad_(True), torch.tensor([[1.0, 3.0], [2.0, 0.5]])
    y = rough.function(x)
    (dx,) = torch.autograd.grad(y, x, dy)
    with pytest.raises(AssertionError) as caught:
        verify.assert_ulp({"y": y, "dx": dx}[result], op="gelu", inputs=(x,), max_ulp=1, result=result, upstream=(dy,))
    got, again = explained(str(caught.value), rough)
    assert got == again


def test_rows_are_spelled_out_where_they_are_short() -> None:
    one_pass = verify.kernel(op="layer_norm", dtypes=["float32"], params={"eps": 1e-5})(rough_norm)
    x = torch.tensor([[1000.0, 1001.0, 1000.5], [0.0, 1.0, 2.0]])
    with pytest.raises(AssertionError, match=r"scaled off at \[0, .\], the bound is 4; 2 of 6 elements fail") as caught:
        verify.assert_ulp(rough_norm(x, None, None), op="layer_norm", inputs=(x,), params={"eps": 1e-5}, max_ulp=4)
    got, again = explained(str(caught.value), one_pass)
    assert got == again
    wide = torch.ones(2, 400) * 1000
    with pytest.raises(AssertionError, match=r"explain verify run FILE.py --json run.json, then verify explain --run"):
        verify.assert_ulp(wide, op="layer_norm", inputs=(wide,), params={"eps": 1e-5}, max_ulp=4)


def test_a_product_and_integers_name_a_command_too() -> None:
    rough = verify.kernel(op="linear", operands=["x", "weight"], dtypes=["float32"])(lambda x, w: (x @ w.T) * 1.001)
    x, weight = torch.arange(6.0).reshape(2, 3), torch.arange(12.0).reshape(4, 3) / 7
    with pytest.raises(AssertionError) as caught:
        verify.assert_ulp(rough.function(x, weight), op="linear", inputs=(x, weight), max_ulp=1)
    got, again = explained(str(caught.value), rough)
    assert got == again
    loss = verify.kernel(
        like=torch.nn.functional.cross_entropy,
        shapes={"logits": "n v", "label": "n"},
        integers={"label": "0 <= label < v"},
        dtypes=["float32"],
    )(lambda logits, label: logits)
    with pytest.raises(AssertionError, match="explain verify run FILE.py"):  # a case cannot hold given integers
        verify.assert_ulp(torch.tensor(9.0), op=loss.op, inputs=(x, torch.tensor([1, 2])), max_ulp=1)


def rough_norm(x, weight, bias, *, eps=1e-5):
    mean = x.mean(-1, keepdim=True)
    return (x - mean) * torch.rsqrt((x * x).mean(-1, keepdim=True) - mean * mean + eps)


def test_the_traceback_ends_at_the_line_of_the_test() -> None:
    with pytest.raises(AssertionError) as caught:
        verify.assert_ulp(X * 2, op="silu", inputs=(X,), max_ulp=4)
    shown = caught.traceback.filter(caught)
    assert [Path(str(entry.path)).name for entry in shown] == ["test_assertions.py"]


def test_nan_never_passes() -> None:
    got = torch.nn.functional.silu(X)
    got[2] = torch.nan
    with pytest.raises(AssertionError, match=r"is inf ULP off at \[2\]"):
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
