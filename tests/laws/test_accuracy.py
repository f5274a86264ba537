"""The short proof that every element is within the limit: it accepts nothing that the whole judgement refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import verify
from verify import Policy, backends
from verify.cases import Case
from verify.cases.strategies import Sizes
from verify.errors import KernelError
from verify.laws import registry
from verify.laws.accuracy import _surely_within, fetched, judge_measured
from verify.laws.law import Broken, Subject
from verify.measure.call import INFERENCE, Measured
from verify.truth import formats
from verify.truth.ulp import bits_of, errors, from_bits, widen

HUGE = (65504.0, 65504.0, 4.0, 1.5), (65504.0, -65504.0, 480.0, 32.0)  # factors of 4 products: their sum is 1,968
LARGE = (2048.0, -64.0, 2.0, 1.0), (16.0, 16.0, 480.0, 32.0)  # 32,736: every term is within float16

POLICIES = [
    Policy(),
    Policy(nan="any"),
    Policy(overflow="saturate"),
    Policy(subnormals="flush", signed_zero="strict"),
]
COUNT = 20_000


def results_and_truths(fmt: formats.Format, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Every kind of result, and truths that are near it, far from it, beyond the format, at ends of binades."""
    made = torch.Generator().manual_seed(seed)
    patterns = torch.randint(0, 1 << fmt.bits, (COUNT,), generator=made)
    got = from_bits(patterns, fmt)
    got[:400] = from_bits(torch.tensor([fmt.max_bits, fmt.nan_bits, 0, fmt.sign_bit] * 100), fmt)
    wide = widen(got)
    unit = 2.0 ** (torch.log2(wide.abs().clamp_min(1e-300)).floor().clamp(fmt.emin, fmt.emax) - fmt.mantissa_bits)
    away = torch.randn(COUNT, generator=made, dtype=torch.float64)
    truth = wide + unit * away
    kind = torch.randint(0, 8, (COUNT,), generator=made)
    truth = torch.where(kind == 0, wide, truth)
    truth = torch.where(kind == 1, 2.0 ** torch.log2(truth.abs()).round(), truth)
    truth = torch.where(kind == 2, torch.tensor([math.inf, -math.inf, math.nan, 0.0]).double()[patterns % 4], truth)
    truth = torch.where(kind == 3, torch.copysign(float(fmt.overflow) + unit * away, truth), truth)
    bound = unit * torch.rand(COUNT, generator=made, dtype=torch.float64) ** 4
    return got, truth, torch.where(torch.isfinite(truth), bound, 0.0)


@pytest.mark.parametrize("policy", POLICIES, ids=["plain", "any", "saturate", "flush"])
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
def test_what_the_short_proof_accepts_is_within_the_limit(name: str, policy: Policy) -> None:
    fmt = formats.named(name)
    got, truth, bound = results_and_truths(fmt, 7)
    chosen = torch.arange(0, COUNT, 101)
    got, truth, bound = got[chosen], truth[chosen], bound[chosen]
    # what the truth may be: at the ends, and just inside of the binade where the ulp is smallest
    lower, upper = truth - bound, truth + bound
    below = torch.copysign(2.0 ** torch.ceil(torch.log2(truth.abs())) / 2.0 * (1.0 - 2.0**-30), truth)
    possible = [truth, lower, upper, torch.where((lower <= below) & (below <= upper), below, truth)]
    for scale in (None, truth.abs() * 4.0):
        worst, nonfinite = torch.zeros_like(truth), torch.zeros_like(got, dtype=torch.bool)
        for one in possible:
            found = errors(got, one, fmt, scale=scale, policy=policy)
            error = found.ulp if scale is None else found.scaled
            assert error is not None
            worst, nonfinite = torch.maximum(worst, error.abs()), nonfinite | found.nonfinite
        alone = errors(got, truth, fmt, scale=scale, policy=policy)
        figure = alone.ulp if scale is None else alone.scaled
        assert figure is not None
        accepted = 0
        for limit in (0.5, 1.0, 2.0):
            for at in range(len(chosen)):
                part = slice(at, at + 1)
                terms = None if scale is None else scale[part]
                score = _surely_within(got[part], truth[part], bound[part], terms, fmt, limit, policy)
                if score is None:
                    continue
                accepted += 1
                assert float(worst[at]) <= limit and not bool(nonfinite[at]), (at, got[at], truth[at], bound[at])
                if policy.subnormals == "gradual" and float(truth[at].abs()) <= fmt.max_finite:
                    assert score == float(figure[at].abs())
        assert accepted > 50


def test_the_short_proof_looks_at_every_element() -> None:
    fmt = formats.named("float32")
    got = torch.ones(100)
    truth, bound = got.double(), torch.full((100,), 1e-12, dtype=torch.float64)
    assert _surely_within(got, truth, bound, None, fmt, 0.5, Policy()) == 0.0
    for wrong in (1.0 + 2.0**-23, math.nan, math.inf):
        got[63] = wrong
        assert _surely_within(got, truth, bound, None, fmt, 0.5, Policy()) is None


def test_what_is_fetched_together_keeps_its_shape_and_its_bits() -> None:
    tensors = [torch.randn(3, 4).T, torch.tensor(2.5), torch.zeros(0, 3), torch.ones(5, dtype=torch.bfloat16)]
    for before, after in zip(tensors, fetched(tensors), strict=True):
        assert before.shape == after.shape and torch.equal(bits_of(before), bits_of(after))


def judged(factors: tuple[tuple[float, ...], ...], got: float, largest: float | None) -> float:
    """The error of a product of two float16 vectors that came out as `got`, in units of the scale."""

    @verify.kernel(op="linear", params={"activation": "id"}, dtypes=["float16"], max_ulp=1, largest=largest)
    def kernel(x, weight, bias):  # type: ignore[no-untyped-def]
        raise AssertionError("not called")

    backend = backends.select("interpreter")
    case = Case(dtype="float16", dims=(1, 4, 1), fill="ones", params={"activation": "id"})
    x, weight = (torch.tensor([each], dtype=torch.float16) for each in factors)
    inputs = {"x": x, "weight": weight, "bias": torch.zeros(1, dtype=torch.float16)}
    result = torch.tensor([[got]], dtype=torch.float16)
    return judge_measured(Subject(kernel, "float16", backend, None), case, Measured(inputs, {}, {"y": result}))


def test_terms_beyond_the_format_widen_the_limit_for_inputs_beyond_the_promise() -> None:
    """Found on an H200: the float32 sums of its matrix units lose 48 of these 1,968; 256 is half an ulp there."""
    assert judged(HUGE, 1968.0, 16.0) < 0.01
    assert judged(HUGE, 1920.0, 16.0) == pytest.approx(48 / 32)
    for largest in (None, 65504.0):
        with pytest.raises(Broken, match="beyond the kernel's own limit"):
            judged(HUGE, 1920.0, largest)


def test_terms_within_the_format_leave_the_limit_as_it_is() -> None:
    assert judged(LARGE, 32736.0, 16.0) < 0.01
    with pytest.raises(Broken, match="beyond the kernel's own limit"):
        judged(LARGE, 32640.0, 16.0)


# -- None for an operand, calls for inference --------------------------------------------------------------


def judge_plain(function, op: str, fill: str, **fields) -> float | None:
    """What the law says of one plain case."""
    kernel = verify.kernel(op=op, dtypes=["float32"], max_ulp=64, gradients=True)(function)
    case = Case(dtype="float32", dims=(5, 8), fill=fill, upstream="normal", **fields)
    return registry.get("accuracy").check(Subject(kernel, "float32", backends.select(), Sizes()), case)


def test_none_for_an_operand_may_be_refused_but_not_by_the_backward_pass() -> None:
    def refuses(x, weight, bias, *, eps):
        if bias is None:
            raise TypeError("bias is a tensor")
        return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)

    def no_slot(gradient):
        raise RuntimeError("no slot for dbias")

    def takes(x, weight, bias, *, eps):
        y = torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)
        if bias is None:
            y.register_hook(no_slot)
        return y

    def loses(x, weight, bias, *, eps):
        return torch.nn.functional.layer_norm(x, x.shape[-1:], None if bias is None else weight, bias, eps)

    without: dict[str, Any] = {"op": "layer_norm", "fill": "randn", "absent": ("bias",)}
    assert judge_plain(refuses, **without) is None
    with pytest.raises(KernelError, match="takes raised in backward: RuntimeError: no slot for dbias"):
        judge_plain(takes, **without)
    with pytest.raises((Broken, KernelError)):
        judge_plain(loses, **without)
    assert all(judge_plain(each, "layer_norm", "randn") < 64 for each in (refuses, takes, loses))


@pytest.mark.parametrize("mode", INFERENCE)
def test_a_call_for_inference_is_judged_and_its_mode_named(mode: str) -> None:
    def silu(x):
        y = torch.nn.functional.silu(x)
        wrong = {
            "under torch.no_grad()": x.requires_grad and not torch.is_grad_enabled(),
            "under torch.inference_mode()": torch.is_inference_mode_enabled(),
        }.get(mode, not x.requires_grad)
        return y * 1.001 if wrong else y

    with pytest.raises(Broken) as caught:
        judge_plain(silu, "silu", "normal")
    assert caught.value.rule == f"beyond the kernel's own limit {mode}"
    assert judge_plain(torch.nn.functional.silu, "silu", "normal") < 64
