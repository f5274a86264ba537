"""Runs several programs of a launch at once: one numpy call replaces one call for each of them.

An operation on a small block is all overhead, and a program has a hundred of them or more. So a dozen programs run as
one. Their program ids are an array, and each value computed from them has one more axis, the first. All other values
have the shape of one program and are broadcast. Sides of blocks are powers of two. The number of programs at once is
none: if it were, the last program runs twice. So an array has the additional axis exactly if its first side is that
number.

The bits are those of programs run one after the other, because every operation of this interpreter works element by
element, or along an axis in its own order. Operations that do not (atomics, block pointers, printing), and programs
that fail, run again program by program. If programs part, at an `if` or in the bounds of a loop, their stores are
undone. Then the programs that take the same branch run again together.

A launch makes thousands of tensors of a dozen types, which nothing changes afterwards. To make these types again, with
their shapes in numbers of Triton's own, took a third of the time of an interpreted kernel. So what follows from a type
alone is made once.
"""

import dataclasses
import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from triton._C.libtriton import interpreter as native
from triton.language import core
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, _get_np_dtype

from verify.backends.interpreter.rounding import Array

Id = tuple[int, int, int]

#: Programs at once, before the size of their blocks is known, and at most.
_FIRST, _MOST = 7, 48
#: So many programs that part show how others do. Two that part may be those of a grid of one block.
_TELLING = 6
#: Elements of an array that fits into a cache near the core, in any type.
_ELEMENTS = 1 << 15
#: Plans in the cache before it is cleared.
_KNOWN = 4096


class Parted(BaseException):
    """Raised if programs that run together take different branches.

    `ways` has a number for each program; it is empty if each must run alone. This is no Exception, so that neither
    Triton nor a kernel catches it.
    """

    def __init__(self, ways: Array | None = None) -> None:
        super().__init__()
        self.ways: list[Any] = [] if ways is None else ways.reshape(-1).tolist()


class _Now:
    """The programs that run together now; `lanes` is 0 if none do. `launches` counts all launches of this process."""

    def __init__(self) -> None:
        self.launches = self.lanes = 0
        self.largest = 1  # elements of the largest block of one program so far
        self.ids: tuple[Array, ...] = ()
        self.stored: list[tuple[Array, Array, Array]] = []  # addresses, earlier contents, mask


now = _Now()


def stacked(data: Array) -> bool:
    """True if an array has one entry for each program that runs now."""
    return now.lanes > 0 and data.ndim > 0 and data.shape[0] == now.lanes


def spread(data: Array, shape: Sequence[int]) -> Array:
    """Returns a scalar or block of each program as a block of the given shape of each program."""
    sides = data.shape[1:] if data.ndim == len(shape) + 1 else (1,) * len(shape)
    return np.broadcast_to(data.reshape(now.lanes, *sides), (now.lanes, *shape))


def checking(original: Callable[..., None]) -> Callable[..., None]:
    """Returns tensor.__init__ that raises Parted unless a tensor has the shape of its type, once or per program.

    It makes the attributes of each shape once.
    """
    known: dict[tuple[int, ...], dict[str, Any]] = {}

    def init(self: Any, handle: Any, type: Any) -> None:
        sizes = tuple(type.shape) if type.is_block() else ()
        if sizes in known:
            vars(self).update(known[sizes], handle=handle, type=type, dtype=type.scalar)
        else:
            original(self, handle, type)
            known[sizes] = {name: v for name, v in vars(self).items() if name not in ("handle", "type", "dtype")}
        if now.lanes and handle is not None:
            data = handle.data
            shape = data.shape[1:] if stacked(data) else data.shape
            if shape != (sizes or (1,)):
                raise Parted
            now.largest = max(now.largest, data.size if shape == data.shape else data.size // now.lanes)

    return init


def agreed(data: Array) -> Any:
    """Returns the number in a scalar. Raises Parted if the programs have different numbers."""
    if data.size != 1 and stacked(data):
        if (data != data[0]).any():
            raise Parted(data)
        return data.reshape(-1)[0].item()
    return data.item()


class Turn(int):
    """A loop variable that all programs share: a number that has `to`, as a compiled kernel's tensor does."""

    def to(self, dtype: Any, *how: Any, **named: Any) -> Any:
        """Returns the tensor of this number in another dtype."""
        kind = core.int32 if abs(self) < 2**31 else core.int64
        stored = np.array([int(self)], np.int32 if kind is core.int32 else np.int64)
        return core.tensor(TensorHandle(stored, kind), kind).to(dtype, *how, **named)


def ranging(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns tl.range or range with bounds that may differ between programs if the number of turns does not."""

    def of(arg1: Any, arg2: Any = None, step: Any = None, **named: Any) -> Any:
        bounds = [0, arg1, 1] if arg2 is None else [arg1, arg2, 1]
        if step is not None:
            bounds[2] = step
        if not now.lanes:
            return map(Turn, original(*bounds, **named))
        numbers = [b.handle.data.reshape(-1) if isinstance(b, core.tensor) else np.array([int(b)]) for b in bounds]
        if not any(map(stacked, numbers)):
            return map(Turn, original(*bounds, **named))
        start, stop, by = np.broadcast_arrays(*(number.astype(np.int64) for number in numbers))
        if (by <= 0).any():
            raise Parted
        turns = np.maximum(-((start - stop) // by), 0)
        if (turns != turns[0]).any():
            raise Parted(turns)
        fits = (np.abs(start) < 2**31).all() and (np.abs(stop) < 2**31).all()
        kind = core.int32 if fits else core.int64
        stored = np.int32 if fits else np.int64
        at = start[:, None]
        return (
            core.tensor(TensorHandle((at + turn * by[:, None]).astype(stored), kind), kind)
            for turn in range(int(turns[0]))
        )

    return of


# -- a launch -------------------------------------------------------------------------------------


@dataclasses.dataclass
class _Plan:
    """Knowledge about a kernel with its constants from earlier programs."""

    block: int = 0  # elements of its largest block; 0: unknown
    alone: bool = False  # its programs cannot run together, or part too often
    axis: int | None = None  # axis of the grid by which its programs part; None: unknown


_plans: dict[Hashable, _Plan] = {}


def launching(shipped: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces GridExecutor.__call__: `_run_all` runs all programs of the launch."""

    def call(executor: Any, *args: Any, **kwargs: Any) -> Any:
        grid = executor.grid
        executor.grid = lambda converted: _run_all(executor, grid, converted)
        return shipped(executor, *args, **kwargs)

    return call


def _run_all(executor: Any, grid: Any, args: dict[str, Any]) -> tuple[int]:
    """Runs all programs of a launch. Returns an empty grid, so Triton's own loop runs none."""
    now.launches += 1
    fn, sides = executor.fn, grid(args) if callable(grid) else grid
    assert len(sides) <= 3, "grid must have at most 3 dimensions"
    x, y, z = (*sides, 1, 1)[:3]
    interpreter.interpreter_builder.set_grid_dim(x, y, z)
    key = (fn, *((name, args[name]) for name in executor.constexprs if isinstance(args[name], int | str)))
    if key not in _plans and len(_plans) >= _KNOWN:
        _plans.clear()
    plan = _plans.setdefault(key, _Plan())
    try:
        _launch(lambda: fn(**args), list(itertools.product(range(x), range(y), range(z))), plan)
    except Exception as error:
        if interpreter.triton.knobs.compilation.front_end_debugging:
            raise
        raise interpreter.InterpreterError(repr(error)) from error
    return (0,)


def _launch(call: Callable[[], Any], ids: list[Id], plan: _Plan) -> None:
    """Runs programs in groups, as many at once as the plan allows; groups split where their programs part."""
    groups = _by_way(ids, [each[plan.axis] for each in ids]) if plan.axis is not None else [ids]
    groups.reverse()
    while groups:
        group = groups.pop()
        lanes = 0 if plan.alone else min(len(group), _MOST, _ELEMENTS // plan.block if plan.block else _FIRST)
        if lanes < 2:
            for each in group:  # one after the other
                interpreter.interpreter_builder.set_grid_idx(*each)
                call()
            continue
        first, rest = group[:lanes], group[lanes:]
        if rest:
            groups.append(rest)
        ways = _at_once(call, first)
        if ways is None:
            plan.block = now.largest
        elif not ways:
            plan.alone = True
            groups.append(first)
        else:
            parts = _by_way(first, ways)
            if 2 * len(parts) > len(first):
                plan.alone = len(first) >= _TELLING
            elif plan.axis is None:
                plan.axis = _axis(parts, len(first))
            groups += reversed(parts)


def _by_way(ids: list[Id], ways: Sequence[Any]) -> list[list[Id]]:
    """Groups programs by their branch."""
    parts: dict[Any, list[Id]] = {}
    for way, each in zip(ways, ids, strict=True):
        parts.setdefault(way, []).append(each)
    return list(parts.values())


def _axis(parts: list[list[Id]], programs: int) -> int | None:
    """Returns the axis of the grid that determines the part of a program, if few of its values do; else None."""
    for axis in range(3):
        values = [{each[axis] for each in part} for part in parts]
        several = sum(map(len, values))
        if len(set().union(*values)) == several and 3 * several <= programs:
            return axis
    return None


def _at_once(call: Callable[[], Any], ids: list[Id]) -> list[Any] | None:
    """Runs these programs together. Returns None if they ran.

    Otherwise nothing has changed, and it returns the branch of each program, or an empty list if they cannot run
    together.
    """
    builder = interpreter.interpreter_builder
    shipped, programs = builder.__class__, len(ids)
    if programs & (programs - 1) == 0:
        ids = [*ids, ids[-1]]  # the copy reads and stores the same values at the same time
    now.lanes, now.largest, now.stored = len(ids), 1, []
    now.ids = tuple(np.array(axis, dtype=np.int32).reshape(-1, 1) for axis in zip(*ids, strict=True))
    builder.__class__ = Together
    try:
        call()
    except Parted as parted:
        _take_back()
        return parted.ways[:programs]
    except Exception:
        _take_back()  # run alone, the failing program raises its own error
        return []
    finally:
        builder.__class__ = shipped
        now.lanes, now.ids, now.stored = 0, (), []
    return None


def _take_back() -> None:
    """Undoes all stores, the last first."""
    for addresses, before, which in reversed(now.stored):
        native.store(addresses, before, which)


class Together(InterpreterBuilder):  # type: ignore[misc]
    """The builder while programs run together: operations whose shapes show which axis is which."""

    def create_get_program_id(self, axis: int) -> Any:
        ids = now.ids[axis]
        return TensorHandle(ids[0] if (ids == ids[0]).all() else ids, core.int32)

    def create_masked_load(self, ptrs: Any, mask: Any, other: Any, *policy: Any) -> Any:
        ptrs, mask, *fill = alike(ptrs, mask, *([] if other is None else [other]))
        return super().create_masked_load(ptrs, mask, fill[0] if fill else None, *policy)

    def create_masked_store(self, ptrs: Any, value: Any, mask: Any, *policy: Any) -> Any:
        ptrs, value, mask = alike(ptrs, value, mask)
        dtype = value.data.dtype
        before = native.load(ptrs.data, mask.data, np.zeros(value.data.shape, dtype), dtype)
        now.stored.append((ptrs.data, before, mask.data))
        return super().create_masked_store(ptrs, value, mask, *policy)

    def create_splat(self, ret_ty: Any, arg: Any) -> Any:
        if not stacked(arg.data):
            return super().create_splat(ret_ty, arg)
        return TensorHandle(spread(arg.data, ret_ty.shape), arg.dtype.scalar)

    def create_broadcast(self, arg: Any, shape: Any) -> Any:
        if not stacked(arg.data):
            return super().create_broadcast(arg, shape)
        return TensorHandle(spread(arg.data, shape), arg.dtype.scalar)

    def create_expand_dims(self, arg: Any, axis: int) -> Any:
        return super().create_expand_dims(arg, axis + (axis >= 0 and stacked(arg.data)))

    def create_reshape(self, arg: Any, shape: Any, allow_reorder: bool) -> Any:
        return super().create_reshape(arg, (now.lanes, *shape) if stacked(arg.data) else shape, allow_reorder)

    def create_trans(self, arg: Any, perm: Any) -> Any:
        return super().create_trans(arg, (0, *(p + 1 for p in perm)) if stacked(arg.data) else perm)

    def create_join(self, lhs: Any, rhs: Any) -> Any:
        return super().create_join(*alike(lhs, rhs))

    def create_dot(self, a: Any, b: Any, d: Any, *how: Any) -> Any:
        if any(stacked(each.data) for each in (a, b, d)):
            a, b, d = (each if stacked(each.data) else _for_each(each) for each in (a, b, d))
        return super().create_dot(a, b, d, *how)

    def create_fma(self, x: Any, y: Any, z: Any) -> Any:
        return super().create_fma(*alike(x, y, z))

    def create_extern_elementwise(self, name: str, path: str, symbol: str, args: Any, *rest: Any) -> Any:
        return super().create_extern_elementwise(name, path, symbol, alike(*args), *rest)

    def create_inline_asm(self, asm: str, constraints: str, values: Any, types: Any, is_pure: bool, pack: int) -> Any:
        if pack != 1:
            raise Parted
        return super().create_inline_asm(asm, constraints, alike(*values), types, is_pure, pack)


def _for_each(handle: Any) -> Any:
    """Returns a tensor that is equal for all programs, with their axis."""
    return TensorHandle(np.broadcast_to(handle.data, (now.lanes, *handle.data.shape)), handle.dtype)


def alike(*handles: Any) -> list[Any]:
    """Returns the handles, broadcast to one shape."""
    if len({handle.data.shape for handle in handles}) == 1:
        return list(handles)
    arrays = np.broadcast_arrays(*(handle.data for handle in handles))
    return [TensorHandle(array, handle.dtype) for array, handle in zip(arrays, handles, strict=True)]


def _alone(name: str) -> Callable[..., Any]:
    """Returns a builder method that raises Parted, so that each program runs alone."""

    def method(self: Any, *args: Any, **named: Any) -> Any:
        raise Parted

    method.__name__ = name
    return method


for _name in """
    dot_scaled cat unsplat split histogram gather atomic_rmw atomic_cas print assert assume
    make_block_ptr advance tensor_pointer_load tensor_pointer_store
    make_tensor_descriptor descriptor_load descriptor_store descriptor_gather descriptor_scatter
""".split():
    setattr(Together, f"create_{_name}", _alone(f"create_{_name}"))


def of_block_type(original: Callable[..., None]) -> Callable[..., None]:
    """Returns block_type.__init__ that makes the attributes of a type once."""
    known: dict[tuple[Any, ...], dict[str, Any]] = {}

    def init(self: Any, element_ty: Any, shape: Any) -> None:
        form = (element_ty.name, *shape)
        if form not in known:
            original(self, element_ty, shape)
            known[form] = {name: value for name, value in vars(self).items() if name != "element_ty"}
        vars(self).update(known[form], element_ty=element_ty)

    return init


def of_broadcast(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns broadcast_impl_value that leaves blocks of one shape as they are."""

    def broadcast(self: Any, lhs: Any, rhs: Any) -> Any:
        same = lhs.shape is rhs.shape  # `programs.checking` gives one to all tensors of a shape
        return (lhs, rhs) if same else original(self, lhs, rhs)

    return broadcast


_ALIKE = frozenset("int32 int64 uint32 uint64 fp32 fp64".split())  # each operator of two of them gives the same


def of_operands(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns binary_op_type_checking_impl that leaves operands of one shape and dtype as they are."""

    def checked(self: Any, lhs: Any, rhs: Any, *how: Any, **named: Any) -> Any:
        same = type(lhs) is type(rhs) is core.tensor and lhs.shape is rhs.shape and lhs.dtype is rhs.dtype
        return (lhs, rhs) if same and lhs.dtype.name in _ALIKE else original(self, lhs, rhs, *how, **named)

    return checked


_DTYPES: dict[str, Any] = {}


def np_dtype(type: Any) -> Any:
    """Returns the NumPy dtype that stores a type of Triton's."""
    name = (type.element_ty if isinstance(type, core.block_type) else type).name
    if name not in _DTYPES:
        _DTYPES[name] = _get_np_dtype(type)
    return _DTYPES[name]
