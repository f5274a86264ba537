"""Reductions and scans of the faithful interpreter: they call the kernel's combine function in log2(n) steps.

A reduction combines neighbours pairwise (0 with 1, 2 with 3, ...) until one remains. An inclusive scan combines each
element with the one 1, 2, 4, ... before it, as a warp does with shuffles. Both apply the combine function to whole
blocks, in the element type, so a bfloat16 sum rounds after every addition as on a GPU. The order of a GPU's sum depends
on the layout that the compiler picks. This order is one of the possible ones, has the same depth, and is the same on
every machine.

A combine function that needs the truth of its operands (`and`, `or`, `if`) works only on scalars. It raises ScalarsOnly
on its first test of a block; then Triton's own element-by-element loop runs.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as shipped
from triton.runtime.interpreter import TensorHandle

from verify.backends.interpreter.casts import is_float, widen
from verify.backends.interpreter.programs import Parted, agreed, alike, now, stacked
from verify.backends.interpreter.rounding import Array

Arrays = list[Array]
Combine = Callable[[Arrays, Arrays], Arrays]


class ScalarsOnly(Exception):
    """Raised if a combine function needs one truth value of a block."""


_combining_blocks = False


@contextlib.contextmanager
def _blocks() -> Iterator[None]:
    """Marks that a combine function runs on blocks, inside a with block."""
    global _combining_blocks
    before, _combining_blocks = _combining_blocks, True
    try:
        yield
    finally:
        _combining_blocks = before


def truth(tensor: Any) -> bool:
    """Returns the value of `bool(tensor)` in the interpreter. The shipped rule is True for any block."""
    data = tensor.handle.data
    if data.size == 1:
        return bool(data.item())
    if now.lanes and not tensor.type.is_block():
        return bool(agreed(data != 0))
    if _combining_blocks:
        raise Parted if now.lanes else ScalarsOnly
    return True


def reduce(self: Any, inputs: tuple[Any, ...]) -> Any:
    """Replaces ReduceOps.apply_impl."""
    axis, arrays = self.axis, [handle.data for handle in alike(*(t.handle for t in inputs))]
    rank, lanes = len(inputs[0].shape), arrays[0].shape[: int(stacked(arrays[0]))]
    dtypes = [t.dtype for t in inputs]
    if axis is None:
        arrays = [a.reshape(*lanes, -1) for a in arrays]
    elif axis >= 0:
        axis += len(lanes)
    last = axis in (None, -1, arrays[0].ndim - 1)
    moved = arrays if last else [np.moveaxis(a, axis, -1) for a in arrays]
    try:
        out = _tree(moved, _combiner(self.combine_fn, dtypes))
    except ScalarsOnly:
        return self.generic_reduce(inputs)
    if self.keep_dims:
        out = [a.reshape(lanes + (1,) * rank) if axis is None else np.expand_dims(a, axis) for a in out]
    return [_tensor(a, d) for a, d in zip(out, dtypes, strict=True)]


def scan(self: Any, inputs: tuple[Any, ...]) -> Any:
    """Replaces ScanOps.apply_impl."""
    dtypes, arrays = [t.dtype for t in inputs], [handle.data for handle in alike(*(t.handle for t in inputs))]
    axis = self.axis + (self.axis >= 0 and stacked(arrays[0]))
    moved = [np.moveaxis(a, axis, -1) for a in arrays]
    if self.reverse:
        moved = [a[..., ::-1] for a in moved]
    try:
        out = _doubling(moved, _combiner(self.combine_fn, dtypes))
    except ScalarsOnly:
        return _scalar_scan(self, inputs)
    if self.reverse:
        out = [a[..., ::-1] for a in out]
    return [_tensor(np.moveaxis(a, -1, axis), d) for a, d in zip(out, dtypes, strict=True)]


def _tree(arrays: Arrays, combine: Combine) -> Arrays:
    """Combines neighbours until one remains along the last axis, whose length is a power of two."""
    while arrays[0].shape[-1] > 1:
        arrays = combine([a[..., 0::2] for a in arrays], [a[..., 1::2] for a in arrays])
    return [a[..., 0] for a in arrays]


def _doubling(arrays: Arrays, combine: Combine) -> Arrays:
    """Computes an inclusive scan along the last axis."""
    arrays = [np.array(a) for a in arrays]
    distance = 1
    while distance < arrays[0].shape[-1]:
        # Whole blocks, because Triton allows only powers of two; the wrapped-around part is dropped.
        later = combine([np.roll(a, distance, axis=-1) for a in arrays], arrays)
        for array, new in zip(arrays, later, strict=True):
            array[..., distance:] = new[..., distance:]
        distance *= 2
    return arrays


def _scalar_scan(self: Any, inputs: tuple[Any, ...]) -> Any:
    """Computes a scan by Triton's own loop, element by element."""
    flipped = [_tensor(np.flip(t.handle.data, axis=self.axis), t.dtype) for t in inputs] if self.reverse else inputs
    out = self.generic_scan(flipped)
    return [_tensor(np.flip(t.handle.data, axis=self.axis), t.dtype) for t in out] if self.reverse else out


def _tensor(array: Array, dtype: Any) -> Any:
    """Returns a Triton tensor; a scalar is stored as one element, as everywhere in the interpreter."""
    sides = array.shape[1:] if stacked(array) else array.shape
    if not sides:
        return tl.core.tensor(TensorHandle(array.reshape(*array.shape, 1), dtype.scalar), dtype.scalar)
    return tl.core.tensor(TensorHandle(array, dtype.scalar), tl.block_type(dtype.scalar, list(sides)))


# -- combine functions ----------------------------------------------------------------------------


def _combiner(function: Any, dtypes: list[Any]) -> Combine:
    """Returns the combine function on lists of arrays: a fast one for Triton's own, else through the interpreter."""
    standard = tl.standard
    floating = is_float(dtypes[0].scalar.name)
    builder = shipped.interpreter_builder
    direct = {
        standard._sum_combine: builder.create_fadd if floating else builder.create_add,
        standard._prod_combine: builder.create_fmul if floating else builder.create_mul,
        standard._elementwise_max: builder.create_maxnumf if floating else builder.create_maxsi,
        standard._elementwise_min: builder.create_minnumf if floating else builder.create_minsi,
    }
    if function in direct:
        method = direct[function]
        return lambda x, y: [method(TensorHandle(x[0], dtypes[0].scalar), TensorHandle(y[0], dtypes[0].scalar)).data]
    extremes = {
        standard._argmax_combine_tie_break_left: (np.greater, True),
        standard._argmax_combine_tie_break_fast: (np.greater, False),
        standard._argmin_combine_tie_break_left: (np.less, True),
        standard._argmin_combine_tie_break_fast: (np.less, False),
    }
    if function in extremes:
        return _with_index(dtypes[0].scalar.name, *extremes[function])

    def combine(x: Arrays, y: Arrays) -> Arrays:
        operands = [_tensor(a, d) for a, d in zip([*x, *y], [*dtypes, *dtypes], strict=True)]
        try:
            with _blocks():
                out = function(*operands)
        except Exception as error:
            raise _cause(error) from error
        results = out if isinstance(out, (tuple, tl.tuple)) else (out,)
        return [np.broadcast_to(r.handle.data, a.shape) for r, a in zip(results, x, strict=True)]

    return combine


def _with_index(name: str, compare: Callable[..., Any], tie_break_left: bool) -> Combine:
    """Returns a combiner of (value, index): the first wins if it compares so, or ties with a smaller index."""

    def combine(x: Arrays, y: Arrays) -> Arrays:
        first, second = (widen(v, name) if is_float(name) else v for v in (x[0], y[0]))
        wins = compare(first, second)
        if tie_break_left:
            wins = wins | ((first == second) & (x[1] < y[1]))
        return [np.where(wins, x[0], y[0]), np.where(wins, x[1], y[1])]

    return combine


def _cause(error: BaseException) -> BaseException:
    """Returns the ScalarsOnly behind an interpreter's error, else the error itself."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, ScalarsOnly):
        found = found.__cause__
    return found or error
