"""Finds the smallest sizes at which a Triton kernel computes an offset, or compares one, beyond 32 bits.

No memory of these sizes is needed. The kernel's launches are recorded with tensors without memory, except for whole
numbers, which addresses depend on. A few programs of each launch, those at the corners of the grid, run twice on its
integers: as 32 bits have them, and exactly. Where a lane that loads or stores then has another address, or another
lane does, the kernel is wrong at these sizes. An address that depends on unknown data claims nothing.

A loop runs its first turns and its last one. A number that it carries grows by equal steps, or is unknown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import product
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from verify.cases import Case, inputs_of
from verify.cases.sizes import longer
from verify.laws.law import NotApplicable, Subject
from verify.measure.launches import Recorded, first_forms, recording
from verify.measure.ttgir import EXPRESSION, OPERAND, POINTER, Array, NotUnderstood, Op, Program, Region
from verify.ops.autograd import DispatchMode
from verify.truth.formats import named, torch_dtype

_BYTES = 1 << 37  # of operands and results: hardly a GPU has memory for more
_GRID = (1 << 31) - 1, 65_535, 65_535  # programs along an axis, beyond which a launch fails
_TURNS = 3  # of a loop, and its last one
_NEAR = 129  # sizes among which one is allowed: a declaration may demand a multiple
_CALLS = 20_000  # of PyTorch's functions in one call of a kernel
Lengthened = Callable[[int], tuple[int, ...] | None]
_known: dict[int, tuple[Any, tuple[Found, ...]]] = {}
_KINDS = re.compile(r"tensor<(?:\d+x)*(!tt\.ptr<\w+>|\w+)>|(!tt\.ptr<\w+>|\w+)")


# -- programs of a launch --------------------------------------------------------------------------


class Access(NamedTuple):
    """Holds what an operation loads or stores in one turn of the loops around it: an address for each lane."""

    place: str
    element: str
    address: Array
    active: Array


class Addresses(Program):
    """Runs a program on its integers. `exact`: integers of 32 bits do not wrap. Unknown numbers are EXPRESSION."""

    def __init__(
        self, ttir: str, launch: Recorded, ids: Sequence[int], numbers: Callable[[Any], Array | None], *, exact: bool
    ) -> None:
        self.accesses: dict[tuple[Any, ...], Access] = {}
        self.unclear = set[tuple[Any, ...]]()  # accesses that depend on unknown numbers
        self.stores = set[int]()  # operands
        self._exact, self._turns, self._tensors, self._numbers_of = exact, tuple[int, ...](), launch.values, numbers
        with np.errstate(all="ignore"):
            super().__init__(ttir, launch.values, ids, launch.grid)

    def _demand(self, ttgir: str) -> None:
        pass

    def node(self, op: str, fact: str, *inputs: Array) -> Array:
        """Returns unknown numbers."""
        return np.zeros(np.broadcast_shapes(*(each.shape for each in inputs)), EXPRESSION)

    def wrapped(self, value: Any, element: str) -> Array:
        """Returns integers wrapped to their width, or exactly."""
        return super().wrapped(value, "i64" if self._exact and element == "i32" else element)

    def _unknown(self, op: Op) -> list[Array]:
        kinds = op.text.rsplit("->", 1)[-1] if "->" in op.text else op.text.rsplit(" : ", 1)[-1]
        shapes = [re.findall(r"(\d+)x", each) for each in re.findall(r"tensor<[^>]*>|!tt\.ptr<\w+>|\b[if]\d+\b", kinds)]
        return [np.zeros([int(size) for size in each], EXPRESSION) for each in shapes] * max(1, len(op.results))

    def _one(self, op: Op, given: list[Array]) -> Array:
        try:
            return super()._one(op, given)
        except (NotUnderstood, LookupError, TypeError, ValueError):
            return (self._unknown(op) or [np.zeros((), EXPRESSION)])[0]

    def _regions(self, op: Op, names: dict[str, Array]) -> list[Array]:
        if op.name == "scf.if":
            chosen = names[op.operands[0]]
            if chosen.dtype != EXPRESSION:
                which = op.regions[0 if chosen.item() else 1 :][:1]
                return self._run(which[0], names) if which else []
            found = [self._run(each, dict(names)) for each in (*op.regions, Region([], []))[:2]]
            return [self._merged(one, other) for one, other in zip(*found, strict=False)]
        return self._loop(op, names) if op.name == "scf.for" else self._unknown(op)

    def _merged(self, one: Array, other: Array) -> Array:
        same = one.dtype == other.dtype != EXPRESSION and np.array_equal(one, other)
        return one if same else self.node("", "", one, other)

    def _chosen(self, condition: Array) -> bool:
        return condition.dtype != EXPRESSION and bool(condition)  # what returns early is the first

    def _loop(self, op: Op, names: dict[str, Array]) -> list[Array]:
        counter, *limits = re.findall(r"%[\w$.-]+(?:#\d+)?", op.text)[:4]
        receives, carried = re.findall(r"(%[\w$.-]+) = %", op.text)[1:], re.findall(r"= (%[\w$.#-]+)", op.text)[1:]
        kinds = [one or other for one, other in _KINDS.findall(op.text.partition("->")[2].rsplit(" : ", 1)[0])]
        values, outer = [names[each] for each in carried], self._turns
        bounds = [names[each] for each in limits]

        def turn(number: int, count: Array, given: list[Array]) -> list[Array]:
            self._turns = (*outer, number)
            found = self._run(op.regions[0], names | dict(zip(receives, given, strict=True)) | {counter: count})
            self._turns = outer
            return found

        if any(each.dtype == EXPRESSION for each in bounds):
            values = [np.zeros(each.shape, EXPRESSION) for each in values]
            turn(0, np.zeros((), EXPRESSION), values)
            return values
        turns, history = range(*(each.item() for each in bounds)), [values]
        for number, count in enumerate(turns[:_TURNS]):
            history.append(turn(number, np.array(count, np.int64), history[-1]))
        if len(turns) <= _TURNS:
            return history[-1]
        steps = len(turns) - 1 - _TURNS
        last = [self._after(steps, kind, *each) for kind, *each in zip(kinds, *history[1:], strict=True)]
        return turn(-1, np.array(turns[-1], np.int64), last)

    def _after(self, steps: int, kind: str, first: Array, second: Array, third: Array) -> Array:
        """Returns a loop's numbers `steps` turns later, if they grow by equal steps; else unknown ones."""
        if EXPRESSION in (first.dtype, second.dtype, third.dtype) or third.dtype == bool:
            return np.zeros(third.shape, EXPRESSION)
        one, two, three = (each.astype(np.int64) for each in (first, second, third))
        step = three - two
        if not np.array_equal(step, self.wrapped(step, kind) if kind == "i32" else step) or (step != two - one).any():
            return np.zeros(third.shape, EXPRESSION)
        later = three + steps * step
        return later.astype(POINTER) if third.dtype == POINTER else self.wrapped(later, kind)

    def _access(self, op: Op, address: Array, active: Array | None) -> bool:
        """Notes an access. False if it depends on unknown numbers."""
        key = op.place, op.name, *op.operands, self._turns
        if address.dtype != POINTER or (active is not None and active.dtype == EXPRESSION):
            self.unclear.add(key)
            return False
        mask = np.broadcast_to(True if active is None else active, address.shape)
        self.accesses[key] = Access(op.place, op.fact(r"!tt\.ptr<(\w+)>"), address, mask)
        if not op.name.endswith("load"):
            self.stores |= set(np.unique(address >> np.uint64(OPERAND)).tolist())
        return True

    def _tt_addptr(self, op: Op, given: list[Array], shape: list[int], element: str) -> Array:
        if EXPRESSION in (given[0].dtype, given[1].dtype):
            return self.node("", "", *given)
        moved = given[0].astype(np.int64) + given[1].astype(np.int64) * _width(op.fact(r"!tt\.ptr<(\w+)>"))
        return moved.astype(POINTER)

    def _tt_load(self, op: Op, given: list[Array], shape: list[int], element: str) -> Array:
        mask = given[1] if len(given) > 1 else None
        if not self._access(op, given[0], mask):
            return np.zeros(given[0].shape, EXPRESSION)
        places = np.unique(given[0] >> np.uint64(OPERAND))
        tensor = self._tensors.get(self.operands[places[0]]) if len(places) == 1 else None
        if tensor is None or (numbers := self._numbers_of(tensor)) is None:
            return np.zeros(given[0].shape, EXPRESSION)
        at = (given[0] & np.uint64((1 << OPERAND) - 1)).astype(np.int64) // tensor.element_size()
        read = (at < len(numbers)) & (True if mask is None else mask)
        other = given[2] if len(given) > 2 and given[2].dtype != EXPRESSION else np.array(0)
        return np.where(read, numbers[np.where(read, at, 0)], other).astype(bool if tensor.dtype == torch.bool else int)

    def _tt_store(self, op: Op, given: list[Array], shape: list[int], element: str) -> Array:
        self._access(op, given[0], given[2] if len(given) > 2 else None)
        return given[1]

    def _tt_atomic_rmw(self, op: Op, given: list[Array], shape: list[int], element: str) -> Array:
        return np.zeros(self._tt_store(op, given, shape, element).shape, EXPRESSION)


def _width(element: str) -> int:
    return max(1, int((re.search(r"\d+", element) or ["8"])[0]) // 8)


class Wrap(NamedTuple):
    """Holds an access that 32 bits make wrong: where, of which operand, and its exact offset in elements."""

    key: tuple[str, str, str]  # its facts at all sizes: function, operand, place
    program: tuple[int, ...]
    exact: int


def _wraps_of(ttir: str, launch: Recorded, constants: dict[int, int], written: set[int]) -> Iterator[Wrap]:
    """Yields the accesses of programs at the corners of a grid that 32 bits make wrong."""

    def numbers(tensor: Any) -> Array | None:
        if not isinstance(tensor, Tensor) or (memory := _memory(tensor)) in written:
            return None
        if memory in constants:
            return np.broadcast_to(np.array(constants[memory]), (1 << 40,))
        if isinstance(tensor, _Blank) or tensor.is_floating_point():
            return None
        count = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
        return torch.as_strided(tensor, (count,), (1,), tensor.storage_offset()).cpu().numpy()

    stores = set[int]()
    for ids in product(*(sorted({0, each - 1}) for each in launch.grid)):
        right, narrow = (Addresses(ttir, launch, ids, numbers, exact=exact) for exact in (True, False))
        stores |= right.stores
        for key in (right.accesses.keys() | narrow.accesses.keys()) - right.unclear - narrow.unclear:
            both = [each for some in (right, narrow) if (each := some.accesses.get(key)) is not None]
            exact, found = both[0], both[-1]
            off = exact.active != found.active if len(both) > 1 else exact.active
            off = off | (exact.active & (exact.address != found.address))
            if off.any():
                address = int(exact.address[tuple(np.argwhere(off)[0])])
                operand = (address + (1 << OPERAND - 1)) >> OPERAND
                offset = (address - (operand << OPERAND)) // _width(exact.element)
                operand = min(max(operand, 0), len(right.operands) - 1)
                name, place = launch.function.fn.__name__, _place(ttir, exact.place)
                yield Wrap((name, right.operands[operand], place), ids, offset)
    names = [right.operands[at] for at in stores if at < len(right.operands)]
    written |= {_memory(each) for name in names if isinstance(each := launch.values.get(name), Tensor)}


def _place(ttir: str, text: str) -> str:
    """Returns a location of TTIR as file:line: the innermost one."""
    for _ in range(9):
        if found := re.search(r'"([^"]+)":(\d+):\d+', text):
            return f"{found[1]}:{found[2]}"
        alias = re.search(r"#loc\d*", text)
        defined = alias and re.search(rf"^{alias[0]} = (.*)$", ttir, re.M)
        text = defined[1] if defined else ""
    return ""


# -- calls without memory --------------------------------------------------------------------------


class _Blank(Tensor):
    """A tensor without memory. `inner` has its shape, on the device "meta"."""

    inner: Any
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore

    @staticmethod
    def of(inner: Tensor, device: str) -> Any:
        """Returns a tensor that is on a device, to those who ask."""
        form = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "dtype": inner.dtype}
        made: Any = Tensor._make_wrapper_subclass(_Blank, inner.shape, device=device, **form)  # type: ignore
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore
        raise NotUnderstood("a call outside of its mode")


class _NoMemory(DispatchMode):
    """Gives PyTorch's functions tensors without memory. Numbers made of few whole numbers alone are computed."""

    def __init__(self, device: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.constants: dict[int, int] = {}  # memory that holds one number everywhere
        self._device, self._calls = device, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Computes a function of PyTorch, or calls an operator of the kernel's own."""
        self._calls += 1
        if self._calls > _CALLS:
            raise NotUnderstood("the call makes a step for each element")
        if func.namespace not in ("aten", "prims", "prim"):
            key = getattr(torch._C.DispatchKey, self._device.partition(":")[0].upper())
            with self:
                return func.redispatch(torch._C.DispatchKeySet(key), *args, **(kwargs or {}))
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        if given and not any(isinstance(each, _Blank) or each.is_floating_point() for each in given):
            return func(*args, **(kwargs or {}))
        outer = {id(each.inner): each for each in given if isinstance(each, _Blank)}
        inner = tree_map_only(
            Tensor, lambda each: each.inner if isinstance(each, _Blank) else each.to("meta"), (args, kwargs or {})
        )
        if any(each.name == "device" for each in func._schema.arguments):
            inner[1]["device"] = "meta"
        found = func(*inner[0], **inner[1])
        return tree_map_only(
            Tensor, lambda each: outer[id(each)] if id(each) in outer else _Blank.of(each, self._device), found
        )


def _memory(tensor: Tensor) -> int:
    return int((tensor.inner if isinstance(tensor, _Blank) else tensor).untyped_storage()._cdata)


class Found(NamedTuple):
    """Holds the smallest sizes that 32 bits make wrong, the sizes of which one was made longer, and where."""

    base: tuple[int, ...]
    dims: tuple[int, ...]
    wrap: Wrap


def smallest_wraps(subject: Subject, case: Case) -> tuple[Found, ...]:
    """Returns for each dimension the smallest sizes with it longer than in a case that 32 bits make wrong.

    The sizes that need the least memory come first; a dimension that makes nothing wrong has none.

    Raises NotApplicable if the call launches no Triton kernel that is understood.
    """
    kernel = subject.kernel
    key = id(kernel.function)
    if key not in _known:  # no offset depends on values, hardly one on the dtype: the first case is enough
        try:
            _known[key] = kernel.function, _Search(subject, case).smallest()
        except (NotUnderstood, OSError) as why:
            raise NotApplicable(str(why)) from None
    return _known[key][1]


class _Search:
    """Tries sizes of one kernel."""

    def __init__(self, subject: Subject, case: Case) -> None:
        self._subject, self._case = subject, case
        self._texts: dict[str, str] = {}  # TTIR by what it depends on

    def smallest(self) -> tuple[Found, ...]:
        base = self._case.dims
        ways = [(of, high) for of in longer(self._subject.kernel, base).values() if (high := self._largest(of))]
        self._compile([self._launches(base)[0], *(self._launches(_next(of, high))[0] for of, high in ways)])
        usual = self._wraps(base)
        known, found, understood = {each.key for each in usual or ()}, list[Found](), usual is not None
        for of, high in ways:

            def new(size: int, of: Lengthened = of) -> Wrap | None:
                wraps = self._wraps(dims) if (dims := _next(of, size)) else None
                return next((each for each in wraps or () if each.key not in known), None)

            while high > 1 and self._wraps(_next(of, high)) is None:
                high //= 16  # the kernel refuses such sizes, or its blocks are too large
            understood |= high > 1
            wrong, low = new(high) if high > 1 else None, 1
            while wrong is not None and high - low > 1:
                middle = (low + high) // 2
                if (at := new(middle)) is None:
                    low = middle
                else:
                    wrong, high = at, middle
            found += [] if wrong is None else [Found(base, _next(of, high), wrong)]
        if not understood:
            raise NotApplicable("it launches no Triton kernel that is understood")
        return tuple(sorted(found, key=lambda each: self._size(each.dims)))

    def _largest(self, of: Lengthened) -> int:
        """Returns the largest size that a GPU may have memory for, roughly; 0 if there is none."""
        size = 1 << 36
        while size and not ((dims := _next(of, size)) and self._size(dims) <= _BYTES):
            size -= max(1, size // 8)
        return size

    def _size(self, dims: tuple[int, ...]) -> int:
        """Returns the bytes of operands and results, if all have the dtype of the case."""
        op, params = self._subject.kernel.op, self._subject.kernel.op.resolve(self._case.params)
        shapes = (*op.shapes(dims, params).values(), *op.result_shapes(dims, params).values())
        return sum(map(math.prod, shapes)) * int(torch_dtype(named(self._subject.dtype)).itemsize)

    def _wraps(self, dims: tuple[int, ...]) -> list[Wrap] | None:
        """Returns the accesses that 32 bits make wrong at sizes; None if the kernel does not take these sizes."""
        launches, constants = self._launches(dims) if dims else ([], {})
        self._compile([launches])
        texts, written = [self._texts[each.program] for each in launches], set[int]()
        found, read = list[Wrap](), 0
        for text, launch in zip(texts, launches, strict=True):
            with suppress(NotUnderstood, LookupError, TypeError, ValueError):
                found += _wraps_of(text, launch, constants, written)
                read += 1
        return found if read and all(texts) else None

    def _compile(self, calls: Sequence[Sequence[Recorded]]) -> None:
        programs = dict.fromkeys(each.program for launches in calls for each in launches)
        new = [each for each in programs if each not in self._texts]
        self._texts |= zip(new, first_forms(self._subject.target, new), strict=True)

    def _launches(self, dims: tuple[int, ...]) -> tuple[list[Recorded], dict[int, int]]:
        """Returns the launches of a call with sizes, and memory that holds one number; none if the kernel raises."""
        kernel, device, op = self._subject.kernel, self._subject.backend.device, self._subject.kernel.op
        blank = inputs_of(op, msgspec.structs.replace(self._case, dims=dims), device, blank=True)
        operands, given, chosen = {each.name: each for each in op.operands}, [], op.resolve(self._case.params)
        try:
            with _NoMemory(device) as mode, recording(self._subject.backend, launched=False) as seen:
                for name in kernel.operands:
                    value = blank[name]
                    if value is not None and value.is_meta:
                        value = _Blank.of(value, device)
                        if (range_of := operands[name].range) is not None:
                            mode.constants[_memory(value)] = range_of(dims)[1] - 1  # the largest
                        value.requires_grad_(operands[name] in kernel.differentiable and value.is_floating_point())
                    given.append(value)
                found = kernel.function(*given, **{name: chosen[name] for name in chosen if name in kernel.accepted})
                ends = [each for each in tree_leaves(found) if isinstance(each, Tensor) and each.requires_grad]
                if ends:
                    torch.autograd.backward(ends, [torch.empty_like(each) for each in ends])
        except Exception:
            return [], {}
        launched = all(0 < size <= most for each in seen for size, most in zip(each.grid, _GRID, strict=True))
        return (seen, mode.constants) if launched else ([], {})


def _next(of: Lengthened, size: int) -> tuple[int, ...]:
    """Returns the first sizes that are allowed from one size upwards; () if none is near."""
    return next((dims for each in range(size, size + _NEAR) if (dims := of(each))), ())
