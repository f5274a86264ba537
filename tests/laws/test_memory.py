"""The memory laws find each kind of misuse of memory, and a correct kernel passes them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import verify
from tests.laws.silu import silu, silu_in_an_operator
from tests.laws.trial import PROFILE, breaks, holds, layer_norm, skips
from verify import backends
from verify.cases import Case
from verify.cases.strategies import Sizes
from verify.declare.declaration import Kernel
from verify.laws import guard as guard_module
from verify.laws import memory, registry
from verify.laws.guard import NAN_FILL, NUMBER_FILL, Guard
from verify.laws.law import Broken, Subject, plain_case

LAWS = ("memory bounds", "initialised memory", "nothing overwritten", "no stale results")


def declared(function: Callable[..., Any], **options: Any) -> Kernel:
    return verify.kernel(op="silu", dtypes=["float32", "bfloat16"], **options)(function)


def buggy(bug: str) -> Kernel:
    return declared(lambda x: silu(x, bug), gradients=True)


@pytest.mark.parametrize(
    ("bug", "written"),
    [
        ("writes past the end", "12 bytes written, the first 0 bytes past its end"),
        ("writes before the beginning", "4 bytes written, the first 4 bytes before its beginning"),
        ("writes its operand", "operand x"),
        ("gradient past the end", "12 bytes written, the first 0 bytes past its end"),
    ],
)
def test_a_write_outside_of_the_results_is_found(bug: str, written: str) -> None:
    found = breaks("memory bounds", buggy(bug), "something is written outside of the results")
    assert written in found.facts["written"]


def test_a_write_past_the_end_is_found_inside_a_custom_operator() -> None:
    kernel = declared(lambda x: silu_in_an_operator(x.contiguous(), "writes past the end"), gradients=False)
    found = breaks("memory bounds", kernel, "something is written outside of the results")
    assert "memory from torch.empty_like" in found.facts["written"]
    holds("memory bounds", declared(lambda x: silu_in_an_operator(x.contiguous(), ""), gradients=False))


def test_a_kernel_that_takes_no_account_of_strides_is_told_with_the_layout() -> None:
    flat = declared(lambda x: silu(x.as_strided(x.shape, torch.empty(x.shape).stride())), gradients=False)
    found = breaks("initialised memory", flat, "results depend on what lay in memory before the call")
    assert found.facts["layouts"].startswith("x "), found.facts


def test_an_element_that_is_never_written_is_named() -> None:
    found = breaks("initialised memory", buggy("last element not written"), "an element of a result is never written")
    assert found.facts["at"] == "y [4, 66] of shape [5, 67]"
    assert found.facts["full of numbers"].endswith("(0x3c3c3c3c)") and "layouts" not in found.facts


def test_a_second_backward_pass_that_differs_is_found() -> None:
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.scratch = x.clone()  # not saved by save_for_backward, so nothing else can see it
            return x * torch.sigmoid(x)

        @staticmethod
        def backward(ctx, dy):
            return ctx.scratch.mul_(dy)

    rule = "a second backward pass over the same graph gives other gradients"
    breaks("nothing overwritten", declared(Once.apply, gradients=True), rule)


def test_a_kernel_without_gradients_has_nothing_to_overwrite() -> None:
    skips("nothing overwritten", declared(torch.nn.functional.silu, gradients=False), "the kernel has no gradients")


def test_results_cached_by_shape_alone_are_found_although_each_call_gives_the_same() -> None:
    cache: dict[Any, torch.Tensor] = {}
    kernel = declared(lambda x: cache.setdefault(x.shape, torch.nn.functional.silu(x)).clone(), gradients=False)
    found = breaks("no stale results", kernel, "new values in the same memory do not give the results of those values")
    assert found.facts["result"] == "y, the same bits as for the values before"


def test_equal_results_that_are_right_are_not_judged_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """dx of a layer norm of rows of one number is 0; 65,537 exact zeros in float64 took minutes."""
    kernel = verify.kernel(op="layer_norm", dtypes=["float64"])(layer_norm)
    subject = Subject(kernel, "float64", backends.select(), PROFILE.sizes["small"])
    case = plain_case(subject, (300, 1))
    judged: list[Any] = []
    monkeypatch.setattr(memory, "broken_by", lambda *given: judged.append(given))
    registry.get("no stale results").check(subject, case)
    assert not judged


# -- the guard itself ----------------------------------------------------------------------------------


def test_views_and_in_place_results_are_left_where_they_are() -> None:
    x = torch.zeros(4, 4)
    with Guard(NAN_FILL) as guard:
        view = x[1:]
        same = x.add_(1.0)
        fresh = x + 1.0
    assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert same is x
    assert len(guard.blocks) == 1 and torch.equal(fresh, torch.full((4, 4), 2.0))


def test_what_lies_between_the_elements_of_an_operand_holds_the_fill() -> None:
    """A kernel that reads there answers differently for each fill, which the law of initialised memory sees."""
    wide = torch.arange(8.0)
    for fill in (NAN_FILL, NUMBER_FILL):
        moved = Guard(fill).embed(wide[::2], "operand x")
        assert moved.tolist() == [0, 2, 4, 6]
        between = moved.as_strided((7,), (1,))[1::2]
        assert set(between.contiguous().view(torch.uint8).tolist()) == {fill}
    shared = torch.arange(3.0)[:1].expand(3)
    assert Guard(NAN_FILL).embed(shared, "operand x").tolist() == [0, 0, 0]


@pytest.mark.parametrize("law", LAWS)
def test_the_laws_see_the_same_in_one_slab(law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(guard_module._SLAB, "cpu", 1 << 21)
    holds(law, buggy(""))
    bugs = {
        "memory bounds": ("gradient past the end", "something is written outside of the results"),
        "initialised memory": ("last element not written", "an element of a result is never written"),
    }
    if law in bugs:
        bug, rule = bugs[law]
        breaks(law, buggy(bug), rule)


def test_results_that_are_alike_because_all_overflows_are_not_stale() -> None:
    @verify.kernel(op="rms_norm", operands=["x"], dtypes=["float32"], max_ulp=64, gradients=False)
    def squares(x: torch.Tensor, *, eps: float) -> torch.Tensor:
        return (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)).abs()  # 0 for every row of 1e30

    subject = Subject(squares, "float32", backends.select(), Sizes())
    case = Case(dtype="float32", dims=(5, 67), fill="huge 1e30", regime="huge 1e30", absent=squares.absent)
    assert not registry.get("no stale results").check(subject, case)


@pytest.mark.parametrize("dims", [(5, 33), (17, 64), (64, 100)])
def test_results_kept_by_shape_are_found_if_they_vary_by_a_few_spacings_alone(dims: tuple[int, int]) -> None:
    """One element a spacing off PyTorch's was as far as any of the values before."""
    kept: dict[Any, torch.Tensor] = {}

    @verify.kernel(like=lambda x: x.logsumexp(-1), shapes={"x": "n d"}, dtypes=["bfloat16"], gradients=False)
    def logsumexp(x: torch.Tensor) -> torch.Tensor:
        return kept.setdefault((x.shape, x.dtype), x.double().logsumexp(-1).to(x.dtype)).clone()

    subject = Subject(logsumexp, "bfloat16", backends.select(), Sizes())
    with pytest.raises(Broken, match="new values in the same memory do not give the results of those values"):
        registry.get("no stale results").check(subject, plain_case(subject, dims))
