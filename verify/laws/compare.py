"""Compares two runs of one kernel bit by bit, for every law that requires the same bits."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from verify.cases import Case
from verify.laws.law import Broken
from verify.truth import formats
from verify.truth.ulp import bits_of, pattern_at, same_bits


def first_difference(left: Tensor, right: Tensor) -> int | None:
    """Returns the flat index of the first element whose bits differ; None if all agree. NaNs count as equal."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return 0
    both_nan = torch.isnan(left.float()) & torch.isnan(right.float())
    differ = (bits_of(left.detach()) != bits_of(right.detach())) & ~both_nan
    places = torch.nonzero(differ.reshape(-1))
    return int(places[0]) if places.numel() else None


def show(tensor: Tensor, index: int) -> str:
    """Returns one element as text, in decimal and hex."""
    fmt = formats.of(tensor.dtype)
    flat = tensor.detach().reshape(-1)
    if index >= flat.numel():
        return f"shape {tuple(tensor.shape)} {tensor.dtype}"
    pattern = pattern_at(flat, index)
    return f"{fmt.to_float(pattern)!r} ({fmt.hex(pattern)})"


def place(tensor: Tensor, index: int) -> str:
    """Returns the position of a flat index and the shape, as text."""
    position = []
    for size in reversed(tensor.shape):
        index, at = divmod(index, size) if size else (0, 0)
        position.append(at)
    return f"{list(reversed(position))} of shape {list(tensor.shape)}"


def laid(case: Case) -> dict[str, str]:
    """Returns the layouts of operands as a fact of the message, if any is unusual."""
    said = ", ".join(f"{name} {layout}" for name, layout in case.layouts.items())
    return {"layouts": said} if said else {}


def demand_same(
    case: Case,
    got: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    rule: str,
    *,
    labels: tuple[str, str] = ("got", "expected"),
    facts: Mapping[str, str] | None = None,
) -> None:
    """Raises `Broken` with the rule at the first element whose bits differ."""
    if expected.keys() <= got.keys() and same_bits([got[name] for name in expected], list(expected.values())):
        return
    for name, right in expected.items():
        left = got.get(name)
        if left is None:
            raise Broken(f"{name} is missing", case, {"rule": rule, **(facts or {})}, result=name)
        if left.shape != right.shape or left.dtype != right.dtype:
            shapes = {
                labels[0]: f"{left.dtype} {list(left.shape)}",
                labels[1]: f"{right.dtype} {list(right.shape)}",
            }
            raise Broken(rule, case, {**(facts or {}), "at": name, **shapes}, result=name)
        index = first_difference(left, right)
        if index is not None:
            where = {
                "at": f"{name} {place(right, index)}",
                labels[0]: show(left, index),
                labels[1]: show(right, index),
            }
            raise Broken(rule, case, {**(facts or {}), **where}, result=name, index=index)
