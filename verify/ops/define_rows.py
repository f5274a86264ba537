"""`verify.row_op`: defines a row-wise op from one mpmath formula and one torch formula.

    def exact(row):
        norm = mp.sqrt(mp.fsum(v * v for v in row))
        return [v / norm for v in row]

    verify.row_op("l2_normalize", exact=exact, reference=lambda x: x / x.square().sum(-1, keepdim=True).sqrt())

The exact gradient is that of <upstream, exact(row)> by reverse differentiation of the formula, a whole row at once,
and one element of each row is compared with a central difference at raised precision; a formula that cannot be
followed has the central difference for every element; `grad(row, upstream)` replaces both. The fast gradient comes
from autograd in float64 through `reference`, and so does its scale, the sum of |upstream_j dy_j / dx_i| over the row.

Since one evaluation gives a row, tensors of ordinary size are judged by exact values throughout (`Op.whole_rows`)."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from mpmath import mp
from torch import Tensor

from verify.errors import TruthError, UsageError
from verify.ops import autograd
from verify.ops.elements import to_mp
from verify.ops.numeric import derivative_at, settle, to_real
from verify.ops.op import Fast, Op, Operand, Params, Point, Problem
from verify.ops.precision import GUARD, magnitude, mp_bits
from verify.ops.registry import register
from verify.ops.reverse import Untraceable, gradient
from verify.ops.rowwise import Rows, rowwise

RowFormula = Callable[..., Any]

_GROUPS = 64  # of columns, for the scale of a gradient: so many passes through the reference
_CHECK_BITS = 64  # of the comparison of the two routes to a derived gradient
_VANISHED = mp.ldexp(1, -1_300)  # far below every format: not compared


def _evaluate(name: str, formula: RowFormula, params: Params, *rows: Sequence[Any]) -> list[Any]:
    """The formula on rows of mpf, checked, at the working precision."""
    try:
        result = list(formula(*[list(row) for row in rows], **params))
    except ZeroDivisionError:
        return [mp.nan] * len(rows[0])
    if len(result) != len(rows[0]):
        raise UsageError(
            f"op {name!r}: exact returned {len(result)} elements for a row of {len(rows[0])}",
            hint="a row-wise op keeps the length of the row",
        )
    return [to_real(name, value) for value in result]


class _Exact:
    """The exact values of one row-wise op, a whole row at a time."""

    def __init__(self, name: str, exact: RowFormula, grad: RowFormula | None) -> None:
        self.name, self.exact, self.grad = name, exact, grad

    def element(self, rows: Rows, result: str, index: int, column: int) -> Point:
        def by_mp(prec: int) -> Any:
            if result == "dx" and self.grad is None:
                return self._derived(rows, index, column, prec)
            return self._settled(rows, result, index, column, prec)

        return Point(mp=by_mp)

    def traceable(self, problem: Problem) -> bool:
        """Whether the gradient of a problem of one row comes from reverse differentiation."""
        with mp_bits(_CHECK_BITS):
            return self._row(Rows(problem), "dx", 0, _CHECK_BITS) is not None

    def _settled(self, rows: Rows, result: str, index: int, column: int, prec: int) -> Any:
        return settle(self.name, lambda bits: self._row(rows, result, index, bits)[column], prec)

    def _derived(self, rows: Rows, index: int, column: int, prec: int) -> Any:
        """An element of the derived gradient: of the whole row at once where the formula can be followed."""
        slopes = self._row(rows, "dx", index, prec + GUARD)
        if slopes is None:
            return self._difference(rows, index, column, prec)
        rows.cached(("compared", index), lambda: self._compare(rows, index, slopes))
        return self._settled(rows, "dx", index, column, prec)

    def _row(self, rows: Rows, result: str, index: int, bits: int) -> Any:
        """All elements of one row of a result, evaluated once at a working precision of `bits`.

        None for a derived gradient that cannot be followed.
        """

        def make() -> list[Any] | None:
            x = [to_mp(value) for value in rows.data_row("x", index)]
            params = rows.problem.params
            with mp_bits(bits):
                if result == "y":
                    return _evaluate(self.name, self.exact, params, x)
                upstream = [to_mp(value) for value in rows.row(rows.problem.upstream["y"], index)]
                if self.grad is not None:
                    return _evaluate(self.name, self.grad, params, x, upstream)
                if not all(map(mp.isfinite, [*x, *upstream])):
                    return [mp.nan] * len(x)
                try:
                    return gradient(lambda row: self.exact(row, **params), x, upstream)
                except Untraceable:  # a row without a value, as one of zeros that its norm divides, has no slope either
                    valueless = any(map(mp.isnan, self._row(rows, "y", index, bits)))
                    return [mp.nan] * len(x) if valueless else None

        return rows.cached((result, index, bits), make)

    def _difference(self, rows: Rows, index: int, column: int, prec: int) -> Any:
        """An element of the gradient by a central difference."""
        values = [to_mp(value) for value in rows.data_row("x", index)]
        upstream = [to_mp(value) for value in rows.row(rows.problem.upstream["y"], index)]
        if not all(map(mp.isfinite, [*values, *upstream])):
            return mp.nan

        def product(*moved: Any) -> Any:
            outputs = _evaluate(self.name, self.exact, rows.problem.params, moved)
            return mp.fsum(g * y for g, y in zip(upstream, outputs, strict=True))

        return derivative_at(self.name, product, values, column, prec)

    def _compare(self, rows: Rows, index: int, slopes: list[Any]) -> None:
        """The largest element of a derived gradient by the other route, once for each row."""
        if not all(map(mp.isfinite, slopes)):
            return
        column = max(range(len(slopes)), key=lambda place: abs(slopes[place]))
        if not abs(slopes[column]) > _VANISHED:
            return
        # a small slope is the difference of sums that are not small: without these bits it would be taken for zero
        small = max(0, -magnitude(slopes[column]))
        other = self._difference(rows, index, column, _CHECK_BITS + small)
        with mp_bits(_CHECK_BITS):
            if not abs(slopes[column] - other) <= mp.ldexp(abs(other), -_CHECK_BITS // 2):
                raise TruthError(
                    f"op {self.name!r}: two routes to the gradient disagree at element {column} of a row of "
                    f"{len(slopes)}: {mp.nstr(slopes[column], 12)} by reverse differentiation, "
                    f"{mp.nstr(other, 12)} by a central difference; where exact has no derivative, grad= says what "
                    "is wanted"
                )


def _back(
    x: Tensor,
    params: Params,
    reference: Callable[..., Tensor],
    grad_reference: Callable[..., Tensor] | None,
) -> Callable[[Tensor], Tensor]:
    """The fast gradient at x as a function of the upstream gradient alone."""
    if grad_reference is not None:
        return lambda upstream: grad_reference(x, upstream, **params).detach()
    with torch.enable_grad():
        leaf = x.clone().requires_grad_()
        y = reference(leaf, **params)

    def back(upstream: Tensor) -> Tensor:
        [found] = autograd.gradients([y], [leaf], [upstream], retain=True)
        return torch.zeros_like(leaf) if found is None else found

    return back


def _gradient_scale(value: Tensor, upstream: Tensor, back: Callable[[Tensor], Tensor]) -> Tensor:
    """The sum of |upstream_j dy_j / dx_i| over the row, and at least the largest element of the row's gradient.

    These are the terms of the gradient however the formula is written: those of the formula itself may be of any size
    (a variance as mean(x^2) - mean(x)^2), and would excuse what a better one does not lose. A long row has them in
    groups of columns, whose terms are added before their magnitude is taken: that is a smaller scale, never a larger.
    """
    if not value.numel():
        return value.abs()
    width = value.shape[-1]
    total = torch.zeros_like(value)
    for first in range(min(width, _GROUPS)):
        part = torch.zeros_like(upstream)
        part[..., first::_GROUPS] = upstream[..., first::_GROUPS]
        total += back(part).abs()
    largest = value.abs().amax(-1, keepdim=True).expand_as(value)
    return torch.where(torch.isfinite(total), torch.maximum(total, largest), largest)


def _fast(
    reference: Callable[..., Tensor],
    grad_reference: Callable[..., Tensor] | None,
    scale: Callable[..., Tensor] | None,
) -> Callable[[Problem], dict[str, Fast]]:
    def fast(problem: Problem) -> dict[str, Fast]:
        x = problem.inputs["x"]
        if x is None:
            raise ValueError("operand x is required")
        wide = x.detach().to(torch.float64)
        results = {}
        for result in problem.results:
            if result == "y":
                value = reference(wide, **problem.params).detach()
                size = value if scale is None else scale(wide, **problem.params)
                results[result] = Fast(value, size.abs())
                continue
            upstream = problem.upstream["y"].to(torch.float64)
            back = _back(wide, problem.params, reference, grad_reference)
            value = back(upstream)
            results[result] = Fast(value, _gradient_scale(value, upstream, back))
        return results

    return fast


def _probe(name: str, op: Op) -> Problem:
    """The two formulas must agree on one row, which comes back, so that a slip is found where it is written."""
    row = torch.tensor([[0.5, -0.25, 1.0, 0.125]], dtype=torch.float64)
    problem = Problem({"x": row}, op.resolve({}), {"y": torch.tensor([[1.0, -2.0, 0.5, 3.0]], dtype=torch.float64)})
    fast = op.fast(problem)["y"].value
    if fast.shape != row.shape:
        raise UsageError(
            f"op {name!r}: reference returned shape {tuple(fast.shape)} for shape {(1, 4)}",
            hint="a row-wise op keeps the shape of x",
        )
    for column, point in enumerate(op.points(problem, "y", range(4))):
        exact, got = point.mp(80), float(fast[0, column])
        if mp.isfinite(exact) and not abs(got - exact) <= 1e-6 * (1 + abs(exact)):
            raise UsageError(
                f"op {name!r}: element {column} of the row {row[0].tolist()} is "
                f"{mp.nstr(exact, 12)} by exact, {got:.12g} by reference",
                hint="make both formulas the same function; float64 may differ by 1e-6 at most",
            )
    return problem


def row_op(
    name: str,
    *,
    exact: RowFormula | None = None,
    reference: Callable[..., Tensor],
    grad: RowFormula | None = None,
    grad_reference: Callable[..., Tensor] | None = None,
    scale: Callable[..., Tensor] | None = None,
    params: Params | None = None,
    baseline: Callable[..., Any] | None = None,
    summary: str = "",
    replace: bool = False,
) -> Op:
    """Define and register a row-wise op of one tensor x.

    `exact(row, **params)` maps a list of mpf to a list of the same length, `reference(x, **params)`
    a float64 tensor to one of the same shape. `grad(row, upstream, **params)` and
    `grad_reference(x, upstream, **params)` replace the derived gradients. `scale(x, **params)` is
    the magnitude of the summed terms of y where y cancels; it is |y| when not given. Without `exact`, the program of
    `reference` says what is right, and may have more operands of rows.
    """
    if exact is None:
        rest = {"grad": grad, "grad_reference": grad_reference, "scale": scale, "params": params}
        made = from_program(name, reference, rest, rows=True, baseline=baseline, summary=summary)
        return register(made, replace=replace)
    formulas = _Exact(name, exact, grad)
    defined = rowwise(
        name,
        (Operand("x"),),
        ("y",),
        fast=_fast(reference, grad_reference, scale),
        element=formulas.element,
        baseline=baseline or reference,
        params=params,
        summary=summary,
    )
    problem = _probe(name, defined)
    rows = ("y", "dx") if formulas.traceable(problem) else ("y",)
    return register(dataclasses.replace(defined, whole_rows=rows), replace=replace)


def from_program(
    name: str,
    reference: Callable[..., Any],
    rest: Mapping[str, object],
    *,
    rows: bool = False,
    baseline: Callable[..., Any] | None,
    summary: str,
) -> Op:
    """An op that the program of its reference defines (docs/like.md); `rest` is what only formulas can have."""
    from verify.ops.graph.like import like_op

    if told := [key for key, value in rest.items() if value]:
        raise UsageError(
            f"op {name!r} has no exact=, so that the program of reference= says what is right; received {told[0]}= too",
            hint="exact= in mpmath beside it, or functools.partial(reference, ...) for a parameter",
        )
    try:
        known = inspect.signature(reference).parameters.values()
        names = tuple(each.name for each in known if each.default is each.empty and each.kind is not each.KEYWORD_ONLY)
    except ValueError:  # a function of PyTorch's own that tells nothing of its arguments
        names = ("x",)
    made = like_op(reference, names, shapes=dict.fromkeys(names, "n d") if rows else None, name=name)
    return dataclasses.replace(
        made, name=name, baseline=baseline or made.baseline, summary=summary or "what its PyTorch program denotes"
    )
