"""Rewrites sums, products of matrices, extremes, sorting and softmax to steps."""

from typing import Any

from verify.ops.graph.inference import dims_of
from verify.ops.graph.reducing import Contract, Reduce, Running
from verify.ops.graph.rewrite import RULES, Rewriter, condition_of, moved, name_of, rule
from verify.ops.graph.selecting import AtOrder, First, Order
from verify.ops.graph.steps import Step


def _reduced(r: Rewriter, function: str, a: Step, dim: Any, keep: bool) -> Step:
    return Reduce(r.shape, (a,), a.real, function=function, dims=tuple(dims_of(len(a.shape), dim)), keep=keep)


RULES["sum"] = lambda r, a, dim=None, keepdim=False, dtype=None: _reduced(r, "sum", r.real(a), dim, keepdim)
RULES["any"] = lambda r, a, dim=None, keepdim=False: _reduced(r, "any", condition_of(r, a), dim, keepdim)
for _name in ("amax", "amin"):
    RULES[_name] = lambda r, a, dim=(), keepdim=False: _reduced(r, name_of(r), r.real(a), dim, keepdim)


@rule("prod")
def _prod(r: Rewriter, a: Step, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Step:
    a = r.real(a)
    if dim is None:
        flat = moved(a, lambda tensor: tensor.reshape(-1))
        return Reduce(r.shape, (flat,), function="product", dims=(0,))
    return _reduced(r, "product", a, dim, keepdim)


@rule("max", "min")
def _max(r: Rewriter, a: Step, dim: int | None = None, keepdim: bool = False) -> Any:
    largest = "max" in str(r.node.target)
    function = "amax" if largest else "amin"
    a = r.real(a)
    if dim is None:
        return Reduce((), (a,), function=function, dims=tuple(range(len(a.shape))))
    dims = tuple(dims_of(len(a.shape), dim))
    shape = tuple(r.node.value[0].shape)
    return [Reduce(shape, (a,), function=function, dims=dims, keep=keepdim), _argument(r, a, dim, keepdim, largest)]


@rule("argmax", "argmin")
def _argmax(r: Rewriter, a: Step, dim: int | None = None, keepdim: bool = False) -> Step:
    largest = "argmax" in str(r.node.target)
    a = r.real(a)
    if dim is None:
        return First((), (moved(a, lambda tensor: tensor.reshape(-1)),), False, largest=largest)
    return _argument(r, a, dim, keepdim, largest)


def _argument(r: Rewriter, a: Step, dim: int, keepdim: bool, largest: bool) -> Step:
    """Returns the index of the extreme element along a dimension."""
    last = moved(a, lambda tensor: tensor.movedim(dim, -1))
    index: Step = First(last.shape[:-1], (last,), False, largest=largest)
    return moved(index, lambda tensor: tensor.unsqueeze(dim)) if keepdim else index


RULES["topk"] = lambda r, a, k, dim=-1, largest=True, sorted_=True: _ordered(r, a, k, dim, largest=largest)


@rule("sort")
def _sort(
    r: Rewriter, a: Step, dim: int = -1, descending: bool = False, *, stable: bool = False, **kwargs: Any
) -> list[Any]:
    count = a.shape[dim] if a.shape else 1
    return _ordered(r, a, count, dim, largest=descending, sorts=True, stable=bool(stable))


def _ordered(r: Rewriter, a: Step, count: int, dim: int, **way: bool) -> list[Any]:
    """Returns the first `count` elements in order along a dimension, and their indices."""
    last = moved(r.real(a), lambda tensor: tensor.movedim(dim, -1))
    order = Order((*last.shape[:-1], count), (last,), False, **way)  # type: ignore[arg-type]
    ranked = AtOrder(order.shape, (last, order))
    return [moved(each, lambda tensor: tensor.movedim(-1, dim)) for each in (ranked, order)]


@rule("cumsum")
def _cumsum(r: Rewriter, a: Step, dim: int, dtype: Any = None) -> Step:
    a = r.real(a)
    return Running(a.shape, (a,), dim=dim % max(len(a.shape), 1)) if a.shape else a


@rule("mm", "bmm")
def _product(r: Rewriter, a: Step, b: Step) -> Step:
    if len(a.shape) == 2:
        first, second = (moved(r.real(each), lambda tensor: tensor.unsqueeze(0)) for each in (a, b))
        made = Contract((1, a.shape[0], b.shape[1]), (first, second))
        return moved(made, lambda tensor: tensor.squeeze(0))
    return Contract((a.shape[0], a.shape[1], b.shape[2]), (r.real(a), r.real(b)))


RULES["mv"] = RULES["dot"] = lambda r, a, b: _reduced(r, "sum", r.map("multiply", a, b), len(a.shape) - 1, False)


@rule("_softmax", "_log_softmax")
def _softmax(r: Rewriter, a: Step, dim: int, half: bool = False) -> Step:
    shape = tuple(1 if d == dim % max(len(a.shape), 1) else n for d, n in enumerate(a.shape))
    dims = tuple(dims_of(len(a.shape), dim))
    largest = Reduce(shape, (a,), function="amax", dims=dims, keep=True)
    shifted = r.map("subtract", a, largest)
    grown = r.map("exp", shifted)
    sums = Reduce(shape, (grown,), function="sum", dims=dims, keep=True)
    if "log" in str(r.node.target):
        return r.map("subtract", shifted, r.map("log", sums))
    return r.map("divide", grown, sums)
