"""The law of accuracy: limits beyond the promised magnitude, None for operands, calls for inference."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import verify
from verify import backends
from verify.cases import Case
from verify.cases.strategies import Sizes
from verify.errors import KernelError
from verify.laws import registry
from verify.laws.accuracy import judge_measured
from verify.laws.law import Broken, Subject, demand_same
from verify.measure import judge
from verify.measure.call import INFERENCE, Measured

HUGE = (65504.0, 65504.0, 4.0, 1.5), (65504.0, -65504.0, 480.0, 32.0)  # factors of 4 products: their sum is 1,968
LARGE = (2048.0, -64.0, 2.0, 1.0), (16.0, 16.0, 480.0, 32.0)  # 32,736: every term is within float16


def judged(factors: tuple[tuple[float, ...], ...], got: float, largest: float | None) -> float:
    """The error of a product of two float16 vectors that came out as `got`, in units of the scale."""

    @verify.kernel(op="linear", params={"activation": "id"}, dtypes=["float16"], max_ulp=1, largest=largest)
    def kernel(x, weight, bias):  # type: ignore[no-untyped-def]
        raise AssertionError("not called")

    backend = backends.select("interpreter")
    case = Case(dtype="float16", dims=(1, 4, 1), fill="ones", params={"activation": "id"})
    x, weight = (torch.tensor([each], dtype=torch.float16) for each in factors)
    inputs = {"x": x, "weight": weight, "bias": torch.zeros(1, dtype=torch.float16)}
    result = torch.tensor([[got]], dtype=torch.float16)
    return judge_measured(Subject(kernel, "float16", backend, None), case, Measured(inputs, {}, {"y": result}))


@pytest.mark.parametrize(("limit", "exact"), [(1.0, 300), (0.5, 3000)])
def test_a_rounding_is_not_opened_where_it_decides_nothing(
    limit: float, exact: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """silu(x) is half a unit above a number for odd subnormal x. One wrong element makes the law judge exactly."""
    judged = list[Any]()
    known = judge.judge_known
    monkeypatch.setattr(judge, "judge_known", lambda *given, **rules: judged.append(0) or known(*given, **rules))
    kernel = verify.kernel(op="silu", dtypes=["float32"], max_ulp=limit, gradients=False, name="silu")(lambda x: x)
    case = Case(dtype="float32", dims=(3000,), fill="ones")
    count = torch.arange(3000, dtype=torch.float64)
    x, y = ((number * 2.0**-149).float() for number in (2 * count + 1, count + 1))
    y[17] = 7.0
    subject = Subject(kernel, "float32", backends.select(), Sizes())
    with pytest.raises(Broken, match="beyond the kernel's own limit") as broken:
        judge_measured(subject, case, Measured({"x": x}, {}, {"y": y}))
    assert broken.value.index == 17
    assert (len(judged) >= exact) == (limit == 0.5), len(judged)


def test_terms_beyond_the_format_widen_the_limit_for_inputs_beyond_the_promise() -> None:
    """Found on an H200: the float32 sums of its matrix units lose 48 of these 1,968; 256 is half an ulp there."""
    assert judged(HUGE, 1968.0, 16.0) < 0.01
    assert judged(HUGE, 1920.0, 16.0) == pytest.approx(48 / 32)
    for largest in (None, 65504.0):
        with pytest.raises(Broken, match="beyond the kernel's own limit"):
            judged(HUGE, 1920.0, largest)


def test_terms_within_the_format_leave_the_limit_as_it_is() -> None:
    assert judged(LARGE, 32736.0, 16.0) < 0.01
    with pytest.raises(Broken, match="beyond the kernel's own limit"):
        judged(LARGE, 32640.0, 16.0)


# -- None for an operand, calls for inference --------------------------------------------------------------


def judge_plain(function, op: str, fill: str, **fields) -> float | None:
    """What the law says of one plain case."""
    kernel = verify.kernel(op=op, dtypes=["float32"], max_ulp=64, gradients=True)(function)
    case = Case(dtype="float32", dims=(5, 8), fill=fill, upstream="normal", **fields)
    return registry.get("accuracy").check(Subject(kernel, "float32", backends.select(), Sizes()), case)


def test_none_for_an_operand_may_be_refused_but_not_by_the_backward_pass() -> None:
    def refuses(x, weight, bias, *, eps):
        if bias is None:
            raise TypeError("bias is a tensor")
        return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)

    def no_slot(gradient):
        raise RuntimeError("no slot for dbias")

    def takes(x, weight, bias, *, eps):
        y = torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)
        if bias is None:
            y.register_hook(no_slot)
        return y

    def loses(x, weight, bias, *, eps):
        return torch.nn.functional.layer_norm(x, x.shape[-1:], None if bias is None else weight, bias, eps)

    without: dict[str, Any] = {"op": "layer_norm", "fill": "randn", "absent": ("bias",)}
    assert judge_plain(refuses, **without) is None
    with pytest.raises(KernelError, match="takes raised in backward: RuntimeError: no slot for dbias"):
        judge_plain(takes, **without)
    with pytest.raises((Broken, KernelError)):
        judge_plain(loses, **without)
    assert all(judge_plain(each, "layer_norm", "randn") < 64 for each in (refuses, takes, loses))


@pytest.mark.parametrize("mode", INFERENCE)
def test_a_call_for_inference_is_judged_and_its_mode_named(mode: str) -> None:
    def silu(x):
        y = torch.nn.functional.silu(x)
        wrong = {
            "under torch.no_grad()": x.requires_grad and not torch.is_grad_enabled(),
            "under torch.inference_mode()": torch.is_inference_mode_enabled(),
        }.get(mode, not x.requires_grad)
        return y * 1.001 if wrong else y

    with pytest.raises(Broken) as caught:
        judge_plain(silu, "silu", "normal")
    assert caught.value.rule == f"beyond the kernel's own limit {mode}"
    assert judge_plain(torch.nn.functional.silu, "silu", "normal") < 64


CASE = Case(dtype="float32", dims=(3,), fill="normal")


def values(*numbers: float) -> dict[str, torch.Tensor]:
    return {"y": torch.tensor(numbers)}


@pytest.mark.parametrize(
    ("got", "facts"),
    [
        (values(1.0, 2.5), {"at": "y [1] of shape [2]", "before": "2.5 (0x40200000)", "after": "2.0 (0x40000000)"}),
        (values(1.0), {"at": "y", "before": "torch.float32 [1]", "after": "torch.float32 [2]"}),
        ({}, {"rule": "second"}),
    ],
    ids=["a bit", "a shape", "missing"],
)
def test_a_difference_has_its_rule_and_both_values(got: dict[str, torch.Tensor], facts: dict[str, str]) -> None:
    labels, rows = ("before", "after"), {"rows": "0 to 1"}
    with pytest.raises(Broken) as broken:
        demand_same(CASE, got, values(1.0, 2.0), "second", labels=labels, facts=rows)
    assert broken.value.rule == ("second" if got else "y is missing")
    assert broken.value.facts == {"rows": "0 to 1", **facts}
