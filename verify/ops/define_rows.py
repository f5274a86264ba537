"""`verify.row_op`: defines a row-wise op from one mpmath formula and one torch formula.

    verify.row_op(
        "l2_normalize",
        exact=lambda row: [v / mp.sqrt(mp.fsum(u * u for u in row)) for v in row],
        reference=lambda x: x / x.square().sum(-1, keepdim=True).sqrt(),
    )

The exact gradient of element i is the derivative of <upstream, exact(row)> along i, a central
difference at raised precision, unless `grad(row, upstream)` gives the row of gradients; the fast
one comes from autograd in float64 through `reference`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from mpmath import mp
from torch import Tensor

from verify.errors import UsageError
from verify.ops.elements import to_mp
from verify.ops.numeric import derivative_at, settle, to_real
from verify.ops.op import Fast, Op, Operand, Params, Point, Problem
from verify.ops.precision import mp_bits
from verify.ops.registry import register
from verify.ops.rowwise import Rows, rowwise

RowFormula = Callable[..., Any]


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


def _element(name: str, exact: RowFormula, grad: RowFormula | None) -> Callable[[Rows, str, int, int], Point]:
    def whole(rows: Rows, key: str, formula: RowFormula, index: int, bits: int) -> list[Any]:
        """All elements of one row at a working precision of `bits`; a row is evaluated once."""

        def make() -> list[Any]:
            arguments = [[to_mp(value) for value in rows.data_row("x", index)]]
            if key == "grad":
                upstream = rows.row(rows.problem.upstream["y"], index)
                arguments.append([to_mp(value) for value in upstream])
            with mp_bits(bits):
                return _evaluate(name, formula, rows.problem.params, *arguments)

        values: list[Any] = rows.cached((key, index, bits), make)
        return values

    def numeric(rows: Rows, index: int, column: int, prec: int) -> Any:
        values = [to_mp(value) for value in rows.data_row("x", index)]
        upstream = [to_mp(value) for value in rows.row(rows.problem.upstream["y"], index)]
        if not all(map(mp.isfinite, [*values, *upstream])):
            return mp.nan

        def product(*moved: Any) -> Any:
            outputs = _evaluate(name, exact, rows.problem.params, moved)
            return mp.fsum(g * y for g, y in zip(upstream, outputs, strict=True))

        return derivative_at(name, product, values, column, prec)

    def element(rows: Rows, result: str, index: int, column: int) -> Point:
        def by_mp(prec: int) -> Any:
            if result == "dx" and grad is None:
                return numeric(rows, index, column, prec)
            key, formula = ("y", exact) if result == "y" else ("grad", grad)
            assert formula is not None
            chosen = formula
            return settle(name, lambda bits: whole(rows, key, chosen, index, bits)[column], prec)

        return Point(mp=by_mp)

    return element


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
            if grad_reference is not None:
                value = grad_reference(wide, upstream, **problem.params).detach()
            else:
                with torch.enable_grad():
                    leaf = wide.clone().requires_grad_()
                    y = reference(leaf, **problem.params)
                    value = torch.autograd.grad(y, leaf, upstream, materialize_grads=True)[0]
            # Nothing is known of the terms: the size of the row's gradient stands for them.
            size = value.abs()
            if value.numel():
                size = size.amax(-1, keepdim=True).expand_as(value)
            results[result] = Fast(value, size)
        return results

    return fast


def _probe(name: str, op: Op) -> None:
    """The two formulas must agree on one row, so that a slip is found where it is written."""
    row = torch.tensor([[0.5, -0.25, 1.0, 0.125]], dtype=torch.float64)
    problem = Problem({"x": row}, op.resolve({}))
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


def row_op(
    name: str,
    *,
    exact: RowFormula,
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
    the magnitude of the summed terms of y where y cancels; it is |y| when not given.
    """
    defined = rowwise(
        name,
        (Operand("x"),),
        ("y",),
        fast=_fast(reference, grad_reference, scale),
        element=_element(name, exact, grad),
        baseline=baseline or reference,
        params=params,
        summary=summary,
    )
    _probe(name, defined)
    return register(defined, replace=replace)
