"""Bugs for laws under which no other family has a mutant that dies for them alone: one row for each such law.

The kernels are SiLU, y = x sigmoid(x), a square in float64 for finite differences, an RMS norm for the laws that need a
weight, sums of rows that promise their bits, and causal attention with shared heads for the laws about keys and heads.
All are plain PyTorch.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

import verify
from mutants.mutant import BOTH, GPU, Family, declare
from verify.declare.declaration import Kernel
from verify.ops.graph.like import Definition
from verify.ops.op import Op

# -- SiLU ----------------------------------------------------------------------------------------------


def _silu(x: Tensor) -> Tensor:
    """SiLU of float64 numbers, with its limit at -infinity. An underflow keeps its sign."""
    low = x.clamp(min=-1e3)
    value = torch.where(x.isnan(), x, torch.where(x > 0, x, low) * torch.sigmoid(low))
    tiny = torch.where(x == -torch.inf, -0.0, -1e-300)
    return torch.where((value == 0) & (x < 0), tiny.to(value.dtype), value)


def _slope(x: Tensor) -> Tensor:
    """The derivative of SiLU. An underflow keeps its sign."""
    low = x.clamp(-1e3, 1e3)
    value = torch.sigmoid(low) * (1.0 + low * torch.sigmoid(-low))
    value = torch.where((value == 0) & (x < 0) & (x > -torch.inf), torch.full_like(value, -1e-300), value)
    return torch.where(x.isnan(), x, value)


def _value(x: Tensor, bug: str | None) -> Tensor:
    wide = x.double() if x.is_floating_point() else x.float().double()
    y = _silu(wide).to(x.dtype if x.is_floating_point() else torch.float32)
    if bug == "other numbers when compiled" and torch.compiler.is_compiling():
        return y * 1.001
    if bug == "waits for the device" and x.is_cuda:
        torch.cuda.synchronize(x.device)
    if bug == "returned on device 0":
        return y.to("cuda:0") if y.is_cuda else y
    return y


class _Silu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bug: str | None) -> Tensor:
        ctx.bug = bug
        ctx.save_for_backward(x)
        if bug == "on the default stream" and x.is_cuda:
            with torch.cuda.stream(torch.cuda.default_stream(x.device)):
                return _value(x, bug)
        return _value(x, bug)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        dx = (dy.double() * _slope(x.double())).to(x.dtype)
        return dx, None


def _differentiable(x: Tensor, bug: str | None) -> Tensor:
    if not x.is_floating_point():  # taken by one mutant alone
        return _value(x, bug).to(x.dtype)
    y: Tensor = _Silu.apply(x, bug)
    return y


_FORMS = {"silu": _differentiable, "silu forward": _value}

# -- a square, an RMS norm and attention --------------------------------------------------------------------


def _square(x: Tensor) -> Tensor:
    return x * x


def _gated(g: Tensor, u: Tensor) -> Tensor:
    return torch.nn.functional.silu(g) * u


class _Square(torch.autograd.Function):
    """Can be differentiated twice. In float64 it is as right in a vector register as in the tail."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bug: str | None) -> Tensor:
        ctx.bug = bug
        ctx.save_for_backward(x)
        return _square(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        at = x.detach() if ctx.bug == "double backward forgets a path" else x
        # in this order, a product that overflows or underflows on the way is one that does so in the end
        return dy * at * (2.002 if ctx.bug == "wrong slope" else 2.0), None


def _rms_norm(x: Tensor, weight: Tensor, eps: float, bug: str | None) -> Tensor:
    wide = x.double()
    rstd = torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps)
    scale = weight.to(x.dtype) if bug == "weight rounded first" else weight
    y = wide * rstd * scale.double()
    return y.to(x.dtype)


def _attention(q: Tensor, k: Tensor, v: Tensor, bug: str | None = None) -> Tensor:
    """Causal attention whose last query sees all keys. Heads share keys and values."""
    heads, queries, keys = q.shape[0], q.shape[1], k.shape[1]
    k, v = (each.double().repeat_interleave(heads // each.shape[0], 0) for each in (k, v))
    seen = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
    weights = torch.softmax((q.double() @ k.transpose(-1, -2)).masked_fill(~seen, -torch.inf), -1)
    if bug == "a trace of masked keys":
        weights = weights + torch.where(seen, 0.0, 1e-3)
    return (weights @ v).to(q.dtype)


def _sums(x: Tensor, bug: str | None = None) -> Tensor:
    half = x.shape[1] // 2
    if bug is None or x.shape[0] >= 4:
        return x.double().sum(-1).to(x.dtype)
    return x[:, :half].double().sum(-1).to(x.dtype) + x[:, half:].double().sum(-1).to(x.dtype)


@cache
def _op(form: str) -> Op:
    if form == "sums":
        return Definition(_sums, ("x",), shapes={"x": "r n"}).op()
    if form in ("square", "gated"):
        return Definition(*{"square": (_square, ("x",)), "gated": (_gated, ("g", "u"))}[form]).op()
    shapes = {"q": "h t d", "k": "g s d", "v": "g s d"}
    return Definition(_attention, tuple(shapes), shapes=shapes, where="h % g == 0 and s >= t").op()


# -- the list -----------------------------------------------------------------------------------------------


def make(*, bug: str | None, name: str, form: str) -> Kernel:
    """A kernel of one form, with at most one bug. It refuses integers, unless taking them is the bug."""
    if form == "elements":
        from mutants import wraps  # imports Triton

        return replace(vars(wraps)["elements_wrong" if bug else "elements"], name=name)
    if form == "rms_norm":
        rounded = ("bfloat16", "float32")
        compute: Any = lambda x, weight, eps: _rms_norm(x, weight, eps, bug)  # noqa: E731
        return declare(form, compute, name=name, dtypes=rounded, max_ulp=0.6, eps=True, gradients=False)
    if form == "square":
        kernel = verify.kernel(op=_op(form), dtypes=["float64"], max_ulp=4, name=name)
        return kernel(lambda x: _Square.apply(x, bug))
    options: dict[str, Any] = {"dtypes": ["float32"], "max_ulp": 4, "name": name}
    if form == "attention":

        def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if not q.dtype == k.dtype == v.dtype == torch.float32 or k.shape != v.shape:
                received = ", ".join(f"{each.dtype} {list(each.shape)}" for each in (q, k, v))
                raise TypeError(f"attention: q, k and v are float32, k and v have one shape; received {received}")
            return _attention(q, k, v, bug)

        return verify.kernel(op=_op(form), gradients=False, **options)(attention)

    if form == "sums":

        def sums(x: Tensor) -> Tensor:
            if x.dtype != torch.float32 or x.ndim != 2:
                raise TypeError(f"sums: x is a float32 matrix; received {x.dtype} {list(x.shape)}")
            return _sums(x, bug)

        return verify.kernel(op=_op(form), gradients=False, same_bits=["rows"], **options)(sums)

    if form == "gated":

        def gated(g: Tensor, u: Tensor) -> Tensor:
            if not g.dtype == u.dtype == torch.bfloat16 or g.shape != u.shape:
                received = ", ".join(f"{each.dtype} {list(each.shape)}" for each in (g, u))
                raise TypeError(f"gated: g and u are bfloat16 of one shape; received {received}")
            return _gated(g.float(), u.float()).to(g.dtype) if bug == "one rounding" else _gated(g, u)

        promised = {"op": _op(form), "gradients": False, "dtypes": ["bfloat16"], "rounds": "as like", "name": name}
        return verify.kernel(**promised)(gated)

    def silu(x: Tensor) -> Tensor:
        if not x.is_floating_point() and bug != "integers taken":
            raise TypeError(f"silu: x is floating point; received {x.dtype}")
        return _FORMS[form](x, bug)

    return verify.kernel(op="silu", gradients=_FORMS[form] is _differentiable, **options)(silu)


FAMILY = Family("laws", make)
FORWARD = (
    ("mixed dtypes", "rms_norm", "weight rounded first", "a float32 weight becomes bfloat16", BOTH),
    ("same bits", "sums", "a sum split for few rows", "in two halves below four rows", BOTH),
    ("roundings", "gated", "one rounding", "of silu(g) u in float32, where the layer rounds twice", BOTH),
    ("causality", "attention", "a trace of masked keys", "with a weight of 1e-3", BOTH),
    ("error contract", "silu", "integers taken", "and answered in int64", BOTH),
    ("compiled", "silu forward", "other numbers when compiled", "by 1e-3", BOTH),
    ("side stream", "silu", "on the default stream", "whatever stream is current", GPU),
    ("CUDA graph", "silu forward", "waits for the device", "before it returns, which no graph can hold", GPU),
    ("other device", "silu forward", "returned on device 0", "wherever x is: needs two GPUs", GPU),
    ("large offsets", "elements", "32-bit offset", "of elements beyond 2^31", BOTH),
)
for _law, _form, _bug, _note, _backends in FORWARD:
    FAMILY.add(_bug, "one law alone", "forward", _note, killed_by=(_law,), backends=_backends, form=_form)
for _law, _form, _bug, _note in (
    ("gradcheck", "square", "wrong slope", "2.002 x"),
    ("gradgradcheck", "square", "double backward forgets a path", "x is detached in backward"),
):
    FAMILY.add(_bug, "one law alone", "backward", _note, killed_by=(_law,), form=_form)
MUTANTS = tuple(FAMILY.mutants)
