"""A linear layer with GELU: TF32, accumulators, the rounding of the pre-activation, shapes of the gradients."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from mutants import formulas
from mutants.formulas import total, wide
from mutants.mutant import LAYOUT, UPSTREAM, Family, declare, differentiable
from verify.declare.declaration import Kernel


def _product(a: Tensor, b: Tensor, bug: str | None = None) -> Tensor:
    """a @ b^T in float64, summed in a fixed order: a is (M, K), b is (N, K)."""
    if bug == "TF32":
        a, b = (formulas.rounded_mantissa(each.float(), 10).to(torch.float64) for each in (a, b))
    elif bug == "K remainder dropped":
        whole = a.shape[1] - a.shape[1] % 16 if a.shape[1] > 16 else a.shape[1]
        a, b = a[:, :whole], b[:, :whole]
    elif bug == "accumulator in the input's dtype":
        running = torch.zeros((a.shape[0], b.shape[0]), dtype=torch.bfloat16, device=a.device)
        for start in range(0, a.shape[1], 16):
            part = _product(a[:, start : start + 16], b[:, start : start + 16])
            running = (running.to(torch.float64) + part).to(torch.bfloat16)
        return running.to(torch.float64)
    elif bug == "accumulator in float16":
        running = torch.zeros((a.shape[0], b.shape[0]), dtype=torch.float16, device=a.device)
        for start in range(0, a.shape[1], 16):
            part = _product(a[:, start : start + 16], b[:, start : start + 16])
            running = (running.to(torch.float64) + part).to(torch.float16)
        return running.to(torch.float64)
    return total(a[:, None, :] * b[None, :, :])[..., 0]


def _forward(x: Tensor, weight: Tensor, bias: Tensor, *, act: str, bug: str | None) -> Any:
    if bug == "raises for no rows" and not x.shape[0]:
        raise ZeroDivisionError("integer division or modulo by zero")
    v, w = wide(x), wide(weight)
    if bug == "weight's strides assumed":
        w = wide(formulas.raw(weight, weight.numel())).reshape(weight.shape)
    elif bug == "x's strides assumed":
        v = wide(formulas.raw(x, x.numel())).reshape(x.shape)
    inner = None if bug and "backward" in bug else bug
    pre = _product(v, w, inner)
    if bug != "bias lost":
        pre = pre + wide(bias)
    if bug == "pre-activation rounded":
        pre = pre.to(x.dtype).to(torch.float64)
    y = formulas.gelu(pre, "none") if act == "gelu" else pre
    if bug == "1 + erf":
        y = (0.5 * pre.float() * (1.0 + torch.erf(pre.float() * formulas.SQRT_HALF))).to(torch.float64)
    return y.to(x.dtype), (x, weight, pre)


def _backward(saved: tuple[Tensor, ...], dy: Tensor, *, act: str, bug: str | None) -> Any:
    x, weight, pre = saved
    upstream = wide(dy)
    if bug == "dY read as contiguous":
        upstream = wide(formulas.raw(dy, dy.numel())).reshape(dy.shape)
    back = upstream * formulas.slope(pre, "none") if act == "gelu" else upstream
    if bug == "dpre rounded backward":
        back = back.to(x.dtype).to(torch.float64)
    inner = "TF32" if bug == "TF32 backward" else None
    dx = _product(back, wide(weight).mT, inner).to(x.dtype)
    rows = 256 if bug == "dweight of the first 256 rows" else None
    dweight = _product(back[:rows].mT, wide(x)[:rows].mT, inner).to(weight.dtype)
    dbias = total(back[: 4096 if bug == "dbias of the first 4096 rows" else None], 0)[0].to(weight.dtype)
    if bug == "dbias of the first block of rows":
        dbias = total(back[:32], 0)[0].to(weight.dtype)
    elif bug == "NaN for no rows backward" and not x.shape[0]:
        dbias = dbias / 0.0
    return dx, dweight, dbias


def make(
    *, bug: str | None, name: str, act: str = "id", dtypes: tuple[str, ...] = ("float32",), max_ulp: float = 2.0
) -> Kernel:
    """A linear layer, plain or with GELU, with at most one bug."""
    pair = differentiable(partial(_forward, act=act, bug=bug), partial(_backward, act=act, bug=bug))
    return declare("linear", pair, name=name, dtypes=dtypes, max_ulp=max_ulp, params={"activation": act}, outputs=["y"])


BF16: dict[str, Any] = {"dtypes": ("bfloat16",), "max_ulp": 0.6}
FAMILY = Family("linear", make)
_add = FAMILY.add
_add("TF32", "TF32 by default", "forward", "10-bit mantissas for float32")
_add("TF32 backward", "TF32 by default", "backward", "only the gradients' products")
_add("accumulator in the input's dtype", "rounding point moved", "forward", "bfloat16 between blocks of K", **BF16)
_add(
    "accumulator in float16",
    "square overflows",
    "forward",
    "partial sums overflow where the result does not",
    dtypes=("float16",),
    max_ulp=0.6,
)
_add("K remainder dropped", "configuration-dependent result", "forward", "right only where BLOCK_K divides K")
_add("bias lost", "term of a formula lost", "forward", "no bias")
_add("pre-activation rounded", "rounding point moved", "forward", "rounded before GELU", act="gelu", **BF16)
_add("dpre rounded backward", "rounding point moved", "backward", "before the products", act="gelu", **BF16)
_add("1 + erf", "1+erf / 1+tanh cancels", "forward", "in the epilogue", act="gelu")
_add(
    "weight's strides assumed",
    "non-contiguous input taken as contiguous",
    "forward",
    "a transposed weight",
    killed_by=(LAYOUT,),
)
_add("x's strides assumed", "non-contiguous input taken as contiguous", "forward", "rows apart", killed_by=(LAYOUT,))
_add(
    "dY read as contiguous",
    "strided or expanded upstream gradient",
    "backward",
    "memory of dY read in order",
    killed_by=(UPSTREAM,),
)
_add("dbias of the first block of rows", "backward for the wrong shape", "backward", "rows beyond 32 are lost")
for _bug in ("dweight of the first 256 rows", "dbias of the first 4096 rows"):
    _add(_bug, "sums over many rows", "backward", "rows beyond one block are lost", killed_by=("many rows",))
_add("raises for no rows", "empty input", "forward", "a grid of size zero", killed_by=("accuracy",))
_add("NaN for no rows backward", "empty input", "backward", "dbias of no rows is 0/0", killed_by=("accuracy",))
MUTANTS = tuple(FAMILY.mutants)
