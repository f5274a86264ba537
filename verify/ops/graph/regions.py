"""Reads valid=: the parts of results and operands that count, as conditions on indices and on integer operands.

A kernel receives NaN outside of an operand's region, and the definition 0. What a kernel returns outside of a result's
region, or as a gradient outside of an operand's, is replaced by 0 before anything reads it, and so is the definition's.
"""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from verify.errors import UsageError
from verify.ops.geometry import Shape
from verify.ops.graph.shapes import NamedDims, Range, names_in, value_of

Tokens = tuple[str | int, ...]  # the dimensions of a tensor, as in shapes=


@dataclass(frozen=True)
class Region:
    """The part of one tensor that counts."""

    text: str
    body: ast.expr
    dims: Tokens
    by: Mapping[str, Tokens]  # the integer operands of the condition, with the dimensions that they vary along

    def outside(self, value: Tensor, given: Mapping[str, Tensor | None]) -> Tensor | None:
        """Returns the mask of the rest; None if all counts: an operand is absent or the shape is wrong."""
        found: dict[str, Any] = {}
        if len(self.dims) != value.ndim:
            return None
        for name, own in self.by.items():
            operand, axes = given.get(name), [self.dims.index(each) for each in own]
            if operand is None or list(operand.shape) != [value.shape[axis] for axis in axes]:
                return None
            lined = operand.permute(sorted(range(len(axes)), key=axes.__getitem__))
            shape = [size if axis in axes else 1 for axis, size in enumerate(value.shape)]
            found[name] = lined.reshape(shape).to(value.device)
        for axis, each in enumerate(self.dims):
            shape = [-1 if other == axis else 1 for other in range(value.ndim)]
            found[str(each)] = torch.arange(value.shape[axis], device=value.device).reshape(shape)
        return torch.logical_not(value_of(self.body, found)).expand(value.shape)


@dataclass(frozen=True)
class Regions:
    """The regions of a declaration, by operand and result. A gradient has the region of its operand."""

    operands: Mapping[str, Region]
    results: Mapping[str, Region]

    @property
    def words(self) -> str:
        """Describes the regions in one line."""
        return ", ".join(f"{name} where {each.text}" for name, each in {**self.operands, **self.results}.items())

    def demand_shapes(self, table: NamedDims, dims: Shape, shapes: Mapping[str, Shape]) -> None:
        """Raises UsageError unless each region of a result has the shape of that result for these sizes."""
        for name, each in self.results.items():
            if name not in shapes:
                raise UsageError(
                    f"valid= names operands and results, {', '.join((*table.table, *shapes))}; received {name!r}",
                    hint="outputs=['y'] names the results of like=",
                )
            if table.sizes_of(each.dims, dims) != shapes[name]:
                raise UsageError(
                    f"valid={{{name!r}: ...}} is about {' '.join(map(str, each.dims))}, which for the sizes {dims} is "
                    f"the shape {table.sizes_of(each.dims, dims)}; like= returns {shapes[name]}",
                    hint=f"valid={{{name!r}: 'b s d: s < lengths'}} names the dimensions of the result",
                )

    def outside(self, name: str, value: Tensor, given: Mapping[str, Tensor | None]) -> Tensor | None:
        """Returns the mask of what does not count of a result or a gradient; None if all counts."""
        region = self.results.get(name) or self.operands.get(name.removeprefix("d"))
        return None if region is None else region.outside(value, given)

    def cut(self, results: Mapping[str, Tensor], given: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
        """Returns results with 0 outside of their regions, where no gradient arrives either."""
        return {name: zeroed(value, self.outside(name, value, given)) for name, value in results.items()}

    def zeroed(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns operands with 0 outside of their regions, as the definition receives them."""
        masks = {name: each.outside(given[name], given) for name, each in self.operands.items() if name in given}
        return {name: zeroed(value, masks.get(name)) for name, value in given.items()}

    def limit_gradient(self, name: str, leaf: Tensor, given: Mapping[str, Tensor | None]) -> None:
        """Replaces the gradient that arrives at an operand by 0 outside of the operand's region."""
        mask = self.operands[name].outside(leaf, given) if name in self.operands else None
        if mask is not None:
            leaf.register_hook(lambda gradient: zeroed(gradient, mask))  # type: ignore[no-untyped-call]


def zeroed(value: Tensor, mask: Tensor | None) -> Tensor:
    """Returns a tensor with 0 where the mask is true; None: nowhere."""
    return value if mask is None else torch.where(mask, torch.zeros((), dtype=value.dtype, device=value.device), value)


def regions_of(
    valid: Mapping[str, str] | None, table: NamedDims | None, ranges: Mapping[str, Range], sources: set[str]
) -> Regions | None:
    """Reads valid=. `sources` are the operands that others are derived from. Raises UsageError if it is wrong."""
    if not valid:
        return None
    if table is None or table.numbered:
        raise UsageError(
            f"valid= is about the dimensions of shapes=; received {valid!r} without shapes=",
            hint="shapes={'x': 'b s d', 'lengths': 'b'}, valid={'y': 's < lengths'}",
        )
    for name in valid:
        if name in ranges or name in sources:
            raise UsageError(
                "valid= is about results, and about floating-point operands that no other operand is derived from; "
                f"received {name!r}",
                hint="valid={'x': 's < lengths', 'y': 's < lengths'}",
            )
    found = {name: _region(name, text, table.table, ranges) for name, text in valid.items()}
    return Regions(
        {name: each for name, each in found.items() if name in table.table},
        {name: each for name, each in found.items() if name not in table.table},
    )


def _region(name: str, text: Any, table: Mapping[str, Tokens], ranges: Mapping[str, Range]) -> Region:
    """Reads one region. A result whose dimensions are not named has those of the first operand with all indices."""
    named, _, condition = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    dims, whole = tuple[str | int, ...](named.split()), {each: table[each] for each in table if each in ranges}
    why = ""
    try:
        body = ast.parse(condition.strip(), mode="eval").body
        used = names_in(body)
        by = {each: whole[each] for each in whole if each in used}
        indices = (used - by.keys()) | {str(each) for own in by.values() for each in own}
        alike = [own for each, own in table.items() if each not in whole and indices <= {*map(str, own)}]
        dims = dims or table.get(name) or (alike[0] if alike else ())
        if all(dims.count(each) == 1 for each in indices):
            truths = {each for each in by if ranges[each].boolean}
            numbers = torch.arange(2)
            mask = value_of(body, {each: numbers > 0 if each in truths else numbers for each in used})
            if isinstance(mask, Tensor) and mask.dtype == torch.bool:
                return Region(text, body, dims, by)
    except (SyntaxError, UsageError, RuntimeError, TypeError) as error:
        why = f": {str(error).splitlines()[0]}" if isinstance(error, SyntaxError) else ""
    raise UsageError(
        f"valid={{{name!r}: ...}} is a condition on indices of {name}"
        f" ({' '.join(map(str, dims)) or 'no operand has these dimensions'}) and on integer operands along these "
        f"dimensions ({', '.join(whole) or 'none'}); received {text!r}{why}",
        hint="valid={'y': 's < lengths'}; 'b s d: s < lengths' names the dimensions of a result",
    )
