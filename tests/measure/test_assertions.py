"""`verify.assert_close` in somebody's own test."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import verify

X = torch.tensor([-30.0, -3.0, 0.5, 2.0])


def test_the_limit_that_a_caller_states_is_the_sharp_one() -> None:
    silu = torch.nn.functional.silu
    exact = (X.double() / (1 + torch.exp(-X.double()))).float()
    verify.assert_close(exact, like=silu, inputs=(X,), max_ulp=0.5)
    with pytest.raises(AssertionError, match=r"4 of 4|silu.y is wrong"):
        verify.assert_close(torch.nextafter(exact, torch.tensor(9.0)), like=silu, inputs=(X,), max_ulp=0.5)
    verify.close_to(like=silu, inputs=(X,), max_ulp=4)(silu(X))
    with pytest.raises(verify.UsageError, match=r"max_ulp is a finite number of at least 0.5; received 0.25"):
        verify.assert_close(exact, like=silu, inputs=(X,), max_ulp=0.25)


def test_the_traceback_ends_at_the_line_of_the_test() -> None:
    with pytest.raises(AssertionError) as caught:
        verify.assert_close(X * 2, like=torch.nn.functional.silu, inputs=(X,))
    shown = caught.traceback.filter(caught)
    assert [Path(str(entry.path)).name for entry in shown] == ["test_assertions.py"]


# -- assert_close: limits that follow from the program -----------------------------------------------------------

F = torch.nn.functional


def network(x, *weights):
    for weight in weights:
        x = F.rms_norm(torch.tanh(F.linear(x, weight)), (x.shape[-1],)) + x
    return x


def deep(dtype: torch.dtype = torch.float32, layers: int = 6) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return tuple(torch.randn(each, 24).to(dtype) for each in (8, *[24] * layers))


def in_blocks(x, *weights):
    """The same network with its sums taken in another order."""
    for weight in weights:
        y = sum(x[:, n : n + 6] @ weight[:, n : n + 6].T for n in range(0, 24, 6))
        x = F.rms_norm(torch.tanh(y), (24,)) + x
    return x


@pytest.mark.parametrize(("dtype", "layers"), [(torch.float32, 6), (torch.bfloat16, 1)])
def test_honest_kernels_of_a_deep_program_pass_without_a_tolerance(dtype: torch.dtype, layers: int) -> None:
    inputs = deep(dtype, layers)
    check = verify.close_to(like=network, inputs=inputs)
    wide = [each.float() for each in inputs]
    for honest in (
        network(*inputs),
        in_blocks(*wide).to(dtype),
        network(*(each.double() for each in inputs)).to(dtype),
    ):
        check(honest)


BREAKAGES = {
    "zeros": torch.zeros_like,
    "half": lambda y: y / 2,
    "1% off": lambda y: y * 1.01,
    "bfloat16 inside": lambda y: y.bfloat16().float(),
    "other rows": lambda y: y.flip(0),
    "one element": lambda y: torch.where(torch.arange(y.numel()).reshape(y.shape) == 77, y + 1e-3, y),
}


@pytest.mark.parametrize("name", BREAKAGES)
def test_what_is_wrong_with_a_deep_program_fails(name: str) -> None:
    inputs = deep()
    with pytest.raises(AssertionError, match=r"network\.y is wrong: .*× noise, the limit is 8") as caught:
        verify.assert_close(BREAKAGES[name](network(*inputs)), like=network, inputs=inputs)
    lines = dict(line.split(maxsplit=1) for line in str(caught.value).splitlines()[1:])
    if name == "one element":
        assert lines["got"].endswith(" at [3, 5]")
    assert re.fullmatch(r"\S+ \(0x[0-9a-f]{8}\) at \[\d, \d+\]", lines["got"])
    assert len(lines["truth"].strip("-").replace(".", "").lstrip("0")) >= 24
    assert lines["limit"] == "8× noise or 4 ULP"


def test_a_nan_never_is_close() -> None:
    inputs = deep(layers=1)
    y = network(*inputs)
    y[1, 2] = torch.nan
    with pytest.raises(AssertionError, match=r"NaN at 1 of 192 .*\n(.*\n)+  got     nan \(0x7fc00000\) at \[1, 2\]"):
        verify.assert_close(y, like=network, inputs=inputs)


def one_pass(x):
    return (x * x).mean(-1) - x.mean(-1) ** 2


def test_a_limit_that_says_nothing_is_no_pass() -> None:
    torch.manual_seed(0)
    x = torch.randn(16, 32) + 1e5
    y = one_pass(x.double()).float()
    with pytest.raises(AssertionError, match=r"one_pass\.y is vacuous: zeros would pass") as caught:
        verify.assert_close(y, like=one_pass, inputs=(x,))
    assert str(caught.value).endswith("  next    inputs on which trivial answers fail, or vacuous={'y': 'REASON'}")
    verify.assert_close(y, like=one_pass, inputs=(x,), vacuous={"y": "one pass has no digits here"})


def test_nothing_at_all_is_no_pass() -> None:
    x = torch.empty(0, 4)
    with pytest.raises(AssertionError, match="tanh.y has no elements: nothing was compared, which is no pass"):
        verify.assert_close(torch.tanh(x), like=torch.tanh, inputs=(x,))


def test_gradients_are_judged_beside_the_output() -> None:
    x, weight = (each.requires_grad_(True) for each in deep(layers=1))
    y, dy = network(x, weight), torch.randn(8, 24)
    dx, dw = torch.autograd.grad(y, (x, weight), dy)
    given = {"like": network, "inputs": (x, weight)}
    verify.assert_close(y, **given, grads=(dx, dw), upstream=dy)
    verify.assert_close(y, **given, grads={"x": dx}, upstream=dy)
    with pytest.raises(AssertionError, match=r"network\.dx1 is wrong"):
        verify.assert_close(y, **given, grads=(None, dw * 1.01), upstream=dy)
    with pytest.raises(verify.UsageError, match="depend on what arrived at its output; received no upstream="):
        verify.assert_close(y, **given, grads=(dx, None))


def test_a_loss_has_one_as_its_upstream_and_integers_are_exact() -> None:
    torch.manual_seed(0)
    logits, label = torch.randn(8, 10, requires_grad=True), torch.randint(0, 10, (8,))
    loss = F.cross_entropy(logits, label)
    (dx,) = torch.autograd.grad(loss, logits)
    verify.assert_close(loss, like=F.cross_entropy, inputs=(logits, label), grads=(dx, None))
    found = logits.detach().argmax(-1)
    verify.assert_close(found, like=lambda x: x.argmax(-1), inputs=(logits,))
    verify.assert_close(found.int(), like=lambda x: x.argmax(-1), inputs=(logits,), check_dtype=False)
    with pytest.raises(AssertionError, match=r"has dtype torch.int64; received torch.int32"):
        verify.assert_close(found.int(), like=lambda x: x.argmax(-1), inputs=(logits,))
    with pytest.raises(AssertionError, match="is wrong"):
        verify.assert_close((found + 1) % 10, like=lambda x: x.argmax(-1), inputs=(logits,))


def test_each_result_has_the_limit_of_its_own_format() -> None:
    x = deep(torch.bfloat16, 1)
    wide = network(*(each.float() for each in x))
    verify.assert_close(wide, like=network, inputs=x, intermediate="float32", check_dtype=False)
    wrong = wide.bfloat16().float()
    with pytest.raises(AssertionError, match="is wrong"):
        verify.assert_close(wrong, like=network, inputs=x, intermediate="float32", check_dtype=False)
    verify.assert_close(wide.bfloat16(), like=network, inputs=x, intermediate="float32")


def test_a_result_has_the_dtype_of_pytorchs_and_a_gradient_that_of_its_input() -> None:
    x = torch.linspace(-2, 2, 64)
    narrow = torch.tanh(x).half()
    said = r"tanh.y has dtype torch.float32; received torch.float16\n  next    check_dtype=False"
    with pytest.raises(AssertionError, match=said):
        verify.assert_close(narrow, like=torch.tanh, inputs=(x,))
    with pytest.raises(AssertionError, match=said):
        verify.close_to(like=torch.tanh, inputs=(x,))(narrow)
    verify.assert_close(narrow, like=torch.tanh, inputs=(x,), check_dtype=False)
    y, dx, dy = torch.tanh(x), 1 - torch.tanh(x.double()) ** 2, torch.ones(64)
    with pytest.raises(AssertionError, match=r"tanh.dx0 has dtype torch.float32; received torch.float64"):
        verify.assert_close(y, like=torch.tanh, inputs=(x,), grads=(dx,), upstream=dy)
    verify.assert_close(y, like=torch.tanh, inputs=(x,), grads=(dx.float(),), upstream=dy)


class Scaled(torch.nn.Module):
    """Has a weight of its own dtype, so that PyTorch promotes."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 2, 8, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x


def test_the_dtype_of_a_module_is_that_of_its_own_call() -> None:
    x, module = torch.linspace(-2, 2, 8, dtype=torch.bfloat16), Scaled(torch.float32)
    with pytest.raises(AssertionError, match=r"has dtype torch.float32; received torch.bfloat16"):
        verify.assert_close((module.weight * x).bfloat16(), like=module, inputs=(x,))
    embedding = torch.nn.Embedding(8, 4, dtype=torch.bfloat16)
    indices = torch.tensor([3, 1])
    verify.assert_close(embedding(indices).detach(), like=embedding, inputs=(indices,))


def test_pytorchs_dtype_is_found_without_autocast_and_with_absent_outputs() -> None:
    x, weight = torch.randn(4, 8), torch.randn(8, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        verify.assert_close(x.double().matmul(weight.double()).float(), like=torch.matmul, inputs=(x, weight))

    def slope(x: torch.Tensor) -> torch.Tensor:
        given = x.detach().requires_grad_()
        return torch.autograd.grad(torch.tanh(given).sum(), given)[0]

    verify.assert_close((1 - torch.tanh(x.double()) ** 2).float(), like=slope, inputs=(x,))
    verify.assert_close(torch.tanh(x), like=lambda x: (torch.tanh(x), None), inputs=(x,))
    bias = torch.zeros(3)
    given: Any = {"like": F.linear, "inputs": (x.bfloat16(), weight.T.bfloat16().contiguous(), bias)}
    y = F.linear(*(each.double() for each in given["inputs"])).bfloat16()
    with pytest.raises(verify.UsageError, match=r"linear raised on these inputs: .*\n  next: check_dtype=False judges"):
        verify.assert_close(y, **given)
    verify.assert_close(y, **given, check_dtype=False)


def test_the_traceback_of_assert_close_ends_at_the_line_of_the_test() -> None:
    for call in (
        lambda: verify.assert_close(X * 2, like=torch.tanh, inputs=(X,)),
        lambda: verify.close_to(like=torch.tanh, inputs=(X,))(X * 2),
    ):
        with pytest.raises(AssertionError) as caught:
            call()
        shown = caught.traceback.filter(caught)
        assert {Path(str(entry.path)).name for entry in shown} == {"test_assertions.py"}


# -- what is matched with what, and what is refused -------------------------------------------------------------------


def scaled(x, n, w):
    return (x * n) @ w.T


def of_scaled() -> dict[str, Any]:
    """Inputs of which the second is a number, and the right gradients of the others."""
    torch.manual_seed(0)
    x, w, dy = torch.randn(4, 6, requires_grad=True), torch.randn(5, 6, requires_grad=True), torch.randn(4, 5)
    y = scaled(x, 2, w)
    dx, dw = torch.autograd.grad(y, (x, w), dy)
    return {"actual": y, "like": scaled, "inputs": (x, 2, w), "grads": (dx, None, dw), "upstream": dy}


def test_a_gradient_belongs_to_the_input_at_its_place_also_behind_a_number() -> None:
    given = of_scaled()
    verify.assert_close(**given)
    dx, _, dw = given["grads"]
    with pytest.raises(AssertionError, match=r"scaled\.dw is wrong"):
        verify.assert_close(**given | {"grads": (dx, None, dw * 5)})
    with pytest.raises(AssertionError, match=r"scaled\.dw has shape \(5, 6\); received \(4, 6\)"):
        verify.assert_close(**given | {"grads": {"w": dx}})


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda dx, dw, dy: {"grads": (dx, dw)}, "grads has one item for each of x, None for n, w; received 2"),
        (lambda dx, dw, dy: {"grads": (dx, None, dw, dw)}, "grads has one item .*; received 4"),
        (lambda dx, dw, dy: {"grads": (dx, dx, dw)}, "grads has gradients of x, w; received one of 'n'"),
        (lambda dx, dw, dy: {"grads": {"weight": dw}}, "grads has gradients of x, w; received one of 'weight'"),
        (lambda dx, dw, dy: {"grads": (1.0, None, dw)}, "grads has tensors; received float for x"),
        (lambda dx, dw, dy: {"grads": 5}, "grads has one item .*; received int"),
        (lambda dx, dw, dy: {"upstream": [dy, dy]}, "upstream has one item for each of y; received 2"),
        (lambda dx, dw, dy: {"upstream": 1.0}, "upstream has one item for each of y; received float"),
        (lambda dx, dw, dy: {"upstream": dy[0]}, r"numbers of the shape \(4, 5\); received \(5,\)"),
        (lambda dx, dw, dy: {"upstream": dy.long()}, "received .* in torch.int64"),
    ],
)
def test_gradients_that_match_no_input_or_output_are_refused(change: Any, rule: str) -> None:
    given = of_scaled()
    dx, _, dw = given["grads"]
    with pytest.raises(verify.UsageError, match=rule):
        verify.assert_close(**given | change(dx, dw, given["upstream"]))


def test_of_two_outputs_each_has_its_upstream_and_none_is_zero() -> None:
    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return x * x, x.argmax(), x + 1

    x = torch.linspace(-1, 2, 7)
    given: dict[str, Any] = {"actual": both(x), "like": both, "inputs": (x,)}
    verify.assert_close(**given, grads=(2 * x * x,), upstream=(x, None, None))
    verify.assert_close(**given, grads=(2 * x * x + x,), upstream=(x, None, x))
    with pytest.raises(AssertionError, match=r"both\.dx is wrong"):
        verify.assert_close(**given, grads=(2 * x * x,), upstream=(x, None, x))
    with pytest.raises(verify.UsageError, match="one item for each of y1, None for y2, y3; received 1"):
        verify.assert_close(**given, grads=(2 * x * x,), upstream=x)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"accumulate": "float31"}, r"accumulate is one of float32, tf32, .*received 'float31' \(closest: float32\)"),
        ({"intermediate": "foo"}, "intermediate is one of '', eager, float32; received 'foo'"),
        ({"like": "tanh"}, "like= is a PyTorch function or module; received 'tanh'"),
        ({"inputs": X}, "inputs are the arguments of tanh as a tuple; received Tensor"),
        ({"inputs": (X.to("meta"),)}, "plain tensor with its values in memory; received one on the device meta"),
        ({"inputs": (X.to_sparse(),)}, "plain tensor .*; received one with the layout torch.sparse_coo"),
        ({"inputs": (X.to(torch.complex64),)}, "plain tensor .*; received one of torch.complex64"),
        ({"like": lambda x, weight: x * weight}, "like takes x, weight; inputs has 1: missing .*'weight'"),
        ({"like": lambda: X}, r"like takes nothing; inputs has 1: too many"),
        ({"like": lambda x: ()}, "a function of tensors that returns tensors"),
    ],
)
def test_what_assert_close_cannot_take_is_refused_at_the_line_of_the_test(options: Any, rule: str) -> None:
    for check in (lambda **given: verify.assert_close(X, **given), verify.close_to):
        with pytest.raises(verify.UsageError, match=rule) as caught:
            check(**{"like": torch.tanh, "inputs": (X,)} | options)
        assert {Path(str(entry.path)).name for entry in caught.traceback.filter(caught)} == {"test_assertions.py"}


def test_an_element_may_be_as_far_off_as_pytorchs_own() -> None:
    """1 + erf(-3.9) is less than a spacing of float32 near 1: PyTorch's gelu has no digit at -5.5 on any machine."""
    gelu, x = torch.nn.functional.gelu, torch.tensor([-5.5, -5.5, 0.5])
    y = gelu(x)
    with pytest.raises(AssertionError, match="PyTorch as wrong in 2 of 3 elements; as_pytorch=True"):
        verify.assert_close(y, like=gelu, inputs=(x,))
    verify.assert_close(y, like=gelu, inputs=(x,), as_pytorch=True)
    verify.close_to(like=gelu, inputs=(x,), as_pytorch=True)(y)
    for place, wrong in [(0, -1.0), (0, math.nan), (2, 0.3)]:  # worse than PyTorch; NaN; where PyTorch is right
        broken = y.clone()
        broken[place] = wrong
        with pytest.raises(AssertionError, match="gelu.y is wrong"):
            verify.assert_close(broken, like=gelu, inputs=(x,), as_pytorch=True)
