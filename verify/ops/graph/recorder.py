"""A PyTorch function followed by running it: every operator that it calls, and its gradient, as a list of nodes.

    recorder = Recorder(table())
    x = recorder.operand((2, 3), torch.float64)
    with recorder:
        y = (x.exp() + 1)[:, 0]
    recorder.node(y)

What the function holds in place of numbers are tensors without contents (`Traced`), which have a shape, a dtype and the
node that makes them. Writing in place makes a new node for the memory that is written to; whatever else lies in that
memory is read from it again (`Memory`). So nodes have no effect but their result.
"""

from __future__ import annotations

import hashlib
import operator
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from verify.errors import UsageError
from verify.ops.graph.inference import in_order, overlaps, result_of
from verify.ops.graph.operators import RANDOM, arguments_of, base_name, formula_of, is_composite, looks, writing_of

_aten = torch.ops.aten
_OURS = tuple(os.path.dirname(os.path.abspath(path)) + os.sep for path in (torch.__file__, f"{__file__}/../.."))
_LIFTS = (_aten.lift_fresh.default, _aten.lift.default, _aten.lift_fresh_copy.default)


@dataclass(eq=False, slots=True)
class Node:
    """One call of an operator. `value` is its result as tensors on the meta device, `place` the line that called it."""

    target: Any  # an operator; operator.getitem; "operand"; "constant", whose argument is its tensor
    args: Any
    kwargs: dict[str, Any]
    value: Any
    place: str
    at: int  # its place among the nodes
    fixed: bool  # whether it follows from constants alone


@dataclass(eq=False, slots=True)
class Memory:
    """What one storage holds by now: a node whose result fills it, laid out in `sizes` and `strides`."""

    node: Node
    layout: tuple[tuple[int, ...], tuple[int, ...]]
    numel: int
    version: int = 0


class Traced(Tensor):
    """A tensor of the function that is followed: its shape and dtype, and the node that it had when last read."""

    meta: Tensor
    node: Node
    memory: Memory
    version: int
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise UsageError(
            f"like= left a tensor behind that {func} is called with after it returned",
            hint="a function that keeps nothing between its calls",
        )

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Traced({tuple(self.shape)}, {self.dtype})"


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the operators that are called while it is entered; `table` takes the larger ones apart."""

    def __init__(self, table: Mapping[Any, Callable[..., Any]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.table = table
        self.nodes: list[Node] = []
        self.whole = True  # whether what is called is PyTorch's operator, and not a part of one that was taken apart
        self.returned: list[Node] = []  # what such operators returned: what lies in memory between them
        self.memories: dict[int, Memory] = {}
        self.lifted: dict[int, tuple[Tensor, Traced]] = {}  # constants by their identity, and kept
        self.wholes: dict[Any, Tensor] = {}  # what stands for the storage of a constant
        self.values: dict[Node, Tensor] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as True, which is what it is else, the first call imports the compiler: seconds

    def operand(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A tensor that stands for one of the function's operands."""
        meta = torch.empty(tuple(shape), dtype=dtype, device="meta")
        return self._wrapped(meta, self._added("operand", (), {}, meta))

    def node(self, tensor: Tensor) -> Node:
        """The node that has what a tensor holds now."""
        traced = self._traced(tensor)
        memory = traced.memory
        if traced.version != memory.version:
            traced.node, traced.version = self._read(traced.meta, memory), memory.version
        return traced.node

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():  # modes for what the function calls are none for what that is made of
            made = self._dispatched(func, args, kwargs or {})
            for each in (made if isinstance(made, tuple | list) else [made]) if self.whole else []:
                if isinstance(each, Traced) and each.is_floating_point():
                    self.returned.append(self.node(each))
            return made

    def _dispatched(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if base_name(func).removesuffix("_") in RANDOM:
            raise UsageError(
                f"like= uses random numbers: {func}{at_line()}",
                hint="pass them as an operand, or switch dropout off with .eval()",
            )
        if func in _LIFTS and not isinstance(args[0], Traced):
            return self._traced(args[0])
        if func._schema.is_mutable and writing_of(func).without is not None:
            return self._written(func, args, kwargs)
        if func in self.table:
            formula, before = self.table[func], self.whole
            self.whole = False
            try:
                with self:  # what writes is taken whole: its wrapping does that
                    made = (formula if func._schema.is_mutable else formula_of(formula, args))(*args, **kwargs)
            finally:
                self.whole = before
            if made is not NotImplemented:
                return made
        if is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        if func._schema.is_mutable:
            raise UsageError(
                f"like= cannot be followed: {func} changes what it is given{at_line()}",
                hint="an operator that returns its result",
            )
        return self._called(func, args, kwargs)

    # -- calls ------------------------------------------------------------------------------------------------

    def _called(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Record an operator that writes to nothing."""
        if func is _aten.index.Tensor or (func is _aten.index_put.default and len(args) > 3 and args[3]):
            args = (args[0], self._positions(func, args[1]), *args[2:])
        inputs, options = mapped(args, self.node), mapped(kwargs, self.node)
        if looks(func):
            return self._looked(func, inputs, options)
        value = result_of(func, mapped(args, self._meta), mapped(kwargs, self._meta))
        if isinstance(value, Tensor) and "dtype" in arguments_of(func) and not nodes_in(inputs):
            options["dtype"] = value.dtype  # else the default of the moment at which it is computed
        node = self._added(func, inputs, options, value)
        if isinstance(value, Tensor):
            return self._wrapped(value, node)
        if not isinstance(value, list | tuple):
            return value
        parts = [
            self._wrapped(each, self._added(operator.getitem, (node, place), {}, each))
            if isinstance(each, Tensor)
            else each
            for place, each in enumerate(value)
        ]
        return parts if isinstance(value, list) else tuple(parts)

    def _looked(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What an operator says whose result, or its shape, depends on the values of tensors: of constants alone."""
        fixed = all(node.fixed for node in nodes_in((args, kwargs)))
        found = func(*mapped(args, self.value), **mapped(kwargs, self.value)) if fixed else None
        if not fixed or (isinstance(found, Tensor) and found.is_floating_point()):
            raise UsageError(
                f"like= cannot be followed: {func} looks at the values of a tensor{at_line()}",
                hint="a program without branches on the values of tensors; docs/like.md says what can be followed",
            )
        return mapped(found, self._traced)

    def _positions(self, func: Any, indices: Sequence[Any]) -> list[Any]:
        """Indices by which elements are picked: a mask, which has to be a constant, as the positions that it has."""
        made: list[Any] = []
        for index in indices:
            if index is None or index.dtype not in (torch.bool, torch.uint8):
                made.append(index)
            elif self.node(index).fixed:
                made += map(self._traced, self.value(self.node(index)).nonzero(as_tuple=True))
            else:
                raise UsageError(
                    f"like= picks elements by positions that it computes from its values: {func}{at_line()}",
                    hint="pass the positions as an integer operand: integers={...}",
                )
        return made

    def value(self, node: Node) -> Tensor:
        """The numbers of a node that follows from constants alone."""
        needed, pending = {node}, [node]
        while pending:
            one = pending.pop()
            if one not in self.values and not isinstance(one.target, str):
                new = set(nodes_in((one.args, one.kwargs))) - needed
                needed |= new
                pending += new
        for each in sorted(needed - self.values.keys(), key=lambda each: each.at):
            if isinstance(each.target, str):
                self.values[each] = each.args[0]
                continue
            given, options = (mapped(value, self.values.__getitem__) for value in (each.args, dict(each.kwargs)))
            self.values[each] = each.target(*given, **options)
        return self.values[node]

    # -- memory -----------------------------------------------------------------------------------------------

    def _written(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """An operator that writes to some of its arguments: what it computes, then written to them."""
        writing = writing_of(func)
        targets = [args[place] if place < len(args) else kwargs[name] for place, name in writing.to]
        if func is _aten.copy_.default:
            values = [args[1]]
        else:
            with self:
                made = writing.without(
                    *args, **{key: value for key, value in kwargs.items() if key not in writing.into}
                )
            values = list(made) if isinstance(made, list | tuple) else [made]
        for target, value in zip(targets, values, strict=True):
            if torch.Tag.inplace_view in func.tags or (writing.into and target.shape != value.shape):
                self._become(target, value)
            else:
                self._write(target, value)
        return targets[0] if len(targets) == 1 else tuple(targets)

    def _write(self, tensor: Tensor, value: Tensor) -> None:
        """Write to a tensor, which may be a view of others' memory."""
        traced = self._traced(tensor)
        meta, memory = traced.meta, traced.memory
        if not meta.numel():
            return
        if overlaps(meta):
            raise UsageError(
                f"like= cannot be followed: it writes to a tensor whose elements lie in one place{at_line()}",
                hint="clone() the tensor before",
            )
        with self:
            value = value if value.dtype == meta.dtype else _aten._to_copy.default(value, dtype=meta.dtype)
            value = value if value.shape == meta.shape else _aten.expand.default(value, list(meta.shape))
        node = self.node(value)
        if meta.numel() == memory.numel:
            memory.node, memory.layout = node, (tuple(meta.shape), meta.stride())
        else:
            base = self._lying(memory)
            layout = [list(meta.shape), list(meta.stride()), meta.storage_offset()]
            memory.node = self._added(_aten.as_strided_scatter.default, (base, node, *layout), {}, base.value)
        memory.version += 1
        traced.node, traced.version = node, memory.version

    def _read(self, meta: Tensor, memory: Memory) -> Node:
        """What lies in a part of a memory."""
        if memory.layout == (tuple(meta.shape), meta.stride()) and meta.numel() == memory.numel:
            return memory.node
        layout = [list(meta.shape), list(meta.stride()), meta.storage_offset()]
        return self._added(_aten.as_strided.default, (self._lying(memory), *layout), {}, meta)

    def _lying(self, memory: Memory) -> Node:
        """The node that fills a memory, with its elements in the order in which they lie there."""
        sizes, strides = memory.layout
        if overlaps(shadow := torch.empty_strided(sizes, strides, device="meta")) or shadow.numel() != memory.numel:
            raise UsageError(
                f"like= cannot be followed: it writes to a part of a tensor that does not fill its memory{at_line()}",
                hint="clone() the tensor before",
            )
        order = in_order(strides, sizes)
        if order != list(range(len(sizes))):
            value = memory.node.value.permute(order)
            memory.node = self._added(_aten.permute.default, (memory.node, order), {}, value)
            memory.layout = tuple(value.shape), tuple(strides[dim] for dim in order)
        return memory.node

    def _become(self, tensor: Tensor, value: Tensor) -> None:
        """Give a tensor the shape and the memory of another."""
        other = self._traced(value)
        with no_dispatch():
            tensor.data = self._wrapped(other.meta, self.node(other))
        traced = self._traced(tensor)
        traced.meta, traced.memory, traced.node, traced.version = other.meta, other.memory, other.node, other.version

    def _added(self, target: Any, args: Any, kwargs: dict[str, Any], value: Any) -> Node:
        inputs = nodes_in((args, kwargs))
        fixed = target == "constant" or (target != "operand" and all(each.fixed for each in inputs))
        place = "" if isinstance(target, str) else at_line()
        self.nodes.append(Node(target, args, kwargs, value, place, len(self.nodes), fixed))
        return self.nodes[-1]

    def _wrapped(self, meta: Tensor, node: Node) -> Traced:
        storage = meta.untyped_storage()
        memory = self.memories.get(storage._cdata)
        if memory is None:
            layout = tuple(meta.shape), meta.stride()
            memory = self.memories[storage._cdata] = Memory(node, layout, storage.nbytes() // meta.itemsize)
        traced: Traced = Tensor._make_wrapper_subclass(
            Traced,
            meta.shape,
            strides=meta.stride(),
            storage_offset=meta.storage_offset(),
            dtype=meta.dtype,
            device=torch.device("cpu"),
        )
        traced.meta, traced.node, traced.memory, traced.version = meta, node, memory, memory.version
        return traced

    def _traced(self, tensor: Tensor) -> Traced:
        """The tensor itself, or what stands for a constant: one that the function did not make of its operands."""
        if isinstance(tensor, Traced):
            return tensor
        if id(tensor) not in self.lifted:
            storage = tensor.untyped_storage()
            key = storage._cdata, tensor.dtype
            if key not in self.wholes:
                flat = torch.empty(0, dtype=tensor.dtype).set_(storage)
                self.wholes[key] = flat.to("meta")
                self._wrapped(self.wholes[key], self._constant(flat, self.wholes[key]))
            meta = self.wholes[key].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
            traced = self._wrapped(meta, self._constant(tensor.detach(), meta))
            if traced.version:  # its memory was written to through another constant
                traced.version = -1
            self.lifted[id(tensor)] = tensor, traced
        return self.lifted[id(tensor)][1]

    def _meta(self, tensor: Tensor) -> Tensor:
        return self._traced(tensor).meta

    def _constant(self, value: Tensor, meta: Tensor) -> Node:
        return self._added("constant", (value,), {}, meta)


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """A value with the tensors, or nodes, in it changed."""
    if isinstance(value, Tensor | Node):
        return change(value)
    if isinstance(value, dict):
        return {key: mapped(each, change) for key, each in value.items()}
    return [mapped(each, change) for each in value] if isinstance(value, list | tuple) else value


def nodes_in(value: Any) -> list[Node]:
    if isinstance(value, Node):
        return [value]
    value = value.values() if isinstance(value, dict) else value
    return (
        [node for each in value for node in nodes_in(each)]
        if isinstance(value, Iterable) and not isinstance(value, str | Tensor)
        else []
    )


def at_line() -> str:
    """The line of the function that is followed: the innermost one that is neither PyTorch's nor this package's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    if frame is None:
        return ""
    return f' ("{frame.f_code.co_filename}", line {frame.f_lineno}, in {frame.f_code.co_name})'


def digest_of(nodes: Sequence[Node], ends: Sequence[Node | None]) -> str:
    """Hashes what the nodes compute up to the `ends`: operators, constants, shapes, and which node feeds which.

    Every process makes the same 12 hex digits. Lines of the source, and nodes that no end needs, do not count.
    """
    needed = {node for node in nodes if node.target == "operand"} | {end for end in ends if end is not None}
    for node in reversed(nodes):
        if node in needed:
            needed.update(nodes_in((node.args, node.kwargs)))
    places: dict[Node, str] = {}
    total = hashlib.sha256()
    for node in nodes:
        if node in needed:
            shape = f"{node.value.dtype} {tuple(node.value.shape)}" if isinstance(node.value, Tensor) else ""
            given = _text((node.args, sorted(node.kwargs.items())), places)
            total.update(f"{node.target} {given} {shape}\n".encode())
            places[node] = f"%{len(places)}"
    total.update(_text([end and places[end] for end in ends], places).encode())
    return total.hexdigest()[:12]


def _text(value: Any, places: Mapping[Node, str]) -> str:
    """Writes an argument without addresses; a tensor by its dtype, shape and a digest of its bits."""
    if isinstance(value, Node):
        return places[value]
    if isinstance(value, Tensor):
        bits = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
        return f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(bits.numpy()).hexdigest()}"  # type: ignore[arg-type]
    if isinstance(value, list | tuple):
        return f"[{', '.join(_text(each, places) for each in value)}]"
    return repr(value)
