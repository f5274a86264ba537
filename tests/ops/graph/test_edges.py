"""Every rule and decomposition, PyTorch's own included, against PyTorch's float64 on zeros, infinities, NaN, ties."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions
from torch.nn import functional

import verify
from verify.errors import UsageError
from verify.ops.elements import arb_bits
from verify.ops.graph.arithmetic import Arithmetic, Balls, Decimals
from verify.ops.graph.choices import Choices
from verify.ops.graph.decompositions import table
from verify.ops.graph.explaining import explaining
from verify.ops.graph.functions import FUNCTIONS
from verify.ops.graph.noise import noise_of
from verify.ops.graph.program import trace
from verify.ops.graph.rewrite import RULES
from verify.ops.graph.rounding import Rounding
from verify.ops.graph.spans import Span
from verify.ops.graph.steps import Run

_aten = torch.ops.aten
EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, 3.0, -7.0, math.inf, -math.inf, math.nan, 5e-324, -1e-310, 1e308, -1e308]


def _overloads() -> Iterator[Any]:
    for name in RULES:
        packet = getattr(_aten, name, None)
        yield from [getattr(packet, overload) for overload in packet.overloads()] if packet is not None else []
    yield from table() | dict(core_aten_decompositions())


def _given(count: int) -> list[Tensor]:
    x = torch.tensor(EDGES, dtype=torch.float64)
    return [x] if count == 1 else [each.reshape(-1) for each in torch.meshgrid(x, x, indexing="ij")]


def _operators() -> dict[str, tuple[Any, int]]:
    """The operators of one or two tensors of numbers, and of nothing else."""
    found = {}
    for overload in _overloads():
        arguments = overload._schema.arguments
        needed = [each for each in arguments if not each.has_default_value()]
        plain = all(str(each.type) == "Tensor" and not each.alias_info for each in needed)
        if not plain or len(needed) not in (1, 2) or overload._schema.is_mutable or "empty" in str(overload):
            continue
        try:
            made = overload(*_given(len(needed)))
        except (RuntimeError, IndexError, ValueError):
            continue  # not for vectors of numbers
        if isinstance(made, Tensor | tuple | list):
            found[str(overload)] = overload, len(needed)
    return dict(sorted(found.items()))


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    OPERATORS = _operators()


def _apart(function: Callable[..., Any], given: list[Tensor]) -> list[str]:
    """Where what a program says does not hold what PyTorch computes."""
    operands = {f"x{place}": value for place, value in enumerate(given)}
    made = function(*given)
    made = list(made) if isinstance(made, tuple | list) else [made]
    program = trace(function, operands)
    run = Run(dict(operands), torch.device("cpu"))
    found = []
    for (name, span), want in zip(program.spans(run, list(program.results)).items(), made, strict=True):
        value = want.double().reshape(-1)
        if not isinstance(span, Span):
            lo = hi = span.double().expand(want.shape).reshape(-1)
        else:
            lo, hi = (end.expand(want.shape).reshape(-1) for end in (span.lo, span.hi))
        room = value.abs() * 1e-9 + 1e-290
        holds = (torch.isnan(value) & torch.isnan(lo)) | ((value >= lo - room) & (value <= hi + room)) | (value == lo)
        unknown = (lo == -math.inf) & (hi == math.inf)
        for at in torch.nonzero(~holds | unknown).reshape(-1).tolist():
            if unknown[at] and program.results[name].real:
                with arb_bits(200):
                    ball = program.elements(run, Balls(), name, [at])[0]
                number = ball if isinstance(ball, float) else float(ball.mid()) if ball.is_finite() else None
                same = number is None or number == value[at] or (number != number and value[at] != value[at])
                if same or abs(number - float(value[at])) <= float(room[at]):
                    continue
            elif unknown[at]:
                continue
            inputs = [each.reshape(-1)[at].item() for each in given if each.numel() == value.numel()]
            found.append(f"{name} {inputs}: {float(value[at])!r}, not {float(lo[at])!r} to {float(hi[at])!r}")
    return found


UNDEFINED = "PyTorch does not define which integer a number beyond the range becomes"
INEXACT = "PyTorch's float64 loses digits"
LIMIT = "PyTorch's float64 has NaN in the place of a limit, or after an overflow"
DIFFERENT = {  # operators whose eager float64 is not what they denote, and why
    **{f"aten._cast_{kind}.default": UNDEFINED for kind in ("Byte", "Char", "Int", "Long", "Short")},
    **dict.fromkeys(
        ("aten.fmod.Tensor", "aten.remainder.Tensor"), "SLEEF's fmod is NaN where quotients are beyond 2^1000"
    ),
    **dict.fromkeys(("aten.gelu.default", "aten.gelu_backward.default", "aten.hardsigmoid_backward.default"), INEXACT),
    **dict.fromkeys(
        ("aten.sinc.default", "aten.special_sinc.default"), "float64's pi: not 0 at whole numbers, NaN at inf"
    ),
    "aten.hardswish_backward.default": "every derivative is right at NaN",
    "aten.log_sigmoid_forward.default": "its second result is a buffer",
    **dict.fromkeys(("aten.ldexp.Tensor", "aten.tanh_backward.default", "aten.i0.default"), LIMIT),
    **dict.fromkeys(("aten._weight_norm.default", "aten._weight_norm_interface.default"), LIMIT),
    **{
        f"aten.special_{name}.default": f"{LIMIT}; {INEXACT}"
        for name in ("i0", "i1", "modified_bessel_i0", "modified_bessel_i1")
    },
}


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_is_pytorchs_on_edges(name: str) -> None:
    operator, count = OPERATORS[name]
    try:
        apart = _apart(operator, _given(count))
    except UsageError as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        assert "like=" in refused
        return
    assert bool(apart) == (name in DIFFERENT), f"{len(apart)}: " + "\n".join(apart[:12])


X = torch.tensor(
    [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, 3.0, -3.0, 6.0, -7.0, 20.0, 1e-3, 1e-30, -1e-310]
).double()
Y = X.roll(3) * 0.5
LABELS = torch.tensor([0, 3, 1, 1])
PAIRS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    **{
        name: lambda x, y, name=name: getattr(functional, name)(x) + 0 * y  # type: ignore[misc]
        for name in "relu6 hardtanh leaky_relu elu celu selu softplus softshrink hardshrink tanhshrink logsigmoid "
        "hardswish mish silu softsign relu".split()
    },
    **{
        name: lambda x, y, name=name: getattr(torch, name)(x, y)  # type: ignore[misc]
        for name in "maximum minimum fmax fmin atan2 hypot logaddexp logaddexp2 remainder fmod copysign".split()
    },
    **{
        name: lambda x, y, name=name: getattr(functional, name)(x, y, reduction="none")  # type: ignore[misc]
        for name in "mse_loss l1_loss smooth_l1_loss huber_loss poisson_nll_loss".split()
    },
    "threshold": lambda x, y: functional.threshold(x, 0.5, -2.0) * y,
    "divided": lambda x, y: x / y + torch.reciprocal(x),
    "powers": lambda x, y: x.abs() ** y + x**2 + x**3,
    "clamped": lambda x, y: x.clamp(-1, 1) * y.clamp(min=0),
    "xlogy": lambda x, y: torch.xlogy(x, y.abs()),
    "lerp": lambda x, y: torch.lerp(x, y, 0.25) + torch.addcdiv(x, y, 3 + x.abs(), value=2),
    "nan to num": lambda x, y: torch.nan_to_num(x / y),
    "rounded": lambda x, y: x.round() + x.floor() * y + x.trunc() - x.frac(),
    "cross entropy with logits": lambda x, y: functional.binary_cross_entropy_with_logits(x, y.sigmoid()),
    "kl": lambda x, y: functional.kl_div(x, y.abs(), reduction="none"),
    "softmax": lambda x, y: x.reshape(4, 4).softmax(-1) * y.reshape(4, 4).log_softmax(0),
    "extremes": lambda x, y: x.reshape(4, 4).amax(0) + y.reshape(4, 4).min(1)[0] + x.reshape(4, 4).logsumexp(1),
    "norms": lambda x, y: x.reshape(4, 4).norm(dim=0) + torch.linalg.vector_norm(y.reshape(4, 4), math.inf, 1),
    "more norms": lambda x, y: x.reshape(4, 4).norm(1, 0) + torch.linalg.vector_norm(y.reshape(4, 4), 3, 1),
    "standard deviation": lambda x, y: x.std() + y.reshape(4, 4).var(0),
    "products": lambda x, y: x.reshape(4, 4).prod(0) + y.reshape(4, 4).cumprod(1)[0] + x.cumsum(0)[:4],
    "margins": lambda x, y: functional.multi_margin_loss(x.reshape(4, 4), LABELS) + y.sum(),
    "many labels": lambda x, y: functional.multilabel_margin_loss(x.reshape(4, 4), LABELS_OF_ROWS) + y.sum(),
    "soft labels": lambda x, y: (
        functional.multilabel_soft_margin_loss(x.reshape(4, 4), (y > 0).double().reshape(4, 4)) + y.sum()
    ),
    "soft margin": lambda x, y: functional.soft_margin_loss(x, torch.sign(X + 0.1), reduction="none") + y,
    "ranking": lambda x, y: functional.margin_ranking_loss(x, y, torch.sign(X + 0.1)),
    "hinge": lambda x, y: functional.hinge_embedding_loss(x, torch.sign(X + 0.1)) + y.sum(),
    "cosine": lambda x, y: functional.cosine_embedding_loss(
        x.reshape(4, 4), y.reshape(4, 4), torch.tensor([1, -1, 1, -1])
    ),
    "triplet": lambda x, y: functional.triplet_margin_loss(x.reshape(4, 4), y.reshape(4, 4), y.reshape(4, 4) + 1),
    "nll": lambda x, y: functional.cross_entropy(x.reshape(4, 4), LABELS, weight=torch.arange(4.0).double()) + y.sum(),
    "pools": lambda x, y: functional.max_pool1d(x.reshape(2, 8), 3) + functional.avg_pool1d(y.reshape(2, 8), 3),
    "layer norm": lambda x, y: functional.layer_norm(torch.stack([x[:4], x[4:8] * 0 + 1]), (4,)) + y[:4],
    "group norm": lambda x, y: functional.group_norm(x.reshape(2, 4, 2), 2, y[:4], y[4:8]),
    "batch norm": lambda x, y: functional.batch_norm(x.reshape(2, 4, 2), None, None, y[:4], y[4:8], training=True),
    "local response": lambda x, y: functional.local_response_norm(x.reshape(2, 4, 2), 2) + y.sum(),
    "normalised": lambda x, y: functional.normalize(torch.stack([x[:4] * 0, y[:4]]), dim=-1),
    "similarity": lambda x, y: functional.cosine_similarity(x.reshape(4, 4), y.reshape(4, 4) + 1, dim=1),
    "pairwise": lambda x, y: functional.pairwise_distance(x.reshape(4, 4), y.reshape(4, 4)),
    "maxima in windows": lambda x, y: functional.max_pool2d(x.reshape(1, 1, 4, 4), 3, 1, 1) + y.sum(),
    "adaptive": lambda x, y: (
        functional.adaptive_max_pool1d(x.reshape(2, 8), 3) + functional.adaptive_avg_pool1d(y.reshape(2, 8), 3)
    ),
    "powers in windows": lambda x, y: functional.lp_pool1d(x.reshape(1, 2, 8).abs() + 1, 3, 2) + y.sum(),
    "interpolated": lambda x, y: functional.interpolate(x.reshape(1, 1, 4, 4), (3, 5), mode="bicubic") + y.sum(),
    "padded": lambda x, y: functional.pad(x.reshape(1, 4, 4), (1, 2), mode="reflect") * functional.pad(y[:7], (0, 0)),
    "convolved": lambda x, y: functional.conv1d(x.reshape(1, 2, 8), y[:12].reshape(2, 2, 3), padding=1, dilation=2),
    "unfolded": lambda x, y: functional.unfold(x.reshape(1, 1, 4, 4), 2) * y[:4, None],
    "sorted": lambda x, y: x.sort()[0] * y.topk(16)[0] + x.reshape(4, 4).kthvalue(2)[0].sum(),
    "running": lambda x, y: x.cummax(0)[0] + y.cummin(0)[0] + torch.logcumsumexp(x, 0),
    "quantile": lambda x, y: x.quantile(0.3) + y.nanmean() + x.nansum(),
    "angles": lambda x, y: (
        torch.rad2deg(torch.asin((x / 30).clamp(-0.9, 0.9))) + torch.sinc(y) + torch.sinh(x) + torch.tan(y)
    ),
    "logits": lambda x, y: (
        torch.logit(x.sigmoid(), eps=1e-6) + torch.special.entr(y.abs()) + torch.special.xlog1py(x, y.abs())
    ),
    **{
        f"distances {p}": lambda x, y, p=p: torch.cdist(x.reshape(4, 4), y.reshape(4, 4), p)  # type: ignore[misc]
        for p in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, math.inf)
    },
}
LABELS_OF_ROWS = torch.tensor([[3, 0, -1, 1], [0, -1, -1, -1], [2, 1, 0, 3], [-1, 0, 0, 0]])


@pytest.mark.parametrize("name", PAIRS)
def test_values_and_gradients_are_pytorchs_at_ties(name: str) -> None:
    operands = {"x": X, "y": Y}
    x, y = X.clone().requires_grad_(), Y.clone().requires_grad_()
    made = PAIRS[name](x, y)
    program = trace(PAIRS[name], operands, differentiable=("x", "y"))
    gradients = torch.autograd.grad(made, (x, y), torch.ones_like(made))
    run, every = Run({**operands, "grad y": torch.ones_like(made)}, torch.device("cpu")), list(program.results)
    noise, reach = noise_of(program, run, every, Rounding(), runs=4)
    choices = Choices.of(program, run, every, reach, {key: each.deviation for key, each in noise.items()})
    if choices is not None:
        run.decisions = explaining(choices, {"y": made.detach(), "dx": gradients[0], "dy": gradients[1]})
    spans, narrow = program.spans(run, every), []
    for result, want in zip(("y", "dx", "dy"), (made.detach(), *gradients), strict=True):
        lo, hi = (end.expand(want.shape) for end in (spans[result].lo, spans[result].hi))
        size = spans[result].mid().abs() + noise[result].deviation * 2.0**24  # of the terms
        room = size * 2.0**-40 + 1e-290
        narrow += (hi - lo <= 4 * room).reshape(-1).tolist()
        holds = (want >= lo - room) & (want <= hi + room) | ~torch.isfinite(want)
        assert bool(holds.all()), (result, X[~holds] if holds.shape == X.shape else holds, want[~holds], lo[~holds])
    assert sum(narrow) > len(narrow) / 2, "an interval without an end holds everything"


@pytest.mark.parametrize("kind", [Balls, Decimals])
def test_the_extreme_of_a_row_is_that_of_its_pairs(kind: type[Arithmetic]) -> None:
    """Also where balls overlap, numbers are equal, and infinities or NaN are among them."""
    rows = [[3.0, -1.0, 3.0, 2.5], [1e-300, -1e300, 5e-324], [2.0, math.inf, -math.inf], [1.0, math.nan, 2.0], [7.0]]
    with kind.bits(160):
        arithmetic = kind()
        numbers = list(map(arithmetic.numbers, rows))
        root = arithmetic.apply(FUNCTIONS["sqrt"], arithmetic.finite(2.0))
        twice = arithmetic.multiply(root, root)  # a ball around 2
        numbers += [[twice, arithmetic.finite(2.0), root], [root, twice, arithmetic.finite(3.0)], [root, twice, twice]]
        for row in numbers:
            for largest in (True, False):
                pairs = reduce(partial(arithmetic.extreme, largest=largest), row)
                assert repr(arithmetic.extreme_of(row, largest)) == repr(pairs)


# -- programs that crashed ------------------------------------------------------------------------------------

CRASHED: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "flip": (lambda x: x.sum().flip(-1) * 2, (4, 5)),
    "sort": (lambda x: x.sum().sort(-1).values, (4, 5)),
    "topk": (lambda x: x.sum().topk(1, -1).values, (4, 5)),
    "max": (lambda x: x.sum().max(0).values, (4, 5)),
    "median": (lambda x: x.sum().median(-1).values + x.sum().kthvalue(1).values, (4, 5)),
    "quantile": (lambda x: x.sum().quantile(0.5, dim=0), (4, 5)),
    "argmax": (lambda x: x * x.sum().argmax(-1, keepdim=True), (4, 5)),
    "index_fill": (lambda x: x.index_fill(1, torch.tensor([0]), 0.5), (4, 5)),
    "index_copy": (lambda x: x.index_copy(1, torch.tensor([1]), x[:, :1] * 2), (4, 5)),
    "avg_pool2d": (lambda x: functional.avg_pool2d(x[None], 3, 3, 1, ceil_mode=True), (27, 2)),
    "avg_pool1d": (lambda x: functional.avg_pool1d(x[None], 3, 2, 1, ceil_mode=True), (2, 8)),
    "padding excluded": (lambda x: functional.avg_pool2d(x[None], 3, 2, 1, True, False), (9, 6)),
    "sgn twice": (lambda x: torch.cumprod(torch.sgn(x) + x, 0), (4, 5)),
}


@pytest.mark.parametrize("name", CRASHED)
def test_a_program_that_crashed_has_the_results_of_pytorch(name: str) -> None:
    function, shape = CRASHED[name]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).requires_grad_()
    y = function(x)
    dy = torch.rand(y.shape, generator=torch.Generator().manual_seed(2))
    grads = torch.autograd.grad(y, x, dy)
    verify.assert_close(y.detach(), like=function, inputs=(x.detach(),), grads=grads, upstream=dy)


@pytest.mark.parametrize("function", [torch.median, lambda x: x.median(-1).values, lambda x: x.quantile(0.25, dim=-1)])
def test_a_row_with_nan_has_the_median_nan(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.tensor([[math.nan, 1.0, 2.0]])
    verify.assert_close(function(x), like=function, inputs=(x,))


def test_the_sign_of_nan_is_zero() -> None:
    x = torch.tensor([math.nan, -2.0])
    for function in (torch.sign, torch.sgn):
        verify.assert_close(function(x), like=function, inputs=(x,))
        with pytest.raises(AssertionError):
            verify.assert_close(function(x) + 1, like=function, inputs=(x,))


@pytest.mark.parametrize("when", ["span", "element", "rule"])
def test_a_rule_that_fails_names_its_operator_and_line(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """Of 880 programs, 33 ended in an exception of a rule, which did not say which operator was at fault."""

    def fails(*given: Any) -> Any:
        raise ZeroDivisionError("integer modulo by zero")

    if when == "rule":
        monkeypatch.setitem(RULES, "sinh", fails)
    else:
        part = {"span": "torch", "element": "arb"}[when]
        monkeypatch.setitem(FUNCTIONS, "sinh", replace(FUNCTIONS["sinh"], **{part: fails}))

    def judged() -> None:
        program = trace(lambda x: torch.sinh(x) + 1, {"x": torch.ones(3)})
        run = Run({"x": torch.ones(3)}, torch.device("cpu"))
        program.spans(run, ["y"])
        program.elements(run, Balls(), "y", [0])

    with pytest.raises(UsageError, match=r"cannot judge aten.sinh.default .*test_edges.py.*ZeroDivisionError"):
        judged()
