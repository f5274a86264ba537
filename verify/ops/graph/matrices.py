"""Formulas for determinants, inverses and factors of small matrices: sums of products, quotients and roots.

They replace PyTorch's operators while a function is traced. PyTorch exchanges rows, depending on the numbers, which a
program cannot follow. The formulas have a value wherever the function has one. They are slow, and not meant for
computing in floating point.
"""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from verify.errors import UsageError

_MINORS, _STEPS = 8, 64  # most rows of a matrix whose minors are all formed, and of one that is solved row by row


def _rows(x: Tensor, name: str, most: int) -> int:
    """Returns the number of rows. Raises UsageError unless x is square with 1 to `most` rows."""
    if x.ndim < 2 or x.shape[-1] != x.shape[-2] or not 0 < x.shape[-1] <= most:
        raise UsageError(
            f"like= supports {name} of square matrices with up to {most} rows; received the shape {tuple(x.shape)}",
            hint="declare smaller sizes by shapes= or where=",
        )
    return x.shape[-1]


def det(x: Tensor) -> Tensor:
    """Expands along the rows from below: keeps the minors of the last rows for every choice of columns."""
    size = _rows(x, "det", _MINORS)
    made, known = x[..., size - 1, :], list(combinations(range(size), 1))
    for row in reversed(range(size - 1)):
        chosen = list(combinations(range(size), size - row))
        place = {each: at for at, each in enumerate(known)}
        rest = [[place[each[:at] + each[at + 1 :]] for at in range(size - row)] for each in chosen]
        signs = torch.tensor([(-1.0) ** at for at in range(size - row)], dtype=x.dtype, device=x.device)
        columns, others = (torch.tensor(each, device=x.device) for each in (chosen, rest))
        made, known = (x[..., row, :][..., columns] * made[..., others] * signs).sum(-1), chosen
    return made[..., 0]


def inv(x: Tensor) -> Tensor:
    """Divides the cofactors by the determinant."""
    size = _rows(x, "inv", _MINORS)
    if size == 1:
        return 1 / x
    others = torch.tensor([[k for k in range(size) if k != left] for left in range(size)], device=x.device)
    parts = x[..., others, :][..., others].movedim(-2, -3)
    place = torch.arange(size, device=x.device)
    cofactors = det(parts) * (1 - 2 * ((place[:, None] + place) % 2)).to(x.dtype)
    whole = (x[..., 0, :] * cofactors[..., 0, :]).sum(-1)
    return cofactors.mT / whole[..., None, None]


def solve(a: Tensor, b: Tensor, *, left: bool = True) -> Tensor:
    """Multiplies by the inverse, as torch.linalg.solve defines its cases."""
    if b.ndim == 1 or (a.ndim - 1 == b.ndim and b.shape == a.shape[:-1]):
        return (inv(a) @ b.unsqueeze(-1)).squeeze(-1)
    return inv(a) @ b if left else b @ inv(a)


def matrix_power(x: Tensor, n: int) -> Tensor:
    x, n = (inv(x), -n) if n < 0 else (x, n)
    made = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device).expand(x.shape)
    for _ in range(n):
        made = made @ x
    return made


def slogdet(x: Tensor) -> Any:
    value = det(x)
    return torch.return_types.linalg_slogdet((torch.sign(value.detach()), value.abs().log()))  # type: ignore[attr-defined]


def cholesky(x: Tensor, *, upper: bool = False) -> Tensor:
    """Computes the factor column by column.

    As in PyTorch, only the lower triangle of x counts for the value, and the gradient is that of a symmetric matrix.
    """
    size = _rows(x, "cholesky", _STEPS)
    lower = x.mT if upper else x
    both = (x + x.mT) / 2
    x = both + (lower.tril() + lower.tril(-1).mT - both).detach()
    columns: list[Tensor] = []
    for at in range(size):
        rest = x[..., at:, at]
        for column in columns:
            rest = rest - column[..., at:] * column[..., at : at + 1]
        below = rest / rest[..., :1].sqrt()
        columns.append(torch.cat([below.new_zeros((*below.shape[:-1], at)), below], -1))
    made = torch.stack(columns, -1)
    return made.mT if upper else made


def solve_triangular(a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """Substitutes row by row."""
    if not left:
        return solve_triangular(a.mT, b.mT, upper=not upper, unitriangular=unitriangular).mT
    size = _rows(a, "solve_triangular", _STEPS)
    rows: dict[int, Tensor] = {}
    for at in reversed(range(size)) if upper else range(size):
        rest = b[..., at, :]
        for known, row in rows.items():
            rest = rest - a[..., at, known, None] * row
        rows[at] = rest if unitriangular else rest / a[..., at, at, None]
    return torch.stack([rows[at] for at in range(size)], -2)


def cholesky_solve(b: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    lower = factor.mT if upper else factor
    return solve_triangular(lower.mT, solve_triangular(lower, b, upper=False), upper=True)


_NAMED = (det, inv, solve, matrix_power, slogdet, cholesky, solve_triangular, cholesky_solve)
MATRICES: dict[str, Callable[..., Any]] = {each.__name__: each for each in _NAMED}
MATRICES |= {"inverse": inv, "logdet": lambda x: det(x).log()}
