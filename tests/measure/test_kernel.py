"""One kernel measured completely: regimes, bases, special inputs, the reason for a verdict, the baseline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch

import verify
from verify.backends import Interpreter
from verify.cases import Case, inputs_of
from verify.cases.classes import NONFINITE
from verify.cases.plan import PLAN_SIZES, Group, plan
from verify.declare.standin import baseline_of
from verify.errors import Refused
from verify.measure import kernel as running
from verify.measure.call import Measured, run_baseline, run_kernel
from verify.measure.case_runner import DIFFER
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure
from verify.records.record import KernelRun, Result, value_of

CPU = Interpreter("cpu")


def measured(kernel: verify.Kernel, judges: int = 1) -> KernelRun:
    return measure_kernel(kernel, Measure(f"accuracy.py::{kernel.name}", judges=judges), CPU)


def few_cases(monkeypatch: pytest.MonkeyPatch, *regimes: str, most: int = 2) -> None:
    """Leaves of each group of a plan the first cases of each of these regimes, without regimes its first four cases.

    Those without an operand stay too. A case of an elementwise kernel has all regimes in one, and gets 16,384 elements.
    """

    def few(*given: Any, **options: Any) -> list[Group]:
        def first(group: Group) -> tuple[Case, ...]:
            chosen = [case for case in group.cases if case.absent]
            for regime in regimes:
                chosen += [case for case in group.cases if case.regime == regime][:most]
            return tuple(case for case in group.cases if case in chosen) or group.cases[:4]

        return [replace(group, cases=first(group)) for group in plan(*given, **options)]

    monkeypatch.setattr(running, "plan", few)
    for scale, sizes in PLAN_SIZES.items():
        monkeypatch.setitem(PLAN_SIZES, scale, replace(sizes, elements=1 << 14))


def silu(x: torch.Tensor) -> torch.Tensor:
    wide = x.double().clamp(min=-1e4)
    return rounded_once(wide / (1 + torch.exp(-wide)), x.dtype)


def rounded_once(wide: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """float64 to 16 bits with one rounding: torch goes through float32, which rounds near-ties twice.

    float32 is reached by rounding to odd instead: truncate, and set the last bit if anything was lost.
    """
    near = wide.float()
    held = near.detach()
    step = torch.nextafter(held, torch.zeros_like(held)) - held  # not every PyTorch has a derivative of nextafter
    toward_zero = torch.where(near.double().abs() > wide.abs(), near + step, near)
    lost = (toward_zero.double() != wide) & ~torch.isnan(wide)
    odd = (toward_zero.view(torch.int32) | 1).view(torch.float32)
    return torch.where(lost, odd, toward_zero).to(dtype)


def only(run: KernelRun, output: str = "y") -> Result:
    [found] = [item for item in run.results if item.output == output]
    return found


def test_a_float64_computation_rounded_once_is_correctly_rounded_everywhere() -> None:
    kernel = verify.kernel(op="silu", dtypes=["float16"], gradients=False)(silu)
    run = measured(kernel)
    result = only(run)
    assert (run.status, result.status, result.reason) == ("ok", "ok", "")
    assert str(result.basis) == "exhaustive, 65,536 inputs"
    assert result.figures.misrounded == 0
    assert 0.499 < value_of(result.figures.max_ulp) <= 0.5
    assert result.figures.max_upper == result.figures.max_ulp


def test_regimes_cover_every_input_once() -> None:
    kernel = verify.kernel(op="silu", dtypes=["bfloat16"], gradients=False)(silu)
    result = only(measured(kernel))
    assert sum(part.figures.n for part in result.regimes) == 65_536
    [special] = [part for part in result.regimes if part.name == NONFINITE]
    assert special.figures.n == 256  # 254 NaN and two infinities
    assert result.figures.n == 65_536 - 256
    assert sum(result.histogram.counts) == result.figures.n
    assert result.baseline is not None
    assert result.baseline.n == result.figures.n


def test_nan_at_an_infinite_input_is_wrong_and_said_so() -> None:
    @verify.kernel(op="silu", dtypes=["float16"], gradients=False)
    def careless(x):
        return torch.where(torch.isinf(x), torch.nan, silu(x))

    result = only(measured(careless))
    assert result.status == "wrong"
    assert value_of(result.figures.max_ulp) <= 0.5, "the maximum is about finite inputs"
    assert result.reason == "wrong at 2 infinite or NaN inputs, right at all others"
    assert "inf" in result.worst[0].inputs["x"]


def test_a_nan_at_one_finite_input_makes_the_maximum_nan() -> None:
    @verify.kernel(op="silu", dtypes=["float16"], gradients=False)
    def hole(x):
        return torch.where(x == 1.5, torch.nan, silu(x))

    result = only(measured(hole))
    assert result.status == "wrong"
    assert result.figures.max_ulp == "nan"
    assert result.reason == "NaN at 1 of 36,866 ordinary inputs whose exact answer is a number"
    assert result.worst[0].inputs["x"] == "1.5 (0x3e00)"


def test_one_element_off_by_one_step_is_the_worst_input() -> None:
    @verify.kernel(op="silu", dtypes=["float16"], gradients=False, max_ulp=1)
    def nudged(x):
        right = silu(x)
        up = torch.nextafter(right, torch.full_like(right, torch.inf))
        return torch.where(x == -2.25, up, right)

    result = only(measured(nudged))
    assert result.figures.misrounded == 1
    assert 0.5 < value_of(result.figures.max_ulp) <= 1.5
    assert result.worst[0].inputs["x"].startswith("-2.25 ")
    assert result.worst[0].index == (int(torch.tensor(-2.25, dtype=torch.float16).view(torch.int16)) & 0xFFFF,)


def test_a_backward_that_ignores_the_upstream_gradient_is_wrong() -> None:
    class Ignores(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return silu(x)

        @staticmethod
        def backward(ctx, dy):
            (x,) = ctx.saved_tensors
            wide = x.double()
            s = torch.sigmoid(wide)
            slope = s + torch.where(wide.abs() < 100, wide * s * (1 - s), 0.0)
            return slope.to(x.dtype)

    kernel = verify.kernel(op="silu", dtypes=["float16"], gradients=True, name="ignores")(Ignores.apply)
    run = measured(kernel)
    assert only(run, "dx").status == "ok", "with dy = 1 nothing shows"
    assert only(run, "dx (random dy)").status == "wrong"
    assert run.status == "wrong"


def test_a_missing_gradient_leaves_the_run_incomplete_unless_the_declaration_says_so() -> None:
    forward = verify.kernel(op="silu", dtypes=["float16"], name="forward_only")(lambda x: silu(x.detach()))
    run = measured(forward)
    assert [item.output for item in run.results] == ["y"]
    told = "forward_only: no dx, which PyTorch has; if that is meant, declare gradients=False"
    assert [(gap.kind, gap.text) for gap in run.gaps] == [("no gradient", told)]
    on_purpose = verify.kernel(op="silu", dtypes=["float16"], gradients=False)(lambda x: silu(x))
    assert measured(on_purpose).gaps == []


def test_a_promised_gradient_that_is_missing_is_an_error() -> None:
    kernel = verify.kernel(op="silu", dtypes=["float16"], gradients=True, name="detached")(lambda x: silu(x.detach()))
    run = measured(kernel)
    assert run.status == "error"
    assert run.message == "float16: detached promises gradients for x, but its output is not attached to autograd"


def test_layer_norm_is_judged_by_the_scaled_error_in_every_regime(monkeypatch: pytest.MonkeyPatch) -> None:
    few_cases(monkeypatch, "randn", "mean 1e3")

    @verify.kernel(op="layer_norm", dtypes=["float32"], gradients=False)
    def one_pass(x, weight, bias, *, eps):
        mean = x.mean(-1, keepdim=True)
        var = (x * x).mean(-1, keepdim=True) - mean * mean
        return (x - mean) / torch.sqrt(var + eps) * weight + bias

    run, in_forks = measured(one_pass), measured(one_pass, judges=3)
    assert msgspec.structs.replace(in_forks, seconds=run.seconds, peak=run.peak) == run
    result = only(run)
    assert result.gate == "scaled"
    assert result.status == "wrong"
    figures = {part.name: part.figures for part in result.regimes}
    assert value_of(figures["randn"].scaled_max) < 64
    bad = figures["mean 1e3"].scaled_max
    assert bad == "nan" or not value_of(bad) < 1e4  # E[x^2] - E[x]^2 has cancelled


def test_a_peer_has_no_baseline_of_its_own() -> None:
    kernel = verify.kernel(op="silu", dtypes=["float16"], gradients=False, peer=True)(silu)
    run = measured(kernel)
    assert run.peer
    assert only(run).baseline is None


def test_a_case_that_is_refused_is_a_limit_and_the_others_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    few_cases(monkeypatch, "randn", "mean 1e3", most=3)

    def narrow(x, weight, bias, *, eps):
        if x.shape[-1] > 1000:
            raise ValueError("rows of at most 1,000")
        return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)

    def run_of(function=narrow, **more: object):  # type: ignore[no-untyped-def]
        options = {"op": "layer_norm", "dtypes": ["bfloat16"], "gradients": False, "name": "narrow", "max_ulp": 64}
        return measured(verify.kernel(**options, **more)(function))

    for peer in (False, True):
        shown = run_of(peer=peer)
        [refusal] = shown.unmeasured
        assert (refusal.kind, refusal.dims, refusal.dtype) == ("refused", [(3, 2048)], "bfloat16")
        assert refusal.text.startswith("narrow raised ValueError: rows of at most 1,000")
        assert 0 < refusal.cases < refusal.of and Case.from_json(refusal.origin.case).dims == (3, 2048)
        assert only(shown).figures.n > 0
        text = f"narrow: bfloat16: it refuses {refusal.cases} of {refusal.of} cases, which where= or refuses=True would"
        assert [(gap.kind, gap.text[: len(text)]) for gap in shown.gaps] == ([] if peer else [("refused", text)])
    assert run_of(refuses=True).gaps == [], "it is declared"

    def wide(x, weight, bias, *, eps):
        return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)

    everything = only(run_of(wide))
    assert only(shown).properties != everything.properties, "figures of fewer cases do not compare"
    assert run_of(refuses=False).status == "error", "it promised to take every case"

    class Forward(torch.autograd.Function):
        """Has no backward pass for rows of more than 1,000, or for none."""

        rows = 1000

        @staticmethod
        def forward(ctx, x):  # type: ignore[no-untyped-def]
            ctx.save_for_backward(x)
            return x.softmax(-1)

        @staticmethod
        def backward(ctx, dy):  # type: ignore[no-untyped-def]
            if ctx.saved_tensors[0].shape[-1] > Forward.rows:
                raise NotImplementedError("no backward pass")
            y = ctx.saved_tensors[0].softmax(-1)
            return (dy - (dy * y).sum(-1, keepdim=True)) * y

    def gaps_of(rows: int) -> list[str]:
        Forward.rows = rows
        options = {"op": "softmax", "dtypes": ["float32"], "max_ulp": 100, "name": "forward"}
        return [gap.kind for gap in measured(verify.kernel(**options)(lambda x: Forward.apply(x))).gaps]

    assert gaps_of(0) == [], "autograd gives no gradient"
    assert gaps_of(1000) == ["refused"], "autograd gives some"

    def never(x, weight, bias, *, eps):
        raise ValueError("not today")

    assert run_of(never, peer=True).status == "error", "of which nothing was measured"


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("pytorch", ["refuses", "gives numbers"])
def test_where_there_is_no_answer_a_kernel_has_no_verdict_on_any_machine(
    raises: bool, pytorch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The matrix of equal numbers is singular. Whether PyTorch sees that depends on the processor.

    A stand-in has each behaviour of PyTorch. The kernel may raise too or not. The other cases are judged.
    """
    few_cases(monkeypatch, "randn", "constant")

    def is_singular(a: torch.Tensor) -> bool:
        return int(torch.linalg.matrix_rank(a.double())) < 5

    def solved(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if is_singular(a) and raises:
            raise ValueError("singular")
        return b * 1e7 if is_singular(a) else torch.linalg.solve(a, b)

    def stand_in(kernel: verify.Kernel, case: Case, device: str, made: Measured | None = None) -> Measured:
        if not is_singular(inputs_of(kernel.op, case, device)["a"]):  # type: ignore[arg-type]
            return run_baseline(kernel, case, device, made)
        if pytorch == "refuses":
            raise Refused("solve raised LinAlgError: The solver failed because the input matrix is singular.")
        return run_kernel(replace(baseline_of(kernel), function=lambda a, b: b * 1e7), case, device)

    monkeypatch.setattr(running, "run_baseline", stand_in)
    options = {"like": torch.linalg.solve, "examples": [(torch.eye(5), torch.ones(5, 2))], "dtypes": ["float32"]}
    run = measured(verify.kernel(**options, gradients=False, refuses=False, name="solved")(solved))
    assert [gap.kind for gap in run.gaps] == ["no reference"], run.message
    assert run.status == "ok" and only(run).figures.n > 0


def test_what_is_wrong_for_inference_alone_is_a_result_of_its_own() -> None:
    def halved(x: torch.Tensor) -> torch.Tensor:
        return silu(x) * (0.5 if torch.is_inference_mode_enabled() else 1.0)

    run = measured(verify.kernel(op="silu", dtypes=["float16"])(halved))
    assert [item.output for item in run.results][:3] == ["y", "dx", "y under torch.inference_mode()"]
    result = only(run, "y under torch.inference_mode()")
    assert (only(run).status, result.status, run.status) == ("ok", "wrong", "wrong")
    assert result.properties != only(run).properties
    shown = [*result.worst, *(part.worst for part in result.classes), *(part.worst for part in result.regimes)]
    laws = [worst.origin.law for worst in shown if worst is not None]
    assert len(laws) > 2 and set(laws) == {"accuracy"}, "a call alone shows none of them"


def test_what_is_summed_over_many_rows_has_an_exact_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    """The 257th row is lost; that many rows has float32 alone."""

    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):  # type: ignore[no-untyped-def]
            ctx.save_for_backward(x, weight)
            return x @ weight.mT

        @staticmethod
        def backward(ctx, dy):  # type: ignore[no-untyped-def]
            x, weight = ctx.saved_tensors
            dweight = dy[:256].double().mT @ x[:256].double()
            return (dy.double() @ weight.double()).to(x.dtype), dweight.to(x.dtype)

    monkeypatch.setattr(running, "plan", lambda *wanted, **options: plan(*wanted, **options)[1:])
    kernel = verify.kernel(op="linear", operands=["x", "weight"], dtypes=["float16", "float32"], max_ulp=4, name="sum")
    run = measured(kernel(lambda x, weight: Sum.apply(x, weight)))
    found = [(each.output, each.dtype, each.status) for each in run.results]
    assert found == [("dweight (many rows)", "float16", "ok"), ("dweight (many rows)", "float32", "wrong")]


@pytest.mark.parametrize(("accumulator", "status"), [(torch.bfloat16, "wrong"), (torch.float32, "ok")])
def test_a_sum_over_many_rows_of_a_shipped_norm_is_not_added_up_in_bfloat16(
    monkeypatch: pytest.MonkeyPatch, accumulator: torch.dtype, status: str
) -> None:
    """Of 257 rows 0.357 came out for 0.653, which `like=` calls wrong too (tests/ops/test_op_scales.py)."""

    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, bias, eps):  # type: ignore[no-untyped-def]
            ctx.given, ctx.eps = (x, weight, bias), eps
            return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)

        @staticmethod
        def backward(ctx, dy):  # type: ignore[no-untyped-def]
            total = torch.zeros(dy.shape[-1], dtype=accumulator)
            for row in dy:
                total = total + row.to(accumulator)
            given = [each.double().requires_grad_() for each in ctx.given]
            with torch.enable_grad():
                y = torch.nn.functional.layer_norm(given[0], dy.shape[-1:], given[1], given[2], ctx.eps)
            dx, dweight, _ = torch.autograd.grad(y, given, dy.double())
            return dx.to(dy.dtype), dweight.to(dy.dtype), total.to(dy.dtype), None

    monkeypatch.setattr(running, "plan", lambda *wanted, **options: plan(*wanted, **options)[1:])
    kernel = verify.kernel(op="layer_norm", dtypes=["bfloat16"], name="norm")
    run = measured(kernel(lambda x, weight, bias, eps: Norm.apply(x, weight, bias, eps)))
    found = {each.output: each.status for each in run.results}
    assert found["dweight (many rows)"] == "ok" and found["dbias (many rows)"] == status


def test_a_finite_wrong_value_at_an_infinity_is_wrong() -> None:
    """SiLU tends to 0 at minus infinity: -5 there is no mismatch of kinds, and is wrong all the same."""

    @verify.kernel(op="silu", dtypes=["float16"], gradients=False, max_ulp=1)
    def minus_five(x: torch.Tensor) -> torch.Tensor:
        y = x.double() * torch.sigmoid(x.double())
        return torch.where(x == -torch.inf, -5.0, y).to(x.dtype)

    [result] = measured(minus_five).results
    assert result.status == "wrong"
    assert result.reason == "8.389e+07 ULP at an infinite input, the limit is 1"
    assert result.worst[0].inputs["x"].startswith("-inf")
    assert value_of(result.figures.max_upper) <= 1  # of all other inputs


def test_a_kernel_may_return_the_slope_of_either_side_of_a_kink(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 0 ReLU has the derivatives 0 and 1."""
    few_cases(monkeypatch, "randn")

    class Slope(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, at_zero: float) -> torch.Tensor:
            ctx.save_for_backward(x)
            ctx.at_zero = at_zero
            return torch.relu(x)

        @staticmethod
        def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, None]:
            (x,) = ctx.saved_tensors
            return torch.where(x == 0, ctx.at_zero * dy, torch.where(x < 0, 0 * dy, dy)), None

    for at_zero, right in ((0.0, True), (1.0, True), (0.5, False), (2.0, False)):

        @verify.kernel(like=torch.relu, dtypes=["float32"], max_ulp=1, name=f"slope {at_zero}")
        def kernel(x: torch.Tensor, at_zero: float = at_zero) -> torch.Tensor:
            return Slope.apply(x, at_zero)  # type: ignore[no-any-return]

        slopes = [result for result in measured(kernel).results if result.output.startswith("d")]
        assert [result.status for result in slopes] == (["ok"] if right else ["wrong"]) * len(slopes), at_zero
        if not right:
            worst = slopes[0].worst[0]
            assert float(worst.truth) in (0.0, pytest.approx(float(worst.inputs["dy"].split()[0])))


@pytest.mark.parametrize(("later", "said"), [(2.0, ""), (3.0, f"{DIFFER}: y of the first call, and after 1 call")])
def test_a_wrong_kernel_whose_calls_differ_says_that(later: float, said: str) -> None:
    factors = iter([2.0, *[later] * 9])
    kernel = verify.kernel(op="silu", dtypes=["bfloat16"], gradients=False, name="k")(lambda x: silu(x) * next(factors))
    found = measured(kernel)
    assert (found.status, found.unrepeatable) == ("wrong", said)


def test_a_kernel_that_returns_one_buffer_again_and_again_is_an_error() -> None:
    """A result that the next call overwrites is right when it is read at once."""
    buffers: dict[torch.Size, torch.Tensor] = {}

    @verify.kernel(op="silu", dtypes=["bfloat16"], gradients=False, name="k")
    def kernel(x: torch.Tensor) -> torch.Tensor:
        return buffers.setdefault(x.shape, torch.empty_like(x)).copy_(silu(x))

    found = measured(kernel)
    assert found.status == "error"
    assert "must not change what it has returned: later calls with other values change y" in found.message


def softmax(x: torch.Tensor) -> torch.Tensor:
    return x.softmax(-1)
