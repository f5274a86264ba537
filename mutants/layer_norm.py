"""Layer norm in whole-tensor form: variance, eps, rounding points, saved statistics, column sums."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from mutants import formulas
from mutants.formulas import total, wide
from mutants.mutant import LAYOUT, UPSTREAM, Family, declare, differentiable
from verify.declare.declaration import Kernel


def _narrow_variance(values: Tensor, bug: str) -> tuple[Tensor, Tensor]:
    """Mean and variance as the buggy kernels compute them, in float32 (or float16)."""
    v = values.to(torch.float32)
    count = v.shape[-1]
    mean = total(v) / count
    if bug.startswith("one-pass"):
        var = total(v * v) / count - mean * mean
        if bug == "one-pass variance, clamped":
            var = var.clamp(min=0.0)
        return mean, var
    centred = v - mean
    if bug == "square in float16":
        return mean, total((centred.half() * centred.half()).float()) / count
    return mean, total(centred * centred) / count


def _statistics(v: Tensor, eps: float, dtype: torch.dtype, bug: str | None) -> tuple[Tensor, Tensor]:
    """Mean and 1/sqrt(var + eps) of each row, float64."""
    count = v.shape[-1]
    mean = total(v) / max(count, 1)
    centred = v - mean
    var = total(centred * centred) / max(count, 1)
    if bug in ("one-pass variance", "one-pass variance, clamped", "square in float16", "square in float32"):
        mean, var = (each.to(torch.float64) for each in _narrow_variance(v, bug))
    elif bug == "variance over N - 1":
        var = total(centred * centred) / max(count - 1, 1)
    if bug == "eps lost":
        eps = 0.0
    elif bug == "eps hard-coded":
        eps = 1e-5
    elif bug == "eps in the input's dtype":
        eps = float(torch.tensor(eps, dtype=dtype))
    if bug == "eps lost with a tiny variance":
        return mean, torch.where(var + eps < 1e-10, 0.0, 1.0 / torch.sqrt(var + eps))
    if bug == "sum carried on to a program's next row":
        rows = formulas.rows(var).clone()
        rows[PROGRAMS:] += rows[:-PROGRAMS] if len(rows) > PROGRAMS else 0.0
        var = rows.reshape(var.shape)
    if bug == "eps outside the root":
        return mean, 1.0 / (torch.sqrt(var) + eps)
    if bug == "eps added to the mean":
        return mean + eps, 1.0 / torch.sqrt(var + eps)
    return mean, 1.0 / torch.sqrt(var + eps)


def _forward(*operands: Tensor, eps: float, bug: str | None, residual: bool) -> Any:
    x, weight, bias = operands[0], operands[-2], operands[-1]
    if bug == "raises for no rows" and x.numel() == 0:
        raise RuntimeError("CUDA error: invalid configuration argument")
    v = wide(x) + wide(operands[1]) if residual else wide(x)
    if bug == "sum rounded":
        v = v.to(x.dtype).to(torch.float64)
    if bug == "strides ignored":
        v = wide(formulas.raw(x, x.numel())).reshape(x.shape)
    shape = v.shape
    if bug == "rank above two folded wrongly" and v.ndim > 2:
        v = v.reshape(v.shape[0], -1)
    mean, rstd = _statistics(v, eps, x.dtype, bug)
    xhat = ((v - mean) * rstd).reshape(shape)
    if bug == "xhat rounded":
        xhat = xhat.to(x.dtype).to(torch.float64)
    scale = wide(weight)
    if bug == "weight's stride ignored":
        scale = wide(formulas.raw(weight, weight.numel()))
    elif bug == "weight in TF32":
        scale = formulas.rounded_mantissa(scale, 10).to(torch.float64)
    y = (xhat * scale + wide(bias)).to(x.dtype)
    if bug == "NaN for no rows" and x.numel() == 0:
        y = y / 0.0
    saved = _saved_statistics(mean, rstd, x.dtype, bug)
    return y, (*operands, *saved)


def _saved_statistics(mean: Tensor, rstd: Tensor, dtype: torch.dtype, bug: str | None) -> tuple[Tensor, Tensor]:
    if bug in ("mean and rstd saved in the input's dtype", "mean saved in the input's dtype"):
        mean = mean.to(dtype)
    if bug in ("mean and rstd saved in the input's dtype", "rstd saved in the input's dtype"):
        rstd = rstd.to(dtype)
    return mean, rstd


def _backward(saved: tuple[Tensor, ...], dy: Tensor, *, eps: float, bug: str | None, residual: bool) -> Any:
    *operands, mean, rstd = saved
    x, weight = operands[0], operands[-2]
    v = wide(x) + wide(operands[1]) if residual else wide(x)
    upstream = wide(dy)
    if bug == "dY read as contiguous":
        upstream = wide(formulas.raw(dy, dy.numel())).reshape(dy.shape)
    elif bug == "dY's row stride assumed":
        upstream = _rows_at_the_wrong_stride(dy)
    if bug == "rstd recomputed without eps":
        centred = v - total(v) / max(v.shape[-1], 1)
        rstd = 1.0 / torch.sqrt(total(centred * centred) / max(v.shape[-1], 1))
    elif bug == "variance in float32 backward":
        mean, rstd = _statistics(v, eps, x.dtype, "square in float32")
    if bug == "rank above two folded wrongly" and v.ndim > 2:
        mean, rstd = _statistics(v, eps, x.dtype, None)
    mean, rstd = mean.to(torch.float64), rstd.to(torch.float64)
    xhat = (v - mean) * rstd
    g = upstream * wide(weight)
    count = max(v.shape[-1], 1)
    mean_g, mean_gx = total(g) / count, total(g * xhat) / count
    if bug == "sum carried on to a program's next row backward":
        rows = formulas.rows(mean_gx).clone()
        rows[PROGRAMS:] += rows[:-PROGRAMS] if len(rows) > PROGRAMS else 0.0
        mean_gx = rows.reshape(mean_gx.shape)
    if bug == "mean(g) lost":
        mean_g = torch.zeros_like(mean_g)
    elif bug == "xhat term lost":
        mean_gx = torch.zeros_like(mean_gx)
    dx = (rstd * (g - mean_g - xhat * mean_gx)).to(x.dtype)
    if dx.numel():
        dx = _misplaced(dx, bug)
    dweight, dbias = _column_sums(upstream * xhat, weight.dtype, bug), _column_sums(upstream, weight.dtype, None)
    if bug == "column sums over the first dimension":
        dweight = (upstream * xhat).sum(0).to(weight.dtype)
    elif bug == "0/0 for no rows" and not x.numel():
        dweight = dweight / 0.0
    return (dx, *((dx.clone(),) if residual else ()), dweight, dbias)


def _misplaced(dx: Tensor, bug: str | None) -> Tensor:
    rows = formulas.rows(dx)
    if bug == "all rows stored to row 0":
        stored = torch.zeros_like(rows)
        stored[0] = rows[-1]
        return stored.reshape(dx.shape)
    if bug == "rows counted by the first dimension":
        stored = torch.zeros_like(rows)
        stored[: dx.shape[0]] = rows[: dx.shape[0]]
        return stored.reshape(dx.shape) if dx.ndim > 1 else dx
    return dx


def _column_sums(terms: Tensor, dtype: torch.dtype, bug: str | None) -> Tensor:
    """Sum over all rows; the mutants lose, round or reorder partial sums."""
    terms = formulas.rows(terms)
    if bug and bug.startswith("column sums of the first "):
        terms = terms[: int(bug.split()[-2])]
    if bug == "partial sums in the input's dtype":
        running = torch.zeros(terms.shape[1], dtype=dtype, device=terms.device)
        for row in terms:
            running = (running.to(torch.float64) + row).to(dtype)
        return running
    if bug == "last writer wins" and len(terms) > 4:
        # four slots of partial sums, stored instead of added to
        terms = terms[-4:]
    elif bug == "lost update" and len(terms) > 1:
        # a lock released too early: now and then one row's share is overwritten
        kept = torch.rand(len(terms)) > 0.2
        terms = terms[kept.to(terms.device)]
    elif bug == "order of atomics":
        order = torch.randperm(len(terms)).to(terms.device)
        running = torch.zeros(terms.shape[1], dtype=torch.float32, device=terms.device)
        for row in terms.to(torch.float32)[order]:
            running = running + row
        return running.to(dtype)
    return total(terms, 0)[0].to(dtype)


def _rows_at_the_wrong_stride(dy: Tensor) -> Tensor:
    """Elements of a row found by their stride, rows taken to be N elements apart."""
    if dy.ndim != 2 or not dy.numel():
        return wide(dy)
    rows, width = dy.shape
    reach = dy.untyped_storage().nbytes() // dy.element_size()
    places = torch.arange(rows)[:, None] * width + torch.arange(width)[None] * dy.stride(1)
    storage = dy.as_strided((reach,), (1,), 0)
    return wide(storage[((places + dy.storage_offset()) % reach).to(dy.device)])


def make(
    *,
    bug: str | None,
    name: str,
    dtypes: tuple[str, ...] = ("float32",),
    max_ulp: float = 8.0,  # the mean of 1,000 and its neighbour in float64 costs 3.5 of a row of 511
    op: str = "layer_norm",
    optional: tuple[str, ...] = (),
) -> Kernel:
    """A layer norm, or one of x + residual, with at most one bug. `optional` operands may be None."""
    residual = op == "layer_norm_residual"

    def function(*arguments: Any) -> Tensor:
        *operands, eps = arguments
        if optional:
            x, weight, bias = operands
            if bug == "bias lost without a weight" and weight is None:
                bias = None
            elif bug == "weight lost without a bias" and bias is None:
                weight = None
            operands = [
                x,
                x.new_ones(x.shape[-1]) if weight is None else weight,
                x.new_zeros(x.shape[-1]) if bias is None else bias,
            ]
        pair = differentiable(
            partial(_forward, eps=eps, bug=bug, residual=residual),
            partial(_backward, eps=eps, bug=bug, residual=residual),
        )
        return pair(*operands)

    return declare(op, function, name=name, dtypes=dtypes, max_ulp=max_ulp, eps=True, optional=optional, outputs=["y"])


PROGRAMS = 96  # that go over all rows in turn
BF16: dict[str, Any] = {"dtypes": ("bfloat16",), "max_ulp": 0.6}
FP16: dict[str, Any] = {"dtypes": ("float16",), "max_ulp": 0.6}
FAMILY = Family("layer_norm", make)
_add = FAMILY.add
_add("one-pass variance", "one-pass variance", "forward", "E[x^2] - E[x]^2 in float32")
_add("one-pass variance, clamped", "one-pass variance", "forward", "never negative, as wrong")
_add("one-pass variance", "one-pass variance", "forward", "in float16", **FP16)
_add("eps lost", "eps lost or misplaced", "forward", "0/0 for constant rows")
_add("eps outside the root", "eps lost or misplaced", "forward", "1/(sqrt(var) + eps)")
_add("eps added to the mean", "eps lost or misplaced", "forward", "eps lands in another tensor")
_add(
    "eps hard-coded",
    "eps lost or misplaced",
    "forward",
    "1e-5 whatever was asked for",
    killed_by=("accuracy",),
)
_add("eps in the input's dtype", "eps lost or misplaced", "forward", "1e-12 is 0 in float16", **FP16)
_add("rstd recomputed without eps", "eps lost or misplaced", "backward", "forward has eps, backward has none")
_add("eps lost with a tiny variance", "value recipe with a parameter", "backward", "constant rows with eps = 1e-12")
NARROW = {"killed_by": ("many rows",)}
_add("sum carried on to a program's next row", "more rows than programs", "forward", "never set to 0", **NARROW)
_add("sum carried on to a program's next row backward", "more rows than programs", "backward", "likewise", **NARROW)
EITHER: dict[str, Any] = {"optional": ("weight", "bias")}
_add("bias lost without a weight", "None for an operand", "forward", "weight=None alone", **EITHER)
_add("weight lost without a bias", "None for an operand", "forward", "bias=None alone", **EITHER)
_add("square in float16", "square overflows", "forward", "centred values beyond 256", **FP16)
_add("square in float32", "square overflows", "forward", "rows near 1e30")
_add("variance in float32 backward", "square overflows", "backward", "recomputed for rows near 1e30")
_add("xhat rounded", "rounding point moved", "forward", "xhat is rounded before the weight", **BF16)
_add("sum rounded", "rounding point moved", "forward", "x + residual is rounded", op="layer_norm_residual", **BF16)
_add("partial sums in the input's dtype", "rounding point moved", "backward", "dweight is summed in bfloat16", **BF16)
_add("weight in TF32", "TF32 by default", "forward", "the weight passes a tensor core with 10 bits")
_add("mean and rstd saved in the input's dtype", "mean/rstd saved in the input dtype", "backward", "bfloat16", **BF16)
_add("mean saved in the input's dtype", "mean/rstd saved in the input dtype", "backward", "bfloat16", **BF16)
_add("rstd saved in the input's dtype", "mean/rstd saved in the input dtype", "backward", "float16", **FP16)
_add("variance over N - 1", "term of a formula lost", "forward", "the sample variance")
_add("mean(g) lost", "term of a formula lost", "backward", "invisible when the upstream sums to zero")
_add("xhat term lost", "term of a formula lost", "backward", "the projection on xhat is missing")
_add("all rows stored to row 0", "backward for the wrong shape", "backward", "row 0 holds the last row's gradient")
_add(
    "rows counted by the first dimension",
    "backward for the wrong shape",
    "backward",
    "right for matrices, wrong from three dimensions on",
)
_add(
    "column sums over the first dimension",
    "backward for the wrong shape",
    "backward",
    "dweight has the wrong shape from three dimensions on",
    killed_by=("accuracy",),
)
for _rows in (8, 64, 256, 4096):
    _add(
        f"column sums of the first {_rows} rows",
        "sums over many rows",
        "backward",
        "dweight ignores the rows beyond one block",
        killed_by=("many rows",),
    )
_add("rank above two folded wrongly", "out of bounds", "forward", "shape[0] rows of everything else")
_add("last writer wins", "race on partial sums", "backward", "partial sums are stored, not added")
_add("lost update", "race on partial sums", "backward", "a row's share is lost now and then")
_add(
    "order of atomics",
    "race on partial sums",
    "backward",
    "float32 sums in the order of arrival",
    killed_by=("determinism",),
)
_add(
    "strides ignored",
    "non-contiguous input taken as contiguous",
    "forward",
    "memory read in order",
    killed_by=(LAYOUT,),
)
_add(
    "weight's stride ignored",
    "non-contiguous input taken as contiguous",
    "forward",
    "only the weight is strided",
    killed_by=(LAYOUT,),
)
_add(
    "dY read as contiguous",
    "strided or expanded upstream gradient",
    "backward",
    "memory of dY read in order",
    killed_by=(UPSTREAM,),
)
_add(
    "dY's row stride assumed",
    "strided or expanded upstream gradient",
    "backward",
    "rows taken to be N elements apart",
    killed_by=(UPSTREAM,),
)
_add("raises for no rows", "empty input", "forward", "a grid of size zero")
_add("0/0 for no rows", "empty input", "backward", "dweight of no rows is NaN instead of 0")
MUTANTS = tuple(FAMILY.mutants)
