"""The verdict on the tallies of a result: maximum, root mean square, mean, open elements, and PyTorch beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

import verify
from tests.measure.test_kernel import CPU, only
from verify.measure.counting import tally
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure
from verify.measure.result import FEWEST, LimitCheck, check_limit
from verify.measure.tally import FEWEST_TRUTHS, Bias, Maximum, Tally
from verify.ops.op import Problem
from verify.records.readings import NONFINITE
from verify.records.record import DEMANDING, EXTREME, ORDINARY, ClassFigures, Result
from verify.records.recorded import deciding
from verify.report.result_words import result_notes
from verify.truth.formats import named
from verify.truth.ulp import Yardstick, errors

FMT = named("float32")
NOISE = 2.0**-10  # beside truths of 1.5, where half a ULP is 2^-24


def summed(x: Tensor) -> Tensor:
    return x.cumsum(-1)


def declared(**said: Any) -> verify.Kernel:
    options = {"shapes": {"x": "n d"}, "dtypes": ["float32"], **said}
    return verify.kernel(like=summed, **options)(summed)


def noisy(figures: Sequence[float] | Tensor, *, width: float = 0.0) -> Tally:
    """The tally of elements that are off by these multiples of the noise, away from zero where positive."""
    off = torch.as_tensor(figures, dtype=torch.float64)
    noise = torch.full_like(off, NOISE)
    # the truth moves, as float32 has no finer numbers for what the kernel gave; half a ULP is no error
    got = torch.full_like(off, 1.5).float()
    truth = got.double() - off * NOISE - torch.sign(off) * 2.0**-24
    bound = torch.full_like(off, width * NOISE)
    [found] = tally(errors(got, truth, FMT, bound=bound, scale=Yardstick(noise, 0.0)))
    return found


def check(*parts: tuple[str, Tally], result: str = "y", dtype: str = "float32", **said: Any) -> LimitCheck:
    return check_limit(declared(**said), dtype, result, {("all", name): part for name, part in parts})


def test_the_maximum_of_a_program_is_counted_in_its_noise() -> None:
    within, beyond = noisy([7.9, -7.9]), noisy([0.1, -8.1])
    assert (check((ORDINARY, within)).status, check((ORDINARY, within)).reason) == ("ok", "")
    found = check((ORDINARY, beyond))
    assert (found.status, found.reason) == ("wrong", "8.1\u00d7 noise on ordinary inputs, the limit is 8")
    assert check((ORDINARY, beyond), max_noise=9).status == "ok"
    assert check((ORDINARY, beyond), max_noise={"y": 9}).status == "ok"
    assert check((ORDINARY, beyond), max_noise={"dx": 9}).status == "wrong"


@pytest.mark.parametrize(
    ("among", "worst", "status"), [(2**19, 8.1, "wrong"), (2**25, 8.9, "ok"), (2**28, 12, "wrong")]
)
def test_the_worst_of_more_elements_may_be_larger(among: int, worst: float, status: str) -> None:
    """PyTorch's own product of 4096 x 8192 x 4096 was wrong on an H200, at 8.86 times the noise."""
    parts = {("all", ORDINARY): noisy([worst, *[0.5] * 99])}
    assert check_limit(declared(), "float32", "y", parts, among=among).status == status
    assert check_limit(declared(max_noise=8), "float32", "y", parts, among=among).status == "wrong", "as declared"


@pytest.mark.parametrize(("count", "told"), [(1, "1"), (3, "at most 3"), (30, "")])
def test_a_verdict_on_few_elements_says_so(count: int, told: str) -> None:
    figures = torch.zeros(10_000)
    figures[:count] = 8.9
    found = check((ORDINARY, noisy(figures)))
    rest = f"; in {told} of 10,000 elements" if told else ""
    assert (found.status, found.reason) == ("wrong", f"8.9\u00d7 noise on ordinary inputs, the limit is 8{rest}")


def test_a_limit_in_ulp_beside_one_in_noise_leaves_its_unit() -> None:
    """PyTorch's own figure would change with the unit."""
    given = {"shapes": {"x": "n d"}, "dtypes": ["bfloat16"], "like": lambda x: (x.sin() + 1).square().sum(-1)}

    def unit(**limits: Any) -> Tensor:
        kernel = verify.kernel(**given, **limits)(summed)
        inputs = {"x": torch.linspace(1, 2, 24, dtype=torch.bfloat16).reshape(1, 24)}
        noise = kernel.op.fast(Problem(inputs))["y"].noise
        assert noise is not None
        return noise

    assert torch.equal(unit(), unit(max_ulp=64, max_noise=300))
    assert (unit(max_ulp=64) < unit()).all()


def test_the_root_mean_square_of_a_class_is_at_most_three() -> None:
    steady = torch.tensor([1.0, -1.0]).repeat(FEWEST)
    assert check((ORDINARY, noisy(2.95 * steady))).status == "ok"
    found = check((ORDINARY, noisy(3.1 * steady)), (DEMANDING, noisy(0.1 * steady)))
    told = "3.1 times what noise and rounding explain, root mean square on ordinary inputs, the limit is 3"
    assert (found.status, found.reason) == ("wrong", told)
    assert found.classes[DEMANDING].reason == ""
    assert check((ORDINARY, noisy(3.1 * steady)), max_noise=1000).status == "wrong", "whatever the maximum may be"


def test_sixteen_bits_have_a_lower_limit_of_noise_and_of_its_root_mean_square() -> None:
    """Few roundings make the noise there, so that honest sums of them end sooner."""
    steady = torch.tensor([1.0, -1.0]).repeat(FEWEST)
    for dtype, most, rms in (("float32", 8, 3.0), ("bfloat16", 5, 1.4), ("float16", 5, 1.4)):
        for figures, status in (
            ([most - 0.1, 0.0], "ok"),
            ([most + 0.1, 0.0], "wrong"),
            (steady * (rms - 0.05), "ok"),
            (steady * (rms + 0.05), "wrong"),
        ):
            assert check((ORDINARY, noisy(figures)), dtype=dtype, dtypes=[dtype]).status == status, (dtype, figures)


def test_elements_that_move_together_may_have_a_larger_root_mean_square() -> None:
    truth = torch.tensor([1.5 + 3.5 * NOISE], dtype=torch.float64).repeat(FEWEST)
    noise = torch.full_like(truth, NOISE)
    for together, status in ((1.0, "wrong"), (1.4, "ok")):
        unit = Yardstick(noise, 0.0, together)
        [part] = tally(errors(torch.full((FEWEST,), 1.5), truth, FMT, scale=unit))
        assert check((ORDINARY, part)).status == status


def test_few_elements_have_no_root_mean_square_and_no_promise_has_none() -> None:
    steady = torch.tensor([1.0, -1.0]).repeat(FEWEST)
    assert check((ORDINARY, noisy(4 * steady[: FEWEST - 1]))).status == "ok"
    assert check((ORDINARY, noisy(4 * steady[:FEWEST]))).status == "wrong"
    assert check((ORDINARY, noisy(steady)), (EXTREME, noisy(50 * steady))).status == "ok"


def slanted(share: float, count: int = 400) -> Tally:
    """The tally of right elements with distinct truths, of which a share is rounded wrongly away from zero."""
    side = round(share * count)
    return msgspec.structs.replace(noisy([0.5] * count), bias=Bias(count, side, count, abs(side), side, count))


def test_a_mean_away_from_zero_is_wrong_beyond_its_limit() -> None:
    for side in (1, -1):
        biased = slanted(side * 0.4)
        assert check((ORDINARY, biased)).status == "ok", "float32 has no default"
        found = check((ORDINARY, biased), max_bias=0.1)
        assert found.status == "wrong"
        where = "away from zero: +0.4" if side > 0 else "toward zero: -0.4"
        told = f"400 distinct ordinary inputs are rounded {where} +- 0.02453 ULP on average, the limit is 0.1"
        assert found.reason == told
        assert check((ORDINARY, biased), max_bias=0.35).status == "ok", "0.4 is not surely above it"
        assert check((ORDINARY, biased), max_bias={"y": 0.1}).status == "wrong"
        assert check((ORDINARY, biased), max_bias={"dx": 0.1}).status == "ok"
        for narrow in ("bfloat16", "float16"):
            assert check((ORDINARY, biased), dtype=narrow, dtypes=[narrow]).status == "wrong"
            assert check((ORDINARY, biased), dtype=narrow, dtypes=[narrow], max_bias=0.5).status == "ok"


def test_a_bias_of_pytorch_excuses_one_as_large() -> None:
    kernel = declared(dtypes=["bfloat16"])
    for theirs, status in ((0.0, "wrong"), (-0.4, "ok"), (0.4, "ok")):
        parts = {name: {("all", ORDINARY): slanted(share)} for name, share in (("own", -0.4), ("theirs", theirs))}
        assert check_limit(kernel, "bfloat16", "y", parts["own"], None, parts["theirs"]).status == status


def test_results_that_are_rounded_at_random_have_no_default_limit_of_their_bias() -> None:
    kernel = declared(dtypes=["bfloat16"])
    parts = {("all", ORDINARY): slanted(-0.4)}
    assert check_limit(kernel, "bfloat16", "y", parts).status == "wrong"
    assert check_limit(replace(kernel, stochastic={"y": "seed"}), "bfloat16", "y", parts).status == "ok"


def test_a_mean_of_few_elements_is_not_sure() -> None:
    assert check((ORDINARY, slanted(1.0, FEWEST_TRUTHS - 1)), max_bias=0.1).status == "ok"
    assert check((ORDINARY, slanted(1.0, FEWEST_TRUTHS)), max_bias=0.1).status == "wrong"


def test_what_the_reference_leaves_open_is_undecided_and_no_pass() -> None:
    found = check((ORDINARY, noisy([1.0, 7.5], width=1.0)))
    assert (found.status, found.only_special) == ("undecided", False)
    assert found.reason == "not proven within 8\u00d7 noise on ordinary inputs: up to 8.5 cannot be excluded"
    # where an enclosure excludes no error, none was seen either
    unbounded = Tally(n=376, scaled=Maximum(0.4, "inf"))
    assert check((ORDINARY, unbounded)).reason.endswith("on ordinary inputs: up to inf cannot be excluded")
    assert check((ORDINARY, noisy([1.0, 9.5], width=1.0))).status == "wrong", "8.5 at least"
    assert check((ORDINARY, noisy([1.0, 6.5], width=1.0))).status == "ok"


def test_elements_of_which_nothing_is_known_are_undecided() -> None:
    part = msgspec.structs.replace(noisy([1.0] * 10), open=3, undecided=3)
    found = check((ORDINARY, part))
    assert (found.status, found.reason) == ("undecided", "nothing is known of 3 of 10 elements on ordinary inputs")
    worse = check((ORDINARY, part), (DEMANDING, noisy([9.0])))
    assert (worse.status, worse.reason) == ("wrong", "9\u00d7 noise on demanding inputs, the limit is 8"), "weighs more"


def test_a_trivial_answer_that_was_tried_at_some_elements_alone_decides_nothing() -> None:
    """A copy of an operand has the shape of the result in some cases only; what it would be elsewhere is not known."""
    parts = {("all", ORDINARY): noisy([0.1] * 10)}

    def verdict(**trivial: Tally) -> tuple[str, str, str]:
        found = check_limit(declared(), "float32", "y", parts, trivial)
        return found.status, found.reason.partition(":")[0], found.trivial

    assert verdict(zeros=noisy([9.0] * 10), copy=noisy([1.0] * 4)) == ("ok", "", "")
    assert verdict(zeros=noisy([9.0] * 10), copy=noisy([0.0] * 4)) == ("ok", "", "")
    assert verdict(zeros=noisy([9.0] * 10), copy=noisy([1.0] * 10)) == ("ok", "", "on ordinary inputs copy would pass")
    assert verdict(zeros=noisy([9.0] * 10), copy=noisy([0.0] * 10)) == ("ok", "", "on ordinary inputs copy are right")


def test_nan_is_wrong_whatever_the_limit_is() -> None:
    part = msgspec.structs.replace(noisy([0.0, 0.0]), nan=1, nonfinite=1)
    found = check((ORDINARY, part), max_ulp=1e30)
    assert found.status == "wrong"
    assert found.reason == "NaN at 1 of 2 ordinary inputs whose exact answer is a number"


def test_extreme_inputs_without_a_promise_have_no_verdict_but_a_fact() -> None:
    far = noisy([1e6, 1e6, 0.0])
    alike = check((ORDINARY, noisy([1.0])), (EXTREME, far))
    assert (alike.status, alike.classes[EXTREME].reason) == ("ok", ""), "PyTorch is as wrong"
    worse = msgspec.structs.replace(far, worse=2)
    found = check((ORDINARY, noisy([1.0])), (EXTREME, worse))
    told = "worse than PyTorch at 2 of 3 extreme inputs: beyond the limit where PyTorch is within"
    assert (found.status, found.reason) == ("ok", "")
    assert (found.classes[EXTREME].reason, found.classes[EXTREME].limit) == (told, None)
    promised = check((ORDINARY, noisy([1.0])), (EXTREME, far), max_ulp=4)
    assert (promised.status, promised.classes[EXTREME].limit) == ("wrong", 8.0)


def test_a_result_without_an_element_does_not_pass() -> None:
    for parts in ({}, {("all", ORDINARY): noisy([])}):
        found = check_limit(declared(), "float32", "y", parts)
        assert (found.status, found.reason) == ("undecided", "nothing was judged")


def test_infinite_and_nan_inputs_are_judged_beside_pytorch_too() -> None:
    def verdict(part: Tally, **said: Any) -> LimitCheck:
        parts = {("all", ORDINARY): noisy([1.0]), (NONFINITE, EXTREME): part}
        return check_limit(declared(**said), "float32", "y", parts)

    part = msgspec.structs.replace(noisy([0.0] * 5), nonfinite=2)
    assert verdict(part).status == "ok"
    worse = verdict(msgspec.structs.replace(part, worse=1))
    told = "worse than PyTorch at 1 of 5 infinite or NaN inputs: beyond the limit where PyTorch is within"
    assert (worse.status, worse.reason, worse.only_special) == ("wrong", told, True)
    strict = verdict(part, max_ulp=4)
    assert (strict.status, strict.reason) == ("wrong", "wrong at 2 infinite or NaN inputs, right at all others")


def test_each_result_has_the_limit_that_is_declared_for_it() -> None:
    kernel = verify.kernel(op="silu", dtypes=["float32", "bfloat16"], max_ulp={"dx": 6})(lambda x: x)
    limits = [kernel.limit(dtype, result) for dtype in ("float32", "bfloat16") for result in ("y", "dx")]
    assert limits == [4.0, 6.0, 1.0, 6.0]
    [part] = tally(errors(torch.tensor([1 + 5 * 2.0**-23]), torch.ones(1).double(), FMT))
    parts = {("all", ORDINARY): part}
    assert check_limit(kernel, "float32", "dx", parts).status == "ok"
    assert check_limit(kernel, "float32", "y", parts).reason == "5 ULP on ordinary inputs, the limit is 4"


def test_an_error_within_the_limit_in_ulp_is_right_whatever_the_noise_is() -> None:
    """The least unit is such that 8 of it and half a ULP are max_ulp."""
    kernel = declared(max_ulp=6)
    floor = kernel.noise_floor("float32", "y")
    for off, status in ((5.99, "ok"), (6.01, "wrong")):
        truth = torch.tensor([1.5 - off * 2.0**-23], dtype=torch.float64)
        unit = Yardstick(torch.zeros(1).double(), floor)
        [part] = tally(errors(torch.tensor([1.5]), truth, FMT, scale=unit))
        assert check_limit(kernel, "float32", "y", {("all", ORDINARY): part}).status == status


# -- with kernels -------------------------------------------------------------------------------------------


def _measured(like: Callable[..., Any], function: Callable[..., Any], **said: Any) -> Result:
    options = {"shapes": {"x": "3 8"}, "dtypes": ["float32"], "gradients": False, **said}
    return only(measure_kernel(verify.kernel(like=like, **options)(function), Measure("a.py::kernel"), CPU))


def _extreme(result: Result) -> ClassFigures:
    return next(each for each in result.classes if each.name == EXTREME)


def _norm(x: Tensor) -> Tensor:
    """Its squares overflow at extreme inputs, in PyTorch too."""
    return (x * x).sum(-1).sqrt()


def test_a_kernel_that_overflows_where_pytorch_does_is_not_wrong() -> None:
    result = _measured(_norm, _norm)
    assert (result.status, _extreme(result).limit) == ("ok", None)
    assert _extreme(result).figures.nonfinite > 0
    promised = _measured(_norm, _norm, max_ulp=4)
    assert (promised.status, _extreme(promised).limit) == ("wrong", 8.0)


def test_a_kernel_that_is_wrong_at_extreme_inputs_alone_passes_with_a_note() -> None:
    def cut(x: Tensor) -> Tensor:
        return torch.where(x.abs().amax(-1, keepdim=True) > 1e20, 0.0, summed(x))

    result = _measured(summed, cut)
    assert (result.status, result.reason, deciding(result)) == ("ok", "", None)
    [note] = result_notes(result)
    assert note.startswith("y float32: worse than PyTorch at ") and note.endswith("; nothing is promised there")
    assert result_notes(_measured(summed, summed)) == []
    assert _measured(summed, cut, max_ulp=4).status == "wrong"
