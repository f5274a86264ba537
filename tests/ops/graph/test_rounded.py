"""Rounding to a format on purpose, by float64 and Arb, against rational numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import flint
import pytest
import torch
from torch import Tensor
from torch.nn import functional

import verify
from verify.errors import UsageError
from verify.ops.elements import arb_bits
from verify.ops.graph.like import Definition
from verify.ops.graph.program import trace
from verify.ops.graph.rounded import GRIDS, nearest_ball, rounded
from verify.ops.graph.steps import Run
from verify.ops.op import Problem
from verify.truth.formats import named
from verify.truth.ulp import from_bits, widen


def numbers(name: str) -> torch.Tensor:
    """Numbers of a format, midpoints between neighbours, and what lies just beside these."""
    fmt = named(name)
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randint(0, fmt.max_bits, (400,), generator=generator)
    patterns = torch.cat([patterns, torch.arange(8), torch.arange(fmt.max_bits - 4, fmt.max_bits)])
    low, high = (widen(from_bits(each, fmt)) for each in (patterns, patterns + 1))
    middle = low + (high - low) / 2
    beside = [torch.nextafter(middle, torch.tensor(end, dtype=torch.float64)) for end in (-math.inf, math.inf)]
    some = torch.cat(
        [low, middle, *beside, torch.tensor([float(fmt.max_finite) * 1.02, 1e300, 5e-324], dtype=torch.float64)]
    )
    return torch.cat([some, -some])


@pytest.mark.parametrize("name", GRIDS)
def test_two_routes_round_as_rational_numbers_do(name: str) -> None:
    fmt, grid = named(name), GRIDS[name]
    assert float(fmt.max_finite) == grid.largest and fmt.precision == grid.precision
    x = numbers(name)
    found = rounded(x, name)
    with arb_bits(160):
        for value, got in zip(x.tolist(), found.tolist(), strict=True):
            pattern = fmt.round(Fraction(value))
            beyond = math.copysign(grid.largest if grid.saturates else math.inf, value)
            right = fmt.to_float(pattern) if fmt.is_finite(pattern) else beyond
            assert got == right, (value, got, right)
            assert float(nearest_ball(flint.arb(value), grid)) == right
    assert torch.isnan(rounded(torch.tensor([math.nan], dtype=torch.float64), name)).all()


def test_a_program_rounds_and_its_gradient_is_that_of_a_cast() -> None:
    op = Definition(lambda x: verify.rounds(x * 1.5, torch.bfloat16), ["x"]).op()
    x = torch.randn(64, generator=torch.Generator().manual_seed(1))
    problem = Problem(inputs={"x": x}, upstream={"y": torch.ones(64)}, results=("y", "dx"))
    found = op.fast(problem)
    assert torch.equal(found["y"].value, (x.double() * 1.5).float().bfloat16().double())
    assert torch.equal(found["dx"].value, torch.full((64,), 1.5, dtype=torch.float64))
    assert float(op.points(problem, "y", [3])[0].mp(160)) == float(found["y"].value[3])


def test_a_number_that_roundings_may_put_on_either_side_has_two_right_answers() -> None:
    op = Definition(lambda x: verify.rounds(x.exp(), "bfloat16"), ["x"]).op()
    edge = torch.tensor([math.log(1 + 2.0**-8), math.log(1 + 2.0**-8 + 2.0**-12)], dtype=torch.float64).float()
    for got, right in (([1.0, 1 + 2.0**-7], True), ([1 + 2.0**-7] * 2, True), ([1.0, 1.0], False)):
        problem = op.meaning.chosen(Problem(inputs={"x": edge}, results=("y",)), {"y": torch.tensor(got)})
        assert (op.fast(problem)["y"].value.tolist() == got) == right


def test_outside_of_a_program_it_rounds_a_tensor() -> None:
    x = torch.tensor([1.01, 500.0, -0.2], requires_grad=True)
    y = verify.rounds(x, "float8_e4m3fn")
    y.sum().backward()
    assert y.tolist() == [1.0, 448.0, -0.203125] and x.grad is not None and x.grad.tolist() == [1.0] * 3
    with pytest.raises(UsageError, match="rounds to float32, bfloat16, float16"):
        verify.rounds(x, "int8")


# -- casts --------------------------------------------------------------------------------------------------


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _autocast(x: Tensor, w: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return functional.linear(x, w).relu().float()


CAST: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "autocast": _autocast,
    "products in half": lambda x, w: functional.linear(x.half(), w.half()).float(),
    "a sum in half": lambda x, w: (functional.linear(x, w).half() * 0.3).float(),
    "elements in bfloat16": lambda x, w: (x.bfloat16() * 0.1).float(),
    "a view of half": lambda x, w: x.half().view(-1)[3:].float() * 3.0,
    "a write to half": lambda x, w: torch.zeros(w.shape, dtype=torch.half).copy_(w).float() * 3.0,
    "a constant": lambda x, w: x * torch.tensor(0.1, dtype=torch.bfloat16) + torch.full((8,), 0.3, dtype=torch.half),
    "float8": lambda x, w: x.to(torch.float8_e4m3fn).float() @ w.T,
    "float64 of a sum": lambda x, w: functional.linear(x, w).double() * 2,
    "float64 of elements": lambda x, w: (x * 3.3).double(),
    "float_power": lambda x, w: torch.float_power(x.exp(), 0.5),
    "float64 first": lambda x, w: x.double() * 3.3,
}


@pytest.mark.parametrize("name", CAST)
def test_casts_round_as_those_of_pytorch(name: str) -> None:
    """A cast was the identity, and PyTorch's own results were called wrong."""
    function = CAST[name]
    x, w = drawn(3, 8, seed=11), drawn(2, 8, seed=111)
    a, b = x.clone().requires_grad_(), w.clone().requires_grad_()
    y = function(a, b)
    upstream = drawn(*y.shape, seed=3).to(y.dtype)
    grads = torch.autograd.grad(y, [a, b], upstream, allow_unused=True)
    used = [n for n, g in zip("xw", grads, strict=True) if g is not None and bool(g.any())]
    given = tuple(torch.zeros_like(v) if g is None else g for g, v in zip(grads, (x, w), strict=True))
    inputs = (x, w)
    verify.assert_close(y.detach(), like=function, inputs=inputs, grads=given, upstream=upstream)
    for wrong in (1.001, 0.0):
        with pytest.raises(AssertionError, match="wrong|vacuous"):
            verify.assert_close(y.detach() * wrong, like=function, inputs=inputs)
    off = tuple(g * {"x": 1.001, "w": 0.0}[n] if n in used else g for n, g in zip("xw", given, strict=True))
    with pytest.raises(AssertionError, match="wrong|vacuous"):
        verify.assert_close(y.detach(), like=function, inputs=inputs, grads=off, upstream=upstream)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_casts_to_the_dtype_of_an_operand_round_nothing(kind: torch.dtype) -> None:
    """Each operator of PyTorch rounds to it, so a cast back to it asks for nothing more."""
    program = trace(lambda x: x.float().exp().to(x.dtype) * 3.0, {"x": torch.ones(3, dtype=kind)})
    assert not any(getattr(step, "function", "").startswith("to ") for step in program.steps)


def test_a_cast_of_the_result_is_left_to_the_judge() -> None:
    """The result is judged in its own dtype, from the number before the cast."""
    x = torch.tensor([1.0 + 2.0**-9 + 2.0**-20])
    program = trace(lambda x: x[None].bfloat16().T, {"x": x})
    span = program.spans(Run({"x": x}, torch.device("cpu")), ["y"])["y"]
    assert float(span.lo) == float(span.hi) == float(x)


def test_a_cast_to_a_format_that_verify_cannot_round_to_is_named() -> None:
    with pytest.raises(UsageError, match=r"received a cast to torch.float8_e4m3fnuz \("):
        trace(lambda x: x.to(torch.float8_e4m3fnuz).float() * 2, {"x": torch.ones(3)})


def test_codes_by_a_scale_of_16_bits_are_right_if_the_declaration_says_eager() -> None:
    """Eager PyTorch rounds the scale and the quotient to bfloat16. Without that word no kernel may."""

    def dynamic(x: Tensor) -> tuple[Tensor, Tensor]:
        scale = x.abs().amax(-1, keepdim=True) / 127
        return (x / scale).round().clamp(-128, 127).to(torch.int8), scale

    x = torch.randn(33, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    codes, scale = dynamic(x.float())
    exact, eager = (codes, scale.bfloat16()), dynamic(x)
    wrong = (eager[0] + (torch.arange(64) % 7 == 0)).to(torch.int8), eager[1]
    assert not torch.equal(exact[0], eager[0])
    for got in (exact, eager):
        verify.assert_close(got, like=dynamic, inputs=(x,), intermediate="eager")
    verify.assert_close(exact, like=dynamic, inputs=(x,))
    for got, said in ((eager, ""), (wrong, "eager")):
        with pytest.raises(AssertionError, match="wrong"):
            verify.assert_close(got, like=dynamic, inputs=(x,), intermediate=said)
