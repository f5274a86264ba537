"""Explaining an error: the steps are those of the kernel or of its definition, and their effects are what they are.

Effects are computed another way too: in rational or mpmath arithmetic in which only the step in question is rounded.
"""

from __future__ import annotations

from fractions import Fraction

import mpmath
import pytest
import torch
from mpmath import mp

import verify
from verify import backends
from verify.cases import Case, inputs_of
from verify.declare.declaration import Kernel
from verify.diagnose.explain import Explanation, explain, rational, worst_place
from verify.diagnose.requests import Rounded, Whole
from verify.errors import UsageError
from verify.records.record import value_of
from verify.truth import formats

ROOT = 0.7071067811865476


@verify.kernel(op="gelu", dtypes=["bfloat16", "float16", "float32"])
def erf_in_its_dtype(x):
    return x * 0.5 * (1.0 + torch.erf(x * ROOT))


@verify.kernel(op="gelu", dtypes=["bfloat16"])
def erf_in_float32(x):
    wide = x.float()
    return (wide * (0.5 * (1.0 + torch.erf(wide / 1.4142135623730951)))).bfloat16()


@verify.kernel(op="gelu", dtypes=["float32"])
def erfc_in_float64(x):
    wide = x.double()
    return (wide * (0.5 * torch.erfc(-wide * ROOT))).float()


@verify.kernel(op="gelu", dtypes=["float32"], gradients=False)
def the_other_form(x):
    u = 0.7978845608028654 * (x + 0.044715 * x**3)
    return 0.5 * x * (1 + torch.tanh(u))


@verify.kernel(op="silu", dtypes=["float32"])
def noisy(x):
    return torch.nn.functional.silu(x) * (1 + 2.0**-10)


ADDRESSES: list[int] = []


@verify.kernel(op="silu", dtypes=["float32"], gradients=False)
def reads_an_address(x):
    ADDRESSES.append(x.data_ptr())
    return noisy.function(x)


class TwoPass(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        centred = x - x.mean(-1, keepdim=True)
        rstd = torch.rsqrt((centred * centred).mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(centred * rstd, rstd, weight)
        return centred * rstd * weight + bias

    @staticmethod
    def backward(ctx, dy):
        xhat, rstd, weight = ctx.saved_tensors
        grown = weight * dy
        along = xhat * (grown * xhat).mean(-1, keepdim=True)
        dx = (grown - (along + grown.mean(-1, keepdim=True))) * rstd
        return dx, (dy * xhat).sum(0), dy.sum(0), None


@verify.kernel(op="layer_norm", dtypes=["float32"])
def with_gradient(x, weight, bias, *, eps):
    return TwoPass.apply(x, weight, bias, eps)


@verify.kernel(op="layer_norm", dtypes=["float32"], gradients=False)
def one_pass(x, weight, bias, *, eps):
    m = x.mean(-1, keepdim=True)
    variance = (x * x).mean(-1, keepdim=True) - m * m
    return (x - m) * torch.rsqrt(variance + eps) * weight + bias


def ask(kernel: Kernel, case: Case, result: str = "y", index: int | None = None) -> Explanation:
    backend = backends.select()
    if index is None:
        index = worst_place(kernel, backend, case, result)
    return explain(kernel, f"here.py::{kernel.name}", backend, case, result=result, index=index)


def step(found: Explanation, text: str) -> Rounded:
    [chosen] = [item for item in found.steps if item.text == text]
    return chosen


def whole(found: Explanation, fmt: str) -> Whole:
    [chosen] = [item for item in found.wholes if item.format == fmt]
    return chosen


PATTERNS = Case(dtype="bfloat16", dims=(65536,), fill="patterns")


def test_the_textbook_formula_in_bfloat16() -> None:
    found = ask(erf_in_its_dtype, PATTERNS, index=0xC08B)
    assert found.owner == "kernel" and found.compared == 65536
    assert [item.text for item in found.steps] == [
        "t1 = x * 0.5", "t2 = x * 0.707107", "t3 = erf(t2)", "t4 = t3 + 1", "t5 = t1 * t4",
    ]  # fmt: skip
    assert value_of(found.replay.worst.ulp) == pytest.approx(255.195302)
    assert whole(found, "bfloat16").same == 65536 > whole(found, "float32").same
    # by another route: the exact function with one step rounded, in mpmath
    with mpmath.workprec(200):
        x = mp.mpf(-4.34375)
        argument = mp.mpf(float(torch.tensor(-4.34375, dtype=torch.bfloat16) * ROOT))
        ulp = mp.ldexp(1, formats.named("bfloat16").ulp_exponent(Fraction(-3.04216506583981371555742603624e-5)))
        exact = x * mp.erfc(-x / mp.sqrt(2)) / 2
        moved = x * mp.erfc(-argument) / 2 - exact
        assert value_of(step(found, "t2 = x * 0.707107").moves["bfloat16"]) == pytest.approx(float(moved / ulp))
        assert value_of(step(found, "t3 = erf(t2)").moves["bfloat16"]) == pytest.approx(float(-exact / ulp))
    assert found.cause.startswith("t3 = erf(t2) in bfloat16 moves the result most, by 255 of 255.2 ULP")


def test_rounding_once_at_the_end_is_told_from_rounding_every_step() -> None:
    found = ask(erf_in_float32, PATTERNS, index=0xC000)  # x = -2
    # PyTorch's erf has other last bits on another processor, in a vector and alone
    assert found.owner == "kernel" and whole(found, "float32").same >= found.compared - 64
    assert found.cause == "rounding the result: it is the exact value, rounded once"


def test_a_kernel_that_is_nearly_exact_has_only_the_rounding_of_the_output_left() -> None:
    found = ask(erfc_in_float64, Case(dtype="float32", dims=(3000,), fill="active"))
    assert abs(found.replay.judged) <= 0.5001 and "rounded once" in found.cause


def test_a_truth_far_below_every_format_is_as_good_as_zero() -> None:
    case = Case(dtype="float32", dims=(1,), fill="ones", upstream="ones", values={"x": "fe967699"})  # x = -1e38
    found = ask(erf_in_its_dtype, case, "y", 0)
    assert found.replay.worst.truth.startswith("-") and "e-" in found.replay.worst.truth
    assert found.replay.judged == 0.0 and found.owner == "definition", "float64 has no digit of 1 + erf(x) there"


def test_a_kernel_that_reads_memory_itself_gets_no_address_of_a_tensor_without_numbers() -> None:
    found = ask(reads_an_address, Case(dtype="float32", dims=(20,), fill="normal"))
    assert found.owner == "definition" and ADDRESSES and all(ADDRESSES)


def test_the_wrong_formula_is_called_so() -> None:
    case = Case(dtype="float32", dims=(200,), fill="normal")
    found = ask(the_other_form, case)
    assert found.owner == "kernel" and abs(value_of(found.formula or 0)) > 1e4
    assert found.cause.startswith("the formula itself: with no step rounded it is ")
    # by another route: the kernel in float64, where only the formula is wrong
    x = inputs_of(the_other_form.op, case, "cpu")["x"]
    assert x is not None
    wide = float(the_other_form(x.double()).reshape(-1)[found.replay.flat_index])
    truth = mp.mpf(found.replay.worst.truth)
    ulp = formats.named("float32").ulp(rational(truth))
    assert value_of(found.formula or 0) == pytest.approx(float((mp.mpf(wide) - truth) / float(ulp)), rel=1e-6)


def test_gradients_by_autograd_are_the_kernels_own_steps() -> None:
    found = ask(erf_in_its_dtype, Case(dtype="float32", dims=(300,), fill="active", upstream="normal"), "dx")
    assert found.owner == "kernel" and "dy" in " ".join(item.text for item in found.steps)
    assert whole(found, "float32").same > 200


def test_an_error_beside_the_steps_is_not_put_on_them() -> None:
    """The kernel has a factor that the definition has not: in a function that cannot be followed, and in the open."""

    @verify.kernel(op="silu", dtypes=["float32"], gradients=False)
    def hidden(x):
        return torch.from_numpy(torch.nn.functional.silu(x).cpu().numpy() * (1 + 2.0**-10)).to(x.device)

    found = ask(hidden, Case(dtype="float32", dims=(200,), fill="normal"))
    assert found.owner == "definition" and [item.text for item in found.steps] == ["t1 = sigmoid(x)", "t2 = x * t1"]
    assert found.cause.startswith("the kernel computes something else: ") and found.formula is None
    seen = ask(noisy, Case(dtype="float32", dims=(200,), fill="normal"))
    assert seen.owner == "kernel" and seen.cause.startswith("the formula itself: ")


def test_a_kernel_whose_result_a_trace_takes_for_a_constant_has_the_steps_of_its_definition() -> None:
    @verify.kernel(op="gelu", dtypes=["float32"], gradients=False)
    def outside(x):
        made = torch.empty(x.shape, dtype=x.dtype)
        made.numpy()[...] = torch.nn.functional.gelu(x.detach()).cpu().numpy() if type(x) is torch.Tensor else 0.0
        return made.to(x.device) * 1.0

    assert ask(outside, Case(dtype="float32", dims=(200,), fill="normal")).owner == "definition"


ROWS = Case(dtype="float32", dims=(4, 300), fill="mean 1e3")


def test_the_cancellation_of_a_one_pass_variance_is_found() -> None:
    found = ask(one_pass, ROWS)
    assert found.owner == "kernel" and abs(value_of(found.formula or 0)) < 1
    # by another route: only the square of the mean is rounded, the rest is rational
    held = inputs_of(one_pass.op, ROWS, "cpu")
    row, column = divmod(found.replay.flat_index, 300)
    values = [Fraction(item) for item in held["x"][row].tolist()]  # type: ignore[index]
    weight, bias = (Fraction(float(held[name][column])) for name in ("weight", "bias"))  # type: ignore[index]
    mean = sum(values, Fraction(0)) / 300

    def result(square: Fraction) -> float:
        with mpmath.workprec(200):
            variance = sum(item * item for item in values) / 300 - square + Fraction(1e-5)
            product = (values[column] - mean) * weight
            root = mp.sqrt(mp.mpf(variance.numerator) / variance.denominator)
            return mp.mpf(product.numerator) / product.denominator / root + mp.mpf(float(bias))

    rounded = Fraction(float(torch.tensor(float(mean * mean), dtype=torch.float32)))
    unit = abs(float(mp.mpf(found.replay.worst.got) - mp.mpf(found.replay.worst.truth))) / found.replay.judged
    [square] = [item for item in found.steps if item.text == "t7 = t2 * t2"]
    moved = float(result(rounded) - result(mean * mean)) / unit
    assert value_of(square.moves["float32"]) == pytest.approx(moved, rel=1e-3)
    assert found.cause.startswith("t1 = sum(x) in float32 moves the result most")


def test_a_backward_pass_written_by_hand_has_the_steps_of_the_definition() -> None:
    found = ask(with_gradient, Case(dtype="float32", dims=(5, 64), fill="mean 1e3", upstream="normal"), "dx")
    assert found.owner == "definition" and len(found.steps) > 10 and found.compared == 320


def test_a_row_of_one_column() -> None:
    found = ask(with_gradient, Case(dtype="float32", dims=(6, 1), fill="randn"))
    assert found.cause.startswith("rounding the result: ")


def test_results_in_float64_are_not_divided() -> None:
    found = ask(naive_softplus, Case(dtype="float64", dims=(8,), fill="normal"))
    assert found.steps == [] and "float64" in found.cause
    assert abs(value_of(found.least)) <= 0.5


@verify.kernel(like=torch.nn.functional.softplus, dtypes=["bfloat16", "float64"])
def naive_softplus(x):
    return torch.log(1 + torch.exp(x))


def test_what_rounding_a_step_does_to_the_element() -> None:
    case = Case(dtype="bfloat16", dims=(64,), fill="normal", upstream="normal")
    found = ask(naive_softplus, case, "y", index=12)
    assert [(row.text, list(row.moves)) for row in found.steps] == [
        ("t1 = exp(x)", ["bfloat16", "float32"]),
        ("t2 = t1 + 1", ["bfloat16", "float32"]),
        ("t3 = log(t2)", ["bfloat16", "float32"]),
    ]
    x = inputs_of(naive_softplus.op, case, "cpu")["x"].reshape(-1)[12].double()  # type: ignore[union-attr]
    exact, ulp = torch.log1p(torch.exp(x)), 2.0**-10
    for dtype in (torch.bfloat16, torch.float32):
        name = str(dtype).removeprefix("torch.")
        first = torch.log1p(torch.exp(x).to(dtype).double())
        second = torch.log((1 + torch.exp(x)).to(dtype).double())
        for row, moved in zip(found.steps, (first, second, exact.to(dtype).double()), strict=True):
            assert value_of(row.moves[name]) == pytest.approx(float(moved - exact) / ulp, rel=1e-6)
    assert found.cause.startswith("t2 = t1 + 1 in bfloat16 moves") and found.compared == 64


def test_a_kernel_that_does_every_step_in_its_dtype_has_the_bits_of_the_program() -> None:
    def normalised(x):
        return torch.log_softmax(x, -1)

    @verify.kernel(like=normalised, shapes={"x": "n d"}, dtypes=["bfloat16"])
    def in_bfloat16(x):
        t = x - x.amax(-1, keepdim=True)
        return t - torch.log(torch.exp(t).float().sum(-1, keepdim=True).bfloat16())

    found = ask(in_bfloat16, Case(dtype="bfloat16", dims=(4, 30), fill="randn"))
    assert [row.text for row in found.steps] == [
        "t1 = x - max(x)", "t2 = exp(t1)", "t3 = sum(t2)", "t4 = log(t3)", "t5 = t1 - t4",
    ]  # fmt: skip
    assert [row.value for row in found.steps[:2]] == ["30 numbers", "30 numbers"]
    assert whole(found, "bfloat16").same == found.compared
    assert "moves the result most" in found.cause and "in float32 no step" in found.cause


def test_sensitivity_is_the_slope_at_half_an_ulp() -> None:
    found = ask(erf_in_its_dtype, PATTERNS, index=0xC08B)
    with mpmath.workprec(200):
        x, half = mp.mpf(-4.34375), mp.ldexp(1, 2 - 7 - 1)
        gelu = lambda t: t * mp.erfc(-t / mp.sqrt(2)) / 2  # noqa: E731
        moved = abs(gelu(x + half) - gelu(x)) / mp.ldexp(1, -16 - 7)
        assert value_of(found.sensitivity or 0) == pytest.approx(float(moved), rel=1e-9)


def test_the_worst_place_is_at_a_finite_input_where_there_is_one() -> None:
    backend = backends.select()
    specials = Case(
        dtype="float32", dims=(4,), fill="ones", upstream="ones", values={"x": "7f800000c00000007fc0000040000000"}
    )
    assert worst_place(erf_in_its_dtype, backend, specials, "dx") in (1, 3)
    with pytest.raises(UsageError, match="has no result 'dw' here; it has: y, dx"):
        worst_place(erf_in_its_dtype, backend, specials, "dw")
