"""Laws about kernels of PyTorch functions with named dimensions: what each finds, and what it leaves alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import verify
from tests.laws.trial import attempt, breaks, holds, skips
from verify import backends
from verify.cases.case import case_of
from verify.declare.declaration import Kernel
from verify.laws.engine import PROFILES, Profile
from verify.laws.locality import independent_rows

ROWS: dict[str, Any] = {"shapes": {"x": "n d"}, "dtypes": ["float32"], "max_ulp": 16}
ATTENTION: dict[str, Any] = {"shapes": dict.fromkeys("qkv", "b t c"), "dtypes": ["float32"], "max_ulp": 256}


def declared(like: Callable[..., Any], kernel: Callable[..., Any] | None = None, **options: Any) -> Kernel:
    return verify.kernel(like=like, **(ROWS | options))(kernel or like)


def softmax(x):
    return torch.softmax(x, -1)


def turned(x):
    return x * torch.cos(torch.arange(x.shape[0], device=x.device, dtype=x.dtype)[:, None] * 0.01)


def causal(q, k, v):
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


# -- which indices are independent -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "dims", "found"),
    [
        (declared(softmax), (3, 5), {"n": {"x": 0, "y": 0}}),
        (declared(lambda x: x.cumsum(0)), (3, 5), {"d": {"x": 1, "y": 1}}),
        (declared(lambda x: x.roll(1, 0)), (3, 5), {"d": {"x": 1, "y": 1}}),
        (declared(lambda x: x - x.mean()), (3, 5), {}),
        (declared(turned), (3, 5), {"d": {"x": 1, "y": 1}}),
        (declared(causal, **ATTENTION), (2, 5, 3), {"b": {"q": 0, "k": 0, "v": 0, "y": 0}}),
        (
            declared(torch.bmm, lambda a, b: torch.bmm(a, b), shapes={"a": "b m k", "b": "b k n"}),
            (2, 5, 3, 4),
            {"b": {"a": 0, "b": 0, "y": 0}, "m": {"a": 1, "y": 1}, "n": {"b": 2, "y": 2}},
        ),
    ],
    ids=["rows", "cumsum over rows", "roll", "mean of all", "positions", "attention", "product"],
)
def test_independent_dimensions_follow_from_the_program(kernel: Kernel, dims: tuple[int, ...], found: Any) -> None:
    rows = independent_rows(kernel, case_of(kernel, "float32", dims=dims))
    assert {each.dimension: dict(each.axes) for each in rows} == found


def test_a_function_of_all_elements_has_no_rows() -> None:
    skips("batch invariance", declared(lambda x: x - x.mean()), "no dimension of this PyTorch function")


# -- batch invariance -------------------------------------------------------------------------------


def test_a_bit_of_another_row_and_a_wrong_single_row_are_found() -> None:
    leaks = declared(softmax, lambda x: softmax(x) + 1e-30 * x.abs().sum())
    breaks("batch invariance", leaks, "values of other rows")
    alone = declared(softmax, lambda x: softmax(x) * (1.001 if len(x) == 1 else 1.0))
    breaks("batch invariance", alone, "depends on how many rows there are")


def test_another_order_of_a_sum_for_another_number_of_rows_is_within_the_limit() -> None:
    holds("batch invariance", declared(softmax, lambda x: softmax(x) * (1 + 2.0**-23 if len(x) == 1 else 1.0)))


# -- special values ---------------------------------------------------------------------------------


def additive(q, k, v):
    """The same attention with a mask that is added: NaN is not masked."""
    mask = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).tril()
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + torch.where(mask, 0.0, -math.inf)
    return torch.softmax(scores, -1) @ v


def test_special_values_of_pytorchs_own_functions() -> None:
    for kernel in (declared(softmax), declared(lambda x: x.amax(-1)), declared(causal, **ATTENTION)):
        holds("special values", kernel)
    holds("special values", declared(additive, **ATTENTION))
    holds("special values", declared(softmax, dtypes=["float64"]), "float64")


def test_a_nan_that_is_lost_or_goes_astray_is_found() -> None:
    lost = declared(lambda x: x.amax(-1), lambda x: x.nan_to_num(-math.inf, math.inf, -math.inf).amax(-1))
    breaks("special values", lost, "a NaN is lost")
    heads = ATTENTION | {"shapes": dict.fromkeys("qkv", "b h t c")}  # as PyTorch's fused kernels take them
    astray = declared(causal, lambda q, k, v: additive(q, k, v), **heads)
    breaks("special values", astray, "an output that does not depend on a special value")
    finite = declared(lambda x: x.amax(-1), lambda x: x.amax(-1).clamp(-1e30, 1e30))
    breaks("special values", finite, "an infinity is lost")


def test_a_nan_of_a_weight_is_planted_too() -> None:
    options: dict[str, Any] = {"shapes": {"x": "n d", "weight": "d"}}
    lost = declared(lambda x, weight: x * weight, lambda x, weight: x * weight.nan_to_num(0.0), **options)
    found = breaks("special values", lost, "a NaN is lost")
    assert "in weight" in found.facts["planted"]


# -- other laws -------------------------------------------------------------------------------------


def bmm(a: Tensor, b: Tensor) -> Tensor:
    return torch.bmm(a, b)


def test_operands_of_other_legal_sizes_are_no_mistake() -> None:
    holds("error contract", declared(torch.bmm, bmm, shapes={"a": "b m k", "b": "b k n"}))
    table: dict[str, Any] = {"shapes": {"index": "n", "table": "v d"}, "integers": {"index": "0 <= index < v"}}
    holds("error contract", declared(lambda index, table: functional.embedding(index, table), **table))
    narrow = declared(causal, lambda q, k, v: causal(q, k, v), **ATTENTION, where="c <= 2")
    holds("error contract", narrow)  # one channel of v less may be none


def test_operands_of_other_sizes_that_give_wrong_results_are() -> None:
    def never_empty(a: Tensor, b: Tensor) -> Tensor:
        return torch.bmm(a, b) if b.shape[-1] else a

    one = declared(torch.bmm, never_empty, shapes={"a": "b m k", "b": "b k n"}, where="n == 1")
    breaks("error contract", one, "an invalid operand is accepted")

    def careless(a: Tensor, b: Tensor) -> Tensor:
        return torch.bmm(a, b)[..., :4]  # of a tile that is wide enough for what it was tried on

    kernel = declared(torch.bmm, careless, shapes={"a": "b m k", "b": "b k n"}, where="n <= 4")
    breaks("error contract", kernel, "an invalid operand is accepted")


def test_a_strided_gradient_may_be_added_in_another_order_but_not_be_wrong() -> None:
    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
            ctx.factor = factor
            return x.cumsum(-1)

        @staticmethod
        def backward(ctx: Any, *upstream: Tensor) -> Any:
            dy = upstream[0]
            found = dy.flip(-1).cumsum(-1).flip(-1)
            return found * (1.0 if dy.is_contiguous() else ctx.factor), None

    def kernel(factor: float) -> Kernel:
        return declared(lambda x: x.cumsum(-1), lambda x: Backward.apply(x, factor))

    holds("upstream layout independence", kernel(1 + 2.0**-23))
    breaks("upstream layout independence", kernel(1.001), "gradients depend on the layout")


def test_many_rows_are_judged_but_what_a_row_gives_alone_too_is_not_about_them() -> None:
    profile = Profile("fixed", 0, PROFILES["ci"].sizes)
    lost = declared(softmax, lambda x: torch.cat([softmax(x[:3000]), 0.0 * x[3000:]]))
    law = "many rows" if backends.select().scale == "small" else "accuracy"  # which has as many rows on a GPU
    assert attempt(law, lost, profile=profile).status == "broken"
    off = declared(softmax, lambda x: 1.01 * softmax(x))
    assert attempt("accuracy", off, profile=profile).status == "broken"
    expected = "ok" if law == "many rows" else "skipped"
    assert attempt("many rows", off, profile=profile).status == expected


def test_rows_that_share_a_scale_are_not_independent_and_parts_are_no_mistakes() -> None:
    """Half of the rows of a block have no scale of their own; a call has no other codes than those of its case."""
    ended = verify.quantised("e4m3", block=(128, 16), scale="float32")

    @verify.kernel(
        like=lambda a, b: a @ b.mT, shapes={"a": "m k", "b": "n k"}, operands={"a": ended, "b": ended},
        where="k == 16", dtypes=["float32"], gradients=False,
    )  # fmt: skip
    def product(a_codes: Tensor, a_scales: Tensor, b_codes: Tensor, b_scales: Tensor) -> Tensor:
        a, b = (
            codes.float() * scales.repeat_interleave(128, 0)[: len(codes)].repeat_interleave(16, 1)
            for codes, scales in ((a_codes, a_scales), (b_codes, b_scales))
        )
        return a @ b.mT

    assert independent_rows(product, case_of(product, "float32", dims=(129, 16, 129))) == []
    skips("error contract", product, "the kernel receives nothing but what is derived from other operands")
