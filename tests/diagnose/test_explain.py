"""Explaining an error: the way a kernel computes is found by its bits, and the shares of its steps are what they are.

Every kernel here is a known formula, so that what `explain` says of it can be computed another way: with the steps
done in rational arithmetic, or with a kernel in which only the step in question is exact.
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
from verify.diagnose.explain import Explanation, Stage, explain, rational, worst_place
from verify.diagnose.explain.elementwise import slope_models, value_models
from verify.diagnose.explain.rows import models as row_models
from verify.diagnose.explain.rows import sequential_mean, tree_mean
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


@verify.kernel(op="gelu", params={"approximate": "tanh"}, dtypes=["float32"], gradients=False)
def exponentials(x):
    u = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    grown = torch.exp(2 * u)
    return 0.5 * x * (1 + (grown - 1) / (grown + 1))


@verify.kernel(op="gelu", dtypes=["float32"], gradients=False)
def the_other_form(x):
    u = 0.7978845608028654 * (x + 0.044715 * x**3)
    return 0.5 * x * (1 + torch.tanh(u))


@verify.kernel(op="gelu", dtypes=["float32"])
def noisy(x):
    return torch.nn.functional.gelu(x) * (1 + 2.0**-16)


@verify.kernel(op="gelu", dtypes=["float32"], gradients=False)
def nearly_textbook(x):
    return torch.where(x < -1e30, 0.0, x * 0.5 * (1.0 + torch.erf(x * ROOT)))  # +0 where the formula gives -0


@verify.kernel(op="geglu", dtypes=["bfloat16"], gradients=False)
def rounded_in_between(x):
    first, second = x.chunk(2, -1)
    wide = second.float()
    return first * (wide * (0.5 * (1.0 + torch.erf(wide * ROOT)))).bfloat16()


@verify.kernel(op="silu", dtypes=["float16"], gradients=False)
def logistic(x):
    return (x.float() / (1 + torch.exp(-x.float()))).half()


def one_pass_of(mean):
    def function(x, weight, bias, *, eps):
        wide = x.float()
        m = mean(wide)
        variance = mean(wide * wide) - m * m
        return ((wide - m) * torch.rsqrt(variance + eps) * weight.float() + bias.float()).to(x.dtype)

    return function


def two_pass_of(mean):
    def function(x, weight, bias, *, eps):
        wide = x.float()
        centred = wide - mean(wide)
        return (centred * torch.rsqrt(mean(centred * centred) + eps) * weight.float() + bias.float()).to(x.dtype)

    return function


def torch_mean(values):
    return values.mean(-1, keepdim=True)


def declared(name, function, **options):
    return verify.kernel(op="layer_norm", name=name, dtypes=["float32", "bfloat16"], **options)(function)


one_pass = declared("one_pass", one_pass_of(torch_mean))
two_pass = declared("two_pass", two_pass_of(torch_mean))
one_after_the_other = declared("one_after_the_other", two_pass_of(sequential_mean))
by_a_tree = declared("by_a_tree", two_pass_of(tree_mean))


@verify.kernel(op="rms_norm", dtypes=["bfloat16"], gradients=False)
def affine_in_bfloat16(x, weight, *, eps):
    wide = x.float()
    normal = wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps)
    return normal.bfloat16() * weight


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


def ask(kernel: Kernel, case: Case, result: str = "y", index: int | None = None) -> Explanation:
    backend = backends.select()
    if index is None:
        index = worst_place(kernel, backend, case, result)
    found = explain(kernel, f"here.py::{kernel.name}", backend, case, result=result, index=index)
    if found.formula is not None:
        # what the whole idea rests on: the shares are the error, without remainder
        total = value_of(found.formula) + sum(value_of(stage.effect) for stage in found.stages)
        assert total == pytest.approx(found.replay.judged * sign(found), rel=1e-9, abs=1e-9)
        assert sum(map(value_of, found.kinds.values())) == pytest.approx(total - value_of(found.formula), rel=1e-9)
    return found


def sign(found: Explanation) -> float:
    return -1.0 if value_of(found.replay.worst.ulp) < 0 else 1.0


def stage(found: Explanation, text: str) -> Stage:
    [chosen] = [item for item in found.stages if item.text == text]
    return chosen


PATTERNS = Case(dtype="bfloat16", dims=(65536,), fill="patterns")


def test_the_textbook_formula_in_bfloat16() -> None:
    found = ask(erf_in_its_dtype, PATTERNS, index=0xC08B)
    assert found.status == "matches" and found.compared == 65536
    assert found.model == "½ x (1 + erf(x/√2)), every step in bfloat16"
    assert value_of(found.replay.worst.ulp) == pytest.approx(255.195302)
    erf = stage(found, "erf(x/√2)")
    assert erf.kind == "intrinsic" and erf.value == "-1"
    assert stage(found, "1 + erf(x/√2)").lost_bits == "inf"
    # by another route: the exact function of the rounded argument, x (1 + erf(t)) / 2, is what the argument costs
    with mpmath.workprec(200):
        argument = mp.mpf(float(torch.tensor(-4.34375, dtype=torch.bfloat16) * ROOT))
        ulp = mp.ldexp(1, formats.named("bfloat16").ulp_exponent(Fraction(-3.04216506583981371555742603624e-5)))
        there = mp.mpf(-4.34375) * mp.erfc(-argument) / 2
        exact = mp.mpf(-4.34375) * mp.erfc(mp.mpf(4.34375) / mp.sqrt(2)) / 2
        assert value_of(stage(found, "x · (1/√2)").effect) == pytest.approx(float((there - exact) / ulp))
        assert value_of(erf.effect) == pytest.approx(float((0 - there) / ulp))
    assert found.cause.endswith("1 + erf(x/√2) cancels every bit")


def test_rounding_once_at_the_end_is_told_from_rounding_every_step() -> None:
    found = ask(erf_in_float32, PATTERNS, index=0xC000)  # x = -2
    assert found.status == "matches"
    assert found.model == "½ x (1 + erf(x/√2)), every step in float32, the result rounded once to bfloat16"
    assert found.kinds["output"] == pytest.approx(value_of(found.least), abs=1e-3)
    assert found.cause.startswith("rounding the result: ")


def test_a_kernel_that_is_nearly_exact_has_only_the_rounding_of_the_output_left() -> None:
    found = ask(erfc_in_float64, Case(dtype="float32", dims=(3000,), fill="active"))
    assert found.status == "matches" and "½ x erfc(-x/√2), every step in float64" in found.model
    assert abs(found.replay.judged) <= 0.5001
    assert value_of(found.kinds["output"]) == pytest.approx(value_of(found.least), abs=1e-6)


def test_overflow_is_named_where_it_happens() -> None:
    case = Case(
        dtype="float32", dims=(2,), fill="ones", params={"approximate": "tanh"}, values={"x": "41f000003f800000"}
    )
    found = ask(exponentials, case, index=0)  # x = 30: exp(2u) is beyond float32
    assert found.status == "matches" and "(e^2u - 1) / (e^2u + 1)" in found.model
    assert found.replay.worst.got == "nan" and found.formula is None
    assert found.cause.startswith("exp(2u) is inf in float32; exactly it is ")


def test_a_truth_far_below_every_format_is_as_good_as_zero() -> None:
    case = Case(dtype="float32", dims=(1,), fill="ones", upstream="ones", values={"x": "fe967699"})  # x = -1e38
    found = ask(erf_in_its_dtype, case, "y", 0)
    assert found.replay.worst.truth.startswith("-") and "e-" in found.replay.worst.truth
    assert found.replay.judged == 0.0 and found.formula == 0.0


def test_the_wrong_formula_is_called_so() -> None:
    found = ask(the_other_form, Case(dtype="float32", dims=(200,), fill="normal"))
    assert found.status == "matches" and "½ x (1 + tanh(u))" in found.model
    assert abs(value_of(found.formula or 0)) > 1e4
    assert found.cause.startswith("the formula itself: with every step exact it is ")
    # by another route: the kernel in float64, where only the formula is wrong
    case = Case(dtype="float32", dims=(200,), fill="normal")
    x = inputs_of(the_other_form.op, case, "cpu")["x"]
    assert x is not None
    index = found.replay.flat_index
    wide = float(the_other_form(x.double()).reshape(-1)[index])
    truth = mp.mpf(found.replay.worst.truth)
    ulp = formats.named("float32").ulp(rational(truth))
    assert value_of(found.formula or 0) == pytest.approx(float((mp.mpf(wide) - truth) / float(ulp)), rel=1e-6)


def test_what_is_like_nothing_known_is_left_alone() -> None:
    found = ask(noisy, Case(dtype="float32", dims=(200,), fill="normal"))
    assert found.status == "unlike" and found.stages == [] and found.formula is None
    assert found.cause == "not known: no common way of computing this gives the kernel's bits"
    assert found.same < found.compared
    assert abs(value_of(found.least)) <= 0.5  # what holds for any kernel is still said


def test_what_is_nearly_like_something_known_is_explained_with_that_said() -> None:
    found = ask(nearly_textbook, Case(dtype="float32", dims=(1,), fill="ones", values={"x": "c0b90db9"}), index=0)
    assert found.status == "nearest" and 0.95 * found.compared <= found.same < found.compared
    assert found.model == "½ x (1 + erf(x/√2)), every step in float32"
    assert found.cause.startswith("computed that way, erf(x/√2), ")


def test_one_equal_element_among_unequal_ones_is_a_coincidence() -> None:
    found = ask(noisy, Case(dtype="float32", dims=(1,), fill="ones", values={"x": "00000000"}), index=0)
    assert found.replay.worst.got_hex == "0x00000000"  # every formula gives that
    assert found.status == "unlike" and found.stages == []


def test_a_small_case_is_compared_on_more_elements_than_it_has() -> None:
    one = Case(dtype="float32", dims=(1,), fill="ones", values={"x": "c0b90db9"})
    found = ask(erf_in_its_dtype, one, index=0)
    assert found.status == "matches" and found.compared == 1 + 4096


def test_gradients_by_autograd_are_known() -> None:
    case = Case(dtype="float32", dims=(300,), fill="active", upstream="normal")
    found = ask(erf_in_its_dtype, case, "dx")
    assert found.status == "matches" and found.model.startswith("autograd of ½ x (1 + erf(x/√2))")
    assert stage(found, "1 + erf(x/√2)").lost_bits is not None


def test_a_gated_form_with_a_rounding_before_the_product() -> None:
    case = Case(dtype="bfloat16", dims=(5, 900), fill="mixed")
    found = ask(rounded_in_between, case)
    assert found.status == "matches"
    assert "activation in float32, rounded to bfloat16 before the product" in found.model


def test_silu_is_known() -> None:
    found = ask(logistic, Case(dtype="float16", dims=(65536,), fill="patterns"))
    assert found.status == "matches" and found.model.startswith("x sigmoid(x), every step in float32")


ROWS = Case(dtype="float32", dims=(4, 300), fill="mean 1e3")


def test_one_pass_variance_is_told_from_two_passes_and_its_cancellation_named() -> None:
    once = ask(one_pass, ROWS)
    assert once.status == "matches" and once.model.startswith("one pass: mean of x² minus m²; rsqrt, in float32")
    difference = stage(once, "mean of x² - m²")
    assert value_of(difference.lost_bits or 0) == pytest.approx(20, abs=1.5)  # log2(1e6 / 1)
    assert "mean of x² - m² cancels" in once.cause
    # a two-pass kernel at the same element is as far off as explain says it would be
    [other] = [item for item in once.others if item.name.startswith("two passes") and "torch.mean" in item.name][:1]
    backend = backends.select()
    twice = explain(two_pass, "here.py::two_pass", backend, ROWS, result="y", index=once.replay.flat_index)
    assert abs(value_of(other.error)) == pytest.approx(twice.replay.judged, rel=1e-6)
    assert twice.status == "matches" and twice.replay.judged < once.replay.judged / 10


def test_the_share_of_the_mean_is_what_an_exact_mean_takes_away() -> None:
    found = ask(two_pass, ROWS)
    x = inputs_of(two_pass.op, ROWS, "cpu")
    row, column = divmod(found.replay.flat_index, 300)
    values = [Fraction(item) for item in x["x"][row].tolist()]  # type: ignore[index]
    weight, bias = (Fraction(float(x[name][column])) for name in ("weight", "bias"))  # type: ignore[index]

    def result(mean: Fraction) -> float:
        with mpmath.workprec(200):
            variance = sum((item - mean) ** 2 for item in values) / 300 + Fraction(1e-5)
            centred = values[column] - mean
            root = mp.sqrt(mp.mpf(variance.numerator) / variance.denominator)
            product = centred * weight
            return mp.mpf(product.numerator) / product.denominator / root + mp.mpf(float(bias))

    rounded = Fraction(float(x["x"][row].mean()))  # type: ignore[index]
    moved = result(rounded) - result(sum(values, Fraction(0)) / 300)
    unit = abs(float(mp.mpf(found.replay.worst.got) - mp.mpf(found.replay.worst.truth))) / found.replay.judged
    assert value_of(stage(found, "mean m of x").effect) == pytest.approx(float(moved) / unit, rel=1e-3)


def test_the_order_of_sums_is_told_apart() -> None:
    wide = Case(dtype="float32", dims=(4, 1000), fill="mean 1e3")
    assert "sums one after the other" in ask(one_after_the_other, wide).model
    assert "sums by a tree of halves" in ask(by_a_tree, wide).model
    assert "sums as torch.mean takes them" in ask(two_pass, wide).model


def test_weight_in_the_dtype_is_told_from_weight_in_float32() -> None:
    found = ask(affine_in_bfloat16, Case(dtype="bfloat16", dims=(9, 200), fill="randn"))
    assert found.status == "matches" and "; weight in bfloat16" in found.model
    assert stage(found, "xhat as bfloat16").kind == "output"


def test_the_gradient_of_layer_norm() -> None:
    found = ask(with_gradient, Case(dtype="float32", dims=(5, 64), fill="mean 1e3", upstream="normal"), "dx")
    assert found.status == "matches" and found.model.startswith("two passes")
    assert found.stages[-1].text == "rstd (g - …)"


def test_a_row_of_one_column() -> None:
    found = ask(two_pass, Case(dtype="float32", dims=(6, 1), fill="randn"))
    assert found.status == "matches" and found.formula == 0.0


def test_an_op_without_ways_keeps_what_holds_for_any_kernel() -> None:
    @verify.kernel(op="softmax", dtypes=["float32"], gradients=False)
    def softmax(x):
        return torch.softmax(x, -1)

    found = ask(softmax, Case(dtype="float32", dims=(2, 9), fill="randn"))
    assert found.status == "unknown" and found.cause == "explain knows no ways to compute y of op softmax"
    assert abs(value_of(found.least)) <= 0.5


@verify.kernel(like=torch.nn.functional.softplus, dtypes=["bfloat16", "float64"])
def naive_softplus(x):
    return torch.log(1 + torch.exp(x))


def test_what_rounding_a_step_of_a_program_does_to_the_element() -> None:
    case = Case(dtype="bfloat16", dims=(64,), fill="normal", upstream="normal")
    found = ask(naive_softplus, case, "y", index=12)
    assert [(row.text, list(row.moves)) for row in found.program] == [
        ("t1 = exp(x)", ["bfloat16", "float32"]),
        ("t2 = log1p(t1)", ["bfloat16", "float32"]),
    ]
    x = inputs_of(naive_softplus.op, case, "cpu")["x"].reshape(-1)[12].double()  # type: ignore[union-attr]
    exact, ulp = torch.log1p(torch.exp(x)), 2.0**-10
    for dtype in (torch.bfloat16, torch.float32):
        name = str(dtype).removeprefix("torch.")
        first = torch.log1p(torch.exp(x).to(dtype).double())
        for row, moved in zip(found.program, (first, exact.to(dtype).double()), strict=True):
            assert value_of(row.moves[name]) == pytest.approx(float(moved - exact) / ulp, rel=1e-6)
    assert found.cause.startswith("the kernel computes something else") and found.compared == 64
    assert ask(naive_softplus, Case(dtype="float64", dims=(8,), fill="normal")).program == []


def test_a_kernel_that_does_every_step_in_its_dtype_has_the_bits_of_the_program() -> None:
    def normalised(x):
        return torch.log_softmax(x, -1)

    @verify.kernel(like=normalised, shapes={"x": "n d"}, dtypes=["bfloat16"])
    def in_bfloat16(x):
        t = x - x.amax(-1, keepdim=True)
        return t - torch.log(torch.exp(t).float().sum(-1, keepdim=True).bfloat16())

    found = ask(in_bfloat16, Case(dtype="bfloat16", dims=(4, 30), fill="randn"))
    assert [row.text for row in found.program] == [
        "t1 = x - max(x)", "t2 = exp(t1)", "t3 = sum(t2)", "t4 = log(t3)", "t5 = t1 - t4",
    ]  # fmt: skip
    assert [row.value for row in found.program[:2]] == ["30 numbers", "30 numbers"]
    same = found.others[0]
    assert same.name.startswith("every step of the program in bfloat16") and same.same == found.compared
    assert "moves the result most" in found.cause and "in float32 none" in found.cause
    gradient = ask(in_bfloat16, Case(dtype="bfloat16", dims=(4, 30), fill="randn", upstream="normal"), "dx")
    assert "dy" in " ".join(row.text for row in gradient.program)


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_every_step_of_every_way_has_a_name_of_its_own(dtype: torch.dtype) -> None:
    ways = value_models("gelu", dtype, gated=True) + value_models("silu", dtype, gated=False) + slope_models(dtype)
    for result in ("y", "dx"):
        ways += row_models(result, ["x"], ["x", "weight", "bias"], dtype, 64, centre=True)
        ways += row_models(result, ["x"], ["x", "weight"], dtype, 64, centre=False)
    for way in ways:
        names = [step.name for step in way.steps]
        assert len(names) == len(set(names)), way.name
