"""Contracts: roundings that were planted are found from bits, and a layer and a kernel are compared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import verify
from benchmarks.contracts import PROGRAMS, drawn, fused_norm, llama_norm, seeded
from verify.diagnose.contracts import found_by
from verify.diagnose.forms import RULES, TAILS
from verify.diagnose.places import EACH, EXACT, Rounded, trace

BF16 = torch.bfloat16


def planted(name: str, contract: dict[str, str], dtype: torch.dtype = BF16) -> Any:
    """Returns what is found of a program with these roundings."""
    layer, shapes = PROGRAMS[name]
    inputs = drawn(shapes, 0, BF16)
    program = trace(layer, inputs)

    def kernel(*operands: Tensor) -> list[Tensor]:
        return [value.float().to(dtype) for value in Rounded(program, operands, contract).outputs()]

    return found_by(program, layer, kernel, inputs)


def test_seeded_contracts_are_recovered_in_every_bit() -> None:
    rows = list(seeded(6, seed=7))
    assert [row["unseen"] for row in rows] == [1.0] * 6, rows
    assert sum(row["same"] for row in rows) >= 4, "others are equivalents with fewer roundings"


def test_the_rounding_of_llamas_norm_is_found_and_where_a_fused_one_parts() -> None:
    x, w = drawn("r n", 0, BF16)
    found = verify.contract(llama_norm, fused_norm, (x, w))
    assert found.layer.unseen > 0.999 and found.kernel.unseen > 0.999
    assert 'verify.rounds(x * t4, "bfloat16")' in found.layer.like
    assert found.kernel.formats == {} and "verify.rounds" not in found.kernel.like
    assert not found.same
    assert found.first == "x * rsqrt(... + 1e-06): the layer keeps it in bfloat16, the kernel in float32"
    assert "the layer has" in found.shown and "results differ" in found.shown
    assert found.layer.evaluations + found.kernel.evaluations < 200


class FusedGate(torch.autograd.Function):
    """Rounds its result once, and in its backward pass the product of dy and u, as eager PyTorch does."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, u: Tensor) -> Tensor:
        ctx.save_for_backward(g, u)
        return (functional.silu(g.float()) * u.float()).to(g.dtype)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        g, u = ctx.saved_tensors
        s = torch.sigmoid(g.float())
        wide = (dy * u).float() * s * (1 + g.float() * (1 - s))
        return wide.to(g.dtype), (dy.float() * (g.float() * s)).to(g.dtype)


def test_gradients_have_a_contract_of_their_own() -> None:
    def gated(g: Tensor, u: Tensor) -> Tensor:
        return functional.silu(g) * u

    found = verify.contract(gated, FusedGate.apply, drawn("r r", 0, BF16), gradients=True)
    assert found.first == "g * sigmoid(g): the layer keeps it in bfloat16, the kernel in float32"
    assert min(found.layer.unseen, found.kernel.unseen) > 0.999
    assert list(found.kernel.formats.values()) == ["bfloat16"] and "dy * u" in found.kernel.like
    assert "dy = " in found.shown
    two = verify.contract(
        lambda x, r: (x * r, x + r), lambda x, r: (x * r, x + r), drawn("r r", 0, BF16), gradients=True
    )
    assert two.same and two.layer.like.startswith("def contract(x, r, dy1, dy2):")


def test_the_printed_program_is_a_definition_that_the_kernel_keeps() -> None:
    x, w = drawn("r n", 0, BF16)
    found = verify.contract(llama_norm, llama_norm, (x, w))
    assert found.same and str(found).endswith("the same contract: equal bits on all inputs tried")
    scope: dict[str, Any] = {"verify": verify, "torch": torch}
    exec(found.kernel.like, scope)
    verify.assert_close(llama_norm(x, w), like=scope["contract"], inputs=(x, w))
    cut = (llama_norm(x, w).view(torch.int16) + 1).view(BF16)
    with pytest.raises(AssertionError, match="contract.y is wrong"):
        verify.assert_close(cut, like=scope["contract"], inputs=(x, w))


def test_a_sum_that_is_returned_and_used_is_a_place() -> None:
    """A fused add and norm may norm the sum before it is rounded for the residual stream."""

    def layer(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = x + r
        return fused_norm(h, w), h

    def wide(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = x.float() + r.float()
        return fused_norm(h, w).to(x.dtype), h.to(x.dtype)

    found = verify.contract(layer, wide, drawn("r r n", 0, BF16))
    assert found.first == "x + r: the layer keeps it in bfloat16, the kernel in float32"


def test_numbers_that_are_stored_in_8_bits_are_found() -> None:
    layer, shapes = PROGRAMS["rope"]
    [place, *_] = trace(layer, drawn(shapes, 0, BF16)).places
    found = planted("rope", {place: "float8_e4m3fn"})
    assert (found.unseen, found.formats) == (1.0, {place: "float8_e4m3fn"})


def test_a_sum_that_is_rounded_at_each_addition_is_found_and_printed() -> None:
    layer, shapes = PROGRAMS["rms norm"]
    inputs = drawn(shapes, 0, BF16)
    [mean] = trace(layer, inputs).added
    found = planted("rms norm", {mean: "float16" + EACH})
    assert (found.unseen, found.formats) == (1.0, {mean: "float16 at each addition"})
    scope: dict[str, Any] = {"verify": verify, "torch": torch}
    exec(found.like, scope)
    made = scope["contract"](*(each.float() for each in inputs)).to(BF16)
    [right] = Rounded(trace(layer, inputs), inputs, found.formats).outputs()
    assert int((made != right.to(BF16)).sum()) <= 1 < int((made != layer(*(x.float() for x in inputs)).to(BF16)).sum())


def test_a_gradient_that_is_rounded_at_each_addition_is_found() -> None:
    """PyTorch adds up the gradients of a layer norm's weight and bias in bfloat16 on a CPU, one row after the other."""

    def layer(x: Tensor, w: Tensor) -> Tensor:
        return (x.float() * w.float()).sum(0).to(x.dtype)

    def kernel(x: Tensor, w: Tensor) -> Tensor:
        total = torch.zeros_like(x[0])
        for each in x.float() * w.float():
            total = (total + each).to(x.dtype)
        return total

    found = verify.contract(layer, kernel, drawn("r r", 0, BF16))
    assert found.first == "sum(x * w): the layer keeps it in float32, the kernel in bfloat16 at each addition"
    assert (found.layer.formats, found.kernel.unseen) == ({}, 1.0)


def test_another_order_of_a_sum_is_no_reason_to_search_on() -> None:
    """It moves few elements that are next to a border of rounding, and no place of rounding explains them."""
    inputs = drawn("r n", 0, BF16, rows=512)
    program = trace(lambda x, w: (x.float() * w.float()).sum(-1).to(x.dtype), inputs)
    other = replace(program, lean=2.0**-24)

    def kernel(*operands: Tensor) -> list[Tensor]:
        return [value.float().to(BF16) for value in Rounded(other, operands, {}).outputs()]

    found = found_by(program, lambda x, w: kernel(x, w), kernel, inputs)
    assert found.formats == {} and 0.999 < min(found.known, found.unseen) < 1
    assert found.evaluations < 300


def test_a_large_rounding_does_not_hide_small_ones_before_it() -> None:
    """While an 8-bit number is not found, chance makes other changes look right, such as x * x in 8 bits."""
    contract = {"mul_5": "bfloat16", "mul_10": "float8_e4m3fn", "mean_3": "bfloat16", "rsqrt_3": "bfloat16"}
    found = planted("residual steps, 4", contract)
    assert (found.known, found.unseen) == (1.0, 1.0) and found.form == ""


def test_sets_of_inputs_are_evaluated_as_one_stack() -> None:
    layer, shapes = PROGRAMS["layer norm"]
    sets = [drawn(shapes, seed, BF16) for seed in range(3)]
    program = trace(layer, sets[0])
    contract = dict.fromkeys(program.places[::2], "bfloat16")
    base = Rounded(program, [torch.stack(each) for each in zip(*sets, strict=True)], {})
    for whole in (base.changed(contract), Rounded(program, [*map(torch.stack, zip(*sets, strict=True))], contract)):
        [stack] = whole.outputs()
        for made, inputs in zip(stack, sets, strict=True):
            assert torch.equal(made.to(BF16), Rounded(program, inputs, contract).outputs()[0].to(BF16))


def test_a_number_that_is_stored_for_one_of_its_uses_alone_is_found() -> None:
    """Inductor stores a norm in 16 bits where RoPE turns it, and keeps it in float32 where it does not."""

    def turned(h: Tensor) -> Tensor:
        half = h.shape[-1] // 2
        return torch.cat((-h[..., half:], h[..., :half]), -1)

    def layer(x: Tensor, w: Tensor, c: Tensor, s: Tensor) -> Tensor:
        h = x.float() * w.float()
        return (h * c.float() + turned(h) * s.float()).to(x.dtype)

    def kernel(x: Tensor, w: Tensor, c: Tensor, s: Tensor) -> Tensor:
        h = x.float() * w.float()
        return (h * c.float() + turned(h.to(x.dtype).float()) * s.float()).to(x.dtype)

    found = verify.contract(layer, kernel, drawn("r n n n", 0, BF16)).kernel
    assert found.form == "mul is computed again for each of its uses" and found.unseen == 1.0
    assert set(found.formats.values()) == {"bfloat16"}


def test_a_number_that_is_computed_again_from_a_stored_one_is_found() -> None:
    """Inductor stores a gradient in 16 bits. A second loop multiplies the stored one, the first one does not."""

    def layer(x: Tensor, w: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        h = x.float() * c.float() * w.float()
        return (h + 1.5).to(x.dtype), (h * x.float()).to(x.dtype)

    def kernel(x: Tensor, w: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        g = x.float() * c.float()
        return (g * w.float() + 1.5).to(x.dtype), (g.to(x.dtype).float() * w.float() * x.float()).to(x.dtype)

    inputs = drawn("r n n", 0, BF16)
    found = found_by(trace(layer, inputs), layer, kernel, inputs)
    assert found.form == "mul is computed again for each of its uses" and found.unseen == 1.0
    assert list(found.formats.values()) == ["bfloat16"]


def test_tanh_in_place_of_erf_is_a_form_of_the_program() -> None:
    def layer(x: Tensor) -> Tensor:
        return functional.gelu(x)

    def kernel(x: Tensor) -> Tensor:
        return functional.gelu(x.float(), approximate="tanh").to(x.dtype)

    found = verify.contract(layer, kernel, drawn("r", 0, BF16))
    assert found.kernel.form.startswith("tanh in place of erf, or erf in place of tanh")
    assert found.kernel.unseen > 0.999  # with the tanh of a CPU's vectors, a second change


@pytest.mark.parametrize(("old", "new"), [*RULES, *TAILS])
def test_steps_in_another_form_compute_the_same_number(old: str, new: str) -> None:
    operators = "rsqrt sqrt reciprocal tanh sigmoid erf erfc".split()
    a, b, c = torch.rand(3, 64, dtype=torch.float64) + 0.5
    scope = {"a": a, "b": b, "c": c} | {name: getattr(torch, name) for name in operators}
    torch.testing.assert_close(eval(new, scope), eval(old, scope))


def test_a_format_before_a_wider_result_is_a_place() -> None:
    def layer(x: Tensor, y: Tensor) -> Tensor:
        return (x * y).float()

    found = verify.contract(layer, lambda x, y: x.float() * y.float(), drawn("r r", 0, BF16))
    assert found.first == "x * y: the layer keeps it in bfloat16, the kernel in float32"


def test_a_weight_that_is_cast_before_the_product_is_told_from_one_after() -> None:
    def layer(x: Tensor, w: Tensor) -> Tensor:
        return (x.float() * (1 + w.float())).to(x.dtype)

    found = verify.contract(layer, lambda x, w: x * (1 + w), drawn("r n", 0, BF16))
    assert found.first == "w + 1: the layer keeps it in float32, the kernel in bfloat16"


def test_a_product_that_is_not_rounded_before_it_is_added_is_found_in_float32() -> None:
    layer, shapes = PROGRAMS["layer scale"]
    [product] = trace(layer, drawn(shapes, 0, BF16)).contracted
    found = planted("layer scale", {product: EXACT}, torch.float32)
    assert (found.unseen, dict(found.formats)) == (1.0, {product: EXACT})


def test_roundings_that_change_no_bit_are_named() -> None:
    def halved(x: Tensor) -> Tensor:
        return (x.float() * 0.5) * 3.3

    found = verify.contract(halved, halved, drawn("r", 0, BF16))
    assert "x * 0.5 in bfloat16" in found.kernel.undecided


def test_what_has_no_program_is_refused() -> None:
    def branches(x: Tensor) -> Tensor:
        return x if float(x.sum()) > 0 else -x

    with pytest.raises(verify.UsageError, match="cannot be traced"):
        verify.contract(branches, branches, (torch.ones(4),))
    with pytest.raises(verify.UsageError, match="inputs are the tensors that the layer takes"):
        verify.contract(llama_norm, fused_norm, ())


def test_a_kernel_without_a_gradient_has_no_contract_of_it() -> None:
    with pytest.raises(verify.UsageError, match="gradients are compared, and a result has none"):
        verify.contract(llama_norm, lambda x, w: llama_norm(x, w).detach(), drawn("r n", 0, BF16), gradients=True)


def test_a_kernel_with_other_results_than_its_layer_is_refused() -> None:
    with pytest.raises(verify.UsageError, match="the layer returns 1, the kernel 2"):
        verify.contract(llama_norm, lambda x, w: (llama_norm(x, w), x), drawn("r n", 0, BF16))
