"""Completes the declaration of a quantiser: its function, and sizes that its blocks divide."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from verify.errors import UsageError
from verify.truth.quantised.encoding import Encoding


def _itself(x: Any) -> Any:
    return x


def quantiser(
    encoding: Encoding,
    like: Callable[..., Any] | None,
    shapes: Mapping[str, str] | None,
    where: str,
    operands: Iterable[str] | None,
    op: object,
) -> tuple[Encoding, Callable[..., Any], Mapping[str, str], str, Iterable[str] | None]:
    """Returns quantise=, like=, shapes=, where= and operands= of a quantiser.

    Without like= it quantises its one operand, a matrix of m rows and k columns.
    """
    if not isinstance(encoding, Encoding):
        raise UsageError(
            f"quantise= is what verify.quantised(...) returns; received {encoding!r}",
            hint='quantise=verify.quantised("e4m3", block=(1, 32), scale="e8m0")',
        )
    if op is not None:
        raise UsageError(
            f"quantise= is about x, or about the result of like=; received op={op!r} beside it",
            hint="like=FUNCTION computes the result that is quantised",
        )
    if like is not None:
        if shapes is None:
            raise UsageError("quantise= with like= takes shapes=", hint='shapes={"x": "m k"}')
        return replace(encoding, fused=True), like, shapes, where, operands
    rows, columns = encoding.block
    divided = [f"m % {rows} == 0"] * (rows > 1) + [f"k % {columns} == 0"] * (columns > 1)
    divided += ["k % 2 == 0"] * (bool(encoding.packed) and (columns == 0 or columns % 2 == 1))
    sizes = " and ".join([*divided, *([f"({where})"] if where else [])])
    return encoding, _itself, {"x": "m k"}, sizes, ("x",)
