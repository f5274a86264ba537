"""Batch, determinism, shape and configuration laws: each finds its bug, and passes the correct twin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import verify
from tests.laws.trial import attempt, breaks, holds, layer_norm, silu, skips
from verify import backends
from verify.cases.plan import summed_dims
from verify.cases.strategies import Sizes
from verify.declare.declaration import Kernel
from verify.laws import registry
from verify.laws.engine import Profile
from verify.laws.law import Subject
from verify.measure.autotuners import launched

DTYPES = ["float32"]


def elementwise(function: Callable[..., Any], **options: Any) -> Kernel:
    return verify.kernel(op="silu", dtypes=DTYPES, **options)(function)


def rowwise(function: Callable[..., Any]) -> Kernel:
    return verify.kernel(op="layer_norm", dtypes=DTYPES, max_ulp=64)(function)


# -- batch ---------------------------------------------------------------------------------------------


def test_a_result_that_depends_on_the_number_of_rows_is_found() -> None:
    def split(x, weight, bias, *, eps):
        # another order of summation for many rows, as a kernel chosen by size has
        y = layer_norm(x, weight, bias, eps=eps)
        return y if len(x) > 1 else y * (1 + 2.0**-23)

    breaks("batch invariance", rowwise(split), "a row's result depends on how many rows there are")


# -- determinism ---------------------------------------------------------------------------------------


def test_a_buffer_that_another_shape_disturbs_is_found() -> None:
    state = {"shape": None, "changes": 0}

    def remembers(x):
        if state["shape"] != x.shape:
            state["shape"], state["changes"] = x.shape, state["changes"] + 1
        return silu(x) * (1 + state["changes"] * 1e-3)

    rule = "the same call gives other bits after a call on another shape"
    breaks("determinism", elementwise(remembers), rule)


# -- layouts -------------------------------------------------------------------------------------------


def test_an_operand_that_is_declared_contiguous_is_refused_otherwise_and_the_others_are_compared() -> None:
    def declared(function: Callable[..., Any], layouts: Any) -> Kernel:
        return verify.kernel(op="layer_norm", dtypes=DTYPES, max_ulp=64, layouts=layouts)(function)

    def refusing(x, weight, bias, *, eps):
        if not (weight.is_contiguous() and bias.is_contiguous()):
            raise ValueError("weight and bias are contiguous")
        return layer_norm(x, weight, bias, eps=eps)

    def careless(x, weight, bias, *, eps):
        return layer_norm(x, weight, bias, eps=eps) + (not weight.is_contiguous())

    def wrong_in_x(x, weight, bias, *, eps):
        return refusing(x, weight, bias, eps=eps) + (not x.is_contiguous())

    some = {"weight": "contiguous", "bias": "contiguous"}
    law = "layout independence"
    for other in ("layout independence", "accuracy", "memory bounds"):
        holds(other, declared(refusing, some))
    breaks(law, declared(careless, some), "an unpromised layout gives wrong results instead of an error")
    breaks(law, declared(wrong_in_x, some), "results depend on the layout of the operands")


def test_every_shape_and_a_call_without_gradients_come_with_a_layout_before_anything_is_drawn() -> None:
    """Of contiguous tensors the laws of layouts would hold a call against its own repetition."""

    def wrong_where(strange: Callable[[torch.Tensor], bool]) -> Kernel:
        def norm(x, weight, bias, *, eps):
            y = layer_norm(x, weight, bias, eps=eps)
            return y if x.is_contiguous() or not strange(x) else y + 1

        return rowwise(norm)

    undrawn = Profile("undrawn", 0, {"small": Sizes(), "large": Sizes()})
    for strange in (lambda x: x.ndim > 2, lambda x: not x.requires_grad):
        found = attempt("layout independence", wrong_where(strange), profile=undrawn)
        assert found.status == "broken", found
    subject = Subject(rowwise(layer_norm), "float32", backends.select(), Sizes())
    for law in map(registry.get, ("layout independence", "upstream layout independence")):
        chosen, fixed = law.space(subject).each_choice(), law.fixed(subject)
        assert all(case.layouts for case in fixed if case != chosen[0])  # that one is for two operands in one tensor
        assert all(case in fixed for case in chosen if case.layouts)
        assert {case.dims for case in fixed} == {case.dims for case in chosen}


# -- many rows -----------------------------------------------------------------------------------------


def carried(x, weight, bias, *, eps):
    """As a kernel whose programs keep their sums for the next row."""
    y = layer_norm(x, weight, bias, eps=eps)
    return torch.cat([y[:128], y[128:] + y[:-128] * 1e-6]) if len(y) > 128 else y


def test_many_rows_are_tried_where_the_profile_has_them() -> None:
    large = Sizes(elements=300, width=300, depth=64, many_rows=65_600)
    profile = Profile("large", 20, {"small": large, "large": large})
    assert attempt("many rows", elementwise(silu), profile=profile).status == "ok"

    def sixteen_bits(x):
        y = silu(x)
        return torch.where((torch.arange(len(x), device=x.device) < 65_536).reshape(-1, 1), y, 0.0)

    found = attempt("many rows", elementwise(sixteen_bits), profile=profile)
    assert found.status == "broken" and found.message == "many rows at once give other results than a few at a time"


# -- declarations that restrict sizes ------------------------------------------------------------------

HEADS = "64 <= n and n <= 256 and n % 16 == 0"


def of_sizes(where: str, function: Callable[..., Any], allowed: Callable[[Any], bool]) -> Kernel:
    def norm(x, weight, bias, *, eps):
        if not allowed(x):
            raise ValueError(f"where={where!r} forbids {list(x.shape)}")
        return function(x, weight, bias, eps=eps)

    return verify.kernel(op="layer_norm", dtypes=DTYPES, max_ulp=64, where=where, refuses=False)(norm)


def is_head(x) -> bool:
    return 64 <= x.shape[-1] <= 256 and x.shape[-1] % 16 == 0


@pytest.mark.parametrize("law", ["batch invariance", "many rows", "no stale results", "determinism"])
def test_a_law_gives_a_kernel_only_the_sizes_that_its_declaration_allows(law: str) -> None:
    holds(law, of_sizes(HEADS, layer_norm, is_head))
    holds(law, of_sizes("m % 4 == 0", layer_norm, lambda x: x[..., 0].numel() % 4 == 0))
    holds(law, of_sizes("rank == 3", layer_norm, lambda x: x.ndim == 3))


def test_sums_over_rows_keep_their_rows_where_a_declaration_restricts_their_width() -> None:
    kernel = of_sizes(HEADS, layer_norm, is_head)
    assert summed_dims(kernel, (9, 66, 65_537, 1 << 20)) == [(9, 64), (66, 64), (65_537, 64)]  # at most 2^23 elements
    breaks("many rows", of_sizes(HEADS, carried, is_head), "many rows at once give other results than a few at a time")


def test_a_law_about_rows_skips_a_declaration_without_rows() -> None:
    vectors = of_sizes("rank == 1", layer_norm, lambda x: x.ndim == 1)
    for law in ("batch invariance", "many rows"):
        skips(law, vectors, "the declaration allows no shape with rows")


def test_a_third_dimension_is_judged_where_a_declaration_allows_no_matrix() -> None:
    def second_is_wrong(x, weight, bias, *, eps):
        return torch.cat([layer_norm(x[:1], weight, bias, eps=eps), x[1:]])

    wrong = of_sizes("rank == 3", second_is_wrong, lambda x: x.ndim == 3)
    breaks("accuracy", wrong, "beyond the kernel's own limit")


# -- configuration -------------------------------------------------------------------------------------


@triton.autotune(configs=[triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64})], key=["n"])
@triton.jit
def _tuned_kernel(x_ptr, y_ptr, n, BUG: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    y = x / (1.0 + tl.exp(-x))
    if BUG and BLOCK == 64:
        y = tl.where(at % 64 < 33, y, y * 1.0001)
    tl.store(y_ptr + at, y, mask=at < n)


def tuned(bug: bool) -> Callable[..., Any]:
    def function(x):
        x = x.contiguous()
        y = torch.empty_like(x)
        if x.numel():
            _tuned_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel(), BUG=bug)
        return y

    return function


def test_one_wrong_configuration_among_right_ones_is_found() -> None:
    found = breaks("configuration independence", elementwise(tuned(True), gradients=False), "results depend on")
    assert found.facts["configuration"].startswith("_tuned_kernel: BLOCK=64")
    holds("configuration independence", elementwise(tuned(False), gradients=False))


def test_a_kernel_without_an_autotuner_has_no_configurations() -> None:
    skips("configuration independence", elementwise(silu), "the kernel launches no Triton autotuner")


def test_configurations_that_the_tuner_prunes_are_not_forced() -> None:
    before = list(_tuned_kernel.configs)
    _tuned_kernel.early_config_prune = lambda configs, nargs, **meta: configs[:1]
    try:
        holds("configuration independence", elementwise(tuned(True), gradients=False))
        with launched() as found:
            tuned(True)(torch.ones(40, device=backends.select().device))
        assert [each.configs for each in found] == [before[:1]]
    finally:
        _tuned_kernel.early_config_prune = None
        _tuned_kernel.cache.clear()
    assert _tuned_kernel.configs == before
