"""Tensors of the oracle: arrays of its numbers that PyTorch's functions take.

`Tensors` of the oracle pass through `torch.softmax(x, -1)`, `x.softmax(-1)` and `x + 1` by `__torch_function__`. A
function that only moves elements is not written at all: PyTorch moves places in its stead. Beside each array stands a
real tensor (`shadow`), which has the shape and dtype that PyTorch gives the result.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from mpmath import mp

from tests.oracle.numbers import Number, Oracled, Run, constant, kept, made, pushed, stored

HANDLERS: dict[str, Callable[..., Any]] = {}
MOVES = """reshape view flatten unflatten permute transpose t T mT swapaxes movedim flip roll expand expand_as
repeat tile repeat_interleave unsqueeze squeeze narrow select index_select chunk split unbind cat stack hstack
vstack diagonal diag tril triu pixel_shuffle unfold gather take_along_dim getitem contiguous clone broadcast_to
scatter rot90 diag_embed view_as""".split()
CASTS = "to type half bfloat16 float double long int bool type_as".split()
SMALL = {torch.bfloat16: 8, torch.float16: 11}
LARGEST = {torch.bfloat16: 127, torch.float16: 15, torch.float32: 127, torch.float64: 1023}  # exponents of 2
DIGITS = {**SMALL, torch.float32: 24, torch.float64: 53}


def boxed(value: Any) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value
    box = np.empty((), object)
    box[()] = value
    return box


def array(value: Any) -> np.ndarray:
    if isinstance(value, Tensors):
        return value.array
    if isinstance(value, torch.Tensor):
        found = np.empty(value.shape, object)
        for place, each in zip(np.ndindex(*value.shape), value.flatten().tolist(), strict=True):
            found[place] = constant(each)
        return found
    return boxed(value if isinstance(value, Number) else value if isinstance(value, np.ndarray) else constant(value))


def each(function: Callable[..., Number], *arguments: Any) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # of NaN, which the function means
        return boxed(np.frompyfunc(function, len(arguments), 1)(*[array(a) for a in arguments]))


def one_by_one(function: Callable[..., Number], *arguments: Any) -> np.ndarray:
    """Applies an operator to elements. A gradient of what is broadcast is stored for each of them, then added up."""
    shapes = [a.shape for a in map(array, arguments)]

    def of(*numbers: Any) -> Number:
        Run.now.step += 1
        return function(*numbers)

    return each(of if len(set(shapes)) > 1 else function, *arguments)


def filled(rows: Sequence[Any], shape: Sequence[int]) -> np.ndarray:
    found = np.empty(len(rows), object)
    for at, row in enumerate(rows):  # numpy would take pairs apart
        found[at] = row
    return found.reshape(tuple(shape))


def along(x: Any, dim: int, function: Callable[[list[Number]], list[Number]]) -> np.ndarray:
    """Applies a function from rows to rows along one dimension."""
    wide = np.atleast_1d(array(x))
    moved = np.moveaxis(wide, dim, -1)
    rows = [function(list(row)) for row in moved.reshape(-1, moved.shape[-1])]
    found = filled([number for row in rows for number in row], (*moved.shape[:-1], len(rows[0])))
    found = np.moveaxis(found, -1, dim)
    return found if array(x).ndim else found.reshape(())


def over(x: Any, dims: Any, function: Callable[[list[Number]], Any], shape: Sequence[int]) -> np.ndarray:
    """Applies a function from rows to numbers over some dimensions (None or empty: all)."""
    wide = array(x)
    given = [dims] if isinstance(dims, int) else list(range(wide.ndim)) if dims is None or not len(dims) else list(dims)
    gone = sorted(d % max(wide.ndim, 1) for d in given) if wide.ndim else []
    kept = [d for d in range(wide.ndim) if d not in gone]
    size = math.prod(wide.shape[d] for d in gone)
    rows = wide.transpose(*kept, *gone).reshape(-1, size)
    return filled([function(list(row)) for row in rows], shape)


class Tensors:
    """A tensor of the oracle."""

    def __init__(self, values: np.ndarray, shadow: torch.Tensor) -> None:
        if tuple(values.shape) != tuple(shadow.shape):
            raise Oracled(f"shape {values.shape} for {tuple(shadow.shape)}")
        self.array, self.shadow = values, shadow

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        return called(function, function.__name__.strip("_"), arguments, named or {})

    def __getattr__(self, name: str) -> Any:
        if name in ("shape", "dtype", "ndim", "device", "dim", "size", "numel", "is_floating_point"):
            return getattr(self.shadow, name)
        if name in ("T", "mT"):
            return called(lambda x: getattr(x, name), name, (self,), {})
        if name.startswith("__"):
            raise AttributeError(name)
        method = getattr(torch.Tensor, name)
        return lambda *arguments, **named: called(method, name, (self, *arguments), named)


def _operator(name: str) -> Callable[..., Any]:
    method = getattr(torch.Tensor, f"__{name}__")
    return lambda self, *others: called(method, name, (self, *others), {})


for _name in """add radd sub rsub mul rmul truediv rtruediv pow matmul neg abs gt ge lt le eq ne and or invert getitem
mod""".split():
    setattr(Tensors, f"__{_name}__", _operator(_name))
Tensors.__hash__ = object.__hash__  # type: ignore[method-assign]


def real(value: Any) -> Any:
    """Returns the arguments as PyTorch takes them: shadows in place of the oracle's tensors."""
    if isinstance(value, Tensors):
        return value.shadow
    if isinstance(value, (tuple, list)):
        return type(value)(real(item) for item in value)
    return value


def called(function: Any, name: str, arguments: Sequence[Any], named: dict[str, Any]) -> Any:
    """Calls a function of PyTorch on tensors of the oracle."""
    with torch.no_grad():
        shadow = function(*real(list(arguments)), **{key: real(value) for key, value in named.items()})
    start = len(Run.now.tape)
    kinds = [each.dtype for each in (shadow if isinstance(shadow, (tuple, list)) else [shadow])]
    Run.now.step, Run.now.digits = Run.now.step + 1, max(SMALL.get(kind, 0) for kind in kinds)
    Run.now.inner = max(Run.now.unit, 2.0**-24) if name not in CASTS and any(map(narrower, kinds)) else Run.now.unit
    named = {key: value for key, value in named.items() if value is not None or key == "dim"}
    if name in ("zeros_like", "ones_like", "full_like", "new_zeros"):
        return shadow
    if name in HANDLERS:
        found = HANDLERS[name](shadow, *arguments, **named)
    elif name in MOVES:
        found = moved(function, arguments, named)
    else:
        raise Oracled(f"no meaning for {name}")
    many = isinstance(shadow, (tuple, list))
    results = [
        Tensors(boxed(a), s) for a, s in zip(found if many else [found], shadow if many else [shadow], strict=True)
    ]
    new = {id(number) for number in Run.now.tape[start:]}
    for result in results:
        if not result.dtype.is_floating_point and not all(mp.isint(n.value) for n in result.array.flat):
            raise Oracled("a number cast to an integer in passing")
        if narrower(result.dtype):
            digits, least = DIGITS[result.dtype], 1 - LARGEST[result.dtype]
            computed = name not in CASTS
            result.array = each(lambda n: stored(n, digits, least, computed) if id(n) in new else n, result.array)  # noqa: B023
            continue
        bits = SMALL.get(result.dtype)
        for number in result.array.flat if bits else ():
            number.outer = 2.0**-bits if id(number) in new else number.outer
            if id(number) in new and mp.isfinite(number.value) and number.value and number.value._mpf_[3] > bits:
                number.exact = False
                number.error += abs(float(number.value)) * 2.0**-bits
                pushed(number, abs(float(number.value)) * 2.0**-bits, -2 - number.place)
                number.value = Run.now.shaken(number.value, 2.0**-bits)
    return type(shadow)(results) if many else results[0]


def narrower(kind: torch.dtype) -> bool:
    """Says whether a format holds not all numbers of each operand: then a cast rounds as part of the meaning."""
    return kind in DIGITS and all(
        DIGITS[kind] < DIGITS[of] or LARGEST[kind] < LARGEST[of] for of in Run.now.kinds if of in DIGITS
    )


def whole(value: Any) -> tuple[torch.Tensor, bool]:
    """Returns integers of the oracle as PyTorch's, and whether roundings may change one."""
    if isinstance(value, torch.Tensor):
        return value, False
    numbers = value.array.flatten()
    made_of = [int(n.value) for n in numbers]
    return torch.tensor(made_of).reshape(value.array.shape).to(value.dtype), any(n.open for n in numbers)


def moved(function: Any, arguments: Sequence[Any], named: dict[str, Any]) -> Any:
    """Moves elements as PyTorch moves their places. Integers after the first tensor are positions."""
    pool: list[Number] = [constant(0)]
    unclear: list[Any] = []

    def places(x: Any) -> torch.Tensor:
        flat = list(array(x).flat)
        pool.extend(flat)
        return torch.arange(len(pool) - len(flat), len(pool), dtype=torch.float64).reshape(array(x).shape)

    def seen(value: Any, source: bool) -> Any:
        if isinstance(value, (tuple, list)):
            return type(value)(seen(item, source) for item in value)
        if not isinstance(value, (Tensors, torch.Tensor)):
            return value
        if source or value.dtype.is_floating_point:
            return places(value)
        index, opened = whole(value)
        unclear.extend([None] * opened)
        return index

    given = [seen(value, at == 0) for at, value in enumerate(arguments)]
    if function.__name__.startswith("scatter") and isinstance(given[-1], (int, float)):  # a value in place of a source
        given[-1] = float(len(pool))
        pool.append(constant(arguments[-1]))
    found = function(*given, **{key: seen(value, key in ("input", "tensors")) for key, value in named.items()})

    def picked(result: torch.Tensor) -> np.ndarray:
        numbers = [pool[int(place)] for place in result.flatten().tolist()]
        copies = Counter(map(id, numbers))  # the gradient of each copy is stored
        numbers = [kept(n) if copies[id(n)] > 1 and Run.now.source else n for n in numbers]
        if unclear:
            numbers = [
                made(n.value, [(each, int(each is n)) for each in (n,)], rounds=False, open=True) for n in numbers
            ]
        return filled(numbers, result.shape)

    return tuple(map(picked, found)) if isinstance(found, (tuple, list)) else picked(found)


def handles(*names: str) -> Callable[[Any], Any]:
    def keep(function: Any) -> Any:
        HANDLERS.update(dict.fromkeys(names, function))
        return function

    return keep
