"""Roundings: a kernel that rounds elsewhere than it promises is found, with the contract that it keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import verify
from tests.laws.trial import breaks, holds
from verify.declare.declaration import Kernel
from verify.errors import UsageError

NEITHER = "neither 'as like' nor 'once'"
ROWS, GATES = {"x": "r n", "w": "n"}, {"g": "r n", "u": "r n"}


def norm(x: Tensor, w: Tensor) -> Tensor:
    h = x.float()
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
    return w * h.to(x.dtype)


def gated(g: Tensor, u: Tensor) -> Tensor:
    return functional.silu(g) * u + g


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-1, -2) * 0.125).softmax(-1) @ v


def masked(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(x * y > 0.5, torch.relu(x * y) * 1.5, y.abs() + x).clamp(-2, 2)


def losses(x: Tensor) -> Tensor:
    return functional.log_softmax(x, -1) * 0.3 + 0.1


def wide(layer: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *given: layer(*(each.float() for each in given)).to(given[0].dtype)


def declared(function: Callable[..., Any], layer: Callable[..., Any], shapes: Any, **options: Any) -> Kernel:
    names = ", ".join(shapes)
    space = {"function": function}
    exec(f"def kernel({names}):\n    return function({names})", space)  # a name for each operand
    options = {"dtypes": ["bfloat16", "float16", "float32"]} | options
    return verify.kernel(like=layer, shapes=shapes, **options)(space["kernel"])


LAYERS = {
    "norm": (norm, ROWS),
    "gated": (gated, GATES),
    "layer norm": (lambda x, w: functional.layer_norm(x, x.shape[-1:], w, None, 1e-5), ROWS),
    "attention": (attention, {"q": "h t d", "k": "h s d", "v": "h s d"}),
    "decisions about computed numbers": (masked, {"x": "r n", "y": "r n"}),
    "constants and sums that PyTorch keeps in 16 bits": (losses, {"x": "r n"}),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("norm", "float16"),
        ("gated", "float16"),
        *((name, dtype) for name in LAYERS for dtype in ("bfloat16", "float32")),
    ],
)
def test_the_layer_itself_rounds_as_the_layer_and_its_fused_form_once(name: str, dtype: str) -> None:
    """Outputs and gradients: PyTorch's own kernels are the honest ones."""
    layer, shapes = LAYERS[name]
    holds("roundings", declared(layer, layer, shapes, rounds="as like"), dtype)
    holds("roundings", declared(wide(layer), layer, shapes, rounds="once"), dtype)


def backwards(x: Tensor, w: Tensor) -> Tensor:
    """Adds up the squares one after the other, from the last, and divides by a root."""
    h, total = x.float(), torch.zeros(*x.shape[:-1], 1)
    for at in reversed(range(x.shape[-1])):
        total = total + h[..., at : at + 1] ** 2
    return ((h / torch.sqrt(total / x.shape[-1] + 1e-6)) * w.float()).to(x.dtype)


def by_powers_of_two(x: Tensor) -> Tensor:
    h = x.float() * 1.4426950408889634
    up = torch.exp2(h - h.amax(-1, True))
    return (up * (1 / up.sum(-1, True))).to(x.dtype)


def by_parts(x: Tensor) -> Tensor:
    """The softmax of a flash attention: the maximum and the sum follow the parts of a row."""
    h = x.float()
    largest, total = torch.full((*h.shape[:-1], 1), -torch.inf), torch.zeros(*h.shape[:-1], 1)
    for part in h.split(16, -1):
        now = torch.maximum(largest, part.amax(-1, True))
        total = total * torch.exp(largest - now) + torch.exp(part - now).sum(-1, True)
        largest = now
    return (torch.exp(h - largest) / total).to(x.dtype)


def in_one_pass(x: Tensor, w: Tensor) -> Tensor:
    h = x.float()
    mean = h.mean(-1, True)
    scale = torch.rsqrt((h * h).mean(-1, True) - mean * mean + 1e-5) * w.float()
    return (h * scale - mean * scale).to(x.dtype)


def tail_lost(x: Tensor) -> Tensor:
    h = x.float()
    return (0.5 * h * (1 + torch.erf(h * 0.7071067811865476))).to(x.dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("function", "layer", "shapes"),
    [
        (backwards, norm, ROWS),
        (by_powers_of_two, lambda x: x.softmax(-1), {"x": "r n"}),
        (by_parts, lambda x: x.softmax(-1), {"x": "r n"}),
        (in_one_pass, lambda x, w: functional.layer_norm(x, x.shape[-1:], w, None, 1e-5), ROWS),
        (tail_lost, functional.gelu, {"x": "r n"}),
    ],
)
def test_other_orders_and_forms_in_float32_keep_one_rounding(
    function: Any, layer: Any, shapes: Any, dtype: str
) -> None:
    holds("roundings", declared(function, layer, shapes, rounds="once", gradients=False), dtype)


@pytest.mark.parametrize(
    ("function", "layer", "shapes", "promised", "contract"),
    [
        (wide(norm), norm, ROWS, "as like", "once"),
        (norm, norm, ROWS, "once", "as like"),
        (
            lambda g, u: (functional.silu(g.float()) * u.float()).to(g.dtype) + g,
            gated,
            GATES,
            "as like",
            NEITHER,
        ),
        (
            lambda x, w: (
                norm(x, w)
                if x.dtype == torch.float32
                else (x.float() * torch.rsqrt((x * x).float().mean(-1, True) + 1e-6) * w.float()).to(x.dtype)
            ),
            norm,
            ROWS,
            "once",
            NEITHER,
        ),
    ],
)
def test_a_broken_promise_names_the_contract_that_holds(
    function: Any, layer: Any, shapes: Any, promised: str, contract: str
) -> None:
    kernel = declared(function, layer, shapes, rounds=promised, gradients=False)
    found = breaks("roundings", kernel, f"rounds='{promised}' is not kept", "bfloat16")
    facts = dict(found.fact_lines(9))
    assert facts["contract"] == contract
    assert facts["more"] == "verify contract like here.py::it"
    assert "0x" in facts["allowed"] and facts["got"] != facts["allowed"]


def toward_zero(g: Tensor, u: Tensor) -> Tensor:
    return (gated(g.float(), u.float()).view(torch.int32) & -65536).view(torch.float32).bfloat16()


class Slopes(torch.autograd.Function):
    """The right output, and a gradient of which the first factor is rounded."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, u: Tensor) -> Tensor:
        ctx.save_for_backward(g, u)
        return wide(gated)(g, u)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        g, u = (each.float() for each in ctx.saved_tensors)
        s = torch.sigmoid(g)
        slope = (u * s * (1 + g * (1 - s)) + 1).bfloat16().float()
        return (dy.float() * slope).bfloat16(), (dy.float() * g * s).bfloat16()


def test_other_roundings_than_those_of_the_program_are_found_too() -> None:
    kernel = declared(toward_zero, gated, GATES, rounds="once", gradients=False)
    assert breaks("roundings", kernel, "one rounding at the end", "bfloat16").facts["contract"] == NEITHER
    found = breaks("roundings", declared(Slopes.apply, gated, GATES, rounds="once"), "rounds='once'", "bfloat16")
    assert found.facts["at"].startswith("dg ")


def test_one_function_under_two_promises_has_a_contract_for_each() -> None:
    half = lambda g, u: (functional.silu(g.float()) * u.float()).to(g.dtype) + g  # noqa: E731
    other = lambda g, u: wide(functional.silu)(g) * u + g  # noqa: E731
    for layer, found in ((gated, NEITHER), (other, NEITHER), (lambda g, u: half(g, u) * 1.0, "as like")):
        kernel = declared(half, layer, GATES, rounds="once", gradients=False)
        assert breaks("roundings", kernel, "once", "bfloat16").facts["contract"] == found


def test_a_promise_of_which_no_element_is_judged_is_broken() -> None:
    largest = lambda x: x.softmax(-1).topk(1, -1).values  # noqa: E731
    kernel = declared(largest, largest, {"x": "r n"}, rounds="as like", gradients=False)
    holds("roundings", kernel, "bfloat16")  # the numbers that it selects from are stored, and known
    breaks("roundings", kernel, "no element can be judged", "float32")


def test_a_promise_is_checked_where_it_is_declared() -> None:
    with pytest.raises(UsageError, match="rounds is one of"):
        declared(gated, gated, GATES, rounds="never")
    with pytest.raises(UsageError, match="beside op 'silu'"):
        verify.kernel(op="silu", rounds="once")(functional.silu)
    seeded = {"integers": {"seed": "0 <= seed < 9"}, "stochastic": "seed", "gradients": False, "dtypes": ["bfloat16"]}
    with pytest.raises(UsageError, match="rounded to nearest; received 'once' beside a quantised"):
        declared(lambda x, seed: x, lambda x, seed: x * 2, {"x": "n", "seed": ""}, rounds="once", **seeded)
    assert "rounds once" in declared(gated, gated, GATES, rounds="once").promise
