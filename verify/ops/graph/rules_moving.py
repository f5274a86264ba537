"""Rewrites operators that move elements, or make constants, to steps."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from verify.errors import UsageError
from verify.ops.graph.elementwise import Map, stays_whole
from verify.ops.graph.inference import broadcast_shape, picked_shape
from verify.ops.graph.reducing import Spread
from verify.ops.graph.rewrite import (
    RULES,
    Rewriter,
    condition_of,
    constant,
    filled,
    is_integer,
    lies_as,
    moved,
    name_of,
    range_of,
    rule,
    steps_in,
    through_moves,
    viewed,
)
from verify.ops.graph.selecting import First, Order, Positioned, ToOrder
from verify.ops.graph.steps import Move, Plain, Step

_aten = torch.ops.aten


@rule("view", "permute", "expand", "slice", "select", "unsqueeze", "squeeze", "diagonal", "unfold")
def _view(r: Rewriter, a: Step, *args: Any, **kwargs: Any) -> Step:
    name, overload = name_of(r).removesuffix("_copy"), r.node.target._overloadname
    if overload == "dtype":
        raise UsageError(
            f"like= computes with real numbers, which have no bits; {r.node.target} reads bits{r.node.place}",
            hint="x.to(dtype) converts the numbers",
        )
    if name == "view":
        shape = r.shape
        return moved(a, lambda tensor: tensor.reshape(shape))
    call = getattr(getattr(_aten, name), overload)
    return moved(a, lambda tensor: call(tensor, *args, **kwargs))


@rule("as_strided")
def _as_strided(r: Rewriter, a: Step, size: list[int], stride: list[int], offset: int | None = None) -> Step:
    def view(tensor: Tensor) -> Tensor:
        tensor = tensor.contiguous()  # the recorder reads memory through a node with its elements in memory order
        return tensor.as_strided(size, stride, tensor.storage_offset() + (offset or 0))

    return moved(a, view)


@rule("as_strided_scatter")
def _as_strided_scatter(
    r: Rewriter, a: Step, b: Step, size: list[int], stride: list[int], offset: int | None = None
) -> Step:
    def move(parts: list[Tensor], fixed: list[Tensor], fill: float) -> Tensor:
        made = parts[0].clone(memory_format=torch.contiguous_format)
        made.as_strided(size, stride, offset or 0).copy_(parts[1])
        return made

    both = r.alike(a, b)
    return Move(r.shape, both, both[0].real, move=move, within=True)


_COPIES = ("alias", "clone", "copy_strided", "detach", "lift_fresh", "lift")
RULES |= dict.fromkeys(_COPIES, lambda r, a, *args, **kwargs: a)
RULES["_to_copy"] = lambda r, a, *args, **kwargs: _converted(r, a, r.dtype(0))
RULES["copy"] = lambda r, a, b, *args: moved(_converted(r, b, r.dtype(1)), lambda tensor: tensor.expand(a.shape))


@rule("split_with_sizes", "split", "unbind")
def _parts(r: Rewriter, a: Step, *args: Any, **kwargs: Any) -> list[Step]:
    call = getattr(getattr(_aten, name_of(r).removesuffix("_copy")), r.node.target._overloadname)
    count = len(r.node.value)
    return [moved(a, lambda tensor, n=n: call(tensor, *args, **kwargs)[n]) for n in range(count)]  # type: ignore[misc]


@rule("cat")
def _cat(r: Rewriter, tensors: list[Step], dim: int = 0) -> Step:
    joined = r.alike(*([each for each in tensors if each.shape != (0,)] or tensors[:1]))
    kept = dim % max(len(r.shape), 1)
    move = lambda parts, by, fill: torch.cat(parts, dim)  # noqa: E731
    return Move(r.shape, joined, joined[0].real, move=move, kept=kept, after=max(len(r.shape) - kept - 1, 0))


@rule("flip", "repeat")
def _copied(r: Rewriter, a: Step, sizes: list[int]) -> Step:
    call: Any = r.node.target
    # the leading dimensions that the operator leaves alone
    kept = min((dim % len(a.shape) for dim in sizes), default=0) if name_of(r) == "flip" else 0
    return Move(r.shape, (a,), a.real, move=lambda parts, fixed, fill: call(parts[0], sizes), kept=kept)


@rule("constant_pad_nd")
def _pad(r: Rewriter, a: Step, pads: list[int], value: float = 0.0) -> Step:
    def move(parts: list[Tensor], fixed: list[Tensor], fill: float) -> Tensor:
        return torch.nn.functional.pad(parts[0], pads, value=fill)

    after = next((at for at in range(len(pads) // 2) if any(pads[2 * at : 2 * at + 2])), 0)
    kept = len(a.shape) - len(pads) // 2
    return Move(r.shape, (a,), a.real, move=move, fill=float(value), kept=kept, after=after)


@rule("gather", "index_select", "embedding", "index")
def _gather(r: Rewriter, a: Step, *args: Any, **kwargs: Any) -> Step:
    call: Any = r.node.target
    fixed = steps_in(list(args))
    name = name_of(r)

    def move(parts: list[Tensor], by: list[Tensor], fill: float) -> Tensor:
        used = filled(list(args), iter(by))
        result: Tensor = parts[0][used[0]] if name == "embedding" else call(parts[0], *used)
        return result

    kept = int(args[0]) % max(len(a.shape), 1) if name == "index_select" else 0
    after = len(a.shape) - kept - 1 if name in ("index_select", "embedding") and a.shape else 0
    if name == "index":  # if the indexed dimensions are neighbours, the leading and the last dimensions stay
        held = [place for place, each in enumerate(args[0]) if each is not None]
        if held == list(range(held[0], held[-1] + 1)):
            kept, after = held[0], len(a.shape) - held[-1] - 1
    made = Move(r.shape, (a,), a.real, move=move, by=tuple(fixed), kept=kept, after=after)
    if name == "gather" or not fixed:
        return _by_positions(r, made, args[0] if fixed else 0, lambda: torch.arange(math.prod(made.shape)))
    listed = args[0] if name == "index" else [*([None] * (args[0] if name == "index_select" else 0)), fixed[0]]
    dims = [dim for dim, each in enumerate(listed) if each is not None]
    picked = broadcast_shape([each.shape for each in fixed])
    lead = dims[0] if dims[-1] - dims[0] == len(dims) - 1 else 0
    computed = [not is_integer(each) for each in fixed]
    axis = dims[computed.index(True)] if any(computed) else 0

    def at() -> Tensor:
        index = fixed[computed.index(True)].shape
        places = torch.arange(math.prod(index)).reshape(index).expand(picked)
        return places.reshape(*picked, *[1] * (len(made.shape) - lead - len(picked))).expand(made.shape)

    return _by_positions(r, made, axis, at)


def _by_positions(r: Rewriter, made: Move | Spread, axis: int, at: Callable[[], Tensor] | None = None) -> Step:
    """Returns the step itself, or a `Positioned` step if its positions are computed from values.

    `axis` is the dimension that the positions count in. See `Positioned` for `at`.
    """
    computed = [each for each in made.by if not is_integer(each)]
    if not computed:
        return made
    if len(computed) > 1:
        _need_plain(r, computed)
    stand = Plain(computed[0].shape, (), False)
    made.by = tuple(stand if each is computed[0] else each for each in made.by)
    shape = (made.inputs[0] if isinstance(made, Move) else made.inputs[-1]).shape
    axis %= max(len(shape), 1)
    return Positioned(
        made.shape,
        (computed[0], *made.inputs),
        made.real,
        inner=made,
        stand=stand,
        size=shape[axis] if shape else 1,
        at=at,
    )


def _need_plain(r: Rewriter, steps: Sequence[Step]) -> None:
    """Raises UsageError if positions are computed from values."""
    if not all(is_integer(each) for each in steps):
        raise UsageError(
            f"like= supports one index computed from values, to read or add elements; received {r.node.target}"
            f"{r.node.place}",
            hint="pass the indices as an operand: integers={'index': '0 <= index < n'}",
        )


@rule("slice_scatter", "diagonal_scatter")
def _scattered_in(r: Rewriter, a: Step, b: Step, *args: Any, **kwargs: Any) -> Step:
    call: Any = r.node.target
    both = r.alike(a, b)
    kept = after = 0
    if name_of(r) == "slice_scatter":
        kept = int(args[0] if args else kwargs.get("dim", 0)) % max(len(a.shape), 1)
        after = max(len(a.shape) - kept - 1, 0)
    move = lambda parts, fixed, fill: call(*parts, *args, **kwargs)  # noqa: E731
    return Move(r.shape, both, both[0].real, move=move, kept=kept, after=after)


def _converted(r: Rewriter, a: Step, before: torch.dtype) -> Step:
    """Converts a step of the dtype `before` to the dtype of the result."""
    found = r.node.value
    if found.is_floating_point():
        return r.real(a)
    if found.dtype == torch.bool:
        return condition_of(r, a)
    least, most = within = range_of(found.dtype)
    if before.is_floating_point:
        whole = stays_whole(a, _is_whole)
        return r.map("integer", a if whole else r.map("trunc", a), real=False, within=within)
    held = range_of(before)
    return a if least <= held[0] and held[1] <= most else r.real(a)  # real numbers, which `_typed` wraps around


def _is_whole(a: Step) -> bool:
    if isinstance(a, Plain):
        return not a.of and bool((value := a.compute([])).eq(value.floor()).all())
    return isinstance(a, Map) and a.function in ("round", "floor", "ceil", "trunc", "sign", "number", "wrap")


@rule("index_put")
def _index_put(r: Rewriter, a: Step, indices: list[Step | None], values: Step, accumulate: bool = False) -> Step:
    chosen = [each for each in indices if each is not None]
    axis = next((dim for dim, each in enumerate(indices) if each is not None and not is_integer(each)), 0)
    shape = a.shape

    def expanded(by: list[Tensor]) -> list[Tensor | None]:
        given = iter(by)
        return [None if each is None else next(given) for each in indices]

    def places(by: list[Tensor]) -> Tensor:
        chosen_by = tuple(slice(None) if each is None else each for each in expanded(by))
        return torch.arange(math.prod(shape), device=by[0].device).reshape(shape)[chosen_by]

    if accumulate:
        target = picked_shape(shape, indices)
        wide = moved(r.real(values), lambda tensor: tensor.expand(target))
        return _by_positions(r, Spread(shape, (wide, r.real(a)), places=places, by=tuple(chosen)), axis)

    def move(parts: list[Tensor], by: list[Tensor], fill: float) -> Tensor:
        return _aten.index_put.default(parts[0], expanded(by), parts[1])  # type: ignore[no-any-return]

    _need_plain(r, chosen)
    both = r.alike(a, values)
    return Move(shape, both, both[0].real, move=move, by=tuple(chosen))


@rule("index_add")
def _index_add(r: Rewriter, a: Step, dim: int, index: Step, source: Step, alpha: float = 1) -> Step:
    added = r.real(source) if alpha == 1 else r.map("multiply", source, alpha)
    dim %= max(len(a.shape), 1)
    shape, size = a.shape[dim:], source.shape[dim:]

    def places(by: list[Tensor]) -> Tensor:
        numbers = torch.arange(math.prod(shape), device=by[0].device).reshape(shape)
        return numbers.index_select(0, by[0]).expand(size) if shape else numbers.expand(size)

    spread = Spread(a.shape, (added, r.real(a)), places=places, by=(index,), kept=dim, whole=bool(shape))
    return _by_positions(r, spread, dim)


@rule("scatter_add")
def _scatter_add(r: Rewriter, a: Step, dim: int, index: Step, source: Step) -> Step:
    shape, size = a.shape, index.shape
    part = moved(r.real(source), lambda tensor: tensor[tuple(slice(0, n) for n in size)])
    made = Spread(shape, (part, r.real(a)), places=lambda by: _along(shape, dim, by[0]), by=(index,))
    return _by_positions(r, made, dim)


def _along(shape: tuple[int, ...], dim: int, index: Tensor) -> Tensor:
    """Returns the flat places that `scatter` writes to."""
    dim %= max(len(shape), 1)
    numbers = torch.arange(math.prod(shape), device=index.device).reshape(shape)
    corner = tuple(slice(None) if d == dim else slice(0, n) for d, n in enumerate(index.shape))
    return numbers[corner].gather(dim, index)


@rule("scatter")
def _scatter(r: Rewriter, a: Step, dim: int, index: Step, source: Any, *, reduce: str = "") -> Step:
    if reduce == "multiply":
        raise UsageError(
            f"like= supports scatter with reduce='add'; received {reduce!r}{r.node.place}",
            hint="gather the elements of each place, then call prod",
        )
    if reduce:
        return _scatter_add(r, a, dim, index, source)  # type: ignore[no-any-return]
    values = source if isinstance(source, Step) else constant(torch.tensor(source))
    if (ordered := _to_order(r, a, dim, index, values)) is not None:
        return ordered

    def move(parts: list[Tensor], by: list[Tensor], fill: float) -> Tensor:
        written = parts[1] if parts[1].ndim else parts[1].expand(by[0].shape)
        return parts[0].scatter(dim, by[0], written)

    both = r.alike(a, values)
    return _by_positions(r, Move(a.shape, both, both[0].real, move=move, by=(index,)), dim)


def _to_order(r: Rewriter, a: Step, dim: int, index: Step, source: Step) -> Step | None:
    """Returns a scatter to one place of each row, or to those of all ranks of a topk; None for any other index.

    A part of these can be evaluated alone. A list of all places of a pooled example may take gigabytes.
    """
    if (where := _to_one(r, a, dim, index, source)) is not None:
        return where
    order = through_moves(index)
    if not isinstance(order, Order) or isinstance(order, First) or not a.shape:
        return None
    shadow = torch.empty(order.shape, device="meta")
    if not lies_as(viewed(index, order, shadow).movedim(dim, -1), shadow):
        return None
    corner = tuple(slice(0, size) for size in index.shape)
    wide = moved(r.real(source), lambda tensor: tensor[corner] if tensor.ndim else tensor.expand(index.shape))
    rows = [moved(each, lambda tensor: tensor.movedim(dim, -1)) for each in (wide, r.real(a))]
    if rows[1].shape[:-1] != order.shape[:-1]:
        return None
    made = ToOrder(rows[1].shape, (order, *rows))
    return moved(made, lambda tensor: tensor.movedim(-1, dim))


def _to_one(r: Rewriter, a: Step, dim: int, index: Step, source: Step) -> Step | None:
    """Returns a scatter to one place of each row; None for an index that has several."""
    dim %= max(len(a.shape), 1)
    one = tuple(1 if at == dim else size for at, size in enumerate(a.shape))
    if is_integer(index) or not a.shape or index.shape != one:
        return None
    lined = [1] * len(one)
    lined[dim] = a.shape[dim]
    places = constant(torch.arange(a.shape[dim]).reshape(lined))
    corner = tuple(slice(0, size) for size in one)
    wide = moved(source, lambda tensor: tensor[corner]) if source.shape else source
    return r.map("where", r.map("eq", r.real(index), r.real(places), real=False), wide, a)


# -- creation ---------------------------------------------------------------------------------------------


@rule("full_like", "new_empty_strided")
def _filled(r: Rewriter, a: Step, value: Any, *args: Any, **kwargs: Any) -> Step:
    found = r.node.value
    dtype = torch.float64 if found.is_floating_point() else found.dtype
    value = value if name_of(r) == "full_like" else 0.0  # an empty tensor has any numbers
    # one number in memory, whatever the shape: that of an example may have gigabytes
    return constant(torch.full((1,) * found.ndim, value, dtype=dtype).expand(found.shape))
