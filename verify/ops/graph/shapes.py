"""Reads shapes=, where= and integers=: operands in named dimensions, allowed sizes, and values of integer operands."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from typing import Any, Literal

import torch
from torch import Tensor

from verify.errors import UsageError
from verify.ops.geometry import Geometry, Params, Roles, Shape


@dataclass(frozen=True, repr=False)
class NamedDims(Geometry):
    """The shape of each operand in named dimensions, which `dims` lists in order of appearance.

    If a declaration has examples and no shapes=, there is one dimension, "example": the number of an example.
    """

    table: Mapping[str, tuple[str | int, ...]]  # operand -> names, expressions and numbers
    numbered: tuple[Mapping[str, Shape], ...] = ()  # shapes of each example
    of_results: Callable[[Shape], dict[str, Shape]] | None = None  # returns the shapes of the results; set by the op
    name = "graph"
    named = True

    def __repr__(self) -> str:
        """Returns the declaration as text. It must not change, because the digest in an op's name depends on it."""
        return f"Shapes(table={self.table!r}, dims={self.dims!r}, where={self.where!r}, numbered={self.numbered!r})"

    @staticmethod
    def made(
        names: Sequence[str],
        parameters: Mapping[str, Shape],
        shapes: Mapping[str, str] | None,
        examples: Sequence[Mapping[str, Any]],
        where: str,
    ) -> NamedDims | None:
        """Reads a declaration.

        Returns None if it has no shapes, examples or parameters: the function must then be elementwise. Raises
        UsageError if an operand has no shape or shapes= names an unknown operand.
        """
        if shapes is None and where:
            raise UsageError(
                f"where= is about the dimensions of shapes=; received {where!r} alone",
                hint="shapes={'x': 'n d'} names the dimensions",
            )
        if shapes is None and examples:
            sized = ({n: tuple(v.shape) for n, v in each.items() if isinstance(v, Tensor)} for each in examples)
            numbered = tuple({**parameters, **each} for each in sized)
            every = tuple((number,) for number in range(len(numbered)))
            return NamedDims({}, numbered, dims=("example",), examples=every)
        if shapes is None and not parameters:
            return None
        table: dict[str, tuple[str | int, ...]] = dict(parameters)
        for name, text in (shapes or {}).items():
            if name not in names:
                raise UsageError(
                    f"shapes= names the operand {name!r}; the kernel's operands are {', '.join(names)}",
                    hint="shapes={'x': 'n d'} with the names of the kernel's arguments",
                )
            tokens = text.split() if isinstance(text, str) else [repr(text)]
            table[name] = tuple(int(each) if each.strip("0").isdigit() else _word(name, each) for each in tokens)
        missing = [name for name in names if name not in table]
        if missing:
            raise UsageError(
                f"shapes= has no entry for {', '.join(missing)}",
                hint="one entry for each operand, such as shapes={'x': 'n d', 'weight': 'd'}; '' for a scalar",
            )
        tokens = [token for shape in table.values() for token in shape if isinstance(token, str)]
        dims = tuple(dict.fromkeys(name for token in tokens for name in _named_in(token)))
        if where:
            check(where, dims)
        return NamedDims(table, dims=dims, where=where)

    def __call__(self, dims: Shape) -> dict[str, Shape]:
        """Returns the shape of each operand for these sizes."""
        if self.numbered:
            if len(dims) != 1 or not 0 <= dims[0] < len(self.numbered):
                raise UsageError(f"dims are the number of an example, 0 to {len(self.numbered) - 1}; received {dims}")
            return dict(self.numbered[dims[0]])
        if len(dims) != len(self.dims):
            raise UsageError(
                f"dims are ({', '.join(self.dims)}), {len(self.dims)} sizes; received {tuple(dims)}",
                hint="in the order in which shapes= names them",
            )
        return {name: self.sizes_of(shape, dims) for name, shape in self.table.items()}

    def sizes_of(self, tokens: tuple[str | int, ...], dims: Shape) -> Shape:
        """Returns the shape that names, expressions and numbers denote for these sizes."""
        sizes = dict(zip(self.dims, dims, strict=True))
        return tuple(_size(each, sizes) if isinstance(each, str) else each for each in tokens)

    def within_expression(self, dimension: str) -> bool:
        """True if the shape of some operand has this dimension in an expression, as in (n+127)//128."""
        tokens = {token for shape in self.table.values() for token in shape if isinstance(token, str)}
        return any(dimension in _named_in(token) for token in tokens - {dimension})

    def dims_of_shapes(self, shapes: Mapping[str, Shape]) -> Shape:
        """Returns the sizes of the dimensions, given the shapes of operands.

        A dimension that occurs only inside expressions gets 1.
        """
        found = {
            token: size
            for name, tokens in self.table.items()
            for token, size in zip(tokens, shapes.get(name, ()), strict=False)
        }
        return tuple(found.get(name, 1) for name in self.dims)

    def shapes(self, op: str, roles: Roles, dims: Shape, params: Params) -> dict[str, Shape]:
        return self(dims)

    def results(self, outputs: Sequence[str], dims: Shape, params: Params) -> dict[str, Shape]:
        assert self.of_results is not None
        return self.of_results(dims)

    def with_ranges(self, ranges: Mapping[str, Range]) -> NamedDims:
        """Returns the same declaration, with the conditions on sizes that structures of integer operands need."""
        parts = [f"({self.where})"] if self.where else []
        for name, each in ranges.items():
            tokens = [f"({token})" for token in self.table.get(name, ())]
            parts += [part for part in [each.implied(" * ".join(tokens) or "1")] if part]
        return replace(self, where=" and ".join(parts) if len(parts) > bool(self.where) else self.where)

    def allows(self, dims: Shape) -> bool:
        """True if the declaration allows these sizes."""
        return bool(self.numbered) or holds(self.where, dict(zip(self.dims, dims, strict=True)))


def _word(operand: str, token: str) -> str:
    """Returns the token unchanged if it is a name of a dimension or an expression of such names.

    Raises UsageError if it is neither.
    """
    try:
        names = _named_in(token)
        _size(token, dict.fromkeys(names, 1))
    except (SyntaxError, UsageError):
        names = []
    if not names:
        raise UsageError(
            f"shapes={{{operand!r}: ...}} is made of names of dimensions, of numbers, and of expressions of both "
            f"without spaces; received {token!r}",
            hint="shapes={'query': 'b h s d', 'weight': '3 d', 'offsets': 'b+1'}",
        )
    return token


def _named_in(token: str) -> list[str]:
    """Lists the names of dimensions in an expression, in their order."""
    if token.isidentifier():
        return [token]
    nodes = [node for node in ast.walk(_parsed(token)) if isinstance(node, ast.Name)]
    return [node.id for node in sorted(nodes, key=lambda node: node.col_offset)]


@lru_cache
def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _size(token: str, sizes: Mapping[str, int]) -> int:
    """Evaluates the name of a dimension, or an expression of such names."""
    return sizes[token] if token in sizes else int(value_of(_parsed(token), sizes))


_OPERATIONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b if b else 0,
    ast.Mod: lambda a, b: a % b if b else 0,
    ast.Pow: lambda a, b: a**b if 0 <= b < 64 else 0,
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}


def _true(value: Any, wanted: bool = True) -> Any:
    """Returns if a number is (not) 0: a bool, or a tensor of them."""
    return (value != 0) == wanted


def value_of(node: ast.AST, sizes: Mapping[str, Any]) -> Any:
    """Evaluates an expression of sizes, tensors of integers, and numbers. Raises UsageError if it has anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name) and node.id in sizes:
        return sizes[node.id]
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return [value_of(each, sizes) for each in node.elts]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](value_of(node.left, sizes), value_of(node.right, sizes))
    if isinstance(node, ast.UnaryOp):
        inner = value_of(node.operand, sizes)
        return _true(inner, False) if isinstance(node.op, ast.Not) else -inner
    if isinstance(node, ast.BoolOp):
        parts = [_true(value_of(each, sizes)) for each in node.values]
        return reduce(operator.and_ if isinstance(node.op, ast.And) else operator.or_, parts)
    if isinstance(node, ast.Compare) and all(type(each) in _OPERATIONS for each in node.ops):
        line = [value_of(each, sizes) for each in (node.left, *node.comparators)]
        pairs = zip(node.ops, line[:-1], line[1:], strict=True)
        return reduce(operator.and_, (_OPERATIONS[type(o)](a, b) for o, a, b in pairs))
    raise UsageError(
        f"an expression of sizes has names of dimensions ({', '.join(sizes) or 'none'}), whole numbers, + - * // % **, "
        f"comparisons, in, and, or, not; received {ast.unparse(node)!r}",
        hint="where='d % 16 == 0 and d <= 4096'",
    )


def holds(where: str, sizes: Mapping[str, int]) -> bool:
    """True if a condition holds for these sizes. An empty condition always holds."""
    return not where or bool(value_of(_parsed(where), sizes))


def numbers_in(where: str) -> set[int]:
    """Returns the integers that occur in a condition."""
    nodes = ast.walk(_parsed(where)) if where else ()
    return {node.value for node in nodes if isinstance(node, ast.Constant) and type(node.value) is int}


def check(text: str, dims: Sequence[str]) -> ast.expr:
    """Parses a condition. Raises UsageError with the allowed parts if it is none."""
    try:
        body = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise UsageError(
            f"{text!r} is not an expression: {error.msg}", hint="where='d % 16 == 0 and d <= 4096'"
        ) from None
    value_of(body, dict.fromkeys(dims, 1))
    return body


Structure = Literal["", "permutation", "distinct", "sum"]


@dataclass(frozen=True, repr=False)
class Range:
    """The values of an integer operand: low <= value < high, where both are expressions of sizes.

    `structure` is a condition on all elements together:

    - "permutation": each row holds the numbers from 0 on, each once, in any order;
    - "distinct": no two elements are equal;
    - "sum": the elements add up to `total`.
    """

    low: ast.expr
    high: ast.expr
    dims: tuple[str, ...]  # names of the dimensions
    boolean: bool = False  # True: the operand is booleans
    structure: Structure = ""
    total: ast.expr | None = None

    @staticmethod
    def of(dtype: torch.dtype, dims: tuple[str, ...] = (), low: int = -(2**62), high: int = 2**62) -> Range:
        """Returns the range from `low` to `high` of an integer dtype, or that of both booleans."""
        boolean = dtype == torch.bool
        low, high = (0, 2) if boolean else (low, high)
        return Range(ast.Constant(low), ast.Constant(high), dims, boolean)

    def __repr__(self) -> str:
        """Returns a text that is the same in every process, because the digest in an op's name depends on it."""
        text = f"Range({ast.unparse(self.low)}, {ast.unparse(self.high)}, {self.dims}, {self.boolean}"
        if self.structure:
            text += f", {self.structure}" + (f" {ast.unparse(self.total)}" if self.total else "")
        return text + ")"

    def __call__(self, dims: Shape) -> tuple[int, int]:
        """Returns `low` and `high` for these sizes."""
        sizes = self._sizes(dims)
        return int(value_of(self.low, sizes)), int(value_of(self.high, sizes))

    def _sizes(self, dims: Shape) -> dict[str, int]:
        return dict(zip(self.dims, dims, strict=True)) if len(dims) == len(self.dims) else {}

    def arranged(self, values: Tensor, dims: Shape) -> Tensor:
        """Returns the values with the least changes that give them the structure.

        Use it after values are drawn, and after an operand is cut.
        """
        if not self.structure or not values.numel():
            return values
        kind, values = values.dtype, values.long()
        low, high = self(dims)
        if self.structure == "sum":
            assert self.total is not None
            total = int(value_of(self.total, self._sizes(dims)))
            summing = _summing(values.reshape(-1).clamp(low, high - 1), low, high - 1, total)
            return summing.reshape(values.shape).to(kind)
        rows = values.reshape(-1, values.shape[-1]) if self.structure == "permutation" else values.reshape(1, -1)
        return _distinct(rows, low, high).reshape(values.shape).to(kind)

    def implied(self, count: str) -> str:
        """Returns the condition on sizes that `count` elements need to have the structure; "" if there is none."""
        low, high = ast.unparse(self.low), ast.unparse(self.high)
        if self.total is not None:
            total = ast.unparse(self.total)
            return f"({low}) * {count} <= {total} and {total} <= ({high} - 1) * {count}"
        return f"{count} <= {high}" if self.structure == "distinct" else ""


def _distinct(rows: Tensor, low: int, high: int) -> Tensor:
    """Makes the numbers of each row distinct and keeps their order: low <= number < high."""
    order = rows.argsort(dim=-1, stable=True)
    steps = torch.arange(rows.shape[-1], device=rows.device)
    rising = (rows.gather(-1, order) - steps).cummax(-1).values + steps
    rising = torch.minimum(rising.clamp(min=low), high - rows.shape[-1] + steps)
    return torch.empty_like(rows).scatter_(-1, order, (rising - steps).cummax(-1).values + steps)


def _summing(values: Tensor, low: int, most: int, total: int) -> Tensor:
    """Changes numbers so that they add up to `total`, each from `low` to `most`.

    Scales all in proportion, and adds the rest to the first ones.
    """
    free, wanted = values - low, total - low * values.numel()
    given = int(free.sum())
    if given == wanted:
        return values
    if given:
        free = (free * wanted // given).clamp(0, most - low)
    missing = wanted - int(free.sum())  # the part lost by flooring and clamping
    room = most - low - free
    before = room.cumsum(0) - room
    return low + free + torch.minimum(room, (missing - before).clamp(min=0))


def ranges_of(
    names: Sequence[str], integers: Mapping[str, str], shapes: NamedDims | None, examples: Sequence[Mapping[str, Any]]
) -> dict[str, Range]:
    """Reads integers=, and finds the ranges of the integers in examples. Raises UsageError if integers= is wrong."""
    dims = shapes.dims if shapes is not None else ()
    found: dict[str, Range] = {}
    for name, text in integers.items():
        if name not in names:
            raise UsageError(
                f"integers= names the operand {name!r}; the kernel's operands are {', '.join(names)}",
                hint="integers={'label': '0 <= label < v'}",
            )
        if text == "bool":
            found[name] = Range.of(torch.bool, dims)
            continue
        kind, _, rest = text.partition(" ") if isinstance(text, str) else ("", "", "")
        if kind in ("permutation", "distinct"):
            high = check(rest, dims)
            if kind == "permutation" and shapes is not None and rest.strip() != str((*shapes.table[name], "")[-2]):
                raise UsageError(
                    f"integers={{{name!r}: {text!r}}}: a permutation has the size of the last dimension; the shape "
                    f"is {' '.join(map(str, shapes.table[name])) or 'of a scalar'!r}",
                    hint="shapes={'p': 'n'}, integers={'p': 'permutation n'}",
                )
            found[name] = Range(ast.Constant(0), high, dims, structure=kind)  # type: ignore[arg-type]
            continue
        found[name] = _bounded(name, text, dims)
    for each in examples:
        for name, value in each.items():
            if isinstance(value, Tensor) and not value.is_floating_point() and name not in found:
                ends = () if value.dtype == torch.bool else (int(value.min()), int(value.max()) + 1)
                found[name] = Range.of(value.dtype, dims, *ends)
    return found


def _bounded(name: str, text: Any, dims: tuple[str, ...]) -> Range:
    """Reads `low <= name < high`, or the same followed by `, sum t` if the elements add up to t."""
    bounds, comma, rest = text.partition(",") if isinstance(text, str) else ("", "", "")
    body = check(bounds, (*dims, name)) if bounds else None
    total = check(rest.strip().removeprefix("sum "), dims) if rest.strip().startswith("sum ") else None
    form = isinstance(body, ast.Compare) and len(body.ops) == 2 and ast.unparse(body.comparators[0]) == name
    if not form or (comma and total is None) or not all(isinstance(each, ast.Lt | ast.LtE) for each in body.ops):  # type: ignore[union-attr]
        raise UsageError(
            f"integers={{{name!r}: ...}} has the form low <= {name} < high; received {text!r}",
            hint=f"integers={{{name!r}: '0 <= {name} < v'}}, '0 <= {name} <= t, sum t', 'permutation n' or 'bool'",
        )
    assert isinstance(body, ast.Compare)
    one: ast.expr = ast.Constant(1)
    low = body.left if isinstance(body.ops[0], ast.LtE) else ast.BinOp(body.left, ast.Add(), one)
    high = body.comparators[1]
    high = high if isinstance(body.ops[1], ast.Lt) else ast.BinOp(high, ast.Add(), one)
    return Range(low, high, dims, structure="sum" if total is not None else "", total=total)


_STARTS = (3, 5, 2, 4, 7, 8, 16, 32, 64, 128, 1, 256, 512, 1024, 2048, 4096)  # sizes in the order of trying
_TRIES = 200_000  # most combinations of sizes that are all tried


@dataclass(frozen=True)
class Related:
    """The dimensions that a condition leaves free, and the others as functions of these.

    For example, `a == b` makes two dimensions one, and `d == 2 * e` determines d.
    """

    names: tuple[str, ...]
    parts: tuple[ast.expr, ...]  # the conditions that `and` joins
    group: Mapping[str, str]  # dimension -> first dimension that it equals
    expressions: Mapping[str, ast.expr]  # dimension -> expression of other dimensions that determines it

    @staticmethod
    def by(names: Sequence[str], where: str) -> Related:
        """Reads a condition."""
        parts = _conjuncts(where)
        group = {name: name for name in names}
        expressions: dict[str, ast.expr] = {}
        for part in parts:
            if isinstance(part, ast.Compare) and isinstance(part.ops[0], ast.Eq) and len(part.ops) == 1:
                ends = (part.left, part.comparators[0])
                if all(isinstance(end, ast.Name) and end.id in group for end in ends):
                    first, second = (group[end.id] for end in ends)  # type: ignore[attr-defined]
                    group = {name: first if root == second else root for name, root in group.items()}
                elif (
                    isinstance(ends[0], ast.Name)
                    and names_in(ends[1])
                    and not {ends[0].id, *expressions} & names_in(ends[1])
                ):
                    expressions.setdefault(ends[0].id, ends[1])
        expressions = {name: body for name, body in expressions.items() if list(group.values()).count(group[name]) == 1}
        return Related(tuple(names), tuple(parts), group, expressions)

    @property
    def roots(self) -> tuple[str, ...]:
        """The dimensions with free sizes, in order."""
        return tuple(dict.fromkeys(root for name, root in self.group.items() if name not in self.expressions))

    def fits(self, root: str, size: int) -> bool:
        """True if the conditions on this dimension alone allow the size."""
        return all(value_of(part, {root: size}) for part in self.parts if names_in(part) == {root})

    def dims(self, size: Mapping[str, int]) -> Shape:
        """Returns the sizes of all dimensions, given the sizes of the roots."""
        sizes = {name: size[self.group[name]] for name in self.names if name not in self.expressions}
        return tuple(
            sizes[name] if name in sizes else int(value_of(self.expressions[name], sizes)) for name in self.names
        )

    def starts(self) -> tuple[int, ...]:
        """Returns sizes to try: the usual ones, numbers in the condition, and multiples of each modulus."""
        nodes = [node for part in self.parts for node in ast.walk(part)]
        named = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, int)}
        moduli = [node.right for node in nodes if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)]
        named |= {
            times * node.value
            for node in moduli
            if isinstance(node, ast.Constant) and isinstance(node.value, int)
            for times in (2, 3, 4, 8)
        }
        return (*_STARTS, *sorted(each for each in named if each > 0 and each not in _STARTS))


def sizes_within(declared: Geometry, elements: int) -> Iterable[Shape]:
    """Yields sizes of the named dimensions that a declaration allows, at most `elements` squared in product.

    The first ones are small, not powers of two, and differ between dimensions.
    """
    related = Related.by(declared.dims, declared.where)
    roots, starts = related.roots, related.starts()
    choices = []
    for place, root in enumerate(roots):
        turned = starts[place % 3 :] + starts[: place % 3]
        choices.append([size for size in turned if related.fits(root, size)])
    if not all(choices):
        return
    widths = tuple(map(len, choices))
    found = False
    for places in _orders(widths):
        if places is None:
            if found:
                return
            continue
        dims = related.dims(
            {root: choices[n][place] for n, (root, place) in enumerate(zip(roots, places, strict=True))}
        )
        if 0 < math.prod(dims) <= max(elements, 1) ** 2 and declared.allows(dims):
            found = True
            yield dims


_NEAR = 512  # number of sizes tried from a wanted size upwards


def sizes_alone(declared: Geometry, base: Shape, wanted: Sequence[int]) -> Iterable[tuple[str, list[Shape]]]:
    """Yields, for each free dimension, sizes where it alone is large and the others are as in `base`.

    For each wanted number, this is the first allowed size from there upwards, or else the largest allowed size below
    it, down to the previous wanted number. If the condition does not allow one dimension alone to be large, the others
    grow with it.
    """
    related = Related.by(declared.dims, declared.where)
    small = declared.sizes_by_name(base)
    small = {root: small[root] for root in related.roots}

    def fitting(root: str, size: int) -> Shape | None:
        """Returns dims with this size of a root, alone if possible, else with the others; None if none are allowed."""
        if not related.fits(root, size):
            return None
        together = {each: size if related.fits(each, size) else least for each, least in small.items()}
        for sizes in (small | {root: size}, together):
            dims = related.dims(sizes)
            if min(dims) > 0 and declared.allows(dims):
                return dims
        return None

    for root in related.roots:
        found: dict[Shape, None] = {}
        before = small[root]
        for size in wanted:
            near = (*range(size, size + _NEAR), *range(size - 1, before, -1))
            dims = next((dims for each in near if (dims := fitting(root, each)) is not None), None)
            if dims is None:
                break
            found[dims] = None
            before = size
        yield root, list(found)


def names_in(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _orders(widths: Sequence[int]) -> Iterable[tuple[int, ...] | None]:
    """Yields combinations of positions in the lists of choices, those with small positions first.

    If there are too many, yields a selection, then None, then more. The caller stops at None if a combination fitted.
    """
    if math.prod(widths) > _TRIES:
        yield from _few(widths)
        yield None
        few = int(_TRIES ** (1 / len(widths)))
        widths = [min(width, few) for width in widths]
    for total in range(sum(widths) - len(widths) + 1):
        yield from _adding_up(widths, total)


def _adding_up(widths: Sequence[int], total: int) -> Iterable[tuple[int, ...]]:
    """Yields the combinations of positions with this sum, in lexicographic order."""
    if len(widths) < 2:
        yield (total,) * len(widths)
        return
    most = sum(widths[1:]) - len(widths) + 1  # that the others add up to
    for first in range(max(0, total - most), min(widths[0], total + 1)):
        for others in _adding_up(widths[1:], total - first):
            yield first, *others


def _conjuncts(text: str) -> list[ast.expr]:
    """Splits a condition into the parts that `and` joins."""
    pending, found = [ast.parse(text, mode="eval").body] if text else [], []
    while pending:
        part = pending.pop(0)
        if isinstance(part, ast.BoolOp) and isinstance(part.op, ast.And):
            pending = [*part.values, *pending]
        else:
            found.append(part)
    return found


def _few(widths: Sequence[int]) -> Iterable[tuple[int, ...]]:
    """Yields combinations of positions that are all equal but for one."""
    for base in range(max(widths)):
        common = tuple(min(base, width - 1) for width in widths)
        yield common
        for place, width in enumerate(widths):
            for other in range(width):
                if other != common[place]:
                    yield (*common[:place], other, *common[place + 1 :])
