"""Gradcheck, special values and linearity: each finds its bug, and passes the correct twin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import verify
from tests.laws.trial import DTYPES, breaks, holds, silu, silu_kernel, skips
from verify import backends
from verify.cases import Case
from verify.declare.declaration import Kernel
from verify.laws import registry
from verify.laws.engine import replay_law
from verify.records.record import LawRun


def norm_kernel(function: Callable[..., Any]) -> Kernel:
    return verify.kernel(op="layer_norm", dtypes=DTYPES, max_ulp=16)(function)


def with_backward(backward: Callable[..., Any], *, once: bool = False) -> Callable[..., Any]:
    """silu with a backward pass of its own: backward(x, dy)."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return silu(x)

        @staticmethod
        def backward(ctx, dy):
            return backward(*ctx.saved_tensors, dy)

    if once:
        Function.backward = staticmethod(torch.autograd.function.once_differentiable(Function.backward))
    return lambda x: Function.apply(x)


def slope(x):
    s = torch.sigmoid(x)
    return s + x * s * (1 - s)


# -- gradients -----------------------------------------------------------------------------------------


def test_the_gradient_law_says_why_it_does_not_apply() -> None:
    once = silu_kernel(with_backward(lambda x, dy: dy * slope(x), once=True), gradients=True)
    skips("gradgradcheck", once, "the backward pass is not differentiable", "float64")
    opaque = silu_kernel(with_backward(lambda x, dy: (dy * slope(x)).detach()), gradients=True)
    skips("gradgradcheck", opaque, "the backward pass is not differentiable", "float64")
    holds("gradcheck", opaque, "float64")
    skips("gradcheck", silu_kernel(silu, gradients=False), "the kernel has no gradients", "float64")
    cut = silu_kernel(lambda x: silu(x.detach()))
    skips("gradgradcheck", cut, "autograd has no path through the kernel", "float64")
    single = verify.kernel(op="silu", dtypes=["float32"])(silu)
    skips("gradgradcheck", single, "finite differences need float64, which the kernel does not declare", "float32")


# -- special values ------------------------------------------------------------------------------------


def stable(x):
    """SiLU without infinity times zero: its limit at -inf is 0."""
    wide = x.double()
    return torch.where(wide == -torch.inf, -0.0, wide * torch.sigmoid(wide)).to(x.dtype)


@pytest.mark.parametrize(
    ("function", "got"),
    [
        (lambda x: x * torch.exp(x) / (1 + torch.exp(x)), "nan"),  # inf / inf
        (lambda x: torch.where(torch.isnan(x), 0.0, stable(x)), "0 ("),  # a NaN that is swallowed
        (lambda x: stable(torch.where(x.abs() < 2.0**-126, 0.0, x)), "0 ("),  # subnormals flushed
        (lambda x: stable(x.clamp(-1e4, 1e4)), "1e+04 ("),  # saturation
    ],
    ids=["exponential form", "swallowed NaN", "flushed", "clamped"],
)
def test_a_wrong_special_value_is_found(function: Callable[..., Any], got: str) -> None:
    found = breaks("special values", silu_kernel(function, gradients=False), "")
    assert found.facts["got"].lstrip("-").startswith(got)


def test_the_sign_of_zero_counts_where_the_policy_says_so() -> None:
    def positive(x):
        y = stable(x)
        return torch.where(y == 0, 0.0, y)

    holds("special values", silu_kernel(positive, gradients=False))
    strict = silu_kernel(positive, gradients=False, policy=verify.Policy(signed_zero="strict"))
    breaks("special values", strict, "a zero has the wrong sign")


def test_numbers_beside_an_infinity_vanish_in_an_rms_norm() -> None:
    """0 where x / infinity has that limit, NaN for the infinity itself: what every evaluation of the formula gives."""

    def formula(x, weight, *, eps):
        wide = x.double()
        return (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps) * weight.double()).to(x.dtype)

    def declared(function: Callable[..., Any]) -> Kernel:
        return verify.kernel(op="rms_norm", dtypes=["float32"], gradients=False)(function)

    def without(x, weight, *, eps):
        rows = torch.isfinite(x).all(-1, keepdim=True)
        return torch.where(rows, formula(x, weight, eps=eps), torch.nan)

    holds("special values", declared(formula))
    found = breaks("special values", declared(without), "")
    assert found.facts["got"].startswith("nan") and float(found.facts["truth"]) == 0.0


def test_a_layer_is_not_held_to_inputs_beyond_those_that_it_promises() -> None:
    """Found on an H200: float32 gradients of a gated layer whose product with the weight would be in range again."""
    case = Case(
        dtype="float32",
        dims=(1, 1, 1),
        fill="ones",
        seed=4582,
        params={"activation": "geglu"},
        upstream="ones",
        values={"x": "00000000", "weight": "be000000bf000000", "bias": "0" * 16, "dy": "c0100000"},
    )
    backend = backends.select("interpreter")

    def tried(**promise: float) -> LawRun:
        @verify.kernel(op="linear", params={"activation": "geglu"}, dtypes=["float32"], max_ulp=128, **promise)
        def layer(x, weight, bias):
            first, second = torch.nn.functional.linear(x, weight, bias).chunk(2, -1)
            return first * torch.nn.functional.gelu(second)

        return replay_law(registry.get("special values"), layer, case, backend, "layer.py")

    assert tried().facts["got"].startswith("inf")
    assert tried(largest=2.0**24).status == "ok"


# -- accuracy ------------------------------------------------------------------------------------------


def test_a_kernel_with_open_elements_keeps_the_law(backend: Any) -> None:
    """Beside a zero of the slope the interval of float64 is wider than the limit: exact values decide."""
    from verify.cases import Case
    from verify.laws import registry
    from verify.laws.engine import PROFILES
    from verify.laws.law import Subject

    @verify.kernel(op="silu", dtypes=["float32"], gradients=True)
    def silu(x: torch.Tensor) -> torch.Tensor:
        wide = x.double()
        return (wide * torch.sigmoid(wide)).float()

    subject = Subject(silu, "float32", backend, PROFILES["ci"].sizes[backend.scale])
    case = Case(dtype="float32", dims=(5, 67), fill="near", seed=2, upstream="normal")
    assert registry.get("accuracy").check(subject, case) < 1
