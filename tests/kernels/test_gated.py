"""What kernels/geglu.py and kernels/swiglu.py have in common: packing, layouts, and factors that are not finite."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import NamedTuple

import pytest
import torch

from kernels import geglu, swiglu
from tests.kernels.test_swiglu import ZERO

SIXTEEN = (torch.float16, torch.bfloat16)


class Gated(NamedTuple):
    module: ModuleType
    packed: Callable[..., torch.Tensor]
    split: Callable[..., torch.Tensor]
    gate: Callable[[float], tuple[float, float]]  # value and slope, as `product` needs them
    finite: tuple[float, ...]  # gates beside the special ones, into the tail where values vanish
    dtypes: tuple[torch.dtype, ...]


def gate(x: float, zero: float) -> tuple[float, float]:
    """A gate and its slope as `product` needs them: only x = +-0 and -inf give zeros, however deep the tail is.

    zero: about where the slope is zero, with no value of any format that is tried between.
    """
    if math.isnan(x) or x == 0 or x == math.inf:
        return x, (x if math.isnan(x) else 1.0)
    return (-0.0, -0.0) if x == -math.inf else (math.copysign(1.0, x), math.copysign(1.0, x - zero))


def of_geglu(form: str) -> Gated:
    """float64 at x2 = -inf is NaN by rules of its own: test_geglu.py."""
    functions = (partial(f, approximate=form) for f in (geglu.geglu, geglu.geglu_split))
    deep = (-0.5, -5.0, -8.0, -14.5, -17.5, -20.0, -24.0, -40.0, -3e4)
    return Gated(geglu, *functions, partial(gate, zero=-0.752), deep, (torch.float32, *SIXTEEN))


DEEP = (-0.5, -5.0, -30.0, -44.0, -100.0, -187.0, -280.0, -1e3, -3e4)
SWIGLU = Gated(
    swiglu, swiglu.swiglu, swiglu.swiglu_split, partial(gate, zero=-ZERO), DEEP,
    (torch.float64, torch.float32, *SIXTEEN),
)  # fmt: skip
GATED = {"geglu": of_geglu("none"), "swiglu": SWIGLU}
FORMS = GATED | {"geglu tanh": of_geglu("tanh")}
each = pytest.mark.parametrize("gated", GATED.values(), ids=GATED)


def product(*factors: float) -> float:
    """The sign and kind of a product of extended reals, as a NaN, a zero, an infinity or +-1 for a finite number."""
    if any(math.isnan(f) for f in factors):
        return math.nan
    sign = math.prod(math.copysign(1.0, f) for f in factors)
    if any(math.isinf(f) for f in factors):
        return math.nan if 0.0 in factors else sign * math.inf
    return sign * 0.0 if 0.0 in factors else sign


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("gated", "dtype"), [pytest.param(g, d, id=f"{name}-{d}") for name, g in FORMS.items() for d in g.dtypes]
)
def test_infinite_factors_zeros_and_nan_in_every_combination(backend, gated, dtype, packed):
    """An infinite x1 or dy times the zero at x2 = -inf is NaN, times the smallest tail of a finite x2 an infinity.

    The formulas stop at a finite |x2|, whose value at -inf gave an infinity; bfloat16 gradients lost the tail.
    """
    ends = torch.finfo(dtype)
    special = [0.0, ends.smallest_normal * ends.eps, 1.0, ends.max, math.inf]
    special = [s * v for v in special for s in (1, -1)] + [math.nan]
    rows = list(itertools.product(special, [*special, *gated.finite], special))
    x1, x2, dy = (torch.tensor(column, dtype=dtype, device=backend.device) for column in zip(*rows, strict=True))
    if packed:
        x = torch.stack([x1, x2], -1).requires_grad_()
        y = gated.packed(x)
        (dx,) = torch.autograd.grad(y, x, dy[:, None])
        results = (y[:, 0], dx[:, 0], dx[:, 1])
    else:
        a, b = x1.requires_grad_(), x2.requires_grad_()
        y = gated.split(a, b)
        results = (y, *torch.autograd.grad(y, (a, b), dy))
    decided = 0
    for (first, second, upstream), *got in zip(rows, *(r.tolist() for r in results), strict=True):
        value, slope = gated.gate(second)
        factors = ((first, value), (upstream, value), (upstream, first, slope))
        for number, parts in zip(got, factors, strict=True):
            want = product(*parts)
            if math.isnan(want) or math.isinf(want):
                assert math.isnan(number) if math.isnan(want) else number == want, (first, second, upstream, number)
                decided += 1
            else:
                assert not math.isnan(number), (first, second, upstream)
                assert want != 0 or number == 0, (first, second, upstream, number)
    assert decided > 1000


@each
def test_packed_is_split_with_either_gate(backend, gated):
    torch.manual_seed(0)
    x = torch.randn(3, 5, 14, device=backend.device)
    first, second = x.chunk(2, -1)
    assert torch.equal(gated.packed(x), gated.split(first, second))
    assert torch.equal(gated.packed(x, gate_last=False), gated.split(second, first))
    assert gated.packed(x).is_contiguous()


@each
@pytest.mark.parametrize("gate_last", [True, False])
def test_packed_backward_is_one_launch_into_one_tensor(backend, monkeypatch, gated, gate_last):
    torch.manual_seed(1)
    x = torch.randn(7, 12, device=backend.device, requires_grad=True)
    first, second = (t.detach().requires_grad_() for t in x.chunk(2, -1))
    dy = torch.randn(7, 6, device=backend.device)
    split = gated.split(first, second) if gate_last else gated.split(second, first)
    want = torch.cat(torch.autograd.grad(split, (first, second), dy), dim=-1)
    launches, original = [], geglu._launch
    monkeypatch.setattr(geglu, "_launch", lambda *a, **k: (launches.append(a[0]), original(*a, **k)))
    (dx,) = torch.autograd.grad(gated.packed(x, gate_last=gate_last), x, dy)
    assert launches == [geglu._forward_kernel, geglu._backward_kernel]
    assert torch.equal(dx, want) and dx.is_contiguous()


@each
def test_0d_and_wide_rows(backend, gated):
    v = torch.tensor(2.0, device=backend.device), torch.tensor(-0.5, device=backend.device)
    value = {geglu: -0.15426876936299344, swiglu: -0.18877033439907308}[gated.module]  # of gelu and silu at -1/2
    assert gated.split(*v).item() == pytest.approx(2 * value, rel=1e-6)
    x = torch.randn(2, 2 * ((1 << 16) + 33), device=backend.device)  # beyond one block of columns
    halves = x.chunk(2, -1)
    pieces = [gated.split(a, b) for a, b in zip(*(h.split(30000, -1) for h in halves), strict=True)]
    assert torch.equal(gated.packed(x), torch.cat(pieces, -1))
